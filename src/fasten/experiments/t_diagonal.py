"""Figure 3b: the diagonal of the true T and of its estimate, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterable

from fasten.experiments.paper import paper
from fasten.experiments.runs import ABLATION, make_run, noise_name
from fasten.experiments.spec import Curve, Experiment, Setting
from fasten.records import Record

SETTINGS: dict[str, tuple[str, ...]] = {"0.5": (), "0.1": (ABLATION,)}  # by their λ

Points = tuple[tuple[float, float], ...]


def t_diagonal(setting: Setting) -> Experiment:
    """As labels are corrected, T changes; does its estimate follow?"""
    points = {"true": labels_in_use, "estimated": estimates}
    curves = [
        Curve(
            line,
            make_run(setting, "cifar10", noise=noise, settings=settings),
            points[line],
            _numbered(values),
            f"{noise_name(noise)}, λ = {weight}",
        )
        for noise, lines in paper("t-diagonal").items()
        for weight, settings in SETTINGS.items()
        for line, values in lines.items()
    ]
    return Experiment(
        "t-diagonal",
        "Mean of T's diagonal on CIFAR-10, FasTEN: the labels in use, and the estimate",
        "figure",
        curves=tuple(curves),
        about="True: counted from the labels that an epoch trains on, corrected ones included, and the true labels. "
        "The first epoch trains on the given labels, as in the paper. Estimated: T̂, the mean over the updates of an "
        "epoch. The paper prints no numbers; its lines are read off the authors' poster, and are the same for both "
        "values of λ. The paper does not state λ: we show 0.5, as in table 1, and 0.1, as in other studies of the "
        "paper.",
        x="epoch",
        y="mean of the diagonal",
    )


def estimates(record: Record) -> Points:
    """The diagonal of T̂, the mean over the updates of an epoch; epochs without a T̂ are left out."""
    return tuple((row["epoch"], row["t_diagonal"]) for row in record["epochs"] if row.get("t_diagonal") is not None)


def labels_in_use(record: Record) -> Points:
    """The diagonal of the true T of the labels that each epoch trains on: the given ones, then those of the last epoch.

    With the given labels it is 1 − the noise rate, since the classes are equally large. A record has the values at the
    end of an epoch. A row comes once in an epoch, so its new label counts from the next one on; the paper's lines, too,
    begin with the given labels.
    """
    rate, rows = record["data"]["noise_rate"], record["epochs"]
    left = [None if rate is None else 1 - rate, *(row.get("t_diagonal_true") for row in rows)]
    return tuple((row["epoch"], value) for row, value in zip(rows, left, strict=False) if value is not None)


def _numbered(values: Iterable[float]) -> Points:
    return tuple((float(epoch), value) for epoch, value in enumerate(values, 1))
