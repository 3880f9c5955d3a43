"""A trained run, loaded from its folder to predict again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from fasten import metrics
from fasten.data.task import Task
from fasten.engine import predict
from fasten.machine import Machine
from fasten.records import Run, read_record
from fasten.training import build_method, make_loader


def load_method(folder: Path, task: Task) -> nn.Module:
    """The method of a finished run with the weights of its selected epoch."""
    record = read_record(folder)
    if record["result"] is None:
        raise ValueError(f"{folder} is not finished; `fasten resume {folder}` goes on with it")
    if record["data"]["num_classes"] != task.num_classes:
        raise ValueError(
            f"{folder} was trained on {record['data']['num_classes']} classes and {task.name} has {task.num_classes}"
        )
    run = Run.from_json(record["run"])
    method = build_method(run, task)
    path = folder / "model.safetensors"
    try:
        weights = safetensors.torch.load_file(path)
        missing, unexpected = method.load_state_dict(weights, strict=False)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path} does not fit {task.name}, or is damaged: {str(error).splitlines()[0]}") from None
    known = {name for name, _ in method.named_parameters()}
    if unexpected or known.intersection(missing):
        raise ValueError(f"{path} does not hold the weights of {run.method}")
    return method


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
