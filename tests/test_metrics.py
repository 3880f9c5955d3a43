"""Metrics against loops, against scikit-learn, and by what must hold of them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from fasten import metrics
from fasten.metrics import (
    LOG_FLOOR,
    accuracy,
    auprc,
    auroc,
    aurocs,
    chi_square,
    counted_transition,
    detection_scores,
    mean_diagonal,
    nll,
    relabel_scores,
    transition_from_counts,
)
from reference.metrics import (
    ref_accuracy,
    ref_auprc,
    ref_auroc,
    ref_chi_square,
    ref_counted_transition,
    ref_nll,
)

steady = settings(derandomize=True, deadline=None, max_examples=50)
seeds = st.integers(0, 2**32 - 1)


def predictions(seed, num_classes, rows=60):
    """Probabilities, true labels, and given labels of which some 40% are wrong."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(num_classes), rows)
    truth = rng.integers(num_classes, size=rows)
    given_labels = np.where(rng.random(rows) < 0.5, rng.integers(num_classes, size=rows), truth)
    return probs, truth, given_labels


def scored_rows(seed, levels, rows=80):
    """Scores with many ties when `levels` is small, and which rows are positive: at least one of each kind."""
    rng = np.random.default_rng(seed)
    positive = rng.random(rows) < 0.3
    positive[:2] = True, False
    return rng.integers(levels, size=rows) / levels, positive


@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_accuracy_and_nll_match_the_reference(num_classes):
    probs, truth, _ = predictions(num_classes, num_classes)
    assert accuracy(probs, truth) == pytest.approx(ref_accuracy(probs, truth), rel=1e-12)
    assert nll(probs, truth) == pytest.approx(ref_nll(probs, truth), rel=1e-12)


def test_accuracy_of_predicted_classes_is_that_of_their_probabilities():
    probs, truth, _ = predictions(0, 5)
    assert accuracy(probs.argmax(1), truth) == accuracy(probs, truth)


def test_nll_of_float32_probabilities_is_taken_in_float64():
    probs, truth, _ = predictions(0, 5)
    probs = probs.astype(np.float32)
    assert nll(probs, truth) == pytest.approx(ref_nll(probs.astype(float), truth), rel=1e-12)


def test_nll_of_an_impossible_label_is_large_and_finite():
    assert nll(np.array([[1.0, 0.0]]), np.array([1])) == -math.log(LOG_FLOOR)


@pytest.mark.parametrize("measure", [accuracy, nll])
def test_no_rows_have_no_score(measure):
    assert measure(np.empty((0, 3)), np.empty(0, np.int64)) is None


@pytest.mark.parametrize("levels", [1, 2, 7, 10**6])
@pytest.mark.parametrize(
    ("measure", "reference", "sklearn"),
    [(auroc, ref_auroc, roc_auc_score), (auprc, ref_auprc, average_precision_score)],
)
def test_ranking_matches_the_reference_and_scikit_learn(measure, reference, sklearn, levels):
    score, positive = scored_rows(levels, levels)
    assert measure(score, positive) == pytest.approx(reference(score, positive), rel=1e-12)
    assert measure(score, positive) == pytest.approx(sklearn(positive, score), rel=1e-12)


@pytest.mark.parametrize("ranked", [1, 100, metrics.RANKED])
@pytest.mark.parametrize("levels", [1, 2, 7, 10**6])
def test_many_aurocs_at_once_are_those_of_each(monkeypatch, levels, ranked):
    monkeypatch.setattr(metrics, "RANKED", ranked)  # the lines that are ranked together do not matter
    lines = [scored_rows(seed, levels) for seed in range(9)]
    found = aurocs(*(np.stack(part) for part in zip(*lines, strict=True)))
    assert found.tolist() == [auroc(*line) for line in lines]
    assert found == pytest.approx([ref_auroc(*line) for line in lines], rel=1e-12)


@pytest.mark.parametrize("measure", [auroc, auprc])
@given(seed=seeds, levels=st.integers(1, 50))
@steady
def test_ranking_ignores_order_of_rows_and_monotone_transforms(measure, seed, levels):
    score, positive = scored_rows(seed, levels)
    shuffle = np.random.default_rng(seed).permutation(len(score))
    assert measure(np.exp(3 * score) - 7, positive) == measure(score, positive)
    assert measure(score[shuffle], positive[shuffle]) == measure(score, positive)


@given(seed=seeds, levels=st.integers(1, 50))
@steady
def test_auroc_of_the_negated_score_is_the_complement(seed, levels):
    score, positive = scored_rows(seed, levels)
    assert auroc(-score, positive) == pytest.approx(1 - auroc(score, positive), abs=1e-12)


def test_a_constant_score_gives_one_half_and_the_share_of_positives():
    positive = np.arange(100) < 72
    assert auroc(np.zeros(100), positive) == 0.5
    assert auprc(np.zeros(100), positive) == pytest.approx(0.72)


def test_ranking_without_both_kinds_of_rows_is_none():
    score, none = np.array([0.1, 0.2]), np.array([False, False])
    assert auroc(score, none) is None
    assert auroc(score, ~none) is None
    assert auprc(score, none) is None
    assert auprc(score, ~none) == 1.0


@pytest.mark.parametrize("measure", [auroc, auprc])
def test_ranking_by_a_score_that_is_not_a_number_is_none(measure):
    assert measure(np.array([0.1, np.nan, 0.3]), np.array([True, False, False])) is None


@pytest.mark.parametrize("num_classes", [2, 7, 100])
def test_counted_transition_matches_the_reference(num_classes):
    _, truth, noisy = predictions(num_classes, num_classes)
    got = counted_transition(truth, noisy, num_classes)
    np.testing.assert_allclose(got, ref_counted_transition(truth, noisy, num_classes), rtol=1e-12)


@given(seed=seeds, num_classes=st.integers(2, 12))
@steady
def test_rows_of_the_counted_transition_sum_to_one_and_permute_with_the_classes(seed, num_classes):
    _, truth, noisy = predictions(seed, num_classes, rows=20)
    rename = np.random.default_rng(seed).permutation(num_classes)
    T = counted_transition(truth, noisy, num_classes)
    np.testing.assert_allclose(T.sum(1), 1, rtol=1e-12)
    np.testing.assert_array_equal(counted_transition(rename[truth], rename[noisy], num_classes)[rename][:, rename], T)


def test_counting_leaves_out_rows_with_an_unknown_label():
    truth, noisy = np.array([0, 0, -1, 1]), np.array([0, 1, 1, -1])
    np.testing.assert_array_equal(counted_transition(truth, noisy, 2), [[0.5, 0.5], [0, 1]])


def test_counting_is_safe_in_narrow_integers():
    truth = np.full(3, 99, dtype=np.uint8)
    assert counted_transition(truth, truth, 100)[99, 99] == 1.0


def test_a_class_with_next_to_no_mass_gets_the_row_of_the_identity():
    np.testing.assert_array_equal(transition_from_counts(np.array([[1e-9, 2e-9], [1.0, 3.0]])), [[1, 0], [0.25, 0.75]])


def test_mean_diagonal_averages_classes_and_updates():
    T = np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.25, 0.75], [0.75, 0.25]]])
    assert [mean_diagonal(T[0]), mean_diagonal(T[1]), mean_diagonal(T)] == [0.75, 0.25, 0.5]


@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_chi_square_of_a_stack_matches_the_reference(num_classes):
    rng = np.random.default_rng(num_classes)
    T_hat = rng.dirichlet(np.ones(num_classes), (3, num_classes))
    T = transition_from_counts(np.triu(rng.random((num_classes, num_classes))))  # half of it is zero
    wanted = np.array([ref_chi_square(each, T) for each in T_hat])
    np.testing.assert_allclose(np.stack(chi_square(T_hat, T), 1), wanted, rtol=1e-12)
    np.testing.assert_allclose(chi_square(T_hat[0], T), wanted[0], rtol=1e-12)


@given(seed=seeds, num_classes=st.integers(2, 12))
@steady
def test_chi_square_vanishes_at_the_truth_and_permutes_away(seed, num_classes):
    rng = np.random.default_rng(seed)
    T_hat, T = rng.dirichlet(np.ones(num_classes), (2, num_classes))
    rename = rng.permutation(num_classes)
    assert chi_square(T, T) == (0, 0)
    np.testing.assert_allclose(
        chi_square(T_hat[rename][:, rename], T[rename][:, rename]), chi_square(T_hat, T), rtol=1e-9
    )


def test_mass_where_the_true_transition_is_zero_is_told_apart():
    chi2, off_support = chi_square(np.array([[0.8, 0.2], [0.3, 0.7]]), np.eye(2))
    assert float(chi2) == pytest.approx((0.04 + 0.09) / 2)
    assert float(off_support) == pytest.approx(0.25)


@pytest.mark.parametrize("num_classes", [2, 10])
def test_relabel_scores_are_accuracy_and_nll_over_all_and_over_wrong_rows(num_classes):
    probs, truth, noisy = predictions(num_classes, num_classes)
    wrong = noisy != truth
    got = relabel_scores(probs, truth, noisy)
    assert got["accuracy"] == pytest.approx(ref_accuracy(probs, truth))
    assert got["nll"] == pytest.approx(ref_nll(probs, truth))
    assert got["accuracy_wrong"] == pytest.approx(ref_accuracy(probs[wrong], truth[wrong]))
    assert got["nll_wrong"] == pytest.approx(ref_nll(probs[wrong], truth[wrong]))


def test_detection_scores_rank_the_wrong_rows_by_the_score():
    probs, truth, noisy = predictions(3, 4)
    score = -probs[np.arange(len(noisy)), noisy]
    assert detection_scores(score, truth, noisy) == {
        "auroc": pytest.approx(roc_auc_score(noisy != truth, score)),
        "auprc": pytest.approx(average_precision_score(noisy != truth, score)),
    }


@pytest.mark.parametrize("truth", [None, np.full(60, -1)])
def test_an_unknown_truth_leaves_every_score_none(truth):
    probs, _, noisy = predictions(0, 3)
    assert set(relabel_scores(probs, truth, noisy).values()) == {None}
    assert set(detection_scores(probs[:, 0], truth, noisy).values()) == {None}


def test_rows_with_an_unknown_truth_are_left_out():
    probs, truth, noisy = predictions(1, 3)
    some = np.arange(60) < 40
    partly = np.where(some, truth, -1)
    assert relabel_scores(probs, partly, noisy) == relabel_scores(probs[some], truth[some], noisy[some])
    assert detection_scores(probs[:, 0], partly, noisy) == detection_scores(probs[some, 0], truth[some], noisy[some])


def test_without_wrong_rows_their_scores_are_none():
    probs, truth, _ = predictions(0, 3)
    got = relabel_scores(probs, truth, truth)
    assert (got["accuracy_wrong"], got["nll_wrong"]) == (None, None)
    assert got["accuracy"] == accuracy(probs, truth)
    assert detection_scores(probs[:, 0], truth, truth) == {"auroc": None, "auprc": None}


def test_relabel_scores_of_some_rows_are_those_of_their_probabilities(monkeypatch):
    rng = np.random.default_rng(0)
    probs, rows = rng.dirichlet(np.ones(4), 50), rng.permutation(50)[:30]
    truth, given = rng.integers(-1, 4, 30), rng.integers(0, 4, 30)
    whole = metrics.relabel_scores(probs[rows], truth, given)
    monkeypatch.setattr(metrics, "CHUNK", 7)
    assert metrics.relabel_scores(probs, truth, given, rows) == pytest.approx(whole, rel=1e-12)
