"""Probabilities of noisy rows by networks that were not trained on them.

A network that is trained on labels as they are ends by knowing the wrong ones by heart, and finds them right. Where
no clean row holds against that, each third of the noisy rows is judged by a network that saw the other two alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fasten.data.task import Labels, Task
from fasten.engine import predict
from fasten.machine import Machine
from fasten.records import Run
from fasten.runs.building import make_fit
from fasten.seeds import numpy_stream
from fasten.sentences import some

Probabilities = NDArray[np.floating]

FOLDS = 3
LEAST = 2 * FOLDS  # rows of a label, else too few are left to learn it from
VERIFY = "; verify some rows at random, and train again with them"


def by_heart(run: Run, task: Task) -> bool:
    """Whether a method will know the wrong labels of users' own data by heart, and nothing says which these are."""
    return run.method == "cross-entropy" and task.known is not None and not len(task.clean)


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
    """`probs`, p(y | x) of the audited rows, with those of noisy rows replaced: trained like the run, fold by fold.

    `say` is told which rows could be judged so; `rate_factor` is that of the run, which may have been taken back.
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
            say(f"one of the {FOLDS} networks diverged: what it should judge is judged by one that knows it by heart")
    return probs


def _in_words(rare: int, rows: int) -> str:
    nothing, few = "no clean row says which labels are wrong", f"of a label with fewer than {LEAST} rows"
    if rare == rows:
        return f"{nothing}, and every row is {few}, so the network may know wrong labels by heart{VERIFY}"
    rest = f", but for {some(rare, 'row')} {few}" if rare else ""
    return f"{nothing}, so each was judged by that one of {FOLDS} networks which had not seen it{rest}{VERIFY}"


def _without(task: Task, rows: NDArray[np.bool_]) -> Task:
    """The task with fewer noisy rows to train on."""
    truth = None if task.truth is None else task.truth[~rows]
    split = replace(task.split, noisy=task.split.noisy[~rows])
    return replace(task, split=split, given=task.given[~rows], truth=truth)


def _judged(run: Run, part: Task, machine: Machine, net: nn.Module | None, rate_factor: float) -> Probabilities:
    fit = make_fit(run, part, machine, net=net)
    fit.progress.rate_factor = rate_factor
    fit.run()
    return predict(fit.method, fit.loader, "audited").cpu().numpy()


def _folds(given: Labels, num_classes: int, seed: int) -> Labels:
    """The fold of each row, every label shared out evenly; −1 where a label is too rare for it.

    >>> _folds(np.array([0, 0, 0, 1, 0, 0, 0]), 2, seed=0)[[3]].tolist()
    [-1]
    """
    order = numpy_stream(seed, "folds").permutation(len(given))
    order = order[np.argsort(given[order], kind="stable")]
    fold = np.empty(len(given), np.int64)
    fold[order] = np.arange(len(given)) % FOLDS
    return np.where(np.bincount(given, minlength=num_classes)[given] < LEAST, -1, fold)
