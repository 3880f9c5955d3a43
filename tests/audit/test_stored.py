"""The audit of stored probabilities, read from a folder and made again."""

from __future__ import annotations

import csv
import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, settings
from hypothesis import given as draw
from hypothesis import strategies as st

from builders import label_table
from fasten.audit import write_labels
from fasten.audit.evidence import hold_back
from fasten.audit.findings import find
from fasten.audit.stored import audit_probabilities, choose_threshold, read_audit, read_labels, summarise
from fasten.data.labels import codes_of
from fasten.data.task import Known
from finished_runs import sure_probabilities
from own_data import wrong_labels

NAMES = ["cat", "dog", "emu"]
odd_names = st.text(min_size=1, max_size=8).filter(lambda name: name.strip() and "\0" not in name)
FORMULA = "=HYPERLINK(1)"


def read_lines(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def make(out, n=600, num_verified=240, **more):
    """An audit of a model that is mostly right, and the truth."""
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=n)
    given = wrong_labels(truth, 0.3, 3, seed=1)
    verified = np.where(np.arange(n) < num_verified, truth, -1)
    probs = sure_probabilities(truth, 3, 0.7)
    return audit_probabilities(probs, given, NAMES, verified=verified, out=out, **more), probs, given, verified, truth


def test_the_folder_holds_what_was_found(tmp_path):
    (found, table), probs, given, verified, truth = make(tmp_path / "run")
    names = ["gallery.json", "labels.csv", "probabilities.npy", "record.json", "report.html", "transition.csv"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == names
    again = read_audit(tmp_path / "run")
    for key in ("given", "verified"):
        np.testing.assert_array_equal(getattr(again.known, key), {"given": given, "verified": verified}[key])
    held = hold_back(given, verified, verified >= 0, 0)
    np.testing.assert_array_equal(again.known.held, held)
    np.testing.assert_array_equal(again.probabilities(), probs)
    assert again.table["id"].tolist() == table["id"].tolist()
    unseen = table[table["verified"] == ""]
    right = [NAMES[truth[row]] == label for row, label in zip(unseen["row"], unseen["corrected"], strict=True)]
    assert np.mean(right) > 0.9, "of the given ones 0.7"
    assert found.evidence.num_random == 240


def test_the_report_of_stored_probabilities_says_nothing_of_a_training(tmp_path):
    make(tmp_path / "run")
    text = (tmp_path / "run/report.html").read_text(encoding="utf-8")
    assert "Wrong among verified rows" in text
    assert not [words for words in ("Test accuracy", "Training time", "validation and") if words in text]


def test_a_verdict_outside_the_held_ones_settles_its_row(tmp_path):
    _, _, given, verified, _ = make(tmp_path / "run")
    lines = {int(line["row"]): line for line in read_lines(tmp_path / "run/labels.csv")}
    for row in np.flatnonzero(verified >= 0):
        line = lines[row]
        assert line["verified"] == NAMES[verified[row]]
        if line["picked"] == "random":
            assert line["corrected"] == NAMES[verified[row]]
            assert float(line["p_wrong"]) == (verified[row] != given[row])
    assert Counter(line["picked"] for line in lines.values()) == {"": 360, "random": 160, "held": 80}


def test_the_summary_counts_what_the_csv_holds(tmp_path):
    make(tmp_path / "run")
    lines = read_lines(tmp_path / "run/labels.csv")
    found = summarise(read_audit(tmp_path / "run"))
    assert found["rows"] == len(lines) == 600
    assert found["issues"] == sum(line["is_issue"] == "true" for line in lines)
    assert found["corrected"] == sum(line["given"] != line["corrected"] for line in lines)
    assert found["expected_wrong"] == pytest.approx(sum(float(line["p_wrong"]) for line in lines), abs=0.1)
    pairs = Counter((x["given"], x["suggested"]) for x in lines if x["given"] != x["suggested"] and not x["verified"])
    assert {(p["given"], p["suggested"]): p["rows"] for p in found["pairs"]} == dict(pairs)
    assert found["evidence"]["num_held"] == 80
    shares = [pair["share"] for pair in found["confused"]]
    assert shares == sorted(shares, reverse=True)
    assert all(pair["true"] != pair["given"] for pair in found["confused"])


def test_a_precision_asked_for_later_gives_what_it_gives_at_once(tmp_path):
    make(tmp_path / "later")
    make(tmp_path / "at once", min_precision=0.8)
    before = (tmp_path / "later/report.html").read_bytes()
    choose_threshold(read_audit(tmp_path / "later"), 0.8)
    for name in ("labels.csv", "gallery.json"):
        assert (tmp_path / "later" / name).read_bytes() == (tmp_path / "at once" / name).read_bytes()
    evidence = json.loads((tmp_path / "later/record.json").read_text())["evaluation"]["evidence"]
    assert evidence["threshold"]["min_precision"] == 0.8
    assert (tmp_path / "later/report.html").read_bytes() != before
    choose_threshold(read_audit(tmp_path / "later"), 0.999)
    record = json.loads((tmp_path / "later/record.json").read_text())
    assert [note for note in record["notes"] if "precision" in note] == [
        record["evaluation"]["evidence"]["threshold"]["sentence"]
    ]
    again = read_audit(tmp_path / "later").table
    assert not again["is_issue"][again["verified"].astype(object) == ""].any(), "nothing is shown, so nothing corrected"


def test_a_precision_can_be_taken_back(tmp_path):
    for name, asked in (("before", None), ("after", 0.999)):
        make(tmp_path / name, min_precision=asked)
    choose_threshold(read_audit(tmp_path / "after"), None)
    for name in ("labels.csv", "gallery.json", "report.html"):
        assert (tmp_path / "after" / name).read_bytes() == (tmp_path / "before" / name).read_bytes()


def test_a_change_that_was_cut_off_is_not_taken_for_the_audit_and_is_made_anew(tmp_path, monkeypatch):
    for name, asked in (("cut off", 0.999), ("at once", None)):
        make(tmp_path / name, min_precision=asked)

    def killed(*_):
        raise KeyboardInterrupt

    found = read_audit(tmp_path / "cut off")
    with monkeypatch.context() as patch:
        patch.setattr("fasten.audit.stored.save_gallery", killed)
        with pytest.raises(KeyboardInterrupt):
            choose_threshold(found, None)
    with pytest.raises(ValueError, match=r"a change of the corrections in .* was interrupted; .* --min-precision 0.9"):
        read_audit(tmp_path / "cut off")
    choose_threshold(read_audit(tmp_path / "cut off", made_anew=True), None)
    assert read_audit(tmp_path / "cut off").table["is_issue"].any()
    for name in ("labels.csv", "gallery.json", "report.html"):
        assert (tmp_path / "cut off" / name).read_bytes() == (tmp_path / "at once" / name).read_bytes()


def test_a_change_that_cannot_begin_leaves_the_folder_usable(tmp_path):
    make(tmp_path / "run")
    (tmp_path / "run" / "gallery.json").write_text("{")
    with pytest.raises(ValueError, match=r"gallery.json"):
        choose_threshold(read_audit(tmp_path / "run"), 0.5)
    read_audit(tmp_path / "run")


def test_the_summary_and_the_report_expect_as_many_wrong_labels(tmp_path):
    make(tmp_path / "run")
    expected = json.loads((tmp_path / "run/gallery.json").read_text())["expected_wrong"]
    assert summarise(read_audit(tmp_path / "run"))["expected_wrong"] == pytest.approx(expected, abs=2e-3)


def test_no_precision_without_random_verdicts(tmp_path):
    make(tmp_path / "run", num_verified=0)
    before = (tmp_path / "run/labels.csv").read_bytes()
    with pytest.raises(ValueError, match="no rows that were verified at random"):
        choose_threshold(read_audit(tmp_path / "run"), 0.9)
    assert (tmp_path / "run/labels.csv").read_bytes() == before


def test_chosen_verdicts_count_for_nothing_but_their_rows(tmp_path):
    (found, table), *_ = make(tmp_path / "run", picked=["chosen"] * 600)
    assert found.evidence is None
    assert set(table["picked"]) == {"", "chosen"}


@draw(
    ids=st.lists(odd_names, min_size=2, max_size=6, unique=True),
    names=st.lists(odd_names, min_size=2, max_size=2, unique=True),
)
@example(ids=[FORMULA, "'=x", "''=x", "'x", "-1"], names=["+1", "-1"])
@example(ids=["01", "1", "1.0"], names=["01", "1"])
@example(ids=['<b>"', "a\nb", "a\rb", "a,b"], names=["@a", "\t"])
@settings(derandomize=True, deadline=None, max_examples=60)
def test_ids_and_labels_come_back_as_they_were(tmp_path_factory, ids, names):
    path = tmp_path_factory.mktemp("labels") / "labels.csv"
    given = np.arange(len(ids)) % 2
    write_labels(label_table(ids, given, np.eye(2)[1 - given], names), path)
    table = read_labels(path)
    order = np.argsort(table["row"].to_numpy())
    assert table["id"].to_numpy(object)[order].tolist() == ids
    assert table["given"].to_numpy(object)[order].tolist() == [names[label] for label in given]
    assert table["corrected"].to_numpy(object)[order].tolist() == [names[1 - label] for label in given]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("p_wrong", "p"), "lacks the column 'p_wrong'"),
        (lambda text: text.replace("\n0,", "\n1,"), "numbered from 0 on"),
        (lambda text: text.replace(",cat,", ",cow,", 1), "unknown label 'cow'"),
        (lambda text: text.replace("\n0,", "\nzero,"), "damaged or was changed"),
        (lambda text: "", "damaged or was changed"),
    ],
)
def test_a_changed_labels_csv_is_refused(tmp_path, change, words):
    make(tmp_path / "run", n=30, num_verified=0)
    path = tmp_path / "run/labels.csv"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=words):
        read_audit(tmp_path / "run")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", None])
def test_missing_or_damaged_probabilities_are_a_sentence(tmp_path, content):
    make(tmp_path / "run", n=30, num_verified=0)
    path = tmp_path / "run/probabilities.npy"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match="train again"):
        read_audit(tmp_path / "run").probabilities()


PICTURE = "data:image/png;base64,aGk="


@pytest.mark.parametrize(
    ("gallery", "shown"),
    [
        (None, {PICTURE}),
        ({"rows": 600, "pairs": [1, {"items": [2, {"row": "x"}]}]}, {None}),
        ({"pairs": 5}, {None}),
        ([], {None}),
    ],
)
def test_pictures_stay_when_a_threshold_is_chosen_and_a_damaged_gallery_has_none(tmp_path, gallery, shown):
    make(tmp_path / "run", picture=lambda row: PICTURE)
    path = tmp_path / "run/gallery.json"
    if gallery is not None:
        path.write_text(json.dumps(gallery))
    choose_threshold(read_audit(tmp_path / "run"), 0.9)
    items = [item for pair in json.loads(path.read_text())["pairs"] for item in pair["items"]]
    assert {item["image"] for item in items} == shown


@pytest.mark.parametrize(
    ("key", "value"),
    [("sample", [1]), ("wrong", 3), ("wrong", {"k": 1}), ("corrections", {"precision": {}}), ("corrections", {})],
)
def test_damaged_evidence_is_a_sentence(tmp_path, key, value):
    make(tmp_path / "run")
    path = tmp_path / "run/record.json"
    record = json.loads(path.read_text())
    record["evaluation"]["evidence"][key] = value
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"record.json is damaged"):
        summarise(read_audit(tmp_path / "run"))


@pytest.mark.parametrize(
    ("probs", "more", "words"),
    [
        (np.ones((2, 2)) / 2, {}, "a row of 3"),
        (np.ones((2, 3)), {}, "softmax"),
        (np.empty((0, 3)), {}, "no rows"),
        (np.eye(3)[:2], {"ids": ["a", "a"]}, "same id"),
        (np.eye(3)[:2], {"ids": ["a"]}, "ids has 1 entries for 2 labels"),
        (np.eye(3)[:2], {"verified": ["cow", None]}, "unknown label 'cow'"),
        (np.eye(3)[:2], {"verified": [3, -1]}, "0 to 2"),
        (np.eye(3)[:2], {"picked": ["often", "random"]}, "unknown way of picking"),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_is_written(tmp_path, probs, more, words):
    with pytest.raises(ValueError, match=words):
        audit_probabilities(probs, [0, 1][: len(probs)], NAMES, out=tmp_path / "run", **more)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_left_alone(tmp_path):
    make(tmp_path / "run", n=30)
    with pytest.raises(ValueError, match="already holds a run"):
        make(tmp_path / "run", n=30)


@pytest.mark.parametrize("name", ["labels.csv", "transition.csv", "report.html", "probabilities.npy", "gallery.json"])
def test_somebodys_file_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text("somebody's work")
    with pytest.raises(ValueError, match=f"already holds {name}, which would be replaced; choose another folder"):
        make(tmp_path, n=30)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "somebody's work")]
    with pytest.raises(ValueError, match="is a file"):
        make(tmp_path / name, n=30)


def test_labels_may_be_names_or_numbers():
    assert (
        codes_of(["emu", None, "cat"], NAMES, "y").tolist() == codes_of([2, -1, 0], NAMES, "y").tolist() == [2, -1, 0]
    )
    assert codes_of([2.0, np.nan], ["0", "1", "2"], "y").tolist() == [2, -1]
    assert codes_of(np.array([True, False]), ["True", "False"], "y").tolist() == [0, 1]
    assert codes_of(["emu", np.nan, "cat"], NAMES, "y").tolist() == [2, -1, 0]


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_how_rows_were_picked_may_be_missing(tmp_path, missing):
    picked = pd.Series(["chosen", missing] * 10, dtype=object)
    given = np.arange(20) % 3
    audit_probabilities(np.eye(3)[given], given, NAMES, verified=given, picked=picked, out=tmp_path / "run")
    assert read_audit(tmp_path / "run").known.picked_random.tolist() == [False, True] * 10


@pytest.mark.parametrize("names", [["1", "2", "3"], ["2", "1", "0"], ["cat", "dog", "emu"]])
@pytest.mark.parametrize(
    "labels",
    [
        [None, 1, 0, 2],
        [np.nan, 1, 0, 2],
        np.array([np.nan, 1, 0, 2]),
        np.array([-1.0, 1, 0, 2]),
        pd.Series([None, 1, 0, 2]),
        pd.Series([None, 1, 0, 2], dtype="Int64"),
        torch.tensor([-1.0, 1, 0, 2]),
    ],
)
def test_numbers_stay_numbers_of_classes_where_some_are_missing(labels, names):
    assert codes_of(labels, names, "y").tolist() == [-1, 1, 0, 2]


def test_it_finds_what_find_finds(tmp_path):
    (_, table), probs, given, verified, _ = make(tmp_path / "run", seed=5)
    random = verified >= 0
    known = Known(tuple(map(str, range(600))), given, verified, random, hold_back(given, verified, random, 5))
    assert find(probs, known, seed=5).table(known, NAMES).equals(table)


def test_ids_that_no_file_can_hold_are_refused_before_anything_is_written(tmp_path):
    ids = ["a", "caf\udce9"]
    with pytest.raises(ValueError, match=r"the id 'caf.*' is not UTF-8"):
        audit_probabilities(np.eye(2), [0, 1], ["cat", "dog"], ids=ids, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
