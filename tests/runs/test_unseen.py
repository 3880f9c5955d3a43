"""Labels judged by networks that have not seen them, where no row is verified."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from fasten.data.arrays import rows_from_arrays
from fasten.engine import Progress, predict
from fasten.machine import Machine
from fasten.methods.cross_entropy import CrossEntropy
from fasten.metrics import auroc
from fasten.own import auto_recipe, make_own_task
from fasten.records import Run
from fasten.runs import lengths, unseen
from fasten.runs.building import make_fit
from fasten.runs.training import Settings, train
from fasten.runs.unseen import FOLDS, Unseen, by_heart, forget

CPU = Machine(torch.device("cpu"))


def clusters(n=300, wrong=0.3, seed=0):
    """Rows of three Gaussian classes: features, true labels, and given ones some of which are wrong."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(3, size=n)
    given = np.where(rng.random(n) < wrong, (truth + rng.integers(1, 3, n)) % 3, truth)
    return rng.normal(size=(n, 10)) + 3 * np.eye(3, 10)[truth], truth, given


def task_of(x, given, **known):
    return make_own_task(rows_from_arrays(x.astype(np.float32), list(map(str, given)), name="rows", **known), 0)


def run_of(task, epochs=15):
    recipe = auto_recipe(task.shape, len(task.x), task.num_classes, "cpu").scaled(epochs)
    return Run("rows", method="cross-entropy", recipe=recipe)


def judged(x, given, epochs=15):
    task = task_of(x, given)
    nothing = np.full((len(given), 3), np.nan, np.float32)
    return Unseen(run_of(task, epochs), task, CPU, Progress(), note=lambda sentence: None)(nothing)


@pytest.mark.parametrize("seed", range(3))
def test_every_label_is_shared_out_evenly_and_rare_ones_to_no_fold(seed):
    given = np.repeat(np.arange(4), [100, 50, 2 * FOLDS, 2 * FOLDS - 1])
    fold = unseen._folds(given, 4, seed)
    for label in range(3):
        shares = np.bincount(fold[given == label], minlength=FOLDS)
        assert np.ptp(shares) <= 1
        assert shares.sum() == (given == label).sum()
    assert (fold[given == 3] == -1).all()
    assert (fold != unseen._folds(given, 4, seed + 1)).any()


def test_what_is_said_of_a_row_does_not_depend_on_its_own_label(monkeypatch):
    x, _, given = clusters()
    monkeypatch.setattr(unseen, "_folds", lambda labels, *_: np.arange(len(labels)) % FOLDS)
    before, changed = judged(x, given, 2), given.copy()
    changed[0] = (given[0] + 1) % 3
    after = judged(x, changed, 2)
    np.testing.assert_array_equal(before[0::FOLDS], after[0::FOLDS])
    assert (before[1::FOLDS] != after[1::FOLDS]).any(), "rows of other folds are judged by networks that saw it"


def test_wrong_labels_are_found_that_a_network_knows_by_heart():
    x, truth, given = clusters()
    task = task_of(x, given)
    fit = make_fit(run_of(task, 40), task, CPU)
    fit.run()
    by_one, by_three = (
        auroc(-p[np.arange(len(given)), given], given != truth)
        for p in (predict(fit.method, fit.loader, "audited").numpy(), judged(x, given, 40))
    )
    assert by_three > 0.85 > 0.8 > by_one


def test_rows_of_rare_labels_keep_what_was_said_of_them():
    x, _, given = clusters()
    given = np.where(np.arange(300) < 4, 3, given)
    task = task_of(x, given)
    before, said = np.full((300, 4), 0.25, np.float32), []
    after = Unseen(run_of(task, 1), task, CPU, Progress(), said.append)(before)
    assert (after[:4] == 0.25).all()
    assert (after[4:] != 0.25).any(1).all()
    assert (before == 0.25).all(), "a copy is made"
    assert "except for 4 rows of a label with fewer than 6 rows;" in said[0]


def test_where_all_labels_are_rare_nothing_is_trained_and_nothing_promised(monkeypatch):
    given = np.arange(60) % 20
    task = task_of(np.random.default_rng(0).normal(size=(60, 4)), given)
    monkeypatch.setattr(unseen, "make_fit", None)
    before, said = np.full((60, 20), 0.05, np.float32), []
    np.testing.assert_array_equal(Unseen(run_of(task), task, CPU, Progress(), said.append)(before), before)
    assert len(said) == 1
    assert "may have memorised wrong labels; verify some rows" in said[0]


@pytest.mark.parametrize(("rate_factor", "told"), [(1.0, 1 + FOLDS), (0.1, 1)])
def test_the_networks_of_a_run_that_was_taken_back_have_its_lower_rate(monkeypatch, rate_factor, told):
    x, _, given = clusters()
    task, before, said = task_of(x, given), np.full((300, 3), 0.25, np.float32), []
    run, step = run_of(task, 2), CrossEntropy.step

    def spoilt(method, batch):
        for part, loss in step(method, batch):
            yield part, loss * torch.where(batch.rates[part] > run.recipe.rate / 2, torch.nan, 1.0)

    monkeypatch.setattr(CrossEntropy, "step", spoilt)
    after = Unseen(run, task, CPU, Progress(rate_factor=rate_factor), said.append)(before)
    assert len(said) == told
    assert (after == before).all() == (rate_factor == 1.0)


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda folder: None, []),
        (lambda folder: (folder / "unseen1.safetensors").unlink(), ["1 more network "]),
        (lambda folder: (folder / "unseen1.safetensors").write_bytes(b""), ["1 more network "]),
        (forget, ["3 more networks ", "2 more networks ", "1 more network "]),
    ],
)
def test_networks_that_were_finished_before_an_interruption_are_not_trained_again(tmp_path, change, left):
    x, _, given = clusters()
    task, before = task_of(x, given), np.full((300, 3), 0.25, np.float32)
    run = run_of(task, 2)

    def judge():
        at, said, shares = Progress(seconds=1.0, images=300), [], []
        unseen = Unseen(run, task, CPU, at, str, folder=tmp_path, say=said.append, on_share=shares.append)
        return unseen(before), at, said, shares

    expected, first, _, shares = judge()
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert (first.images, first.seconds > 1) == (300 + 2 * FOLDS * 200, True)
    change(tmp_path)
    found, second, said, _ = judge()
    np.testing.assert_array_equal(found, expected)
    assert [words.split("to train, ")[0] for words in said] == left
    assert second.images == first.images
    assert (second.seconds == first.seconds) == (not left)


def test_networks_of_another_rate_are_trained_again(tmp_path):
    x, _, given = clusters()
    task, before, said = task_of(x, given), np.full((300, 3), 0.25, np.float32), []
    for rate_factor, trained in ((1.0, 3), (0.1, 6), (0.1, 6)):
        at = Progress(rate_factor=rate_factor)
        Unseen(run_of(task, 1), task, CPU, at, str, folder=tmp_path, say=said.append)(before)
        assert len(said) == trained


def test_their_time_is_announced_shown_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(lengths, "LONG", 0.0)
    x, _, given = clusters()
    np.savez(tmp_path / "rows.npz", x=x.astype(np.float32), labels=given)
    said, done, total = [], [], []
    settings = Settings(
        device="cpu", say=said.append, on_update=done.append, on_start=lambda _, updates: total.append(updates)
    )
    run = replace(run_of(task_of(x, given), 2), dataset=str(tmp_path / "rows.npz"), own={})
    record = train(run, tmp_path / "run", settings)
    assert any(re.fullmatch(r"3 more networks to train, .*; this takes about [\d.]+ s", words) for words in said)
    assert done == sorted(done)
    assert done[-1:] == total
    assert record["result"]["train_seconds"] > sum(row["seconds"] for row in record["epochs"])
    assert not any("more network" in note for note in record["notes"])


def test_it_is_for_labels_that_nothing_holds_against():
    x, truth, given = clusters()
    none, some = (
        task_of(x, given),
        task_of(x, given, y_verified=[str(t) if i < 50 else None for i, t in enumerate(truth)]),
    )
    assert by_heart(run_of(none), none)
    assert not by_heart(run_of(some), some)
    assert not by_heart(Run("rows", method="dividemix", recipe=run_of(none).recipe), none)
