"""Columns of texts and of numbers that are missing: what they become, and that new rows get the same."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fasten.data.encoding import MOST_CATEGORIES, Column
from fasten.data.table import read_table

TABLE = (
    "age,coat,indoors,label,split\n"
    "3,short,True,cat,\n"
    ",long,False,cat,train\n"
    "8, short ,,dog,\n"
    "5,long,True,dog,\n"
    "?,curly,False,dog,test\n"
    "4,,True,cat,valid\n"
)
AGE, COAT, INDOORS = Column("age", fill=5.0), Column("coat", ("long", "short")), Column("indoors", fill=1.0)
PETS = ("cat", "dog")


def write(folder: Path, text: str) -> Path:
    path = folder / "pets.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_texts_become_categories_and_the_median_stands_in_for_a_missing_number(tmp_path):
    """What the training rows hold decides; a blank, or a text that they do not hold, is no category."""
    rows = read_table(write(tmp_path, TABLE))
    assert rows.features == (AGE, COAT, INDOORS)
    assert rows.feature_names == (
        *("age", "age is missing", "coat = long", "coat = short", "indoors", "indoors is missing"),
    )
    expected = [
        *([3, 0, 0, 1, 1, 0], [5, 1, 1, 0, 0, 0], [8, 0, 0, 1, 1, 1]),
        *([5, 0, 1, 0, 1, 0], [5, 1, 0, 0, 0, 0], [4, 0, 0, 0, 1, 0]),
    ]
    np.testing.assert_array_equal(rows.x, np.float32(expected))
    assert rows.notes == (
        "pets.csv: columns of texts are categories, with a feature for each: 'coat' (2)",
        "pets.csv: texts that are no known category, and count as none: 'coat' (1 row, first 'curly')",
        "pets.csv: missing numbers, for which the median of the training rows stands in: 'age' (2 rows), "
        "'indoors' (1 row)",
    )


@pytest.mark.parametrize("kind", ["category", "string", "object"])
def test_parquet_has_the_same_categories_whatever_their_type(tmp_path, kind):
    table = pd.read_csv(StringIO(TABLE), skipinitialspace=True, na_values="?")
    table = table.astype(dict.fromkeys(("coat", "label", "split"), kind))
    table.to_parquet(tmp_path / "pets.parquet")
    rows, same = read_table(tmp_path / "pets.parquet"), read_table(write(tmp_path, TABLE))
    assert rows.features == same.features
    np.testing.assert_array_equal(rows.x, same.x)


def test_new_rows_get_the_features_of_the_trained_model(tmp_path):
    path = write(tmp_path, "indoors,coat,age\nTrue,curly,\n,long,7\nFalse,long,70\n")
    rows = read_table(path, class_names=PETS, features=(AGE, COAT, INDOORS))
    expected = [[5, 1, 0, 0, 1, 0], [7, 0, 1, 0, 1, 1], [70, 0, 1, 0, 0, 0]]
    np.testing.assert_array_equal(rows.x, np.float32(expected))
    assert rows.notes == (
        "pets.csv: texts that are no known category, and count as none: 'coat' (1 row, first 'curly')",
        "pets.csv: missing numbers, for which the median of the training rows stands in: 'age' (1 row), "
        "'indoors' (1 row)",
    )
    with pytest.raises(ValueError, match="column 'age' lacks a finite number in 1 of 3 rows, first in row 0"):
        read_table(path, class_names=PETS, features=(Column("age"), COAT, INDOORS))


@pytest.mark.parametrize("first", ["7", "x"])
def test_a_text_where_a_trained_model_has_a_number_is_refused(tmp_path, first):
    path = write(tmp_path, f"coat,age\nlong,{first}\nlong,x\n")
    line = 2 if first == "x" else 3
    with pytest.raises(ValueError, match=f"line {line}: 'x' in column 'age' is not a number; write numbers, or leave"):
        read_table(path, class_names=PETS, features=(AGE, COAT))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_categories_of_a_trained_model_may_look_like_numbers(tmp_path, suffix):
    path = tmp_path / f"new.{suffix}"
    table = pd.DataFrame({"grade": [1, 2, 1]})
    getattr(table, f"to_{suffix}")(path, index=False)
    rows = read_table(path, class_names=PETS, features=[Column("grade", ("1", "2"))])
    assert rows.x.tolist() == [[1, 0], [0, 1], [1, 0]]


def test_only_the_most_frequent_texts_are_categories(tmp_path):
    many = [f"breed {number:03}" for number in range(120) for _ in range(150 - number)]
    labels = [PETS[row % 2] for row in range(len(many))]
    pd.DataFrame({"breed": many, "label": labels}).to_parquet(tmp_path / "pets.parquet")
    rows = read_table(tmp_path / "pets.parquet")
    assert rows.features[0].categories == tuple(f"breed {number:03}" for number in range(MOST_CATEGORIES))
    assert rows.x.sum(0).tolist() == [150 - number for number in range(MOST_CATEGORIES)]
    assert f"'breed' ({sum(range(31, 51))} rows, first 'breed 100')" in rows.notes[1]


def test_texts_most_of_which_occur_once_are_no_categories(tmp_path):
    names, coats = [f"name {row}" for row in range(12)], ["long", "short"] * 3
    path = write(tmp_path, "\n".join(["note,label", *(f"{note},{PETS[len(note) % 2]}" for note in names + coats)]))
    with pytest.raises(ValueError, match=r"'note' \(14 different texts, too many to be categories\)"):
        read_table(path)
    path = write(tmp_path, "\n".join(["note,label", *(f"{note},{PETS[len(note) % 2]}" for note in names + coats * 2)]))
    assert read_table(path).features == (Column("note", ("long", "short")),)


@pytest.mark.parametrize(
    ("cells", "is_text"),
    [
        (["1", "2", "x"], False),  # a slip among numbers, which is refused
        (["1", "x", "x"], True),
        (["2,5", "3,1", "3,1"], False),  # decimal commas, which are refused
        (["", "?", "x"], True),
        (["NA", "x", "1"], False),
        (["2024-05-01", "2024-05-01", ""], True),
    ],
)
def test_a_column_holds_categories_if_most_of_its_cells_are_no_numbers(tmp_path, cells, is_text):
    lines = [f"{cell};{label}" for cell, label in zip(cells * 2, "ababab", strict=True)]
    path = write(tmp_path, "\n".join(["a;label", *lines]))
    if is_text:
        assert read_table(path).features[0].categories
    else:
        with pytest.raises(ValueError, match="column 'a' is not a number"):
            read_table(path)


def test_whether_a_column_holds_truths_or_categories_does_not_depend_on_its_first_row(tmp_path):
    for cells, expected in (("True 0 False 1", ()), ("True - False - True False", ("-", "False", "True"))):
        for order in (cells.split(), cells.split()[::-1]):
            lines = [f"{cell},{PETS[row % 2]}" for row, cell in enumerate(order)]
            assert read_table(write(tmp_path, "\n".join(["c,label", *lines]))).features == (Column("c", expected),)


def test_cells_may_be_set_apart_by_blanks(tmp_path):
    """As in tables of the UCI repository: a missing number is a question mark after a blank."""
    text = "age, fur, in, label\n39, long, True, cat\n?, short, False, dog\n 50,  long, True, cat\n, ?, False, dog\n"
    rows = read_table(write(tmp_path, text + "41, short, True, cat\n45, ?, True, cat\n"))
    assert rows.features[0] == Column("age", fill=43.0)
    assert rows.features[1].categories == ("?", "long", "short")
    assert rows.x[:4, 0].tolist() == [39, 43, 50, 43]


def test_a_column_that_is_blank_at_first_has_the_type_of_what_comes_later(tmp_path, monkeypatch):
    monkeypatch.setattr("fasten.data.table.HEAD", 100)
    lines = [f",,{PETS[row % 2]}" for row in range(200)] + [f"{coat},{row},cat" for row, coat in enumerate("abab")]
    rows = read_table(write(tmp_path, "\n".join(["coat,age,label", *lines])))
    assert rows.features == (Column("coat", ("a", "b")), Column("age", fill=1.5))


NEW = {
    "nothing": pa.nulls(2),
    "numbers as texts": pa.array(["5", " "]),
    "whole numbers": pa.array([5, None]),
    "decimals": pa.array([Decimal("5.0"), None]),
    "categories of texts": pa.array(["5", None]).dictionary_encode(),
    "categories of numbers": pa.array([5, None]).dictionary_encode(),
}


@pytest.mark.parametrize("values", NEW.values(), ids=NEW)
def test_new_rows_in_parquet_may_hold_numbers_in_another_type(tmp_path, values):
    pq.write_table(pa.table({"age": values}), tmp_path / "new.parquet")
    rows = read_table(tmp_path / "new.parquet", class_names=PETS, features=[AGE])
    assert rows.x.tolist() == [[5, float(values.null_count == 2)], [5, 1]]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (AGE, ["x", "y"], "holds texts, not numbers"),
        (AGE, [datetime(2024, 5, 1)] * 2, "holds timestamp.*, not numbers"),
        (AGE, [[1.0], [2.0]], "holds list.*, not numbers"),
        (Column("age"), [datetime(2024, 5, 1)] * 2, "holds timestamp.*, not numbers"),
        (Column("age"), [{"a": 1}] * 2, "holds struct.*, not numbers"),
        (Column("age", ("long", "short")), [["long"], ["short"]], "holds list.*, not texts"),
    ],
)
def test_new_rows_of_a_type_that_does_not_fit_are_refused(tmp_path, column, values, message):
    pq.write_table(pa.table({"age": pa.array(values)}), tmp_path / "new.parquet")
    with pytest.raises(ValueError, match=f"new.parquet: column 'age' {message}, which the model was trained on; conv"):
        read_table(tmp_path / "new.parquet", class_names=PETS, features=[column])


SAME = {
    "truths": (["True", "False"], pa.array([True, False])),
    "numbers": (["1", "2"], pa.array([1.0, 2.0])),
    "days": (["2024-05-01", "2024-05-02"], pa.array([datetime(2024, 5, 1), datetime(2024, 5, 2)])),
    "other forms of Unicode": (["caf\xe9", "th\xe9"], pa.array(["cafe\u0301", "the\u0301"])),
    "large texts": (["a", "b"], pa.array(["a", "b"], pa.large_string())),
}


@pytest.mark.parametrize(("categories", "values"), SAME.values(), ids=SAME)
def test_a_category_is_the_same_however_a_file_holds_it(tmp_path, categories, values):
    pq.write_table(pa.table({"kind": values}), tmp_path / "new.parquet")
    rows = read_table(tmp_path / "new.parquet", class_names=PETS, features=[Column("kind", tuple(categories))])
    assert rows.x.tolist() == [[1, 0], [0, 1]]
