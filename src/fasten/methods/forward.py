"""Forward: making deep neural networks robust to label noise, a loss correction approach.

Patrini, Rozza, Menon, Nock, Qu, CVPR 2017. A first network learns the noisy labels; its prediction for the row that it
finds most typical of class i is row i of T̂. A second one, from the same initial weights, is trained on the same rows
through T̂: with `forward`, T̂ turns its probabilities into those of the given label; with `backward`, the inverse of T̂
turns the losses of all labels into one that is right on average. No clean rows are needed.

Letters: f is the softmax of the network, clipped; T̂ the estimate; ȳ a given label. The schedule is the authors' for
CIFAR-10: 120 epochs per stage, with milestones that count the epochs of each stage; each stage has half of a run's
epochs. Rate, momentum, weight decay and batch size are the recipe's. On CIFAR-100 the authors do not filter outliers
(`percentile=none`).

On digits at 60% noise (three seeds) it reaches 0.617, below cross-entropy's 0.754; at the last epoch 0.539 against
0.581. The cause is T̂: each of its rows is the prediction for a single one of 1,197 rows. With the true T in its place
the second stage reaches 0.857 (not kept).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Optim, Predict, Recipe, Stage
from fasten.nets import OneHead
from fasten.ops.anchors import Filter, Percentile, anchor_rows
from fasten.ops.means import plain_loss, weighted_mean
from fasten.ops.transition import corrected_nll

CLIP = 1e-7  # probabilities stay this far from 0 and 1, as in the authors' code
FLOOR = CLIP**2  # of T̂ in the loss, small beside any f: a label ruled out for every class does not cost infinity


class Forward(nn.Module):
    """T̂ from the anchors of a network of the noisy labels, then a network trained through it.

    `correction`: by T̂ or by its inverse; `percentile`: rows at or above it are not used as anchors, 100 or none for no
    limit; `filter`: an outlier is left out for its class alone (`column`), or also counts as zero for all classes after
    it (`table`, the authors' code).
    """

    transition: Tensor
    inverse: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        correction: Literal["forward", "backward"] = "forward",
        percentile: Percentile | None = 97.0,
        filter: Filter = "column",
    ) -> None:
        super().__init__()
        self.net = OneHead(backbone, num_classes)
        self.correction, self.percentile, self.filter = correction, percentile, filter
        self.register_buffer("transition", torch.eye(num_classes))  # T̂
        self.register_buffer("inverse", torch.eye(num_classes))  # of T̂, for `backward`

    def plan(self, recipe: Recipe) -> list[Stage]:
        first, second = recipe.divided(1 / 2)
        draws = {"noisy": Draw("noisy", recipe.batch_size)}
        optim: dict[nn.Module, Optim] = {self.net: recipe.sgd()}
        trace = {"transition": self.transition}
        return [
            Stage("noisy", self.step_noisy, draws, optim, first),
            Stage("corrected", self.step, draws, optim, second, trace=trace, prepare=self.estimate, start="initial"),
        ]

    def step_noisy(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy = batch["noisy"]
        (logits,) = self.net(noisy.x)
        yield self.net, plain_loss(logits, noisy)

    def estimate(self, predict: Predict) -> None:
        """Estimate T̂ from the anchors among the noisy rows."""
        # Differs: the code takes the epoch with the lowest loss on noisy validation rows; this takes the best epoch by
        # our validation rows. In the code, an outlier of one class has probability zero for the classes after it.
        rows = anchor_rows(predict("noisy")[0], self.percentile, self.filter)
        self.transition.copy_(rows / rows.sum(1, keepdim=True))
        if self.correction == "backward":
            self.inverse.copy_(torch.linalg.pinv(self.transition))  # the inverse, if there is one

    def step(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy = batch["noisy"]
        (logits,) = self.net(noisy.x)
        f = logits.softmax(1).clamp(CLIP, 1 - CLIP)  # (B, N)
        yield self.net, weighted_mean(self._nll(f, noisy.y), noisy.weight)

    def _nll(self, f: Tensor, labels: Tensor) -> Tensor:
        if self.correction == "forward":
            return corrected_nll(f, self.transition.clamp(min=FLOOR), labels, guard=0.0)  # −log (T̂ᵀf)[ȳ]
        return -(self.inverse[labels] * f.log()).sum(1)  # (T̂⁻¹ ℓ)[ȳ], where ℓ = −log f

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.net(x)
        return torch.softmax(logits, 1)
