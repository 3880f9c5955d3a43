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
    """The mean of all weights and statistics of some networks; of none with a share of 0."""

    def __init__(self, parts: Iterable[nn.Module], share: float, length: int) -> None:
        self.share, self.every = share, max(1, length // PER_EPOCH)
        state = {t: None for part in parts if share for t in (*part.parameters(), *part.buffers())}  # each once
        self.weights = [tensor for tensor in state if tensor.is_floating_point()]
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


@torch.no_grad()
def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)
