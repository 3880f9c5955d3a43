"""What verified rows can tell: splits, counts and tests against SciPy, loops and simulation."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as draw
from hypothesis import settings
from hypothesis import strategies as st
from scipy.stats import rankdata, zscore
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from fasten.audit import evidence, judge
from fasten.audit.calibration import calibrated_unseen
from fasten.audit.corrections import threshold_for
from fasten.audit.dependence import MOST_ROWS, instance_dependence
from fasten.audit.evidence import counted_posterior, gather, hold_back, verify_next
from fasten.data.task import Known
from fasten.seeds import numpy_stream
from reference.metrics import ref_posterior

REPEATS = 60
WORST = 9  # more would come in one of a thousand if the chance were 5%
steady = settings(derandomize=True, deadline=None, max_examples=50)
seeds = st.integers(0, 2**32 - 1)


def sampled(rng, p):
    """One class per row, drawn from that row of p."""
    return (rng.random((len(p), 1)) > p.cumsum(1)[:, :-1]).sum(1)


def known_of(given, verified, picked_random, held=False):
    ids = tuple(map(str, range(len(given))))
    return Known(ids, given, verified, picked_random, np.zeros(len(ids), bool) | held)


def verified_rows(seed, n, num_classes):
    """Given labels, verdicts and how the rows were picked; about a third of each is missing."""
    rng = np.random.default_rng(seed)
    given, verified = (np.where(rng.random(n) < 0.3, -1, rng.integers(num_classes, size=n)) for _ in range(2))
    return given, verified, rng.random(n) < 0.7


@draw(seed=seeds, n=st.integers(0, 120), num_classes=st.integers(1, 9))
@steady
def test_a_third_of_each_class_is_held_back_and_of_random_rows_with_both_labels_only(seed, n, num_classes):
    given, verified, picked_random = verified_rows(seed, n, num_classes)
    held = hold_back(given, verified, picked_random, seed)
    may = (given >= 0) & (verified >= 0) & picked_random
    alone = may & np.array([(verified == label).sum() == 1 for label in verified], bool)
    may &= ~alone
    assert not (held & ~may).any()
    assert abs(held.sum() - may.sum() / 3) < 1
    for c in range(num_classes):
        assert abs(held[verified == c].sum() - may[verified == c].sum() / 3) < 1
        assert not (verified == c).any() or (~held & (verified == c)).any(), "training sees one at least"
    np.testing.assert_array_equal(held, hold_back(given, verified, picked_random, seed))


def often_held(verified, seeds):
    return np.mean([hold_back(verified, verified, verified >= 0, seed) for seed in range(seeds)], axis=0)


def test_every_row_is_held_back_as_often_also_of_rare_classes_but_never_the_only_one():
    often = often_held(np.repeat(np.arange(4), [1, 2, 5, 12]), 3000)
    np.testing.assert_allclose(often[1:], 1 / 3, atol=4 * np.sqrt(2 / 9 / 3000))
    assert often[0] == 0


@pytest.mark.parametrize(("alone", "others", "share"), [(20, 10, 0), (21, 10, 1 / 3), (21, 399, 0), (100, 0, 0)])
def test_the_only_rows_of_classes_are_held_back_where_they_are_many_beside_others(alone, others, share):
    often = often_held(np.concatenate([np.arange(alone), np.full(others, alone)]), 300)
    assert often[:alone].mean() == pytest.approx(share, abs=0.02)
    assert often[alone:].mean() == pytest.approx(1 / 3, abs=0.02) if others else True


def test_with_many_rare_classes_what_is_held_back_is_as_rare_as_what_was_picked():
    rng = np.random.default_rng(0)
    shares = []
    for seed in range(40):  # half of the rows are of twenty classes, half of a thousand
        verified = np.where(rng.random(600) < 0.5, rng.integers(20, size=600), 20 + rng.integers(1000, size=600))
        held = hold_back(verified, verified, verified >= 0, seed)
        shares.append((verified[held] >= 20).mean() - (verified >= 20).mean())
    assert abs(np.mean(shares)) < 0.02


def test_other_seeds_hold_back_other_rows():
    labels = np.arange(60) % 5
    assert (hold_back(labels, labels, labels >= 0, 0) != hold_back(labels, labels, labels >= 0, 1)).any()


@pytest.mark.parametrize("num_classes", [2, 5, 30])
def test_the_posterior_of_t_has_scipys_beta_marginals(num_classes):
    stats = pytest.importorskip("scipy.stats")
    given, truth, _ = verified_rows(num_classes, 150, num_classes)
    found = counted_posterior(truth, given, num_classes)
    for i in range(num_classes):
        size = np.sum((truth == i) & (given >= 0))
        for j in range(num_classes):
            count = np.sum((truth == i) & (given == j))
            assert found.counts[i, j] == count
            assert found.mean[i, j] == pytest.approx((count + 0.5) / (size + num_classes / 2))
            marginal = stats.beta(count + 0.5, size - count + (num_classes - 1) / 2)
            low, high = marginal.ppf(0.025) if count else 0, marginal.ppf(0.975) if count < size else 1
            assert (found.low[i, j], found.high[i, j]) == pytest.approx((low, high), rel=1e-8)
            assert found.relative_error[i, j] == pytest.approx(marginal.std() / marginal.mean(), rel=1e-8)
    np.testing.assert_allclose(found.mean.sum(1), 1)
    assert found.n == np.sum((truth >= 0) & (given >= 0))


def test_credible_intervals_hold_a_t_drawn_from_the_prior():
    """Bayes' promise: over T from the prior and counts from T, 95% of the intervals hold the entry.

    Those that reach 0 or 1 leave out one tail and not two.
    """
    rng, inside, ends = np.random.default_rng(0), [], []
    for _ in range(150):
        T = rng.dirichlet(np.full(4, 0.5), 4)
        truth = rng.integers(4, size=60)
        found = counted_posterior(truth, sampled(rng, T[truth]), 4)
        inside.append((found.low <= T) & (found.high >= T))
        ends.append((found.low == 0) | (found.high == 1))
    inside, ends = np.array(inside), np.array(ends)
    assert inside[~ends].mean() == pytest.approx(0.95, abs=0.015)
    assert inside[ends].mean() == pytest.approx(0.975, abs=0.015)


@pytest.mark.parametrize("rows", [0, 1, 8, 400])
def test_an_entry_that_is_truly_0_or_1_lies_in_its_interval(rows):
    truth = np.repeat([0, 1, 2], rows)
    found = counted_posterior(truth, np.where(truth < 2, truth, np.arange(3 * rows) % 2), 3)
    T = np.array([[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0]])
    assert ((found.low <= T) & (found.high >= T)).all()


@pytest.mark.parametrize("share", [0.5, 0.7, 0.97, 1.0])
@pytest.mark.parametrize("num_classes", [2, 20])
def test_the_share_of_right_labels_lies_in_its_interval_however_many_classes_there_are(share, num_classes):
    rng, inside = np.random.default_rng(0), []
    T = np.full((num_classes, num_classes), (1 - share) / (num_classes - 1))
    np.fill_diagonal(T, share)
    for _ in range(2000 // num_classes):
        truth = rng.integers(num_classes, size=10 * num_classes)
        found = counted_posterior(truth, sampled(rng, T[truth]), num_classes).right
        inside += [right.low <= share <= right.high for right in found]
    assert np.mean(inside) > 0.945


def test_no_rows_leave_t_to_the_prior():
    none = np.empty(0, np.int64)
    found = counted_posterior(none, none, 4)
    assert found.n == 0
    np.testing.assert_allclose(found.mean, 0.25)
    assert (found.low < 0.01).all()
    assert (found.high > 0.8).all()


def test_many_classes_are_counted_in_no_time():
    truth = np.random.default_rng(0).integers(300, size=2000)
    found = counted_posterior(truth, truth, 300)
    assert (found.mean.diagonal() < 0.15).all()  # 150 rows of prior against 7 that were verified


def posterior_of(seed, n=200, num_classes=4):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(num_classes, 0.4), n)
    T = 0.6 * np.eye(num_classes) + 0.4 * rng.dirichlet(np.ones(num_classes), num_classes)
    truth = sampled(rng, probs)
    given = sampled(rng, T[truth])
    return ref_posterior(probs, T, given), given, truth


def greedy(post, given, rows, transition, n):
    """Row by row: the one with the most to gain, less for each row of its pair that was taken before."""
    taken, chosen = {}, []
    for _ in range(n):
        scores = {}
        for row in set(rows) - set(chosen):
            q = [-1 if y == given[row] else post[row, y] for y in range(post.shape[1])]
            other = int(np.argmax(q))
            weight = 1 + (transition.relative_error[other, given[row]] if transition else 0)
            scores[row] = (1 - post[row].max()) * weight / np.sqrt(1 + taken.get((given[row], other), 0)), other
        best = max(scores, key=lambda row: (scores[row][0], -row))
        chosen.append(best)
        pair = (given[best], scores[best][1])
        taken[pair] = taken.get(pair, 0) + 1
    return chosen


@pytest.mark.parametrize("ties", [False, True])
def test_a_random_sample_is_hardly_ever_called_another_one(ties):
    """Many ties are what a model has that has learnt all labels by heart."""
    rng, warned = np.random.default_rng(0), 0
    for _ in range(300):
        given, score = rng.integers(5, size=600), rng.random(600)
        score = np.where(rng.random(600) < 0.98, 0.0, score) if ties else score + given
        held = np.isin(np.arange(600), rng.permutation(600)[:30])
        warned += evidence.compare_sample(score, given, held, ~held).warning is not None
    assert warned <= 3


@pytest.mark.parametrize(("sign", "word"), [(1, "less"), (-1, "more")])
def test_rows_picked_by_how_they_look_are_told_from_a_random_sample(sign, word):
    rng = np.random.default_rng(0)
    given, score = rng.integers(5, size=600), rng.random(600)
    order = np.argsort(sign * (score + 0.3 * rng.standard_normal(600)), kind="stable")
    held = np.isin(np.arange(600), order[:60])
    others = ~held & (np.arange(600) % 7 > 0)
    found = evidence.compare_sample(score, given, held, others)
    ranks = [
        np.mean(
            [
                (score[o] < score[h]) + (score[o] == score[h]) / 2
                for o in np.flatnonzero((held | others) & (given == given[h]))
            ]
        )
        for h in np.flatnonzero(held)
    ]
    assert (found.n, found.rank) == (60, pytest.approx(np.mean(ranks)))
    assert f"their labels look {word} wrong" in found.warning
    assert evidence.compare_sample(score, given, given < 0, others) is None


def test_a_random_sample_hardly_ever_has_an_odd_label():
    rng = np.random.default_rng(0)
    given = rng.choice(20, 2000, p=rng.dirichlet(np.full(20, 0.3)))
    samples = (np.isin(np.arange(2000), rng.permutation(2000)[:150]) for _ in range(300))
    assert sum(evidence.odd_label(given, random).p <= evidence.ODD for random in samples) <= 1


@pytest.mark.parametrize("n", [1, 30, 400])
def test_the_odd_label_is_the_one_that_binomial_tails_find(n):
    binom = pytest.importorskip("scipy.stats").binom
    rng = np.random.default_rng(n)
    given = rng.choice(5, 400, p=[0.6, 0.2, 0.1, 0.06, 0.04])
    random = np.argsort(rng.random(400) * (1 + given))[:n]
    found = evidence.odd_label(given, np.isin(np.arange(400), random))
    p = []
    for label in range(5):
        k, usual = (given[random] == label).sum(), (given == label).mean()
        p.append(2 * 5 * min(binom.cdf(k, n, usual), binom.sf(k - 1, n, usual)))
    assert found.p == pytest.approx(min(1, *p), rel=1e-9)
    if min(p) < 1:
        best = int(np.argmin(p))
        assert (found.label, found.share) == (str(best), (given[random] == best).mean())
        assert found.usual == (given == best).mean()


def test_rows_picked_by_their_label_promise_no_precision():
    """Corrections of the rare label are right, and most of the others wrong: by as many of each, most look right."""
    rng = np.random.default_rng(0)
    truth = (np.arange(4000) % 20 == 0).astype(np.int64)
    given = np.where(rng.random(4000) < np.where(truth, 0.5, 0.05), 1 - truth, truth)
    p_rare = np.where(truth, 0.98, np.where(rng.random(4000) < 0.1, 0.95, 0.02))
    post = np.stack([1 - p_rare, p_rare], 1)
    changed = post.argmax(1) != given
    assert (post.argmax(1) == truth)[changed].mean() < 0.45
    picks = {
        "random": rng.permutation(4000)[:400],
        "by label": np.concatenate([np.flatnonzero(given == label)[:200] for label in (0, 1)]),
    }
    for way, rows in picks.items():
        random = np.isin(np.arange(4000), rows)
        verified = np.where(random, truth, -1)
        known = known_of(given, verified, random, hold_back(given, verified, random, seed=0))
        found = gather(known, judge(post, given), post, min_precision=0.6)
        assert (found.sample.warning is None) == found.threshold.at_random == (way == "random")
        assert (found.threshold.threshold is not None) == (way == "random")
        made = found.corrections.precision
        assert made.k == made.n, "of a random sample, calibration has learnt which are right"
    assert "50.0% of them have the label '0', compared with 92.5% of all rows" in found.sample.warning
    named = gather(replace(known, class_names=("usual", "rare")), judge(post, given), post)
    assert "50.0% of them have the label 'usual', compared with 92.5% of all rows" in named.sample.warning
    assert found.threshold.sentence == (
        "rows that are not a random sample cannot show a precision, so nothing is corrected"
    )


@pytest.mark.parametrize("counted", [False, True])
def test_rows_to_verify_are_those_a_greedy_loop_takes(counted, monkeypatch):
    monkeypatch.setattr(evidence, "CHUNK", 7)
    post, given, truth = posterior_of(0)
    verified = np.where(np.arange(200) < 60, truth, -1)
    transition = counted_posterior(verified, given, 4) if counted else None
    rows = verify_next(post, known_of(given, verified, verified >= 0), transition, 12, seed=0)
    free = [row for row in range(60, 200) if row not in rows.random]
    assert rows.chosen.tolist() == greedy(post, given, free, transition, 12)


@draw(seed=seeds, n=st.integers(0, 60))
@steady
def test_rows_to_verify_are_new_ones(seed, n):
    post, given, _ = posterior_of(seed % 7, 50)
    before = post.copy()
    missing, verified, picked_random = verified_rows(seed, 50, 4)
    given = np.where(missing < 0, -1, given)
    rows = verify_next(post, known_of(given, verified, picked_random), None, n, seed)
    assert len(set(rows.chosen) | set(rows.random)) == len(rows.chosen) + len(rows.random)
    assert ((verified[rows.chosen] < 0) & (given[rows.chosen] >= 0)).all()
    assert (~picked_random[rows.random] & (given[rows.random] >= 0)).all()
    assert len(rows.random) == min(n, (~picked_random & (given >= 0)).sum())
    assert len(rows.chosen) <= n
    np.testing.assert_array_equal(post, before)


def test_random_rows_are_drawn_evenly_whatever_was_chosen_or_has_a_verdict():
    post, given, truth = posterior_of(1, 40)
    verified = np.where(np.arange(40) < 10, truth, -1)  # chosen by the program: not random
    known, drawn = known_of(given, verified, np.arange(40) >= 36), np.zeros(40)
    for seed in range(2000):
        drawn[verify_next(post, known, None, 9, seed).random] += 1
    np.testing.assert_allclose(drawn[:36] / 2000, 1 / 4, atol=4 * np.sqrt(3 / 16 / 2000))
    assert drawn[36:].sum() == 0


def test_uncertain_classes_are_verified_first():
    post, given = np.tile([0.5, 0.3, 0.2], (4, 1)), np.array([0, 0, 2, 2])  # in doubt: (1, 0) and (0, 2)
    truth, labels = np.repeat([1, 0], [200, 200]), np.repeat([0, 0], [200, 200])
    transition = counted_posterior(truth, labels, 3)  # much is known of T[1, 0], nothing of T[0, 2]
    known = known_of(given, np.full(4, -1), np.ones(4, bool))  # no more random ones
    assert verify_next(post, known, transition, 1, 0).chosen.tolist() == [2]
    assert verify_next(post, known, None, 3, 0).chosen.tolist() == [0, 2, 1]


def errors(seed, n, num_classes, strength):
    """Calibrated probabilities; given labels that are wrong the more often the less a row looks like its class."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(num_classes, 0.5), n)
    truth = sampled(rng, probs)
    own = probs[np.arange(n), truth]
    wrong = rng.random(n) < 1 / (1 + np.exp(0.8 - strength * (0.6 - own)))
    return probs, np.where(wrong, (truth + 1) % num_classes, truth), truth


def test_errors_that_depend_on_the_class_alone_are_called_so():
    """At a level of 5%: over 100 data sets, more than 13 rejections would come in one of a thousand."""
    found = [instance_dependence(*errors(seed, 90, 3, 0), seed, permutations=59) for seed in range(100)]
    assert sum(f.p <= 0.05 for f in found) <= 13
    assert np.mean([f.auroc for f in found]) == pytest.approx(0.5, abs=0.05)


def test_errors_that_depend_on_the_example_are_found():
    found = [instance_dependence(*errors(seed, 150, 5, 8), seed, permutations=59) for seed in range(20)]
    assert sum(f.p <= 0.05 for f in found) >= 18
    assert np.mean([f.auroc for f in found]) > 0.65
    assert "errors look instance-dependent" in found[0].warning


def test_differences_between_classes_are_not_those_between_examples():
    """Every error is in one half of the classes, which the probabilities tell without fail."""
    rng = np.random.default_rng(0)
    truth = np.arange(400) % 4
    probs = np.eye(4)[truth] * 0.8 + 0.2 * rng.dirichlet(np.ones(4), 400)
    wrong = rng.random(400) < np.where(truth < 2, 0.6, 0.05)
    found = instance_dependence(probs, np.where(wrong, (truth + 1) % 4, truth), truth, seed=0)
    assert found.num_classes == 4
    assert found.warning is None


def test_the_answer_depends_on_the_seed_and_the_order_of_probabilities_alone():
    probs, given, truth = errors(1, 120, 4, 3)
    one = instance_dependence(probs, given, truth, seed=0, permutations=39)
    assert one == instance_dependence(probs, given, truth, seed=0, permutations=39)
    assert one == instance_dependence(probs**3, given, truth, seed=0, permutations=39)


def test_of_very_many_rows_some_are_looked_at_and_say_the_same():
    probs, given, truth = errors(0, 8000, 4, 3)
    found = instance_dependence(probs, given, truth, seed=0, permutations=9)
    assert 0.9 * MOST_ROWS < found.n <= MOST_ROWS
    some = instance_dependence(probs[:3000], given[:3000], truth[:3000], seed=0, permutations=9)
    assert found.auroc == pytest.approx(some.auroc, abs=0.05)


def test_of_very_many_rows_the_few_wrong_ones_are_all_looked_at():
    rng = np.random.default_rng(0)
    truth, doubt = rng.integers(0, 2, 60_000), rng.random(60_000) / 2
    probs = np.where(truth[:, None] == [0, 1], 1 - doubt[:, None], doubt[:, None])
    wrong = doubt >= np.sort(doubt)[-60]  # a thousandth: of 5,000 rows at random five
    found = instance_dependence(probs, np.where(wrong, 1 - truth, truth), truth, seed=0, permutations=39)
    assert (found.n, found.wrong) == (MOST_ROWS, 60)
    assert found.auroc > 0.98
    found = instance_dependence(probs, np.where(wrong, truth, 1 - truth), truth, seed=0, permutations=39)
    assert (found.n, found.n - found.wrong) == (MOST_ROWS, 60)


def ref_dependence(probs, given, truth, seed, permutations):
    """AUROC and p, a class, a fold and an exchange at a time, with SciPy's ranks and scikit-learn's regression."""
    rng = numpy_stream(seed, "instance dependence")
    classes = [np.flatnonzero(truth == c) for c in np.unique(truth)]
    classes = [rows for rows in classes if len(set(given[rows] == truth[rows])) == 2]
    x, places = [], np.split(np.arange(sum(map(len, classes))), np.cumsum(list(map(len, classes)))[:-1])
    for rows in classes:
        own, others = probs[rows, truth[rows]], np.delete(probs[rows], truth[rows[0]], axis=1)
        x.append(zscore(rankdata(np.column_stack([own, np.sort(others)[:, :-4:-1]]), axis=0)))
    x = np.concatenate(x)
    wrong = [given[rows] != truth[rows] for rows in classes]
    exchanged = [[rng.permutation(part) for _ in range(permutations)] for part in wrong]
    fold, found = rng.permutation(len(x)) % 10, []
    for labels in [wrong, *zip(*exchanged, strict=True)]:
        y, guess = np.concatenate([part - part.mean() for part in labels]), np.empty(len(x))
        for f in range(10):
            guess[fold == f] = Ridge(1.0, fit_intercept=False).fit(x[fold != f], y[fold != f]).predict(x[fold == f])
        scores = [roc_auc_score(part, guess[place]) for part, place in zip(labels, places, strict=True)]
        found.append(np.average(scores, weights=[part.sum() * (~part).sum() for part in wrong]))
    return found[0], np.mean(np.array(found) >= found[0] - 1e-12)


@pytest.mark.parametrize(("seed", "num_classes"), [(0, 2), (1, 4), (2, 9)])
def test_the_dependence_on_examples_matches_the_reference(seed, num_classes):
    rows = errors(seed, 150, num_classes, seed)
    found = instance_dependence(*rows, seed, permutations=39)
    auroc, p = ref_dependence(*rows, seed, permutations=39)
    assert found.auroc == pytest.approx(auroc, rel=1e-12)
    assert found.p == p


@pytest.mark.parametrize(("num_wrong", "num_right"), [(0, 0), (0, 40), (9, 40), (40, 9)])
def test_few_errors_say_nothing_of_what_they_depend_on(num_wrong, num_right):
    n = num_wrong + num_right
    probs = np.random.default_rng(0).dirichlet(np.ones(3), n)
    assert instance_dependence(probs, (np.arange(n) < num_wrong).astype(int), np.zeros(n, np.int64), seed=0) is None


def test_probabilities_that_are_all_the_same_tell_nothing():
    truth, given = np.zeros(40, np.int64), (np.arange(40) < 15).astype(int)
    found = instance_dependence(np.tile([0.6, 0.4], (40, 1)), given, truth, seed=0)
    assert (found.auroc, found.p, found.warning) == (0.5, 1, None)


def verified_run(seed, n=900):
    post, given, truth = posterior_of(seed, n)
    rng = np.random.default_rng(seed)
    verified = np.where(rng.random(n) < 0.8, truth, -1)
    picked_random = rng.random(n) < 0.8
    return given, verified, picked_random, judge(post, given), post


def calibrated_corrections(post, given, p_wrong):
    """The most probable labels where the given ones are wrong with these probabilities, if above 1/2."""
    q = post * (np.arange(post.shape[1]) != given[:, None])
    q *= (p_wrong / q.sum(1))[:, None]
    q[np.arange(len(q)), given] = 1 - p_wrong
    return np.where(p_wrong > 0.5, q.argmax(1), given)


def test_all_evidence_of_a_run_comes_from_random_rows_and_most_from_held_back_ones():
    given, verified, picked_random, judged, post = verified_run(0)
    held = hold_back(given, verified, picked_random, seed=0)
    found = gather(known_of(given, verified, picked_random, held), judged, post)
    random = picked_random & (verified >= 0)
    assert (found.num_random, found.num_held, found.transition.n) == (random.sum(), held.sum(), random.sum())
    assert (found.calibration.n, found.calibration.wrong) == (held.sum(), (given != verified)[held].sum())
    p_wrong = 1 - post[np.arange(len(given)), given]
    corrected = calibrated_corrections(
        post[held], given[held], calibrated_unseen(p_wrong[held], (given != verified)[held])
    )
    changed = corrected != given[held]
    assert found.corrections.precision.n == changed.sum()
    assert found.corrections.precision.k == (corrected == verified[held])[changed].sum()
    assert found.dependence.n <= (random & ~held).sum()


def test_where_no_row_is_held_back_nothing_is_said_of_what_these_would_show():
    post = np.array([[0.9, 0.1], [0.2, 0.8]])
    no = np.zeros(2, bool)
    known = known_of(np.array([0, 0]), np.array([0, -1]), np.array([True, False]), no)
    assert gather(known, judge(post, known.given), post, 0.9).threshold.sentence.startswith("no verified row was held")


@pytest.mark.parametrize("min_precision", [0.6, 0.7, 0.999])
def test_with_a_precision_to_keep_those_corrections_are_judged_that_are_made(min_precision):
    given, verified, picked_random, judged, post = verified_run(0)
    held = hold_back(given, verified, picked_random, seed=0)
    found = gather(known_of(given, verified, picked_random, held), judged, post, min_precision)
    num_random = int((picked_random & (verified >= 0)).sum())
    p_wrong, given, verified, post = (
        (1 - post[np.arange(len(given)), given])[held],
        given[held],
        verified[held],
        post[held],
    )
    wrong = given != verified
    corrected = calibrated_corrections(post, given, calibrated_unseen(p_wrong, wrong))
    rows, right = corrected != given, corrected == verified
    expected = threshold_for(p_wrong[rows], right[rows], min_precision, num_random)
    assert found.threshold == expected
    assert (expected.threshold is None) == (min_precision > 0.9)
    made = rows & (p_wrong > (1 if expected.threshold is None else expected.threshold))
    assert (made.sum() < rows.sum()) == (min_precision > 0.6)
    assert (found.corrections.precision.k, found.corrections.precision.n) == (right[made].sum(), made.sum())
    assert (found.corrections.recall.k, found.corrections.recall.n) == ((made & wrong).sum(), wrong.sum())


@pytest.mark.parametrize("shift", [2, 0, -3])
def test_a_precision_that_corrections_do_not_have_is_hardly_ever_promised_however_the_model_rates_them(shift):
    """Three labels in ten look wrong, by log-odds about `shift`, and 78% of them are; calibration learns which."""
    rng, rows, promised, proposed = np.random.default_rng(0), np.arange(600), 0, 0
    for _ in range(REPEATS):
        given, suspect = rng.integers(3, size=600), rng.random(600) < 0.3
        other = (given + rng.integers(1, 3, 600)) % 3
        odds = np.exp(np.where(suspect, rng.normal(shift, 1.5, 600), rng.normal(-7, 1, 600)))
        post = np.zeros((600, 3))
        post[rows, given], post[rows, other] = 1 / (1 + odds), odds / (1 + odds)
        held = rows < 300
        verified = np.where(held, np.where(suspect & (rng.random(600) < 0.78), other, given), -1)
        found = gather(known_of(given, verified, held, held), judge(post, given), post, 0.8)
        promised += found.threshold.threshold is not None
        proposed += len(found.threshold.tested) > 0
    assert proposed > 0.9 * REPEATS
    assert promised <= WORST


def test_corrections_are_judged_by_maps_that_have_not_seen_their_row():
    rng = np.random.default_rng(2)
    p, wrong = rng.uniform(0.3, 0.7, 60), rng.random(60) < 0.5
    no, yes = np.zeros(60, int), np.ones(60, int)
    post = np.stack([1 - p, p], 1)
    found = gather(known_of(no, wrong.astype(int), yes > 0, yes > 0), judge(post, no), post)
    proposed = calibrated_unseen(p, wrong) > 0.5
    assert found.corrections.precision.n == proposed.sum()
    assert found.corrections.precision.k == wrong[proposed].sum()
    assert proposed.sum() != (found.calibration.apply(p) > 0.5).sum(), "else this test could not fail"


def test_verdicts_on_rows_that_the_program_chose_change_nothing():
    given, verified, picked_random, judged, post = verified_run(1)
    held = hold_back(given, verified, picked_random, seed=0)
    other = np.where(picked_random, verified, (verified + 1) % 4)
    np.testing.assert_array_equal(held, hold_back(given, other, picked_random, seed=0))
    one, two = (known_of(given, v, picked_random, held) for v in (verified, other))
    assert gather(one, judged, post, 0.8).to_json() == gather(two, judged, post, 0.8).to_json()


@pytest.mark.parametrize("min_precision", [None, 0.9])
def test_evidence_survives_json_also_of_no_rows_at_all(min_precision):
    none, no, post = np.empty(0, np.int64), np.empty(0, bool), np.empty((0, 3))
    empty = gather(known_of(none, none, no), judge(post, none), post, min_precision).to_json()
    assert json.loads(json.dumps(empty, allow_nan=False)) == empty
    assert (empty["num_random"], empty["num_held"], empty["transition"]["n"], empty["dependence"]) == (0, 0, 0, None)
    assert "0 held-back rows" in empty["calibration"]["uncalibrated"]
    given, verified, picked_random, judged, post = verified_run(2)
    held = hold_back(given, verified, picked_random, seed=0)
    full = gather(known_of(given, verified, picked_random, held), judged, post, min_precision).to_json()
    assert json.loads(json.dumps(full, allow_nan=False)) == full
    assert np.sum(full["transition"]["counts"]) == full["num_random"]
    assert (full["threshold"] is None) == (min_precision is None)
