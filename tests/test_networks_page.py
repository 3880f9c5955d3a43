"""What docs/networks-and-export.md shows works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from fasten.cli import main
from fasten.nets import build_backbone

PAGE = (Path(__file__).parent.parent / "docs" / "networks-and-export.md").read_text(encoding="utf-8")


def make_photos(folder: Path) -> None:
    """Images of two classes, bright or dark, a list of those that were checked, and weights to start from."""
    for part, rows in (("photos", 40), ("checked-photos", 6), ("new-photos", 3)):
        for row in range(rows):
            label = "night" if row % 2 else "day"
            place = folder / part / ("" if part == "new-photos" else label)
            place.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(row).integers(0, 90, (12, 12, 3), np.uint8)
            Image.fromarray(pixels if row % 2 else pixels + 160).save(place / f"{row}.png")
    weights = build_backbone("imagenet-resnet18", (3, 64, 64)).state_dict()
    save_file({**weights, "fc.bias": torch.zeros(1000)}, folder / "resnet18.safetensors")
    (folder / "checked.txt").write_text("".join(f"{row}.png\n" for row in range(20)))


def test_its_commands_and_its_python_run_one_after_the_other(folder):
    make_photos(folder)
    names: dict = {}
    for kind, block in re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL):
        if kind == "python":
            exec(block, names)
            continue
        for command in block.strip().splitlines():
            program, *arguments = shlex.split(command)
            assert program == "fasten"
            assert main(arguments) == 0, command
    assert names["net"].num_features == 16
    assert len(names["classes"]) == 3
    assert len((folder / "new-photos.csv").read_text().splitlines()) == 4
