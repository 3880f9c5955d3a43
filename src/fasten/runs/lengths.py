"""How long a fit is: in updates, and in time."""

from __future__ import annotations

from fasten.engine import Fit, Progress
from fasten.report.values import duration

LONG = 20.0  # seconds of which the user is told beforehand


def count_updates(fit: Fit) -> int:
    """The number of updates in all its epochs."""
    return sum(stage.epochs * fit.loader.num_updates(stage) for stage in fit.plan)


def how_long(fit: Fit, timed: Progress, times: int = 1) -> str:
    """How long so many such fits will take, if it is a while, by the time that an example took before."""
    images = sum(stage.epochs * fit.loader.num_updates(stage) * fit.images(stage) for stage in fit.plan)
    seconds = times * images * timed.seconds / max(timed.images, 1)
    return f"; this takes about {duration(seconds)}" if seconds > LONG else ""
