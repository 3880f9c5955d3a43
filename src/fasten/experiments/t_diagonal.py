"""Figure 3b: the diagonal of the true T and of its estimate, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fasten.experiments.paper import paper
from fasten.experiments.runs import ABLATION, make_run, noise_name
from fasten.experiments.spec import Curve, Experiment, Setting
from fasten.records import Record

SETTINGS: dict[str, tuple[str, ...]] = {"0.5": (), "0.1": (ABLATION,)}  # by their λ
KEYS = {"true": "t_diagonal_true", "estimated": "t_diagonal"}  # line -> of an epoch

Points = tuple[tuple[float, float], ...]


def t_diagonal(setting: Setting) -> Experiment:
    """As labels are corrected, T changes; does its estimate follow?"""
    curves = [
        Curve(
            line,
            make_run(setting, "cifar10", noise=noise, settings=settings),
            epoch_reader(KEYS[line]),
            _numbered(values),
            f"{noise_name(noise)}, λ = {weight}",
        )
        for noise, lines in paper("t-diagonal").items()
        for weight, settings in SETTINGS.items()
        for line, values in lines.items()
    ]
    return Experiment(
        "t-diagonal",
        "Mean of T's diagonal on CIFAR-10, FasTEN: the labels as they are now, and the estimate",
        "figure",
        curves=tuple(curves),
        about="True: the current labels, corrected ones included, counted against the hidden truth. Estimated: T̂, the "
        "mean over the updates of an epoch. The paper prints no numbers; its lines are read off the authors' poster, "
        "the same on either side. λ is not stated: here are 0.5, as in table 1, and 0.1, as in other studies of the "
        "paper.",
        x="epoch",
        y="mean of the diagonal",
    )


def epoch_reader(key: str) -> Callable[[Record], Points]:
    """What reads a value of every epoch; epochs without one are left out."""
    return lambda record: tuple((row["epoch"], row[key]) for row in record["epochs"] if row.get(key) is not None)


def _numbered(values: Iterable[float]) -> Points:
    return tuple((float(epoch), value) for epoch, value in enumerate(values, 1))
