"""Users' own data on the command line: folders, tables and arrays, and every way to get them wrong."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fasten.commands.console as console
import fasten.datasets as datasets
import fasten.runs.training as training
from command_line import answer, refuse, tree
from fasten.cli import main
from fasten.records import read_record
from own_data import make_blobs, write_digits, write_table

FAST = "--device cpu --epochs 3 --no-references"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """photos/ with verified.txt, items.csv and emb.npz, which no test may change."""
    folder = tmp_path_factory.mktemp("data")
    write_digits(folder / "photos")
    write_table(folder / "items.csv")
    x, given, truth = make_blobs(400)
    np.savez(folder / "emb.npz", x=x, labels=given, verified=np.where(np.arange(400) < 120, truth, -1))
    return folder


@pytest.fixture
def here(data, folder) -> Path:
    """A copy of it, as the current folder."""
    shutil.copytree(data, folder, dirs_exist_ok=True)
    return folder


def labels_of(out: str) -> pd.DataFrame:
    return pd.read_csv(Path(out) / "labels.csv", dtype=str, keep_default_na=False).astype(
        {"row": int, "p_wrong": float}
    )


def test_a_folder_with_a_list_of_verified_names_gives_a_model_and_corrected_labels(here, capsys):
    verified, truth = write_digits(here / "photos")
    said = json.loads(answer("train photos/ --verified verified.txt --device cpu --json --out run", capsys))
    assert (said["run"]["dataset"], said["run"]["own"]) == ("photos/", {"verified": "verified.txt"})
    assert said["run"]["recipe"]["net"] == "small-cnn"
    assert said["result"]["test_accuracy"] is None
    assert "there are no test rows, so no test accuracy" in said["notes"]
    table = labels_of("run")
    assert list(table)[8:] == ["verified", "picked"]
    assert len(table) == 120
    right = [truth[name] for name in table["id"]]
    assert (table["corrected"] == right).mean() > 0.9 > (table["given"] == right).mean()
    assert set(table["id"][table["picked"].isin(["random", "held"])]) == set(verified)
    evidence = read_record(Path("run"))["evaluation"]["evidence"]
    assert (evidence["num_random"], evidence["num_held"]) == (60, (table["picked"] == "held").sum())
    probs = np.load("run/probabilities.npy")
    assert (probs.shape, probs.dtype) == ((120, 3), np.float32)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)


def test_a_second_folder_of_clean_images_will_do(here, capsys):
    verified, truth = write_digits(here / "photos")
    for name in verified:
        (here / "checked" / truth[name]).mkdir(parents=True, exist_ok=True)
        shutil.move(here / "photos" / name, here / "checked" / truth[name] / Path(name).name)
    answer(f"train photos --clean-folder checked {FAST} --out run", capsys)
    record = read_record(Path("run"))
    assert record["data"]["rows_clean"] + record["data"]["rows_valid"] == 60
    assert any("uncalibrated, and T is a model's estimate" in note for note in record["notes"])
    assert record["evaluation"]["evidence"] is None
    assert len(labels_of("run")) == 60


def test_the_same_image_in_both_folders_is_a_verified_row(here, capsys):
    shutil.copytree(here / "photos" / "d0", here / "checked" / "d0")
    shutil.copytree(here / "photos" / "d1", here / "checked" / "d1")
    answer(f"train photos --clean-folder checked {FAST} --out run", capsys)
    record = read_record(Path("run"))
    assert record["evaluation"]["evidence"]["num_random"] == len(list((here / "checked").rglob("*.png")))
    assert any(note.startswith("no clean rows in d2") for note in record["notes"])


def test_folders_for_validation_and_test_are_used(here, capsys):
    for part in ("valid", "test"):
        write_digits(here / part, per_class=8, share=0, seed=5 if part == "valid" else 6)
    # The digits are drawn from the same files: what also stands in training is taken out of it.
    for part in ("valid", "test"):
        for path in (here / part).rglob("*.png"):
            for same in (here / "photos").rglob(path.name):
                same.unlink()
    for path in (here / "test").rglob("*.png"):
        for same in (here / "valid").rglob(path.name):
            same.unlink()
    write_list = [str(path.relative_to(here / "photos")) for path in sorted((here / "photos").rglob("*.png"))[::4]]
    (here / "names.txt").write_text("\n".join(write_list))
    answer(f"train photos --verified names.txt --valid valid --test test {FAST} --out run", capsys)
    record = read_record(Path("run"))
    assert record["data"]["rows_test"] == 24
    assert record["data"]["rows_valid"] == len(list((here / "valid").rglob("*.png")))
    assert record["result"]["selected_by"] == "valid"
    assert isinstance(record["result"]["test_accuracy"], float)


def test_a_table_of_features_is_trained_on_by_an_mlp(here, capsys):
    answer(f"train items.csv {FAST} --out run", capsys)
    record = read_record(Path("run"))
    assert record["run"]["recipe"]["net"] == "mlp"
    data = record["data"]
    assert (data["rows_test"], data["rows_held"], data["rows_verified"]) == (60, 40, 120)
    assert data["rows_test_as_given"] == 60
    assert (data["shape"], data["feature_names"]) == ([6], [f"f{i}" for i in range(6)])
    assert record["result"]["test_accuracy"] > 0.9
    assert set(labels_of("run")["id"]) == {f"r{row}" for row in range(340)}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_of_categories_and_blanks_is_trained_on_and_predicted(folder, capsys, suffix):
    """The class is in a column of texts; a copy with corrected labels keeps the columns as they are written."""
    rng = np.random.default_rng(0)
    coats = np.array(["curly", "long", "short"])[rng.integers(3, size=300)]
    truth = np.where(coats == "long", "cat", "dog")
    days = np.array(["2024-05-01", "2024-05-02"])[rng.integers(2, size=300)]  # texts, whatever else they look like
    table = pd.DataFrame({"coat": coats, "age": rng.normal(size=300), "day": days, "label": truth})
    table.loc[::7, "age"], table.loc[::5, "label"] = np.nan, "cat"
    table["verified_label"] = np.where(np.arange(300) % 3 == 0, truth, None)
    getattr(table, f"to_{suffix}")(f"pets.{suffix}", index=False)
    text = answer(f"train pets.{suffix} {FAST} --out run", capsys)
    assert f"pets.{suffix}: columns of texts are categories, with a feature for each: 'coat' (3), 'day' (2)" in text
    data = read_record(Path("run"))["data"]
    names = ["coat = curly", "coat = long", "coat = short", "age", "age is missing"]
    assert (data["shape"], data["feature_names"]) == ([7], [*names, *(f"day = {day}" for day in sorted({*days}))])
    new = pd.DataFrame({"age": [None, 0.5, 1.0, 2.0], "coat": ["long", "short", "curly", "bald"], "day": days[:4]})
    new.to_csv("new.csv", index=False)
    said = answer("predict run new.csv --device cpu --out found.csv", capsys)
    assert "new.csv: texts that are no known category, and count as none: 'coat' (1 row, first 'bald')" in said
    assert pd.read_csv("found.csv")["predicted"].tolist()[:3] == ["cat", "dog", "dog"]
    for kind in ("csv", "parquet"):
        answer(f"audit run --export {kind} --out repaired.{kind}", capsys)
        repaired = getattr(pd, f"read_{kind}")(f"repaired.{kind}")
        pd.testing.assert_frame_equal(repaired[["coat", "age", "day"]], table[["coat", "age", "day"]])
        assert (repaired["label"] == truth).mean() > 0.95 > (table["label"] == truth).mean()


def test_a_manifest_of_images_is_read_beside_its_images(here, capsys):
    _, truth = write_digits(here / "photos")
    lines = [
        f"photos/{name},{name.split('/')[0]},{label if i % 2 else ''}" for i, (name, label) in enumerate(truth.items())
    ]
    (here / "list.csv").write_text("path,label,verified_label\n" + "\n".join(lines))
    answer(f"train list.csv --size 12 --set net=small-cnn {FAST} --out run", capsys)
    record = read_record(Path("run"))
    assert record["data"]["shape"] == [1, 12, 12]
    assert record["data"]["rows_verified"] == 60
    assert record["run"]["own"] == {"size": 12}


def test_arrays_are_audited_and_a_precision_can_be_kept(here, capsys):
    answer("train emb.npz --device cpu --min-precision 0.7 --no-references --out run", capsys)
    record = read_record(Path("run"))
    choice = record["evaluation"]["evidence"]["threshold"]
    assert choice["threshold"] is not None
    assert any(note.startswith("at least 0.7 of the corrections") for note in record["notes"])
    answer("train emb.npz --device cpu --min-precision 0.999 --no-references --out strict", capsys)
    notes = read_record(Path("strict"))["notes"]
    assert any("so nothing is corrected; verify more rows at random: about" in note for note in notes)
    table = labels_of("strict")
    assert set(table["verified"][table["is_issue"] == "true"]) <= {"0", "1", "2", "3"}
    assert (table["is_issue"][table["verified"] == ""] == "false").all()


def test_a_precision_out_of_reach_is_said_before_training(here, capsys):
    assert main(shlex.split(f"train emb.npz {FAST} --min-precision 0.99 --out run")) == 0
    said = capsys.readouterr().err
    lack = "nothing will be corrected: a precision of 0.99 takes at least 299 held-back labels that are wrong"
    assert said.index(lack) < said.index("epoch 1: ")


def test_a_precision_without_rows_verified_at_random_says_nothing_of_such_rows(folder, capsys):
    x, given, truth = make_blobs(200)
    np.savez("emb.npz", x=x[:160], labels=given[:160], x_clean=x[160:], y_clean=truth[160:])
    text = answer(f"train emb.npz {FAST} --min-precision 0.7 --out run", capsys)
    assert "verify rows at random first" in text
    assert "labels verified at random are wrong" not in text


def test_own_data_without_verified_rows_can_be_trained_on_as_they_are(here, capsys):
    x, given, _ = make_blobs(200)
    np.savez("plain.npz", x=x, labels=given)
    refuse(f"train plain.npz {FAST} --out run", capsys, "fasten needs clean rows", "start with --method cross-entropy")
    refuse(f"train plain.npz --method augdesc {FAST} --out run", capsys, "plain.npz has no images; use dividemix")
    answer(f"train plain.npz --method cross-entropy {FAST} --out run", capsys)
    record = read_record(Path("run"))
    assert record["result"]["selected_by"] == "last"
    assert any("the last epoch is used" in note for note in record["notes"])
    assert any("judged by the one of 3 networks that had not seen it" in note for note in record["notes"])


def test_that_most_labels_look_wrong_is_said_by_calibrated_probabilities_alone(here, capsys):
    x, given, truth = make_blobs(400)
    np.savez("half.npz", x=x, labels=given, verified=np.where(np.arange(400) % 2, truth, -1))
    answer("train half.npz --device cpu --epochs 1 --no-references --set rate=10 --out run", capsys)
    assert not any("of the labels look wrong" in note for note in read_record(Path("run"))["notes"])


def test_large_images_without_a_gpu_come_with_a_word_on_their_size(here, capsys):
    for size, said in ((128, False), (129, True)):
        command = f"train photos --verified verified.txt --size {size} --device cpu --epochs 1"
        answer(f"{command} --no-references --out run{size}", capsys)
        notes = read_record(Path(f"run{size}"))["notes"]
        assert ("images of 129×129 pixels take long without a GPU; --size 64 is several times faster" in notes) == said


def test_one_verified_row_a_class_is_enough_to_run(here, capsys):
    x, given, truth = make_blobs(200)
    first = [int(np.flatnonzero(truth == c)[0]) for c in range(4)]
    np.savez("few.npz", x=x, labels=given, x_clean=x[first] + 0.1, y_clean=np.arange(4))
    answer(f"train few.npz {FAST} --out run", capsys)
    record = read_record(Path("run"))
    assert record["result"]["selected_by"] == "last"
    assert any("every class: a batch takes some of them several times" in note for note in record["notes"])


def test_a_class_that_nobody_verified_keeps_its_labels(here, capsys):
    """Its images are like none that the model was shown, and would all be moved to other folders."""
    for name in sorted(path.name for path in Path("photos/d2").iterdir())[:4]:
        Path("photos/d9").mkdir(exist_ok=True)
        Path("photos/d2", name).rename(Path("photos/d9", name))
    known = [
        line for line in Path("verified.txt").read_text().splitlines() if (Path("photos") / line.split(",")[0]).exists()
    ]
    Path("verified.txt").write_text("\n".join(known) + "\n")
    said = answer("train photos --verified verified.txt --device cpu --epochs 15 --no-references --out run", capsys)
    assert "no clean rows in d9: rows with such a label keep it, as no row shows what belongs there" in said
    assert read_record(Path("run"))["data"]["kept_classes"] == ["d9"]
    for command in ("audit run", "audit run --min-precision 0.5"):
        answer(command, capsys)
        table = labels_of("run")
        lost = table[table["given"] == "d9"]
        assert (lost["p_wrong"] > 0.5).any()
        assert (lost["corrected"] == "d9").all()


def test_one_verified_name_a_class_is_not_held_back(here, capsys):
    names = [next((here / "photos" / f"d{c}").glob("*.png")) for c in range(3)]
    (here / "few.txt").write_text("".join(f"{path.parent.name}/{path.name}\n" for path in names))
    answer(f"train photos --verified few.txt {FAST} --out run", capsys)
    record = read_record(Path("run"))
    assert (record["data"]["rows_clean"], record["data"]["rows_held"]) == (3, 0)
    assert not [note for note in record["notes"] if "no clean rows" in note]


def test_noise_can_be_tried_on_ones_own_data(here, capsys):
    answer(f"train emb.npz --noise pair:0.3 {FAST} --out run", capsys)
    record = read_record(Path("run"))
    assert record["data"]["noise_rate"] == pytest.approx(0.3, abs=0.05)
    assert record["evaluation"]["detection"]["posterior"]["auroc"] > 0.5
    refuse(f"train emb.npz --noise asymmetric:0.3 {FAST} --out other", capsys, "asymmetric", "pair:R")


def test_a_run_on_own_data_resumes_as_if_it_had_never_stopped(here, capsys, monkeypatch):
    answer(f"train emb.npz {FAST} --out whole", capsys)
    calls = []

    def stop(self, epoch_ended):
        calls.append(epoch_ended)
        if len(calls) == 5:
            self.save()
            raise KeyboardInterrupt

    monkeypatch.setattr(training._Session, "_after_update", stop)
    assert main(shlex.split(f"train emb.npz {FAST} --out run")) == 130
    monkeypatch.undo()
    os.chdir(here)
    answer("resume run --device cpu", capsys)
    assert (here / "run" / "labels.csv").read_bytes() == (here / "whole" / "labels.csv").read_bytes()
    assert (here / "run" / "probabilities.npy").read_bytes() == (here / "whole" / "probabilities.npy").read_bytes()


@pytest.mark.parametrize("given", ["photos", "photos/", "items.csv"])
def test_relative_data_are_looked_for_where_one_is(here, capsys, monkeypatch, given):
    def stop(self, epoch_ended):
        raise KeyboardInterrupt

    monkeypatch.setattr(training._Session, "_after_update", stop)
    verified = "--verified verified.txt" if "photos" in given else ""
    assert main(shlex.split(f"train {given} {verified} {FAST} --json --out run")) == 130
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    name = given.rstrip("/")
    words = [
        f"no file or folder {name} in {here}/elsewhere",
        "relative path",
        "run this in the folder where the path starts",
    ]
    refuse("resume ../run --device cpu --json", capsys, *words, folder=here)


def test_data_that_changed_meanwhile_are_not_resumed(here, capsys):
    answer(f"train emb.npz {FAST} --out run", capsys)
    record = json.loads((here / "run" / "record.json").read_text())
    (here / "run" / "record.json").write_text(json.dumps(record | {"result": None}))
    with np.load("emb.npz") as arrays:
        before = dict(arrays)
    x, given, _ = make_blobs(500)
    other = {**before, "labels": before["labels"][::-1]}  # as many rows of each kind, and of each class
    for arrays in ({"x": x, "labels": given}, other):
        np.savez("emb.npz", **arrays)
        refuse("resume run --device cpu", capsys, "emb.npz", "no longer what the run was started on")
    np.savez("emb.npz", **before)
    answer("resume run --device cpu", capsys)


def test_a_table_with_other_categories_is_not_resumed(folder, capsys):
    rng, lines = np.random.default_rng(0), ["coat,label,verified_label"]
    for row in range(120):
        coat = ("curly", "long", "short")[rng.integers(3)]
        kind = "cat" if coat == "long" else "dog"
        lines.append(f"{coat},{kind},{kind if row % 2 else ''}")
    before = "\n".join(lines)
    (folder / "pets.csv").write_text(before)
    answer(f"train pets.csv {FAST} --out run", capsys)
    record = json.loads((folder / "run" / "record.json").read_text())
    (folder / "run" / "record.json").write_text(json.dumps(record | {"result": None}))
    for word in ("bald", "long"):
        (folder / "pets.csv").write_text(before.replace("curly", word))
        refuse("resume run --device cpu", capsys, "pets.csv", "no longer what the run was started on")
    (folder / "pets.csv").write_text(before)
    answer("resume run --device cpu", capsys)


def test_methods_are_compared_on_own_data_which_are_read_once(here, capsys, monkeypatch):
    reads = []
    original = datasets.read_rows
    monkeypatch.setattr(datasets, "read_rows", lambda *args, **kw: reads.append(args) or original(*args, **kw))
    command = "compare items.csv --methods fasten,cross-entropy --seeds 2 --epochs 2 --device cpu --json --out many"
    said = json.loads(answer(command, capsys))
    assert len(reads) == 1
    assert [line["method"] for line in said["methods"]] == ["fasten", "cross-entropy"]
    assert said["accuracy"] == "test"
    before = tree(here / "many")
    answer(command, capsys)
    assert tree(here / "many") == before, "all of it was there"
    refuse("compare photos --verified verified.txt --out many --device cpu", capsys, "holds a comparison")


def test_compare_takes_the_options_of_folders(here, capsys):
    command = "compare photos --verified verified.txt --size 8 --methods fasten,clean-only --seeds 1 --epochs 1"
    said = json.loads(answer(f"{command} --device cpu --json --out many", capsys))
    assert said["comparison"]["own"] == {"verified": "verified.txt", "size": 8}
    assert said["accuracy"] == "valid"
    (here / "other.txt").write_text("\n".join((here / "verified.txt").read_text().splitlines()[:30]))
    changed = command.replace("verified.txt", "other.txt")
    refuse(f"{changed} --device cpu --out many", capsys, "holds a comparison with own")
    before = tree(here / "many" / "fasten-seed0")
    answer(f"{command.replace('photos', './photos/')} --device cpu --out many", capsys)
    assert tree(here / "many" / "fasten-seed0") == before


# What a user gets wrong: one sentence, and nothing is written.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("train emb.npz --clean 100", ["--clean 100", "--verified FILE", "--clean-folder DIR"]),
        ("train emb.npz --labels worst2", ["--labels is for known data sets"]),
        ("train emb.npz --labels worst", ["--labels is for known data sets"]),
        ("compare emb.npz --labels worst", ["--labels is for known data sets"]),
        ("train emb.npz --download", ["--download is for known data sets"]),
        ("train digits --verified verified.txt", ["--verified is for your own data", "digits is a known data set"]),
        ("train digits --size 8", ["--size is for your own data"]),
        ("train items.csv --test photos", ["--test is for folders of images", "split"]),
        ("train emb.npz --clean-folder photos", ["--clean-folder is for folders of images", "x_clean"]),
        ("train missing/", ["no file or folder missing"]),
        ("train missing.csv", ["no file or folder missing.csv", "relative path"]),
        ("train fotos/ --test photos", ["no file or folder fotos; did you mean 'photos'?"]),
        (
            "train fotos --test photos",
            ["unknown data set 'fotos', and no file or folder has that name; did you mean 'photos'?"],
        ),
        ("train /nowhere/a.csv --clean-folder photos", ["no file or folder /nowhere/a.csv; give the path"]),
        ("train photos --verified nowhere.txt", ["no file nowhere.txt", "list of verified names"]),
        ("train items.csv --verified verified.txt", ["verified.txt, line 1: no row has the id", "such as"]),
        ("train photos --clean-folder nowhere", ["no folder nowhere"]),
        (
            "train photos",
            ["fasten needs clean rows", "photos has none", "--verified FILE", "start with --method cross-entropy"],
        ),
        (
            "train photos/d2/210.png",
            ["210.png is neither a folder nor a table", "give a folder, or a .csv, .parquet or"],
        ),
        ("train photos --verified photos/d0", ["photos/d0 is a folder", "--clean-folder"]),
        (
            "train photos --verified verified.txt --out photos/run",
            ["photos/run is inside the data photos", "outside it"],
        ),
        ("train photos/ --verified verified.txt --out photos", ["photos is inside the data photos/"]),
        ("compare photos --verified verified.txt --out photos/runs", ["photos/runs is inside the data photos"]),
        ("train items.csv --size 8", ["--size is for image files", "items.csv names none"]),
        ("train emb.npz --size 8", ["--size is for image files"]),
        ("train photos --size 0", ["--size", "1 or more"]),
        ("train photos --size 5000", ["from 1 to 4096", "5000"]),
        ("train photos --max-bad -1", ["--max-bad", "0 or more"]),
        ("train emb.npz --min-precision 95", ["--min-precision", "between 0 and 1", "write 95% as 0.95"]),
        ("train emb.npz --min-precision high", ["--min-precision", "'high'"]),
        ("train emb.npz --set net=resnet18", ["does not take rows of features", "mlp"]),
        ("train verified.zip", ["unknown data set 'verified.zip'"]),
        ("compare emb.npz --download", ["--download is for known data sets"]),
    ],
)
def test_what_does_not_fit_the_data_is_refused(here, capsys, options, words):
    refuse(f"{options} --device cpu" + ("" if "--out" in options else " --out run"), capsys, *words)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_too_few_rows_for_a_batch_norm_are_refused(here, capsys, command):
    refuse(f"{command} items.csv --device cpu --set batch_size=1 --out run", capsys, "one noisy row", "batch_size")
    table = pd.read_csv("items.csv").drop(columns="split")
    table["verified_label"] = table["verified_label"].fillna(table["label"]).where(table.index > 0)
    table["picked"] = "chosen"  # none is held back
    table.to_csv("one.csv", index=False)
    refuse(f"{command} one.csv --device cpu --out run", capsys, "one noisy row of one.csv", "batch norm", "add such")


def test_one_row_at_a_time_is_enough_where_batch_norm_sees_more_than_one_value(here, capsys):
    options = "--device cpu --no-references --epochs 1 --set batch_size=1"
    answer(f"train photos --verified verified.txt {options} --out run", capsys)
    assert read_record(Path("run"))["data"]["rows_noisy"] > 0


@pytest.mark.parametrize("terminal", [True, False])
def test_a_note_stands_once_on_a_terminal_and_with_the_result_elsewhere(here, capsys, monkeypatch, terminal):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(shlex.split(f"train emb.npz {FAST} --out run")) == 0
    said, notes = capsys.readouterr(), read_record(Path("run"))["notes"]
    assert "there are no test rows, so no test accuracy" in said.err
    for note in notes:
        assert (f"note: {note}\n" in said.out) is not (terminal and note in said.err)
    assert "note: there are no test rows" in answer("resume run", capsys), "another process showed it"


def test_the_last_lines_of_a_run_say_how_many_labels_are_wrong_and_what_shows_them(here, capsys):
    said = answer(f"train emb.npz {FAST} --out run", capsys).splitlines()
    issues = int((labels_of("run")["is_issue"] == "true").sum())
    first, *rest, last = said[-3:]
    assert first == f"{issues} of 400 labels count as wrong; `fasten audit run` shows them"
    assert rest[0].startswith("corrections: ")
    assert last == "report: run/report.html"


def test_they_leave_out_accuracies_that_nobody_knows_and_say_how_right_the_corrections_are(here, capsys):
    said = answer(f"train photos --verified verified.txt {FAST} --out run", capsys)
    right = read_record(Path("run"))["evaluation"]["evidence"]["corrections"]["precision"]
    are = "is" if right["k"] == 1 else "are"
    known = f"{right['k']} of {right['n']} that would be made in held-back rows {are} right (95% interval"
    assert f"corrections: {known if right['n'] else 'none would be made in held-back rows'}" in said
    assert "validation accuracy" in said
    assert "at the last epoch" not in said


@pytest.mark.parametrize(("options", "said"), [("", True), ("--json", False)])
def test_data_that_take_long_to_read_are_named_meanwhile(here, capsys, monkeypatch, options, said):
    monkeypatch.setattr(console, "PATIENCE", 0.0)
    whole = datasets.read_rows

    def read(*args, **more):
        time.sleep(0.3)
        return whole(*args, **more)

    monkeypatch.setattr(datasets, "read_rows", read)
    assert main(shlex.split(f"train emb.npz {FAST} {options} --out run")) == 0
    assert ("reading emb.npz\n" in capsys.readouterr().err) == said


def test_a_folder_that_holds_a_run_is_refused_before_the_data_are_read(here, capsys):
    (here / "run").mkdir()
    (here / "run" / "record.json").write_text("{}")
    refuse("train missing/ --device cpu --out run", capsys, "run already holds a run")


def first_image(here: Path) -> Path:
    return sorted((here / "photos").rglob("*.png"))[0]


def spoil_images(here: Path, number: int) -> list[Path]:
    bad = sorted((here / "photos").rglob("*.png"))[:number]
    for path in bad:
        path.write_bytes(b"not an image")
    return bad


def change_lines(here: Path, change) -> None:
    lines = (here / "items.csv").read_text().splitlines()
    (here / "items.csv").write_text("\n".join(change(lines)))


def verify_twice(here: Path) -> None:
    path = first_image(here)
    name = f"{path.parent.name}/{path.name}"
    (here / "verified.txt").write_text(f"{name},d0\n{name},d1\n")


def leave_one_class(here: Path) -> None:
    shutil.rmtree(here / "photos" / "d1")
    shutil.rmtree(here / "photos" / "d2")


PHOTOS = "train photos --verified verified.txt"

# What is wrong, the command that meets it, and what its sentence says.
BAD = {
    "unreadable images": (
        lambda here: spoil_images(here, 3),
        f"{PHOTOS} --max-bad 2",
        ["more than 2 of the 120 images cannot be read", ".png", "--max-bad"],
    ),
    "an image bomb": (
        lambda here: Image.new("1", (9000, 9000)).save(first_image(here)),
        f"{PHOTOS} --max-bad 0",
        ["9000", "cannot be read"],
    ),
    "a path that leads out": (
        lambda here: (here / "list.csv").write_text("path,label\n../secret.png,a\nphotos/b.png,b\n"),
        "train list.csv",
        ["../secret.png", "list.csv"],
    ),
    "a link that leads out": (
        lambda here: (here / "photos" / "d0" / "link.png").symlink_to("/etc/hostname"),
        PHOTOS,
        ["link.png"],
    ),
    "a label in another case": (
        lambda here: change_lines(here, lambda a: [*a, a[1].replace("r0,", "r900,").replace("kind", "Kind")]),
        "train items.csv",
        ["'kind ", "'Kind ", "differ only in how they are written"],
    ),
    "a label with a blank": (
        lambda here: change_lines(here, lambda a: [*a, a[1].replace("r0,", "r900,").replace(",kind", ", kind")]),
        "train items.csv",
        ["differ only in how they are written"],
    ),
    "an id twice": (
        lambda here: change_lines(here, lambda a: [*a, a[1]]),
        "train items.csv",
        ["'r0'", "occurs more than once"],
    ),
    "two verdicts": (verify_twice, PHOTOS, ["is verified as 'd0' and as 'd1'"]),
    "a wrong delimiter": (
        lambda here: change_lines(here, lambda a: [a[0], *(line.replace(",", ";") for line in a[1:])]),
        "train items.csv",
        ["items.csv", "line 2 has 1 columns"],
    ),
    "a wrong encoding": (
        lambda here: (here / "items.csv").write_bytes(
            (here / "items.csv").read_text().replace("kind 1", "k\xefnd 1").encode("latin-1")
        ),
        "train items.csv",
        ["items.csv", "not UTF-8"],
    ),
    "test rows in training": (
        lambda here: shutil.copytree(here / "photos", here / "test"),
        "train photos --test test",
        ["test rows are also in training"],
    ),
    "an unknown name": (
        lambda here: (here / "verified.txt").write_text("d0/nothing.png\n"),
        PHOTOS,
        ["verified.txt, line 1", "d0/nothing.png"],
    ),
    "a single class": (leave_one_class, "train photos", ["two classes or more"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_data_are_refused_in_a_sentence(here, capsys, what):
    spoil, command, words = BAD[what]
    spoil(here)
    refuse(f"{command} --device cpu --out run", capsys, *words)


def test_a_few_unreadable_images_are_named_and_left_out(here, capsys):
    bad = spoil_images(here, 2)
    answer(f"train photos --verified verified.txt --max-bad 2 {FAST} --out run", capsys)
    notes = " ".join(read_record(Path("run"))["notes"])
    assert all(path.name in notes for path in bad)
    assert len(labels_of("run")) == 118


def test_names_from_data_cannot_be_formulas_in_the_csv(here, capsys):
    x, given, truth = make_blobs(120)
    names = np.array(["=1+1", "b", "c", "d"])
    np.savez("f.npz", x=x, labels=names[given], verified=np.where(np.arange(120) < 60, names[truth], ""))
    answer(f"train f.npz {FAST} --out run", capsys)
    table = labels_of("run")
    assert set(table["verified"]) == {"", "'=1+1", "b", "c", "d"}
