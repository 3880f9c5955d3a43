"""Which labels are wrong, and what they should be: the T of the given labels, the posterior, the tables on disk.

p(y | x) are a classifier's probabilities (`probs`, one row per example), ȳ is the label as `given`, N the number of
classes, π the prior of the true classes. T[i, j] = P(ȳ = j | y = i) describes the labels as given, unlike the T̂ of a
training step, which describes labels that are already corrected.
"""

import csv
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fasten.cells import escaped
from fasten.files import replaced, write_text
from fasten.metrics import Bools, Floats, Ints, transition_from_counts

# Rows worked on at a time: a few megabytes in float64 at 100 classes, so they stay in the cache.
CHUNK = 4096
LINES = 65_536  # lines of labels.csv made at a time

# A product of probabilities below this has lost its digits to underflow, so it counts as zero.
VANISHED = float(np.finfo(np.float64).tiny)


def given_transitions(probs: Floats, given: Ints, num_classes: int, rounds: int) -> Iterator[NDArray[np.float64]]:
    """Yield the plain estimate of T from a classifier's probabilities, then the one after each round of EM.

    The plain estimate T[i, j] = Σₙ p(i | xₙ) 1[ȳₙ = j] / Σₙ p(i | xₙ) mixes the rows of T to the extent that the
    classifier is unsure; EM undoes this. A class with no mass gets its row of the identity.

    >>> plain, once = given_transitions(np.eye(2)[[0, 0, 1, 1]], np.array([0, 1, 1, 1]), 2, rounds=1)
    >>> plain.tolist(), once.tolist()
    ([[0.5, 0.5], [0.0, 1.0]], [[0.5, 0.5], [0.0, 1.0]])
    """
    assert given.min(initial=0) >= 0
    assert given.max(initial=0) < num_classes
    # With a likelihood of ones, q = p: this gives the plain estimate, and π⁰, the prior that is implicit in p.
    counts = _expected_counts(probs, given, np.ones((num_classes, num_classes)))
    prior_rows = counts.sum(1, keepdims=True)
    yield transition_from_counts(counts)
    for _ in range(rounds):
        # (π_y / π⁰_y) T[y, ȳ]: summed over ȳ, counts are π times the number of rows, which cancels in the ratio.
        likelihood = np.divide(counts, prior_rows, out=np.zeros_like(counts), where=prior_rows > 0)
        counts = _expected_counts(probs, given, likelihood)
        yield transition_from_counts(counts)


def posterior(probs: Floats, T: Floats, given: Ints) -> Floats:
    """P(y | x, ȳ) ∝ T[y, ȳ] p(y | x), each row summing to one; p(y | x) in rows whose products all vanish.

    >>> T = np.array([[0.75, 0.25], [0.0, 1.0]])
    >>> posterior(np.array([[0.8, 0.2], [0.8, 0.2]]), T, np.array([0, 1])).round(3).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    columns = np.asarray(T, np.float64).T
    out = np.empty(probs.shape, np.result_type(probs.dtype, np.float32))  # no wider than p: it may be large
    for start in range(0, len(probs), CHUNK):
        rows = slice(start, start + CHUNK)
        out[rows] = _bayes(probs[rows], columns[given[rows]])
    return out


class Judged(NamedTuple):
    """For each row: the probability that its given label is wrong, the most probable label, and the best other one.

    In a tie, `suggested` is the given label.
    """

    p_wrong: NDArray[np.float64]
    suggested: NDArray[np.int64]
    p_suggested: NDArray[np.float64]
    other: NDArray[np.int64]
    p_other: NDArray[np.float64]

    def keeping(self, rows: Bools, given: Ints) -> "Judged":
        """Return a copy that suggests no other label for `rows`, so that they keep their given label.

        >>> found = judge(np.array([[0.2, 0.8]]), np.array([0])).keeping(np.array([True]), np.array([0]))
        >>> found.suggested.tolist(), found.with_p_wrong(np.array([0.9]), np.array([0])).suggested.tolist()
        ([0], [0])
        """
        return self._replace(
            suggested=np.where(rows, given, self.suggested),
            p_suggested=np.where(rows, 1 - self.p_wrong, self.p_suggested),
            p_other=np.where(rows, 0.0, self.p_other),
        )

    def with_p_wrong(self, p_wrong: Floats, given: Ints) -> "Judged":
        """Return a copy with new values of p_wrong, divided among the other labels in the same proportions as before.

        >>> before = judge(np.array([[0.6, 0.4, 0.0], [0.2, 0.4, 0.4]]), np.array([0, 0]))
        >>> before.with_p_wrong(np.array([0.8, 0.1]), np.array([0, 0])).suggested.tolist()
        [1, 0]
        """
        now = p_wrong.astype(np.float64)
        scale = np.divide(now, self.p_wrong, out=np.ones_like(now), where=self.p_wrong > 0)
        # If p_wrong is tiny, rounding may have left it smaller than p_other.
        return _choose(1 - now, np.minimum(self.p_other * scale, now), self.other, given)


def judge(post: Floats, given: Ints) -> Judged:
    """Judge the given labels by a posterior.

    >>> judge(np.array([[0.25, 0.75], [0.5, 0.5]]), np.array([0, 1])).suggested.tolist()
    [1, 1]
    """
    rows = np.arange(len(given))
    others = post.copy()
    others[rows, given] = -1
    other = others.argmax(1)
    p_given, p_other = (post[rows, label].astype(np.float64) for label in (given, other))
    return _choose(p_given, p_other, other, given)


def _choose(
    p_given: NDArray[np.float64], p_other: NDArray[np.float64], other: NDArray[np.int64], given: Ints
) -> Judged:
    keep = p_given >= p_other
    # A rounded probability may exceed one by a hair.
    p_wrong = np.clip(1 - p_given, 0, 1)
    return Judged(p_wrong, np.where(keep, given, other), np.where(keep, p_given, p_other), other, p_other)


def judge_examples(probs: Floats, T: Floats, given: Ints) -> Judged:
    """Judge the given labels by p(y | x) and T, without holding the posterior of all rows in memory."""
    starts = range(0, len(probs), CHUNK) or (0,)
    slices = [slice(start, start + CHUNK) for start in starts]
    parts = [judge(posterior(probs[part], T, given[part]), given[part]) for part in slices]
    return Judged(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def make_table(
    ids: Sequence[Any] | NDArray[Any],
    given: Ints,
    judged: Judged,
    is_issue: Bools,
    class_names: Sequence[Any],
    rank: Floats | None = None,
) -> pd.DataFrame:
    """Make the columns of labels.csv, most suspect row first: sorted by `rank`, by default p_wrong, highest first.

    `suggested` is the most probable label; in a tie, the given one. A row can be an issue even if its given label is
    still the most probable of three or more, as with (0.4, 0.3, 0.3); `corrected` then keeps the given label.

    >>> given = np.array([0, 0])
    >>> judged = judge(np.array([[1.0, 0.0], [0.25, 0.75]]), given)
    >>> table = make_table(["a", "b"], given, judged, judged.p_wrong > 0.5, ["cat", "dog"])
    >>> table[["row", "id", "given", "p_wrong", "corrected"]].values.tolist()
    [[1, 'b', 'cat', 0.75, 'dog'], [0, 'a', 'cat', 0.0, 'cat']]
    """
    names = pd.Index(list(class_names))
    table = pd.DataFrame(
        {
            "row": np.arange(len(given)),
            "id": list(ids),
            "given": names.take(given),
            "suggested": names.take(judged.suggested),
            "p_wrong": judged.p_wrong,
            "p_suggested": judged.p_suggested,
            "is_issue": is_issue,
            "corrected": names.take(np.where(is_issue, judged.suggested, given)),
        }
    )
    return table.iloc[np.argsort(-(judged.p_wrong if rank is None else rank), kind="stable")].reset_index(drop=True)


def write_labels(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a table from `make_table` as labels.csv, atomically.

    >>> import pathlib, tempfile
    >>> judged = judge(np.array([[0.25, 0.75]]), np.array([0]))
    >>> table = make_table(["=1+1"], np.array([0]), judged, np.array([True]), ["cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_labels(table, pathlib.Path(folder) / "labels.csv")
    ...     print((pathlib.Path(folder) / "labels.csv").read_text().splitlines()[1])
    0,'=1+1,cat,dog,0.75,0.75,true,dog
    """
    texts = [name for name in ("id", "given", "suggested", "corrected", "verified") if name in table]
    with replaced(path) as file:
        for start in range(0, len(table), LINES) or (0,):
            part = table.iloc[start : start + LINES]
            text = {name: part[name].map(escaped) for name in texts}
            is_issue = part["is_issue"].map({True: "true", False: "false"})
            file.write(table_csv(part.assign(**text, is_issue=is_issue), header=start == 0).encode("utf-8"))


def write_transition(T: Floats, class_names: Sequence[Any], path: str | os.PathLike[str]) -> None:
    """Write T as transition.csv, atomically: a row per true class, a column per given one, both with their names.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "transition.csv"
    ...     write_transition(np.array([[0.75, 0.25], [0.0, 1.0]]), ["cat", "dog"], path)
    ...     path.read_text().splitlines()
    ['true,cat,dog', 'cat,0.75,0.25', 'dog,0,1']
    """
    names = [escaped(str(name)) for name in class_names]
    table = pd.DataFrame(np.asarray(T, np.float64), columns=names)
    table.insert(0, "true", names, allow_duplicates=True)  # a class may be called "true"
    write_text(path, table_csv(table))


def _expected_counts(probs: Floats, given: Ints, likelihood: Floats) -> NDArray[np.float64]:
    """Σₙ q(i | xₙ, ȳₙ) 1[ȳₙ = j], with q ∝ likelihood[i, ȳₙ] p(i | xₙ); rows are read once, in order."""
    counts, columns = np.zeros(likelihood.shape), np.ascontiguousarray(likelihood.T)
    for start in range(0, len(probs), CHUNK):
        order = np.argsort(given[start : start + CHUNK], kind="stable")
        labels = given[start : start + CHUNK][order]
        q = _bayes(probs[start : start + CHUNK][order], columns[labels])
        present, first = np.unique(labels, return_index=True)
        counts[:, present] += np.add.reduceat(q, first, axis=0).T
    return counts


def _bayes(p: Floats, likelihood: Floats) -> NDArray[np.float64]:
    """Rows ∝ likelihood · p that sum to one, in float64; p itself in rows whose products all vanish."""
    p = p.astype(np.float64)
    q = p * likelihood
    total = q.sum(1, keepdims=True)
    if total.min(initial=1) < VANISHED:
        q = np.where(total < VANISHED, p, q)
        total = q.sum(1, keepdims=True)
    q /= total
    return q


def table_csv(table: pd.DataFrame, header: bool = True) -> str:
    """A table as CSV, with numbers to six significant digits.

    >>> table_csv(pd.DataFrame({"id": ["a"], "p": [1 / 3]}))
    'id,p\\na,0.333333\\n'
    """
    how: Any = {"index": False, "header": header, "float_format": "%.6g", "lineterminator": "\n"}
    text: str = table.to_csv(**how)
    # Python before 3.13 leaves a lone carriage return unquoted, and readers end the row there.
    return text if "\r" not in text else table.to_csv(**how, quoting=csv.QUOTE_NONNUMERIC)
