"""Table 12 (appendix): K, the clean rows per class in a batch."""

from __future__ import annotations

from fasten.experiments.paper import paper, repeated
from fasten.experiments.runs import ABLATION, ends, make_run, noise_table
from fasten.experiments.spec import Experiment, Setting
from fasten.records import Run

CLASSES = 10  # of CIFAR-10


def k_study(setting: Setting) -> Experiment:
    """Batches of K clean rows of each of the ten classes, and as many noisy rows."""
    rows = paper("k")
    usual = {noise: repeated(number, "cifar10", noise, "fasten") for noise, number in rows["10"].items()}
    numbers = {"cifar10": ends(setting, rows | {"10": usual})}

    def runs(data: str, row: str, noise: str) -> list[Run]:
        return [make_run(setting, data, noise=noise, settings=[ABLATION, f"batch_size={int(row) * CLASSES}"])]

    return Experiment(
        "k",
        "Test accuracy (%) of FasTEN on CIFAR-10, by the clean rows per class in a batch",
        "table",
        noise_table(setting, numbers, runs, "K = {}".format),
        about="λ is 0.1 here, not the 0.5 of table 1: the row of K = 10 is that of the table of λ, intervals included. "
        "In the paper a batch has as many noisy rows as clean ones, M = KN, and the paper calls this its study of the "
        "batch size; our runs do the same. K = 2 means 20 + 20 images and five times the updates of K = 10, so K is "
        "not the only thing that varies. In the authors' first code the two numbers are set separately, so the paper "
        "may have used 100 noisy rows throughout.",
    )
