from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from fasten.data.digits import read_digits


def test_digits_are_scikit_learns_scaled_to_bytes() -> None:
    source, raw = read_digits(), load_digits()
    assert source.x.shape == (1797, 8, 8, 1)
    assert source.x.max() == 255
    assert abs(source.x[..., 0] * (16 / 255) - raw.images).max() <= 0.5 * 16 / 255
    np.testing.assert_array_equal(source.truth, raw.target)


def test_digits_have_no_official_test_rows_and_a_map_of_look_alikes() -> None:
    source = read_digits()
    assert not source.test.any()
    assert source.flips == {7: (1,), 3: (8,), 5: (6,), 4: (9,), 9: (4,)}
    assert source.class_names == tuple("0123456789")
