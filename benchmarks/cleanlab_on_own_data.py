"""Compare `fasten train` with cleanlab on users' own data: wrong labels found, labels right after repair, accuracy.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/cleanlab_on_own_data.py

This needs cleanlab (`pip install cleanlab`). The problems are those of benchmarks/estimate.py, with seeds that played
no part in any choice. FasTEN has its defaults. cleanlab's CleanLearning has five folds, and scikit-learn's logistic
regression or MLP as its classifier; it is given the verdicts as labels of the verified rows, and these rows keep them.
Rows that nobody verified count for the detection of wrong labels, all rows for the share of right labels.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import cleanlab
import numpy as np
import sklearn
from averaging import Given, measure, problems
from cleanlab.classification import CleanLearning
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fasten.files import write_text
from fasten.metrics import auprc, auroc
from fasten.records import environment

SEEDS = range(14, 19)
NOISES = ("symmetric:0.4", "symmetric:0.8")
FOLDS = 5


def read(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file, with images as rows of pixels."""
    with np.load(path) as file:
        arrays = dict(file)
    return arrays | {"x": arrays["x"].reshape(len(arrays["x"]), -1).astype(np.float32)}


def by_cleanlab(folder: Path, classifier: Any, seed: int, labels: Given) -> dict[str, float]:
    given, truth = labels
    train, test = read(folder / "embeddings.npz"), read(folder / "test.npz")
    nobody = train["verified"] < 0
    known = np.where(nobody, given, train["verified"])
    began = time.perf_counter()
    learner = CleanLearning(make_pipeline(StandardScaler(), classifier), cv_n_folds=FOLDS, seed=seed)
    issues = learner.find_label_issues(train["x"], known)
    learner.fit(train["x"], known, label_issues=issues)
    seconds = time.perf_counter() - began
    suspicion, wrong = -issues["label_quality"].to_numpy()[nobody], (given != truth)[nobody]
    changed = issues["is_label_issue"].to_numpy() & nobody
    repaired = np.where(changed, issues["predicted_label"].to_numpy(), known)
    return {
        "accuracy": float((learner.predict(test["x"]) == test["labels"]).mean()),
        "detection_auroc": auroc(suspicion, wrong),
        "detection_auprc": auprc(suspicion, wrong),
        "corrected_labels_right": float((repaired == truth).mean()),
        "seconds": seconds,
    }


def measure_all(folder: Path, seed: int, labels: Given) -> dict[str, dict[str, float]]:
    classifiers = {
        "cleanlab, logistic regression": LogisticRegression(max_iter=1000),
        "cleanlab, MLP": MLPClassifier((256,), early_stopping=True, random_state=seed),
    }
    found = {"FasTEN": measure(folder, "run", (), seed, labels)}
    return found | {name: by_cleanlab(folder, clf, seed, labels) for name, clf in classifiers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/cleanlab_on_own_data.json"))
    asked = parser.parse_args()
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for seed in asked.seeds:
        with tempfile.TemporaryDirectory() as name:
            for problem, labels in problems(Path(name), seed, NOISES):
                for way, scores in measure_all(Path(name), seed, labels).items():
                    found.setdefault(problem, {}).setdefault(way, []).append(scores)
                    print(problem, way, seed, {key: round(number, 4) for key, number in scores.items()}, flush=True)
                (Path(name) / "run").rename(Path(name) / problem.replace(" ", "-"))
    means = {
        problem: {way: {key: fmean(run[key] for run in runs) for key in runs[0]} for way, runs in mine.items()}
        for problem, mine in found.items()
    }
    versions = environment() | {"cleanlab": cleanlab.__version__, "scikit-learn": sklearn.__version__}
    result = {"environment": versions, "seeds": asked.seeds, "problems": means}
    write_text(asked.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
