"""The pages about users' own data: their commands run, one after another, as they stand there."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from fasten.cli import main
from own_data import make_blobs, write_digits, write_table

DOCS = Path(__file__).parent.parent / "docs"


def blocks(page: str, language: str) -> list[str]:
    """What a page has in this language, block by block."""
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(pattern, (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    """The lines of its shell blocks."""
    return [line for block in blocks(page, "sh") for line in block.splitlines() if line]


def prepare_images(here: Path) -> None:
    _, truth = write_digits(here / "photos", num_verified=80)
    for number, (name, label) in enumerate(sorted(truth.items())):
        target = here / ("checked-photos" if number % 3 else "new-photos") / label / f"{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(here / "photos" / name, target)


def prepare_table(here: Path) -> None:
    write_table(here / "items.csv")
    lines = (here / "items.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines]
    (here / "new-items.csv").write_text("\n".join(",".join(reversed(row[1:7])) for row in rows))
    (here / "test-items.csv").write_text("\n".join(",".join(row[1:8]) for row in [rows[0], *rows[-60:]]))
    x, given, truth = make_blobs(300)
    np.savez(here / "embeddings.npz", x=x, labels=given, verified=np.where(np.arange(300) < 90, truth, -1))
    write_texts(here / "texts.csv")
    for code in blocks("my-table.md", "python"):
        exec(code, {})


def write_texts(path: Path) -> None:
    """Some hundred words of three kinds; of every three labels one is wrong, and a third of the rows is checked."""
    rng, names = np.random.default_rng(0), ["sport", "music", "food"]
    lines = ["text,label,verified_label"]
    for row in range(300):
        words = " ".join(f"{names[row % 3]}{word}" for word in rng.integers(40, size=9))
        given = names[(row + (row % 9 < 3)) % 3]
        lines.append(f"{words},{given},{names[row % 3] if rng.random() < 1 / 3 else ''}")
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("page", "prepare", "written"),
    [
        ("my-images.md", prepare_images, ["photos-repaired", "predictions.csv", "runs/two-folders/report.html"]),
        ("my-table.md", prepare_table, ["items-repaired.csv", "predictions.csv", "runs/texts/labels.csv"]),
    ],
)
def test_the_commands_of_a_page_run(folder, capsys, page, prepare, written):
    prepare(folder)
    found = commands(page)
    assert len(found) >= 5
    for command in found:
        program, *words = shlex.split(command)
        assert program == "fasten"
        quick = ["--epochs", "2", "--no-references"] if words[0] == "train" else []
        assert main([*words, *quick]) == 0, f"{command}: {capsys.readouterr().err}"
    assert all((folder / name).exists() for name in written)


@pytest.mark.parametrize("page", ["my-images.md", "my-table.md"])
def test_the_options_that_a_page_names_exist(page, capsys):
    named = set(re.findall(r"--[a-z][a-z-]+", (DOCS / page).read_text(encoding="utf-8")))
    known = set()
    for command in ("train", "audit", "compare", "predict", "evaluate"):
        assert main([command, "--help"]) == 0
        known |= set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    assert named <= known


def test_the_tests_that_the_page_on_reliability_names_exist():
    """A name may be cut short by dots."""
    here = Path(__file__).parent
    known = {
        name for path in here.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    named = re.findall(r"`(test_\w+)(…?)`", (DOCS / "reliability.md").read_text(encoding="utf-8"))
    assert len(named) >= 25
    for name, cut in named:
        assert any(test.startswith(name) for test in known) if cut else name in known, name


@pytest.mark.parametrize("page", [*DOCS.glob("*.md"), DOCS.parent / "README.md"], ids=lambda path: path.name)
def test_no_page_has_a_gap_or_a_dead_link(page):
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"@[A-Z]+@|TODO|XXX", text)
    dead = [to for to in re.findall(r"\]\(([^)#:]+)\)", text) if not (page.parent / to).exists()]
    assert not dead


def test_the_oldest_versions_that_are_allowed_are_those_that_are_tested():
    project, tested = (
        (DOCS.parent / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "constraints-oldest.txt")
    )
    needed = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)[1].splitlines()
    assert len(needed) == 11
    for line in needed:
        name, oldest = re.fullmatch(r' *"([\w-]+)>=([\d.]+)",', line).groups()
        assert re.search(rf"^{name}=={re.escape(oldest)}(\.0)*$", tested, re.MULTILINE), name
