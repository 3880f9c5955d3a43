"""Check what `FasTENClassifier` says about labels, on data whose true labels are known.

`OMP_NUM_THREADS=1 python benchmarks/promises.py --seeds 20 28 --out benchmarks/promises.json` takes about four minutes.
All numbers are of rows that nobody looked at, except `interval_holds`: the number of runs whose interval of the share
of wrong labels contains that share of all rows. `off` is |mean p_wrong − share wrong| in each bin, averaged over the
bins with their numbers of rows as weights; the bins take the rows of all seeds together. `off_a_run` is the mean of the
same quantity over single runs. `t_off` is the share of the labels that T puts into other classes than they are in.
`promised` counts the runs in which --min-precision 0.8 corrected anything, `kept` those of them in which at least 80%
of the corrections were right, `warned` the runs that warned that their verified rows are not a random sample.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits

from fasten import FasTENClassifier

PRECISION, BINS = 0.8, 10


class Problem(NamedTuple):
    """Gaussian classes at a distance from the centre (0: digits instead), and the share of wrong labels."""

    classes: int
    distance: float
    wrong: float
    verified: int
    rows: int = 2000
    rare: float | None = None  # the share of the second of two classes, which is labelled wrong six times as often
    by_label: bool = False  # the same number of rows is verified for each label, not a random sample
    at_border: bool = False  # labels are wrong only near another class, and then name that class


PROBLEMS = {
    "two classes": Problem(2, 3, 0.2, 150),
    "two classes, one rare": Problem(2, 3, 0.05, 300, rare=0.05),
    "two classes, one rare, verified by label": Problem(2, 3, 0.05, 300, rare=0.05, by_label=True),
    "ten classes": Problem(10, 4, 0.4, 200),
    "ten classes, few verified": Problem(10, 4, 0.3, 60),
    "ten classes, few wrong": Problem(10, 4, 0.02, 200),
    "ten classes, wrong at the border": Problem(10, 4, 0.3, 200, at_border=True),
    "digits": Problem(10, 0, 0.4, 200),
    "150 classes": Problem(150, 6, 0.3, 600, rows=6000),
}


def make(problem: Problem, seed: int) -> tuple[Any, Any, Any, Any]:
    """Features, true labels, given labels and the verified rows."""
    rng = np.random.default_rng(seed)
    k, means = problem.classes, np.zeros((0, 0))
    if problem.distance:
        means = rng.normal(size=(k, 20 if k <= 10 else 40))
        means *= problem.distance / np.linalg.norm(means, axis=1, keepdims=True)
        truth = rng.choice(k, problem.rows, p=None if problem.rare is None else [1 - problem.rare, problem.rare])
        x = means[truth] + rng.normal(size=(len(truth), means.shape[1]))
    else:
        x, truth = load_digits(return_X_y=True)
    n, chance, other = len(truth), np.full(len(truth), problem.wrong), (truth + rng.integers(1, k, len(truth))) % k
    if problem.rare is not None:
        chance = np.where(truth == 1, 6 * problem.wrong, problem.wrong)
    if problem.at_border:
        far = ((x[:, None] - means) ** 2).sum(2)
        own = far[np.arange(n), truth].copy()
        far[np.arange(n), truth] = np.inf
        chance, other = 2 * problem.wrong * np.argsort(np.argsort(own - far.min(1))) / n, far.argmin(1)
    given = np.where(rng.random(n) < chance, other, truth)
    rows = rng.permutation(n)
    if not problem.by_label:
        return x, truth, given, rows[: problem.verified]
    return x, truth, given, np.concatenate([rows[given[rows] == c][: problem.verified // k] for c in range(k)])


def bins(p: Any, wrong: Any) -> list[list[float]]:
    part = np.minimum((p * BINS).astype(int), BINS - 1)
    mine = [part == b for b in range(BINS)]
    return [[round(float(p[m].mean()), 4), round(float(wrong[m].mean()), 4), int(m.sum())] for m in mine if m.any()]


def off(found: list[list[float]]) -> float:
    return sum(abs(p - share) * n for p, share, n in found) / sum(n for *_, n in found)


def run(problem: Problem, seed: int) -> dict[str, Any]:
    x, truth, given, rows = make(problem, seed)
    verified = np.full(len(truth), -1)
    verified[rows] = truth[rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf = FasTENClassifier(device="cpu", min_precision=PRECISION, random_state=seed)
        clf.fit(x, given, y_verified=verified)
    table = clf.label_issues_.sort_values("row")
    open_rows = (verified < 0)[table["row"]]
    p, corrected = table["p_wrong"].to_numpy()[open_rows], table["corrected"].to_numpy()[open_rows]
    given, truth, wrong = given[verified < 0], truth[verified < 0], (given != truth).mean()
    counts = np.zeros((problem.classes, problem.classes))
    np.add.at(counts, (truth, given), 1)
    expected, evidence, changed = (
        counts.sum(1, keepdims=True) * clf.transition_matrix_,
        clf.evidence_,
        corrected != given,
    )
    return {
        "p": p,
        "wrong": given != truth,
        "holds": bool(evidence["wrong"]["low"] <= wrong <= evidence["wrong"]["high"]),
        "t_off": np.abs(counts - expected).sum() / 2 / counts.sum(),
        "promised": bool(changed.any()),
        "kept": bool(changed.any() and (corrected == truth)[changed].mean() >= PRECISION),
        "warned": bool(evidence["sample"] and evidence["sample"]["warning"]),
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    p, wrong = (np.concatenate([r[key] for r in runs]) for key in ("p", "wrong"))
    return {
        "share_wrong": round(float(wrong.mean()), 4),
        "mean_p_wrong": round(float(p.mean()), 4),
        "off": round(off(bins(p, wrong)), 4),
        "off_a_run": round(float(np.mean([off(bins(r["p"], r["wrong"])) for r in runs])), 4),
        "t_off": round(float(np.mean([r["t_off"] for r in runs])), 4),
        "interval_holds": sum(r["holds"] for r in runs),
        **{key: sum(r[key] for r in runs) for key in ("promised", "kept", "warned")},
        "bins": bins(p, wrong),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=(20, 28))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = [f'"seeds": {json.dumps(asked.seeds)}']
    for name, problem in PROBLEMS.items():
        found = summary([run(problem, seed) for seed in range(*asked.seeds)])
        lines.append(f"{json.dumps(name)}: {json.dumps(found)}")
        print(lines[-1], flush=True)
    if asked.out:
        asked.out.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
