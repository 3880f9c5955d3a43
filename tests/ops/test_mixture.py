"""The mixture against scikit-learn's, and how rows are divided."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture

from fasten.ops.mixture import _two_means, divided, lower_group


@pytest.mark.parametrize("seed", range(5))
def test_the_posterior_is_that_of_scikit_learn_from_the_same_start(seed):
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(0.1, 0.06, 300), rng.normal(0.6, 0.15, 200)])
    x = (x - x.min()) / (x.max() - x.min())
    first = _two_means(torch.from_numpy(x))[:, 1].bool().numpy()
    shares, means = [(~first).mean(), first.mean()], [[x[~first].mean()], [x[first].mean()]]
    precisions = [[[1 / (x[side].var() + 5e-4)]] for side in (~first, first)]
    theirs = GaussianMixture(
        2, max_iter=10, tol=1e-2, reg_covar=5e-4, weights_init=shares, means_init=means, precisions_init=precisions
    )
    theirs.fit(x[:, None])
    expected = theirs.predict_proba(x[:, None])[:, theirs.means_.argmin()]
    np.testing.assert_allclose(lower_group(torch.from_numpy(7 * x - 2)), expected, rtol=1e-6, atol=1e-9)


def test_the_first_split_is_the_best_of_all():
    x = torch.from_numpy(np.random.default_rng(0).normal(size=9))

    def within(mask):
        return sum(x[side].sub(x[side].mean()).square().sum() for side in (mask, ~mask) if side.any())

    splits = [torch.tensor([bool(code >> i & 1) for i in range(9)]) for code in range(1, 2**9 - 1)]
    assert within(_two_means(x)[:, 1].bool()) == min(within(split) for split in splits)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_any_numbers_have_a_posterior(values):
    found = lower_group(torch.tensor(values, dtype=torch.float64))
    assert bool(((found >= 0) & (found <= 1)).all())


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0, 1), st.integers(0, 20))
@settings(max_examples=100, deadline=None)
def test_no_side_is_empty_and_more_probable_rows_are_in_first(values, threshold, least):
    p = torch.tensor(values, dtype=torch.float64)
    ours, others = divided(p, threshold, least)
    assert bool((ours | others).all())
    assert min(ours.sum(), others.sum()) >= max(1, min(least, len(p) // 2))
    if len(p) > 1:
        assert not bool((ours & others).any())
        assert p[ours].min() >= p[others].max()
    if least <= (p > threshold).sum() <= len(p) - least and 0 < (p > threshold).sum() < len(p):
        assert torch.equal(ours, p > threshold)
