from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fasten.data.source import Source


def source(**changes: Any) -> Source:
    fields: dict[str, Any] = {
        "name": "tiny",
        "x": np.zeros((4, 2), np.float32),
        "truth": np.array([0, 1, 1, 0]),
        "test": np.array([False, False, False, True]),
        "class_names": ("cat", "dog"),
    }
    return Source(**(fields | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"x": np.zeros((4, 8, 8, 1), np.uint8)},
        {"flips": {0: (1,)}},
        {"given": np.array([1, 1, 1, -1])},
    ],
)
def test_a_consistent_source_is_accepted(changes: dict[str, Any]) -> None:
    assert source(**changes).num_classes == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.zeros((4, 2))}, "x is float64 of shape .* give images as uint8"),
        ({"x": np.zeros((4, 8, 8), np.uint8)}, "x is uint8 of shape"),
        ({"truth": np.array([0, 1])}, r"truth is int64 of shape \(2,\); give one int64 for each of the 4 rows"),
        ({"truth": np.zeros(4, np.int32)}, "truth is int32"),
        ({"test": np.zeros(4, np.int64)}, "test is int64 .* give one bool"),
        ({"truth": np.array([0, 1, 2, 0])}, "truth label 2 in row 2 is outside the 2 classes"),
        ({"truth": np.array([0, -1, 0, 0])}, "truth label -1 in row 1"),
        ({"given": np.array([0, -1, 0, -1])}, "given label -1 in row 1"),
        ({"given": np.array([0, 1, 0, 1])}, "a test row has a given label"),
        ({"given": np.array([0, 1])}, "given is int64 of shape"),
        ({"flips": {0: (2,)}}, "flips maps class 0"),
        ({"flips": {5: (1,)}}, "flips maps class 5"),
        ({"flips": {0: ()}}, "flips maps class 0"),
        ({"flips": {0: (0, 1)}}, "flips maps class 0 .* one or more of the other classes"),
    ],
)
def test_an_inconsistent_source_is_refused_with_its_cause(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"tiny: {message}"):
        source(**changes)
