"""Label noise: the kinds that `--noise` takes, their transition matrices, and true labels made noisy.

T[i, j] = P(given = j | true = i). All kinds but `matrix` touch exactly ⌊R n⌋ labels, drawn from the whole set and not
class by class. Q[i, j] is the probability that a touched label of class i becomes j, so that T = (1 − R) I + R Q.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from fasten.cells import unescaped
from fasten.data.splits import check_range
from fasten.suggest import nearest

Kind = Literal["none", "symmetric", "symmetric-exclusive", "asymmetric", "pair", "matrix"]
Labels = NDArray[np.int64]
Matrix = NDArray[np.float64]
Flips = Mapping[int, tuple[int, ...]]

KINDS: tuple[Kind, ...] = get_args(Kind)
ROW_SUM_TOLERANCE = 1e-3  # rows typed by hand, or rounded as in transition.csv, sum to one only approximately


@dataclass(frozen=True)
class Noise:
    """A kind of noise with its rate or file, as `--noise` takes it.

    >>> str(Noise("symmetric", 0.8))
    'symmetric:0.8'
    """

    kind: Kind
    rate: float | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown noise {self.kind!r}; {nearest(self.kind, KINDS)}")
        rated = self.kind not in ("none", "matrix")
        if rated and self.rate is None:
            raise ValueError(f"{self.kind} noise needs a rate; write 40% as {self.kind}:0.4")
        if self.rate is not None and not 0 <= self.rate < 1:
            raise ValueError(f"noise rate must be in [0, 1), got {self.rate}; write 40% as 0.4")
        if not rated and self.rate is not None:
            raise ValueError(f"{self.kind} noise takes no rate, got {self.rate}; leave it out")
        if (self.kind == "matrix") != bool(self.path):
            cure = "write matrix:FILE" if self.kind == "matrix" else "only matrix:FILE takes one"
            raise ValueError(f"{self.kind} noise with file {self.path!r}; {cure}")

    def __str__(self) -> str:
        argument = self.path if self.kind == "matrix" else self.rate
        return self.kind if argument is None else f"{self.kind}:{argument}"


@dataclass(frozen=True, eq=False)
class Corrupted:
    """Noisy labels, and the T from which they were drawn."""

    labels: Labels  # (n,)
    transition: Matrix  # (N, N)


def parse_noise(text: str) -> Noise:
    """Read noise as written on the command line.

    >>> parse_noise("symmetric:0.8")
    Noise(kind='symmetric', rate=0.8, path=None)
    >>> parse_noise("matrix:noise.csv").path
    'noise.csv'
    """
    kind, colon, argument = text.strip().partition(":")
    if kind not in KINDS:
        written = "" if colon else "write its kind and rate, such as symmetric:0.4; "
        raise ValueError(f"unknown noise {kind!r}; {written}{nearest(kind, KINDS)}")
    if kind == "matrix":
        return Noise("matrix", path=argument)
    if not colon:
        return Noise(cast(Kind, kind))
    try:
        rate = float(argument)
    except ValueError:
        raise ValueError(f"noise rate must be in [0, 1), got {argument!r}; write 40% as 0.4") from None
    return Noise(cast(Kind, kind), rate)


def transition_of(
    noise: Noise, num_classes: int, flips: Flips | None = None, names: Sequence[str] | None = None
) -> Matrix:
    """Return the true T of this noise, (N, N). `flips` is the data's map for asymmetric noise, `names` its classes.

    >>> transition_of(parse_noise("symmetric:0.5"), 2).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    if noise.kind == "matrix":
        assert noise.path is not None
        return _read_matrix(Path(noise.path), num_classes, names)
    rate = noise.rate or 0.0
    return (1 - rate) * np.eye(num_classes) + rate * _targets(noise.kind, num_classes, flips)


def corrupt(
    truth: Labels,
    noise: Noise,
    num_classes: int,
    rng: np.random.Generator,
    flips: Flips | None = None,
    names: Sequence[str] | None = None,
) -> Corrupted:
    """Make true labels noisy.

    >>> noisy = corrupt(np.arange(10) % 5, parse_noise("pair:0.4"), 5, np.random.default_rng(0))
    >>> int((noisy.labels != np.arange(10) % 5).sum())
    4
    """
    check_range(truth, num_classes)
    transition = transition_of(noise, num_classes, flips, names)
    labels = truth.astype(np.int64)
    if noise.kind == "matrix":
        labels = _draw(labels, transition, rng)
    elif noise.rate is not None:
        touched = rng.choice(len(truth), size=math.floor(Fraction(str(noise.rate)) * len(truth)), replace=False)
        labels[touched] = _draw(labels[touched], _targets(noise.kind, num_classes, flips), rng)
    return Corrupted(labels, transition)


def _draw(labels: Labels, rows: Matrix, rng: np.random.Generator) -> Labels:
    """Draw each label anew from the row of its class."""
    drawn = labels.copy()
    for c in np.unique(labels):
        mine = np.flatnonzero(labels == c)
        drawn[mine] = rng.choice(len(rows), size=len(mine), p=rows[c])
    return drawn


def _targets(kind: Kind, num_classes: int, flips: Flips | None) -> Matrix:
    """Q, (N, N): where a touched label goes."""
    identity = np.eye(num_classes)
    if kind == "none":
        return identity
    if num_classes < 2:
        raise ValueError(f"{kind} noise needs two classes or more, got {num_classes}; use none")
    if kind == "symmetric":
        return np.full((num_classes, num_classes), 1 / num_classes)
    if kind == "symmetric-exclusive":
        return (1 - identity) / (num_classes - 1)
    if kind == "pair":
        return np.roll(identity, 1, axis=1)
    if not flips:
        raise ValueError(
            "asymmetric noise needs a map of which class is mistaken for which; of the known data sets, CIFAR-10, "
            "CIFAR-100 and digits have such a map, but these data have none: use pair:R or matrix:FILE"
        )
    for true, others in flips.items():
        identity[true] = np.isin(np.arange(num_classes), others) / len(others)
    return identity


def _read_matrix(path: Path, num_classes: int, names: Sequence[str] | None) -> Matrix:
    if not path.is_file():
        raise FileNotFoundError(f"no noise matrix at {path}; give the path of a .csv, .npy or .npz file")
    readers = {".csv": _read_csv, ".npy": _read_npy, ".npz": _read_npy}
    if path.suffix.lower() not in readers:
        raise ValueError(f"noise matrix {path} is a {path.suffix or 'suffixless'} file; give a .csv, .npy or .npz file")
    matrix = readers[path.suffix.lower()](path, num_classes, names)
    if matrix.shape != (num_classes, num_classes):
        raise ValueError(
            f"noise matrix {path} has shape {matrix.shape}; with {num_classes} classes it needs {num_classes} rows "
            f"(true) of {num_classes} columns (given)"
        )
    bad = np.flatnonzero(~np.isfinite(matrix).all(1) | (matrix < 0).any(1))
    if len(bad):
        raise ValueError(f"noise matrix {path}: row {bad[0]} has a negative or non-finite entry; give probabilities")
    sums = matrix.sum(1)
    off = np.flatnonzero(abs(sums - 1) > ROW_SUM_TOLERANCE)
    if len(off):
        raise ValueError(
            f"noise matrix {path}: row {off[0]} sums to {sums[off[0]]:.6g}, expected 1; row i holds the probabilities "
            "of each given label for true class i"
        )
    return np.asarray(matrix / sums[:, None], np.float64)


def _read_csv(path: Path, num_classes: int, names: Sequence[str] | None) -> Matrix:
    """Read a table of numbers, perhaps with a first line and a first column of class names, as in transition.csv.

    Named classes may come in any order.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:  # -sig: spreadsheets write a byte order mark
            rows = [row for row in csv.reader(file) if row]
        above = rows.pop(0)[-num_classes:] if len(rows) == num_classes + 1 else None
        left = [row.pop(0) for row in rows] if all(len(row) == num_classes + 1 for row in rows) else None
        matrix = np.array([[float(cell) for cell in row] for row in rows], np.float64)
    except (ValueError, csv.Error) as error:  # NumPy raises ValueError on a ragged table
        raise ValueError(
            f"noise matrix {path} is not a table of numbers ({error}); write {num_classes} lines of {num_classes} "
            "numbers, separated by commas"
        ) from None
    if matrix.shape != (num_classes, num_classes):
        return matrix  # the caller refuses it
    return matrix[np.ix_(_places(left, num_classes, names, path), _places(above, num_classes, names, path))]


def _places(found: list[str] | None, num_classes: int, names: Sequence[str] | None, path: Path) -> list[int]:
    """Return the place of each class in a file, by its name or number; in order if the file has no names."""
    numbers = [str(number) for number in range(num_classes)]
    if found is None or names is None:
        return list(range(num_classes))
    said = [unescaped(cell) for cell in found]
    for known in (list(names), numbers):
        if sorted(said) == sorted(known):
            return [said.index(name) for name in known]
    unknown = next((name for name in said if name not in names), None)
    wrong = "names a class twice" if unknown is None else f"names a class {unknown!r}, which the data does not have"
    raise ValueError(f"noise matrix {path} {wrong}; use the names of the data ({_few(names)}), or leave them out")


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (", …" if len(names) > 3 else "")


def _read_npy(path: Path, num_classes: int, names: Sequence[str] | None) -> Matrix:
    try:
        with open(path, "rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return np.asarray(loaded, np.float64)
            arrays = [np.asarray(loaded[name], np.float64) for name in loaded.files]
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(
            f"noise matrix {path} cannot be read ({type(error).__name__}: {error}); save one {num_classes} × "
            f"{num_classes} array of numbers with numpy.save"
        ) from error
    if len(arrays) != 1:
        raise ValueError(f"noise matrix {path} holds {len(arrays)} arrays; save the matrix alone")
    return arrays[0]
