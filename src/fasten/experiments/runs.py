"""What the paper's experiments share: its noises, and how a run or a table of runs is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fasten.datasets import find_dataset
from fasten.experiments.measures import ACCURACY
from fasten.experiments.paper import pair, repeated
from fasten.experiments.spec import Cell, Setting
from fasten.options import apply_settings, find_method, option_defaults
from fasten.records import Run

NOISES = {
    "sym20": "symmetric:0.2",
    "sym40": "symmetric:0.4",
    "sym60": "symmetric:0.6",
    "sym80": "symmetric:0.8",
    "asym20": "asymmetric:0.2",
    "asym40": "asymmetric:0.4",
}
HARSHEST = "sym80"  # what most of the paper's analysis is made on
ABLATION = "noisy_weight=0.1"  # λ of the paper's studies of K, clean-set size and robustness, as their numbers show
DATA_NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "cifar10n": "CIFAR-10N", "cifar100n": "CIFAR-100N"}

Numbers = Mapping[str, Mapping[str, Any]]  # row -> noise -> the paper's number


def noises(setting: Setting) -> list[str]:
    """All six; in a miniature only the one that other tables need too."""
    return [HARSHEST] if setting.few else list(NOISES)


def noise_name(noise: str) -> str:
    """As a column says it.

    >>> noise_name("asym40")
    'asymmetric 40%'
    """
    kind, _, rate = NOISES[noise].partition(":")
    return f"{kind} {float(rate):.0%}"


def make_run(
    setting: Setting,
    data: str,
    method: str = "fasten",
    *,
    noise: str = HARSHEST,
    settings: Iterable[str] = (),
    clean: int | None = None,
) -> Run:
    """A run of the paper's, on what stands for its data; equal runs of different tables come out equal.

    Data with labels that people gave keep those, whatever the noise.
    """
    name = setting.data[data]
    dataset = find_dataset(name)
    options, recipe = apply_settings(method, dataset.recipe, list(settings))
    defaults = option_defaults(find_method(method))
    return Run(
        dataset=name,
        noise="none" if dataset.given else NOISES[noise],
        method=method,
        options={key: value for key, value in options.items() if value != defaults[key]},
        recipe=recipe if setting.epochs is None else recipe.scaled(setting.epochs),
        clean=None if clean == dataset.num_clean else clean,
    )


def noise_table(
    setting: Setting,
    numbers: Mapping[str, Numbers],
    run_of: Callable[[str, str, str], Run],
    name: Callable[[str], str] = str,
) -> tuple[Cell, ...]:
    """Accuracies by data set, row and noise, of which `run_of` makes the run; `name` is what a row is called."""
    cells = []
    for data, rows in numbers.items():
        for row, found in rows.items():
            for noise in noises(setting):
                known, run = pair(found[noise]), run_of(data, row, noise)
                cells.append(Cell(name(row), noise_name(noise), ACCURACY, *known, run, DATA_NAMES[data]))
    return tuple(cells)


def method_table(setting: Setting, numbers: Mapping[str, Numbers]) -> tuple[Cell, ...]:
    """Accuracies by data set, method and noise."""
    known = {
        data: {method: {n: repeated(found[n], data, n, method) for n in NOISES} for method, found in rows.items()}
        for data, rows in numbers.items()
    }
    return noise_table(setting, known, lambda data, method, noise: make_run(setting, data, method, noise=noise))


def ends(setting: Setting, rows: Mapping[str, Any]) -> dict[str, Any]:
    """All rows of a series, or in a miniature its first and last."""
    kept: Sequence[str] = setting.some(list(rows))
    return {row: rows[row] for row in kept}
