"""An outcome as text, Markdown, CSV and LaTeX, each cell of the paper with ours; the same outcome gives the same bytes.

A table has one block per panel. If a block has several columns, its cells are stacked: ours, the paper's, the status.
Curves are shown at a few points.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import TypeVar

from fasten.cells import escaped
from fasten.experiments.spec import Measure, key
from fasten.report.names import paper_name
from fasten.report.outcomes import Line, Outcome, Points, Result

Entry = tuple[str, ...]  # the lines of a cell
T = TypeVar("T")

NONE = "–"
MOST_COLUMNS = 7  # a block with more is transposed if that makes it narrower
TEXT_WIDTH = 110
POINTS_SHOWN = 6  # of a curve
ABOUT_CELLS = (
    "A cell shows our mean with the number of seeds, the paper's number, and the status; ± is half the width of a 95% "
    "interval."
)
UNDER = ("paper", "status")  # names of the lines below ours, shown under the name of a row
ORDER = ("reproduced", "better", "below", "not in the paper", "quoted", "running", "not run")
CSV_COLUMNS = (
    *("experiment", "panel", "row", "column", "x", "measure", "n", "mean", "ci95", "values"),
    *("paper", "paper_ci95", "status", "source", "run"),
)
MATH = {
    **{"±": r"\pm", "×": r"\times", "²": "^2", "≤": r"\le", "≥": r"\ge", "≈": r"\approx", "−": "-", "·": r"\cdot"},
    **{"→": r"\to", "∞": r"\infty", "Σ": r"\Sigma", "α": r"\alpha", "β": r"\beta", "η": r"\eta", "λ": r"\lambda"},
    **{"μ": r"\mu", "π": r"\pi", "ρ": r"\rho", "σ": r"\sigma", "τ": r"\tau", "χ": r"\chi"},
}
LATEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{c: f"${command}$" for c, command in MATH.items()},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "—": "---"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "’": "'", "ȳ": r"$\bar{y}$"},
}
HATTED = "[A-Za-z]\u0302|[^`]"  # a letter with a hat over it, or any other character
WHOLE, SHORT = 1000, 13  # characters in a line of a cell: any, and in a table that is too wide otherwise
SIZES = (("scriptsize", 88, WHOLE), ("tiny", 103, WHOLE), ("tiny", 103, SHORT))  # of letters; how many fit into a line
GAP = 1.5  # characters between two columns
LATIN = 0x180  # letters up to here are in LaTeX's usual fonts


@dataclass(frozen=True)
class Block:
    """One table: the first entry of a row is its name."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    to_come: bool  # whether none of it has been run yet

    @property
    def stacked(self) -> bool:
        """Whether a cell has several lines: ours, the paper's, the status."""
        return any(len(entry) > 1 for row in self.rows for entry in row)


def blocks(outcome: Outcome) -> list[Block]:
    """The tables of an outcome: those of its cells, panel by panel, then those of its curves."""
    cells = _panels(outcome.results, lambda result: result.cell.panel)
    curves = _panels(outcome.lines, lambda line: line.curve.panel)
    order = {panel: [_column(*column) for column in outcome.experiment.columns(panel)] for panel in cells}
    made = [_cell_block(panel, results, order[panel]) for panel, results in cells.items()]
    return made + [_curve_block(panel, lines, outcome.experiment.x) for panel, lines in curves.items()]


def text_table(outcome: Outcome) -> str:
    """The tables for a terminal, their columns aligned."""
    parts = [textwrap.fill(line, TEXT_WIDTH) for line in (outcome.experiment.title, *_remarks(outcome))]
    return "\n\n".join([parts[0], *map(_text_block, blocks(outcome)), *parts[1:]]) + "\n"


def markdown(outcome: Outcome, image: str = "") -> str:
    """The tables for a README or an issue, under a heading; `image` is a drawing to show; it folds the tables."""
    title, tables = outcome.experiment.title, [_markdown_block(block) for block in blocks(outcome)]
    if image:
        tables = [f"![{title}]({image})", "<details><summary>In numbers</summary>", *tables, "</details>"]
    return "\n\n".join([f"## {title}", *tables, *_remarks(outcome)]) + "\n"


def csv_text(outcome: Outcome) -> str:
    """One line per cell with all its numbers, and one per point of a curve; fields without a value are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for result in outcome.results:
        writer.writerow([_field(value) for value in _cell_fields(outcome.experiment.name, result)])
    for line in outcome.lines:
        for fields in _curve_fields(outcome.experiment.name, line):
            writer.writerow([_field(value) for value in fields])
    return text.getvalue()


def latex(outcome: Outcome) -> str:
    """The tables for a paper; they need no LaTeX package."""
    name, title = outcome.experiment.name, outcome.experiment.title
    made = [_latex_block(name, title, number, block) for number, block in enumerate(blocks(outcome), 1)]
    remarks = [f"\\noindent {{\\footnotesize {_latex(remark)}}}\n" for remark in _remarks(outcome)]
    return "\n".join([*made, *remarks])


def counts(outcome: Outcome) -> dict[str, int]:
    """How many cells have each status, without those that no cell has."""
    found = Counter[str](result.status for result in outcome.results)
    return {word: found[word] for word in ORDER if found[word]}


def _panels(items: Iterable[T], panel: Callable[[T], str]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for item in items:
        found.setdefault(panel(item), []).append(item)
    return found


def _cell_block(panel: str, results: Sequence[Result], order: Sequence[str]) -> Block:
    compared = any(result.cell.paper is not None for result in results)
    names = [(paper_name(result.cell.row), _column(result.cell.column, result.cell.x)) for result in results]
    places = {name: entry(result, compared) for name, result in zip(names, results, strict=True)}
    if len(places) < len(results):
        raise ValueError(f"two cells of {panel or 'a table'} have the same row and column; give them different names")
    rows, there = (list(dict.fromkeys(some)) for some in zip(*places, strict=True))
    columns = [column for column in dict.fromkeys(order) if column in there]
    to_come = not any(result.values for result in results) and any(result.status != "quoted" for result in results)
    if len(columns) == 1:  # one column leaves room to show the parts side by side
        flat = tuple(((row,), *((line,) for line in entry)) for (row, _), entry in places.items())
        return Block(panel, (columns[0], *(("ours", "paper", "status") if compared else ("ours",))), flat, to_come)
    if len(columns) > max(MOST_COLUMNS, len(rows)):
        rows, columns, places = columns, rows, {(column, row): entry for (row, column), entry in places.items()}
    made = tuple(((row,), *(places.get((row, column), ("",)) for column in columns)) for row in rows)
    return Block(panel, ("", *columns), made, to_come)


def _column(name: str, x: float | None) -> str:
    return paper_name(name) or ("" if x is None else f"{x:g}")


def entry(result: Result, compared: bool = True) -> Entry:
    """Ours, the paper's, the status; ours alone if the paper has no numbers at all."""
    cell, n = result.cell, len(result.values)
    ours = _number(result.mean, result.ci95, cell.measure) + (f" ({n})" if n and not cell.bench else "")
    if not compared:
        return (ours if n else result.status,)
    return ours, _number(cell.paper, cell.ci95, cell.measure), result.status


def _number(mean: float | None, half: float | None, measure: Measure) -> str:
    if mean is None:
        return NONE
    return f"{mean:.{measure.digits}f}" + ("" if half is None else f" ± {half:.{measure.digits}f}")


def _curve_block(panel: str, lines: Sequence[Line], x: str) -> Block:
    header, columns = [x or "x"], []
    for line in lines:
        both = ((f"ours ({line.seeds})" if line.seeds else "ours", line.points), ("paper", line.curve.paper))
        for word, points in both if line.curve.paper else both[:1]:
            header.append(f"{paper_name(line.curve.row)}, {word}")
            columns.append(points)
    shown = _some([line.curve.paper for line in lines if line.curve.paper] or [points for points in columns if points])
    reach = max((abs(b - a) for a, b in pairwise(shown)), default=0.0) / 2
    rows = tuple(((f"{at:g}",), *((_value(points, at, reach),) for points in columns)) for at in shown)
    return Block(panel, tuple(header), rows, not any(line.points for line in lines))


def _some(lines: Sequence[Points]) -> list[float]:
    """A few of their x, including both ends."""
    xs = sorted({x for points in lines for x, _ in points})
    last = len(xs) - 1
    return (
        [xs[i] for i in dict.fromkeys(round(last * k / (POINTS_SHOWN - 1)) for k in range(POINTS_SHOWN))] if xs else []
    )


def _value(points: Points, at: float, reach: float) -> str:
    """The value at the nearest point, with its x if that is another; a dash if the point is too far away."""
    x, y = min(points, key=lambda point: abs(point[0] - at), default=(0.0, None))
    if y is None or abs(x - at) > reach:
        return NONE
    return (f"{y:.3g}" if abs(y) < 0.01 else f"{y:.3f}") + ("" if x == at else f" (at {x:g})")


def _remarks(outcome: Outcome) -> list[str]:
    """The text below the tables: statuses, tolerances, quoted numbers and their sources, quirks."""
    remarks = []
    if found := counts(outcome):
        listed = ", ".join(f"{count} {word}" for word, count in found.items())
        number = len(outcome.results)
        remarks.append(f"{number} cell{'s' * (number != 1)}: {listed}. {_tolerances(outcome.results)}".rstrip())
    quoted: dict[str, list[str]] = {}
    for result in outcome.results:
        if result.status == "quoted":
            quoted.setdefault(result.cell.source or "no source", []).append(paper_name(result.cell.row))
    if quoted:
        listed = "; ".join(f"{', '.join(dict.fromkeys(rows))} ({source})" for source, rows in quoted.items())
        remarks.append(f"Quoted, not run: {listed}.")
    if outcome.timed_on and any(result.cell.bench and result.values for result in outcome.results):
        remarks.append(f"Our times: measured on {outcome.timed_on}.")
    return remarks + ([outcome.experiment.about] if outcome.experiment.about else [])


def _tolerances(results: Sequence[Result]) -> str:
    """How far a mean may be from the paper's interval."""
    found: dict[str, str] = {}
    for measure in (result.cell.measure for result in results if result.status in ("reproduced", "better", "below")):
        found[measure.name] = " and ".join(
            [f"{measure.step:g}"] * bool(measure.step) + [f"{100 * measure.share:g}%"] * bool(measure.share)
        )
    listed = "; ".join(f"{room} for {name}" for name, room in found.items() if room)
    return f"{ABOUT_CELLS} Tolerance beyond the paper's interval: {listed}." if listed else ""


def _text_block(block: Block) -> str:
    lines = [(block.title or block.header[0], *block.header[1:])]
    for row in block.rows:
        name = (row[0][0], *(f"  {line}" for line in UNDER if block.stacked))
        lines += list(zip_longest(name, *row[1:], fillvalue=""))
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    shown = [_padded(line, widths) for line in lines]
    return "\n".join([shown[0], "-" * max(map(_width, shown)), *shown[1:]])


def _padded(line: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()


def _width(text: str) -> int:
    """The width on a terminal, where a hat or a bar over a letter takes no room."""
    return sum(not unicodedata.combining(c) for c in text)


def _markdown_block(block: Block) -> str:
    """The table as Markdown, folded if none of it has been run."""
    lines = [[(name,) for name in block.header], [("---",)] * len(block.header), *block.rows]
    table = "\n".join("| " + " | ".join("<br>".join(map(_cell_text, entry)) for entry in line) + " |" for line in lines)
    if not block.to_come:
        return f"**{block.title}**\n\n{table}" if block.title else table
    summary = f"{block.title}: not run yet" if block.title else "Not run yet"
    return f"<details><summary>{summary}</summary>\n\n{table}\n\n</details>"


def _cell_text(text: str) -> str:
    shown = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return f"**{shown}**" if shown == "below" else shown


def _cell_fields(name: str, result: Result) -> list[object]:
    cell = result.cell
    ours = [len(result.values), result.mean, result.ci95, " ".join(map(repr, result.values))]
    run = " ".join(key(run) for run in (cell.run, *cell.rivals) if run is not None)
    paper = [cell.paper, cell.ci95, result.status, cell.source, run]
    return [name, cell.panel, cell.row, cell.column, cell.x, cell.measure.name, *ours, *paper]


def _curve_fields(name: str, line: Line) -> list[list[object]]:
    ours, paper = dict(line.points), dict(line.curve.paper)
    front, run = [name, line.curve.panel, line.curve.row, ""], key(line.curve.run)
    return [
        [*front, x, "", line.seeds if x in ours else 0, ours.get(x), None, "", paper.get(x), None, "", "", run]
        for x in sorted(ours | paper)
    ]


def _field(value: object) -> object:
    return "" if value is None else escaped(value)


def _latex_block(name: str, title: str, number: int, block: Block) -> str:
    caption = _latex(f"{title}. {block.title}" if block.title else title)
    size, header, rows = _fitted(block)
    between = "[4pt]" if block.stacked else ""
    body = f" \\\\{between}\n".join(map(_latex_lines, rows))
    return f"""\\begin{{table}}[ht]
\\centering
\\caption{{{caption}}}
\\label{{tab:{name}-{number}}}
\\{size}
\\setlength{{\\tabcolsep}}{{{2 if size == "tiny" else 3}pt}}
\\begin{{tabular}}{{l{"c" * (len(block.header) - 1)}}}
\\hline\\noalign{{\\smallskip}}
{_latex_lines(header)} \\\\
\\hline\\noalign{{\\smallskip}}
{body} \\\\
\\hline
\\end{{tabular}}
\\end{{table}}
"""


def _fitted(block: Block) -> tuple[str, list[Entry], list[list[Entry]]]:
    """The size of letters, the lines of the header and those of each row, as wide as a page's text if that is possible.

    First the names in the header are broken into lines as narrow as what is below them, then letters are smaller, then
    all lines are broken.
    """
    named = [((*row[0], *UNDER), *row[1:]) for row in block.rows] if block.stacked else block.rows
    names, number = [(name,) for name in block.header], len(block.header)
    for size, room, most in SIZES:
        rows = [_lines(row, [most] * number) for row in named]
        widths = _widths([line for row in rows for line in row], number)
        for header in (_lines(names, [most] * number), _lines(names, [max(SHORT, width) for width in widths])):
            if sum(map(max, widths, _widths(header, number))) + GAP * number <= room:
                return size, header, rows
    return size, header, rows


def _lines(row: Sequence[Entry], most: Sequence[int]) -> list[Entry]:
    """The lines of a row, each with a text for every column; texts are broken at spaces, and stay side by side."""
    found: list[Entry] = []
    for texts in zip_longest(*row, fillvalue=""):
        parts = [
            textwrap.wrap(text.replace(" ± ", "±"), length, break_long_words=False, break_on_hyphens=False)
            for text, length in zip(texts, most, strict=True)
        ]
        found += zip_longest(*parts, fillvalue="")
    return found


def _widths(lines: Sequence[Entry], number: int) -> list[int]:
    return [max(map(_width, column)) for column in zip(*lines, strict=True)] if lines else [0] * number


def _latex_lines(lines: Sequence[Entry]) -> str:
    return " \\\\\n".join(" & ".join(map(_latex, line)) for line in lines)


def _latex(text: str) -> str:
    """The text with a replacement for each character that is special to LaTeX, or missing in its usual fonts."""
    parts = ["".join(map(_latex_character, re.findall(HATTED, part))) for part in text.split("`")]
    if len(parts) % 2 == 0:  # an unpaired backtick
        return "'".join(parts)
    return "".join("\\texttt{" + part.replace("-", "-{}") + "}" if i % 2 else part for i, part in enumerate(parts))


def _latex_character(c: str) -> str:
    if c in LATEX or (len(c) == 1 and ord(c) < LATIN):
        return LATEX.get(c, c)
    if len(c) > 1:
        return f"$\\hat{{{c[0]}}}$"
    return unicodedata.normalize("NFKD", c).encode("ascii", "ignore").decode() or "?"
