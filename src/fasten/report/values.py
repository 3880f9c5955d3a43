"""Read values from a record in which any value may be missing, null, or not a number."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fasten.report.charts import UNKNOWN, Matrix, decimal, percent

Record = Mapping[str, Any]


def mapping(record: Record, key: str) -> Record:
    """A part of a record; empty if there is none."""
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def known(record: Record) -> Record:
    """The record without entries that hold nothing but null."""
    return {key: value for key, value in record.items() if _has_value(value)}


def _has_value(value: Any) -> bool:
    return any(map(_has_value, value.values())) if isinstance(value, Mapping) else value is not None


def finite(value: Any) -> float | None:
    """The value as a float; None if it is not a finite number.

    >>> finite(1), finite(True), finite(math.nan)
    (1.0, None, None)
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def number(record: Record, key: str) -> float | None:
    """The number under a key."""
    return finite(record.get(key))


def counted(record: Record) -> tuple[float, float, float, float] | None:
    """k, n, low and high: k of n rows, and the interval of their share; None if one is not known, or n is 0.

    >>> counted({"k": 3, "n": 4, "low": 0.2, "high": 0.99}), counted({"k": 0, "n": 0, "low": 0.0, "high": 1.0})
    ((3.0, 4.0, 0.2, 0.99), None)
    """
    k, n, low, high = (number(record, key) for key in ("k", "n", "low", "high"))
    return None if k is None or not n or low is None or high is None else (k, n, low, high)


def matrix(value: Any) -> Matrix | None:
    """A square matrix with None for unknown entries; None if the value is not one, or all its entries are unknown."""
    if not isinstance(value, Sequence) or not value or isinstance(value, str):
        return None
    square = all(isinstance(row, Sequence) and len(row) == len(value) for row in value)
    found = [[finite(entry) for entry in row] for row in value] if square else []
    return found if any(entry is not None for row in found for entry in row) else None


def odd_sample(evidence: Record) -> bool:
    """Whether the rows that count as verified at random are not a random sample, and say nothing about the others."""
    return bool(mapping(evidence, "sample").get("warning"))


def shows_others(evidence: Record) -> bool:
    """Whether rows were verified that tell how many of all labels are wrong: some at random, as far as can be seen."""
    return bool(number(evidence, "num_random")) and not odd_sample(evidence)


def or_unknown(form: Callable[[float], str]) -> Callable[[Any], str]:
    """A formatter that takes any value, and shows what is not a number as not known."""

    def show(value: Any) -> str:
        found = finite(value)
        return UNKNOWN if found is None else form(found)

    return show


def count(value: float) -> str:
    """A whole number.

    >>> count(12345)
    '12,345'
    """
    return f"{value:,.0f}"


def some(value: float, thing: str) -> str:
    """A count and its noun, in the plural if needed.

    >>> some(1, "row"), some(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count(value)} {thing}{'' if round(value) == 1 else 's'}"


def verb(value: float, one: str, many: str) -> str:
    """The word that agrees with a count: `one` or `many`.

    >>> verb(1, "is", "are"), verb(0, "is", "are")
    ('is', 'are')
    """
    return one if round(value) == 1 else many


def duration(seconds: float) -> str:
    """A time in readable units.

    >>> duration(9.81), duration(6000), duration(20000)
    ('9.8 s', '100 min', '5 h 33 min')
    """
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def text(value: Any) -> str:
    """Any value as text."""
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def setting(value: Any) -> str:
    """A value as `--set` takes it.

    >>> setting((5, 6)), setting(None), setting(True), setting(0.5)
    ('5,6', 'none', 'true', '0.5')
    """
    if isinstance(value, list | tuple):
        return ",".join(map(setting, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def standard_error(share: float | None, rows: float | None) -> float | None:
    """The standard error of a share that was measured on a number of rows."""
    return math.sqrt(max(share * (1 - share), 0.0) / rows) if share is not None and rows else None


@cache
def templates() -> Environment:
    """The Jinja environment of this folder's pages: all text is escaped, and unknown numbers are shown as such."""
    found = Environment(
        loader=PackageLoader("fasten", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name, form in (("percent", percent), ("decimal", decimal), ("count", count), ("duration", duration)):
        found.filters[name] = or_unknown(form)
    found.filters["text"] = text
    return found
