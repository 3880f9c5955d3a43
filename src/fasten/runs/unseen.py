"""Probabilities of noisy rows by networks that were not trained on them.

A network that is trained on the given labels ends up memorising the wrong ones, and takes them for right. If there is
no clean row to counter that, each third of the noisy rows is judged by a network that saw only the other two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fasten.data.task import Labels, Task
from fasten.engine import Fit, predict
from fasten.machine import Machine
from fasten.records import Run
from fasten.runs.building import make_fit
from fasten.seeds import numpy_stream
from fasten.sentences import some

Probabilities = NDArray[np.floating]

FOLDS = 3
LEAST = 2 * FOLDS  # rows of a label; with fewer, too few are left to learn it from
VERIFY = "; verify some rows at random, and train again with them"


def by_heart(run: Run, task: Task) -> bool:
    """Whether a method will memorise the wrong labels of a user's own data, and nothing says which these are."""
    return run.method == "cross-entropy" and task.known is not None and not len(task.clean)


def judge_of(
    fit: Fit, run: Run, task: Task, say: Callable[[str], None], net: nn.Module | None = None
) -> Callable[[Probabilities], Probabilities] | None:
    """What replaces the last word of a trained network on the audited rows, if anything."""
    if by_heart(run, task):
        factor = fit.progress.rate_factor
        return partial(unseen_probabilities, run, task, fit.machine, say=say, net=net, rate_factor=factor)
    if len(fit.opinions.selected):
        return lambda probs: fit.opinions.selected.cpu().numpy()
    return None


def unseen_probabilities(
    run: Run,
    task: Task,
    machine: Machine,
    probs: Probabilities,
    *,
    say: Callable[[str], None],
    net: nn.Module | None = None,
    rate_factor: float = 1.0,
) -> Probabilities:
    """`probs`, p(y | x) of the audited rows, with those of noisy rows replaced by networks trained like the run.

    `say` is told which rows could be judged so; `rate_factor` is the run's, below 1 if it went back after a divergence.
    """
    probs, fold = np.array(probs), _folds(task.given, task.num_classes, run.seed)
    say(_in_words(int((fold < 0).sum()), len(fold)))
    for number in sorted(set(fold.tolist()) - {-1}):
        kept = fold != number
        found = _judged(run, _without(task, ~kept), machine, net, rate_factor)
        rows = np.searchsorted(task.audited, task.split.noisy[~kept])
        if np.isfinite(found[rows]).all():
            probs[rows] = found[rows]
        else:
            say(f"one of the {FOLDS} networks diverged: its rows are judged by one that was trained on them")
    return probs


def _in_words(rare: int, rows: int) -> str:
    nothing, few = "no clean row shows which labels are wrong", f"of a label with fewer than {LEAST} rows"
    if rare == rows:
        return f"{nothing}, and every row is {few}, so the network may have memorised wrong labels{VERIFY}"
    rest = f", except for {some(rare, 'row')} {few}" if rare else ""
    return f"{nothing}, so each was judged by the one of {FOLDS} networks that had not seen it{rest}{VERIFY}"


def _without(task: Task, rows: NDArray[np.bool_]) -> Task:
    """The task without these noisy rows to train on."""
    truth = None if task.truth is None else task.truth[~rows]
    split = replace(task.split, noisy=task.split.noisy[~rows])
    return replace(task, split=split, given=task.given[~rows], truth=truth)


def _judged(run: Run, part: Task, machine: Machine, net: nn.Module | None, rate_factor: float) -> Probabilities:
    fit = make_fit(run, part, machine, net=net)
    fit.progress.rate_factor = rate_factor
    fit.run()
    return predict(fit.method, fit.loader, "audited").cpu().numpy()


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
