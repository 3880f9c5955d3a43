"""A run survives JSON and back; a record is whole or refused; a log goes on where the checkpoint stood."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_record import example_record
from fasten import records
from fasten.contract import Recipe
from fasten.records import Log, Run, environment, read_record, write_record
from fasten.report import render

finite = st.floats(allow_nan=False, allow_infinity=False)
recipes = st.builds(
    Recipe,
    net=st.text(),
    epochs=st.integers(1),
    batch_size=st.integers(1),
    rate=finite,
    momentum=finite,
    weight_decay=finite,
    milestones=st.lists(st.integers(1)).map(tuple),
    weights=st.none() | st.text(),
)
options = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | finite | st.text())
runs = st.builds(
    Run, dataset=st.text(), noise=st.text(), method=st.text(), options=options, recipe=recipes, seed=st.integers(0)
)


@given(run=runs)
def test_a_run_survives_json(run):
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run


def test_a_run_without_weights_is_written_as_before_there_were_any():
    """So it keeps its name, and records from before are still those of the same run."""
    values = Run("digits").to_json()
    assert not {"weights", "frozen", "sync_norm"} & set(values["recipe"])
    assert Run.from_json(values) == Run("digits")
    assert Run("digits", recipe=Recipe(weights="a")).to_json()["recipe"]["weights"] == "a"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"recipe": 3},
        {"dataset": "digits", "recipe": {"milestones": [], "warmth": 1}},
        {"dataset": "digits", "recipe": {"milestones": []}, "colour": "red"},
        {"recipe": {"milestones": []}},
    ],
)
def test_a_run_of_another_version_is_refused(values):
    with pytest.raises(ValueError, match="damaged or from another version"):
        Run.from_json(values)


def test_a_record_is_read_back_from_its_folder_and_from_its_file(tmp_path):
    record = example_record()
    write_record(tmp_path, record)
    assert read_record(tmp_path) == read_record(tmp_path / "record.json") == record
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_row_of_a_matrix_stands_in_a_line_and_texts_are_left_alone(tmp_path):
    record = {"T": [[0.25, -1e-05], [1, 0]], "notes": ["[\n 1,\n 2\n]", "[ 1, 2 ]"], "none": [], "mixed": [1, None]}
    write_record(tmp_path, record)
    text = (tmp_path / "record.json").read_text()
    assert json.loads(text) == record
    assert "  [ 0.25, -1e-05 ],\n" in text


def with_classes(number: int):
    """A record of a run with so many classes, every number with all its digits."""
    T = np.random.default_rng(0).dirichlet(np.ones(number), number)
    record, matrices = example_record(), {"given": T.tolist(), "true": None, "estimated": T.T.tolist()}
    record["evaluation"]["transition"] |= matrices
    record["evaluation"]["evidence"] = {"transition": {"counts": np.eye(number, dtype=int).tolist(), "n": number}}
    return record


def test_matrices_of_many_classes_stand_beside_the_record_and_are_read_back_exactly(tmp_path):
    many = with_classes(300)
    write_record(tmp_path, many)
    assert (tmp_path / "record.json").stat().st_size < 30_000
    assert (tmp_path / "matrices.npz").stat().st_size < 2_000_000  # as text 4 million
    for place in (tmp_path, tmp_path / "record.json"):
        found = read_record(place)
        assert found == many
        assert type(found["evaluation"]["evidence"]["transition"]["counts"][0][0]) is int
    plain = json.loads((tmp_path / "record.json").read_text())
    assert plain["evaluation"]["transition"]["given"] == "matrices.npz"
    assert plain["evaluation"]["transition"]["true"] is None


def test_a_record_that_holds_all_its_matrices_is_read_as_before(tmp_path):
    many = with_classes(120)
    (tmp_path / "record.json").write_text(json.dumps(many))
    assert read_record(tmp_path) == many


def test_matrices_of_few_classes_stay_in_the_record(tmp_path):
    write_record(tmp_path, with_classes(100))
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
    assert json.loads((tmp_path / "record.json").read_text()) == with_classes(100)


@pytest.mark.parametrize("damage", [None, b"", b"PK\x03\x04 no more"])
def test_without_its_matrices_a_record_is_read_and_they_are_not_known(tmp_path, damage):
    many = with_classes(101)
    write_record(tmp_path, many)
    (tmp_path / "matrices.npz").unlink()
    if damage is not None:
        (tmp_path / "matrices.npz").write_bytes(damage)
    found = read_record(tmp_path)
    assert found["evaluation"]["transition"]["given"] is None
    assert found["evaluation"]["evidence"]["transition"] == {"counts": None, "n": 101}
    assert found["result"] == many["result"]
    render(found)


def test_a_number_that_json_does_not_have_leaves_the_old_record(tmp_path):
    write_record(tmp_path, example_record())
    with pytest.raises(ValueError, match="nan"):
        write_record(tmp_path, {"loss": float("nan")})
    assert read_record(tmp_path) == example_record()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "record.json is damaged"),
        (b'{"schema": 1,', "record.json is damaged"),
        (b"\xff\xfe", "record.json is damaged"),
        (b"[]", "not a run's record of schema 1"),
        (b"3", "not a run's record of schema 1"),
        (b"{}", "not a run's record of schema 1"),
        (b'{"schema": 2}', "not a run's record of schema 1"),
        (b'{"schema": 1, "run": {}, "data": {}}', "damaged .it lacks environment, epochs, evaluation"),
    ],
)
def test_a_damaged_record_is_named(tmp_path, content, message):
    (tmp_path / "record.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [("0.9", "result.test_accuracy is not a number"), (float("nan"), "NaN is not a number of JSON")],
)
def test_a_result_that_is_no_number_is_named(tmp_path, value, message):
    record = example_record()
    record["result"]["test_accuracy"] = value
    (tmp_path / "record.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=f"record.json is damaged .*{message}"):
        read_record(tmp_path)


def test_a_folder_without_a_record_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run: there is no record\.json in it"):
        read_record(tmp_path)
    with pytest.raises(ValueError, match="nowhere holds no run: it is not there"):
        read_record(tmp_path / "nowhere")


@given(cut=st.integers(0, 8), later=st.integers(0, 3), left=st.none() | st.integers(0, 300))
def test_a_log_goes_on_after_the_lines_of_the_checkpoint(tmp_path_factory, cut, later, left):
    """Whatever is left of the file: all of it, a part that may end within a line, or nothing."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    first = Log(path)
    for number in range(5):
        first.add(event="epoch", epoch=number, name="χ²\u2028")
    if left is not None:
        path.write_bytes(path.read_bytes()[:left])
    again = Log(path, first.lines[:cut])
    for number in range(later):
        again.add(event="later", epoch=number)
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [e["event"] for e in events] == ["epoch"] * min(cut, 5) + ["later"] * later
    assert "".join(again.lines) == path.read_text(encoding="utf-8")


def test_a_new_log_replaces_what_was_there(tmp_path):
    (tmp_path / "log.jsonl").write_text("old\n")
    assert Log(tmp_path / "log.jsonl").lines == []
    assert (tmp_path / "log.jsonl").read_text() == ""


def test_the_environment_names_versions():
    found = environment()
    assert found["fasten"] == records.VERSION
    assert all(isinstance(found[name], str) for name in ("python", "torch", "numpy", "platform"))


@pytest.mark.parametrize("said", ["abc123", None])
def test_without_git_the_commit_is_what_the_environment_says_or_unknown(monkeypatch, said):
    def missing(*args, **kwargs):
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    monkeypatch.delenv("FASTEN_COMMIT", raising=False)
    if said:
        monkeypatch.setenv("FASTEN_COMMIT", said)
    assert environment()["commit"] == said


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_the_commit_is_that_of_a_repository_that_this_is_part_of(tmp_path, monkeypatch):
    """And not that of a user's project in which it is installed."""

    def git(*words):
        command = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.delenv("FASTEN_COMMIT", raising=False)
    source = tmp_path / ".venv" / "fasten" / "records.py"
    source.parent.mkdir(parents=True)
    source.touch()
    monkeypatch.setattr(records, "__file__", str(source))
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "theirs")
    assert environment()["commit"] is None
    git("add", "-f", str(source))
    git("commit", "-q", "-m", "ours")
    assert environment()["commit"] == git("rev-parse", "HEAD")
