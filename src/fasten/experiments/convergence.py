"""Figure 4: how far T̂ is from T, update by update."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fasten.experiments.paper import paper
from fasten.experiments.runs import make_run
from fasten.experiments.spec import Curve, Experiment, Setting
from fasten.records import Record

UPDATES = 5000  # as far as the paper's figure goes
UNION = ("glc",)  # methods whose updates with T̂ go over noisy and clean rows together


def convergence(setting: Setting) -> Experiment:
    """χ² of the estimates of FasTEN without label correction, GLC and MLoC."""
    curves = [
        Curve(method, make_run(setting, "cifar10", method), chi_square_points, tuple((x, y) for x, y in points))
        for method, points in paper("convergence").items()
    ]
    return Experiment(
        "convergence",
        "Pearson's χ² between T and its estimate, update by update",
        "figure",
        curves=tuple(curves),
        about="The paper states neither data set, λ nor normalisation, and prints no numbers: compare the shapes, not "
        "the heights. We use CIFAR-10, symmetric 80%, λ = 0.5, and χ² = 1/N Σ (T̂ − T)² / T. Updates are counted from "
        "the first that has a T̂, after GLC's first network and MLoC's warm-up. At the paper's scale, our values are "
        "means over ten updates, shown at the last of them. The paper's FasTEN line is the median of 500 updates, from "
        "the authors' poster.",
        x="update",
        y="χ²",
    )


def chi_square_points(record: Record) -> list[tuple[float, float]]:
    """χ² by the number of the last update of its group."""
    return [(x, y) for x, y in _points(record) if x <= UPDATES]


def _points(record: Record) -> Iterator[tuple[float, float]]:
    run, data = record["run"], record["data"]
    rows = data["rows_noisy"] + (data["rows_clean"] if run["method"] in UNION else 0)
    updates, done = math.ceil(rows / run["recipe"]["batch_size"]), 0
    for row in record["epochs"]:
        values = row.get("chi2")
        if values is None:
            continue
        size, longer = divmod(updates, len(values))  # the first groups have one update more
        for number, value in enumerate(values, 1):
            yield float(done + number * size + min(number, longer)), value
        done += updates
