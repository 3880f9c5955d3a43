"""What is said where something stops before its end and can go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fasten.sentences import FULL_DISK, sentence
from fasten.signals import stopped_by_signals


class Stopped(Exception):
    """A run that ends before its end, and the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def resumable(begun: Path, cure: str) -> Iterator[None]:
    """Where something stops through no fault of its own, say how to go on; `begun` is there once that is so."""
    try:
        with stopped_by_signals():
            yield
    except (KeyboardInterrupt, OSError) as error:
        if not begun.exists():
            raise
        if isinstance(error, KeyboardInterrupt):
            raise Stopped(f"interrupted; {cure}", 130) from None
        if error.errno in FULL_DISK:
            raise Stopped(f"no space left on the disk; free some, and {cure}", 2) from error
        raise Stopped(f"{sentence(error)}; when that is put right, {cure}", 2) from error
