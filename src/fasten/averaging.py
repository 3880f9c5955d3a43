"""Weights averaged over a share of the updates so far; they are evaluated and kept in place of the last ones.

After update t of a stage

    mean = mean + (weights − mean) / (1 + share · t)

so the mean covers a growing number of updates, and soon forgets the initial weights. To save passes over the weights,
this is done only about forty times per epoch, and t counts those times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

PER_EPOCH = 40


class Mean:
    """The mean of all weights and statistics that training changes in some networks; empty if the share is 0."""

    def __init__(self, parts: Iterable[nn.Module], share: float, length: int) -> None:
        self.share, self.every = share, max(1, length // PER_EPOCH)
        state = {tensor: None for part in parts if share for tensor in _moving(part)}  # each once
        self.weights = list(state)
        self.values = [tensor.detach().clone() for tensor in self.weights]

    @torch.no_grad()
    def follow(self, done: int) -> None:
        """Take the weights into the mean, if it is time to; `done` updates of the stage are done."""
        if self.weights and done % self.every == 0:
            torch._foreach_lerp_(self.values, self.weights, 1 / (1 + self.share * done / self.every))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the means in the networks for a while; in the same memory, which a captured update uses."""
        weights = [tensor.detach().clone() for tensor in self.weights]
        _copy(self.weights, self.values)
        try:
            yield
        finally:
            _copy(self.weights, weights)


def _moving(part: nn.Module) -> list[Tensor]:
    """The tensors to average. Frozen networks have none: their weights are buffers, their layers in evaluation mode."""
    buffers = (b for module in part.modules() if module.training for b in module.buffers(recurse=False))
    return [*(p for p in part.parameters() if p.requires_grad), *(b for b in buffers if b.is_floating_point())]


@torch.no_grad()
def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)
