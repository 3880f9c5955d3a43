"""Make docs/results.md, its figures and the README's tables from the records in this folder and the experiments.

Run `python results/make_page.py`. The text of the page is in page.md; `<!-- NAME -->` in it is replaced by what `parts`
returns under that name.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from fasten.experiments import EXPERIMENTS, PAPER
from fasten.files import write_bytes, write_text
from fasten.grid.speed import measured
from fasten.grid.wanted import settings_of
from fasten.records import Record, Run, read_record
from fasten.report.names import paper_name
from fasten.report.outcomes import base
from fasten.report.paper import Outcome, counts, drawing, markdown, outcome_of
from fasten.report.paper_tables import entry

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
README = HERE.parent / "README.md"
MARKER = re.compile(r"<!-- (.+?) -->")
BLOCK = re.compile(r"(?<=<!-- made by results/make_page.py -->\n).*?(?=<!-- until here -->)", re.DOTALL)
SHOWN = (
    *(("digits", "digits", f"symmetric:{rate}") for rate in (0.4, 0.8)),
    *(("cifar10", "CIFAR-10", noise) for noise in ("symmetric:0.8", "asymmetric:0.4")),
)
PANEL = "CIFAR-10, symmetric 80%"
STATUSES = ("reproduced", "better", "below", "not in the paper", "quoted", "not run")
UNPLANNED = ("digits",)  # data sets with a section of their own


def records(dataset: str = "*") -> list[Record]:
    """All records of a data set, or of all data sets."""
    return [read_record(path) for path in sorted(HERE.glob(f"{dataset}/*.json"))]


@cache
def outcomes() -> tuple[Outcome, ...]:
    """Every table and figure of the paper with the results from our records."""
    found, bench = records(), measured().bench()
    timed = bench["run_ratios"], bench["device"]
    return tuple(outcome_of(make(PAPER), found, (), *timed) for make in EXPERIMENTS.values())


def page() -> str:
    """The text of docs/results.md."""
    words = (HERE / "page.md").read_text(encoding="utf-8")
    made = parts()
    placed = set(MARKER.findall(words))
    if unknown := placed - made.keys():
        raise ValueError(f"page.md has <!-- {min(unknown)} -->, which is not one of {', '.join(made)}")
    rest = [made[o.experiment.name] for o in outcomes() if o.known and o.experiment.name not in placed]
    made["EXPERIMENTS"] = "\n\n".join(rest)
    return MARKER.sub(lambda match: made[match[1]], words)


def write(docs: Path) -> None:
    """Write the page and the drawings that it shows."""
    for outcome in outcomes():
        if shows_drawing(outcome):
            write_bytes(docs / f"{outcome.experiment.name}.svg", drawing(outcome, "svg"))
    write_text(docs / "results.md", page())


def readme() -> str:
    """The README with its tables regenerated."""
    time = textwrap.fill(f"FasTEN with a GPU to itself: {timing()}", 120)
    made = f"\n{gains()}\n\n{methods()}\n\n{time}\n\n"
    return BLOCK.sub(lambda _: made, README.read_text(encoding="utf-8"))


def gains() -> str:
    """FasTEN with either T̂, DivideMix with clean rows, and clean rows only, trained as long as FasTEN; best in bold.

    A record of clean rows only holds for every noise, since these rows have none. If there is no such record, as on
    digits, the run's own reference, which is as long, is used.
    """
    head = ("data", "noise", "FasTEN", "FasTEN, T̂ of noisy rows", "DivideMix with clean rows", "clean rows only")
    lines: list[Sequence[str]] = [head, ("---",) * len(head)]
    for dataset, name, noise in SHOWN:
        plain = [r for r in records(dataset) if usual(r["run"])]
        some, mixed = ([r for r in plain if _is(r, method, noise)] for method in ("fasten", "dividemix-clean"))
        other = [r for r in records(dataset) if noisy_t(r["run"]) and _is(r, "fasten", noise)]
        alone = [r["result"] for r in plain if r["run"]["method"] == "clean-only"]
        alone = alone or [r["references"]["clean_only"] for r in some]
        sides = [[record["result"] for record in found] for found in (some, other, mixed)] + [alone]
        means = [fmean(result["test_accuracy"] for result in side) if side else 0.0 for side in sides]
        shares = [f"**{mean:.1%}**" if mean == max(means) else f"{mean:.1%}" for mean in means]
        told = [f"{share} ({len(side)})" if side else "not run" for share, side in zip(shares, sides, strict=True)]
        kind, _, rate = noise.partition(":")
        lines.append((name, f"{kind} {float(rate):.0%}", *told))
    return table(lines)


def _is(record: Record, method: str, noise: str) -> bool:
    return (record["run"]["method"], record["run"]["noise"]) == (method, noise)


def usual(run: Mapping[str, Any]) -> bool:
    """Whether the run has the options, the averaging and the clean rows of a plain `fasten train`."""
    return not run["options"] and not run["recipe"].get("average") and run.get("clean") is None


def noisy_t(run: Mapping[str, Any]) -> bool:
    """Whether T̂ is estimated on the noisy rows and everything else is as usual."""
    return bool(run["options"] == {"estimate": "noisy"} and usual({**run, "options": {}}))


def methods() -> str:
    """All methods that the paper compares, at its heaviest noise on CIFAR-10, best first."""
    accuracies, ratios = (
        next(outcome.results for outcome in outcomes() if outcome.experiment.name == name)
        for name in ("time-accuracy", "training-time")
    )
    panel = [result for result in accuracies if result.cell.panel == PANEL and not result.cell.bench]
    times = {result.cell.row: result for result in ratios if result.cell.bench}  # the ratios as the paper prints them
    lines: list[Sequence[str]] = [(PANEL, "test accuracy (%)", "paper", "time of a run", "paper"), ("---",) * 5]
    for found in sorted(panel, key=lambda result: -(result.mean or 0)):
        told = [entry(result) for result in (found, times[found.cell.row])]
        lines.append((paper_name(found.cell.row), *(words for ours, paper, _ in told for words in (ours, paper))))
    return table(lines)


def shows_drawing(outcome: Outcome) -> bool:
    """Whether the page shows its drawing."""
    return outcome.known and outcome.experiment.kind == "figure"


def parts() -> dict[str, str]:
    """What page.md may refer to: each table or figure by its name, and the rest in capitals."""
    made = {outcome.experiment.name: section(outcome) for outcome in outcomes()}
    return made | {
        "SUMMARY": summary(),
        "EXPERIMENTS": "",  # filled in by `page`: those that page.md does not name
        "NOT RUN": ", ".join(f"`{o.experiment.name}`" for o in outcomes() if not o.known) or "none",
        "SEEDS": seeds(),
        "PROTOCOL": protocol(),
        "BENCH DEVICE": measured().device,
        "TIMING": timing(),
        "DIAGONALS": diagonals(),
        "OTHERS": others(),
        "CLEANLAB": wrong_labels_found(),
        "CLEANLAB TIME": ", ".join(sorted({f"{run['time']['share']:.2f}" for run in against_cleanlab()})),
        "DIGITS": digits(),
        "DIGITS CLEAN": digits_rows("clean"),
        "DIGITS VALID": digits_rows("valid"),
        "DIGITS GAPS": digits_gaps(),
    }


def section(outcome: Outcome) -> str:
    """One table or figure."""
    name = outcome.experiment.name
    text = markdown(outcome, f"{name}.svg" if shows_drawing(outcome) else "").rstrip()
    return f'<a id="{name}"></a>\n\n{text}\n\nMade by `fasten reproduce {name}`.'


def summary() -> str:
    """The number of cells with each status, table by table."""
    lines: list[Sequence[str]] = [("table or figure", *STATUSES), ("---",) * (1 + len(STATUSES))]
    for outcome in outcomes():
        if outcome.known:
            name, found = outcome.experiment.name, counts(outcome)
            lines.append((f"[{name}](#{name})", *(str(found.get(word, "–")) for word in STATUSES)))
    return table(lines)


def table(lines: Sequence[Sequence[str]]) -> str:
    """These lines as a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main_records() -> list[Record]:
    """The records of FasTEN on CIFAR-10 that belong to the paper's main table."""
    (main,) = [outcome.experiment for outcome in outcomes() if outcome.experiment.name == "table1"]
    wanted = {base(run) for run in main.runs() if run.method == "fasten"}
    return [record for record in records("cifar10") if base(Run.from_json(record["run"])) in wanted]


def protocol() -> str:
    """The network, rows and epochs of the paper's main table."""
    record = main_records()[0]
    rows = {name: f"{record['data'][f'rows_{name}']:,}" for name in ("noisy", "clean", "valid", "test")}
    listed = "{noisy} noisy, {clean} clean, {valid} validation and {test} test rows".format(**rows)
    return f"{record['run']['recipe']['net']}, {listed}, {record['run']['recipe']['epochs']} epochs"


def seeds() -> str:
    """How many seeds our means are taken over."""
    found = {len(r.values) for o in outcomes() for r in o.results if r.values and not r.cell.bench}
    few, many = min(found), max(found)
    return f"{few} seed{'s' * (few > 1)} per cell" if few == many else f"{few} to {many} seeds per cell"


def timing() -> str:
    """The times of the fastest FasTEN run on CIFAR-10, with batches of 100 + 100, that had a GPU to itself."""
    recipe = Run.from_json(main_records()[0]["run"]).recipe
    runs = [r for r in records("cifar10") if r["run"]["method"] == "fasten" and not r["environment"]["shared_gpu"]]
    runs = [r for r in runs if "per_class" not in r["run"]["options"]]
    alone = [r for r in runs if Run.from_json(r["run"]).recipe == recipe]
    if not alone:
        return "no run so far."
    record = min(alone, key=lambda r: r["result"]["train_seconds"])
    run, result, device = record["run"], record["result"], record["environment"]["device"].split(" ", 1)[1]
    options = "".join(f", {name}={value}" for name, value in run["options"].items())
    return (
        f"{run['noise']}{options}, seed {run['seed']}, on one {device}: "
        f"{result['train_seconds'] / len(record['epochs']):.2f} s an epoch, "
        f"{result['train_seconds']:.0f} s of training, {result['examples_per_second']:,.0f} images/s, "
        f"{result['peak_memory_bytes'] / 1e9:.2f} GB."
    )


def diagonals() -> str:
    """A table of the distances between our lines of T's diagonal and the paper's."""
    (outcome,) = [o for o in outcomes() if o.experiment.name == "t-diagonal"]
    lines: list[Sequence[str]] = [
        ("noise", "line", "mean distance", "at the end, ours", "at the end, paper"),
        ("---",) * 5,
    ]
    for line in outcome.lines:
        paper = dict(line.curve.paper)
        both = [(y, paper[x]) for x, y in line.points if x in paper]
        numbers = (fmean(abs(ours - theirs) for ours, theirs in both), *both[-1]) if both else ()
        lines.append((line.curve.panel, line.curve.row, *([f"{number:.3f}" for number in numbers] or "–––")))
    return table(lines)


def others() -> str:
    """A table of the records that belong to no table or figure of the paper."""
    known = {base(run) for o in outcomes() for run in o.experiment.runs()}
    lines: list[Sequence[str]] = [("data", "method", "noise", "set", "seed", "test accuracy"), ("---",) * 6]
    for record in records():
        run = Run.from_json(record["run"])
        if run.dataset not in UNPLANNED and base(run) not in known:
            what = (run.dataset, paper_name(run.method), run.noise, " ".join(settings_of(run)) or "–")
            lines.append((*what, str(run.seed), f"{record['result']['test_accuracy']:.2%}"))
    return table(lines) if len(lines) > 2 else "There are none."


def against_cleanlab() -> list[dict[str, Any]]:
    """What benchmarks/against_cleanlab.py measured, one run per noise."""
    return list(json.loads((HERE.parent / "benchmarks" / "against_cleanlab.json").read_text(encoding="utf-8")))


def wrong_labels_found() -> str:
    """A table of AUROC and average precision for each way to score suspect labels."""
    lines: list[Sequence[str]] = [("noise", "labels wrong", "suspicion", "AUROC", "average precision"), ("---",) * 5]
    for run in against_cleanlab():
        for name, score in run["scores"].items():
            scores = (f"{score['auroc']:.3f}", f"{score['average_precision']:.3f}")
            lines.append((run["run"]["noise"], f"{run['wrong']:.0%}", name, *scores))
    return table(lines)


def digits() -> str:
    """A table of means over the seeds, by noise."""
    lines: list[Sequence[str]] = [
        (
            *("noise", "seeds", "FasTEN", "FasTEN, T̂ of noisy rows", "DivideMix with clean rows", "clean rows only"),
            *("noisy only, last epoch", "noisy only, validation picks the epoch"),
        ),
        ("---",) * 8,
    ]
    for noise, some in digits_by_noise().items():
        numbers = ", ".join(str(record["run"]["seed"]) for record in some)
        lines.append((noise, numbers, *(f"{value:.1%}" for value in digits_means(some).values())))
    return table(lines)


def digits_gaps() -> str:
    """How much FasTEN gains over cross-entropy, for both ways of choosing the epoch of cross-entropy."""
    parts = []
    for noise, some in digits_by_noise().items():
        means = digits_means(some)
        last, picked = means["fasten"] - means["noisy last"], means["fasten"] - means["noisy"]
        parts.append(f"at {noise}, {last:.2f} above cross-entropy's last epoch and {picked:.2f} above the selected one")
    return "; ".join(parts)


def digits_rows(name: str) -> str:
    """The number of rows of this kind, which all records of digits share."""
    (number,) = {record["data"][f"rows_{name}"] for record in records("digits")}
    return str(number)


def digits_by_noise() -> dict[str, list[Record]]:
    """The records of the paper's FasTEN on digits, by noise."""
    found: dict[str, list[Record]] = {}
    for record in records("digits"):
        if record["run"]["method"] == "fasten" and usual(record["run"]):
            found.setdefault(record["run"]["noise"], []).append(record)
    return dict(sorted(found.items()))


def digits_means(some: Sequence[Record]) -> dict[str, float]:
    """Mean test accuracies of FasTEN, its references and, with the same seeds, the other T̂ and DivideMix."""
    references, places = [r["references"] for r in some], [(r["run"]["noise"], r["run"]["seed"]) for r in some]
    runs = [(r["run"], r["result"]["test_accuracy"]) for r in records("digits")]
    other = {(run["noise"], run["seed"]): found for run, found in runs if noisy_t(run)}
    mixed = {(run["noise"], run["seed"]): found for run, found in runs if run["method"] == "dividemix-clean"}
    return {
        "fasten": fmean(record["result"]["test_accuracy"] for record in some),
        "noisy t": fmean(other[place] for place in places),
        "dividemix-clean": fmean(mixed[place] for place in places),
        "clean": fmean(found["clean_only"]["test_accuracy"] for found in references),
        "noisy last": fmean(found["noisy_only"]["test_accuracy_last"] for found in references),
        "noisy": fmean(found["noisy_only"]["test_accuracy"] for found in references),
    }


if __name__ == "__main__":
    write(DOCS)
    write_text(README, readme())
