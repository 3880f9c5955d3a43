"""Repair a folder of PNG files with wrong labels, with the three commands of docs/my-images.md.

`python benchmarks/repair.py --out benchmarks/repair.json`. The images are 1,200 of scikit-learn's digits as 32 × 32
colour images, three in ten of them in the wrong folder, 200 verified at random. Each command runs in its own process.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import fasten

ROWS, VERIFIED, WRONG, SIDE, SEED = 1200, 200, 0.3, 32, 0
COMMANDS = {
    "train": "train photos/ --verified verified.txt --out runs/photos",
    "audit": "audit runs/photos --top 20",
    "export": "audit runs/photos --export folder --out photos-repaired",
}


def make(folder: Path) -> dict[str, str]:
    """Write photos/ and verified.txt; return the true label of each image by file name."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(SEED)
    rows = rng.permutation(len(labels))[:ROWS]
    moved = (labels[rows] + rng.integers(1, 10, ROWS)) % 10
    given = np.where(rng.random(ROWS) < WRONG, moved, labels[rows])
    names = []
    for number, (row, label) in enumerate(zip(rows, given, strict=True)):
        names.append(f"digit-{label}/{number:04d}.png")
        path = folder / "photos" / names[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = Image.fromarray((images[row].reshape(8, 8) * 15.9).astype(np.uint8)).resize((SIDE, SIDE))
        pixels = np.asarray(grey)
        Image.fromarray(np.stack([pixels, pixels // 2 + 60, 255 - pixels], -1)).save(path)
    looked = rng.permutation(ROWS)[:VERIFIED].tolist()
    lines = [f"{names[number]},digit-{labels[rows[number]]}\n" for number in looked]
    (folder / "verified.txt").write_text("".join(lines))
    return {f"{number:04d}.png": f"digit-{labels[row]}" for number, row in enumerate(rows.tolist())}


def right(folder: Path, truth: dict[str, str]) -> float:
    """The share of images that are in the right folder."""
    paths = sorted(folder.rglob("*.png"))
    assert len(paths) == ROWS
    return round(float(np.mean([path.parent.name == truth[path.name[:4] + ".png"] for path in paths])), 4)


def contents(folder: Path) -> str:
    """A checksum of all file names and contents."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.png")):
        found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        truth = make(folder)
        before, seconds = contents(folder / "photos"), {}
        ours = os.environ | {"PYTHONPATH": str(Path(fasten.__file__).resolve().parents[1])}  # not another fasten
        for name, command in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, "-m", "fasten", *command.split()], cwd=folder, check=True, env=ours)
            seconds[name] = round(time.perf_counter() - began, 1)
        found = {
            "right_before": right(folder / "photos", truth),
            "right_after": right(folder / "photos-repaired", truth),
            "photos_unchanged": contents(folder / "photos") == before,
            "seconds": seconds,
            "machine": {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
        }
    print(json.dumps(found, indent=1))
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
