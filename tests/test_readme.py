"""What the README shows works."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fasten.cli import app
from fasten.methods import METHODS
from own_data import make_blobs

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


OWN, PIECES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_its_five_lines_repair_labels():
    assert len([line for line in OWN.splitlines() if line]) <= 5
    x, given, truth = make_blobs()
    names: dict = {"X": x, "y": given, "X_new": x[:3], "y_verified": np.where(np.arange(400) < 120, truth, np.nan)}
    exec(OWN, names)
    assert (names["clf"].corrected_labels_ == truth).mean() > 0.95 > (given == truth).mean()


def test_its_pieces_run_and_give_what_it_says():
    names: dict = {}
    exec(PIECES, names)
    assert names["labels"].equal(torch.tensor([0, 1]))
    torch.testing.assert_close(names["T"].sum(1), torch.ones(2))


def test_its_commands_exist():
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    shown = set(re.findall(r"^    fasten (\w+)", README, re.MULTILINE))
    assert shown
    assert shown <= known


@pytest.mark.parametrize("target", re.findall(r"\]\(([\w/.-]+)\)", README))
def test_its_links_lead_somewhere(target):
    assert (ROOT / target).exists()


def test_the_page_of_methods_lists_every_method():
    page = (ROOT / "docs" / "methods.md").read_text()
    assert all(f"| {name} |" in page for name in METHODS)
