"""Task: a frozen record of everything that a run may see, and the hidden truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasten.data.encoding import Column
from fasten.data.images import ImageFiles, shape_of
from fasten.data.splits import Split

Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Known:
    """What is known about the labels of each row of users' own data; labels are class numbers, -1 for none."""

    ids: tuple[str, ...]
    given: Labels  # the label a row came with
    verified: Labels  # according to somebody who checked; not for rows that the data mark as valid or test
    picked_random: NDArray[np.bool_]  # verified, and picked at random for that: only these tell about the others
    held: NDArray[np.bool_]  # those of them whose verdict training does not see
    class_names: tuple[str, ...] = ()

    def take(self, rows: Labels) -> Known:
        """Return the same for some of the rows."""
        ids = tuple(self.ids[row] for row in rows.tolist())
        columns = (self.given[rows], self.verified[rows], self.picked_random[rows], self.held[rows])
        return Known(ids, *columns, self.class_names)

    @property
    def trained(self) -> NDArray[np.bool_]:
        """Rows whose verdict is settled: training may have seen it."""
        return np.asarray((self.verified >= 0) & ~self.held)


@dataclass(frozen=True)
class Task:
    """Rows, how they are split, and the labels of each part.

    `truth` and `transition` are for evaluation (and for methods that explicitly take the true T). If training depends
    on them in any other way, that is a bug; a test checks this by replacing them with garbage.
    """

    name: str
    x: NDArray[Any] | ImageFiles  # (n, H, W, C) uint8 images, or (n, D) float32 features
    split: Split  # index arrays into x: noisy, clean, valid, test
    given: Labels  # of the noisy rows
    clean: Labels  # of the clean rows
    valid: Labels
    test: Labels
    class_names: tuple[str, ...]
    truth: Labels | None = None  # of the noisy rows, -1 where nobody knows it; None: not of any
    transition: NDArray[np.float64] | None = None  # the true T[i, j] = P(given = j | true = i)
    mean: tuple[float, ...] = (0.0,)  # of each channel of pixels in [0, 1], or of each feature
    std: tuple[float, ...] = (1.0,)
    pad: int = 0  # zero padding before a random crop
    flip: bool = False  # random horizontal flips
    crop: int | None = None  # pixels of a side that the network sees: a random place in training, otherwise the middle
    known: Known | None = None  # for all rows of x; None: a known data set
    notes: tuple[str, ...] = ()  # messages for the user, from reading the data
    features: tuple[Column, ...] = ()  # what the columns of x were made from, if that has names
    measured_by: tuple[tuple[str, str, str], ...] = ()  # verdicts on validation and test rows: id, label, picked
    test_as_given: int = 0  # number of test rows that nobody verified: their given label counts as right

    def __post_init__(self) -> None:
        parts = {"given": (self.given, self.split.noisy), "clean": (self.clean, self.split.clean)}
        parts |= {"valid": (self.valid, self.split.valid), "test": (self.test, self.split.test)}
        for name, (labels, rows) in parts.items():
            if len(labels) != len(rows):
                raise ValueError(f"{self.name}: {len(labels)} {name} labels for {len(rows)} rows")
            if len(labels) and not 0 <= labels.min() <= labels.max() < self.num_classes:
                wrong = int(np.flatnonzero((labels < 0) | (labels >= self.num_classes))[0])
                raise ValueError(
                    f"{self.name}: {name} label {labels[wrong]} in row {rows[wrong]} is outside the "
                    f"{self.num_classes} classes; labels run from 0 to {self.num_classes - 1}"
                )
        if self.crop is not None and (self.x.ndim != 4 or not 0 < self.crop <= min(self.x.shape[1:3])):
            raise ValueError(f"{self.name}: a crop of {self.crop} pixels does not fit into rows of {self.x.shape[1:]}")

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example as a network sees it: (channels, height, width) or (features,)."""
        return shape_of(self.x) if self.crop is None else (self.x.shape[3], self.crop, self.crop)

    @property
    def unseen_classes(self) -> tuple[int, ...]:
        """Classes without clean rows, if there are any clean rows: nothing shows a model what belongs to them."""
        missing = np.bincount(self.clean, minlength=self.num_classes) == 0
        return tuple(np.flatnonzero(missing).tolist()) if len(self.clean) else ()

    @property
    def audited(self) -> Labels:
        """The rows of x whose given label is judged, in the order of the column `row` of labels.csv.

        These are the noisy rows; in users' own data, also the verified rows with a given label.
        """
        if self.known is None:
            return self.split.noisy
        apart = np.zeros(len(self.x), bool)
        apart[np.concatenate([self.split.valid, self.split.test])] = True
        return np.flatnonzero((self.known.given >= 0) & (~apart | self.known.trained))

    @property
    def ids(self) -> Sequence[str] | Labels:
        """What the audited rows are called: their own ids, the files of images, or the row numbers in the data set."""
        return self.ids_of(self.audited)

    def ids_of(self, rows: Labels) -> Sequence[str] | Labels:
        """Return what rows of x are called."""
        if self.known is not None:
            return self.known.take(rows).ids
        return [self.x.keys[row] for row in rows.tolist()] if isinstance(self.x, ImageFiles) else rows

    @property
    def noise_rate(self) -> float | None:
        """The share of wrong labels among the noisy rows whose true label is known."""
        known = np.zeros(0, bool) if self.truth is None else self.truth >= 0
        if self.truth is None or not known.any():
            return None
        return float(np.mean(self.given[known] != self.truth[known]))
