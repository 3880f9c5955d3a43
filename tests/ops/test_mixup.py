"""MixUp's shares against SciPy's beta distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import beta

from fasten.ops.mixup import folded_beta, look_up, mix_up, sharpened


@pytest.mark.parametrize("alpha", [0.5, 1.0, 4.0, 0.2])
def test_the_table_has_the_quantiles_of_the_folded_distribution(alpha):
    table, u = folded_beta(alpha), np.linspace(0, 1, 4097)
    np.testing.assert_allclose(table, beta.ppf((1 + u) / 2, alpha, alpha), atol=1e-2 if alpha < 0.5 else 1e-4)
    assert bool((table[1:] >= table[:-1]).all())


def test_shares_that_are_looked_up_are_distributed_so():
    u = torch.from_numpy(np.random.default_rng(0).uniform(size=20_000))
    found = look_up(folded_beta(4.0), u)
    for q in (0.1, 0.5, 0.9):
        assert found.quantile(q).item() == pytest.approx(beta.ppf((1 + q) / 2, 4, 4), abs=5e-3)


def test_rows_and_targets_are_mixed_alike_with_the_row_in_their_place():
    first = torch.tensor([[0.9, 0.5, 1.0, 0.0], [0.1, 0.7, 0.0, 0.0]])  # of two views of two rows: a, b, a, b
    second = torch.tensor([[0.3, 0.2, 0.0, 0.0]])  # of one row: c, c
    order = [1, 5, 4, 2, 3, 0]  # where 0.1, 0.2, 0.3, 0.5, 0.7 and 0.9 are
    tables = [torch.rand(6, 2, 2, generator=torch.Generator().manual_seed(0)), torch.eye(6)]
    quantiles = torch.tensor([0.5, 0.8])
    for found, rows in zip(mix_up(tables, [first, second], quantiles), tables, strict=True):
        torch.testing.assert_close(found, 0.8 * rows + 0.2 * rows[order])


def test_a_certain_prediction_stays_so_and_a_power_is_normal():
    p = np.random.default_rng(0).dirichlet(np.ones(3), 5)
    expected = p**2 / (p**2).sum(1, keepdims=True)
    np.testing.assert_allclose(sharpened(torch.from_numpy(p), 0.5), expected, rtol=1e-12)
    assert sharpened(torch.tensor([[0.0, 1.0]]), 0.5).tolist() == [[0.0, 1.0]]
