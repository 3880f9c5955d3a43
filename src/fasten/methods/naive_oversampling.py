"""Naive oversampling: FasTEN's batches without its method (the paper's ablation).

Each update takes a balanced clean batch and a noisy batch and minimises plain cross-entropy on one head: no T, no
correction, no noisy head. What FasTEN gains over this does not come from seeing the clean rows more often.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import Batch, Draw, NormMode, Recipe, Stage
from fasten.nets import OneHead
from fasten.ops.means import weighted_mean
from fasten.ranges import Count


class NaiveOversampling(nn.Module):
    """One classifier on noisy and clean rows, half and half."""

    def __init__(
        self,
        backbone: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        per_class: Count | None = None,
        norm: NormMode = "split",
    ) -> None:
        super().__init__()
        self.net = OneHead(backbone, num_classes)
        self.num_classes, self.per_class, self.norm = num_classes, per_class, norm

    def plan(self, recipe: Recipe) -> list[Stage]:
        draws = {
            "noisy": Draw("noisy", recipe.batch_size),
            "clean": recipe.balanced_clean(self.per_class, self.num_classes),
        }
        return [Stage("train", self.step, draws, {self.net: recipe.sgd()}, recipe.epochs)]

    def step(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy, clean = batch["noisy"], batch["clean"]
        (logits_n,), (logits_c,) = self.net.each([noisy.x, clean.x], self.norm)
        nll = F.cross_entropy(torch.cat([logits_n, logits_c]), torch.cat([noisy.y, clean.y]), reduction="none")
        # Differs: the paper writes sums; this takes the mean over both batches, as FasTEN's code does.
        yield self.net, weighted_mean(nll, torch.cat([noisy.weight, clean.weight]))

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.net(x)
        return torch.softmax(logits, 1)
