"""GLC: using trusted data to train deep networks on labels corrupted by severe noise (gold loss correction).

Hendrycks, Mazeika, Wilson, Gimpel, NeurIPS 2018. A first network learns the noisy labels; its mean prediction for
clean rows of class i is row i of T̂. A second one, from the same initial weights, is trained on noisy and clean rows
together: on noisy rows through T̂, on clean rows directly. With the true T there is no first network (`oracle`).

Letters: f is the softmax of the network, T̂ the estimate, ȳ a given label, y a verified one. As in the authors' code:
Nesterov momentum, kept from the first stage to the second, a rate that falls along half a cosine in each stage
(milestones do not apply), and 75 epochs per stage, since the FasTEN paper states neither schedule nor length. Each
stage has half of a run's epochs; if the second is the only one, it has all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Optim, Predict, Recipe, Stage
from fasten.nets import OneHead
from fasten.ops.means import plain_loss, weighted_mean
from fasten.ops.transition import LOG_GUARD, corrected_nll, estimate_transition
from fasten.ranges import BelowOne


class GLC(nn.Module):
    """T̂ from a network of the noisy labels, then a network trained through it.

    `oracle`: a true T to use in place of T̂, without the first stage; `norm`: batch-norm statistics of a batch as a
    whole (`joint`), or of its noisy and its clean rows separately (`split`); `mean_over`: the loss of a short last
    batch is divided by its own number of `rows`, or by the `batch` size; `guard`: added inside the log. The authors'
    code: `norm=split mean_over=batch guard=0 batch_size=128`.
    """

    transition: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        norm: Literal["joint", "split"] = "joint",
        mean_over: Literal["rows", "batch"] = "rows",
        guard: BelowOne = LOG_GUARD,
        oracle: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.net = OneHead(backbone, num_classes)
        self.num_noisy, self.num_classes = len(labels), num_classes
        self.norm, self.mean_over, self.guard = norm, mean_over, guard
        self.knows_transition = oracle is not None
        self.register_buffer("transition", torch.eye(num_classes) if oracle is None else oracle.clone())  # T̂

    def plan(self, recipe: Recipe) -> list[Stage]:
        first, second = (0, recipe.epochs) if self.knows_transition else recipe.divided(1 / 2)
        noisy, both = (Draw(source, recipe.batch_size) for source in ("noisy", "both"))
        optim = self._optim(recipe, second)
        step = partial(self.step_corrected, size=recipe.batch_size)
        corrected = Stage("corrected", step, {"both": both}, optim, second, trace={"transition": self.transition})
        if self.knows_transition:
            return [corrected]
        return [
            Stage("noisy", self.step_noisy, {"noisy": noisy}, self._optim(recipe, first), first),
            replace(corrected, prepare=self.estimate, start="initial", go_on=True),
        ]

    def _optim(self, recipe: Recipe, epochs: int) -> dict[nn.Module, Optim]:
        nesterov = recipe.momentum > 0  # it needs momentum
        # Differs: in the code a short last batch moves the cosine as far as a full one; with little data it ends early.
        return {self.net: Optim(recipe.rate, recipe.momentum, recipe.weight_decay, nesterov=nesterov, cosine=epochs)}

    def step_noisy(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy = batch["noisy"]
        (logits,) = self.net(noisy.x)
        yield self.net, plain_loss(logits, noisy)

    def estimate(self, predict: Predict) -> None:
        """Estimate T̂ from all clean rows; a class that has none gets the identity's row."""
        # Differs: the code takes the network of the last epoch; this takes the best one by validation.
        p, y = predict("clean")
        self.transition.copy_(estimate_transition(p, y, self.num_classes))

    def step_corrected(self, batch: Batch, size: int) -> Iterator[tuple[nn.Module, Tensor]]:
        rows = batch["both"]
        is_noisy = rows.index < self.num_noisy
        logits = self._logits(rows.x, is_noisy, rows.weight)  # (B, N)
        through = corrected_nll(logits.softmax(1), self.transition, rows.y, self.guard)  # −log (T̂ᵀ f)[ȳ]
        nll = torch.where(is_noisy, through, F.cross_entropy(logits, rows.y, reduction="none"))
        if self.mean_over == "batch":
            yield self.net, (rows.weight * nll).sum() / size
        else:
            # Differs: the code divides a short last batch by the nominal size.
            yield self.net, weighted_mean(nll, rows.weight)

    def _logits(self, x: Tensor, is_noisy: Tensor, weight: Tensor) -> Tensor:
        if self.norm == "joint":
            # Differs: the code has two passes, noisy rows first. With 1,000 clean rows of 45,000, the second one's
            # statistics come from two or three clean images, and move the running ones as much as the first one's.
            joint: Tensor = self.net(x)[0]
            return joint
        group = torch.stack([weight * is_noisy, weight * ~is_noisy], 1)  # (B, 2)
        with self.net.parts.using(group=group):
            split: Tensor = self.net(x)[0]
        return split

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.net(x)
        return torch.softmax(logits, 1)
