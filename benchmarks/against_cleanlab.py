"""Wrong labels found by one FasTEN run, and by cleanlab from five-fold cross-entropy predictions of the same network.

    PYTHONPATH=src python benchmarks/against_cleanlab.py train cifar10 --noise symmetric:0.4 --root DATA --out DIR
    PYTHONPATH=src python benchmarks/against_cleanlab.py score DIR ... [--timed DIR]

`train` is the part for a GPU. It trains FasTEN once and cross-entropy five times, each time on the clean rows and four
fifths of the noisy ones, so that every noisy row gets a prediction from a network that has not seen it. All networks
use the recipe of the data set, the same number of epochs and the same clean and validation rows. Each network has its
own file in DIR; if training is interrupted, the same command continues it. `--nets fasten,fold0` trains only some of
them, so that several processes can share a GPU. Their times then mean nothing, and `--timed` names a folder whose
networks, FasTEN and some folds, were trained for a few epochs with the GPU to themselves.

`score` needs cleanlab (`pip install cleanlab`) and writes `against_cleanlab.json`: AUROC and average precision of wrong
labels by FasTEN's p_wrong and by cleanlab's scores, and the time of FasTEN's epochs relative to the time of the folds.
"""

from __future__ import annotations

import argparse
import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
from fasten.runs.building import build_method, make_loader, plan_of
from fasten.runs.checkpoint import Checkpoints, read_tensors, write_tensors
from fasten.seeds import numpy_stream
from fasten.signals import asked_to_stop

FOLDS = 5
NETS = ("fasten", *(f"fold{number}" for number in range(FOLDS)))
CLEANLAB = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")


def without_fold(task: Task, fold: NDArray[np.bool_]) -> Task:
    """Make a task that tests on a fold and trains on the other rows, with the true labels of the clean rows."""
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
    """Assign each noisy row to a fifth, with every given label spread evenly."""
    shuffled = numpy_stream(seed, "folds").permutation(len(task.given))
    fold = np.empty(len(task.given), np.int64)
    fold[shuffled[np.argsort(task.given[shuffled], kind="stable")]] = np.arange(len(fold)) % FOLDS
    return fold


def train(run: Run, task: Task, machine: Machine, folder: Path) -> Fit:
    """Train from the beginning, or from the checkpoint in `folder` if a signal stopped an earlier attempt."""
    method = machine.place(build_method(run, task))
    loader = make_loader(task, machine, run.seed)
    fit = Fit(method, plan_of(method, run.recipe), loader, machine, Watch(task, loader))
    checkpoints = Checkpoints(folder)
    found = checkpoints.load()
    if found is not None:
        fit.restore(found[1], found[0])
    with asked_to_stop(print) as asked, closing(checkpoints):

        def stop_if_asked(epoch_ended: bool) -> None:
            if asked():
                checkpoints.save(fit.progress.done, fit.tensors(), fit.snapshot())
                raise KeyboardInterrupt

        fit.after_update = stop_if_asked
        fit.run()
    return fit


def keep(path: Path, values: NDArray[Any], fit: Fit) -> None:
    best = fit.progress.best
    assert best is not None
    progress = fit.progress
    meta = {"seconds": progress.seconds, "epochs": len(progress.rows), "best": best["epoch"]}
    meta |= {"valid_accuracy": best["valid_accuracy"]}
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
    for name in asked.nets.split(",") if asked.nets else NETS:
        path = folder / f"{name}.safetensors"
        if path.exists():
            continue
        if name == "fasten":
            fit = train(run, task, machine, folder / name)
            keep(path, evaluate(fit.method, task, fit.loader).findings.judged.p_wrong, fit)
        else:
            part = without_fold(task, fold == NETS.index(name) - 1)
            fit = train(replace(run, method="cross-entropy"), part, machine, folder / name)
            keep(path, predict(fit.method, fit.loader, "test").float().cpu().numpy(), fit)
        shutil.rmtree(folder / name, ignore_errors=True)  # the checkpoints of this network


def share_of_time(folder: Path) -> dict[str, Any]:
    """Seconds per epoch of the networks in the folder, and FasTEN's as a share of those of all five folds."""
    seconds = {}
    for name in NETS:
        if (folder / f"{name}.safetensors").exists():
            meta = read_tensors(folder / f"{name}.safetensors")[1]
            seconds[name] = meta["seconds"] / meta["epochs"]
    folds = [value for name, value in seconds.items() if name != "fasten"]
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))["environment"]
    return {"environment": about, "seconds_per_epoch": seconds, "share": seconds["fasten"] / (FOLDS * mean(folds))}


def score(folder: Path, timed: Path | None) -> dict[str, Any]:
    from cleanlab.rank import get_label_quality_scores

    with np.load(folder / "labels.npz") as file:
        given, truth, fold = file["given"], file["truth"], file["fold"]
    wrong = given != truth
    ours, _ = read_tensors(folder / "fasten.safetensors")
    parts = [read_tensors(folder / f"fold{number}.safetensors") for number in range(FOLDS)]
    probs = np.empty((len(given), parts[0][0]["values"].shape[1]))
    for number, (values, _) in enumerate(parts):
        probs[fold == number] = values["values"].double().numpy()
    probs /= probs.sum(1, keepdims=True)
    suspicion = {"FasTEN": ours["values"].double().numpy()}
    for name in CLEANLAB:
        suspicion[f"cleanlab, {name}"] = -np.asarray(get_label_quality_scores(given, probs, method=name))
    return {
        **json.loads((folder / "about.json").read_text(encoding="utf-8")),
        "rows": len(given),
        "wrong": float(wrong.mean()),
        "scores": {n: {"auroc": auroc(s, wrong), "average_precision": auprc(s, wrong)} for n, s in suspicion.items()},
        "fold_accuracy_of_truth": float((probs.argmax(1) == truth).mean()),
        "time": share_of_time(timed or folder),
    }


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    steps = parser.add_subparsers(required=True, dest="step")
    first = steps.add_parser("train")
    first.add_argument("data")
    first.add_argument("--noise", required=True)
    first.add_argument("--seed", type=int, default=1)
    first.add_argument("--epochs", type=int)
    first.add_argument("--nets", help="comma-separated: some of fasten, fold0 to fold4; all by default")
    first.add_argument("--root", type=Path, default=Place.root)
    first.add_argument("--device", default="auto")
    first.add_argument("--out", type=Path, required=True)
    second = steps.add_parser("score")
    second.add_argument("folders", nargs="+", type=Path)
    second.add_argument("--timed", type=Path)
    second.add_argument("--out", type=Path, default=Path("benchmarks/against_cleanlab.json"))
    asked = parser.parse_args(words)
    if asked.step == "train":
        train_all(asked)
        return
    found = [score(folder, asked.timed) for folder in asked.folders]
    for run in found:
        print(run["run"]["noise"], json.dumps(run["scores"], indent=1), f"share of time {run['time']['share']:.3f}")
    write_text(asked.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
