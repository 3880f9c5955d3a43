"""T-Revision: are anchor points really indispensable in label-noise learning?

Xia, Liu, Wang, Han, Gong, Niu, Sugiyama, NeurIPS 2019. A first network learns the noisy labels, and its anchors give T̂,
as in Forward. From its best epoch, training continues with importance weights: a row has the weight β, how much
likelier its given label is as the true one than as a noisy one. Then T̂ is revised: ΔT, zero at first, is learned along
with the network by the same loss, so that rows which only looked like anchors do little harm. No clean rows are needed.

Letters: f is the softmax of the network, ȳ a given label, T = T̂ + ΔT, β = f[ȳ] / (Tᵀf)[ȳ]. As in the authors' code:
20 + 200 + 200 epochs (or others in that proportion), and a tenth of the recipe's rate; no momentum in the first stage;
in the second, the rate falls at the milestones, which count its epochs; Adam in the third. Weight decay is the
recipe's. The authors' code for CIFAR-10 is `filter=table normalise=columns shift=counted guard=0`; for CIFAR-100,
`percentile=none` as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Examples, Optim, Predict, Recipe, Stage
from fasten.nets import OneHead
from fasten.ops.anchors import Filter, Percentile, anchor_rows
from fasten.ops.means import plain_loss, weighted_mean
from fasten.ops.transition import LOG_GUARD
from fasten.ranges import BelowOne, Positive
from fasten.ranks import rank, world


class TRevision(nn.Module):
    """T̂ from anchors, a network trained further with importance weights, then T̂ and network revised together.

    `revision_rate`: of Adam, for the network and ΔT; `percentile`: rows at or above it are not used as anchors, 100 or
    none for no limit; `filter`: an outlier is left out for its class alone (`column`), or also counts as zero for all
    classes after it (`table`); `normalise`: whether the rows or the columns of T̂ are divided by the sums of its rows;
    `shift`: every row sees T̂ + ΔT (`once`), or row i of a batch T̂ + i ΔT (`counted`); `guard`: the lower limit of
    (Tᵀf)[ȳ].
    """

    transition: Tensor
    revised: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        revision_rate: Positive = 5e-7,
        percentile: Percentile | None = 97.0,
        filter: Filter = "column",
        normalise: Literal["rows", "columns"] = "rows",
        shift: Literal["once", "counted"] = "once",
        guard: BelowOne = LOG_GUARD,
    ) -> None:
        super().__init__()
        self.net = OneHead(backbone, num_classes)
        self.revision = nn.ParameterDict({"delta": nn.Parameter(torch.zeros(num_classes, num_classes))})  # ΔT
        self.revision_rate, self.percentile, self.filter = revision_rate, percentile, filter
        self.normalise, self.shift, self.guard = normalise, shift, guard
        self.register_buffer("transition", torch.eye(num_classes))  # T̂
        self.register_buffer("revised", torch.eye(num_classes))  # T̂ + ΔT, as of the last update

    def plan(self, recipe: Recipe) -> list[Stage]:
        first, rest = recipe.divided(20 / 420)
        second, third = replace(recipe, epochs=rest).divided(1 / 2)
        draws = {"noisy": Draw("noisy", recipe.batch_size)}
        slow = replace(recipe.sgd(), rate=recipe.rate / 10)
        early: dict[nn.Module, Optim] = {self.net: replace(slow, momentum=0.0, milestones=())}
        middle: dict[nn.Module, Optim] = {self.net: slow}
        adam = Optim(self.revision_rate, weight_decay=recipe.weight_decay, kind="adam")
        late = {self.revision: adam, self.net: adam}
        by_T, by_both = {"transition": self.transition}, {"transition": self.revised}
        return [
            Stage("noisy", self.step_noisy, draws, early, first),
            Stage("weighted", self.step, draws, middle, second, trace=by_T, prepare=self.estimate, start="best"),
            Stage("revised", self.step_revised, draws, late, third, trace=by_both, start="best"),
        ]

    def step_noisy(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy = batch["noisy"]
        (logits,) = self.net(noisy.x)
        yield self.net, plain_loss(logits, noisy)

    def estimate(self, predict: Predict) -> None:
        """Estimate T̂ from the anchors among the noisy rows."""
        # Differs: the code takes the epoch with the highest accuracy on noisy validation rows (in the second stage, of
        # Tᵀf); this takes the one with the highest accuracy of f on our validation rows, whose labels are right.
        rows = anchor_rows(predict("noisy")[0], self.percentile, self.filter)
        # Differs: the code divides column j by the sum of row j. With our filter each sums to one: it is the same.
        sums = rows.sum(1, keepdim=True)
        self.transition.copy_(rows / (sums if self.normalise == "rows" else sums.T))

    def step(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy = batch["noisy"]
        (logits,) = self.net(noisy.x)
        weight = self._importance(logits.detach().softmax(1), self.transition.T[noisy.y], noisy.y)  # β, a constant
        yield self.net, self._loss(weight, logits, noisy)

    def step_revised(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy = batch["noisy"]
        (logits,) = self.net(noisy.x)
        # As the authors' single step for both: the two gradients are of one loss, at the weights before either step.
        delta, now = self.revision["delta"], self.revision["delta"].detach().clone()
        for part, z, dT in ((self.revision, logits.detach(), delta), (self.net, logits, now)):
            weight = self._importance(z.softmax(1), self._columns(dT, noisy.y), noisy.y)  # β with its derivative
            yield part, self._loss(weight, z, noisy)
        self.revised.copy_(self.transition + now)

    def _columns(self, dT: Tensor, labels: Tensor) -> Tensor:
        """T[·, ȳ] of each row, (B, N)."""
        if self.shift == "once":
            return (self.transition + dT).T[labels]
        # Differs: the code adds ΔT to T once more for every row of a batch, so that the i-th row sees it i times.
        count = torch.arange(len(labels), device=dT.device)[:, None] * world() + rank() + 1
        return self.transition.T[labels] + count * dT.T[labels]

    def _importance(self, f: Tensor, columns: Tensor, labels: Tensor) -> Tensor:
        own = f.gather(1, labels[:, None]).squeeze(1)
        return own / (columns * f).sum(1).clamp(min=self.guard)  # β = f[ȳ] / (Tᵀf)[ȳ]

    def _loss(self, weight: Tensor, logits: Tensor, rows: Examples) -> Tensor:
        return weighted_mean(weight * F.cross_entropy(logits, rows.y, reduction="none"), rows.weight)

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.net(x)
        return torch.softmax(logits, 1)
