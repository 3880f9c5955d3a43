"""VolMinNet: provably end-to-end label-noise learning without anchor points.

Li, Liu, Han, Niu, Sugiyama, ICML 2021. T is learned along with the network, by the loss of the given labels through T.
Many T explain them; if the rows are scattered enough, the true T is the one of smallest volume, so log |det T| is
minimised too. One stage, no anchors, no clean rows.

Letters: f is the softmax of the network, ȳ a given label, w the weights of T, λ `volume_weight`. T(w) has 1 on its
diagonal and sigmoid(w) elsewhere, each row divided by its sum. As in the authors' code for CIFAR-10: 80 epochs, rates
that fall at 31 and 61, a tenth of the recipe's rate for the network, SGD for w without decay. Their code has no guard
in the log (`guard=0`), and uses Adam for w on CIFAR-100, which is left out. Momentum, decay and batch size are the
recipe's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Optim, Recipe, Stage
from fasten.nets import OneHead
from fasten.ops.means import weighted_mean
from fasten.ops.transition import LOG_GUARD, corrected_nll
from fasten.ops.volume import log_volume
from fasten.ranges import BelowOne, NotNegative, Positive, Range
from fasten.ranks import world


def default_initial(num_classes: int) -> float:
    """The initial w: −2 for up to 10 classes; for more, the one that gives T the same diagonal as with 10, 0.482.

    >>> [round(default_initial(n), 2) for n in (2, 10, 14, 100)]
    [-2.0, -2.0, -2.41, -4.51]
    """
    beside = 9 / (1 + math.exp(2)) / max(9, num_classes - 1)
    return math.log(beside / (1 - beside))


class VolMinNet(nn.Module):
    """T of the smallest volume, learned along with the network.

    `volume_weight`: λ; `transition_rate`: of w; `initial`: the initial w, by default from `default_initial`, and up to
    5, where in float32 the volume's gradient is still right to about a thousandth; `guard`: added inside the log.
    """

    transition: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        volume_weight: NotNegative = 1e-4,
        transition_rate: Positive = 0.01,
        initial: Annotated[float, Range(-20, 5)] | None = None,
        guard: BelowOne = LOG_GUARD,
    ) -> None:
        super().__init__()
        self.net = OneHead(backbone, num_classes)
        first = default_initial(num_classes) if initial is None else initial
        self.matrix = nn.ParameterDict({"w": nn.Parameter(torch.full((num_classes, num_classes), first))})
        self.volume_weight, self.transition_rate, self.guard = volume_weight, transition_rate, guard
        self.register_buffer("transition", self._transition().detach())  # T, as of the last update

    def plan(self, recipe: Recipe) -> list[Stage]:
        slow = replace(recipe.sgd(), rate=recipe.rate / 10)
        optim = {self.matrix: Optim(self.transition_rate, recipe.momentum, 0.0, recipe.milestones), self.net: slow}
        draws, trace = {"noisy": Draw("noisy", recipe.batch_size)}, {"transition": self.transition}
        return [Stage("train", self.step, draws, optim, recipe.epochs, trace=trace)]

    def step(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy = batch["noisy"]
        (logits,) = self.net(noisy.x)
        f, T = logits.softmax(1), self._transition()  # (B, N), (N, N)
        volume = self.volume_weight * log_volume(T) / world()  # ranks add up their losses
        # As the authors' single step for both: the two gradients are of one loss, at the weights before either step.
        for part, p, through, more in (
            (self.matrix, f.detach(), T, volume),
            (self.net, f, T.detach(), volume.detach()),
        ):
            # Differs: the code adds nothing inside the log.
            nll = corrected_nll(p, through, noisy.y, self.guard)  # −log (Tᵀf)[ȳ]
            yield part, weighted_mean(nll, noisy.weight) + more
        self.transition.copy_(T.detach())

    def _transition(self) -> Tensor:
        """T(w)."""
        w = self.matrix["w"]
        identity = torch.eye(len(w), dtype=w.dtype, device=w.device)
        T = identity + (1 - identity) * torch.sigmoid(w)
        return T / T.sum(1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.net(x)
        return torch.softmax(logits, 1)
