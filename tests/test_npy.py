"""Probabilities that go to disk a part at a time."""

from __future__ import annotations

import numpy as np
import pytest

from builders import CPU32, make_tiny_task
from fasten.contract import Recipe
from fasten.evaluate import evaluate
from fasten.npy import read_npy, write_npy
from fasten.records import Run
from fasten.runs.building import build_method, make_loader


def test_the_file_is_that_of_numpy(tmp_path):
    table = np.random.default_rng(0).random((10, 3))
    write_npy(tmp_path / "parts.npy", (table[first : first + 4] for first in range(0, 10, 4)), (10, 3))
    np.save(tmp_path / "whole.npy", table.astype(np.float32))
    assert (tmp_path / "parts.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert isinstance(read_npy(tmp_path / "parts.npy"), np.memmap)


def test_a_failure_in_the_middle_leaves_nothing(tmp_path):
    def parts():
        yield np.zeros((2, 3))
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        write_npy(tmp_path / "a.npy", parts(), (4, 3))
    with pytest.raises(AssertionError, match="1 rows came, and 4 were expected"):
        write_npy(tmp_path / "a.npy", [np.zeros((1, 3))], (4, 3))
    assert list(tmp_path.iterdir()) == []


def test_what_is_found_from_the_disk_is_what_is_found_in_memory(tmp_path):
    task, machine = make_tiny_task(), CPU32
    method = machine.place(build_method(Run("tiny", recipe=Recipe("small-cnn")), task))
    loader = make_loader(task, machine, 0)
    method.train()
    stored = evaluate(method, task, loader, store=tmp_path / "probabilities.npy")
    kept = evaluate(method, task, loader)
    assert method.training
    assert stored.scores == kept.scores
    np.testing.assert_array_equal(stored.probs, kept.probs)
    assert isinstance(stored.probs, np.memmap)
    assert not isinstance(kept.probs, np.memmap)
