"""observe() gives someone's own loop the audit that a run gives."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import fasten
from command_line import refuse
from fasten import observe
from fasten.audit.stored import read_audit
from fasten.cli import app, main
from fasten.engine import predict
from fasten.machine import choose_machine
from fasten.own import Own, auto_recipe, make_own_task, read_rows
from fasten.records import Run, read_record
from fasten.runs.building import make_loader
from fasten.runs.inference import load_method
from fasten.runs.training import Settings, train

PAGE = Path(__file__).parent.parent / "docs" / "my-loop.md"
ROWS, CLASSES = 60, 3


def make_logits(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    truth = np.arange(rows) % CLASSES
    logits = rng.normal(size=(rows, CLASSES)) + 4 * np.eye(CLASSES)[truth]
    labels = np.where(rng.random(rows) < 0.3, (truth + 1) % CLASSES, truth)
    return torch.tensor(logits, dtype=torch.float32), labels, truth


def seen_once(labels, logits, **kwargs):
    watch = observe(labels, **kwargs)
    watch.update(torch.arange(len(logits)), logits)
    return watch


def test_arrays_and_lists_do_as_tensors_do():
    logits, labels, _ = make_logits()
    expected = seen_once(labels, logits).audit().probabilities
    for kind in (np.asarray, torch.Tensor.tolist):
        np.testing.assert_array_equal(seen_once(labels, kind(logits)).audit().probabilities, expected)
    for kind in (np.uint8, np.uint16, np.uint32, np.uint64):
        watch = observe(labels)
        watch.update(np.arange(ROWS).astype(kind), logits.numpy())
        np.testing.assert_array_equal(watch.audit().probabilities, expected)


def test_what_our_own_run_predicts_gives_the_files_that_it_wrote(tmp_path):
    """Byte for byte, with verdicts at random, held back and chosen."""
    rng = np.random.default_rng(0)
    _, labels, truth = make_logits(400)
    x = rng.normal(size=(400, 5)) + 2 * np.eye(CLASSES, 5)[truth]
    verified = np.where(np.arange(400) < 60, truth, -1)
    picked = ["random"] * 40 + ["chosen"] * 20 + [""] * 340
    np.savez(tmp_path / "rows.npz", x=x, labels=labels, verified=verified, picked=picked)
    recipe = auto_recipe((5,), 400, CLASSES, "cpu").scaled(3)
    run = Run(str(tmp_path / "rows.npz"), method="cross-entropy", recipe=recipe, seed=7, own={})
    train(run, tmp_path / "run", Settings(device="cpu", clean_reference=False))
    task, machine = make_own_task(read_rows(run.dataset, Own()), seed=7), choose_machine("cpu")
    method = machine.place(load_method(tmp_path / "run", task))
    logits = predict(method, make_loader(task, machine, 0), "audited", of=lambda x: method.net(x)[0])
    watch = observe(labels, verified=verified, picked=[way or None for way in picked], seed=7)
    for index in torch.randperm(400).split(64):
        watch.update(index, logits[index])
    watch.audit().save(tmp_path / "audit")
    for name in ("labels.csv", "transition.csv"):
        assert (tmp_path / "audit" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    both = [read_record(tmp_path / folder)["evaluation"]["evidence"] for folder in ("audit", "run")]
    assert both[0] == both[1]


def test_updates_within_inference_mode_and_outside_of_it_are_alike():
    logits, labels, _ = make_logits()
    rows, watches = torch.arange(ROWS), [observe(labels) for _ in range(2)]
    for number in range(3):
        with torch.inference_mode(number != 1):
            watches[0].update(rows, logits * number)
        watches[1].update(rows, logits * number)
    found = [watch.audit().probabilities for watch in watches]
    np.testing.assert_array_equal(*found)


@settings(deadline=None, max_examples=25)
@drawn(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=12), st.integers(0, 99))
def test_it_keeps_the_mean_of_all_that_it_was_shown(batches, seed):
    rng = np.random.default_rng(seed)
    watch, shown = observe(np.arange(10) % CLASSES), [[] for _ in range(10)]
    for rows in batches:  # a row may come twice in a batch, as where rows are drawn with replacement
        logits = rng.normal(size=(len(rows), CLASSES))
        watch.update(rows, torch.tensor(logits))
        for row, z in zip(rows, logits, strict=True):
            shown[row].append(np.exp(z) / np.exp(z).sum())
    missing = [row for row in range(10) if not shown[row]]
    if missing:
        were = (
            "was never seen and is left out: row " if len(missing) == 1 else "were never seen and are left out: rows "
        )
        with pytest.warns(UserWarning, match=f"{len(missing)} of 10 rows {were}{missing[0]}"):
            audit = watch.audit()
    else:
        audit = watch.audit()
    assert audit.never_seen.tolist() == missing
    assert sorted(audit.label_issues["row"]) == [row for row in range(10) if shown[row]]
    expected = [np.mean(p, axis=0) for p in shown if p]
    np.testing.assert_allclose(audit.probabilities, expected, rtol=1e-5, atol=1e-7)


def test_the_host_does_not_wait_for_the_device():
    """On the meta device there is nothing to read back: whatever tries, raises."""
    watch = observe(np.arange(ROWS) % CLASSES)
    index = torch.arange(20, device="meta")
    for _ in range(2):
        watch.update(index, torch.zeros(20, CLASSES, device="meta", requires_grad=True))
    assert watch._total.shape == (ROWS, CLASSES)
    assert not watch._total.requires_grad


def test_what_a_mask_hides_is_not_verified():
    logits, labels, truth = make_logits()
    few = np.arange(ROWS) < 20
    audits = [
        seen_once(labels, logits, verified=verified).audit()
        for verified in (np.where(few, truth, -1), np.ma.masked_array(truth, ~few))
    ]
    pd.testing.assert_frame_equal(audits[0].label_issues, audits[1].label_issues)


def test_what_came_before_can_be_forgotten():
    logits, labels, _ = make_logits()
    watch = seen_once(labels, -logits)
    watch.forget()
    watch.update(torch.arange(ROWS), logits)
    pd.testing.assert_frame_equal(watch.audit().label_issues, seen_once(labels, logits).audit().label_issues)


def test_half_precision_logits_are_kept_in_full():
    logits, labels, _ = make_logits()
    half = seen_once(labels, logits.bfloat16())
    np.testing.assert_array_equal(
        half.audit().probabilities, seen_once(labels, logits.bfloat16().float()).audit().probabilities
    )


def test_a_third_of_the_verdicts_is_held_back_from_the_labels_to_train_on():
    logits, labels, truth = make_logits()
    verified = np.where(np.arange(ROWS) < 30, truth, -1)
    watch = seen_once(labels, logits, verified=verified)
    audit = watch.audit()
    picked = audit.label_issues.sort_values("row")["picked"].to_numpy()
    assert (picked == "held").sum() == 10
    assert watch.labels.tolist() == np.where(picked == "random", truth, labels).tolist()
    assert watch.clean.tolist() == np.flatnonzero(picked == "random").tolist()
    assert (audit.evidence["num_random"], audit.evidence["num_held"]) == (30, 10)


def test_verdicts_on_chosen_rows_train_but_tell_nothing_of_the_others():
    logits, labels, truth = make_logits()
    verified = [int(t) if row < 30 else None for row, t in enumerate(truth)]
    watch = seen_once(labels, logits, verified=verified, picked=["chosen"] * ROWS)
    assert watch.labels[:30].tolist() == truth[:30].tolist()
    assert watch.audit().evidence is None


def test_texts_are_numbered_in_the_order_of_the_logits():
    logits, labels, _ = make_logits()
    names = ["zebra", "ape", "10"]
    by_name = seen_once([names[label] for label in labels], logits, class_names=names).audit()
    by_number = seen_once(labels, logits, class_names=names).audit()
    pd.testing.assert_frame_equal(by_name.label_issues, by_number.label_issues)
    np.testing.assert_array_equal(by_name.transition_matrix, by_number.transition_matrix)


def test_true_and_false_are_the_second_and_the_first_logit():
    logits, labels = torch.tensor([[5.0, 0.0], [5.0, 0.0], [0.0, 5.0]]), np.array([False, True, True])
    table = seen_once(labels, logits).audit().label_issues
    assert table[["row", "given", "suggested"]].iloc[0].tolist() == [1, "1", "0"]
    watch = observe(labels, verified=[None, False, True], picked=["chosen"] * 3)
    assert watch.labels.tolist() == [0, 0, 1], "though verdicts are missing"
    assert observe(labels, class_names=["True", "False"]).labels.tolist() == [1, 0, 0], "where classes are called so"


def test_the_report_shows_the_pictures_and_escapes_the_names(tmp_path):
    logits, labels, _ = make_logits()
    images = np.zeros((ROWS, 8, 8, 1), np.uint8)
    audit = seen_once(labels, logits, class_names=["<b>ape", "bee", "cat"]).audit()
    audit.save(tmp_path / "audit", name="<i>pets", images=images)
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert "<b>ape" not in page
    assert "<i>pets" not in page
    with pytest.raises(ValueError, match="already holds a run; choose another folder"):
        audit.save(tmp_path / "audit")


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3)])
def test_pictures_may_be_grey_and_of_fractions(tmp_path, shape):
    logits, labels, _ = make_logits()
    audit = seen_once(labels, logits).audit()
    audit.save(tmp_path / "audit", images=torch.rand(ROWS, *shape))
    assert "data:image/png;base64," in (tmp_path / "audit" / "report.html").read_text()
    with pytest.raises(ValueError, match="height, width"):
        audit.save(tmp_path / "wrong", images=np.zeros((ROWS, 3, 8, 8), np.uint8))
    with pytest.raises(ValueError, match="3 images for 60 labels; give one for each row"):
        audit.save(tmp_path / "wrong", images=np.zeros((3, *shape), np.uint8))
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize(
    "command",
    [
        "resume audit",
        "evaluate audit digits",
        "predict audit digits --out new.csv",
        "export audit --format torch --out new.pt2",
    ],
)
def test_a_command_that_needs_a_model_says_that_an_audit_has_none(tmp_path, monkeypatch, capsys, command):
    logits, labels, _ = make_logits()
    seen_once(labels, logits).audit().save(tmp_path / "audit")
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    said = "audit is an audit of stored probabilities, and holds no model; `fasten audit audit` shows what was found"
    assert capsys.readouterr().err == f"fasten: {said}\n"


def test_an_audit_without_data_has_nothing_to_copy_or_to_review(tmp_path, monkeypatch, capsys):
    _, labels, _ = make_logits()
    seen_once(labels, 50 * torch.eye(CLASSES)[labels]).audit().save(tmp_path / "audit")
    monkeypatch.chdir(tmp_path)
    refuse("audit audit --export csv --out new.csv", capsys, "audit holds no data to copy", "labels.csv")
    refuse("audit audit --export labelstudio --out new.json", capsys, "counts as wrong", "--next N")


def test_a_saved_audit_is_read_as_a_runs_own_is(tmp_path):
    logits, labels, truth = make_logits()
    watch = observe(labels, verified=np.where(np.arange(ROWS) < 30, truth, -1))
    watch.update(torch.arange(5, ROWS), logits[5:])
    with pytest.warns(UserWarning, match=r"5 of 60 rows were never seen and are left out: rows 0, 1, 2, 3, 4"):
        audit = watch.audit()
    audit.save(tmp_path / "audit")
    found = read_audit(tmp_path / "audit")
    assert found.table["id"].astype(int).tolist() == audit.label_issues["row"].tolist()
    assert found.table["is_issue"].tolist() == audit.label_issues["is_issue"].tolist()
    np.testing.assert_array_equal(found.probabilities(), audit.probabilities)
    np.testing.assert_array_equal(found.known.held, watch.known.held[5:])
    assert found.record["notes"][0] == audit.notes[0]


WRONG = {
    "labels: row 2 has no label": {"labels": [0, 1, -1]},
    "labels: there is no label": {"labels": []},
    "labels: unknown label 'cat' in row 0; name the classes": {"labels": ["cat", "dog"]},
    "labels: unknown label 'dgo' in row 1; did you mean 'dog'?": {
        "labels": ["cat", "dgo"],
        "class_names": ["cat", "dog"],
    },
    "labels: unknown label '2' in row 1": {"labels": [0, 2], "class_names": ["cat", "dog"]},
    "verified: unknown label '-2' in row 1; labels count from 0": {"labels": [0, 1], "verified": [0, -2]},
    "verified has 1 entries for 2 labels": {"labels": [0, 1], "verified": [0]},
    "ids has 3 entries for 2 labels": {"labels": [0, 1], "ids": [1, 2, 3]},
    "two rows have the same id": {"labels": [0, 1], "ids": ["a", "a"]},
    "unknown way of picking 'odd'": {"labels": [0, 1], "verified": [0, 1], "picked": ["odd", None]},
    "the precision to keep must be between 0 and 1, got 95": {"labels": [0, 1], "min_precision": 95},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_is_wrong_is_said_in_a_sentence(sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        observe(**WRONG[sentence])


def test_batches_that_do_not_fit_are_refused():
    watch = observe(np.arange(6) % 3, class_names=["a", "b", "c"])
    with pytest.raises(ValueError, match="no row was observed"):
        watch.audit()
    with pytest.raises(ValueError, match=re.escape("index has shape (2,) and logits (3, 3)")):
        watch.update([0, 1], torch.zeros(3, 3))
    with pytest.raises(ValueError, match="logits have 2 columns for 3 classes; give one for each class, 0 to 2"):
        watch.update([0, 1], torch.zeros(2, 2))
    with pytest.raises(ValueError, match="logits have 1 columns for 2 classes; give one for each class, 0 to 1"):
        observe([0, 0]).update([0, 1], torch.zeros(2, 1))
    for rows in ([True, False], [0.0, 1.0]):
        with pytest.raises(ValueError, match="as whole numbers"):
            watch.update(rows, torch.zeros(2, 3))
    for rows in ([0, 6], [-1, 2]):
        with pytest.raises(ValueError, match="but there are 6 labels"):
            watch.update(rows, torch.zeros(2, 3))
    watch.update(range(6), torch.full((6, 3), torch.nan))
    with pytest.raises(ValueError, match="logits of 6 rows were not finite"):
        watch.audit()


def test_the_page_on_ones_own_loop_runs_and_finds_the_wrong_labels(folder):
    names = {}
    with torch.random.fork_rng(devices=[]):
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(code, names)
    wrong = (names["y"] != names["truth"]).numpy()
    for audit, least in ((names["audit"], 0.6), (names["robust"], 0.9)):
        found = audit.label_issues.sort_values("row")["is_issue"].to_numpy()
        assert wrong[found].mean() > 0.9
        assert found[wrong].mean() > least
    assert {"labels.csv", "transition.csv", "report.html"} <= {path.name for path in Path("audit").iterdir()}
    commands = re.findall(r"^    fasten (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        result = CliRunner().invoke(app, command.split())
        assert result.exit_code == 0, result.output
    assert Path("review.csv").exists()


def test_the_loop_of_the_page_trains_on_no_row_of_a_class_without_verified_ones(monkeypatch):
    """Whatever row stands in its places."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    for line, shorter in (("< 90, truth, -1)", "< 90 * (truth < 2), truth, -1)"), ('audit.save("audit")', "")):
        assert code.count(line) == 1
        code = code.replace(line, shorter)

    class Other(fasten.BalancedDraw):
        def __call__(self, *args):
            index, weight = super().__call__(*args)
            return torch.where(weight > 0, index, 1), weight

    found = []
    for draw in (fasten.BalancedDraw, Other):
        monkeypatch.setattr(fasten, "BalancedDraw", draw)
        names = {}
        with torch.random.fork_rng(devices=[]):
            exec(code, names)
        found.append(names["net"].state_dict())
    torch.testing.assert_close(*found)
