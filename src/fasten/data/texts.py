"""Text files in UTF-8, and the lines of lists and tables in them."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator
from pathlib import Path

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
BLOCK = 2**24  # bytes


def read_text(path: Path) -> str:
    """Read a file in UTF-8, with or without a byte order mark; anything else raises ValueError with the line."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path.name}: line {line} is not UTF-8 (byte {content[error.start]:#04x}); save the file as UTF-8"
        ) from None


def split_header(line: str, known: Collection[str]) -> tuple[list[str], str]:
    """Return the names of the columns, and the delimiter: the one that gives the most known names.

    >>> split_header("id; label", ["id", "label"])
    (['id', 'label'], ';')
    """
    split = {mark: [cell.strip() for cell in split_line(line, mark)] for mark in DELIMITERS}
    mark = max(split, key=lambda mark: (len(set(split[mark]) & set(known)), len(split[mark])))
    return split[mark], mark


def split_line(line: str, delimiter: str) -> list[str]:
    """Return the cells of a line, or the line as one cell if Python's reader refuses it as too long."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return [line]


def lines_below(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines after the first with their numbers; a quote that is not closed raises ValueError."""
    lines = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter, strict=True)
    start = 1
    try:
        for cells in lines:
            if start > 1:
                yield start, cells
            start = lines.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path.name}: line {start}: a quote is opened there and not closed ({error}); close it"
        ) from None


def check_quotes(path: Path, delimiter: str) -> None:
    """Raise if a quote is opened and not closed: it would swallow the rest of the file."""
    with open(path, "rb") as file:
        quotes = sum(block.count(b'"') for block in iter(lambda: file.read(BLOCK), b""))
    if quotes % 2:
        for _ in lines_below(path, delimiter):
            pass
