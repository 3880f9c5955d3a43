"""Means and deviations are those of all that is asked for, however little of it is in memory at a time."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from fasten.data import moments as counted
from fasten.data.moments import moments

RNG = np.random.default_rng(0)


def test_of_images_each_channel_has_its_own_in_shares_of_white():
    x = RNG.integers(0, 256, (50, 6, 5, 3), np.uint8)
    x[..., 1] //= 3
    rows = np.arange(7, 50)
    mean, std = moments(x, rows)
    np.testing.assert_allclose(mean, x[rows].mean((0, 1, 2)) / 255, rtol=1e-12)
    np.testing.assert_allclose(std, x[rows].std((0, 1, 2)) / 255, rtol=1e-12)


@pytest.mark.parametrize("chunk", [7, 8192])
def test_of_features_each_column_has_its_own(monkeypatch, chunk):
    monkeypatch.setattr(counted, "CHUNK", chunk)
    x = RNG.normal(3, 2, (50, 4)).astype(np.float32)
    rows = np.arange(0, 50, 2)
    mean, std = moments(x, rows)
    np.testing.assert_allclose(mean, x[rows].mean(0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(std, x[rows].astype(np.float64).std(0), rtol=1e-12)


def test_a_constant_column_is_not_blown_up():
    assert moments(np.full((5, 1), 1e6, np.float32), np.arange(5))[1] == (1.0,)


@pytest.mark.parametrize("chunk", [7, 8192])
def test_a_rare_category_is_not_blown_up_beyond_a_frequent_one(monkeypatch, chunk):
    monkeypatch.setattr(counted, "CHUNK", chunk)
    x = (RNG.random((100, 3)) < (0.02, 0.5, 0)).astype(np.float32)
    x[0] = (1, 0, 0)
    x = np.column_stack([x, 2 * x[:, :1]])
    mean, std = moments(x, np.arange(100))
    np.testing.assert_allclose(mean, x.mean(0))
    assert std[:3] == (0.5, 0.5, 0.5)
    np.testing.assert_allclose(std[3], x[:, 3].std(), rtol=1e-6)


def test_large_images_are_counted_a_few_at_a_time():
    x = np.zeros((300, 64, 64, 3), np.uint8)
    tracemalloc.start()
    moments(x, np.arange(300))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes
