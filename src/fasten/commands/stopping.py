"""What a command prints if it stops early and can be continued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fasten.sentences import FULL_DISK, sentence
from fasten.signals import stopped_by_signals


class Stopped(Exception):
    """A command that stopped early: the message, and the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def resumable(begun: Path, cure: str) -> Iterator[None]:
    """If a command is interrupted or the system fails, say how to continue; that is possible once `begun` exists."""
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
        raise Stopped(f"{sentence(error)}; once that is fixed, {cure}", 2) from error
