"""Make tables and figures of the paper from runs: carry out those that are not recorded yet, then write everything.

Each run has a folder of its own, as `train` writes it. All that is known is in these folders: the same command
continues where it stopped, and tables that share a run share its folder.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from fasten.datasets import Place, find_dataset
from fasten.experiments.spec import Experiment, key
from fasten.files import alone_in, sweep, write_text
from fasten.grid.cluster import Cluster, room_on_ray
from fasten.grid.speed import BATCH, NET, SIZE, Speed, measured
from fasten.grid.wanted import BENCH, SCHEMA, SUMMARY, Plan, Summary, place_of, read_summary
from fasten.grid.workers import Job, Room, Watch, read_devices, room_here, sweep_logs
from fasten.records import Record, Run, epochs_so_far, read_record, taken_back
from fasten.report import paper
from fasten.report.outcomes import Line
from fasten.report.paper import Outcome, Result
from fasten.runs.beginnings import record_in
from fasten.runs.training import Settings
from fasten.sentences import sentence

LOGS = "logs"  # of parallel runs that failed
SHARE = 0.02  # of the time, at most, goes into rewriting tables while runs are going on
PAPERS = {"net": NET, "size": SIZE, "batch": BATCH, "settings": []}  # what a bench has to time
WRITERS: dict[str, Callable[[Outcome], str]] = {
    "txt": paper.text_table,
    "md": paper.markdown,
    "csv": paper.csv_text,
    "tex": paper.latex,
}


@dataclass(frozen=True)
class How:
    """Where the data are, which devices to use, and how many runs at a time."""

    place: Place
    device: str = "auto"
    jobs: int | None = None
    ray: Cluster | None = None  # in place of this machine

    def room(self, runs: int, settings: Settings, out: Path, watch: Watch) -> AbstractContextManager[Room]:
        """Workers for this many runs."""
        if self.ray is not None:
            return room_on_ray(self.ray, self.device, out, settings.say)
        return room_here(self.device, self.jobs, runs, settings, out / LOGS, watch)


@dataclass(frozen=True)
class Made:
    """A run that has just ended, for the display."""

    run: Run
    result: Mapping[str, Any] | None
    error: str | None
    number: int
    total: int
    seconds_left: float | None  # None: nothing was done yet to estimate it from


Going = Callable[[int, float], None]  # how many runs are in progress, and what share of all is done


def bench_of(out: Path) -> dict[str, Any]:
    """The user's own measurement if it is in the folder, otherwise the one that comes with the package."""
    if not (out / BENCH).exists():
        return measured().bench()
    try:
        found = json.loads((out / BENCH).read_text(encoding="utf-8"))
        ratios = {name: float(ratio) for name, ratio in found["run_ratios"].items()}
        if not all(0 < ratio < math.inf for ratio in ratios.values()):
            raise ValueError("a ratio of times is a positive number")
        known = {"device": str(found["device"]), "run_ratios": ratios}
        timed = {name: found.get(name, "unknown") for name in ("net", "size", "batch", "settings")}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{out / BENCH} is not what `fasten bench --json` prints; remove or replace it") from None
    if timed != PAPERS:
        said = ", ".join(f"{name} {timed[name]}" for name in timed if timed[name] != PAPERS[name])
        cure = f"fasten bench --methods all --net {NET} --size {SIZE} --batch {BATCH} --json"
        raise ValueError(
            f"{out / BENCH} has times of other runs than the paper's ({said}); replace it by those of `{cure}`"
        )
    return known


class Pace:
    """How far runs have come, and how long the rest takes: from measured speed, corrected by how fast they go."""

    def __init__(self, jobs: Sequence[Job], speed: Speed) -> None:
        self.work = [speed.of(job.run) or float(job.run.recipe.epochs) for job in jobs]
        self.jobs, self.ended = jobs, set[Path]()
        self.began, self.before = time.monotonic(), self._done()

    def share(self) -> float:
        """The share of all work that is done, counting what runs had done before."""
        return self._done() / sum(self.work)

    def seconds_left(self) -> float | None:
        """None until runs are further than they were: they continue from a checkpoint, which is behind their logs."""
        done = self._done()
        if done <= self.before:
            return None
        return (sum(self.work) - done) * (time.monotonic() - self.began) / (done - self.before)

    def _done(self) -> float:
        return sum(work * self._of(job) for job, work in zip(self.jobs, self.work, strict=True))

    def _of(self, job: Job) -> float:
        """The share of a run that is done, by the epochs in its log; a log that cannot be read stops nothing."""
        if job.folder in self.ended:
            return 1.0
        try:
            return min(1.0, len(epochs_so_far(job.folder)) / job.run.recipe.epochs)
        except OSError:
            return 0.0


def reproduce(
    plan: Plan,
    out: Path,
    how: How,
    settings: Settings,
    begin: Callable[[Plan], None] = lambda plan: None,
    made: Callable[[Made], None] = lambda run: None,
    going: Going = lambda running, share: None,
) -> tuple[Summary, list[Outcome]]:
    """Carry out the runs that are missing or unfinished, and write every table and figure, also if that is stopped."""
    bench, errors = bench_of(out), _not_to_begin(plan, out, how.place)
    todo = [run for run in plan.missing if key(run) not in errors]
    if not todo and len(plan.missing) == len(plan.runs) > 0:  # no run can be started, and none is recorded
        raise ValueError(next(iter(errors.values())))
    if todo and how.ray is None:
        read_devices(how.device)  # a wrong one is refused before anything is written
    begin(plan)
    out.mkdir(parents=True, exist_ok=True)
    with alone_in(out):
        sweep(out)
        sweep_logs(out / LOGS, [_folder(w.run, out) for w in plan.runs if key(w.run) not in errors])
        before, tables = read_summary(out), Tables(plan, out, bench, errors, todo)
        try:
            _carry_out(todo, out, how, settings, tables, made, going)
        finally:
            summary = tables.end()
            if lost := _lost(before, summary, plan):
                settings.say(lost)
    return summary, [*tables.outcomes.values()]


class Tables:
    """The tables and figures in the folder, which follow the runs; rewriting them takes a small share of the time."""

    def __init__(
        self, plan: Plan, out: Path, bench: Mapping[str, Any], errors: dict[str, str], todo: Sequence[Run]
    ) -> None:
        self.plan, self.out, self.bench, self.errors = plan, out, bench, errors
        self.room = 0  # as many of the waiting runs, in order, are in progress
        self.waiting = {key(run): run for run in todo}
        self.running: dict[str, Run] = {}
        self.changed = set[str]()  # runs that began or ended since the tables were written
        self.due = -math.inf
        self.outcomes: dict[str, Outcome] = {}
        self._look(plan.experiments)
        self.summary = self._write_summary()

    def ended(self, run: Run, error: str | None) -> None:
        """Note that a run is over."""
        self.changed.add(key(run))
        del self.waiting[key(run)]
        if error is not None:
            self.errors[key(run)] = error

    def follow(self) -> None:
        """Rewrite what is made from runs that began or ended, unless much time went into that just now."""
        now = dict(islice(self.waiting.items(), self.room))
        self.changed |= now.keys() ^ self.running.keys()
        self.running, began = now, time.monotonic()
        if self.changed and began >= self.due:
            names = {name for w in self.plan.runs if key(w.run) in self.changed for name in w.experiments}
            self._write([experiment for experiment in self.plan.experiments if experiment.name in names])
            self.changed.clear()
            self.due = time.monotonic() + (time.monotonic() - began) / SHARE

    def end(self) -> Summary:
        """Write everything, now that nothing is running any more."""
        self.running = {}
        self._write(self.plan.experiments)
        return self.summary

    def _write(self, experiments: Sequence[Experiment]) -> None:
        self._look(experiments)
        self.summary = self._write_summary()
        for experiment in experiments:
            write_outcome(self.outcomes[experiment.name], self.out)

    def _look(self, experiments: Sequence[Experiment]) -> None:
        for experiment in experiments:
            records, running = _records(experiment, self.plan, self.out), self.running.values()
            timed = self.bench["run_ratios"], self.bench["device"]
            self.outcomes[experiment.name] = paper.outcome_of(experiment, records, running, *timed)

    def _write_summary(self) -> Summary:
        return _write_summary(self.plan, self.out, [*self.outcomes.values()], self.errors, self.bench)


def _not_to_begin(plan: Plan, out: Path, place: Place) -> dict[str, str]:
    """Runs, by key, that are not the paper's any more, or whose data or weights cannot be read, and why."""
    back = {key(w.run): _not_the_papers(_folder(w.run, out)) for w in plan.runs if w.state == "taken back"}
    runs = plan.missing
    needs = [(run.dataset, run.recipe.weights) for run in runs]
    faults = {need: _fault(*need, place) for need in dict.fromkeys(needs)}
    unread = {key(run): fault for run, need in zip(runs, needs, strict=True) if (fault := faults[need]) is not None}
    return unread | back


def _not_the_papers(folder: Path) -> str:
    said = "it diverged and continued with a lower learning rate than the paper's"
    return f"{said}; remove {folder}, and the same command starts it again"


def _fault(dataset: str, weights: str | None, place: Place) -> str | None:
    if weights is not None and not (place.root / weights).is_file():
        return (
            f"the weights {place.root / weights} are not there; put them there (docs/clothing1m.md shows how to make "
            "such a file), or say with --root where they and the data are"
        )
    try:
        find_dataset(dataset).read(place)
    except (ValueError, OSError) as error:
        return sentence(error)
    return None


def _folder(run: Run, out: Path) -> Path:
    return out / "runs" / key(run)


def _job(run: Run, out: Path, root: Path) -> Job:
    """The job of a run; the weights that it starts from are beside the data, whatever a worker's current folder is."""
    folder, weights = _folder(run, out), run.recipe.weights
    if weights is not None:
        run = replace(run, recipe=replace(run.recipe, weights=os.fspath((root / weights).absolute())))
    return Job(run, folder, root)


def _carry_out(
    todo: Sequence[Run],
    out: Path,
    how: How,
    settings: Settings,
    tables: Tables,
    made: Callable[[Made], None],
    going: Going,
) -> None:
    if not todo:
        return
    jobs = [_job(run, out, how.place.root) for run in todo]
    pace = Pace(jobs, measured())

    def watch(running: int) -> None:
        tables.follow()
        going(running, pace.share())

    def done(job: Job, error: str | None) -> None:
        record = {} if error is not None else read_record(job.folder)
        error = _not_the_papers(job.folder) if taken_back(record) else error
        result = None if error is not None else record["result"]
        tables.ended(job.run, error)
        pace.ended.add(job.folder)
        made(Made(job.run, result, error, len(pace.ended), len(todo), pace.seconds_left()))
        tables.follow()

    with how.room(len(todo), settings, out, watch) as room:
        tables.room = room.size
        tables.follow()
        room.work(jobs, done)


def _records(experiment: Experiment, plan: Plan, out: Path) -> list[Record]:
    """The records of an experiment's runs, as far as there are any."""
    mine = [wanted for wanted in (*plan.runs, *plan.shown_before) if experiment.name in wanted.experiments]
    found = [read_record(w.record) if w.record else record_in(_folder(w.run, out)) for w in mine]
    return [record for record in found if record is not None and not taken_back(record)]


def _write_summary(
    plan: Plan, out: Path, outcomes: Sequence[Outcome], errors: Mapping[str, str], bench: Mapping[str, Any]
) -> Summary:
    """Write all numbers and statuses; tables and figures of other names that were made before stay."""
    before = read_summary(out) or {"experiments": {}}
    values = {"schema": SCHEMA, "setting": plan.setting, "bench_device": bench["device"]}
    values["records"] = list(map(os.fspath, plan.records))
    failed = [{"key": name, "error": error} for name, error in errors.items()]
    kept = {name: _at_rest(numbers) for name, numbers in before["experiments"].items()}
    now = {o.experiment.name: _numbers(o) for o in outcomes}
    for name, numbers in now.items():
        numbers["seeds"] = sorted({*plan.seeds, *(kept[name]["seeds"] if name in kept else ())})
    summary = {**values, "failed": failed, "experiments": {n: now.get(n, kept.get(n)) for n in {**kept, **now}}}
    write_text(out / SUMMARY, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return summary | {"experiments": now}


def _at_rest(numbers: Summary) -> Summary:
    """The numbers of a table for which nothing is run now, whatever a killed command left."""
    cells = [{**cell, "status": "not run"} if cell.get("status") == "running" else cell for cell in numbers["cells"]]
    return {**numbers, "cells": cells}


def _lost(before: Summary | None, now: Summary, plan: Plan) -> str | None:
    """Which tables show fewer seeds than before, and which folders are not there any more."""
    made = (before or now)["experiments"]
    fewer = {name: _fewer(made[name], numbers) for name, numbers in now["experiments"].items() if name in made}
    names, number = ", ".join(name for name, count in fewer.items() if count), sum(fewer.values())
    if not number:
        return None
    gone = ", ".join(os.fspath(folder) for folder in plan.records if not folder.is_dir())
    return (
        f"fewer seeds than before in {number} place{'s' * (number != 1)} of {names}: their records are not found"
        f"{f' (not there: {gone})' if gone else ''}; name the folder that holds them with --records"
    )


def _fewer(before: Summary, now: Summary) -> int:
    """How many cells that are made from runs, and curves, have fewer seeds than before."""
    counts = {place_of(part): part["n"] for part in (*now["cells"], *now["curves"]) if part.get("run", True)}
    parts = [part for part in (*before["cells"], *before["curves"]) if isinstance(part.get("n"), int)]
    return sum(part["n"] > counts.get(place_of(part), part["n"]) for part in parts)


def _numbers(outcome: Outcome) -> Summary:
    about = {"title": outcome.experiment.title, "kind": outcome.experiment.kind}
    return about | {"cells": list(map(_cell, outcome.results)), "curves": list(map(_curve, outcome.lines))}


def _cell(result: Result) -> Summary:
    cell, names = result.cell, ("panel", "row", "column", "x", "paper", "source")
    return {name: getattr(cell, name) for name in names} | {
        "paper_ci95": cell.ci95,
        "measure": cell.measure.name,
        "n": len(result.values),
        "mean": result.mean,
        "ci95": result.ci95,
        "values": result.values,
        "status": result.status,
        "run": key(cell.run) if cell.run else None,  # of seed 0
        "rivals": [key(run) for run in cell.rivals],  # of a search, in which the best run of each seed counts
    }


def _curve(line: Line) -> Summary:
    curve = line.curve
    return {"panel": curve.panel, "row": curve.row, "n": line.seeds, "points": line.points, "paper": curve.paper}


def write_outcome(outcome: Outcome, out: Path) -> None:
    """Write the table in every format, and draw a figure as well."""
    name = outcome.experiment.name
    for suffix, make in WRITERS.items():
        write_text(out / f"{name}.{suffix}", make(outcome))
    if outcome.experiment.kind == "figure":
        paper.draw(outcome, out / name)
