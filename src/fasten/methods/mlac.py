"""MLaC: meta label correction for noisy label learning (its authors call it MLC).

Zheng, Awadallah, Dumais, AAAI 2021. A correction network maps a row's features and its given label to a soft label;
the classifier is trained on these soft labels, and on clean rows directly. The correction network is learned by looking
ahead: take the classifier's next step virtually, compute the loss of other clean rows there, and move the correction
network one step along its gradient. The classifier then takes that same step, with the soft labels from before it.

Letters: θ are the classifier's weights, ω the correction network's, h features, z logits, q the soft label; g is the
first half of a clean batch, for the meta-loss, and c the second, to train on; F is the inner gradient. The discounted
sum of meta-gradients over several updates (five for the paper's Clothing1M) is left out: ω moves in every update.
Differs: the clean set is the run's own, and no clean row is among the noisy ones.

On digits at 60% noise (three seeds) it reaches 0.698, below cross-entropy's 0.754, if validation picks the epoch; at
the last epoch 0.621 against 0.581. The correction network seems too slow for a classifier at a rate of 0.2: with
`meta_rate=3e-3`, ten times the authors', it reaches 0.790; ten times the epochs (seed 0) gain nothing (not kept).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Examples, Optim, Recipe, Stage
from fasten.nets import OpenHead
from fasten.nets.corrector import Corrector
from fasten.ops.lookahead import Outputs, Route, look_ahead, with_gradient
from fasten.ops.means import weighted_mean
from fasten.ops.perturb import perturb_soft_labels
from fasten.ops.remember import remember
from fasten.ranges import Count, Positive, Range, Share


class MLaC(nn.Module):
    """Soft labels from a network that is learned with the classifier.

    `clean_batch`: clean rows per update, both halves together, by default as many as noisy ones; `meta_rate`: of the
    correction network's Adam; `embedding` and `hidden`: its sizes; `skip`: it may keep a part of the given label, as
    the authors advise for Clothing1M; `perturbation` replaces that share of the soft labels by uniform classes
    (FasTEN's test of robustness); `route`: how to find the meta-gradient.
    """

    soft_labels: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        clean_batch: Annotated[int, Range(4)] | None = None,  # two rows for each half
        meta_rate: Positive = 3e-4,
        embedding: Count = 128,
        hidden: Count = 128,
        skip: bool = False,
        perturbation: Share = 0.0,
        route: Route = "tangent",
    ) -> None:
        super().__init__()
        self.net = OpenHead(backbone, num_classes)
        sizes = {"embedding": embedding, "hidden": hidden}
        self.corrector = Corrector(self.net.num_features, num_classes, **sizes, skip=skip)
        self.clean_batch, self.meta_rate, self.perturbation, self.route = clean_batch, meta_rate, perturbation, route
        self.register_buffer("soft_labels", F.one_hot(labels.long(), num_classes).float())  # q at the last visit

    def plan(self, recipe: Recipe) -> list[Stage]:
        clean = Draw("clean", self.clean_batch or max(4, recipe.batch_size), "random", parts=2)
        draws = {"noisy": Draw("noisy", recipe.batch_size), "clean": clean}
        sgd = recipe.sgd()
        optim = {self.corrector: Optim(self.meta_rate, kind="adam", amsgrad=True), self.net: sgd}
        return [Stage("train", partial(self.step, sgd=sgd), draws, optim, recipe.epochs)]

    def step(self, batch: Batch, sgd: Optim) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy = batch["noisy"]
        g, c = _halves(batch["clean"])

        def correct(outputs: Outputs) -> Tensor:
            (_, h), _ = outputs
            return perturb_soft_labels(self.corrector(h.detach(), noisy.y), noisy.coin, self.perturbation)  # (B, N)

        def inner(outputs: Outputs) -> Tensor:
            (z, _), (z_c, _) = outputs
            soft = F.cross_entropy(z, correct(outputs), reduction="none")
            plain = F.cross_entropy(z_c, c.y, reduction="none")
            return weighted_mean(torch.cat([soft, plain]), torch.cat([noisy.weight, c.weight]))

        # Differs: in the authors' code all four passes move batch norm's running averages, even the virtual one, and so
        # does a fifth in some updates; here only those of the noisy rows and of c do, once each. The authors' second
        # derivative is taken with some weights already at θ′, up to 2e-3 off on a small network; this one is exact.
        rate, weights = batch.rates[self.net], [p for p in self.net.parameters() if p.requires_grad]
        start = _coasting(weights, batch.velocities[self.net], rate, sgd)
        ahead = look_ahead(self.net, [noisy.x, c.x], inner, g, rate=rate, start=start, route=self.route)
        with torch.no_grad():
            loss, q = inner(ahead.outputs), correct(ahead.outputs)
        yield self.corrector, ahead.loss
        yield self.net, with_gradient(loss, weights, ahead.grads)  # F, by the ω from before its step
        remember(self.soft_labels, noisy, q)

    def forward(self, x: Tensor) -> Tensor:
        logits, _ = self.net(x)
        return torch.softmax(logits, 1)

    def features(self, x: Tensor) -> Tensor:
        return self.net.features(x)

    def relabel(self, features: Tensor, labels: Tensor) -> Tensor:
        """The soft labels of rows with these features and given labels."""
        q: Tensor = self.corrector(features, labels)
        return q


def _halves(rows: Examples) -> tuple[Examples, Examples]:
    half = len(rows.y) // 2
    return rows[:half], rows[half:]


def _coasting(weights: Sequence[Tensor], velocities: Sequence[Tensor], rate: Tensor, sgd: Optim) -> list[Tensor]:
    """Where momentum and decay alone would take the weights: the step is θ′ = this − rate · F."""
    keep, push = (1 - rate * sgd.weight_decay).to(weights[0].dtype), (rate * sgd.momentum).to(weights[0].dtype)
    with torch.no_grad():
        kept, pushed = torch._foreach_mul(list(weights), keep), torch._foreach_mul(list(velocities), push)
        return list(torch._foreach_sub(kept, pushed))
