"""Student's and the beta distribution, intervals and tests: closed forms, printed tables, SciPy, and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasten.statistics import (
    beta_cdf,
    beta_quantile,
    estimate,
    holm,
    lower_bound,
    paired_difference,
    proportion,
    reaches,
    t_quantile,
    two_sided_p,
)
from reference.metrics import ref_interval95

shares = st.integers(0, 400).map(lambda right: right / 400)  # accuracies on 400 rows
probabilities = st.floats(0, 1)


@pytest.mark.parametrize(
    ("q", "df", "t"),
    [
        (0.975, 1, 12.706204736174698),
        (0.975, 2, 4.302652729749462),
        (0.975, 4, 2.7764451051977987),
        (0.975, 9, 2.2621571627982049),
        (0.95, 10, 1.8124611228116756),
        (0.995, 30, 2.7499956535672254),
        (0.975, 120, 1.9799304050824413),
    ],
)
def test_quantiles_are_those_of_printed_tables(q, df, t):
    assert t_quantile(q, df) == pytest.approx(t, rel=1e-12)


@pytest.mark.parametrize("t", [0.0, 1e-9, 0.01, 0.5, 1.0, 1.5, 10.0, 1e4, 1e8])
def test_tails_have_their_closed_forms(t):
    assert two_sided_p(t, 1) == pytest.approx(2 / math.pi * math.atan2(1, t), rel=1e-12)
    assert two_sided_p(t, 2) == pytest.approx(2 / (2 + t * t) / (1 + t / math.sqrt(2 + t * t)), rel=1e-12)
    assert two_sided_p(-t, 2) == two_sided_p(t, 2)


def ref_inside(t, df):
    """P(|T| < t) for a whole df, by its finite series in θ = atan(t / √df)."""
    theta = math.atan(t / math.sqrt(df))
    odd, total, term = df % 2, 0.0, math.cos(theta) if df % 2 else 1.0
    for k in range(2 + odd, df + 1 + odd, 2):
        total += term
        term *= math.cos(theta) ** 2 * (k - 1) / k
    if odd:
        return 2 / math.pi * (theta + (math.sin(theta) * total if df > 1 else 0))
    return math.sin(theta) * total


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 8, 9, 30])
def test_the_distribution_is_that_of_its_finite_series(df):
    t = [0.0, 0.1, 0.7, 1.0, 1.9, 2.8, 4.3, 12.7, 60.0]
    np.testing.assert_allclose([1 - two_sided_p(x, df) for x in t], [ref_inside(x, df) for x in t], atol=1e-13)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 19, 99, 999])
def test_the_distribution_is_scipys(df):
    stats = pytest.importorskip("scipy.stats")
    t = np.array([0.001, 0.1, 0.7, 1.0, 1.3, 2.0, 2.8, 5.0, 12.7, 100.0])
    np.testing.assert_allclose([two_sided_p(x, df) for x in t], 2 * stats.t.sf(t, df), rtol=1e-10)
    q = np.array([0.6, 0.9, 0.95, 0.975, 0.995])
    np.testing.assert_allclose([t_quantile(x, df) for x in q], stats.t.ppf(q, df), rtol=1e-10)


@given(st.floats(0.5001, 0.9999), st.integers(1, 200))
def test_the_quantile_undoes_the_tail(q, df):
    assert two_sided_p(t_quantile(q, df), df) == pytest.approx(2 * (1 - q), rel=1e-9)


@given(st.floats(0, 1e300), st.integers(1, 500))
def test_a_tail_is_a_probability(t, df):
    assert 0 <= two_sided_p(t, df) <= 1


def test_what_cannot_be_further_out_has_no_tail():
    assert two_sided_p(math.inf, 3) == 0


def binomial_tail(k, n, share):
    """P(k or more of n), summed."""
    return math.fsum(math.comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize("x", [0.0, 1e-9, 0.1, 0.5, 0.9, 1.0])
def test_the_beta_distribution_has_its_closed_forms(x):
    assert beta_cdf(x, 3, 1) == pytest.approx(x**3, rel=1e-12)
    assert beta_cdf(x, 1, 4) == pytest.approx(1 - (1 - x) ** 4, rel=1e-6)
    assert beta_cdf(x, 0.5, 0.5) == pytest.approx(2 / math.pi * math.asin(math.sqrt(x)), rel=1e-12)


@given(st.integers(1, 60), st.integers(0, 60), st.floats(0.01, 0.99))
def test_the_beta_distribution_sums_the_binomials_tail(k, more, share):
    n = k + more
    assert beta_cdf(share, k, n - k + 1) == pytest.approx(binomial_tail(k, n, share), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (0.5, 4.5), (0.5, 499.5), (3.5, 1.5), (60, 1), (1, 1e5), (2000, 100)])
def test_the_beta_distribution_is_scipys(a, b):
    stats = pytest.importorskip("scipy.stats")
    q = np.array([0.001, 0.025, 0.05, 0.5, 0.95, 0.975, 0.999])
    x = stats.beta.ppf(q, a, b)
    np.testing.assert_allclose([beta_quantile(share, a, b) for share in q], x, rtol=1e-9)
    np.testing.assert_allclose([beta_cdf(value, a, b) for value in x], q, rtol=1e-9)


@given(st.floats(0.001, 0.999), st.floats(0.5, 300), st.floats(0.5, 300))
def test_the_betas_quantile_undoes_its_distribution(q, a, b):
    assert beta_cdf(beta_quantile(q, a, b), a, b) == pytest.approx(q, rel=1e-6)
    assert beta_quantile(q, a, b) == pytest.approx(1 - beta_quantile(1 - q, b, a), abs=1e-9)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (8, 10), (29, 29), (95, 100), (187, 200)])
def test_at_its_bound_a_share_gives_as_many_in_one_of_twenty(k, n):
    assert binomial_tail(k, n, lower_bound(k, n)) == pytest.approx(0.05, rel=1e-9)


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 7), (3, 7), (7, 7), (29, 30), (950, 1000)])
def test_the_interval_of_a_share_is_scipys(k, n):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
    found = proportion(k, n)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-12)


def test_no_rows_leave_the_share_open():
    none = proportion(0, 0)
    assert (none.share, none.low, none.high) == (None, 0, 1)
    assert lower_bound(0, 5) == 0
    assert not reaches(0, 5, 1e-9)


@given(st.integers(0, 80), st.integers(0, 80), st.integers(1, 99))
def test_to_reach_a_share_is_to_have_a_bound_above_it(k, more, percent):
    bound = lower_bound(k, k + more)
    if abs(bound - percent / 100) > 1e-9:
        assert reaches(k, k + more, percent / 100) == (bound >= percent / 100)


@pytest.mark.parametrize("share", [0.03, 0.5, 0.9])
@pytest.mark.parametrize("n", [5, 40])
def test_the_interval_covers_the_share_often_enough(n, share):
    chances = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    found = [proportion(k, n) for k in range(n + 1)]
    covered = math.fsum(c for c, f in zip(chances, found, strict=True) if f.low <= share <= f.high)
    assert covered >= 0.95


@pytest.mark.parametrize("num_values", [2, 3, 5, 10])
def test_the_interval_is_that_of_a_printed_table(num_values):
    values = np.random.default_rng(num_values).random(num_values)
    assert estimate(values.tolist()).ci95 == pytest.approx(ref_interval95(values), rel=1e-8)


@pytest.mark.parametrize("num_values", [2, 3, 5, 20])
def test_the_interval_is_students(num_values):
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(num_values).uniform(0.8, 0.9, num_values)
    found = estimate(values.tolist())
    low, high = stats.t.interval(0.95, num_values - 1, values.mean(), stats.sem(values))
    assert found.n == num_values
    assert found.mean == pytest.approx(values.mean(), rel=1e-12)
    assert (found.mean - found.ci95, found.mean + found.ci95) == pytest.approx((low, high), rel=1e-10)


def test_few_values_have_no_interval():
    none, one = estimate([]), estimate([0.9])
    assert (none.n, none.mean, none.ci95) == (0, None, None)
    assert (one.n, one.mean, one.ci95) == (1, 0.9, None)


@given(shares, st.integers(2, 9))
def test_equal_values_have_an_interval_of_no_width(value, n):
    assert (estimate([value] * n).mean, estimate([value] * n).ci95) == (value, 0)


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 10])
def test_the_paired_test_is_scipys(num_seeds):
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(num_seeds)
    ours, theirs = rng.uniform(0.8, 0.9, num_seeds), rng.uniform(0.75, 0.9, num_seeds)
    found, expected = paired_difference(ours.tolist(), theirs.tolist()), stats.ttest_rel(ours, theirs)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    low, high = expected.confidence_interval(0.95)
    assert (found.mean - found.ci95, found.mean + found.ci95) == pytest.approx((low, high), rel=1e-9)


def test_a_paired_test_sees_what_an_unpaired_one_would_not():
    seeds = [0.70, 0.80, 0.90]
    found = paired_difference([a + 0.01 + e for a, e in zip(seeds, (0, 1e-3, -1e-3), strict=True)], seeds)
    assert found.mean == pytest.approx(0.01)
    assert found.p < 0.01


@given(shares, st.integers(2, 6), st.integers(-20, 20))
def test_differences_that_are_all_the_same_give_numbers(value, n, shift):
    ours, theirs = [(value * 400 + shift) / 400] * n, [value] * n
    found = paired_difference(ours, theirs)
    assert found.mean == pytest.approx(shift / 400, abs=1e-15)
    assert (found.ci95, found.p) == (0, 1.0 if shift == 0 else 0.0)


@pytest.mark.parametrize("values", [[], [0.9]])
def test_fewer_than_two_seeds_are_not_tested(values):
    found = paired_difference(values, [v - 0.5 for v in values])
    assert (found.n, found.ci95, found.p) == (len(values), None, None)


@given(st.lists(st.tuples(shares, shares), min_size=2, max_size=8), st.randoms())
def test_the_order_of_the_seeds_does_not_matter(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    assert paired_difference(*zip(*pairs, strict=True)) == paired_difference(*zip(*shuffled, strict=True))
    assert estimate([a for a, _ in pairs]) == estimate([a for a, _ in shuffled])


@given(st.lists(st.tuples(shares, shares), min_size=2, max_size=8))
def test_swapping_the_methods_swaps_the_sign(pairs):
    ours, theirs = zip(*pairs, strict=True)
    there, back = paired_difference(ours, theirs), paired_difference(theirs, ours)
    assert (there.mean, there.ci95, there.p) == (-back.mean, back.ci95, back.p)


def rejected_step_by_step(p_values, level):
    """Holm's procedure as he gives it: from the smallest on, until one is above its share of the level."""
    rejected = set()
    for k, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[i] > level / (len(p_values) - k):
            break
        rejected.add(i)
    return rejected


def test_holm_on_an_example_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    assert holm([0.6, 0.7]) == [1, 1]


@given(st.lists(st.integers(1, 999).map(lambda k: k / 1000), max_size=7), st.integers(1, 99))
def test_holm_rejects_what_the_steps_reject(p_values, percent):
    level = percent / 100 + 1e-7  # between the values that p and its multiples can have
    adjusted = holm(p_values)
    assert {i for i, p in enumerate(adjusted) if p <= level} == rejected_step_by_step(p_values, level)


@given(st.lists(probabilities, max_size=12))
def test_adjusted_values_keep_the_order_and_only_grow(p_values):
    adjusted = holm(p_values)
    assert all(p <= a <= 1 for p, a in zip(p_values, adjusted, strict=True))
    in_order = [a for _, a in sorted(zip(p_values, adjusted, strict=True))]
    assert in_order == sorted(in_order)


@given(st.lists(probabilities, max_size=8), st.randoms())
def test_the_order_of_the_comparisons_does_not_matter(p_values, random):
    order = random.sample(range(len(p_values)), len(p_values))
    assert holm([p_values[i] for i in order]) == [holm(p_values)[i] for i in order]
