from __future__ import annotations

import numpy as np
import pytest

from fasten.data.synthetic import make_blobs


@pytest.mark.parametrize(("num_classes", "size", "channels"), [(2, 8, 3), (10, 8, 1), (5, 7, 3), (20, 16, 3)])
@pytest.mark.parametrize("mirrored", [False, True])
def test_blobs_are_told_apart_by_the_nearest_mean(num_classes: int, size: int, channels: int, mirrored: bool) -> None:
    source = make_blobs(num_classes, 20, size, channels, seed=3)
    x = source.x.astype(float)
    means = np.stack([x[source.truth == c].mean(0) for c in range(num_classes)])
    seen = x[:, :, ::-1] if mirrored else x
    distances = ((seen[:, None] - means[None]) ** 2).sum((2, 3, 4))
    assert (distances.argmin(1) == source.truth).all()


def test_blobs_repeat_from_the_same_seed_and_differ_from_another() -> None:
    first, again, other = (make_blobs(3, 5, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.x, again.x)
    assert (first.x != other.x).any()


def test_blobs_have_as_many_rows_of_each_class_and_a_map_for_asymmetric_noise() -> None:
    source = make_blobs(4, 6)
    assert np.bincount(source.truth).tolist() == [6, 6, 6, 6]
    assert source.flips == {0: (1,), 2: (3,)}


@pytest.mark.parametrize("sizes", [(1, 5, 8, 3), (2, 0, 8, 3), (2, 5, 0, 3), (2, 5, 8, 0)])
def test_blobs_of_nothing_are_refused(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="make_blobs needs two classes"):
        make_blobs(*sizes)
