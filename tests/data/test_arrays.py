"""Arrays, tensors, pandas objects, lists of files and .npz give the same rows; what is wrong is said in a sentence."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from PIL import Image

from fasten.data.arrays import read_npz, rows_from_arrays
from fasten.data.rows import Rows

X = np.random.default_rng(0).normal(size=(4, 3))
Y = ["cat", "dog", "cat", "dog"]
PIXELS = np.random.default_rng(1).integers(0, 256, (4, 5, 6), np.uint8)


@pytest.mark.parametrize(
    "x",
    [X, X.astype(np.float32), X.tolist(), torch.tensor(X), torch.tensor(X, requires_grad=True), pd.DataFrame(X)],
    ids=["float64", "float32", "list", "tensor", "gradient", "frame"],
)
@pytest.mark.parametrize(
    "y", [Y, tuple(Y), np.array(Y), np.array(Y, object), pd.Series(Y, index=[9, 8, 7, 6]), pd.Categorical(Y)]
)
def test_features_come_from_whatever_holds_them(x, y):
    rows = rows_from_arrays(x, y)
    np.testing.assert_array_equal(rows.x, X.astype(np.float32))
    assert rows.x.dtype == np.float32
    assert (rows.given, rows.ids) == (tuple(Y), ("0", "1", "2", "3"))
    assert rows.verified == rows.split == rows.picked == (None,) * 4


def test_bfloat16_is_read_though_numpy_has_none():
    x = torch.tensor(X).bfloat16()
    np.testing.assert_array_equal(rows_from_arrays(x, Y).x, x.float().numpy())


@pytest.mark.parametrize(
    "verified", [[None, 1, None, 0], [np.nan, 1, np.nan, 0], np.array([-1, 1, -1, 0]), ["", "1", "", "0"]]
)
@pytest.mark.parametrize("y", [[0, 1, 1, 0], np.array([0.0, 1.0, 1.0, 0.0]), torch.tensor([0, 1, 1, 0])])
def test_nobody_checked_is_written_in_many_ways(y, verified):
    rows = rows_from_arrays(X, y, y_verified=verified)
    assert rows.given_codes().tolist() == [0, 1, 1, 0]
    assert rows.verified_codes().tolist() == [-1, 1, -1, 0]
    assert rows.picked == (None, "random", None, "random")


def test_minus_one_is_a_label_where_it_is_one():
    rows = rows_from_arrays(X, [-1, 1, 1, -1], y_verified=[None, -1, None, 1])
    assert rows.class_names == ("-1", "1")
    assert rows.verified == (None, "-1", None, "1")


@pytest.mark.parametrize("y", [[-1, 1, 1, -1], ["-1", "1", "1", "-1"], [-1.0, 1.0, 1.0, -1.0]])
def test_minus_one_that_is_a_label_does_not_say_that_nobody_looked(y):
    verified = np.array([-1, 1, -1, -1])
    with pytest.raises(ValueError, match=r"-1 is one of your labels .* mark unchecked rows with NaN, None or an empty"):
        rows_from_arrays(X, y, y_verified=verified)


def test_rows_that_are_all_verified_as_minus_one_or_one_are_refused_with_a_cure_that_works():
    y, verified = np.array([-1, 1, 1, -1]), np.array([-1, 1, -1, -1])
    with pytest.raises(
        ValueError, match=r"not known which rows .* if all rows were checked, replace the label -1 by another, such"
    ):
        rows_from_arrays(X, y, y_verified=verified)
    rows = rows_from_arrays(X, np.maximum(y, 0), y_verified=np.maximum(verified, 0))
    assert rows.verified == ("0", "1", "0", "0")


@pytest.mark.parametrize(
    "picked",
    [
        ["chosen", None, None, "random"],
        ["chosen", np.nan, None, "random"],
        pd.Series(["chosen", None, np.nan, "random"]),
        pd.Series(["chosen", None, None, "random"], dtype="string"),
        np.array(["chosen", None, np.nan, "random"], object),
    ],
)
def test_how_rows_were_picked_may_be_missing_in_any_way(picked):
    assert rows_from_arrays(X, Y, y_verified=Y, picked=picked).picked == ("chosen", "random", "random", "random")


def test_minus_one_that_only_a_trained_model_knows_is_a_label():
    rows = rows_from_arrays(X, [1, 1, 1, 1], y_verified=[None, -1, None, 1], class_names=["-1", "1"])
    assert rows.verified == (None, "-1", None, "1")


def test_further_rows_follow_those_of_x():
    rows = rows_from_arrays(
        X,
        Y,
        x_clean=X[:2] + 1,
        y_clean=["dog", "cat"],
        x_valid=X[:1] + 2,
        y_valid=["cat"],
        x_test=X[:1] + 3,
        y_test=["dog"],
        ids=[10, 11, 12, 13],
    )
    assert rows.ids == ("10", "11", "12", "13", "clean/0", "clean/1", "valid/0", "test/0")
    assert rows.given == (*Y, None, None, "cat", "dog")
    assert rows.verified == (*[None] * 4, "dog", "cat", None, None)
    assert rows.split == (*[None] * 6, "valid", "test")
    np.testing.assert_array_equal(rows.x, np.concatenate([X, X[:2] + 1, X[:1] + 2, X[:1] + 3]).astype(np.float32))


@pytest.mark.parametrize("x", [PIXELS, PIXELS[..., None], torch.tensor(PIXELS)])
def test_grey_images_get_a_channel(x):
    rows = rows_from_arrays(x, Y)
    assert rows.x.dtype == np.uint8
    np.testing.assert_array_equal(rows.x, PIXELS[..., None])


def test_colour_images_stay_as_they_are():
    colour = np.stack([PIXELS] * 3, 3)
    assert rows_from_arrays(colour, Y).x is colour


def test_columns_keep_their_names():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    assert rows_from_arrays(frame, Y).feature_names == ("a", "b", "c")
    with pytest.raises(ValueError, match="x_clean has other columns than x, or another order"):
        rows_from_arrays(frame, Y, x_clean=frame[["b", "a", "c"]], y_clean=Y)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for value in range(6):
        Image.new("L", (4, 3), value).save(tmp_path / f"{value}.png")
    return [str(tmp_path / f"{value}.png") for value in range(6)]


@pytest.mark.parametrize("form", [list, np.array, pd.Series, lambda names: [Path(name) for name in names]])
def test_files_may_be_listed(files, form):
    rows = rows_from_arrays(form(files[:4]), Y)
    assert rows.ids == tuple(files[:4])
    assert np.asarray(rows.x)[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


def test_a_file_that_is_noisy_and_clean_is_one_row(files):
    rows = rows_from_arrays(files[:4], Y, x_clean=[files[1], files[5]], y_clean=["cat", "dog"])
    assert rows.ids == (*files[:4], files[5])
    assert rows.given == (*Y, None)
    assert rows.verified == (None, "cat", None, None, "dog")
    clean = {"x_clean": files[1:2], "y_clean": ["cat"]}
    rows = rows_from_arrays(files[:4], Y, **clean, y_verified=[None, "cat", None, None], picked=["chosen"] * 4)
    assert rows.picked == (None, "chosen", None, None)
    with pytest.raises(ValueError, match="is verified as 'dog' and as 'cat'"):
        rows_from_arrays(files[:4], Y, x_clean=files[1:2], y_clean=["cat"], y_verified=[None, "dog", None, None])
    with pytest.raises(ValueError, match="is a test row that is also in training"):
        rows_from_arrays(files[:4], Y, x_test=files[1:2], y_test=["cat"])


def test_a_trained_model_needs_no_labels():
    rows = rows_from_arrays(X, class_names=["cat", "dog"])
    assert (rows.given, rows.class_names) == ((None,) * 4, ("cat", "dog"))


def test_copies_of_training_images_in_the_test_are_refused():
    with pytest.raises(ValueError, match="1 of 1 test row is also in training: 'test/0' has the same content as '2'"):
        rows_from_arrays(PIXELS, Y, x_test=PIXELS[2:3], y_test=["cat"])
    assert "1 of 1 test row is also" in rows_from_arrays(X, Y, x_test=X[2:3], y_test=["cat"]).notes[0]


def changed(row: int, column: int, value: float) -> np.ndarray:
    x = X.copy()
    x[row, column] = value
    return x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": changed(2, 1, np.nan)}, "arrays: x holds nan in row 2, column 1; give finite numbers"),
        ({"x": changed(3, 0, -np.inf)}, "x holds -inf in row 3, column 0"),
        ({"x": changed(0, 2, 1e300)}, r"x holds 1e\+300 in row 0, column 2"),
        ({"x": PIXELS / 255}, r"x: pixels are float64; give uint8 from 0 to 255 \(\(x \* 255\).round\(\), then"),
        ({"x": PIXELS.astype(np.int32)}, "x: pixels are int32; give uint8 from 0 to 255"),
        ({"x": np.zeros((4, 3, 8, 8), np.uint8)}, r"x has shape \(4, 3, 8, 8\); .* use x.transpose\(0, 2, 3, 1\)"),
        ({"x": np.zeros((4, 8, 8, 4), np.uint8)}, r"give images as \(rows, height, width, 1 or 3\)$"),
        ({"x": X[:, 0]}, r"x has shape \(4,\); give features as \(rows, features\)"),
        ({"x": X[:, :0]}, r"x has shape \(4, 0\)"),
        ({"x": scipy.sparse.csr_matrix(X)}, r"x is a sparse matrix; make it an array with toarray\(\)"),
        ({"x": X + 1j}, "x holds complex128; give real numbers"),
        ({"x": X.astype("datetime64[D]")}, r"x holds datetime64\[D\]; give real numbers"),
        ({"x": [["a", 1], ["b", 2], ["c", 3], ["d", 4]]}, "x holds something that is not a number"),
        (
            {"x": pd.DataFrame({"a": [1, 2, 3, 4], "b": Y})},
            "the column 'b' holds texts such as 'cat'; leave it out, or encode",
        ),
        ({"x": pd.DataFrame({"b": pd.date_range("2020", periods=4)})}, "x: column 'b' holds datetime64.*; encode it"),
        ({"x": X[:0], "y": []}, "x holds no rows"),
        ({"y": Y[:3]}, "3 labels for the 4 rows of x; give one per row"),
        ({"y": None}, "x and its labels come together, but one of them is missing; give both"),
        ({"y": ["cat", "dog", "cat", None]}, r"1 of 4 rows lacks a label, first '3' \(row 3\)"),
        ({"y": ["cat", "dog", "Cat", "dog"]}, "the labels 'Cat' and 'cat' differ only"),
        ({"y": ["cat"] * 4}, "arrays has only the label 'cat'"),
        ({"y": np.eye(4)}, r"arrays: labels has shape \(4, 4\); give one label for each row"),
        ({"y": [0.25, 1, 2, 3]}, "labels: 0.25 in row 0 cannot be a label or an id"),
        ({"y": np.array([b"cat", b"caf\xe9"] * 2)}, r"arrays: labels: b'caf\\xe9' is not UTF-8; give texts instead of"),
        ({"x_clean": X}, "x_clean and its labels come together"),
        ({"y_test": Y}, "x_test and its labels come together"),
        ({"x_clean": X[:, :2], "y_clean": Y}, r"the rows of x_clean have shape \(2,\), those of x \(3,\)"),
        ({"x_clean": ["a.png"], "y_clean": ["cat"]}, "x_clean is a list of files, but others are arrays"),
        ({"y_verified": ["cat"]}, "1 verified labels for the 4 rows of x"),
        ({"ids": ["a", "b", "a", "c"]}, r"the id 'a' occurs more than once \(rows 0 and 2\)"),
        ({"ids": ["a", "b", None, "c"]}, "3 ids for the 4 rows of x"),
        (
            {"ids": list("aabc"), "y_verified": ["cat", "dog", None, None]},
            "the id 'a' is verified as 'cat' and as 'dog'",
        ),
        ({"class_names": ["cat", "dogs"]}, "unknown label 'dog'; did you mean 'dogs'"),
    ],
)
def test_bad_arrays_are_refused_in_one_sentence(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        rows_from_arrays(**({"x": X, "y": Y} | changes))
    assert "\n" not in str(caught.value)


def saved(folder: Path, **arrays: Any) -> Rows:
    np.savez(folder / "pets.npz", **arrays)
    return read_npz(folder / "pets.npz")


def test_an_npz_file_is_read(tmp_path):
    rows = saved(
        tmp_path,
        x=PIXELS,
        labels=np.array(Y),
        verified=np.array(["", "cat", "", ""]),
        picked=np.array(["", "chosen", "", ""]),
        ids=np.arange(4) + 5,
        x_test=PIXELS[:1] + 1,
        y_test=np.array(["dog"]),
    )
    assert (rows.name, rows.ids) == ("pets.npz", ("5", "6", "7", "8", "test/0"))
    assert rows.given == (*Y, "dog")
    assert rows.verified == (None, "cat", None, None, None)
    assert rows.picked == (None, "chosen", None, None, None)
    assert rows.split == (*[None] * 4, "test")
    assert rows.x.shape == (5, 5, 6, 1)


def test_numbers_may_have_names(tmp_path):
    names = np.array(["dog", "cat"])
    rows = saved(tmp_path, x=X, labels=np.array([0, 1, 1, 0]), verified=np.array([-1, 0, -1, -1]), class_names=names)
    assert rows.given == ("dog", "cat", "cat", "dog")
    assert rows.verified == (None, "dog", None, None)
    rows = saved(
        tmp_path, x=X, labels=np.array([0, 1, 1, 0]), verified=np.array([-1, 0, -1, -1]), class_names=["-1", "1"]
    )
    assert rows.verified == (None, "-1", None, None)
    with pytest.raises(
        ValueError, match=r"pets.npz: the class 'cow' has no rows; remove it from class_names, and renumber"
    ):
        saved(tmp_path, x=X, labels=np.array([0, 1, 1, 0]), class_names=np.array(["dog", "cat", "cow"]))
    with pytest.raises(ValueError, match="labels: 2 in row 3 has no name among the 2 class_names"):
        saved(tmp_path, x=X, labels=np.array([0, 1, 1, 2]), class_names=names)


def test_a_trained_model_reads_npz_without_labels(tmp_path):
    np.savez(tmp_path / "new.npz", x=X)
    assert read_npz(tmp_path / "new.npz", class_names=["cat", "dog"]).given == (None,) * 4


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "pets.npz has no array 'labels', only x; save one under that name"),
        ({"X": X, "labels": Y}, "unknown array 'X'; did you mean 'x'"),
        ({"x": X, "lables": Y}, "unknown array 'lables'; did you mean 'labels'"),
        ({"x": X, "labels": np.array(["cat", None], object)}, "'labels' cannot be read .* save texts as np.array"),
        ({"x": changed(1, 1, np.nan), "labels": Y}, "pets.npz: x holds nan in row 1, column 1"),
        ({"x": X, "labels": Y, "picked": ["x"] * 4}, "pets.npz: unknown way of picking 'x'"),
        (
            {"x": X, "labels": Y, "picked": ["random"] * 4},
            "pets.npz: picked says how .* but there are no verified labels for x; give",
        ),
        ({"x": np.array(["/1.png"] * 4), "labels": Y}, "pets.npz: x holds texts; give numbers, or name images in the"),
    ],
)
def test_a_bad_npz_file_is_refused_in_one_sentence(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message) as caught:
        saved(tmp_path, **arrays)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "header", ["{'descr': '''", "{[]: 1}", "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}"]
)
def test_an_array_with_a_damaged_header_is_refused(tmp_path, header):
    content = io.BytesIO()
    np.lib.format.write_array(content, np.zeros(2))
    start = content.getvalue()[:8]  # the mark and the version; then the header's length in two bytes
    with zipfile.ZipFile(tmp_path / "pets.npz", "w") as archive:
        archive.writestr("x.npy", start + len(header).to_bytes(2, "little") + header.encode())
        archive.writestr("labels.npy", content.getvalue())
    with pytest.raises(ValueError, match=r"pets.npz: the array 'x' cannot be read .* save it again"):
        read_npz(tmp_path / "pets.npz")


def test_an_encrypted_npz_file_is_refused(tmp_path):
    np.savez(tmp_path / "pets.npz", x=X, labels=Y)
    content = bytearray((tmp_path / "pets.npz").read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # of each member, and in the list of all
        for start in [m.start() for m in re.finditer(re.escape(mark), content)]:
            content[start + flags] |= 1
    (tmp_path / "pets.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"pets.npz: the array 'x' cannot be read .*encrypted"):
        read_npz(tmp_path / "pets.npz")


def test_files_that_are_no_npz_are_refused(tmp_path):
    path = tmp_path / "pets.npz"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_npz(path)
    for content in (b"", b"text", b"PK\x03\x04 cut short"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"pets.npz cannot be read as .npz; save it with np.savez"):
            read_npz(path)
    with open(path, "wb") as file:
        np.save(file, X)
    with pytest.raises(ValueError, match=r"pets.npz is a single array"):
        read_npz(path)
    np.savez_compressed(path, x=np.zeros((50, 50)), labels=np.arange(50))
    content = bytearray(path.read_bytes())
    content[100:130] = bytes(30)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"the array 'x' cannot be read .* save it again"):
        read_npz(path)
