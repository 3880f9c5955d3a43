"""Mean and standard deviation of a set of examples, by which all are normalised."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasten.data.images import ImageFiles

CHUNK = 8192  # rows that are summed at a time
SAMPLED = 2000  # images, at least, from which the mean colour is computed, if there are so many
FEW = 16  # images that are counted at a time: counting takes eight times their bytes
CONSTANT = 1e-6  # of a column's mean: a smaller spread may be float32 rounding, and is not scaled up
BINARY = (
    0.5  # the deviation of every column of 0 and 1, that of a class in half of the rows: a rare one is not blown up
)


def moments(x: NDArray[Any] | ImageFiles, rows: NDArray[np.int64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation over some rows, for each feature or each channel of pixels in [0, 1].

    A feature that is 0 or 1 counts as one that varies as much as it can (`benchmarks/categories.py`).
    """
    if x.ndim == 4:
        some, values = rows[:: max(1, len(rows) // SAMPLED)], np.arange(256) / 255
        counts = np.sum([_histograms(x[some[start : start + FEW]]) for start in range(0, len(some), FEW)], 0)
        shares = counts / counts.sum(1, keepdims=True)  # (C, 256)
        mean = shares @ values
        std = np.sqrt((shares * (values - mean[:, None]) ** 2).sum(1))
    else:
        parts = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
        mean = sum(x[part].sum(0, dtype=np.float64) for part in parts) / len(rows)
        std = np.sqrt(sum(((x[part] - mean) ** 2).sum(0) for part in parts) / len(rows))
        binary = np.logical_and.reduce([((x[part] == 0) | (x[part] == 1)).all(0) for part in parts])
        std = np.where(binary, BINARY, std)
    std = np.where(std > CONSTANT * np.abs(mean), std, np.maximum(std, 1.0))
    return tuple(mean.tolist()), tuple(std.tolist())


def _histograms(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Count how often each channel has each value, (C, 256)."""
    return np.stack([np.bincount(channel.ravel(), minlength=256) for channel in np.moveaxis(images, 3, 0)])
