"""What a table or a figure of the paper consists of: cells and curves, each with its run and the paper's number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal

from fasten.records import Record, Run

Status = Literal["reproduced", "better", "below", "quoted", "running", "not run", "not in the paper"]
ROUNDING = 1e-9  # error of decimal sums; a mean on the edge counts as reproduced


@dataclass(frozen=True)
class Measure:
    """How a number is read from a record, and how far it may be from the paper's: by a step, or by a share of it."""

    of: Callable[[Record], float | None]
    name: str  # as in a table's header
    step: float = 0.0
    share: float = 0.0
    lower_is_better: bool = False
    digits: int = 2

    def tolerance(self, paper: float) -> float:
        return self.step + self.share * abs(paper)


@dataclass(frozen=True)
class Cell:
    """A number of a table, or a point of a figure."""

    row: str
    column: str
    measure: Measure
    paper: float | None = None  # None: the paper has none
    ci95: float | None = None  # the paper's interval
    run: Run | None = None  # seed 0 stands for every seed; None: quoted, or not made from a run
    panel: str = ""  # a table in several blocks: CIFAR-10, CIFAR-100
    source: str = ""  # who is quoted
    x: float | None = None  # in a figure; the paper's, if a bench cell of the same panel and row has ours
    bench: bool = False  # not from a run but from `run_ratios` of `fasten bench --json`, by row
    rivals: tuple[Run, ...] = ()  # of a search: for each seed, only the run that is best on its validation rows counts


@dataclass(frozen=True)
class Curve:
    """A line of a figure that comes from one run: a value per epoch, or per update."""

    row: str
    run: Run
    of: Callable[[Record], Sequence[tuple[float, float]]]  # points
    paper: tuple[tuple[float, float], ...] = ()
    panel: str = ""


@dataclass(frozen=True)
class Experiment:
    """One table or figure."""

    name: str  # as the command line takes it
    title: str
    kind: Literal["table", "figure"]
    cells: tuple[Cell, ...] = ()
    curves: tuple[Curve, ...] = ()
    about: str = ""  # quirks of the paper that are followed, and what is not comparable
    x: str = ""  # names of a figure's axes
    y: str = ""
    whole: tuple[Cell, ...] = ()  # all cells, if `cells` are a part of them

    def columns(self, panel: str) -> list[tuple[str, float | None]]:
        """Name and x of each column of a panel, in the order of the whole table."""
        return list(dict.fromkeys((c.column, c.x) for c in self.whole or self.cells if c.panel == panel))

    def runs(self, seeds: Sequence[int] = (0,)) -> list[Run]:
        """Each run once, for each seed."""
        wanted = [cell.run for cell in self.cells if cell.run is not None] + [curve.run for curve in self.curves]
        wanted += [run for cell in self.cells for run in cell.rivals]
        return list({key(run): run for base in wanted for run in (replace(base, seed=seed) for seed in seeds)}.values())


@dataclass(frozen=True)
class Setting:
    """The data to use for the paper's, and how long to train: as in the paper, or a miniature of it."""

    data: Mapping[str, str]  # cifar10 -> what is trained on in its place
    epochs: int | None = None  # None: each method's own
    few: bool = False  # only the ends of each series: a miniature

    def some(self, values: Sequence[Any]) -> list[Any]:
        """All of a series, or its first and last."""
        return [values[0], values[-1]] if self.few and len(values) > 2 else list(values)


def key(run: Run) -> str:
    """A name for a run's folder: readable, different for different runs, independent of where its weights are stored.

    >>> from fasten.contract import Recipe
    >>> key(Run("digits", "symmetric:0.4", recipe=Recipe(epochs=2), seed=1))
    'digits-fasten-symmetric-0.4-seed1-1f17c2c7'
    """
    told = f"{run.dataset}-{run.method}-{run.noise.replace(':', '-')}-seed{run.seed}"
    recipe = run.to_json()["recipe"]
    if run.recipe.weights is not None:
        recipe["weights"] = PurePath(run.recipe.weights).name
    rest = json.dumps([dict(run.options), recipe, run.clean], sort_keys=True)
    return f"{told}-{hashlib.sha256(rest.encode()).hexdigest()[:8]}"


def status(mean: float | None, cell: Cell) -> Status:
    """Compare a mean with the paper's number, its interval and the measure's tolerance; our own interval is not used.

    >>> accuracy = Measure(lambda record: None, "accuracy", step=0.5)
    >>> [status(m, Cell("fasten", "sym80", accuracy, 79.5, 0.8, Run("cifar10"))) for m in (78.1, 79.0, 81.0, None)]
    ['below', 'reproduced', 'better', 'not run']
    """
    if cell.run is None and not cell.bench and mean is None:
        return "quoted"
    if mean is None or cell.paper is None:
        return "not run" if mean is None else "not in the paper"
    room = (cell.ci95 or 0.0) + cell.measure.tolerance(cell.paper) + ROUNDING
    gain = cell.paper - mean if cell.measure.lower_is_better else mean - cell.paper
    return "better" if gain > room else "below" if gain < -room else "reproduced"
