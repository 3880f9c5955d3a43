"""The page of a run: its sentences and numbers, and that it survives any record."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from example_record import example_record
from fasten.report import render, write_report
from fasten.report.charts import Series, epoch_ticks, heat_map, line_chart, nice_step, shade, value_axis

VOID = {"meta", "br"}
EVIL = "<script>alert('x & \"y\"')</script>"


class Page(HTMLParser):
    """What a page holds: its text, its attributes; a tag that is not closed in its turn is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and "script" not in self.open:
            self.words.append(data)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a record holds something: every key, at any depth outside lists, and the list items of the first epoch."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and path == ("epochs",):
        yield from leaves(value[0], (*path, 0))


def changed(record: dict[str, Any], path: tuple[Any, ...], how: str) -> dict[str, Any]:
    """The record with the value at this place null, or missing."""
    place: Any = record
    for key in path[:-1]:
        place = place[key]
    if how == "null":
        place[path[-1]] = None
    else:
        del place[path[-1]]
    return record


def all_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: all_null(item) for key, item in value.items()}
    return [all_null(item) for item in value] if isinstance(value, list) else None


def compared(ours: float | None, alone: float | None, *, rows: int | None = 100, split: str = "valid") -> str:
    """The text of a run with these accuracies on one split; on the other split nothing is known."""
    record = example_record(num_epochs=2)
    for other in ("valid_accuracy", "test_accuracy"):
        record["result"][other] = record["references"]["clean_only"][other] = None
    record["result"][f"{split}_accuracy"] = ours
    record["references"]["clean_only"][f"{split}_accuracy"] = alone
    record["data"][f"rows_{split}"] = rows
    return Page(render(record)).text


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(example_record()))


def test_the_same_record_gives_the_same_bytes() -> None:
    record = example_record()
    again = json.loads(json.dumps(record))
    before = copy.deepcopy(record)
    assert render(record) == render(record) == render(again)
    assert record == before


def test_the_file_holds_the_text(tmp_path: Path) -> None:
    record = example_record(num_epochs=3)
    write_report(record, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render(record)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_the_page_starts_as_html_and_names_the_run() -> None:
    html = render(example_record())
    assert html.lstrip().startswith("<!DOCTYPE html>")
    assert "<title>FasTEN on digits</title>" in html
    here = example_record()
    here["run"]["dataset"] = "."
    assert "<title>FasTEN on the folder .</title>" in render(here)
    assert "40% symmetric noise" in html


@pytest.mark.parametrize("own", [{}, {"verified": "verified.txt"}])
def test_noise_is_named_for_own_data_only_if_some_was_added(own: dict[str, str]) -> None:
    record = example_record()
    record["run"]["own"] = own
    assert "40% symmetric noise" in Page(render(record)).text
    record["run"]["noise"] = "none"
    assert "no noise added" not in Page(render(record)).text


def test_the_page_needs_nothing_from_outside(page: Page) -> None:
    html = render(example_record())
    links = [value for name, value in page.attributes if name in ("src", "href", "action", "data", "srcset")]
    assert all(link is not None and link.startswith("#") for link in links)
    assert not {"link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert not re.search(r"https?:|@import|url\(", html)


@pytest.mark.parametrize(
    ("num_classes", "num_epochs", "limit"), [(10, 70, 300_000), (20, 70, 400_000), (100, 200, 1_500_000)]
)
def test_the_page_stays_small(num_classes: int, num_epochs: int, limit: int) -> None:
    assert len(render(example_record(num_classes, num_epochs)).encode()) < limit


@pytest.mark.parametrize(
    ("num_classes", "num_epochs"), [(2, 200), (3, 1), (12, 2), (13, 60), (20, 1), (21, 5), (100, 3)]
)
def test_any_size_gives_a_whole_page(num_classes: int, num_epochs: int) -> None:
    page = Page(render(example_record(num_classes, num_epochs)))
    assert not re.search(r"\b(nan|inf|None|Undefined)\b", page.text)


def test_the_numbers_of_the_record_stand_on_the_page(page: Page) -> None:
    record = example_record()
    text = page.text
    for accuracy in ("96.3%", "90.1%", "72.2%", "97.0%", "91.0%"):
        assert accuracy in text
    last = f"{100 * record['result']['test_accuracy_last']:.1f}%"
    assert f"last epoch: {last}" in text
    assert "examples per second: 12,345" in text
    assert "truly wrong labels: 36.0%" in text
    for score in ("95.3%", "94.2%", "0.2019", "0.3084", "0.1874", "0.9813", "0.9722", "0.9846", "0.9751"):
        assert score in text
    for size in ("1,197", "0.0132", "0.0317", "9.8 s", "0.7 s", "720 updates"):
        assert size in text


def test_every_epoch_is_in_the_table_and_under_the_pointer(page: Page) -> None:
    for epoch in example_record()["epochs"]:
        valid, test = (f"{100 * epoch[key]:.1f}%" for key in ("valid_accuracy", "test_accuracy"))
        assert f"Epoch {epoch['epoch']}: validation {valid}; test {test}" in page.text
        assert f"{epoch['epoch']} train {valid} {test}" in page.text


def test_the_noise_found_is_what_the_estimated_matrix_lacks_on_its_diagonal(page: Page) -> None:
    given = example_record()["evaluation"]["transition"]["given"]
    found = 1 - sum(row[i] for i, row in enumerate(given)) / len(given)
    assert f"Noise found {100 * found:.1f}%" in page.text


def test_the_tiles_show_the_selected_epoch() -> None:
    record = example_record()
    record["epochs"][54]["corrected_fraction"] = 0.1234
    assert "Labels corrected 12.3%" in Page(render(record)).text


def test_memory_is_shown_where_it_was_measured(page: Page) -> None:
    record = example_record(num_epochs=2)
    record["result"]["peak_memory_bytes"] = 3_140_000_000
    assert "peak memory: 3.1 GB" in Page(render(record)).text
    assert "peak memory" not in page.text


def test_the_matrices_are_printed_cell_by_cell(page: Page) -> None:
    transition = example_record()["evaluation"]["transition"]
    for matrix in (transition["given"], transition["true"], transition["estimated"]):
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                shown = "0" if value == 0 else f"{100 * value:.1f}"
                assert f"true {i} → {j}: {100 * value:.1f}% {shown}" in page.text


def test_the_most_confused_pairs_come_largest_first() -> None:
    record = example_record(3, 2)
    record["data"]["class_names"] = ["cat", "dog", "cow"]
    record["evaluation"]["transition"]["given"] = [[0.8, 0.15, 0.05], [0.3, 0.7, 0.0], [0.0, 0.01, 0.99]]
    record["evaluation"]["transition"]["true"] = None
    text = Page(render(record)).text
    wanted = "dog cat 30.0% not known cat dog 15.0% not known cat cow 5.0% not known cow dog 1.0% not known"
    assert wanted in text


@pytest.mark.parametrize("path", list(leaves(example_record(3, 2))), ids=lambda path: ".".join(map(str, path)))
def test_any_value_may_be_null_or_missing(path: tuple[Any, ...]) -> None:
    null, missing = (changed(example_record(3, 2), path, how) for how in ("null", "missing"))
    for record in (null, missing):
        assert not re.search(r"\b(nan|None|Undefined)\b", Page(render(record)).text)


def test_a_record_of_nulls_says_what_is_not_known() -> None:
    text = Page(render(all_null(example_record(3, 2)))).text
    assert "Test accuracy not known" in text
    assert "Against simpler training" not in text
    assert "How the classes" not in text
    assert "How well labels" not in text


def test_values_that_are_no_numbers_count_as_not_known() -> None:
    record = example_record(3, 4)
    record["epochs"][1]["loss"] = math.nan
    record["result"]["test_accuracy"] = math.inf
    record["evaluation"]["transition"]["given"][0][1] = None
    text = Page(render(record)).text
    assert "Epoch 2: loss not known" in text
    assert "Test accuracy not known" in text
    assert "true 0 → 1: not known ?" in text


def test_sections_without_data_are_left_out() -> None:
    record = example_record(num_epochs=3)
    record |= {"evaluation": None, "references": {}, "notes": []}
    text = Page(render(record)).text
    for heading in ("Against simpler training", "How the classes", "How well labels", "Notes", "not known: "):
        assert heading not in text
    assert "During training" in text
    assert "What was run" in text


def test_a_method_that_corrects_no_labels_has_no_such_charts() -> None:
    record = example_record(num_epochs=3)
    for epoch in record["epochs"]:
        epoch |= {"corrected_fraction": None, "label_accuracy": None, "chi2": None}
    html = render(record)
    assert "<h3>Label correction</h3>" not in html
    assert "χ² of the estimated T" not in html
    assert "<h3>Accuracy</h3>" in html


def test_an_accuracy_without_a_single_error_claims_no_certainty() -> None:
    record = example_record(num_epochs=3)
    record["result"]["test_accuracy"] = 1.0
    text = Page(render(record)).text
    assert f"100.0% on {record['data']['rows_test']:,} rows" in text
    assert "± 0.0" not in text


def test_unknown_truth_leaves_out_what_needs_it() -> None:
    record = example_record(num_epochs=3)
    record["evaluation"]["relabel"] = dict.fromkeys(record["evaluation"]["relabel"])
    record["evaluation"]["detection"] = {"posterior": {"auroc": None, "auprc": None}}
    record["evaluation"]["transition"] |= {"true": None, "chi2": None, "off_support": None, "largest_error": None}
    record["data"]["noise_rate"] = None
    text = Page(render(record)).text
    assert "Noise found" not in text, "nothing shows how many labels are wrong"
    assert "Finding wrong labels" not in text
    assert "T of the given labels, true" not in text
    assert "NLL on the test rows" in text


def test_an_unfinished_run_shows_what_it_has() -> None:
    record = example_record(num_epochs=60)
    record |= {"result": None, "evaluation": None, "references": {}, "epochs": record["epochs"][:12]}
    text = Page(render(record)).text
    assert "This run has not finished. Epochs done: 12 of 60." in text
    best = max(epoch["valid_accuracy"] for epoch in record["epochs"])
    assert f"Best validation accuracy so far: {100 * best:.1f}%" in text
    assert "Epoch 12: loss" in text
    assert "selected" not in text


def test_a_run_that_has_just_begun_is_a_page() -> None:
    record = example_record()
    record |= {"result": None, "evaluation": None, "references": {}, "epochs": []}
    text = Page(render(record)).text
    assert "This run has not finished." in text
    assert "During training" not in text


def test_names_from_data_are_escaped_everywhere() -> None:
    record = example_record(3, 4)
    record["data"]["class_names"] = [EVIL] * 3
    record["run"] |= {"dataset": EVIL, "noise": EVIL, "method": EVIL, "options": {EVIL: EVIL}, "seed": EVIL}
    record["run"]["recipe"] |= {EVIL: EVIL}
    record["environment"] |= {EVIL: EVIL, "fasten": EVIL, "how": {EVIL: EVIL}}
    record["evaluation"]["detection"][EVIL] = {"auroc": 0.5, "auprc": 0.5}
    record["notes"] = [EVIL]
    for epoch, stage in zip(record["epochs"], ["a", EVIL, EVIL, "b"], strict=True):
        epoch["stage"] = stage
    html = render(record)
    assert "alert('x" not in html
    assert html.count("<script>") == 1
    assert Page(html).tags.count("script") == 1
    assert Page(html).text.count(EVIL) > 20


def test_a_large_matrix_escapes_the_names_of_its_rows() -> None:
    record = example_record(30, 2)
    record["data"]["class_names"] = [EVIL] * 30
    assert "alert('x" not in render(record)


def test_the_verdict_says_that_the_noisy_rows_help(page: Page) -> None:
    reached = "FasTEN reaches 96.3% accuracy on the test rows"
    assert f"{reached}; the 100 clean rows alone give 90.1%: the noisy rows help." in page.text
    assert "Plain training on the noisy rows gives 72.2% on the test rows." in page.text
    assert "Warning" not in page.text


def test_the_verdict_says_whose_labels_nobody_checked(page: Page) -> None:
    record = example_record(num_epochs=2)
    record["data"]["rows_test_as_given"] = 7
    said = "7 of the 400 test rows have no verified label: the given one counts as right."
    assert said in Page(render(record)).text
    assert "no verified label" not in page.text


def test_the_verdict_warns_where_the_clean_rows_alone_do_better() -> None:
    record = example_record(num_epochs=2)
    record["result"] |= {"valid_accuracy": 0.74, "test_accuracy": 0.731}
    record["references"]["clean_only"] |= {"valid_accuracy": 0.91, "test_accuracy": 0.9}
    text = Page(render(record)).text
    warning = "The clean rows alone do better: 91.0% against 74.0% on the 100 validation rows."
    assert f"Warning {warning} Train on the clean rows alone, or check more labels." in text
    assert "On the 400 test rows: 90.0% against 73.1%." in text
    assert "the noisy rows help" not in text


@pytest.mark.parametrize(("ours", "warned"), [(0.859, True), (0.861, False), (0.90, False), (0.95, False)])
def test_the_warning_asks_for_more_than_a_standard_error(ours: float, warned: bool) -> None:
    """0.9 on 56.25 rows would err by 0.04; on 56 rows it is 0.0401."""
    assert ("clean rows alone do better" in compared(ours, 0.9, rows=56)) is warned


def test_the_warning_rests_on_the_test_rows_where_nothing_was_validated() -> None:
    text = compared(0.7, 0.9, rows=400, split="test")
    assert "The clean rows alone do better: 90.0% against 70.0% on the 400 test rows" in text


def test_a_small_difference_is_called_none() -> None:
    assert "alone give 90.0%: no clear difference." in compared(0.905, 0.9, rows=400, split="test")


def test_nothing_is_compared_with_what_is_not_known() -> None:
    reached = "FasTEN reaches 97.0% accuracy on the 100 validation rows"
    assert f"{reached}; its test accuracy is not known." in compared(0.97, None)
    assert "FasTEN reaches 96.0% accuracy on the test rows." in compared(0.96, None, split="test")
    assert "FasTEN has finished; its accuracy is not known." in compared(None, 0.9)
    record = example_record(num_epochs=2)
    assert "Against simpler training" in Page(render(record)).text
    for source in (record["result"], *record["references"].values()):
        source |= {"test_accuracy": None, "valid_accuracy": None}
    assert "Against simpler training" not in Page(render(record)).text


def test_training_on_the_clean_rows_is_not_compared_with_itself() -> None:
    record = example_record(num_epochs=2)
    record["run"]["method"] = "clean-only"
    assert "Clean-only reaches 96.3% accuracy on the test rows." in Page(render(record)).text


def test_notes_are_shown_and_announced_at_the_top() -> None:
    record = example_record(num_epochs=2)
    record["notes"] = ["no clean rows in cat", "the log ends early"]
    text = Page(render(record)).text
    assert text.index("2 notes on this run") < text.index("no clean rows in cat") < text.index("the log ends early")


def test_the_command_runs_it_again_whatever_the_defaults() -> None:
    record = example_record(num_epochs=60)
    record["run"] |= {"dataset": "my data.npz", "options": {"threshold": 0.9, "per_class": None, "flag": True}}
    wanted = (
        "fasten train 'my data.npz' --method fasten --noise symmetric:0.4 --seed 0 --epochs 60 --set threshold=0.9 "
        "--set per_class=none --set flag=true --set net=small-cnn --set batch_size=100 --set rate=0.05 "
        "--set momentum=0.9 --set weight_decay=0.0005 --set milestones=43,52 --out rerun"
    )
    assert wanted in Page(render(record)).text
    record["run"] |= {"dataset": "digits", "clean": 30}
    assert "fasten train digits --method fasten --noise symmetric:0.4 --seed 0 --clean 30 " in Page(render(record)).text


def test_settings_that_nobody_chose_are_not_called_unknown() -> None:
    record = example_record()
    record["environment"]["how"] = {"device": "auto", "on_nan": None}
    text = Page(render(record)).text
    assert "how: device" in text
    assert "on_nan" not in text


def test_one_update_is_not_several() -> None:
    record = example_record()
    record["references"] = {"clean_only": {"test_accuracy": 0.5, "valid_accuracy": 0.5, "seconds": 1.0, "updates": 1}}
    assert "1 update, " in Page(render(record)).text


def test_charts_can_be_read_without_seeing_them(page: Page) -> None:
    labels = [value for name, value in page.attributes if name == "aria-label"]
    assert page.tags.count("svg") == len([label for label in labels if label and "Verdict" not in label]) - 1
    assert page.tags.count("h1") == 1
    assert page.tags.count("table") == page.tags.count("caption")
    assert ("lang", "en") in page.attributes
    assert ("name", "viewport") in page.attributes


def test_stages_are_marked_where_they_begin() -> None:
    record = example_record(num_epochs=10)
    for epoch in record["epochs"][:4]:
        epoch["stage"] = "warm-up"
    text = Page(render(record)).text
    assert "Epoch 4 (warm-up): loss" in text
    assert "Epoch 5 (train): loss" in text


def test_epochs_that_start_again_are_counted_through() -> None:
    record = example_record(num_epochs=4)
    for epoch, number in zip(record["epochs"], [1, 2, 1, 2], strict=True):
        epoch["epoch"] = number
    assert "Epoch 4: loss" in Page(render(record)).text


def points(svg: str) -> list[str]:
    """The commands of the first curve's path."""
    found = re.search(r'class="line s0" d="(M[^"h]+)"', svg)
    assert found
    return re.findall("[ML]", found[1])


def test_a_gap_in_a_curve_is_not_bridged() -> None:
    svg = line_chart("Loss", [1, 2, 3, 4, 5, 6], [Series("loss", [3.0, 2.0, None, 1.5, None, 1.0])])
    assert points(svg) == ["M", "L", "M", "M"]
    assert svg.count("<circle") == 2


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.93, 0.961), (1.0, 1.0), (0.0, 0.0), (0.4, 0.4)])
def test_an_axis_of_shares_holds_its_values_and_stays_within_0_and_1(low: float, high: float) -> None:
    axis = value_axis([low, high], "percent", log=False)
    assert 0 <= axis.low <= low <= high <= axis.high <= 1 + 1e-9
    assert 2 <= len(axis.ticks) <= 7


@pytest.mark.parametrize(
    ("low", "high"), [(1e-9, 1e3), (5e-4, 5e-2), (0.02, 1.2), (2.0, 2.0), (-3.0, 5.0), (0.0, 1e-12)]
)
@pytest.mark.parametrize("log", [False, True])
def test_an_axis_of_numbers_holds_its_values(low: float, high: float, log: bool) -> None:
    axis = value_axis([low, high], "number", log)
    assert axis.low <= low + 1e-9
    assert axis.high >= high - 1e-9
    assert 2 <= len(axis.ticks) <= 8
    assert axis.at(axis.low) == pytest.approx(axis.start)
    assert axis.at(axis.high) == pytest.approx(axis.end)


@pytest.mark.parametrize("last", [1, 2, 5, 12, 60, 70, 199, 200])
def test_epochs_have_round_ticks(last: int) -> None:
    ticks = epoch_ticks(1, last)
    assert 1 <= len(ticks) <= 8
    assert all(1 <= tick <= last and tick == int(tick) for tick in ticks)


def test_steps_are_round() -> None:
    assert nice_step(7.0, 4, (1, 2, 2.5, 5, 10)) == pytest.approx(2)
    assert nice_step(0.99, 1, (1, 2, 5, 10)) == pytest.approx(1)


def test_darker_means_more() -> None:
    shades = [shade(v) for v in (-1.0, 0.0, 0.01, 0.5, 1.0, 2.0)]
    assert shades == sorted(shades)
    assert (shades[0], shades[-1]) == (0.0, 1.0)


@pytest.mark.parametrize(("size", "printed"), [(20, True), (21, False)])
def test_values_are_printed_in_cells_up_to_twenty_classes(size: int, printed: bool) -> None:
    matrix = [[1.0 if i == j else 0.0 for j in range(size)] for i in range(size)]
    svg = heat_map("T", matrix, [f"class {i}" for i in range(size)])
    assert (">100</text>" in svg) is printed
    assert ("true class 3 → class 3: 100.0%" in svg) is printed
    assert ("true class 3 → class 3 100.0%, " in svg) is not printed
