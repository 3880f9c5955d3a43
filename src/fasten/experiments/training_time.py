"""Table 3: how long a whole run takes, relative to FasTEN."""

from __future__ import annotations

from fasten.experiments.measures import HOURS, TIME_RATIO
from fasten.experiments.paper import paper
from fasten.experiments.spec import Cell, Experiment, Setting

RATIO = "time ratio"


def training_time(setting: Setting) -> Experiment:
    """Ratios, which can be compared between machines, and the paper's hours."""
    cells = []
    for method, found in paper("training-time").items():
        cells.append(Cell(method, RATIO, TIME_RATIO, found["relative_to_fasten"], bench=True))
        cells.append(Cell(method, "hours, RTX 2080 Ti", HOURS, found["hours"], source="the paper"))
    return Experiment(
        "training-time",
        "Time of a whole run on CIFAR-10, symmetric 80%, relative to FasTEN",
        "table",
        tuple(cells),
        about="Ours are from `fasten bench --json`: the time of an update in each stage, on one machine, multiplied "
        "by the number of updates in the paper's protocol. Evaluation is not included. Deep kNN is counted as if it "
        "dropped no row, though at this noise it drops most. A look-ahead (MW-Net, MSLC) makes four passes of 100 "
        "images, one after the other, where FasTEN makes one of 200, which fills a GPU better. The paper's hours "
        "include its authors' data loading, printing and evaluation, and its ratios do not follow from its rounded "
        "hours (10.2 / 1.54 = 6.62, printed 6.64).",
    )
