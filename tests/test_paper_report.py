"""Tables and figures of the paper, with ours beside them, say what the records say, in every form."""

import csv
import io
import json
import re
import struct
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from fasten.contract import Recipe
from fasten.experiments import EXPERIMENTS, MINIATURE, PAPER
from fasten.experiments.spec import Cell, Curve, Experiment, Measure, key
from fasten.methods import METHODS
from fasten.records import Run
from fasten.report.names import paper_name
from fasten.report.paper import csv_text, digest, draw, drawing, latex, markdown, outcome_of, text_table
from fasten.report.paper_figures import fill, panels

ACCURACY = Measure(lambda record: 100 * record["result"]["test_accuracy"], "accuracy (%)", step=0.5)
TIME = Measure(lambda record: None, "time", share=0.05, lower_is_better=True)
SYM80, SYM20 = (Run("cifar10", f"symmetric:{rate}") for rate in (0.8, 0.2))
L2RW = replace(SYM80, method="l2rw")


def record(run, seed, accuracy, **more):
    made = {"run": replace(run, seed=seed).to_json(), "result": {"test_accuracy": accuracy}, "epochs": []}
    return json.loads(json.dumps({**made, **more}))


def cell(row="fasten", column="symmetric 80%", run=SYM80, **more):
    return Cell(row, column, ACCURACY, **{"paper": 79.52, "ci95": 0.78, "run": run, **more})


def table(*cells, **more):
    return Experiment("table", "A table", "table", cells, **more)


MAIN = table(
    cell(column="symmetric 20%", run=SYM20, paper=91.94, ci95=0.28, panel="CIFAR-10"),
    cell(panel="CIFAR-10"),
    cell("l2rw", run=L2RW, paper=42.6, ci95=1.71, panel="CIFAR-10"),
    cell("forward", run=None, paper=69.91, ci95=None, source="the VolMinNet paper", panel="CIFAR-10"),
    cell("fasten", run=replace(SYM80, dataset="cifar100"), paper=37.36, ci95=1.15, panel="CIFAR-100"),
    about="Known quirks & 100% of `--them`.",
)
RECORDS = [record(SYM80, 1, 0.79), record(SYM80, 2, 0.80), record(SYM80, 0, 0.81), record(L2RW, 1, 0.2423)]


def test_a_mean_is_over_the_seeds_with_students_interval():
    found = outcome_of(MAIN, RECORDS).results[1]
    assert found.values == (81.0, 79.0, 80.0)  # in the order of the seeds
    assert found.mean == pytest.approx(80)
    assert found.ci95 == pytest.approx(4.302653 / 3**0.5, rel=1e-6)  # t of two degrees of freedom
    assert [result.status for result in outcome_of(MAIN, RECORDS).results] == [
        *("not run", "reproduced", "below", "quoted", "not run"),
    ]


@pytest.mark.parametrize(
    "run",
    [
        replace(SYM80, noise="symmetric:0.6"),
        replace(SYM80, method="glc"),
        replace(SYM80, options={"threshold": 0.9}),
        replace(SYM80, recipe=Recipe(epochs=3)),
        replace(SYM80, clean=100),
        replace(SYM80, dataset="cifar100"),
    ],
)
def test_a_record_of_another_run_does_not_count(run):
    assert outcome_of(table(cell()), [record(run, 0, 0.8)]).results[0].values == ()


def test_of_a_search_the_run_counts_that_is_best_on_the_validation_rows_seed_by_seed():
    low, high = (replace(SYM80, options={"noisy_weight": weight}) for weight in (0.1, 1.0))

    def found(run, seed, test, valid):
        return record(run, seed, test) | {"result": {"test_accuracy": test, "valid_accuracy": valid}}

    records = [
        *(found(SYM80, 1, 0.74, 0.75), found(low, 1, 0.72, 0.74), found(high, 1, 0.76, 0.73)),  # not the test rows'
        *(found(SYM80, 2, 0.70, 0.71), found(high, 2, 0.73, 0.74)),
        found(low, 3, 0.71, 0.70),  # a seed that a rival alone has
        *(found(SYM80, 4, 0.78, 0.70), found(high, 4, 0.79, 0.70)),  # of equals the first
    ]
    searched = cell(rivals=(low, high))
    assert outcome_of(table(searched), records).results[0].values == pytest.approx((74.0, 73.0, 71.0, 78.0))
    assert outcome_of(table(cell()), records).results[0].values == pytest.approx((74.0, 70.0, 78.0))
    assert table(searched).runs([0]) == [SYM80, low, high]
    (line,) = csv.DictReader(io.StringIO(csv_text(outcome_of(table(searched), records))))
    assert line["run"].split() == [key(SYM80), key(low), key(high)]
    assert outcome_of(table(searched), [], running=[replace(high, seed=3)]).results[0].status == "running"


def test_a_record_from_before_clean_could_be_chosen_counts():
    old = record(SYM80, 1, 0.8)
    del old["run"]["clean"]
    assert outcome_of(table(cell()), [old]).results[0].values == (80.0,)


def test_what_is_under_way_is_running_until_it_has_a_result():
    unfinished = record(SYM80, 3, 0.8, result=None)
    assert outcome_of(table(cell()), [unfinished]).results[0].status == "not run"
    assert outcome_of(table(cell()), [unfinished], [replace(SYM80, seed=3)]).results[0].status == "running"
    assert outcome_of(table(cell()), RECORDS, [replace(SYM80, seed=3)]).results[0].status == "reproduced"


def test_a_bench_gives_the_times():
    times = table(*(Cell(row, "time", TIME, 2.0, bench=True) for row in ("a", "b", "c")))
    found = outcome_of(times, [], ratios={"a": 1.8, "b": 2.2})
    assert [result.status for result in found.results] == ["better", "below", "not run"]
    assert "1.80 " in text_table(found)  # and no number of seeds
    found = outcome_of(times, [], ratios={"a": 1.8}, timed_on="my GPU")
    assert all("measured on my GPU." in make(found) for make in (text_table, markdown, latex))
    assert "my GPU" not in text_table(outcome_of(MAIN, RECORDS, timed_on="my GPU"))  # which has no times


def test_a_curve_is_the_mean_over_seeds():
    line = Curve("true", SYM80, lambda record: [tuple(point) for point in record["points"]])
    two = [record(SYM80, 0, 0.8, points=[(1, 0.2), (2, 0.4)]), record(SYM80, 1, 0.8, points=[(1, 0.4), (3, 0.5)])]
    (found,) = outcome_of(Experiment("f", "F", "figure", curves=(line,)), two).lines
    assert (found.points, found.seeds) == (((1, pytest.approx(0.3)),), 2)


def test_text_has_its_columns_aligned():
    text = text_table(outcome_of(MAIN, RECORDS))
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("CIFAR-10 "))
    at = head.index("symmetric 80%")
    fasten = lines.index(next(line for line in lines if line.startswith("FasTEN")))
    assert [line[at:].strip() for line in lines[fasten : fasten + 3]] == [
        "80.00 ± 2.48 (3)",
        "79.52 ± 0.78",
        "reproduced",
    ]
    assert [line[at - 2 : at] for line in lines[fasten : fasten + 3]] == ["  "] * 3
    assert "5 cells: 1 reproduced, 1 below, 1 quoted, 2 not run." in text
    assert "Quoted, not run: Forward (the VolMinNet paper)." in text
    assert max(map(len, lines)) <= 110


def rows_of(text):
    """The cells of all Markdown tables."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


def test_markdown_has_ours_the_papers_and_the_status_in_each_cell():
    text = markdown(outcome_of(MAIN, RECORDS))
    rows = {row[0]: row[1:] for row in rows_of(text.partition("<details>")[0])}
    assert rows["FasTEN"] == ["–<br>91.94 ± 0.28<br>not run", "80.00 ± 2.48 (3)<br>79.52 ± 0.78<br>reproduced"]
    assert rows["L2RW"][1] == "24.23 (1)<br>42.60 ± 1.71<br>**below**"
    assert rows["Forward"][1] == "–<br>69.91<br>quoted"
    folded = re.findall(r"<details><summary>(.*?)</summary>\n\n(.*?)\n\n</details>", text, re.DOTALL)
    assert [(summary, "37.36 ± 1.15" in inside) for summary, inside in folded] == [("CIFAR-100: not run yet", True)]


def test_a_name_cannot_break_a_markdown_table():
    text = markdown(outcome_of(table(cell("a|b <i>"), cell("a|b <i>", "c&d")), RECORDS))
    assert "| a\\|b &lt;i> |" in text
    assert "| c&amp;d |" in text


def test_one_column_is_shown_side_by_side():
    text = markdown(outcome_of(table(cell(), cell("l2rw", run=L2RW, paper=42.6)), RECORDS))
    assert rows_of(text)[0] == ["symmetric 80%", "ours", "paper", "status"]
    assert rows_of(text)[3] == ["L2RW", "24.23 (1)", "42.60 ± 0.78", "**below**"]


def test_numbers_that_the_paper_lacks_stand_alone():
    ours = table(*(cell("fasten", name, paper=None, ci95=None) for name in ("a", "b")))
    assert rows_of(markdown(outcome_of(ours, RECORDS)))[2] == ["FasTEN", "80.00 ± 2.48 (3)", "80.00 ± 2.48 (3)"]
    assert "2 not in the paper" in markdown(outcome_of(ours, RECORDS))


def test_a_wide_table_is_turned_round():
    wide = table(*(cell(row, f"{x}%", x=x) for row in ("fasten", "mlac") for x in range(0, 101, 10)))
    rows = rows_of(markdown(outcome_of(wide, RECORDS)))
    assert rows[0] == ["FasTEN", "MLaC"]
    assert [row[0] for row in rows[2:]] == [f"{x}%" for x in range(0, 101, 10)]


def test_two_cells_at_one_place_are_refused():
    with pytest.raises(ValueError, match="same row and column"):
        markdown(outcome_of(table(cell(), cell()), []))


def test_csv_has_every_number_and_no_formula():
    odd = replace(MAIN, cells=(*MAIN.cells, cell("=1+1", "-column", source="@who")))
    rows = list(csv.DictReader(io.StringIO(csv_text(outcome_of(odd, RECORDS)))))
    assert len(rows) == len(odd.cells)
    fasten = rows[1]
    assert (float(fasten["mean"]), int(fasten["n"])) == (pytest.approx(80), 3)
    assert list(map(float, fasten["values"].split())) == [81.0, 79.0, 80.0]
    assert (fasten["paper"], fasten["paper_ci95"], fasten["status"]) == ("79.52", "0.78", "reproduced")
    assert fasten["run"].startswith("cifar10-fasten-symmetric-0.8-seed0-")
    assert [rows[3][name] for name in ("mean", "n", "run")] == ["", "0", ""]
    assert [rows[-1][name] for name in ("row", "column", "source")] == ["'=1+1", "'-column", "'@who"]


CURVE = Curve("true", SYM80, lambda record: [(1.0, 0.25), (2.0, 0.5)], ((1.0, 0.3), (3.0, 0.6)), "symmetric 80%")
CURVES = Experiment("curves", "Curves", "figure", curves=(CURVE,), x="epoch", y="diagonal")


def test_curves_stand_in_tables_point_by_point():
    found = outcome_of(CURVES, RECORDS)
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert [(row["x"], row["n"], row["mean"], row["paper"]) for row in rows] == [
        *(("1.0", "3", "0.25", "0.3"), ("2.0", "3", "0.5", ""), ("3.0", "0", "", "0.6")),
    ]
    assert rows_of(markdown(found))[0] == ["epoch", "true, ours (3)", "true, paper"]
    assert rows_of(markdown(outcome_of(CURVES, [])))[0] == ["epoch", "true, ours", "true, paper"]
    assert rows_of(markdown(found))[2] == ["1", "0.250", "0.300"]
    assert rows_of(markdown(found))[3] == ["3", "0.500 (at 2)", "0.600"]


def check_latex(text):
    """As far as one can see without LaTeX: groups, environments, cells of a row, characters."""
    bare = re.sub(r"\\[\\&%$#_{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not set("#_~`") & set(bare)
    assert "%" not in bare
    assert all(ord(c) < 0x180 for c in text)
    assert re.findall(r"\\begin{(\w+)}", text).count("table") == re.findall(r"\\end{(\w+)}", text).count("table")
    for columns, body in re.findall(r"\\begin{tabular}{(l?c*)}(.*?)\\end{tabular}", text, re.DOTALL):
        inside = re.sub(r"\\noalign{\\smallskip}|\[4pt]", "", body).replace(r"\&", "")
        lines = [line for line in inside.split(r"\\") if line.replace(r"\hline", "").strip()]
        assert {line.count("&") for line in lines} == {len(columns) - 1}


def test_latex_escapes_what_means_something_to_it():
    odd = table(cell(r"50% & #1_{x} ~ ^ \ $ T̂ − λ²", "ȳ | <a>"), about="A lone ` and 漢.")
    text = latex(outcome_of(odd, RECORDS))
    check_latex(text)
    assert r"50\% \& \#1\_\{x\}" in text
    assert r"$\hat{T}$ $-$ $\lambda$$^2$" in text
    assert r"80.00$\pm$2.48 (3)" in text


def test_latex_stacks_a_cell_beside_what_its_lines_are():
    text = latex(outcome_of(MAIN, RECORDS))
    lines = ["L2RW &  & 24.23 (1)", r"paper &  & 42.60$\pm$1.71", "status &  & below"]
    assert " \\\\\n".join(lines) + " \\\\[4pt]\n" in text
    flat = latex(outcome_of(table(cell()), RECORDS))  # one column: side by side
    assert r"FasTEN & 80.00$\pm$2.48 (3) & 79.52$\pm$0.78 & reproduced \\" in flat
    assert "[4pt]" not in flat


def widths(text: str) -> list[int]:
    """Of each table: the characters of its widest column texts together, as LaTeX shows them."""
    found = []
    for body in re.findall(r"\\begin{tabular}{l?c*}(.*?)\\end{tabular}", text, re.DOTALL):
        shown = re.sub(r"\\noalign{\\smallskip}|\[4pt]|\\hline|\\(?=%)", "", body).replace(r"$\pm$", "±")
        lines = [[part.strip() for part in line.split("&")] for line in shown.split(r"\\") if line.strip()]
        found.append(sum(max(map(len, column)) for column in zip(*lines, strict=True)))
    return found


@pytest.mark.parametrize(
    ("columns", "name", "size", "header"),
    [
        (3, "symmetric 80%", "scriptsize", "FasTEN &"),
        (5, "a name that is longer than the numbers", "scriptsize", "& a name that"),
        (6, "asymmetric 80%", "tiny", "& asymmetric"),
        (7, "asymmetric 80%", "tiny", "& (3)"),
    ],
)
def test_latex_breaks_what_is_too_wide_for_a_page(columns, name, size, header):
    cells = [cell(row, f"{name} {x}") for row in ("fasten", "mlac") for x in range(columns)]
    text = latex(outcome_of(table(*cells), RECORDS))
    check_latex(text)
    assert f"\\{size}\n" in text
    assert header in text
    assert max(widths(text)) + 1.5 * (columns + 1) <= (88 if size == "scriptsize" else 103)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_table_fits_a_page_of_latex(name):
    assert max(widths(latex(outcome_of(EXPERIMENTS[name](PAPER), [])))) <= 100


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("setting", [PAPER, MINIATURE], ids=["paper", "miniature"])
def test_every_table_and_figure_has_all_forms(name, setting):
    found = outcome_of(EXPERIMENTS[name](setting), [])
    check_latex(latex(found))
    assert len(list(csv.reader(io.StringIO(csv_text(found))))) > len(found.results)
    assert found.experiment.title in text_table(found)
    assert found.experiment.title in markdown(found)
    widths = [len(row) for row in rows_of(markdown(found))]
    assert min(widths) > 1


FIGURE = Experiment(
    "figure",
    "Accuracy by time",
    "figure",
    (
        Cell("fasten", "time", TIME, 1.0, panel="A", bench=True),
        cell(panel="A", x=1.0),
        Cell("l2rw", "time", TIME, 3.1, panel="A", bench=True),
        cell("l2rw", panel="A", x=3.1, run=L2RW, paper=42.6, ci95=1.71),
        cell("fasten", panel="B", x=None, run=SYM20),
        cell("mlac", "0%", panel="B", x=0.0, run=None),
        cell("mlac", "100%", panel="B", x=100.0, run=None),
    ),
    x="time",
    y="accuracy (%)",
)


def test_a_point_lies_at_our_time_and_our_accuracy():
    first, second = panels(outcome_of(FIGURE, RECORDS, ratios={"fasten": 1.0}))
    fasten, l2rw = first.series
    assert fasten.ours == [(1.0, pytest.approx(80), pytest.approx(2.484, abs=1e-3))]
    assert (l2rw.ours, l2rw.paper) == ([], [(3.1, 42.6, 1.71)])  # its time was not measured
    assert [series.level for series in second.series] == [True, False]  # a cell without x is a line across


def test_a_table_is_drawn_by_its_columns():
    (panel, _) = panels(outcome_of(MAIN, RECORDS))
    assert panel.ticks == ("symmetric 20%", "symmetric 80%")
    assert panel.series[0].paper == [(0.0, 91.94, 0.28), (1.0, 79.52, 0.78)]


def test_a_part_is_drawn_with_its_columns_in_the_order_of_the_whole():
    part = replace(MAIN, cells=(MAIN.cells[1], replace(MAIN.cells[0], row="l2rw")), whole=MAIN.cells)
    (panel,) = panels(outcome_of(part, RECORDS))
    assert panel.ticks == ("symmetric 20%", "symmetric 80%")
    assert panel.series[0].paper == [(1.0, 79.52, 0.78)]


def test_a_wide_range_has_a_logarithmic_axis_and_panels_their_own_axes():
    chi2 = replace(CURVE, of=lambda record: [(1.0, 0.5), (2.0, 0.001)], panel="χ²")
    figure = Figure(layout="constrained")
    fill(figure, outcome_of(replace(CURVES, curves=(CURVE, chi2)), RECORDS))
    assert [(axes.get_title(), axes.get_yscale()) for axes in figure.axes] == [
        *(("symmetric 80%", "linear"), ("χ²", "log")),
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["true", "ours", "paper"]


@pytest.mark.parametrize(
    ("methods", "lines"),
    [
        (["glc"], 1),
        (["fasten-no-lc", "glc", "mloc"], 1),
        (["fasten", "fasten-no-lc", "mslc", "mslc-no-lc", "mlac"], 2),
        (["fasten", "fasten-no-lc", "fasten-oracle"], 2),
        (["fasten", "l2rw", "mw-net", "deep-knn", "glc", "mloc", "mlac", "mslc"], 3),
        (list(METHODS)[:8], 4),
    ],
)
def test_a_legend_has_one_line_or_ours_and_the_papers_in_a_column_of_their_own(methods, lines):
    figure = Figure(layout="constrained")
    runs = [replace(SYM80, method=method) for method in methods]
    points = tuple(cell(run.method, x=1.0, run=run) for run in runs)
    fill(figure, outcome_of(replace(FIGURE, cells=points), [record(runs[0], 1, 0.5)]))
    figure.draw_without_rendering()
    texts = [text for text in figure.legends[0].get_texts() if text.get_text().strip()]
    assert [text.get_text() for text in texts[-2:]] == ["ours", "paper"]
    assert len(texts) == len(methods) + 2
    boxes = [text.get_window_extent() for text in texts]
    assert min(box.x0 for box in boxes) >= 0
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    *names, ours, paper = (round(box.x0) for box in boxes)
    assert max(names.count(x) for x in names) == lines
    assert (ours == paper) is (lines > 1)
    assert ours > max(names)


def test_drawings_are_the_same_bytes_each_time_and_name_their_data(tmp_path):
    found = outcome_of(FIGURE, RECORDS, ratios={"fasten": 1.0, "l2rw": 2.1})
    draw(found, tmp_path / "figure")
    svg, png = ((tmp_path / f"figure.{kind}").read_bytes() for kind in ("svg", "png"))
    assert (svg, png) == (drawing(found, "svg"), drawing(found, "png"))
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert digest(found).encode() in svg
    assert digest(found).encode() in png
    assert not re.search(rb"<dc:date>|tIME|[Mm]atplotlib v", svg + png)
    width, height = struct.unpack(">II", png[16:24])
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert width > height / 2
    assert digest(found) != digest(outcome_of(FIGURE, RECORDS[1:], ratios={"fasten": 1.0, "l2rw": 2.1}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.png", "figure.svg"]


def test_every_method_has_a_name_as_papers_write_it():
    names = {paper_name(method) for method in METHODS}
    assert len(names) == len(METHODS)
    assert not names & METHODS.keys()
