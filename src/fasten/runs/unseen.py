"""Probabilities of noisy rows by networks that were not trained on them.

A network that is trained on labels as they are ends by knowing the wrong ones by heart, and finds them right. Where
no clean row holds against that, each third of the noisy rows is judged by a network that saw the other two alone.
"""

from __future__ import annotations

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

FOLDS = 3
JUDGED_UNSEEN = (
    f"no clean row says which labels are wrong, so each was judged by that one of {FOLDS} networks which had not seen "
    "it; verify some rows at random, and train again with them"
)


def by_heart(run: Run, task: Task) -> bool:
    """Whether a method will know the wrong labels of users' own data by heart, and nothing says which these are."""
    return run.method == "cross-entropy" and task.known is not None and not len(task.clean)


def unseen_probabilities(
    run: Run, task: Task, machine: Machine, probs: NDArray[np.floating], net: nn.Module | None = None
) -> NDArray[np.floating]:
    """`probs`, p(y | x) of the audited rows, with those of noisy rows replaced: trained like the run, fold by fold."""
    probs, fold = np.array(probs), _folds(task.given, task.num_classes, run.seed)
    for number in range(FOLDS):
        kept = fold != number
        truth = None if task.truth is None else task.truth[kept]
        part = replace(
            task, split=replace(task.split, noisy=task.split.noisy[kept]), given=task.given[kept], truth=truth
        )
        fit = make_fit(run, part, machine, net=net)
        fit.run()
        rows = np.searchsorted(task.audited, task.split.noisy[~kept])
        found = predict(fit.method, fit.loader, "audited").cpu().numpy()[rows]
        probs[rows] = np.where(np.isfinite(found).all(1, keepdims=True), found, probs[rows])  # if that one diverged
    return probs


def _folds(given: Labels, num_classes: int, seed: int) -> Labels:
    """The fold of each row, every label shared out evenly; −1 where a label is too rare for it.

    >>> _folds(np.array([0, 0, 0, 1, 0, 0, 0]), 2, seed=0)[[3]].tolist()
    [-1]
    """
    order = numpy_stream(seed, "folds").permutation(len(given))
    order = order[np.argsort(given[order], kind="stable")]
    fold = np.empty(len(given), np.int64)
    fold[order] = np.arange(len(given)) % FOLDS
    return np.where(np.bincount(given, minlength=num_classes)[given] < 2 * FOLDS, -1, fold)
