"""What the README shows works."""

import re
from pathlib import Path

import pytest
import torch

from fasten.cli import app
from fasten.methods import METHODS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_its_python_runs_and_gives_what_it_says():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["labels"].equal(torch.tensor([0, 1]))
    torch.testing.assert_close(names["T"].sum(1), torch.ones(2))


def test_its_commands_exist():
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    shown = set(re.findall(r"^    fasten (\w+)", README, re.MULTILINE))
    assert shown
    assert shown <= known


@pytest.mark.parametrize("target", re.findall(r"\]\(([\w/.]+)\)", README))
def test_its_links_lead_somewhere(target):
    assert (ROOT / target).exists()


def test_the_page_of_methods_lists_every_method():
    page = (ROOT / "docs" / "methods.md").read_text()
    assert all(f"| {name} |" in page for name in METHODS)
