"""A finished run predicts and is tested on new data, and is written for other programs."""

from __future__ import annotations

import csv
import importlib
import io
import json
import logging
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from fasten.cli import main
from fasten.runs import exporting, inference

NAMES = ["=sum", "b", "c"]
CENTRES = np.array([[2.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0]])


def blobs(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features around a centre for each class, and the classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, rows)
    return (CENTRES[labels] + rng.normal(size=(rows, 4)) / 2).astype(np.float32), labels


def squares(folder: Path, labels: np.ndarray, size: int) -> None:
    """Grey images, bright at the left, in the middle or at the right; None: in no folder of a class."""
    for row, label in enumerate(labels.tolist()):
        pixels = np.zeros((size, size), np.uint8)
        pixels[:, label * size // 3 : (label + 1) * size // 3] = 200 + row % 50
        place = folder / ["left", "middle", "right"][label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{row}.png")


@pytest.fixture(scope="module")
def table_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    x, labels = blobs(300, seed=0)
    given = np.where(np.arange(300) % 7 == 0, (labels + 1) % 3, labels)
    verified = np.where(np.arange(300) % 5 == 0, np.array(NAMES)[labels], "")
    lines = [["f1", "f2", "f3", "f4", "label", "verified_label"]]
    lines += [[*map(str, row), NAMES[g], v] for row, g, v in zip(x.tolist(), given, verified, strict=True)]
    write_csv(folder / "train.csv", lines)
    run(f"train {folder / 'train.csv'} --epochs 4 --no-references --device cpu --out {folder / 'run'}")
    return folder / "run"


@pytest.fixture(scope="module")
def image_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    squares(folder / "train", np.arange(60) % 3, size=12)
    checked = "".join(f"{name}/{row}.png\n" for row in range(30) for name in [["left", "middle", "right"][row % 3]])
    (folder / "checked.txt").write_text(checked)
    data = f"{folder / 'train'} --verified {folder / 'checked.txt'}"
    run(f"train {data} --epochs 8 --no-references --device cpu --out {folder / 'run'}")
    return folder / "run"


def run(command: str) -> None:
    assert main(shlex.split(command)) == 0


def copied(trained: Path, data: str, **own: str) -> None:
    """A run and its data in the folder `all`, as if it had been trained on data of that path."""
    shutil.copytree(trained.parent, "all")
    record = json.loads(Path("all/run/record.json").read_text())
    record["run"] |= {"dataset": data, "own": own}
    Path("all/run/record.json").write_text(json.dumps(record))


def answer(command: str, capsys) -> dict:
    capsys.readouterr()
    run(f"{command} --json")
    found: dict = json.loads(capsys.readouterr().out)
    return found


def refuse(command: str, capsys, *words: str) -> None:
    before = sorted(Path.cwd().rglob("*"))
    capsys.readouterr()
    assert main(shlex.split(command)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for word in words:
        assert word in said
    assert sorted(Path.cwd().rglob("*")) == before


def write_csv(path: Path, lines: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(lines)


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8"), newline="")))


def reference(run: Path, x: np.ndarray) -> np.ndarray:
    """Class probabilities of the small MLP, from the numbers in its files, in NumPy."""
    data, weights = json.loads((run / "record.json").read_text())["data"], load_file(run / "model.safetensors")
    h = (x.astype(np.float64) - data["mean"]) / data["std"]
    for linear, norm in ((0, 1), (3, 4)):
        layer, bn = f"net.backbone.layers.{linear}.weight", f"net.backbone.layers.{norm}."
        h = h @ weights[layer].T.astype(np.float64)
        h = (h - weights[bn + "running_mean"]) / np.sqrt(weights[bn + "running_var"] + 1e-5)
        h = np.maximum(h * weights[bn + "weight"] + weights[bn + "bias"], 0)
    z = h @ weights["net.clean.weight"].T.astype(np.float64) + weights["net.clean.bias"]
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_predictions_are_those_of_the_weights_in_the_file(table_run, folder, capsys):
    x, _ = blobs(50, seed=1)
    # The model's features by name, in another order, and no labels.
    write_csv(
        folder / "new.csv",
        [["id", "f4", "f3", "f2", "f1"], *([f"=row{n}", *map(str, row[::-1].tolist())] for n, row in enumerate(x))],
    )
    summary = answer(f"predict {table_run} new.csv --probabilities --out p.csv", capsys)
    lines, wanted = read_csv(folder / "p.csv"), reference(table_run, x)
    assert [line["id"] for line in lines] == [f"'=row{n}" for n in range(50)]  # no formulas for spreadsheets
    assert [line["predicted"] for line in lines] == [["'=sum", "b", "c"][best] for best in wanted.argmax(1)]
    got = np.array([[float(line[f"p_{name}"]) for name in NAMES] for line in lines])
    np.testing.assert_allclose(got, wanted, atol=2e-5)
    np.testing.assert_allclose([float(line["p"]) for line in lines], wanted.max(1), atol=2e-5)
    counts = np.bincount(wanted.argmax(1), minlength=3).tolist()
    assert (summary["rows"], summary["predicted"]) == (50, dict(zip(NAMES, counts, strict=True)))


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_labels_of_rows_to_predict_are_not_looked_at(table_run, folder, capsys, kind):
    """Nobody knows yet what new rows are: '?' is no class, and no reason to refuse them."""
    x, _ = blobs(20, seed=1)
    table = pd.DataFrame(x, columns=["f1", "f2", "f3", "f4"]).assign(
        label="?", verified_label="no idea", picked="random"
    )
    if kind == "npz":
        np.savez(folder / "new.npz", x=x, labels=np.full(20, "?"), verified=np.full(20, "no idea"))
    else:
        getattr(table, f"to_{kind}")(folder / f"new.{kind}", index=False)
    answer(f"predict {table_run} new.{kind} --out p.csv", capsys)
    wanted = [["'=sum", "b", "c"][best] for best in reference(table_run, x).argmax(1)]
    assert [line["predicted"] for line in read_csv(folder / "p.csv")] == wanted
    refuse(f"evaluate {table_run} new.{kind}", capsys, "unknown label")


def test_rows_come_in_chunks_of_any_size(table_run, folder, monkeypatch):
    np.savez("new.npz", x=blobs(23, seed=2)[0])
    run(f"predict {table_run} new.npz --out whole.csv")
    monkeypatch.setattr(inference, "CHUNK", 7)
    run(f"predict {table_run} new.npz --out parts.csv")
    assert (folder / "parts.csv").read_bytes() == (folder / "whole.csv").read_bytes()
    assert len(read_csv(folder / "parts.csv")) == 23


def test_a_prediction_that_fails_leaves_the_file_as_it_was(table_run, folder, monkeypatch):
    np.savez("new.npz", x=blobs(20, seed=2)[0])
    (folder / "p.csv").write_text("old")
    real = inference.predictions

    def failing(*arguments):
        yield next(real(*arguments))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(inference, "predictions", failing)
    assert main(shlex.split(f"predict {table_run} new.npz --out p.csv")) == 2
    assert (folder / "p.csv").read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == ["new.npz", "p.csv"]


def test_an_id_with_a_line_break_stays_in_its_row(table_run, folder):
    x, _ = blobs(2, seed=3)
    np.savez("new.npz", x=x, ids=np.array(["a\rb", "c\nd"]))
    run(f"predict {table_run} new.npz --out p.csv")
    assert [line["id"] for line in read_csv(folder / "p.csv")] == ["a\rb", "c\nd"]


def test_images_of_any_size_and_colour_are_brought_to_the_runs(image_run, folder, capsys):
    labels = np.array([2, 0, 1, 1, 0])
    squares(folder / "classes", labels, size=30)
    (folder / "loose").mkdir()
    for row, label in enumerate(labels):
        name = ["left", "middle", "right"][label]
        Image.open(folder / "classes" / name / f"{row}.png").convert("RGB").save(folder / "loose" / f"{row}.png")
    (folder / "loose" / "bad.png").write_bytes(b"no image")
    summary = answer(f"predict {image_run} loose --out p.csv", capsys)
    assert {line["id"]: line["predicted"] for line in read_csv(folder / "p.csv")} == {
        f"{row}.png": ["left", "middle", "right"][label] for row, label in enumerate(labels)
    }
    assert "bad.png" in summary["notes"][0]
    scores = answer(f"evaluate {image_run} classes", capsys)
    assert (scores["rows"], scores["test_accuracy"]) == (5, 1.0)
    refuse(f"predict {image_run} loose --max-bad 0 --out q.csv", capsys, "bad.png", "repair or remove")


def test_scores_are_counted_by_the_names_of_classes(table_run, folder, capsys):
    """Labels of two of the three classes, and in another order than the model's."""
    x, labels = blobs(60, seed=4)
    kept = np.flatnonzero(labels > 0)
    np.savez("new.npz", x=x[kept], labels=np.array(NAMES)[labels[kept]])
    scores = answer(f"evaluate {table_run} new.npz", capsys)
    p = reference(table_run, x[kept])
    hits = p.argmax(1) == labels[kept]
    assert scores["rows"] == len(kept)
    assert scores["test_accuracy"] == pytest.approx(hits.mean())
    assert scores["test_nll"] == pytest.approx(-np.log(p[np.arange(len(kept)), labels[kept]]).mean(), rel=1e-4)
    for line, name in zip(scores["classes"], NAMES, strict=True):
        rows = labels[kept] == NAMES.index(name)
        assert (line["class"], line["rows"]) == (name, rows.sum())
        assert line["accuracy"] == (pytest.approx(hits[rows].mean()) if rows.any() else None)
    assert "rows have no verified label" in scores["notes"][-1]


def test_test_rows_count_where_the_data_name_some_and_rows_without_label_never(table_run, folder, capsys):
    x, labels = blobs(30, seed=5)
    given = np.array(NAMES)[labels]
    given[10:14] = ""
    np.savez("some.npz", x=x, labels=given)
    found = answer(f"evaluate {table_run} some.npz", capsys)
    assert found["rows"] == 26
    assert "4 rows without a label" in found["notes"][0]
    lines = [["f1", "f2", "f3", "f4", "label", "split"]]
    lines += [
        [*map(str, row), g or "b", "test" if n < 8 else "train"]
        for n, (row, g) in enumerate(zip(x.tolist(), given, strict=True))
    ]
    write_csv(folder / "split.csv", lines)
    assert answer(f"evaluate {table_run} split.csv", capsys)["rows"] == 8
    assert answer(f"predict {table_run} split.csv --out p.csv", capsys)["rows"] == 30


def test_rows_that_were_trained_on_are_said_to_be(table_run, capsys):
    found = answer(f"evaluate {table_run} {table_run.parent / 'train.csv'}", capsys)
    assert any("trained on these rows" in note for note in found["notes"])


def test_a_path_may_be_written_in_other_ways(image_run, capsys, monkeypatch):
    """The list of verified names belongs to the data, however these are named."""
    folder = image_run.parent
    monkeypatch.chdir(folder)
    ways = [folder / "train", f"{folder}/train/", "train", "./train/", "../" + folder.name + "/train"]
    found = [answer(f"evaluate run {way} --device cpu", capsys) for way in ways]
    assert all(scores == found[0] for scores in found)
    assert any("of the 60 rows" in note for note in found[0]["notes"])


def test_the_accuracy_is_the_same_from_another_folder(folder, capsys, monkeypatch):
    """The list of verdicts is the run's, and that it was trained on these rows is said all the same."""
    squares(folder / "all/train", np.arange(60) % 3, size=12)
    (folder / "all/train/left/0.png").rename(folder / "all/train/right/0.png")
    rest = [f"{name}/{row}.png" for row in range(1, 21) for name in [["left", "middle", "right"][row % 3]]]
    (folder / "all/checked.txt").write_text("\n".join(["right/0.png,left", *rest]) + "\n")
    monkeypatch.chdir("all")
    run("train train --verified checked.txt --epochs 8 --no-references --device cpu --out run")
    here = answer("evaluate run train --device cpu", capsys)
    (folder / "else").mkdir()
    monkeypatch.chdir(folder / "else")
    assert answer("evaluate ../all/run ../all/train --device cpu", capsys) == here
    assert here["rows"] == 60
    assert here["notes"][-1].startswith("the run was trained on these rows")
    assert "39 of the 60 rows have no verified label" in here["notes"][0]
    (folder / "all/checked.txt").unlink()
    assert answer("evaluate ../all/run ../all/train --device cpu", capsys) == here


def test_folders_beside_the_data_are_found_from_another_folder(folder, capsys, monkeypatch):
    for name, number in (("all/train", 60), ("all/checked", 30), ("all/new", 21)):
        squares(folder / name, np.arange(number) % 3, size=12 if name != "all/new" else 11)
    monkeypatch.chdir("all")
    run("train train --clean-folder checked --test new --epochs 2 --no-references --device cpu --out run")
    here = answer("evaluate run train --device cpu", capsys)
    monkeypatch.chdir(folder)
    assert here["rows"] == 21
    assert answer("evaluate all/run all/train --device cpu", capsys) == here


def test_other_data_of_the_same_name_are_not_the_runs(table_run, folder, capsys):
    copied(table_run, "train.csv")
    x, labels = blobs(300, seed=7)
    lines = [[*map(str, row), NAMES[label]] for row, label in zip(x.tolist(), labels, strict=True)]
    write_csv(Path("train.csv"), [["f1", "f2", "f3", "f4", "label"], *lines])
    notes = answer("evaluate all/run train.csv", capsys)["notes"]
    assert "trained on data of this name" in notes[-1]
    assert not any("trained on these rows" in note for note in notes)


def test_rows_that_the_run_knows_and_labels_that_it_made_are_said(table_run, folder, capsys):
    copied(table_run, "all/train.csv")
    run("audit all/run --export csv --out repaired.csv")
    lines = read_csv(folder / "repaired.csv")
    changed = sum(line["label"] != line["original_label"] and not line["verified_label"] for line in lines)
    assert changed > 20
    note = answer("evaluate all/run repaired.csv", capsys)["notes"][-1]
    assert note.startswith("300 of the 300 rows have the id and the label of rows that the run was trained on")
    assert f"{changed} labels are the run's suggestion" in note
    table = pd.read_csv("all/train.csv")
    table[:90].to_csv("part.csv", index=False)
    note = answer("evaluate all/run part.csv", capsys)["notes"][-1]
    assert note.startswith("90 of the 90 rows have the id and the label")
    assert "suggestion" not in note
    pd.concat([table[:90], table.sample(60, random_state=0).assign(label="b")]).to_csv("more.csv", index=False)
    assert "of the 150 rows have" in answer("evaluate all/run more.csv", capsys)["notes"][-1]
    table[::-1].to_csv("turned.csv", index=False)  # rows without ids are counted: labels agree by chance alone
    assert not any("trained on" in note for note in answer("evaluate all/run turned.csv", capsys)["notes"])


def test_new_rows_in_the_order_of_the_runs_are_not_taken_for_these(table_run, folder, capsys):
    """Rows without ids are numbered alike, and the labels are the same: what tells them apart is what they hold."""
    copied(table_run, "all/train.csv")
    table = pd.read_csv("all/train.csv")
    x, labels = blobs(300, seed=8)
    names = np.array(NAMES)[labels]
    rows = [np.flatnonzero(names == label)[0] for label in table["label"]]
    table = table.drop(columns=[name for name in table if name.startswith("verified") or name == "picked"])
    table.assign(**{f"f{number + 1}": x[rows, number] for number in range(4)}).to_csv("new.csv", index=False)
    found = answer("evaluate all/run new.csv", capsys)
    assert "300 of the 300 rows have no verified label" in found["notes"][0]  # none has a verdict on another row
    assert "if they are the same rows" in found["notes"][-1]


def test_the_runs_file_with_a_row_less_is_said_to_have_been_trained_on(table_run, folder, capsys):
    copied(table_run, "all/train.csv")
    pd.read_csv("all/train.csv")[1:].to_csv("all/train.csv", index=False)
    assert "trained on data of this name" in answer("evaluate all/run all/train.csv", capsys)["notes"][-1]


def test_a_table_of_labels_that_was_changed_is_said_and_no_more_where_a_run_is_tested(table_run, folder, capsys):
    copied(table_run, "all/train.csv")
    path = Path("all/run/labels.csv")
    path.write_text(path.read_text().replace(",given,", ",Given,", 1))
    x, labels = blobs(60, seed=9)
    np.savez("new.npz", x=x, labels=np.array(NAMES)[labels])
    found = answer("evaluate all/run new.npz", capsys)
    assert found["rows"] == 60
    assert "lacks the column 'given'" in found["notes"][-1]


def test_a_test_folder_of_the_run_is_tested_on_as_it_is(folder, capsys):
    for name, size in (("here/a", 12), ("here/b", 11)):
        squares(folder / name, np.arange(60) % 3, size=size)
    run("train here/a --method cross-entropy --test here/b --epochs 1 --no-references --device cpu --out run")
    assert answer("evaluate run here/b --device cpu", capsys)["rows"] == 60


def test_labels_under_noise_that_was_injected_are_not_called_the_runs(table_run, folder, capsys):
    copied(table_run, "all/train.csv")
    run("train all/train.csv --noise symmetric:0.3 --epochs 3 --no-references --device cpu --out noisy")
    shutil.copy("all/train.csv", "copy.csv")
    notes = answer("evaluate noisy copy.csv", capsys)["notes"]
    assert not any("suggestion" in note for note in notes)


def test_images_that_were_trained_on_are_predicted_without_the_list_of_verdicts(image_run, folder, capsys):
    copied(image_run, "all/train", verified="all/gone.txt")
    assert answer("predict all/run all/train --device cpu --out p.csv", capsys)["rows"] == 60
    refuse("evaluate all/run all/train --device cpu", capsys, "there is no file all/gone.txt")


def test_what_does_not_fit_the_run_is_refused_in_a_sentence(table_run, image_run, folder, capsys):
    np.savez("wide.npz", x=np.zeros((3, 5), np.float32))
    np.savez("fine.npz", x=np.zeros((3, 4), np.float32))
    np.savez("odd.npz", x=np.zeros((3, 4), np.float32), labels=np.array(["b", "B", "c"]))
    write_csv(folder / "less.csv", [["f1", "f2", "f3"], ["1", "2", "3"]])
    refuse(f"predict {table_run} wide.npz --out p.csv", capsys, "examples of 5 features", "trained on 4 features")
    refuse(f"predict {table_run} less.csv --out p.csv", capsys, "lacks the column 'f4'")
    refuse(f"evaluate {table_run} odd.npz", capsys, "unknown label 'B'")
    refuse(f"evaluate {table_run} fine.npz", capsys, "no row with a label", "fasten predict")
    refuse(f"predict {image_run} fine.npz --out p.csv", capsys, "trained on 12×12 pixels in grey")
    refuse(f"predict {table_run} nothing.npz --out p.csv", capsys, "nothing.npz")
    refuse(f"predict {table_run} digit --out p.csv", capsys, "unknown data set 'digit'")
    refuse(f"predict {table_run} fine.npz --out {folder}", capsys, "is a folder; --out takes the name of the file")
    refuse(f"predict {table_run} fine.npz --out no/p.csv", capsys, "there is no folder no")
    refuse(f"predict {table_run} fine.npz --out p.parquet", capsys, "--out p.parquet must end in .csv")
    refuse(f"export {table_run} --format onx --out m.onnx", capsys, "unknown format 'onx'; did you mean 'onnx'?")
    refuse(f"export {table_run} --out m.pt2", capsys, "--out m.pt2 must end in .onnx for --format onnx")
    refuse(f"export {table_run} --format torch --out m.ONNX", capsys, "must end in .pt2 for --format torch")
    onto_digits = f"export {table_run} --data digits --format torch --out m.pt2"
    refuse(onto_digits, capsys, "was trained on examples of 4 features; it does not take digits, of 8×8 pixels in grey")
    refuse(f"report {table_run} --out no/report.html", capsys, "there is no folder no for report.html; make it first")
    refuse(f"report {table_run} --out page.txt", capsys, "--out page.txt must end in .html")


def test_a_file_that_is_no_prediction_is_not_replaced(table_run, folder, capsys):
    """A slip of the hand must not cost anybody their data: refuse compares all files before and after."""
    write_csv(folder / "new.csv", [["f1", "f2", "f3", "f4"], ["1", "2", "3", "4"]])
    write_csv(folder / "items.csv", [["id", "label"], ["a", "b"]])
    for out in ("new.csv", "items.csv"):
        refuse(
            f"predict {table_run} new.csv --out {out}", capsys, f"{out} already exists and does not hold predictions"
        )
    refuse(f"export {table_run} --format torch --out items.csv", capsys, "must end in .pt2")
    refuse(f"report {table_run} --out items.csv", capsys, "must end in .html")
    for options in ("", "--probabilities", ""):
        answer(f"predict {table_run} new.csv {options} --out p.csv", capsys)


def test_a_frozen_run_is_what_it_was_when_it_is_loaded_again(folder, capsys):
    trained = answer("train digits --set frozen=true --epochs 2 --no-references --device cpu --out run", capsys)
    assert "frozen in that state" in trained["notes"][0]
    found = answer("evaluate run digits --device cpu", capsys)
    assert found["test_accuracy"] == trained["result"]["test_accuracy"]
    assert trained["run"]["recipe"]["frozen"] is True


@pytest.mark.parametrize("kind", ["table_run", "image_run"])
def test_an_exported_program_predicts_as_the_run_for_any_number_of_rows(kind, folder, capsys, request):
    trained = request.getfixturevalue(kind)
    found = answer(f"export {trained} --format torch --out m.pt2", capsys)
    assert found["largest_difference"] < 1e-5
    extra = {"classes.json": ""}
    model = torch.export.load(folder / "m.pt2", extra_files=extra).module()
    assert json.loads(extra["classes.json"]) == found["classes"]
    x = (
        blobs(9, seed=6)[0]
        if kind == "table_run"
        else np.random.default_rng(0).integers(0, 256, (9, 12, 12, 1), np.uint8)
    )
    np.savez("new.npz", x=x)
    run(f"predict {trained} new.npz --probabilities --out p.csv")
    names = json.loads((trained / "record.json").read_text())["data"]["class_names"]
    wanted = np.array([[float(line[f"p_{name}"]) for name in names] for line in read_csv(folder / "p.csv")])
    for size in (1, 9):
        np.testing.assert_allclose(model(torch.from_numpy(x[:size])).detach(), wanted[:size], atol=2e-5)
    assert not any("noisy" in name for name in model.state_dict())


@pytest.mark.parametrize("method", ["causalnl", "dividemix", "mlac", "mslc"])
def test_whatever_networks_a_method_has_what_is_exported_predicts_as_all_of_it(method, folder, capsys):
    x, labels = blobs(90, seed=0)
    np.savez("rows.npz", x=x, labels=labels, verified=np.where(np.arange(90) % 3 == 0, labels, -1))
    run(f"train rows.npz --method {method} --epochs 3 --no-references --device cpu --out run")
    found = answer("export run --format torch --out m.pt2", capsys)
    assert found["largest_difference"] < 1e-5


def test_an_exported_file_holds_nothing_of_the_rows_compared(table_run, folder):
    secret = np.float32(1234.5678)
    for name, value in (("a", 0.0), ("b", secret)):
        np.savez(f"{name}.npz", x=np.full((5, 4), value, np.float32))
        run(f"export {table_run} --format torch --data {name}.npz --out {name}.pt2")
    assert secret.tobytes() not in (folder / "b.pt2").read_bytes()


def test_a_program_that_predicts_something_else_is_not_written(table_run, folder, capsys, monkeypatch):
    (folder / "m.pt2").write_text("old")
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    refuse(f"export {table_run} --format torch --out m.pt2", capsys, "off by", "not written")
    assert (folder / "m.pt2").read_text() == "old"


def test_an_onnx_file_predicts_as_the_run(image_run, folder, capsys, caplog):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    found = answer(f"export {image_run} --out m.onnx", capsys)
    assert not [
        line for line in caplog.records if line.levelno >= logging.WARNING
    ]  # torch would warn of libraries that are not there and not needed
    session = importlib.import_module("onnxruntime").InferenceSession(folder / "m.onnx")
    assert found["largest_difference"] < 1e-5
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == found["classes"]
    (wanted,) = session.get_inputs()
    assert (wanted.type, wanted.shape[1:]) == ("tensor(uint8)", [12, 12, 1])
    for size in (1, 4):
        (p,) = session.run(None, {wanted.name: np.full((size, 12, 12, 1), 7, np.uint8)})
        assert p.shape == (size, 3)
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)


def test_onnx_without_its_libraries_says_what_installs_them(table_run, folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    install = "pip install onnx onnxscript onnxruntime"
    refuse(f"export {table_run} --out m.onnx", capsys, "library onnxruntime", install, "--format torch")
