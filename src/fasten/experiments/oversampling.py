"""Table 7 (appendix): does FasTEN gain only because clean rows are seen more often?"""

from __future__ import annotations

from fasten.experiments.paper import paper
from fasten.experiments.runs import LAMBDA_SEARCHED, method_table
from fasten.experiments.spec import Experiment, Setting


def oversampling(setting: Setting) -> Experiment:
    """FasTEN without correction compared with cross-entropy on the same batches."""
    return Experiment(
        "oversampling",
        "Test accuracy (%): naive oversampling of the clean rows, and FasTEN without label correction",
        "table",
        method_table(setting, paper("oversampling")),
        about=f"{LAMBDA_SEARCHED} The paper gives one number per cell, without intervals.",
    )
