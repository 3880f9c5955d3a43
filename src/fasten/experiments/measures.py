"""The numbers of the paper's tables: how each is read from a record, and how close to the paper's it must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fasten.experiments.spec import Measure
from fasten.records import Record

Reader = Callable[[Record], float | None]
GIVEN_WRONG = "given label wrong"  # what the paper's column of incorrect rows was meant to show


def reader(*path: str, scale: float = 1.0) -> Reader:
    """A function that reads one number of a record; it gives None if the run has not finished or has no such number.

    >>> reader("result", "test_accuracy", scale=100)({"result": {"test_accuracy": 0.5}})
    50.0
    """

    def read(record: Record) -> float | None:
        value: Any = record
        for name in path:
            value = None if value is None else value.get(name)
        return None if value is None else scale * float(value)

    return read


def corrected_share(record: Record) -> float | None:
    """Percentage of the noisy rows whose label is not the given one, after the selected epoch."""
    if record["result"] is None:
        return None
    epoch = record["result"]["best_epoch"]
    return next(
        (reader("corrected_fraction", scale=100)(row) for row in record["epochs"] if row["epoch"] == epoch), None
    )


def _relabel(part: str, incorrect: str = "") -> dict[str, Measure]:
    """By the names of the table's columns: for all noisy rows, for those that the paper calls incorrect, and for those
    whose given label is wrong. The paper's are incorrect by labels that were drawn anew, which are unrelated to what
    was learnt. So all rows stand for them, unless `incorrect`, the end of another score's name, says otherwise."""
    measures = {}
    rows = {"overall": "", "incorrect": incorrect, GIVEN_WRONG: "_wrong"}
    for name, end in rows.items():
        read = reader("evaluation", part, f"accuracy{end}")
        measures[f"accuracy, {name}"] = Measure(read, "relabel accuracy", step=0.01, digits=4)
    for name, end in rows.items():
        read = reader("evaluation", part, f"nll{end}")
        measures[f"NLL, {name}"] = Measure(read, "relabel NLL", share=0.05, lower_is_better=True, digits=4)
    return measures


def _detection(score: str) -> dict[str, Measure]:
    read = {name: reader("evaluation", "detection", score, name.lower()) for name in ("AUROC", "AUPRC")}
    return {name: Measure(of, name, step=0.01, digits=4) for name, of in read.items()}


ACCURACY = Measure(reader("result", "test_accuracy", scale=100), "test accuracy (%)", step=0.5)
CORRECTED_SHARE = Measure(corrected_share, "corrected labels (%)", digits=1)
TIME_RATIO = Measure(lambda record: None, "time relative to FasTEN", share=0.05, lower_is_better=True)
HOURS = Measure(lambda record: None, "hours", share=0.05, lower_is_better=True)

RELABEL = _relabel("relabel")  # by the classifier
RELABEL_META = {  # by a method's soft labels; MLaC makes them from a row's label, so a new label would change them
    "mslc": _relabel("relabel_corrected"),
    "mlac": _relabel("relabel_corrected", "_wrong"),
}

DETECTION = _detection("minus_p_given")  # by the classifier
DETECTION_META = {
    "l2rw": _detection("minus_weight"),
    "deep-knn": _detection("dropped"),
    "mlac": _detection("minus_p_given_corrected"),
}
