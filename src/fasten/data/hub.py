"""Folders written by `save_to_disk` of Hugging Face's library `datasets`, if that library is installed.

The split is that of the data set (train, validation, test), and the columns are those of `fasten.data.table`; images
may also be in a column `image`, and labels may be the library's class labels. Nothing is downloaded, and no script is
run.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from fasten.data.decoding import Decoding, Encoded, Inside, Stored
from fasten.data.encoding import Column
from fasten.data.rows import Columns, Rows, make_image_rows
from fasten.data.table import KNOWN, check_names, columns_from_arrow, rows_from_arrow, useful, without_labels
from fasten.suggest import one_line

IMAGE = "image"


def is_hub_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether `datasets` wrote this folder.

    >>> is_hub_folder("no such folder")
    False
    """
    folder = Path(path)
    alone = all((folder / name).is_file() for name in ("dataset_info.json", "state.json"))
    return alone or (folder / "dataset_dict.json").is_file()


def read_hub(
    path: str | os.PathLike[str],
    *,
    how: Decoding | None = None,
    class_names: Sequence[str] | None = None,
    features: Sequence[Column] | None = None,
    labelled: bool = True,
) -> Rows:
    """Read the rows of such a folder, images or features; the arguments are those of `read_table`."""
    folder = Path(path)
    name, table = folder.name, _load(folder)
    table = table if labelled else without_labels(table)
    names = [column for column in table.column_names if column != IMAGE]
    check_names(name, names, class_names is None)
    if IMAGE not in table.column_names:
        wanted, unused = useful(name, names, features)
        notes = _not_used(name, unused)
        return rows_from_arrow(name, table.select(wanted), folder, how or Decoding(), class_names, features, notes)
    columns = columns_from_arrow(name, table.select(names), [str(row) for row in range(table.num_rows)])
    notes = _not_used(name, [column for column in names if column not in KNOWN])
    return make_image_rows(name, columns, _images(name, table[IMAGE], folder), how or Decoding(), class_names, notes)


def list_hub(path: Path) -> tuple[pa.Table, Columns, None] | None:
    """Read a whole table of features, and what is known about its rows; None if it holds images."""
    table = _load(path)
    return None if IMAGE in table.column_names else (table, columns_from_arrow(path.name, table), None)


def _not_used(name: str, columns: Sequence[str]) -> list[str]:
    return [f"{name}: not used: the columns {', '.join(columns)}"] if columns else []


def _images(name: str, column: pa.ChunkedArray, folder: Path) -> Stored:
    """Return the images of a column; each is read from the memory-mapped file on request."""
    fields = {field.name for field in column.type} if pa.types.is_struct(column.type) else set()
    if not {"bytes", "path"} <= fields:
        raise ValueError(f"{name}: column {IMAGE!r} holds {column.type}, not images; cast it to datasets.Image")
    inside = Inside(folder)

    def fetch(row: int) -> Encoded:
        stored = column[row].as_py() or {}
        if stored.get("bytes") is not None:
            return bytes(stored["bytes"])
        return inside(stored["path"]) if stored.get("path") else b""

    return Stored(len(column), fetch)


def _load(folder: Path) -> pa.Table:
    """Load all parts as one table, with a column `split` if the folder is a DatasetDict."""
    if not is_hub_folder(folder):
        raise FileNotFoundError(f"{folder} was not written by `datasets` (save_to_disk); give a folder that was")
    try:
        library = importlib.import_module("datasets")  # few users have it, and importing it takes seconds
    except ImportError:
        raise ValueError(
            f"{folder} needs the library `datasets`; install it (pip install datasets), or export the data to Parquet"
        ) from None
    try:
        loaded = library.load_from_disk(os.fspath(folder))
        tables = list(_tables(library, loaded))
    except Exception as error:  # the library may raise anything on a damaged folder
        raise ValueError(
            f"{folder} cannot be read by `datasets` ({one_line(error, 200)}); write it again with save_to_disk"
        ) from error
    return pa.concat_tables(tables, promote_options="default")


def _tables(library: Any, loaded: Any) -> Iterator[pa.Table]:
    parts = loaded if isinstance(loaded, library.DatasetDict) else {None: loaded}
    for part, dataset in parts.items():
        table = dataset.with_format("arrow")[:]
        for column, feature in dataset.features.items():
            if isinstance(feature, library.ClassLabel):
                codes = table[column].to_pylist()  # a missing or negative code: no label
                names = [None if code is None or code < 0 else feature.int2str(code) for code in codes]
                table = table.set_column(table.column_names.index(column), column, pa.array(names, pa.string()))
        if part is not None and "split" not in table.column_names:
            table = table.append_column("split", pa.array([part] * table.num_rows, pa.string()))
        yield table.replace_schema_metadata(None)
