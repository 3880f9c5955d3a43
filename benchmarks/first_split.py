"""Does the first split of FasTEN's authors explain the paper's numbers with few clean rows? A small CIFAR-10, on a CPU.

    PYTHONPATH=src python benchmarks/first_split.py --root DATA

Their first published code shuffled each class anew for noisy, clean and validation rows, so that a row could be in all
three; their second deals every row once, as we do. The small CIFAR-10 and the network of benchmarks/few_clean.py, with
100 and with 1,000 clean rows; how many rows each part has is the same in both splits.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from few_clean import DATA, keep, train
from numpy.typing import NDArray
from reweighting import small_cifar

from fasten.data.source import Source
from fasten.data.splits import Split, balanced_split
from fasten.datasets import Place, make_task
from fasten.seeds import numpy_stream

VARIANTS = [(clean, first) for clean in (100, 1000) for first in (False, True)]
OPTIONS = {"per_class": 10, "noisy_weight": 0.1}  # those of the paper's table


def first_split(source: Source, clean: int, valid: int, rng: np.random.Generator) -> Source:
    """The data with each part's rows written out one after the other, a row as often as it was drawn."""
    train_rows, test = np.flatnonzero(~source.test), np.flatnonzero(source.test)
    deals = [balanced_split(source.truth, train_rows, source.num_classes, clean, valid, rng) for _ in range(3)]
    parts = {"noisy": deals[0].noisy, "clean": deals[1].clean, "valid": deals[2].valid, "test": test}
    rows = np.concatenate(list(parts.values()))
    ends = np.cumsum([len(part) for part in parts.values()])
    places: list[NDArray[np.int64]] = np.split(np.arange(len(rows)), ends[:-1])
    x = np.asarray(source.x)[rows]
    return replace(source, x=x, truth=source.truth[rows], test=source.test[rows], split=Split(*places))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=Place.root)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/first_split.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    source, found = small_cifar(asked.root), []
    for seed in asked.seeds:
        for clean, first in VARIANTS:
            data = replace(DATA, num_clean=clean)
            rng = numpy_stream(seed, "split")
            drawn = first_split(source, clean, data.num_valid, rng) if first else source
            run = train(make_task(data, drawn, "symmetric:0.6", seed), OPTIONS, seed)
            found.append({"clean": clean, "first_split": first, **run})
            print(found[-1], flush=True)
            keep(found, asked.out)


if __name__ == "__main__":
    main()
