"""Compare training with and without averaged weights on users' own data: test accuracy and wrong labels found.

    PYTHONPATH=src python benchmarks/averaging.py

The problems are Gaussian classes, as in benchmarks/embeddings.py, with four kinds of noise and sizes, and
scikit-learn's digits as features and as images, with `symmetric:0.4` noise. Each is trained on with `fasten train FILE
--set average=SHARE`, everything else at its defaults, and tested on new rows. The record has means over the seeds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from embeddings import Problem, command
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fasten.data.noise import corrupt, parse_noise
from fasten.files import write_text
from fasten.metrics import auprc, auroc
from fasten.records import environment, read_record

SHARES = ("0.0", "0.1", "0.2", "0.4")
GAUSSIANS = (
    ("symmetric:0.4", 5000, 64),
    ("pair:0.4", 5000, 64),
    ("symmetric:0.8", 20_000, 128),
    ("symmetric:0.2", 2000, 32),
)
DIGITS, DIGITS_VERIFIED = 1300, 150
Given = tuple[NDArray[np.int64], NDArray[np.int64]]  # given and true labels


def problems(folder: Path, seed: int, digit_noises: Sequence[str] = ("symmetric:0.4",)) -> Iterator[tuple[str, Given]]:
    """Write one problem after the other to embeddings.npz and test.npz in the folder; yield its name and labels."""
    for noise, rows, size in GAUSSIANS:
        gaussian = Problem(noise, seed, rows, size, num_classes=10, verified=200, test=4000)
        gaussian.save(folder)
        yield f"{rows:,} × {size} Gaussian, {noise}", (gaussian.given, gaussian.truth)
    for noise in digit_noises:
        rng, digits = np.random.default_rng(seed), load_digits()
        order = rng.permutation(len(digits.target))
        x, y = digits.data[order], digits.target[order]
        truth = y[:DIGITS]
        given = corrupt(truth, parse_noise(noise), 10, rng).labels
        verified = np.full(DIGITS, -1)
        checked = rng.choice(DIGITS, DIGITS_VERIFIED, replace=False)
        verified[checked] = truth[checked]
        images = (x.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
        for name, rows in (("features", x.astype(np.float32)), ("images", images)):
            np.savez(folder / "embeddings.npz", x=rows[:DIGITS], labels=given, verified=verified)
            np.savez(folder / "test.npz", x=rows[DIGITS:], labels=y[DIGITS:])
            yield f"digits as {name}, {noise}", (given, truth)


def measure(folder: Path, run: str, options: Sequence[str], seed: int, labels: Given) -> dict[str, float]:
    given, truth = labels
    rest = ("--device", "cpu", "--json")
    train = ("train", "embeddings.npz", *options, "--seed", str(seed), "--no-references")
    command(folder, *train, *rest, "--out", run)
    scores = json.loads(command(folder, "evaluate", run, "test.npz", *rest)[0])
    table = pd.read_csv(folder / run / "labels.csv", keep_default_na=False).sort_values("row")
    nobody = (table["picked"] == "").to_numpy()
    p_wrong, wrong = table["p_wrong"].to_numpy()[nobody], (given != truth)[nobody]
    return {
        "accuracy": scores["test_accuracy"],
        "detection_auroc": auroc(p_wrong, wrong),
        "detection_auprc": auprc(p_wrong, wrong),
        "corrected_labels_right": float((table["corrected"].to_numpy().astype(np.int64) == truth).mean()),
        "seconds": read_record(folder / run)["result"]["train_seconds"],
    }


def compare(ways: Mapping[str, Sequence[str]], seeds: Sequence[int], noises: Sequence[str]) -> dict[str, Any]:
    """Train every way (given by its options) on every problem: problem -> way -> means over the seeds."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as name:
            for number, (problem, labels) in enumerate(problems(Path(name), seed, noises)):
                folder = Path(name) / str(number)
                folder.mkdir()
                for file in ("embeddings.npz", "test.npz"):
                    (Path(name) / file).rename(folder / file)
                for way, options in ways.items():
                    runs = found.setdefault(problem, {}).setdefault(way, [])
                    runs.append(measure(folder, f"run-{way}", options, seed, labels))
                    print(problem, way, seed, {key: round(number, 4) for key, number in runs[-1].items()}, flush=True)
    return {
        problem: {way: {key: fmean(run[key] for run in runs) for key in runs[0]} for way, runs in mine.items()}
        for problem, mine in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/averaging.json"))
    asked = parser.parse_args()
    ways = {share: ("--set", f"average={share}") for share in SHARES}
    means = compare(ways, range(asked.seeds), ("symmetric:0.4",))
    result = {"environment": environment(), "seeds": asked.seeds, "problems": means}
    write_text(asked.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
