"""The rows with the smallest losses, against sorting them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fasten.ops.small_loss import smallest


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.4, 0.45, 0.7, 0.99])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_are_the_first_of_the_sorted_rows_that_count(rate, dtype):
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 100, 128):
        losses, weight = rng.random(size), (rng.random(size) < 0.8).astype(float)
        weight[0] = 1.0
        found = smallest(
            torch.tensor(losses, dtype=dtype), torch.tensor(weight, dtype=dtype), 1 - torch.tensor(rate, dtype=dtype)
        )
        counted = [i for i in np.argsort(losses) if weight[i] > 0]
        wanted = counted[: max(1, round(1e6 * (1 - rate)) * len(counted) // 10**6)]
        assert torch.nonzero(found).flatten().tolist() == sorted(wanted)


@pytest.mark.parametrize(("rate", "kept"), [(0.33, 67), (0.46, 54), (0.92, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_share_that_is_rounded_down_loses_no_row(rate, kept, dtype):
    found = smallest(torch.arange(100.0), torch.ones(100), 1 - torch.tensor(rate, dtype=dtype))
    assert found.sum() == kept


def test_of_equal_losses_the_first_rows_are_taken():
    assert smallest(torch.ones(4), torch.ones(4), torch.tensor(0.5)).tolist() == [1, 1, 0, 0]


def test_where_no_row_counts_none_is_taken():
    assert smallest(torch.rand(3), torch.zeros(3), torch.tensor(1.0)).tolist() == [0, 0, 0]


def test_no_gradient_goes_through_the_choice():
    losses = torch.rand(4, requires_grad=True)
    assert not smallest(losses, torch.ones(4), torch.tensor(0.5)).requires_grad
