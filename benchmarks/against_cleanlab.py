"""Wrong labels found by one FasTEN run, and by cleanlab from five-fold cross-entropy predictions of the same network.

    PYTHONPATH=src python benchmarks/against_cleanlab.py train cifar10 --noise symmetric:0.4 --root DATA --out DIR
    PYTHONPATH=src python benchmarks/against_cleanlab.py score DIR ...

`train` is the part for a GPU: FasTEN once, and cross-entropy five times, each on the clean rows and four fifths of the
noisy ones; every noisy row then has a prediction of a network that has not seen it. All have the recipe of the data
set, the same number of epochs and the same clean and validation rows. Each network has a file of its own in DIR, so
what stops goes on with the same command. `score` needs cleanlab (`pip install "fasten-labels[cleanlab]"`) and writes
`against_cleanlab.json`: AUROC and average precision of wrong labels by FasTEN's p_wrong and by cleanlab's scores, and
FasTEN's training time as a share of the five networks'.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fasten.checkpoint import read_tensors, write_tensors
from fasten.data.splits import Split
from fasten.data.task import Task
from fasten.datasets import Place, find_dataset, load_task
from fasten.engine import Fit, predict
from fasten.evaluate import Watch, evaluate
from fasten.files import write_text
from fasten.machine import Machine, choose_machine
from fasten.metrics import auprc, auroc
from fasten.options import apply_settings
from fasten.records import Run, environment, shared_gpu
from fasten.streams import numpy_stream
from fasten.training import build_method, make_loader, plan_of

FOLDS = 5
CLEANLAB = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")


def without_fold(task: Task, fold: NDArray[np.bool_]) -> Task:
    """The rows of a fold as test rows; the others, and the clean ones with their true labels, as rows to train on."""
    split = task.split
    assert task.truth is not None
    rows = np.concatenate([split.noisy[~fold], split.clean])
    nothing = np.empty(0, np.int64)
    return replace(
        task,
        split=Split(rows, nothing, split.valid, split.noisy[fold]),
        given=np.concatenate([task.given[~fold], task.clean]),
        truth=np.concatenate([task.truth[~fold], task.clean]),
        clean=nothing,
        test=task.given[fold],
    )


def fold_of(task: Task, seed: int) -> NDArray[np.int64]:
    """Which fifth each noisy row belongs to, every given label spread evenly."""
    shuffled = numpy_stream(seed, "folds").permutation(len(task.given))
    fold = np.empty(len(task.given), np.int64)
    fold[shuffled[np.argsort(task.given[shuffled], kind="stable")]] = np.arange(len(fold)) % FOLDS
    return fold


def train(run: Run, task: Task, machine: Machine) -> Fit:
    method = machine.place(build_method(run, task))
    loader = make_loader(task, machine, run.seed)
    fit = Fit(method, plan_of(method, run.recipe), loader, machine, Watch(task, loader))
    fit.run()
    return fit


def keep(path: Path, values: NDArray[Any], fit: Fit) -> None:
    best = fit.progress.best
    assert best is not None
    meta = {"seconds": fit.progress.seconds, "epoch": best["epoch"], "valid_accuracy": best["valid_accuracy"]}
    write_tensors(path, {"values": torch.from_numpy(np.ascontiguousarray(values, np.float32))}, json.dumps(meta))
    print(f"{path.stem}: {meta}", flush=True)


def train_all(asked: argparse.Namespace) -> None:
    folder: Path = asked.out
    folder.mkdir(parents=True, exist_ok=True)
    place, machine = Place(asked.root), choose_machine(asked.device)
    task = load_task(asked.data, asked.noise, asked.seed, place)
    recipe = apply_settings("fasten", find_dataset(asked.data).recipe, [], asked.epochs)[1]
    run = Run(asked.data, asked.noise, seed=asked.seed, recipe=recipe)
    fold = fold_of(task, asked.seed)
    assert task.truth is not None
    np.savez(folder / "labels.npz", given=task.given, truth=task.truth, fold=fold)
    about = {"run": run.to_json(), "environment": environment() | shared_gpu() | {"device": machine.name}}
    write_text(folder / "about.json", json.dumps(about, indent=1) + "\n")
    if not (folder / "fasten.safetensors").exists():
        fit = train(run, task, machine)
        keep(folder / "fasten.safetensors", evaluate(fit.method, task, fit.loader).findings.judged.p_wrong, fit)
    for number in range(FOLDS):
        path = folder / f"fold{number}.safetensors"
        if not path.exists():
            part = without_fold(task, fold == number)
            fit = train(replace(run, method="cross-entropy"), part, machine)
            keep(path, predict(fit.method, fit.loader, "test").float().cpu().numpy(), fit)


def score(folder: Path) -> dict[str, Any]:
    from cleanlab.rank import get_label_quality_scores

    with np.load(folder / "labels.npz") as file:
        given, truth, fold = file["given"], file["truth"], file["fold"]
    wrong = given != truth
    ours, of_fasten = read_tensors(folder / "fasten.safetensors")
    parts = [read_tensors(folder / f"fold{number}.safetensors") for number in range(FOLDS)]
    probs = np.empty((len(given), parts[0][0]["values"].shape[1]))
    for number, (values, _) in enumerate(parts):
        probs[fold == number] = values["values"].double().numpy()
    probs /= probs.sum(1, keepdims=True)
    suspicion = {"FasTEN": ours["values"].double().numpy()}
    for name in CLEANLAB:
        suspicion[f"cleanlab, {name}"] = -np.asarray(get_label_quality_scores(given, probs, method=name))
    seconds = [meta["seconds"] for _, meta in parts]
    return {
        **json.loads((folder / "about.json").read_text(encoding="utf-8")),
        "rows": len(given),
        "wrong": float(wrong.mean()),
        "scores": {n: {"auroc": auroc(s, wrong), "average_precision": auprc(s, wrong)} for n, s in suspicion.items()},
        "fold_accuracy_of_truth": float((probs.argmax(1) == truth).mean()),
        "seconds": {"FasTEN": of_fasten["seconds"], "folds": seconds},
        "share_of_time": of_fasten["seconds"] / sum(seconds),
    }


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    steps = parser.add_subparsers(required=True, dest="step")
    first = steps.add_parser("train")
    first.add_argument("data")
    first.add_argument("--noise", required=True)
    first.add_argument("--seed", type=int, default=1)
    first.add_argument("--epochs", type=int)
    first.add_argument("--root", type=Path, default=Place.root)
    first.add_argument("--device", default="auto")
    first.add_argument("--out", type=Path, required=True)
    second = steps.add_parser("score")
    second.add_argument("folders", nargs="+", type=Path)
    second.add_argument("--out", type=Path, default=Path("benchmarks/against_cleanlab.json"))
    asked = parser.parse_args(words)
    if asked.step == "train":
        train_all(asked)
        return
    found = [score(folder) for folder in asked.folders]
    for run in found:
        print(run["run"]["noise"], json.dumps(run["scores"], indent=1), f"share of time {run['share_of_time']:.3f}")
    write_text(asked.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
