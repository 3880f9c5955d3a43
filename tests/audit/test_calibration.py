"""Calibration: against an optimiser, loops and simulated rows whose true probabilities are known."""

import numpy as np
import pytest
from hypothesis import given as draw
from hypothesis import settings
from hypothesis import strategies as st

from fasten.audit.calibration import calibrate, reliability

steady = settings(derandomize=True, deadline=None, max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def logistic(z):
    return 1 / (1 + np.exp(-z))


def simulated(seed, n, slope=1.0, intercept=0.0):
    """p_wrong with two humps, and errors that come with the probability logistic(slope · log-odds + intercept)."""
    rng = np.random.default_rng(seed)
    z = np.where(rng.random(n) < 0.3, rng.normal(3, 2, n), rng.normal(-4, 2, n))
    true = logistic(slope * z + intercept)
    return logistic(z), rng.random(n) < true, true


@pytest.mark.parametrize(("slope", "intercept"), [(1, 0), (0.4, 0.5), (2, -1)])
def test_the_map_is_the_one_an_optimiser_finds(slope, intercept):
    optimize = pytest.importorskip("scipy.optimize")
    p, wrong, _ = simulated(0, 80, slope, intercept)
    z = np.log(p / (1 - p))

    def cost(at):
        q = logistic(np.exp(at[0]) * z + at[1])
        return -np.log(np.where(wrong, q, 1 - q)).sum() + ((at / (1.0, 3.0)) ** 2).sum() / 2

    best = optimize.minimize(cost, np.zeros(2), tol=1e-12).x
    found = calibrate(p, wrong)
    assert (np.log(found.slope), found.intercept) == pytest.approx(tuple(best), abs=1e-5)


@pytest.mark.parametrize(("slope", "intercept"), [(0.4, 0.0), (1.0, 1.5), (0.3, 0.5), (2.0, 0.0)])
def test_many_rows_find_the_true_map(slope, intercept):
    found = calibrate(*simulated(1, 20_000, slope, intercept)[:2])
    assert found.uncalibrated is None
    assert (found.slope, found.intercept) == pytest.approx((slope, intercept), rel=0.1, abs=0.1)
    assert found.after.ece < 0.01 < found.before.ece
    assert found.after.brier < found.before.brier


@pytest.mark.parametrize(("slope", "intercept"), [(0.4, 0.0), (0.3, 0.5), (1.0, 1.5)])
def test_sixty_rows_bring_other_rows_nearer_to_the_truth(slope, intercept):
    p, _, true = simulated(2, 5000, slope, intercept)
    after = [
        ((calibrate(*simulated(seed, 60, slope, intercept)[:2]).apply(p) - true) ** 2).mean() for seed in range(30)
    ]
    assert np.mean(after) < 0.5 * ((p - true) ** 2).mean()


def test_wrong_labels_learnt_by_heart_are_called_wrong_once_forty_rows_show_it():
    """As with many classes: right labels have a p_wrong near 0, and wrong ones any value above."""
    rng = np.random.default_rng(0)
    wrong = np.arange(4000) % 4 == 0
    p = logistic(np.where(wrong, rng.normal(-1, 3, 4000), rng.normal(-9, 1, 4000)))
    found = [calibrate(p[rows], wrong[rows]).apply(p) for rows in np.split(rng.permutation(4000)[:800], 20)]
    assert np.min([q[(p > 0.1) & (p < 0.9)].mean() for q in found]) > 0.9
    assert np.mean(found) == pytest.approx(0.25, abs=0.01)


def test_the_error_after_is_that_of_rows_not_fitted_to():
    """On average over samples it is no better than on fresh rows: fitted and judged on the same rows it would be."""
    judged, fresh = [], []
    for seed in range(60):
        found = calibrate(*simulated(seed, 30, 0.5)[:2])
        if found.after is not None:
            p, wrong, _ = simulated(seed + 1000, 400, 0.5)
            judged.append(found.after.brier)
            fresh.append(reliability(found.apply(p), wrong).brier)
    assert len(judged) > 30
    assert np.mean(judged) > np.mean(fresh) - 0.01


@draw(seed=seeds, n=st.integers(20, 200), values=st.lists(st.floats(0, 1), min_size=2, max_size=20))
@steady
def test_the_map_keeps_the_order_and_never_says_certain(seed, n, values):
    rng = np.random.default_rng(seed)
    found = calibrate(rng.random(n), np.arange(n) % 3 == 0)
    mapped = found.apply(np.sort(np.array(values)))
    assert (np.diff(mapped) >= 0).all()
    assert (mapped > 0).all()
    assert (mapped < 1).all()
    assert found.slope > 0


def test_probabilities_that_say_nothing_are_flattened_and_not_turned_round():
    p, wrong, _ = simulated(3, 400)
    found = calibrate(p, ~wrong)
    assert 0 < found.slope < 0.1


@pytest.mark.parametrize(("n", "num_wrong"), [(0, 0), (1, 0), (1, 1), (19, 9)])
def test_few_rows_leave_p_wrong_as_it_is_and_say_why(n, num_wrong):
    p, wrong = np.linspace(0, 1, n), np.arange(n) < num_wrong
    found = calibrate(p, wrong)
    assert found.uncalibrated == f"calibration takes 20 held-back rows, and there {'is' if n == 1 else 'are'} {n}"
    assert (found.slope, found.intercept, found.after) == (1, 0, None)
    assert (found.before.brier is None) == (n == 0)
    np.testing.assert_array_equal(found.apply(p), p)


# Slope and intercept of the true map, of models that are far too sure of wrong labels up to one that is just right.
MODELS = [(slope, intercept) for slope in (0.25, 0.5, 1.0) for intercept in (-2.0, -1.0, 0.0)]


def mostly_right(rng, n, slope, intercept):
    z = np.where(rng.random(n) < 0.1, rng.normal(3, 2, n), rng.normal(-8, 2, n))
    true = logistic(slope * z + intercept)
    return logistic(z), rng.random(n) < true, true


@pytest.mark.parametrize("n", [20, 30, 70])
def test_where_fewer_than_five_rows_are_wrong_p_wrong_is_not_too_sure(n):
    """Over models of all kinds: of the labels that count as wrong, as many are as p_wrong says."""
    rng = np.random.default_rng(n)
    said = {"as the model says": [], "calibrated": []}
    for slope, intercept in MODELS * 20:
        held, wrong, _ = mostly_right(rng, n, slope, intercept)
        p, _, true = mostly_right(rng, 1000, slope, intercept)
        if wrong.sum() < 5:
            for name, q in (("as the model says", p), ("calibrated", calibrate(held, wrong).apply(p))):
                said[name].append([(q - true)[q > 0.5].sum(), (q > 0.5).sum(), ((q - true) ** 2).mean()])
    assert len(said["calibrated"]) > 50
    off = {name: np.sum(rows, 0)[0] / np.sum(rows, 0)[1] for name, rows in said.items()}
    assert off["as the model says"] > 0.25
    assert -0.1 < off["calibrated"] < 0.08
    squares = {name: np.mean(rows, 0)[2] for name, rows in said.items()}
    assert squares["calibrated"] < 0.5 * squares["as the model says"]


@pytest.mark.parametrize(("n", "num_wrong"), [(20, 0), (60, 3), (500, 4), (500, 496)])
def test_of_few_wrong_rows_the_map_is_that_of_targets_that_trust_them_less(n, num_wrong):
    optimize = pytest.importorskip("scipy.optimize")
    p, wrong = np.random.default_rng(n).uniform(0.01, 0.99, n), np.arange(n) < num_wrong
    z = np.log(p / (1 - p))

    def cost(at):
        total = ((at / (1.0, 3.0)) ** 2).sum() / 2
        for row in range(n):
            q = logistic(np.exp(at[0]) * z[row] + at[1])
            target = (num_wrong + 0.5) / (num_wrong + 1) if wrong[row] else 0.5 / (n - num_wrong + 1)
            total -= target * np.log(q) + (1 - target) * np.log(1 - q)
        return total

    found, best = calibrate(p, wrong), optimize.minimize(cost, np.zeros(2), tol=1e-10).x
    assert (np.log(found.slope), found.intercept) == pytest.approx(tuple(best), abs=1e-4)


def test_the_order_of_the_rows_does_not_matter():
    p, wrong, _ = simulated(4, 90)
    order = np.random.default_rng(0).permutation(90)
    one, other = calibrate(p, wrong), calibrate(p[order], wrong[order])
    assert (other.slope, other.intercept) == pytest.approx((one.slope, one.intercept), rel=1e-8)
    assert (other.after.brier, other.after.ece) == pytest.approx((one.after.brier, one.after.ece), rel=1e-8)


def test_probabilities_of_zero_and_one_are_taken():
    found = calibrate(
        np.repeat([0.0, 1.0], 50).astype(np.float32), np.arange(100) % 50 < 5 + 35 * (np.arange(100) > 49)
    )
    low, high = found.apply(np.array([0.0, 1.0]))
    assert low == pytest.approx(0.1, abs=0.05)
    assert high == pytest.approx(0.8, abs=0.05)


@draw(seed=seeds, n=st.integers(1, 80))
@steady
def test_the_calibration_error_is_that_of_a_loop(seed, n):
    rng = np.random.default_rng(seed)
    p, happened = rng.random(n).round(1), rng.random(n) < 0.4  # 1.0 is of the last tenth
    total = 0.0
    for part in range(10):
        rows = [i for i in range(n) if min(int(p[i] * 10), 9) == part]
        if rows:
            total += len(rows) / n * abs(np.mean(p[rows]) - np.mean(happened[rows]))
    found = reliability(p, happened)
    assert {type(value) for part in found.bins for value in part} == {float, int}, "a user prints them, too"
    assert found.ece == pytest.approx(total, abs=1e-12)
    assert found.brier == pytest.approx(np.mean([(a - b) ** 2 for a, b in zip(p, happened, strict=True)]))
