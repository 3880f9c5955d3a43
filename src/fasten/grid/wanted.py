"""The runs that the tables and figures of the paper need: which are wanted, and which of them are recorded."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fasten.datasets import Place, find_dataset
from fasten.experiments import EXPERIMENTS, MINIATURE, PAPER
from fasten.experiments.spec import Cell, Curve, Experiment, Setting, key
from fasten.files import is_empty
from fasten.grid.compare import read_seeds
from fasten.grid.speed import measured
from fasten.options import apply_settings
from fasten.records import SCHEMA as RECORD_SCHEMA
from fasten.records import Run, taken_back
from fasten.report.names import paper_name
from fasten.report.values import setting
from fasten.runs.beginnings import record_in
from fasten.runs.folders import check_no_file
from fasten.suggest import nearest

SCHEMA = 1
SETTINGS: dict[str, Setting] = {"paper": PAPER, "miniature": MINIATURE}
MINIATURE_NOTE = "A miniature: digits and a few updates stand in for the paper's data and epochs."
ALL = "all"
SUMMARY = "reproduce.json"
BENCH = "bench.json"  # measured on the user's own machine, if it is in the folder
CHOOSABLE = ("method", "noise", "dataset", "row", "column")

Summary = dict[str, Any]


@dataclass(frozen=True)
class Wish:
    """What to make, as the command line gives it."""

    names: Sequence[str] = ()
    setting: str = "paper"
    seeds: str = "5"
    only: Sequence[str] = ()
    records: Sequence[Path] = ()  # folders with records of earlier runs, besides those of the repository


@dataclass(frozen=True)
class Wanted:
    """A run that something is made from, and what is known about it."""

    run: Run
    experiments: tuple[str, ...]
    state: Literal["recorded", "unfinished", "missing", "taken back"]  # after it had diverged: it is not the paper's
    record: Path | None = None  # of a finished run


@dataclass(frozen=True)
class Plan:
    """All that is to be made, and the runs for it; these come seed by seed, so that every cell soon has its first.

    Besides what was chosen, tables keep the cells and seeds that they showed before. These come from recorded runs, and
    nothing is run again for them.
    """

    setting: str
    seeds: tuple[int, ...]
    experiments: tuple[Experiment, ...]
    runs: tuple[Wanted, ...]
    shown_before: tuple[Wanted, ...] = ()
    records: tuple[Path, ...] = ()  # folders that --records named, now or before

    @property
    def missing(self) -> list[Run]:
        return [wanted.run for wanted in self.runs if wanted.record is None]


def experiments_of(wish: Wish) -> list[Experiment]:
    """The tables and figures that are asked for, all if none is named, limited to what `only` says."""
    if wish.setting not in SETTINGS:
        raise ValueError(f"unknown setting {wish.setting!r}; {nearest(wish.setting, SETTINGS)}")
    for name in wish.names:
        if name not in EXPERIMENTS and name != ALL:
            raise ValueError(f"unknown table or figure {name!r}; {nearest(name, [*EXPERIMENTS, ALL])}")
    everything = not wish.names or ALL in wish.names
    names = list(EXPERIMENTS) if everything else list(dict.fromkeys(wish.names))
    found = [EXPERIMENTS[name](SETTINGS[wish.setting]) for name in names]
    return choose(found if wish.setting == "paper" else [_in_miniature(e) for e in found], wish.only)


def _in_miniature(experiment: Experiment) -> Experiment:
    """An experiment without the paper's numbers: they are of other data and more epochs, and say nothing about these.

    What is made from runs names the data wherever it is shown.
    """
    cells = [replace(cell, paper=None, ci95=None) for cell in experiment.cells if cell.run or cell.bench]
    curves = [replace(curve, paper=()) for curve in experiment.curves]
    if not experiment.runs():
        return replace(experiment, cells=tuple(cells))
    return replace(
        experiment,
        title=f"{experiment.title} (a miniature, on digits)",
        cells=tuple(replace(cell, panel=_on_digits(cell.panel)) for cell in cells),
        curves=tuple(replace(curve, panel=_on_digits(curve.panel)) for curve in curves),
        about=f"{MINIATURE_NOTE} {experiment.about}",
    )


def _on_digits(panel: str) -> str:
    return f"{panel} (digits)" if panel else "digits"


def list_all(experiments: Iterable[Experiment], seeds: Sequence[int]) -> list[Summary]:
    """Each experiment with its runs, as plain values."""
    return [
        {"name": e.name, "title": e.title, "kind": e.kind, "runs": [run.to_json() for run in e.runs(seeds)]}
        for e in experiments
    ]


def choose(experiments: Sequence[Experiment], only: Sequence[str]) -> list[Experiment]:
    """What has the wanted traits, `key=value`; if there are several values for a key, any of them will do.

    A point of a figure keeps the cell that has our time for it, whose traits are fewer: without it, our accuracy would
    be drawn at the paper's time.
    """
    parts: list[Cell | Curve] = []
    for experiment in experiments:
        parts += [*experiment.cells, *experiment.curves]
    wanted: dict[str, set[str]] = {}
    for text in only:
        name, sign, value = text.partition("=")
        if not sign:
            raise ValueError(f"--only takes key=value, got {text!r}; write for example method=fasten")
        if name not in CHOOSABLE:
            raise ValueError(f"--only does not know {name!r}; {nearest(name, CHOOSABLE)}")
        known = dict.fromkeys(traits(part)[name] for part in parts if name in traits(part))
        value = next((own for own in known if value in (own, paper_name(own))), value)
        if value not in known:
            raise ValueError(f"nothing here has the {name} {value!r}; {nearest(value, known)}")
        wanted.setdefault(name, set()).add(value)

    def fits(part: Cell | Curve) -> bool:
        mine = traits(part)
        return all(mine.get(name) in values for name, values in wanted.items())

    def cells(experiment: Experiment) -> tuple[Cell, ...]:
        points = {(cell.panel, cell.row) for cell in experiment.cells if cell.x is not None and fits(cell)}
        return tuple(c for c in experiment.cells if fits(c) or (c.bench and (c.panel, c.row) in points))

    kept = [replace(e, cells=cells(e), curves=tuple(filter(fits, e.curves))) for e in experiments]
    kept = [experiment for experiment in kept if experiment.cells or experiment.curves]
    if not kept:
        raise ValueError(f"nothing here matches all of {', '.join(only)}; leave one of them out")
    return kept


def traits(part: Cell | Curve) -> dict[str, str]:
    """What a cell or curve can be chosen by."""
    found = {"row": part.row}
    if isinstance(part, Cell):
        found["column"] = part.column
        if part.bench:
            found["method"] = part.row
    return found if part.run is None else found | {name: getattr(part.run, name) for name in CHOOSABLE[:3]}


def settings_of(run: Run) -> list[str]:
    """A run's settings, `key=value`, that differ from its method's usual ones on its data set, apart from its length.

    >>> from fasten.contract import Recipe
    >>> settings_of(Run("cifar10", options={"threshold": 0.9}, recipe=Recipe(batch_size=20, epochs=7), clean=500))
    ['threshold=0.9', 'batch_size=20', 'milestones=50,60', 'clean=500']
    """
    usual = apply_settings(run.method, find_dataset(run.dataset).recipe, (), run.recipe.epochs)[1]
    found = {**run.options, **{k: v for k, v in asdict(run.recipe).items() if v != getattr(usual, k)}}
    if run.clean is not None:
        found["clean"] = run.clean
    return [f"{name}={setting(value)}" for name, value in found.items()]


def make_plan(wish: Wish, out: Path) -> Plan:
    """What is wanted, and what of it exists in the folder or among the records; nothing is written."""
    seeds, experiments = tuple(read_seeds(wish.seeds)), experiments_of(wish)
    check_out(out, wish.setting)
    there = read_summary(out) or {"experiments": {}}
    tables, before = _with_those_there(experiments, wish, there["experiments"])
    runs = {key(run): run for seed in seeds for experiment in experiments for run in experiment.runs([seed])}
    others = {key(run): run for shown in before.values() for run in shown if key(run) not in runs}
    named, earlier = (list(map(Path.absolute, map(Path, some))) for some in (wish.records, there.get("records", ())))
    folders = [*named, *filter(Path.is_dir, earlier), *own_records()]
    elsewhere = find_records(dict.fromkeys(folders), runs | others)
    users: dict[str, dict[str, None]] = {}
    for experiment in experiments:
        for run in (*experiment.runs(seeds), *before[experiment.name]):
            users.setdefault(key(run), {})[experiment.name] = None

    def look_up(some: Mapping[str, Run]) -> list[Wanted]:
        return [_look_up(run, tuple(users[name]), out, elsewhere.get(name)) for name, run in some.items()]

    known = [wanted for wanted in look_up(others) if wanted.record is not None]
    records = tuple(dict.fromkeys([*named, *earlier]))
    return Plan(wish.setting, seeds, tuple(tables), tuple(look_up(runs)), tuple(known), records)


def _with_those_there(
    chosen: Sequence[Experiment], wish: Wish, made: Summary
) -> tuple[list[Experiment], dict[str, list[Run]]]:
    """Each table with what was chosen and what the folder's table has already; and, by name, the runs of the latter.

    These have all the seeds of the folder's table, even if fewer are chosen now.
    """
    tables, runs = [], dict[str, list[Run]]()
    for experiment, whole in zip(chosen, _whole(chosen, wish), strict=True):
        there = made.get(experiment.name, {"cells": [], "curves": [], "seeds": []})
        mine = {place_of(vars(part)) for part in (*experiment.cells, *experiment.curves)}
        tables.append(_part(whole, mine | _places(there)))
        runs[experiment.name] = _part(whole, _places(there)).runs(there["seeds"])
    return tables, runs


def _whole(chosen: Sequence[Experiment], wish: Wish) -> list[Experiment]:
    if not wish.only:
        return list(chosen)
    every = {experiment.name: experiment for experiment in experiments_of(replace(wish, only=()))}
    return [every[experiment.name] for experiment in chosen]


def place_of(part: Mapping[str, Any]) -> tuple[Any, ...]:
    """The position of a cell or curve in its table."""
    return tuple(part.get(name) for name in ("panel", "row", "column", "x"))


def _places(made: Summary) -> set[tuple[Any, ...]]:
    return {place_of(part) for part in (*made["cells"], *made["curves"])}


def _part(whole: Experiment, places: Collection[tuple[Any, ...]]) -> Experiment:
    cells = tuple(cell for cell in whole.cells if place_of(vars(cell)) in places)
    curves = tuple(curve for curve in whole.curves if place_of(vars(curve)) in places)
    return replace(whole, cells=cells, curves=curves, whole=whole.cells)


def _look_up(run: Run, users: Sequence[str], out: Path, elsewhere: Path | None) -> Wanted:
    folder = out / "runs" / key(run)
    record = record_in(folder)
    if record is not None:
        try:
            there = key(Run.from_json(record["run"]))
        except (ValueError, AttributeError):
            said = f"the run in {folder} is damaged or from another version"
            raise ValueError(f"{said}; remove that folder, or choose another --out") from None
        if there != key(run):
            raise ValueError(f"{folder} holds another run; choose another --out")
        if record["result"] is not None and not taken_back(record):
            return Wanted(run, tuple(users), "recorded", folder / "record.json")
    if elsewhere is not None:
        return Wanted(run, tuple(users), "recorded", elsewhere)
    if record is not None and taken_back(record):
        return Wanted(run, tuple(users), "taken back")
    return Wanted(run, tuple(users), "missing" if record is None else "unfinished")


def own_records() -> list[Path]:
    """The records that come with the source tree, if the package runs from one."""
    root = Path(__file__).parents[3]
    return [root / "results"] if (root / "pyproject.toml").exists() and (root / "results").is_dir() else []


def find_records(folders: Iterable[Path], runs: Mapping[str, Run]) -> dict[str, Path]:
    """Finished records of exactly these runs, by key; of several, the first by folder and name."""
    found: dict[str, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"--records takes folders with records, and {folder} is not one")
        for path in sorted(path for path in folder.rglob("*.json") if path.is_file()):
            name = _key_of(path)
            if name is not None and name in runs:
                found.setdefault(name, path)
    return found


def _key_of(path: Path) -> str | None:
    """The key of a finished record; None for any other file, after a divergence, or if the labels are another set."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["schema"] != RECORD_SCHEMA or record["result"] is None or "epochs" not in record:
            return None
        if record.get("rewinds"):
            return None
        how = record["environment"].get("how") or {}
        return key(Run.from_json(record["run"])) if how.get("label_set", Place.label_set) == Place.label_set else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def check_out(out: Path, setting: str) -> None:
    """Refuse a file, a folder that holds something else, or one made with another setting."""
    check_no_file(out, "a new folder, or one that this command made")
    if is_empty(out, besides=(BENCH,)):
        return
    before = read_summary(out)
    if before is None:
        raise ValueError(f"{out} is not empty and holds no {SUMMARY} of `fasten reproduce`; {_elsewhere(out)}")
    if before["setting"] != setting:
        raise ValueError(f"{out} was made with --setting {before['setting']}, not {setting}; choose another --out")


def read_summary(out: Path) -> Summary | None:
    """The summary that was written before, or None."""
    path = out / SUMMARY
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        sound = found["schema"] == SCHEMA and "setting" in found
        sound = sound and all(isinstance(folder, str) for folder in found.get("records", ()))
        sound = sound and all(_places(made) and _are_seeds(made["seeds"]) for made in found["experiments"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise ValueError(f"{path} is damaged or from another version; {_elsewhere(out)}")
    return dict(found)


def _are_seeds(values: Any) -> bool:
    return bool(values) and all(isinstance(value, int) for value in values)


def _elsewhere(out: Path) -> str:
    """How to use another folder without losing the runs of this one."""
    runs = out / "runs"
    return "choose another --out" + (f", and add --records {runs} to count its finished runs" if runs.is_dir() else "")


def _shown(path: Path) -> str:
    """A path, relative to the current folder if it is inside."""
    full, here = path.resolve(), Path.cwd()
    return os.fspath(full.relative_to(here) if full.is_relative_to(here) else path)


def estimate(plan: Plan, out: Path) -> Summary:
    """Every run, whether and where it is recorded, and about how long those that are missing take."""
    speed, rows = measured(), []
    for wanted in plan.runs:
        where = None if wanted.record is None else _shown(wanted.record)
        known = {"state": wanted.state, "record": where, "seconds": speed.of(wanted.run)}
        rows.append({"key": key(wanted.run), **known, "experiments": wanted.experiments, "run": wanted.run.to_json()})
    left = [speed.of(run) for run in plan.missing]
    return {
        "setting": plan.setting,
        "seeds": plan.seeds,
        "out": os.fspath(out),
        "device": speed.device,
        "seconds_left": sum(seconds or 0.0 for seconds in left),
        "not_measured": sum(seconds is None for seconds in left),
        "runs": rows,
    }
