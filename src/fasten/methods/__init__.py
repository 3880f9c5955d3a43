"""The methods by name: one literal dictionary, variants included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from fasten.contract import Recipe
from fasten.methods.clean_only import CleanOnly
from fasten.methods.cross_entropy import CrossEntropy
from fasten.methods.fasten import FasTEN
from fasten.methods.l2rw import L2RW
from fasten.methods.mw_net import MWNet
from fasten.methods.naive_oversampling import NaiveOversampling

__all__ = ["METHODS", "Entry", "Schedule"]

FASTEN_EPOCHS = 70


@dataclass(frozen=True)
class Schedule:
    """Epochs (of all stages) and milestones where FasTEN has 70, as the paper's appendix gives them."""

    epochs: int
    milestones: tuple[int, ...] = ()

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe of a data set, made longer or shorter in the same proportion.

        >>> Schedule(60, (40, 50)).applied(Recipe(epochs=7)).epochs
        6
        """
        mine = replace(recipe, epochs=self.epochs, milestones=self.milestones)
        return mine.scaled(max(1, round(recipe.epochs * self.epochs / FASTEN_EPOCHS)))


@dataclass(frozen=True)
class Entry:
    """A method as a user finds it: what builds it, what it needs, and how long it trains."""

    build: Callable[..., nn.Module]
    family: str
    about: str
    clean_set: bool = True
    true_transition: bool = False
    stages: int = 1
    networks: int = 1
    backprops: int = 1  # per iteration, in the stage that has most
    options: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule | None = None  # None: as FasTEN


METHODS: dict[str, Entry] = {
    "fasten": Entry(FasTEN, "transition matrix + label correction", "T̂ in every update, labels corrected on the fly"),
    "fasten-no-lc": Entry(FasTEN, "transition matrix", "FasTEN without label correction", options={"correct": False}),
    "fasten-oracle": Entry(
        FasTEN,
        "transition matrix",
        "FasTEN with the true T, without label correction",
        true_transition=True,
        options={"correct": False, "oracle": True},
    ),
    "l2rw": Entry(
        L2RW,
        "re-weighting",
        "weights for one update, by what a step along each row's gradient does to clean rows",
        backprops=3,
        schedule=Schedule(80, (40, 60)),
    ),
    "mw-net": Entry(
        MWNet,
        "re-weighting",
        "a tiny network weighs rows by their losses, learned by looking ahead",
        networks=2,
        backprops=3,
        schedule=Schedule(60, (40, 50)),
    ),
    "naive-oversampling": Entry(NaiveOversampling, "reference", "cross-entropy on noisy and balanced clean batches"),
    "cross-entropy": Entry(CrossEntropy, "reference", "cross-entropy on the labels as given", clean_set=False),
    "clean-only": Entry(CleanOnly, "reference", "cross-entropy on the clean rows alone"),
}
