"""Worker processes that decode images: threads share Python's lock, and on several cores they wait for it.

A worker reads one line of JSON per request, and answers with one byte and the pixels. It ends with the main process,
since its input ends then. What a worker cannot decode, the main process tries itself, so that errors are those of
`ImageFiles`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import weakref
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fasten.data.decoding import Images
from fasten.data.images import ImageFiles

if sys.platform == "linux":
    import fcntl

DONE, FAILED = b"y", b"n"
PIPE_BYTES = 2**20  # the most that Linux allows any user by default
# The package's own __init__ would import torch, which a decoder does not need.
PROGRAM = """
import sys, types
package = types.ModuleType("fasten")
package.__path__ = [sys.argv[1]]
sys.modules["fasten"] = package
from fasten.data.decoders import serve
serve(sys.stdin.buffer, sys.stdout.buffer)
"""


class Decoders:
    """A pool of `count` worker processes; if more threads than that ask at the same time, they wait."""

    def __init__(self, count: int) -> None:
        processes = [_start() for _ in range(count)]
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in processes:
            self._free.put(process)
        self.close = weakref.finalize(self, _end, processes)

    def read(self, images: ImageFiles, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Decode some rows of image files into `out`, an array of their shape."""
        request = json.dumps(images.told(rows)).encode() + b"\n"
        process = self._free.get()
        try:
            done = _ask(process, request, out)
        finally:
            self._free.put(process)
        if not done:
            out[:] = images[rows]


def _start() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(Path(__file__).parent.parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,  # Ctrl-C is for the process that trains
    )
    assert process.stdout is not None
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a user's quota may be used up; the pipe works at its default size too
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return process


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
    for process in processes:
        process.wait()


def _ask(process: subprocess.Popen[bytes], request: bytes, out: NDArray[np.uint8]) -> bool:
    """Return whether the pixels came; they do not if an image is damaged or the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        _write(process.stdin, request)
        if process.stdout.read(1) != DONE:
            return False
        left = out.data.cast("B")
        while left:
            count = process.stdout.readinto(left)  # type: ignore[attr-defined]
            if not count:
                return False
            left = left[count:]
    except OSError:
        return False
    return True


def _write(pipe: Any, data: bytes) -> None:
    """Write all of the data: an unbuffered pipe may take only a part at a time."""
    left = memoryview(data)
    while left:
        left = left[pipe.write(left) :]


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more: this is the worker's main loop."""
    for line in requests:
        asked = json.loads(line)
        try:
            images = _images(asked)
            pixels = images[np.arange(len(images))]
        except Exception:  # the process that asked will get the same error and report it
            answers.write(FAILED)
        else:
            answers.write(DONE)
            answers.write(pixels.data.cast("B"))
        answers.flush()


def _images(asked: dict[str, Any]) -> ImageFiles:
    if "root" in asked:
        return ImageFiles(Path(asked["root"]), asked["keys"], asked["side"])
    height, width, channels = asked["shape"]
    return Images([Path(source) for source in asked["sources"]], asked["sources"], (height, width, channels))
