"""The T of the given labels, the posterior of the true one, and the tables written from them."""

import csv

import numpy as np
import pandas as pd
import pytest
from hypothesis import given as draw
from hypothesis import settings
from hypothesis import strategies as st

from builders import label_table
from fasten import audit
from fasten.audit import given_transitions, posterior, write_labels, write_transition
from fasten.cells import escaped, unescaped
from reference.metrics import ref_counted_transition, ref_given_transition, ref_posterior

COLUMNS = ["row", "id", "given", "suggested", "p_wrong", "p_suggested", "is_issue", "corrected"]
steady = settings(derandomize=True, deadline=None, max_examples=50)
seeds = st.integers(0, 2**32 - 1)


def given_transition(probs, given, num_classes, rounds=5):
    """T after the last round."""
    *_, T = given_transitions(probs, given, num_classes, rounds)
    return T


def sampled(rng, p):
    """One class per row, drawn from that row of p."""
    return (rng.random((len(p), 1)) > p.cumsum(1)[:, :-1]).sum(1)


def audited(seed, num_classes, rows=40, sureness=0.3):
    """Calibrated probabilities, true labels drawn from them, a T, and given labels drawn from it."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(num_classes, sureness), rows)
    T = 0.6 * np.eye(num_classes) + 0.4 * rng.dirichlet(np.ones(num_classes), num_classes)
    truth = sampled(rng, probs)
    return probs, truth, T, sampled(rng, T[truth])


def small_table():
    post = np.array([[0.9, 0.1, 0.0], [0.2, 0.1, 0.7], [0.1, 0.9, 0.0], [0.4, 0.3, 0.3], [0.2, 0.1, 0.7]])
    return label_table([f"img{n}" for n in range(5)], np.zeros(5, np.int64), post, ["cat", "dog", "emu"])


@pytest.mark.parametrize("rounds", [0, 1, 5])
@pytest.mark.parametrize("num_classes", [2, 5])
def test_given_transition_matches_the_reference(num_classes, rounds):
    probs, _, _, given = audited(num_classes, num_classes)
    got = given_transition(probs, given, num_classes, rounds)
    np.testing.assert_allclose(got, ref_given_transition(probs, given, num_classes, rounds), rtol=1e-9)


@pytest.mark.parametrize("rounds", [0, 5])
def test_the_size_of_a_chunk_changes_nothing(monkeypatch, rounds):
    probs, _, T, given = audited(0, 4)
    whole = given_transition(probs, given, 4, rounds), posterior(probs, T, given)
    monkeypatch.setattr(audit, "CHUNK", 3)
    np.testing.assert_allclose(given_transition(probs, given, 4, rounds), whole[0], rtol=1e-12)
    np.testing.assert_array_equal(posterior(probs, T, given), whole[1])


@draw(seed=seeds, num_classes=st.integers(2, 8), rounds=st.integers(0, 6))
@steady
def test_rows_of_the_estimate_sum_to_one_and_permute_with_the_classes(seed, num_classes, rounds):
    probs, _, _, given = audited(seed, num_classes)
    rename = np.random.default_rng(seed).permutation(num_classes)
    T = given_transition(probs, given, num_classes, rounds)
    permuted = given_transition(probs[:, np.argsort(rename)], rename[given], num_classes, rounds)
    assert (T >= 0).all()
    np.testing.assert_allclose(T.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(permuted[rename][:, rename], T, rtol=1e-9, atol=1e-12)


@draw(seed=seeds, num_classes=st.integers(2, 8), rounds=st.integers(0, 6))
@steady
def test_perfect_probabilities_recover_the_counted_transition(seed, num_classes, rounds):
    _, truth, _, given = audited(seed, num_classes)
    got = given_transition(np.eye(num_classes)[truth], given, num_classes, rounds)
    np.testing.assert_allclose(got, ref_counted_transition(truth, given, num_classes), rtol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("num_classes", "sureness"), [(3, 0.5), (10, 0.1)])
def test_em_undoes_the_blur_of_an_unsure_classifier(num_classes, sureness, seed):
    probs, _, T, given = audited(seed, num_classes, rows=20_000, sureness=sureness)
    plain, refined = (np.abs(given_transition(probs, given, num_classes, k) - T).sum(1).mean() for k in (0, 5))
    assert refined < 0.1
    assert refined < plain / 3


@pytest.mark.parametrize("rounds", [0, 5])
def test_a_class_without_mass_gets_the_row_of_the_identity(rounds):
    probs = np.array([[0.5, 0.0, 0.5], [0.9, 0.0, 0.1], [0.2, 0.0, 0.8]])
    T = given_transition(probs, np.array([0, 1, 2]), 3, rounds)
    np.testing.assert_array_equal(T[1], [0, 1, 0])
    np.testing.assert_allclose(T.sum(1), 1)


def test_a_label_that_nobody_was_given_has_an_empty_column():
    probs, _, _, given = audited(0, 4)
    assert (given_transition(probs, np.minimum(given, 2), 4)[:, 3] == 0).all()


def test_float32_probabilities_are_summed_in_float64():
    probs, _, _, given = audited(0, 4)
    narrow = probs.astype(np.float32)
    np.testing.assert_allclose(
        given_transition(narrow, given.astype(np.int16), 4),
        given_transition(narrow.astype(np.float64), given, 4),
        rtol=1e-12,
    )


@pytest.mark.parametrize("num_classes", [2, 5, 20])
def test_posterior_matches_the_reference(num_classes):
    probs, _, T, given = audited(num_classes, num_classes, sureness=1.0)
    np.testing.assert_allclose(posterior(probs, T, given), ref_posterior(probs, T, given), rtol=1e-12)


@draw(seed=seeds, num_classes=st.integers(2, 8))
@steady
def test_posterior_sums_to_one_and_permutes_with_the_classes(seed, num_classes):
    probs, _, T, given = audited(seed, num_classes)
    back = np.random.default_rng(seed).permutation(num_classes)
    post = posterior(probs, T, given)
    permuted = posterior(probs[:, back], T[back][:, back], np.argsort(back)[given])
    np.testing.assert_allclose(post.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(permuted, post[:, back], rtol=1e-9)


@pytest.mark.parametrize("num_classes", [2, 10])
def test_posterior_without_noise_is_the_given_label(num_classes):
    probs, _, _, given = audited(0, num_classes, sureness=1.0)
    np.testing.assert_array_equal(posterior(probs, np.eye(num_classes), given), np.eye(num_classes)[given])


def test_posterior_under_labels_that_say_nothing_is_the_classifier():
    probs, _, _, given = audited(0, 5)
    np.testing.assert_allclose(posterior(probs, np.full((5, 5), 0.2), given), probs, rtol=1e-12)


def test_posterior_falls_back_to_the_classifier_where_every_product_vanishes():
    probs, T = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]), np.eye(3)
    np.testing.assert_array_equal(posterior(probs, T, np.array([2, 1])), [[1, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize(("dtype", "wanted"), [(np.float16, np.float32), (np.float32, np.float32), (float, float)])
def test_posterior_is_as_wide_as_the_probabilities(dtype, wanted):
    probs, _, T, given = audited(0, 3)
    assert posterior(probs.astype(dtype), T, given).dtype == wanted


def test_posterior_finds_wrong_labels_better_than_the_given_label_alone():
    probs, truth, T, given = audited(0, 5, rows=5000)
    corrected = posterior(probs, T, given).argmax(1)
    assert (corrected == truth).mean() > max((given == truth).mean(), (probs.argmax(1) == truth).mean())


def test_the_table_lists_the_most_suspect_rows_first_and_ties_by_row():
    table = small_table()
    assert list(table.columns) == COLUMNS
    assert table["row"].tolist() == [2, 1, 4, 3, 0]
    assert table["id"].tolist() == ["img2", "img1", "img4", "img3", "img0"]
    assert table.index.tolist() == [0, 1, 2, 3, 4]


def test_the_table_suggests_the_most_probable_label_and_corrects_the_issues():
    table = small_table().sort_values("row")
    assert table["given"].tolist() == ["cat"] * 5
    assert table["suggested"].tolist() == ["cat", "emu", "dog", "cat", "emu"]
    np.testing.assert_allclose(table["p_wrong"], [0.1, 0.8, 0.9, 0.6, 0.8])
    np.testing.assert_allclose(table["p_suggested"], [0.9, 0.7, 0.9, 0.4, 0.7])
    assert table["is_issue"].tolist() == [False, True, True, True, True]
    assert table["corrected"].tolist() == ["cat", "emu", "dog", "cat", "emu"]


def test_an_issue_whose_given_label_is_still_the_best_keeps_it():
    row = label_table([0], np.array([0]), np.array([[0.4, 0.3, 0.3]]), ["cat", "dog", "emu"]).iloc[0]
    assert (row["is_issue"], row["suggested"], row["corrected"]) == (True, "cat", "cat")


def test_a_tie_is_decided_for_the_given_label():
    row = label_table([0], np.array([1]), np.array([[0.5, 0.5]]), ["cat", "dog"], threshold=0.4).iloc[0]
    assert (row["is_issue"], row["suggested"], row["corrected"]) == (True, "dog", "dog")


@draw(seed=seeds, threshold=st.floats(0, 1))
@steady
def test_only_rows_above_the_threshold_are_issues_and_change(seed, threshold):
    probs, _, T, given = audited(seed, 4)
    table = label_table(np.arange(40), given, posterior(probs, T, given), list("abcd"), threshold)
    assert (table["is_issue"] == (table["p_wrong"] > threshold)).all()
    assert (table["corrected"] == np.where(table["is_issue"], table["suggested"], table["given"])).all()
    assert table["p_wrong"].between(0, 1).all()
    assert table["p_wrong"].is_monotonic_decreasing


def test_class_names_that_are_numbers_stay_numbers():
    table = label_table([0, 1], np.array([0, 1]), np.eye(2), [3, 8])
    assert table["corrected"].tolist() == [3, 8]


def test_no_rows_make_an_empty_table_with_all_columns(tmp_path):
    table = label_table([], np.empty(0, np.int64), np.empty((0, 2)), ["cat", "dog"])
    write_labels(table, tmp_path / "labels.csv")
    assert (tmp_path / "labels.csv").read_text() == ",".join(COLUMNS) + "\n"


def test_labels_are_written_with_six_digits_and_plain_truth_values(tmp_path):
    table = label_table(["x", "y"], np.array([0, 1]), np.array([[1 / 3, 2 / 3], [0.1, 0.9]]), ["cat", "dog"])
    write_labels(table, tmp_path / "labels.csv")
    assert (tmp_path / "labels.csv").read_text().splitlines() == [
        ",".join(COLUMNS),
        "0,x,cat,dog,0.666667,0.666667,true,dog",
        "1,y,dog,dog,0.1,0.9,false,dog",
    ]


def test_labels_are_read_back_as_they_were(tmp_path):
    table = small_table()
    write_labels(table, tmp_path / "labels.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "labels.csv"), table, rtol=1e-5)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_cell_of_a_file_is_a_formula(tmp_path, start):
    bad = f"{start}cmd|'/c calc'!A1"
    write_labels(label_table([bad], np.array([0]), np.array([[0.2, 0.8]]), [bad, 'b,"c']), tmp_path / "labels.csv")
    write_transition(np.eye(2), [bad, "dog"], tmp_path / "transition.csv")
    with open(tmp_path / "labels.csv", newline="") as file:
        assert list(csv.reader(file))[1] == ["0", f"'{bad}", f"'{bad}", 'b,"c', "0.8", "0.8", "true", 'b,"c']
    with open(tmp_path / "transition.csv", newline="") as file:
        assert list(csv.reader(file))[:2] == [["true", f"'{bad}", "dog"], [f"'{bad}", "1", "0"]]


def test_ids_that_are_numbers_are_not_escaped(tmp_path):
    write_labels(label_table([-5], np.array([0]), np.array([[0.5, 0.5]]), ["a", "b"]), tmp_path / "labels.csv")
    assert (tmp_path / "labels.csv").read_text().splitlines()[1].startswith("0,-5,a,")


@pytest.mark.parametrize("number", ["-1", "+1", "-0.5", "-10"])
def test_texts_that_are_numbers_are_not_escaped(tmp_path, number):
    names = [number, f"'{number}"]
    write_labels(label_table(names, np.array([0, 1]), np.eye(2), names), tmp_path / "labels.csv")
    write_transition(np.eye(2), names, tmp_path / "transition.csv")
    with open(tmp_path / "labels.csv", newline="") as file:
        assert {tuple(row[1:3]) for row in csv.reader(file)} >= {(number, number), (f"''{number}", f"''{number}")}
    with open(tmp_path / "transition.csv", newline="") as file:
        assert next(csv.reader(file)) == ["true", number, f"''{number}"]
    assert [unescaped(escaped(name)) for name in names] == names


@pytest.mark.parametrize("cell", ["-1+1", "-1-cmd", "-", "--1", "-1\n", "-1.", "+1e5", "-\u0661"])
def test_what_is_more_than_a_number_is_escaped(cell):
    assert escaped(cell) == f"'{cell}"


def test_a_failing_write_leaves_the_old_table(tmp_path, monkeypatch):
    write_labels(small_table(), tmp_path / "labels.csv")
    before = (tmp_path / "labels.csv").read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_labels(small_table().head(1), tmp_path / "labels.csv")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [before]


@pytest.mark.parametrize(
    "names", [["cat", "dog", "emu"], ["true", "=a", "'=a"], ["é,", 'x"y', "NA"], ["1", "-1", "\r"]]
)
def test_a_transition_is_written_with_its_names_on_both_sides(tmp_path, names):
    T = np.random.default_rng(0).dirichlet(np.ones(3), 3)
    write_transition(T, names, tmp_path / "transition.csv")
    with open(tmp_path / "transition.csv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header[0] == "true"
    assert [unescaped(name) for name in header[1:]] == [unescaped(row[0]) for row in rows] == names
    assert not any(cell.startswith("=") for cell in header)
    np.testing.assert_allclose([[float(cell) for cell in row[1:]] for row in rows], T, rtol=1e-5)


def test_parts_make_the_whole(tmp_path, monkeypatch):
    """Neither what is worked on at a time nor what is written at a time can be seen in the result."""
    probs, _, _, given = audited(7, 5, rows=100)
    table = label_table([f"a\r{n}" if n == 40 else f"=img{n}" for n in range(100)], given, probs, list("abcde"))
    whole = given_transition(probs, given, 5)
    write_labels(table, tmp_path / "whole.csv")
    monkeypatch.setattr(audit, "CHUNK", 7)
    monkeypatch.setattr(audit, "LINES", 9)
    np.testing.assert_allclose(given_transition(probs, given, 5), whole, rtol=1e-12)
    write_labels(table, tmp_path / "parts.csv")
    one, other = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("whole", "parts"))
    pd.testing.assert_frame_equal(one, other)
    assert len(one) == 100
