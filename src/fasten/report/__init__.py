"""One run's record as one HTML page that opens anywhere: no network, no other file; same record, same bytes.

The record is read as a plain mapping in which any value may be missing or null: such a value is shown as "not known",
and a section without any value is left out. Sentences that need no arithmetic stand in page.html.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fasten.files import write_text
from fasten.report.charts import UNKNOWN, Matrix, Series, Unit, decimal, heat_key, heat_map, line_chart, percent

__all__ = ["render", "write_report"]

Record = Mapping[str, Any]
PARTS = ("run", "environment", "data", "evaluation", "references", "result")
TOP_PAIRS = 10
LABEL_SETS = ("cifar10n", "cifar100n")  # data that come with several sets of noisy labels
METHOD_NAMES = (
    *("AugDesc", "CausalNL", "Clean-only", "Cross-entropy", "Deep kNN", "DivideMix", "FasTEN", "FasTEN no LC"),
    *("FasTEN oracle", "Forward", "GLC", "GLC oracle", "IF", "L2RW", "MLaC", "MLoC", "MSLC", "MW-Net"),
    *("Naive oversampling", "T-Revision", "VolMinNet"),
)


@dataclass(frozen=True)
class Verdict:
    """What the run came to, in a sentence; the kind is `warn` where the clean rows alone did better."""

    kind: Literal["good", "even", "warn", "open"]
    sentence: str
    details: tuple[str, ...] = ()


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
    """Two classes of which the first is labelled as the second, and how often; `known` is the true share."""

    true: str
    given: str
    share: float
    known: float | None


CURVES = (
    Curves(
        "Accuracy",
        "Share of rows classified rightly. The validation rows select the epoch; the test rows only report.",
        "percent",
        {"valid_accuracy": "validation", "test_accuracy": "test"},
    ),
    Curves("Loss", "Mean training loss of each epoch.", "number", {"loss": "loss"}),
    Curves(
        "Diagonal of T",
        "Mean chance that a label in use is right: as estimated from the clean rows while training, and in truth.",
        "percent",
        {"t_diagonal": "estimated", "t_diagonal_true": "true"},
    ),
    Curves(
        "Label correction",
        "Share of noisy rows whose label was replaced, and share of labels in use that are right.",
        "percent",
        {"corrected_fraction": "corrected", "label_accuracy": "labels right"},
    ),
    Curves("Learning rate", "Step size of the optimiser.", "number", {"learning_rate": "learning rate"}, log=True),
    Curves(
        "χ² of the estimated T",
        "Distance of the T estimated in an update to the true one; 0 is equal.",
        "number",
        {"chi2_mean": "mean of the epoch", "chi2_max": "largest"},
        log=True,
    ),
)


def write_report(record: Record, path: str | os.PathLike[str]) -> None:
    """Write the page of one run, in one step."""
    write_text(path, render(record))


def render(record: Record, *, log_note: str | None = None) -> str:
    """The page of one run as HTML text; log_note is shown with the notes of the run.

    >>> "This run has not finished" in render({"schema": 1, "result": None})
    True
    """
    part = {name: _mapping(record, name) for name in PARTS}
    part |= {name: _known(part[name]) for name in ("evaluation", "references")}
    epochs = [_with_chi2(e) for e in record.get("epochs") or () if isinstance(e, Mapping)]
    transition = _mapping(part["evaluation"], "transition")
    matrices = {key: _matrix(transition.get(key)) for key in ("given", "true", "estimated")}
    size = max((len(m) for m in matrices.values() if m), default=0)
    names = _class_names(part["data"].get("class_names"), size)
    notes = [str(note) for note in record.get("notes") or () if note is not None]
    error = _standard_error(_number(part["result"], "test_accuracy"), _number(part["data"], "rows_test"))
    template = _environment().get_template("page.html")
    return template.render(
        **part,
        method=_method(part["run"]),
        dataset=Path(str(part["run"].get("dataset") or "data without a name")).name,
        noise=_noise(part["run"].get("noise")),
        verdict=_verdict(part, epochs),
        standard_error=error,
        noise_found=_noise_found(matrices["given"]),
        selected=_selected(epochs, part["result"]),
        figures=_figures(epochs, part["result"]),
        epochs=epochs,
        epoch_columns=_columns(epochs),
        maps=_maps(matrices, names),
        heat_key=heat_key(),
        num_classes=size,
        pairs=_pairs(matrices["given"], matrices["true"], names),
        command=_command(part["run"], _mapping(part["environment"], "how")),
        notes=notes if log_note is None else [*notes, log_note],
    )


@cache
def _environment() -> Environment:
    loader = PackageLoader("fasten", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name, form in (("percent", percent), ("decimal", decimal), ("count", _count), ("duration", _duration)):
        environment.filters[name] = _or_unknown(form)
    environment.filters["text"] = _text
    return environment


def _or_unknown(form: Callable[[float], str]) -> Callable[[Any], str]:
    def show(value: Any) -> str:
        known = _finite(value)
        return UNKNOWN if known is None else form(known)

    return show


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _text(value: Any) -> str:
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _mapping(record: Record, key: str) -> Record:
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def _known(record: Record) -> Record:
    """Without the entries that hold nothing but null."""
    return {key: value for key, value in record.items() if _has_value(value)}


def _has_value(value: Any) -> bool:
    return any(map(_has_value, value.values())) if isinstance(value, Mapping) else value is not None


def _finite(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None


def _number(record: Record, key: str) -> float | None:
    return _finite(record.get(key))


def _method(run: Record) -> str:
    """The method's name as it is written in papers, which the command line has in small letters and with hyphens."""
    name = str(run.get("method") or "A run")
    return {known.lower().replace(" ", "-"): known for known in METHOD_NAMES}.get(name, name)


def _noise(text: Any) -> str:
    """The noise in words: "40% symmetric noise" for symmetric:0.4."""
    kind, _, rate = str(text or "").partition(":")
    if not text or kind == "none":
        return "no noise added" if text else ""
    try:
        return f"{100 * float(rate):g}% {kind} noise"
    except ValueError:
        return f"noise {text}"


def _standard_error(share: float | None, rows: float | None) -> float | None:
    """That of a share counted on so many rows."""
    return math.sqrt(max(share * (1 - share), 0.0) / rows) if share is not None and rows else None


def _gain(ours: float, alone: float, rows: float | None) -> int:
    """Whether the clean rows alone do worse, 1, better, −1, or neither by more than their standard error, 0."""
    error = _standard_error(alone, rows) or 0.0
    return (ours - alone > error) - (alone - ours > error)


def _verdict(part: Mapping[str, Record], epochs: Sequence[Record]) -> Verdict:
    """The clean rows alone are better where the validation rows, or lacking them the test rows, clearly say so."""
    run, data, result = part["run"], part["data"], part["result"]
    if not result:
        return _unfinished(run, epochs)
    clean = {} if run.get("method") == "clean-only" else _mapping(part["references"], "clean_only")
    plain = _number(_mapping(part["references"], "noisy_only"), "test_accuracy")
    details = () if plain is None else (f"Plain training on the noisy rows gives {percent(plain)} on the test rows.",)
    known = {}
    for split, name in (("valid", "validation"), ("test", "test")):
        ours, alone = _number(result, f"{split}_accuracy"), _number(clean, f"{split}_accuracy")
        if ours is not None and alone is not None:
            known[name] = (ours, alone, _number(data, f"rows_{split}"))
    for name, (ours, alone, rows) in known.items():
        if _gain(ours, alone, rows) < 0:
            accuracies = f"{percent(alone)} against {percent(ours)} on {_rows(rows, name)}"
            sentence = f"The clean rows alone do better: {accuracies}; use them alone or check more labels."
            return Verdict("warn", sentence, _other(known, name) + details)
    if "test" not in known:
        return Verdict("even", _without_comparison(_method(run), result), details)
    ours, alone, rows = known["test"]
    helps = _gain(ours, alone, rows) > 0
    against = f"{_rows(_number(data, 'rows_clean'), 'clean')} alone give {percent(alone)}"
    word = "the noisy rows help" if helps else "no clear difference"
    sentence = f"{_method(run)} reaches {percent(ours)} on the test rows; {against}: {word}."
    return Verdict("good" if helps else "even", sentence, details)


def _rows(count: float | None, name: str) -> str:
    return f"the {name} rows" if count is None else f"the {_count(count)} {name} rows"


def _other(known: Mapping[str, tuple[float, float, float | None]], used: str) -> tuple[str, ...]:
    return tuple(
        f"On {_rows(rows, name)}: {percent(alone)} against {percent(ours)}."
        for name, (ours, alone, rows) in known.items()
        if name != used
    )


def _without_comparison(method: str, result: Record) -> str:
    if (test := _number(result, "test_accuracy")) is not None:
        return f"{method} reaches {percent(test)} on the test rows."
    if (valid := _number(result, "valid_accuracy")) is not None:
        return f"{method} reaches {percent(valid)} on the validation rows; its test accuracy is not known."
    return f"{method} has finished; its accuracy is not known."


def _unfinished(run: Record, epochs: Sequence[Record]) -> Verdict:
    total = _number(_mapping(run, "recipe"), "epochs")
    done = f"{len(epochs)} of {_count(total)}" if total else str(len(epochs))
    best = max((v for e in epochs if (v := _number(e, "valid_accuracy")) is not None), default=None)
    details = [f"Epochs done: {done}."] if epochs else []
    details += [] if best is None else [f"Best validation accuracy so far: {percent(best)}."]
    return Verdict("open", "This run has not finished.", tuple(details))


def _noise_found(given: Matrix | None) -> float | None:
    """1 − the mean diagonal of the T of the given labels: each class counts the same."""
    diagonal = [v for i, row in enumerate(given or ()) if (v := row[i]) is not None]
    return 1 - sum(diagonal) / len(diagonal) if given and len(diagonal) == len(given) else None


def _selected(epochs: Sequence[Record], result: Record) -> Record:
    """The selected epoch, else the last one."""
    best = _number(result, "best_epoch")
    chosen = [e for e in epochs if best is not None and _number(e, "epoch") == best]
    return (chosen or epochs or [{}])[-1]


def _with_chi2(epoch: Record) -> Record:
    values = [v for item in epoch.get("chi2") or () if (v := _finite(item)) is not None]
    return {**epoch, "chi2_mean": sum(values) / len(values), "chi2_max": max(values)} if values else epoch


def _columns(epochs: Sequence[Record]) -> list[tuple[str, str, Unit]]:
    """Key, heading and unit of the values that some epoch knows."""
    columns = [(key, f"{curves.title}: {name}", curves.unit) for curves in CURVES for key, name in curves.keys.items()]
    return [column for column in columns if any(_number(e, column[0]) is not None for e in epochs)]


def _figures(epochs: Sequence[Record], result: Record) -> list[Figure]:
    if not epochs:
        return []
    numbers = [_number(e, "epoch") or 0.0 for e in epochs]
    rising = all(a < b for a, b in pairwise(numbers))
    x = numbers if rising else [i + 1.0 for i in range(len(epochs))]
    marker = _number(result, "best_epoch") if rising else None
    stages = [str(e.get("stage") or "") for e in epochs]
    figures = []
    for curves in CURVES:
        series = [Series(name, [_number(e, key) for e in epochs]) for key, name in curves.keys.items()]
        label = f"{curves.title} by epoch"
        svg = line_chart(label, x, series, unit=curves.unit, log=curves.log, marker=marker, stages=stages)
        if svg:
            figures.append(Figure(curves.title, curves.text, svg))
    return figures


def _matrix(value: Any) -> Matrix | None:
    """A square matrix with None for what is not known; None where the value is not one."""
    if not isinstance(value, Sequence) or not value or isinstance(value, str):
        return None
    square = all(isinstance(row, Sequence) and len(row) == len(value) for row in value)
    matrix = [[_finite(entry) for entry in row] for row in value] if square else []
    return matrix if any(entry is not None for row in matrix for entry in row) else None


def _class_names(given: Any, size: int) -> list[str]:
    known = isinstance(given, Sequence) and not isinstance(given, str) and len(given) >= size
    return [str(name) for name in given] if known else [str(i) for i in range(size)]


def _maps(matrices: Mapping[str, Matrix | None], names: Sequence[str]) -> list[Figure]:
    about = {
        "given": ("T of the given labels, estimated", "As the model sees the labels that came.", "given label"),
        "true": ("T of the given labels, true", "The same, in truth.", "given label"),
        "estimated": (
            "T̂ over the clean rows",
            "From training: it describes the labels in use, and nears the diagonal as they are corrected.",
            "label in use",
        ),
    }
    return [
        Figure(title, text, heat_map(f"Heat map: {title}", matrix, names[: len(matrix)], columns=columns))
        for key, (title, text, columns) in about.items()
        if (matrix := matrices[key])
    ]


def _pairs(given: Matrix | None, true: Matrix | None, names: Sequence[str]) -> list[Pair]:
    """The largest entries of T off its diagonal, largest first; ties in the order of the classes."""
    known = true if true and given and len(true) == len(given) else None
    pairs = [
        Pair(names[i], names[j], share, known[i][j] if known else None)
        for i, row in enumerate(given or ())
        for j, share in enumerate(row)
        if i != j and share
    ]
    return sorted(pairs, key=lambda pair: -pair.share)[:TOP_PAIRS]


def _command(run: Record, how: Record) -> str | None:
    """The command line that runs it again, whatever the defaults; None where the record does not name its data."""
    if not run.get("dataset"):
        return None
    recipe = dict(_mapping(run, "recipe"))
    flags = {key: run.get(key) for key in ("method", "noise", "seed")} | {"epochs": recipe.pop("epochs", None)}
    flags |= {"labels": how.get("label_set")} if run["dataset"] in LABEL_SETS else {}
    words = ["fasten", "train", str(run["dataset"])]
    for key, value in flags.items():
        words += [] if value is None else [f"--{key}", str(value)]
    for key, value in {**_mapping(run, "options"), **recipe}.items():
        words += ["--set", f"{key}={_setting(value)}"]
    return shlex.join([*words, "--out", "rerun"])


def _setting(value: Any) -> str:
    """A value as the command line reads it."""
    if isinstance(value, list | tuple):
        return ",".join(map(_setting, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
