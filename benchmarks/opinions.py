"""Compare the two ways to judge users' own labels: the network's last word, and its mean over the epochs.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/opinions.py

The problems are those of benchmarks/estimate.py. Both ways judge the same training run, with everything at its
defaults. Detection is measured on rows that nobody verified, and labels that are right after correction on all rows.
Which epochs count was chosen on seeds 5 to 8 and on the images of benchmarks/repair.py. The seeds recorded here played
no part in that, though an earlier rule, a plain mean up to the selected epoch, had been measured on them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import fmean

import numpy as np
from averaging import Given, problems
from numpy.typing import NDArray

from fasten.datasets import Place, load_task, prepare_data
from fasten.evaluate import Evaluation, evaluate
from fasten.files import write_text
from fasten.machine import choose_machine
from fasten.metrics import auprc, auroc
from fasten.own import Own
from fasten.records import Run, environment
from fasten.runs.building import listen, make_fit
from fasten.runs.unseen import judge_of

SEEDS = range(14, 19)
NOISES = ("symmetric:0.4", "symmetric:0.8")


def scores(found: Evaluation, truth: NDArray[np.int64]) -> dict[str, float]:
    known = found.known
    nobody, wrong = known.verified < 0, known.given != truth
    p_wrong = found.findings.calibrated(known.given).p_wrong
    corrected = np.where(nobody, found.findings.corrected(known.given), known.verified)
    suspicion = found.findings.judged.p_wrong
    return {
        "detection_auroc": auroc(suspicion[nobody], wrong[nobody]),
        "detection_auprc": auprc(suspicion[nobody], wrong[nobody]),
        "corrected_labels_right": float((corrected == truth).mean()),
        "wrong_labels_expected": float(p_wrong[nobody].mean()),
        "wrong_labels": float(wrong[nobody].mean()),
    }


def compare(path: Path, seed: int, labels: Given) -> dict[str, dict[str, float]]:
    machine, ready = choose_machine("cpu"), prepare_data(str(path), Own(), Place())
    run = Run(str(path), recipe=ready.recipe, own=ready.own, seed=seed)
    task = load_task(run.dataset, run.noise, seed, ready.place, own=ready.own)
    seconds = {}
    for way in ("last word", "mean"):  # trained twice to time it, with the same result
        fit = make_fit(run, task, machine)
        if way == "mean":
            listen(fit, run, task)
        began = time.perf_counter()
        fit.run()
        seconds[way] = time.perf_counter() - began
    truth = labels[1][task.audited]
    judges = {"last word": None, "mean": judge_of(fit, run, task, print)}
    return {
        way: scores(evaluate(fit.method, task, fit.loader, seed=seed, judge=judge), truth) | {"seconds": seconds[way]}
        for way, judge in judges.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/opinions.json"))
    asked = parser.parse_args()
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for seed in asked.seeds:
        with tempfile.TemporaryDirectory() as name:
            for problem, labels in problems(Path(name), seed, NOISES):
                for way, values in compare(Path(name) / "embeddings.npz", seed, labels).items():
                    found.setdefault(problem, {}).setdefault(way, []).append(values)
                    print(problem, way, seed, {key: round(number, 4) for key, number in values.items()}, flush=True)
    means = {
        problem: {way: {key: fmean(run[key] for run in runs) for key in runs[0]} for way, runs in mine.items()}
        for problem, mine in found.items()
    }
    result = {"environment": environment(), "seeds": asked.seeds, "problems": means}
    write_text(asked.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
