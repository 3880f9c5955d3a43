"""Table 7 (appendix): is it only that clean rows are seen more often?"""

from __future__ import annotations

from fasten.experiments.paper import paper
from fasten.experiments.runs import LAMBDA_SEARCHED, method_table
from fasten.experiments.spec import Experiment, Setting


def oversampling(setting: Setting) -> Experiment:
    """FasTEN without correction against cross-entropy on the very same batches."""
    return Experiment(
        "oversampling",
        "Test accuracy (%): naive oversampling of the clean rows, and FasTEN without label correction",
        "table",
        method_table(setting, paper("oversampling")),
        about=f"{LAMBDA_SEARCHED} One number a cell, no intervals.",
    )
