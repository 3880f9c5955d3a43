"""Divergence: when training first gave numbers that are not finite, and on which rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fasten.data.task import Task
from fasten.engine import Fit
from fasten.ranks import gathered, votes
from fasten.sentences import typed
from fasten.suggest import listed

AVERAGES = ("running_mean", "running_var")  # of batch norm; a network's other buffers may hold infinities, as masks do
LOWER = 10  # what a rewind divides the learning rate by
MOST_REWINDS = 3  # down to a thousandth of the rate: what still diverges has another cause


@dataclass(frozen=True)
class Divergence:
    """The first update of an epoch whose loss is not finite, or after which a weight is not; both count from 1."""

    epoch: int
    update: int
    rows: dict[str, list[Any]]  # the rows of the batch, by the names of its draws; ids as the user knows them

    def __str__(self) -> str:
        ids = [str(row) for rows in self.rows.values() for row in rows]
        return (
            f"training diverged in epoch {self.epoch}: update {self.update}, on the rows "
            f"{listed(ids)}, gave a loss or weights that are not finite numbers"
        )


class Diverged(ValueError):
    """Training diverged: the run cannot continue from its current state."""

    def __init__(self, found: Divergence) -> None:
        super().__init__(str(found))
        self.found = found


def check_finite(fit: Fit, task: Task) -> None:
    """Raise `Diverged` if an update of this epoch, or of the one that has just ended, gave numbers that are not finite.

    The host waits for the device, so this is only for the ends of epochs and for checkpoints.
    """
    at, update = fit.progress, fit.update
    assert update is not None
    ended = at.update == 0
    done = update.length if ended else at.update
    bad = torch.nonzero(~update.history["loss"][:done].isfinite()).flatten()
    averages = [tensor for name, tensor in fit.method.named_buffers() if name.endswith(AVERAGES)]
    sound = torch.stack([tensor.isfinite().all() for tensor in (*fit.method.parameters(), *averages)]).all()
    if votes(bool(len(bad)) or not sound):  # a rank may have its own batch norm statistics
        number = int(bad[0]) if len(bad) else done - 1
        raise Diverged(Divergence(len(at.rows) + (not ended), number + 1, _rows(fit, task, at.epoch - ended, number)))


def advice(newest: str | None, folder: Path, rate: tuple[str, float], spent: bool) -> str:
    """What the user can do about it; `rate`: its name and value; `spent`: there were as many rewinds as make sense."""
    good = f"the last good checkpoint is {newest}" if newest else "there is no checkpoint yet"
    cures = (
        [] if spent else [f"{typed('resume', folder, '--on-nan', 'rewind')} goes back and continues with a lower rate"]
    )
    cures.append(f"choose another --out and a smaller rate, such as --set {rate[0]}={rate[1] / LOWER:g}")
    return f"log.jsonl lists all rows; {good}; {', or '.join(cures)}"


def _rows(fit: Fit, task: Task, epoch: int, number: int) -> dict[str, list[Any]]:
    """The rows of an update, drawn again: they only depend on the seed, the stage, the epoch and its number."""
    stage = fit.plan[fit.progress.stage]
    picks = next(iter(fit.loader.updates(stage, (fit.progress.stage, epoch), number)))
    found = {}
    for name, taken in picks.items():
        index, weight = gathered(taken.index), gathered(taken.weight)  # of all ranks
        rows = fit.loader.rows[stage.draws[name].source][index[weight > 0]].cpu().numpy()
        ids = task.ids_of(rows)
        found[name] = list(dict.fromkeys(ids.tolist() if isinstance(ids, np.ndarray) else ids))
    return found
