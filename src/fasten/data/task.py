"""Task: one frozen record of all that a run may see, and the hidden truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasten.data.splits import Split

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """Rows, how they are split, and the labels of each part.

    `truth` and `transition` are for evaluation (and for methods that are given the true T by name); training that
    depends on them otherwise is a bug, and a test replaces them by garbage to see.
    """

    name: str
    x: NDArray[Any]  # (n, H, W, C) uint8 images, or (n, D) float32 features
    split: Split  # index arrays into x: noisy, clean, valid, test
    given: Labels  # of the noisy rows
    clean: Labels  # of the clean rows
    valid: Labels
    test: Labels
    class_names: tuple[str, ...]
    truth: Labels | None = None  # of the noisy rows; None where nobody knows
    transition: NDArray[np.float64] | None = None  # the true T[i, j] = P(given = j | true = i)
    mean: tuple[float, ...] = (0.0,)  # per channel, of pixels in [0, 1] or of features
    std: tuple[float, ...] = (1.0,)
    pad: int = 0  # zero padding before a random crop
    flip: bool = False  # random horizontal flips

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

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example as a network sees it: (channels, height, width) or (features,)."""
        return (self.x.shape[3], *self.x.shape[1:3]) if self.x.ndim == 4 else self.x.shape[1:]

    @property
    def noise_rate(self) -> float | None:
        """The share of noisy labels that is really wrong."""
        return None if self.truth is None else float(np.mean(self.given != self.truth))
