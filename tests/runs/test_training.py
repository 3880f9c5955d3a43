"""Whole runs on the embedded digits, short ones."""

from __future__ import annotations

import csv
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fasten.runs.building as building
import fasten.runs.lengths as lengths
import fasten.runs.training as training
from builders import make_tiny_task
from fasten.cli import main
from fasten.commands.console import show_result
from fasten.data.task import Known
from fasten.datasets import DATASETS, Place, find_dataset, load_task
from fasten.engine import Progress
from fasten.methods.clean_only import CleanOnly
from fasten.methods.fasten import FasTEN
from fasten.options import apply_settings
from fasten.records import Run, epochs_so_far, read_record
from fasten.runs.lengths import how_long
from fasten.runs.notes import clean_rows_do_better, most_labels_wrong, out_of_reach
from fasten.runs.training import Settings, resume, train
from fasten.statistics import reaches

RECIPE = replace(DATASETS["digits"].recipe.scaled(4), batch_size=200)
RUN = Run("digits", "symmetric:0.4", recipe=RECIPE)
CPU = Settings(device="cpu", clean_reference=False)


class Killed(BaseException):
    """As sudden as a lost machine."""


def without_times(record):
    kept = {key: record[key] for key in ("run", "data", "evaluation", "notes")}
    kept["epochs"] = [{k: v for k, v in row.items() if k != "seconds"} for row in record["epochs"]]
    timed = ("train_seconds", "setup_seconds", "examples_per_second")
    return kept | {"result": {k: v for k, v in record["result"].items() if k not in timed}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    return out, train(RUN, out, CPU)


def test_the_folder_holds_what_was_promised(finished):
    out, record = finished
    names = {"record.json", "model.safetensors", "labels.csv", "transition.csv", "report.html", "log.jsonl"}
    names |= {"tables.safetensors", "probabilities.npy", "gallery.json"}
    assert names <= {path.name for path in out.iterdir()} <= names | {"checkpoint"}
    assert json.loads((out / "record.json").read_text()) == json.loads(json.dumps(record))


def test_the_record_tells_the_truth_about_data_and_epochs(finished):
    _, record = finished
    task = load_task("digits", "symmetric:0.4", 0)
    assert record["data"]["noise_rate"] == np.mean(task.given != task.truth)
    assert [row["epoch"] for row in record["epochs"]] == [1, 2, 3, 4]
    best = max(record["epochs"], key=lambda row: (row["valid_accuracy"], row["epoch"]))
    assert record["result"]["best_epoch"] == best["epoch"]
    assert record["result"]["test_accuracy"] == pytest.approx(best["test_accuracy"])
    assert record["result"]["test_accuracy_last"] == record["epochs"][-1]["test_accuracy"]


def test_labels_csv_lists_every_noisy_row_most_suspect_first(finished):
    out, record = finished
    rows = list(csv.DictReader((out / "labels.csv").read_text().splitlines()))
    assert list(rows[0]) == ["row", "id", "given", "suggested", "p_wrong", "p_suggested", "is_issue", "corrected"]
    assert sorted(int(row["row"]) for row in rows) == list(range(record["data"]["rows_noisy"]))
    suspicion = [float(row["p_wrong"]) for row in rows]
    assert suspicion == sorted(suspicion, reverse=True)
    for row in rows:
        assert row["is_issue"] == ("true" if float(row["p_wrong"]) > 0.5 else "false")
        assert row["corrected"] == (row["suggested"] if row["is_issue"] == "true" else row["given"])


def test_the_weights_are_those_of_the_selected_epoch(finished):
    from fasten.machine import choose_machine
    from fasten.runs.inference import evaluate_run

    out, record = finished
    found = evaluate_run(out, load_task("digits", "symmetric:0.4", 0), choose_machine("cpu"))
    assert found["test_accuracy"] == pytest.approx(record["result"]["test_accuracy"])
    assert found["test_nll"] == pytest.approx(record["evaluation"]["test_nll"])


@pytest.mark.parametrize("kill_at", [1, 6, 7, 15])
def test_resume_gives_the_run_that_would_have_been(finished, tmp_path, monkeypatch, kill_at):
    """Checkpoints after every update; the process dies a little later; same weights, same record, same log."""
    monkeypatch.setattr(training, "EPOCH_CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(training, "UPDATE_CHECKPOINT_SECONDS", 0.0)
    out = tmp_path / "broken"
    calls = iter(range(1000))

    def die(done: int) -> None:
        if next(calls) == kill_at:
            raise Killed

    with pytest.raises(Killed):
        train(RUN, out, replace(CPU, on_update=die))
    assert read_record(out)["result"] is None
    log = out / "log.jsonl"
    log.write_text(log.read_text() + '{"event": "written after the checkpoint"}\n')
    record = resume(out, CPU)
    whole, expected = finished
    assert without_times(record) == without_times(expected)
    ours, theirs = load_file(out / "model.safetensors"), load_file(whole / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    ours, theirs = (
        [{**json.loads(line), "seconds": 0} for line in path.read_text().splitlines()]
        for path in (log, whole / "log.jsonl")
    )
    assert ours == theirs
    assert [e["epoch"] for e in ours if e["event"] == "epoch"] == [1, 2, 3, 4]


def test_resume_without_a_checkpoint_begins_again(finished, tmp_path):
    def die(done: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        train(RUN, tmp_path / "early", replace(CPU, on_update=die))
    assert without_times(resume(tmp_path / "early", CPU)) == without_times(finished[1])


def test_names_that_are_not_utf8_cost_no_run(finished, tmp_path):
    record = train(RUN, tmp_path / "run", replace(CPU, place=Place(tmp_path / "r\udcff")))
    assert without_times(record) == without_times(finished[1])
    assert "/r\\udcff" in (tmp_path / "run/report.html").read_text(encoding="utf-8")
    assert read_record(tmp_path / "run") == json.loads(json.dumps(record))


def test_a_report_that_fails_costs_no_run(finished, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(training, "write_report", lambda *_: None / 0)
        notes = train(RUN, out, CPU)["notes"]
    assert notes[-1].startswith("report.html could not be written (unsupported operand")
    assert notes[-1].endswith(f"; once that is fixed, `fasten report {out}` writes it")
    assert resume(out, CPU)["result"]["model_sha256"] == finished[1]["result"]["model_sha256"]
    assert main(["report", str(out)]) == 0
    assert (out / "report.html").exists()


def test_a_folder_that_holds_a_run_is_left_alone(finished):
    with pytest.raises(ValueError, match="already holds a finished run; choose another --out"):
        train(RUN, finished[0], CPU)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (replace(RUN, options={"threshold": 80.0}), r"threshold must be in \[0, 1\], got 80"),
        (replace(RUN, recipe=replace(RECIPE, rate=0.0)), "rate must be above 0, got 0"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused_before_anything_is_written(tmp_path, run, message):
    with pytest.raises(ValueError, match=message):
        train(run, tmp_path / "run", Settings(device="cpu"))
    assert not (tmp_path / "run").exists()


def test_a_streamed_run_is_the_same_run(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(building, "Loader", building.StreamLoader)
    assert without_times(train(RUN, tmp_path / "streamed", CPU)) == without_times(finished[1])


def test_clean_only_is_reported_as_a_reference(tmp_path):
    run = replace(RUN, recipe=replace(RECIPE.scaled(1), batch_size=400))
    record = train(run, tmp_path / "r", Settings(device="cpu", noisy_reference=True))
    assert set(record["references"]) == {"clean_only", "noisy_only"}
    assert record["references"]["clean_only"]["updates"] == 3


def test_a_reference_is_the_same_whatever_it_is_held_against(tmp_path):
    """L2RW has no momentum, and GLC a rate that falls otherwise: neither is the references' concern."""
    found = []
    for method in ("cross-entropy", "l2rw", "glc"):
        options, recipe = apply_settings(method, find_dataset("digits").recipe, ["batch_size=400"], 4)
        run = Run("digits", "symmetric:0.4", method, options, recipe, seed=0)
        found.append(train(run, tmp_path / method, Settings(device="cpu"))["references"]["clean_only"])
    assert len({(r["test_accuracy"], r["valid_accuracy"], r["updates"]) for r in found}) == 1


@pytest.fixture
def spoilt(monkeypatch):
    """Make a method's losses NaN at a rate or above; returns the rates that its updates have had."""

    def spoil(method, harmful_rate: float) -> list[float]:
        real, rates = method.step, []

        def step(self, batch):
            for part, loss in real(self, batch):
                rates.append(batch.rates[part].item())
                yield part, loss * (np.nan if rates[-1] >= harmful_rate else 1)

        monkeypatch.setattr(method, "step", step)
        return rates

    return spoil


def test_a_reference_that_diverges_is_left_out_and_named(tmp_path, capsys, spoilt):
    """All weights NaN, it would predict the first class and pass for what the clean rows alone give."""
    spoilt(CleanOnly, 0.0)
    run = replace(RUN, recipe=replace(RECIPE.scaled(1), batch_size=400))
    record = train(run, tmp_path / "r", Settings(device="cpu", noisy_reference=True))
    assert record["references"]["clean_only"] is None
    assert record["references"]["noisy_only"]["test_accuracy"] > 0
    assert sum("clean-only is left out of the comparison: training diverged" in note for note in record["notes"]) == 1
    assert read_record(tmp_path / "r")["references"] == record["references"]
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "Noisy rows alone" in page
    assert "Clean rows alone<" not in page
    show_result(record, tmp_path / "r")
    said = capsys.readouterr().out
    assert "noisy labels only" in said
    assert "clean rows only" not in said


def test_a_reference_whose_running_variances_overflow_is_left_out(tmp_path, monkeypatch):
    step = CleanOnly.step

    def overflow(method, batch):
        yield from step(method, batch)
        for name, tensor in method.named_buffers():
            if name.endswith("running_var"):
                tensor.fill_(np.inf)

    monkeypatch.setattr(CleanOnly, "step", overflow)
    record = train(RUN, tmp_path / "r", Settings(device="cpu"))
    assert record["references"] == {"clean_only": None}


def test_the_reference_of_a_run_that_was_taken_back_has_its_lower_rate(tmp_path, spoilt):
    spoilt(FasTEN, RECIPE.rate / 2)
    rates = spoilt(CleanOnly, RECIPE.rate / 2)
    record = train(
        replace(RUN, recipe=replace(RECIPE, batch_size=400)), tmp_path / "r", Settings(device="cpu", on_nan="rewind")
    )
    assert [went["rate_factor"] for went in record["rewinds"]] == [0.1]
    assert max(rates) == pytest.approx(RECIPE.rate / 10)
    assert record["references"]["clean_only"]["test_accuracy"] > 0


@pytest.mark.parametrize(
    ("clean", "batch_size", "expected"),
    [(50, 100, 50), (57, 100, 50), (5, 100, 10), (100, 100, 100), (1000, 100, 100), (100, 400, 100), (100, 20, 20)],
)
def test_clean_only_takes_no_row_twice_while_there_are_enough(clean, batch_size, expected):
    """Ten classes: five rows of each suffice for a batch of fifty; of less than one of each, rows stand for classes."""
    run = replace(RUN, method="clean-only", recipe=replace(RECIPE, batch_size=batch_size))
    task = load_task("digits", RUN.noise, 0, clean=clean)
    fit = building.make_fit(run, task, training.choose_machine("cpu"))
    index = next(fit.loader.updates(fit.plan[0], (0, 1)))["clean"].index
    assert len(index) == expected
    assert len(index.unique()) == min(clean, expected)


@pytest.mark.parametrize(("alone", "here", "says"), [(0.9, 0.7, True), (0.9, 0.88, False), (0.7, 0.9, False)])
def test_it_says_when_the_clean_rows_alone_do_better(alone, here, says):
    record = {
        "run": {"method": "fasten"},
        "data": {"rows_valid": 100, "rows_test": 0},
        "references": {"clean_only": {"valid_accuracy": alone, "test_accuracy": None}},
        "result": {"valid_accuracy": here, "test_accuracy": None},
    }
    assert (clean_rows_do_better(record) is not None) == says
    record["run"]["method"] = "dividemix-clean"  # is not told to try itself
    assert "dividemix" not in str(clean_rows_do_better(record))


@pytest.mark.parametrize(
    ("method", "share", "says"), [("fasten", 0.72, True), ("fasten", 0.5, False), ("dividemix-clean", 0.72, False)]
)
def test_it_names_another_method_where_most_labels_look_wrong(method, share, says):
    assert ("72% of the labels look wrong" in str(most_labels_wrong(method, share))) == says


def test_a_run_on_mostly_wrong_labels_names_another_method(tmp_path):
    recipe, quick = replace(DATASETS["digits"].recipe, epochs=5), Settings(device="cpu", clean_reference=False)
    for noise, says in (("symmetric:0.8", True), ("symmetric:0.2", False)):
        notes = train(Run("digits", noise, recipe=recipe), tmp_path / noise[-1], quick)["notes"]
        assert any("--method dividemix-clean did better" in note for note in notes) == says


def test_threads_start_from_the_weights_of_their_own_seeds(monkeypatch):
    def build_slowly(*args, **options):
        time.sleep(0.05)  # the other thread seeds meanwhile, if it can
        return real(*args, **options)

    def weights(seed):
        return torch.cat([p.flatten() for p in building.build_method(replace(RUN, seed=seed), task).parameters()])

    task, real = load_task("digits", "symmetric:0.4", 0), building.build_backbone
    alone = [weights(seed) for seed in range(4)]
    monkeypatch.setattr(building, "build_backbone", build_slowly)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(weights, range(4)))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.slow
def test_the_demos_promise_over_five_seeds(tmp_path):
    """FasTEN ≥ 0.94 at 40%, above clean-only, 0.15 above the last epoch of noisy-only; at 80% clean rows do better."""
    settings = Settings(device="cpu", noisy_reference=True)
    recipe = DATASETS["digits"].recipe
    found = [
        train(Run("digits", "symmetric:0.4", recipe=recipe, seed=s), tmp_path / f"{s}", settings) for s in range(5)
    ]
    ours = np.mean([record["result"]["test_accuracy"] for record in found])
    clean = np.mean([record["references"]["clean_only"]["test_accuracy"] for record in found])
    noisy = np.mean([record["references"]["noisy_only"]["test_accuracy_last"] for record in found])
    assert ours >= 0.94
    assert ours > clean
    assert ours >= noisy + 0.15
    bad = train(Run("digits", "symmetric:0.8", recipe=recipe), tmp_path / "bad", settings)
    (note,) = [note for note in bad["notes"] if "training on the clean rows alone does better" in note]
    assert "try --method dividemix-clean" in note


def test_an_unfinished_run_has_a_report_with_the_epochs_so_far(tmp_path):
    out, seen = tmp_path / "broken", []

    def die(row) -> None:
        seen.append(row)
        if len(seen) == 2:
            raise Killed

    with pytest.raises(Killed):
        train(RUN, out, replace(CPU, on_epoch=die))
    with (out / "log.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\0\n3\n[1]\n{"event": "epo')
    assert main(["report", str(out)]) == 0
    assert epochs_so_far(out) == json.loads(json.dumps(seen))
    assert f"{seen[1]['valid_accuracy']:.1%}" in (out / "report.html").read_text()


def test_the_number_of_verified_rows_can_be_chosen(tmp_path):
    recipe = replace(DATASETS["digits"].recipe, epochs=1)
    run = Run("digits", "symmetric:0.4", "cross-entropy", recipe=recipe, clean=30)
    record = train(run, tmp_path / "run", Settings(device="cpu", clean_reference=False))
    assert (record["data"]["rows_clean"], record["data"]["rows_noisy"]) == (30, 1267)
    assert Run.from_json(record["run"]) == run


@pytest.mark.parametrize("long", [1000.0, 0.0])
def test_a_comparison_that_takes_a_while_is_announced_with_its_time(long, tmp_path, monkeypatch):
    monkeypatch.setattr(lengths, "LONG", long)
    said: list[str] = []
    train(RUN, tmp_path / "run", replace(CPU, clean_reference=True, say=said.append))
    (sentence,) = [words for words in said if words.startswith("now training clean-only on the same rows")]
    assert (re.search(r"; this takes about [\d.]+ s$", sentence) is not None) == (long == 0)


@pytest.mark.parametrize(
    ("per_row", "words"), [(0.001, ""), (0.01, "; this takes about 60.0 s"), (0.1, "; this takes about 10 min")]
)
def test_the_time_of_a_comparison_is_that_of_its_rows(per_row, words):
    run = replace(RUN, method="cross-entropy", recipe=replace(RECIPE, epochs=5, batch_size=200))
    task = load_task("digits", "symmetric:0.4", 0)  # 1,197 noisy rows: six updates of 200 in each epoch
    fit = building.make_fit(run, task, training.choose_machine("cpu"))
    assert how_long(fit, Progress(seconds=300 * per_row, images=300)) == words


@pytest.mark.parametrize("min_precision", [0.5, 0.8, 0.9, 0.95])
def test_a_precision_that_held_back_rows_cannot_show_is_known_before_training(min_precision):
    task = make_tiny_task()
    n, said = len(task.x), []
    for wrong in range(n + 1):
        given = (np.arange(n) < wrong).astype(np.int64)
        known = Known(tuple(map(str, range(n))), given, np.zeros(n, np.int64), np.ones(n, bool), np.ones(n, bool))
        said.append(out_of_reach(replace(task, known=known), min_precision))
        assert bool(said[-1]) is not reaches(wrong, wrong, min_precision)
    assert "and there is 1; verify more rows at random" in said[1]
    assert out_of_reach(task, min_precision) == out_of_reach(replace(task, known=known), None) == ""
