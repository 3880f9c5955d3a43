"""Cells of the CSV files that we write: text that a spreadsheet would run is escaped, and unescaped on reading."""

from __future__ import annotations

import re
from typing import Any

# To a spreadsheet, a cell that starts with one of these is a formula, whoever wrote it.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)


def escaped(cell: Any) -> Any:
    """The text, with an apostrophe in front if a spreadsheet would run it.

    If there are apostrophes in front already, one more is added, so that `unescaped` can undo it. Numbers are not run.

    >>> escaped("=1+1"), escaped("-1"), escaped("'-1")
    ("'=1+1", '-1', "''-1")
    """
    if not isinstance(cell, str) or NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}" if cell.lstrip("'").startswith(FORMULA_STARTS) else cell


def unescaped(cell: str) -> str:
    """The text that `escaped` was given.

    >>> unescaped(escaped("=1+1")), unescaped(escaped("'=")), unescaped("'tis")
    ('=1+1', "'=", "'tis")
    """
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULA_STARTS) else cell
