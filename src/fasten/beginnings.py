"""What a run begins with: a folder of its own, and a record of what is run, where, and on which data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fasten import ranks
from fasten.contract import Recipe
from fasten.data.task import Task
from fasten.machine import Machine
from fasten.records import SCHEMA, Record, Run, environment
from fasten.report.verdict import AUDIT
from fasten.sentences import typed

FILES = (
    *("record.json", "model.safetensors", "tables.safetensors", "labels.csv", "transition.csv", "report.html"),
    *("probabilities.npy", "gallery.json", "log.jsonl", "checkpoint"),
)


def check_folder(out: Path) -> None:
    """Refuse a folder that holds a run, a file that the run would replace, or something that is no folder."""
    for folder in (out, *out.parents):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; --out takes a new folder")
    if (out / "record.json").exists():
        raise ValueError(f"{out} already holds a run; {typed('resume', out)} goes on with it, or choose another --out")
    for name in FILES:
        if (out / name).exists():
            raise ValueError(f"{out} already holds {name}, which the run would replace; choose another --out")


def check_trained(folder: Path, record: Record) -> None:
    """Refuse the folder of an audit, which is like that of a run but for the model."""
    if record["run"].get("method") == AUDIT:
        said = f"{folder} is an audit of stored probabilities, and holds no model"
        raise ValueError(f"{said}; {typed('audit', folder)} shows what was found")


def new_record(run: Run, task: Task, machine: Machine, how: dict[str, Any]) -> Record:
    """Of a run that has just begun; `how` is what `resume` has to know to go on as it was begun."""
    return {
        "schema": SCHEMA,
        "run": run.to_json(),
        "environment": environment() | _described(machine) | _ranks(run.recipe) | {"how": how},
        "data": _sizes(task)
        | {"num_classes": task.num_classes, "noise_rate": task.noise_rate, "class_names": list(task.class_names)}
        | _own_data(task),
        "epochs": [],
        "evaluation": None,
        "references": {},
        "result": None,
        "notes": [],
    }


def _sizes(task: Task) -> dict[str, int]:
    return {f"rows_{name}": len(getattr(task.split, name)) for name in ("noisy", "clean", "valid", "test")}


def _own_data(task: Task) -> dict[str, Any]:
    """What it takes to read new data as a user's own were read; known data sets need none of it."""
    if task.known is None:
        return {}
    values = {"shape": list(task.shape), "mean": list(task.mean), "std": list(task.std)}
    counts = {"rows_verified": int((task.known.verified >= 0).sum()), "rows_held": int(task.known.held.sum())}
    return values | {"feature_names": list(task.feature_names)} | counts


def _described(machine: Machine) -> dict[str, Any]:
    """What of the machine a number may depend on."""
    names = ("precision", "kernels", "capture", "deterministic")
    return {"device": machine.name} | {name: getattr(machine, name) for name in names}


def _ranks(recipe: Recipe) -> dict[str, Any]:
    """How many, and whether their batch norms were one."""
    norm = "synchronised" if recipe.sync_norm else "local"
    return {} if ranks.world() == 1 else {"ranks": ranks.world(), "batch_norm": norm}


def other_ranks(record: Record) -> list[str]:
    """A sentence where they are not as many as when the run began."""
    begun = record["environment"].get("ranks", 1)
    return [] if begun == ranks.world() else [f"begun on {begun} ranks, gone on with {ranks.world()}"]


def check_same(record: Record, task: Task, name: str) -> None:
    """A checkpoint fits the rows that it was made of, and a user's own data may have changed meanwhile."""
    now = _sizes(task) | {"class_names": list(task.class_names)}
    if any(record["data"].get(key, value) != value for key, value in now.items()):
        raise ValueError(f"{name} is no longer what the run was started on; bring it back, or begin anew elsewhere")
