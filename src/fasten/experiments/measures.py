"""The numbers that the paper's tables hold, each as it is read from a record, and how near is near enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fasten.experiments.spec import Measure
from fasten.records import Record

Reader = Callable[[Record], float | None]


def reader(*path: str, scale: float = 1.0) -> Reader:
    """What reads one number of a record; None where the run is not finished, or has no such number.

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
    """Percent of the noisy rows whose label is not the given one, after the selected epoch."""
    if record["result"] is None:
        return None
    epoch = record["result"]["best_epoch"]
    return next(
        (reader("corrected_fraction", scale=100)(row) for row in record["epochs"] if row["epoch"] == epoch), None
    )


def _relabel(part: str) -> dict[str, Measure]:
    """Of all noisy rows, and of those with a wrong label; by the names of the table's columns."""
    measures = {}
    for rows, end in (("overall", ""), ("incorrect", "_wrong")):
        read = reader("evaluation", part, f"accuracy{end}")
        measures[f"accuracy, {rows}"] = Measure(read, "relabel accuracy", step=0.01, digits=4)
    for rows, end in (("overall", ""), ("incorrect", "_wrong")):
        read = reader("evaluation", part, f"nll{end}")
        measures[f"NLL, {rows}"] = Measure(read, "relabel NLL", share=0.05, lower_is_better=True, digits=4)
    return measures


def _detection(score: str) -> dict[str, Measure]:
    read = {name: reader("evaluation", "detection", score, name.lower()) for name in ("AUROC", "AUPRC")}
    return {name: Measure(of, name, step=0.01, digits=4) for name, of in read.items()}


ACCURACY = Measure(reader("result", "test_accuracy", scale=100), "test accuracy (%)", step=0.5)
CORRECTED_SHARE = Measure(corrected_share, "corrected labels (%)", digits=1)
TIME_RATIO = Measure(lambda record: None, "time, FasTEN's being 1", share=0.05, lower_is_better=True)
HOURS = Measure(lambda record: None, "hours", share=0.05, lower_is_better=True)

RELABEL = _relabel("relabel")  # by the classifier
RELABEL_META = _relabel("relabel_corrected")  # by the soft labels that a method keeps

DETECTION = _detection("minus_p_given")  # by the classifier
DETECTION_META = {
    "l2rw": _detection("minus_weight"),
    "deep-knn": _detection("dropped"),
    "mlac": _detection("minus_p_given_corrected"),
}
