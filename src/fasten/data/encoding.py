"""How the columns of a table become features: numbers as they are, texts as categories, and what stands in for a blank.

What the training rows say is kept with the model, so that new rows get the same features.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from fasten.data.decoding import SUFFIXES
from fasten.data.numbers import check_numbers, coarse, listed_numbers
from fasten.sentences import some
from fasten.suggest import listed

MOST_CATEGORIES = 100  # of a column: the most frequent texts
FEWEST_ROWS = 2  # training rows with a category: a text that occurs once says nothing of other rows
REPEATED = 0.5  # of a column's texts, at least, must occur so often; otherwise it holds names or sentences
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
TEXTS = ("string", "large_string", "string_view")
TRAINED = ", which the model was trained on; convert the column"
TRUTHS = {"true": "1", "false": "0"}
BLANKS = [*pa.csv.ConvertOptions().null_values, "None", "none", "<NA>", "?"]  # how programs write a missing number
NUMBER = r"(?i)^[+-]?([\d.,]*\d[\d.,]*(e[+-]?\d+)?|inf|infinity)$"  # what is meant as one, even if it cannot be read


@dataclass(frozen=True)
class Column:
    """A column of a table, and how it becomes features.

    A column of texts has a feature for each category, 1 in its rows and 0 elsewhere. Where a number is missing, `fill`
    stands in, and a second feature is 1.

    >>> Column("coat", ("long", "short")).feature_names
    ('coat = long', 'coat = short')
    """

    name: str
    categories: tuple[str, ...] = ()  # none: the column holds numbers
    fill: float | None = None  # None: no number is missing

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features; those of a column of lists share one."""
        if self.categories:
            return tuple(f"{self.name} = {category}" for category in self.categories)
        return (self.name,) if self.fill is None else (self.name, f"{self.name} is missing")

    def to_json(self) -> dict[str, Any]:
        """Return the values that differ from the defaults, as they are read back from a file."""
        values = {**asdict(self), "categories": list(self.categories)}
        return {key: value for key, value in values.items() if value not in ([], None)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Column:
        return Column(values.get("name", ""), tuple(values.get("categories", ())), values.get("fill"))


def names_of(columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the names of all features.

    >>> names_of([Column("length"), Column("weight", fill=2.5)])
    ('length', 'weight', 'weight is missing')
    """
    return tuple(name for column in columns for name in column.feature_names)


def choose_types(types: dict[str, pa.DataType], names: Sequence[str], batches: Iterable[pa.RecordBatch]) -> None:
    """Choose the types of columns whose cells come as texts, each by the first batch in which it is not blank."""
    left = list(names)
    for batch in batches if left else ():
        filled = [name for name in left if len(_written(batch[name]))]
        types |= {name: _type_of(batch[name]) for name in filled}
        left = [name for name in left if name not in filled]
        if not left:
            break


def _type_of(cells: pa.Array) -> pa.DataType:
    """Choose the type for cells that are read as texts; mostly numbers, they are numbers, whatever else occurs."""
    written = _written(cells)
    lower = set(pc.utf8_lower(written).unique().to_pylist())
    if lower <= {*TRUTHS, *TRUTHS.values()} and lower & {*TRUTHS}:  # as pandas.get_dummies writes them
        return pa.bool_()
    written = pc.utf8_trim_whitespace(written)
    numbers = pc.sum(pc.match_substring_regex(written, NUMBER)).as_py() or 0
    if 2 * numbers < len(written):
        return pa.string()
    try:
        exact = written.cast(pa.float64()).to_numpy(zero_copy_only=False)[:, None]
    except pa.ArrowInvalid:
        return pa.float32()
    # Numbers that lose precision in float32 are read as float64, to check all rows.
    return pa.float64() if len(exact) and coarse(exact, varied=False).any() else pa.float32()


def _written(cells: pa.Array) -> pa.Array:
    """Return the cells that are not blank."""
    return cells.filter(pc.invert(pc.is_in(pc.utf8_trim_whitespace(cells), pa.array(BLANKS))))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds texts."""
    return str(kind.value_type if pa.types.is_dictionary(kind) else kind) in TEXTS


def choose_columns(name: str, table: pa.Table, training: NDArray[np.bool_]) -> tuple[list[Column], list[str]]:
    """Choose the features of all columns; return these, and which columns can have none, and why."""
    found, unfit = [], []
    for column, values in zip(table.column_names, table.columns, strict=True):
        first = str(values.drop_null()[0]) if is_text(values.type) and values.null_count < len(values) else ""
        if os.path.splitext(first)[1].lower() in SUFFIXES:
            raise ValueError(f"{name}: column {column!r} names files such as {first!r}; call it 'path', or take it out")
        try:
            found.append(_choose(column, values, training))
        except ValueError as error:
            unfit.append(f"{column!r} ({error})")
    if not found:
        why = f": {listed(unfit)}" if unfit else ""
        raise ValueError(
            f"{name} has neither a column 'path' with images nor columns of features{why}; add one of them"
        )
    return found, unfit


def _choose(name: str, values: pa.ChunkedArray, training: NDArray[np.bool_]) -> Column:
    """Choose the features of a column by what it holds in the training rows; raise, saying why, if it can have none.

    >>> _choose("coat", pa.chunked_array([["short", "long", "long", "short"]]), np.ones(4, bool))
    Column(name='coat', categories=('long', 'short'), fill=None)
    """
    if _is_one_of(LISTS, values.type):
        return Column(name)
    if values.null_count == len(values):
        raise ValueError("blank in all rows")
    if is_text(values.type) or pa.types.is_dictionary(values.type):
        return Column(name, _categories(_texts(values).filter(pa.array(training))))
    if not _is_one_of(NUMBERS, values.type):
        raise ValueError(f"{values.type}, neither numbers nor texts")
    numbers = _numbers(values)
    missing = np.isnan(numbers)
    if not missing.any():
        return Column(name)
    known = numbers[training & ~missing]
    if not len(known):
        raise ValueError("blank in all training rows")
    return Column(name, fill=float(np.median(known)))


def _is_one_of(tests: Sequence[Any], kind: pa.DataType) -> bool:
    return any(test(kind) for test in tests)


def _categories(texts: pa.ChunkedArray) -> tuple[str, ...]:
    """Return the texts that count as categories."""
    counts = Counter({pair["values"]: pair["counts"] for pair in texts.drop_null().value_counts().to_pylist()})
    if not counts:
        raise ValueError("blank in all training rows")
    often = [text for text in sorted(counts, key=lambda text: (-counts[text], text)) if counts[text] >= FEWEST_ROWS]
    if not often or sum(counts[text] for text in often) < REPEATED * counts.total():
        raise ValueError(f"{some(len(counts), 'different text')}, too many to be categories")
    return tuple(sorted(often[:MOST_CATEGORIES]))


def _texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return cells as texts without blanks around them, written as in a CSV file; null for an empty one."""
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if pa.types.is_nested(kind):
        raise ValueError(f"holds {kind}, not texts{TRAINED}")
    values = values.cast(kind)
    if pa.types.is_boolean(kind):
        texts = pc.if_else(values, "True", "False")
    elif pa.types.is_floating(kind) and pc.all(pc.equal(pc.trunc(values), values)).as_py():
        texts = values.cast(pa.int64()).cast(pa.string())  # whole numbers beside blanks
    else:
        texts = pc.replace_substring_regex(values.cast(pa.string()), r" 00:00:00(\.0+)?$", "")  # of a date
    trimmed = pc.utf8_trim_whitespace(texts)
    different = pc.unique(pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed)).drop_null()
    known = pa.array([unicodedata.normalize("NFC", text) for text in different.to_pylist()], pa.string())
    return pa.chunked_array([known.take(pc.index_in(chunk, different)) for chunk in trimmed.chunks], pa.string())


def _numbers(values: pa.ChunkedArray) -> NDArray[Any]:
    """Return numbers, NaN where one is missing."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _numbers(values.cast(kind.value_type))
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if is_text(kind):
        return _read_numbers(_texts(values))
    if not _is_one_of(NUMBERS, kind):
        raise ValueError(f"holds {kind}, not numbers{TRAINED}")
    if pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        values = values.cast(pa.uint8() if pa.types.is_boolean(kind) else pa.float64())
    return np.asarray(values.to_numpy())


def _read_numbers(texts: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return numbers that are written as texts, True as 1 and False as 0."""
    for word, number in TRUTHS.items():
        texts = pc.if_else(pc.equal(pc.utf8_lower(texts), word), number, texts)
    blank = pc.is_in(texts, pa.array(BLANKS))
    try:
        return np.asarray(pc.if_else(blank, None, texts).cast(pa.float64()).to_numpy())
    except pa.ArrowInvalid:
        raise ValueError(f"holds texts, not numbers{TRAINED}") from None


def encode(name: str, table: pa.Table, columns: Sequence[Column]) -> tuple[NDArray[np.float32], list[str]]:
    """Return features (n, D), and the columns that lose precision.

    >>> table = pa.table({"coat": ["short", None, "curly"], "weight": [1.5, 2, None]})
    >>> encode("pets", table, [Column("coat", ("long", "short")), Column("weight", fill=2)])[0].tolist()
    [[0.0, 1.0, 1.5, 0.0], [0.0, 0.0, 2.0, 0.0], [0.0, 0.0, 2.0, 1.0]]
    """
    widths = [_width(column, table[column.name]) for column in columns]
    x, lost, place = np.empty((table.num_rows, sum(widths)), np.float32), [], 0
    for column, width in zip(columns, widths, strict=True):
        where, part = f"{name}: column {column.name!r}", x[:, place : place + width]
        try:
            block = _block(column, table[column.name])
        except ValueError as error:
            raise ValueError(f"{where} {error}") from None
        with np.errstate(over="ignore"):  # reported below
            part[:] = block
        check_numbers(where, part)
        lost += [column.name] if coarse(block).any() else []
        place += width
    return x, lost


def _width(column: Column, values: pa.ChunkedArray) -> int:
    """Return how many features a column has; if lists differ in length, that is reported later."""
    if _is_one_of(LISTS, values.type) and len(values) and column == Column(column.name):
        return pc.list_value_length(values[:1])[0].as_py() or 0
    return len(column.categories) or 1 + (column.fill is not None)


def _block(column: Column, values: pa.ChunkedArray) -> NDArray[Any]:
    """Return the features of a column, (n, width)."""
    if column.categories:
        codes = pc.index_in(_texts(values), pa.array(column.categories, pa.string())).fill_null(-1).to_numpy()
        return np.asarray(codes[:, None] == np.arange(len(column.categories)), np.uint8)
    if _is_one_of(LISTS, values.type) and column.fill is None:
        return listed_numbers(values)
    numbers = _numbers(values)
    if column.fill is None:
        return numbers[:, None]
    missing = np.isnan(numbers)
    return np.column_stack([np.where(missing, column.fill, numbers), missing])


def notes_on(name: str, table: pa.Table, columns: Sequence[Column], *, new: bool) -> list[str]:
    """Write notes on categories, texts that are none, and missing numbers; `new` rows get a trained model's columns."""
    chosen = [f"{column.name!r} ({len(column.categories)})" for column in columns if column.categories and not new]
    others, lacking = [], []
    for column in columns:
        if column.categories:
            texts = _texts(table[column.name]).drop_null()
            odd = texts.filter(pc.invert(pc.is_in(texts, pa.array(column.categories, pa.string()))))
            others += [f"{column.name!r} ({some(len(odd), 'row')}, first {odd[0].as_py()[:40]!r})"] if len(odd) else []
        elif column.fill is not None:
            count = int(np.isnan(_numbers(table[column.name])).sum())
            lacking += [f"{column.name!r} ({some(count, 'row')})"] if count else []
    said = {
        "columns of texts are categories, with a feature for each": chosen,
        "texts that are no known category, and count as none": others,
        "missing numbers, for which the median of the training rows stands in": lacking,
    }
    return [f"{name}: {what}: {listed(found)}" for what, found in said.items() if found]
