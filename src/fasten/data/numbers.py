"""Columns of numbers, and their conversion to float32, in which features are stored: what is refused, what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

COARSE = 0.1  # of a column's standard deviation: if float32's steps are larger, most of its information is lost
SAMPLED = 1000  # about so many rows are looked at
NAMED = 5  # columns named in a message


def check_numbers(what: str, x: NDArray[np.float32]) -> None:
    """Raise if a number is missing, infinite or outside float32's range."""
    lacking, large = np.flatnonzero(np.isnan(x).any(1)), np.flatnonzero(np.isinf(x).any(1))
    if len(lacking):
        where = f"{len(lacking)} of {len(x)} rows, first in row {lacking[0]}"
        raise ValueError(f"{what} lacks a finite number in {where}; fill them in, or take the column or the rows out")
    if len(large):
        where = f"{len(large)} of {len(x)} rows, first in row {large[0]}"
        most = f"beyond float32's range (±{np.finfo(np.float32).max:.1e}), or an infinite one,"
        raise ValueError(f"{what} holds a number {most} in {where}; rescale it, or take the column or the rows out")


def listed_numbers(values: pa.ChunkedArray) -> NDArray[Any]:
    """Return a column of lists as (n, width)."""
    kind, lengths = values.type.value_type, pa.compute.unique(pa.compute.list_value_length(values)).to_pylist()
    if len(lengths) != 1 or not lengths[0] or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ValueError("must hold a list of numbers in each row, all of the same length")
    flat = pa.compute.list_flatten(values).to_numpy()  # an array for each row would take several times the memory
    return np.asarray(flat, None if pa.types.is_floating(kind) else np.float64).reshape(len(values), -1)


def coarse(exact: NDArray[Any], *, varied: bool = True) -> NDArray[np.bool_]:
    """Return which columns hold numbers so large beside their spread that float32 hardly tells them apart.

    With `varied`, only columns whose numbers differ count; pass False if only the first rows are given.

    >>> coarse(np.array([[1e8, 2020, 0.1], [1e8 + 1, 2021, 0.1]])), coarse(np.array([[0.1]]), varied=False)
    (array([ True, False, False]), array([ True]))
    """
    if np.can_cast(exact.dtype, np.float32):
        return np.zeros(exact.shape[1], bool)
    some = exact[:: max(1, len(exact) // SAMPLED)].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that are not finite are refused elsewhere
        kept = some.astype(np.float32)
        lost = (np.spacing(np.abs(kept).max(0)) > COARSE * some.std(0)) & (kept != some).any(0)
    return np.asarray(lost & (some.max(0) > some.min(0)) if varied else lost)


def note_coarse(name: str, columns: Sequence[object]) -> tuple[str, ...]:
    """Write a note on columns of which float32 keeps little.

    >>> note_coarse("log.csv", ["time"])[0][:60]
    "log.csv: the numbers in the column 'time' are so large besid"
    """
    if not columns:
        return ()
    shown, more = ", ".join(map(repr, columns[:NAMED])), len(columns) - NAMED
    named = f"the column {shown}" if len(columns) == 1 else f"the columns {shown}"
    several = f"{named} and {more} more" if more > 0 else named
    return (
        f"{name}: the numbers in {several} are so large beside their spread that float32, in which they are stored, "
        f"hardly tells them apart; subtract from {'it' if len(columns) == 1 else 'each'} its mean, or its smallest "
        "value",
    )
