"""Processes that decode images beside ours: threads share Python's lock, and with some cores they wait for it.

A process reads one line of JSON for each request, and answers with one byte and the pixels. It ends with us, since its
input does. Whatever it cannot do is done here, so that errors are those of `ImageFiles`.
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
PIPE_BYTES = 2**20  # as much as Linux lets anyone have
# The package's own __init__ would bring torch with it, of which a decoder has no need.
PROGRAM = """
import sys, types
package = types.ModuleType("fasten")
package.__path__ = [sys.argv[1]]
sys.modules["fasten"] = package
from fasten.data.decoders import serve
serve(sys.stdin.buffer, sys.stdout.buffer)
"""


class Decoders:
    """So many processes; as many threads may ask at a time, and more wait."""

    def __init__(self, count: int) -> None:
        processes = [_start() for _ in range(count)]
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in processes:
            self._free.put(process)
        self.close = weakref.finalize(self, _end, processes)

    def read(self, images: ImageFiles, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Some rows of images that lie in files, into an array of their shape."""
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
        with contextlib.suppress(OSError):  # one user may have so many; the pipe works as it is
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
    """Whether the pixels came; not if one of the images is damaged, or the process is gone."""
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
    """All of it: a pipe without a buffer takes what it has room for."""
    left = memoryview(data)
    while left:
        left = left[pipe.write(left) :]


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """What a process does until there are no more requests."""
    for line in requests:
        asked = json.loads(line)
        try:
            images = _images(asked)
            pixels = images[np.arange(len(images))]
        except Exception:  # whatever it is, the process that asked meets it too and says so
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
