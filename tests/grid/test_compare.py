"""Comparisons as a user meets them: the runs, the tables, going on, and refusals; short runs on digits."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fasten.grid.compare as compare_module
import fasten.grid.workers as workers
import fasten.runs.training as training
from command_line import answer, fill_disk, interrupt_at, refuse, tree
from fasten.cli import main
from fasten.constants import COMPARED
from fasten.datasets import DATASETS, load_task
from fasten.grid.compare import Request, divide_settings, prepare
from fasten.grid.standings import Comparison, RunOutcome, summarise
from fasten.methods import METHODS
from fasten.records import Run, read_record, write_record
from fasten.report.charts import Dot, dot_plot
from fasten.report.comparison import csv_text, markdown, render
from fasten.runs.training import Settings
from own_data import write_digits, write_table
from test_report import EVIL, Page

METHOD_NAMES = ["naive-oversampling", "cross-entropy", "clean-only"]
ARGS = "digits --noise symmetric:0.4 --device cpu --epochs 1 --set batch_size=400"
COMMAND = f"compare {ARGS} --methods {','.join(METHOD_NAMES)} --seeds 2"
TABLES = ["compare.csv", "compare.html", "compare.json", "compare.md"]
T_ONE = 12.706204736174698  # Student's 97.5% quantile, one degree of freedom


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "out"
    assert main(shlex.split(f"{COMMAND} --json --out {out}")) == 0
    return out


@pytest.fixture
def copy(finished, folder):
    """The finished comparison as `out` in the current folder."""
    return Path(shutil.copytree(finished, folder / "out"))


def read(out: Path) -> dict:
    return json.loads((out / "compare.json").read_text())


def without_times(value):
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if "second" not in k and k not in ("time_ratio", "how")}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def records(out: Path, method: str, seeds=(0, 1)) -> list[dict]:
    return [read_record(out / f"{method}-seed{seed}") for seed in seeds]


# What it makes.


def test_each_run_is_what_train_makes(finished, folder, capsys):
    answer(f"train {ARGS} --method cross-entropy --seed 1 --no-references --out run", capsys)
    ours, theirs = finished / "cross-entropy-seed1", folder / "run"
    assert sorted(path.name for path in ours.iterdir()) == sorted(path.name for path in theirs.iterdir())
    assert without_times(read_record(ours)) == without_times(read_record(theirs))
    assert (ours / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()


def test_the_folder_holds_runs_and_tables_and_nothing_else(finished):
    runs = [f"{method}-seed{seed}" for method in METHOD_NAMES for seed in (0, 1)]
    assert sorted(path.name for path in finished.iterdir()) == sorted([*runs, *TABLES])


def test_the_numbers_are_those_of_the_records(finished):
    lines = {line["method"]: line for line in read(finished)["methods"]}
    assert list(lines) == METHOD_NAMES
    seconds = {m: np.mean([r["result"]["train_seconds"] for r in records(finished, m)]) for m in METHOD_NAMES}
    for method, line in lines.items():
        values = [record["result"]["test_accuracy"] for record in records(finished, method)]
        assert list(line["accuracies"].values()) == values
        assert (line["n"], line["failed"], line["peak_memory_bytes"]) == (2, [], None)
        assert line["mean"] == pytest.approx(np.mean(values))
        assert line["ci95"] == pytest.approx(T_ONE * np.std(values, ddof=1) / np.sqrt(2))
        assert line["train_seconds"] == pytest.approx(seconds[method])
        assert line["time_ratio"] == pytest.approx(seconds[method] / min(seconds.values()))


def test_differences_are_taken_seed_by_seed_from_the_first_method(finished):
    first = [record["result"]["test_accuracy"] for record in records(finished, METHOD_NAMES[0])]
    found = read(finished)["differences"]
    assert [(d["method"], d["against"]) for d in found] == [(METHOD_NAMES[0], other) for other in METHOD_NAMES[1:]]
    for difference in found:
        other = [record["result"]["test_accuracy"] for record in records(finished, difference["against"])]
        values = np.subtract(first, other)
        error = np.std(values, ddof=1) / np.sqrt(2)
        assert difference["mean"] == pytest.approx(values.mean())
        assert difference["ci95"] == pytest.approx(T_ONE * error)
        assert difference["p"] == pytest.approx(2 / np.pi * np.arctan2(error, abs(values.mean())))


def test_all_tables_say_the_same(finished):
    summary = read(finished)
    rows = list(csv.DictReader((finished / "compare.csv").read_text().splitlines()))
    text, page = (finished / "compare.md").read_text(), Page((finished / "compare.html").read_text())
    for row, line in zip(rows, summary["methods"], strict=True):
        assert row["method"] == line["method"]
        assert (float(row["mean"]), float(row["ci95"]), int(row["n"])) == (line["mean"], line["ci95"], line["n"])
        assert row["peak_memory_bytes"] == ""
        shown = [f"{100 * line['mean']:.2f} ± {100 * line['ci95']:.2f}%", f"{line['time_ratio']:.2f}×", "2"]
        assert f"| {' | '.join([line['method'], *shown])} |" in text
        assert " ".join([line["method"], *shown]) in page.text
    for row in summary["differences"]:
        assert f"| {row['against']} | {100 * row['mean']:+.2f} ± {100 * row['ci95']:.2f} | " in text
        assert f"| {row['verdict']} |" in text
        assert f"{row['against']} {100 * row['mean']:+.2f} ± {100 * row['ci95']:.2f}" in page.text


def test_the_page_stands_alone_but_for_the_reports_beside_it(finished):
    html = (finished / "compare.html").read_text()
    page = Page(html)
    links = [value for name, value in page.attributes if name in ("src", "href", "action", "data", "srcset")]
    assert links
    assert all((finished / link).is_file() for link in links)
    assert not {"link", "img", "iframe", "script"} & set(page.tags)
    assert not re.search(r"https?:|@import|url\(", html)
    assert "svg" in page.tags
    assert ("name", "viewport") in page.attributes


def test_what_is_printed_is_what_is_written(copy, capsys):
    capsys.readouterr()
    assert main(shlex.split(f"{COMMAND} --out out")) == 0
    said, summary = capsys.readouterr(), read(copy)
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert "method test accuracy time seeds" in lines
    for line in summary["methods"]:
        accuracy = f"{100 * line['mean']:.2f} ± {100 * line['ci95']:.2f}%"
        assert f"{line['method']} {accuracy} {line['time_ratio']:.2f}× 2" in lines
    assert f"{METHOD_NAMES[0]} against difference p p (Holm) verdict" in lines
    assert lines[-1] == "page: out/compare.html"
    assert json.loads(answer(f"{COMMAND} --json --out out", capsys)) == summary


def test_each_run_has_a_line(folder, capsys):
    assert main(shlex.split(f"compare {ARGS} --methods clean-only,cross-entropy --seeds 7, --out out")) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    for number, (line, method) in enumerate(zip(said, ("clean-only", "cross-entropy"), strict=True), 1):
        result = records(folder / "out", method, [7])[0]["result"]
        found = f"{result['test_accuracy']:.1%} in {result['train_seconds']:.1f} s"
        assert line == f"{method}, seed 7: {found} ({number} of 2)"


def test_one_seed_has_no_interval_and_says_so(copy, capsys):
    text = answer(f"compare {ARGS} --methods cross-entropy,clean-only --seeds 1 --out out", capsys)
    assert "±" not in text
    assert "not tested: that takes at least two seeds" in text
    assert "note: a single seed gives no interval (cross-entropy, clean-only); use two or more" in text
    summary = read(copy)
    assert [line["ci95"] for line in summary["methods"]] == [None, None]
    assert (summary["differences"][0]["p"], summary["differences"][0]["p_holm"]) == (None, None)


def test_the_table_fits_a_terminal(copy, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text = re.sub(r"\x1b\[\d*m", "", answer(f"{COMMAND} --out out", capsys))
    assert max(map(len, text.splitlines())) <= 80


def test_help_fits_a_terminal_and_shows_an_example(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = answer("compare --help", capsys)
    assert max(map(len, text.splitlines())) <= 80
    assert "  fasten compare digits" in text


# Going on.


def test_finished_runs_are_not_run_again(copy, capsys):
    before = tree(copy)
    (copy / "compare.html").unlink()
    capsys.readouterr()
    assert main(shlex.split(f"{COMMAND} --out out")) == 0
    assert tree(copy) == before
    assert capsys.readouterr().err.count("of 6, already done)") == 6


def test_an_interrupted_comparison_goes_on(finished, folder, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        assert main(shlex.split(f"{COMMAND} --json --out out")) == 130
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "fasten: interrupted; the same command continues where it stopped\n")
    out = folder / "out"
    assert [run["state"] for run in read(out)["runs"]] == ["finished", *["open"] * 5]
    assert "5 of 6 runs are still to come" in (out / "compare.md").read_text()
    assert read_record(out / "cross-entropy-seed0")["result"] is None
    before = tree(out / "naive-oversampling-seed0")
    resumed = []
    monkeypatch.setattr(workers, "resume", lambda path, how: resumed.append(path.name) or training.resume(path, how))
    answer(f"{COMMAND} --json --out out", capsys)
    assert resumed == ["cross-entropy-seed0"]
    assert tree(out / "naive-oversampling-seed0") == before
    assert without_times(read(out)) == without_times(read(finished))


@pytest.mark.parametrize("how", ["damaged", "lost"])
def test_a_run_whose_record_is_damaged_or_lost_goes_on_from_its_checkpoint(finished, folder, capsys, monkeypatch, how):
    with monkeypatch.context() as patch:
        patch.setattr("fasten.commands.console.Runs.update", lambda *_: signal.raise_signal(signal.SIGINT))
        assert main(shlex.split(f"{COMMAND} --json --out out")) == 130
    (path,) = folder.glob("out/*/record.json")
    path.write_text("{") if how == "damaged" else path.unlink()
    other = f"{COMMAND} --set {METHOD_NAMES[0]}.norm=two-pass --json --out out"
    refuse(other, capsys, "holds a run with other options")
    answer(f"{COMMAND} --json --out out", capsys)
    assert without_times(read(folder / "out")) == without_times(read(finished))
    theirs = finished / path.parent.name / "model.safetensors"
    assert path.with_name("model.safetensors").read_bytes() == theirs.read_bytes()


def test_seeds_and_methods_are_added_to_what_is_there(copy, capsys):
    before = tree(copy)
    command = f"compare {ARGS} --methods clean-only,cross-entropy"
    summary = json.loads(answer(f"{command} --seeds 3 --json --out out", capsys))
    kept = {name: sum for name, sum in tree(copy).items() if not name.startswith("compare.") and "seed2" not in name}
    assert kept == {name: sum for name, sum in before.items() if not name.startswith("compare.")}
    assert [(line["method"], line["n"]) for line in summary["methods"]] == [("clean-only", 3), ("cross-entropy", 3)]
    values = [record["result"]["test_accuracy"] for record in records(copy, "clean-only", (0, 1, 2))]
    assert list(summary["methods"][0]["accuracies"].values()) == values
    assert summary["comparison"]["seeds"] == [0, 1, 2]
    summary = json.loads(answer(f"{COMMAND} --json --out out", capsys))
    assert [(line["method"], line["n"]) for line in summary["methods"]] == [(name, 2) for name in METHOD_NAMES]


@pytest.mark.parametrize(
    "more",
    [
        "--methods cross-entropy,fasten --seeds 1",
        "--methods cross-entropy --seeds 2,0",
        "--methods fasten --seeds 1",
        "--methods cross-entropy --seeds 2,",
    ],
)
def test_nothing_is_added_to_runs_on_other_rows(folder, capsys, more):
    write_table(folder / "ítems.csv", n=120, verified=60, test=30)
    command = "compare ítems.csv --device cpu --epochs 1"
    before = answer(f"{command} --methods cross-entropy --seeds 1 --out out", capsys)
    first, *lines = (folder / "ítems.csv").read_text().splitlines()
    (folder / "ítems.csv").write_text("\n".join([first, *lines[:50], *lines[51:]]) + "\n")
    refuse(f"{command} {more} --out out", capsys, "ítems.csv is no longer what the run was started on; restore it")
    assert answer(f"{command} --methods cross-entropy --seeds 1 --out out", capsys) == before
    (folder / "ítems.csv").write_text("\n".join([first, *lines]) + "\n")
    answer(f"{command} {more} --out out", capsys)
    (folder / "ítems.csv").rename("ïtems.csv")
    refuse("compare ïtems.csv --device cpu --out out", capsys, 'a comparison with dataset "ítems.csv", not "ïtems.csv"')


def test_the_same_files_by_other_paths_are_the_same_data(folder, capsys):
    write_table(folder / "items.csv", n=120, verified=0, test=30)
    (folder / "checked.csv").write_text("id,label\n" + "".join(f"r{n},kind {n % 4}\n" for n in range(40)))
    (folder / "link.csv").symlink_to("items.csv")
    rest = "--device cpu --epochs 1 --methods cross-entropy"
    before = answer(f"compare items.csv --verified checked.csv {rest} --seeds 1 --out out", capsys)
    notes = json.loads((folder / "out/compare.json").read_text())["notes"]
    assert "30 of the 30 test rows have no verified label: the given one counts as right" in notes
    for data, verified in [(folder / "items.csv", "./checked.csv"), ("link.csv", folder / "checked.csv")]:
        assert answer(f"compare {data} --verified {verified} {rest} --seeds 1 --out out", capsys) == before
    answer(f"compare {folder}/items.csv --verified checked.csv {rest} --seeds 2 --out out", capsys)
    assert {record["run"]["dataset"] for record in records(folder / "out", "cross-entropy")} == {"items.csv"}
    for name in ("items.csv", "checked.csv"):
        shutil.copy(folder / name, folder / f"other-{name}")
    refuse(f"compare other-items.csv --verified checked.csv {rest} --out out", capsys, 'not "other-items.csv"')
    refuse(f"compare items.csv --verified other-checked.csv {rest} --out out", capsys, 'not {"verified": "other')


def test_a_run_that_went_on_with_a_lower_rate_after_it_diverged_is_noted(copy, capsys):
    run = copy / "cross-entropy-seed1"
    write_record(run, {**read_record(run), "rewinds": [{"rate_factor": 0.1}, {"rate_factor": 0.01}]})
    answer(f"{COMMAND} --out out", capsys)
    note = "cross-entropy, seed 1, diverged and continued with 0.01 of its learning rate"
    assert read(copy)["notes"] == [note]
    assert all(note in (copy / name).read_text() for name in ("compare.md", "compare.html"))


def test_nothing_is_added_to_runs_with_other_noise(folder, capsys):
    def write_noise(rate: float) -> None:
        np.savetxt(folder / "T.csv", (1 - rate) * np.eye(10) + rate / 10, delimiter=",")

    write_noise(0.2)
    command = "compare digits --noise matrix:T.csv --device cpu --epochs 1 --set batch_size=400 --seeds 1 --out out"
    answer(f"{command} --methods cross-entropy", capsys)
    write_noise(0.8)
    refuse(
        f"{command} --methods cross-entropy,clean-only",
        capsys,
        "T.csv is no longer what the run was started on; restore it",
    )
    write_noise(0.2)
    answer(f"{command} --methods cross-entropy,clean-only", capsys)


def test_other_files_that_the_same_path_leads_to_elsewhere_are_other_data(folder, capsys, monkeypatch):
    for place, rows in (("here", 120), ("there", 140)):
        (folder / place).mkdir()
        write_table(folder / place / "items.csv", n=rows, verified=40, test=30)
    rest = "--device cpu --epochs 1 --methods cross-entropy --seeds 1 --out ../out"
    monkeypatch.chdir(folder / "here")
    answer(f"compare items.csv {rest}", capsys)
    monkeypatch.chdir(folder / "there")
    refuse(f"compare {folder / 'there' / 'items.csv'} {rest}", capsys, "items.csv is no longer what the run")


def test_a_known_data_set_is_no_folder_of_its_name(copy, folder, capsys):
    write_digits(folder / "digits", per_class=10)
    refuse(f"{COMMAND.replace('digits', './digits')} --out out", capsys, 'dataset "digits", not "./digits"')


def test_an_audit_of_a_run_leaves_it_the_run_that_it_was(folder, capsys):
    write_table(folder / "items.csv", n=120, verified=60, test=30)
    command = "compare items.csv --device cpu --epochs 1 --methods cross-entropy --seeds 1 --json --out out"
    before, was = json.loads(answer(command, capsys)), records(folder / "out", "cross-entropy", [0])[0]
    answer("audit out/cross-entropy-seed0 --min-precision 0.6", capsys)
    (now,) = records(folder / "out", "cross-entropy", [0])
    assert now["run"] == was["run"]
    assert now["evaluation"]["evidence"]["threshold"]["min_precision"] == 0.6
    assert "--min-precision 0.6 " in Page((folder / "out/cross-entropy-seed0/report.html").read_text()).text
    assert json.loads(answer(command, capsys)) == before
    now["run"]["own"]["max_bad"] = 3
    write_record(folder / "out/cross-entropy-seed0", now)
    refuse(command, capsys, "holds a run with other options")


def test_a_full_disk_stops_a_comparison_that_goes_on(finished, copy, capsys, monkeypatch):
    shutil.rmtree(copy / "clean-only-seed1")
    with monkeypatch.context() as patch:
        fill_disk(patch, "record.json", 1)
        assert main(shlex.split(f"{COMMAND} --json --out out")) == 2
    assert (
        capsys.readouterr().err
        == "fasten: no space left on the disk; free some, and the same command continues where it stopped\n"
    )
    assert not list(copy.rglob("*.tmp"))
    answer(f"{COMMAND} --json --out out", capsys)
    assert without_times(read(copy)) == without_times(read(finished))


DIVERGING = f"compare {ARGS} --methods clean-only,cross-entropy --set cross-entropy.rate=1e30 --seeds 1 --out out"


def test_a_run_that_diverges_is_noted_and_the_others_go_on(folder, capsys):
    assert main(shlex.split(DIVERGING.replace("clean-only,cross-entropy", "cross-entropy,clean-only"))) == 0
    said = capsys.readouterr()
    assert "cross-entropy, seed 0: failed: training diverged in epoch 1" in said.err
    assert re.search(r"clean-only +\d\d?\.\d\d%", said.out)
    assert re.search(r"cross-entropy +– +– +0, 1 failed", said.out)
    assert "note: cross-entropy, seed 0, failed and is not counted: training diverged" in said.out
    failed, fine = read(folder / "out")["methods"]
    assert (failed["mean"], failed["n"], failed["failed"]) == (None, 0, [0])
    assert (fine["n"], fine["time_ratio"]) == (1, 1)
    assert Page((folder / "out/compare.html").read_text()).text.count("failed") >= 2


def test_a_run_that_failed_is_tried_again_only_when_its_folder_is_gone(folder, capsys):
    assert main(shlex.split(DIVERGING)) == 0
    before = tree(folder)
    capsys.readouterr()
    assert main(shlex.split(DIVERGING)) == 0
    assert "failed: training diverged" in capsys.readouterr().err
    assert tree(folder) == before
    shutil.rmtree(folder / "out/cross-entropy-seed0")
    assert main(shlex.split(DIVERGING)) == 0
    assert (folder / "out/cross-entropy-seed0/record.json").exists()


def test_a_comparison_of_which_nothing_is_left_fails(folder, capsys):
    command = f"compare {ARGS} --methods cross-entropy --set rate=1e30 --seeds 1 --json --out out"
    assert main(shlex.split(command)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("fasten: none of the runs finished; cross-entropy, seed 0: training diverged")
    assert said.err.count("\n") == 1


# Refusals.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--methods fasten,clean-onl", ["unknown method 'clean-onl'", "did you mean 'clean-only'?"]),
        ("--methods zzz", ["unknown method 'zzz'", "cross-entropy"]),
        ("--methods ,", ["--methods takes names", "`fasten methods`"]),
        ("--methods fasten,clean-only,fasten", ["--methods names fasten twice"]),
        ("--seeds 0", ["--seeds", "from 1", "got 0"]),
        ("--seeds -1", ["--seeds", "got '-1'"]),
        ("--seeds few", ["--seeds", "commas", "got 'few'"]),
        ("--seeds 1.5", ["--seeds", "got '1.5'"]),
        ("--seeds 1,x", ["--seeds", "got '1,x'"]),
        ("--seeds ,", ["--seeds", "got ','"]),
        ("--seeds ''", ["--seeds", "got ''"]),
        ("--seeds 5,6,5", ["--seeds names 5 twice"]),
        ("--seeds 20260", ["from 1 to 1000", "got 20260", "--seeds 20260,"]),
        ("--epochs 0", ["--epochs", "1 or more"]),
        ("--noise symetric:0.4", ["unknown noise 'symetric'"]),
        ("--noise symmetric:1.4", ["[0, 1)", "got 1.4"]),
        ("--noise matrix:missing.csv", ["no noise matrix at missing.csv"]),
        ("--labels worse", ["digits", "leave --labels out"]),
        ("--device banana", ["unknown device 'banana'"]),
        ("--set rate", ["METHOD.key=value", "'rate'"]),
        ("--set raet=0.1", ["unknown option 'raet'", "did you mean 'rate'"]),
        ("--set lr=0.1", ["unknown option 'lr'", "did you mean 'rate'?"]),
        ("--set zzz=0.1", ["unknown option 'zzz'", "known: net, epochs", "threshold"]),
        ("--set threshold=0.9", ["threshold is an option of fasten", "write fasten.threshold=0.9"]),
        ("--set fastn.threshold=0.9", ["unknown method 'fastn'", "did you mean 'fasten'?"]),
        ("--set fasten.threshhold=0.9", ["unknown option 'threshhold' of fasten", "did you mean 'threshold'?"]),
        ("--set fasten.threshold=80", ["threshold", "[0, 1]", "80"]),
        ("--set fasten.threshold=high", ["threshold takes a number", "'high'"]),
        ("--set fasten.rate=1 --set rate=2", ["rate is set twice"]),
        ("--methods clean-only --set fasten.threshold=0.9", ["fasten is not compared", "--methods"]),
        ("--epochs 2 --set epochs=3", ["epochs is set twice"]),
        ("--set net=mlp", ["'mlp' does not take images"]),
        ("--jsn", ["--jsn", "--json"]),
    ],
)
def test_what_cannot_be_compared_is_refused(folder, capsys, options, words):
    refuse(f"compare digits --out out {options}", capsys, *words)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("compare", ["DATA", "fasten compare --help"]),
        ("compare digits", ["--out", "fasten compare --help"]),
        ("compare digit --out out", ["unknown data set 'digit'", "did you mean 'digits'?"]),
        ("compare cifar10 --out out", ["CIFAR-10 is not in data", "--root", "--download"]),
        ("compare cifar10n --noise pair:0.2 --out out", ["cifar10n", "leave --noise out"]),
    ],
)
def test_data_that_are_not_there_are_refused(folder, capsys, command, words):
    refuse(command, capsys, *words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("--noise pair:0.2", ["out holds a comparison with noise", '"symmetric:0.4", not "pair:0.2"']),
        ("--epochs 2", ["out holds a comparison with epochs 1, not 2"]),
        ("--set rate=0.05", ["out holds a comparison with settings", '"rate": 0.05']),
        ("--set clean-only.per_class=3", ["clean-only-seed0 holds a run with other options", "another --out"]),
    ],
)
def test_a_comparison_with_other_settings_is_refused(copy, capsys, changes, words):
    flag = changes.split()[0]
    kept = COMMAND if flag == "--set" else re.sub(rf"{flag} \S+ ", "", COMMAND)
    refuse(f"{kept} {changes} --out out", capsys, *words)


def test_a_folder_that_holds_something_else_is_refused(copy, folder, capsys):
    (folder / "foreign").mkdir()
    (folder / "foreign/thesis.txt").write_text("years of work")
    refuse(f"{COMMAND} --out foreign", capsys, "foreign is not empty and holds no comparison", "another --out")
    refuse(f"{COMMAND} --out out/clean-only-seed0", capsys, "holds no comparison")
    refuse(f"{COMMAND} --out out/compare.csv", capsys, "out/compare.csv is a file")
    refuse(f"{COMMAND} --out out/compare.csv/deeper", capsys, "out/compare.csv is a file")


def test_what_file_managers_leave_is_nothing_else(folder):
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (folder / name).touch()
    assert prepare(Request("digits", methods="cross-entropy", seeds="1"), folder, Settings(device="cpu")).runs


def test_a_comparison_is_no_run_and_its_folder_says_how_to_go_on(copy, capsys):
    for command in ("resume", "report", "audit"):
        refuse(f"{command} out", capsys, "out holds no run", "with the same `fasten compare` as before")


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"schema": 1}', '{"schema": 2, "comparison": {}, "runs": []}'),
        *('{"schema": 1, "comparison": {}, "runs": [3]}', '{"schema": 1, "comparison": {}, "runs": [{}]}'),
    ],
)
def test_a_damaged_comparison_is_refused(copy, capsys, text):
    (copy / "compare.json").write_text(text)
    refuse(f"{COMMAND} --out out", capsys, "compare.json is damaged or from another version")


def test_damaged_runs_are_refused(copy, capsys):
    (copy / "clean-only-seed1/record.json").write_text("{")
    refuse(f"{COMMAND} --out out", capsys, "clean-only-seed1/record.json is damaged")
    (copy / "clean-only-seed1/record.json").unlink()
    refuse(f"{COMMAND} --out out", capsys, "clean-only-seed1 already holds model.safetensors")


def test_a_run_of_which_the_log_alone_is_left_begins_anew(copy, capsys):
    before = read_record(copy / "clean-only-seed1")
    for path in (copy / "clean-only-seed1").iterdir():
        if path.name != "log.jsonl":
            path.unlink() if path.is_file() else shutil.rmtree(path)
    answer(f"{COMMAND} --out out", capsys)
    assert read_record(copy / "clean-only-seed1")["evaluation"] == before["evaluation"]


def test_an_empty_folder_may_be_used(folder, capsys):
    """Empty but for what a process that was killed in its first write left."""
    (folder / "out").mkdir()
    (folder / f"out/.{32 * 'f'}.tmp").write_text("{")
    answer(f"compare {ARGS} --methods clean-only --seeds 1 --out out", capsys)
    assert not list((folder / "out").glob(".*"))
    assert "against" not in (folder / "out/compare.md").read_text()


# What is asked for.


def plan(folder: Path, **request) -> Comparison:
    return prepare(Request("digits", **request), folder / "out", Settings(device="cpu"))


def test_runs_come_seed_by_seed_with_the_settings_of_their_method(folder):
    settings = ("rate=0.05", "fasten.threshold=0.9")
    runs = plan(folder, methods="fasten, l2rw", seeds="5,6", epochs=4, settings=settings).runs
    assert [(run.method, run.seed) for run in runs] == [("fasten", 5), ("l2rw", 5), ("fasten", 6), ("l2rw", 6)]
    assert [run.options for run in runs] == [{"threshold": 0.9}, {}] * 2
    assert {(run.recipe.rate, run.recipe.epochs) for run in runs} == {(0.05, 4)}
    assert runs[0].recipe.milestones == DATASETS["digits"].recipe.scaled(4).milestones


def test_settings_are_divided_in_the_order_given():
    shared, own = divide_settings(["rate=1", "fasten.norm=joint", "net=small-cnn"], ["fasten"])
    assert (shared, own) == (["rate=1", "net=small-cnn"], {"fasten": ["norm=joint"]})


def test_methods_by_default_are_known():
    assert set(COMPARED.split(",")) <= set(METHODS)


@pytest.mark.parametrize("lacking", ["nothing", "the true T", "clean rows", "images"])
def test_all_are_those_that_the_data_allow(folder, monkeypatch, lacking):
    task = load_task("digits")
    if lacking == "the true T":
        task = replace(task, transition=None)
    if lacking == "clean rows":
        none = task.split.clean[:0]
        task = replace(task, split=replace(task.split, clean=none), clean=none)
    if lacking == "images":
        task = replace(task, x=task.x.reshape(len(task.x), -1).astype("float32"), pad=0, mean=(0.0,), std=(1.0,))
    monkeypatch.setattr(compare_module, "load_task", lambda *args: task)
    need = {"the true T": "true_transition", "clean rows": "clean_set", "images": "images"}.get(lacking)
    expected = [name for name, entry in METHODS.items() if need is None or not getattr(entry, need)]
    settings = ["net=mlp"] if lacking == "images" else []
    assert list(plan(folder, methods="all", epochs=10, settings=settings).methods) == expected
    assert ("fasten-oracle" in expected) == (lacking in ("nothing", "images"))
    assert ("augdesc" in expected) == (lacking != "images")


# What it comes to, from made-up outcomes.


def summary_of(values: dict[str, list[float | None]], **changes) -> dict:
    """Accuracies by method and seed; None is a run that failed."""
    methods, seeds = list(values), list(range(len(next(iter(values.values())))))
    runs, outcomes = [], []
    for seed in seeds:
        for method in methods:
            runs.append(Run("digits", method=method, seed=seed))
            value, more = values[method][seed], {"test_accuracy": values[method][seed], "train_seconds": 2.0}
            failed = RunOutcome(method, seed, "failed", error="diverged")
            outcomes.append(failed if value is None else RunOutcome(method, seed, "finished", **(more | changes)))
    return summarise(Comparison("digits", "none", "worst", 3, {}, methods, seeds, runs), outcomes)


def verdicts(summary: dict) -> dict[str, str]:
    return {row["against"]: row["verdict"] for row in summary["differences"]}


def test_a_verdict_needs_a_difference_beyond_the_noise_of_the_seeds():
    summary = summary_of(
        {
            "fasten": [0.90, 0.91, 0.92, 0.90],
            "poor": [0.80, 0.82, 0.81, 0.80],
            "good": [0.95, 0.97, 0.97, 0.96],
            "near": [0.89, 0.92, 0.91, 0.91],
            "same": [0.90, 0.91, 0.92, 0.90],
        }
    )
    noise = "within the noise of the seeds"
    assert verdicts(summary) == {"poor": "better", "good": "worse", "near": noise, "same": noise}
    assert "better than poor; worse than good; no clear difference from near, same." in Page(render(summary)).text
    assert all(row["p"] <= row["p_holm"] <= 1 for row in summary["differences"])


def test_many_comparisons_ask_for_more_evidence():
    rows = {"fasten": [0.90, 0.91, 0.92], "other": [0.88, 0.88, 0.905]}
    assert verdicts(summary_of(rows)) == {"other": "better"}
    many = summary_of(rows | {f"more {i}": rows["fasten"] for i in range(4)})
    assert verdicts(many)["other"] == "within the noise of the seeds"


def test_only_seeds_that_both_have_are_paired():
    summary = summary_of({"fasten": [0.9, None, 0.8, 0.7], "other": [0.5, 0.1, 0.6, None]})
    (row,) = summary["differences"]
    assert (row["n"], row["mean"]) == (2, pytest.approx((0.4 + 0.2) / 2))
    assert [line["failed"] for line in summary["methods"]] == [[1], [3]]
    assert [line["n"] for line in summary["methods"]] == [3, 3]


def test_without_test_rows_the_validation_rows_count_and_it_is_said():
    summary = summary_of({"a": [0.9, 0.8]}, test_accuracy=None, valid_accuracy=0.75, rows_valid=7)
    assert (summary["accuracy"], summary["methods"][0]["mean"]) == ("valid", 0.75)
    assert "| validation accuracy |" in markdown(summary)
    assert "there are no test rows: accuracy is on 7 validation rows" in markdown(summary)
    sentence = "Note: there are no test rows: accuracy is on 7 validation rows, which also selected the epoch."
    assert sentence in Page(render(summary)).text


def test_without_any_accuracy_there_is_a_table_all_the_same():
    summary = summary_of({"a": [0.9, 0.8], "b": [0.9, 0.8]}, test_accuracy=None)
    assert "| a | – | 1.00× | 0 |" in markdown(summary)
    assert csv_text(summary).splitlines()[1] == "a,,,0,2.0,1.0,,0"
    assert "The accuracy of a is not known yet." in Page(render(summary)).text


def test_memory_and_devices_are_told():
    summary = summary_of({"a": [0.9, 0.8]}, peak_memory_bytes=3 * 2**30, device="cuda:0")
    assert "| 3.00 GiB |" in markdown(summary)
    assert summary["notes"] == []
    two = [RunOutcome("a", 0, "finished", 0.9, device="cpu"), RunOutcome("a", 1, "finished", 0.9, device="cuda:0")]
    comparison = Comparison("digits", "none", "worst", 3, {}, ["a"], [0, 1], [Run("digits", seed=s) for s in (0, 1)])
    assert "cpu; cuda:0" in summarise(comparison, two)["notes"][0]
    as_given = ("9 of the 9 test rows have no verified label: the given one counts as right",)
    assert tuple(summarise(comparison, [replace(run, notes=as_given) for run in two])["notes"][:1]) == as_given


def test_names_cannot_break_the_page():
    html = render(summary_of({EVIL: [0.9, 0.8], "b|c": [0.7, 0.75]}))
    assert EVIL not in html
    assert EVIL in Page(html).text
    assert "| b\\|c |" in markdown(summary_of({"a": [0.9, 0.8], "b|c": [0.7, 0.75]}))


def places(svg: str, pattern: str) -> list[float]:
    return [float(value) for value in re.findall(pattern, svg)]


def test_a_dot_lies_in_the_middle_of_its_interval_and_the_best_to_the_right():
    svg = dot_plot("Accuracy", [Dot("a", 0.90, 0.02, [0.89, 0.91]), Dot("b", 0.95, 0.01, [0.945, 0.955])])
    (a, b), ends = places(svg, r'cx="([\d.]+)" cy="[\d.]+" r="5"'), places(svg, r'd="M([\d.]+) [\d.]+H')
    far = places(svg, r'd="M[\d.]+ [\d.]+H([\d.]+)')
    assert a < b
    assert [a, b] == pytest.approx([(low + high) / 2 for low, high in zip(ends, far, strict=True)], abs=0.1)
    assert far[0] - ends[0] == pytest.approx(2 * (far[1] - ends[1]), abs=0.4)
    assert svg.count('r="2.2"') == 4
    assert "<title>a: 90.0% ± 2.0</title>" in svg


def test_an_interval_ends_at_all_rows_right():
    svg = dot_plot("Accuracy", [Dot("a", 0.97, 0.5, [0.96, 0.98]), Dot("b", None, None)])
    (end,) = places(svg, r'd="M[\d.]+ [\d.]+H([\d.]+)')
    assert end == max(places(svg, r'<path d="M([\d.]+) 8V'))
    assert svg.count('r="5"') == 1
    assert ">b</text>" in svg
