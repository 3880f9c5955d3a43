"""Labels are what people wrote, and whatever is wrong with them is said in one sentence."""

from __future__ import annotations

import io
import unicodedata
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from fasten.data.decoding import Decoding
from fasten.data.labels import classes_of, label_texts, part_of, picked_of
from fasten.data.rows import Rows, add_verdicts, compare_test_rows, make_columns, make_image_rows, make_rows

FOUR = ["a", "b", "c", "d"]


def rows(x: Any = None, class_names: Any = None, ids: Any = FOUR, **columns: Any) -> Rows:
    known = make_columns(ids, **({"given": ["cat", "dog", "cat", "dog"]} | columns))
    return make_rows("pets", known, np.eye(len(ids), dtype=np.float32) if x is None else x, class_names)


def png(value: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (3, 3), value).save(out, "PNG")
    return out.getvalue()


@given(st.lists(st.none() | st.text("aAbB ", max_size=3), min_size=1, max_size=6))
def test_labels_survive_encoding_unless_some_lack_or_two_spell_one(labels: list[str | None]) -> None:
    ids = [str(row) for row in range(len(labels))]
    columns = make_columns(ids, given=labels, verified=labels)
    spoken = {" ".join(label.lower().split()) for label in labels if label is not None}
    if None in labels or len(spoken) < 2 or len(spoken) < len(set(labels)):
        with pytest.raises(ValueError, match=r"^pets"):
            make_rows("pets", columns, np.zeros((len(ids), 1)))
        return
    made = make_rows("pets", columns, np.zeros((len(ids), 1)))
    codes = made.given_codes()
    assert [made.class_names[code] for code in codes] == labels
    assert sorted(set(codes)) == list(range(made.num_classes))


@given(st.lists(st.sampled_from(["ant", "bee", "cow", None]), min_size=1, max_size=30))
def test_no_label_is_minus_one_and_the_verified_one_counts(verified: list[str | None]) -> None:
    ids = [str(row) for row in range(len(verified))]
    columns = make_columns(ids, given=["bee"] * len(ids), verified=verified)
    made = make_rows("pets", columns, np.zeros((len(ids), 1)), ["ant", "bee", "cow"])
    number = {"ant": 0, "bee": 1, "cow": 2, None: -1}
    assert made.verified_codes().tolist() == [number[label] for label in verified]
    assert made.judged_codes().tolist() == [number[label or "bee"] for label in verified]
    assert [way is None for way in made.picked] == [label is None for label in verified]


@given(
    st.text("abcXYZäé ", min_size=1, max_size=6), st.sampled_from([str.upper, str.lower, " {}".format, "{}\t".format])
)
def test_two_spellings_of_one_label_are_refused_with_both(label: str, change: Any) -> None:
    other = change(label)
    assume(label.strip() and other != label)
    with pytest.raises(ValueError, match="differ only in how they are written") as caught:
        classes_of("pets", [label, other, "something else"])
    assert repr(label) in str(caught.value)
    assert repr(other) in str(caught.value)


@given(st.sets(st.integers(-20, 200), min_size=2))
def test_numbers_are_in_the_order_of_their_size(numbers: set[int]) -> None:
    assert [int(label) for label in classes_of("pets", map(str, numbers))] == sorted(numbers)


def test_one_letter_written_in_two_ways_is_one_label():
    with pytest.raises(ValueError, match=r"differ only in their Unicode form, 'cafe\\u0301' and "):
        classes_of("pets", ["café", unicodedata.normalize("NFD", "café"), "tea"])


def test_a_model_knows_labels_in_either_unicode_form():
    stored, known = (unicodedata.normalize(form, "Röhre") for form in ("NFD", "NFC"))
    columns = make_columns(["a", "b", "c"], given=[stored, "tap", None], verified=["tap", None, stored])
    rows = make_rows("parts", columns, np.eye(3), class_names=[known, "tap"])
    assert (rows.given, rows.verified) == ((known, "tap", None), ("tap", None, known))


def test_test_rows_in_another_unicode_form_are_refused_with_the_form_that_is_known():
    given = [unicodedata.normalize(form, "Röhre") for form in ("NFC", "NFD")]
    columns = make_columns(["a", "b", "c"], given=[given[0], "tap", given[1]], split=[None, None, "test"])
    with pytest.raises(ValueError, match=r"did you mean 'R\\xf6hre', in another Unicode form\?"):
        make_rows("parts", columns, np.eye(3))


@pytest.mark.parametrize("text", ["{:.2f}", "{}", "{:.3e}"])
def test_labels_that_look_measured_are_refused(text: str) -> None:
    numbers = [text.format(number) for number in np.random.default_rng(0).normal(size=400)]
    with pytest.raises(
        ValueError, match=r"different labels, and they are numbers such as .* give texts or whole numbers"
    ):
        classes_of("table.csv", numbers)
    few = set(numbers[:20])
    assert len(classes_of("sizes.csv", few)) == len(few)  # sizes, or versions
    assert len(classes_of("table.csv", [*numbers, "dog"])) > 100
    assert len(classes_of("table.csv", [f"{number}.0" for number in range(100)])) == 100
    with pytest.raises(ValueError, match=r"'1' and '1\.0' differ only"):
        classes_of("pets", ["1", "1.0", "2"])


@pytest.mark.parametrize(
    "values",
    [
        ["1", "2", None],
        [1, 2, None],
        np.array([1.0, 2.0, np.nan]),
        np.array(["1", "2", ""]),
        np.array([b"1", b"2", b""]),
        pd.Series([1.0, 2.0, None]),
        pd.Series(["1", "2", None]),
        pd.Series([1, 2, pd.NA], dtype="Int64"),
        pd.Series(["1", "2", None], dtype="category"),
        pd.DataFrame({"y": [1.0, 2.0, np.nan]}),
        torch.tensor([1.0, 2.0, torch.nan], requires_grad=True),
    ],
    ids=lambda values: type(values).__name__,
)
def test_labels_come_from_whatever_holds_them(values):
    assert label_texts(values, "y") == ["1", "2", None]


def test_whole_numbers_texts_and_truth_values_are_labels():
    assert label_texts(np.array([-1, 10]), "y") == ["-1", "10"]
    assert label_texts(torch.tensor([3]), "y") == ["3"]
    assert label_texts(np.array([True, False]), "y") == ["True", "False"]
    assert label_texts([" NA", "nan", "None"], "y") == [" NA", "nan", "None"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([0.5]), "y: 0.5 in row 0 cannot be a label or an id; give texts or whole numbers"),
        ([1, [2]], r"y: \[2\] in row 1 cannot be a label or an id"),
        (
            np.array([b"dog", b"chi\xe9n"]),
            r"y: b'chi\\xe9n' is not UTF-8; give texts instead of bytes, np.array\(texts, dtype=str\)",
        ),
        (np.array([np.inf]), "y: inf in row 0"),
        (np.eye(3), r"y has shape \(3, 3\); give one label for each row"),
    ],
)
def test_what_is_no_label_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        label_texts(values, "y")


def test_parts_and_ways_of_picking_have_their_usual_names():
    assert [part_of(text, "f") for text in ("train", "VAL", " validation", "test", "", None)] == [
        *("train", "valid", "valid", "test"),
        *(None, None),
    ]
    assert [picked_of(text, "f") for text in ("Random", "chosen ", " ", None)] == ["random", "chosen", None, None]
    with pytest.raises(ValueError, match="f: unknown split 'tset'; did you mean 'test'"):
        part_of("tset", "f")
    with pytest.raises(ValueError, match="f: unknown way of picking 'by hand'; known: random, chosen"):
        picked_of("by hand", "f")


def test_what_is_not_said_is_filled_in():
    made = rows(verified=["cat", None, "cat", None], picked=["chosen", "chosen", None, None])
    assert made.picked == ("chosen", None, "random", None)
    assert made.split == (None,) * 4
    assert (len(made), made.num_classes, made.x.dtype) == (4, 2, np.float32)
    assert rows(split=["train", "test", "test", None]).rows_of("test").tolist() == [1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": [], "given": []}, "pets holds no rows"),
        ({"given": ["cat"] * 4}, "pets has only the label 'cat'; a classifier needs rows of two classes or more"),
        ({"given": [None] * 4}, "pets has no labels"),
        ({"given": ["cat", "dog", None, None]}, r"2 of 4 rows lack a label, first 'c' \(row 2\)"),
        ({"given": ["cat", "dog"]}, "given has 2 entries for 4 rows"),
        ({"given": ["Cat", "cat", "dog", "dog"]}, "the labels 'Cat' and 'cat' differ only in how they are written"),
        ({"verified": ["cat ", None, None, None]}, "the labels 'cat' and 'cat ' differ only"),
        (
            {"ids": ["a", "b", "a", "b"]},
            r"the id 'a' occurs more than once \(rows 0 and 2\), and 1 more is repeated; keep one",
        ),
        (
            {"ids": ["a", "b", "c", "b"], "verified": ["cat", "cat", None, "dog"]},
            r"the id 'b' is verified as 'cat' and as 'dog' \(rows 1 and 3\); if they are one row, keep the verdict "
            "that is right; if they are two, give each its own id",
        ),
        (
            {"ids": ["b", "b", "b", "a"], "verified": [None, "dog", "cat", None]},
            r"the id 'b' is verified as 'cat' and as 'dog' \(rows 1 and 2\)",
        ),
        (
            {"ids": ["a", "b", "b", "c"], "split": ["train", None, "test", None]},
            r"the id 'b' is a test row that is also in training \(rows 1 and 2\)",
        ),
        ({"split": ["tran", None, None, None]}, "unknown split 'tran'; did you mean 'train'"),
        ({"class_names": ["cat", "dogs"]}, "unknown label 'dog'; did you mean 'dogs'"),
        ({"class_names": ["cat"]}, r"the class names are \['cat'\]; give two or more, each once"),
        ({"x": np.zeros((3, 2))}, "x has 3 rows for 4 ids"),
        ({"x": np.zeros((4, 2, 2, 1))}, "x is float64 of shape .* give images as uint8"),
    ],
)
def test_bad_rows_are_refused_in_one_sentence(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        rows(**changes)
    assert "\n" not in str(caught.value)


def test_a_trained_model_takes_rows_without_labels_and_of_one_class():
    made = rows(given=["dog", None, "dog", None], class_names=["bird", "cat", "dog"])
    assert made.class_names == ("bird", "cat", "dog")
    assert made.given_codes().tolist() == [2, -1, 2, -1]


def test_a_label_that_no_row_is_given_is_noted():
    (note,) = rows(verified=["dgo", None, None, None]).notes
    assert note == "pets: no row has the given label 'dgo', but 'a' is verified as it; is it spelled correctly?"


@pytest.mark.parametrize("blank", ["nan", "NA", "None", "<NA>"])
def test_a_class_of_what_programs_write_for_a_blank_is_noted(blank):
    (note,) = rows(given=[blank, "cat", blank, "dog"]).notes
    assert note.startswith(
        f"pets: a class is made of the 2 rows with the label {blank!r}; if it means that the label is missing"
    )
    (note,) = rows(given=[blank, "cat", "dog", "dog"]).notes
    assert "of the one row with" in note
    assert rows(given=["-1", "1", "none", "namibia"]).notes == ()
    assert rows(given=[blank, None, None, None], class_names=[blank, "cat"]).notes == ()


def test_verdicts_in_another_spelling_than_all_given_labels_are_refused():
    with pytest.raises(
        ValueError, match="pets: rows are verified as '0', '1', …, and none of these is a given label, but"
    ):
        rows(verified=["0", None, None, "1"])


def test_verdicts_are_added_once():
    columns = make_columns(FOUR, given=["cat"] * 4)
    added = add_verdicts("pets", columns, [(1, "dog", "random"), (1, "dog", "chosen")])
    assert added.verified == (None, "dog", None, None)
    assert added.picked == (None, "random", None, None)
    with pytest.raises(ValueError, match="pets: 'b' is verified as 'dog' and as 'cat'; keep the one that is right"):
        add_verdicts("pets", added, [(1, "cat", "random")])


@pytest.mark.parametrize("ways", [("random", "chosen"), ("chosen", "random"), ("random", "random")])
def test_a_row_that_was_once_picked_at_random_is_random(ways):
    before = make_columns(FOUR, given=["cat"] * 4, verified=["dog"] * 4, picked=[ways[0]] * 4)
    assert add_verdicts("pets", before, [(1, "dog", ways[1])]).picked[1] == "random"


def test_copies_of_training_rows_in_the_test_are_noted_or_refused():
    x = np.array([[1.0, 2], [3, 4], [1, 2], [5, 6]])
    made = compare_test_rows(rows(x, split=["train", "train", "test", "test"]))
    assert made.notes == (
        "pets: 1 of 2 test rows is also in training: 'c' has the same content as 'a'; so the test accuracy is too high",
    )
    measured = rows(x[[0, 1, 3, 2]], split=["valid", "train", "train", "test"], given=["cat", "dog", "cat", "dog"])
    (note,) = compare_test_rows(measured).notes
    assert note.startswith("pets: 1 of 1 test row is also among the validation rows: 'd' has the same content")
    assert compare_test_rows(rows(x)).notes == ()
    images = np.uint8(x).reshape(4, 2, 1, 1)
    with pytest.raises(ValueError, match="pets: 1 of 2 test rows is also in training: 'c' has the same content"):
        compare_test_rows(rows(images, split=["train", "train", "test", "test"]))


@pytest.mark.parametrize("part", ["valid", "test"])
def test_a_class_that_only_rows_to_measure_by_have_is_a_slip(part):
    split = [None, None, None, part]
    with pytest.raises(
        ValueError, match=f"pets: {part} rows have the label 'dgo', and no training row has it; did you mean 'dog'"
    ):
        rows(given=["cat", "dog", "cat", "dgo"], split=split)
    assert rows(given=["cat", "dog", "cat", "fox"], verified=["fox", None, None, None], split=split).num_classes == 3
    known = ["cat", "dgo", "dog"]
    assert rows(given=["cat", "dog", "cat", "dgo"], split=split, class_names=known).class_names == tuple(known)


@pytest.mark.parametrize("seed", range(30))
def test_rows_to_measure_by_are_refused_for_the_first_label_that_no_other_row_has(seed):
    rng, names = np.random.default_rng(seed), ["ant", "bee", "cow", "elk", "fox"]
    given = ["ant", "bee", *rng.choice(names, 8).tolist()]
    verified = ["ant", None, *rng.choice(np.array([None, None, *names]), 8).tolist()]
    split = [None, "train", *rng.choice(np.array([None, "train", "valid", "test"]), 8).tolist()]
    labels: dict[str, set[str]] = {"train": set(), "valid": set(), "test": set()}
    for row, part in enumerate(split):
        labels[part or "train"].update(label for label in (given[row], verified[row]) if label is not None)
    slips = [(part, label) for part in ("valid", "test") for label in sorted(labels[part] - labels["train"])]
    columns = {"ids": [str(row) for row in range(10)], "given": given, "verified": verified, "split": split}
    if not slips:
        assert set(rows(**columns).class_names) == labels["train"]
        return
    with pytest.raises(
        ValueError, match=f"pets: {slips[0][0]} rows have the label {slips[0][1]!r}, and no training row has it; "
    ):
        rows(**columns)


def test_few_copies_among_many_test_images_are_what_data_from_the_net_hold():
    sources = [png(value) for value in (0, 1, *range(1, 201))]
    ids = [str(row) for row in range(len(sources))]
    split = [None, None, *["test"] * 200]
    columns = make_columns(ids, given=["cat", "dog"] * 101, split=split)
    made = make_image_rows("pets", columns, sources, Decoding())
    assert made.notes[0].startswith("pets: 1 of 200 test rows is also in training: '2' has the same content as '1'")
    assert made.notes[0].endswith("a little too high")
    sources[3:6] = [png(0)] * 3
    with pytest.raises(ValueError, match="4 of 200 test rows are also in training"):
        make_image_rows("pets", columns, sources, Decoding())


def test_a_class_of_which_no_image_can_be_read_is_missed():
    columns = make_columns(FOUR, given=["cat", "dog", "cat", "dog"], verified=["cat", "dog", None, None])
    kept = make_image_rows("pets", columns, [png(0), b"x", png(1), png(2)], Decoding())
    assert (kept.ids, kept.given, kept.verified) == (("a", "c", "d"), ("cat", "cat", "dog"), ("cat", None, None))
    assert kept.x.shape == (3, 3, 3, 1)
    assert "1 image that cannot be read is left out: b (" in kept.notes[0]
    with pytest.raises(ValueError, match="pets: no image of the class 'dog' can be read"):
        make_image_rows("pets", columns, [png(0), b"x", png(1), b"y"], Decoding())


def test_labels_are_checked_before_any_image_is_opened():
    columns = make_columns(["a", "b"], given=["Cat", "cat"])
    with pytest.raises(ValueError, match="differ only"):
        make_image_rows("pets", columns, [b"x", b"y"], Decoding())


@pytest.mark.parametrize("column", ["ids", "given", "verified"])
def test_what_no_file_can_hold_is_refused_before_training(column):
    odd = "caf\udce9"  # Latin-1, as Python reads the name of a file
    said = {"ids": ["a", "b"], "given": ["cat", "dog"], "verified": [None, "cat"]}
    said[column] = [said[column][0], odd]
    with pytest.raises(ValueError, match=r"pets: the (id|label) 'caf\\udce9' is not UTF-8; spell it differently"):
        make_rows("pets", make_columns(**said), np.eye(2))
