"""Precision of corrections and thresholds that keep it: by hand, by brute force, and by simulation."""

import json
import math

import numpy as np
import pytest
from hypothesis import given as draw
from hypothesis import settings
from hypothesis import strategies as st

from fasten.audit.corrections import FLOOR, Corrections, correction_scores, threshold_for
from fasten.statistics import proportion

steady = settings(derandomize=True, deadline=None, max_examples=50)
seeds = st.integers(0, 2**32 - 1)


def binomial_tail(k, n, share):
    return math.fsum(math.comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(k, n + 1))


def random_corrections(seed, n, ties=0):
    rng = np.random.default_rng(seed)
    u = np.ceil(rng.random(n) * ties) / ties if ties else rng.random(n)
    return FLOOR + u / 2, rng.random(n) < 0.8 + 0.2 * u


def test_precision_and_recall_by_hand():
    given = np.array([0, 0, 0, 0, 0, 1])
    corrected = np.array([1, 1, 2, 0, 0, 0])
    truth = np.array([1, 2, 0, 0, 2, 0])
    found = correction_scores(given, corrected, truth)
    assert (found.precision.k, found.precision.n) == (2, 4)  # rows 0 and 5 of 0, 1, 2, 5
    assert (found.recall.k, found.recall.n) == (3, 4)  # rows 0, 1 and 5 of 0, 1, 4, 5
    assert found.precision.low == pytest.approx(0.0676, abs=1e-4)  # a printed table: 2 of 4
    assert found.precision.high == pytest.approx(0.9324, abs=1e-4)


@pytest.mark.parametrize("n", [0, 3])
def test_without_corrections_nothing_is_known_of_their_precision(n):
    labels = np.zeros(n, np.int64)
    found = correction_scores(labels, labels, labels)
    assert (found.precision.share, found.precision.low, found.precision.high) == (None, 0, 1)
    assert found.recall.share is None


@pytest.mark.parametrize(
    ("k", "n", "words"),
    [
        (0, 0, "judged without their verdicts, none would be changed;"),
        (1, 1, "judged without their verdicts, one would be changed, correctly;"),
        (1, 2, "judged without their verdicts, 2 would be changed, 1 of them correctly;"),
        (0, 1, "the only correction of a held-back row, judged without its verdict, is wrong:"),
        (1, 3, "only 1 of 3 corrections of held-back rows, judged without their verdicts, is right:"),
        (0, 2, "only 0 of 2 corrections of held-back rows, judged without their verdicts, are right:"),
    ],
)
def test_a_doubt_counts_as_people_do(k, n, words):
    assert words in (Corrections(proportion(k, n), proportion(0, 0)).doubt(9) or "")


# What the precision of a correction is, by its place u in [0, 1] from the least to the most suspect.
SHAPES = {
    "just too low": lambda u, share: np.full_like(u, share - 0.005),
    "falling": lambda u, share: 0.6 + 0.4 * u,
    "a step": lambda u, share: np.where(u > 0.5, 1.0, share - 0.2),
    "too low at the top": lambda u, share: np.where(u > 0.4, share - 0.02, 1.0),
    "in waves": lambda u, share: np.clip(share - 0.01 + 0.1 * np.sin(15 * u), 0, 1),
}
REPEATS = 200


@pytest.mark.parametrize(("n", "share", "ties"), [(60, 0.8, 8), (200, 0.9, 0)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_chosen_threshold_is_too_low_in_at_most_one_of_twenty(shape, n, share, ties):
    def cell(u):
        return np.ceil(u * ties) / ties if ties else u

    rng = np.random.default_rng(n)
    everything = cell(np.linspace(0, 1, 20_001)[1:])
    precision = SHAPES[shape](everything, share)
    bad = 0
    for _ in range(REPEATS):
        u = cell(rng.random(n))
        right = rng.random(n) < SHAPES[shape](u, share)
        choice = threshold_for(FLOOR + u / 2, right, share, n)
        if choice.threshold is not None:
            bad += precision[everything > 2 * (choice.threshold - FLOOR) + 1e-12].mean() < share
    # More than `worst` of so many would come in one of a thousand if the chance were 5%: the seeds are fixed.
    worst = next(k for k in range(REPEATS) if binomial_tail(k + 1, REPEATS, 0.05) < 0.001)
    assert bad <= worst


def test_good_corrections_are_found_and_bad_ones_left_out():
    rng = np.random.default_rng(0)
    thresholds = []
    for _ in range(50):
        u = rng.random(400)
        choice = threshold_for(FLOOR + u / 2, rng.random(400) < np.where(u > 0.4, 0.99, 0.3), 0.9, 4000)
        thresholds.append(choice.threshold)
    assert None not in thresholds
    assert 0.65 < np.mean(thresholds) < 0.75  # the best there is: 0.68


def test_where_all_corrections_are_right_all_are_made():
    choice = threshold_for(np.linspace(0.6, 1, 50), np.ones(50, bool), 0.9, 500)
    assert choice.threshold == 0
    assert (choice.tested[-1].k, choice.tested[-1].n) == (50, 50)


@draw(seed=seeds, n=st.integers(0, 150), percent=st.integers(5, 95), ties=st.sampled_from([0, 1, 4, 30]))
@steady
def test_a_choice_is_what_its_tests_say(seed, n, percent, ties):
    p, right = random_corrections(seed, n, ties)
    share = percent / 100
    choice = threshold_for(p, right, share, 10 * n)
    sizes = [cut.n for cut in choice.tested]
    assert sizes == sorted(set(sizes))
    for cut in choice.tested:
        assert (cut.n, cut.k) == ((p > cut.threshold).sum(), right[p > cut.threshold].sum())
    good = [binomial_tail(cut.k, cut.n, share) <= 0.05 for cut in choice.tested]
    assert all(good[:-1])
    passed = [cut.threshold for cut, is_good in zip(choice.tested, good, strict=True) if is_good]
    assert choice.threshold == (passed[-1] if passed else None)
    if choice.threshold is not None:
        assert (choice.more_if_right, choice.more_as_seen) == (None, None)


@draw(seed=seeds, n=st.integers(1, 100), ties=st.sampled_from([0, 6]))
@steady
def test_the_order_of_the_rows_does_not_matter(seed, n, ties):
    p, right = random_corrections(seed, n, ties)
    order = np.random.default_rng(seed).permutation(n)
    assert threshold_for(p, right, 0.8, n) == threshold_for(p[order], right[order], 0.8, n)


@draw(seed=seeds, n=st.integers(1, 100))
@steady
def test_the_tests_do_not_look_at_the_verdicts_before_they_are_made(seed, n):
    p, right = random_corrections(seed, n)
    all_right = threshold_for(p, np.ones(n, bool), 0.8, n).tested
    tested = threshold_for(p, right, 0.8, n).tested
    assert [cut.threshold for cut in tested] == [cut.threshold for cut in all_right[: len(tested)]]


def test_corrections_that_a_model_underrates_are_tested_like_any_other():
    p, right = random_corrections(0, 300)
    one, two = threshold_for(p, right, 0.8, 300), threshold_for(p / 100, right, 0.8, 300)
    assert [(cut.k, cut.n) for cut in two.tested] == [(cut.k, cut.n) for cut in one.tested]
    assert two.threshold == one.threshold == 0


@pytest.mark.parametrize(("share", "least"), [(0.8, 14), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_too_few_rows_ask_for_as_many_as_are_missing(share, least):
    for n in (1, least - 1):
        choice = threshold_for(np.full(n, 0.9), np.ones(n, bool), share, num_verified=n)
        assert choice.threshold is None
        assert choice.more_if_right == choice.more_as_seen == least - n
    assert threshold_for(np.full(least, 0.9), np.ones(least, bool), share, least).threshold == 0


def test_so_many_further_right_ones_do_and_one_fewer_does_not():
    right = np.arange(40) >= 4  # all at one p_wrong: one cut
    more = threshold_for(np.full(40, 0.9), right, 0.9, num_verified=40).more_if_right
    for extra, reached in ((more, True), (more - 1, False)):
        longer = np.append(right, np.ones(extra, bool))
        assert (threshold_for(np.full(len(longer), 0.9), longer, 0.9, 1).threshold is not None) == reached


def test_rows_are_counted_as_rows_to_verify():
    """Of 300 verified rows 20 are held back and corrected: one of fifteen."""
    choice = threshold_for(np.full(20, 0.9), np.ones(20, bool), 0.9, num_verified=300)
    assert choice.more_if_right == choice.more_as_seen == 9 * 15
    assert choice.sentence.endswith("about 135 more if all further corrections are right")  # once, not twice


def test_a_precision_seen_below_the_one_asked_for_promises_nothing():
    choice = threshold_for(np.full(100, 0.9), np.arange(100) >= 10, 0.9, num_verified=1000)
    assert choice.threshold is None
    assert choice.more_if_right > 0
    assert choice.more_as_seen is None
    assert choice.sentence.endswith("at the rate so far no number would be enough")


def test_no_corrections_choose_nothing():
    choice = threshold_for(np.empty(0), np.empty(0, bool), 0.9, 50)
    assert (choice.threshold, choice.tested, choice.more_if_right, choice.more_as_seen) == (None, (), None, None)
    assert choice.sentence.startswith("no held-back label would be changed (50 rows verified at random), so no")
    assert choice.sentence.endswith("; perhaps few labels are wrong; if not, verify more rows at random")
    unverified = threshold_for(np.empty(0), np.empty(0, bool), 0.9, 0)
    assert unverified.sentence.startswith("no verified row was held back")
    assert unverified.sentence.endswith("verify rows at random first")


def test_a_precision_that_no_sample_shows_is_said_to_be_too_high():
    choice = threshold_for(np.full(20, 0.9), np.ones(20, bool), 1 - 1e-9, num_verified=300)
    assert choice.sentence.endswith("ask for a lower precision")


def test_a_choice_says_what_it_is_in_words_and_in_json():
    choice = threshold_for(np.linspace(0.6, 1, 50), np.ones(50, bool), 0.9, 500)
    assert choice.sentence.startswith(
        "at least 0.9 of the corrections are right, at 95% confidence: 50 of 50 held-back"
    )
    values = json.loads(json.dumps(choice.to_json()))
    assert values["tested"][-1] == {"threshold": 0, "k": 50, "n": 50, "low": pytest.approx(0.05 ** (1 / 50))}
    choice = threshold_for(np.linspace(0.5, 0.99, 50), np.arange(50) >= 10, 0.9, 500)
    assert choice.sentence.startswith(
        "at least 0.9 of the corrections with p_wrong above 0.59, before calibration, are "
    )


@pytest.mark.parametrize("share", [0, 1, 90, -0.5, float("nan")])
def test_a_precision_outside_the_unit_interval_is_refused(share):
    with pytest.raises(ValueError, match="between 0 and 1, got"):
        threshold_for(np.ones(3), np.ones(3, bool), share, 3)


def test_a_precision_that_no_sample_shows_ends():
    choice = threshold_for(np.ones(30), np.ones(30, bool), 1 - 1e-9, 30)
    assert (choice.threshold, choice.more_if_right) == (None, None)
