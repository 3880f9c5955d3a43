"""The gallery of suspect rows, and the page's sections on users' own data."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import asdict
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, settings
from hypothesis import given as draw
from hypothesis import strategies as st
from PIL import Image

import fasten.audit.gallery as gallery_module
from builders import label_table, make_tiny_task
from example_record import example_record
from fasten.audit import judge
from fasten.audit.calibration import reliability
from fasten.audit.evidence import gather
from fasten.audit.gallery import make_gallery, thumbnail, write_gallery
from fasten.data.task import Known
from fasten.report import read_gallery, render
from fasten.report.trust import Share, trust_of
from test_report import EVIL, Page, all_null

PIXEL = thumbnail(np.zeros((4, 4, 1), np.uint8))


def table_of(pairs: list[tuple[str, str]], verified: list[str] | None = None) -> pd.DataFrame:
    """A label table with these labels, given and suggested, p_wrong falling."""
    n = len(pairs)
    table = pd.DataFrame({"row": np.arange(n), "id": [f"r{row}" for row in range(n)]})
    table = table.assign(given=[g for g, _ in pairs], suggested=[s for _, s in pairs])
    table = table.assign(p_wrong=np.linspace(0.99, 0.51, n), p_suggested=0.8, is_issue=True)
    return table if verified is None else table.assign(verified=verified)


def decoded(uri: str) -> np.ndarray:
    head, _, body = uri.partition(",")
    assert re.fullmatch("data:image/(png|jpeg);base64", head)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))


def evidence(min_precision: float | None = 0.9) -> dict:
    """What 300 verified rows of three classes say of a model that is mostly right."""
    return json.loads(_evidence(min_precision))


@cache
def _evidence(min_precision: float | None) -> str:
    rng = np.random.default_rng(0)
    truth, n = rng.integers(3, size=300), 300
    given = np.where(rng.random(n) < 0.3, (truth + 1) % 3, truth)
    p_wrong = np.clip((given != truth) * 0.8 + rng.random(n) * 0.2, 0, 1)[:, None]
    other = np.where(given == truth, (truth + 1) % 3, truth)
    judged = judge((1 - p_wrong) * np.eye(3)[given] + p_wrong * np.eye(3)[other], given)
    held = np.arange(n) % 3 == 0
    known = Known(tuple(map(str, range(n))), given, truth, np.ones(n, bool), held)
    found = gather(known, judged, np.eye(3)[truth] * 0.8 + 0.1, min_precision)
    return json.dumps(found.to_json())


@cache
def plain_page() -> Page:
    return Page(render(own_record(), make_gallery(table_of([("a", "b")] * 2), lambda row: None if row else PIXEL)))


def own_record(**changes) -> dict:
    record = example_record(3, 2)
    record["run"] |= {"noise": "none", "own": {"verified": "checked.txt", "clean": "good photos"}, "dataset": "photos"}
    record["data"] |= {"class_names": ["cat", "dog", "emu"], "noise_rate": None}
    record["evaluation"]["evidence"] = evidence()
    return record | changes


def test_rows_stand_with_their_pair_most_frequent_first():
    pairs = [("a", "b"), ("a", "c"), ("a", "b"), ("b", "b"), ("a", "b")]
    made = make_gallery(table_of(pairs), lambda row: None)
    assert [(p["given"], p["suggested"], p["rows"]) for p in made["pairs"]] == [("a", "b", 3), ("a", "c", 1)]
    assert [item["row"] for item in made["pairs"][0]["items"]] == [0, 2, 4]
    assert made["pairs"][0]["share"] == 0.75
    assert (made["rows"], made["issues"], made["corrected"]) == (5, 5, 4)


def test_verified_rows_are_settled_and_not_shown():
    made = make_gallery(table_of([("a", "b")] * 3, ["b", "", ""]), lambda row: None)
    assert [item["row"] for item in made["pairs"][0]["items"]] == [1, 2]


def test_the_gallery_of_many_rows_and_pairs_stays_small():
    pairs = [(f"c{row % 40}", f"c{(row // 40) % 40}") for row in range(20_000)]
    picture = "data:image/png;base64," + "A" * 30_000
    made = make_gallery(table_of(pairs), lambda row: picture)
    assert len(made["pairs"]) == gallery_module.MAX_PAIRS
    assert made["num_pairs"] == 1560
    assert sum(len(pair["items"]) for pair in made["pairs"]) <= gallery_module.MAX_ROWS
    assert len(json.dumps(made)) < gallery_module.MAX_BYTES + 200_000
    assert len(render(own_record(), made).encode()) < 10_000_000


def test_the_noise_found_is_that_of_the_rows_where_classes_differ_in_size():
    """Half of a rare class is wrong, and nothing else: 5 of 100 rows, not a sixth."""
    record = own_record()
    record["data"]["noise_rate"] = 0.05
    record["evaluation"]["transition"]["given"] = [[1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]]
    table = table_of([("cat", "dog")] * 5 + [("cat", "cat")] * 95)
    table["p_wrong"] = [1.0] * 5 + [0.0] * 95
    text = Page(render(record, make_gallery(table, lambda row: None))).text
    assert "Noise found 5.0% of the given labels are expected to be wrong" in text
    assert "Noise found 16.7% of the labels are wrong according to T" in Page(render(record)).text


@pytest.mark.parametrize(
    ("sample", "tile"),
    [
        (None, "28.0% 56 of 200; 95% interval for all labels: 21.9% to 34.8%"),
        ({"warning": "not like the others"}, "28.0% 56 of 200 "),
    ],
)
def test_the_wrong_labels_among_the_verified_rows_stand_at_the_top(sample, tile):
    record = own_record()
    record["evaluation"]["evidence"] |= {"wrong": {"k": 56, "n": 200, "low": 0.219, "high": 0.348}, "sample": sample}
    text = Page(render(record)).text
    assert f"Wrong among verified rows {tile}" in text
    assert ("21.9%" in text) is (sample is None)
    assert "Noise found" not in text
    record["data"]["noise_rate"] = 0.3
    assert "truly wrong labels: 30.0%" in Page(render(record)).text


@pytest.mark.parametrize("nothing", [None, {"num_random": 0}, {"sample": {"warning": "not like the others"}}])
def test_how_many_labels_are_wrong_is_not_said_where_no_random_rows_show_it(nothing):
    record = own_record()
    record["result"] |= {"test_accuracy": None, "valid_accuracy": None}
    made = make_gallery(table_of([("cat", "dog")] * 5 + [("cat", "cat")] * 95).assign(is_issue=False), lambda row: None)
    known = "0 of 100 labels count as wrong; about 75 are expected to be wrong."
    assert known in Page(render(record, made)).text
    record["evaluation"]["evidence"] = nothing and evidence() | nothing
    text = Page(render(record, made)).text
    begins = "0 of 100 labels look wrong; how many are wrong cannot be told until some rows are verified at random."
    assert begins in text
    assert "Labels that look wrong 0.0% 0 of 100 rows" in text
    assert "expected" not in text
    assert "Noise found" not in text


@pytest.mark.parametrize("shape", [(8, 8, 1), (16, 16, 3), (32, 32, 3), (300, 200, 3)])
def test_a_thumbnail_shows_the_image(shape):
    image = np.zeros(shape, np.uint8)
    image[: shape[0] // 2] = 200
    small = decoded(thumbnail(image))
    assert max(small.shape) <= gallery_module.SIDE
    assert small.shape[:2] == (shape[:2] if max(shape) <= 96 else (96, 64))
    assert abs(int(small[0, 0].max()) - 200) < 12
    assert int(small[-1, 0].max()) < 12


def test_a_thumbnail_takes_grey_images_and_fractions():
    image = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    coloured = np.stack([image, image.T, image], 2)
    np.testing.assert_array_equal(decoded(thumbnail(image)), image)
    for same in (image[..., None], image / 255, (image / 255).astype(np.float32), image.astype(np.int64)):
        assert thumbnail(same) == thumbnail(image)
    for same in (coloured / 255, np.dstack([coloured, image])):  # the last with a fourth channel
        assert thumbnail(same) == thumbnail(coloured)
    assert thumbnail(image > 99) == thumbnail(np.where(image > 99, 255, 0))


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((3, 8, 8), np.uint8), r"\(3, 8, 8\); give \(height, width\)"),
        (np.zeros(64, np.uint8), r"\(64,\)"),
        (np.full((8, 8), 2.0), "out of range; .* or fractions from 0 to 1"),
        (np.full((8, 8), np.nan), "out of range; .* or fractions from 0 to 1"),
        (np.full((8, 8), -1), "whole numbers from 0"),
        (np.zeros((0, 8)), "empty"),
        (np.full((8, 8), "x"), "not of numbers"),
    ],
)
def test_what_is_no_image_is_refused(image, words):
    with pytest.raises(ValueError, match=words):
        thumbnail(image)


def test_the_gallery_of_a_task_shows_its_own_rows(tmp_path):
    task = make_tiny_task()
    post = np.eye(3)[(task.given + 1) % 3] * 0.9 + 0.03
    table = label_table(task.ids, task.given, post, task.class_names)
    made = write_gallery(task, table, tmp_path / "gallery.json")
    assert read_gallery(tmp_path) == made
    for pair in made["pairs"]:
        for item in pair["items"]:
            assert str(item["id"]) == str(task.ids[item["row"]])
            wanted = task.x[task.split.noisy[item["row"]]]
            np.testing.assert_array_equal(decoded(item["image"]).reshape(wanted.shape), wanted)


def test_an_image_that_cannot_be_read_any_more_is_left_out():
    def picture(row: int) -> str:
        if row == 1:
            raise ValueError("gone")
        return PIXEL

    made = make_gallery(table_of([("a", "b")] * 3), picture)
    assert [item["image"] for item in made["pairs"][0]["items"]] == [PIXEL, None, PIXEL]


@pytest.mark.parametrize("min_precision", [0.8, 0.9])
def test_the_page_says_what_the_verified_rows_say(min_precision):
    record = own_record()
    found = record["evaluation"]["evidence"] = evidence(min_precision)
    text = Page(render(record)).text
    assert "300 rows with a given label were verified at random" in text
    assert "100 of them were held back" in text
    right = found["corrections"]["precision"]
    assert (right["n"] > 0) == (min_precision < 0.9), "25 of 25 do not show 90%"
    share = f"{100 * right['k'] / right['n']:.1f}%" if right["n"] else "not known"
    assert f"{right['k']} of {right['n']} {share} {100 * right['low']:.1f}% – {100 * right['high']:.1f}%" in text
    assert found["threshold"]["sentence"][1:] in text
    mean, low, high = (found["transition"][key][0][1] for key in ("mean", "low", "high"))
    counts = found["transition"]["counts"][0]
    wanted = f"cat dog {counts[1]} of {sum(counts)} {100 * mean:.1f}% {100 * low:.1f}% – {100 * high:.1f}%"
    assert wanted in text
    for p, share, rows in found["calibration"]["before"]["bins"]:
        assert (
            f"before calibration: p_wrong {100 * p:.1f}% on average, {round(share * rows)} of {rows} rows wrong" in text
        )


def test_of_many_classes_the_least_right_are_shown_and_how_many_there_are():
    record = own_record()
    record["data"]["class_names"] = [f"kind {number}" for number in range(40)]
    transition = record["evaluation"]["evidence"]["transition"]
    transition["right"] = [{"k": 40 - k, "n": 41, "low": 0.0, "high": 1.0} for k in range(40)]
    text = Page(render(record)).text
    assert "Only the 30 lowest of 40 classes are shown." in text
    assert "kind 39 1 of 41" in text
    assert "kind 9 31 of 41" not in text
    assert "classes are shown" not in Page(render(own_record())).text


@pytest.mark.parametrize("seed", range(5))
def test_the_pairs_shown_are_the_most_frequent_wrong_labels_of_the_counted_t(seed):
    rng = np.random.default_rng(seed)
    n, names = 12, [f"kind {number}" for number in range(12)]
    counts = rng.poisson(0.3, (n, n)) + 5 * np.eye(n, dtype=int)
    counts[3] = 0  # nobody verified a row of it
    mean, low, high = rng.integers(1, 9, (3, n, n)) / 10  # some means are equal: then T's own order counts
    tables = {"counts": counts.tolist(), "mean": mean.tolist(), "low": low.tolist(), "high": high.tolist()}
    tables["low"][0][1] = tables["counts"][1][2] = None  # not known
    pairs = [
        Share(names[i], names[j], k, sum(k or 0 for k in row), mean[i, j], tables["low"][i][j] or 0.0, high[i, j])
        for i, row in enumerate(tables["counts"])
        for j, k in enumerate(row)
        if i != j and k
    ]
    found = trust_of({"evidence": {"num_random": int(counts.sum()), "transition": tables}}, {}, names)
    assert found.pairs == tuple(sorted(pairs, key=lambda share: share.mean, reverse=True)[:10])


def test_the_page_says_how_far_off_true_probabilities_would_seem():
    rng = np.random.default_rng(0)
    p = rng.beta(0.3, 0.3, 100)
    drawn = [reliability(p, rng.random(100) < p) for _ in range(400)]
    record = own_record()
    record["evaluation"]["evidence"]["calibration"]["after"] = asdict(drawn[0])
    (found,) = re.findall(r"with this many rows, chance alone accounts for about ([\d.]+)%", Page(render(record)).text)
    assert float(found) / 100 == pytest.approx(np.mean([one.ece for one in drawn]), rel=0.15)


def test_the_page_says_that_nothing_was_verified():
    record = own_record()
    for nothing in (None, evidence() | {"num_random": 0}):
        record["evaluation"]["evidence"] = nothing
        text = Page(render(record)).text
        assert "the probabilities are uncalibrated and T is a model's estimate" in text
        assert "fasten audit DIR --next 100 --out review.csv fasten audit DIR --import review.csv --out" in text
        assert "Classes most confused" not in text
    record["data"]["noise_rate"] = 0.4
    assert "uncalibrated" not in Page(render(record)).text, "where the truth is known, all is measured against it"


def test_a_warning_of_instance_dependence_is_shown():
    record = own_record()
    record["evaluation"]["evidence"]["dependence"] = {"warning": "errors look instance-dependent: so"}
    assert "Warning Errors look instance-dependent: so." in Page(render(record)).text


@pytest.mark.parametrize("min_precision", [None, 0.9])
def test_the_page_says_that_calibrations_judge_rows_that_they_had_not_seen(min_precision):
    record = own_record()
    record["evaluation"]["evidence"] = evidence(min_precision)
    text = Page(render(record)).text
    unseen = "each judged by a calibration that had not seen it"
    assert f"of the held-back rows whose label would be changed, {unseen}" in text


def test_without_test_rows_the_page_begins_with_the_labels():
    record = own_record()
    record["result"] |= {"test_accuracy": None, "valid_accuracy": 0.9}
    record["data"] |= {"rows_test": 0, "rows_valid": 20}
    made = make_gallery(table_of([("cat", "dog")] * 5 + [("cat", "cat")] * 95), lambda row: None)
    corrections = record["evaluation"]["evidence"]["corrections"]
    corrections["precision"] = {"k": 17, "n": 18, "low": 0.727, "high": 0.999}
    text = Page(render(record, made)).text
    judged = "Of 18 corrections that can be judged by held-back verdicts, 17 are right"
    assert f"{judged}; the 95% interval for all corrections is 72.7% to 99.9%." in text
    assert "Corrections that are right 94.4% 17 of 18 in held-back rows; 95% interval 72.7% to 99.9%" in text
    order = ["labels count as wrong", "on the 20 validation rows", "Labels that look wrong", "Against simpler training"]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    corrections["precision"] = {"k": 0, "n": 0, "low": 0.0, "high": 1.0}
    record["result"]["test_accuracy_last"] = None
    text = Page(render(record, made)).text
    assert "can be judged" not in text
    assert "Test accuracy not known there are no test rows epoch 1, chosen on the validation rows Wrong" in text


def test_one_is_not_written_as_several():
    record = own_record()
    record["result"] |= {"test_accuracy": None, "valid_accuracy": 0.9}
    record["data"] |= {"rows_test": 0, "rows_valid": 1}
    one = {"k": 1, "n": 1, "low": 0.025, "high": 1.0}
    record["evaluation"]["evidence"] |= {"num_random": 1, "num_held": 1, "wrong": one}
    record["evaluation"]["evidence"]["corrections"]["precision"] = one
    table = table_of([("cat", "dog")] + [("cat", "cat")] * 9)
    table = table.assign(is_issue=table["row"] == 0, p_wrong=0.1)
    text = Page(render(record, make_gallery(table, lambda row: None))).text
    assert "1 of 10 labels counts as wrong; about 1 is expected to be wrong." in text
    judged = "Of 1 correction that can be judged by held-back verdicts, 1 is right"
    assert f"{judged}; the 95% interval for all corrections is 2.5% to 100.0%." in text
    assert "on the 1 validation row;" in text
    assert "1 row with a given label was verified at random: T is counted from it. 1 of them was held" in text
    assert "1 of their 1 label is wrong (95% interval for all labels: 2.5% to 100.0%)" in text
    assert "cat → dog 1 row, 10.0% of those labelled cat" in text
    assert "of which 1 counts as wrong." in text


@pytest.mark.parametrize("warned", [True, False])
def test_most_labels_wrong_on_the_word_of_a_model_alone_is_a_warning(warned):
    record = own_record()
    record["result"] |= {"test_accuracy": None, "valid_accuracy": None}
    record["evaluation"]["evidence"] = None
    table = table_of([("a", "b")] * 10)
    made = make_gallery(table.assign(is_issue=table["row"] < (6 if warned else 5)), lambda row: None)
    text = Page(render(record, made)).text
    assert (
        "⚠ Warning 6 of 10 labels count as wrong, but no row was verified at random to show whether" in text
    ) is warned
    assert ("look at some of these rows before you use its corrections" in text) is warned
    record["evaluation"]["evidence"] = evidence()
    assert "no row was verified at random to show" not in Page(render(record, made)).text


def test_too_few_rows_to_calibrate_are_said():
    record = own_record()
    record["evaluation"]["evidence"]["calibration"] |= {"uncalibrated": "3 held-back rows", "after": None}
    text = Page(render(record)).text
    assert "The probabilities are uncalibrated: 3 held-back rows." in text
    assert "calibrated: p_wrong" not in text


def test_the_command_of_own_data_runs_it_again():
    record = own_record()
    text = Page(render(record)).text
    assert "--verified checked.txt --clean-folder 'good photos' --min-precision 0.9 --set" in text
    record["evaluation"]["evidence"] = {**evidence(), "threshold": None}  # an audit took it back
    assert "--min-precision" not in Page(render(record)).text


def test_the_gallery_stands_on_the_page_with_texts_for_those_who_cannot_see_it():
    made = make_gallery(table_of([("cat", "dog")] * 3), lambda row: PIXEL if row else None)
    html = render(own_record(), made)
    page = Page(html)
    assert "cat → dog 3 rows, 100.0% of those labelled cat; 3 corrected" in page.text
    assert page.tags.count("button") == 3 + 1
    assert html.count(f'src="{PIXEL}"') == 2
    alts = [value for name, value in page.attributes if name == "alt"]
    assert alts == ["r1, labelled cat", "r2, labelled cat", ""]
    assert "3 of 3 labels count as wrong" in page.text
    assert html.count("<script>") == 1
    sources = [value for name, value in page.attributes if name in ("src", "href")]
    assert all(source.startswith(("#", "data:")) for source in sources)
    assert render(own_record(), json.loads(json.dumps(made))) == html


def test_rows_without_images_are_a_table():
    made = make_gallery(table_of([("cat", "dog")] * 3), lambda row: None)
    page = Page(render(own_record(), made))
    assert "r0 99.0% 80.0% r1 75.0% 80.0%" in page.text
    assert not {"img", "dialog"} & set(page.tags)


@draw(st.lists(st.text(max_size=20), min_size=4, max_size=4))
@example([EVIL, '" onerror="alert(1)', "'><img src=x>", "</script><b>"])
@example(["=1+1", "<", '"', "{{ 7 * 7 }}"])
@settings(derandomize=True, deadline=None, max_examples=25)
def test_names_are_shown_as_they_are_and_never_run(texts):
    one, other, name, image = texts
    record = own_record()
    record["data"]["class_names"] = [one, other, "emu"]
    record["evaluation"]["evidence"]["dependence"] = {"warning": name}
    made = make_gallery(table_of([(one + "1", other + "2")]).assign(id=name), lambda row: PIXEL)
    made["pairs"][0]["items"].append({"id": name, "image": image})
    page = Page(render(record, made))
    plain = plain_page()
    assert set(page.tags) == set(plain.tags), "no tag that the names brought in"
    assert {key for key, _ in page.attributes} == {key for key, _ in plain.attributes}
    assert next(value for key, value in page.attributes if key == "alt") == f"{name}, labelled {one}1"


@pytest.mark.parametrize(
    "image", ["javascript:alert(1)", "data:image/svg+xml;base64,AAAA", "http://x/y.png", 3, PIXEL + '"', "x" * 200_000]
)
def test_a_picture_that_is_none_is_not_shown(image):
    made = make_gallery(table_of([("a", "b")]), lambda row: PIXEL)
    made["pairs"][0]["items"].append({"id": "r9", "image": image})
    html = render(own_record(), made)
    assert [value for name, value in Page(html).attributes if name == "src"] == [PIXEL, "data:,"]


@pytest.mark.parametrize("broken", [[], {"pairs": 3}, {"pairs": [1, {"items": 2}], "rows": 4}, {"rows": "many"}])
def test_a_gallery_of_any_form_gives_a_page(broken, tmp_path):
    (tmp_path / "gallery.json").write_text(json.dumps(broken))
    assert "How far to trust" in Page(render(own_record(), read_gallery(tmp_path))).text


def test_a_damaged_gallery_is_a_sentence(tmp_path):
    assert read_gallery(tmp_path) == {}
    (tmp_path / "gallery.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        read_gallery(tmp_path)


def test_evidence_may_lack_anything():
    record = own_record()
    assert "How far to trust" in Page(render(record)).text
    for key in record["evaluation"]["evidence"]:
        for value in (None, "text", 3, [], all_null(record["evaluation"]["evidence"][key])):
            changed = {**record["evaluation"]["evidence"], key: value}
            html = render({**record, "evaluation": {**record["evaluation"], "evidence": changed}})
            assert not re.search(r"\b(nan|None|Undefined)\b", Page(html).text)
