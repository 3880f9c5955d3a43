"""Task: one frozen record of all that a run may see, and the hidden truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasten.data.images import ImageFiles
from fasten.data.splits import Split

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """Rows, how they are split, and the labels of each part.

    `truth` and `transition` are for evaluation (and for methods that are given the true T by name); training that
    depends on them otherwise is a bug, and a test replaces them by garbage to see.
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
    mean: tuple[float, ...] = (0.0,)  # per channel, of pixels in [0, 1] or of features
    std: tuple[float, ...] = (1.0,)
    pad: int = 0  # zero padding before a random crop
    flip: bool = False  # random horizontal flips
    crop: int | None = None  # pixels of a side that the network sees: anywhere in training, else in the middle

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
        """Of one example as a network sees it: (channels, height, width) or (features,)."""
        if self.x.ndim != 4:
            return self.x.shape[1:]
        return (self.x.shape[3], *(self.x.shape[1:3] if self.crop is None else (self.crop, self.crop)))

    @property
    def ids(self) -> Sequence[str] | Labels:
        """What the noisy rows are called: an image by its file, anything else by its row in the data set."""
        rows = self.split.noisy
        return [self.x.keys[row] for row in rows.tolist()] if isinstance(self.x, ImageFiles) else rows

    @property
    def noise_rate(self) -> float | None:
        """The share of noisy labels that is really wrong, of those whose truth is known."""
        known = np.zeros(0, bool) if self.truth is None else self.truth >= 0
        if self.truth is None or not known.any():
            return None
        return float(np.mean(self.given[known] != self.truth[known]))
