"""A trained run, loaded from its folder to predict again."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_weights
from torch import Tensor, nn

from fasten import metrics
from fasten.data.task import Task
from fasten.datasets import Place, load_task
from fasten.engine import predict
from fasten.machine import Machine
from fasten.records import Record, Run, read_record
from fasten.training import build_method, make_loader


def read_finished(folder: Path) -> Record:
    """The record of a run that came to its end."""
    record = read_record(folder)
    if record["result"] is None:
        raise ValueError(f"{folder} is not finished; `fasten resume {folder}` goes on with it")
    return record


def load_test_task(
    record: Record, data: str, root: Path | None = None, labels: str | None = None, download: bool = False
) -> Task:
    """A data set split by the run's seed: of the run's own data, the test rows are those that it held back.

    The run's own data are looked for where it found them, unless `root` says otherwise.
    """
    how = record["environment"].get("how", {}) if data == record["run"].get("dataset") else {}
    found = Path(how.get("root") or os.environ.get("FASTEN_DATA", "data"))
    place = Place(root or found, download, labels or how.get("label_set", Place.label_set))
    run = Run.from_json(record["run"])
    return load_task(data, "none", run.seed, place, run.clean)  # the noise does not touch test rows


def load_method(folder: Path, task: Task) -> nn.Module:
    """The method of a finished run with the weights of its selected epoch."""
    record = read_finished(folder)
    _check_classes(folder, record["data"], task)
    run = Run.from_json(record["run"])
    method = build_method(replace(run, recipe=replace(run.recipe, weights=None)), task)  # its own weights follow
    path = folder / "model.safetensors"
    weights = _read_weights(path, record["result"].get("model_sha256"))
    try:
        missing, unexpected = method.load_state_dict(weights, strict=False)
    except RuntimeError:
        shape = "×".join(map(str, task.shape))
        raise ValueError(f"{folder} was trained on {run.dataset}; it does not take {task.name}, of {shape}") from None
    known = {name for name, _ in method.named_parameters()}
    if unexpected or known.intersection(missing):
        raise ValueError(f"{path} does not hold the weights of {run.method}; run it again in another folder")
    return method


def _check_classes(folder: Path, data: dict[str, Any], task: Task) -> None:
    if data["num_classes"] != task.num_classes:
        raise ValueError(
            f"{folder} was trained on {data['num_classes']} classes and {task.name} has {task.num_classes}; give data "
            "of the same classes"
        )
    for ours, theirs in zip(data.get("class_names", ()), task.class_names, strict=False):
        if ours != theirs:
            raise ValueError(f"{folder} knows a class {ours!r} where {task.name} has {theirs!r}; give data of its own")


def _read_weights(path: Path, sha256: str | None) -> dict[str, Tensor]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; run it again in another folder") from None
    try:
        weights = load_weights(data)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}); run it again in another folder") from None
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError(f"{path} is damaged (its checksum is not the record's); run it again in another folder")
    return weights


def evaluate_run(folder: Path, task: Task, machine: Machine) -> dict[str, Any]:
    """Accuracy and NLL of a run's classifier on a task's test rows."""
    method = machine.place(load_method(folder, task))
    if len(task.test) == 0:
        raise ValueError(f"{task.name} has no test rows")
    with torch.no_grad():
        probs = predict(method, make_loader(task, machine, seed=0), "test").double().cpu().numpy()
    return {
        "rows": len(task.test),
        "test_accuracy": metrics.accuracy(np.asarray(probs), task.test),
        "test_nll": metrics.nll(probs, task.test),
    }
