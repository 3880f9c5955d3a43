"""A rank of a run that diverges again and again; one of the two is slow to look which checkpoints there are."""

from __future__ import annotations

import sys
import time

from fasten import ranks
from fasten.cli import main
from fasten.data.task import Task
from fasten.engine import Fit
from fasten.runs import training
from fasten.runs.checkpoint import Checkpoints
from fasten.runs.divergence import Diverged, Divergence

newest = Checkpoints.newest.fget


def slow(checkpoints: Checkpoints) -> str | None:
    time.sleep(0.3 * ranks.rank())
    return newest(checkpoints)


def diverge_in_the_second_epoch(fit: Fit, task: Task) -> None:
    if len(fit.progress.rows) == 2:
        raise Diverged(Divergence(2, 1, {}))


if __name__ == "__main__":
    Checkpoints.newest = property(slow)
    training.check_finite = diverge_in_the_second_epoch
    train = ["train", "digits", "--epochs", "2", "--no-references", "--device", "cpu", "--out", sys.argv[1]]
    sys.exit(main([*train, "--on-nan", "rewind", "--checkpoint-every", "0"]))
