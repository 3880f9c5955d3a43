"""Rows: users' own data, each row with what is known about its label. Every reader of such data returns a `Rows`.

`given` is the label that a row came with, `verified` the label according to somebody who checked it; both are the
users' own texts.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fasten.data.decoding import Decoding, Encoded, decode_images, same_bytes
from fasten.data.encoding import Column, names_of
from fasten.data.images import ImageFiles, check_examples
from fasten.data.labels import (
    Part,
    Picked,
    check_alike,
    check_classes,
    check_letters,
    check_nobody,
    classes_of,
    composed,
    encode_labels,
    note_blanks,
)
from fasten.sentences import are, some
from fasten.suggest import nearest

Texts = tuple[str | None, ...]
Labels = NDArray[np.int64]
Pairs = Sequence[tuple[int, int]]

# Share of the test rows: more copies of training images are a mistake, fewer are normal in data from the web.
COPIES_ALLOWED = 0.01
ID = "the id"


@dataclass(frozen=True, eq=False)
class Columns:
    """What is known about each row, checked before any image is opened.

    `picked` says how a verified row came to be checked: at random, or because it was chosen.
    """

    ids: tuple[str, ...]  # for a file, its path in the data folder
    given: Texts  # None: came without a label
    verified: Texts  # None: nobody checked
    picked: tuple[Picked | None, ...]  # None: not verified
    split: tuple[Part | None, ...]  # None: not specified

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """Return the columns for some of the rows."""
        kept = rows.tolist()
        columns: Any = (tuple(getattr(self, field.name)[row] for row in kept) for field in fields(Columns))
        return Columns(*columns)

    def labels(self) -> set[str]:
        """Return all labels, given and verified."""
        return {label for label in (*self.given, *self.verified) if label is not None}


@dataclass(frozen=True, eq=False)
class Rows(Columns):
    """Users' own data as the files hold them, not split: what is known about each row, and the examples.

    >>> rows = make_rows("pets", make_columns(["a", "b"], given=["cat", "dog"], verified=["dog", None]), np.eye(2))
    >>> rows.class_names, rows.given_codes().tolist(), rows.verified_codes().tolist(), rows.picked
    (('cat', 'dog'), [0, 1], [1, -1], ('random', None))
    """

    name: str
    x: NDArray[Any] | ImageFiles  # (n, H, W, C) uint8 images, or (n, D) float32 features
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()  # messages for the user: what was left out, what looks odd
    features: tuple[Column, ...] = ()  # what the columns of x were made from, if that has names

    def __post_init__(self) -> None:
        check_columns(self.name, self.columns)
        check_classes(self.name, self.class_names, self.labels())
        if len(self.x) != len(self.ids):
            raise ValueError(f"{self.name}: x has {len(self.x)} rows for {len(self.ids)} ids; give one id per row")
        check_examples(self.name, self.x)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the columns of x, if they have any."""
        return names_of(self.features)

    @property
    def columns(self) -> Columns:
        """The columns without the examples."""
        return Columns(self.ids, self.given, self.verified, self.picked, self.split)

    def given_codes(self) -> Labels:
        """Return the class numbers of the given labels; -1 for none."""
        return self._codes[0].copy()

    def verified_codes(self) -> Labels:
        """Return the class numbers of the verified labels; -1 if nobody checked."""
        return self._codes[1].copy()

    def judged_codes(self) -> Labels:
        """Return the labels that count for validation and test rows: verified, or given if nobody checked."""
        verified = self.verified_codes()
        return np.where(verified >= 0, verified, self.given_codes())

    @cached_property
    def _codes(self) -> tuple[Labels, Labels]:
        """Both kinds of class numbers, cached because a task needs them often; callers get copies to write to."""
        given, verified = (encode_labels(self.name, self.class_names, part) for part in (self.given, self.verified))
        return given, verified

    def rows_of(self, part: Part) -> Labels:
        """Return the rows that the data assign to a part of the split."""
        return np.flatnonzero(np.array([said == part for said in self.split], bool))


def make_columns(
    ids: Iterable[str],
    *,
    given: Iterable[str | None] | None = None,
    verified: Iterable[str | None] | None = None,
    picked: Iterable[Picked | None] | None = None,
    split: Iterable[Part | None] | None = None,
) -> Columns:
    """Return columns with defaults for what is not given; verified rows count as picked at random by default.

    >>> make_columns(["a", "b"], verified=["cat", None], picked=["chosen", "chosen"]).picked
    ('chosen', None)
    """
    names = tuple(ids)
    none = (None,) * len(names)
    verdicts = none if verified is None else tuple(verified)
    ways = none if picked is None else _ways(picked)
    if len(ways) == len(verdicts):
        both = zip(verdicts, ways, strict=True)
        ways = tuple(None if verdict is None else (way or "random") for verdict, way in both)
    parts = none if split is None else tuple(split)
    return Columns(names, none if given is None else tuple(given), verdicts, ways, parts)


def _ways(picked: Iterable[Picked | None]) -> tuple[Picked | None, ...]:
    """Return how rows were picked, None if that is not given; pandas may hold this as NaN."""
    ways = list(picked)
    missing = np.asarray(pd.isna(np.fromiter(ways, object, len(ways)))).tolist()
    return tuple(None if absent else way for way, absent in zip(ways, missing, strict=True))


def add_verdicts(name: str, columns: Columns, verdicts: Iterable[tuple[int, str, Picked]]) -> Columns:
    """Add verdicts (row, verified label, how it was picked) to columns; two labels for one row raise ValueError.

    A row that was once picked at random counts as random, even if it was also chosen.

    >>> add_verdicts("pets", make_columns(["a", "b"], given=["cat", "dog"]), [(0, "dog", "chosen")]).verified
    ('dog', None)
    """
    verified, picked = list(columns.verified), list(columns.picked)
    for row, label, way in verdicts:
        before = verified[row]
        if before is not None and before != label:
            raise ValueError(
                f"{name}: {columns.ids[row]!r} is verified as {before!r} and as {label!r}; keep the one that is right"
            )
        verified[row], picked[row] = label, "random" if picked[row] == "random" else way
    return replace(columns, verified=tuple(verified), picked=tuple(picked))


def make_rows(
    name: str,
    columns: Columns,
    x: NDArray[Any] | ImageFiles,
    class_names: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    features: Sequence[Column] = (),
) -> Rows:
    """Return rows whose classes are those of their labels, or `class_names`, those of a trained model.

    With `class_names`, no other label may occur, but labels may be missing.
    """
    columns = _in_known_form(columns, class_names)
    names = _settle_classes(name, columns, class_names)
    if class_names is None:
        notes = (*notes, *note_only_verified(name, columns), *note_blanks(name, columns.given))
    if isinstance(x, np.ndarray) and x.ndim == 2:
        x = x.astype(np.float32, copy=False)
    known: dict[str, Any] = vars(columns)
    said = tuple(dict.fromkeys(notes))  # each once, also if a list adds verdicts to rows that have notes
    return Rows(**known, name=name, x=x, class_names=names, notes=said, features=tuple(features))


def make_image_rows(
    name: str,
    columns: Columns,
    sources: Sequence[Encoded],
    how: Decoding,
    class_names: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> Rows:
    """Return rows of stored images without unreadable ones; all else is checked before an image is decoded.

    Paths in `sources` have their links resolved, so that one file under two names is found.
    """
    columns = _in_known_form(columns, class_names)
    _settle_classes(name, columns, class_names)
    if all(isinstance(source, Path) for source in sources):
        check_once(name, [str(source) for source in sources], columns, "the file")
    copies = _note_copies(name, columns, same_bytes(sources, *_test_and_others(columns)), refuse=True)
    decoded = decode_images(name, sources, columns.ids, how)
    kept = columns.take(decoded.kept)
    lost = sorted(columns.labels() - kept.labels())
    if lost:
        raise ValueError(f"{name}: no image of the class {lost[0]!r} can be read; repair them, or take the class out")
    return make_rows(name, kept, decoded.images, class_names, (*notes, *copies, *decoded.notes))


def compare_test_rows(rows: Rows) -> Rows:
    """Add a note if test rows are copies of other rows; for images, many copies raise ValueError."""
    assert isinstance(rows.x, np.ndarray)
    test, others = _test_and_others(rows)
    if not test:
        return rows
    seen = {_digest(rows.x[row]): row for row in reversed(others)}
    pairs = [(row, seen[digest]) for row in test if (digest := _digest(rows.x[row])) in seen]
    notes = _note_copies(rows.name, rows, pairs, refuse=rows.x.ndim == 4)
    return replace(rows, notes=(*rows.notes, *notes))


def check_columns(name: str, columns: Columns) -> None:
    """Raise unless there are rows, each column has one entry for each, and the ids are unique."""
    total = len(columns.ids)
    if not total:
        raise ValueError(f"{name} holds no rows; give some")
    for key, column in vars(columns).items():
        if len(column) != total:
            raise ValueError(f"{name}: {key} has {len(column)} entries for {total} rows; give one for each row")
    for key, known in (("picked", get_args(Picked)), ("split", get_args(Part))):
        wrong = [value for value in set(getattr(columns, key)) if value not in (None, *known)]
        if wrong:
            raise ValueError(f"{name}: unknown {key} {wrong[0]!r}; {nearest(str(wrong[0]), known)}")
    for key, column in ((ID, columns.ids), ("the label", columns.given), ("the label", columns.verified)):
        check_letters(f"{name}: {key}", column)
    check_once(name, columns.ids, columns, ID)


def check_once(name: str, keys: Sequence[str], columns: Columns, what: str) -> None:
    """Raise if two rows have the same key; the message names the worst consequence."""
    if len(set(keys)) == len(keys):
        return
    places = defaultdict(list)
    for row, key in enumerate(keys):
        places[key].append(row)
    repeated = [(key, rows) for key, rows in places.items() if len(rows) > 1]
    for key, rows in repeated:
        sure = {label: row for row in reversed(rows) if (label := columns.verified[row]) is not None}
        if len(sure) > 1:
            first, second = sorted(sure)[:2]
            both = _occurrences(columns, sorted([sure[first], sure[second]]), what)
            cure = "keep the one that is right"
            if what == ID:  # either the verdict or the id may be wrong
                cure = "if they are one row, keep the verdict that is right; if they are two, give each its own id"
            raise ValueError(f"{name}: {what} {key!r} is verified as {first!r} and as {second!r} ({both}); {cure}")
    for key, rows in repeated:
        if len({columns.split[row] == "test" for row in rows}) > 1:
            there = _where(columns, [row for row in rows if columns.split[row] != "test"])
            raise ValueError(
                f"{name}: {what} {key!r} is a test row that is also {there} ({_occurrences(columns, rows, what)}); "
                "take it out of one of them"
            )
    key, rows = repeated[0]
    more = len(repeated) - 1
    others = f", and {more} more {are(more)} repeated" if more else ""
    both = _occurrences(columns, rows, what)
    raise ValueError(f"{name}: {what} {key!r} occurs more than once ({both}){others}; keep one row of each")


def _occurrences(columns: Columns, rows: Sequence[int], what: str) -> str:
    """Return two rows with the same key: for an id their numbers, for a file their ids, which are its names."""
    return _rows(rows) if what == ID else " and ".join(repr(columns.ids[row]) for row in rows[:2])


def _in_known_form(columns: Columns, class_names: Sequence[str] | None) -> Columns:
    """Return the columns with labels in the Unicode form that the trained model's class names have."""
    if class_names is None or columns.labels() <= set(class_names):
        return columns
    known = {composed(label): label for label in class_names}
    other = {label: known.get(composed(label), label) for label in columns.labels() - set(class_names)}
    given, verified = (
        tuple(other.get(label or "", label) for label in part) for part in (columns.given, columns.verified)
    )
    return replace(columns, given=given, verified=verified)


def _settle_classes(name: str, columns: Columns, class_names: Sequence[str] | None) -> tuple[str, ...]:
    check_columns(name, columns)
    if class_names is not None:
        check_classes(name, class_names, columns.labels())
        return tuple(class_names)
    bare = [row for row, both in enumerate(zip(columns.given, columns.verified, strict=True)) if both == (None, None)]
    if bare and len(bare) < len(columns.ids):
        lack = f"{len(bare)} of {len(columns.ids)} rows {'lacks' if len(bare) == 1 else 'lack'} a label"
        where = f"first {columns.ids[bare[0]]!r} ({_rows(bare[:1])})"
        raise ValueError(f"{name}: {lack}, {where}; give each a label or a verdict, or take them out")
    if any(columns.given):
        check_nobody(name, columns.ids, columns.given, columns.verified)
    _check_measured(name, columns)
    return classes_of(name, columns.labels())


def _check_measured(name: str, columns: Columns) -> None:
    """Raise if validation or test rows have a label, given or verified, that no training row has."""
    labels: dict[str, set[str]] = defaultdict(set)
    for said, *both in set(zip(columns.split, columns.given, columns.verified, strict=True)):  # far fewer than rows
        labels[said or "train"] |= {label for label in both if label is not None}
    classes = labels["train"]
    for part in ("valid", "test"):
        unknown = labels[part] - classes
        if unknown and classes:
            near = nearest(min(unknown), sorted(classes))
            raise ValueError(f"{name}: {part} rows have the label {min(unknown)!r}, and no training row has it; {near}")


def note_only_verified(name: str, columns: Columns) -> tuple[str, ...]:
    """Write a note on verified labels that no row has as its given label: they may be misspelt."""
    check_alike(name, columns.given, columns.verified)
    given = {label for label in columns.given if label is not None}
    odd = sorted(columns.labels() - given)
    if not given or not odd:
        return ()
    first = columns.ids[columns.verified.index(odd[0])]
    return (
        f"{name}: no row has the given label {odd[0]!r}, but {first!r} is verified as it; is it spelled correctly?",
    )


def _test_and_others(columns: Columns) -> tuple[list[int], list[int]]:
    rows = list(enumerate(columns.split))
    return [row for row, part in rows if part == "test"], [row for row, part in rows if part != "test"]


def _note_copies(name: str, columns: Columns, pairs: Pairs, refuse: bool) -> tuple[str, ...]:
    """Write a note on test rows that are copies of other rows; with `refuse`, raise if they are many."""
    if not pairs:
        return ()
    copies, total = len({test for test, _ in pairs}), columns.split.count("test")
    test, other = (columns.ids[row] for row in pairs[0])
    stand = "is" if copies == 1 else "are"
    where = _where(columns, [other for _, other in pairs])
    there = f"{copies} of {some(total, 'test row')} {stand} also {where}"
    said = f"{name}: {there}: {test!r} has the same content as {other!r}"
    few = copies <= COPIES_ALLOWED * total
    if refuse and not few:
        raise ValueError(f"{said}; remove {'it' if copies == 1 else 'them'} from one of the two")
    return (f"{said}; so the test accuracy is {'a little ' if few else ''}too high",)


def _where(columns: Columns, rows: Sequence[int]) -> str:
    """Return where these copies of test rows are."""
    return "among the validation rows" if {columns.split[row] for row in rows} == {"valid"} else "in training"


def _digest(row: NDArray[Any]) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _rows(rows: Sequence[int]) -> str:
    return f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]} and {rows[1]}"
