"""What the verified rows say about a run's audit: T with intervals, precision, calibration, and warnings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fasten.report.charts import Matrix, percent
from fasten.report.values import Record, count, counted, finite, mapping, matrix, number, odd_sample, some, verb

MAX_CLASSES = 30  # lines of the table; with more classes, those whose labels are least often right
TOP_PAIRS = 10
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 320, 48, 20, 28, 40  # of the calibration picture
PRECISION = "Corrections that are right"
UNCALIBRATED = (
    "No row with a given label was verified at random, so the probabilities are uncalibrated and T is a "
    "model's estimate.",
    "To change this, let the first command choose rows to verify, half of them at random. Write the right label of "
    "each into the column verdict; the second command then makes a list of the verdicts, for training again with "
    "--verified. DIR is the folder of this report.",
)
REVIEW = ("fasten audit DIR --next 100 --out review.csv", "fasten audit DIR --import review.csv --out verified.csv")


@dataclass(frozen=True)
class Share:
    """An entry of the counted T, with its 95% interval: `k` of the `n` verified rows of a class have this label."""

    true: str
    given: str
    k: int
    n: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Score:
    """k of n rows as a share, with its 95% interval if the rows are a random sample."""

    name: str
    about: str
    share: float | None
    k: float
    n: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Trust:
    """How far the audit can be trusted, for the page."""

    sentences: tuple[str, ...]
    commands: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    classes: tuple[Share, ...] = ()
    num_classes: int = 0
    pairs: tuple[Share, ...] = ()
    wrong: Score | None = None
    scores: tuple[Score, ...] = ()
    picture: str = ""
    counted: Matrix | None = None

    @property
    def precision(self) -> Score | None:
        """The precision of the corrections; None if none could be judged."""
        return next((score for score in self.scores if score.name == PRECISION and score.n), None)


def trust_of(evaluation: Record, data: Record, names: Sequence[str]) -> Trust | None:
    """What the page says about trust; without random verdicts, None if the truth is known or nothing was evaluated."""
    evidence = mapping(evaluation, "evidence")
    if not number(evidence, "num_random"):
        unknown = evaluation and number(data, "noise_rate") is None
        return Trust(UNCALIBRATED, REVIEW, _warnings(evidence)) if unknown else None
    transition = mapping(evidence, "transition")
    right = sorted(_right_shares(transition, names), key=lambda share: share.mean)
    wrong = sorted(_wrong_shares(transition, names), key=lambda share: -share.mean)
    return Trust(
        sentences=tuple(_sentences(evidence)),
        warnings=_warnings(evidence),
        classes=tuple(right[:MAX_CLASSES]),
        num_classes=len(right),
        pairs=tuple(wrong[:TOP_PAIRS]),
        wrong=_wrong(evidence),
        scores=tuple(_scores(evidence)),
        picture=_reliability_picture(mapping(evidence, "calibration")),
        counted=matrix(transition.get("mean")),
    )


def _warnings(evidence: Record) -> tuple[str, ...]:
    texts = (evidence.get("doubt"), *(mapping(evidence, key).get("warning") for key in ("dependence", "sample")))
    return tuple(f"{text[:1].upper()}{text[1:]}." for text in texts if isinstance(text, str) and text)


def _sentences(evidence: Record) -> list[str]:
    random, held = number(evidence, "num_random") or 0, number(evidence, "num_held") or 0
    odd = odd_sample(evidence)
    were = ("counts as", "count as") if odd else ("was", "were")
    verified = verb(random, f"with a given label {were[0]} verified", f"with a given label {were[1]} verified")
    found = [
        f"{some(random, 'row')} {verified} at random: T is counted from {verb(random, 'it', 'them')}. "
        f"{count(held)} of them {verb(held, 'was', 'were')} held back, which hides their verdict from training; "
        "calibration and precision are measured on these alone. All intervals are 95% intervals."
    ]
    if wrong := counted(mapping(evidence, "wrong")):
        k, n, low, high = wrong
        all_labels = f" (95% interval for all labels: {percent(low)} to {percent(high)}); no model is involved in this"
        wrong_ones = f"{count(k)} of their {some(n, 'label')} {verb(k, 'is', 'are')} wrong"
        found.append(f"{wrong_ones}{', which says nothing about the others' if odd else all_labels}.")
    calibration = mapping(evidence, "calibration")
    why = calibration.get("uncalibrated")
    if isinstance(why, str):
        found.append(f"The probabilities are uncalibrated: {why}.")
    elif (after := number(mapping(calibration, "after"), "ece")) is not None:
        before = number(mapping(calibration, "before"), "ece")
        was = "" if before is None else f" (the model's own by {percent(before)})"
        chance = _off_by_chance(_bins(mapping(calibration, "after").get("bins")))
        found.append(
            f"The probabilities are calibrated. On rows not used for this, they are off by {percent(after)}{was}; with "
            f"this many rows, chance alone accounts for about {percent(chance)}."
        )
    choice = mapping(evidence, "threshold").get("sentence")
    if isinstance(choice, str) and choice:
        found.append(f"{choice[:1].upper()}{choice[1:]}.")
    return found


def _wrong(evidence: Record) -> Score | None:
    """The wrong labels among the rows verified at random; None if they were not counted."""
    if (wrong := counted(mapping(evidence, "wrong"))) is None:
        return None
    k, n, *interval = wrong
    low, high = (None, None) if odd_sample(evidence) else interval
    return Score("Wrong among verified rows", "no model is involved", k / n, k, n, low, high)


def _scores(evidence: Record) -> list[Score]:
    calibrated = mapping(evidence, "calibration").get("after")
    unseen = ", each judged by a calibration that had not seen it" if calibrated else ""
    about = {
        "precision": (PRECISION, f"of the held-back rows whose label would be changed{unseen}"),
        "recall": ("Wrong labels that are found", "of the wrong labels among the held-back rows"),
    }
    scores = []
    for key, (name, text) in about.items():
        part = mapping(mapping(evidence, "corrections"), key)
        k, n = number(part, "k"), number(part, "n")
        low, high = (None if odd_sample(evidence) else number(part, bound) for bound in ("low", "high"))
        if k is not None and n is not None:
            scores.append(Score(name, text, k / n if n else None, k, n, low, high))
    return scores


def _wrong_shares(transition: Record, names: Sequence[str]) -> list[Share]:
    """For each class with verified rows, the wrong labels that some of them have."""
    parts = [matrix(transition.get(key)) for key in ("counts", "mean", "low", "high")]
    if any(part is None or len(part) != len(names) for part in parts):
        return []
    counts, mean, low, high = ([[entry or 0.0 for entry in row] for row in part] for part in parts if part)
    found = []
    for i, row in enumerate(counts):
        n = sum(row)
        for j, entry in enumerate(row):
            if n and (k := round(entry)) and names[j] != names[i]:
                found.append(Share(names[i], names[j], k, round(n), mean[i][j], low[i][j], high[i][j]))
    return found


def _right_shares(transition: Record, names: Sequence[str]) -> list[Share]:
    """For each class with verified rows, how many labels are right."""
    found, listed = [], transition.get("right")
    for name, part in zip(names, listed if isinstance(listed, list) else (), strict=False):
        if right := counted(part if isinstance(part, dict) else {}):
            k, n, low, high = right
            found.append(Share(name, name, round(k), round(n), k / n, low, high))
    return found


def _reliability_picture(calibration: Record) -> Markup:
    """A reliability diagram: the share of wrong labels by tenths of p_wrong, before and after calibration."""
    kinds = (("before", "before calibration", "s1"), ("after", "calibrated", "s0"))
    bins = {key: _bins(mapping(calibration, key).get("bins")) for key, _, _ in kinds}
    shown = [kind for kind in kinds if bins[kind[0]]]
    if not shown:
        return Markup("")
    most = max(rows for found in bins.values() for _, _, rows in found)
    curves = [_curve(bins[key], name, style, most) for key, name, style in shown]
    legend = [
        Markup('<path class="line {}" d="M{} 12h20"/><text x="{}" y="16">{}</text>').format(style, x, x + 25, name)
        for x, (_, name, style) in zip((LEFT, LEFT + 165), shown, strict=False)
    ]
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="Calibration: p_wrong against the share of wrong labels">'
        '{}<g class="legend">{}</g>{}</svg>'
    ).format(WIDTH, HEIGHT, _frame(), Markup("").join(legend), Markup("").join(curves))


def _bins(value: Any) -> list[tuple[float, float, float]]:
    rows = [[finite(entry) for entry in row] for row in value or () if isinstance(row, Sequence) and len(row) == 3]
    return [(p, share, n) for p, share, n in rows if p is not None and share is not None and n]


def _off_by_chance(bins: Sequence[tuple[float, float, float]]) -> float:
    """How far off exact probabilities would seem on average: of n rows with p, |share − p| is √(2 p (1 − p) / π n)."""
    total = sum(n for _, _, n in bins)
    return sum(math.sqrt(2 / math.pi * p * (1 - p) * n) for p, _, n in bins) / max(total, 1)


def _x(p: float) -> float:
    return LEFT + p * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def _frame() -> Markup:
    marks = (0, 0.25, 0.5, 0.75, 1)
    rules = Markup("").join(Markup('<path d="M{} {:.1f}H{}"/>').format(LEFT, _y(m), WIDTH - RIGHT) for m in marks)
    text = Markup('<text x="{:.1f}" y="{:.1f}">{:g}%</text>')
    up = Markup("").join(text.format(LEFT - 6, _y(m) + 4, 100 * m) for m in marks)
    across = Markup("").join(text.format(_x(m), _y(0) + 17, 100 * m) for m in marks)
    return Markup(
        '<g class="grid">{}'
        '<path d="M{:.1f} {:.1f}L{:.1f} {:.1f}" style="stroke:var(--soft)" stroke-dasharray="4 4"/></g>'
        '<g class="ticks end">{}</g><g class="ticks mid">{}<text x="{:.1f}" y="{:.1f}">p_wrong</text></g>'
    ).format(rules, _x(0), _y(0), _x(1), _y(1), up, across, _x(0.5), _y(0) + 34)


def _curve(bins: Sequence[tuple[float, float, float]], name: str, style: str, most: float) -> Markup:
    line = "L".join(f"{_x(p):.1f} {_y(share):.1f}" for p, share, _ in bins)
    dot = Markup(
        '<g class="spot"><title>{}: p_wrong {} on average, {} of {} rows wrong ({})</title>'
        '<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="{:.1f}" fill-opacity=".75"/></g>'
    )
    dots = [
        dot.format(
            name, percent(p), round(share * n), count(n), percent(share), style, _x(p), _y(share), _radius(n, most)
        )
        for p, share, n in bins
    ]
    return Markup('<path class="line {}" d="M{}"/>{}').format(style, line, Markup("").join(dots))


def _radius(rows: float, most: float) -> float:
    return 3 + 6 * math.sqrt(rows / most)
