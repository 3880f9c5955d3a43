"""Are 30 epochs enough for few images? Users' own images on a CPU, with 30 epochs and with the number chosen for them.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/epochs.py --root data

The images are scikit-learn's digits, enlarged to 32 × 32 pixels, and cars, frogs, ships and lorries of CIFAR-10, with
`symmetric:0.4` noise and a few verified at random. `fasten train FILE` trains on them, everything else at its defaults,
and new images test the model. The record has means over the seeds; other seeds were used to choose the rule.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
from averaging import measure
from images import Images, digits, write
from numpy.typing import NDArray

from fasten.data.cifar import read_cifar10
from fasten.files import write_text
from fasten.records import environment

WAYS: dict[str, tuple[str, ...]] = {"30 epochs": ("--epochs", "30"), "chosen": ()}
KINDS = (1, 6, 8, 9)  # of CIFAR-10
SEEDS = range(10, 13)


def problems(root: Path) -> Iterator[tuple[str, Images, NDArray[np.int64], int, int]]:
    """Yield name, images, labels, how many images to train on, and how many of these are verified."""
    yield "300 digits", *digits(), 300, 80
    cifar = read_cifar10(root)
    kept = np.isin(cifar.truth, KINDS)
    x, y = np.asarray(cifar.x)[kept], np.searchsorted(KINDS, cifar.truth[kept])
    yield "800 photographs", x, y, 800, 100
    yield "1,500 photographs", x, y, 1500, 150


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/epochs.json"))
    asked, found = parser.parse_args(), {}
    for problem, x, y, rows, verified in problems(asked.root):
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as name:
                labels = write(Path(name), x, y, rows, verified, seed)
                for number, (way, options) in enumerate(WAYS.items()):
                    runs[way].append(measure(Path(name), f"run-{number}", options, seed, labels))
                    print(problem, way, seed, {key: round(n, 4) for key, n in runs[way][-1].items()}, flush=True)
        found[problem] = {way: {key: fmean(run[key] for run in mine) for key in mine[0]} for way, mine in runs.items()}
    result = {"environment": environment(), "seeds": list(SEEDS), "problems": found}
    write_text(asked.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
