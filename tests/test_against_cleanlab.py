"""The comparison with cleanlab is fair: who predicts a row has not trained on it, and has seen all else."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from fasten.datasets import load_task

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "against_cleanlab.py"))


@pytest.fixture(scope="module")
def task():
    return load_task("digits", "symmetric:0.4", 3)


def test_every_row_is_in_one_fold_and_the_given_labels_are_spread_evenly(task):
    fold = SCRIPT["fold_of"](task, 3)
    counts = np.array([np.bincount(task.given[fold == number], minlength=10) for number in range(SCRIPT["FOLDS"])])
    assert counts.sum() == len(task.given)
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert (fold != SCRIPT["fold_of"](task, 4)).any()


def test_a_fold_is_predicted_by_a_network_that_has_seen_all_but_it(task):
    fold = SCRIPT["fold_of"](task, 3) == 0
    part = SCRIPT["without_fold"](task, fold)
    assert set(part.split.test) == set(task.split.noisy[fold])
    assert set(part.split.noisy) == set(task.split.noisy[~fold]) | set(task.split.clean)
    labels = dict(zip(part.split.noisy, part.given, strict=True))
    assert [labels[row] for row in task.split.clean] == task.clean.tolist(), "the clean rows keep their true labels"
    assert [labels[row] for row in task.split.noisy[~fold]] == task.given[~fold].tolist()
    assert part.valid is task.valid
