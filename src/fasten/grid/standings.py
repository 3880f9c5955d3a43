"""The results of a comparison: the numbers of each method, with intervals and paired tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fasten.datasets import Place
from fasten.records import Run
from fasten.sentences import are, some
from fasten.statistics import LEVEL, estimate, holm, paired_difference

SCHEMA = 1
FIXED = ("dataset", "own", "noise", "labels", "epochs", "settings")  # what all runs of one table share

Summary = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """All runs, seed by seed, and what they share; the first method is compared with each of the others."""

    dataset: str
    noise: str
    labels: str
    epochs: int | None
    settings: Mapping[str, Any]  # fields of the recipe, for all methods
    methods: Sequence[str]
    seeds: Sequence[int]
    runs: Sequence[Run]
    own: Mapping[str, Any] | None = None  # how a user's own data are read
    place: Place = field(default_factory=Place)  # where they are, read already

    def to_json(self) -> dict[str, Any]:
        values = {key: getattr(self, key) for key in (*FIXED, "methods", "seeds")}
        values["options"] = {run.method: dict(run.options) for run in self.runs if run.options}
        return dict(_plain(values | {"reference": self.methods[0]}))


@dataclass(frozen=True)
class RunOutcome:
    """What is known of one run."""

    method: str
    seed: int
    state: Literal["finished", "failed", "open"]
    test_accuracy: float | None = None  # at the selected epoch
    valid_accuracy: float | None = None
    train_seconds: float | None = None
    peak_memory_bytes: int | None = None
    device: str | None = None
    error: str | None = None  # why it failed
    rows_valid: int | None = None
    notes: tuple[str, ...] = ()  # of its record, those that matter to a comparison


def folder_name(run: Run) -> str:
    """The name of a run's folder in the folder of the comparison."""
    return f"{run.method}-seed{run.seed}"


def _plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    return json.loads(json.dumps(value))


def summarise(comparison: Comparison, outcomes: Sequence[RunOutcome]) -> Summary:
    """All numbers; accuracies are fractions, and `ci95` is half the width of the interval."""
    finished = [outcome for outcome in outcomes if outcome.state == "finished"]
    by = "test" if all(outcome.test_accuracy is not None for outcome in finished) else "valid"
    found: dict[str, dict[int, float]] = {name: {} for name in comparison.methods}
    for outcome in finished:
        if (value := getattr(outcome, f"{by}_accuracy")) is not None:
            found[outcome.method][outcome.seed] = value
    lines = [_line(name, found[name], outcomes) for name in comparison.methods]
    fastest = min((line["train_seconds"] for line in lines if line["train_seconds"]), default=None)
    for line in lines:
        line["time_ratio"] = line["train_seconds"] / fastest if fastest and line["train_seconds"] else None
    return {
        "schema": SCHEMA,
        "comparison": comparison.to_json(),
        "accuracy": by,
        "methods": lines,
        "differences": _differences(comparison.methods, found),
        "runs": [{"folder": folder_name(r), **asdict(o)} for r, o in zip(comparison.runs, outcomes, strict=True)],
        "notes": _notes(lines, outcomes, by),
    }


def _line(method: str, found: Mapping[int, float], outcomes: Sequence[RunOutcome]) -> dict[str, Any]:
    mine = [outcome for outcome in outcomes if outcome.method == method]
    seconds = [outcome.train_seconds for outcome in mine if outcome.train_seconds is not None]
    memory = [outcome.peak_memory_bytes for outcome in mine if outcome.peak_memory_bytes is not None]
    accuracy = {"method": method, **asdict(estimate(list(found.values())))}
    return accuracy | {
        "accuracies": {str(seed): value for seed, value in found.items()},
        "failed": [outcome.seed for outcome in mine if outcome.state == "failed"],
        "train_seconds": estimate(seconds).mean,
        "peak_memory_bytes": max(memory, default=None),
    }


def _differences(methods: Sequence[str], found: Mapping[str, Mapping[int, float]]) -> list[dict[str, Any]]:
    """The differences between the first method and each other one, over the seeds that both have."""
    first, *others = methods
    rows = []
    for other in others:
        seeds = [seed for seed in found[first] if seed in found[other]]
        difference = paired_difference([found[first][s] for s in seeds], [found[other][s] for s in seeds])
        rows.append({"method": first, "against": other, **asdict(difference), "p_holm": None})
    tested = [row for row in rows if row["p"] is not None]
    for row, adjusted in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = adjusted
    return [row | {"verdict": verdict(row["mean"], row["p_holm"])} for row in rows]


def verdict(difference: float | None, p: float | None) -> str:
    """A difference in words; `p` is corrected by Holm's method.

    >>> verdict(0.02, 0.01), verdict(-0.02, 0.01), verdict(0.02, 0.05)
    ('better', 'worse', 'within the noise of the seeds')
    """
    if difference is None or p is None:
        return "not tested: that takes at least two seeds"
    if p >= LEVEL:
        return "within the noise of the seeds"
    return "better" if difference > 0 else "worse"


def _notes(lines: Sequence[Mapping[str, Any]], outcomes: Sequence[RunOutcome], by: str) -> list[str]:
    notes = [f"{o.method}, seed {o.seed}, failed and is not counted: {o.error}" for o in outcomes if o.error]
    notes += dict.fromkeys(note for outcome in outcomes for note in outcome.notes)
    waiting = sum(outcome.state == "open" for outcome in outcomes)
    if waiting:
        runs, them = some(len(outcomes), "run"), "it" if waiting == 1 else "them"
        notes.append(f"{waiting} of {runs} {are(waiting)} still to come; the same command continues with {them}")
    single = [line["method"] for line in lines if line["n"] == 1]
    if single:
        notes.append(f"a single seed gives no interval ({', '.join(single)}); use two or more")
    if by == "valid":
        rows = min((o.rows_valid for o in outcomes if o.rows_valid), default="the")
        notes.append(f"there are no test rows: accuracy is on {rows} validation rows, which also selected the epoch")
    devices = sorted({outcome.device for outcome in outcomes if outcome.device})
    if len(devices) > 1:
        notes.append(f"the runs were made on different devices, so their times differ: {'; '.join(devices)}")
    return notes
