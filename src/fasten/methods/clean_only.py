"""Clean only: cross-entropy on the clean rows alone, to see whether the noisy rows help at all.

Batches are balanced, with K rows per class, and no larger than the clean set. An epoch has as many updates as a pass
over the noisy rows: with only seventy passes over a thousand rows, the comparison would be unfair. Not in the FasTEN
paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fasten.contract import Batch, Recipe, Stage
from fasten.nets import OneHead
from fasten.ops.means import plain_loss
from fasten.ranges import Count


class CleanOnly(nn.Module):
    """One classifier that never sees a noisy row."""

    def __init__(
        self, backbone: nn.Module, labels: Tensor, *, num_classes: int, per_class: Count | None = None
    ) -> None:
        super().__init__()
        self.net = OneHead(backbone, num_classes)
        self.num_classes, self.per_class, self.num_noisy = num_classes, per_class, len(labels)

    def plan(self, recipe: Recipe) -> list[Stage]:
        draws = {"clean": recipe.balanced_clean(self.per_class, self.num_classes)}
        updates = max(1, math.ceil(self.num_noisy / recipe.batch_size))
        return [Stage("train", self.step, draws, {self.net: recipe.sgd()}, recipe.epochs, updates)]

    def step(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        clean = batch["clean"]
        (logits,) = self.net(clean.x)
        yield self.net, plain_loss(logits, clean)

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.net(x)
        return torch.softmax(logits, 1)
