"""MSLC: learning to purify noisy labels via meta soft label corrector.

Wu, Shu, Xie, Zhao, Meng, AAAI 2021. A row's target mixes its given label, its current soft label and the prediction.
Two tiny networks compute the shares from the losses against the first two; they learn by looking ahead, as in MW-Net.
The mixture is the next soft label; the first one is the mean prediction in the last epochs of a cross-entropy warm-up.

Letters: ȳ is the given label, s the current soft label, z the logits, p their softmax, α and β the outputs of the two
networks. Shares of the mixture: α of ȳ, (1−α)β of s, (1−α)(1−β) of p. Follows the authors' code, but no clean row is
among the noisy ones; the warm-up takes 80 of 120 epochs (FasTEN paper), not 79; a running mean replaces the ring of
predictions; and a soft label is written at once, not at the epoch's end, which is the same, since a pass visits each
row once.

On digits at 60% noise (three seeds) it is no better than cross-entropy, 0.754 for both, since validation picks an epoch
of the warm-up (the 2nd to 9th of 69). Mixing starts when the wrong labels are fitted; the last epoch has 0.578 against
0.581.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Optim, Recipe, Stage
from fasten.nets import OneHead
from fasten.nets.weigher import Weigher
from fasten.ops.lookahead import Outputs, Route, look_ahead
from fasten.ops.means import plain_loss, weighted_mean
from fasten.ops.perturb import perturb_soft_labels
from fasten.ops.remember import remember
from fasten.ranges import Count, Part, Positive, Share


class MSLC(nn.Module):
    """Soft labels, mixed anew at each visit by two networks that learn from clean rows.

    `warm_up`: share of the epochs before the mixing starts; `history`: how many of the last of these give the first
    soft label; `virtual_rate`: of the virtual step, as a multiple of the real one; `meta_rate`: of the mixers' Adam;
    `correct`: if false, ȳ alone is weighted, by α, and the next two do nothing; `soft_targets`: s and p enter the loss
    as they are, not as their most probable class; `perturbation` replaces that share of the new soft labels by uniform
    classes; `clean_batch`: clean rows per update, by default as many as noisy ones; `route`: how to find the
    meta-gradient.
    """

    soft_labels: Tensor
    visits: Tensor
    weights: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        warm_up: Part = 2 / 3,
        history: Count = 10,
        virtual_rate: Positive = 10.0,
        meta_rate: Positive = 1e-3,
        correct: bool = True,
        soft_targets: bool = False,
        perturbation: Share = 0.0,
        clean_batch: Count | None = None,
        route: Route = "tangent",
    ) -> None:
        super().__init__()
        self.net = OneHead(backbone, num_classes)
        self.mixers = nn.ModuleDict({name: Weigher() for name in (("alpha", "beta") if correct else ("alpha",))})
        self.num_classes, self.warm_up, self.history = num_classes, warm_up, history
        self.virtual_rate, self.meta_rate, self.clean_batch, self.route = virtual_rate, meta_rate, clean_batch, route
        self.soft_targets, self.correct, self.perturbation = soft_targets, correct, perturbation
        if correct:
            self.register_buffer("soft_labels", F.one_hot(labels.long(), num_classes).to(torch.get_default_dtype()))
            self.register_buffer("visits", torch.zeros(len(labels), dtype=torch.int32))  # of each row in the warm-up
        self.register_buffer("weights", torch.ones(len(labels)))  # α of each row at its last visit after it

    def plan(self, recipe: Recipe) -> list[Stage]:
        warm_up, rest = recipe.divided(self.warm_up)
        clean = recipe.random_clean(self.clean_batch)
        draws = {"noisy": Draw("noisy", recipe.batch_size), "clean": clean}
        late = replace(recipe, milestones=tuple(m - warm_up for m in recipe.milestones))  # of the stage
        optim = {self.mixers: Optim(self.meta_rate, weight_decay=1e-4, kind="adam"), self.net: late.sgd()}
        first = partial(self.warm_up_step, since=max(0, warm_up - self.history))
        return [
            Stage("warm-up", first, {"noisy": draws["noisy"]}, {self.net: recipe.sgd()}, warm_up),
            Stage("meta", self.step, draws, optim, rest, go_on=True),
        ]

    def warm_up_step(self, batch: Batch, since: int) -> Iterator[tuple[nn.Module, Tensor]]:
        """Plain cross-entropy; s becomes the mean of a row's predictions, without those of its first `since` visits."""
        noisy = batch["noisy"]
        (z,) = self.net(noisy.x)
        yield self.net, plain_loss(z, noisy)
        if not self.correct:
            return
        s, visits = self.soft_labels[noisy.index], self.visits[noisy.index] + 1
        counted = (visits - since)[:, None]  # predictions in the mean, this one included
        mean = s + (z.detach().softmax(1) - s) / counted.clamp(min=1)
        remember(self.soft_labels, noisy, torch.where(counted > 0, mean, s))
        remember(self.visits, noisy, visits)

    def step(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy, clean, rate = batch["noisy"], batch["clean"], self.virtual_rate * batch.rates[self.net]

        def losses(z: Tensor) -> Tensor:
            """Against ȳ, s and p, (B, 3); without correction against ȳ alone, (B, 1)."""
            targets = [noisy.y]
            if self.correct:
                s = self.soft_labels[noisy.index]  # (B, N), as the previous visit left it
                # Differs: in the paper's loss s and p are soft; the code takes their most probable class, and so do we.
                targets += [s, z.detach().softmax(1)] if self.soft_targets else [s.argmax(1), z.argmax(1)]
            return torch.stack([F.cross_entropy(z, target, reduction="none") for target in targets], 1)

        def inner(outputs: Outputs) -> Tensor:
            nll = losses(outputs[0][0])
            return weighted_mean((self._shares(nll.detach()) * nll).sum(1), noisy.weight)

        ahead = look_ahead(self.net, [noisy.x], inner, clean, rate=rate, route=self.route)
        yield self.mixers, ahead.loss

        z = ahead.outputs[0][0]
        nll = losses(z)
        with torch.no_grad():
            shares = self._shares(nll)  # by the new networks
        yield self.net, weighted_mean((shares * nll).sum(1), noisy.weight)

        remember(self.weights, noisy, shares[:, 0])
        if self.correct:
            s = self.soft_labels[noisy.index]
            given = F.one_hot(noisy.y, self.num_classes).to(s.dtype)
            parts = torch.stack([given, s, z.detach().softmax(1)], 1)  # (B, 3, N)
            mixture = (shares[:, :, None] * parts).sum(1)  # of soft s and p, whatever the loss uses
            remember(self.soft_labels, noisy, perturb_soft_labels(mixture, noisy.coin, self.perturbation))

    def _shares(self, nll: Tensor) -> Tensor:
        """Of ȳ, s and p in the mixture, from a row's losses against them."""
        alpha: Tensor = self.mixers["alpha"](nll[:, 0])
        if not self.correct:
            return alpha[:, None]  # Differs: no paper says what "without correction" is here; α CE(z, ȳ) is our reading
        beta = self.mixers["beta"](nll[:, 1])
        return torch.stack([alpha, (1 - alpha) * beta, (1 - alpha) * (1 - beta)], 1)

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.net(x)
        return torch.softmax(logits, 1)
