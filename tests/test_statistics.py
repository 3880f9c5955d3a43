"""Student's distribution, intervals and tests: closed forms, printed tables, SciPy, and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasten.statistics import estimate, holm, paired_difference, t_quantile, two_sided_p
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
