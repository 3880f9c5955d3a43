"""The paper as a command: what is wanted and recorded, going on, results, refusals; and a miniature of all of it."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
import shutil
import signal
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from rich.console import Console

import fasten.commands.console as console
import fasten.grid.wanted as wanted
import fasten.grid.workers as workers
import fasten.runs.training as training
from command_line import answer, fill_disk, interrupt_at, refuse, tree
from fasten.cli import main
from fasten.contract import Recipe
from fasten.datasets import DATASETS
from fasten.experiments import EXPERIMENTS, PAPER
from fasten.experiments.spec import Cell, Curve, Experiment, Measure, key
from fasten.grid.reproduce import Made, Pace, bench_of
from fasten.grid.speed import Speed, measured
from fasten.grid.wanted import choose, find_records, own_records
from fasten.grid.workers import Job
from fasten.methods import METHODS
from fasten.nets import build_backbone
from fasten.records import Run, read_record, write_record
from fasten.report.paper import outcome_of
from fasten.runs.training import Settings

ROOT = Path(__file__).parents[2]
RECIPE = Recipe("small-cnn", epochs=1, batch_size=400, rate=0.2)
ACCURACY = Measure(lambda record: 100 * record["result"]["test_accuracy"], "accuracy", step=0.5)
T_ONE = 12.706204736174698  # Student's 97.5% quantile, one degree of freedom


def run_of(method: str, noise: str = "symmetric:0.4", **changes) -> Run:
    return Run("digits", noise, method, recipe=replace(RECIPE, **changes))


def small(setting) -> Experiment:
    """Two methods, one of them at two noises, and two numbers that no run gives."""
    cells = (
        Cell("clean-only", "40%", ACCURACY, 99.0, 1.0, run_of("clean-only")),
        Cell("cross-entropy", "40%", ACCURACY, 10.0, None, run_of("cross-entropy")),
        Cell("cross-entropy", "20%", ACCURACY, None, None, run_of("cross-entropy", "symmetric:0.2")),
        Cell("others", "40%", ACCURACY, 50.0, source="them"),
        Cell("l2rw", "time", ACCURACY, 3.11, bench=True),
    )
    return Experiment("small", "A small table", "table", cells, about="Nothing of note.")


def losses(setting) -> Experiment:
    """A figure of one of the runs."""

    def points(record):
        return [(row["epoch"], row["loss"]) for row in record["epochs"]]

    curves = (Curve("cross-entropy", run_of("cross-entropy"), points),)
    return Experiment("losses", "The loss", "figure", curves=curves, x="epoch", y="loss")


NOT_TIMED = {
    "augdesc",
    "causalnl",
    "dividemix",
    "dividemix-clean",
    "forward",
    "t-revision",
    "volminnet",
}  # no part of the paper's runs, and not yet on that GPU
COMMAND = "reproduce small losses --device cpu --seeds 2 --out out"


def enter(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FASTEN_DATA", raising=False)
    monkeypatch.chdir(path)
    monkeypatch.setitem(EXPERIMENTS, "small", small)
    monkeypatch.setitem(EXPERIMENTS, "losses", losses)
    monkeypatch.setattr(wanted, "own_records", lambda: [])
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder; two small experiments, and no records elsewhere."""
    return enter(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Both small experiments, made, and what was printed."""
    path, said = tmp_path_factory.mktemp("finished"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        enter(path, patch)
        assert main(shlex.split(COMMAND)) == 0
    return path / "out", said.getvalue()


@pytest.fixture
def made(finished, folder):
    """The same as `out` in the current folder; what was printed."""
    shutil.copytree(finished[0], folder / "out")
    return finished[1]


def read(out: Path = Path("out")) -> dict:
    return json.loads((out / "reproduce.json").read_text())


def cells(name: str = "small", out: Path = Path("out")) -> dict[tuple[str, str], dict]:
    return {(cell["row"], cell["column"]): cell for cell in read(out)["experiments"][name]["cells"]}


def accuracies(run: Run, out: Path = Path("out"), seeds=(0, 1)) -> list[float]:
    folders = [out / "runs" / key(replace(run, seed=seed)) for seed in seeds]
    return [100 * read_record(folder)["result"]["test_accuracy"] for folder in folders]


# What it makes.


def test_the_numbers_are_those_of_the_records(made):
    found = cells()
    for row, column, run in [
        ("clean-only", "40%", run_of("clean-only")),
        ("cross-entropy", "40%", run_of("cross-entropy")),
        ("cross-entropy", "20%", run_of("cross-entropy", "symmetric:0.2")),
    ]:
        values, cell = accuracies(run), found[row, column]
        assert cell["values"] == pytest.approx(values)
        assert cell["n"] == 2
        assert cell["mean"] == pytest.approx(np.mean(values))
        assert cell["ci95"] == pytest.approx(T_ONE * np.std(values, ddof=1) / np.sqrt(2))
    assert [found[row]["status"] for row in found] == ["below", "better", "not in the paper", "quoted", "below"]
    assert found["l2rw", "time"]["mean"] == pytest.approx(measured().seconds["l2rw"] / measured().seconds["fasten"])


def test_a_curve_is_the_mean_over_the_seeds(made):
    (curve,) = read()["experiments"]["losses"]["curves"]
    folders = [Path("out/runs") / key(replace(run_of("cross-entropy"), seed=seed)) for seed in (0, 1)]
    expected = np.mean([read_record(folder)["epochs"][0]["loss"] for folder in folders])
    assert np.array(curve["points"]) == pytest.approx(np.array([[1, expected]]))
    assert curve["n"] == 2


def test_the_folder_holds_runs_and_results_and_nothing_else(made):
    results = [f"{name}.{kind}" for name in ("small", "losses") for kind in ("txt", "md", "csv", "tex")]
    expected = sorted([*results, "losses.svg", "losses.png", "reproduce.json", "runs"])
    assert sorted(path.name for path in Path("out").iterdir()) == expected
    assert len(list(Path("out/runs").iterdir())) == 6  # the figure shares a table's runs


def test_each_run_is_what_train_makes(made, capsys):
    run = "train digits --noise symmetric:0.4 --method cross-entropy --seed 1 --epochs 1 --set batch_size=400"
    milestones = ",".join(map(str, RECIPE.milestones))
    answer(f"{run} --set milestones={milestones} --no-references --device cpu --out plain", capsys)
    ours, theirs = Path("out/runs") / key(replace(run_of("cross-entropy"), seed=1)), Path("plain")
    assert sorted(path.name for path in ours.iterdir()) == sorted(path.name for path in theirs.iterdir())
    assert (ours / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()
    assert read_record(ours)["run"] == read_record(theirs)["run"]


def test_what_is_printed_is_what_is_written(made):
    for name in ("small", "losses"):
        assert Path(f"out/{name}.txt").read_text().rstrip() in made
    assert made.endswith("written: out\n")
    rows = list(csv.DictReader(Path("out/small.csv").read_text().splitlines()))
    assert [float(row["mean"]) for row in rows if row["n"] == "2"] == [
        c["mean"] for c in cells().values() if c["n"] == 2
    ]


def test_each_run_has_a_line_with_what_is_left(folder, capsys):
    assert main(shlex.split(f"{COMMAND} --only method=cross-entropy")) == 0
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "4 runs, 0 recorded, 4 to do: 4 on digits (seconds each)"
    assert len(lines) == 4
    for number, line in enumerate(lines, 1):
        left = r"; about \d+ s left" if number < 4 else ""
        noise, seed = ("0.4", "0.2")[(number - 1) % 2], (number - 1) // 2  # seed by seed
        head = rf"cross-entropy, digits symmetric:{noise}, batch_size=400, milestones=50,60, seed {seed}"
        assert re.fullmatch(rf"{head}: \d+\.\d% in \d+\.\d s \({number} of 4{left}\)", line)


def test_json_gives_the_numbers(made, capsys):
    found = json.loads(answer(f"{COMMAND} --json", capsys))
    assert found["experiments"] == read()["experiments"]
    assert capsys.readouterr().err == ""


# Going on.


def test_finished_runs_are_not_run_again(made, capsys, monkeypatch):
    before = tree(Path("out"))
    monkeypatch.setattr(workers, "train", None)
    monkeypatch.setattr(workers, "resume", None)
    assert answer(COMMAND, capsys) == made
    assert tree(Path("out")) == before


def test_seeds_and_names_are_added(made, capsys):
    answer("reproduce small --device cpu --seeds 3 --out out", capsys)
    assert len(list(Path("out/runs").iterdir())) == 9
    assert cells()["clean-only", "40%"]["n"] == 3
    assert [read()["experiments"][name]["seeds"] for name in ("small", "losses")] == [[0, 1, 2], [0, 1]]
    assert read()["experiments"]["losses"]["curves"][0]["points"]


def test_with_fewer_seeds_a_table_keeps_the_others_that_are_recorded(made, capsys, monkeypatch):
    """Also another table of the same runs keeps its own; a seed whose runs were removed is gone."""
    answer("reproduce small --device cpu --seeds 3 --out out", capsys)
    before = read()["experiments"]
    monkeypatch.setattr(workers, "train", None)
    dry = json.loads(answer("reproduce small losses --seeds 1 --out out --dry-run --json", capsys))
    assert {run["run"]["seed"] for run in dry["runs"]} == {0}
    for names in ("small", "losses", "small losses"):
        answer(f"reproduce {names} --device cpu --seeds 1 --out out", capsys)
        assert read()["experiments"] == before
    shutil.rmtree(Path("out/runs") / key(replace(run_of("clean-only"), seed=2)))
    answer("reproduce small --device cpu --seeds 1 --out out", capsys)
    assert [cells()[place]["n"] for place in (("clean-only", "40%"), ("cross-entropy", "40%"))] == [2, 3]


def test_only_limits_the_runs_and_a_table_keeps_its_other_cells(made, capsys):
    """Whatever the seeds of the part that is made anew; what was never asked for is not shown."""
    before, figure = cells(), Path("out/losses.csv").read_bytes()
    only = "reproduce small --device cpu --only method=clean-only --seeds 7,8,9"
    dry = json.loads(answer(f"{only} --out out --dry-run --json", capsys))
    assert {run["run"]["method"] for run in dry["runs"]} == {"clean-only"}
    for _ in range(2):  # the second time from what the first one wrote
        told = answer(f"{only} --out out", capsys)
        assert Path("out/small.txt").read_text().rstrip() in told
        found = cells()
        assert list(found) == list(before)
        changed = found.pop(("clean-only", "40%"))
        assert changed["values"] == pytest.approx(accuracies(run_of("clean-only"), seeds=(0, 1, 7, 8, 9)))
        assert found == {place: cell for place, cell in before.items() if place in found}
    rows = list(csv.DictReader(Path("out/small.csv").read_text().splitlines()))
    assert [row["row"] for row in rows] == [row for row, _ in before]
    assert Path("out/losses.csv").read_bytes() == figure
    assert len(list(Path("out/runs").iterdir())) == 9
    answer(f"{only} --out new --records out", capsys)
    assert list(cells(out=Path("new"))) == [("clean-only", "40%")]


def test_a_part_of_a_table_has_its_columns_in_the_order_of_the_whole(folder, capsys, monkeypatch):
    def turned(setting) -> Experiment:
        first, second, third, *_ = small(setting).cells
        return replace(small(setting), cells=(replace(first, column="20%"), second, third))

    monkeypatch.setitem(EXPERIMENTS, "small", turned)
    answer("reproduce small --device cpu --seeds 1 --only method=cross-entropy --out out", capsys)
    assert re.search("^ +20% +40%$", Path("out/small.txt").read_text(), re.MULTILINE)


def test_only_of_a_figure_keeps_its_other_curves(folder, capsys, monkeypatch):
    def both(setting) -> Experiment:
        (curve,) = losses(setting).curves
        return replace(losses(setting), curves=(curve, replace(curve, row="clean-only", run=run_of("clean-only"))))

    monkeypatch.setitem(EXPERIMENTS, "losses", both)
    answer("reproduce losses --device cpu --seeds 1 --out out", capsys)
    before = tree(Path("out"))
    answer("reproduce losses --device cpu --seeds 1 --only row=clean-only --out out", capsys)
    assert tree(Path("out")) == before


def without_times(out: Path) -> list:
    records = [read_record(folder) for folder in sorted((out / "runs").iterdir())]
    return [(r["run"], r["evaluation"], r["result"]["test_accuracy"]) for r in records]


def test_an_interrupted_command_goes_on(folder, finished, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        assert main(shlex.split(f"{COMMAND} --json")) == 130
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "fasten: interrupted; the same command continues where it stopped\n")
    assert statuses() == ["below", "not run", "not run", "quoted", "below"]
    assert "5 cells: 2 below, 1 quoted, 2 not run." in Path("out/small.txt").read_text()
    assert Path("out/losses.svg").exists()
    begun = key(run_of("cross-entropy"))
    dry = json.loads(answer(f"{COMMAND} --dry-run --json", capsys))
    assert [run["state"] for run in dry["runs"]] == ["recorded", "unfinished", *["missing"] * 4]
    resumed = []
    monkeypatch.setattr(workers, "resume", lambda path, how: resumed.append(path.name) or training.resume(path, how))
    answer(COMMAND, capsys)
    assert resumed == [begun]
    assert without_times(Path("out")) == without_times(finished[0])


def statuses() -> list[str]:
    return [cell["status"] for cell in cells().values()]


def test_while_runs_go_on_the_tables_show_what_there_is(folder, capsys, monkeypatch):
    seen, shown, points = [], [], []

    def look(*_) -> None:
        seen.append(statuses())
        shown.append(Path("out/small.txt").read_text())
        points.append(read()["experiments"]["losses"]["curves"][0]["n"])

    monkeypatch.setattr("fasten.grid.reproduce.SHARE", math.inf)
    monkeypatch.setattr("fasten.commands.console.Runs.start", look)
    answer(f"{COMMAND} --seeds 1", capsys)
    assert seen == [
        ["running", "not run", "not run", "quoted", "below"],
        ["below", "running", "not run", "quoted", "below"],
        ["below", "better", "running", "quoted", "below"],
    ]
    assert ["2 not run" in shown[0], "1 running, 1 not run" in shown[1], "1 running." in shown[2]] == [True] * 3
    assert points == [0, 0, 1]


def test_while_runs_go_on_little_time_goes_into_the_tables(folder, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr("fasten.grid.reproduce.SHARE", 1e-9)
    monkeypatch.setattr("fasten.commands.console.Runs.start", lambda *_: seen.append(statuses()))
    answer(f"{COMMAND} --seeds 1", capsys)
    assert seen == [["running", "not run", "not run", "quoted", "below"]] * 3
    assert statuses() == ["below", "better", "not in the paper", "quoted", "below"]


def test_after_a_kill_nothing_is_running(made, capsys):
    """Not even in a table that is not made now."""
    values = read()
    values["experiments"]["small"]["cells"][0]["status"] = "running"
    Path("out/reproduce.json").write_text(json.dumps(values))
    answer("reproduce losses --device cpu --seeds 2 --out out", capsys)
    assert statuses() == ["not run", "better", "not in the paper", "quoted", "below"]
    answer(COMMAND, capsys)
    assert statuses() == ["below", "better", "not in the paper", "quoted", "below"]


def test_a_full_disk_stops_what_goes_on(folder, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        fill_disk(patch, "record.json", 2)
        assert main(shlex.split(f"{COMMAND} --seeds 1 --json")) == 2
    cure = "free some, and the same command continues where it stopped"
    assert capsys.readouterr().err == f"fasten: no space left on the disk; {cure}\n"
    answer(f"{COMMAND} --seeds 1", capsys)


def test_a_run_that_fails_is_told_and_the_others_go_on(folder, capsys, monkeypatch):
    def broken(setting) -> Experiment:
        bad = Cell("bad", "40%", ACCURACY, 50.0, run=run_of("cross-entropy", rate=1e30))
        return replace(small(setting), cells=(bad, *small(setting).cells[:1]))

    monkeypatch.setitem(EXPERIMENTS, "small", broken)
    command = "reproduce small --device cpu --seeds 1 --out out"
    assert main(shlex.split(command)) == 1
    said = capsys.readouterr()
    assert "rate=1e+30, milestones=50,60, seed 0: failed: training diverged in epoch 1" in said.err
    assert "\nfailed: digits-cross-entropy-symmetric-0.4-seed0-" in said.out
    assert [cell["status"] for cell in cells().values()] == ["not run", "below"]
    assert [failed["error"][:17] for failed in read()["failed"]] == ["training diverged"]
    assert main(shlex.split(f"{command} --json")) == 1  # it is tried again


def take_back(folder: Path) -> None:
    """As if the run had diverged, and had gone on with `fasten resume --on-nan rewind`."""
    write_record(folder, {**read_record(folder), "rewinds": [{"rate_factor": 0.1}]})


def test_a_run_that_went_on_with_a_lower_rate_after_it_diverged_does_not_count(made, capsys):
    folder = Path("out/runs") / key(run_of("clean-only"))
    take_back(folder)
    states = [run["state"] for run in json.loads(answer(f"{COMMAND} --dry-run --json", capsys))["runs"]]
    assert states == ["taken back", *["recorded"] * 5]
    assert main(shlex.split(f"{COMMAND} --json")) == 1
    (failed,) = read()["failed"]
    said = f"it diverged and continued with a lower learning rate than the paper's; remove {folder}, and the same"
    assert failed == {"key": folder.name, "error": f"{said} command starts it again"}
    assert cells()["clean-only", "40%"]["values"] == accuracies(run_of("clean-only"), seeds=(1,))
    shutil.rmtree(folder)
    answer(COMMAND, capsys)
    assert cells()["clean-only", "40%"]["n"] == 2


def test_a_run_that_is_taken_back_while_it_goes_on_does_not_count(folder, capsys, monkeypatch):
    """Such as one that was interrupted after that."""
    whole = workers.train
    monkeypatch.setattr(workers, "train", lambda run, folder, how: (whole(run, folder, how), take_back(folder)))
    command = "reproduce small --device cpu --seeds 1 --only row=clean-only --out out"
    assert main(shlex.split(command)) == 1
    assert "seed 0: failed: it diverged and continued with a lower learning rate" in capsys.readouterr().err
    assert statuses() == ["not run"]


def test_side_by_side_gives_the_same_and_tells_how_far_it_is(folder, capsys, monkeypatch):
    command = "reproduce small --device cpu --seeds 1 --only column=40%"
    answer(f"{command} --out out", capsys)
    heard = list[tuple[int, float, list[str]]]()

    def going(display, running: int, share: float) -> None:
        heard.append((running, share, [cell["status"] for cell in cells(out=Path("two")).values()]))

    monkeypatch.setattr("fasten.grid.workers.WATCH_SECONDS", 0.0)
    monkeypatch.setattr(console.Reproduction, "going", going)
    answer(f"{command} --jobs 2 --out two", capsys)
    running, shares, seen = zip(*heard, strict=True)
    assert seen[0] == ["running", "running", "quoted"]
    assert set(running) <= {1, 2}
    assert running[0] == 2
    assert list(shares) == sorted(shares)
    assert shares[0] == 0
    assert without_times(Path("out")) == without_times(Path("two"))
    assert Path("out/small.txt").read_text() == Path("two/small.txt").read_text()


def test_runs_side_by_side_have_one_bar_on_a_terminal():
    display = console.Reproduction()
    display.console = Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False)
    with display:
        for running, share in ((2, 0.0), (2, 0.25), (1, 0.75)):
            display.going(running, share)
            assert display.bar.tasks[0].percentage == pytest.approx(100 * share)
        display.made(Made(Run("digits"), None, "it diverged", 1, 2, 60.0))
        assert display.bar.tasks[0].description == "1 run, 75% of all done"  # the line of a run leaves it alone
    assert display.bar is None
    assert "it diverged (1 of 2; about 60 s left)" in display.console.file.getvalue()


def test_the_bar_tells_the_time_left_where_an_epoch_takes_minutes():
    now, display = [100.0], console.Reproduction()
    display.console = Console(file=io.StringIO(), force_terminal=True, get_time=lambda: now[0])
    with display:
        for share in (0.0, 0.1, 0.1, 0.2, 0.2):
            display.going(2, share)
            now[0] += 60.0
        assert display.bar.tasks[0].time_remaining == pytest.approx(8 * 120)


# What is recorded.


@pytest.fixture
def record(folder) -> Path:
    """A run that somebody made elsewhere."""
    training.train(run_of("clean-only"), folder / "theirs/deep/run", Settings(device="cpu", clean_reference=False))
    return folder / "theirs/deep/run/record.json"


def states(capsys, more: str = "") -> list[str]:
    found = json.loads(answer(f"reproduce small --seeds 1 --dry-run --json --records theirs {more}", capsys))
    return [run["state"] for run in found["runs"]]


def test_a_record_elsewhere_counts_if_its_run_is_the_same(record, capsys):
    assert states(capsys) == ["recorded", "missing", "missing"]
    compact = json.loads(record.read_text())
    del compact["environment"]["how"], compact["run"]["clean"]
    (record.parents[2] / "compact.json").write_text(json.dumps(compact))
    shutil.rmtree(record.parents[1])
    assert states(capsys) == ["recorded", "missing", "missing"]
    answer("reproduce small --seeds 1 --device cpu --out out --records theirs", capsys)
    assert len(list(Path("out/runs").iterdir())) == 2
    assert cells()["clean-only", "40%"]["n"] == 1


def test_folders_with_records_are_remembered(record, capsys, monkeypatch):
    """Whatever the next command's current folder is. One that is gone is passed over, which is said."""
    command = "reproduce small --device cpu --seeds 1 --only row=clean-only"
    answer(f"{command} --out out --records theirs", capsys)
    before, theirs, out = read(), record.parents[2], Path("out").absolute()
    assert before["records"] == [str(theirs)]
    Path("deeper").mkdir()
    monkeypatch.chdir("deeper")
    answer(f"reproduce small --only row=l2rw --out {out}", capsys)
    assert cells(out=out)["clean-only", "40%"]["n"] == 1
    assert not (out / "runs").exists()
    theirs.rename("moved")
    assert main(shlex.split(f"reproduce small --only row=l2rw --out {out}")) == 0
    assert capsys.readouterr().err == (
        f"fewer seeds than before in 1 place of small: their records are not found (not there: {theirs}); name the "
        "folder that holds them with --records\n"
    )
    assert cells(out=out)["clean-only", "40%"]["status"] == "not run"
    answer(f"reproduce small --only row=l2rw --out {out} --records moved", capsys)
    assert cells(out=out)["clean-only", "40%"]["n"] == 1
    assert read(out)["records"] == [str(Path("moved").absolute()), str(theirs)]


def test_of_several_records_the_first_folder_and_name_counts(record):
    run = Run.from_json(json.loads(record.read_text())["run"])
    first, other = record.parents[2] / "a.json", Path("others/0.json")
    other.parent.mkdir()
    for path in (first, other):
        shutil.copy(record, path)
    assert find_records([record.parents[2], other.parent], {key(run): run}) == {key(run): first}
    assert find_records([other.parent, record.parents[2]], {key(run): run}) == {key(run): other}


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["run"].update(seed=1),
        lambda r: r["run"].update(noise="symmetric:0.5"),
        lambda r: r["run"].update(options={"per_class": 3}),
        lambda r: r["run"].update(clean=50),
        lambda r: r["run"]["recipe"].update(rate=0.21),
        lambda r: r.update(result=None),
        lambda r: r.update(schema=2),
        lambda r: r.update(rewinds=[{"rate_factor": 0.1}]),
        lambda r: r["environment"]["how"].update(label_set="aggregate"),
        lambda r: r.pop("epochs"),
    ],
)
def test_a_record_of_something_else_does_not_count(record, capsys, change):
    values = json.loads(record.read_text())
    change(values)
    record.write_text(json.dumps(values))
    assert states(capsys) == ["missing"] * 3


def test_files_that_are_no_records_are_passed_over(record, capsys):
    theirs, odd = record.parents[2], json.loads(record.read_text())
    odd["run"]["noise"] = 5
    texts = ["", "[]", "3", '{"schema": 1}', '{"schema": 1, "result": {}, "epochs": []}']
    for number, text in enumerate([*texts, json.dumps(odd), "[" * 100_000]):
        (theirs / f"{number}.json").write_text(text)
    (theirs / "folder.json").mkdir()
    (theirs / "gone.json").symlink_to("nowhere")
    assert states(capsys) == ["recorded", "missing", "missing"]


def test_the_committed_records_count(tmp_path):
    assert own_records() == [ROOT / "results"]
    record = json.loads((ROOT / "results/cifar10/fasten-symmetric-0.8-seed1.json").read_text())
    run = Run.from_json(record["run"])
    assert find_records(own_records(), {key(run): run}) == {
        key(run): ROOT / "results/cifar10/fasten-symmetric-0.8-seed1.json"
    }


def test_the_committed_records_count_besides_those_of_other_folders(record, capsys, monkeypatch):
    committed, theirs = Path("committed"), record.parents[2]
    monkeypatch.setattr(wanted, "own_records", lambda: [committed])
    training.train(run_of("cross-entropy"), committed / "run", Settings(device="cpu", clean_reference=False))
    assert states(capsys) == ["recorded", "recorded", "missing"]
    shutil.copy(record, committed / "0.json")
    found = json.loads(answer("reproduce small --seeds 1 --dry-run --json --records theirs", capsys))
    assert Path(found["runs"][0]["record"]).is_relative_to(theirs.name)  # of two, the one that was named


# What is asked for.


def test_the_list_names_everything_with_its_runs(capsys):
    found = json.loads(answer("reproduce --list --json --seeds 3,4", capsys))
    assert [row["name"] for row in found] == list(EXPERIMENTS)
    for row in found:
        assert {"name", "title", "kind", "runs"} <= set(row)
        runs = [Run.from_json(run) for run in row["runs"]]
        assert {run.seed for run in runs} <= {3, 4}
        assert len({key(run) for run in runs}) == len(runs)
        assert {run.dataset for run in runs} <= {name for name in DATASETS if name != "digits"}
    text = answer("reproduce --list", capsys)
    assert all(re.search(rf"^{name} +(table|figure) +\d+ ", text, re.MULTILINE) for name in EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_dry_run_needs_neither_data_nor_gpu_and_writes_nothing(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    text = answer(f"reproduce {name} --dry-run --seeds 2 --root nowhere --device cuda:0,cuda:1", capsys)
    runs = EXPERIMENTS[name](wanted.PAPER).runs([0, 1])
    assert re.search(rf"^{len(runs)} runs, \d+ recorded, \d+ to do", text, re.MULTILINE)
    assert text.startswith("method ") is bool(runs)  # no table without a line
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_tells_time_by_measured_speed(folder, capsys, monkeypatch):
    def three(setting) -> Experiment:
        cells = [Cell(m, "a", ACCURACY, run=Run("cifar10", method=m)) for m in ("fasten", "cross-entropy")]
        cells.append(Cell("half", "a", ACCURACY, run=Run("cifar100", recipe=Recipe(epochs=35))))
        return replace(small(setting), cells=(*cells, *small(setting).cells))

    monkeypatch.setitem(EXPERIMENTS, "small", three)
    found = json.loads(answer("reproduce small --dry-run --seeds 1 --json", capsys))
    seconds = [run["seconds"] for run in found["runs"]]
    whole, plain = (measured().seconds[m] for m in ("fasten", "cross-entropy"))
    assert seconds == [whole, plain, whole / 2, None, None, None]
    assert found["seconds_left"] == pytest.approx(whole + plain + whole / 2)
    assert (found["device"], found["not_measured"]) == ("NVIDIA H200", 3)
    text = answer("reproduce small --dry-run --seeds 1", capsys)
    assert "6 runs, 0 recorded, 6 to do: 6 min on one NVIDIA H200, one after the other, and 3 on digits (sec" in text


def test_the_packaged_speed_is_that_of_the_committed_benchmark():
    bench = json.loads((ROOT / "benchmarks/h200.json").read_text())
    assert bench["device"] == f"cuda:0 {measured().device}"
    timed = METHODS.keys() - NOT_TIMED
    assert set(measured().seconds) == {line["method"] for line in bench["methods"]} == timed
    for method in timed:
        stages = [line for line in bench["methods"] if line["method"] == method]
        expected = sum(line["updates"] * line["milliseconds"] for line in stages) / 1000
        assert measured().seconds[method] == pytest.approx(expected, abs=0.051)
        assert measured().bench()["run_ratios"][method] == pytest.approx(bench["run_ratios"][method], rel=2e-3)


def test_speed_follows_epochs_and_knows_what_it_does_not_know():
    speed = Speed("a card", {"fasten": 70.0, "l2rw": 80.0})
    run = Run("cifar100", recipe=Recipe(epochs=7))
    assert speed.of(run) == 7
    assert speed.of(replace(run, method="l2rw", recipe=Recipe(epochs=80))) == 80
    assert speed.of(replace(run, recipe=Recipe(epochs=7, batch_size=20))) == 35
    assert speed.of(replace(run, recipe=Recipe(epochs=7, batch_size=200))) == 7
    others = [replace(run, method="glc"), replace(run, dataset="clothing1m"), replace(run, recipe=Recipe("resnet50"))]
    assert [speed.of(other) for other in others] == [None] * 3


def log(folder: Path, epochs: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "log.jsonl").write_text("".join(f'{{"event": "epoch", "epoch": {i}}}\n' for i in range(epochs)))


def test_the_time_left_follows_how_fast_runs_go(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    runs = [Run("cifar10", seed=seed) for seed in range(3)] + [Run("cifar10", recipe=Recipe(epochs=35))]
    jobs = [Job(run, tmp_path / str(i)) for i, run in enumerate(runs)]
    log(jobs[3].folder, 7)  # a fifth of it, from before
    pace = Pace(jobs, Speed("a card", {"fasten": 70.0}))
    assert pace.share() == pytest.approx(7 / 245)
    now[0] += 35  # twice as fast as measured
    pace.ended.add(jobs[0].folder)
    assert pace.seconds_left() == pytest.approx((70 + 70 + 28) / 2)
    now[0] += 105
    log(jobs[1].folder, 35)  # two that go on side by side
    log(jobs[3].folder, 21)
    assert pace.seconds_left() == pytest.approx((35 + 70 + 14) * 140 / (70 + 35 + 14))
    assert pace.share() == pytest.approx(1 - (35 + 70 + 14) / 245)


def test_a_log_that_cannot_be_read_counts_as_none(tmp_path):
    jobs = [Job(Run("cifar10", seed=seed), tmp_path / str(seed)) for seed in range(2)]
    (jobs[0].folder / "log.jsonl").mkdir(parents=True)
    log(jobs[1].folder, 35)
    assert Pace(jobs, Speed("a card", {"fasten": 70.0})).share() == pytest.approx(1 / 4)


def test_what_had_been_done_before_says_nothing_of_the_time_left(tmp_path, capsys):
    """A run whose epochs are all in the log, or more of them than in its checkpoint, ends without any work of ours."""
    jobs = [Job(Run("cifar10", seed=seed), tmp_path / str(seed)) for seed in range(3)]
    log(jobs[0].folder, 70)
    log(jobs[1].folder, 35)
    pace = Pace(jobs, Speed("a card", {"fasten": 70.0}))
    pace.ended.add(jobs[0].folder)
    assert pace.seconds_left() is None
    log(jobs[1].folder, 30)  # it began anew at its checkpoint
    assert pace.seconds_left() is None
    console.Reproduction().made(Made(jobs[0].run, None, "it diverged", 1, 3, pace.seconds_left()))
    assert "it diverged (1 of 3)" in capsys.readouterr().err
    log(jobs[1].folder, 36)
    assert pace.seconds_left() is not None


def test_only_keeps_what_fits():
    def left(*only: str) -> list[tuple[str, str, str]]:
        found = choose([small(None), losses(None)], only)
        return [(e.name, p.row, getattr(p, "column", "")) for e in found for p in (*e.cells, *e.curves)]

    assert left("method=cross-entropy") == [
        *(("small", "cross-entropy", "40%"), ("small", "cross-entropy", "20%")),
        ("losses", "cross-entropy", ""),
    ]
    assert left("row=clean-only", "row=others") == [("small", "clean-only", "40%"), ("small", "others", "40%")]
    assert left("noise=symmetric:0.2", "dataset=digits") == [("small", "cross-entropy", "20%")]
    assert left("column=time") == [("small", "l2rw", "time")]
    assert left("row=L2RW") == left("method=l2rw") == left("column=time")  # as a table names it, too
    assert left() == left("column=40%", "column=20%", "column=time") + left("row=cross-entropy")[-1:]


@pytest.mark.parametrize("only", ["dataset=cifar10", "noise=symmetric:0.8", "column=accuracy", "method=glc"])
def test_only_keeps_our_time_of_the_points_of_a_figure(only):
    (found,) = choose([EXPERIMENTS["time-accuracy"](PAPER)], [only])
    points, times = ({(c.panel, c.row) for c in found.cells if c.bench is bench} for bench in (False, True))
    assert points == times != set()


def own_bench(**changes) -> str:
    said = {"device": "cpu of mine", "net": "resnet34", "size": 32, "batch": 100, "settings": []}
    return json.dumps({**said, "run_ratios": {"l2rw": 3.0}, **changes})


def test_an_own_benchmark_takes_the_place_of_the_packaged_one(folder):
    assert bench_of(folder)["device"] == "NVIDIA H200"
    (folder / "bench.json").write_text(own_bench())
    (result,) = [r for r in outcome_of(small(None), [], ratios=bench_of(folder)["run_ratios"]).results if r.cell.bench]
    assert (result.mean, result.status) == (3.0, "reproduced")
    for text in ("{}", *(f'{{"device": "cpu", "run_ratios": {{"l2rw": {ratio}}}}}' for ratio in ("NaN", "0"))):
        (folder / "bench.json").write_text(text)
        with pytest.raises(ValueError, match="is not what `fasten bench --json` prints"):
            bench_of(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"net": "small-cnn", "size": 8}, "net small-cnn, size 8"),
        ({"batch": 20}, "batch 20"),
        ({"settings": ["route=graph"]}, r"settings \['route=graph'\]"),
        ({"unnamed": ("net", "size", "batch")}, "net unknown, size unknown, batch unknown"),
    ],
)
def test_a_benchmark_of_other_runs_than_the_papers_is_refused(folder, capsys, changes, said):
    """Such as one from before it said what it had timed."""
    values = json.loads(own_bench(**changes))
    for name in changes.get("unnamed", ()):
        del values[name]
    (folder / "bench.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=rf"times of other runs than the paper's \({said}\); replace it by"):
        bench_of(folder)


def test_an_own_benchmark_may_lie_in_the_folder_before_the_first_run(folder, capsys):
    Path("out").mkdir()
    Path("out/bench.json").write_text(own_bench())
    answer("reproduce small --only row=l2rw --out out", capsys)
    assert cells()["l2rw", "time"]["mean"] == 3.0
    assert "measured on cpu of mine." in Path("out/small.md").read_text()


# Refusals.


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("reproduce", ["name a table or figure", "--list"]),
        ("reproduce tabel1", ["unknown table or figure 'tabel1'", "did you mean 'table1'"]),
        ("reproduce zzz", ["unknown table or figure 'zzz'", "known: ", "table1", "all"]),
        ("reproduce zzz --list", ["unknown table or figure 'zzz'"]),
        ("reproduce small --seeds 0", ["--seeds", "from 1", "got 0"]),
        ("reproduce small --seeds few", ["--seeds", "'few'"]),
        ("reproduce small --seeds 1,1", ["--seeds names 1 twice"]),
        ("reproduce small --jobs 0", ["--jobs", "1 or more", "got 0"]),
        ("reproduce small --jobs two", ["--jobs", "whole number"]),
        ("reproduce small --setting papr", ["unknown setting 'papr'", "did you mean 'paper'?"]),
        ("reproduce small --device banana", ["unknown device 'banana'"]),
        ("reproduce small --device banana --dry-run", ["unknown device 'banana'"]),
        ("reproduce small --device cuda:0,xpu --dry-run", ["unknown device 'xpu'"]),
        ("reproduce small --device cpu,cpu", ["several GPUs"]),
        ("reproduce small --only method", ["--only takes key=value", "'method'"]),
        ("reproduce small --only metod=fasten", ["--only does not know 'metod'", "did you mean 'method'"]),
        ("reproduce small --only zzz=fasten", ["--only does not know 'zzz'", "known: method, noise"]),
        ("reproduce small --only method=cross-entrpy", ["the method 'cross-entrpy'", "did you mean 'cross-entropy'"]),
        ("reproduce small --only noise=pair:0.4", ["the noise 'pair:0.4'", "symmetric:0.4"]),
        (
            "reproduce small --only column=20% --only row=clean-only",
            ["nothing here matches all of column=20%, row=clean"],
        ),
        ("reproduce small --records nowhere", ["--records takes folders", "nowhere"]),
        ("reproduce small --out file", ["file is a file", "--out"]),
        ("reproduce small --out file/deeper", ["file is a file"]),
        ("reproduce small --out foreign", ["foreign is not empty", "`fasten reproduce`"]),
        ("reproduce small --out other", ["made with --setting miniature, not paper"]),
        ("reproduce small --out damaged", ["reproduce.json is damaged or from another version"]),
        ("reproduce small --jsn", ["--jsn", "--json"]),
    ],
)
def test_what_cannot_be_made_is_refused(folder, capsys, command, words):
    Path("file").write_text("")
    for name, text in {"other": '{"schema": 1, "setting": "miniature", "experiments": {}}', "damaged": "{"}.items():
        Path(name).mkdir()
        Path(name, "reproduce.json").write_text(text)
    Path("foreign").mkdir()
    Path("foreign/.DS_Store").touch()
    answer("reproduce small --dry-run --out foreign", capsys)  # what file managers leave is nothing else
    Path("foreign/thesis.txt").write_text("years of work")
    refuse(command, capsys, *words)


def test_data_that_are_not_there_are_refused_before_anything_is_run(folder, capsys):
    refuse("reproduce table1 --seeds 1 --device cpu", capsys, "CIFAR-10 is not in data", "--root")


@pytest.fixture
def pretrained(folder, monkeypatch) -> str:
    """An experiment whose network starts from weights; the command for it, with the data under `there`."""
    run = run_of("clean-only", weights="start.safetensors")
    made = Experiment("small", "From weights", "table", (Cell("clean-only", "40%", ACCURACY, 99.0, run=run),))
    monkeypatch.setitem(EXPERIMENTS, "small", lambda setting: made)
    return "reproduce small --seeds 1 --device cpu --root there --out out"


def put_weights(root: Path) -> None:
    root.mkdir()
    safetensors.torch.save_file(build_backbone("small-cnn", (1, 8, 8)).state_dict(), root / "start.safetensors")


def test_weights_lie_under_the_root(pretrained, capsys):
    put_weights(Path("there"))
    answer(pretrained, capsys)
    (path,) = Path("out/runs").glob("*/record.json")
    assert json.loads(path.read_text())["run"]["recipe"]["weights"] == str(Path("there/start.safetensors").absolute())
    assert path.parent.name == key(run_of("clean-only", weights="start.safetensors"))
    assert cells()["clean-only", "40%"]["n"] == 1


def test_a_run_counts_wherever_its_weights_lay(pretrained, capsys):
    put_weights(Path("there"))
    answer(pretrained, capsys)
    elsewhere = "reproduce small --seeds 1 --root nowhere"
    answer(f"{elsewhere} --out out", capsys)
    answer(f"{elsewhere} --records out --out other", capsys)
    assert cells(out=Path("other"))["clean-only", "40%"]["n"] == 1


def test_weights_that_are_not_there_are_refused_with_their_place(pretrained, capsys):
    refuse(pretrained, capsys, f"the weights {Path('there/start.safetensors')} are not there", "--root")
    refuse("reproduce clothing1m --root there", capsys, f"the weights {Path('there/imagenet-resnet50.safetensors')}")


def test_where_some_data_are_there_their_runs_go_on(folder, capsys, monkeypatch):
    def both(setting) -> Experiment:
        cells = (Cell("fasten", "40%", ACCURACY, 80.0, run=Run("cifar10")), *small(setting).cells[:1])
        return replace(small(setting), cells=cells)

    monkeypatch.setitem(EXPERIMENTS, "small", both)
    assert main(shlex.split("reproduce small --seeds 1 --device cpu --json --out out")) == 1
    assert [cell["status"] for cell in cells().values()] == ["not run", "below"]
    assert [failed["error"][:24] for failed in read()["failed"]] == ["CIFAR-10 is not in data:"]


def test_without_data_the_tables_are_made_of_what_is_recorded(made, capsys, monkeypatch):
    def both(setting) -> Experiment:
        absent = [Cell("fasten", name, ACCURACY, 80.0, run=Run("cifar10", name)) for name in ("none", "pair:0.4")]
        return replace(small(setting), cells=(*absent, *small(setting).cells[:1]))

    monkeypatch.setitem(EXPERIMENTS, "small", both)
    assert main(shlex.split("reproduce small --seeds 1 --device cpu --out out")) == 1
    assert [(cell["n"], cell["status"]) for cell in cells().values()] == [(0, "not run")] * 2 + [(2, "below")]
    assert len(read()["failed"]) == 2
    said = capsys.readouterr().out
    assert Path("out/small.txt").read_text().rstrip() in said
    first = key(Run("cifar10", "none"))
    assert re.findall("^failed: .*", said, re.MULTILINE)[0].startswith(f"failed: {first} and 1 more: CIFAR-10 is not")


def test_damaged_and_foreign_runs_are_refused(made, capsys):
    path = Path("out/runs") / key(run_of("clean-only")) / "record.json"
    values = json.loads(path.read_text())
    values["run"]["recipe"]["rate"] = 0.3
    path.write_text(json.dumps(values))
    refuse(COMMAND, capsys, "holds another run")
    path.write_text("{")
    refuse(COMMAND, capsys, "record.json is damaged", f"remove the folder {path.parent}")


@pytest.mark.parametrize("change", [{"noise": None}, {"speed": 3}, {"recipe": {"milestones": [], "pace": 1}}])
def test_a_run_of_another_version_is_refused_by_its_folder(made, capsys, change):
    path = Path("out/runs") / key(run_of("clean-only")) / "record.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "run": {**values["run"], **change}}))
    refuse(COMMAND, capsys, f"the run in {path.parent} is damaged or from another version; remove that folder")


@pytest.mark.parametrize(
    "table",
    [
        *("[]", "{}", '{"cells": [3], "curves": [], "seeds": [0]}', '{"cells": [{"row": []}], "curves": []}'),
        '{"cells": [{"row": "clean-only", "column": "40%", "panel": "", "x": null}], "curves": [], "seeds": ["a", 0]}',
    ],
)
def test_a_summary_that_makes_no_sense_is_refused(folder, capsys, table):
    Path("out").mkdir()
    Path("out/reproduce.json").write_text(f'{{"schema": 1, "setting": "paper", "experiments": {{"small": {table}}}}}')
    refuse(COMMAND, capsys, "reproduce.json is damaged or from another version; choose another --out")
    Path("out/reproduce.json").write_text('{"schema": 1, "setting": "paper", "experiments": {}, "records": [3]}')
    refuse(COMMAND, capsys, "reproduce.json is damaged or from another version; choose another --out")


@pytest.mark.parametrize("how", ["damaged", "lost"])
def test_without_its_summary_a_folder_is_refused_and_its_runs_count_elsewhere(made, capsys, how):
    path = Path("out/reproduce.json")
    path.write_text("{") if how == "damaged" else path.unlink()
    refuse(COMMAND, capsys, f"choose another --out, and add --records {Path('out/runs')} to count its finished runs")
    answer(f"{COMMAND} --records out/runs --out anew", capsys)
    assert not Path("anew/runs").exists()
    assert cells(out=Path("anew"))["cross-entropy", "40%"]["n"] == 2


@pytest.mark.parametrize("how", ["damaged", "lost"])
def test_a_run_whose_record_is_damaged_or_lost_goes_on_from_its_checkpoint(finished, folder, capsys, monkeypatch, how):
    with monkeypatch.context() as patch:
        patch.setattr("fasten.commands.console.Runs.update", lambda *_: signal.raise_signal(signal.SIGINT))
        assert main(shlex.split(COMMAND)) == 130
    (path,) = Path("out/runs").glob("*/record.json")
    path.write_text("{") if how == "damaged" else path.unlink()
    answer(COMMAND, capsys)
    assert without_times(Path("out")) == without_times(finished[0])


def test_a_command_that_was_killed_in_its_first_write_goes_on(folder, capsys):
    Path("out").mkdir()
    Path(f"out/.{32 * 'f'}.tmp").write_text("{")
    answer("reproduce small --only column=time --out out", capsys)
    assert not list(Path("out").glob(".*"))


def test_logs_of_runs_side_by_side_that_were_killed_go_with_their_runs(made, capsys):
    """Of one that was recorded meanwhile, and of one that is made now; that of another table's run stays."""
    Path("out/logs").mkdir()
    names = [key(replace(run_of("clean-only"), seed=seed)) for seed in (0, 2)]
    for name in (*names, "another"):
        Path(f"out/logs/{name}.txt").write_text("fasten: interrupted\n")
    answer("reproduce small --device cpu --seeds 3 --out out", capsys)
    assert [path.name for path in Path("out/logs").iterdir()] == ["another.txt"]
    Path("out/logs/another.txt").rename(f"out/logs/{names[0]}.txt")
    answer("reproduce small --device cpu --seeds 3 --out out", capsys)
    assert not Path("out/logs").exists()


# All of it, small.


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    out = tmp_path_factory.mktemp("miniature") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wanted, "own_records", lambda: [])
        assert main(shlex.split(f"reproduce all --setting miniature --seeds 1 --device cpu --json --out {out}")) == 0
    return out


def test_the_miniature_has_few_runs_and_all_of_them_finish(miniature):
    folders = list((miniature / "runs").iterdir())
    assert len(folders) <= 40
    assert all(read_record(folder)["result"] is not None for folder in folders)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_miniature_makes_every_table_and_figure(miniature, name):
    found = read(miniature)["experiments"][name]
    assert found["cells"] or found["curves"]
    assert [cell for cell in found["cells"] if cell["run"] and (cell["n"] != 1 or cell["mean"] is None)] == []
    assert [curve["row"] for curve in found["curves"] if not curve["points"]] == []
    kinds = ["txt", "md", "csv", "tex"] + (["svg", "png"] if found["kind"] == "figure" else [])
    assert all((miniature / f"{name}.{kind}").stat().st_size > 0 for kind in kinds)
    if found["cells"]:
        assert len((miniature / f"{name}.csv").read_text().splitlines()) > len(found["cells"])
    made_of_runs = bool(EXPERIMENTS[name](wanted.MINIATURE).runs())  # ratios of times are not of digits
    assert ("A miniature: digits" in " ".join((miniature / f"{name}.md").read_text().split())) is made_of_runs
    assert found["title"].endswith("(a miniature, on digits)") is made_of_runs
    assert {"digits" in part["panel"] for part in (*found["cells"], *found["curves"])} == {made_of_runs}


def test_the_miniature_is_not_held_against_the_paper(miniature):
    found = read(miniature)["experiments"].values()
    assert {cell["status"] for experiment in found for cell in experiment["cells"]} == {"not in the paper"}
    assert {cell["paper"] for experiment in found for cell in experiment["cells"]} == {None}
    assert [curve for experiment in found for curve in experiment["curves"] if curve["paper"]] == []
    assert [path for path in miniature.glob("*.txt") if "reproduced" in path.read_text()] == []


def test_the_miniatures_table_is_that_of_its_records(miniature):
    for cell in read(miniature)["experiments"]["table1"]["cells"]:
        record = read_record(miniature / "runs" / cell["run"])
        assert cell["mean"] == pytest.approx(100 * record["result"]["test_accuracy"])
        assert cell["row"] == record["run"]["method"]
