"""Does the authors' first split explain the paper's numbers with few clean rows? FasTEN on a small CIFAR-10, on a CPU.

    PYTHONPATH=src python benchmarks/first_split.py --root DATA
    PYTHONPATH=src python benchmarks/first_split.py --root DATA --whole --clean 100 --out WHOLE

The first code that FasTEN's authors published shuffled each class anew for noisy, clean and validation rows, so that a
row could be in all three. Their second code deals every row once, as we do. The small CIFAR-10 and the network are
those of benchmarks/few_clean.py, with 100 and with 1,000 clean rows; each part has the same number of rows in both
splits. --whole is for a GPU: all of CIFAR-10 with the paper's recipe, with the first split only, since runs with our
split are in results/cifar10.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from few_clean import DATA, follow, keep, train
from numpy.typing import NDArray
from reweighting import small_cifar

from fasten.data.cifar import read_cifar10
from fasten.data.source import Source
from fasten.data.splits import Split, balanced_split
from fasten.data.task import Task
from fasten.datasets import DATASETS, Place, make_task
from fasten.machine import choose_machine
from fasten.records import Run
from fasten.runs.building import make_fit
from fasten.seeds import numpy_stream

OPTIONS: dict[str, Any] = {"per_class": 10, "noisy_weight": 0.1}  # those of the paper's table


def first_split(source: Source, clean: int, valid: int, rng: np.random.Generator) -> Source:
    """The data with the rows of each part listed one after the other, each row as often as it was drawn."""
    train_rows, test = np.flatnonzero(~source.test), np.flatnonzero(source.test)
    deals = [balanced_split(source.truth, train_rows, source.num_classes, clean, valid, rng) for _ in range(3)]
    parts = {"noisy": deals[0].noisy, "clean": deals[1].clean, "valid": deals[2].valid, "test": test}
    rows = np.concatenate(list(parts.values()))
    ends = np.cumsum([len(part) for part in parts.values()])
    places: list[NDArray[np.int64]] = np.split(np.arange(len(rows)), ends[:-1])
    x = np.asarray(source.x)[rows]
    return replace(source, x=x, truth=source.truth[rows], test=source.test[rows], split=Split(*places))


def train_whole(task: Task, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train FasTEN with the paper's recipe."""
    run = Run("cifar10", options=options, seed=seed)
    return follow(make_fit(run, task, choose_machine()), {**options, "seed": seed})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=Place.root)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--clean", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/first_split.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.whole:
        source, usual, noise, fit = read_cifar10(asked.root), DATASETS["cifar10"], "symmetric:0.8", train_whole
    else:
        source, usual, noise, fit = small_cifar(asked.root), DATA, "symmetric:0.6", train
    found = []
    for seed, clean in product(asked.seeds, asked.clean):
        data = replace(usual, num_clean=clean)
        for first in (True,) if asked.whole else (False, True):
            drawn = first_split(source, clean, data.num_valid, numpy_stream(seed, "split")) if first else source
            found.append(
                {"clean": clean, "first_split": first, **fit(make_task(data, drawn, noise, seed), OPTIONS, seed)}
            )
            print(found[-1], flush=True)
            keep(found, asked.out)


if __name__ == "__main__":
    main()
