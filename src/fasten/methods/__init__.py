"""The methods by name: one literal dictionary, variants included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fasten.methods.clean_only import CleanOnly
from fasten.methods.cross_entropy import CrossEntropy
from fasten.methods.fasten import FasTEN
from fasten.methods.naive_oversampling import NaiveOversampling

__all__ = ["METHODS", "Entry"]


@dataclass(frozen=True)
class Entry:
    """A method as a user finds it: what builds it, what it needs, and where it departs from the data set's recipe."""

    build: Callable[..., nn.Module]
    family: str
    about: str
    clean_set: bool = True
    true_transition: bool = False
    stages: int = 1
    networks: int = 1
    backprops: int = 1  # per iteration, in the stage that has most
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)


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
    "naive-oversampling": Entry(NaiveOversampling, "reference", "cross-entropy on noisy and balanced clean batches"),
    "cross-entropy": Entry(CrossEntropy, "reference", "cross-entropy on the labels as given", clean_set=False),
    "clean-only": Entry(CleanOnly, "reference", "cross-entropy on the clean rows alone"),
}
