"""Source: one data set as its files hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasten.data.images import ImageFiles, check_examples
from fasten.data.splits import Split


@dataclass(frozen=True, eq=False)
class Source:
    """One data set as its files hold it: nothing split, nothing corrupted.

    >>> x = np.zeros((3, 2), np.float32)
    >>> Source("tiny", x, np.array([0, 1, 1]), np.zeros(3, bool), ("cat", "dog")).num_classes
    2
    """

    name: str
    x: NDArray[Any] | ImageFiles  # (n, H, W, C) uint8 images, or (n, D) float32 features
    truth: NDArray[np.int64]  # (n,) the true labels; -1 if unknown, for noisy rows of an official split
    test: NDArray[np.bool_]  # (n,) the official test rows; all False if there are none
    class_names: tuple[str, ...]
    flips: Mapping[int, tuple[int, ...]] | None = None  # class -> the classes that it is mistaken for, equally often
    given: NDArray[np.int64] | None = None  # (n,) its own noisy labels, -1 on test rows; None: noise is injected
    split: Split | None = None  # the official one; None: drawn

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_split()
        everywhere, noisy = np.ones(len(self.x), bool), ~self.test
        if self.split is not None:
            noisy = np.isin(np.arange(len(self.x)), self.split.noisy)
        self._check_labels("truth", self.truth, everywhere if self.given is None or self.split is None else ~noisy)
        if self.given is not None:
            self._check_labels("given", self.given, noisy)
            if (self.given[self.test] != -1).any():
                raise ValueError(f"{self.name}: a test row has a given label; only training rows have one, write -1")
        self._check_flips()

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def _check_shapes(self) -> None:
        check_examples(self.name, self.x)
        columns = {"truth": (self.truth, np.int64), "test": (self.test, np.bool_), "given": (self.given, np.int64)}
        for name, (column, dtype) in columns.items():
            if column is not None and (column.shape != (len(self.x),) or column.dtype != dtype):
                raise ValueError(
                    f"{self.name}: {name} is {column.dtype} of shape {column.shape}; give one {np.dtype(dtype)} "
                    f"for each of the {len(self.x)} rows of x"
                )

    def _check_split(self) -> None:
        if self.split is None:
            return
        rows = np.concatenate([self.split.noisy, self.split.clean, self.split.valid, self.split.test])
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self.x):
            raise ValueError(f"{self.name}: the split has row {rows.max()} of {len(self.x)}; number them from 0")
        if not np.array_equal(np.flatnonzero(self.test), np.sort(self.split.test)):
            raise ValueError(f"{self.name}: `test` marks other rows than the split's test rows; mark those")

    def _check_labels(self, name: str, labels: NDArray[np.int64], rows: NDArray[np.bool_]) -> None:
        """Raise unless labels of `rows` are classes, and others classes or -1."""
        wrong = np.flatnonzero((labels < np.where(rows, 0, -1)) | (labels >= self.num_classes))
        if len(wrong):
            raise ValueError(
                f"{self.name}: {name} label {labels[wrong[0]]} in row {wrong[0]} is outside the {self.num_classes} "
                f"classes; number them from 0 to {self.num_classes - 1} and name each in class_names"
            )

    def _check_flips(self) -> None:
        for true, targets in (self.flips or {}).items():
            if not targets or not all(0 <= c < self.num_classes for c in (true, *targets)) or true in targets:
                raise ValueError(
                    f"{self.name}: flips maps class {true} to {targets}; map it to one or more of the other classes "
                    f"from 0 to {self.num_classes - 1}, or leave it out"
                )
