"""L2RW: learning to reweight examples for robust deep learning.

Ren, Zeng, Yang, Urtasun, ICML 2018. The weight of a noisy row is proportional to how much a step along its own gradient
would lower the loss of a clean batch; rows that would raise it have no weight. The weights last for one update: there
is no network behind them. They are found by looking ahead: the clean loss after a virtual step is differentiated with
respect to the weights of that step, at zero.

Letters: ε are the weights of the virtual step, u the fall of the clean loss, w the weights of the real step. Differs:
weight decay belongs to the optimiser here, not to the three losses as in the authors' graph; and there is no momentum
(docs/methods.md says how that was chosen).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Recipe, Stage
from fasten.nets import OneHead
from fasten.ops.lookahead import Outputs, Route, look_ahead
from fasten.ops.remember import remember
from fasten.ranges import Count
from fasten.ranks import total


class L2RW(nn.Module):
    """Weights for one update, from the gradients of that update.

    `clean_batch`: clean rows per update, by default as many as noisy ones; `route`: how to find the meta-gradient.
    """

    weights: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        clean_batch: Count | None = None,
        route: Route = "tangent",
    ) -> None:
        super().__init__()
        self.net = OneHead(backbone, num_classes)
        self.clean_batch, self.route = clean_batch, route
        self.register_buffer("weights", torch.ones(len(labels)))  # of each row at its last visit, 1 is average

    def plan(self, recipe: Recipe) -> list[Stage]:
        clean = recipe.random_clean(self.clean_batch)
        draws = {"noisy": Draw("noisy", recipe.batch_size), "clean": clean}
        return [Stage("train", self.step, draws, {self.net: recipe.sgd()}, recipe.epochs)]

    def step(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy, clean = batch["noisy"], batch["clean"]
        epsilon = torch.zeros_like(noisy.weight).requires_grad_()

        def nll(outputs: Outputs) -> Tensor:
            return F.cross_entropy(outputs[0][0], noisy.y, reduction="none")

        ahead = look_ahead(
            self.net,
            [noisy.x],
            lambda outputs: (epsilon * nll(outputs)).sum(),  # zero, and so is the step: only its derivative counts
            clean,
            rate=batch.rates[self.net],
            moves=False,
            route=self.route,
        )
        (slope,) = torch.autograd.grad(ahead.loss, epsilon, retain_graph=True)  # the real step uses the same graph
        u = noisy.weight * torch.relu(-slope)  # max(−∂L_meta/∂ε, 0) at ε = 0
        fall = total(u.sum())
        w = u / torch.where(fall > 0, fall, 1)  # w = u / Σ u; all of them are zero if no row helps
        yield self.net, (w * nll(ahead.outputs)).sum()  # a sum, since the weights add up to one
        remember(self.weights, noisy, w * total(noisy.weight.sum()))

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.net(x)
        return torch.softmax(logits, 1)
