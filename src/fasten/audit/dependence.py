"""Whether errors depend on the example: then one T for all examples is too simple."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fasten.metrics import Bools, Floats, Ints, aurocs
from fasten.seeds import numpy_stream
from fasten.statistics import LEVEL

# A few features that all classes share, so that some dozens of rows will do.
MIN_EACH = 10  # wrong and right rows
NUM_OTHERS = 3  # of the probabilities of other classes, highest first
FOLDS = 10
RIDGE = 1.0  # of features with unit variance
ROUNDING = 1e-12  # sums in another order
MOST_ROWS = 5_000  # that are looked at: twelve times as many, twelve times as long, moved the AUROC by 0.003


@dataclass(frozen=True)
class InstanceDependence:
    """How well wrong labels are told from right ones within their class, and how often chance does it as well."""

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
            f"errors look instance-dependent: within a class, wrong labels can be told from the example (AUROC "
            f"{self.auroc:.2f}, p = {self.p:.3f}, {self.n} verified rows), so one T for all examples is too simple"
        )


def instance_dependence(
    probs: Floats, given: Ints, truth: Ints, seed: int, permutations: int = 499
) -> InstanceDependence | None:
    """Whether errors within a true class can be predicted from the example, as a model sees it.

    A linear rule, the same for all classes, tells wrong labels from right ones by the ranks, within their class, of the
    true class's probability and of the highest others. Its AUROC is over pairs of one class, on rows it was not fitted
    to; p comes from exchanging wrong and right within each class. None with fewer than ten of either; of very many rows
    some at random are looked at, the rarer kind first. The probabilities must not know the given label: a network
    trained on it may have learnt it by heart, and the test would find that. Rows of the clean set will do, of which
    training saw the verified label only.

    >>> probs, wrong = np.linspace([1, 0], [0.5, 0.5], 40), np.arange(40) >= 30
    >>> found = instance_dependence(probs, wrong.astype(int), np.zeros(40, int), seed=0)
    >>> found.auroc, found.p
    (1.0, 0.002)
    """
    wrong = given != truth
    known = _looked_at((given >= 0) & (truth >= 0), wrong, seed)
    classes = [np.flatnonzero(known & (truth == c)) for c in np.unique(truth[known])]
    classes = [rows for rows in classes if 0 < wrong[rows].sum() < len(rows)]  # else there is nothing to tell apart
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
    p = float((found >= found[0] - ROUNDING).mean())  # the rows as they are count among the exchanges
    return InstanceDependence(len(rows), num_wrong, len(classes), float(found[0]), p)


def _looked_at(known: Bools, wrong: Bools, seed: int) -> Bools:
    """At most `MOST_ROWS` of the known rows, at random: wrong and right ones in halves, more where few are other."""
    order = numpy_stream(seed, "rows of dependence").permutation(np.flatnonzero(known))
    both, kept = (order[wrong[order]], order[~wrong[order]]), np.zeros_like(known)
    for mine, others in (both, both[::-1]):
        kept[mine[: max(MOST_ROWS // 2, MOST_ROWS - len(others))]] = True
    return kept


def _relative(probs: Floats, own: int) -> Floats:
    """The probability of a class, then those of the others, highest first, as far as `NUM_OTHERS`."""
    others = -np.sort(-np.delete(probs, own, axis=1), axis=1)
    return np.column_stack([probs[:, own], others[:, :NUM_OTHERS]])


def _ranks(features: Floats) -> NDArray[np.float64]:
    """Each column as ranks with mean 0 and variance 1, zeros where it is constant."""
    out = np.empty(features.shape)
    for j, column in enumerate(features.T):
        in_order = np.sort(column)
        rank = np.searchsorted(in_order, column) + np.searchsorted(in_order, column, side="right")
        out[:, j] = rank - rank.mean()
    spread = out.std(0)
    return np.asarray(out / np.where(spread > 0, spread, 1))


def _out_of_fold(x: NDArray[np.float64], y: NDArray[np.float64], fold: Ints) -> NDArray[np.float64]:
    """Predictions of each column of y by ridge regression on the other folds: one solution for all columns."""
    guesses = np.empty(y.shape)
    for f in range(FOLDS):
        rest = x[fold != f]
        weights = np.linalg.solve(rest.T @ rest + RIDGE * np.eye(x.shape[1]), rest.T @ y[fold != f])
        guesses[fold == f] = x[fold == f] @ weights
    return guesses


def _exchanged(wrong: Bools, permutations: int, rng: np.random.Generator) -> Bools:
    """Wrong and right as they are, and below that exchanged among the rows, (1 + permutations, n)."""
    return np.vstack([wrong, rng.permuted(np.tile(wrong, (permutations, 1)), axis=1)])
