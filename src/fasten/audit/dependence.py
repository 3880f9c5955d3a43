"""Test whether errors depend on the example, which would make one T for all examples too simple."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fasten.metrics import Bools, Floats, Ints, aurocs
from fasten.seeds import numpy_stream
from fasten.statistics import LEVEL

# A few features that all classes share, so that a few dozen rows are enough.
MIN_EACH = 10  # wrong rows, and right rows, at least
NUM_OTHERS = 3  # highest probabilities of other classes that are features
FOLDS = 10
RIDGE = 1.0  # penalty, for features with unit variance
ROUNDING = 1e-12  # difference between sums in different orders
MOST_ROWS = 5_000  # that are used: twelve times as many took twelve times as long, and moved the AUROC by 0.003


@dataclass(frozen=True)
class InstanceDependence:
    """How well wrong labels can be told from right ones within their class, and how often chance does as well."""

    n: int
    wrong: int
    num_classes: int
    auroc: float
    p: float

    @property
    def warning(self) -> str | None:
        if self.p > LEVEL:
            return None
        return (
            f"errors look instance-dependent: within a class, the model's output can tell wrong labels from right ones "
            f"(AUROC {self.auroc:.2f}, p = {self.p:.3f}, {self.n} verified rows), so one T for all examples is too "
            "simple"
        )


def instance_dependence(
    probs: Floats, given: Ints, truth: Ints, seed: int, permutations: int = 499
) -> InstanceDependence | None:
    """Test whether errors within a true class can be predicted from a model's output for the example.

    A linear rule, the same for all classes, tells wrong labels from right ones. Its features are the true class's
    probability and the highest of the others, as ranks within the class. Its AUROC is over pairs of the same class, on
    rows that it was not fitted to; p comes from permuting wrong and right within each class. Returns None with fewer
    than ten rows of either kind. If there are very many rows, a random part is used, with as many wrong as right ones
    if possible. The probabilities must not depend on the given label: a network trained on it may have memorised it,
    and the test would detect that. Rows of the clean set are suitable, since training saw only their verified label.

    >>> probs, wrong = np.linspace([1, 0], [0.5, 0.5], 40), np.arange(40) >= 30
    >>> found = instance_dependence(probs, wrong.astype(int), np.zeros(40, int), seed=0)
    >>> found.auroc, found.p
    (1.0, 0.002)
    """
    wrong = given != truth
    known = _looked_at((given >= 0) & (truth >= 0), wrong, seed)
    classes = [np.flatnonzero(known & (truth == c)) for c in np.unique(truth[known])]
    classes = [rows for rows in classes if 0 < wrong[rows].sum() < len(rows)]  # otherwise nothing to tell apart
    rows = np.concatenate([np.empty(0, np.int64), *classes])
    num_wrong = int(wrong[rows].sum())
    if min(num_wrong, len(rows) - num_wrong) < MIN_EACH:
        return None
    rng = numpy_stream(seed, "instance dependence")
    x = np.concatenate([_ranks(_relative(probs[part], int(truth[part[0]]))) for part in classes])
    labels = [_exchanged(wrong[part], permutations, rng) for part in classes]
    y = np.concatenate([part.T - part.mean(1) for part in labels])
    guesses = _out_of_fold(x, y, rng.permutation(len(rows)) % FOLDS)
    parts = np.split(guesses.T, np.cumsum([len(part) for part in classes])[:-1], axis=1)
    scores = [aurocs(*both) for both in zip(parts, labels, strict=True)]
    weights = [wrong[part].sum() * (~wrong[part]).sum() for part in classes]
    found = np.average(np.stack(scores), axis=0, weights=weights)
    p = float((found >= found[0] - ROUNDING).mean())  # the original order counts as a permutation
    return InstanceDependence(len(rows), num_wrong, len(classes), float(found[0]), p)


def _looked_at(known: Bools, wrong: Bools, seed: int) -> Bools:
    """At most `MOST_ROWS` random known rows: half wrong and half right, or more of one kind if the other is rare."""
    order = numpy_stream(seed, "rows of dependence").permutation(np.flatnonzero(known))
    both, kept = (order[wrong[order]], order[~wrong[order]]), np.zeros_like(known)
    for mine, others in (both, both[::-1]):
        kept[mine[: max(MOST_ROWS // 2, MOST_ROWS - len(others))]] = True
    return kept


def _relative(probs: Floats, own: int) -> Floats:
    """The probability of the class `own`, then the `NUM_OTHERS` highest ones of other classes, highest first."""
    others = -np.sort(-np.delete(probs, own, axis=1), axis=1)
    return np.column_stack([probs[:, own], others[:, :NUM_OTHERS]])


def _ranks(features: Floats) -> NDArray[np.float64]:
    """Each column as ranks with mean 0 and variance 1; a constant column becomes zeros."""
    out = np.empty(features.shape)
    for j, column in enumerate(features.T):
        in_order = np.sort(column)
        rank = np.searchsorted(in_order, column) + np.searchsorted(in_order, column, side="right")
        out[:, j] = rank - rank.mean()
    spread = out.std(0)
    return np.asarray(out / np.where(spread > 0, spread, 1))


def _out_of_fold(x: NDArray[np.float64], y: NDArray[np.float64], fold: Ints) -> NDArray[np.float64]:
    """Predict each column of y by ridge regression on the other folds, solved for all columns at once."""
    guesses = np.empty(y.shape)
    for f in range(FOLDS):
        rest = x[fold != f]
        weights = np.linalg.solve(rest.T @ rest + RIDGE * np.eye(x.shape[1]), rest.T @ y[fold != f])
        guesses[fold == f] = x[fold == f] @ weights
    return guesses


def _exchanged(wrong: Bools, permutations: int, rng: np.random.Generator) -> Bools:
    """`wrong` as it is, and below it randomly permuted among the rows, (1 + permutations, n)."""
    return np.vstack([wrong, rng.permuted(np.tile(wrong, (permutations, 1)), axis=1)])
