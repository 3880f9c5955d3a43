"""Standard output while a command runs: if its reader has left, as `head` does, the rest goes nowhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast


@contextmanager
def output() -> Iterator[None]:
    """Let a command end as if all of its output had been read; errors other than a broken pipe are raised."""
    before = sys.stdout
    sys.stdout = cast(TextIO, _Output(before))
    try:
        yield
    finally:
        try:
            sys.stdout.flush()  # at the exit of Python, an error would be shown in other words
        finally:
            sys.stdout = before


class _Output:
    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._try(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())  # for what is still in the buffer, too
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):
                raise
