"""What the user sees: a progress bar on a terminal, plain lines elsewhere, tables."""

from __future__ import annotations

import math
import re
import sys
import textwrap
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fasten.sentences import are, some, typed

if TYPE_CHECKING:
    from fasten.bench import Timing
    from fasten.engine import Row
    from fasten.grid.reproduce import Made
    from fasten.grid.standings import RunOutcome, Summary
    from fasten.grid.wanted import Plan
    from fasten.records import Record, Run
    from fasten.report.paper import Outcome

PATIENCE = 3.0  # seconds
PARTS = 10_000  # steps of a bar that does not count updates
LONGEST_CELL = 300  # characters of a table's cell: some labels are whole sentences


class _Console(Console):
    def __exit__(self, *error: Any) -> None:
        """Rich writes here. A closed terminal is not a broken pipe to it, but is no more of a reason to end."""
        try:
            super().__exit__(*error)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Nobody reads any more. Rich would end the run here, which still has to write its checkpoint."""
        self.quiet = True


class Display:
    """The progress of a run, on standard error."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = _Console(stderr=True, highlight=False)
        self.bar: Progress | None = None
        self.shown: set[str] = set()  # sentences that stand on the terminal

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
        self.bar = None

    def say(self, sentence: str) -> None:
        if not self.quiet:
            self.console.print(sentence, markup=False, soft_wrap=True)
            self.shown |= {sentence} if self.console.is_terminal else set()

    @contextmanager
    def reading(self, data: str) -> Iterator[None]:
        """Say what is being read, if that takes long."""
        timer = threading.Timer(PATIENCE, self.say, [f"reading {data}"])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def start(self, record: Record, updates: int) -> None:
        run, data, where = record["run"], record["data"], record["environment"]
        rate = data["noise_rate"]
        noise = "" if rate is None else f", noise {run['noise']} ({rate:.1%} of labels wrong)"
        self.say(
            f"{run['method']} on {run['dataset']}{noise}, seed {run['seed']}: "
            f"{data['rows_noisy']:,} noisy, {data['rows_clean']:,} clean, {data['rows_valid']:,} validation, "
            f"{data['rows_test']:,} test rows; {run['recipe']['net']} on {where['device']}, {where['precision']}"
        )
        self.show_bar("training", updates)

    def show_bar(self, text: str, updates: int) -> None:
        """Show a progress bar, on a terminal only."""
        self.stop()
        if self.console.is_terminal and not self.quiet:
            columns = (TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn(), TimeRemainingColumn())
            # Speed over the last thousand steps; rich would drop those of half a minute ago, and epochs may be longer.
            self.bar = Progress(*columns, console=self.console, transient=True, speed_estimate_period=math.inf)
            self.task = self.bar.add_task(text, total=updates)
            self.bar.start()

    def update(self, done: int) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=done)

    def epoch(self, row: Row) -> None:
        stage = "" if row["stage"] == "train" else f" ({row['stage']})"
        text = f"epoch {row['epoch']}{stage}: loss {row['loss']:.3f}, validation {_percent(row['valid_accuracy'])}"
        if self.bar is not None:
            self.bar.update(self.task, description=text)
        else:
            self.say(f"{text}, labels corrected {_percent(row['corrected_fraction'])}, {row['seconds']:.2f} s")


class Runs(Display):
    """The progress of several runs: a line for each that is done."""

    def start(self, record: Record, updates: int) -> None:
        self.show_bar(f"{record['run']['method']}, seed {record['run']['seed']}", updates)

    def finished(self, run: RunOutcome, number: int, total: int, was_there: bool) -> None:
        self.stop()
        before = ", already done" if was_there else ""
        self.say(f"{run.method}, seed {run.seed}: {_found(run.error, vars(run))} ({number} of {total}{before})")


class Reproduction(Runs):
    """The progress of the runs that tables and figures are made from."""

    together = False

    def begin(self, plan: Plan) -> None:
        if plan.missing:
            self.say(_tally(len(plan.runs), plan.missing))

    def going(self, running: int, share: float) -> None:
        """Parallel runs share one bar."""
        text = f"{running} run{'s' * (running != 1)}, {share:.0%} of all done"
        if not self.together:
            self.show_bar(text, PARTS)
        self.together = True
        if self.bar is not None:
            self.bar.update(self.task, description=text, completed=round(PARTS * share))

    def made(self, run: Made) -> None:
        from fasten.grid.speed import in_words

        if not self.together:
            self.stop()
        count = f"{run.number} of {run.total}"
        seconds = None if run.number == run.total else run.seconds_left
        left = "" if seconds is None else f"; about {in_words(seconds)} left"
        self.say(f"{_run_name(run.run)}: {_found(run.error, run.result or {})} ({count}{left})")


def _tally(total: int, missing: Sequence[Run]) -> str:
    """How many runs there are, and how long those that are missing take."""
    from fasten.grid.speed import measured

    left = f": {measured().summary(missing)}" if missing else ""
    return f"{total} run{'s' * (total != 1)}, {total - len(missing)} recorded, {len(missing)} to do{left}"


def _run_name(run: Run) -> str:
    from fasten.grid.wanted import settings_of

    what = [run.method, f"{run.dataset} {run.noise}", *settings_of(run), f"seed {run.seed}"]
    return ", ".join(what)


def _found(error: str | None, result: Mapping[str, Any]) -> str:
    """The result of a run: its accuracy on the test rows, or on the validation rows if there are no test rows."""
    if error is not None:
        return f"failed: {error}"
    accuracy = result["valid_accuracy"] if result["test_accuracy"] is None else result["test_accuracy"]
    return f"{_percent(accuracy)} in {result['train_seconds']:.1f} s"


def show_result(record: Record, out: Path, shown: Collection[str] = ()) -> None:
    """The last lines of a run, without the notes that were `shown` before."""
    from fasten.report import read_gallery

    result = record["result"]
    names = {"clean_only": "clean rows only", "noisy_only": "noisy labels only"}
    others = {names[name]: found for name, found in record["references"].items() if found}  # null: it diverged
    ways = {record["run"]["method"]: result} | others
    columns = {
        "test accuracy": "test_accuracy",
        "at the last epoch": "test_accuracy_last",
        "validation accuracy": "valid_accuracy",
    }
    columns = {name: key for name, key in columns.items() if any(found[key] is not None for found in ways.values())}
    if columns:
        show_table(["", *columns], [[way, *(found[key] for key in columns.values())] for way, found in ways.items()])
    rate = result["examples_per_second"]
    speed = "" if rate is None else f", {rate:,.0f} examples/s"
    print(f"epoch {result['best_epoch']} of {len(record['epochs'])} selected; {result['train_seconds']:.1f} s{speed}")
    for note in record["notes"]:
        if note not in shown:
            print(f"note: {note}")
    evidence, found = (record["evaluation"] or {}).get("evidence") or {}, read_gallery(out)
    odd = (evidence.get("sample") or {}).get("warning")
    if evidence.get("num_random"):
        print(_wrong(evidence["wrong"], odd))
    if found:
        them = "it" if found["issues"] == 1 else "them"
        shows = f"; {typed('audit', out)} shows {them}" if found["issues"] else ""
        print(f"{_counted_wrong(found, evidence.get('num_random'))}{shows}")
    if evidence.get("corrections"):
        print(_corrections(evidence["corrections"]["precision"], odd))
    print(f"report: {out / 'report.html'}")


def show_table(header: Sequence[str], rows: Sequence[Sequence[Any]], longest: int = LONGEST_CELL) -> None:
    """Print a table as wide as the terminal, with at most `longest` characters in each cell."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value, longest) for value in row))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    with console.capture() as lines:
        console.print(table, markup=False)
    print("\n".join(line.rstrip() for line in lines.get().splitlines()))


def show_methods(methods: Sequence[Mapping[str, Any]], recipe: Sequence[str]) -> None:
    """Print what each method does, what it needs, and what `--set` can change, with the default values."""
    from fasten.report.values import setting

    rows = []
    for method in methods:
        needs = {"clean rows": method["clean_set"], "the true T": method["true_transition"], "images": method["images"]}
        named = " and ".join(name for name, needed in needs.items() if needed) or "nothing but the noisy rows"
        defaults = {k: f"{v:.4g}" if isinstance(v, float) else setting(v) for k, v in method["defaults"].items()}
        options = ", ".join(f"{key}={value}" for key, value in defaults.items())
        lines = [method["about"], f"{method['family']}; needs {named}", f"--set {options}" if options else ""]
        rows.append([method["name"], "\n".join(line for line in lines if line)])
    show_table(["method", "what it does, what it needs, what can be set"], rows, max(len(row[1]) for row in rows))
    text = f"For every method --set also takes the fields of the data set's recipe: {', '.join(recipe)}."
    print("\n" + textwrap.fill(text, 80))


def show_comparison(summary: Summary, out: Path) -> None:
    """Print the tables and notes of a comparison."""
    from fasten.report.comparison import ABOUT_INTERVALS, difference_table, headline, method_table

    print(f"{headline(summary)}\n")
    show_table(*method_table(summary))
    if summary["differences"]:
        print()
        show_table(*difference_table(summary))
    if any(line["ci95"] is not None for line in summary["methods"]):
        print(f"\n{ABOUT_INTERVALS}")
    for note in summary["notes"]:
        print(f"note: {note}")
    print(f"page: {out / 'compare.html'}")


def show_experiments(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the tables and figures that can be made."""
    shown = [[row["name"], row["kind"], len(row["runs"]), row["title"]] for row in rows]
    show_table(["name", "kind", "runs", "title"], shown)


def show_estimate(found: Mapping[str, Any]) -> None:
    """Print every run, and how long those that are missing take."""
    from fasten.grid.speed import measured
    from fasten.grid.wanted import settings_of
    from fasten.records import Run

    speed, rows, missing = measured(), [], []
    for row in found["runs"]:
        run = Run.from_json(row["run"])
        if row["record"] is None:
            missing.append(run)
        options = " ".join(settings_of(run)) or "–"
        what = [run.method, run.dataset, run.noise, options, run.recipe.epochs, run.seed]
        rows.append([*what, speed.in_words(run), row["record"] or row["state"]])
    if rows:
        show_table(["method", "data set", "noise", "options", "epochs", "seed", "time", "recorded"], rows)
        print()
    print(_tally(len(rows), missing))


def show_outcomes(outcomes: Sequence[Outcome], failed: Sequence[Mapping[str, str]], out: Path) -> None:
    """Print every table, what failed, and where everything was written."""
    from fasten.report.paper import text_table

    for outcome in outcomes:
        print(f"{text_table(outcome).rstrip()}\n")
    alike: dict[str, list[str]] = {}
    for run in failed:
        alike.setdefault(run["error"], []).append(run["key"])
    for error, keys in alike.items():
        more = f" and {len(keys) - 1:,} more" if len(keys) > 1 else ""
        print(f"failed: {keys[0]}{more}: {error}")
    if failed:
        print("the same command tries the failed runs again")
    print(f"written: {out}")


def show_audit(found: Mapping[str, Any], folder: Path) -> None:
    """Print how many labels look wrong, which classes are confused, and how far to trust this."""
    evidence, expected = found["evidence"], round(found["expected_wrong"])
    seen = f", {found['verified_wrong']:,} of them by a verdict" if found["verified"] else ""
    known = f"; about {expected:,} {are(expected)} expected to be wrong"
    if evidence is None:
        known = "; no row was verified at random to show how many are"
    elif evidence["sample"]:
        known = ""
    print(f"{_counted_wrong(found, evidence)}{seen}{known}")
    if kept := found["issues"] - found["corrected"]:
        print(f"left unchanged, since no other label is likelier: {kept:,} of these")
    print(_evidence(evidence) if evidence else "uncalibrated: p_wrong and T are a model's estimates")
    if found["confused"]:
        print("\nT, largest entries off its diagonal")
        lines = [[pair["true"], pair["given"], _percent(pair["share"])] for pair in found["confused"]]
        show_table(["true class", "labelled as", "share"], lines)
    if found["pairs"]:
        print("\nlabels that look wrong")
        lines = [[p["given"], p["suggested"], p["rows"], _percent(p["share"]), p["corrected"]] for p in found["pairs"]]
        show_table(["given", "suggested", "rows", "share of given", "corrected"], lines)
    print(f"\nreport: {folder / 'report.html'}")


def _counted_wrong(found: Mapping[str, Any], evidence: object) -> str:
    one = found["issues"] == 1
    count = f"count{'s' * one} as wrong" if evidence else f"look{'s' * one} wrong"
    return f"{found['issues']:,} of {some(found['rows'], 'label')} {count}"


def _evidence(found: Mapping[str, Any]) -> str:
    """What the verified rows say, one sentence per line."""
    lines = [f"{some(found['num_random'], 'row')} verified at random, {found['num_held']:,} of them held back"]
    if found["wrong"]:
        lines.append(_wrong(found["wrong"], found["sample"]))
    lines.append(_corrections(found["precision"], found["sample"]))
    calibrated = "p_wrong is calibrated" + (", for these rows alone" if found["sample"] else "")
    lines.append(calibrated if found["calibrated"] else f"uncalibrated: {found['uncalibrated']}")
    return "\n".join([*lines, *(found[key] for key in ("threshold", "doubt", "warning", "sample") if found[key])])


def _wrong(found: Mapping[str, Any], odd: str | None) -> str:
    """What is known about the labels without any model; only about these rows, if they are an `odd` sample."""
    k, labels = found["k"], some(found["n"], "label")
    if odd:
        return (
            f"{k:,} of the {labels} counted as verified at random {are(k)} wrong, which says nothing about the others"
        )
    return f"{k:,} of the {labels} verified at random {are(k)} wrong ({_interval(found)} for all labels)"


def _corrections(right: Mapping[str, Any], odd: str | None) -> str:
    """How many corrections can be judged, and how many of these are right."""
    if not right["n"]:
        return "corrections: none would be made in held-back rows, so their precision is not known"
    made = f"{right['k']} of {right['n']} that would be made in held-back rows"
    return f"corrections: {made} {are(right['k'])} right" + ("" if odd else f" ({_interval(right)})")


def _interval(found: Mapping[str, Any]) -> str:
    return f"95% interval {_percent(found['low'])} to {_percent(found['high'])}"


def show_bench(lines: Sequence[Timing], device: str, net: str) -> None:
    """Print a line for each stage of each method, then one for each method's whole run."""
    from fasten.bench import run_ratios

    print(f"{net} on {device}; ratio to naive-oversampling, which is plain cross-entropy on the same images")
    rows = []
    for t in lines:
        memory = "–" if t.peak_memory_bytes is None else f"{t.peak_memory_bytes / 2**30:.2f} GiB"
        speed = [f"{t.milliseconds:.2f} ± {100 * t.spread / 2:.0f}%", f"{t.images_per_second:,.0f}", f"{t.ratio:.3f}"]
        rows.append([t.method, t.stage, *speed, f"{t.setup_seconds:.1f} s", memory])
    show_table(["method", "stage", "ms / update", "images / s", "ratio", "set-up", "memory"], rows)
    print("\ntime of a run of the paper's length (44,000 noisy rows, each method's own epochs), relative to FasTEN")
    show_table(["method", "time"], [[name, f"{ratio:.2f}×"] for name, ratio in run_ratios(lines).items()])
    choosing = ", ".join(dict.fromkeys(t.method for t in lines if t.chooses))
    if choosing:
        print(f"{choosing}: timed as if they dropped no row, or took each as labelled; fewer rows take less time")


def _cell(value: Any, longest: int) -> str:
    if value is None:
        return "–"
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "�", text)  # a name may hold what a terminal would obey
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
