"""Rows to verify, and the verdicts that come back."""

from __future__ import annotations

import csv
import json
import unicodedata
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from fasten.audit import posterior
from fasten.audit.evidence import verify_next
from fasten.audit.findings import find
from fasten.audit.reviews import (
    Verdict,
    issue_rows,
    merge_verdicts,
    next_rows,
    read_review,
    tasks,
    write_review,
    write_tasks,
    write_verified,
)
from fasten.audit.stored import audit_probabilities, read_audit
from fasten.data.rows import make_columns
from fasten.data.verdicts import read_verdicts
from finished_runs import sure_probabilities
from own_data import wrong_labels

NAMES = ["=cat", "dog", "emu"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """300 rows, 60 of them verified, the last ten of these because they were chosen; the id of row 0 is a formula."""
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=300)
    given = wrong_labels(truth, 0.3, 3, seed=1)
    verified = np.where(np.arange(300) < 60, truth, -1)
    ids = ["=1+1", *(f"a/{row}.png" for row in range(1, 300))]
    out = tmp_path_factory.mktemp("runs") / "run"
    picked = ["chosen" if 50 <= row < 60 else "random" for row in range(300)]
    probs = sure_probabilities(truth, 3, 0.6)
    audit_probabilities(probs, given, NAMES, verified=verified, picked=picked, ids=ids, out=out)
    return read_audit(out)


def review(path, rows, header="id,verdict,picked"):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_next_rows_are_half_chosen_and_half_random(found):
    rows = next_rows(found, 20)
    assert rows["picked"].value_counts().to_dict() == {"chosen": 20, "random": 20}
    assert rows["id"].is_unique
    chosen = set(rows["id"][rows["picked"] == "chosen"])
    assert not chosen & {found.known.ids[row] for row in range(60)}, "nobody verifies a row twice for its own sake"
    random = [found.known.ids.index(name) for name in rows["id"][rows["picked"] == "random"]]
    assert min(random) >= 50, "rows picked at random before are not picked again"
    assert next_rows(found, 20).equals(rows)
    assert len(set(rows["picked"][:10])) == 2, "the two kinds are mixed"


@pytest.mark.parametrize("num_verified", [0, 60])
def test_next_rows_are_those_of_all_that_a_run_finds(tmp_path, num_verified):
    rng = np.random.default_rng(num_verified)
    probs, truth = rng.dirichlet(np.ones(3), 300), rng.integers(3, size=300)
    verified = np.where(np.arange(300) < num_verified, truth, -1)
    audit_probabilities(probs, wrong_labels(truth, 0.3, 3, seed=1), NAMES, verified=verified, out=tmp_path / "run")
    stored = read_audit(tmp_path / "run")
    everything = find(stored.probabilities(), stored.known)
    assert (everything.evidence is None) == (num_verified == 0)
    counted = everything.evidence.transition if everything.evidence else None
    post = posterior(stored.probabilities(), everything.transition, stored.known.given)
    wanted = verify_next(post, stored.known, counted, 20, seed=0)
    rows = next_rows(stored, 20)
    for picked in ("chosen", "random"):
        assert sorted(rows["row"][rows["picked"] == picked]) == sorted(getattr(wanted, picked))


def test_a_filled_in_review_comes_back_with_how_its_rows_were_picked(found, tmp_path):
    rows = next_rows(found, 20)
    write_review(rows, tmp_path / "review.csv")
    with (tmp_path / "review.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    for number, line in enumerate(lines):
        line["verdict"] = "" if number % 4 == 0 else "emu"
    with (tmp_path / "done.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    verdicts = read_review(tmp_path / "done.csv", found)
    wanted = [(row["id"], row["picked"]) for n, row in enumerate(rows.to_dict("records")) if n % 4]
    assert [(verdict.id, verdict.picked) for verdict in verdicts] == wanted
    assert {verdict.label for verdict in verdicts} == {"emu"}


def test_verdicts_merge_with_those_that_the_run_had(found, tmp_path):
    truth = [NAMES[code] for code in found.known.verified[:60]]
    ids = found.known.ids
    new = [
        Verdict(ids[100], "dog", "random"),
        Verdict(ids[55], truth[55], "random"),
        Verdict(ids[3], truth[3], "chosen"),
    ]
    write_verified(merge_verdicts(found, new), tmp_path / "verified.csv")
    with (tmp_path / "verified.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    assert lines[0] == ["id", "label", "picked"]
    assert len(lines) == 1 + 61
    assert lines[1] == ["'=1+1", truth[0].replace("=cat", "'=cat"), "random"]
    picked = {line[0]: line[2] for line in lines[1:]}
    assert [picked[ids[row]] for row in (3, 55, 56, 100)] == ["random", "random", "chosen", "random"]


def annotated(name, label, picked="random", **more):
    result = {"from_name": "verdict", "to_name": "image", "type": "choices", "value": {"choices": [label]}}
    data = {"image": "x", "row_id": name, "picked": picked}
    return {"id": 7, "data": data, "annotations": [{"result": [result], "was_cancelled": False, **more}]}


def test_label_studio_exports_are_read(found, tmp_path):
    full = [annotated("a/100.png", "dog"), annotated("a/101.png", "emu", "chosen")]
    full += [annotated("a/102.png", "dog", was_cancelled=True), {"data": {"row_id": "a/103.png"}, "annotations": []}]
    (tmp_path / "full.json").write_text(json.dumps(full))
    short = [{"id": 1, "row_id": "a/100.png", "picked": "random", "verdict": "dog"}]
    short += [{"id": 2, "row_id": "a/101.png", "verdict": {"choices": ["emu"]}}, {"id": 3, "row_id": "a/102.png"}]
    (tmp_path / "short.json").write_text(json.dumps(short))
    wanted = [Verdict("a/100.png", "dog", "random"), Verdict("a/101.png", "emu", "chosen")]
    assert read_review(tmp_path / "full.json", found) == wanted
    assert read_review(tmp_path / "short.json", found) == wanted
    lines = ["1,a/100.png,random,dog", "2,a/101.png,chosen,emu"]
    assert read_review(review(tmp_path / "ls.csv", lines, "id,row_id,picked,verdict"), found) == wanted


def test_the_class_0_is_a_verdict(tmp_path):
    probs, given = sure_probabilities(np.arange(30) % 3, 3, 0.6), np.arange(30) % 3
    audit_probabilities(probs, given, ["0", "1", "2"], out=tmp_path / "run")
    lines = [{"row_id": "7", "verdict": 0}, {"row_id": "8", "verdict": 2}, {"row_id": "9", "verdict": []}]
    (tmp_path / "min.json").write_text(json.dumps(lines))
    got = read_review(tmp_path / "min.json", read_audit(tmp_path / "run"))
    assert [(verdict.id, verdict.label) for verdict in got] == [("7", "0"), ("8", "2")]


def test_ids_and_labels_come_back_in_either_form_of_unicode(tmp_path):
    forms = {form: [unicodedata.normalize(form, text) for text in ("Röhre/é.png", "Röhre")] for form in ("NFC", "NFD")}
    given = np.arange(30) % 2
    for form, other in (("NFC", "NFD"), ("NFD", "NFC")):
        ids = [forms[form][0], *(f"a/{row}.png" for row in range(1, 30))]
        names = [forms[form][1], "tap"]
        audit_probabilities(sure_probabilities(given, 2, 0.6), given, names, ids=ids, out=tmp_path / form)
        path = review(tmp_path / "r.csv", [f"{','.join(forms[other])},random"])
        assert read_review(path, read_audit(tmp_path / form)) == [Verdict(*forms[form], "random")]


@pytest.mark.parametrize("ways", [("random", "chosen"), ("chosen", "random")])
def test_a_row_that_a_review_has_both_as_chosen_and_as_random_is_random(found, tmp_path, ways):
    path = review(tmp_path / "review.csv", [f"a/100.png,dog,{way}" for way in ways])
    assert read_review(path, found) == [Verdict("a/100.png", "dog", "random")]


def test_blanks_around_labels_and_ids_of_the_data_come_back(tmp_path):
    """As of a table with a blank behind each comma."""
    given, names = np.arange(30) % 2, [" cat", " dog"]
    ids = [f" r{row}" for row in range(30)]
    audit_probabilities(sure_probabilities(given, 2, 0.6), given, names, ids=ids, out=tmp_path / "run")
    found = read_audit(tmp_path / "run")
    verdicts = read_review(review(tmp_path / "r.csv", [" r1, cat,random", " r2,dog ,random"]), found)
    assert [(verdict.id, verdict.label) for verdict in verdicts] == [(" r1", " cat"), (" r2", " dog")]
    write_verified(verdicts, tmp_path / "list.csv")
    columns = make_columns(ids, given=[names[code] for code in given])
    listed = list(read_verdicts(tmp_path / "list.csv", tmp_path, columns, None))
    assert listed == [(1, " cat", "random"), (2, " dog", "random")]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_review_may_use_any_delimiter_and_a_spreadsheets_mark(found, tmp_path, mark):
    text = f"id{mark}verdict\n'=1+1{mark}'=cat\n"
    (tmp_path / "r.csv").write_text(text, encoding="utf-8-sig")
    assert read_review(tmp_path / "r.csv", found) == [Verdict("=1+1", "=cat", "chosen")]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["a/100.png,dog,random", "a/100.png,emu,random"], "'a/100.png' is verified as 'emu', but before as 'dog'"),
        (["a/1000.png,dog,random"], "no row 'a/1000.png'; did you mean"),
        (["a/100.png,dogs,random"], "unknown label 'dogs'; did you mean 'dog'"),
        (["a/100.png,dog,often"], "unknown way of picking 'often'"),
        (["a/100.png,,random"], "holds no verdicts"),
        ([",dog,random"], "names no row"),
        (['a/100.png,dog,"random', "a/101.png,dog,random"], "line 2: a quote is opened there and not closed"),
        (['a/100.png,dog,"random', *["a/101.png,dog,random"] * 9000], "line 2: a quote is opened there and not closed"),
    ],
)
def test_a_bad_review_is_one_sentence(found, tmp_path, rows, words):
    with pytest.raises(ValueError, match=words):
        read_review(review(tmp_path / "review.csv", rows), found)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("r.csv", "x,y\n1,2\n", "is not a review: it has 'x', 'y'"),
        ("r.json", "{", "is not JSON"),
        ("r.json", "[1]", "list of tasks"),
        ("r.json", '[{"data": {"image": "x"}, "annotations": []}]', "has no 'row_id'"),
        (
            "r.json",
            json.dumps([annotated("a/9.png", "dog") | {"annotations": [{"result": [{"value": {"choices": []}}]}]}]),
            "exactly one label",
        ),
        (
            "r.json",
            '[{"id": 3, "data": {"row_id": "a/9.png"}, "annotations": 5}]',
            "task 3: annotations is not a list",
        ),
        ("r.json", '[{"data": {"row_id": "a/9.png"}, "annotations": [{"result": 7}]}]', "result is not a list"),
        ("r.csv", "id,verdict\n\xff", "not UTF-8"),
    ],
)
def test_a_wrong_file_is_one_sentence(found, tmp_path, name, text, words):
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=words):
        read_review(tmp_path / name, found)


def test_a_verdict_may_not_contradict_the_run(found):
    known = found.known
    other = NAMES[(known.verified[3] + 1) % 3]
    with pytest.raises(ValueError, match=r"'a/3.png' is verified as .* before as"):
        merge_verdicts(found, [Verdict("a/3.png", other, "random")])


def test_tasks_are_what_label_studio_imports(found, tmp_path):
    rows = issue_rows(found, 5)
    assert len(rows) == 5
    assert not set(rows["id"]) & {found.known.ids[row] for row in range(60)}
    made = tasks(rows, "text", {})
    interface = write_tasks(made, "text", ['<"&>', "dog"], tmp_path / "tasks.json")
    read = json.loads((tmp_path / "tasks.json").read_text(encoding="utf-8"))
    view = ET.parse(interface).getroot()
    shown, choices = view[0].attrib, view[1]
    assert [choice.attrib["value"] for choice in choices] == ['<"&>', "dog"]
    for task, row in zip(read, rows.to_dict("records"), strict=True):
        assert task["data"]["row_id"] == row["id"]
        assert task["data"][shown["value"].removeprefix("$")]
        (result,) = task["predictions"][0]["result"]
        assert (result["from_name"], result["to_name"]) == (choices.attrib["name"], shown["name"])
        assert result["value"]["choices"] == [row["suggested"]]
