"""Measure where the time of a whole epoch goes: its updates and the evaluation of the validation and test rows.

    PYTHONPATH=src python benchmarks/epoch.py [--epochs 3] [--out FILE]

FasTEN is trained by the paper's recipe on meaningless images, as many as CIFAR-10 has and split in the same way. The
first epoch is not counted, since libraries choose their algorithms in it.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from fasten.contract import Recipe
from fasten.data.synthetic import make_blobs
from fasten.datasets import Dataset, make_task
from fasten.engine import Fit
from fasten.evaluate import Watch
from fasten.files import write_text
from fasten.machine import choose_machine
from fasten.records import Run, environment
from fasten.runs.building import build_method, make_loader, plan_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3, help="how many epochs to time")
    parser.add_argument("--net", default="resnet34")
    parser.add_argument("--per-class", type=int, default=6000, help="images per class, of ten; a sixth to test on")
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    given = parser.parse_args()

    machine, run = choose_machine(), Run("epoch", recipe=Recipe(given.net, epochs=given.epochs + 1, milestones=()))
    source, sixth = make_blobs(num_classes=10, per_class=given.per_class, size=32), given.per_class * 10 // 6
    dataset = Dataset(lambda place: source, "", sixth // 10, sixth // 2, run.recipe, num_test=sixth, pad=4, flip=True)
    task = make_task(dataset, source, "symmetric:0.4", seed=0)
    method, loader = machine.place(build_method(run, task)), make_loader(task, machine, 0)
    watch, spent = Watch(task, loader), list[float]()

    def measure(method: nn.Module, history: dict[str, Tensor]) -> dict[str, Any]:
        machine.wait()
        began = time.perf_counter()
        row = watch(method, history)
        spent.append(time.perf_counter() - began)
        return row

    fit = Fit(method, plan_of(method, run.recipe), loader, machine, measure)
    marks = list[float]()

    def after(epoch_ended: bool) -> None:
        if epoch_ended:
            machine.wait()
            marks.append(time.perf_counter())

    fit.after_update = after
    fit.run()
    epoch = fmean(b - a for a, b in pairwise(marks))
    rows = {part: len(labels) for part, labels in loader.y.items()}
    result = {
        "environment": environment() | {"device": machine.name, "kernels": machine.kernels},
        "rows": rows,
        "seconds_per_epoch": epoch,
        "evaluation_seconds": fmean(spent[1:]),
        "updates": fit.update.length if fit.update else 0,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if machine.device.type == "cuda" else None,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.out:
        write_text(given.out, text + "\n")


if __name__ == "__main__":
    main()
