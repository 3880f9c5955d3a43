"""Table 4: how well the labels of the noisy rows are found again."""

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
        about="Accuracies are fractions of the noisy rows, by the classifier of the selected epoch. Rows with `meta` "
        "are of the method's own soft labels, as in the paper: MLaC's of the selected epoch, from its correction "
        "network, and MSLC's as the last epoch left them. The paper's incorrect rows cannot be those with a wrong "
        "label: MSLC's soft labels are right for 0.2821 of all rows, the share of right given labels, and for 0.2836 "
        "of the incorrect ones; a classifier's two accuracies differ by 0.0014 at most, as by chance. They must be "
        "incorrect by labels that no run was trained on, as if drawn anew, and of such rows the same is expected as of "
        f"all: so that column is held against ours of all rows. `{GIVEN_WRONG}` is what it was to be, ours alone. "
        "MLaC's soft labels are made from a row's label; these are compared on rows whose given label is wrong. λ of "
        f"FasTEN is not stated: 0.5 is taken. {LAMBDA_SEARCHED}",
    )
