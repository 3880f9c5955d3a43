"""What the paper's experiments share: its noises, and how a run or a table of runs is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fasten.datasets import find_dataset
from fasten.experiments.measures import ACCURACY
from fasten.experiments.paper import pair, paper, repeated
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
HARSHEST = "sym80"  # the noise of most of the paper's analysis
ABLATION = "noisy_weight=0.1"  # λ of the paper's studies of K, clean-set size and robustness, as their numbers show
SEARCHED = ("fasten-no-lc", "fasten-oracle")  # λ of these is not stated, only that it was searched for
LAMBDA_SEARCHED = (
    "The paper does not state λ of FasTEN without correction, but says that all its experiments search for the best of "
    "six values. So does this table: for each seed, it uses the run that is best on the validation rows, among those "
    "of the six that were made. The table of λ shows each of them on CIFAR-10 at symmetric 80%."
)
DATA_NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "cifar10n": "CIFAR-10N", "cifar100n": "CIFAR-100N"}

Numbers = Mapping[str, Mapping[str, Any]]  # row -> noise -> the paper's number


def noises(setting: Setting) -> list[str]:
    """All six noises; in a miniature only the one that other tables need too."""
    return [HARSHEST] if setting.few else list(NOISES)


def noise_name(noise: str) -> str:
    """A noise as it is written in a table.

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
    """A run of the paper, on the data that stand for the paper's; the same run in two tables gives equal objects.

    Data that were labelled by people keep those labels, whatever the noise.
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


def search(setting: Setting, data: str, method: str, noise: str = HARSHEST) -> tuple[Run, ...]:
    """The usual run; if the paper searched for λ, also those with its other values of λ."""
    weights = setting.some(list(paper("lambda")["cifar10"])) if method in SEARCHED else []
    made = [make_run(setting, data, method, noise=noise, settings=[f"noisy_weight={weight}"]) for weight in weights]
    usual = make_run(setting, data, method, noise=noise)
    return usual, *(run for run in made if run != usual)


def noise_table(
    setting: Setting,
    numbers: Mapping[str, Numbers],
    runs_of: Callable[[str, str, str], Sequence[Run]],
    name: Callable[[str], str] = str,
) -> tuple[Cell, ...]:
    """Accuracies by data set, row and noise; `runs_of` makes the runs of a cell, `name` gives the name of a row."""
    cells = []
    for data, rows in numbers.items():
        for row, found in rows.items():
            for noise in noises(setting):
                known, (run, *rivals) = pair(found[noise]), runs_of(data, row, noise)
                place, panel = (name(row), noise_name(noise), ACCURACY), DATA_NAMES[data]
                cells.append(Cell(*place, *known, run, panel, rivals=tuple(rivals)))
    return tuple(cells)


def method_table(setting: Setting, numbers: Mapping[str, Numbers]) -> tuple[Cell, ...]:
    """Accuracies by data set, method and noise."""
    known = {
        data: {method: {n: repeated(found[n], data, n, method) for n in NOISES} for method, found in rows.items()}
        for data, rows in numbers.items()
    }
    return noise_table(setting, known, lambda *place: search(setting, *place))


def ends(setting: Setting, rows: Mapping[str, Any]) -> dict[str, Any]:
    """All rows of a series; in a miniature, its first and last."""
    kept: Sequence[str] = setting.some(list(rows))
    return {row: rows[row] for row in kept}
