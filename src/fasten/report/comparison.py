"""The summary of a comparison as text, CSV, Markdown and an HTML page; the same summary gives the same bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from fasten.report.charts import Dot, dot_plot, percent
from fasten.report.values import setting, templates

Summary = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]

ROWS = {"test": "test", "valid": "validation"}
COLUMNS = ("method", "mean", "ci95", "n", "train_seconds", "time_ratio", "peak_memory_bytes")
ABOUT_INTERVALS = "± is half the width of the 95% interval of the mean over seeds (Student's t)."
ABOUT_DIFFERENCES = (
    "Differences are in percentage points, paired by seed. p is from a paired t-test. p (Holm) is corrected for the "
    "number of comparisons; the verdict compares it with 0.05."
)


def method_table(summary: Summary) -> Table:
    """A line for each method; a column for memory if it was measured, on a GPU."""
    measured = any(line["peak_memory_bytes"] is not None for line in summary["methods"])
    header = ["method", f"{ROWS[summary['accuracy']]} accuracy", "time", *(["memory"] if measured else []), "seeds"]
    rows = []
    for line in summary["methods"]:
        memory, ratio = line["peak_memory_bytes"], line["time_ratio"]
        shown = [_share(line["mean"], line["ci95"]), "–" if ratio is None else f"{ratio:.2f}×"]
        if measured:
            shown.append("–" if memory is None else f"{memory / 2**30:.2f} GiB")
        failed = f", {len(line['failed'])} failed" if line["failed"] else ""
        rows.append([line["method"], *shown, f"{line['n']}{failed}"])
    return header, rows


def difference_table(summary: Summary) -> Table:
    """The first method against each of the others."""
    header = [f"{summary['comparison']['reference']} against", "difference", "p", "p (Holm)", "verdict"]
    rows = [
        [d["against"], _points(d["mean"], d["ci95"]), _p(d["p"]), _p(d["p_holm"]), d["verdict"]]
        for d in summary["differences"]
    ]
    return header, rows


def headline(summary: Summary) -> str:
    """What was compared, in a line.

    >>> what = {"dataset": "digits", "noise": "none", "seeds": [0, 1], "epochs": None, "settings": {}, "options": {}}
    >>> headline({"comparison": what})
    'digits, noise none, seeds 0, 1'
    """
    what = summary["comparison"]
    settings = [f"{key}={setting(value)}" for key, value in what["settings"].items()]
    settings += [f"{m}.{key}={setting(v)}" for m, own in what["options"].items() for key, v in own.items()]
    epochs = [] if what["epochs"] is None else [f"{what['epochs']} epoch{'s' if what['epochs'] > 1 else ''}"]
    seeds = f"seed{'s' if len(what['seeds']) > 1 else ''} {', '.join(map(str, what['seeds']))}"
    return ", ".join([what["dataset"], f"noise {what['noise']}", *epochs, *settings, seeds])


def csv_text(summary: Summary) -> str:
    """The numbers of each method; a field is empty if its number is not known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, "failed"])
    for line in summary["methods"]:
        writer.writerow([*("" if line[key] is None else line[key] for key in COLUMNS), len(line["failed"])])
    return text.getvalue()


def markdown(summary: Summary) -> str:
    """The tables for a README or an issue."""
    parts = [f"Methods compared on {headline(summary)}.", _markdown(*method_table(summary)), ABOUT_INTERVALS]
    if summary["differences"]:
        parts += [_markdown(*difference_table(summary)), ABOUT_DIFFERENCES]
    parts += ["\n".join(f"- {note}" for note in summary["notes"])] if summary["notes"] else []
    return "\n\n".join(parts) + "\n"


def render(summary: Summary) -> str:
    """The page as HTML text; it needs no network and no other file, and links to the reports of the runs beside it."""
    by = ROWS[summary["accuracy"]]
    dots = [Dot(m["method"], m["mean"], m["ci95"], list(m["accuracies"].values())) for m in summary["methods"]]
    page = templates().get_template("comparison.html")
    return page.render(
        summary=summary,
        headline=headline(summary),
        sentence=_sentence(summary),
        by=by,
        methods=method_table(summary),
        differences=difference_table(summary),
        about_intervals=ABOUT_INTERVALS,
        about_differences=ABOUT_DIFFERENCES,
        plot=dot_plot(f"{by} accuracy of each method", dots),
        runs=[_run(run, summary["accuracy"]) for run in summary["runs"]],
    )


def _sentence(summary: Summary) -> str:
    """All verdicts in one sentence."""
    first, rows = summary["comparison"]["reference"], summary["differences"]
    line = summary["methods"][0]
    if line["mean"] is None:
        return f"The accuracy of {first} is not known yet."
    parts = [f"{first} reaches {_share(line['mean'], line['ci95'])} accuracy on the {ROWS[summary['accuracy']]} rows"]
    for word, text in (("better", "better than"), ("worse", "worse than"), ("within", "no clear difference from")):
        names = [row["against"] for row in rows if row["verdict"].startswith(word)]
        parts += [f"{text} {', '.join(names)}"] if names else []
    return "; ".join(parts) + "."


def _run(run: Mapping[str, Any], by: str) -> dict[str, Any]:
    accuracy, seconds = run[f"{by}_accuracy"], run["train_seconds"]
    return {
        **run,
        "accuracy": "–" if accuracy is None else percent(accuracy),
        "time": "–" if seconds is None else f"{seconds:.1f} s",
    }


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _share(mean: float | None, half: float | None, form: str = ".2f", unit: str = "%") -> str:
    if mean is None:
        return "–"
    return f"{100 * mean:{form}}" + ("" if half is None else f" ± {100 * half:.2f}") + unit


def _points(mean: float | None, half: float | None) -> str:
    return _share(mean, half, "+.2f", unit="")


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
