"""Arrays in memory, lists of image files, and `.npz` files.

An `.npz` file holds `x` and `labels`, and optionally `verified` (for the same rows; "", NaN or -1 if nobody checked, -1
only if it is not itself a label), `picked`, `ids`, `class_names` (names for labels that are numbers from 0), and
further rows as `x_clean` and `y_clean`, `x_valid` and `y_valid`, `x_test` and `y_test`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fasten.data.decoding import SUFFIXES, Decoding, decode_images
from fasten.data.encoding import Column
from fasten.data.images import ImageFiles
from fasten.data.labels import Part, Picked, label_texts, on_host, picked_of
from fasten.data.numbers import coarse, note_coarse
from fasten.data.rows import Columns, Rows, add_verdicts, compare_test_rows, make_columns, make_image_rows, make_rows
from fasten.suggest import nearest, one_line

Examples = NDArray[Any] | list[Path]

LABELS = ("labels", "verified", "y_clean", "y_valid", "y_test")
EXAMPLES = ("x", "x_clean", "x_valid", "x_test")
KEYS = (*EXAMPLES, "picked", "ids", "class_names", *LABELS)


def read_npz(path: str | os.PathLike[str], *, class_names: Sequence[str] | None = None, labelled: bool = True) -> Rows:
    """Return the rows of an `.npz` file.

    With `class_names`, those of a trained model, labels may be missing. Unless `labelled`, they are ignored.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give the path of an .npz file")
    arrays = _load(path)
    unknown = [key for key in arrays if key not in KEYS]
    if unknown:
        raise ValueError(f"{path.name}: unknown array {unknown[0]!r}; {nearest(unknown[0], KEYS)}")
    for key in ("x", "labels") if class_names is None else ("x",):
        if key not in arrays:
            raise ValueError(f"{path.name} has no array {key!r}, only {', '.join(arrays)}; save one under that name")
    if not labelled:
        arrays = {key: values for key, values in arrays.items() if key not in (*LABELS, "picked")}
    names = label_texts(arrays.pop("class_names"), f"{path.name}: class_names") if "class_names" in arrays else None
    if names is not None:
        arrays |= {key: _named(f"{path.name}: {key}", arrays[key], names) for key in LABELS if key in arrays}
    if "picked" in arrays:
        arrays["picked"] = [
            picked_of(text, path.name) for text in label_texts(arrays["picked"], f"{path.name}: picked")
        ]
    x, y, y_verified = arrays.pop("x"), arrays.pop("labels", None), arrays.pop("verified", None)
    rows = rows_from_arrays(x, y, y_verified=y_verified, class_names=class_names, name=path.name, **arrays)
    idle = [name for name in names or [] if name not in rows.class_names]
    if idle and class_names is None:
        raise ValueError(
            f"{path.name}: the class {idle[0]!r} has no rows; remove it from class_names, and renumber the labels "
            "after it"
        )
    return rows


def rows_from_arrays(
    x: Any,
    y: Any = None,
    *,
    x_clean: Any = None,
    y_clean: Any = None,
    y_verified: Any = None,
    x_valid: Any = None,
    y_valid: Any = None,
    x_test: Any = None,
    y_test: Any = None,
    ids: Any = None,
    picked: Sequence[Picked | None] | None = None,
    how: Decoding | None = None,
    class_names: Sequence[str] | None = None,
    feature_names: Sequence[str] = (),
    name: str = "arrays",
) -> Rows:
    """Return rows from arrays, tensors, pandas objects or lists of image files, with texts or whole numbers as labels.

    `y_verified` holds, for each row of x, the label that somebody verified; None, NaN, "" or -1 if nobody did. If -1 is
    also in `y`, it is a label; then unchecked rows must be marked in another way, and there must be some. A file in
    both `x` and `x_clean` is one row. `ids` belong to the rows of x; by default, rows are called by their number or
    file. `feature_names` are for columns without a name.

    >>> rows = rows_from_arrays(np.eye(3), ["cat", "dog", "cat"], y_verified=[None, "cat", None])
    >>> rows.ids, rows.given_codes().tolist(), rows.verified_codes().tolist()
    (('0', '1', '2'), [0, 1, 0], [-1, 0, -1])
    """
    asked = {"": (x, y), "clean": (x_clean, y_clean), "valid": (x_valid, y_valid), "test": (x_test, y_test)}
    xs, ys = _parts(name, asked, labelled=class_names is None)
    came = {part: _files_or_array(f"{name}: {_called(part)}", values) for part, values in xs.items()}
    examples = {part: _examples(f"{name}: {_called(part)}", found) for part, found in came.items()}
    columns = {part: _columns(name, part, found, ys[part]) for part, found in examples.items()}
    columns[""] = _with_verdicts(name, columns[""], y_verified, picked, ids, class_names)
    files = {part: found for part, found in examples.items() if isinstance(found, list)}
    if len(files) == len(examples):
        return _file_rows(name, files, columns, how or Decoding(), class_names)
    arrays = {part: found for part, found in examples.items() if isinstance(found, np.ndarray)}
    if files:
        raise ValueError(
            f"{name}: {_called(next(iter(files)))} is a list of files, but others are arrays; give all in one form"
        )
    names = tuple(feature_names) or _feature_names(name, xs)
    notes = _note_coarse(name, came[""], names)
    features = [Column(name) for name in names]
    return compare_test_rows(make_rows(name, _joined(columns), _stacked(name, arrays), class_names, notes, features))


def table_on_host(x: Any) -> Any:
    """Return a table of features in the host's memory; raise if it is a DataFrame with a column of texts."""
    for name, column in x.items() if isinstance(x, pd.DataFrame) else ():
        cells = () if pd.api.types.is_numeric_dtype(column) else column
        text = next((cell for cell in cells if _is_text(cell)), None)
        if text is None:
            continue
        if os.path.splitext(text)[1].lower() in SUFFIXES:
            raise ValueError(f"the column {name!r} names files such as {str(text)!r}; pass it alone: X[{name!r}]")
        raise ValueError(
            f"the column {name!r} holds texts such as {str(text)!r}; leave it out, or encode it as numbers, for "
            "example by scikit-learn's OneHotEncoder in a pipeline"
        )
    return on_host(x)


def _is_text(cell: Any) -> bool:
    """Return whether it is the path of a file, or a text that is no number."""
    if not isinstance(cell, str):
        return isinstance(cell, os.PathLike)
    try:
        float(cell)
    except ValueError:
        return True
    return False


def new_examples(x: Any, how: Decoding, name: str = "arrays") -> NDArray[Any] | ImageFiles:
    """Return examples to predict, in any of these forms; nothing is known about them, and one may come several times.

    >>> new_examples([[0, 1], [0, 1]], Decoding()).dtype.name
    'float32'
    """
    found = _examples(f"{name}: x", _files_or_array(f"{name}: x", x))
    if isinstance(found, list):
        return decode_images(name, found, [path.as_posix() for path in found], how).images
    return found


def _parts(name: str, asked: Mapping[str, tuple[Any, Any]], labelled: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the examples and the labels of the parts that are given."""
    there = {part: pair for part, pair in asked.items() if part == "" or any(side is not None for side in pair)}
    for part, (x, y) in there.items():
        if x is None or (y is None and labelled):
            raise ValueError(
                f"{name}: {_called(part)} and its labels come together, but one of them is missing; give both"
            )
    return {part: x for part, (x, _) in there.items()}, {part: y for part, (_, y) in there.items()}


def _called(part: str) -> str:
    return f"x_{part}" if part else "x"


def _load(path: Path) -> dict[str, Any]:
    """Load all arrays of the file; nothing in it is run."""
    with open(path, "rb") as file:
        try:
            content = np.load(file, allow_pickle=False)
        except Exception:  # a damaged file fails in many ways, and the details do not help the user
            raise ValueError(f"{path.name} cannot be read as .npz; save it with np.savez") from None
        if isinstance(content, np.ndarray):
            raise ValueError(f"{path.name} is a single array; save x and labels with np.savez")
        return {key: _member(path, content, key) for key in content.files}


def _member(path: Path, content: Any, key: str) -> Any:
    try:
        found = content[key]
    except Exception as error:
        hint = "save texts as np.array(texts, dtype=str)" if "allow_pickle" in str(error) else "save it again"
        hint = "save it again, with fewer rows" if isinstance(error, MemoryError) else hint
        raise ValueError(f"{path.name}: the array {key!r} cannot be read ({one_line(error)}); {hint}") from None
    if key in EXAMPLES and found.dtype.kind in "US":
        raise ValueError(f"{path.name}: {key} holds texts; give numbers, or name images in the column path of a table")
    return found


def _named(what: str, labels: NDArray[Any], names: Sequence[str | None]) -> list[str | None]:
    """Return the labels as texts: numbers are places in `names`, and -1 means no label."""
    texts = label_texts(labels, what)
    if labels.dtype.kind not in "iuf":
        return texts
    named = {str(number): name for number, name in enumerate(names)} | {"-1": None}
    for row, text in enumerate(texts):
        if text is not None and text not in named:
            raise ValueError(f"{what}: {text} in row {row} has no name among the {len(names)} class_names; add one")
    return [None if text is None else named[text] for text in texts]


def _files_or_array(what: str, values: Any) -> Examples:
    if isinstance(values, list | tuple) and values and all(isinstance(value, str | os.PathLike) for value in values):
        return [Path(value) for value in values]
    array = _array(what, values)
    if array.ndim == 1 and array.dtype.kind in "OU" and all(isinstance(value, str | os.PathLike) for value in array):
        return [Path(value) for value in array.tolist()]
    return array


def _examples(what: str, array: Examples) -> Examples:
    """Return images as uint8 (n, H, W, C), features as float32 (n, D), or files as they are."""
    if not len(array):
        raise ValueError(f"{what} holds no rows; give some, or leave it out")
    if isinstance(array, list):
        return array
    if array.ndim in (3, 4):
        return _pixels(what, array)
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(
            f"{what} has shape {array.shape}; give features as (rows, features), images as (rows, height, width, "
            "channels), or a list of files"
        )
    return _features(what, array)


def _array(what: str, values: Any) -> NDArray[Any]:
    if hasattr(values, "tocsr"):
        raise ValueError(f"{what} is a sparse matrix; make it an array with toarray()")
    values = table_on_host(values)
    if isinstance(values, pd.DataFrame):
        for column in values.columns:
            if not pd.api.types.is_numeric_dtype(values[column]):
                raise ValueError(f"{what}: column {column!r} holds {values[column].dtype}, not numbers; encode it")
        return values.to_numpy(np.float64, na_value=np.nan)
    try:
        return np.asarray(values)
    except Exception as error:  # the values may be of any type
        raise ValueError(f"{what} cannot be converted to an array ({error}); give a NumPy array") from error


def _pixels(what: str, array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype != np.uint8:
        cure = "(x * 255).round()" if array.dtype.kind == "f" else "scale them to 0…255"
        raise ValueError(f"{what}: pixels are {array.dtype}; give uint8 from 0 to 255 ({cure}, then .astype(np.uint8))")
    images = array[..., None] if array.ndim == 3 else array
    if images.shape[3] not in (1, 3) or 0 in images.shape[1:]:
        first = "; channels come last: use x.transpose(0, 2, 3, 1)" if images.shape[1] in (1, 3) else ""
        raise ValueError(f"{what} has shape {array.shape}; give images as (rows, height, width, 1 or 3){first}")
    return images


def _features(what: str, array: NDArray[Any]) -> NDArray[np.float32]:
    if array.dtype.kind in "cmM":  # NumPy would drop the imaginary part, or convert to nanoseconds
        raise ValueError(f"{what} holds {array.dtype}; give real numbers")
    try:
        with np.errstate(over="ignore"):  # found below
            x = array.astype(np.float32, copy=False)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{what} holds something that is not a number ({error}); encode texts as numbers") from None
    finite = np.isfinite(x)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise ValueError(
            f"{what} holds {array[row, column]} in row {row}, column {column}; give finite numbers in float32's range"
        )
    return x


def _note_coarse(name: str, x: Examples, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(x, list) or x.ndim != 2:
        return ()
    return note_coarse(name, [names[column] if names else column for column in np.flatnonzero(coarse(x)).tolist()])


def _feature_names(name: str, examples: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the columns, if they have any; they must be the same in all parts."""
    named = {part: [str(c) for c in x.columns] for part, x in examples.items() if isinstance(x, pd.DataFrame)}
    for part, columns in named.items():
        if columns != named.get("", columns):
            raise ValueError(f"{name}: {_called(part)} has other columns than x, or another order; give the same")
    return tuple(named.get("", ()))


def _columns(name: str, part: str, examples: Examples, y: Any) -> Columns:
    """Return what is known of the rows of one part."""
    if isinstance(examples, list):
        ids = [path.as_posix() for path in examples]
    else:
        ids = [f"{part}/{row}" if part else str(row) for row in range(len(examples))]
    labels = [None] * len(ids) if y is None else label_texts(y, f"{name}: {f'y_{part}' if part else 'labels'}")
    if len(labels) != len(ids):
        raise ValueError(f"{name}: {len(labels)} labels for the {len(ids)} rows of {_called(part)}; give one per row")
    if part == "clean":
        return make_columns(ids, verified=labels)
    parts: dict[str, Part] = {"valid": "valid", "test": "test"}
    return make_columns(ids, given=labels, split=[parts.get(part)] * len(ids))


def _with_verdicts(
    name: str,
    columns: Columns,
    y_verified: Any,
    picked: Sequence[Picked | None] | None,
    ids: Any,
    class_names: Sequence[str] | None,
) -> Columns:
    """Return the columns of x with ids and verdicts added."""
    if ids is not None:
        called = [text for text in label_texts(ids, f"{name}: ids") if text is not None]
        if len(called) != len(columns.ids):
            raise ValueError(f"{name}: {len(called)} ids for the {len(columns.ids)} rows of x; give one per row")
        columns = replace(columns, ids=tuple(called))
    if y_verified is None:
        if picked is not None:
            raise ValueError(
                f"{name}: picked says how rows were picked for verification, but there are no verified labels for x; "
                "give them, or leave picked out"
            )
        return columns
    verified = label_texts(y_verified, f"{name}: the verified labels")
    if len(verified) != len(columns.ids):
        raise ValueError(
            f"{name}: {len(verified)} verified labels for the {len(columns.ids)} rows of x; give one per row"
        )
    verified = _without_minus_one(name, verified, {*columns.given, *(class_names or ())})
    return make_columns(columns.ids, given=columns.given, verified=verified, picked=picked)


def _without_minus_one(name: str, verified: list[str | None], labels: set[str | None]) -> list[str | None]:
    """Return verdicts with None for -1, unless -1 is a label; then unchecked rows need another mark."""
    if "-1" not in labels:
        return [None if text == "-1" else text for text in verified]
    if "-1" in verified and None not in verified:
        raise ValueError(
            f"{name}: -1 is one of your labels and may also mean that nobody checked a row, so it is not known which "
            "rows are verified; mark unchecked rows with NaN, None or an empty text, or, if all rows were checked, "
            "replace the label -1 by another, such as 0, in all arrays"
        )
    return verified


def _joined(parts: Mapping[str, Columns]) -> Columns:
    joined: dict[str, Any] = {
        field.name: tuple(value for columns in parts.values() for value in getattr(columns, field.name))
        for field in fields(Columns)
    }
    return Columns(**joined)


def _stacked(name: str, parts: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    for part, array in parts.items():
        if array.shape[1:] != parts[""].shape[1:]:
            raise ValueError(
                f"{name}: the rows of {_called(part)} have shape {array.shape[1:]}, those of x {parts[''].shape[1:]}; "
                "give all rows the same shape"
            )
    return np.concatenate(list(parts.values())) if len(parts) > 1 else parts[""]


def _file_rows(
    name: str,
    files: Mapping[str, list[Path]],
    parts: Mapping[str, Columns],
    how: Decoding,
    class_names: Sequence[str] | None,
) -> Rows:
    """Return rows of image files; a file that is both noisy and clean becomes one verified noisy row."""
    real = {part: [Path(os.path.realpath(path)) for path in paths] for part, paths in files.items()}
    columns = dict(parts)
    if "clean" in columns:
        ways, noisy = columns[""].picked, {path: row for row, path in enumerate(real[""])}
        verdicts = zip(real["clean"], columns["clean"].verified, strict=True)
        both = [(noisy[path], label) for path, label in verdicts if path in noisy and label is not None]
        columns[""] = add_verdicts(name, columns[""], [(row, label, ways[row] or "random") for row, label in both])
        rest = np.array([row for row, path in enumerate(real["clean"]) if path not in noisy], np.int64)
        columns["clean"], real["clean"] = columns["clean"].take(rest), [real["clean"][row] for row in rest]
    sources = [path for paths in real.values() for path in paths]
    return make_image_rows(name, _joined(columns), sources, how, class_names)
