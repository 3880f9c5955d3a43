"""The page of results says what the records say."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("make_page", ROOT / "results" / "make_page.py")
make_page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make_page)


def test_the_page_is_what_the_records_make():
    assert (ROOT / "docs" / "results.md").read_text() == make_page.page()


@pytest.mark.parametrize(
    ("mean", "word"), [(77.9, "below"), (78.3, "reproduced"), (80.7, "reproduced"), (80.9, "better")]
)
def test_a_status_compares_with_the_papers_interval_and_half_a_point(mean, word):
    assert make_page.status(mean, 79.52, 0.78) == word


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*/*.json")), ids=lambda path: path.stem)
def test_a_committed_record_is_finished_and_names_no_machine_path(path):
    record = json.loads(path.read_text())
    assert record["schema"] == 1
    assert record["result"]["test_accuracy"] > 0
    assert "how" not in record["environment"]
    assert (
        path.stem == f"{record['run']['method']}-{record['run']['noise'].replace(':', '-')}-seed{record['run']['seed']}"
    )


def test_the_readme_quotes_the_records():
    readme = (ROOT / "README.md").read_text()
    for dataset, noise, label in (
        ("digits", "symmetric:0.4", "| digits | symmetric 40% |"),
        ("digits", "symmetric:0.8", "| digits | symmetric 80% |"),
        ("cifar10", "symmetric:0.8", "| CIFAR-10 | symmetric 80% |"),
        ("cifar10", "asymmetric:0.4", "| CIFAR-10 | asymmetric 40% |"),
    ):
        found = [r for r in make_page.records(dataset) if (r["run"]["method"], r["run"]["noise"]) == ("fasten", noise)]
        ours = sum(r["result"]["test_accuracy"] for r in found) / len(found)
        clean = sum(r["references"]["clean_only"]["test_accuracy"] for r in found) / len(found)
        (line,) = [line for line in readme.splitlines() if line.startswith(label)]
        cells = [cell.strip(" *") for cell in line.split("|")]
        assert cells[3].startswith(f"{ours:.1%}")
        assert cells[4] == f"{clean:.1%}"
        assert cells[5] == str(len(found))
