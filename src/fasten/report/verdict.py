"""What a run came to, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fasten.report.charts import percent
from fasten.report.names import paper_name
from fasten.report.values import Record, count, counted, mapping, number, odd_sample, some, standard_error, verb

AUDIT = "audit"  # the method of a record of stored probabilities, which trained nothing


@dataclass(frozen=True)
class Verdict:
    """What the run came to, in a sentence; `warn`: clean rows alone did better, or what it found is not believed."""

    kind: Literal["good", "even", "warn", "open"]
    sentence: str
    details: tuple[str, ...] = ()


def method_name(run: Record) -> str:
    """As papers write it."""
    return paper_name(str(run.get("method") or "A run"))


def gain(ours: float, alone: float, rows: float | None) -> int:
    """Whether the clean rows alone do worse, 1, better, −1, or neither by more than their standard error, 0.

    Nor is a single row enough: where all are right there is no standard error.

    >>> gain(0.8, 1.0, rows=5), gain(0.8, 0.9, rows=400)
    (0, -1)
    """
    error = max(standard_error(alone, rows) or 0.0, 1 / rows + 1e-9) if rows else 0.0
    return (ours - alone > error) - (alone - ours > error)


def verdict_of(part: Mapping[str, Record], epochs: Sequence[Record], gallery: Record) -> Verdict:
    """The clean rows alone are better where the validation rows, or else the test rows, clearly say so."""
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
        details = (f"{of} {verb(unchecked, 'has', 'have')} no verified label: as given it counts as right.", *details)
    labels = (_labels(gallery),) if gallery and number(data, "noise_rate") is None else ()
    details += labels
    known = {}
    for split, name in (("valid", "validation"), ("test", "test")):
        ours, alone = number(result, f"{split}_accuracy"), number(clean, f"{split}_accuracy")
        if ours is not None and alone is not None:
            known[name] = (ours, alone, number(data, f"rows_{split}"))
    for name, (ours, alone, rows) in known.items():
        if gain(ours, alone, rows) < 0:
            accuracies = f"{percent(alone)} against {percent(ours)} on {_rows(rows, name)}"
            sentence = f"The clean rows alone do better: {accuracies}; use them alone or check more labels."
            return Verdict("warn", sentence, _other(known, name) + details)
    if "test" not in known:
        reached = _without_comparison(method_name(run), result, data)
        if labels and number(result, "test_accuracy") is None:  # without test rows, the labels are what it is about
            return _of_labels(gallery, part["evaluation"], reached)
        return Verdict("even", reached, details)
    ours, alone, rows = known["test"]
    helps = gain(ours, alone, rows) > 0
    clean_rows = number(data, "rows_clean")
    give = verb(clean_rows or 0, "gives", "give")
    against = f"{_rows(clean_rows, 'clean')} alone {give} {percent(alone)}"
    word = "the noisy rows help" if helps else "no clear difference"
    sentence = f"{method_name(run)} reaches {percent(ours)} on the test rows; {against}: {word}."
    return Verdict("good" if helps else "even", sentence, details)


def _of_labels(gallery: Record, evaluation: Record, *more: str) -> Verdict:
    """Where the labels are all that there is to say: most of them wrong, on a model's word alone, is not believed."""
    issues, rows = (number(gallery, key) or 0.0 for key in ("issues", "rows"))
    if issues <= rows / 2 or mapping(evaluation, "evidence"):
        kind: Literal["even", "warn"] = "warn" if odd_sample(mapping(evaluation, "evidence")) else "even"
        return Verdict(kind, _labels(gallery), (*_corrections(evaluation), *more))
    sentence = f"{_counted_wrong(issues, rows)}, and no row verified at random says whether"
    details = ("The model may have learnt too little: look at some before you use its corrections.", *more)
    return Verdict("warn", f"{sentence} they are.", details)


def _labels(gallery: Record) -> str:
    issues, rows, expected = (number(gallery, key) or 0.0 for key in ("issues", "rows", "expected_wrong"))
    return f"{_counted_wrong(issues, rows)}; about {count(expected)} {verb(expected, 'is', 'are')} expected to be."


def _counted_wrong(issues: float, rows: float) -> str:
    return f"{count(issues)} of {some(rows, 'label')} {verb(issues, 'counts', 'count')} as wrong"


def _corrections(evaluation: Record) -> tuple[str, ...]:
    precision = counted(mapping(mapping(mapping(evaluation, "evidence"), "corrections"), "precision"))
    if precision is None:
        return ()
    k, n, low, high = precision
    right, share = f"{count(k)} {verb(k, 'is', 'are')} right", f"{percent(low)} to {percent(high)} of all"
    if odd_sample(mapping(evaluation, "evidence")):
        share = "they are not like the other rows, so this says nothing of all"
    return (f"Of {some(n, 'correction')} that held-back verdicts can judge {right}: {share}.",)


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
        return f"{method} reaches {percent(test)} on the test rows."
    if (valid := number(result, "valid_accuracy")) is not None:
        rows = _rows(number(data, "rows_valid"), "validation")
        return f"{method} reaches {percent(valid)} on {rows}; its test accuracy is not known."
    return f"{method} has finished; its accuracy is not known."


def _unfinished(run: Record, epochs: Sequence[Record]) -> Verdict:
    total = number(mapping(run, "recipe"), "epochs")
    done = f"{len(epochs)} of {count(total)}" if total and len(epochs) <= total else str(len(epochs))
    best = max((v for e in epochs if (v := number(e, "valid_accuracy")) is not None), default=None)
    details = [f"Epochs done: {done}."] if epochs else []
    details += [] if best is None else [f"Best validation accuracy so far: {percent(best)}."]
    return Verdict("open", "This run has not finished.", tuple(details))
