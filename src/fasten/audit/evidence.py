"""What verified rows show: T by counting, calibrated probabilities, which rows to verify next.

Labels are whole numbers, -1 if unknown: `given` is the label that a row came with, `verified` the one that somebody
checked, `truth` the same for rows that are already selected. Only rows that were picked at random tell anything about
the others, so verdicts on rows that the program chose are not used here. A third of the random ones is held back from
training. Calibration, precision and thresholds come from these alone, so the T behind their `p_wrong` must not count
them. T[i, j] = P(given = j | true = i).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasten.audit import Judged
from fasten.audit.calibration import Calibration, calibrate, calibrated_unseen
from fasten.audit.corrections import FLOOR, Corrections, ThresholdChoice, correction_scores, threshold_for
from fasten.audit.dependence import InstanceDependence, instance_dependence
from fasten.data.task import Known
from fasten.metrics import Bools, Floats, Ints, count_pairs
from fasten.seeds import numpy_stream
from fasten.statistics import LEVEL, Proportion, beta_cdf, beta_quantile, proportion

HOLD_EVERY = 3  # one row in three is held back
FEW_ALONE = 20  # leaving this many rows, or one row in this many, out of the held-back ones hardly biases these
PRIOR_COUNT = 0.5  # of each cell of T: Jeffreys' prior
CHUNK = 65_536  # rows of a posterior worked on at a time
DIGITS = 6  # decimals of the numbers in a record
ODD = 0.001  # at this p a label is not out of proportion by chance: at most one random sample in a thousand has any


@dataclass(frozen=True, eq=False)
class TransitionEvidence:
    """T counted from `n` rows: the posterior mean and 95% credible interval of each entry."""

    counts: NDArray[np.int64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @property
    def n(self) -> int:
        return int(self.counts.sum())

    @property
    def relative_error(self) -> NDArray[np.float64]:
        """Standard deviation of each entry divided by its mean: up to 1.4 if nothing was counted, 0 after many rows."""
        size = self.counts.sum(1, keepdims=True) + PRIOR_COUNT * len(self.counts)
        return np.asarray(np.sqrt((1 - self.mean) / (self.mean * (size + 1))))

    @property
    def right(self) -> list[Proportion]:
        """The share of right labels in each class, from its rows alone: with many classes T's prior outweighs them."""
        return [
            proportion(k, n) for k, n in zip(self.counts.diagonal().tolist(), self.counts.sum(1).tolist(), strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        bounds = {name: getattr(self, name).round(DIGITS).tolist() for name in ("mean", "low", "high")}
        return {"n": self.n, "counts": self.counts.tolist(), **bounds, "right": [asdict(share) for share in self.right]}


@dataclass(frozen=True, eq=False)
class NextRows:
    """Rows to verify: `chosen` are the most useful, best first; `random` are for T, calibration and precision."""

    chosen: NDArray[np.int64]
    random: NDArray[np.int64]


@dataclass(frozen=True)
class OddLabel:
    """The label most out of proportion among the random rows: its `share` of them, and its `usual` share of all rows.

    The probability that chance alone puts any label this far out is at most `p`.
    """

    label: str
    share: float
    usual: float
    p: float


@dataclass(frozen=True)
class Sample:
    """Whether `n` held-back rows are like those that were not picked, as a random sample is.

    `rank` is their mean rank among the rows of the same label: 0 for the least suspect, 1 for the most, about 1/2 in a
    random sample. The probability that chance alone moves it this far is at most `p`. `odd` is about all random rows.
    """

    n: int
    rank: float
    p: float
    odd: OddLabel | None = None

    @property
    def warning(self) -> str | None:
        if self.p <= LEVEL:
            looks = "less" if self.rank < 0.5 else "more"
            usual = f"mean rank {self.rank:.2f} instead of about 0.50, {self.n} rows"
            how = f"their labels look {looks} wrong to the model ({usual})"
        elif self.odd is not None and self.odd.p <= ODD:
            how = (
                f"{self.odd.share:.1%} of them have the label {self.odd.label!r}, compared with {self.odd.usual:.1%} "
                "of all rows"
            )
        else:
            return None
        return (
            f"the rows that count as verified at random are not like the others: {how}, so T, p_wrong and precision do "
            "not hold for the others; mark such rows as chosen, by 'picked' in the data, in a --verified list or in "
            "Python, and verify some at random"
        )


@dataclass(frozen=True)
class Evidence:
    """Everything that the randomly verified rows show about one run, for its record."""

    num_random: int
    num_held: int
    transition: TransitionEvidence
    calibration: Calibration
    corrections: Corrections
    threshold: ThresholdChoice | None = None
    dependence: InstanceDependence | None = None
    sample: Sample | None = None
    num_changed: int = 0  # labels that are corrected, of rows without a verdict

    @property
    def wrong(self) -> Proportion:
        """The wrong labels among those of the random rows: what is known about all labels without any model."""
        counts = self.transition.counts
        return proportion(int(counts.sum() - counts.trace()), self.num_random)

    @property
    def doubt(self) -> str | None:
        """A warning about the corrections, or None; always None if a precision was asked for, since it is kept."""
        return None if self.threshold else self.corrections.doubt(self.num_changed)

    def to_json(self) -> dict[str, Any]:
        """Plain values, with lists for arrays; None for what was not asked for or cannot be determined."""
        choice, dependence, sample = self.threshold, self.dependence, self.sample
        return {
            "num_random": self.num_random,
            "num_held": self.num_held,
            "num_changed": self.num_changed,
            "wrong": asdict(self.wrong),
            "doubt": self.doubt,
            "transition": self.transition.to_json(),
            "calibration": asdict(self.calibration),
            "corrections": asdict(self.corrections),
            "threshold": choice.to_json() if choice else None,
            "dependence": {**asdict(dependence), "warning": dependence.warning} if dependence else None,
            "sample": {**asdict(sample), "warning": sample.warning} if sample else None,
        }


def hold_back(given: Ints, verified: Ints, picked_random: Bools, seed: int) -> Bools:
    """Choose a third of the randomly verified rows that have a given label, as evenly over the classes as possible.

    Classes are put in random order, and so are the rows of each class; then every third row is taken. Each row has the
    same chance, in rare classes too, and each class gives a third of its rows to within one. The only verified row of a
    class is not held back, since training would then know nothing about the class. If a large share of the rows are
    such rows, as with hundreds of classes, they may be held back: otherwise the held-back rows would tell too little
    about rare classes.

    >>> held = hold_back(np.zeros(9, int), np.arange(9) // 3, np.arange(9) < 6, seed=0)
    >>> held.reshape(3, 3).sum(1).tolist()
    [1, 1, 0]
    """
    rng = numpy_stream(seed, "hold back")
    count = np.bincount(verified + 1, minlength=1)  # of each class, after that of rows without a verdict
    may = picked_random & (verified >= 0) & (given >= 0)
    alone = may & (count[verified + 1] == 1)
    if alone.sum() <= max(FEW_ALONE, may.sum() / FEW_ALONE) or (alone == may).all():
        may &= ~alone
    rows = rng.permutation(np.flatnonzero(may))
    place = rng.permutation(verified.max(initial=0) + 1)  # of each class
    in_order = rows[np.argsort(place[verified[rows]], kind="stable")]
    held = np.zeros(len(given), bool)
    held[in_order[rng.integers(HOLD_EVERY) :: HOLD_EVERY]] = True
    return held


def counted_posterior(truth: Ints, given: Ints, num_classes: int) -> TransitionEvidence:
    """T from randomly verified rows, with a Dirichlet(1/2) prior on each row of T; unknown labels are left out.

    The marginals are beta distributions. With many classes and few rows, the mean is mostly prior. An interval extends
    to 0 if no row was counted in the entry, and to 1 if all rows of the class were: the entry is most often exactly
    that, and quantiles never reach it.

    >>> found = counted_posterior(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]), 2)
    >>> found.mean.tolist(), found.low.round(3).tolist()
    ([[0.625, 0.375], [0.25, 0.75]], [[0.177, 0.039], [0.0, 0.147]])
    """
    counts = count_pairs(truth, given, num_classes)
    a = counts + PRIOR_COUNT
    b = a.sum(1, keepdims=True) - a
    size = counts.sum(1, keepdims=True)
    # Few pairs (a, b) are distinct, and each is a count and the size of its row: as one number they sort much faster.
    _, first, place = np.unique(size * (size.max() + 1) + counts, return_index=True, return_inverse=True)
    pairs = list(zip(a.flat[first].tolist(), b.flat[first].tolist(), strict=True))
    tails = [[beta_quantile(q, *pair) for pair in pairs] for q in (LEVEL / 2, 1 - LEVEL / 2)]
    low, high = (np.array(tail)[place.ravel()].reshape(a.shape) for tail in tails)
    low, high = np.where(counts == 0, 0, low), np.where(counts == size, 1, high)
    return TransitionEvidence(counts, a / (a + b), low, high)


def verify_next(post: Floats, known: Known, transition: TransitionEvidence | None, n: int, seed: int) -> NextRows:
    """Choose the n rows whose verdicts would help most, and as many random ones.

    A verdict corrects the most probable label of a row with the probability that this label is wrong. This is
    multiplied by up to 2.4 if T is uncertain for the pair of classes in question, and by 1/√k for the k-th row of a
    pair, so that no pair takes all rows. Random rows are drawn first, from all that were not picked at random before;
    together with those they form one random sample. Some may already have a verdict, which then counts as random.

    >>> post = np.array([[0.9, 0.1], [0.5, 0.5], [0.7, 0.3], [0.6, 0.4]])
    >>> known = Known(tuple("abcd"), np.zeros(4, int), np.array([-1, -1, -1, 0]), np.ones(4, bool), np.zeros(4, bool))
    >>> rows = verify_next(post, known, None, n=2, seed=0)
    >>> rows.chosen.tolist(), rows.random.tolist()
    ([1, 2], [])
    """
    given = known.given
    pool = np.flatnonzero(~known.picked_random & (given >= 0))
    stream = numpy_stream(seed, "verify next", int(known.picked_random.sum()))
    random = stream.choice(pool, min(n, len(pool)), replace=False)
    open_rows = np.setdiff1d(np.flatnonzero((known.verified < 0) & (given >= 0)), random)
    gain, other = _chance_of_error(post, given, open_rows)
    if transition is not None:
        gain *= 1 + transition.relative_error[other, given[open_rows]]
    pair = given[open_rows] * post.shape[1] + other
    order = np.lexsort((-gain, pair))
    first = np.searchsorted(pair[order], pair[order])
    gain[order] /= np.sqrt(1 + np.arange(len(order)) - first)
    return NextRows(open_rows[np.argsort(-gain, kind="stable")[:n]], np.sort(random))


def compare_sample(suspicion: Floats, given: Ints, held: Bools, others: Bools) -> Sample | None:
    """Compare held-back rows with `others`, each among the rows of its given label; None if nothing is held back.

    A model that saw the given labels of both sees no difference if the former were picked at random. The bound is
    Hoeffding's, which holds with ties and few rows; without ties, the mean rank has to be 4.7 standard errors off.

    >>> score, given = np.arange(100) / 100, np.zeros(100, int)
    >>> found = compare_sample(score, given, score >= 0.8, score < 0.8)
    >>> round(found.rank, 2), found.p < 0.05
    (0.9, True)
    >>> compare_sample(score, given, np.arange(100) % 5 == 2, np.arange(100) % 5 != 2).warning
    """
    ranks = [np.empty(0)]
    for label in np.unique(given[held]):
        mine = given == label
        in_order, rows = np.sort(suspicion[mine & (held | others)]), suspicion[mine & held]
        places = np.searchsorted(in_order, rows) + np.searchsorted(in_order, rows, side="right")
        ranks.append(places / (2 * len(in_order)))
    n = int(held.sum())
    if not n:
        return None
    rank = float(np.concatenate(ranks).mean())
    return Sample(n, rank, min(1.0, 2 * float(np.exp(-2 * n * (rank - 0.5) ** 2))))


def odd_label(given: Ints, random: Bools, class_names: Sequence[str] = ()) -> OddLabel | None:
    """The given label that is most out of proportion among the rows picked at random; None without such rows.

    A fixed number of rows per label tells neither how many labels are wrong nor how many corrections are right, if some
    labels are rarer than others. The tails are binomial, doubled, and multiplied by the number of labels.

    >>> given = np.repeat([0, 1, 2], [90, 5, 5])
    >>> found = odd_label(given, (np.arange(100) > 85) & (np.arange(100) < 95))  # four of one label, five of another
    >>> found.label, found.usual, found.p < 0.001, odd_label(given, np.arange(100) % 20 == 0).p
    ('1', 0.05, True, 1.0)
    """
    labels, n = given[given >= 0], int(random.sum())
    totals = np.bincount(labels, minlength=1)
    counts, found = np.bincount(given[random], minlength=len(totals)), []
    for label, (k, total) in enumerate(zip(counts.tolist(), totals.tolist(), strict=True)):
        usual = total / max(len(labels), 1)
        more = beta_cdf(usual, k, n - k + 1) if k else 1.0
        fewer = beta_cdf(1 - usual, n - k, k + 1) if k < n else 1.0
        name = class_names[label] if class_names else str(label)
        found.append(OddLabel(name, k / max(n, 1), usual, min(1.0, 2 * len(totals) * min(more, fewer))))
    return min(found, key=lambda label: label.p) if n else None


def gather(known: Known, judged: Judged, probs: Floats, min_precision: float | None = None, seed: int = 0) -> Evidence:
    """Gather the evidence of one run. `judged` must come from a model that has not seen verdicts of held-back rows.

    `corrections` are those with a calibrated p_wrong above 1/2, each row's by a map that was fitted without it. If a
    precision is asked for, only those above the threshold remain, which is one of p_wrong before calibration, so that
    all rows are in one order. `probs` are the model's probabilities, for `instance_dependence`; only random rows that
    are not held back are read. `sample` compares the held-back rows with all that were not picked at random; if they
    differ, no precision can be shown.

    >>> probs, given = np.array([[0.1, 0.9], [0.8, 0.2], [0.8, 0.2], [0.2, 0.8]]), np.zeros(4, int)
    >>> held = np.array([True, True, False, False])
    >>> from fasten.audit import judge
    >>> known = Known(tuple("abcd"), given, np.array([1, 0, 0, -1]), given == 0, held)
    >>> found = gather(known, judge(probs, given), probs)
    >>> found.num_random, found.num_held, found.corrections.precision.share, found.transition.counts.tolist()
    (3, 2, 1.0, [[2, 0], [1, 0]])
    """
    given, verified = known.given, known.verified
    random = known.picked_random & (verified >= 0) & (given >= 0)
    held = known.held & random
    rest = random & ~held
    g, v, model = given[held], verified[held], Judged._make(column[held] for column in judged)
    p, wrong = model.p_wrong, g != v
    calibration, choice = calibrate(p, wrong), None
    shown = model if calibration.uncalibrated else model.with_p_wrong(calibrated_unseen(p, wrong), g)
    corrected = s = np.where(shown.p_wrong > FLOOR, shown.suggested, g)
    sample = compare_sample(judged.p_wrong, given, held, ~random & (given >= 0))
    sample = sample and replace(sample, odd=odd_label(given, random, known.class_names))
    if min_precision is not None:
        num_verified = int(random.sum()) if held.any() else 0  # otherwise nothing can show it
        choice = threshold_for(p[s != g], (s == v)[s != g], min_precision, num_verified)
        if sample is not None and sample.warning:
            choice = ThresholdChoice(min_precision, None, at_random=False)
        corrected = g if choice.threshold is None else np.where(p > choice.threshold, s, g)
    return Evidence(
        num_random=int(random.sum()),
        num_held=int(held.sum()),
        transition=counted_posterior(verified[random], given[random], probs.shape[1]),
        calibration=calibration,
        corrections=correction_scores(g, corrected, v),
        threshold=choice,
        dependence=instance_dependence(probs[rest], given[rest], verified[rest], seed),
        sample=sample,
    )


def _chance_of_error(post: Floats, given: Ints, rows: Ints) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """For each row: the probability that its most probable label is wrong, and the best label except the given one."""
    chance, other = np.empty(len(rows)), np.empty(len(rows), np.int64)
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        q = post[rows[part]]
        chance[part] = 1 - q.max(1)
        q[np.arange(len(q)), given[rows[part]]] = -1
        other[part] = q.argmax(1)
    return chance, other
