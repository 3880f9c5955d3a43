"""Weights averaged over a share of the updates so far, to be evaluated and kept in place of the last ones.

After update t of a stage

    mean = mean + (weights − mean) / (1 + share · t)

so that the mean reaches back over a growing number of updates, and what the network began with is soon forgotten. It
takes the weights in some forty times an epoch, with t counted in those times, where every update would cost one pass
more over the weights each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

PER_EPOCH = 40


class Mean:
    """The mean of the weights and statistics of some networks that training moves; of none with a share of 0."""

    def __init__(self, parts: Iterable[nn.Module], share: float, length: int) -> None:
        self.share, self.every = share, max(1, length // PER_EPOCH)
        state = {tensor: None for part in parts if share for tensor in _moving(part)}  # each once
        self.weights = list(state)
        self.values = [tensor.detach().clone() for tensor in self.weights]

    @torch.no_grad()
    def follow(self, done: int) -> None:
        """After so many updates of the stage."""
        if self.weights and done % self.every == 0:
            torch._foreach_lerp_(self.values, self.weights, 1 / (1 + self.share * done / self.every))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The networks are their means meanwhile: in the same memory, which a captured update holds."""
        weights = [tensor.detach().clone() for tensor in self.weights]
        _copy(self.weights, self.values)
        try:
            yield
        finally:
            _copy(self.weights, weights)


def _moving(part: nn.Module) -> list[Tensor]:
    """What a frozen network has stays out: its weights are buffers, and its layers are in evaluation mode."""
    buffers = (b for module in part.modules() if module.training for b in module.buffers(recurse=False))
    return [*(p for p in part.parameters() if p.requires_grad), *(b for b in buffers if b.is_floating_point())]


@torch.no_grad()
def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)
