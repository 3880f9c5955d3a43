"""Images decoded by processes beside ours: the same pixels, the same errors, and nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from builders import make_tiny_task
from data.fake_clothing1m import MODES, SIZES, image_bytes
from fasten.contract import Draw, Stage
from fasten.data import decoders
from fasten.data.decoders import Decoders
from fasten.data.decoding import Images
from fasten.data.images import ImageFiles
from fasten.loader import Loader
from fasten.stream import StreamLoader

CPU = torch.device("cpu")
STAGE = Stage("train", lambda batch: iter(()), {"noisy": Draw("noisy", 40), "clean": Draw("clean", 6, "balanced")}, {})


@pytest.fixture(scope="module")
def processes():
    running = Decoders(2)
    yield running
    running.close()


def write_images(folder: Path, count: int) -> list[str]:
    names = [f"{number}, ä\udcff.jpg" if number % 2 else f"{number}.jpg" for number in range(count)]  # not all UTF-8
    for number, name in enumerate(names):
        pixels = image_bytes(number, SIZES[number % len(SIZES)], MODES[number % len(MODES)])
        (folder / name).write_bytes(pixels)
    return names


def both_kinds(folder: Path, count: int = 12) -> list[ImageFiles]:
    names = write_images(folder, count)
    return [ImageFiles(folder, names, side=20), Images([folder / name for name in names], names, (16, 24, 3))]


def read(processes: Decoders, images: ImageFiles, rows: list[int]) -> np.ndarray:
    out = np.zeros((len(rows), *images.shape[1:]), np.uint8)
    processes.read(images, np.array(rows), out)
    return out


@pytest.mark.parametrize("kind", [0, 1])
def test_they_read_what_we_read(tmp_path, processes, kind, monkeypatch):
    images = both_kinds(tmp_path)[kind]
    rows = [3, 0, 11, 3, 7]
    np.testing.assert_array_equal(read(processes, images, rows), images[np.array(rows)])
    monkeypatch.chdir(tmp_path)  # a relative root is that of the process that asks
    images = ImageFiles(Path(), images.keys, 20)
    np.testing.assert_array_equal(read(processes, images, rows), images[np.array(rows)])


def test_a_damaged_image_is_the_same_error_and_the_next_one_is_read(tmp_path, processes):
    for images in both_kinds(tmp_path):
        (tmp_path / images.keys[4]).write_bytes(b"no image")
        with pytest.raises((ValueError, OSError), match=r"the image 4.jpg .*cannot be read") as theirs:
            read(processes, images, [1, 4])
        with pytest.raises((ValueError, OSError), match=r"cannot be read") as ours:
            images[np.array([1, 4])]
        assert str(theirs.value) == str(ours.value)
        np.testing.assert_array_equal(read(processes, images, [1, 2]), images[np.array([1, 2])])


def test_images_in_memory_are_decoded_here(tmp_path, processes):
    names = write_images(tmp_path, 4)
    stored = [(tmp_path / name).read_bytes() for name in names]
    images = Images(stored, names, (16, 16, 3))
    assert images.told(np.arange(4)) is None
    np.testing.assert_array_equal(read(processes, images, [2, 1]), images[np.array([2, 1])])


def test_a_process_that_is_killed_is_done_without(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(decoders, "_start", lambda start=decoders._start: started.append(start()) or started[-1])
    images, running = both_kinds(tmp_path)[0], Decoders(2)
    for process in started:
        os.kill(process.pid, signal.SIGKILL)
    for _ in range(4):
        np.testing.assert_array_equal(read(running, images, [5, 6]), images[np.array([5, 6])])
    running.close()


def test_they_end_with_their_owner_and_know_nothing_of_torch(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(decoders, "_start", lambda start=decoders._start: started.append(start()) or started[-1])
    running = Decoders(1)
    read(running, both_kinds(tmp_path)[0], [0])
    if sys.platform == "linux":
        assert "torch" not in Path(f"/proc/{started[0].pid}/maps").read_text()
    del running
    gc.collect()
    assert started[0].returncode == 0


def test_a_process_ends_when_the_one_that_asks_is_killed(tmp_path):
    program = (
        "import os\nfrom fasten.data.decoders import Decoders, _start\nprint(_start().pid, flush=True)\nos._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    pid = int(done.stdout)
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").exists() and ") Z " in Path(f"/proc/{pid}/stat").read_text():
            return  # ended, and nobody has asked
        time.sleep(0.05)
    pytest.fail("it is still there")


@pytest.mark.parametrize("count", [0, 2])
def test_streamed_files_give_the_batches_of_the_resident_loader(tmp_path, count):
    tiny = make_tiny_task()
    names = write_images(tmp_path, len(tiny.x))
    files = ImageFiles(tmp_path, names, side=12)
    crop = {"crop": 8, "pad": 0}
    streamed = StreamLoader(replace(tiny, x=files, **crop), CPU, 0)
    streamed.decoders = count
    resident = Loader(replace(tiny, x=files[np.arange(len(names))], **crop), CPU, 0)
    for ours, theirs in zip(streamed.updates(STAGE, (0, 1)), resident.updates(STAGE, (0, 1)), strict=True):
        a, b = streamed.draws(STAGE, ours), resident.draws(STAGE, theirs)
        for name in STAGE.draws:
            found, expected = vars(a[name][:]), vars(b[name][:])
            assert found["again"] is expected["again"] is found["strong"] is expected["strong"] is None
            assert all(v.equal(expected[field]) for field, v in found.items() if v is not None)
    assert torch.cat(list(streamed.chunks("test", 4))).equal(torch.cat(list(resident.chunks("test", 5))))
    assert (streamed._processes is not None) == bool(count)
