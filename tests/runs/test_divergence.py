"""Numbers that went wrong: a run that diverges names the rows, keeps a good checkpoint, and may go back by itself."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from builders import CPU32, make_tiny_task
from fasten.contract import Recipe
from fasten.datasets import DATASETS, load_task
from fasten.evaluate import Watch
from fasten.metrics import smallest_singular
from fasten.records import Run, read_record
from fasten.runs import building
from fasten.runs.building import build_method, make_loader
from fasten.runs.checkpoint import read_tensors
from fasten.runs.notes import NEARLY_SINGULAR, epoch_warnings, final_warnings
from fasten.runs.training import Settings, resume, train

RECIPE = replace(DATASETS["digits"].recipe.scaled(3), batch_size=300)  # 4 updates an epoch
RUN = Run("digits", "symmetric:0.4", recipe=RECIPE)
EVERY_UPDATE = Settings(device="cpu", clean_reference=False, checkpoint_every=0.0)
POISON = 355  # a noisy row, which comes in the third update of the first epoch


class Killed(BaseException):
    """As sudden as a lost machine."""


@pytest.fixture
def poisoned(monkeypatch):
    """Say from which learning rate on a batch with the row `POISON` has a loss that is not a number."""

    def poison(harmful_rate: float, value: float = math.nan) -> None:
        def plan(method, recipe):
            return [replace(stage, step=spoil(stage.step)) for stage in method.plan(recipe)]

        def spoil(step):
            def spoilt(batch):
                for part, loss in step(batch):
                    harmful = (batch["noisy"].index == POISON).any() & (batch.rates[part] >= harmful_rate)
                    yield part, loss * torch.where(harmful, value, 1.0)

            return spoilt

        monkeypatch.setattr(building, "plan_of", plan)

    return poison


def all_finite(folder) -> bool:
    files = sorted((folder / "checkpoint").glob("*.safetensors"))
    tensors = [tensor for path in files for tensor in read_tensors(path)[0].values()]
    return bool(files) and all(bool(tensor.isfinite().all()) for tensor in tensors)


def without_times(record):
    """All of it but the seconds, and what was said on the command line about stopping."""
    text = json.dumps({key: record[key] for key in record if key != "environment"})
    return re.sub(r'"(seconds|\w+_seconds|examples_per_second)": [\d.e-]+', "", text)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_it_stops_with_the_epoch_the_rows_and_the_last_good_checkpoint(tmp_path, poisoned, value):
    poisoned(0.0, value)
    with pytest.raises(ValueError, match="training diverged in epoch 1: update 3, on the rows") as found:
        train(RUN, tmp_path, EVERY_UPDATE)
    *_, event = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert event["event"] == "diverged"
    task = load_task("digits", "symmetric:0.4", 0)
    assert task.split.noisy[POISON] in event["rows"]["noisy"]
    assert len(event["rows"]["noisy"]) == 300
    assert set(event["rows"]["noisy"]) <= set(task.split.noisy.tolist())
    assert set(event["rows"]["clean"]) <= set(task.split.clean.tolist())
    shown = ", ".join(map(str, event["rows"]["noisy"][:10]))
    assert f"on the rows {shown} and " in str(found.value)
    assert "the last good checkpoint is 000000002.safetensors" in str(found.value)
    assert all_finite(tmp_path)
    assert read_record(tmp_path)["result"] is None


def test_it_is_found_at_the_end_of_an_epoch_where_no_checkpoint_is_due(tmp_path, poisoned):
    poisoned(0.0)
    with pytest.raises(ValueError, match=r"epoch 1: update 3, .* is no checkpoint yet; `fasten resume .* rewind`"):
        train(RUN, tmp_path, replace(EVERY_UPDATE, checkpoint_every=None))
    assert not (tmp_path / "checkpoint").exists()


def test_weights_too_large_to_predict_with_are_found_after_the_last_update(tmp_path):
    """They are finite themselves, and so was the last loss, which was of the weights before them."""
    run = replace(RUN, recipe=replace(RECIPE, epochs=1, batch_size=1197, rate=1e20))
    with pytest.raises(ValueError, match=r"weights have grown so large .* train again with a smaller rate"):
        train(run, tmp_path, Settings(device="cpu", clean_reference=False))
    assert read_record(tmp_path)["result"] is None


def test_a_run_that_is_taken_back_goes_on_with_a_lower_rate_and_says_so(tmp_path, poisoned):
    """And so does one that is killed after it: it ends as the same run."""
    poisoned(RECIPE.rate / 5)
    rewinding = replace(EVERY_UPDATE, on_nan="rewind")
    record = train(RUN, tmp_path / "whole", rewinding)
    (went,) = record["rewinds"]
    assert (went["epoch"], went["rate_factor"]) == (1, 0.1)
    assert went["back_to"] == f"{went['update'] - 1:09d}.safetensors"
    rates = [RECIPE.sgd().rate_at(epoch) / 10 for epoch in (1, 2, 3)]
    assert [row["learning_rate"] for row in record["epochs"]] == pytest.approx(rates)
    assert sum("training diverged" in note and "with 0.1 of the learning rate" in note for note in record["notes"]) == 1
    events = [json.loads(line)["event"] for line in (tmp_path / "whole/log.jsonl").read_text().splitlines()]
    assert [e for e in events if e != "warning"] == ["diverged", "rewind", "epoch", "epoch", "epoch", "finished"]

    seen = []

    def die(done: int) -> None:
        seen.append(done)
        if len(seen) == 9:
            raise Killed

    with pytest.raises(Killed):
        train(RUN, tmp_path / "killed", replace(rewinding, on_update=die))
    assert without_times(resume(tmp_path / "killed", Settings(device="cpu"))) == without_times(record)
    model = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert model[0] == model[1]


def test_a_run_that_stopped_can_be_taken_back_later(tmp_path, poisoned):
    poisoned(RECIPE.rate / 5)
    with pytest.raises(ValueError, match="diverged"):
        train(RUN, tmp_path, EVERY_UPDATE)
    assert len(resume(tmp_path, Settings(device="cpu", on_nan="rewind"))["rewinds"]) == 1


def test_what_is_asked_of_a_resumed_run_also_holds_the_next_time(tmp_path, poisoned):
    poisoned(RECIPE.rate / 5)
    with pytest.raises(ValueError, match="diverged"):
        train(RUN, tmp_path, EVERY_UPDATE)

    def die(done: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        resume(tmp_path, Settings(on_nan="rewind", checkpoint_every=5.0, on_update=die))
    how = read_record(tmp_path)["environment"]["how"]
    assert (how["on_nan"], how["checkpoint_every"], how["device"]) == ("rewind", 5.0, "cpu")
    assert len(resume(tmp_path)["rewinds"]) == 1


def test_the_rate_that_is_advised_is_the_one_that_counts(tmp_path):
    run = replace(RUN, method="causalnl", options={"adam_rate": 1e30})
    with pytest.raises(ValueError, match=r"diverged.* a smaller rate, such as --set adam_rate=1e\+29"):
        train(run, tmp_path, EVERY_UPDATE)


def test_what_a_lower_rate_does_not_cure_stops_in_the_end(tmp_path, poisoned):
    """The second time it goes back further, the last checkpoint being finite but perhaps too far gone."""
    poisoned(0.0)
    with pytest.raises(ValueError, match=r"choose another --out and a smaller rate"):
        train(RUN, tmp_path, replace(EVERY_UPDATE, on_nan="rewind"))
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    told = [event for event in events if event["event"] in ("diverged", "rewind")]
    assert [event["event"] for event in told] == ["diverged", "rewind"] * 3 + ["diverged"]
    assert all(len(event["rows"]["noisy"]) == 300 for event in told[::2])
    assert [event["rate_factor"] for event in told[1::2]] == [0.1, 0.01, 0.001]
    with pytest.raises(ValueError, match="diverged") as found:
        resume(tmp_path, Settings(device="cpu"))
    assert "--on-nan" not in str(found.value)
    assert all_finite(tmp_path)


# What looks wrong though all numbers are finite.


def test_a_collapsed_classifier_is_seen_in_the_row_of_an_epoch():
    task = make_tiny_task()
    method = build_method(Run("tiny", recipe=Recipe("small-cnn", batch_size=16)), task)
    watch = Watch(task, make_loader(task, CPU32, 0))
    labels = torch.from_numpy(np.concatenate([task.valid, task.test]))
    method.forward = lambda x: torch.eye(3)[torch.zeros(len(x), dtype=torch.int64)]
    row = watch(method, {})
    assert row["predicted_classes"] == 1
    assert row["valid_accuracy"] == (task.valid == 0).mean()
    assert ["collapsed" in text for text in epoch_warnings(row)] == [True]
    answers = iter(labels.split([len(task.valid), len(task.test)]))
    method.forward = lambda x: torch.eye(3)[next(answers)]
    row = watch(method, {})
    assert (row["predicted_classes"], row["valid_accuracy"], row["test_accuracy"]) == (3, 1.0, 1.0)
    assert epoch_warnings(row) == []


@pytest.mark.parametrize(("rate", "warned"), [(0.4, False), (0.5, True)])
def test_a_t_close_to_singular_is_seen_in_the_row_of_an_epoch(rate, warned):
    """Half of each class labelled as the next: of four classes, T makes two mixtures the same."""
    task = make_tiny_task()
    T = (1 - rate) * np.eye(4) + rate * np.roll(np.eye(4), 1, axis=1)
    history = {"transition": torch.from_numpy(T).expand(5, 4, 4)}
    row = Watch(replace(task, transition=None, truth=None), make_loader(task, CPU32, 0))._transition(history, None)
    assert row["t_smallest_singular"] == pytest.approx(abs(1 - 2 * rate), abs=1e-12)
    assert len(epoch_warnings(row)) == warned
    best = {"predicted_classes": None, "t_smallest_singular": None}
    assert len(final_warnings(best, np.eye(4), T)) == warned


def test_the_smallest_singular_value_is_what_it_says():
    rng = np.random.default_rng(0)
    T = rng.dirichlet(np.ones(6), 6)
    assert smallest_singular(T) ** 2 == pytest.approx(np.linalg.eigvalsh(T.T @ T)[0])
    assert smallest_singular(np.full((2, 2), np.nan)) is None
    symmetric = 0.02 * np.eye(10) + 0.98 / 10
    assert smallest_singular(symmetric) == pytest.approx(NEARLY_SINGULAR)


def test_validation_rows_of_one_class_are_no_collapse():
    task = make_tiny_task()
    alike = replace(
        task, valid=np.zeros_like(task.valid), test=task.test[:0], split=replace(task.split, test=task.split.test[:0])
    )
    method = build_method(Run("tiny", recipe=Recipe("small-cnn", batch_size=16)), alike)
    method.forward = lambda x: torch.eye(3)[torch.zeros(len(x), dtype=torch.int64)]
    row = Watch(alike, make_loader(alike, CPU32, 0))(method, {})
    assert (row["predicted_classes"], row["valid_accuracy"]) == (None, 1.0)
    assert epoch_warnings(row) == []


@pytest.mark.parametrize("validated", [None, 1, 2])
def test_a_collapse_is_that_of_all_rows_and_not_of_those_that_validate(validated):
    best, probs = {"predicted_classes": validated}, np.array([[0.6, 0.4], [0.9, 0.1]])
    assert final_warnings(best, np.eye(2), np.eye(2)) == []
    found = final_warnings(best, probs, np.eye(2))
    assert found == ["at the selected epoch the classifier has collapsed: it predicts one class for all rows"]


def test_warnings_stand_in_the_log_and_the_report(tmp_path):
    """A rate that is far too high, but not so high that numbers overflow."""
    record = train(replace(RUN, recipe=replace(RECIPE, rate=30.0)), tmp_path, EVERY_UPDATE)
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert any("collapsed" in event.get("warning", "") for event in events)
    assert any("collapsed" in note for note in record["notes"])
    assert "the classifier has collapsed" in (tmp_path / "report.html").read_text()
