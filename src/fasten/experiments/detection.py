"""Table 10 (appendix): how well wrong labels are detected."""

from __future__ import annotations

from fasten.experiments.measures import DETECTION, DETECTION_META
from fasten.experiments.paper import paper
from fasten.experiments.runs import make_run
from fasten.experiments.spec import Cell, Experiment, Setting


def detection(setting: Setting) -> Experiment:
    """AUROC and AUPRC of finding the noisy rows with a wrong label."""
    cells = []
    for row, found in paper("detection").items():
        method = row.removesuffix("-meta")
        run = make_run(setting, "cifar10", method)
        for column, measure in (DETECTION if row == method else DETECTION_META[method]).items():
            cells.append(Cell(row, column, measure, found[column.lower()], run=run))
    return Experiment(
        "detection",
        "Detection of wrong labels on CIFAR-10, symmetric 80%",
        "table",
        tuple(cells),
        about="A training row is suspect if the classifier finds its given label improbable. Table rows with `meta` "
        "use what the method itself says instead: L2RW's weights, Deep kNN's filter, MLaC's correction network at the "
        "selected epoch; the weights are from each training row's last visit. Chance gives an AUROC of 0.5 and an "
        "AUPRC of 0.72. The paper's text also promises the weights of MW-Net and MSLC, but its table does not have "
        "them. The paper does not state λ of FasTEN; we use 0.5.",
    )
