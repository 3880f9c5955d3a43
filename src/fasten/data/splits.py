"""Splits: which rows are noisy, clean, for validation and for the test, as index arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

VALID_SHARE = 5  # one clean row in so many is used for validation, unless the data say which


@dataclass(frozen=True, eq=False)
class Split:
    """Index arrays into the rows of one data set; no row is in two of them.

    >>> Split(*(np.array(rows) for rows in ([0, 4], [1], [2], [3]))).noisy.tolist()
    [0, 4]
    """

    noisy: Rows
    clean: Rows
    valid: Rows
    test: Rows

    def __post_init__(self) -> None:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, rows in parts.items():
            if rows.ndim != 1 or rows.dtype != np.int64:
                raise ValueError(f"{name} rows are {rows.dtype} of shape {rows.shape}; give one list of int64 indices")
        rows, counts = np.unique(np.concatenate(list(parts.values())), return_counts=True)
        if (counts > 1).any():
            row = rows[counts > 1][0]
            where = [name for name, part in parts.items() if row in part]
            raise ValueError(f"row {row} is more than once in {' and '.join(where)}; the parts must be disjoint")


def balanced_split(
    labels: Rows, train_rows: Rows, num_classes: int, clean: int, valid: int, rng: np.random.Generator
) -> Split:
    """Split the training rows class by class, so that clean and valid are balanced; all other rows are test rows.

    Each class is shuffled: its first clean/N rows are clean, its last valid/N for validation, those between are noisy.

    >>> split = balanced_split(np.arange(10) % 2, np.arange(8), 2, clean=2, valid=2, rng=np.random.default_rng(0))
    >>> len(split.noisy), len(split.clean), len(split.valid), split.test.tolist()
    (4, 2, 2, [8, 9])
    """
    for name, size in (("clean", clean), ("valid", valid)):
        _check_size(name, size)
        if size % num_classes:
            raise ValueError(
                f"{size} {name} rows cannot be balanced over {num_classes} classes; take a multiple of {num_classes}, "
                f"such as {size + -size % num_classes}"
            )
    test = np.setdiff1d(np.arange(len(labels)), train_rows)
    counts = _count(labels[train_rows], num_classes)
    _check_supply(counts, clean // num_classes, valid // num_classes)
    quotas = [np.full(num_classes, size // num_classes) for size in (clean, valid, 0)]
    noisy, chosen, validating, _ = _deal(labels, train_rows, quotas, rng)
    return Split(noisy, chosen, validating, test)


def stratified_split(
    labels: Rows, num_classes: int, *, clean: int, valid: int, test: int, rng: np.random.Generator
) -> Split:
    """Split data without official test rows into parts of exactly these sizes; the rest is noisy.

    Test rows follow the shares of the classes, to the nearest row. Clean and validation rows are equally many of each
    class if their number is a multiple of the number of classes; otherwise they follow the shares too.

    >>> split = stratified_split(np.arange(50) % 5, 5, clean=5, valid=5, test=10, rng=np.random.default_rng(0))
    >>> len(split.noisy), len(split.clean), len(split.valid), len(split.test)
    (30, 5, 5, 10)
    """
    for name, size in (("clean", clean), ("valid", valid), ("test", test)):
        _check_size(name, size)
    if clean + valid + test > len(labels):
        raise ValueError(
            f"{clean} clean, {valid} validation and {test} test rows are more than the {len(labels)} there are; "
            "ask for fewer"
        )
    counts = _count(labels, num_classes)
    test_quota = _shares(counts, test)
    left = counts - test_quota
    even = [size // num_classes for size in (clean, valid) if size % num_classes == 0]
    _check_supply(left, *even)
    left = left - sum(even)  # the balanced parts come first; the others follow the shares of what is left
    quotas = []
    for size in (clean, valid):
        if size % num_classes == 0:
            quotas.append(np.full(num_classes, size // num_classes))
        else:
            quotas.append(_shares(left, size))
            left = left - quotas[-1]
    return Split(*_deal(labels, np.arange(len(labels)), [*quotas, test_quota], rng))


def own_split(
    rows: Mapping[str, Rows],
    given: Rows,
    verified: Rows,
    held: NDArray[np.bool_],
    num_classes: int,
    rng: np.random.Generator,
) -> Split:
    """Split users' own data; `rows` are those that the data mark as `valid` and `test`, labels -1 if unknown.

    Verified rows that are not held back are clean, all others with a given label are noisy. Without validation rows, a
    fifth of the clean rows takes their place, class by class, unless there are fewer than five per class on average.

    >>> none, y = np.empty(0, np.int64), np.arange(20) % 2
    >>> split = own_split({"valid": none, "test": none}, y, np.where(y, 1, -1), y > 1, 2, np.random.default_rng(0))
    >>> len(split.noisy), len(split.clean), len(split.valid)
    (10, 8, 2)
    """
    free = np.ones(len(given), bool)
    free[np.concatenate([rows["valid"], rows["test"]])] = False
    is_clean = free & (verified >= 0) & ~held
    noisy, clean, valid = np.flatnonzero(free & ~is_clean & (given >= 0)), np.flatnonzero(is_clean), rows["valid"]
    if not len(valid) and len(clean) >= VALID_SHARE * num_classes:
        by_class = [rng.permutation(clean[verified[clean] == label]) for label in np.unique(verified[clean])]
        valid = np.sort(np.concatenate([mine[: len(mine) // VALID_SHARE] for mine in by_class]))
        clean = np.setdiff1d(clean, valid)
    return Split(noisy, clean, valid, rows["test"])


def _check_size(name: str, size: int) -> None:
    if size < 0:
        raise ValueError(f"the number of {name} rows must be 0 or more, got {size}")


def check_range(labels: Rows, num_classes: int) -> None:
    """Raise if labels are not class numbers."""
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f"labels run from {labels.min()} to {labels.max()}, outside the {num_classes} classes; number the classes "
            f"from 0 to {num_classes - 1}"
        )


def _count(labels: Rows, num_classes: int) -> Rows:
    check_range(labels, num_classes)
    return np.bincount(labels, minlength=num_classes).astype(np.int64)


def _check_supply(counts: Rows, *per_class: int) -> None:
    need, rarest = sum(per_class), int(counts.argmin())
    if counts[rarest] < need:
        raise ValueError(
            f"balanced parts take {need} rows of each class, but class {rarest} has only {counts[rarest]} left; ask "
            f"for at most {counts[rarest] * len(counts)} clean and validation rows together"
        )


def _shares(counts: Rows, size: int) -> Rows:
    """Divide `size` in proportion to `counts`, by largest remainders; no class gets more than it has."""
    whole, remainder = np.divmod(counts * size, max(int(counts.sum()), 1))
    missing = size - int(whole.sum())
    whole[np.argsort(-remainder, kind="stable")[:missing]] += 1
    return np.asarray(whole, np.int64)


def _deal(labels: Rows, rows: Rows, quotas: list[Rows], rng: np.random.Generator) -> list[Rows]:
    """Return noisy, clean, valid and test rows, sorted; `quotas` say how many of each class go to the last three."""
    clean, valid, test = quotas
    parts: list[list[Rows]] = [[], [], [], []]
    for c in range(len(clean)):
        mine = rng.permutation(rows[labels[rows] == c])
        ends = len(mine) - np.array([valid[c] + test[c], test[c]])
        first, middle, valid_rows, test_rows = np.split(mine, [clean[c], *ends])
        for part, piece in zip(parts, (middle, first, valid_rows, test_rows), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]
