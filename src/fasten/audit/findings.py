"""What is found about the given labels: T, the probability that each is wrong, the label it should be, the evidence.

It works in the same way for a run that has just been trained and for one whose probabilities are on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fasten import audit
from fasten.audit import Judged
from fasten.audit.corrections import FLOOR
from fasten.audit.evidence import Evidence, gather
from fasten.data.task import Known
from fasten.metrics import Bools, Floats, count_pairs
from fasten.statistics import proportion

# The model's estimate of a class's row of T weighs as much as this many verified rows of the class. On digits,
# Gaussians and clusters with 10 to 33 verified rows per class, T was two to eight times closer to the truth than from
# the rows alone.
MODEL_ROWS = 50
ROUNDS = 5  # of EM, at most
SLIP = 0.02  # share of labels that may be anything, so that one that T rules out does not decide alone

IMPLAUSIBLE = (
    "{share:.0%} of the labels that nobody verified count as wrong, but no row was verified at random to show whether "
    "they are: the model may have learnt too little, so look at some before you use its corrections"
)


@dataclass(frozen=True, eq=False)
class Findings:
    """What a classifier's probabilities say about the given labels, and what verified rows say about that."""

    transition: NDArray[np.float64]  # T of the given labels
    judged: Judged  # by the model alone: not calibrated, and without verdicts
    unverified: NDArray[np.bool_]  # rows without a verdict
    evidence: Evidence | None  # None: no row was verified at random

    def table(self, known: Known, class_names: Sequence[Any], verdicts: bool = True) -> pd.DataFrame:
        """The columns of labels.csv; with `verdicts`, also what was verified, and how each row was picked for it.

        `p_wrong` is calibrated if possible. If a row has a verdict, the verdict decides: what the model says about
        held-back rows is part of the evidence only, never of these columns.
        """
        settled = known.verified >= 0
        wrong = settled & (known.verified != known.given)
        found = self.calibrated(known.given)
        shown = found._replace(
            p_wrong=np.where(settled, wrong, found.p_wrong),
            suggested=np.where(settled, known.verified, found.suggested),
            p_suggested=np.where(settled, 1.0, found.p_suggested),
        )
        is_issue = np.where(settled, wrong, self._is_issue(found.p_wrong))
        rank = np.where(settled, np.where(wrong, 2.0, -1.0), self.judged.p_wrong)  # calibrated ones may tie near 1
        table = audit.make_table(known.ids, known.given, shown, is_issue, class_names, rank)
        if verdicts:
            rows = table["row"].to_numpy()
            names = np.array([*map(str, class_names), ""], object)  # the last is for -1
            table = table.assign(verified=names[known.verified[rows]], picked=_picked(known)[rows])
        return table

    def calibrated(self, given: NDArray[np.int64]) -> Judged:
        """What is shown: p_wrong as calibrated on held-back rows, and the label that is then the most probable."""
        if self.evidence is None or self.evidence.calibration.uncalibrated:
            return self.judged
        return self.judged.with_p_wrong(self.evidence.calibration.apply(self.judged.p_wrong), given)

    def corrected(self, given: NDArray[np.int64]) -> NDArray[np.int64]:
        """The labels after repair, by the model alone."""
        found = self.calibrated(given)
        return np.where(self._is_issue(found.p_wrong), found.suggested, given)

    def _is_issue(self, calibrated: Floats) -> Bools:
        choice = self.evidence.threshold if self.evidence else None
        if choice is None:
            return np.asarray(calibrated > FLOOR)
        if choice.threshold is None:
            return np.zeros(len(calibrated), bool)
        # The threshold is of p_wrong before calibration, as it was tested.
        return np.asarray((calibrated > FLOOR) & (self.judged.p_wrong > choice.threshold))

    @property
    def cautions(self) -> list[str]:
        """Warnings from verified rows, about the corrections or about these rows."""
        found = self.evidence
        if found is None:
            return []
        said = (found.doubt if found.corrections.mistaken else None, found.sample.warning if found.sample else None)
        return [sentence for sentence in said if sentence]

    @property
    def notes(self) -> list[str]:
        """Sentences for the user."""
        found = self.evidence
        if found is None:
            suspect = self.judged.p_wrong[self.unverified] > FLOOR
            return [IMPLAUSIBLE.format(share=suspect.mean())] if suspect.sum() > len(suspect) / 2 else []
        uncalibrated = found.calibration.uncalibrated
        notes = [
            f"p_wrong is not calibrated: {uncalibrated}" if uncalibrated else None,
            found.threshold.sentence if found.threshold else found.doubt,
            found.dependence.warning if found.dependence else None,
            found.sample.warning if found.sample else None,
        ]
        return [note for note in notes if note]


def find(
    probs: Floats,
    known: Known,
    min_precision: float | None = None,
    seed: int = 0,
    kept: Sequence[int] = (),
) -> Findings:
    """Audit labels by p(y | x), (n, N), and what is known about the same rows, each of which has a given label.

    Labels in the classes `kept` are not corrected, however wrong they look to a model that does not know these classes.

    >>> known = Known(("a", "b", "c"), np.array([0, 1, 1]), np.full(3, -1), *np.zeros((2, 3), bool))
    >>> found = find(np.array([[0.9, 0.1], [0.1, 0.9], [0.8, 0.2]]), known)
    >>> found.table(known, ["cat", "dog"], verdicts=False)["id"].tolist()
    ['c', 'b', 'a']
    """
    given, any_random = known.given, bool(known.picked_random.any())
    T = transition_of(probs, known)
    judged = audit.judge_examples(probs, T, given).keeping(np.isin(given, kept), given)
    unverified = known.verified < 0
    if not any_random and min_precision is None:
        return Findings(T, judged, unverified, None)
    evidence = gather(known, judged, probs, min_precision, seed)
    found = Findings(T, judged, unverified, evidence)
    num_changed = int((found.corrected(given) != given)[unverified].sum())
    return replace(found, evidence=replace(evidence, num_changed=num_changed))


def transition_of(probs: Floats, known: Known) -> NDArray[np.float64]:
    """T of the given labels: the model's estimate, combined with counts if rows were verified at random.

    EM takes a model that is less sure than right for one that needs the given label to decide, and goes on until T says
    that more labels are right than are, and puts errors into a few pairs. So counts choose the number of its rounds.
    """
    rows = known.picked_random & ~known.held
    counts = count_pairs(known.verified[rows], known.given[rows], probs.shape[1])
    estimates = enumerate(audit.given_transitions(probs, known.given, probs.shape[1], ROUNDS))
    _, T = max(estimates, key=lambda made: (_log_likelihood(made[1], counts), made[0]))
    return counted_onto(T, known) if known.picked_random.any() else T


def _log_likelihood(T: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    return float((counts * np.log((1 - SLIP) * T + SLIP / len(T))).sum())


def counted_onto(T: NDArray[np.float64], known: Known) -> NDArray[np.float64]:
    """Combine a model's estimate of T with counts from randomly verified rows that are not held back.

    A few dozen rows of a class tell less about a row of T than a model that has seen all rows, and hundreds tell more;
    a class without any keeps the model's estimate. All classes together tell how many labels are wrong, which a model
    underrates if it has memorised wrong labels, or follows errors that depend on the example.
    """
    rows = known.picked_random & ~known.held
    counts = count_pairs(known.verified[rows], known.given[rows], len(T))
    T = _as_often_wrong(T, counts)
    return np.asarray((counts + MODEL_ROWS * T) / (counts.sum(1, keepdims=True) + MODEL_ROWS))


def _as_often_wrong(T: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """T with its odds of a wrong label scaled to the counts, by one factor for all classes, if T cannot explain these.

    >>> T, counts = np.array([[0.99, 0.01], [0.01, 0.99]]), np.array([[33, 16], [17, 33]])
    >>> _as_often_wrong(T, counts).round(2).tolist()
    [[0.67, 0.33], [0.33, 0.67]]
    >>> _as_often_wrong(T, counts // 17).round(2).tolist()
    [[0.99, 0.01], [0.01, 0.99]]
    """
    n, wrong = int(counts.sum()), int(counts.sum() - counts.trace())
    expected, counted = float(counts.sum(1) @ (1 - T.diagonal())) / max(n, 1), proportion(wrong, n)
    if counted.low <= expected <= counted.high or not 0 < expected < 1:
        return T
    odds = (wrong + 0.5) / (n - wrong + 0.5) / (expected / (1 - expected))
    scaled = np.where(np.eye(len(T), dtype=bool), T, odds * T)
    return np.asarray(scaled / scaled.sum(1, keepdims=True))


def _picked(known: Known) -> NDArray[Any]:
    """How each row was picked for verification; blank for rows without a verdict."""
    ways = np.where(known.verified >= 0, np.where(known.picked_random, "random", "chosen"), "")
    return np.where(known.held, "held", ways).astype(object)
