"""The paper's numbers: those of its tables, and those that can be read off its figures.

Kye, Choi, Yi, Chang: Learning with Noisy Labels by Efficient Transition Matrix Estimation to Combat Label
Miscorrection, ECCV 2022. Accuracies are in percent, except those of `relabel`, which are fractions; `ci95` is half the
width of the interval over five runs. The figures' numbers come from the vector plots of the authors' poster.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _all() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
    return found


def paper(name: str) -> Any:
    """All numbers of a table or figure, by its name.

    >>> paper("table1")["cifar10"]["fasten"]["sym80"]
    {'mean': 79.52, 'ci95': 0.78}
    """
    return _all()[name]


def pair(number: Any) -> tuple[float | None, float | None]:
    """A number and its interval; None for what the paper does not have."""
    return (number["mean"], number["ci95"]) if isinstance(number, dict) else (number, None)


def repeated(number: Any, data: str, noise: str, method: str) -> Any:
    """The number with its interval, if it repeats one of table 1, or for FasTEN at λ = 0.1 one of the table of λ.

    Use this only for numbers of the same setting: others may be equal by chance.

    >>> repeated(77.88, "cifar10", "sym80", "fasten"), repeated(71.25, "cifar10", "sym80", "fasten-no-lc")
    ({'mean': 77.88, 'ci95': 1.09}, 71.25)
    """
    rows = [paper("table1")[data].get(method, {}), *([paper("lambda")[data]["0.1"]] if method == "fasten" else [])]
    return next((row[noise] for row in rows if noise in row and row[noise]["mean"] == number), number)
