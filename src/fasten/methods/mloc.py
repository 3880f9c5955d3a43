"""MLoC: training noise-robust deep neural networks via meta-learning (meta loss correction).

Wang, Hu, Hu, CVPR 2020. T is a meta variable: the network takes a virtual step on a loss that is corrected by T, the
clean loss after that step is differentiated with respect to T, and T moves along its gradient; then comes the real
step, corrected by the new T. A warm-up with plain cross-entropy precedes all this.

Letters: f is the softmax of the network, z its logits, θ its weights, α `virtual_rate`, G the gradient of the clean
loss with respect to T, ȳ the given label. The authors' code and their paper differ, and the FasTEN paper mentions a
strong prior and clipping, which neither has. The defaults are a reconstruction from all three: T persists, starts near
the identity (`prior`), corrects probabilities and has normalised rows. G is clipped hard: in FasTEN's figure T moves
very slowly, and without clipping it runs past the true T. The virtual step uses the mean loss and a rate of 0.1, which
on 100 rows is the code's 1e-3 on a sum. The real step uses the sum, as in the code: on a mean, FasTEN's rate of 1e-4
would be a hundred times slower.

The authors' code has batches of 64 (the virtual rate grows with the batch) and all of 500 clean rows: `--set
persistent=false --set on=logits --set normalise=columns --set clip=none --set virtual_rate=0.064 --set batch_size=64
--set clean_batch=500`. Its clean rows and its choice of epochs come from the test set; ours do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Optim, Recipe, Stage
from fasten.nets import OneHead
from fasten.ops.lookahead import Outputs, Route, look_ahead
from fasten.ops.means import plain_loss, weighted_mean
from fasten.ops.transition import corrected_nll
from fasten.ranges import Count, NotNegative, Part, Positive, Range
from fasten.ranks import total


class MLoC(nn.Module):
    """T learned by looking ahead, after a warm-up.

    `warm_up`: its share of the epochs; `meta_stage_rate`: of the network after it; `virtual_rate`: of the virtual
    step, on the mean loss; `transition_rate`: of T, 0 to leave it as it is; `clip`: the largest norm of G, none for no
    limit; `persistent`: T is kept from update to update and starts with `prior` on the diagonal and the rest spread
    evenly; if not, it restarts from the identity in each; `on`: T mixes `probabilities`, Tᵀf, or `logits`, zT;
    `normalise`: whether T's rows or columns sum to one; `loss`: of the real step; `clean_batch`: clean rows per
    update, by default as many as noisy ones; `route`: how to find the meta-gradient.
    """

    transition: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        warm_up: Part = 0.5,
        meta_stage_rate: Positive = 1e-4,
        virtual_rate: Positive = 0.1,
        transition_rate: NotNegative = 0.11,
        prior: Annotated[float, Range(0, 1, "(]")] = 0.9,
        clip: Positive | None = 1e-3,
        persistent: bool = True,
        on: Literal["probabilities", "logits"] = "probabilities",
        normalise: Literal["rows", "columns"] = "rows",
        loss: Literal["mean", "sum"] = "sum",
        clean_batch: Count | None = None,
        route: Route = "tangent",
    ) -> None:
        super().__init__()
        if on == "probabilities" and normalise == "columns":
            raise ValueError("with normalise=columns Tᵀf is no distribution; set on=logits too, or normalise=rows")
        self.net = OneHead(backbone, num_classes)
        self.warm_up, self.meta_stage_rate, self.clean_batch, self.route = warm_up, meta_stage_rate, clean_batch, route
        self.virtual_rate, self.transition_rate, self.clip = virtual_rate, transition_rate, clip
        self.persistent, self.on, self.normalise, self.loss = persistent, on, normalise, loss
        T = torch.full((num_classes, num_classes), (1 - prior) / max(1, num_classes - 1)).fill_diagonal_(prior)
        self.register_buffer("transition", T if persistent else torch.eye(num_classes))

    def plan(self, recipe: Recipe) -> list[Stage]:
        first, second = recipe.divided(self.warm_up)
        noisy = Draw("noisy", recipe.batch_size)
        clean = recipe.random_clean(self.clean_batch)
        slow = Optim(self.meta_stage_rate, recipe.momentum, recipe.weight_decay)
        meta, trace = {"noisy": noisy, "clean": clean}, {"transition": self.transition}
        return [
            Stage("warm-up", self.step_plain, {"noisy": noisy}, {self.net: recipe.sgd()}, first),
            Stage("meta", self.step, meta, {self.net: slow}, second, trace=trace, start="best"),
        ]

    def step_plain(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy = batch["noisy"]
        (logits,) = self.net(noisy.x)
        yield self.net, plain_loss(logits, noisy)

    def step(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy, clean = batch["noisy"], batch["clean"]
        identity = torch.eye(len(self.transition), dtype=self.transition.dtype, device=self.transition.device)
        T = (self.transition.clone() if self.persistent else identity.clone()).requires_grad_()

        def inner(outputs: Outputs) -> Tensor:
            return weighted_mean(self._nll(outputs, T, noisy.y), noisy.weight)

        # θ′(T) = θ − α ∇ mean −log (Tᵀf)[ȳ], the clean loss L_meta(θ′) from there, and G = ∂L_meta(θ′)/∂T.
        rate = self.transition.new_full((), self.virtual_rate)
        ahead = look_ahead(self.net, [noisy.x], inner, clean, rate=rate, route=self.route)
        (G,) = torch.autograd.grad(ahead.loss, T, retain_graph=True)  # the real step uses the same graph
        T = self._normal(T.detach() - self.transition_rate * self._clipped(total(G)), identity)

        nll = self._nll(ahead.outputs, T, noisy.y)
        yield self.net, (noisy.weight * nll).sum() if self.loss == "sum" else weighted_mean(nll, noisy.weight)
        self.transition.copy_(T)

    def _nll(self, outputs: Outputs, T: Tensor, labels: Tensor) -> Tensor:
        z = outputs[0][0]  # (B, N)
        # Differs: the paper has −log (Tᵀf)[ȳ]; the code takes the cross-entropy of softmax(zT).
        if self.on == "logits":
            return F.cross_entropy(z @ T, labels, reduction="none")
        return corrected_nll(z.softmax(1), T, labels)

    def _clipped(self, G: Tensor) -> Tensor:
        return G if self.clip is None else G * (self.clip / G.norm().clamp(min=self.clip))

    def _normal(self, T: Tensor, identity: Tensor) -> Tensor:
        """T without negative entries, its rows or columns summing to one; empty ones become the identity's."""
        T = T.clamp(min=0)
        sums = T.sum(1 if self.normalise == "rows" else 0, keepdim=True)
        # Differs: the code leaves a column with nothing left at zero. Its steps are too short for that to happen.
        return torch.where(sums > 0, T / torch.where(sums > 0, sums, 1), identity)

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.net(x)
        return torch.softmax(logits, 1)
