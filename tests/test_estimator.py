"""FasTENClassifier is what scikit-learn expects of a classifier, and what `fasten train` does."""

import json
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import fasten.cli
import fasten.estimator
import fasten.runs.training
from fasten import FasTENClassifier, records
from fasten.runs.checkpoint import read_tensors, write_tensors

PAGE = Path(__file__).parent.parent / "docs" / "python.md"
NOTHING_VERIFIED = "ignore:there are no verified rows:UserWarning"
UNSHOWN = "nothing shows that the corrections do more good than harm"

pytestmark = pytest.mark.filterwarnings(f"ignore:{UNSHOWN}:UserWarning")  # most tests have few held-back rows


def make_data(rows=240, num_classes=3, seed=0, noise=0.3):
    """Separable rows, their true labels, labels of which some are wrong, and one row in five verified (else -1)."""
    rng = np.random.default_rng(seed)
    truth = np.arange(rows) % num_classes
    x = rng.normal(size=(rows, 5)) + 4 * np.eye(num_classes, 5)[truth]
    given = np.where(rng.random(rows) < noise, (truth + 1) % num_classes, truth)
    return x, truth, given, np.where(rng.random(rows) < 0.2, truth, -1)


@parametrize_with_checks([FasTENClassifier()])
@pytest.mark.filterwarnings(NOTHING_VERIFIED)
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)


def test_it_sees_through_wrong_labels():
    x, truth, given, verified = make_data()
    clf = FasTENClassifier().fit(x, given, y_verified=verified)
    assert np.mean(given == truth) < 0.75
    assert clf.score(x, truth) > 0.97
    assert np.mean(clf.corrected_labels_ == truth) > 0.97
    np.testing.assert_allclose(clf.transition_matrix_.sum(1), 1)
    assert clf.evidence_["num_random"] == (verified >= 0).sum()


@pytest.mark.parametrize("surroundings", [torch.no_grad, torch.inference_mode])
def test_it_trains_where_torch_follows_no_gradients(surroundings):
    x, _, given, verified = make_data(60)
    plain = FasTENClassifier(net=make_net(), epochs=2).fit(x, given, y_verified=verified)
    with surroundings():
        clf = FasTENClassifier(net=make_net(), epochs=2).fit(x, given, y_verified=verified)
        found = clf.predict_proba(x)
        again = clf.fit(x, given, y_verified=verified).predict_proba(x)
    for p in (found, again, clf.predict_proba(x)):
        np.testing.assert_array_equal(p, plain.predict_proba(x))


def test_a_device_may_come_as_torch_has_it(tmp_path):
    x, _, given, verified = make_data(60)
    clf = clone(FasTENClassifier(epochs=2, device=torch.device("cpu"))).fit(x, given, y_verified=verified)
    named = FasTENClassifier(epochs=2, device="cpu").fit(x, given, y_verified=verified)
    np.testing.assert_array_equal(clf.predict_proba(x), named.predict_proba(x))
    clf.save(tmp_path / "clf")
    loaded = FasTENClassifier.load(tmp_path / "clf", device=torch.device("cpu"))
    np.testing.assert_array_equal(loaded.predict_proba(x), named.predict_proba(x))
    with pytest.raises(ValueError, match="unknown device 'gpu'; known: auto"):
        FasTENClassifier(epochs=2, device="gpu").fit(x, given, y_verified=verified)


def test_columns_of_which_float32_keeps_little_are_noted():
    x, _, given, verified = make_data(60)
    x[:, 1] += 1e9
    frame = pd.DataFrame(x, columns=list("abcde"))
    for rows, name in ((x, "1"), (torch.tensor(x), "1"), (x.tolist(), "1"), (frame, "'b'")):
        clf = FasTENClassifier(epochs=1).fit(rows, given, rows[:3], given[:3], verified)
        (note,) = [note for note in clf.notes_ if "float32" in note]
        assert f"the numbers in the column {name} are so large" in note
    centred = FasTENClassifier(epochs=1).fit(x - x.mean(0), given, y_verified=verified)
    assert not any("float32" in note for note in centred.notes_)


def test_numbers_beyond_float32_are_refused():
    x, _, given, _ = make_data(60)
    with pytest.raises(ValueError, match=r"x holds 1e\+39 in row 7, column 2; give finite numbers in float32's range"):
        FasTENClassifier(epochs=1).fit(np.where(np.arange(300).reshape(60, 5) == 37, 1e39, x), given)


def test_verdicts_on_easy_rows_alone_are_no_random_sample_and_it_warns():
    x, truth, given, verified = make_data(300)
    easy = np.argsort(given != truth, kind="stable")[:150]
    verified[:] = -1
    verified[easy] = truth[easy]
    with pytest.warns(UserWarning, match="their labels look less wrong to the model"):
        clf = FasTENClassifier(epochs=5).fit(x, given, y_verified=verified)
    assert "their labels look less wrong" in clf.notes_[-1]


def test_a_class_of_what_numpy_makes_of_a_blank_is_noted():
    x, _, given, _ = make_data(60)
    texts = np.array([np.nan] * 3 + [["cat", "dog", "emu"][number] for number in given[3:]])
    clf = FasTENClassifier(epochs=1).fit(x, texts, X_clean=x[3:], y_clean=texts[3:])
    assert sum("a class is made of the 3 rows with the label 'nan'" in note for note in clf.notes_) == 1
    assert "nan" in clf.classes_


def test_a_verdict_that_is_no_given_label_is_noted():
    x, _, given, verified = make_data(60)
    verdicts = [["cat", "dog", "emu"][number] if number >= 0 else None for number in verified]
    verdicts[7] = "dgo"
    clf = FasTENClassifier(epochs=1).fit(x, np.array(["cat", "dog", "emu"])[given], y_verified=verdicts)
    note = "the data: no row has the given label 'dgo', but '7' is verified as it; is it spelled correctly?"
    assert clf.notes_.count(note) == 1


def test_the_table_is_that_of_the_rows_of_x():
    x, truth, given, verified = make_data()
    clf = FasTENClassifier(epochs=5).fit(x, given, y_verified=verified)
    table = clf.label_issues_.sort_values("row")
    assert table["row"].tolist() == list(range(len(x)))
    assert table["given"].tolist() == given.tolist()
    assert table["corrected"].tolist() == clf.corrected_labels_.tolist()
    assert table["corrected"].tolist() == table["suggested"].where(table["is_issue"], table["given"]).tolist()
    settled = table["picked"].isin(["random"])  # verified, and not held back
    assert 0 < (table["picked"] == "held").sum() < settled.sum()
    assert (table["corrected"][settled] == truth[settled]).all()


INDEXES = {
    "shuffled": (list(range(60))[::-1], True),
    "texts": ([f"patient {row}" for row in range(60)], True),
    "dates": (pd.date_range("2024-01-01", periods=60), True),
    "two levels": (pd.MultiIndex.from_product([["a", "b"], range(30)]), True),
    "repeated": ([0, 1] * 30, False),
    "alike as texts": ([*range(59), "7"], False),
    "blank": ([*range(59), " "], False),
}


@pytest.mark.parametrize("kind", INDEXES)
def test_ids_are_the_index_of_a_frame_where_it_names_each_row(kind):
    x, _, given, verified = make_data(60)
    index, names = INDEXES[kind]
    frame = pd.DataFrame(x, index=index)
    clf = FasTENClassifier(epochs=1).fit(frame, given, x[:2], given[:2], verified)
    rows = clf.label_issues_["row"].tolist()
    ids = frame.index if names else range(60)
    assert clf.label_issues_["id"].tolist() == [str(ids[row]) for row in rows]
    assert clf.label_issues_["given"].tolist() == given[rows].tolist()


def test_further_clean_rows_may_bring_a_new_class():
    x, truth, given, _ = make_data()
    known, rare = truth < 2, truth == 2
    clf = FasTENClassifier(epochs=5)
    clf.fit(x[known], given[known] % 2, X_clean=x[rare][:20], y_clean=truth[rare][:20])
    assert clf.classes_.tolist() == [0, 1, 2]
    assert len(clf.corrected_labels_) == known.sum()
    found = [np.mean(clf.predict(x[rows]) == 2) for rows in (rare, known)]
    assert found[0] > found[1] + 0.2, "rows of the new class are told from others, which no clean row shows"


def test_a_class_that_verdicts_alone_name_is_learnt_in_a_short_run():
    """Of 90 updates: T̂ of the noisy rows must not keep what it started with."""
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth, means = np.arange(240) % 3, 4 * np.eye(4)
        given = np.where(rng.random(240) < 0.3, (truth + 1) % 3, truth)
        given = np.where(given == 2, 0, given)
        verified = np.where(rng.random(240) < 0.3, truth, -1)
        x, new = rng.normal(size=(240, 4)) + means[truth], rng.normal(size=(300, 4)) + means[2]
        clf = FasTENClassifier(random_state=seed).fit(x, given, y_verified=verified)
        found.append((clf.predict(new) == 2).mean())
    assert np.mean(found) > 0.8


def test_verdicts_have_the_last_word_in_the_repaired_labels():
    x, _, given, verified = make_data()
    checked = np.flatnonzero(verified >= 0)
    clf = FasTENClassifier(epochs=1, min_precision=0.999).fit(x, given, y_verified=verified)
    assert (given[checked] != verified[checked]).any()
    np.testing.assert_array_equal(clf.corrected_labels_[checked], verified[checked])


def test_it_does_what_fasten_train_does(tmp_path):
    x, _, given, verified = make_data()
    np.savez(tmp_path / "rows.npz", x=x, labels=given, verified=verified)
    place = ["--out", str(tmp_path / "run"), "--device", "cpu"]
    wanted = ["--epochs", "4", "--seed", "3", "--no-references", *place]
    assert fasten.cli.main(["train", str(tmp_path / "rows.npz"), *wanted]) == 0
    clf = FasTENClassifier(epochs=4, device="cpu", random_state=3).fit(x, given, y_verified=verified)
    table = pd.read_csv(tmp_path / "run" / "labels.csv", keep_default_na=False)
    columns = ["row", "id", "given", "suggested", "is_issue", "corrected", "picked"]
    assert table[columns].to_numpy().tolist() == clf.label_issues_.astype({"id": int})[columns].to_numpy().tolist()
    np.testing.assert_allclose(table["p_wrong"], clf.label_issues_["p_wrong"], rtol=1e-5)  # six digits on disk


@pytest.mark.parametrize("method", ["fasten", "l2rw", "deep-knn", "glc", "cross-entropy"])
def test_it_trains_as_long_and_as_fast_as_fasten_train(tmp_path, monkeypatch, method):
    """Where it is left to it; with so many rows that they matter, verified ones among them."""
    runs = []

    def stop(run, *rest):
        runs.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(fasten.runs.training, "train", stop)
    monkeypatch.setattr(fasten.estimator, "fit_task", stop)
    x, _, given, verified = make_data(60_000)
    np.savez(tmp_path / "rows.npz", x=x, labels=given, verified=verified)
    options = ["--method", method, "--device", "cpu", "--json", "--out", str(tmp_path / "run")]
    assert fasten.cli.main(["train", str(tmp_path / "rows.npz"), *options]) == 130
    with pytest.raises(KeyboardInterrupt):
        FasTENClassifier(epochs=None, method=method, device="cpu").fit(x, given, y_verified=verified)
    assert runs[0].recipe == runs[1].recipe
    assert runs[0].options == runs[1].options


def test_a_batch_of_one_row_is_refused():
    x, _, given, verified = make_data()
    with pytest.raises(ValueError, match=r"one noisy row of the data, .* batch norm"):
        FasTENClassifier(batch_size=1, device="cpu").fit(x, given, y_verified=verified)


@pytest.mark.parametrize(("right", "words"), [(True, UNSHOWN), (False, "only 0 of .* are right: keep the labels")])
def test_it_warns_once_where_held_back_rows_do_not_show_that_corrections_do_good(right, words):
    x, truth, given, verified = make_data()
    if not right:  # a few wrong labels are said to be right
        verified = np.where(np.isin(np.arange(240), np.flatnonzero(given != truth)[:9]), given, -1)
    with pytest.warns(UserWarning, match=words) as caught:
        clf = FasTENClassifier(epochs=10).fit(x, given, x, truth, verified)
    assert [str(warning.message) for warning in caught].count(clf.evidence_["doubt"]) == 1
    assert caught[0].filename == __file__
    assert clf.evidence_["doubt"] in clf.notes_


def test_without_any_verified_row_it_warns_once_and_trains_on_the_labels_as_given():
    x, _, given, _ = make_data()
    with pytest.warns(UserWarning, match="labels as given") as caught:
        clf = FasTENClassifier(epochs=3, threshold=0.9).fit(x, given)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    plain = FasTENClassifier(epochs=3, method="cross-entropy").fit(x, given)  # for which none are needed: no warning
    np.testing.assert_array_equal(clf.predict_proba(x), plain.predict_proba(x))


@pytest.mark.parametrize("depends", [False, True])
def test_it_warns_where_errors_depend_on_the_example_and_only_there(depends):
    x, truth, _, _ = make_data(1500, noise=0)
    rng = np.random.default_rng(1)
    rows = np.arange(1500)
    hard = x[rows, truth] - x[rows, (truth + 1) % 3] < 3.2  # they look like the class that they are taken for
    wrong = rng.random(1500) < (np.where(hard, 0.7, 0.05) if depends else 0.3)
    verified = np.where(rows < 400, truth, -1)
    clf = FasTENClassifier(epochs=5).fit(x, np.where(wrong, (truth + 1) % 3, truth), y_verified=verified)
    assert any("instance-dependent" in note for note in clf.notes_) == depends


def test_the_same_random_state_gives_the_same_classifier_and_leaves_torchs_alone():
    x, _, given, verified = make_data()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    p = [
        FasTENClassifier(epochs=2, random_state=seed).fit(x, given, y_verified=verified).predict_proba(x)
        for seed in (1, 1, 2, np.random.RandomState(5))
    ]
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(p[0], p[1])
    assert (p[0] != p[2]).any()


def same_labels(kind):
    """The labels 0, 1, 2, and -1 for none, as other kinds of values in the same order."""
    return {
        "texts": (np.array(["ape", "bee", "cat"]), None),
        "objects": (np.array(["ape", "bee", "cat"], object), None),
        "numbers as texts": (np.array(["1", "10", "9"]), ""),  # scikit-learn sorts them as texts
        "floats": (np.array([0.0, 1.0, 7.0]), np.nan),
        "numbers": (np.array([-5, 0, 3]), None),
    }[kind]


@pytest.mark.parametrize("kind", ["texts", "objects", "numbers as texts", "floats", "numbers"])
def test_labels_of_any_kind_come_back_as_they_came(kind):
    x, _, given, verified = make_data()
    names, blank = same_labels(kind)
    as_numbers = FasTENClassifier(epochs=2).fit(x, given, y_verified=verified)
    verdicts = [names[v] if v >= 0 else blank for v in verified]
    clf = FasTENClassifier(epochs=2).fit(x, names[given], y_verified=verdicts)
    np.testing.assert_array_equal(clf.predict_proba(x), as_numbers.predict_proba(x))
    assert clf.classes_.tolist() == names.tolist()
    assert clf.predict(x).tolist() == names[as_numbers.predict(x)].tolist()
    assert clf.corrected_labels_.tolist() == names[as_numbers.corrected_labels_].tolist()
    assert clf.label_issues_["suggested"].tolist() == names[as_numbers.label_issues_["suggested"]].tolist()


def test_a_fit_that_fails_leaves_no_classes_beside_an_earlier_network():
    x, _, given, verified = make_data(60)
    clf = FasTENClassifier(epochs=1).fit(x, given, y_verified=verified)
    with pytest.raises(ValueError, match="diverged"):
        clf.set_params(rate=1e20).fit(x, given + 5, y_verified=np.where(verified < 0, -1, verified + 5))
    with pytest.raises(NotFittedError):
        clf.predict(x)


def test_dropout_draws_from_the_random_state_too_and_leaves_torchs_alone():
    x, _, given, verified = make_data(60)
    torch.manual_seed(1)
    before, p = torch.get_rng_state(), []
    for state in (1, 1, 2):
        net = nn.Sequential(make_net(), nn.Dropout(0.5))
        p.append(FasTENClassifier(net=net, epochs=2, random_state=state).fit(x, given, y_verified=verified))
        assert torch.equal(before, torch.get_rng_state())
        torch.rand(1)  # what the user does in between moves nothing
        before = torch.get_rng_state()
    p = [clf.predict_proba(x) for clf in p]
    np.testing.assert_array_equal(p[0], p[1])
    assert (p[0] != p[2]).any()
    with pytest.raises(ValueError, match="diverged"):
        FasTENClassifier(net=net, epochs=2, rate=1e20).fit(x, given, y_verified=verified)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("loaded", [False, True])
def test_a_thread_that_ends_its_prediction_does_not_disturb_another(tmp_path, loaded):
    x, _, given, verified = make_data(60)
    first_began, second_began, first_ended = threading.Event(), threading.Event(), threading.Event()
    modes = []

    class Watched(nn.Identity):
        def forward(self, x):
            if threading.current_thread().name == "first":
                first_began.set()
                assert second_began.wait(30)
            elif first_began.is_set():
                second_began.set()
                assert first_ended.wait(30)
                modes.append(self.training)
            return x

    net = nn.Sequential(Watched(), make_net())
    clf = FasTENClassifier(net=net, epochs=1).fit(x, given, y_verified=verified)
    if loaded:
        clf.save(tmp_path / "saved")
        clf = FasTENClassifier.load(tmp_path / "saved", net=net)
    first, second = (threading.Thread(target=clf.predict_proba, args=[x], name=name) for name in ("first", "second"))
    first.start()
    assert first_began.wait(30)
    second.start()
    first.join()
    first_ended.set()
    second.join()
    assert modes == [False]


def test_fits_in_threads_that_overlap_leave_torchs_generator_as_it_was(monkeypatch):
    x, _, given, verified = make_data(60)
    both, one_left, fit_task = threading.Barrier(2), threading.Event(), fasten.estimator.fit_task
    torch.manual_seed(1)
    before = torch.get_rng_state()

    def together(*told):
        both.wait(30)
        if threading.current_thread().name == "last":
            one_left.wait(30)
        return fit_task(*told)

    def fit():
        FasTENClassifier(epochs=1).fit(x, given, y_verified=verified)
        one_left.set()

    monkeypatch.setattr(fasten.estimator, "fit_task", together)
    threads = [threading.Thread(target=fit, name=name) for name in ("first", "last")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(before, torch.get_rng_state())


def truths(kind, values, checked):
    """Labels 0 and 1 as other kinds have them; none where nobody checked."""
    truth = values.astype(bool)
    blank = np.where(checked, truth.astype(object), None)
    return {
        "numbers": np.where(checked, values, -1),
        "floats": np.where(checked, values, np.nan),
        "truths": truth if checked.all() else blank,
        "objects": blank,
        "nullable": pd.Series(blank, dtype="boolean"),
        "nullable numbers": pd.Series(np.where(checked, values.astype(object), None), dtype="Int8"),
    }[kind]


@pytest.mark.parametrize("verdicts", ["numbers", "floats", "truths", "nullable", "nullable numbers"])
@pytest.mark.parametrize("labels", ["numbers", "floats", "truths", "objects", "nullable", "nullable numbers"])
def test_truth_values_are_0_and_1_where_the_labels_are(labels, verdicts):
    x, truth, given, verified = make_data(60, 2)
    checked, everywhere = verified >= 0, np.ones(60, bool)
    plain = FasTENClassifier(epochs=1).fit(x, given, x[:2], [0, 1], verified)
    y, y_clean = truths(labels, given, everywhere), truths(verdicts, np.array([0, 1]), everywhere[:2])
    clf = FasTENClassifier(epochs=1).fit(x, y, x[:2], y_clean, truths(verdicts, truth, checked))
    np.testing.assert_array_equal(clf.predict_proba(x), plain.predict_proba(x))
    kinds = {"numbers": np.int64, "floats": np.float64, "nullable numbers": np.int8}
    assert clf.classes_.dtype == clf.predict(x).dtype == clf.corrected_labels_.dtype == kinds.get(labels, np.bool_)
    assert clf.label_issues_["suggested"].tolist() == plain.label_issues_["suggested"].tolist()  # True == 1


def test_arrays_tensors_frames_and_lists_are_the_same_rows():
    x, _, given, verified = make_data(60)
    x = x.astype(np.float32)
    plain = FasTENClassifier(epochs=2).fit(x, given, y_verified=verified).predict_proba(x)
    frame = pd.DataFrame(x, columns=list("abcde"))
    ways = {
        "tensors": (torch.tensor(x), torch.tensor(given), torch.tensor(verified)),
        "frames": (frame, pd.Series(given), pd.Series(verified).where(verified >= 0)),
        "lists": (x.tolist(), given.tolist(), [v if v >= 0 else None for v in verified.tolist()]),
    }
    for rows, y, v in ways.values():
        clf = FasTENClassifier(epochs=2).fit(rows, y, y_verified=v)
        np.testing.assert_array_equal(clf.predict_proba(rows), plain)
        assert hasattr(clf, "feature_names_in_") == (rows is frame)


def test_it_is_tuned_and_scored_with_its_verified_rows():
    x, _, given, verified = make_data(150)
    folds = KFold(3)
    scores = cross_val_score(FasTENClassifier(epochs=2), x, given, cv=folds, params={"y_verified": verified})
    by_hand = [
        FasTENClassifier(epochs=2).fit(x[a], given[a], y_verified=verified[a]).score(x[b], given[b])
        for a, b in folds.split(x)
    ]
    assert scores.tolist() == by_hand
    search = GridSearchCV(FasTENClassifier(), {"epochs": np.array([1, 2])}, cv=2).fit(x, given, y_verified=verified)
    assert search.best_estimator_.evidence_ is not None


def test_it_stands_in_a_pipeline(tmp_path):
    x, _, given, verified = make_data(90)
    pipe = make_pipeline(StandardScaler(), FasTENClassifier(epochs=2))
    pipe.fit(x, given, fastenclassifier__y_verified=verified)
    scaled = StandardScaler().fit_transform(x)
    direct = FasTENClassifier(epochs=2).fit(scaled, given, y_verified=verified)
    np.testing.assert_array_equal(pipe.predict_proba(x), direct.predict_proba(scaled))


def test_a_pipeline_can_transform_the_clean_rows_too():
    x, truth, given, _ = make_data(90)
    with sklearn.config_context(enable_metadata_routing=True):
        last = FasTENClassifier(epochs=2).set_fit_request(X_clean=True, y_clean=True)
        pipe = Pipeline([("scale", StandardScaler()), ("clf", last)], transform_input=["X_clean"])
        pipe.fit(x[9:], given[9:], X_clean=x[:9], y_clean=truth[:9])
    scaler = StandardScaler().fit(x[9:])
    direct = FasTENClassifier(epochs=2)
    direct.fit(scaler.transform(x[9:]), given[9:], X_clean=scaler.transform(x[:9]), y_clean=truth[:9])
    np.testing.assert_array_equal(pipe.predict(x), direct.predict(scaler.transform(x)))


def make_images(rows=60):
    rng = np.random.default_rng(0)
    truth = np.arange(rows) % 2
    images = rng.integers(0, 60, (rows, 8, 8, 1)) + 150 * truth[:, None, None, None]
    return images.astype(np.uint8), np.array(["dark", "light"])[truth]


def test_images_come_as_arrays_or_as_files(tmp_path):
    images, truth = make_images()
    verdicts = np.where(np.arange(60) < 30, truth, None)
    clf = FasTENClassifier(epochs=3).fit(images, truth, y_verified=verdicts)
    assert clf.score(images, truth) > 0.9
    assert not hasattr(clf, "n_features_in_")
    paths = [tmp_path / f"{row}.png" for row in range(60)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image[..., 0]).save(path)
    files = FasTENClassifier(epochs=3).fit([str(path) for path in paths], truth, y_verified=verdicts)
    np.testing.assert_array_equal(files.predict_proba(pd.Series(paths)), clf.predict_proba(images))
    np.testing.assert_array_equal(files.predict(paths[:2] * 2), [*truth[:2], *truth[:2]])
    assert set(files.label_issues_["id"]) == {path.as_posix() for path in paths}
    with pytest.raises(
        ValueError, match="examples of 4×4 pixels in grey, but the classifier was fitted to 8×8 pixels in grey"
    ):
        clf.predict(images[:, :4, :4])
    with pytest.raises(ValueError, match=r"column 'path' names files such as .*; pass it alone"):
        files.predict(pd.DataFrame({"path": paths}))
    paths[3].write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"3\.png"):
        files.predict(paths)


def make_net(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 16), nn.ReLU())


def test_a_module_of_ones_own_is_copied_and_trained():
    x, truth, given, verified = make_data()
    net = make_net()
    before = [p.clone() for p in net.parameters()]
    clf = clone(FasTENClassifier(net=net, epochs=10))
    assert clf.net is not net
    clf.fit(x, given, y_verified=verified)
    assert clf.score(x, truth) > 0.9
    assert all(torch.equal(a, b) for a, b in zip(before, clf.net.parameters(), strict=True))


def test_what_of_a_module_needs_no_gradient_stays_as_it_is():
    x, _, given, verified = make_data()
    net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
    net[0].requires_grad_(False)
    clf = FasTENClassifier(net=net, epochs=10).fit(x, given, y_verified=verified)
    trained = clf._fitted.method.net.backbone.net
    assert torch.equal(trained[0].weight, net[0].weight)
    assert not torch.equal(trained[2].weight, net[2].weight)
    frozen = FasTENClassifier(net=net, frozen=True, epochs=10).fit(x, given, y_verified=verified)
    assert torch.equal(frozen._fitted.method.state_dict()["net.backbone.net.net.2.weight"], net[2].weight)


@pytest.fixture
def fitted():
    x, _, given, verified = make_data(90)
    names = np.array(["ape", "bee", "=1+1"])
    frame = pd.DataFrame(x, columns=list("abcde"))
    verdicts = [names[v] if v >= 0 else None for v in verified]
    clf = FasTENClassifier(epochs=np.int64(2), rate=0.05).fit(frame, names[given], y_verified=verdicts)
    return clf, frame


@pytest.mark.parametrize("kind", [list, tuple, pd.Series, lambda labels: np.array(labels, object)])
def test_labels_of_two_kinds_are_refused(kind):
    x = np.eye(6)
    with pytest.raises(ValueError, match="both texts and numbers"):
        FasTENClassifier().fit(x, kind([1, "x"] * 3), y_verified=[1, "x", None, None, None, None])


@pytest.mark.parametrize("kind", ["list", "object", "string", "category", "Int64"])
def test_a_missing_label_is_named_by_its_row(kind):
    labels = [1, 0, None, 1] if kind == "Int64" else ["ape", "bee", None, "ape"]
    y = labels if kind == "list" else pd.Series(labels, dtype=kind)
    with pytest.raises(ValueError, match="y holds no label in row 2; give one for each row"):
        FasTENClassifier(epochs=1).fit(np.eye(4), y)


def test_what_a_mask_hides_is_missing():
    x, truth, given, verified = make_data(60)
    plain = FasTENClassifier(epochs=1).fit(x, given, y_verified=verified)
    clf = FasTENClassifier(epochs=1).fit(x, given, y_verified=np.ma.masked_array(truth, verified < 0))
    pd.testing.assert_frame_equal(clf.label_issues_, plain.label_issues_)
    with pytest.raises(ValueError, match="y holds no label in row 3"):
        FasTENClassifier(epochs=1).fit(x, np.ma.masked_array(given, np.arange(60) == 3))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        FasTENClassifier(epochs=1).fit(np.ma.masked_array(x, x > 2), given)


def test_what_is_saved_comes_back(fitted, tmp_path):
    clf, x = fitted
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere for clf; make it first"):
        clf.save(tmp_path / "nowhere" / "clf")
    clf.save(tmp_path / "clf")
    assert [path.name for path in tmp_path.iterdir()] == ["clf"]
    loaded = FasTENClassifier.load(tmp_path / "clf")
    np.testing.assert_array_equal(loaded.predict_proba(x), clf.predict_proba(x))
    pd.testing.assert_frame_equal(loaded.label_issues_, clf.label_issues_)
    assert loaded.get_params() == clf.get_params()
    for name in ("classes_", "transition_matrix_", "corrected_labels_", "feature_names_in_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(clf, name))
    assert (loaded.evidence_, loaded.notes_, loaded.n_features_in_) == (clf.evidence_, clf.notes_, 5)


def test_the_matrices_of_many_classes_are_no_text_in_the_file(fitted, tmp_path, monkeypatch):
    """That would be slow and large; of text safetensors reads no more than 100 MB."""
    clf, _ = fitted
    clf.save(tmp_path / "few")
    monkeypatch.setattr(records, "LARGE", 2)
    clf.save(tmp_path / "many")
    for name, dimensions in [("few", 2), ("many", 1)]:
        stored = read_tensors(tmp_path / name)[1]["evidence"]["transition"]
        assert max(np.ndim(values) for values in stored.values()) == dimensions
        assert FasTENClassifier.load(tmp_path / name).evidence_ == clf.evidence_
    tensors, stored = read_tensors(tmp_path / "many")
    tensors["matrices"][60:] = 0
    write_tensors(tmp_path / "damaged", tensors, json.dumps(stored))
    found = FasTENClassifier.load(tmp_path / "damaged").evidence_
    assert found["transition"]["mean"] is None, "nothing else hangs on it"
    assert found["wrong"] == clf.evidence_["wrong"]


def test_numbers_are_saved_as_numbers(tmp_path):
    x, _, given, verified = make_data(60)
    clf = FasTENClassifier(epochs=1).fit(x, given, y_verified=verified)
    clf.save(tmp_path / "clf")
    loaded = FasTENClassifier.load(tmp_path / "clf")
    assert loaded.predict(x).dtype == clf.predict(x).dtype == np.int64
    pd.testing.assert_frame_equal(loaded.label_issues_, clf.label_issues_)


def test_a_module_of_ones_own_is_given_again_to_load(tmp_path):
    x, _, given, verified = make_data(60)
    clf = FasTENClassifier(net=make_net(), epochs=2).fit(x, given, y_verified=verified)
    clf.save(tmp_path / "clf")
    loaded = FasTENClassifier.load(tmp_path / "clf", net=make_net(seed=1))
    np.testing.assert_array_equal(loaded.predict_proba(x), clf.predict_proba(x))
    with pytest.raises(ValueError, match="a module of your own; give `load` one like it"):
        FasTENClassifier.load(tmp_path / "clf")
    with pytest.raises(ValueError, match="does not hold the weights of this network"):
        FasTENClassifier.load(tmp_path / "clf", net=nn.Linear(5, 7))


def test_a_network_that_uses_weights_twice_can_be_saved(tmp_path):
    def tied():
        net = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
        net[2].weight = net[0].weight
        return net

    x, _, given, verified = make_data(60)
    clf = FasTENClassifier(net=tied(), epochs=2).fit(x, given, y_verified=verified)
    clf.save(tmp_path / "clf")
    loaded = FasTENClassifier.load(tmp_path / "clf", net=tied())
    np.testing.assert_array_equal(loaded.predict_proba(x), clf.predict_proba(x))


@pytest.mark.parametrize("damage", ["cut", "flip", "text", "other"])
def test_a_damaged_file_is_refused(fitted, tmp_path, damage):
    clf, _ = fitted
    path = tmp_path / "clf"
    clf.save(path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    other = whole.replace(json.dumps(clf.notes_[0]).encode()[1:9], b"x" * 8)
    path.write_bytes({"cut": whole[:-100], "flip": bytes(flipped), "text": b"hello", "other": other}[damage])
    with pytest.raises(ValueError, match="damaged or not a saved classifier"):
        FasTENClassifier.load(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*nothing"):
        FasTENClassifier.load(tmp_path / "nothing")


WRONG = {
    "X_clean and y_clean come together, but one of them is missing; give both": {"X_clean": [[0] * 5]},
    "y_clean holds no label in row 1": {"X_clean": [[0] * 5] * 2, "y_clean": [1, None]},
    "3 verified labels for the 60 rows": {"y_verified": [0, 1, 2]},
    "y holds numbers, but a verified label does not": {"y_verified": ["cat"] + [None] * 59},
    "rows are verified as '7', '8', …, and none of these is a given label, but '0' is": {"y_verified": [7, 8] * 30},
    "rows are verified as 'ape', 'bee', …, and none": {"y_verified": list(np.array(["ape", "bee"] * 30))},
    "unknown picked 'rndom'": {"y_verified": [1] * 9 + [None] * 51, "picked": ["rndom"] * 60},
    "X has 4 features, but FasTENClassifier is expecting 5": {"X_clean": [[0] * 4], "y_clean": [1]},
    "no row whose label is in doubt": {"y_verified": [0, 1, 2] * 20, "picked": ["chosen"] * 60},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_is_wrong_with_the_rows_is_said_in_a_sentence(sentence):
    x, _, given, _ = make_data(60)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        FasTENClassifier(epochs=1).fit(x, given, **WRONG[sentence])


FRAMES = {
    "the column 'path' names files such as 'im/0.png'; pass it alone: X['path']": {"path": ["im/0.png"] * 60},
    "the column 'when' names files such as 'b.JPG'; pass it alone": {"when": [None, Path("b.JPG")] * 30},
    "the column 'kind' holds texts such as 'tin'; leave it out, or encode": {"kind": pd.Categorical(["tin"] * 60)},
    "the column 'note' holds texts such as 'no'; leave it out, or": {"size": ["1.5"] * 60, "note": [None, "no"] * 30},
}


@pytest.mark.parametrize("sentence", FRAMES)
def test_a_column_that_holds_no_numbers_is_named(sentence):
    x, _, given, verified = make_data(60)
    frame = pd.DataFrame({"a": x[:, 0], **FRAMES[sentence]})
    with pytest.raises(ValueError, match=re.escape(sentence)):
        FasTENClassifier(epochs=1).fit(frame, given, y_verified=verified)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        FasTENClassifier(epochs=1).fit(frame[["a"]], given, frame, given, verified)


def test_a_column_of_numbers_that_are_written_as_texts_is_taken():
    x, _, given, verified = make_data(60)
    frame = pd.DataFrame(x.astype(np.float32))
    plain, written = (FasTENClassifier(epochs=1).fit(f, given, y_verified=verified) for f in (frame, frame.astype(str)))
    np.testing.assert_array_equal(written.predict(frame.astype(object)), plain.predict(frame))


PARAMETERS = {
    "unknown method 'fastn'": {"method": "fastn"},
    "unknown network 'mpl'": {"net": "mpl"},
    "net takes a name or a module, got <class 'torch.nn.modules.flatten.Flatten'>; give a module": {"net": nn.Flatten},
    "epochs takes a whole number, got '1.5'": {"epochs": 1.5},
    "rate must be above 0, got -1": {"rate": -1},
    "clean-only has no threshold, at which FasTEN corrects labels": {"method": "clean-only", "threshold": 0.5},
    "the weights start.safetensors are not there; give a .safetensors file": {"weights": "start.safetensors"},
    "the precision to keep must be between 0 and 1": {"min_precision": 95},
    "training diverged in epoch": {"rate": 1e20},
}


@pytest.mark.parametrize("sentence", PARAMETERS)
def test_what_is_wrong_with_a_parameter_is_said_at_fit(sentence):
    x, _, given, verified = make_data(60)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        FasTENClassifier(**{"epochs": 2, **PARAMETERS[sentence]}).fit(x, given, y_verified=verified)


def test_two_spellings_of_one_label_are_refused():
    x, _, given, _ = make_data(60)
    labels = np.array(["cat", "dog", "Dog"])[given]
    with pytest.raises(ValueError, match="'Dog' and 'dog' differ only in how they are written"):
        FasTENClassifier().fit(x, labels)


def test_min_precision_corrects_nothing_that_it_cannot_show():
    x, _, given, verified = make_data()
    clf = FasTENClassifier(epochs=5, min_precision=0.99).fit(x, given, y_verified=verified)
    nobody = clf.label_issues_["picked"] == ""
    assert not clf.label_issues_["is_issue"][nobody].any()
    assert any("cannot show a precision of 0.99" in note for note in clf.notes_)


def test_more_stages_than_epochs_are_noted():
    x, _, given, verified = make_data(60)
    for epochs, expected in ((1, 1), (2, 0)):
        clf = FasTENClassifier(epochs=epochs, method="glc").fit(x, given, y_verified=verified)
        assert sum("2 epochs are trained, not 1" in note for note in clf.notes_) == expected


def test_the_page_on_python_runs_and_repairs_its_labels(folder):
    names = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", UNSHOWN, UserWarning)  # of two thirds of the rows, in a search
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(code, names)
    assert np.mean(names["y"] == names["truth"]) < 0.7
    assert np.mean(names["repaired"] == names["truth"]) > 0.9
    np.testing.assert_array_equal(names["same"].predict(names["X"]), names["clf"].predict(names["X"]))
    np.testing.assert_array_equal(names["again"].predict(names["X"]), names["own"].predict(names["X"]))


def test_importing_fasten_does_not_wait_for_torch_scikit_learn_and_pandas():
    code = (
        "import sys, fasten; print(sorted({'torch', 'sklearn', 'pandas', 'jinja2'} & set(sys.modules)));"
        "from fasten import FasTENClassifier, observe; import fasten.observing; print(callable(fasten.observe))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.stdout.split() == ["[]", "True"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fasten.nothing  # noqa: B018


def test_training_on_a_cpu_does_not_wait_for_the_compiler_of_torch():
    """A second, which several of torch's classes would take."""
    code = (
        "import sys, numpy as np; from fasten import FasTENClassifier;"
        "x, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2;"
        "FasTENClassifier(epochs=1, device='cpu').fit(x, y, y_verified=y).predict(x);"
        "print('torch._dynamo' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert found.stdout.split() == ["False"], found.stderr
