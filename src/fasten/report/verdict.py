"""The verdict on a run, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fasten.report.charts import percent
from fasten.report.names import paper_name
from fasten.report.values import (
    Record,
    count,
    counted,
    mapping,
    number,
    odd_sample,
    shows_others,
    some,
    standard_error,
    verb,
)

AUDIT = "audit"  # the method in records of audits of stored probabilities, in which nothing was trained


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run; `warn` means that the clean rows alone did better, or that its findings are doubtful."""

    kind: Literal["good", "even", "warn", "open"]
    sentence: str
    details: tuple[str, ...] = ()


def method_name(run: Record) -> str:
    """The method's name as papers write it."""
    return paper_name(str(run.get("method") or "A run"))


def gain(ours: float, alone: float, rows: float | None) -> int:
    """1 if the clean rows alone do worse by more than their standard error, −1 if they do better by more, otherwise 0.

    The difference must also exceed one row, since the standard error is 0 if all rows are right.

    >>> gain(0.8, 1.0, rows=5), gain(0.8, 0.9, rows=400)
    (0, -1)
    """
    error = max(standard_error(alone, rows) or 0.0, 1 / rows + 1e-9) if rows else 0.0
    return (ours - alone > error) - (alone - ours > error)


def verdict_of(part: Mapping[str, Record], epochs: Sequence[Record], gallery: Record) -> Verdict:
    """The verdict on a run; it warns if the validation rows or the test rows clearly favour the clean rows alone."""
    run, data, result = part["run"], part["data"], part["result"]
    if not result:
        return _unfinished(run, epochs)
    if run.get("method") == AUDIT and gallery:
        return _of_labels(gallery, part["evaluation"])
    clean = {} if run.get("method") == "clean-only" else mapping(part["references"], "clean_only")
    plain = number(mapping(part["references"], "noisy_only"), "test_accuracy")
    details: tuple[str, ...] = (
        () if plain is None else (f"Plain training on the noisy rows gives {percent(plain)} on the test rows.",)
    )
    if unchecked := number(data, "rows_test_as_given"):
        of = f"{count(unchecked)} of {_rows(number(data, 'rows_test'), 'test')}"
        details = (f"{of} {verb(unchecked, 'has', 'have')} no verified label: the given one counts as right.", *details)
    labels = (_labels(gallery, part["evaluation"]),) if gallery and number(data, "noise_rate") is None else ()
    details += labels
    known = {}
    for split, name in (("valid", "validation"), ("test", "test")):
        ours, alone = number(result, f"{split}_accuracy"), number(clean, f"{split}_accuracy")
        if ours is not None and alone is not None:
            known[name] = (ours, alone, number(data, f"rows_{split}"))
    for name, (ours, alone, rows) in known.items():
        if gain(ours, alone, rows) < 0:
            accuracies = f"{percent(alone)} against {percent(ours)} on {_rows(rows, name)}"
            sentence = (
                f"The clean rows alone do better: {accuracies}. Train on the clean rows alone, or check more labels."
            )
            return Verdict("warn", sentence, _other(known, name) + details)
    if "test" not in known:
        reached = _without_comparison(method_name(run), result, data)
        if labels and number(result, "test_accuracy") is None:  # without test rows, the verdict is about the labels
            return _of_labels(gallery, part["evaluation"], reached)
        return Verdict("even", reached, details)
    ours, alone, rows = known["test"]
    helps = gain(ours, alone, rows) > 0
    clean_rows = number(data, "rows_clean")
    give = verb(clean_rows or 0, "gives", "give")
    against = f"{_rows(clean_rows, 'clean')} alone {give} {percent(alone)}"
    word = "the noisy rows help" if helps else "no clear difference"
    sentence = f"{method_name(run)} reaches {percent(ours)} accuracy on the test rows; {against}: {word}."
    return Verdict("good" if helps else "even", sentence, details)


def _of_labels(gallery: Record, evaluation: Record, *more: str) -> Verdict:
    """The verdict on the labels alone.

    It warns if the rows verified at random are not a random sample, or if most labels count as wrong without such rows.
    """
    issues, rows = (number(gallery, key) or 0.0 for key in ("issues", "rows"))
    if issues <= rows / 2 or mapping(evaluation, "evidence"):
        kind: Literal["even", "warn"] = "warn" if odd_sample(mapping(evaluation, "evidence")) else "even"
        return Verdict(kind, _labels(gallery, evaluation), (*_corrections(evaluation), *more))
    sentence = f"{_counted_wrong(issues, rows)}, but no row was verified at random to show whether"
    details = (
        "The model may have learnt too little: look at some of these rows before you use its corrections.",
        *more,
    )
    return Verdict("warn", f"{sentence} they are.", details)


def _labels(gallery: Record, evaluation: Record) -> str:
    issues, rows, expected = (number(gallery, key) or 0.0 for key in ("issues", "rows", "expected_wrong"))
    if not shows_others(mapping(evaluation, "evidence")):
        look = f"{count(issues)} of {some(rows, 'label')} {verb(issues, 'looks', 'look')} wrong"
        return f"{look}; how many are wrong cannot be told until some rows are verified at random."
    return (
        f"{_counted_wrong(issues, rows)}; about {count(expected)} {verb(expected, 'is', 'are')} expected to be wrong."
    )


def _counted_wrong(issues: float, rows: float) -> str:
    return f"{count(issues)} of {some(rows, 'label')} {verb(issues, 'counts', 'count')} as wrong"


def _corrections(evaluation: Record) -> tuple[str, ...]:
    precision = counted(mapping(mapping(mapping(evaluation, "evidence"), "corrections"), "precision"))
    if precision is None:
        return ()
    k, n, low, high = precision
    right = f"{count(k)} {verb(k, 'is', 'are')} right"
    share = f"the 95% interval for all corrections is {percent(low)} to {percent(high)}"
    if odd_sample(mapping(evaluation, "evidence")):
        share = "these rows are not like the others, so this says nothing about other corrections"
    return (f"Of {some(n, 'correction')} that can be judged by held-back verdicts, {right}; {share}.",)


def _rows(rows: float | None, name: str) -> str:
    return f"the {name} rows" if rows is None else f"the {some(rows, f'{name} row')}"


def _other(known: Mapping[str, tuple[float, float, float | None]], used: str) -> tuple[str, ...]:
    return tuple(
        f"On {_rows(rows, name)}: {percent(alone)} against {percent(ours)}."
        for name, (ours, alone, rows) in known.items()
        if name != used
    )


def _without_comparison(method: str, result: Record, data: Record) -> str:
    if (test := number(result, "test_accuracy")) is not None:
        return f"{method} reaches {percent(test)} accuracy on the test rows."
    if (valid := number(result, "valid_accuracy")) is not None:
        rows = _rows(number(data, "rows_valid"), "validation")
        return f"{method} reaches {percent(valid)} accuracy on {rows}; its test accuracy is not known."
    return f"{method} has finished; its accuracy is not known."


def _unfinished(run: Record, epochs: Sequence[Record]) -> Verdict:
    total = number(mapping(run, "recipe"), "epochs")
    done = f"{len(epochs)} of {count(total)}" if total and len(epochs) <= total else str(len(epochs))
    best = max((v for e in epochs if (v := number(e, "valid_accuracy")) is not None), default=None)
    details = [f"Epochs done: {done}."] if epochs else []
    details += [] if best is None else [f"Best validation accuracy so far: {percent(best)}."]
    return Verdict("open", "This run has not finished.", tuple(details))
