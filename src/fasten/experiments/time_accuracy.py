"""Figure 1: accuracy against the time of a whole run, four panels."""

from __future__ import annotations

from fasten.experiments.measures import ACCURACY, TIME_RATIO
from fasten.experiments.paper import pair, paper, repeated
from fasten.experiments.runs import DATA_NAMES, make_run, noise_name, noises
from fasten.experiments.spec import Cell, Experiment, Setting
from fasten.experiments.training_time import RATIO


def time_accuracy(setting: Setting) -> Experiment:
    """A point for each method: its time from a bench, and its accuracy."""
    cells: list[Cell] = []
    for panel in paper("time-accuracy"):
        data, noise = panel.split("/")
        if noise in noises(setting):
            cells += _panel(setting, data, noise)
    return Experiment(
        "time-accuracy",
        "Test accuracy (%) against the time of a whole run",
        "figure",
        tuple(cells),
        about="Time is relative to FasTEN: the paper's from its hours on an RTX 2080 Ti, ours from `fasten "
        "bench --json`. All panels of the paper use the hours of CIFAR-10, symmetric 80%, and so do ours: each ratio "
        "counts four times among the cells. For CIFAR-10, symmetric 20%, the paper plots L2RW at 86.26, where its "
        "table 1 has 88.26; we show it as plotted.",
        x="time of a run, relative to FasTEN",
        y="test accuracy (%)",
    )


def _panel(setting: Setting, data: str, noise: str) -> list[Cell]:
    points = paper("time-accuracy")[f"{data}/{noise}"]
    title = f"{DATA_NAMES[data]}, {noise_name(noise)}"
    cells = []
    for method, (hours, accuracy) in points.items():
        time = hours / points["fasten"][0]
        cells.append(Cell(method, RATIO, TIME_RATIO, time, panel=title, bench=True))
        known = pair(repeated(accuracy, data, noise, method))
        run = make_run(setting, data, method, noise=noise)
        cells.append(Cell(method, "accuracy", ACCURACY, *known, run, title, x=time))
    return cells
