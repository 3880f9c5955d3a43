"""How long a run takes, from the speed that `fasten bench` measured on one machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fasten.methods import FASTEN_EPOCHS, METHODS
from fasten.records import Run

FILE = Path(__file__).parents[1] / "experiments" / "speed.json"  # whole runs, from benchmarks/h200.json
NET, SIZE, BATCH = "resnet34", 32, 100  # the paper's, which were timed
SMALL = ("digits",)


@dataclass(frozen=True)
class Speed:
    """Seconds for a run of the paper's protocol on CIFAR, by method; without evaluation."""

    device: str
    seconds: Mapping[str, float]

    def of(self, run: Run) -> float | None:
        """Seconds for a run, in proportion to its epochs; None if nothing like it was timed.

        An update with a small batch is counted as if it took as long as with a full one, which is too much; with large
        batches, time is proportional to rows.

        >>> from fasten.contract import Recipe
        >>> speed = Speed("H200", {"fasten": 180.0})
        >>> speed.of(Run("cifar10", recipe=Recipe(epochs=7))), speed.of(Run("digits", recipe=Recipe("small-cnn")))
        (18.0, None)
        """
        if run.recipe.net != NET or not run.dataset.startswith("cifar") or run.method not in self.seconds:
            return None
        schedule = METHODS[run.method].schedule
        length = run.recipe.epochs / (schedule.epochs if schedule else FASTEN_EPOCHS)
        return self.seconds[run.method] * length * max(1.0, BATCH / run.recipe.batch_size)

    def in_words(self, run: Run) -> str:
        """The time of a run, for a column of a table."""
        seconds = self.of(run)
        if seconds is not None:
            return in_words(seconds)
        return "seconds" if run.dataset in SMALL else "not known"

    def summary(self, runs: Iterable[Run]) -> str:
        """How long several runs take, one after the other.

        >>> from fasten.contract import Recipe
        >>> Speed("H200", {"fasten": 180.0}).summary([Run("cifar10"), Run("digits", recipe=Recipe("small-cnn"))])
        '3 min on one H200, one after the other, and 1 on digits (seconds each)'
        """
        known, others = 0.0, dict[str, int]()
        for run in runs:
            known += self.of(run) or 0.0
            if self.of(run) is None:
                others[run.dataset] = others.get(run.dataset, 0) + 1
        parts = [f"{in_words(known)} on one {self.device}, one after the other"] if known else []
        for name, count in others.items():
            parts.append(f"{count} on {name} ({'seconds each' if name in SMALL else 'time not known'})")
        return ", and ".join(parts)

    def bench(self) -> dict[str, Any]:
        """What `fasten bench --json` says about whole runs, relative to FasTEN's."""
        ratios = {name: seconds / self.seconds["fasten"] for name, seconds in self.seconds.items()}
        return {"device": self.device, "run_ratios": ratios}


@cache
def measured() -> Speed:
    """The speed that comes with the package."""
    values = json.loads(FILE.read_text(encoding="utf-8"))
    return Speed(values["device"], values["seconds"])


def in_words(seconds: float) -> str:
    """A time in words, as precise as an estimate is.

    >>> [in_words(s) for s in (0.2, 59, 181, 9000, 400_000)]
    ['1 s', '59 s', '3 min', '2.5 h', '4.6 days']
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
