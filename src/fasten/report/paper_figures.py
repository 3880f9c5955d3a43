"""An outcome as a drawing: ours filled and solid, the paper's hollow and dashed; the same outcome gives the same bytes.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart; the markers differ as well.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fasten.files import write_bytes
from fasten.report.names import paper_name
from fasten.report.outcomes import Line, Outcome, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f")
GREY = "#555555"
MARKS = ("o", "s", "^", "D", "v", "P", "X", "p")
FIRST = "FasTEN"  # always has the first colour
WIDTH, PANEL_HEIGHT, LEGEND_HEIGHT = 7.0, 3.0, 0.3  # inches
DPI = 160
SHORT_AXIS = 3  # names; if there are more, they are slanted
ONE_LINE = 56  # characters that fit into one line of a legend; a marker counts as five
LONG_NAME = 14  # characters; longer names need wider columns in the legend
MARKED_POINTS = 30  # a line with more has no markers
LOG_RATIO = 20.0  # positive values that span more are drawn on a logarithmic axis
STYLE: dict[Any, Any] = {
    **{"font.family": "DejaVu Sans", "font.size": 12, "axes.titlesize": 12, "legend.fontsize": 11},  # it comes with it
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e4e4"},
    **{"axes.axisbelow": True, "lines.linewidth": 2.0, "lines.markersize": 7.0, "svg.hashsalt": "fasten"},
}

Point = tuple[float, float, float]  # x, y, half the width of y's interval


@dataclass(frozen=True)
class Series:
    """The points of one row of an outcome in one panel; a level has no x, and is a horizontal line."""

    name: str
    ours: list[Point] = field(default_factory=list)
    paper: list[Point] = field(default_factory=list)
    level: bool = False


@dataclass(frozen=True)
class Panel:
    """One set of axes; `ticks` are the names of x = 0, 1, … if x is not a number, `planned` the x of all cells."""

    title: str
    series: tuple[Series, ...]
    ticks: tuple[str, ...] = ()
    planned: tuple[float, ...] = ()


def draw(outcome: Outcome, path: Path) -> None:
    """Write `path`.svg and `path`.png, each whole or not at all."""
    write_bytes(f"{path}.svg", drawing(outcome, "svg"))
    write_bytes(f"{path}.png", drawing(outcome, "png"))


def drawing(outcome: Outcome, kind: Literal["svg", "png"]) -> bytes:
    """The file's bytes; its description holds the digest of what it shows."""
    import matplotlib
    from matplotlib.figure import Figure

    about = {"Title": outcome.experiment.title, "Description": digest(outcome)}
    none = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        figure, buffer = Figure(layout="constrained"), io.BytesIO()
        fill(figure, outcome)
        figure.savefig(buffer, format=kind, dpi=DPI, metadata={**about, **none})
    return buffer.getvalue()


def digest(outcome: Outcome) -> str:
    """A hash of what is drawn, to six digits: it tells whether a drawing shows these results."""
    shown = [[p.title, p.ticks, p.planned, [[s.name, s.level, _rounded(s)] for s in p.series]] for p in panels(outcome)]
    return "data sha256 " + hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def _rounded(series: Series) -> list[list[str]]:
    return [[f"{value:.6g}" for value in point] for side in (series.ours, series.paper) for point in (*side, ())]


def panels(outcome: Outcome) -> list[Panel]:
    """What is drawn, as numbers: cells and curves of each panel, in the outcome's order."""
    titles = dict.fromkeys([r.cell.panel for r in outcome.results] + [line.curve.panel for line in outcome.lines])
    return [
        _panel(
            title,
            [column for column, _ in outcome.experiment.columns(title)],
            [result for result in outcome.results if result.cell.panel == title],
            [line for line in outcome.lines if line.curve.panel == title],
        )
        for title in titles
    ]


def _panel(title: str, columns: Sequence[str], results: Sequence[Result], lines: Sequence[Line]) -> Panel:
    shown = [result for result in results if not result.cell.bench]
    numeric = bool(lines) or any(result.cell.x is not None for result in shown)
    there = () if numeric else {result.cell.column for result in shown}
    ticks = tuple(column for column in dict.fromkeys(columns) if column in there)
    times = {result.cell.row: result.mean for result in results if result.cell.bench}
    series: dict[str, Series] = {}
    for result in shown:
        cell = result.cell
        paper_x = cell.x if numeric else float(ticks.index(cell.column))
        mine = series.setdefault(cell.row, Series(paper_name(cell.row), level=paper_x is None))
        our_x = times.get(cell.row, 0.0 if mine.level else paper_x)
        if result.mean is not None and our_x is not None:
            mine.ours.append((our_x, result.mean, result.ci95 or 0.0))
        if cell.paper is not None:
            mine.paper.append((paper_x or 0.0, cell.paper, cell.ci95 or 0.0))
    for line in lines:
        ours, paper = ([(x, y, 0.0) for x, y in points] for points in (line.points, line.curve.paper))
        series[line.curve.row] = Series(paper_name(line.curve.row), ours, paper)
    planned = tuple(x for result in shown if (x := result.cell.x) is not None)
    return Panel(title, tuple(series.values()), ticks, planned)


def fill(figure: Figure, outcome: Outcome) -> None:
    """Draw on an empty matplotlib figure."""
    shown = panels(outcome)
    names = _names(shown)
    across = min(2, len(shown))
    down = -(-len(shown) // across)
    lines, handles = _handles(names, shown)
    figure.set_size_inches(WIDTH, PANEL_HEIGHT * (down + (across == 1) / 4) + LEGEND_HEIGHT * lines)
    axes = figure.subplots(down, across, squeeze=False)
    for place in axes.flat[len(shown) :]:
        place.set_visible(False)
    for number, (place, panel) in enumerate(zip(axes.flat, shown, strict=False)):
        _draw_panel(place, panel, names)
        place.set_ylabel(outcome.experiment.y if number % across == 0 else "")
        place.set_xlabel(outcome.experiment.x if number + across >= len(shown) else "")
    columns = len(handles) // lines
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False, handlelength=2.6)


def _names(shown: Sequence[Panel]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each series."""
    found = dict.fromkeys(s.name for panel in shown for s in panel.series if s.ours or s.paper)
    order = sorted(found, key=lambda name: name != FIRST)
    return {name: (COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)]) for i, name in enumerate(order)}


def _draw_panel(axes: Axes, panel: Panel, names: Mapping[str, tuple[str, str]]) -> None:
    for series in (s for s in panel.series if s.ours or s.paper):
        colour = names[series.name][0]
        for points, ours in ((series.paper, False), (series.ours, True)):
            if series.level and points:
                axes.axhline(points[0][1], color=colour, linestyle="-" if ours else "--", linewidth=1.5)
            elif points:
                _draw_points(axes, sorted(points), names[series.name], ours, joined=not panel.ticks)
        if len(series.ours) == len(series.paper) == 1 and not series.level:
            (x1, y1, _), (x2, y2, _) = *series.ours, *series.paper
            axes.plot([x1, x2], [y1, y2], color=colour, linewidth=1.0, alpha=0.5, zorder=1)
    values = [y for series in panel.series for _, y, _ in (*series.ours, *series.paper)]
    if values and min(values) > 0 and max(values) / min(values) > LOG_RATIO:
        axes.set_yscale("log")
    axes.set_title(panel.title)
    if not values:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "not run yet", color=GREY, ha="center", transform=axes.transAxes)
    _mark_x(axes, panel)


def _mark_x(axes: Axes, panel: Panel) -> None:
    """Show the whole x axis, however much of it has been run."""
    xs = [*panel.planned, *(x for series in panel.series for x, _, _ in series.ours if panel.planned)]
    if xs and min(xs) < max(xs):
        room = 0.06 * (max(xs) - min(xs))
        axes.set_xlim(min(xs) - room, max(xs) + room)
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
    if len(panel.ticks) > SHORT_AXIS:
        axes.tick_params(axis="x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")


def _draw_points(axes: Axes, points: Sequence[Point], look: tuple[str, str], ours: bool, joined: bool) -> None:
    (colour, mark), (x, y, half) = look, zip(*points, strict=True)
    axes.errorbar(
        x,
        y,
        yerr=half if any(half) else None,
        color=colour,
        linestyle=("-" if ours else "--") if joined and len(points) > 1 else "none",
        marker=mark if len(points) <= MARKED_POINTS else "",
        markerfacecolor=colour if ours else "white",
        linewidth=2.0 if ours else 1.2,
        elinewidth=1.0,
        capsize=3,
        zorder=3 if ours else 2,
    )


def _handles(names: Mapping[str, tuple[str, str]], shown: Sequence[Panel]) -> tuple[int, list[Line2D]]:
    """The number of lines of the legend, and its entries, column by column.

    First come the colours and markers of the series, then how ours and the paper's are drawn, in a separate column.
    """
    from matplotlib.lines import Line2D

    made = [
        Line2D([], [], color=colour, marker=mark, linestyle="none", label=name)
        for name, (colour, mark) in names.items()
    ]
    every, ways = [series for panel in shown for series in panel.series], []
    if any(series.ours for series in every):
        ways.append(Line2D([], [], color=GREY, marker="o", linestyle="-", label="ours"))
    if any(series.paper for series in every):
        ways.append(Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle="--", label="paper"))
    columns = 2 if max(map(len, names), default=0) > LONG_NAME else 3
    fits = sum(5 + len(str(handle.get_label())) for handle in made + ways) <= ONE_LINE
    lines = 1 if fits else max(2, -(-len(made) // columns))
    nothing = [Line2D([], [], linestyle="none", label=" ")]
    return lines, made + nothing * (-len(made) % lines) + ways + nothing * (-len(ways) % lines)
