"""FasTEN: fast transition matrix estimation for learning with noisy labels.

Kye, Choi, Yi, Chang: Learning with Noisy Labels by Efficient Transition Matrix Estimation to Combat Label
Miscorrection, ECCV 2022. Two linear heads share one feature extractor. In every update the noisy head, applied to a
class-balanced clean batch, gives the transition matrix T̂ of the current labels; the clean head is trained through T̂,
so that it stays sceptical of labels that it corrected itself; confident predictions replace labels for the next epoch.
An update takes one forward and one backward pass.

Letters: f is the clean head's softmax (p in the code), f̄ the noisy head's, d and d̄ the clean and the noisy batch, ȳ
the current labels (y in the code), ȳ* the labels as given, K the clean rows per class, ρ `threshold`, λ `noisy_weight`,
q `perturbation`. Equations are numbered as in the paper. Where it and the authors' code differ, this follows the code.

Beyond the paper: T̂ of the noisy rows (`estimate`). A network memorises its few clean rows, its noisy head is then too
sure of them, T̂ comes too close to the identity, and wrong labels are learnt. On noisy rows, of which both heads know
only the label, T̂[i, j] = Σ f_i f̄_j / Σ f_i says how often class i is labelled j; the sums are running means.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import Batch, Draw, Examples, NormMode, Recipe, Stage
from fasten.nets import TwoHead
from fasten.ops.means import weighted_mean
from fasten.ops.remember import remember
from fasten.ops.transition import correct_labels, corrected_nll, estimate_transition, joint_of_heads, set_apart
from fasten.ranges import Count, NotNegative, Share
from fasten.ranks import total

# An update's weight in the running mean: T̂ of the noisy rows covers about the last hundred batches, or a quarter of all
# batches if that is fewer, so that little is left of the start; but at least two batches.
PACE, LEAST_PACES, FASTEST = 0.01, 4, 0.5


class FasTEN(nn.Module):
    """Two heads, T̂ in every update, labels corrected on the fly.

    `correct` switches label correction on or off; `estimate` says which rows T̂ is estimated on; `oracle` is a true T to
    use in its place; `perturbation` replaces that share of the changed labels by uniform ones (the paper's test of
    robustness); `norm` is how batch norm treats the two batches; `per_class` is K, by default as many as fit the batch
    size.
    """

    labels: Tensor
    transition: Tensor
    joint: Tensor | None
    oracle: Tensor | None

    def __init__(
        self,
        backbone: nn.Module,
        labels: Tensor,
        *,
        num_classes: int,
        threshold: Share = 0.8,
        noisy_weight: NotNegative = 0.5,
        per_class: Count | None = None,
        correct: bool = True,
        perturbation: Share = 0.0,
        norm: NormMode = "split",
        estimate: Literal["clean", "noisy"] = "clean",
        oracle: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.net = TwoHead(backbone, num_classes)
        self.num_classes, self.per_class, self.norm = num_classes, per_class, norm
        self.noisy_weight, self.perturbation = noisy_weight, perturbation
        self.threshold = threshold if correct else math.inf
        self.pace = PACE
        self.register_buffer("labels", labels.to(torch.int32))  # current labels, (n,)
        self.register_buffer("transition", torch.eye(num_classes))  # T̂ of the last update
        half_sure = (torch.eye(num_classes) / num_classes + 1 / num_classes**2) / 2
        self.register_buffer("joint", half_sure if estimate == "noisy" else None)  # distribution of class and label
        self.register_buffer("oracle", oracle, persistent=False)

    def plan(self, recipe: Recipe) -> list[Stage]:
        draws = {
            "noisy": Draw("noisy", recipe.batch_size),
            "clean": recipe.balanced_clean(self.per_class, self.num_classes),
        }
        updates = recipe.epochs * math.ceil(len(self.labels) / recipe.batch_size)
        self.pace = min(max(PACE, LEAST_PACES / updates), FASTEST)
        trace = {"transition": self.transition}
        return [Stage("train", self.step, draws, {self.net: recipe.sgd()}, recipe.epochs, trace=trace)]

    def step(self, batch: Batch) -> Iterator[tuple[nn.Module, Tensor]]:
        noisy, clean = batch["noisy"], batch["clean"]
        y = self.labels[noisy.index].long()  # ȳ, as the previous visit left it
        # Logits (B, N) of the clean and of the noisy head: on d̄ (_n) and on d (_c).
        (clean_n, noisy_n), (clean_c, noisy_c) = self.net.each([noisy.x, clean.x], self.norm)
        p = clean_n.softmax(1)

        # Eq. (2). Differs: the paper does not say whether a gradient flows through T̂; the code detaches it.
        T = estimate_transition(noisy_c.detach().softmax(1), clean.y, self.num_classes, clean.weight, shared=True)
        covered = self._covered(clean)
        if self.joint is not None:
            T = torch.where(covered[:, None], self.joint / self.joint.sum(1, keepdim=True), T)
        T = set_apart(T, covered)
        nll = torch.cat(
            [
                corrected_nll(p, T if self.oracle is None else self.oracle, y),
                F.cross_entropy(clean_c, clean.y, reduction="none"),
            ]
        )
        # Differs: the paper sums over both batches; the code averages, over d ∪ d̄ here and over d̄ in L_noisy.
        clean_loss = weighted_mean(nll, torch.cat([noisy.weight, clean.weight]))  # Eq. (4)
        noisy_loss = weighted_mean(F.cross_entropy(noisy_n, y, reduction="none"), noisy.weight)  # Eq. (5)
        yield self.net, clean_loss + self.noisy_weight * noisy_loss  # Eq. (6)

        # Eq. (7): if the head is not confident, back to the label as given, not to the last correction. Differs: a
        # sentence in the paper's appendix corrects at an epoch's end; its algorithm and the code do so in each update.
        new = correct_labels(p.detach(), noisy.y, self.threshold)
        new = self._perturb(new, noisy.y, noisy.coin)
        new = torch.where(covered[noisy.y], new, noisy.y)
        remember(self.labels, noisy, new)
        self.transition.copy_(T)
        if self.joint is not None:
            seen = joint_of_heads(p.detach(), noisy_n.detach().softmax(1), noisy.weight, shared=True)
            self.joint.lerp_(seen, self.pace)

    def _covered(self, clean: Examples) -> Tensor:
        """Which classes have a clean row, (N,). T̂ says nothing about the others: rows with such a label keep it."""
        return total(clean.weight.new_zeros(self.num_classes).index_add(0, clean.y, clean.weight)) > 0

    def _perturb(self, labels: Tensor, given: Tensor, coin: Tensor) -> Tensor:
        """Replace each label that was changed by a uniform one with probability q."""
        if self.perturbation == 0:
            return labels
        hit = (labels != given) & (coin[:, 0] < self.perturbation)
        return torch.where(hit, (coin[:, 1] * self.num_classes).long(), labels)

    def forward(self, x: Tensor) -> Tensor:
        clean, _ = self.net(x)
        return torch.softmax(clean, 1)
