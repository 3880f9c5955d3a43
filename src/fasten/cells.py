"""Cells of the CSV files that we write: what a spreadsheet would run is marked, and the mark taken off in reading."""

from __future__ import annotations

import re
from typing import Any

# A cell that begins so is a formula to a spreadsheet, whoever wrote it.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)


def escaped(cell: Any) -> Any:
    """Text with an apostrophe before what a spreadsheet would run; one more where it has some, so it can be undone.

    A number is nothing to run.

    >>> escaped("=1+1"), escaped("-1"), escaped("'-1")
    ("'=1+1", '-1', "''-1")
    """
    if not isinstance(cell, str) or NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}" if cell.lstrip("'").startswith(FORMULA_STARTS) else cell


def unescaped(cell: str) -> str:
    """The text that was escaped.

    >>> unescaped(escaped("=1+1")), unescaped(escaped("'=")), unescaped("'tis")
    ('=1+1', "'=", "'tis")
    """
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULA_STARTS) else cell
