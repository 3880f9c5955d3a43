"""What a network says about each row over a stage, as a mean: it finds wrong labels better than the last word.

Early in training a network has not yet memorised wrong labels; at the end it may have. So users' own rows are judged by
the mean p(y | x) over the epochs up to the selected one, without those in which it knew too little: their validation
accuracy is lower than the best by more than a standard error. `observing.py` makes a plain mean in a user's own loop.
What is gained is in docs/methods.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

# At most about so many epochs of a stage count: each costs a pass over the rows, which are in memory or in files.
TIMES, TIMES_FILES = 30, 10
MOST = 2**26  # probabilities in a mean, 256 MB; with more rows or classes, the last word has to do
ROUNDING = 1e-6  # of accuracies in float32


class Opinions:
    """The mean p(y | x) of some rows over the good epochs of a stage, and the mean as it was at the selected epoch.

    `num_valid` is the number of validation rows. If an epoch is better than any in the mean by more than a standard
    error, the mean starts again with it.
    """

    def __init__(
        self,
        rows: int = 0,
        num_classes: int = 0,
        device: torch.device | None = None,
        *,
        num_valid: int = 1,
        most: int = TIMES,
    ) -> None:
        self.num_valid, self.most = num_valid, most
        self.mean = torch.zeros(rows, num_classes, device=device)
        self.selected = torch.zeros_like(self.mean)
        self.times = torch.zeros((), dtype=torch.int64)  # epochs in `mean`
        self.best = torch.zeros(())  # validation accuracy of the best epoch so far
        self.worst = torch.ones(())  # of the worst one in `mean`

    def due(self, epoch: int, epochs: int) -> bool:
        """Whether an epoch of a stage may count: the first one, then every few; without rows none.

        >>> [epoch for epoch in range(1, 31) if Opinions(1, 2, most=10).due(epoch, 30)]
        [1, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30]
        """
        return len(self.mean) > 0 and (epoch == 1 or epoch % math.ceil(epochs / self.most) == 0)

    def forget(self) -> None:
        """Start again, for a new stage."""
        self.times.zero_()
        self.best.zero_()
        self.worst.fill_(1)

    def listen(self, accuracy: float, parts: Iterable[Tensor]) -> None:
        """Take class probabilities of all rows, in parts, into the mean, unless the epoch was too poor."""
        self.best.clamp_(min=accuracy)
        least = float(self.best) - self._standard_error() - ROUNDING
        if accuracy < least:
            return
        if float(self.worst) < least:
            self.times.zero_()
            self.worst.fill_(1)
        self.worst.clamp_(max=accuracy)
        self.times += 1
        first, share = 0, 1 / int(self.times)
        for part in parts:
            self.mean[first : first + len(part)].lerp_(part.to(self.mean), share)
            first += len(part)

    def _standard_error(self) -> float:
        """Of the best accuracy; it counts one more row of either kind, so that no error at all does not make it 0."""
        p = (float(self.best) * self.num_valid + 1) / (self.num_valid + 2)
        return math.sqrt(p * (1 - p) / self.num_valid)

    def select(self) -> None:
        """Keep the mean as it is now: an epoch was selected."""
        self.selected.copy_(self.mean)

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint must keep."""
        kept = {name: tensor for name, tensor in vars(self).items() if isinstance(tensor, Tensor)}
        return {f"opinions.{name}": tensor for name, tensor in kept.items()} if len(self.mean) else {}
