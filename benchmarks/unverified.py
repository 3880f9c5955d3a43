"""Find wrong labels without any verified row, by a network that has memorised the labels and by networks that have not.

    OMP_NUM_THREADS=1 python benchmarks/unverified.py --out benchmarks/unverified.json

This takes about a minute. Five-fold logistic regression, judged in the same way, is there for comparison. `found` is
the share of the wrong labels that are called wrong, `precision` the share of the labels called wrong that are wrong,
`right` the share of right labels after repair, `before` the same before it; `seconds` is the time of the whole fit.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fasten import FasTENClassifier
from fasten.audit.findings import find
from fasten.data.task import Known
from fasten.files import write_text
from fasten.metrics import auroc
from fasten.records import environment


class Problem(NamedTuple):
    """Data of which a share of the labels is wrong: replaced by any other class, or by the next one."""

    data: str
    wrong: float
    to_next: bool = False


PROBLEMS = [
    Problem("digits", 0.3),
    Problem("digits", 0.4, to_next=True),
    Problem("four classes", 0.3),
    Problem("four classes", 0.3, to_next=True),
    Problem("breast cancer", 0.2),
]


def make(problem: Problem, seed: int) -> tuple[Any, Any, Any]:
    """Features, true labels and given labels of at most 1,500 rows."""
    if problem.data == "four classes":
        x, truth = make_classification(2000, 20, n_informative=8, n_classes=4, random_state=seed)
    else:
        x, truth = (load_digits if problem.data == "digits" else load_breast_cancer)(return_X_y=True)
    rng = np.random.default_rng(seed)
    rows, k = rng.permutation(len(truth))[:1500], int(truth.max()) + 1
    x, truth = x[rows].astype(float), truth[rows]
    step = 1 if problem.to_next else rng.integers(1, k, len(truth))
    return x, truth, np.where(rng.random(len(truth)) < problem.wrong, (truth + step) % k, truth)


def scores(p_wrong: Any, issue: Any, suggested: Any, truth: Any, given: Any) -> dict[str, float | None]:
    wrong, hits = given != truth, (issue & (given != truth)).sum()
    found = {
        "auroc": auroc(p_wrong, wrong),
        "found": hits / wrong.sum(),
        "precision": hits / issue.sum() if issue.any() else None,
        "before": 1 - wrong.mean(),
        "right": (np.where(issue, suggested, given) == truth).mean(),
    }
    return {name: None if value is None else round(float(value), 4) for name, value in found.items()}


def fitted(x: Any, truth: Any, given: Any, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = FasTENClassifier(device="cpu", random_state=seed).fit(x, given).label_issues_.sort_values("row")
    columns = (table[name].to_numpy() for name in ("p_wrong", "is_issue", "suggested"))
    return scores(*columns, truth, given) | {"seconds": round(time.perf_counter() - began, 1)}


def regression(x: Any, truth: Any, given: Any) -> dict[str, Any]:
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    probs: NDArray[Any] = cross_val_predict(model, x, given, cv=5, method="predict_proba")
    nobody = np.zeros(len(given), bool)
    known = Known(tuple(map(str, range(len(given)))), given, np.full(len(given), -1), nobody, nobody)
    judged = find(probs, known).judged
    return scores(judged.p_wrong, judged.p_wrong > 0.5, judged.suggested, truth, given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/unverified.json"))
    asked = parser.parse_args()
    about, found = json.dumps(environment()), []
    for problem in PROBLEMS:
        for seed in asked.seeds:
            rows = make(problem, seed)
            ways = {"unseen": fitted(*rows, seed), "logistic regression": regression(*rows)}
            with mock.patch("fasten.estimator.by_heart", return_value=False):
                ways["by heart"] = fitted(*rows, seed)
            found += [{**problem._asdict(), "seed": seed, "way": way, **values} for way, values in ways.items()]
            print(*found[-3:], sep="\n", flush=True)
    lines = ",\n".join(map(json.dumps, found))
    write_text(asked.out, f'{{"environment": {about}, "runs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
