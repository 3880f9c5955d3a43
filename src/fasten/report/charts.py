"""Charts as SVG text, made by pure functions; they need no script, and the page's style sheet holds the colours.

Each part with values to read (an epoch, a cell, or a row of a large matrix) is a `spot` whose `<title>` says them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Literal

from markupsafe import Markup

Unit = Literal["percent", "number"]
Matrix = Sequence[Sequence[float | None]]

UNKNOWN = "not known"
WIDTH, HEIGHT = 460, 262
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 46, 42
MAP_WIDTH, LARGE_MAP_WIDTH = 360, 520
PRINTED_CLASSES = 20  # a larger matrix shows no values: they would not be legible
DECIMAL_CLASSES = 12  # a larger one shows whole percentages
NAME_LENGTH = 12
LIGHT_TEXT = 0.62  # shade from which text on a cell changes colour
SHADES = 24  # colours of a large matrix: one path each
MAX_STAGES = 6  # if there are more, the stages alternate, and their borders would hide the curves
MIN_LOG_RATIO = 20.0  # curves that span less are read better on a linear axis
LARGEST = 4  # entries listed for a row of a large matrix
DOT_ROW = 30  # height of a line of a dot plot


@dataclass(frozen=True)
class Series:
    """One curve; None is a gap in it."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Dot:
    """One line of a dot plot: a mean, half the width of its interval, and the shares that it is the mean of."""

    name: str
    mean: float | None
    half: float | None
    values: Sequence[float] = ()


@dataclass(frozen=True)
class Axis:
    """A scale from values to one coordinate of the drawing."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        share = 0.5 if high == low else (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def percent(value: float) -> str:
    """A fraction as a percentage.

    >>> percent(0.963)
    '96.3%'
    """
    return f"{100 * value:.1f}%"


def decimal(value: float) -> str:
    """A number to four digits.

    >>> decimal(0.0123456), decimal(12345.6)
    ('0.01235', '12,346')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def line_chart(
    label: str,
    x: Sequence[float],
    series: Sequence[Series],
    *,
    unit: Unit = "number",
    log: bool = False,
    marker: float | None = None,
    stages: Sequence[str] = (),
) -> Markup:
    """Curves over epochs; empty if no curve has a value.

    label is what screen readers read; x rises; marker is the selected epoch; stages names the stage of each x. log asks
    for a logarithmic axis, which is used only if all values are positive and span a wide range.

    >>> line_chart("Loss", [1, 2], [Series("loss", [None, None])])
    Markup('')
    """
    shown = [s for s in series if any(v is not None for v in s.values)]
    if not shown:
        return Markup("")
    across = Axis(x[0], x[-1], LEFT + 8, WIDTH - RIGHT - 8, epoch_ticks(x[0], x[-1]))
    up = value_axis([v for s in shown for v in s.values if v is not None], unit, log)
    named = stages if len(set(stages)) > 1 else ()
    parts = [_grid(across, up, unit), _stages(across, x, named), _legend(shown)]
    parts += [_curve(across, up, x, s.values, index) for index, s in enumerate(shown)]
    if marker is not None and x[0] <= marker <= x[-1]:
        parts.append(_marker(across, marker))
    parts.append(_spots(across, x, shown, unit, named))
    here = min(range(len(x)), key=lambda i: abs(x[i] - (x[-1] if marker is None else marker)))
    return _svg(label, WIDTH, HEIGHT, parts, at=here)


def nice_step(span: float, count: int, factors: Sequence[float]) -> float:
    """The smallest round step that covers the span in about count steps.

    >>> nice_step(0.43, 5, (1, 2, 2.5, 5, 10)), nice_step(60, 6, (1, 2, 5, 10))
    (0.1, 10.0)
    """
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    return power * next(f for f in factors if raw <= f * power * (1 + 1e-9))


def epoch_ticks(first: float, last: float) -> tuple[float, ...]:
    """Round epochs from first to last.

    >>> epoch_ticks(1, 60), epoch_ticks(1, 1)
    ((10.0, 20.0, 30.0, 40.0, 50.0, 60.0), (1.0,))
    """
    step = max(1.0, nice_step(max(last - first, 1.0), 6, (1, 2, 5, 10)))
    return tuple(k * step for k in range(math.ceil(first / step), math.floor(last / step) + 1))


def value_axis(values: Sequence[float], unit: Unit, log: bool) -> Axis:
    """A vertical axis with room for all values; shares stay between 0 and 100%."""
    low, high = min(values), max(values)
    bottom, top = HEIGHT - BOTTOM, TOP
    if log and low > 0 and high / low >= MIN_LOG_RATIO:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = tuple(10.0**k for k in decades)
        return Axis(ticks[0], ticks[-1], bottom, top, ticks[:: math.ceil(len(ticks) / 7)], log=True)
    room = max(high - low, 0.05 if unit == "percent" else 0.1 * abs(high), 1e-9)
    step = nice_step(room, 4, (1, 2, 2.5, 5, 10))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if first == last:
        first, last = first - 1, last + 1
    if unit == "percent" and low >= 0 and high <= 1:
        first, last = max(first, 0), min(last, round(1 / step))
    ticks = tuple(k * step for k in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], bottom, top, ticks)


def _svg(label: str, width: float, height: float, parts: Sequence[Markup], **data: int) -> Markup:
    start = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}"{}>')
    extra = Markup("").join(Markup(' data-{}="{}"').format(*item) for item in data.items())
    return start.format(_c(width), _c(height), label, extra) + Markup("").join(parts) + Markup("</svg>")


def _c(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(unit: Unit, value: float) -> str:
    return percent(value) if unit == "percent" else decimal(value)


def _tick(unit: Unit, value: float) -> str:
    return f"{100 * value:.4g}%" if unit == "percent" else f"{value:.4g}"


def _grid(across: Axis, up: Axis, unit: Unit) -> Markup:
    right, bottom = _c(WIDTH - RIGHT), HEIGHT - BOTTOM
    line = Markup('<path d="M{} {}H{}"/>')
    rules = Markup("").join(line.format(LEFT, _c(up.at(t)), right) for t in up.ticks)
    text = Markup('<text x="{}" y="{}">{}</text>')
    rows = Markup("").join(text.format(LEFT - 6, _c(up.at(t) + 4), _tick(unit, t)) for t in up.ticks)
    below = Markup("").join(text.format(_c(across.at(t)), bottom + 17, f"{t:g}") for t in across.ticks)
    return Markup(
        '<g class="grid">{}</g><g class="ticks end">{}</g><g class="ticks mid">{}<text x="{}" y="{}">epoch</text></g>'
    ).format(rules, rows, below, _c((across.start + across.end) / 2), HEIGHT - 8)


def _stages(across: Axis, x: Sequence[float], stages: Sequence[str]) -> Markup:
    starts = [i for i in range(len(stages)) if i == 0 or stages[i] != stages[i - 1]]
    if len(starts) > MAX_STAGES:
        return Markup("")
    bottom = HEIGHT - BOTTOM
    parts = []
    for i in starts:
        at = across.at((x[i] + x[i - 1]) / 2) if i else float(LEFT)
        border = Markup('<path d="M{} {}V{}"/>').format(_c(at), TOP, bottom) if i else Markup("")
        parts.append(border + Markup('<text x="{}" y="{}">{}</text>').format(_c(at + 4), bottom - 5, _short(stages[i])))
    return Markup('<g class="stages">{}</g>').format(Markup("").join(parts))


def _legend(series: Sequence[Series]) -> Markup:
    parts, at = [], float(LEFT)
    for index, s in enumerate(series):
        line = Markup('<path class="line s{}" d="M{} 12h20"/><text x="{}" y="16">{}</text>')
        parts.append(line.format(index, _c(at), _c(at + 25), s.name))
        at += 43 + 7.4 * len(s.name)
    return Markup('<g class="legend">{}</g>').format(Markup("").join(parts))


def _curve(across: Axis, up: Axis, x: Sequence[float], values: Sequence[float | None], index: int) -> Markup:
    path, dots = [], []
    for i, value in enumerate(values):
        if value is None:
            continue
        before, after = i > 0 and values[i - 1] is not None, i + 1 < len(values) and values[i + 1] is not None
        point = (_c(across.at(x[i])), _c(up.at(value)))
        path.append(f"{'L' if before else 'M'}{point[0]} {point[1]}")
        if not before and not after:
            dots.append(Markup('<circle class="dot s{}" cx="{}" cy="{}" r="3.5"/>').format(index, *point))
    return Markup('<path class="line s{}" d="{}"/>').format(index, "".join(path)) + Markup("").join(dots)


def _marker(across: Axis, epoch: float) -> Markup:
    at = across.at(epoch)
    left = at > WIDTH / 2
    return Markup('<g class="marker{}"><path d="M{} {}V{}"/><text x="{}" y="{}">selected: {}</text></g>').format(
        " end" if left else "", _c(at), TOP - 12, HEIGHT - BOTTOM, _c(at + (-4 if left else 4)), TOP - 5, f"{epoch:g}"
    )


def _spots(across: Axis, x: Sequence[float], series: Sequence[Series], unit: Unit, stages: Sequence[str]) -> Markup:
    centres = [across.at(v) for v in x]
    edges = [float(LEFT), *((a + b) / 2 for a, b in pairwise(centres)), float(WIDTH - RIGHT)]
    spot = Markup('<rect class="spot" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>')
    parts = []
    for i, epoch in enumerate(x):
        read = [f"{s.name} {UNKNOWN if (v := s.values[i]) is None else _text(unit, v)}" for s in series]
        where = f"Epoch {epoch:g}" + (f" ({stages[i]})" if stages else "")
        width = _c(edges[i + 1] - edges[i])
        parts.append(spot.format(_c(edges[i]), TOP, width, HEIGHT - BOTTOM - TOP, f"{where}: {'; '.join(read)}"))
    return Markup("").join(parts)


def dot_plot(label: str, dots: Sequence[Dot]) -> Markup:
    """Shares, each on a line of its own; empty if none is known. Intervals are cut off at 0 and 1.

    >>> dot_plot("Accuracy", [Dot("fasten", None, None)])
    Markup('')
    """
    known = [v for dot in dots if dot.mean is not None for v in (*_ends(dot.mean, dot.half), *dot.values)]
    if not known:
        return Markup("")
    left, bottom = 16 + 7.4 * max(len(dot.name) for dot in dots), 8 + DOT_ROW * len(dots)
    across = replace(value_axis(known, "percent", False), start=left + 8, end=WIDTH - RIGHT - 8.0)
    rule = Markup('<path d="M{} 8V{}"/>')
    rules = Markup("").join(rule.format(_c(across.at(t)), bottom) for t in across.ticks)
    text = Markup('<text x="{}" y="{}">{}</text>')
    ticks = Markup("").join(text.format(_c(across.at(t)), bottom + 17, _tick("percent", t)) for t in across.ticks)
    middles = [8 + DOT_ROW * (i + 0.5) for i in range(len(dots))]
    names = Markup("").join(text.format(_c(left), _c(y + 4), d.name) for d, y in zip(dots, middles, strict=True))
    frame = '<g class="grid">{}</g><g class="ticks mid">{}</g><g class="ticks end">{}</g>'
    lines = [_dot_line(across, dot, y) for dot, y in zip(dots, middles, strict=True)]
    return _svg(label, WIDTH, bottom + 24, [Markup(frame).format(rules, ticks, names), *lines])


def _ends(mean: float, half: float | None) -> tuple[float, float]:
    return max(0.0, mean - (half or 0.0)), min(1.0, mean + (half or 0.0))


def _dot_line(across: Axis, dot: Dot, y: float) -> Markup:
    if dot.mean is None:
        return Markup("")
    low, high = (_c(across.at(end)) for end in _ends(dot.mean, dot.half))
    interval = "" if dot.half is None else f" ± {100 * dot.half:.1f}"
    seeds = Markup("").join(
        Markup('<circle class="dot s1" cx="{}" cy="{}" r="2.2"/>').format(_c(across.at(v)), _c(y)) for v in dot.values
    )
    return Markup(
        '<path class="line s0" d="M{low} {y}H{high}"/><circle class="dot s0" cx="{at}" cy="{y}" r="5"/>{seeds}'
        '<rect class="spot" x="0" y="{top}" width="{width}" height="{row}"><title>{title}</title></rect>'
    ).format(
        **{"low": low, "high": high, "y": _c(y), "at": _c(across.at(dot.mean)), "seeds": seeds},
        **{"top": _c(y - DOT_ROW / 2), "width": WIDTH, "row": DOT_ROW},
        title=f"{dot.name}: {percent(dot.mean)}{interval}",
    )


def shade(value: float) -> float:
    """How dark a probability is drawn: its square root, so that small ones are visible.

    >>> shade(0.04)
    0.2
    """
    return round(math.sqrt(min(max(value, 0.0), 1.0)), 3)


def heat_map(label: str, matrix: Matrix, names: Sequence[str], *, columns: str = "given label") -> Markup:
    """A row-stochastic N×N matrix, true classes down and labels across; cells show their values if N ≤ 20."""
    size = len(matrix)
    width = MAP_WIDTH if size <= DECIMAL_CLASSES else LARGE_MAP_WIDTH
    font = min(12.0, 0.7 * width / min(size, PRINTED_CLASSES))
    room = 26 + 0.62 * font * max(len(_short(name)) for name in names)
    cell = (width - room - 2) / size
    draw = _cells if size <= PRINTED_CLASSES else _rows
    parts = [_names(names, room, cell, font, columns), draw(matrix, names, room, cell)]
    frame = Markup('<path class="frame" d="M{0} {0}h{1}v{1}h-{1}z"/>').format(_c(room), _c(cell * size))
    stride = size if size <= PRINTED_CLASSES else 1
    return _svg(label, width, width, [*parts, frame], stride=stride)


def heat_key() -> Markup:
    """The colours of `heat_map` and what they stand for."""
    box = Markup(
        '<rect class="heat" x="{}" y="1" width="48" height="14" fill-opacity="{}"/><text x="{}" y="28">{}</text>'
    )
    values = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0)
    boxes = [box.format(1 + 48 * i, shade(v), 25 + 48 * i, f"{100 * v:g}%") for i, v in enumerate(values)]
    frame = Markup('<path class="frame" d="M1 1h288v14h-288z"/>')
    return _svg("Colour scale from 0% to 100%", 290, 32, [Markup('<g class="mid">'), *boxes, frame, Markup("</g>")])


def _short(name: str) -> str:
    """A long name shortened to both of its ends, since either may tell it from the others."""
    return name if len(name) <= NAME_LENGTH else f"{name[:7]}…{name[-4:]}"


def _names(names: Sequence[str], room: float, cell: float, font: float, columns: str) -> Markup:
    step = math.ceil(len(names) / PRINTED_CLASSES)
    upright = max(map(len, names)) * 0.6 * font < cell
    centres = [(room + cell * (i + 0.5), _short(names[i])) for i in range(0, len(names), step)]
    row = Markup('<text x="{}" y="{}">{}</text>')
    down = Markup("").join(row.format(_c(room - 5), _c(at + 0.35 * font), name) for at, name in centres)
    if upright:
        tops = Markup("").join(row.format(_c(at), _c(room - 5), name) for at, name in centres)
    else:
        turned = Markup('<text transform="translate({} {})rotate(-90)">{}</text>')
        tops = Markup("").join(turned.format(_c(at + 0.35 * font), _c(room - 5), name) for at, name in centres)
    middle = _c(room + cell * len(names) / 2)
    return Markup(
        '<g class="names" font-size="{}"><g class="end">{}</g><g class="{}">{}</g></g>'
        '<g class="names mid" font-size="12"><text x="{}" y="11">{}</text>'
        '<text transform="translate(11 {})rotate(-90)">true class</text></g>'
    ).format(_c(font), down, "mid" if upright else "", tops, middle, columns, middle)


def _entry(value: float | None) -> str:
    return UNKNOWN if value is None else percent(value)


def _cells(matrix: Matrix, names: Sequence[str], room: float, cell: float) -> Markup:
    fine = len(matrix) <= DECIMAL_CLASSES
    font = min(14.0, (0.36 if fine else 0.45) * cell)
    box = Markup(
        '<g class="spot{}"><title>true {} → {}: {}</title>'
        '<rect x="{}" y="{}" width="{w}" height="{w}" fill-opacity="{}"/>'
        '<text x="{}" y="{}">{}</text></g>'
    )
    parts = []
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            x, y, dark = room + cell * j, room + cell * i, shade(value or 0.0)
            text = "?" if value is None else "0" if value == 0 else f"{100 * value:.{1 if fine else 0}f}"
            middle = (_c(x + cell / 2), _c(y + cell / 2 + 0.35 * font))
            lit = " lit" if dark > LIGHT_TEXT else ""
            parts.append(
                box.format(lit, names[i], names[j], _entry(value), _c(x), _c(y), dark, *middle, text, w=_c(cell))
            )
    return Markup('<g class="cells mid" font-size="{}">{}</g>').format(_c(font), Markup("").join(parts))


def _rows(matrix: Matrix, names: Sequence[str], room: float, cell: float) -> Markup:
    """One path for each shade, in units of a cell, and one spot for each row: this stays small for any N."""
    paths: dict[int, list[str]] = {}
    for i, row in enumerate(matrix):
        j = 0
        for level, alike in groupby(round(SHADES * shade(value or 0.0)) for value in row):
            n = len(list(alike))
            paths.setdefault(level, []).append(f"M{j} {i}h{n}v1h-{n}z")
            j += n
    paths.pop(0, None)
    path = Markup('<path fill-opacity="{}" d="{}"/>')
    shades = Markup("").join(path.format(round(k / SHADES, 3), "".join(d)) for k, d in sorted(paths.items()))
    spot = Markup('<rect class="spot" y="{}" width="{}" height="1"><title>{}</title></rect>')
    spots = Markup("").join(
        spot.format(i, len(row), f"true {names[i]} → {_largest(row, names)}") for i, row in enumerate(matrix)
    )
    where = Markup('transform="translate({0} {0})scale({1})"').format(_c(room), f"{cell:.5g}")
    return Markup('<g class="cells" {}>{}{}</g>').format(where, shades, spots)


def _largest(row: Sequence[float | None], names: Sequence[str]) -> str:
    known = sorted(((v, -j) for j, v in enumerate(row) if v is not None), reverse=True)[:LARGEST]
    return ", ".join(f"{names[-j]} {percent(v)}" for v, j in known) or UNKNOWN
