"""The precision of proposed corrections on held-back verified rows, and the lowest threshold that keeps a precision."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from fasten.metrics import Bools, Floats, Ints
from fasten.sentences import are, some
from fasten.statistics import Proportion, lower_bound, proportion, reaches

FLOOR = 0.5  # a label whose p_wrong is not above this is more likely right than wrong, and never changed
FIRST_MISTAKES = 2  # that the strictest cut allows: a cut that allows none mostly fails by bad luck
FIRST_SHARE = 0.1  # the strictest cut has at least this share of the corrections
FIRST_LIMIT = 0.6  # and at most this share just to allow mistakes, so that something is left to test
STEP = 1.1  # factor from the size of one cut to the next
MOST_ROWS = 10_000_000  # a larger sample is not a useful answer

# Held-back rows are judged as if nobody had verified them, by calibrations that had not seen them. In labels.csv their
# verdicts decide, so these sentences say what would be changed.
MISTAKEN = (
    "{mistaken}: keep the labels as they are, train longer, or correct fewer (--min-precision, or min_precision in "
    "Python)"
)
UNSHOWN = (
    "nothing shows that the corrections do more good than harm: the model changes {changed}; of the held-back rows, "
    "judged without their verdicts, {judged}; look at some corrections before you use a repaired copy, or verify more "
    "rows at random"
)


@dataclass(frozen=True)
class Corrections:
    """On held-back rows: the share of proposed corrections that are right, and of wrong labels that are changed."""

    precision: Proportion
    recall: Proportion

    @property
    def mistaken(self) -> bool:
        """Whether most corrections are wrong."""
        return 2 * self.precision.k < self.precision.n

    def doubt(self, num_changed: int) -> str | None:
        """Return a warning if the `num_changed` corrections of all rows may do more harm than good, otherwise None.

        They may unless the held-back rows show, at 95% confidence, that at least half of the corrections are right.

        >>> [Corrections(proportion(k, n), proportion(0, 0)).doubt(9) is None for k, n in ((4, 4), (5, 5), (9, 12))]
        [False, True, False]
        >>> "the model changes one label; " in (Corrections(proportion(0, 0), proportion(0, 0)).doubt(1) or "")
        True
        """
        k, n = self.precision.k, self.precision.n
        if not num_changed or reaches(k, n, FLOOR):
            return None
        if self.mistaken:
            return MISTAKEN.format(mistaken=_mistaken(k, n))
        changed = f"{num_changed:,} labels" if num_changed > 1 else "one label"
        return UNSHOWN.format(changed=changed, judged=_judged(k, n))


def _mistaken(k: int, n: int) -> str:
    if n == 1:
        return "the only correction of a held-back row, judged without its verdict, is wrong"
    return f"only {k:,} of {n:,} corrections of held-back rows, judged without their verdicts, {are(k)} right"


def _judged(k: int, n: int) -> str:
    """What held-back rows show, if at least half of their corrections are right."""
    return (
        "none would be changed"
        if not n
        else "one would be changed, correctly"
        if n == 1
        else f"{n:,} would be changed, {k:,} of them correctly"
    )


@dataclass(frozen=True)
class Cut:
    """One tested threshold: `k` of the `n` corrections with p_wrong above it are right."""

    threshold: float
    k: int
    n: int

    @property
    def low(self) -> float:
        """The one-sided lower 95% bound of the share that is right."""
        return lower_bound(self.k, self.n)


@dataclass(frozen=True)
class ThresholdChoice:
    """The lowest threshold shown to keep `min_precision`, or None, and how many more rows it would take.

    `more_if_right` and `more_as_seen` are the numbers of rows still to be verified at random, if all further
    corrections were right and if they were right as often as so far. They are None if no number would be enough, or if
    nothing was proposed yet.
    """

    min_precision: float
    threshold: float | None
    tested: tuple[Cut, ...] = ()
    more_if_right: int | None = None
    more_as_seen: int | None = None
    at_random: bool = True  # whether the rows may be a random sample; otherwise they show nothing
    num_verified: int = 0  # rows verified at random, if nothing was proposed

    @property
    def sentence(self) -> str:
        """What to tell the user."""
        if self.threshold is not None:
            cut = next(cut for cut in self.tested if cut.threshold == self.threshold)
            which = f" with p_wrong above {self.threshold:.4g}, before calibration," if self.threshold else ""
            return (
                f"at least {self.min_precision:.4g} of the corrections{which} are right, at 95% confidence: "
                f"{cut.k} of {cut.n} held-back ones {are(cut.k)}"
            )
        if not self.at_random:
            return "rows that are not a random sample cannot show a precision, so nothing is corrected"
        if not self.tested:
            return self._nothing_to_test()
        seen = f"right: {self.tested[0].k} of the {self.tested[0].n} most certain ones"
        return (
            f"the corrections of held-back rows ({seen}) cannot show a precision of {self.min_precision:.4g}, so "
            f"nothing is corrected; {self._cure()}"
        )

    def _nothing_to_test(self) -> str:
        so = "so no precision can be shown and nothing is corrected"
        if not self.num_verified:
            return f"no verified row was held back, {so}; verify rows at random first"
        lack = f"no held-back label would be changed ({some(self.num_verified, 'row')} verified at random)"
        return f"{lack}, {so}; perhaps few labels are wrong; if not, verify more rows at random"

    def _cure(self) -> str:
        if self.more_if_right is None:
            return "no number of verified rows would be enough: ask for a lower precision"
        more = f"verify more rows at random: about {self.more_if_right:,} more if all further corrections are right"
        if self.more_as_seen == self.more_if_right:
            return more  # all were right so far
        rate = "no number would be enough" if self.more_as_seen is None else f"about {self.more_as_seen:,}"
        return f"{more}; at the rate so far {rate}"

    def to_json(self) -> dict[str, Any]:
        tested = [{**asdict(cut), "low": cut.low} for cut in self.tested]
        return {**asdict(self), "tested": tested, "sentence": self.sentence}


def correction_scores(given: Ints, corrected: Ints, truth: Ints) -> Corrections:
    """Precision of the changed labels and recall of the wrong ones on held-back rows, with 95% intervals.

    >>> found = correction_scores(np.array([0, 0, 0]), np.array([1, 1, 0]), np.array([1, 0, 0]))
    >>> found.precision.share, found.recall.share
    (0.5, 1.0)
    """
    changed, wrong = corrected != given, given != truth
    precision = proportion(int((corrected == truth)[changed].sum()), int(changed.sum()))
    return Corrections(precision, proportion(int(changed[wrong].sum()), int(wrong.sum())))


def check_precision(min_precision: float | None) -> None:
    """Raise unless the precision to keep is between 0 and 1, or None."""
    if min_precision is not None and not 0 < min_precision < 1:
        raise ValueError(f"the precision to keep must be between 0 and 1, got {min_precision:g}; write 95% as 0.95")


def threshold_for(p_wrong: Floats, right: Bools, min_precision: float, num_verified: int) -> ThresholdChoice:
    """Find the lowest threshold whose corrections (all rows with p_wrong above it) keep `min_precision`, at 95%.

    The rows are the held-back ones that would be corrected if no precision were asked for; `right` says which of these
    corrections give the true label, and `num_verified` is the number of randomly verified rows that they come from.
    Cuts are tested from the strictest down, each by its one-sided bound, until one fails. A bad choice needs a false
    success at the first cut that is too low, which has a chance of at most 5%, so the number of cuts needs no
    correction.

    >>> choice = threshold_for(np.linspace(0.6, 1, 100), np.arange(100) >= 20, 0.9, num_verified=900)
    >>> round(choice.threshold, 3), [(cut.k, cut.n) for cut in choice.tested]
    (0.677, [(60, 60), (66, 66), (73, 73), (80, 80), (80, 88)])
    >>> choice = threshold_for(np.ones(9), np.ones(9, bool), 0.9, num_verified=90)
    >>> choice.threshold, choice.more_if_right
    (None, 200)
    """
    check_precision(min_precision)
    cuts = _cuts(p_wrong, right, min_precision)
    passed = [reaches(cut.k, cut.n, min_precision) for cut in cuts]
    num_passed = passed.index(False) if False in passed else len(cuts)
    tested = tuple(cuts[: num_passed + 1])
    if num_passed:
        return ThresholdChoice(min_precision, cuts[num_passed - 1].threshold, tested)
    if not cuts:
        return ThresholdChoice(min_precision, None, num_verified=num_verified)
    # More rows enlarge each cut in proportion; the strictest has to pass before any other is tested.
    more = [needed(cuts[0], min_precision) * num_verified / cuts[0].n for needed in (_more_if_right, _more_as_seen)]
    if_right, as_seen = (math.ceil(n) if math.isfinite(n) else None for n in more)
    return ThresholdChoice(min_precision, None, tested, if_right, as_seen)


def _cuts(p_wrong: Floats, right: Bools, min_precision: float) -> list[Cut]:
    """The cuts to test, strictest first: each threshold is just below a certain number of the highest p_wrong.

    These numbers depend only on the number of rows, never on `right`: given the next lower p_wrong, the rows above it
    are then a random sample of all such rows, and k is binomial. Thresholds fixed in advance would work as well, but
    all p_wrong may lie above 0.99, or below 0.7. The guarantee is exact if a precision that is too low stays too low
    for all lower thresholds, and nearly exact otherwise. Rows with the same p_wrong stay together; the last cut takes
    all, and has the threshold 0.
    """
    order = np.argsort(-p_wrong, kind="stable")
    values, rights = p_wrong[order].astype(np.float64), right[order].cumsum()
    sizes = _sizes(len(values), min_precision)
    ends = {int(np.searchsorted(-values, -values[size - 1], side="right")) for size in sizes}
    below = np.append(values, 0.0)
    return [Cut(float(below[n]), int(rights[n - 1]), n) for n in sorted(ends)]


@cache
def _sizes(n: int, min_precision: float) -> tuple[int, ...]:
    """Rows in each cut. The first allows mistakes: if only n of n right were enough, one mistake would end the test."""
    least = _smallest(lambda m: reaches(m, m, min_precision))
    roomy = _smallest(lambda m: reaches(m - FIRST_MISTAKES, m, min_precision))
    size = max(least, FIRST_SHARE * n, min(roomy, FIRST_LIMIT * n))
    sizes = [n] if n else []
    while size < n:
        sizes.append(math.ceil(size))
        size *= STEP
    return tuple(sizes)


def _more_if_right(cut: Cut, min_precision: float) -> float:
    """The number of further corrections, all right, until the bound reaches the precision."""
    return _smallest(lambda more: reaches(cut.k + more, cut.n + more, min_precision))


def _more_as_seen(cut: Cut, min_precision: float) -> float:
    """The number of further corrections, right as often as these, until the bound reaches the precision."""
    if cut.k <= min_precision * cut.n:
        return math.inf
    return _smallest(lambda more: reaches((cut.n + more) * cut.k // cut.n, cut.n + more, min_precision))


def _smallest(holds: Callable[[int], bool]) -> float:
    """The smallest whole number from 1 up that `holds`, if all larger ones do too; infinity if there is none."""
    high = 1
    while not holds(high):
        high *= 2
        if high > MOST_ROWS:
            return math.inf
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
