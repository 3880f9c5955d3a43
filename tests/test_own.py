"""Users' own data become a task: who trains, who validates, whose verdict is hidden, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as with_values
from hypothesis import settings
from hypothesis import strategies as st

from builders import make_tiny_task
from fasten.contract import Recipe
from fasten.data.arrays import rows_from_arrays
from fasten.data.splits import own_split
from fasten.data.task import Known
from fasten.own import Own, auto_recipe, is_path, make_own_task, make_test_task, read_rows
from fasten.records import Run
from fasten.runs.building import build_method
from own_data import make_blobs, write_digits, write_table


def verified_rows(n: int = 300, num_verified: int = 120, picked: str = "random", seed: int = 0, **more):
    """Rows of which the first are verified; and their truth."""
    x, given, truth = make_blobs(n, seed=seed)
    checked = [int(label) if row < num_verified else None for row, label in enumerate(truth)]
    return rows_from_arrays(x, given, y_verified=checked, picked=[picked] * n, **more), truth


def test_random_verdicts_are_held_back_validate_or_train_and_no_other_row_is_clean():
    rows, truth = verified_rows()
    task = make_own_task(rows, seed=0)
    known, split = task.known, task.split
    held = np.flatnonzero(known.held)
    assert len(held) == 40
    assert (len(split.clean) + len(split.valid), len(split.test)) == (80, 0)
    assert np.isin(held, split.noisy).all(), "held back: in the noisy set, under the given label"
    np.testing.assert_array_equal(np.sort(np.concatenate([split.clean, split.valid, held])), np.arange(120))
    np.testing.assert_array_equal(task.given, rows.given_codes()[split.noisy])
    np.testing.assert_array_equal(task.clean, truth[split.clean])
    np.testing.assert_array_equal(task.valid, truth[split.valid])
    assert task.truth is None
    np.testing.assert_array_equal(task.audited, np.arange(300))


def test_verdicts_on_chosen_rows_all_train():
    rows, _ = verified_rows(picked="chosen")
    task = make_own_task(rows, seed=0)
    assert not task.known.held.any()
    assert not task.known.picked_random.any()
    assert len(task.split.clean) + len(task.split.valid) == 120
    assert any("uncalibrated" in note and "T is a model's estimate" in note for note in task.notes)


def test_what_the_data_set_apart_is_measured_by_the_verdict_and_never_audited():
    x, given, truth = make_blobs(300)
    rows = rows_from_arrays(x, given, x_test=x[:50] + 1, y_test=truth[:50], x_valid=x[50:80] + 1, y_valid=truth[50:80])
    task = make_own_task(rows, seed=0)
    np.testing.assert_array_equal(task.test, truth[:50])
    np.testing.assert_array_equal(task.valid, truth[50:80])
    np.testing.assert_array_equal(task.audited, np.arange(300))
    assert task.ids == rows.ids[:300]
    assert not [note for note in task.notes if "no test rows" in note or "last epoch" in note]
    assert task.notes[-2:] == (
        "30 of the 30 validation rows have no verified label: the given one counts as right",
        "50 of the 50 test rows have no verified label: the given one counts as right",
    )


def test_a_verified_test_row_tells_nothing_of_the_noisy_ones(tmp_path):
    write_table(tmp_path / "items.csv")
    text = (tmp_path / "items.csv").read_text().replace(",kind 1,,test", ",kind 1,kind 2,test")
    (tmp_path / "items.csv").write_text(text)
    rows = read_rows(str(tmp_path / "items.csv"), Own())
    task = make_own_task(rows, seed=0)
    assert (task.known.verified[task.split.test] == -1).all()
    assert (task.test != 1).all(), "the verdict measures"
    assert not np.isin(task.split.test, task.audited).any()


@settings(deadline=None, max_examples=60)
@with_values(st.data())
def test_every_row_with_a_label_is_in_one_part_and_no_held_row_is_clean(data):
    n, num_classes = data.draw(st.integers(1, 60)), data.draw(st.integers(2, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    given, verified = (np.where(rng.random(n) < 0.7, rng.integers(num_classes, size=n), -1) for _ in range(2))
    held = (rng.random(n) < 0.3) & (given >= 0) & (verified >= 0)
    parts = np.split(rng.permutation(n), np.sort(rng.integers(0, n + 1, 2)))
    measured = {"valid": np.sort(parts[0]) if rng.random() < 0.5 else parts[0][:0], "test": np.sort(parts[1])}
    split = own_split(measured, given, verified, held, num_classes, rng)
    labelled = (given >= 0) | (verified >= 0)
    labelled[np.concatenate(list(measured.values()))] = True
    covered = np.sort(np.concatenate([split.noisy, split.clean, split.valid, split.test]))
    np.testing.assert_array_equal(covered, np.flatnonzero(labelled))
    assert not held[split.clean].any()
    assert (verified[split.clean] >= 0).all()
    assert (given[split.noisy] >= 0).all()


@pytest.mark.parametrize(("per_class", "expected"), [(4, 0), (5, 1), (12, 2)])
def test_a_fifth_of_the_clean_rows_of_each_class_validates_unless_they_are_fewer_than_five_a_class(per_class, expected):
    verified = np.concatenate([np.repeat(np.arange(3), per_class), np.full(30, -1)])
    none, no = np.empty(0, np.int64), np.zeros(len(verified), bool)
    given = np.arange(len(verified)) % 3
    split = own_split({"valid": none, "test": none}, given, verified, no, 3, np.random.default_rng(0))
    assert np.bincount(verified[split.valid], minlength=3).tolist() == [expected] * 3


def test_rows_that_came_without_a_label_can_only_be_clean():
    x, given, truth = make_blobs(200)
    rows = rows_from_arrays(x, given, x_clean=x[:40] + 1, y_clean=truth[:40])
    task = make_own_task(rows, seed=0)
    assert len(task.split.noisy) == 200
    assert (np.concatenate([task.split.clean, task.split.valid]) >= 200).all()
    np.testing.assert_array_equal(task.audited, np.arange(200))
    assert not task.known.held.any()


def test_with_noise_the_labels_as_they_are_count_as_the_truth():
    rows, _ = verified_rows()
    task = make_own_task(rows, seed=0, noise="pair:0.4")
    judged = rows.judged_codes()
    np.testing.assert_array_equal(task.truth, judged[task.split.noisy])
    assert task.noise_rate == pytest.approx(0.4, abs=0.05)
    moved = task.given != task.truth
    np.testing.assert_array_equal(task.given[moved], (task.truth[moved] + 1) % 4)
    assert task.transition[0].tolist() == pytest.approx([0.6, 0.4, 0, 0])
    verified_too = (task.known.given != judged)[:120].mean()
    assert verified_too == pytest.approx(0.4, abs=0.15), "verified rows carry noisy labels too, and tell of the others"


@pytest.mark.parametrize(("noise", "said"), [("pair:0.4", True), ("none", False)])
def test_noise_on_labels_that_verdicts_contradict_comes_with_a_word(noise, said):
    rows, _ = verified_rows()
    wrong = sum(verified not in (None, given) for given, verified in zip(rows.given, rows.verified, strict=True))
    assert wrong > 10
    sentence = f"verdicts contradict {wrong} given labels, but noise is injected as if the given labels of all"
    assert any(note.startswith(sentence) for note in make_own_task(rows, 0, noise).notes) == said
    right = replace(rows, given=tuple(v or g for g, v in zip(rows.given, rows.verified, strict=True)))
    assert not any("contradict" in note for note in make_own_task(right, 0, noise).notes)


def test_noise_and_whoever_asks_for_labels_leave_those_of_the_rows_as_they_are():
    rows, _ = verified_rows()
    number = {name: code for code, name in enumerate(rows.class_names)} | {None: -1}
    given, verified = ([number[label] for label in labels] for labels in (rows.given, rows.verified))
    noisy = make_own_task(rows, seed=0, noise="pair:0.4")
    assert noisy.known.given.tolist() != given
    for codes in (rows.given_codes(), rows.verified_codes(), rows.judged_codes()):
        codes[:] = 0
    assert (rows.given_codes().tolist(), rows.verified_codes().tolist()) == (given, verified)
    assert rows.judged_codes().tolist() == [g if v < 0 else v for g, v in zip(given, verified, strict=True)]
    plain = make_own_task(rows, seed=0)
    assert (plain.known.given.tolist(), plain.known.verified.tolist()) == (given, verified)


def test_asymmetric_noise_is_refused_where_there_is_no_map():
    with pytest.raises(ValueError, match="use pair:R or matrix:FILE"):
        make_own_task(verified_rows()[0], seed=0, noise="asymmetric:0.4")


def test_the_same_seed_gives_the_same_task_and_another_another():
    rows, _ = verified_rows()
    one, two, other = (make_own_task(rows, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.split.clean, two.split.clean)
    np.testing.assert_array_equal(one.known.held, two.known.held)
    assert one.split.clean.tolist() != other.split.clean.tolist()


def test_features_are_standardised_by_the_noisy_rows_and_constant_ones_stay_finite():
    x, given, truth = make_blobs(300)
    x[:, 1] = 0.1  # whose mean in float64 is not quite it
    x[:, 2] = 1e6 + np.arange(300)
    x = x.astype(np.float64)
    x[:, 3] = 1.7e9 + 128 * (np.arange(300) % 12)  # seconds of a clock: little beside the mean, much for a network
    rows = rows_from_arrays(x, given, x_test=100 * x[:9], y_test=truth[:9])
    task = make_own_task(rows, seed=0)
    noisy = x[task.split.noisy].astype(np.float64)
    np.testing.assert_allclose(task.mean, noisy.mean(0), rtol=1e-6)
    np.testing.assert_allclose(task.std, np.where(np.arange(6) == 1, 1, noisy.std(0)), rtol=1e-6)


def test_images_are_normalised_by_channel(tmp_path):
    write_digits(tmp_path / "photos", per_class=10)
    rows = read_rows(str(tmp_path / "photos"), Own())
    task = make_own_task(rows, seed=0)
    pixels = np.asarray(rows.x) / 255
    assert task.mean == pytest.approx((pixels.mean(),), abs=1e-6)
    assert task.std == pytest.approx((pixels.std(),), abs=1e-6)
    assert isinstance(task.x, np.ndarray), "small images stay in memory"
    assert (task.shape, task.pad, task.flip) == ((1, 8, 8), 0, False)


def test_own_data_have_t_of_their_noisy_rows_and_few_clean_ones_in_a_batch_unless_one_says_otherwise():
    rows, _ = verified_rows(n=400, num_verified=100)
    task, recipe = make_own_task(rows, seed=0), Recipe("mlp", batch_size=300)
    usual = build_method(Run("own.csv", recipe=recipe), task)
    asked = build_method(Run("own.csv", options={"estimate": "clean", "per_class": 30}, recipe=recipe), task)
    assert (usual.joint is None, asked.joint is None) == (False, True)
    assert (usual.per_class, asked.per_class) == (10, 30)
    known = build_method(Run("tiny", recipe=Recipe("small-cnn", batch_size=300)), make_tiny_task())
    assert (known.joint, known.per_class) == (None, None)


def test_rows_that_are_all_certain_are_refused():
    rows, _ = verified_rows(n=20, num_verified=20, picked="chosen")
    with pytest.raises(ValueError, match="no row whose label is in doubt"):
        make_own_task(rows, seed=0)


@pytest.mark.parametrize(
    ("shape", "device", "net"),
    [
        ((7,), "cpu", "mlp"),
        ((1, 8, 8), "cuda", "small-cnn"),
        ((3, 32, 32), "cuda", "resnet18"),
        ((1, 16, 40), "cpu", "small-cnn"),
        ((3, 32, 32), "cpu", "pyramid-cnn"),
        ((3, 64, 48), "cuda", "resnet18"),
        ((3, 224, 224), "cpu", "pyramid-cnn"),
        ((3, 224, 224), "cuda", "imagenet-resnet18"),
    ],
)
def test_the_network_suits_the_examples(shape, device, net):
    assert auto_recipe(shape, 1000, 5, device).net == net


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("shape", "rows", "epochs"),
    [
        *[((3, 32, 32), 300, 60), ((3, 32, 32), 1500, 40), ((3, 224, 224), 2001, 30), ((3, 32, 32), 10**6, 30)],
        *[((1, 8, 8), 300, 30), ((7,), 300, 30)],
    ],
)
def test_few_images_are_seen_more_often_unless_they_are_tiny(shape, rows, epochs, device):
    assert auto_recipe(shape, rows, 5, device).epochs == epochs


def test_own_survives_json_and_named_data_sets_do_not_show_it():
    own = Own(verified="a.txt", size=64, min_precision=0.9)
    run = Run("photos", own=own.to_json())
    back = Run.from_json(json.loads(json.dumps(run.to_json())))
    assert back == run
    assert Own.from_json(back.own) == own
    assert "own" not in Run("digits").to_json()
    assert Run.from_json(Run("digits").to_json()).own is None


@pytest.mark.parametrize("data", ["photos/", "./digits", "items.CSV", "a.parquet", "arrays.npz"])
def test_what_looks_like_a_path_is_one(data):
    assert is_path(data)


def test_verdicts_may_come_in_a_list_beside_a_table_or_arrays(tmp_path):
    write_table(tmp_path / "items.csv", verified=0)
    (tmp_path / "checked.csv").write_text("id,label,picked\nr3,kind 2,random\nr5,kind 1,chosen\n")
    rows = read_rows(str(tmp_path / "items.csv"), Own(verified=str(tmp_path / "checked.csv")))
    assert (rows.verified[3], rows.verified[5], rows.verified.count(None)) == ("kind 2", "kind 1", 398)
    assert (rows.picked[3], rows.picked[5]) == ("random", "chosen")
    x, given, _ = make_blobs(20)
    np.savez(tmp_path / "x.npz", x=x, labels=given)
    (tmp_path / "list.txt").write_text("7\n")
    rows = read_rows(str(tmp_path / "x.npz"), Own(verified=str(tmp_path / "list.txt")))
    assert rows.verified[7] == str(given[7])


def test_a_list_may_name_a_class_that_no_row_of_a_table_is_given(tmp_path):
    (tmp_path / "items.csv").write_text("a,label,verified_label\n1,NA,\n2,dog,dog\n3,cat,eel\n4,dog,\n")
    (tmp_path / "checked.csv").write_text("id,label\n0,fox\n")
    rows = read_rows(str(tmp_path / "items.csv"), Own(verified=str(tmp_path / "checked.csv")))
    assert rows.class_names == ("NA", "cat", "dog", "eel", "fox")
    assert rows.verified_codes().tolist() == [4, 2, 3, -1]
    assert len(rows.notes) == len(set(rows.notes)) == 2
    assert any("no row has the given label 'eel'" in note for note in rows.notes)


def test_a_list_says_how_a_row_was_picked_and_else_the_table_does(tmp_path):
    table = "id,a,label,verified_label,picked\nr0,1,cat,dog,chosen\nr1,2,dog,dog,chosen\nr2,3,cat,,\n"
    (tmp_path / "items.csv").write_text(table)
    (tmp_path / "checked.csv").write_text("id,label,picked\nr0,dog,random\nr1,dog,\nr2,cat,\n")
    rows = read_rows(str(tmp_path / "items.csv"), Own(verified=str(tmp_path / "checked.csv")))
    assert rows.picked == ("random", "chosen", "random")


def test_new_rows_are_read_as_the_model_knows_them(tmp_path):
    write_table(tmp_path / "items.csv")
    task = make_own_task(read_rows(str(tmp_path / "items.csv"), Own()), seed=0)
    data = {"mean": task.mean, "std": task.std}
    (tmp_path / "new.csv").write_text("f5,f4,f3,f2,f1,f0\n5,4,3,2,1,0\n")
    model = {"class_names": task.class_names, "shape": task.shape, "features": task.features}
    rows = read_rows(str(tmp_path / "new.csv"), Own(), labelled=False, **model)
    new = make_test_task(rows, data)
    assert new.x.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert (new.mean, new.std, new.split.test.tolist()) == (task.mean, task.std, [0])
    np.savez(tmp_path / "new.npz", x=np.zeros((3, 5)))
    with pytest.raises(ValueError, match="examples of 5 features, but the model was trained on 6 features; give"):
        read_rows(str(tmp_path / "new.npz"), Own(), labelled=False, **model)


def test_some_rows_of_what_is_known_can_be_taken():
    no = np.zeros(3, bool)
    known = Known(("a", "b", "c"), np.arange(3), np.array([-1, 0, 1]), ~no, np.array([False, True, False]))
    assert known.trained.tolist() == [False, False, True]
    some = known.take(np.array([2, 0]))
    assert (some.ids, some.given.tolist(), some.trained.tolist()) == (("c", "a"), [2, 0], [True, False])
