"""The start of a run: its folder, and a record of what is run, where, and on which data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fasten import ranks
from fasten.contract import Draw, Recipe, Stage
from fasten.data.encoding import Column, names_of
from fasten.data.task import Task
from fasten.files import alone_in
from fasten.machine import Machine
from fasten.nets import Heads
from fasten.records import SCHEMA, Record, Run, environment, read_record, write_record
from fasten.report.verdict import AUDIT
from fasten.runs.checkpoint import Checkpoints
from fasten.runs.folders import check_folder, log_alone
from fasten.sentences import typed


def holds(out: Path, run: Run) -> bool:
    """Whether the folder holds exactly this run."""
    record = record_in(out)
    return record is not None and record["run"] == run.to_json()


@contextmanager
def at_work(out: Path, *, new: bool = False) -> Iterator[None]:
    """Keep other commands out of a run's folder while it is at work; of several ranks, the first one does this."""
    with alone_in(out) if ranks.rank() == 0 else nullcontext():
        if new and ranks.rank() == 0:
            check_folder(out)  # again: another command may have been quicker
        yield


def check_trained(folder: Path, record: Record) -> None:
    """Refuse the folder of an audit, which is like that of a run but has no model."""
    if record["run"].get("method") == AUDIT:
        said = f"{folder} is an audit of stored probabilities, and holds no model"
        raise ValueError(f"{said}; {typed('audit', folder)} shows what was found")


def check_plan(method: nn.Module, plan: list[Stage], task: Task) -> None:
    """Refuse updates of a single row if batch norm would have to learn from it."""
    for stage in plan:
        alone = [draw for draw in stage.draws.values() if _taken(draw, task) == 1]
        together = getattr(method, "norm", None) == "joint" and len(stage.draws) > 1
        if alone and not together and not _takes_one(method, task.shape):
            taken, cure = "", "add such rows, or set batch_size or clean_batch to 2 or more"
            if (parts := alone[0].parts) > 1:  # on one rank, the method's own range rules this out
                least = 2 * parts * ranks.world()
                taken, cure = " at a time", f"on {ranks.world()} ranks set clean_batch to {least} or more"
            raise ValueError(
                f"an update would take one {alone[0].source} row of {task.name}{taken}, from which batch norm cannot "
                f"learn; {cure}"
            )


def _taken(draw: Draw, task: Task) -> int:
    """How many rows a rank takes at a time in an update; in a pass, at most as many as there are."""
    rows = {"noisy": len(task.given), "clean": len(task.clean), "both": len(task.given) + len(task.clean)}
    size = min(draw.size, rows[draw.source]) if draw.shuffled else draw.size
    return len(ranks.places(size, min(ranks.LEAST, size))) // draw.parts


@torch.no_grad()
def _takes_one(method: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the network can be trained on one example. It is tried, since its layers and the shape decide."""
    for net in [net for net in method.modules() if isinstance(net, Heads)]:
        example = torch.zeros(1, *shape, dtype=next(net.parameters()).dtype, device=next(net.parameters()).device)
        try:
            with net.parts.using(virtual=True):  # leaves the running statistics as they are
                net.train()(example)
        except ValueError:
            return False
    return True


def new_record(run: Run, task: Task, machine: Machine, how: dict[str, Any]) -> Record:
    """The record of a run that has just started; `how` is what `resume` needs to continue it in the same way."""
    return {
        "schema": SCHEMA,
        "run": run.to_json(),
        "environment": environment() | _described(machine) | _ranks(run.recipe) | {"how": how},
        "data": _sizes(task)
        | {"num_classes": task.num_classes, "noise_rate": task.noise_rate, "class_names": list(task.class_names)}
        | _own_data(task)
        | (_measured_by(task) if (run.own or {}).get("verified") else {}),
        "epochs": [],
        "evaluation": None,
        "references": {},
        "result": None,
        "notes": [],
    }


def record_in(folder: Path) -> Record | None:
    """The record of the run in a folder, or None; from the last checkpoint if the file is lost or damaged."""
    try:
        return read_record(folder)
    except ValueError:
        record = _last_record(folder)
        if record is None and (folder / "record.json").exists():
            lost = f"{folder / 'record.json'} is damaged, and there is no checkpoint to restore it from"
            raise ValueError(f"{lost}; remove the folder {folder}, and the same command starts the run again") from None
        return record


def _last_record(folder: Path) -> Record | None:
    found = Checkpoints(folder / "checkpoint").load()
    return None if found is None else found[1]["record"]


def saved_record(out: Path, say: Callable[[str], None]) -> Record:
    """The record of a run to continue, restored from the last checkpoint if it is lost or damaged."""
    try:
        return read_record(out)
    except ValueError:
        record = _last_record(out)
        if record is None and log_alone(out):
            left = f"all that is left of the run in {out} is its log, from which it cannot continue"
            raise ValueError(f"{left}; the same `fasten train` as before starts it again") from None
        if record is None:
            raise
        say("record.json is lost or damaged; it is restored from the last checkpoint")
        if ranks.rank() == 0:
            write_record(out, record)
        return record


def _sizes(task: Task) -> dict[str, int]:
    return {f"rows_{name}": len(getattr(task.split, name)) for name in ("noisy", "clean", "valid", "test")}


def _own_data(task: Task) -> dict[str, Any]:
    """What is needed to read new data as the user's own data were read; known data sets need none of it."""
    if task.known is None:
        return {}
    values: dict[str, Any] = {"mean": list(task.mean), "std": list(task.std)}
    counts = {"rows_verified": int((task.known.verified >= 0).sum()), "rows_held": int(task.known.held.sum())}
    counts["rows_test_as_given"] = task.test_as_given
    names = {"kept_classes": [task.class_names[c] for c in task.unseen_classes]}
    return values | _examples(task) | names | counts | _digest(task)


def _examples(task: Task) -> dict[str, Any]:
    """What an example is like."""
    values: dict[str, Any] = {"shape": list(task.shape), "feature_names": list(names_of(task.features))}
    if any(column != Column(column.name) for column in task.features):  # new rows need more than the names
        values["columns"] = [column.to_json() for column in task.features]
    return values


def _measured_by(task: Task) -> dict[str, Any]:
    """Verdicts that labels.csv does not have; only those from a list, since the others are in the data."""
    return {"measured_by": [list(verdict) for verdict in task.measured_by]}


def _digest(task: Task) -> dict[str, str]:
    """A checksum of which rows a user's own data have, what is known about them, and how they are split."""
    known = task.known
    if known is None:
        return {}
    digest = hashlib.sha256("\0".join(known.ids).encode("utf-8", "surrogatepass"))
    for rows in (known.given, known.verified, known.held, *vars(task.split).values()):
        digest.update(rows.tobytes())
    return {"rows_sha256": digest.hexdigest()}


def _described(machine: Machine) -> dict[str, Any]:
    """The properties of the machine that a number may depend on."""
    names = ("precision", "kernels", "capture", "deterministic")
    return {"device": machine.name} | {name: getattr(machine, name) for name in names}


def _ranks(recipe: Recipe) -> dict[str, Any]:
    """How many ranks there are, and whether their batch norm is synchronised."""
    norm = "synchronised" if recipe.sync_norm else "local"
    return {} if ranks.world() == 1 else {"ranks": ranks.world(), "batch_norm": norm}


def other_machine(record: Record, machine: Machine) -> list[str]:
    """A sentence if this is not the machine that the run was started on, according to the record's `environment`."""
    begun = record["environment"].get("device")
    return [] if begun in (None, machine.name) else [f"started on {begun}, continued on {machine.name}"]


def check_same(record: Record, task: Task, name: str) -> None:
    """Refuse data or injected noise that have changed since the run was started: its checkpoints only fit the same."""
    now = _sizes(task) | {"class_names": list(task.class_names)} | _digest(task) | _measured_by(task) | _examples(task)
    changed = any(record["data"].get(key, value) != value for key, value in now.items())
    if not changed and record["data"].get("noise_rate", task.noise_rate) != task.noise_rate:
        changed, (kind, _, path) = True, record["run"]["noise"].partition(":")
        name = path if kind == "matrix" else name
    if changed:
        raise ValueError(f"{name} is no longer what the run was started on; restore it, or start again elsewhere")
