"""Figure 6 (appendix): ρ, how sure the classifier must be before a label is corrected."""

from __future__ import annotations

from fasten.experiments.measures import ACCURACY, CORRECTED_SHARE
from fasten.experiments.runs import make_run
from fasten.experiments.spec import Cell, Experiment, Setting

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def threshold(setting: Setting) -> Experiment:
    """The share of labels that are corrected, and the accuracy, by ρ."""
    cells = []
    for rho in setting.some(THRESHOLDS):
        run = make_run(setting, "cifar10", settings=[f"threshold={rho}"])
        for row, measure in (("accuracy", ACCURACY), ("corrected labels", CORRECTED_SHARE)):
            cells.append(Cell(row, f"ρ = {rho}", measure, run=run, x=rho))
    return Experiment(
        "threshold",
        "Corrected labels and accuracy of FasTEN by the threshold ρ, CIFAR-10, symmetric 80%",
        "figure",
        tuple(cells),
        about="The paper's figure has no numbers, and its values of ρ and λ are not stated; we use λ = 0.5. "
        "A label counts as corrected if it is not the given one after the selected epoch. If the classifier is sure "
        "of the given label, nothing changes, so the share stays below 100% even if ρ lets every row through.",
        x="threshold ρ",
        y="% of rows",
    )
