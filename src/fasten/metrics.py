"""The metrics of a run: pure functions on arrays, in float64; None for a number that does not exist.

N is the number of classes. `given` is the label that a row came with, `truth` the hidden right one, negative if
nobody knows it: such rows are left out. T[i, j] = P(given = j | true = i), and T̂ (`T_hat`) is an estimate of it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]
Scores = dict[str, float | None]

# A float32 softmax rounds smaller values to zero. With this floor, a mistake made with certainty costs 87 nats, not
# infinitely many.
LOG_FLOOR = float(np.finfo(np.float32).tiny)

CHUNK = 65_536  # rows of probabilities worked on at a time
RANKED = 2**20  # scores ranked at a time

# A class with fewer expected rows than this counts as empty: what is left is float32 rounding, not evidence.
MIN_ROWS = 1e-6


def accuracy(probs_or_pred: Floats | Ints, labels: Ints) -> float | None:
    """Share of rows whose most probable class, or whose predicted class if one-dimensional, is the label.

    >>> accuracy(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0, 1]))
    0.5
    """
    return _mean(_predictions(probs_or_pred) == labels)


def nll(probs: Floats, labels: Ints) -> float | None:
    """Mean negative log-likelihood of the labels, each probability at least `LOG_FLOOR`.

    >>> round(nll(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1])), 4)
    0.4904
    """
    return _mean(_row_nll(probs, labels))


def auroc(score: Floats | Ints, positive: Bools) -> float | None:
    """P(a positive row scores above a negative one), ties counting half; None with one class or a NaN score.

    >>> auroc(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False]))
    0.875
    """
    pos, neg = _tallies(score, positive)
    if not pos.sum() or not neg.sum() or np.isnan(score).any():
        return None
    below = neg.cumsum() - neg
    return float((pos * (below + neg / 2)).sum() / (pos.sum() * neg.sum()))


def aurocs(scores: Floats, positive: Bools) -> NDArray[np.float64]:
    """The AUROC of each line of (m, n), all at once; a line must have both kinds of rows and no NaN.

    >>> aurocs(np.array([[0.9, 0.4, 0.4, 0.1]] * 2), np.array([[1, 1, 0, 0], [0, 1, 0, 1]]) > 0).tolist()
    [0.875, 0.125]
    """
    k, n = positive.sum(1), positive.shape[1]
    step = max(1, RANKED // n)  # ranks take several times the memory of the scores
    parts = [slice(start, start + step) for start in range(0, len(scores), step)]
    ranks = np.concatenate([_sum_of_ranks(scores[part], positive[part]) for part in parts])
    return np.asarray((ranks - k * (k + 1) / 2) / (k * (n - k)))


def auprc(score: Floats | Ints, positive: Bools) -> float | None:
    """Average precision: Σ (Rₖ − Rₖ₋₁) Pₖ over distinct scores, from the top; None without positives or with a NaN.

    >>> round(auprc(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False])), 4)
    0.8333
    """
    pos, neg = (tally[::-1] for tally in _tallies(score, positive))
    if not pos.sum() or np.isnan(score).any():
        return None
    precision = pos.cumsum() / (pos + neg).cumsum()
    return float((pos * precision).sum() / pos.sum())


def transition_from_counts(counts: Floats | Ints) -> NDArray[np.float64]:
    """T from (expected) counts of rows, by true and given class; the identity's row if a class has none.

    >>> transition_from_counts(np.array([[3, 1], [0, 0]])).tolist()
    [[0.75, 0.25], [0.0, 1.0]]
    """
    rows = counts.sum(1, keepdims=True, dtype=np.float64)
    return np.where(rows < MIN_ROWS, np.eye(len(counts)), counts / np.maximum(rows, MIN_ROWS))


def count_pairs(truth: Ints, labels: Ints, num_classes: int) -> NDArray[np.int64]:
    """Count rows by their two labels, (N, N); rows with an unknown (negative) label are left out.

    >>> count_pairs(np.array([0, 0, 1, -1]), np.array([0, 1, 1, 0]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    assert max(truth.max(initial=0), labels.max(initial=0)) < num_classes
    known = (truth >= 0) & (labels >= 0)
    cells = truth[known].astype(np.int64) * num_classes + labels[known]
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def counted_transition(truth: Ints, labels: Ints, num_classes: int) -> NDArray[np.float64]:
    """T counted from the rows whose two labels are both known.

    >>> counted_transition(np.array([0, 0, 1, -1]), np.array([0, 1, 1, 0]), 2).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    return transition_from_counts(count_pairs(truth, labels, num_classes))


def smallest_singular(T: Floats) -> float | None:
    """The smallest singular value: 1 for the identity, 0 if the noise makes classes the same; None with a NaN.

    >>> smallest_singular(np.array([[0.75, 0.25], [0.25, 0.75]]))
    0.5
    """
    return float(np.linalg.svd(T, compute_uv=False)[-1]) if np.isfinite(T).all() else None


def mean_diagonal(T: Floats) -> float:
    """Mean over the classes of P(given = true | true), and over the matrices of a stack (U, N, N).

    >>> mean_diagonal(np.array([[0.5, 0.5], [0.0, 1.0]]))
    0.75
    """
    return float(np.diagonal(T, axis1=-2, axis2=-1).mean(dtype=np.float64))


def chi_square(T_hat: Floats, T: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """χ² of T̂ against T where T > 0, and T̂'s mass where T = 0, both per class: (U,) for a stack (U, N, N).

    >>> chi2, off = chi_square(np.array([[0.4, 0.6], [0.1, 0.9]]), np.array([[0.5, 0.5], [0.0, 1.0]]))
    >>> round(float(chi2), 4), round(float(off), 4)
    (0.025, 0.05)
    """
    T_hat, T = np.asarray(T_hat, np.float64), np.asarray(T, np.float64)
    inverse = np.divide(1, T, out=np.zeros_like(T), where=T > 0)
    chi2 = ((T_hat - T) ** 2 * inverse).sum((-2, -1)) / len(T)  # χ² = (1/N) Σ (T̂ − T)² / T over T > 0
    off_support = (T_hat * (T == 0)).sum((-2, -1)) / len(T)
    return chi2, off_support


def relabel_scores(probs: Floats, truth: Ints | None, given: Ints, rows: Ints | None = None) -> Scores:
    """Accuracy and NLL of the model's labels against the truth, over all rows and over those given a wrong label.

    `rows` are the places of these rows in `probs`, by default all; `probs` is read a part at a time.

    >>> relabel_scores(np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([1, 0]), np.array([0, 0]))["accuracy_wrong"]
    1.0
    """
    truth = _or_unknown(truth, given)
    known, wrong = truth >= 0, (truth >= 0) & (given != truth)
    right, row_nll = np.zeros(len(truth), bool), np.zeros(len(truth))
    for start in range(0, len(truth), CHUNK):
        part = slice(start, start + CHUNK)
        p = probs[part if rows is None else rows[part]]
        right[part], row_nll[part] = _predictions(p) == truth[part], _row_nll(p, truth[part])
    return {
        "accuracy": _mean(right[known]),
        "nll": _mean(row_nll[known]),
        "accuracy_wrong": _mean(right[wrong]),
        "nll_wrong": _mean(row_nll[wrong]),
    }


def detection_scores(score: Floats | Ints, truth: Ints | None, given: Ints) -> Scores:
    """AUROC and AUPRC of finding the rows given a wrong label; `score` is higher for more suspect rows.

    >>> detection_scores(np.array([0.9, 0.2, 0.1]), np.array([1, 0, 1]), np.array([0, 0, 1]))
    {'auroc': 1.0, 'auprc': 1.0}
    """
    truth = _or_unknown(truth, given)
    known = truth >= 0
    score, wrong = score[known], (given != truth)[known]
    return {"auroc": auroc(score, wrong), "auprc": auprc(score, wrong)}


def _predictions(probs_or_pred: Floats | Ints) -> Ints:
    return probs_or_pred.argmax(1) if probs_or_pred.ndim == 2 else probs_or_pred.astype(np.int64)


def _row_nll(probs: Floats, labels: Ints) -> NDArray[np.float64]:
    p = probs[np.arange(len(labels)), labels].astype(np.float64)
    return -np.log(np.maximum(p, LOG_FLOOR))


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean(dtype=np.float64)) if len(values) else None


def _or_unknown(truth: Ints | None, given: Ints) -> Ints:
    return np.full(len(given), -1) if truth is None else truth


def _tallies(score: Floats | Ints, positive: Bools) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Numbers of positive and of negative rows at each distinct score, lowest first; as floats, which are exact."""
    values, place = np.unique(score, return_inverse=True)
    pos, neg = (np.bincount(place[rows], minlength=len(values)) for rows in (positive, ~positive))
    return pos.astype(np.float64), neg.astype(np.float64)


def _sum_of_ranks(scores: Floats, positive: Bools) -> NDArray[np.float64]:
    """For each line, the sum of the ranks of its positive rows, from 1; equal scores share the mean of their ranks."""
    order = scores.argsort(1)
    in_order, rank = np.take_along_axis(scores, order, 1), np.arange(1, scores.shape[1] + 1)
    differs, end = in_order[:, 1:] != in_order[:, :-1], np.ones((len(scores), 1), bool)
    first = np.maximum.accumulate(np.where(np.hstack([end, differs]), rank, 1), axis=1)
    last = np.minimum.accumulate(np.where(np.hstack([differs, end]), rank, len(rank))[:, ::-1], axis=1)[:, ::-1]
    return np.asarray((first + last).sum(1, where=np.take_along_axis(positive, order, 1)) / 2)
