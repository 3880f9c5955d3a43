"""Probabilities of noisy rows by networks that were not trained on them.

A network that is trained on the given labels ends up memorising the wrong ones, and takes them for right. If there is
no clean row to counter that, each third of the noisy rows is judged by a network that saw only the other two.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import nn

from fasten import ranks
from fasten.data.task import Labels, Task
from fasten.engine import Fit, Progress, predict
from fasten.machine import Machine
from fasten.records import Run
from fasten.runs.building import make_fit
from fasten.runs.checkpoint import read_tensors, write_tensors
from fasten.runs.lengths import count_updates, how_long
from fasten.seeds import numpy_stream
from fasten.sentences import some

Probabilities = NDArray[np.floating]

FOLDS = 3
LEAST = 2 * FOLDS  # rows of a label; with fewer, too few are left to learn it from
AGAIN = FOLDS - 1  # times the updates of the run itself: three networks, each on two thirds of the rows
VERIFY = "; verify some rows at random, and train again with them"


def by_heart(run: Run, task: Task) -> bool:
    """Whether a method will memorise the wrong labels of a user's own data, and nothing says which these are."""
    return run.method == "cross-entropy" and task.known is not None and not len(task.clean)


@dataclass(frozen=True)
class Unseen:
    """Replaces p(y | x) of noisy rows by what networks say that are trained like the run, but without these rows.

    Their time is added to that of the run's progress, `at`, whose `rate_factor` they have: it is below 1 if the run
    went back after a divergence. What a finished network says is kept in `folder`, until `forget` is called.
    """

    run: Run
    task: Task
    machine: Machine
    at: Progress
    note: Callable[[str], None]  # is told which rows could be judged so
    net: nn.Module | None = None
    folder: Path | None = None
    say: Callable[[str], None] = lambda sentence: None  # is told how long this takes
    on_share: Callable[[float], None] = lambda share: None  # is told how much of it is done, from 0 to 1

    def __call__(self, probs: Probabilities) -> Probabilities:
        task, probs = self.task, np.array(probs)
        fold = _folds(task.given, task.num_classes, self.run.seed)
        said = self._said(fold) if (fold >= 0).any() else []
        self.note(_in_words(int((fold < 0).sum()), len(fold)))
        for number, found in enumerate(said):
            if np.isfinite(found).all():
                probs[_audited(task, fold == number)] = found
            else:
                self.note(f"one of the {FOLDS} networks diverged: its rows are judged by one that was trained on them")
        return probs

    def _said(self, fold: Labels) -> list[Probabilities]:
        """What each network says about the rows of its fold."""
        found = {number: kept for number in range(FOLDS) if (kept := self._kept(number)) is not None}
        for number in sorted(set(range(FOLDS)) - found.keys()):
            found[number] = self._train(number, fold == number, done=len(found))
        return [found[number] for number in range(FOLDS)]

    def _train(self, number: int, rows: NDArray[np.bool_], done: int) -> Probabilities:
        fit = make_fit(self.run, _without(self.task, rows), self.machine, net=self.net)
        left, updates = FOLDS - done, count_updates(fit)
        what = f"{some(left, 'more network')} to train, for judging rows without having seen them"
        self.say(what + how_long(fit, self.at, times=left))
        fit.progress.rate_factor = self.at.rate_factor
        fit.after_update = lambda epoch_ended: self.on_share((done + fit.progress.done / updates) / FOLDS)
        fit.run()
        found = predict(fit.method, fit.loader, "audited").cpu()[_audited(self.task, rows)]
        times = {name: getattr(fit.progress, name) for name in ("seconds", "setup_seconds", "images")}
        if self.folder is not None and ranks.rank() == 0:
            meta = {"rate_factor": self.at.rate_factor, "times": times}
            write_tensors(_file(self.folder, number), {"p": found}, json.dumps(meta))
        self._count(**times)
        return found.numpy()

    def _kept(self, number: int) -> Probabilities | None:
        """What a network said before an interruption; None if it was not finished, or its file is damaged."""
        found = None
        if self.folder is not None:
            with contextlib.suppress(OSError, ValueError, SafetensorError):
                found = read_tensors(_file(self.folder, number))
        usable = found is not None and found[1]["rate_factor"] == self.at.rate_factor
        if ranks.votes(usable) < ranks.world() or found is None:
            return None
        tensors, meta = found
        self._count(**meta["times"])
        return tensors["p"].numpy()

    def _count(self, seconds: float, setup_seconds: float, images: int) -> None:
        self.at.seconds += seconds
        self.at.setup_seconds += setup_seconds
        self.at.images += images


def judge_of(fit: Fit, unseen: Unseen) -> Callable[[Probabilities], Probabilities] | None:
    """What replaces the last word of a trained network on the audited rows, if anything."""
    if by_heart(unseen.run, unseen.task):
        return unseen
    if len(fit.opinions.selected):
        return lambda probs: fit.opinions.selected.cpu().numpy()
    return None


def forget(folder: Path) -> None:
    """Remove what finished networks said."""
    for number in range(FOLDS):
        _file(folder, number).unlink(missing_ok=True)


def _file(folder: Path, number: int) -> Path:
    return folder / f"unseen{number}.safetensors"


def _in_words(rare: int, rows: int) -> str:
    nothing, few = "no clean row shows which labels are wrong", f"of a label with fewer than {LEAST} rows"
    if rare == rows:
        return f"{nothing}, and every row is {few}, so the network may have memorised wrong labels{VERIFY}"
    rest = f", except for {some(rare, 'row')} {few}" if rare else ""
    return f"{nothing}, so each was judged by the one of {FOLDS} networks that had not seen it{rest}{VERIFY}"


def _audited(task: Task, rows: NDArray[np.bool_]) -> Labels:
    """Where these noisy rows are among the audited ones."""
    return np.searchsorted(task.audited, task.split.noisy[rows])


def _without(task: Task, rows: NDArray[np.bool_]) -> Task:
    """The task without these noisy rows to train on."""
    truth = None if task.truth is None else task.truth[~rows]
    split = replace(task.split, noisy=task.split.noisy[~rows])
    return replace(task, split=split, given=task.given[~rows], truth=truth)


def _folds(given: Labels, num_classes: int, seed: int) -> Labels:
    """The fold of each row, with every label spread evenly; −1 if a label is too rare for that.

    >>> _folds(np.array([0, 0, 0, 1, 0, 0, 0]), 2, seed=0)[[3]].tolist()
    [-1]
    """
    order = numpy_stream(seed, "folds").permutation(len(given))
    order = order[np.argsort(given[order], kind="stable")]
    fold = np.empty(len(given), np.int64)
    fold[order] = np.arange(len(given)) % FOLDS
    return np.where(np.bincount(given, minlength=num_classes)[given] < LEAST, -1, fold)
