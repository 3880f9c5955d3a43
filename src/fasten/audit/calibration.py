"""Calibration: a map fitted to held-back verified rows, and how far off probabilities are before and after it."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fasten.metrics import Bools, Floats
from fasten.sentences import are

MIN_HELD = 20  # fewer rows carry less information than the prior
MIN_EACH = 5  # with at least so many wrong and so many right rows, targets are exactly 1 and 0; else see `_targets`
FOLDS = 10
BINS = 10
# Of the log slope and the intercept. It is not unusual that the slope is off by a factor of e, or the odds of all rows
# by e³: a model that has memorised wrong labels underrates them that much.
PRIOR_SD = (1.0, 3.0)
EDGE = 1e-6  # p_wrong closer than this to 0 or 1 is rounding, and its log-odds would dominate the fit


@dataclass(frozen=True)
class Reliability:
    """Brier score and expected calibration error of probabilities; None without rows.

    `bins` has an entry for each part of [0, 1] that holds any rows: mean probability, share that happened, rows.
    """

    brier: float | None
    ece: float | None
    bins: list[list[float]] = field(default_factory=list, repr=False)  # lists, as in a record


@dataclass(frozen=True)
class Calibration:
    """The map log-odds(p_wrong) ↦ slope · log-odds + intercept; `after` is for rows that the fit had not seen."""

    n: int
    wrong: int
    before: Reliability
    after: Reliability | None = None
    slope: float = 1.0
    intercept: float = 0.0
    uncalibrated: str | None = None  # the reason, if there are too few rows; p_wrong is then left as it is

    def apply(self, p_wrong: Floats) -> Floats:
        """Return calibrated probabilities; the ranking stays the same, since the map is increasing."""
        return p_wrong if self.uncalibrated else _mapped(_log_odds(p_wrong), self.slope, self.intercept)


def calibrate(p_wrong: Floats, wrong: Bools) -> Calibration:
    """Fit the map from p_wrong to calibrated probabilities to held-back rows; measure the errors before and after it.

    The map is linear in the log-odds, with a prior centred on leaving p_wrong as it is: a few rows change the slope
    little, but can move all odds far. It is increasing and never gives 0 or 1. Isotonic regression on a few dozen rows
    would give both, and lose the ranking within each of its steps.

    >>> found = calibrate(np.tile([0.001, 0.999], 50), np.tile([False, True, False, False], 25))
    >>> found.apply(np.array([0.001, 0.999])).round(2).tolist()
    [0.0, 0.51]
    >>> calibrate(np.ones(3), np.ones(3, bool)).uncalibrated
    'calibration takes 20 held-back rows, and there are 3'
    """
    n, num_wrong, before = len(wrong), int(wrong.sum()), reliability(p_wrong, wrong)
    if n < MIN_HELD:
        few = f"calibration takes {MIN_HELD} held-back rows, and there {are(n)} {n}"
        return Calibration(n, num_wrong, before, uncalibrated=few)
    after = reliability(calibrated_unseen(p_wrong, wrong), wrong)
    return Calibration(n, num_wrong, before, after, *_fit(_log_odds(p_wrong), _targets(wrong)))


def calibrated_unseen(p_wrong: Floats, wrong: Bools) -> Floats:
    """Each row's probability by a map that was fitted to other rows, so that what is measured is not too optimistic."""
    z, unseen, fold = _log_odds(p_wrong), np.empty(len(wrong)), np.empty(len(wrong), np.int64)
    fold[np.lexsort((z, wrong))] = np.arange(len(wrong)) % FOLDS  # each fold gets its share of all kinds of rows
    targets = _targets(wrong)
    for f in range(FOLDS):
        unseen[fold == f] = _mapped(z[fold == f], *_fit(z[fold != f], targets[fold != f]))
    return unseen


def _targets(wrong: Bools) -> NDArray[np.float64]:
    """The targets of the fit: 1 for wrong rows and 0 for right ones, or a little less extreme if either kind is rare.

    Four wrong rows do not show that rows like them are always wrong. Adding half a row of each kind to the wrong rows
    and to the right ones makes the target of a wrong row (k + 1/2) / (k + 1), and of a right one 1/2 / (n − k + 1).
    (Platt, 1999, adds whole rows: with 67 held-back labels that means 1.5% more wrong ones, about as many as there
    may be.)

    >>> _targets(np.arange(38) < 2).round(3)[[0, -1]].tolist(), _targets(np.arange(38) < 5)[[0, -1]].tolist()
    ([0.833, 0.014], [1.0, 0.0])
    """
    k, n = int(wrong.sum()), len(wrong)
    if min(k, n - k) >= MIN_EACH:
        return wrong.astype(np.float64)
    return np.where(wrong, (k + 0.5) / (k + 1), 0.5 / (n - k + 1))


def reliability(p: Floats, happened: Bools) -> Reliability:
    """Brier score, and |mean probability − share that happened| in ten equal parts of [0, 1], weighted by their rows.

    The latter is above 0 by chance alone: about 0.05 for a hundred rows.

    >>> reliability(np.array([0.75, 0.75, 0.25]), np.array([True, False, False]))
    Reliability(brier=0.22916666666666666, ece=0.25)
    """
    if len(p) == 0:
        return Reliability(None, None)
    part = np.minimum((p * BINS).astype(np.int64), BINS - 1)
    sums = zip(*(np.bincount(part, weights).tolist() for weights in (None, p, happened)), strict=True)
    bins = [[round(total / n, 6), round(share / n, 6), n] for n, total, share in sums if n]
    gaps = np.abs(np.bincount(part, p - happened))
    return Reliability(float(((p - happened) ** 2).mean()), float(gaps.sum() / len(p)), bins)


def _log_odds(p: Floats) -> NDArray[np.float64]:
    p = np.clip(p.astype(np.float64), EDGE, 1 - EDGE)
    return np.asarray(np.log(p / (1 - p)))


def _mapped(z: NDArray[np.float64], slope: float, intercept: float) -> NDArray[np.float64]:
    return np.asarray((1 + np.tanh((slope * z + intercept) / 2)) / 2)  # the logistic function, without overflow


def _fit(z: NDArray[np.float64], targets: NDArray[np.float64]) -> tuple[float, float]:
    """Maximum a posteriori slope and intercept, by Newton's method; the prior of the log slope is normal."""
    at, precision = np.zeros(2), 1 / np.square(PRIOR_SD)

    def cost(at: NDArray[np.float64]) -> float:
        line = np.exp(at[0]) * z + at[1]
        return float((np.logaddexp(0, line) - targets * line).sum() + (precision * at**2).sum() / 2)

    for _ in range(100):
        p = _mapped(z, float(np.exp(at[0])), float(at[1]))
        slopes = np.stack([np.exp(at[0]) * z, np.ones_like(z)])
        gradient = slopes @ (p - targets) + precision * at
        step = np.linalg.solve((slopes * p * (1 - p)) @ slopes.T + np.diag(precision), gradient)
        while cost(at - step) > cost(at) - gradient @ step / 4 and np.abs(step).max() > 1e-12:  # the step is too long
            step /= 2
        at = at - step
        if np.abs(step).max() < 1e-10:
            break
    return float(np.exp(at[0])), float(at[1])
