"""Our results for a table or figure of the paper: records -> a value per seed for each cell, points for each curve."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fasten.experiments.spec import Cell, Curve, Experiment, Status, key, status
from fasten.records import Record, Run
from fasten.statistics import estimate

Points = tuple[tuple[float, float], ...]
BySeed = Mapping[int, Record]


@dataclass(frozen=True)
class Result:
    """A cell with our results for it: a value per seed, their mean and half the width of its 95% interval."""

    cell: Cell
    values: tuple[float, ...]
    mean: float | None
    ci95: float | None
    status: Status


@dataclass(frozen=True)
class Line:
    """A curve with our points for it, means over `seeds` seeds; there are none without a run."""

    curve: Curve
    points: Points
    seeds: int


@dataclass(frozen=True)
class Outcome:
    """A table or figure with all our results for it."""

    experiment: Experiment
    results: tuple[Result, ...]
    lines: tuple[Line, ...]
    timed_on: str = ""  # the device of the bench

    @property
    def known(self) -> bool:
        """Whether we have any result for it."""
        return any(result.values for result in self.results) or any(line.points for line in self.lines)


def outcome_of(
    experiment: Experiment,
    records: Iterable[Record],
    running: Iterable[Run] = (),
    ratios: Mapping[str, float] | None = None,
    timed_on: str = "",
) -> Outcome:
    """An experiment with its results from the finished runs among the records, and with the runs in progress.

    A record belongs to a cell if it is of the cell's run or of one of its rivals, whatever its seed. `ratios` are the
    time ratios of a bench, by row, and `timed_on` is its device.
    """
    found, under_way = by_run(records), {base(run) for run in running}
    timed = ratios or {}
    results = tuple(
        result_of(cell, [timed[cell.row]] if cell.row in timed else [])
        if cell.bench
        else _result(cell, found, under_way)
        for cell in experiment.cells
    )
    lines = tuple(_line(curve, found.get(base(curve.run), {})) for curve in experiment.curves)
    return Outcome(experiment, results, lines, timed_on)


def result_of(cell: Cell, values: Sequence[float], running: bool = False) -> Result:
    """A cell with one value per seed.

    >>> from fasten.experiments.spec import Measure
    >>> cell = Cell("FasTEN", "symmetric 80%", Measure(lambda record: None, "accuracy", 0.5), 79.5, 0.8, Run("cifar10"))
    >>> result_of(cell, [79.0, 80.0]).status, result_of(cell, [], running=True).status
    ('reproduced', 'running')
    """
    found = estimate(values)
    word: Status = "running" if running and not values else status(found.mean, cell)
    return Result(cell, tuple(values), found.mean, found.ci95, word)


def by_run(records: Iterable[Record]) -> dict[str, BySeed]:
    """Finished records by their run without its seed, then by seed, in the order of the seeds."""
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        if record["result"] is not None:
            run = Run.from_json(record["run"])
            found.setdefault(base(run), {})[run.seed] = record
    return {name: dict(sorted(seeds.items())) for name, seeds in found.items()}


def base(run: Run) -> str:
    """The key that is shared by runs which differ only in their seed."""
    return key(replace(run, seed=0))


def _result(cell: Cell, found: Mapping[str, BySeed], running: set[str]) -> Result:
    if cell.run is None:
        return result_of(cell, ())
    names = [base(run) for run in (cell.run, *cell.rivals)]
    values = [cell.measure.of(record) for record in _best([found.get(name, {}) for name in names]).values()]
    return result_of(cell, [value for value in values if value is not None], not running.isdisjoint(names))


def _best(searched: Sequence[BySeed]) -> BySeed:
    """For each seed, the record that is best on the validation rows; the first of them if several are."""
    best: dict[int, Record] = {}
    for seed, record in (pair for some in searched for pair in some.items()):
        if seed not in best or _valid_accuracy(record) > _valid_accuracy(best[seed]):
            best[seed] = record
    return dict(sorted(best.items()))


def _valid_accuracy(record: Record) -> float:
    """The accuracy on the validation rows at the selected epoch."""
    return record["result"].get("valid_accuracy") or 0.0


def _line(curve: Curve, seeds: BySeed) -> Line:
    """The mean over the seeds, at each x that all of them have."""
    lines = [dict(points) for record in seeds.values() if (points := curve.of(record))]
    shared = [x for x in lines[0] if all(x in line for line in lines)] if lines else []
    return Line(curve, tuple((x, math.fsum(line[x] for line in lines) / len(lines)) for x in shared), len(lines))
