"""Plain cross-entropy on the labels as given: the baseline that every method has to beat.

One head, trained on the noisy rows alone, without the clean rows. Not in the FasTEN paper, but the lower reference, and
the warm-up of other methods.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Recipe, Stage
from fasten.nets import OneHead
from fasten.ops.means import plain_loss


class CrossEntropy(nn.Module):
    """One classifier that believes every label."""

    def __init__(self, backbone: nn.Module, labels: Tensor, *, num_classes: int) -> None:
        super().__init__()
        self.net = OneHead(backbone, num_classes)

    def plan(self, recipe: Recipe) -> list[Stage]:
        draws = {"noisy": Draw("noisy", recipe.batch_size)}
        return [Stage("train", self.step, draws, {self.net: recipe.sgd()}, recipe.epochs)]

    def step(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy = batch["noisy"]
        (logits,) = self.net(noisy.x)
        yield self.net, plain_loss(logits, noisy)

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.net(x)
        return torch.softmax(logits, 1)
