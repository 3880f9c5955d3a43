"""Measure `fasten train` with its audit on 100,000 embeddings with 40% label noise, on two cores.

    PYTHONPATH=src python benchmarks/embeddings.py

The data are twenty Gaussian classes in 512 dimensions. They overlap: a classifier that knows their means is right for
90%. The labels have pair or symmetric noise, and 1,000 rows, drawn at random, are verified. For comparison,
scikit-learn's logistic regression is trained on the noisy labels and on the 1,000 verified ones. The record has time,
memory, test accuracy and how well wrong labels are found. `--seed` draws other data.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

import fasten
from fasten.data.noise import corrupt, parse_noise
from fasten.files import write_text
from fasten.metrics import auprc, auroc
from fasten.records import environment, read_record

CORES = 2
RADIUS = 3.3  # length of the classes' means, whose directions are random: the best classifier is right for 90%
NOISES = ("pair:0.4", "symmetric:0.4")


class Problem:
    """Rows with true and given labels, and new rows to test on."""

    def __init__(self, noise: str, seed: int, rows: int, size: int, num_classes: int, verified: int, test: int) -> None:
        self.rng = np.random.default_rng(seed)
        means = self.rng.standard_normal((num_classes, size))
        self.means = (RADIUS * means / np.linalg.norm(means, axis=1, keepdims=True)).astype(np.float32)
        self.x, self.truth = self.draw(rows)
        self.x_test, self.y_test = self.draw(test)
        self.given = corrupt(self.truth, parse_noise(noise), num_classes, self.rng).labels
        self.checked = np.sort(self.rng.choice(rows, verified, replace=False))

    def draw(self, rows: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        y = self.rng.integers(len(self.means), size=rows)
        x = self.rng.standard_normal((rows, self.means.shape[1]), dtype=np.float32)
        x += self.means[y]
        return x, y

    def save(self, folder: Path) -> None:
        verified = np.full(len(self.x), -1)
        verified[self.checked] = self.truth[self.checked]
        np.savez(folder / "embeddings.npz", x=self.x, labels=self.given, verified=verified)
        np.savez(folder / "test.npz", x=self.x_test, labels=self.y_test)

    def bayes_accuracy(self) -> float:
        return float(((self.x_test @ self.means.T).argmax(1) == self.y_test).mean())

    def logistic_accuracy(self, clean: bool) -> float:
        rows = self.checked if clean else np.arange(len(self.x))
        model = LogisticRegression(max_iter=1000).fit(self.x[rows], (self.truth if clean else self.given)[rows])
        return float(model.score(self.x_test, self.y_test))


def command(folder: Path, *words: str) -> tuple[str, float, int]:
    """Run `fasten` in its own process; return its output, its seconds and its peak memory in bytes."""
    threads = {name: str(CORES) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    ours = {"PYTHONPATH": str(Path(fasten.__file__).resolve().parents[1])}
    began = time.perf_counter()
    with open(folder / "out.txt", "w+", encoding="utf-8") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fasten", *words], cwd=folder, stdout=out, env={**os.environ, **threads, **ours}
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        if status:
            raise SystemExit(f"`fasten {' '.join(words)}` failed; its message is above")
        out.seek(0)
        return out.read(), seconds, usage.ru_maxrss * 1024


def measure(noise: str, seed: int, rows: int, size: int, num_classes: int, verified: int, test: int) -> dict[str, Any]:
    """Train on one problem, audit it and test the model."""
    problem = Problem(noise, seed, rows, size, num_classes, verified, test)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        problem.save(folder)
        _, seconds, memory = command(folder, "train", "embeddings.npz", "--device", "cpu", "--json", "--out", "run")
        scores = json.loads(command(folder, "evaluate", "run", "test.npz", "--device", "cpu", "--json")[0])
        record = read_record(folder / "run")
        table = pd.read_csv(folder / "run" / "labels.csv", keep_default_na=False).sort_values("row")
    nobody = (table["picked"] == "").to_numpy()
    p_wrong, wrong = table["p_wrong"].to_numpy()[nobody], (problem.given != problem.truth)[nobody]
    evidence = record["evaluation"]["evidence"]
    return {
        "noise": noise,
        "seconds": seconds,
        "peak_memory_bytes": memory,
        "train_seconds": record["result"]["train_seconds"],
        "recipe": record["run"]["recipe"],
        "accuracy": scores["test_accuracy"],
        "bayes_accuracy": problem.bayes_accuracy(),
        "logistic_noisy_accuracy": problem.logistic_accuracy(clean=False),
        "logistic_clean_accuracy": problem.logistic_accuracy(clean=True),
        "detection_auroc": auroc(p_wrong, wrong),
        "detection_auprc": auprc(p_wrong, wrong),
        "labels_right": float((problem.given == problem.truth).mean()),
        "corrected_labels_right": float((table["corrected"].to_numpy().astype(np.int64) == problem.truth).mean()),
        "precision_of_corrections": evidence["corrections"]["precision"],
        "calibration_ece": evidence["calibration"]["after"] and evidence["calibration"]["after"]["ece"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/embeddings.json"))
    sizes = {"rows": 100_000, "size": 512, "num_classes": 20, "verified": 1000, "test": 20_000}
    for key, value in sizes.items():
        parser.add_argument(f"--{key.replace('_', '-')}", type=int, default=value)
    asked = vars(parser.parse_args())
    sizes = {key: asked[key] for key in sizes}
    runs = []
    for noise in NOISES:
        runs.append(measure(noise, asked["seed"], **sizes))
        print(json.dumps(runs[-1], indent=1))
    about = environment() | {"scikit-learn": sklearn.__version__, "cpu": platform.processor() or platform.machine()}
    found = {"data": sizes | {"seed": asked["seed"]}, "cores": CORES, "environment": about, "runs": runs}
    write_text(asked["out"], json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
