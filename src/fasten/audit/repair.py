"""A repaired copy of a run's data: a table with the corrected labels, or a folder of images in their new classes.

The data themselves are never changed. A row's new label is its verdict if it has one, otherwise the corrected label.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
from PIL import Image

from fasten.audit.stored import Audit
from fasten.cells import escaped
from fasten.data.decoding import SUFFIXES, Images, suffix_of
from fasten.data.encoding import is_text
from fasten.data.folder import Role, list_folder
from fasten.data.hub import is_hub_folder, list_hub
from fasten.data.labels import composed, label_texts
from fasten.data.rows import Columns, Rows
from fasten.data.table import KNOWN, PARQUET, TABLES, image_column, list_table
from fasten.files import replaced
from fasten.own import Own, check_beside, read_rows
from fasten.report.verdict import AUDIT

Kind = Literal["csv", "parquet"]
ORIGINAL = "original_label"
ADDED = ("label", ORIGINAL, "verified_label", "picked")
ENDINGS = {"csv": (".csv",), "parquet": PARQUET}


@dataclass(frozen=True, eq=False)
class Originals:
    """A run's data on disk: what is known about all rows; and a table, image files (with a table or not), or arrays."""

    path: Path
    columns: Columns
    table: pa.Table | None = None
    files: Sequence[Path] | None = None
    rows: Rows | None = None

    @property
    def is_folder(self) -> bool:
        """Whether labels are the names of folders."""
        return self.files is not None and self.table is None


@dataclass(frozen=True)
class Copied:
    """What a repaired copy holds: rows, those whose label changed, files that are links; and rows left out of it."""

    rows: int
    changed: int
    linked: int = 0
    left_out: int = 0


def find_originals(found: Audit, data: str | None = None, as_text: bool = True) -> Originals:
    """Find the data of a run, where the run read them or where `data` says; images are not opened."""
    run = found.record["run"]
    named = str(run.get("dataset")) if data is None else data
    if run.get("method") == AUDIT:
        raise ValueError(f"{found.folder} holds no data to copy; its labels.csv has the new labels in `corrected`")
    if run.get("own") is None:
        raise ValueError(f"{found.folder} was not trained on data of your own, but on {named}: nothing can be repaired")
    if run.get("noise") not in (None, "none"):
        raise ValueError(
            f"{found.folder} was trained with {run['noise']} injected, so its labels are not those of {named}: "
            "train without --noise to repair them"
        )
    path, own = Path(named), Own.from_json(run["own"])
    if not path.exists():
        raise ValueError(f"the data {path} of {found.folder} are not there; say with --data where they are")
    if path.is_dir() and not is_hub_folder(path):
        asked: dict[Role, str | None] = {"clean": own.clean, "valid": own.valid, "test": own.test}
        parts = {part: _beside(found, folder, data) for part, folder in asked.items() if folder is not None}
        listing = list_folder(path, parts, known=found.class_names)
        return _checked(found, Originals(path, listing.columns, files=listing.paths))
    is_table = path.suffix.lower() in TABLES
    listed = list_hub(path) if path.is_dir() else list_table(path, as_text) if is_table else None
    if listed is not None:
        table, columns, files = listed
        return _checked(found, Originals(path, columns, table, files))
    rows = read_rows(named, replace(own, verified=None))  # the verdicts of a list are in the run
    return _checked(found, Originals(path, rows, rows=rows))


def _beside(found: Audit, folder: str, data: str | None) -> str:
    """Where a second folder of the run is: at the same place relative to the data, if `data` says that these moved."""
    there, before = folder, str(found.record["run"]["dataset"])
    if data is not None and os.path.isabs(folder) == os.path.isabs(before):
        there = os.path.normpath(os.path.join(data, os.path.relpath(folder, before)))
    if not os.path.isdir(there) and not os.path.isdir(folder):
        raise ValueError(
            f"there is no folder {there}, which {found.folder} used with {before}; put it there, or a link to it"
        )
    return there if os.path.isdir(there) else folder


def _checked(found: Audit, data: Originals) -> Originals:
    missing = set(found.known.ids) - set(data.columns.ids)
    if missing:
        raise ValueError(
            f"{data.path} has no row {min(missing)!r}, but {found.folder} has: the data were changed since, or are not "
            "the same; say with --data where the data of the run are"
        )
    given = dict(zip(data.columns.ids, data.columns.given, strict=True))
    for name, code in zip(found.known.ids, found.known.given.tolist(), strict=True):
        label = found.class_names[code] if code >= 0 else None
        if given[name] != label:
            raise ValueError(
                f"row {name!r} of {data.path} has the label {given[name]!r}, but had {label!r} in {found.folder}: the "
                "data were changed or put in another order since; say with --data where the data of the run are, or "
                "train again"
            )
    return data


def new_labels(found: Audit, columns: Columns) -> list[str | None]:
    """The label of each row of the data after repair; None if it has none at all."""
    corrected = dict(zip(found.known.ids, map(str, found.in_order("corrected")), strict=True))
    rows = zip(columns.ids, columns.given, _verdicts(found, columns), strict=True)
    return [corrected.get(name, given) if verdict is None else verdict for name, given, verdict in rows]


def write_table(found: Audit, data: Originals, kind: Kind, out: Path) -> Copied:
    """Write the data as a table that `fasten train` reads, atomically: new labels, and beside them the first ones.

    Verdicts that were used for the repair say nothing about the repaired labels of other rows, so they count as chosen.
    """
    if out.suffix.lower() not in ENDINGS[kind]:
        raise ValueError(f"--out {out} must end in {ENDINGS[kind][0]} for --export {kind}")
    if out.exists():
        raise ValueError(f"{out} already exists; choose another --out")
    labels, columns = new_labels(found, data.columns), data.columns
    verified = _verdicts(found, columns)
    written = (labels, _first_labels(data), verified, [v and "chosen" for v in verified])
    kept, table = _table(data, kind, out)
    stored = table["label"].type if kind == "parquet" and "label" in table.column_names else pa.string()
    for name, values in zip(ADDED, written, strict=True):
        column = _column(values, kept, pa.string() if name == "picked" else stored)
        there = name in table.column_names
        at = table.column_names.index(name) if there else table.num_columns
        table = table.set_column(at, name, column) if there else table.append_column(name, column)
    with replaced(out) as file:
        if kind == "parquet":
            pa.parquet.write_table(table, file)
        else:
            pa.csv.write_csv(_with_marks(table), file)
    return Copied(len(kept), _changed(columns, labels, kept), left_out=len(columns.ids) - len(kept))


def _column(values: Sequence[str | None], rows: Sequence[int], stored: Any) -> pa.Array:
    """The texts of some rows in the type in which the data store labels; as texts if it cannot hold all of them."""
    texts = pa.array([values[row] for row in rows], pa.string())
    with suppress(pa.ArrowException):
        return texts.cast(stored)
    return texts


def _first_labels(data: Originals) -> Sequence[str | None]:
    """The labels that rows came with; if the data are a repaired copy themselves, the labels before that repair."""
    columns, table = data.columns, data.table
    if table is None or ORIGINAL not in table.column_names:
        return columns.given
    known = label_texts(table[ORIGINAL].to_pylist(), f"{data.path.name}, column {ORIGINAL!r}")
    # Blank: the row came without a label and now has its verdict, or it was added since the repair.
    return [
        (None if given == verified else given) if first is None else first
        for first, given, verified in zip(known, columns.given, columns.verified, strict=True)
    ]


def _table(data: Originals, kind: Kind, out: Path) -> tuple[list[int], pa.Table]:
    """The rows that go into the copy, and all of their columns except the labels."""
    everything = list(range(len(data.columns.ids)))
    if data.rows is not None:
        return everything, _arrays_table(data.rows, kind)
    if data.files is None:
        return everything, data.table
    home = os.path.realpath(out.parent)
    paths = [os.path.relpath(path, home).replace(os.sep, "/") for path in data.files]
    outside = [path.startswith("../") for path in paths]
    needed = [row for row in everything if outside[row] and (data.table is not None or _in_folder(data, row))]
    if needed:
        raise ValueError(
            f"--out {out} must be in the folder of {data.path} or above it: the paths in a table may not lead out of "
            f"its folder, and that of {data.columns.ids[needed[0]]!r} would"
        )
    kept = [row for row in everything if not outside[row]]
    if data.table is None:
        columns = {"path": paths, "id": data.columns.ids, "split": data.columns.split}
        return kept, pa.table({key: _column(values, kept, pa.string()) for key, values in columns.items()})
    name = image_column(data.table.column_names)
    assert name is not None
    table = data.table.set_column(data.table.column_names.index(name), name, pa.array(paths, pa.string()))
    if "id" not in table.column_names:  # their ids were their paths, and stay the same
        table = table.add_column(0, "id", pa.array(data.columns.ids, pa.string()))
    return kept, table


def _arrays_table(rows: Rows, kind: Kind) -> pa.Table:
    """Features as columns, or in Parquet as one column of lists."""
    if rows.x.ndim != 2:
        raise ValueError(f"{rows.name} holds images itself, which a table cannot; use --export folder")
    known = {"id": pa.array(rows.ids), "split": pa.array(rows.split, pa.string())}
    x = np.asarray(rows.x)
    if kind == "parquet" and not rows.feature_names:
        return pa.table({**known, "x": pa.FixedSizeListArray.from_arrays(x.ravel(), x.shape[1])})
    names = rows.feature_names or [f"x{place}" for place in range(x.shape[1])]
    return pa.table({**known, **{name: x[:, place] for place, name in enumerate(names)}})


def _with_marks(table: pa.Table) -> pa.Table:
    """Mark text cells that a spreadsheet would run; numbers stay as they are."""
    for place, name in enumerate(table.column_names):
        if pa.types.is_nested(table[name].type):
            raise ValueError(f"the column {name!r} holds lists, which a CSV cannot; use --export parquet")
        if is_text(table[name].type) and (name in KNOWN or not _numeric(table[name])):
            marked = [escaped(cell) for cell in table[name].to_pylist()]
            table = table.set_column(place, name, pa.array(marked, pa.string()))
    return table


def _numeric(column: Any) -> bool:
    """Whether the CSV reader takes all cells for numbers; it allows blanks and tabs around them."""
    try:
        pa.compute.ascii_trim(column.cast(pa.string()), " \t").cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _verdicts(found: Audit, columns: Columns) -> list[str | None]:
    """The verified label of each row of the data, from the run or from the data themselves."""
    names, known = found.class_names, found.known
    seen = {known.ids[row]: names[known.verified[row]] for row in np.flatnonzero(known.verified >= 0).tolist()}
    seen |= {name: label for name, label, _ in found.measured_by}
    return [seen.get(name, label) for name, label in zip(columns.ids, columns.verified, strict=True)]


def _changed(columns: Columns, labels: Sequence[str | None], rows: Sequence[int]) -> int:
    return sum(columns.given[row] is not None and columns.given[row] != labels[row] for row in rows)


def _in_folder(data: Originals, row: int) -> bool:
    """Whether an image is in the data folder itself, not in a second folder given with it."""
    assert data.files is not None
    return os.fspath(data.files[row]).startswith(os.path.join(os.path.realpath(data.path), ""))


def _is_missing(data: Originals, row: int) -> bool:
    """Whether an image that is listed, or linked to, is not there."""
    return data.files is not None and not data.files[row].exists()


def write_folder(found: Audit, data: Originals, out: Path) -> Copied:
    """Put the images into folders named after their new labels: hard links if the file system has them, else copies.

    The new folder is either complete or absent.
    """
    labels = new_labels(found, data.columns)
    _check_target(data, out)
    rows = [row for row in range(len(labels)) if not data.is_folder or _in_folder(data, row)]
    rows = [row for row in rows if not _is_missing(data, row)]
    places = _places(data, labels, rows)
    linked = 0
    with _built_aside(out) as aside:
        for row, place in zip(rows, places, strict=True):
            target = aside / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():  # it may be a link: writing to it would overwrite an original
                raise ValueError(
                    f"two images would both be {place} in {out}, on a disk that ignores case; rename one of them, or "
                    "choose --out on another disk"
                )
            linked += _put(data, row, target)
    return Copied(len(rows), _changed(data.columns, labels, rows), linked, len(labels) - len(rows))


def _check_target(data: Originals, out: Path) -> None:
    if data.files is None and (data.rows is None or data.rows.x.ndim != 4):
        raise ValueError(f"{data.path} holds no images, so there is no folder to make; use --export csv or parquet")
    if out.exists() or out.is_symlink():
        raise ValueError(f"{out} already exists; --out takes the name of a new folder")
    check_beside(data.path, out)


def _places(data: Originals, labels: Sequence[str | None], rows: Sequence[int]) -> list[str]:
    """Where each image goes in the new folder, each to its own place; images that stay keep theirs.

    Names that some file systems treat as equal count as one place.
    """
    parted = any(part in ("valid", "test") for part in data.columns.split)
    wanted = [_wanted(data, row, labels[row], parted) for row in rows]
    taken = {_folded(place) for row, place in zip(rows, wanted, strict=True) if place == data.columns.ids[row]}
    places, tried = [], dict[str, int]()
    for row, first in zip(rows, wanted, strict=True):
        place = first
        if place != data.columns.ids[row]:
            plain, number = PurePosixPath(first), tried.get(_folded(first), 1)
            while _folded(place) in taken:
                number += 1
                place = str(plain.with_name(f"{plain.stem}-{number}{plain.suffix}"))
            tried[_folded(first)] = number  # thousands may want the same name
            taken.add(_folded(place))
        places.append(place)
    return places


def _folded(place: str) -> str:
    """The place as a file system sees it that ignores case and Unicode forms."""
    return composed(place).casefold()


def _wanted(data: Originals, row: int, label: str | None, parted: bool) -> str:
    name, split = data.columns.ids[row], data.columns.split
    if label is None:
        raise ValueError(f"{data.path}: {name!r} has no label, so it has no folder; use --export csv")
    known = data.columns.given[row] if data.is_folder else None
    if data.is_folder and known in (None, label):
        return name  # clean images, and those that keep their label, are where they belong
    if label.startswith(".") or {"/", "\\", "\0"} & set(label):
        raise ValueError(f"the label {label!r} cannot be the name of a folder; use --export csv")
    if known is not None:
        parts = name.split("/")
        place = 0 if split[row] is None else parts.index(known, 1)  # after the name of the part
        return "/".join([*parts[:place], label, *parts[place + 1 :]])
    part = split[row] or "train" if parted else ""
    return "/".join(filter(None, [part, label, _file_name(data, row)]))


def _file_name(data: Originals, row: int) -> str:
    """A file name that the next run reads: not hidden, and with the ending of an image."""
    source, last = _stored(data, row), data.columns.ids[row].rpartition("/")[2]
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in last)
    name = (source.name if isinstance(source, Path) else plain).lstrip(".") or str(row)
    if isinstance(source, Path) and os.path.splitext(name)[1].lower() in SUFFIXES:
        return name
    ending = suffix_of(source) if source else ".png"
    return name if name.lower().endswith(ending) else name + ending


def _stored(data: Originals, row: int) -> Path | bytes | None:
    """An image as it is stored; None for an array in memory."""
    if data.files is not None:
        return data.files[row]
    return data.rows.x.sources[row] if data.rows is not None and isinstance(data.rows.x, Images) else None


def _put(data: Originals, row: int, target: Path) -> int:
    """Make one file; returns 1 if it is a link, otherwise 0."""
    source = _stored(data, row)
    if isinstance(source, Path):
        try:
            os.link(source, target)
        except OSError:  # another file system, or one without links
            shutil.copy2(source, target)
            return 0
        return 1
    if source is not None:
        target.write_bytes(source)
        return 0
    assert data.rows is not None
    image = np.asarray(data.rows.x[np.array([row])][0])
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(target, "PNG")
    return 0


@contextmanager
def _built_aside(out: Path) -> Iterator[Path]:
    """A folder that gets its name once everything is in it; on failure nothing is left."""
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        aside.mkdir()
    except OSError as error:
        error.filename = os.fspath(out)  # the name that the caller knows
        raise
    try:
        yield aside
        os.rename(aside, out)
    except BaseException:  # also an interrupt
        with suppress(OSError):
            shutil.rmtree(aside)
        raise
