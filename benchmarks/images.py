"""Compare the networks for users' own images on a CPU: what they learn, what they repair, and how long they take.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/images.py --root data

The images are scikit-learn's digits, enlarged to 32 × 32 pixels, and 4,000 of CIFAR-10, with `symmetric:0.4` noise and
a few verified at random. Each network is trained on them by `fasten train FILE --set net=NAME`, everything else at its
defaults, and tested on new images. The record has means over the seeds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
from averaging import Given, measure
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from fasten.data.cifar import read_cifar10
from fasten.data.noise import corrupt, parse_noise
from fasten.files import write_text
from fasten.records import environment

NETS = ("small-cnn", "pyramid-cnn")
NOISE, SIDE = "symmetric:0.4", 32
Images = NDArray[np.uint8]


def digits() -> tuple[Images, NDArray[np.int64]]:
    found = load_digits()
    small = [Image.fromarray((image * (255 / 16)).astype(np.uint8)) for image in found.images]
    return np.stack([np.asarray(image.resize((SIDE, SIDE))) for image in small])[..., None], found.target


def write(folder: Path, x: Images, y: NDArray[np.int64], rows: int, verified: int, seed: int) -> Given:
    """Write `rows` images to train on, and the others (4,000 at most) to test on; return given and true labels."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    train, test = order[:rows], order[rows : rows + 4000]
    given = corrupt(y[train], parse_noise(NOISE), int(y.max()) + 1, rng).labels
    known = np.full(rows, -1)
    checked = rng.choice(rows, verified, replace=False)
    known[checked] = y[train][checked]
    np.savez(folder / "embeddings.npz", x=x[train], labels=given, verified=known)
    np.savez(folder / "test.npz", x=x[test], labels=y[test])
    return given, y[train]


def problems(root: Path) -> Iterator[tuple[str, Images, NDArray[np.int64], int, int]]:
    yield "1,200 digits", *digits(), 1200, 200
    cifar = read_cifar10(root)
    yield "4,000 of CIFAR-10", np.asarray(cifar.x), cifar.truth, 4000, 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=Path("data"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/images.json"))
    asked, found = parser.parse_args(), {}
    for problem, x, y, rows, verified in problems(asked.root):
        runs: dict[str, list[dict[str, float]]] = {net: [] for net in NETS}
        for seed in range(asked.seeds):
            with tempfile.TemporaryDirectory() as name:
                labels = write(Path(name), x, y, rows, verified, seed)
                for net, mine in runs.items():
                    mine.append(measure(Path(name), f"run-{net}", ("--set", f"net={net}"), seed, labels))
                    print(problem, net, seed, {key: round(number, 4) for key, number in mine[-1].items()}, flush=True)
        found[problem] = {net: {key: fmean(run[key] for run in mine) for key in mine[0]} for net, mine in runs.items()}
    result = {"environment": environment(), "seeds": asked.seeds, "problems": found}
    write_text(asked.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
