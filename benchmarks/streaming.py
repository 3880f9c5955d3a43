"""Measure what streaming costs a FasTEN step: images from JPEG files against the same images on the device.

    PYTHONPATH=src python benchmarks/streaming.py --out benchmarks/streaming.json

The script makes its own JPEGs in a temporary folder. It measures, in rows per second: the decoding limit (one process
per core that only decodes); the loader alone; updates on images that are on the device; and the same updates on images
that are streamed. Without a GPU, choose small sizes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fasten.contract import Stage
from fasten.data.images import ImageFiles
from fasten.data.splits import Split
from fasten.data.task import Task
from fasten.datasets import DATASETS
from fasten.engine import Fit
from fasten.files import write_text
from fasten.loader import Loader
from fasten.machine import Machine, choose_machine
from fasten.records import Run, environment
from fasten.runs.building import build_method, plan_of
from fasten.stream import CORES, StreamLoader

NUM_CLASSES = 14
WARM_UP = 5  # updates, before each measurement


@dataclass(frozen=True)
class Sizes:
    """The sizes of what is made and measured."""

    files: int
    rows: int  # of the data set, which repeats the files
    side: int  # pixels to which images are scaled; the files are a quarter wider than high
    crop: int  # pixels that the network sees
    batch: int
    net: str
    updates: int
    rounds: int


def make_files(folder: Path, sizes: Sizes) -> None:
    """Make JPEGs with about as many bytes as photographs of their size."""
    with ProcessPoolExecutor(CORES, get_context("spawn")) as pool:
        list(
            pool.map(make_file, *zip(*[(folder / f"{n}.jpg", sizes.side, n) for n in range(sizes.files)], strict=True))
        )


def make_file(path: Path, side: int, seed: int) -> None:
    """Make one JPEG of soft colours with some grain."""
    rng = np.random.default_rng(seed)
    soft = Image.fromarray(rng.integers(0, 256, (8, 10, 3), np.uint8)).resize((side * 5 // 4, side), Image.BICUBIC)
    grain = rng.normal(0, 8, (side, side * 5 // 4, 1))
    Image.fromarray((np.asarray(soft) + grain).clip(0, 255).astype(np.uint8)).save(path, quality=85)


def make_task(x: NDArray[np.uint8] | ImageFiles, crop: int) -> Task:
    """Make a task with nine tenths of the rows noisy and the others clean, without validation and test rows."""
    rows, labels = np.arange(len(x)), np.arange(len(x)) % NUM_CLASSES
    first = len(x) // 10
    none = np.array([], np.int64)
    split, like = Split(rows[first:], rows[:first], none, none), DATASETS["clothing1m"]
    names = tuple(f"class {number}" for number in range(NUM_CLASSES))
    about = {"mean": like.mean, "std": like.std, "flip": like.flip, "crop": crop}
    return Task("jpegs", x, split, labels[first:], labels[:first], none, none, names, **about)


def decode_all(images: ImageFiles, rows: NDArray[np.int64]) -> int:
    """Decode each row on its own and keep nothing: one process's share of the decoding limit."""
    for row in rows:
        images[row[None]]
    return len(rows)


def loader_and_limit(loader: StreamLoader, stage: Stage, images: ImageFiles, rounds: int) -> dict[str, list[float]]:
    """Rows per second, in turns, of cores that only decode and of a loader whose batches are not used."""
    shares = np.array_split(np.arange(len(images)), 4 * CORES)
    found: dict[str, list[float]] = {"decoding_limit": [], "loader_alone": []}
    with ProcessPoolExecutor(CORES, get_context("spawn")) as pool:
        list(pool.map(decode_all, [images] * CORES, [share[:4] for share in shares[:CORES]]))  # starts them
        next(iter(loader.updates(stage, (0, 1))))  # and these
        for _ in range(rounds):
            limit = _rate(lambda: sum(pool.map(decode_all, [images] * len(shares), shares)))
            found["decoding_limit"].append(limit)
            found["loader_alone"].append(_rate(lambda: sum(map(_count, loader.updates(stage, (0, 1))))))
    return found


class Stepper:
    """Makes updates of FasTEN with one loader."""

    def __init__(self, task: Task, loader: Loader, machine: Machine, sizes: Sizes) -> None:
        recipe = replace(DATASETS["clothing1m"].recipe, net=sizes.net, batch_size=sizes.batch)
        method = machine.place(build_method(Run("jpegs", recipe=recipe), task))
        self.fit = Fit(method, plan_of(method, recipe), loader, machine, lambda method, history: {})
        self.step, self.stage = self.fit.start_stage()
        self.loader, self.sizes, self.epoch = loader, sizes, 0

    def images_per_second(self) -> float:
        """Images per second over some updates of one epoch, after a few that are not counted."""
        assert self.fit.update is not None
        self.epoch += 1
        self.fit.update.clear()
        self.fit.update.set_rates(1)
        coming = self.loader.updates(self.stage, (0, self.epoch))
        self._go(islice(coming, WARM_UP))
        return _rate(lambda: self._go(islice(coming, self.sizes.updates)))

    def _go(self, updates: Any) -> int:
        count = 0
        for picks in updates:
            self.step(picks)
            count += _count(picks)
        if self.loader.device.type == "cuda":
            torch.cuda.synchronize()
        return count


def _count(picks: Any) -> int:
    return sum(p.index.numel() for p in picks.values())


def _rate(work: Callable[[], int]) -> float:
    began = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - began)


def measure(folder: Path, machine: Machine, sizes: Sizes) -> dict[str, Any]:
    """Measure all four, in rows per second; return medians over the rounds and the rounds themselves."""
    make_files(folder, sizes)
    images = ImageFiles(folder, [f"{n % sizes.files}.jpg" for n in range(sizes.rows)], sizes.side)
    task = make_task(images, sizes.crop)
    loader = StreamLoader(task, machine.device, 0, machine.dtype)
    streamed = Stepper(task, loader, machine, sizes)
    found = loader_and_limit(loader, streamed.stage, images, sizes.rounds)
    once = images[np.arange(min(sizes.files, sizes.rows))]
    resident_task = make_task(once[np.arange(sizes.rows) % sizes.files], sizes.crop)
    resident = Stepper(resident_task, Loader(resident_task, machine.device, 0, machine.dtype), machine, sizes)
    found |= {"resident": [], "streamed": []}
    for _ in range(sizes.rounds):  # in turns
        found["resident"].append(resident.images_per_second())
        found["streamed"].append(streamed.images_per_second())
    median = {name: statistics.median(rounds) for name, rounds in found.items()}
    bytes_each = statistics.mean((folder / f"{n}.jpg").stat().st_size for n in range(sizes.files))
    return {
        "file_bytes": round(bytes_each),
        "rows_per_second": {name: round(value, 1) for name, value in median.items()},
        "rounds": {name: [round(value, 1) for value in rounds] for name, rounds in found.items()},
        "loader_alone_of_limit": round(median["loader_alone"] / median["decoding_limit"], 3),
        "streamed_of_resident": round(median["streamed"] / median["resident"], 3),
        "streamed_of_limit": round(median["streamed"] / median["decoding_limit"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--net", default="imagenet-resnet50")
    sizes = {"files": 2000, "rows": 12_000, "side": 256, "crop": 224, "batch": 42, "updates": 200, "rounds": 3}
    for key, value in sizes.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    asked = vars(parser.parse_args())
    chosen = Sizes(net=asked["net"], **{key: asked[key] for key in sizes})
    machine = choose_machine(asked["device"])
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), machine, chosen)
    about = environment() | {"device": machine.name, "precision": machine.precision, "cores": CORES}
    found = {"environment": about, "sizes": vars(chosen), "seconds": round(time.perf_counter() - began, 1), **found}
    print(json.dumps(found, indent=1))
    if asked["out"]:
        write_text(asked["out"], json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
