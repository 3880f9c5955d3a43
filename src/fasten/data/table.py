"""CSV and Parquet files: a list of images with their labels, or a table of features with a label in each row.

Columns: `path` or `file_name` (an image, relative to the file's own folder), `label`, and optionally `verified_label`
(blank if nobody checked), `split` (train, valid, test), `id`, `picked` (random, chosen: how a row came to be verified).
`original_label`, in a repaired table, is ignored. Without a column of images, every other column becomes features, as
`fasten.data.encoding` says.
"""

from __future__ import annotations

import difflib
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from fasten.cells import unescaped
from fasten.data.decoding import Decoding, Inside
from fasten.data.encoding import BLANKS, TRUTHS, Column, choose_columns, choose_types, encode, notes_on
from fasten.data.labels import as_written, label_texts, part_of, picked_of
from fasten.data.numbers import note_coarse
from fasten.data.rows import Columns, Rows, compare_test_rows, make_columns, make_image_rows, make_rows
from fasten.data.texts import DELIMITERS, check_quotes, lines_below, read_text, split_header
from fasten.suggest import listed, nearest, one_line

P = ParamSpec("P")
T = TypeVar("T")

CSV, PARQUET = (".csv", ".tsv", ".txt"), (".parquet", ".pq")  # how the names of tables end
TABLES = (*CSV, *PARQUET)
IMAGES = ("path", "file_name")
KNOWN = (*IMAGES, "label", "verified_label", "split", "id", "picked", "original_label")
LONGEST_LINE = 2**24  # bytes
HEAD = 2**20  # bytes of a CSV file, from which the types of its columns are chosen
INDEX = "__index_level_0__"  # what pandas calls a nameless index in Parquet
COUNTED = "Unnamed: 0"  # and in CSV, once it has written and read it; "Unnamed: 0.1" the second time
SLIP = 0.7  # similarity from which an unknown name counts as a misspelt known one


def _giving_back(read: Callable[P, T]) -> Callable[P, T]:
    """A reader that gives its memory back at its end: otherwise Arrow keeps more than the features take."""

    @wraps(read)
    def whole(*args: P.args, **options: P.kwargs) -> T:
        try:
            return read(*args, **options)
        finally:
            pa.default_memory_pool().release_unused()

    return whole


@_giving_back
def read_table(
    path: str | os.PathLike[str],
    *,
    how: Decoding | None = None,
    class_names: Sequence[str] | None = None,
    features: Sequence[Column] | None = None,
    labelled: bool = True,
) -> Rows:
    """Read the rows of a CSV or Parquet file, images or features.

    `class_names` and `features` are those of a trained model: then labels may be missing, and features come in the
    model's order. Unless `labelled`, labels are ignored.
    """
    path = Path(path)
    if path.suffix.lower() not in TABLES:
        raise ValueError(f"{path} is neither CSV nor Parquet by its name; it must end in {', '.join(TABLES)}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give the path of a table")
    features = features and [replace(column, name=column.name.strip()) for column in features]
    read = _read_parquet if path.suffix.lower() in PARQUET else _read_csv
    table, unused = read(path, class_names is None, features)
    table = table if labelled else without_labels(table)
    notes = [f"{path.name}: not used: the columns {', '.join(unused)}"] if unused else []
    return rows_from_arrow(path.name, table, path.parent, how or Decoding(), class_names, features, notes)


def rows_from_arrow(
    name: str,
    table: pa.Table,
    folder: Path,
    how: Decoding,
    class_names: Sequence[str] | None = None,
    features: Sequence[Column] | None = None,
    notes: Sequence[str] = (),
) -> Rows:
    """Return the rows of an Arrow table, whose images are in `folder`."""
    check_names(name, table.column_names, class_names is None)
    if not table.num_rows:
        raise ValueError(f"{name} holds no rows; give some")
    if image_column(table.column_names) is not None:
        ids, sources = _located(name, table, folder)
        columns = columns_from_arrow(name, table, ids)
        return make_image_rows(name, columns, sources, how, class_names, notes)
    columns = columns_from_arrow(name, table)
    names = [column for column in table.column_names if column not in KNOWN]
    if features is None:
        training = np.array([part in (None, "train") for part in columns.split])
        found, unfit = choose_columns(name, table.select(names), training)
        notes = [*notes, *([f"{name}: not used: {listed(unfit)}"] if unfit else [])]
    else:
        _check_features(name, set(names), features)
        found = list(features)
    x, lost = encode(name, table, found)
    notes = [*notes, *notes_on(name, table, found, new=features is not None), *note_coarse(name, lost)]
    return compare_test_rows(make_rows(name, columns, x, class_names, notes, found))


def without_labels(table: pa.Table) -> pa.Table:
    """Make the columns of labels blank; they stay, so that no other column is taken for a misspelt one."""
    for place, column in enumerate(table.column_names):
        if column in ("label", "verified_label", "picked"):
            table = table.set_column(place, column, pa.nulls(table.num_rows, pa.string()))
    return table


def check_names(name: str, names: Sequence[str], labelled: bool) -> None:
    """Raise if columns have no name or the same name, are missing, or look misspelt."""
    if "" in names:
        own = "" if "id" in names else "call it 'id', or "
        cure = "name it, or take it out" if names[0] else f"{own}write the table without its index"
        where = f"column {names.index('') + 1} has no name"
        raise ValueError(f"{name}: the first line must name the columns, but {where}; {cure}")
    twice = [column for column in names if names.count(column) > 1] if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{name} has two columns {twice[0]!r}; keep one, or rename it")
    missing = [column for column in KNOWN if column not in names]
    for column in (column for column in names if column not in KNOWN):
        if column.lower() in missing or difflib.get_close_matches(column.lower(), _slips(missing), 1, SLIP):
            raise ValueError(
                f"{name}: unknown column {column!r}; {nearest(column.lower(), missing)} rename it, or take it out"
            )
    if "path" in names and "file_name" in names:
        raise ValueError(f"{name} has both 'path' and 'file_name'; keep the one that names the images")
    if labelled and "label" not in names:
        quoted = [repr(column) for column in names]
        shown = quoted if len(names) <= 10 else [*quoted[:5], "…", *quoted[-5:]]  # labels are often last
        raise ValueError(f"{name} has no column 'label', only {', '.join(shown)}; rename the column with the labels")


def _slips(missing: Sequence[str]) -> list[str]:
    """Return the missing names that a similar name must mean; `path` and `id` are too short for that."""
    return [column for column in missing if column in ("label", "verified_label", "split", "picked")]


def _read_csv(path: Path, labelled: bool, features: Sequence[Column] | None) -> tuple[pa.Table, list[str]]:
    """Read the columns that are used; return them, and the names of the others."""
    names, delimiter = _header(path, labelled)
    check_names(path.name, names, labelled)
    check_quotes(path, delimiter)
    wanted, unused = useful(path.name, names, features)
    types = _types(path, names, delimiter, wanted, features)
    try:
        return _parsed(path, names, delimiter, column_types=types, include_columns=wanted), unused
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return pa.table({name: pa.array([], type) for name, type in types.items()}), unused
        raise ValueError(_diagnosis(path, names, delimiter, types, error)) from None


def _types(
    path: Path, names: Sequence[str], delimiter: str, wanted: Sequence[str], features: Sequence[Column] | None
) -> dict[str, pa.DataType]:
    """Choose the types of columns: text for what is known, and for the others what their first rows look like."""
    types = {name: pa.string() if name in KNOWN else pa.float32() for name in wanted}
    texts = [name for name in wanted if name not in KNOWN]
    options = _options(names, delimiter, column_types=dict.fromkeys(texts, pa.string()), include_columns=texts)
    options[0].block_size = min(HEAD, LONGEST_LINE)
    try:
        with pa.csv.open_csv(path, *options) as reader:
            choose_types(types, texts, reader)
    except pa.ArrowInvalid:  # no rows, or bad ones: reading the whole file will show
        pass
    for column in features or ():
        if column.categories or types[column.name] == pa.string():  # where numbers are due, texts are refused later
            types[column.name] = pa.string() if column.categories else pa.float32()
    return types


def _parsed(path: Path, names: Sequence[str], delimiter: str, **convert: Any) -> pa.Table:
    """Read a CSV file below its first line."""
    return _without_marks(pa.csv.read_csv(path, *_options(names, delimiter, **convert)))


def _options(names: Sequence[str], delimiter: str, **convert: Any) -> tuple[Any, Any, Any]:
    return (
        pa.csv.ReadOptions(column_names=names, skip_rows=1, block_size=LONGEST_LINE),
        pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pa.csv.ConvertOptions(null_values=[*BLANKS, *(f" {blank}" for blank in BLANKS)], **convert),
    )


def _without_marks(table: pa.Table) -> pa.Table:
    """Remove the marks with which our own CSV files protect texts from spreadsheets; paths come later."""
    for place, name in enumerate(table.column_names):
        is_text = pa.types.is_string(table[name].type) and name not in IMAGES
        if is_text and pc.any(pc.starts_with(table[name], "'")).as_py():
            plain = [None if cell is None else unescaped(cell) for cell in table[name].to_pylist()]
            table = table.set_column(place, name, pa.array(plain, pa.string()))
    return table


def list_table(path: Path, as_text: bool) -> tuple[pa.Table, Columns, list[Path] | None]:
    """Read a whole table: all its columns, what is known about its rows, and the paths of its images, not opened.

    With `as_text`, cells of a CSV file stay texts; in a table of images they always do, since none is a feature.
    """
    if path.suffix.lower() in PARQUET:
        names = [name.strip() for name in pa.parquet.read_schema(path).names]
        table = pa.parquet.read_table(path).rename_columns(names)
    else:
        names, delimiter = _header(path, labelled=True)
        as_text = as_text or image_column(names) is not None
        types = {
            name: kind for name, kind in _types(path, names, delimiter, names, None).items() if kind == pa.string()
        }
        types |= {name: pa.string() for name in names if as_text}
        table = _parsed(path, names, delimiter, column_types=types)
    check_names(path.name, names, labelled=True)
    if image_column(names) is None:
        return table, columns_from_arrow(path.name, table), None
    ids, sources = _located(path.name, table, path.parent)
    return table, columns_from_arrow(path.name, table, ids), sources


def _header(path: Path, labelled: bool) -> tuple[list[str], str]:
    """Return the names of the columns, and the delimiter."""
    with open(path, "rb") as file:
        first = file.readline(LONGEST_LINE)
    try:
        line = (first.decode("utf-8-sig").splitlines() or [""])[0]
    except UnicodeDecodeError:
        line = read_text(path)  # raises, naming the line
    if not line.strip() or "\0" in line:
        raise ValueError(
            f"{path.name}: the first line is empty or not text; it must name the columns, such as path,label"
        )
    names, mark = split_header(line, KNOWN)
    if len(names) == 1 and labelled and names[0] not in KNOWN:
        raise ValueError(
            f"{path.name}: the first line {line[:80]!r} is all one column; put a comma, a semicolon, a tab or | "
            "between columns"
        )
    return names, mark


def _diagnosis(path: Path, names: Sequence[str], delimiter: str, types: Mapping[str, Any], error: Exception) -> str:
    """Return what is wrong with a CSV file that could not be read, by looking at each line."""
    numeric = [(place, name) for place, name in enumerate(names) if types.get(name, pa.string()) != pa.string()]
    for line, cells in lines_below(path, delimiter):
        where = f"{path.name}: line {line}"
        if cells and len(cells) != len(names):
            mark = DELIMITERS[delimiter]
            return (
                f"{where} has {len(cells)} columns, but the first line has {len(names)}; put a {mark} between columns "
                f"on every line, and quotes around text with a {mark} in it"
            )
        for place, name in numeric if cells else []:
            if not _fits(cell := cells[place], types[name]):
                wanted = "True or False, as the column begins" if types[name] == pa.bool_() else "a number"
                return f"{where}: {cell[:80]!r} in column {name!r} is not {wanted}{_perhaps(name, cell)}"
    return f"{path.name} cannot be read as CSV ({one_line(error, 200)})"


def _fits(cell: str, kind: pa.DataType) -> bool:
    plain = cell.strip().lower()
    if cell.strip() in BLANKS:
        return True
    if plain in TRUTHS or kind == pa.bool_():
        return kind == pa.bool_() and plain in (*TRUTHS, "0", "1")
    try:
        float(cell.replace("_", "x"))  # 1_000 is a number in Python alone
    except ValueError:
        return False
    return True


def _perhaps(name: str, cell: str) -> str:
    if "," in cell and _fits(cell.replace(",", ""), pa.float32()):
        return "; write numbers without commas, with a point before the decimals"
    known = [column for column in KNOWN if column != "id" or name.lower().endswith(column)]  # `kind` is close to `id`
    close = difflib.get_close_matches(name.lower(), known, 1, 0.55)
    rename = f" did you mean {close[0]!r} by {name!r}? rename it, or" if close else ""
    return (
        f";{rename} write numbers, or leave the cell blank, or take the column out: all but {', '.join(KNOWN)} become "
        "features"
    )


def _read_parquet(path: Path, labelled: bool, features: Sequence[Column] | None) -> tuple[pa.Table, list[str]]:
    try:
        written = pa.parquet.read_schema(path).names
        names = [name.strip() for name in written]  # as for a CSV file
        check_names(path.name, names, labelled)
        wanted, unused = useful(path.name, names, features)
        place = dict(zip(names, written, strict=True))
        table = pa.parquet.read_table(path, columns=[place[name] for name in wanted], pre_buffer=False)
        return table.rename_columns(wanted), unused
    except (pa.ArrowException, OSError) as error:
        reason = one_line(error, 200)
        raise ValueError(f"{path.name} cannot be read as Parquet ({reason}); write it again") from error


def useful(table_name: str, names: Sequence[str], features: Sequence[Column] | None) -> tuple[list[str], list[str]]:
    """Return the columns that are used, and the others: image tables have no features, and a model has its own."""
    own = {name for name in names if name not in (*KNOWN, INDEX) and not name.startswith(COUNTED)}
    if image_column(names) is not None:
        own = set()
    elif features is not None:
        _check_features(table_name, own, features)
        own &= {column.name for column in features}
    wanted = [name for name in names if name in KNOWN or name in own]
    used = {*wanted, INDEX}
    return wanted, [name for name in names if name not in used]


def image_column(names: Sequence[str]) -> str | None:
    """Return the column that names images, or None."""
    return next((column for column in IMAGES if column in names), None)


def _located(name: str, table: pa.Table, folder: Path) -> tuple[list[str], list[Path]]:
    """Return the ids and the paths of a table's images."""
    column = image_column(table.column_names)
    assert column is not None
    paths = _texts(name, table, column)
    if None in paths:
        raise ValueError(f"{name}: row {paths.index(None)} has no {column}; name its image, or take the row out")
    inside = Inside(folder)
    try:
        plain = [_plain_path(inside, str(path)) for path in paths]
        return [_identifier(inside, path) for path in plain], [_source(inside, path) for path in plain]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _plain_path(inside: Inside, path: str) -> str:
    """Return a path without the mark that our own CSV files put before what a spreadsheet would run."""
    return unescaped(path) if path.startswith("'") and not inside(path).is_file() else path


def _source(inside: Inside, path: str) -> Path:
    source = inside(path)
    return inside(path.replace("\\", "/")) if "\\" in path and not source.is_file() else source  # as Windows writes it


def _identifier(inside: Inside, path: str) -> str:
    return os.path.relpath(inside(path), inside.folder) if os.path.isabs(path) else posixpath.normpath(path)


def columns_from_arrow(name: str, table: pa.Table, ids: Sequence[str] | None = None) -> Columns:
    """Return all but images and features; without a column `id`, ids are `ids`, or the row numbers."""

    def mapped(column: str, function: Callable[[str | None, str], T]) -> list[T] | None:
        if column not in table.column_names:
            return None
        return [function(text, f"{name}: row {row}") for row, text in enumerate(_texts(name, table, column))]

    def named(text: str | None, where: str) -> str:
        if text is None:
            raise ValueError(f"{where} has no id; give it one, or take the column 'id' out")
        return text

    given = mapped("label", lambda text, where: text)
    verified = mapped("verified_label", lambda text, where: text)
    if given is not None and verified is not None:
        verified = as_written(verified, {text for text in given if text is not None})
    split, picked = mapped("split", part_of), mapped("picked", picked_of)
    called = mapped("id", named) or ids or [str(row) for row in range(table.num_rows)]
    return make_columns(called, given=given, verified=verified, picked=picked, split=split)


def _texts(name: str, table: pa.Table, column: str) -> list[str | None]:
    return label_texts(table[column].to_pylist(), f"{name}, column {column!r}")


def _check_features(name: str, names: set[str], wanted: Sequence[Column]) -> None:
    lacking = [column.name for column in wanted if column.name not in names]
    if lacking:
        near = nearest(lacking[0], sorted(names)) if names else "it has no features at all"
        raise ValueError(f"{name} lacks the column {lacking[0]!r}, which the model was trained on; {near}")
