"""If there are few clean rows, how many belong in a batch? FasTEN on a small CIFAR-10, on a CPU.

    PYTHONPATH=src python benchmarks/few_clean.py --root DATA

The small CIFAR-10 and the network are those of benchmarks/reweighting.py, here with 100 clean rows, symmetric 60% noise
and 25 epochs. With K = 10 every clean row is in every batch; with K = 1 a tenth of them is, as in the paper's runs with
1,000 clean rows.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from reweighting import RECIPE, NarrowResNet, small_cifar

from fasten.data.task import Task
from fasten.datasets import DATASETS, Place, make_task
from fasten.engine import Fit
from fasten.evaluate import Watch
from fasten.files import write_text
from fasten.machine import Machine
from fasten.methods import METHODS
from fasten.records import environment
from fasten.runs.building import make_loader, plan_of
from fasten.seeds import torch_seed

DATA = replace(DATASETS["cifar10"], num_valid=2000, num_clean=100, pad=2)
LONGER = replace(RECIPE, epochs=25, milestones=(18, 22))
VARIANTS = [(per_class, weight) for weight in (0.1, 0.5) for per_class in (10, 2, 1)]
KEPT = ("t_diagonal", "t_diagonal_true", "label_accuracy", "corrected_fraction")


def train(task: Task, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train FasTEN on this task; return its selected epoch, and labels and T̂ at the middle epoch."""
    torch.manual_seed(torch_seed(seed, "init"))
    given = torch.from_numpy(task.given)
    method = METHODS["fasten"].build(NarrowResNet(), given, num_classes=task.num_classes, **options)
    machine = Machine(torch.device("cpu"))
    machine.place(method)
    loader = make_loader(task, machine, seed)
    fit = Fit(method, plan_of(method, LONGER), loader, machine, Watch(task, loader))
    return follow(fit, {**options, "seed": seed})


def follow(fit: Fit, about: dict[str, Any]) -> dict[str, Any]:
    """Train; return the selected epoch, and labels and T̂ at the middle epoch."""
    began = time.perf_counter()
    fit.run()
    best, middle = fit.progress.best, fit.progress.rows[len(fit.progress.rows) // 2]
    assert best is not None
    found = {**about, "epoch": best["epoch"], "test_accuracy": best["test_accuracy"]}
    found["middle"] = {key: float(f"{middle[key]:.4g}") for key in KEPT}
    return found | {"seconds": round(time.perf_counter() - began, 1)}


def keep(found: list[dict[str, Any]], path: Path) -> None:
    """Write the results so far, one run per line."""
    lines = ",\n".join(json.dumps(run) for run in found)
    write_text(path, f'{{"environment": {json.dumps(environment())}, "runs": [\n{lines}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=Place.root)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/few_clean.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    source, found = small_cifar(asked.root), []
    for seed in asked.seeds:
        for per_class, noisy_weight in VARIANTS:
            options = {"per_class": per_class, "noisy_weight": noisy_weight}
            found.append(train(make_task(DATA, source, "symmetric:0.6", seed), options, seed))
            print(found[-1], flush=True)
            keep(found, asked.out)


if __name__ == "__main__":
    main()
