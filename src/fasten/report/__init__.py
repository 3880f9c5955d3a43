"""Render a run's record as one HTML page that needs no network and no other file; the same record, the same bytes.

The record is read as a plain mapping in which any value may be missing or null. Such a value is shown as "not known",
and a section without any value is left out. Sentences that need no arithmetic are in page.html.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fasten.files import write_text
from fasten.report.charts import Matrix, Series, Unit, heat_key, heat_map, line_chart
from fasten.report.gallery import read_gallery, shown_gallery
from fasten.report.trust import Trust, trust_of
from fasten.report.values import (
    Record,
    finite,
    known,
    mapping,
    matrix,
    number,
    setting,
    shows_others,
    standard_error,
    templates,
)
from fasten.report.verdict import AUDIT, method_name, verdict_of

__all__ = ["read_gallery", "render", "write_report"]

PARTS = ("run", "environment", "data", "evaluation", "references", "result")
TOP_PAIRS = 10
OWN_FLAGS = {"clean": "clean-folder"}  # for users' own data: options that have another name in the record
LABEL_SETS = ("cifar10n", "cifar100n")  # data that come with several sets of noisy labels


@dataclass(frozen=True)
class Curves:
    """A chart over the epochs: what it shows and the keys it reads."""

    title: str
    text: str
    unit: Unit
    keys: Mapping[str, str]
    log: bool = False


@dataclass(frozen=True)
class Figure:
    """A chart, and the text beside it."""

    title: str
    text: str
    svg: Markup


@dataclass(frozen=True)
class Pair:
    """How often the class `true` is labelled as `given`, as estimated; `known` is the true share."""

    true: str
    given: str
    share: float
    known: float | None


CURVES = (
    Curves(
        "Accuracy",
        "Share of rows classified correctly. The validation rows select the epoch; the test rows do not.",
        "percent",
        {"valid_accuracy": "validation", "test_accuracy": "test"},
    ),
    Curves("Loss", "Mean training loss of each epoch.", "number", {"loss": "loss"}),
    Curves(
        "Diagonal of T",
        "Mean probability that a label in use (given or corrected) is right: as estimated during training, and the "
        "true value at the end of the epoch, if known.",
        "percent",
        {"t_diagonal": "estimated", "t_diagonal_true": "true"},
    ),
    Curves(
        "Label correction",
        "Share of noisy rows whose label was replaced, and share of labels in use that are right, if known.",
        "percent",
        {"corrected_fraction": "corrected", "label_accuracy": "labels right"},
    ),
    Curves("Learning rate", "Step size of the optimiser.", "number", {"learning_rate": "learning rate"}, log=True),
    Curves(
        "χ² of the estimated T",
        "Distance between the T estimated in an update and the true T; 0 means equal.",
        "number",
        {"chi2_mean": "mean of the epoch", "chi2_max": "largest"},
        log=True,
    ),
)


def write_report(record: Record, path: str | os.PathLike[str], gallery: Record | None = None) -> None:
    """Write the page of one run atomically; `gallery` is what `read_gallery` returns for its folder."""
    write_text(path, render(record, gallery))


def render(record: Record, gallery: Record | None = None) -> str:
    """The page of one run as HTML text.

    >>> "This run has not finished" in render({"schema": 1, "result": None})
    True
    """
    part = {name: mapping(record, name) for name in PARTS}
    part |= {name: known(part[name]) for name in ("evaluation", "references")}
    epochs = [_with_chi2(e) for e in record.get("epochs") or () if isinstance(e, Mapping)]
    transition = mapping(part["evaluation"], "transition")
    matrices = {key: matrix(transition.get(key)) for key in ("given", "true", "estimated")}
    size = max((len(m) for m in matrices.values() if m), default=0)
    names = _class_names(part["data"].get("class_names"), size)
    trust = trust_of(part["evaluation"], part["data"], names)
    shown = shown_gallery(gallery or {})
    error = standard_error(number(part["result"], "test_accuracy"), number(part["data"], "rows_test"))
    page = templates().get_template("page.html")
    return page.render(
        **part,
        method=method_name(part["run"]),
        title=_title(part["run"]),
        trained=part["run"].get("method") != AUDIT,
        noise=_noise(part["run"].get("noise"), own=part["run"].get("own") is not None),
        verdict=verdict_of(part, epochs, shown),
        standard_error=error,
        noise_found=_noise_found(shown, matrices["given"]),
        shows_others=shows_others(mapping(part["evaluation"], "evidence")),
        selected=_selected(epochs, part["result"]),
        figures=_figures(epochs, part["result"]),
        epochs=epochs,
        epoch_columns=_columns(epochs),
        trust=trust,
        gallery=shown,
        maps=_maps(matrices, names, trust),
        heat_key=heat_key(),
        num_classes=size,
        pairs=_pairs(matrices["given"], matrices["true"], names) if trust is None or not trust.pairs else [],
        command=_command(part["run"], mapping(part["environment"], "how"), mapping(part["evaluation"], "evidence")),
        notes=[str(note) for note in record.get("notes") or () if note is not None],
    )


def _title(run: Record) -> str:
    data = str(run.get("dataset") or "data without a name")
    data = Path(data).name or f"the folder {data}"  # `.` has no name
    return f"Audit of {data}" if run.get("method") == AUDIT else f"{method_name(run)} on {data}"


def _noise(text: Any, own: bool) -> str:
    """The noise in words: "40% symmetric noise" for symmetric:0.4. Nobody expects any to be added to their own data."""
    kind, _, rate = str(text or "").partition(":")
    if not text or kind == "none":
        return "no noise added" if text and not own else ""
    try:
        return f"{100 * float(rate):g}% {kind} noise"
    except ValueError:
        return f"noise {text}"


def _noise_found(gallery: Record, given: Matrix | None) -> float | None:
    """The mean p_wrong of the rows; without a gallery, 1 − the mean diagonal of T: all classes count the same."""
    if gallery:
        return float(gallery["expected_wrong"] / gallery["rows"])
    diagonal = [v for i, row in enumerate(given or ()) if (v := row[i]) is not None]
    return 1 - sum(diagonal) / len(diagonal) if given and len(diagonal) == len(given) else None


def _selected(epochs: Sequence[Record], result: Record) -> Record:
    """The selected epoch; if there is none, the last one."""
    best = number(result, "best_epoch")
    chosen = [e for e in epochs if best is not None and number(e, "epoch") == best]
    return (chosen or epochs or [{}])[-1]


def _with_chi2(epoch: Record) -> Record:
    values = [v for item in epoch.get("chi2") or () if (v := finite(item)) is not None]
    return {**epoch, "chi2_mean": sum(values) / len(values), "chi2_max": max(values)} if values else epoch


def _columns(epochs: Sequence[Record]) -> list[tuple[str, str, Unit]]:
    """Key, heading and unit of each value that at least one epoch has."""
    columns = [(key, f"{curves.title}: {name}", curves.unit) for curves in CURVES for key, name in curves.keys.items()]
    return [column for column in columns if any(number(e, column[0]) is not None for e in epochs)]


def _figures(epochs: Sequence[Record], result: Record) -> list[Figure]:
    if not epochs:
        return []
    numbers = [number(e, "epoch") or 0.0 for e in epochs]
    rising = all(a < b for a, b in pairwise(numbers))
    x = numbers if rising else [i + 1.0 for i in range(len(epochs))]
    marker = number(result, "best_epoch") if rising else None
    stages = [str(e.get("stage") or "") for e in epochs]
    figures = []
    for curves in CURVES:
        series = [Series(name, [number(e, key) for e in epochs]) for key, name in curves.keys.items()]
        label = f"{curves.title} by epoch"
        svg = line_chart(label, x, series, unit=curves.unit, log=curves.log, marker=marker, stages=stages)
        if svg:
            figures.append(Figure(curves.title, curves.text, svg))
    return figures


def _class_names(given: Any, size: int) -> list[str]:
    named = isinstance(given, Sequence) and not isinstance(given, str) and len(given) >= size
    return list(map(str, given if named else range(size)))


def _maps(matrices: Mapping[str, Matrix | None], names: Sequence[str], trust: Trust | None) -> list[Figure]:
    about = {
        "counted": ("T of the given labels, counted", "From the rows verified at random.", "given label"),
        "given": ("T of the given labels, estimated", "The model's estimate.", "given label"),
        "true": ("T of the given labels, true", "The true T, for comparison.", "given label"),
        "estimated": (
            "T̂ over the clean rows",
            "From the noisy head. It describes the labels in use, and approaches the diagonal as they are corrected.",
            "label in use",
        ),
    }
    found = {**matrices, "counted": trust.counted if trust else None}
    if found["counted"]:
        title, _, columns = about["given"]
        about["given"] = (title, "The model's estimate, adjusted to the counts. p_wrong is computed from it.", columns)
    return [
        Figure(title, text, heat_map(f"Heat map: {title}", shown, names[: len(shown)], columns=columns))
        for key, (title, text, columns) in about.items()
        if (shown := found[key])
    ]


def _pairs(given: Matrix | None, true: Matrix | None, names: Sequence[str]) -> list[Pair]:
    """The largest off-diagonal entries of T, largest first; ties in the order of the classes."""
    truth = true if true and given and len(true) == len(given) else None
    pairs = [
        Pair(names[i], names[j], share, truth[i][j] if truth else None)
        for i, row in enumerate(given or ())
        for j, share in enumerate(row)
        if i != j and share
    ]
    return sorted(pairs, key=lambda pair: -pair.share)[:TOP_PAIRS]


def _command(run: Record, how: Record, evidence: Record) -> str | None:
    """The command that repeats the run, whatever the defaults are; None for an audit or if no data set is named."""
    if not run.get("dataset") or run.get("method") == AUDIT:
        return None
    recipe = dict(mapping(run, "recipe"))
    flags = {key: run.get(key) for key in ("method", "noise", "seed", "clean")} | {"epochs": recipe.pop("epochs", None)}
    flags |= {"labels": how.get("label_set")} if run["dataset"] in LABEL_SETS else {}
    flags |= {OWN_FLAGS.get(key, key.replace("_", "-")): value for key, value in mapping(run, "own").items()}
    asked = number(mapping(evidence, "threshold"), "min_precision")  # may have been set by `fasten audit` after the run
    flags |= {"min-precision": asked} if evidence else {}
    words = ["fasten", "train", str(run["dataset"])]
    for key, value in flags.items():
        words += [] if value is None else [f"--{key}", str(value)]
    for key, value in {**mapping(run, "options"), **recipe}.items():
        words += ["--set", f"{key}={setting(value)}"]
    return shlex.join([*words, "--out", "rerun"])
