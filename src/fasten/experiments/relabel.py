"""Table 4: how well the true labels of the noisy rows are recovered."""

from __future__ import annotations

from fasten.experiments.measures import GIVEN_WRONG, RELABEL, RELABEL_META
from fasten.experiments.paper import paper
from fasten.experiments.runs import LAMBDA_SEARCHED, search
from fasten.experiments.spec import Cell, Experiment, Setting


def relabel(setting: Setting) -> Experiment:
    """Accuracy and NLL on the noisy training rows, against their true labels."""
    cells = []
    for row, found in paper("relabel").items():
        method = row.removesuffix("-meta")
        run, *rivals = search(setting, "cifar10", method)
        for column, measure in (RELABEL if row == method else RELABEL_META[method]).items():
            kind, rows = column.lower().split(", ")
            known = None if rows == GIVEN_WRONG else found[kind][rows]
            cells.append(Cell(row, column, measure, known, run=run, rivals=tuple(rivals)))
    return Experiment(
        "relabel",
        "Label correction on CIFAR-10, symmetric 80%: the noisy rows against their true labels",
        "table",
        tuple(cells),
        about="Accuracies are fractions of the noisy rows, for the classifier of the selected epoch. Table rows with "
        "`meta` show the method's own soft labels, as in the paper: MLaC's are from its correction network at the "
        "selected epoch, MSLC's are those after the last epoch. The paper's incorrect rows cannot be those with a "
        "wrong label: MSLC's soft labels are right for 0.2821 of all rows, the share of right given labels, and for "
        "0.2836 of the incorrect ones; a classifier's two accuracies differ by 0.0014 at most, as by chance. They must "
        "be incorrect by labels that no run was trained on, as if drawn anew. Such rows should give the same as all "
        f"rows, so we compare that column with ours for all rows. `{GIVEN_WRONG}` is what it was meant to show; only "
        "we have it. MLaC's soft labels are made from a row's label, so they are compared on rows whose given label is "
        f"wrong. The paper does not state λ of FasTEN; we use 0.5. {LAMBDA_SEARCHED}",
    )
