"""Lists of verified names: one per line, with its label if the given one is wrong; or below a line of column names."""

from __future__ import annotations

import difflib
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fasten.cells import unescaped
from fasten.data.decoding import SUFFIXES, Inside
from fasten.data.labels import Picked, check_classes, composed, label_reader, picked_of
from fasten.data.rows import Columns
from fasten.data.texts import DELIMITERS, lines_below, read_text, split_line
from fasten.suggest import MANY, listed

NAME_COLUMNS = ("name", "path", "file_name", "id")  # names that the columns of a list may have
LABEL_COLUMNS = ("label", "verified_label")
SHOWN = 200  # characters that are shown of an unknown name


def read_verdicts(
    path: Path, root: Path, columns: Columns, class_names: Sequence[str] | None
) -> Iterator[tuple[int, str, Picked]]:
    """Yield (row, label, how it was picked) for each line of a list; by default, rows count as picked at random.

    With `class_names`, those of a trained model, no other label may occur.
    """
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, not a list of verified names; for a folder of clean images, use --clean-folder"
        )
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give the path of a list of verified names")
    finder, meant = _Finder(root, columns), label_reader(columns.labels() if class_names is None else class_names)
    lines = [(n, line) for n, line in enumerate(re.split(r"\r\n|\r|\n", read_text(path)), start=1) if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty; list in it what somebody checked, one name per line")
    header = _header(lines[0][1], path)
    found = header.rows(path, lines[0][0]) if header else ((n, finder.cells(line)) for n, line in lines)
    empty = True
    for number, cells in found:
        where, empty = f"{path.name}, line {number}", False
        row = finder.row(cells[0], where, may_be_header=header is None and number == lines[0][0])
        label = meant(cells[1]) or columns.given[row]
        if label is None:
            raise ValueError(f"{where}: {cells[0]!r} has no given label to confirm; write its label after its name")
        if class_names is not None:
            check_classes(where, class_names, [label])
        yield row, label, picked_of(cells[2], where) or columns.picked[row] or "random"
    if empty:
        raise ValueError(f"{path} has no verdict below its first line; list what somebody checked, one name per line")


@dataclass(frozen=True)
class _Header:
    """A list as other programs write it: cells may be quoted, and contain line breaks."""

    delimiter: str
    places: tuple[int | None, ...]  # columns of the name, the label and how it was picked
    as_in_a_table: bool  # the labels' column is `verified_label`: a blank means that nobody checked

    def rows(self, path: Path, first: int) -> Iterator[tuple[int, tuple[str, str, str]]]:
        """Yield the line number and (name, label, how it was picked) for each line below the header."""
        for number, cells in lines_below(path, self.delimiter):
            name, label, picked = (
                cells[place] if place is not None and place < len(cells) else "" for place in self.places
            )
            if number > first and any(map(str.strip, cells)) and (label.strip() or not self.as_in_a_table):
                yield number, (name, label, picked)


def _header(line: str, path: Path) -> _Header | None:
    """Return the columns that a list's first line names, or None; a whole table is refused, as it may mean others."""
    for delimiter in DELIMITERS:
        cells = [cell.strip().lower() for cell in split_line(line, delimiter)]
        places = [
            next((cells.index(column) for column in columns if column in cells), None)
            for columns in (NAME_COLUMNS, LABEL_COLUMNS, ("picked",))
        ]
        others = [cell for place, cell in enumerate(cells) if place not in places]
        if places[0] is not None and not others:
            return _Header(delimiter, tuple(places), places[1] is not None and cells[places[1]] == "verified_label")
        if places[0] is not None and "verdict" in others:
            raise ValueError(f"{path} is a review; `fasten audit RUN --import {path} --out FILE` turns it into a list")
        if places[0] is not None and places[1] is not None:
            known = "a list of verified names has the columns name (or id), label and picked"
            raise ValueError(f"{path.name}: {known}, but this has {listed(list(map(repr, others)))} too; take them out")
    return None


class _Finder:
    """Finds rows by the names that people write."""

    def __init__(self, root: Path, columns: Columns) -> None:
        self.inside = Inside(root)
        self.rows = {name: row for row, name in enumerate(columns.ids)}
        self.last: dict[str, list[int]] = defaultdict(list)
        for name, row in self.rows.items():
            self.last[posixpath.basename(name)].append(row)

    def cells(self, line: str) -> tuple[str, str, str]:
        """Split a line into name, label and how it was picked; a comma may also be part of the name."""
        if self.find(line) is not None:
            return line, "", ""
        for delimiter in DELIMITERS:
            cells = [*split_line(line, delimiter), "", ""]
            if delimiter in line and self.find(cells[0]) is not None:
                return cells[0], cells[1], cells[2]
        marks = [delimiter for delimiter in DELIMITERS if delimiter in line]
        return (split_line(line, marks[0])[0] if marks else line), "", ""

    def find(self, name: str) -> int | None:
        plain = posixpath.normpath(name.strip().replace("\\", "/"))
        names = [name, unescaped(name), unescaped(name.strip()), plain, f"train/{plain}"]
        for known in names:
            if known in self.rows:
                return self.rows[known]
        alike = self.last.get(plain, [])  # a name without its folder is enough if it is unique
        from_here = os.path.relpath(os.path.realpath(plain), self.inside.folder).replace(os.sep, "/")
        row = alike[0] if len(alike) == 1 else self.rows.get(from_here)
        return self._in_either_form([*names, from_here], plain) if row is None else row

    def _in_either_form(self, names: Sequence[str], last: str) -> int | None:
        """Return the only row with one of these names in another Unicode form."""
        whole, without_folder = self._composed_names
        tried = [*(whole.get(composed(name), []) for name in names), without_folder.get(composed(last), [])]
        return next((rows[0] for rows in tried if len(rows) == 1), None)

    @cached_property
    def _composed_names(self) -> tuple[Mapping[str, list[int]], Mapping[str, list[int]]]:
        """The rows with non-ASCII names, by name and by name without folder, in composed Unicode form."""
        named = [(name, row) for name, row in self.rows.items() if not name.isascii()]
        return _grouped(named), _grouped((posixpath.basename(name), row) for name, row in named)

    def row(self, name: str, where: str, may_be_header: bool) -> int:
        row = self.find(name)
        if row is not None:
            return row
        try:
            self.inside(name)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        known, last = list(self.rows), posixpath.basename(name)
        near = [known[place] for place in self.last.get(last, [])[:2]]
        torn = [full for full in known if posixpath.basename(full).startswith(f"{last},")]
        near = near or torn[:2] or difflib.get_close_matches(name[:SHOWN], known[:MANY], 2, 0.6)
        quotes = " (a name that holds a comma must be in quotes)" if torn else ""
        meant = f"did you mean {' or '.join(map(repr, near))}?{quotes}" if near else None
        header = ", or, if this line names the columns, name,label" if may_be_header else ""
        if posixpath.splitext(known[0])[1].lower() not in SUFFIXES:
            hint = meant or f"write ids as in the data, such as {known[0]!r}{header}"
            raise ValueError(f"{where}: no row has the id {name[:SHOWN]!r}; {hint}")
        hint = meant or f"write its path, such as cat/1.jpg{header}"
        raise ValueError(f"{where}: there is no image {name[:SHOWN]!r} in {self.inside.folder}; {hint}")


def _grouped(named: Iterable[tuple[str, int]]) -> Mapping[str, list[int]]:
    found = defaultdict(list)
    for name, row in named:
        found[composed(name)].append(row)
    return found
