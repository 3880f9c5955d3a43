"""Columns of which float32 keeps little are named, whatever file or object they come in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fasten.data.arrays import read_npz, rows_from_arrays
from fasten.data.numbers import coarse, note_coarse
from fasten.data.table import read_table

ROWS = 40
CURE = "subtract from each its mean, or its smallest value"


def make_frame():
    """Columns that float32 keeps, and two that it does not."""
    rng = np.random.default_rng(0)
    kept = {"plain": rng.normal(size=ROWS), "zero": np.zeros(ROWS), "tenth": np.full(ROWS, 0.1)}
    kept |= {"year": rng.integers(1990, 2020, ROWS), "large": 1e30 * rng.normal(size=ROWS)}
    kept |= {"outlier": np.where(np.arange(ROWS) == 3, 1e12, rng.normal(size=ROWS)), "true": np.arange(ROWS) % 2 == 0}
    kept |= {"whole": 2**24 + 2 * rng.integers(2, size=ROWS), "hours": 1.7e9 + 3600 * np.arange(ROWS)}
    lost = {"unit": 1e8 + rng.random(ROWS), "time": 1_700_000_000_000 + rng.integers(9000, size=ROWS)}
    return pd.DataFrame(kept | lost)


LABELS = ["cat", "dog"] * (ROWS // 2)


def rows_of(kind: str, folder: Path):
    frame = make_frame()
    numbers = frame.to_numpy(np.float64)
    if kind in ("array", "tensor", "list", "objects", "frame"):
        return rows_from_arrays(
            {
                "array": numbers,
                "tensor": torch.tensor(numbers),
                "list": numbers.tolist(),
                "objects": numbers.astype(object),
                "frame": frame,
            }[kind],
            LABELS,
        )
    path = folder / f"rows.{kind}"
    if kind == "npz":
        np.savez(path, x=numbers, labels=LABELS)
        return read_npz(path)
    table = frame.assign(label=LABELS)
    table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path, index=False)
    return read_table(path)


@pytest.mark.parametrize("kind", ["array", "tensor", "list", "objects", "frame", "npz", "csv", "parquet"])
def test_columns_of_which_little_is_left_are_named(kind, tmp_path):
    rows = rows_of(kind, tmp_path)
    named = kind in ("frame", "csv", "parquet")
    names = make_frame().columns if named else range(20)
    (note,) = rows.notes
    assert f"the columns {names[9]!r}, {names[10]!r} are so large beside" in note
    assert CURE in note
    np.testing.assert_array_equal(rows.x, make_frame().to_numpy(np.float64).astype(np.float32))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_what_differs_in_later_blocks_of_a_table_alone_counts_as_well(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("fasten.data.table.LONGEST_LINE", 1000)
    rows = np.arange(1000)
    far, near = 1e8 + 0.1 + (rows > 900) / 4, 1e8 + 0.1 + 1000 * (rows > 900)
    table = pd.DataFrame({"far": far, "near": near, "label": ["cat", "dog"] * 500})
    path = tmp_path / f"rows.{kind}"
    table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path, index=False)
    (note,) = read_table(path).notes
    assert "the column 'far' are" in note
    assert "subtract from it its mean" in note


@given(st.floats(-15, 15), st.floats(-9, 9), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_a_column_is_coarse_where_float32_loses_a_part_of_it(offset, spread, seed):
    noise = np.random.default_rng(seed).normal(size=(500, 1))
    exact = 10**offset + 10**spread * noise
    lost = exact.astype(np.float32).astype(np.float64) - exact
    share = lost.std() / exact.std() if exact.std() else 0
    if coarse(exact).any():
        assert share > 0.005
    elif exact.std():
        assert share < 0.1


def test_float32_itself_loses_nothing():
    x = (1e8 + np.random.default_rng(0).random((10, 2))).astype(np.float32)
    for kind in (np.float32, np.float64, np.int64):
        assert not coarse(x.astype(kind)).any()


def test_many_columns_are_counted():
    assert "the columns 0, 1, 2, 3, 4 and 3 more are" in note_coarse("rows", range(8))[0]
