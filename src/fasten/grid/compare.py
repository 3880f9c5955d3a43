"""Compare methods on the same data: runs in one folder -> one table, with intervals and paired tests.

Each run has a folder of its own, as `train` writes it. All that is known is in these folders: the same command
continues where it stopped, and one with more methods or seeds adds to what is there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

from fasten.constants import COMPARED, SETTINGS
from fasten.contract import Recipe
from fasten.data.task import Task
from fasten.datasets import Place, Ready, check_noise, is_own, load_task, prepare_data
from fasten.files import alone_in, is_empty, sweep, write_text
from fasten.grid.cluster import Cluster, room_on_ray
from fasten.grid.standings import FIXED, SCHEMA, Comparison, RunOutcome, Summary, folder_name, summarise
from fasten.grid.workers import Job, in_this_process
from fasten.machine import choose_machine
from fasten.methods import METHODS, Entry
from fasten.options import apply_settings, find_method, option_types
from fasten.own import AS_GIVEN, Own
from fasten.records import Record, Run, read_record, taken_back
from fasten.report.comparison import csv_text, markdown, render
from fasten.runs.beginnings import check_plan, check_same, holds, record_in
from fasten.runs.building import build_method, plan_of
from fasten.runs.folders import check_folder, check_no_file
from fasten.runs.training import Settings
from fasten.suggest import nearest

MOST_SEEDS = 1000  # a larger number is taken for a seed, not for how many


@dataclass(frozen=True)
class Request:
    """A comparison as the command line gives it."""

    dataset: str
    noise: str = "none"
    methods: str = COMPARED
    seeds: str = "3"
    epochs: int | None = None
    settings: Sequence[str] = ()
    own: Own = field(default_factory=Own)


Done = Callable[[RunOutcome, int, int, bool], None]  # a run, its number, the number of all, whether it was there before


def prepare(request: Request, out: Path, settings: Settings) -> Comparison:
    """The comparison, after every check that needs no training; nothing is written."""
    asked = request
    if is_own(request.dataset):
        asked = replace(request, dataset=_written(request.dataset))
        request = _as_before(asked, out)
    check_noise(request.dataset, request.noise)
    device_type = choose_machine(settings.device).device.type
    seeds, names = read_seeds(request.seeds), read_methods(request.methods)
    ready = prepare_data(request.dataset, request.own, settings.place or Place(), device_type=device_type)
    load = cache(lambda seed: load_task(request.dataset, request.noise, seed, ready.place, None, ready.own))
    if request.methods == "all":
        names = [name for name in names if _allows(load(seeds[0]), METHODS[name])]
    comparison = _plan(request, names, seeds, ready)
    check_out(comparison, out)
    recorded = [record_in(out / folder_name(run)) for run in comparison.runs]
    missing = {run.method for run, record in zip(comparison.runs, recorded, strict=True) if record is None}
    for run in comparison.runs[: len(names)]:
        if run.method in missing:  # a method that cannot run is reported before the first run
            method = build_method(run, load(run.seed))
            check_plan(method, plan_of(method, run.recipe), load(run.seed))
    others = (record_in(folder) for folder in sorted(out.glob("*-seed*")))  # of commands with other methods or seeds
    first = next(filter(None, chain(recorded, others)), None)
    if first is not None and (missing or request != asked):  # new runs must have the same rows as those that are there
        check_same(first, load(first["run"]["seed"]), request.dataset)
    return comparison


def _written(path: str) -> str:
    """A path as it is written in records: `photos/` and `photos` are the same data; `./digits` is no known data set."""
    short = os.path.normpath(path)
    return short if is_own(short) else path


def _as_before(request: Request, out: Path) -> Request:
    """The request with the paths of the comparison in the folder, if they lead to the same files: runs go by paths."""
    if not (out / "compare.json").exists():
        return request
    before = _read(out)["comparison"]
    own = request.own.to_json()
    own = {key: _one_place((before.get("own") or {}).get(key), value) for key, value in own.items()}
    return replace(request, dataset=_one_place(before.get("dataset"), request.dataset), own=Own.from_json(own))


def _one_place(there: Any, here: Any) -> Any:
    """A path as it was written before, if both lead to the same place; otherwise as it is written now."""
    if not isinstance(there, str) or not isinstance(here, str) or not is_own(there):
        return here
    return there if os.path.realpath(there) == os.path.realpath(here) else here


def _plan(request: Request, methods: Sequence[str], seeds: Sequence[int], ready: Ready) -> Comparison:
    data, noise, epochs = request.dataset, request.noise, request.epochs
    shared, own = divide_settings(request.settings, methods)
    chosen = {name: apply_settings(name, ready.recipe, [*shared, *own[name]], epochs) for name in methods}
    runs = [Run(data, noise, name, *chosen[name], seed, None, ready.own) for seed in seeds for name in methods]
    fields = {key: getattr(runs[0].recipe, key) for key in (text.partition("=")[0] for text in shared)}
    labels, place = ready.place.label_set, ready.place
    return Comparison(data, noise, labels, epochs, fields, methods, seeds, runs, ready.own, place)


def compare(
    comparison: Comparison,
    out: Path,
    settings: Settings,
    done: Done = lambda *run: None,
    cluster: Cluster | None = None,
) -> Summary:
    """Carry out the runs that are missing or unfinished; the tables are rewritten after each."""
    out.mkdir(parents=True, exist_ok=True)
    with alone_in(out):
        sweep(out)
        return _carry_out(comparison, out, settings, done, cluster)


def _carry_out(comparison: Comparison, out: Path, settings: Settings, done: Done, cluster: Cluster | None) -> Summary:
    failed = _failures(out)
    places = {out / folder_name(run): i for i, run in enumerate(comparison.runs)}
    outcomes = [_outcome(comparison.runs[i], record_in(path), failed.get(path.name)) for path, i in places.items()]
    summary = _write(out, comparison, outcomes)
    place = comparison.place
    todo = []
    for folder, i in places.items():
        if outcomes[i].state == "open":
            todo.append(Job(comparison.runs[i], folder, place.root, place.label_set))
        else:
            done(outcomes[i], i + 1, len(outcomes), True)

    def ended(job: Job, error: str | None) -> None:
        nonlocal summary
        i = places[job.folder]
        outcomes[i] = _outcome(job.run, None if error else read_record(job.folder), error)
        summary = _write(out, comparison, outcomes)
        done(outcomes[i], i + 1, len(outcomes), False)

    if todo and cluster is not None:
        with room_on_ray(cluster, settings.device or "auto", out, settings.say) as room:
            room.work(todo, ended)
    elif todo:
        in_this_process(replace(settings, place=place))(todo, ended)
    if all(outcome.state == "failed" for outcome in outcomes):
        first = outcomes[0]
        raise ValueError(f"none of the runs finished; {first.method}, seed {first.seed}: {first.error}")
    return summary


def _outcome(run: Run, record: Record | None, error: str | None = None) -> RunOutcome:
    if record is None or record["result"] is None:
        return RunOutcome(run.method, run.seed, "failed" if error else "open", error=error)
    keys = ("test_accuracy", "valid_accuracy", "train_seconds", "peak_memory_bytes")
    values = {key: record["result"][key] for key in keys} | {"rows_valid": record["data"].get("rows_valid")}
    notes = [note for note in record.get("notes", []) if note.endswith(AS_GIVEN)]
    if went := taken_back(record):
        notes.append(f"{run.method}, seed {run.seed}, {went}")
    values["notes"] = tuple(notes)
    return RunOutcome(run.method, run.seed, "finished", **values, device=record["environment"].get("device"))


def read_seeds(text: str) -> list[int]:
    """Read a number of seeds, or the seeds themselves, separated by commas.

    >>> read_seeds("3"), read_seeds("5,6"), read_seeds("5,")
    ([0, 1, 2], [5, 6], [5])
    """
    parts = [part.strip() for part in text.split(",")]
    several = len(parts) > 1
    if not all(part.isdecimal() or (several and not part) for part in parts) or not any(parts):
        raise ValueError(f"--seeds takes a number of seeds, or seeds separated by commas, got {text!r}")
    numbers = [int(part) for part in parts if part]
    if several:
        return _once("--seeds", numbers)
    if not 1 <= numbers[0] <= MOST_SEEDS:
        cure = f"the seed {numbers[0]} itself is written with a comma after it: --seeds {numbers[0]},"
        raise ValueError(f"--seeds takes a number of seeds from 1 to {MOST_SEEDS}, got {numbers[0]}; {cure}")
    return list(range(numbers[0]))


def read_methods(text: str) -> list[str]:
    """Read `all`, or known names separated by commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if text == "all":
        return list(METHODS)
    if not names:
        raise ValueError(f"--methods takes names separated by commas, got {text!r}; `fasten methods` lists them")
    for name in names:
        find_method(name)
    return _once("--methods", names)


def _once(flag: str, values: list[Any]) -> list[Any]:
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise ValueError(f"{flag} names {twice[0]} twice; give it once")
    return values


def divide_settings(settings: Sequence[str], methods: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Split settings into `key=value` of the recipe, for all methods, and `METHOD.key=value`, for one.

    >>> divide_settings(["rate=0.1", "fasten.threshold=0.9"], ["fasten", "cross-entropy"])
    (['rate=0.1'], {'fasten': ['threshold=0.9'], 'cross-entropy': []})
    """
    shared: list[str] = []
    own: dict[str, list[str]] = {name: [] for name in methods}
    for text in settings:
        key, sign, value = text.partition("=")
        method, dot, option = key.partition(".")
        if not sign:
            raise ValueError(f"--set takes key=value or METHOD.key=value, got {text!r}; write for example rate=0.05")
        if not dot:
            _check_field(key, value, methods)
            shared.append(text)
            continue
        find_method(method)
        if method not in own:
            raise ValueError(f"{key} is set, but {method} is not compared; add it to --methods or leave {key} out")
        own[method].append(f"{option}={value}")
    return shared, own


def _check_field(key: str, value: str, methods: Sequence[str]) -> None:
    fields = get_type_hints(Recipe)
    options = {name: option_types(METHODS[name]) for name in methods}
    owners = [name for name in methods if key in options[name]]
    if key not in fields and owners:
        raise ValueError(f"{key} is an option of {', '.join(owners)}; write {owners[0]}.{key}={value}")
    if key not in fields:
        known = dict.fromkeys([*fields, *(option for found in options.values() for option in found)])
        raise ValueError(f"unknown option {key!r}; {nearest(SETTINGS.get(key, key), known)}")


def _allows(task: Task, entry: Entry) -> bool:
    """Whether the data have what a method needs."""
    there = {
        "true_transition": task.transition is not None,
        "clean_set": len(task.clean) > 0,
        "images": task.x.ndim == 4,
    }
    return all(there[need] for need in there if getattr(entry, need))


def check_out(comparison: Comparison, out: Path) -> None:
    """Refuse a folder that holds something else, or a comparison with other settings."""
    check_no_file(out, "a new folder, or that of a comparison")
    if is_empty(out):
        return
    before, now = _read(out)["comparison"], comparison.to_json()
    for key in FIXED:
        if before.get(key) != now[key]:
            there, here = (json.dumps(values.get(key), ensure_ascii=False) for values in (before, now))
            raise ValueError(f"{out} holds a comparison with {key} {there}, not {here}; choose another --out")
    for run in comparison.runs:
        folder = out / folder_name(run)
        if record_in(folder) is None:
            check_folder(folder)
        elif not holds(folder, run):
            raise ValueError(f"{folder} holds a run with other options; choose another --out")


def _read(out: Path) -> Summary:
    path = out / "compare.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        sound = found["schema"] == SCHEMA and isinstance(found["comparison"], dict)
        sound = sound and all({"folder", "state", "error"} <= run.keys() for run in found["runs"])
    except FileNotFoundError:
        raise ValueError(f"{out} is not empty and holds no comparison; choose another --out") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise ValueError(f"{path} is damaged or from another version; choose another --out")
    return dict(found)


def _failures(out: Path) -> dict[str, str]:
    """Runs that failed before, and why; one whose folder was removed is tried again."""
    runs = _read(out)["runs"] if (out / "compare.json").exists() else []
    return {run["folder"]: run["error"] for run in runs if run["state"] == "failed" and (out / run["folder"]).exists()}


def _write(out: Path, comparison: Comparison, outcomes: Sequence[RunOutcome]) -> Summary:
    summary = summarise(comparison, outcomes)
    write_text(out / "compare.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    for name, make in (("compare.csv", csv_text), ("compare.md", markdown), ("compare.html", render)):
        write_text(out / name, make(summary))
    return summary
