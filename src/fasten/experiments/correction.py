"""Figure 5 (appendix): what label correction gains, by the level of the noise."""

from __future__ import annotations

from fasten.experiments.measures import ACCURACY
from fasten.experiments.runs import DATA_NAMES, NOISES, make_run
from fasten.experiments.spec import Cell, Experiment, Setting

LEVELS = ("sym20", "sym40", "sym60", "sym80")


def correction(setting: Setting) -> Experiment:
    """FasTEN with and without label correction under symmetric noise."""
    cells = []
    for data in ("cifar10", "cifar100"):
        for method in ("fasten", "fasten-no-lc"):
            for noise in setting.some(LEVELS):
                rate = float(NOISES[noise].partition(":")[2])
                run = make_run(setting, data, method, noise=noise)
                cells.append(Cell(method, f"{rate:.0%}", ACCURACY, run=run, panel=DATA_NAMES[data], x=100 * rate))
    return Experiment(
        "correction",
        "Effect of label correction by the level of symmetric noise",
        "figure",
        tuple(cells),
        about="The paper's figure has no numbers. Both methods have λ = 0.5 here. table1 compares the same runs of "
        "FasTEN with the paper's; oversampling does so for FasTEN without correction, but searches for λ.",
        x="symmetric noise (%)",
        y="test accuracy (%)",
    )
