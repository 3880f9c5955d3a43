"""Load a trained run from its folder, to predict with it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as read_safetensors
from torch import Tensor, nn

from fasten import engine, metrics
from fasten.audit import table_csv
from fasten.cells import escaped
from fasten.data.encoding import Column
from fasten.data.images import in_words
from fasten.data.rows import Rows
from fasten.data.splits import Split
from fasten.data.task import Labels, Task
from fasten.datasets import Place, find_dataset, is_own, load_task
from fasten.files import replaced
from fasten.machine import Machine
from fasten.own import Own, make_test_task, read_rows
from fasten.records import Record, Run
from fasten.runs.beginnings import check_trained
from fasten.runs.building import build_method, fill_networks, make_loader
from fasten.runs.folders import finished_record

CHUNK = 1000  # rows at a time


def read_finished(folder: Path) -> Record:
    """The record of a finished run that has a model."""
    record = finished_record(folder)
    check_trained(folder, record)
    return record


def known_test_task(
    record: Record, data: str, root: Path | None = None, labels: str | None = None, download: bool = False
) -> Task:
    """The test rows of a known data set, split by the run's seed, from `root` or where the run found the files."""
    how = (record["environment"].get("how") or {}) if data == record["run"].get("dataset") else {}
    found = Path(how.get("root") or os.environ.get("FASTEN_DATA", "data"))
    place = Place(root or found, download, labels or how.get("label_set", Place.label_set))
    run = Run.from_json(record["run"])
    return load_task(data, "none", run.seed, place, run.clean)  # the noise does not touch test rows


def load_new_task(record: Record, data: str, max_bad: int = Own.max_bad, root: Path | None = None) -> Task:
    """Data to predict, as the test rows of a task: all of a user's rows, or the test rows of a known data set."""
    if not is_own(data):
        return known_test_task(record, data, root)
    rows = read_new_rows(record, data, max_bad, labelled=False)
    return make_test_task(replace(rows, split=(None,) * len(rows)), examples_of(record))


def read_new_rows(
    record: Record, data: str, max_bad: int = Own.max_bad, *, labelled: bool = True, own: Own | None = None
) -> Rows:
    """Read a user's own data with the classes, the size and the features that the run knows; `own` says how.

    By default, data at the path that the run was trained on are read as they were then.
    """
    run, about = Run.from_json(record["run"]), examples_of(record)
    own = own or (Own.from_json(run.own) if is_same(data, run.dataset) else Own())
    return read_rows(
        data,
        replace(own, max_bad=max_bad),
        about["class_names"],
        labelled=labelled,
        shape=about["shape"],
        features=features_of(about),
    )


def features_of(about: Mapping[str, Any]) -> list[Column] | None:
    """The columns that a run's features were made from, by its record's `data`; None if they have no names."""
    columns = about.get("columns") or [{"name": name} for name in about.get("feature_names") or ()]
    return [Column.from_json(values) for values in columns] or None


def is_same(path: str, other: str) -> bool:
    """Whether two paths lead to the same place, however they are written."""
    return os.path.realpath(path) == os.path.realpath(other)


def examples_of(record: Record) -> Mapping[str, Any]:
    """What a run's examples are like, its record's `data`: classes, shape, mean, standard deviation and more."""
    data: dict[str, Any] = record["data"]
    if "shape" in data:
        fitting = (1, data["shape"][0]) if data["shape"] else ()
        if not all(len(data.get(key, ())) in fitting for key in ("mean", "std")):
            raise ValueError("the record of this run is damaged: its mean or std does not fit its shape; run it again")
        return data
    name = record["run"]["dataset"]
    dataset = find_dataset(name)
    if not dataset.shape or "class_names" not in data:
        raise ValueError(f"the record of this run on {name} does not say what its examples are like; run it again")
    return {**data, "shape": dataset.shape, "mean": dataset.mean, "std": dataset.std}


def blank_task(record: Record) -> Task:
    """A task for examples like the run's, without any rows."""
    about, none = examples_of(record), np.empty(0, np.int64)
    shape = tuple(about["shape"])
    x = np.empty((0, *shape[1:], shape[0]), np.uint8) if len(shape) == 3 else np.empty((0, *shape), np.float32)
    names, mean, std = (tuple(about[key]) for key in ("class_names", "mean", "std"))
    split = Split(none, none, none, none)
    return Task("the run's data", x, split, none, none, none, none, names, mean=mean, std=std)


def load_method(folder: Path, task: Task) -> nn.Module:
    """The method of a finished run with the weights of its selected epoch."""
    record = read_finished(folder)
    _check_examples(folder, record["data"], task)
    run = Run.from_json(record["run"])
    method = build_method(replace(run, recipe=replace(run.recipe, weights=None)), trainable(task))
    path = folder / "model.safetensors"
    weights = _read_weights(path, record["result"].get("model_sha256"))
    try:
        fits = fill_networks(method, weights)
    except RuntimeError:
        raise ValueError(
            f"{folder} was trained on {run.dataset}; it does not take {task.name}, of {in_words(task.shape)}"
        ) from None
    if not fits:
        raise ValueError(f"{path} does not hold the weights of {run.method}; run it again in another folder")
    return method


def trainable(task: Task) -> Task:
    """The same task with one noisy and one clean row, without which no method can be built."""
    none, first, second = (np.array(rows, np.int64) for rows in ([], [0], [1]))
    labels: Any = {"given": first, "clean": first, "valid": none, "test": none, "truth": None}
    return replace(task, split=Split(first, second, none, none), transition=np.eye(task.num_classes), **labels)


def _check_examples(folder: Path, data: dict[str, Any], task: Task) -> None:
    if data["num_classes"] != task.num_classes:
        raise ValueError(
            f"{folder} was trained on {data['num_classes']} classes and {task.name} has {task.num_classes}; give data "
            "of the same classes"
        )
    for ours, theirs in zip(data.get("class_names", ()), task.class_names, strict=False):
        if ours != theirs:
            raise ValueError(
                f"{folder} knows a class {ours!r} where {task.name} has {theirs!r}; give data of the same classes"
            )
    if "shape" in data:
        check_shape(folder, data["shape"], task)


def check_shape(folder: Path, shape: Sequence[int], task: Task) -> None:
    """Refuse a task whose examples do not have the shape of those that a run was trained on."""
    if tuple(shape) != task.shape:
        raise ValueError(
            f"{folder} was trained on examples of {in_words(shape)}; it does not take {task.name}, of "
            f"{in_words(task.shape)}"
        )


def _read_weights(path: Path, sha256: str | None) -> dict[str, Tensor]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; run it again in another folder") from None
    try:
        weights = read_safetensors(data)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}); run it again in another folder") from None
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError(f"{path} is damaged (its checksum is not the record's); run it again in another folder")
    return weights


def predictions(folder: Path, task: Task, machine: Machine) -> Iterator[NDArray[np.float32]]:
    """Yield a run's class probabilities (rows, N) for a task's test rows, in order, some rows at a time."""
    method = machine.place(load_method(folder, task))
    for probs in engine.predictions(method, make_loader(task, machine, seed=0), "test", chunk=CHUNK):
        yield probs.float().cpu().numpy()


def evaluate_run(folder: Path, task: Task, machine: Machine) -> dict[str, Any]:
    """Accuracy and NLL of a run's classifier on a task's test rows, and its scores for each class."""
    assert len(task.test), "whatever loads a task to test on refuses an empty one"
    counts, nll, done = np.zeros((task.num_classes, task.num_classes), np.int64), 0.0, 0
    for probs in predictions(folder, task, machine):
        labels = task.test[done : done + len(probs)]
        counts += metrics.count_pairs(labels, probs.argmax(1), task.num_classes)
        nll += len(probs) * (metrics.nll(probs.astype(np.float64), labels) or 0.0)
        done += len(probs)
    return {
        "rows": done,
        "test_accuracy": float(np.trace(counts) / done),
        "test_nll": nll / done,
        "classes": _class_scores(counts, task.class_names),
        "notes": list(task.notes),
    }


def _class_scores(counts: Labels, names: Sequence[str]) -> list[dict[str, Any]]:
    """For each class: its rows, the share of them predicted right, its predictions, and the share of them right.

    `counts[i, j]` is the number of rows of class i that are predicted as j.
    """
    right, rows, predicted = np.diag(counts), counts.sum(1), counts.sum(0)
    return [
        {
            "class": name,
            "rows": int(rows[place]),
            "accuracy": float(right[place] / rows[place]) if rows[place] else None,
            "predicted": int(predicted[place]),
            "precision": float(right[place] / predicted[place]) if predicted[place] else None,
        }
        for place, name in enumerate(names)
    ]


def check_predictions(out: Path) -> None:
    """Refuse to replace a file that holds anything but predictions."""
    if not out.exists():
        return
    with open(out, "rb") as file:
        if not file.readline().replace(b'"', b"").startswith(b"id,predicted,p"):
            raise ValueError(f"{out} already exists and does not hold predictions; choose another --out")


def predict_run(folder: Path, task: Task, machine: Machine, out: Path, probabilities: bool = False) -> dict[str, Any]:
    """Write a run's predictions for a task's test rows as a CSV file, whole or not at all.

    Columns: `id`, `predicted`, `p` (the probability of that class) and, if asked for, `p_NAME` for each class.
    """
    ids, names = task.ids_of(task.split.test), task.class_names
    count, confidence, done = np.zeros(len(names), np.int64), 0.0, 0
    with replaced(out) as file:
        for probs in predictions(folder, task, machine):
            table = _predicted(ids[done : done + len(probs)], names, probs, probabilities)
            file.write(table_csv(table, header=done == 0).encode("utf-8"))
            count += np.bincount(probs.argmax(1), minlength=len(names))
            confidence, done = confidence + float(probs.max(1).sum(dtype=np.float64)), done + len(probs)
    predicted = dict(zip(names, count.tolist(), strict=True))
    summary = {"out": os.fspath(out), "rows": done, "predicted": predicted, "mean_p": confidence / max(1, done)}
    return summary | {"notes": list(task.notes)}


def _predicted(
    ids: Sequence[Any] | Labels, names: Sequence[str], probs: NDArray[np.float32], probabilities: bool
) -> pd.DataFrame:
    best = pd.Index([escaped(name) for name in names]).take(probs.argmax(1))
    table = pd.DataFrame({"id": [escaped(name) for name in ids], "predicted": best, "p": probs.max(1)})
    if not probabilities:
        return table
    return pd.concat([table, pd.DataFrame(probs, columns=[f"p_{name}" for name in names])], axis=1)
