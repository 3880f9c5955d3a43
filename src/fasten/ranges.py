"""Which numbers an option of a method, or a field of a recipe, takes: declared with its type, checked in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args


@dataclass(frozen=True)
class Range:
    """The finite numbers between two ends; a square bracket includes its end.

    >>> str(Range(1)), str(Range(0, ends="()")), str(Range(0, 1, "[)")), 1 in Range(0, 1, "[)")
    ('at least 1', 'above 0', 'in [0, 1)', False)
    """

    low: float
    high: float = math.inf
    ends: Literal["[]", "[)", "(]", "()"] = "[]"

    def __contains__(self, value: float) -> bool:
        at_an_end = (self.ends[0] == "[" and value == self.low) or (self.ends[1] == "]" and value == self.high)
        return math.isfinite(value) and (self.low < value < self.high or at_an_end)

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"in {self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}"
        return f"{'at least' if self.ends[0] == '[' else 'above'} {self.low:g}"


Count = Annotated[int, Range(1)]
Positive = Annotated[float, Range(0, ends="()")]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
BelowOne = Annotated[float, Range(0, 1, "[)")]
Part = Annotated[float, Range(0, 1, "()")]  # neither nothing nor all


def check_ranges(values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Refuse a number outside the range that its type declares; None is always accepted.

    >>> check_ranges({"threshold": 80}, {"threshold": Share})
    Traceback (most recent call last):
    ValueError: threshold must be in [0, 1], got 80; write 80% as 0.8
    """
    for name, value in values.items():
        numbers = [number for number in (value if isinstance(value, tuple) else (value,)) if number is not None]
        kinds = (hints[name], *get_args(hints[name]))  # the types in `int | None` and `tuple[int, ...]`, too
        limits = [limit for kind in kinds for limit in getattr(kind, "__metadata__", ())]
        for number, limit in ((number, limit) for number in numbers for limit in limits):
            if number not in limit:
                percent = limit.high == 1 and 1 < number <= 100
                cure = f"write {number:g}% as {number / 100:g}" if percent else "leave it out for the default"
                raise ValueError(f"{name} must be {limit}, got {number}; {cure}")
