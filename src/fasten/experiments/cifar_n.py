"""Table 6 (appendix): accuracy on CIFAR-10N and CIFAR-100N, which were labelled by people."""

from __future__ import annotations

from fasten.experiments.measures import ACCURACY
from fasten.experiments.paper import paper
from fasten.experiments.runs import DATA_NAMES, make_run
from fasten.experiments.spec import Cell, Experiment, Setting


def cifar_n(setting: Setting) -> Experiment:
    """Real noise on the images of CIFAR."""
    cells = [
        Cell(method, DATA_NAMES[data], ACCURACY, number, run=make_run(setting, data, method))
        for method, numbers in paper("cifar-n").items()
        for data, number in numbers.items()
    ]
    return Experiment(
        "cifar-n",
        "Test accuracy (%) on CIFAR-N, labels given by people",
        "table",
        tuple(cells),
        about="The paper does not say which label set of CIFAR-10N it uses, nor whether it holds out 5,000 images for "
        "validation. We use the worst labels, about 40% wrong, whose level fits best, and the split of table 1. The "
        "paper gives one number per cell, without intervals.",
    )
