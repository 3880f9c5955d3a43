"""CSV and Parquet: lists of images and tables of features, and one sentence for each way in which they go wrong."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

from fasten.data.decoding import Decoding
from fasten.data.encoding import Column
from fasten.data.rows import Rows
from fasten.data.table import list_table, read_table, rows_from_arrow, useful

FEATURES = "a,label,b,verified_label\n1,cat,0.5,\n-2e3,dog,.25,cat\n3,cat,7,cat\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for value, name in enumerate(("1.png", "2.png", "3.png", "deep/4.png")):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 3), value).save(path)
    return tmp_path / "data"


def read(folder: Path, text: str | bytes, name: str = "pets.csv", **options: Any) -> Rows:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return read_table(folder / name, **options)


def test_a_list_of_images_with_all_columns(folder):
    text = (
        "id,path,label,verified_label,split,picked\n"
        "one,1.png,cat,,train,\n"
        "two,2.png,cat,dog,Train,chosen\n"
        "three,./3.png,dog,dog,val,\n"
        'four,"deep/4.png",dog,,test,random\n'
    )
    rows = read(folder, text)
    assert (rows.name, rows.class_names) == ("pets.csv", ("cat", "dog"))
    assert rows.ids == ("one", "two", "three", "four")
    assert rows.given == ("cat", "cat", "dog", "dog")
    assert rows.verified == (None, "dog", "dog", None)
    assert rows.picked == (None, "chosen", "random", None)
    assert rows.split == ("train", "train", "valid", "test")
    assert np.asarray(rows.x)[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert rows.x.shape == (4, 3, 4, 1)
    assert rows.notes == ()


def test_without_ids_an_image_is_called_by_its_path(folder):
    text = f"file_name,label,width\n./deep/../1.png,cat,4\ndeep\\4.png,dog,4\n{folder / '2.png'},dog,4\n"
    rows = read(folder, text)
    assert rows.ids == ("1.png", "deep\\4.png", "2.png")
    assert np.asarray(rows.x)[:, 0, 0, 0].tolist() == [0, 3, 1]
    assert rows.notes == ("pets.csv: not used: the columns width",)


@pytest.mark.parametrize("blank", ["-1", "-1.0", "nan", "NA", "None"])
def test_what_programs_write_for_a_blank_is_refused_unless_it_is_a_label(tmp_path, blank):
    text = f"a,label,verified_label\n1,0,{blank}\n2,1,1\n3,0,0\n"
    with pytest.raises(ValueError, match=f"'0' is verified as '{blank}', which is no row's given label; leave the"):
        read(tmp_path, text)
    assert read(tmp_path, text.replace("2,1,1", f"2,{blank},0")).verified == (blank, "0", "0")


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_delimiters_marks_and_line_ends_are_found(tmp_path, mark, before, end):
    text = FEATURES.replace(",", mark).replace("\n", end)
    rows = read(tmp_path, before + text.encode())
    np.testing.assert_array_equal(rows.x, np.float32([[1, 0.5], [-2000, 0.25], [3, 7]]))
    assert rows.given == ("cat", "dog", "cat")
    assert rows.verified == (None, "cat", "cat")
    assert rows.ids == ("0", "1", "2")
    assert rows.feature_names == ("a", "b")


def test_a_table_may_have_more_columns_than_python_reads_into_a_cell(tmp_path):
    names = [f"expression of gene {number}" for number in range(7000)]
    row = ",".join(["0.5"] * len(names))
    rows = read(tmp_path, f"label,{','.join(names)}\ncat,{row}\ndog,{row}\n")
    assert rows.x.shape == (2, len(names))
    assert rows.feature_names == tuple(names)


def test_labels_stay_as_they_are_written(tmp_path):
    rows = read(tmp_path, 'x,label\n1,007\n2,NA\n3,"a, ""b"""\n4,None\n5,"two\nlines"\n6,true\n7,5" disk\n')
    assert rows.given == ("007", "NA", 'a, "b"', "None", "two\nlines", "true", '5" disk')


def test_numbers_beside_blanks_may_be_written_as_fractions(tmp_path):
    rows = read(tmp_path, "x,label,verified_label\n1,3,\n2,4,3.0\n3,4,4.0\n")
    assert rows.class_names == ("3", "4")
    assert rows.verified == (None, "3", "4")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_blanks_around_the_names_of_columns_are_none(tmp_path, suffix):
    table = pd.DataFrame({"  lead": [1.0, 2.0], "tin ": [3, 4], " label": ["a", "b"], "verified_label": [None, "a"]})
    path = tmp_path / f"metals.{suffix}"
    getattr(table, f"to_{suffix}")(path, index=False)
    rows = read_table(path)
    assert (rows.feature_names, rows.given, rows.verified) == (("lead", "tin"), ("a", "b"), (None, "a"))
    assert rows.x.tolist() == [[1, 3], [2, 4]]
    assert list_table(path, as_text=False)[0].column_names == ["lead", "tin", "label", "verified_label"]
    known = read_table(path, class_names=["a", "b"], features=[Column("tin"), Column("  lead")])
    assert known.x.tolist() == [[3, 1], [4, 2]]
    again = table.assign(lead=0.0)
    getattr(again, f"to_{suffix}")(path, index=False)
    with pytest.raises(ValueError, match="two columns 'lead'"):
        read_table(path)


def test_names_of_columns_are_not_compared_each_with_each():
    """A table of gene expression has tens of thousands of columns."""
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str(self) == other

    names = [*map(Name, map(str, range(300))), "label"]
    for known in (None, [Column(Name(name)) for name in names[:-1]]):
        assert useful("genes.csv", names, known) == (names, [])
    assert compared < 20_000


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_categories_as_pandas_spreads_them_are_zeros_and_ones(tmp_path, suffix):
    table = pd.get_dummies(pd.DataFrame({"size": [0.5, 1.5, 2.5], "town": ["Köln", "Ulm", "Köln"]}))
    table["label"] = ["cat", "dog", "dog"]
    path = tmp_path / f"pets.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    np.testing.assert_array_equal(read_table(path).x, np.float32([[0.5, 1, 0], [1.5, 0, 1], [2.5, 1, 0]]))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_that_a_trained_model_does_not_know_may_hold_anything(tmp_path, suffix):
    table = pd.DataFrame({"remark": ["good", ""], "b": [1, 4], "c": [2, 5], "a": [3, 6]})
    path = tmp_path / f"new.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    rows = read_table(path, class_names=["cat", "dog"], features=[Column("a"), Column("b")])
    np.testing.assert_array_equal(rows.x, np.float32([[3, 1], [6, 4]]))
    assert rows.notes == (f"new.{suffix}: not used: the columns remark, c",)
    with pytest.raises(ValueError, match="lacks the column 'remarks', which the model was trained on; did you mean"):
        read_table(path, class_names=["cat", "dog"], features=[Column("a"), Column("remarks")])


def test_a_trained_model_gets_its_features_in_order_and_needs_no_labels(tmp_path):
    rows = read(tmp_path, "b,c,a\n1,2,3\n4,5,6\n", class_names=["cat", "dog"], features=[Column("a"), Column("b")])
    np.testing.assert_array_equal(rows.x, [[3, 1], [6, 4]])
    assert rows.given == (None, None)
    with pytest.raises(
        ValueError, match="lacks the column 'height', which the model was trained on; did you mean 'heig"
    ):
        read(tmp_path, "heigth\n1\n", class_names=["cat", "dog"], features=[Column("height")])
    rows = read(tmp_path, "id\tx\na\t1\n", class_names=["cat", "dog"])
    assert (rows.ids, rows.x.tolist()) == (("a",), [[1]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first line is empty or not text; it must name the columns"),
        ("\npath,label\n", "the first line is empty"),
        (
            "path:label\n1.png:cat\n",
            "the first line 'path:label' is all one column; put a comma, a semicolon, a tab or |",
        ),
        ("path,label\n1.png;cat\n", "line 2 has 1 columns, but the first line has 2; put a comma between columns"),
        ("path;label\n1.png;cat\n2.png;dog;3\n", "line 3 has 3 columns, but the first line has 2; put a semicolon"),
        ("path,label\n", "pets.csv holds no rows"),
        ("path,lable\n1.png,cat\n", "unknown column 'lable'; did you mean 'label'. rename it, or take it out"),
        ("path,Label\n1.png,cat\n", "unknown column 'Label'; did you mean 'label'"),
        ("path,label,verified\n1.png,cat,\n", "unknown column 'verified'; did you mean 'verified_label'"),
        ("Path,label\n1.png,cat\n", "unknown column 'Path'; did you mean 'path'"),
        ("path,class\n1.png,cat\n", "has no column 'label', only 'path', 'class'; rename the column with the labels"),
        ("1.png,cat\n2.png,dog\n", "has no column 'label', only '1.png', 'cat'"),
        (",".join([*"abcdefghijk", "target"]) + "\n", "only 'a', 'b', 'c', 'd', 'e', …, 'h', 'i', 'j', 'k', 'target';"),
        (
            "x,label\nTrue,cat\nmaybe,dog\n",
            r"nor columns of features: 'x' \(2 different texts, too many to be categories\); add one",
        ),
        ("x,label\n0.5,cat\nTrue,dog\n", "line 3: 'True' in column 'x' is not a number; write numbers"),
        ("x,label\nTrue,cat\n0,dog\n2.5,dog\n", "line 2: 'True' in column 'x' is not a number"),
        ("path,file_name,label\na,b,c\n", "has both 'path' and 'file_name'"),
        ("path,label,label\na,b,c\n", "has two columns 'label'"),
        (",path,label\n0,1.png,cat\n", "must name the columns, but column 1 has no name; call it 'id', or write"),
        (",id,a,label\n0,x,1,cat\n", "must name the columns, but column 1 has no name; write the table without"),
        (
            "x,label,\n1,cat,\n2,dog,\n",
            "column 3 has no name; name it, or take it out",
        ),  # as spreadsheets may end lines
        ("path,label\n1.png,cat\n,dog\n", "row 1 has no path; name its image"),
        ("path,label\n1.png,cat\n2.png,\n", r"1 of 2 rows lacks a label, first '2.png' \(row 1\)"),
        ("path,label\n1.png,cat\n2.png,Cat \n", "the labels 'Cat ' and 'cat' differ only in how they are written"),
        ("path,label\n1.png,cat\n2.png,cat\n", "pets.csv has only the label 'cat'"),
        (
            "path,label\n1.png,cat\n2.png,dog\n1.png,cat\n",
            r"the id '1.png' occurs more than once \(rows 0 and 2\); keep one row",
        ),
        ("id,path,label\na,1.png,cat\nb,deep/../1.png,dog\n", "the file '.*1.png' occurs more than once"),
        ("id,path,label\na,1.png,cat\na,2.png,dog\n", "the id 'a' occurs more than once"),
        ("id,path,label\na,1.png,cat\n,2.png,dog\n", "pets.csv: row 1 has no id"),
        (
            "path,label,verified_label\n1.png,cat,cat\n2.png,dog,\n1.png,cat,dog\n",
            r"the id '1.png' is verified as 'cat' and as 'dog' \(rows 0 and 2\); if they are one row, keep",
        ),
        (
            "id,path,label,verified_label\na,1.png,cat,cat\nb,2.png,dog,\nc,deep/../1.png,cat,dog\n",
            r"the file '.*1.png' is verified as 'cat' and as 'dog' \('a' and 'c'\); keep the one that is right",
        ),
        (
            "path,label,split\n1.png,cat,train\n2.png,dog,\n1.png,cat,test\n",
            "the id '1.png' is a test row that is also in training",
        ),
        (
            "path,label,split\n1.png,cat,trian\n2.png,dog,\n",
            "pets.csv: row 0: unknown split 'trian'; did you mean 'train'",
        ),
        ("path,label,picked\n1.png,cat,x\n2.png,dog,\n", "row 0: unknown way of picking 'x'; known: random, chosen"),
        ("path,label\n../secret.png,cat\n2.png,dog\n", "pets.csv: '../secret.png' leads out of the folder"),
        ("path,label\n/etc/passwd,cat\n2.png,dog\n", "pets.csv: '/etc/passwd' leads out of the folder"),
        ("path,label\nno.png,cat\n2.png,dog\n", "no image of the class 'cat' can be read"),
        (
            "x,label\n1,cat\nhigh,dog\n",
            "line 3: 'high' in column 'x' is not a number; write numbers, or leave the cell blank, or",
        ),
        ("kind,label\nred,cat\n1,dog\n", "line 2: 'red' in column 'kind' is not a number; write numbers, or"),
        ("uuid,label\nx7,cat\n1,dog\n", "did you mean 'id' by 'uuid'. rename it, or write numbers"),
        ("x;label\n1;cat\n2,5;dog\n", "line 3: '2,5' in column 'x' is not a number; write numbers without commas"),
        ('x,label\n"1,000.5",cat\n2,dog\n', "line 2: '1,000.5' in column 'x' is not a number; .* a point before"),
        (
            "image_path,label\n1.png,cat\n",
            "column 'image_path' names files such as '1.png'; call it 'path', or take it out",
        ),
        ("x,label\n,cat\nNaN,dog\n", r"nor columns of features: 'x' \(blank in all rows\); add one"),
        ("x,label,split\n,cat,\n,dog,\n1,cat,test\n", r"nor columns of features: 'x' \(blank in all training rows\)"),
        ("x,label,split\n,cat,\n,dog,\na,cat,test\n", r"nor columns of features: 'x' \(blank in all training rows\)"),
        ("x,label\na,cat\nb,dog\nc,dog\n", r"features: 'x' \(3 different texts, too many to be categories\)"),
        (
            "x,label,split\na,cat,\nb,dog,\na,dog,test\n",
            r"features: 'x' \(2 different texts, too many to be categories\)",
        ),
        (
            "x,label\n1,cat\n-inf,dog\n",
            r"'x' holds a number beyond float32's range \(±3.4e\+38\), or an infinite one, in 1 of 2 rows",
        ),
        ("x,label\n1,cat\n1e200,dog\n", "beyond float32's range .* in 1 of 2 rows, first in row 1; rescale it"),
        ("x,label\n1e200,cat\n,dog\n", "beyond float32's range .* in 2 of 2 rows, first in row 0; rescale it"),
        ("label\ncat\ndog\n", "has neither a column 'path' with images nor columns of features"),
        (b"path,label\n1.png,cat\n2.png,chi\xe9n\n", r"line 3 is not UTF-8 \(byte 0xe9\); save the file as UTF-8"),
        (b"path,\xe9tiquette\n1.png,cat\n", "line 1 is not UTF-8"),
        ("path,label\n1.png,cat\n".encode("utf-16"), "line 1 is not UTF-8"),
        ('path,label\n1.png,cat\n2.png,"dog\n3.png,dog\n', "line 3: a quote is opened there and not closed"),
        ('x,label\n"1,cat\n3,dog\n', "line 2: a quote is opened there and not closed"),
    ],
)
def test_a_bad_table_is_refused_in_one_sentence(folder, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(folder, text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("pets.csv")


def test_a_link_that_leads_out_is_refused(folder):
    (folder.parent / "secret.png").write_bytes(b"")
    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    with pytest.raises(ValueError, match=r"'link.png' leads out of the folder"):
        read(folder, "path,label\nlink.png,cat\n2.png,dog\n")


def test_missing_and_broken_images_are_left_out_up_to_a_number(folder):
    (folder / "broken.png").write_bytes(b"x")
    text = "path,label,verified_label\nno.png,cat,\n1.png,cat,cat\n2.png,dog,\nbroken.png,dog,\n"
    rows = read(folder, text)
    assert (rows.ids, rows.verified) == (("1.png", "2.png"), ("cat", None))
    assert rows.notes == (
        "pets.csv: 2 images that cannot be read are left out: no.png (no such file), broken.png (not an image of a "
        "known format)",
    )
    with pytest.raises(ValueError, match=r"more than 1 of the 4 images cannot be read: no.png"):
        read(folder, text, how=Decoding(max_bad=1))
    (note,) = read(folder, "id,path,label\na,no.png,cat\nb,1.png,cat\nc,2.png,dog\n").notes
    assert note.endswith(f"left out: a (no such file: {folder / 'no.png'})"), "the id does not tell the path"


def test_copies_of_training_rows_in_the_test_are_noted(tmp_path):
    rows = read(tmp_path, "x,label,split\n1,cat,\n2,dog,\n1,cat,test\n3,dog,test\n")
    assert "1 of 2 test rows is also in training: '2' has the same content as '0'" in rows.notes[0]


def test_files_that_are_no_tables_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"neither CSV nor Parquet by its name; it must end in \.csv, \.tsv"):
        read(tmp_path, FEATURES, "pets.xlsx")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"pets.parquet cannot be read as Parquet .* write it again"):
        read(tmp_path, FEATURES, "pets.parquet")


def frame(**changes: Any) -> pd.DataFrame:
    columns: dict[str, Any] = {
        "a": np.array([1, 2, 3], np.int64),
        "b": np.array([0.5, 0.25, 4], np.float64),
        "c": [True, False, True],
        "label": pd.Categorical([3, 4, 3]),
        "verified_label": [np.nan, 3.0, np.nan],
    }
    return pd.DataFrame(columns | changes)


def saved(folder: Path, table: pd.DataFrame, **options: Any) -> Rows:
    table.to_parquet(folder / "pets.parquet")
    return read_table(folder / "pets.parquet", **options)


def test_parquet_keeps_its_types(tmp_path):
    rows = saved(tmp_path, frame())
    np.testing.assert_array_equal(rows.x, np.float32([[1, 0.5, 1], [2, 0.25, 0], [3, 4, 1]]))
    assert rows.given == ("3", "4", "3")
    assert rows.verified == (None, "3", None)
    assert rows.feature_names == ("a", "b", "c")


def test_decimals_of_a_database_are_numbers(tmp_path):
    rows = saved(
        tmp_path, frame(a=[Decimal("1.25"), Decimal("-2.50"), None], label=[Decimal(3), Decimal(4), Decimal(3)])[:2]
    )
    np.testing.assert_array_equal(rows.x[:, 0], np.float32([1.25, -2.5]))
    assert (rows.given, rows.verified) == (("3", "4"), (None, "3"))
    rows = saved(tmp_path, frame(a=[Decimal("1.25"), Decimal("-2.50"), None]))
    np.testing.assert_array_equal(rows.x[:, :2], np.float32([[1.25, 0], [-2.5, 0], [-0.625, 1]]))


def test_an_index_of_pandas_is_no_feature(tmp_path):
    """Nor once it was written to CSV and read: sorted tables would have the label in it."""
    rows = saved(tmp_path, frame().set_index(np.array([7, 8, 9])))
    assert rows.feature_names == ("a", "b", "c")
    table = frame()[["a", "label"]]
    for times in (1, 2, 3):
        table.to_csv(tmp_path / "again.csv")
        table = pd.read_csv(tmp_path / "again.csv")
        rows = read(tmp_path, table.to_csv(index=False))
        assert rows.feature_names == ("a",)
        counted = ", ".join(table.columns[:times])
        assert rows.notes == (f"pets.csv: not used: the columns {counted}",)
    assert counted == "Unnamed: 0.2, Unnamed: 0.1, Unnamed: 0"


def test_embeddings_may_be_lists_in_one_column(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    rows = saved(tmp_path, frame(e=list(vectors)).drop(columns=["b", "c"]))
    np.testing.assert_array_equal(rows.x, np.column_stack([[1, 2, 3], vectors]).astype(np.float32))
    with pytest.raises(ValueError, match="column 'e' must hold a list of numbers in each row, all of the same length"):
        saved(tmp_path, frame(e=[[1.0], [1.0, 2.0], [3.0]]))


LISTS = {"list": pa.list_, "large list": pa.large_list, "fixed-size list": lambda kind: pa.list_(kind, 3)}


def rows_of_lists(lists: list[Any], kind: pa.DataType) -> Rows:
    """Rows whose features are lists, as slices of arrays that hold more and in three chunks, the second one empty."""
    padded = pa.array([None, *lists, None], kind)
    column = pa.chunked_array([padded[1:2], padded[2:2], padded[2:-1]])
    table = pa.table({"e": column, "label": ["cat", "dog"] * (len(lists) // 2)})
    return rows_from_arrow("pets", table, Path(), Decoding())


@pytest.mark.parametrize("kind", ["uint8", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("listed", LISTS)
def test_lists_are_read_as_their_numbers_say(listed, kind):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**62, (6, 3)) if kind == "int64" else rng.uniform(0, 255, (6, 3)).astype(kind)
    rows = rows_of_lists([list(row) for row in values], LISTS[listed](pa.from_numpy_dtype(kind)))
    expected = [[np.float32(float(number)) for number in row] for row in values.tolist()]
    np.testing.assert_array_equal(rows.x, np.array(expected))
    assert rows.x.dtype == np.float32


@pytest.mark.parametrize("kind", [pa.int32(), pa.float32()])
@pytest.mark.parametrize("listed", LISTS)
def test_a_number_missing_from_a_list_is_named_by_its_row(listed, kind):
    with pytest.raises(ValueError, match="column 'e' lacks a finite number in 2 of 4 rows, first in row 1;"):
        rows_of_lists([[1, 2, 3], [4, None, 6], [7, 8, 9], [None, 1, 2]], LISTS[listed](kind))


@pytest.mark.parametrize("listed", LISTS)
@pytest.mark.parametrize(
    ("lists", "kind"),
    [
        ([[1, 2, 3], None, [4, 5, 6], [7, 8, 9]], pa.float32()),
        ([None] * 4, pa.float32()),
        ([["1", "2", "3"]] * 4, pa.string()),
        ([[True, False, True]] * 4, pa.bool_()),
        ([[None, None, None]] * 4, pa.null()),
        ([[[1.0], [2.0], [3.0]]] * 4, pa.list_(pa.float32())),
    ],
)
def test_what_is_no_list_of_numbers_in_each_row_is_refused(listed, lists, kind):
    with pytest.raises(
        ValueError, match="pets: column 'e' must hold a list of numbers in each row, all of the same length"
    ):
        rows_of_lists(lists, LISTS[listed](kind))


@pytest.mark.parametrize("lists", [[[]] * 4, [[1], [2], [], [4]], [[1, 2], [3, 4], [5, 6], [7, 8, 9]]])
def test_lists_of_no_numbers_or_of_different_lengths_are_refused(lists):
    with pytest.raises(
        ValueError, match="pets: column 'e' must hold a list of numbers in each row, all of the same length"
    ):
        rows_of_lists(lists, pa.list_(pa.float64()))


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ([None, None, None], "blank in all rows"),
        (pd.to_datetime(["2024-01-02"] * 3), r"timestamp\[\w+\], neither numbers nor texts"),
        (["x", "y", "z"], "3 different texts, too many to be categories"),
    ],
)
def test_columns_that_cannot_be_features_are_left_out_with_a_note(tmp_path, cells, reason):
    rows = saved(tmp_path, frame(a=cells))
    assert rows.feature_names == ("b", "c")
    assert re.fullmatch(rf"pets.parquet: not used: 'a' \({reason}\)", rows.notes[0])


def test_parquet_may_list_images(folder):
    table = pd.DataFrame({"file_name": ["1.png", "2.png"], "label": ["cat", "dog"], "extra": [1, 2]})
    rows = saved(folder, table)
    assert (rows.ids, rows.given, rows.x.shape) == (("1.png", "2.png"), ("cat", "dog"), (2, 3, 4, 1))
    assert rows.notes == ("pets.parquet: not used: the columns extra",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": [1, 2, -1e300]}, "column 'a' holds a number beyond float32's range .* in 1 of 3 rows, first in row 2"),
        (
            {"a": [[1.0], [1e39], [2.0]]},
            "column 'a' holds a number beyond float32's range .* in 1 of 3 rows, first in row 1",
        ),
        ({"label": [0.5, 1, 2]}, "column 'label': 0.5 in row 0 cannot be a label or an id"),
        ({"id": pd.date_range("2026", periods=3)}, r"column 'id': .*2026.* in row 0 cannot be a label or an id"),
        ({"Split": [1, 2, 3]}, "unknown column 'Split'; did you mean 'split'"),
    ],
)
def test_bad_parquet_is_refused_in_one_sentence(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        saved(tmp_path, frame(**changes))


def test_whole_numbers_first_and_fractions_later_are_one_column(tmp_path, monkeypatch):
    monkeypatch.setattr("fasten.data.table.LONGEST_LINE", 1000)  # files are read in blocks of this size
    many = 2_000
    a = np.arange(many, dtype=object)
    a[-1] = 0.5
    table = pd.DataFrame({"a": a, "b": np.arange(many) / 3, "label": np.arange(many) % 7})
    table.to_csv(tmp_path / "big.csv", index=False)
    rows = read_table(tmp_path / "big.csv")
    np.testing.assert_array_equal(rows.x, table[["a", "b"]].to_numpy(np.float32))
    assert rows.given_codes().tolist() == (np.arange(many) % 7).tolist()
