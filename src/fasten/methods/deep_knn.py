"""Deep kNN: filter noisy labels by their nearest neighbours in the space of logits.

Bahri, Jiang, Gupta, ICML 2020. A preliminary network is trained on the clean rows alone, and another on all rows; the
one that does better on held-out clean rows maps all rows to logits. A noisy row is kept if its label is the most
frequent one among its k nearest neighbours. A new network is trained on the clean rows and the rows kept.

No code was released. As in the FasTEN paper, the clean preliminary network sees all clean rows, the validation rows
choose between the two, the better one is used as it is (the original splits the clean rows 70/30 to choose, then trains
once more), and every network is trained by Adam at 1e-3. Both papers leave the rest open; we chose: logits without
augmentation, from each network's best epoch; neighbours among noisy rows (with their given labels) and clean rows (with
their verified ones), never the row itself; a row's own label wins a tie, as does the network of all rows, which is also
used if there are no validation rows; Adam without weight decay, batches of the recipe's size (100).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Optim, Predict, Recipe, Stage
from fasten.nets import OneHead
from fasten.ops.means import plain_loss
from fasten.ops.neighbours import vote
from fasten.ranges import Count, NotNegative, Positive


def default_neighbours(num_rows: int) -> int:
    """k for a number of rows: 500 for CIFAR's 45,000 or more, in proportion for fewer, but at least 10.

    >>> [default_neighbours(rows) for rows in (1_000_000, 45_000, 1_297, 75)]
    [500, 500, 14, 10]
    """
    return min(500, max(10, round(num_rows / 90)))


class DeepKNN(nn.Module):
    """Two preliminary classifiers, a vote of neighbours by the better one, and a classifier on what is left.

    `neighbours`: k, by default from `default_neighbours`; `adam_rate` and `adam_decay`: the rate and the weight decay
    of all three trainings, in place of the recipe's.
    """

    keep: Tensor
    clean_hits: Tensor
    by_all: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        neighbours: Count | None = None,
        adam_rate: Positive = 1e-3,
        adam_decay: NotNegative = 0.0,
    ) -> None:
        super().__init__()
        self.net = OneHead(backbone, num_classes)
        self.num_classes, self.neighbours = num_classes, neighbours
        self.adam_rate, self.adam_decay = adam_rate, adam_decay
        self.register_buffer("keep", torch.ones(len(labels)))  # 1 or 0: whether the filter keeps each noisy row
        self.register_buffer("clean_hits", torch.zeros((), dtype=torch.int64))  # rows the clean network has right
        self.register_buffer("by_all", torch.zeros((), dtype=torch.bool))  # whether the network of all rows filters

    def plan(self, recipe: Recipe) -> list[Stage]:
        clean, both = {"clean": Draw("clean", recipe.batch_size)}, {"both": Draw("both", recipe.batch_size)}
        kept = {"both": replace(both["both"], keep=self.keep)}  # clean rows come after the noisy ones and stay
        optim: dict[nn.Module, Optim] = {self.net: Optim(self.adam_rate, weight_decay=self.adam_decay, kind="adam")}
        first, second, third = (max(1, (recipe.epochs + more) // 3) for more in range(3))
        return [
            Stage("clean", self.step_all, clean, optim, first),
            Stage("union", self.step_all, both, optim, second, prepare=self.remember_clean, start="initial"),
            Stage("filtered", self.step_all, kept, optim, third, prepare=self.choose, start="initial"),
        ]

    def remember_clean(self, predict: Predict) -> None:
        """Remember what the network of the clean rows would keep, and how accurate it is."""
        self.clean_hits.copy_(self._hits(predict))
        self.keep.copy_(self._agrees(predict))

    def choose(self, predict: Predict) -> None:
        """Take the filter of the network of all rows, unless the network of the clean rows is more accurate."""
        self.by_all.copy_(self._hits(predict) >= self.clean_hits)
        self.keep.copy_(torch.where(self.by_all, self._agrees(predict), self.keep))

    def _hits(self, predict: Predict) -> Tensor:
        logits, labels = predict("valid", self.logits)
        return (logits.argmax(1) == labels).sum()

    def _agrees(self, predict: Predict) -> Tensor:
        """1 for each noisy row whose label no other label outvotes among its neighbours, otherwise 0."""
        logits, labels = predict("both", self.logits)
        noisy = torch.arange(len(self.keep), device=logits.device)  # in `both`, they come first
        k = self.neighbours or default_neighbours(len(logits))
        votes = vote(logits, labels, noisy, k=k, num_classes=self.num_classes)  # (n, N)
        own = votes.gather(1, labels[noisy, None]).squeeze(1)
        return (own == votes.amax(1)).to(self.keep.dtype)

    def facts(self) -> dict[str, Tensor]:
        """For the record."""
        return {"kept_fraction": self.keep.mean(), "filtered_by_all_rows": self.by_all}

    def step_all(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        (rows,) = batch.draws.values()
        yield self.net, plain_loss(self.logits(rows.x), rows)

    def logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)[0]
        return logits

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.logits(x), 1)
