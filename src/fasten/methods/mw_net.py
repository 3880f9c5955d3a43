"""MW-Net: meta-weight-net, learning an explicit mapping for sample weighting.

Shu, Xie, Yi, Zhao, Zhou, Xu, Meng, NeurIPS 2019. A tiny network V maps a row's loss to its weight. It is learned along
with the classifier by looking ahead: take a virtual step on the weighted losses, compute the clean loss there, and move
V one step along its gradient; then take the real step with the weights of the new V.

Letters: θ are the classifier's weights, ω those of V, ℓ a row's loss, α and β the rates of θ and ω.
Follows the authors' first script: the weights of a batch add up to its size, V is trained by SGD, the virtual rate is
the real one. Their later script is `normalise=false meta_optim=adam nesterov=false`. Differs from both: the clean set
is the run's own, and no clean row is among the noisy ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Optim, Recipe, Stage
from fasten.nets import OneHead
from fasten.nets.weigher import Weigher
from fasten.ops.lookahead import Outputs, Route, look_ahead
from fasten.ops.means import weighted_mean
from fasten.ops.remember import remember
from fasten.ranges import Count, Positive
from fasten.ranks import total

NO_WEIGHT = 1e-12  # the least mean weight of a batch: sigmoids can underflow
META_OPTIMS: dict[str, Callable[[float], Optim]] = {
    "adam": lambda rate: Optim(rate, weight_decay=1e-4, kind="adam"),
    "sgd": lambda rate: Optim(rate, momentum=0.9, weight_decay=5e-4, nesterov=True),
}


class MWNet(nn.Module):
    """A weight for every loss, learned from clean rows.

    `clean_batch`: clean rows per update, by default as many as noisy ones; `meta_optim`, `meta_rate`: V's optimiser,
    with decay and momentum as in the script that uses it, and its rate; `normalise`: weights of a batch add up to its
    size; `nesterov`: whether the classifier's momentum is Nesterov's; `route`: how to find the meta-gradient.
    """

    weights: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        clean_batch: Count | None = None,
        meta_optim: Literal["adam", "sgd"] = "sgd",
        meta_rate: Positive = 1e-3,
        normalise: bool = True,
        nesterov: bool = True,
        route: Route = "tangent",
    ) -> None:
        super().__init__()
        self.net = OneHead(backbone, num_classes)
        self.weigher = Weigher()
        self.clean_batch, self.normalise, self.nesterov, self.route = clean_batch, normalise, nesterov, route
        self.meta = META_OPTIMS[meta_optim](meta_rate)
        self.register_buffer("weights", torch.ones(len(labels)))  # of each row at its last visit

    def plan(self, recipe: Recipe) -> list[Stage]:
        clean = recipe.random_clean(self.clean_batch)
        draws = {"noisy": Draw("noisy", recipe.batch_size), "clean": clean}
        sgd = replace(recipe.sgd(), nesterov=self.nesterov and recipe.momentum > 0)  # it needs momentum
        optim = {self.weigher: self.meta, self.net: sgd}
        return [Stage("train", self.step, draws, optim, recipe.epochs)]

    def step(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy, clean = batch["noisy"], batch["clean"]

        def nll(outputs: Outputs) -> Tensor:
            return F.cross_entropy(outputs[0][0], noisy.y, reduction="none")

        def inner(outputs: Outputs) -> Tensor:
            losses = nll(outputs)
            return weighted_mean(self._weigh(losses.detach(), noisy.weight) * losses, noisy.weight)

        # θ′(ω) = θ − α ∇ mean V(ℓ; ω) ℓ, and L_meta(θ′), the loss of the clean rows from there.
        rate = batch.rates[self.net]
        ahead = look_ahead(self.net, [noisy.x], inner, clean, rate=rate, route=self.route)
        yield self.weigher, ahead.loss  # ω ← ω − β ∂L_meta(θ′)/∂ω

        losses = nll(ahead.outputs)
        with torch.no_grad():
            w = self._weigh(losses, noisy.weight)  # by the new ω
        yield self.net, weighted_mean(w * losses, noisy.weight)  # θ ← θ − α ∇ mean V(ℓ; ω) ℓ
        remember(self.weights, noisy, w)

    def _weigh(self, losses: Tensor, weight: Tensor) -> Tensor:
        w: Tensor = self.weigher(losses)
        return w / total(weighted_mean(w, weight)).clamp(min=NO_WEIGHT) if self.normalise else w

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.net(x)
        return torch.softmax(logits, 1)
