"""DivideMix: learning with noisy labels as semi-supervised learning.

Li, Socher, Hoi, ICLR 2020. Two networks are warmed up by cross-entropy. Before each epoch a mixture of two normal
distributions, fitted to the losses under one network, tells the other which rows to treat as labelled (low losses) and
which as unlabelled. An update refines labels by the network's own predictions, guesses those of unlabelled rows by both
networks' predictions, and trains on mixtures of all these rows. AugDesc (Nishi, Ding, Rich, Höllerer, CVPR 2021), here
`strong`, mixes strong views, with targets from weak ones.

Letters: w is a row's probability of being in the low-loss group, l the share of a row in its mixture, z logits, q
targets. Follows the authors' code, but an update trains both networks (theirs: one for an epoch, then the other), an
epoch is a pass over the first's labelled rows, and either side has at least a batch. The rate is 0.2 of the recipe's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Examples, Predict, Recipe, Stage
from fasten.nets import OneHead
from fasten.ops.means import plain_loss, unevenness, weighted_mean
from fasten.ops.mixture import divided, lower_group
from fasten.ops.mixup import folded_beta, mean_prediction, mix_up, sharpened
from fasten.ranges import NotNegative, Part, Positive, Share

RATE, EPOCHS = 0.2, 300  # of the recipe's rate; the authors' epochs, in which `ramp` is counted


class DivideMix(nn.Module):
    """Two networks that tell each other which labels to believe.

    `warm_up`: share of the epochs; `confidence_penalty`: on sure predictions in it (authors: for asymmetric noise);
    `threshold`: of w; `temperature`: of targets; `alpha`: of l's distribution; `unlabelled_weight`: the authors' is 0
    to 150, more for more noise; `ramp`: epochs, of 300 (scaled in proportion), over which it grows; `clean_rows`: clean
    rows count as labelled, with w = 1, and mixing starts from the warm-up's best epoch (no paper); `strong`: AugDesc.
    """

    clean_probability: Tensor
    split: Tensor
    quantiles: Tensor
    epoch: Tensor
    done: Tensor
    share: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        twin: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        warm_up: Part = 1 / 30,
        confidence_penalty: bool = False,
        threshold: Share = 0.5,
        temperature: Positive = 0.5,
        alpha: Positive = 4.0,
        unlabelled_weight: NotNegative = 25.0,
        ramp: Positive = 16.0,
        clean_rows: bool = False,
        strong: bool = False,
    ) -> None:
        super().__init__()
        self.net, self.twin = OneHead(backbone, num_classes), OneHead(twin, num_classes)
        self.num_classes, self.warm_up, self.confidence_penalty = num_classes, warm_up, confidence_penalty
        self.threshold, self.temperature, self.unlabelled_weight = threshold, temperature, unlabelled_weight
        self.ramp, self.clean_rows, self.strong, self.num_noisy = ramp, clean_rows, strong, len(labels)
        self.register_buffer("clean_probability", torch.ones(2, len(labels) + 1))  # w; the last is for clean rows
        self.register_buffer("split", torch.ones(2, 2, len(labels), dtype=torch.bool))  # labelled or not
        self.register_buffer("quantiles", folded_beta(alpha).float(), persistent=False)
        self.register_buffer("epoch", torch.tensor(-1.0))  # of the second stage, from 0
        self.register_buffer("done", torch.tensor(0.0))  # updates done in this epoch
        self.register_buffer("share", torch.tensor(1.0))  # of the epoch that an update takes

    def plan(self, recipe: Recipe) -> list[Stage]:
        warm_up, rest = recipe.divided(self.warm_up)
        slow = replace(recipe, rate=RATE * recipe.rate)
        late = replace(slow, milestones=tuple(m - warm_up for m in recipe.milestones))  # of the stage
        first, then = (dict.fromkeys(self.children(), r.sgd()) for r in (slow, late))
        rows = Draw("both" if self.clean_rows else "noisy", recipe.batch_size)
        pair = replace(rows, how="cycle", views=2, strong=self.strong)
        draws = {f"labelled {k}": replace(pair, keep=self.split[0, k]) for k in (0, 1)}
        draws |= {f"unlabelled {k}": replace(pair, source="noisy", keep=self.split[1, k]) for k in (0, 1)}
        draws["labelled 0"] = replace(draws["labelled 0"], how="pass")
        step = partial(self.step, ramp=self.ramp * recipe.epochs / EPOCHS)
        divide = partial(self.divide, batch_size=recipe.batch_size)
        plain = Stage("warm-up", self.step_warm_up, {"rows": rows}, first, warm_up)
        mix = Stage("mix", step, draws, then, rest, prepare=divide, each_epoch=True, go_on=True)
        return [plain, replace(mix, start="best") if self.clean_rows else mix]

    def step_warm_up(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        rows = batch["rows"]
        for net in self.children():
            (z,) = net(rows.x)
            penalty = weighted_mean((z.softmax(1) * z.log_softmax(1)).sum(1), rows.weight)
            yield net, plain_loss(z, rows) + (penalty if self.confidence_penalty else 0)

    def divide(self, predict: Predict, batch_size: int) -> None:
        """Choose labelled and unlabelled rows for each network, by the losses under the other."""
        for k, other in enumerate((self.twin, self.net)):
            z, y = predict("noisy", lambda x, net=other: net(x)[0])  # type: ignore[misc]
            w = lower_group(F.cross_entropy(z, y, reduction="none"))  # Differs: AugDesc's paper says weak views
            self.split[:, k] = torch.stack(divided(w, self.threshold, least=batch_size))
            self.clean_probability[k, :-1] = w
        clean = len(predict("clean", lambda x: x.flatten(1)[:, :1])[1]) if self.clean_rows else 0
        self.share.fill_(1 / ((int(self.split[0, 0].sum()) + clean) // batch_size + 1))  # counted as in the code
        self.epoch.add_(1)
        self.done.zero_()

    def step(self, batch: Batch, ramp: float) -> Iterator[tuple[nn.Module, Tensor]]:
        yield self.net, self.loss(batch, 0, ramp)
        yield self.twin, self.loss(batch, 1, ramp)
        self.done.add_(1)

    def loss(self, batch: Batch, k: int, ramp: float) -> Tensor:
        """The loss of one network, on its own rows."""
        x, u = batch[f"labelled {k}"], batch[f"unlabelled {k}"]
        rows, q = torch.cat([*x.strong_views, *u.strong_views]), torch.cat(self._targets(k, x, u))
        rows, q = mix_up([rows, q], [x.coin, u.coin], self.quantiles)
        (z,), weight = (self.net, self.twin)[k](rows), torch.cat([x.weight, x.weight, u.weight, u.weight])
        end = 2 * len(x.y)  # of the labelled rows
        labelled = weighted_mean(F.cross_entropy(z, q, reduction="none")[:end], weight[:end])
        unlabelled = weighted_mean((z.softmax(1) - q).square().mean(1)[end:], weight[end:])
        grown = ((self.epoch + self.done * self.share) / ramp).clamp(0, 1)
        return labelled + self.unlabelled_weight * grown * unlabelled + unevenness(z.softmax(1), weight)

    @torch.no_grad()
    def _targets(self, k: int, x: Examples, u: Examples) -> list[Tensor]:
        """Targets of both views of all rows. As in the code, the passes made for them move the running statistics."""
        net, other = (self.net, self.twin) if k == 0 else (self.twin, self.net)
        p_u, p_x = mean_prediction(net, u.views), mean_prediction(net, x.views)
        p_other = mean_prediction(other.eval(), u.views)
        other.train()
        w = self.clean_probability[k, x.index.clamp(max=self.num_noisy), None].to(p_x.dtype)
        refined = sharpened(w * F.one_hot(x.y, self.num_classes) + (1 - w) * p_x, self.temperature)
        guessed = sharpened((p_u + p_other) / 2, self.temperature)
        return [refined, refined, guessed, guessed]

    @property
    def weights(self) -> Tensor:
        return self.clean_probability[:, :-1].mean(0)  # for the record

    def forward(self, x: Tensor) -> Tensor:
        (z,), (z_twin,) = self.net(x), self.twin(x)
        return torch.softmax((z + z_twin) / 2, 1)  # the code sums logits: the same classes, but overconfident
