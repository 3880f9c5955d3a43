"""The demo makes its folder anew, and takes nothing away that is not its own."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from fasten.datasets import DATASETS
from fasten.records import Run
from fasten.runs.training import Settings, train

clear = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "demo.py"))["clear"]


@pytest.mark.parametrize(
    "name", ["notes.txt", "noise40-seed0/notes.txt", "noise40-seed0/deep/notes.txt", "noise80-seed0"]
)
def test_somebodys_folder_is_left_alone(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("somebody's work")
    for out in (tmp_path, path):
        with pytest.raises(SystemExit, match="is not from an earlier demo; choose another --out"):
            clear(out)
    assert path.read_text() == "somebody's work"


def test_the_folder_of_an_earlier_demo_is_made_anew(tmp_path):
    run = Run("digits", recipe=DATASETS["digits"].recipe.scaled(1))
    train(run, tmp_path / "noise40-seed0", Settings(device="cpu", clean_reference=False, checkpoint_every=0.0))
    (tmp_path / "noise40-seed1").mkdir()
    (tmp_path / "noise40-seed1" / ".0123.tmp").touch()  # of a demo that was stopped
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    clear(tmp_path / "new")
    assert not (tmp_path / "new").exists()
