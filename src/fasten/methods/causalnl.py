"""CausalNL: instance-dependent label-noise learning under a structural causal model.

Yao, Liu, Gong, Han, Niu, Zhang, NeurIPS 2021. An example is assumed to arise from its true label and a latent variable,
and its given label from the example and the true label; so the distribution of examples tells something about their
true labels. Two networks, each a classifier in a variational auto-encoder, learn to reconstruct examples and given
labels. Each is also trained by cross-entropy on the rows of a batch on which the other has the smallest losses
(co-teaching). No clean rows are needed.

Letters: x is an example, ȳ its given label, ŷ a relaxed draw from the classifier, z the latent variable, x̂ and n the
reconstructions from ŷ and z: the example and the logits of ȳ. Networks, weights of the losses and training are those of
the authors' code for CIFAR-10: Adam at a constant rate, 150 epochs; only the first network predicts. Where the code has
slips, the losses follow the paper: see `objective`. The code has pixels from 0 to 1, but our examples are normalised,
so x̂ has no sigmoid.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Examples, Optim, Predict, Recipe, Stage
from fasten.nets.causal import CausalVAE
from fasten.ops.means import weighted_mean
from fasten.ops.relaxed import gumbel_softmax, standard_normal
from fasten.ops.remember import remember
from fasten.ops.small_loss import smallest
from fasten.ranges import BelowOne, Count, NotNegative, Positive
from fasten.ranks import total

EPOCHS = 150  # the authors', in which `ramp` is counted


class CausalNL(nn.Module):
    """Two auto-encoders whose classifiers tell each other which labels to believe.

    `noise_rate`: the assumed share of wrong labels, which the authors know (0.4 is theirs for Clothing1M); `ramp`: the
    epochs, of 150 (scaled in proportion), until that share of rows is left out; `z_dim`: the size of z;
    `example_weight`, `label_weight`, `latent_weight`: the weights of the losses of x̂, n and z; `prior_weight`: of
    uneven predictions, in the paper's objective only; `objective`: the paper's, or the code's, whose balance of these
    losses depends on the batch size; `adam_rate`: of both networks.
    """

    weights: Tensor
    epoch: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        twin: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        shape: tuple[int, ...],
        noise_rate: BelowOne = 0.4,
        ramp: Positive = 9.0,
        z_dim: Count = 25,
        example_weight: NotNegative = 0.1,
        label_weight: NotNegative = 0.1,
        latent_weight: NotNegative = 0.01,
        prior_weight: NotNegative = 1e-5,
        objective: Literal["paper", "code"] = "paper",
        adam_rate: Positive = 1e-3,
    ) -> None:
        super().__init__()
        self.net = CausalVAE(backbone, num_classes, shape, z_dim)
        # Inside another module: a network directly beside `net` would become part of the exported classifier.
        self.twin = nn.ModuleDict({"net": CausalVAE(twin, num_classes, shape, z_dim)})
        self.num_classes, self.z_dim, self.noise_rate, self.ramp = num_classes, z_dim, noise_rate, ramp
        self.example_weight, self.label_weight = example_weight, label_weight
        self.latent_weight, self.prior_weight = latent_weight, prior_weight
        self.objective, self.adam_rate = objective, adam_rate
        self.register_buffer("weights", torch.ones(len(labels)))  # the share of networks that last chose a row
        self.register_buffer("epoch", torch.tensor(-1.0))

    @property
    def nets(self) -> tuple[CausalVAE, CausalVAE]:
        twin = self.twin["net"]
        assert isinstance(twin, CausalVAE)
        return self.net, twin

    def plan(self, recipe: Recipe) -> list[Stage]:
        draws = {"noisy": Draw("noisy", recipe.batch_size, coins=2 * (self.num_classes + self.z_dim))}
        optim: dict[nn.Module, Optim] = {net: Optim(self.adam_rate, kind="adam") for net in self.nets}
        step = partial(self.step, ramp=self.ramp * recipe.epochs / EPOCHS)
        return [Stage("train", step, draws, optim, recipe.epochs, prepare=self.count, each_epoch=True)]

    def count(self, predict: Predict) -> None:
        """Count the epochs, from 0."""
        self.epoch.add_(1)

    def step(self, batch: Batch, ramp: float) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy, nets = batch["noisy"], self.nets
        logits = [net(noisy.x)[0] for net in nets]
        nll = [F.cross_entropy(z, noisy.y, reduction="none") for z in logits]
        share = 1 - self.noise_rate * (self.epoch / ramp).clamp(max=1)
        kept = [smallest(losses, noisy.weight, share) for losses in nll]
        coins = noisy.coin[:, 2:].to(noisy.x.dtype).chunk(2, 1)
        losses = [
            self._taught(nll[k], kept[1 - k]) + self._generative(net, noisy, logits[k], coins[k])
            for k, net in enumerate(nets)
        ]
        yield from zip(nets, losses, strict=True)
        remember(self.weights, noisy, (kept[0] + kept[1]) / 2)

    def _taught(self, nll: Tensor, kept: Tensor) -> Tensor:
        """Cross-entropy on the rows that the other network has chosen."""
        # Differs: the code divides the mean by the number of chosen rows once more.
        again = total(kept.sum()).clamp(min=1) if self.objective == "code" else 1
        return weighted_mean(nll, kept) / again

    def _generative(self, net: CausalVAE, rows: Examples, logits: Tensor, coin: Tensor) -> Tensor:
        """The negative evidence lower bound, with its parts weighted."""
        for_label, for_z = torch.split(coin, [self.num_classes, self.z_dim], 1)
        # Differs: the code uses uniform numbers from 0 to 1 in place of normal ones.
        noise = for_z if self.objective == "code" else standard_normal(for_z)
        mean, log_variance, made, noisy_logits = net.generate(rows.x, gumbel_softmax(logits, for_label), noise)
        example = (made - rows.x).square().flatten(1).mean(1)
        label = F.cross_entropy(noisy_logits, rows.y, reduction="none")
        latent = (mean.square() + log_variance.exp() - log_variance - 1).sum(1)  # twice KL(q(z | x, ŷ) ‖ p(z))
        loss = weighted_mean(self.example_weight * example + self.label_weight * label, rows.weight)
        # Differs: the code sums over rows, without the factor ½, and its term for uneven predictions is a constant.
        if self.objective == "code":
            return loss + self.latent_weight * (rows.weight * latent).sum()
        uneven = (logits.softmax(1) * logits.log_softmax(1)).sum(1)  # KL(q(y | x) ‖ uniform) − log N
        return loss + weighted_mean(self.latent_weight * latent / 2 + self.prior_weight * uneven, rows.weight)

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.net(x)
        return torch.softmax(logits, 1)
