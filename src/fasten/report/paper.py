"""Tables and figures of the paper with our results beside its numbers: text, Markdown, CSV, LaTeX, SVG and PNG."""

from fasten.report.outcomes import Outcome, Result, outcome_of
from fasten.report.paper_figures import digest, draw, drawing
from fasten.report.paper_tables import counts, csv_text, latex, markdown, text_table

__all__ = [
    "Outcome",
    "Result",
    "counts",
    "csv_text",
    "digest",
    "draw",
    "drawing",
    "latex",
    "markdown",
    "outcome_of",
    "text_table",
]
