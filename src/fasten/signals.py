"""Ctrl-C, SIGTERM, and closing the terminal: each of them asks a run to stop, and none may cost it anything."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let each of them stop this process as Ctrl-C does: with an exception, at once."""
    with _handled(signal.default_int_handler):
        yield


@contextmanager
def asked_to_stop(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether one of them came; a second Ctrl-C raises an exception, at once."""
    seen: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in seen:
            raise KeyboardInterrupt
        seen.append(number)  # before anything is said: the next one may come meanwhile
        if len(seen) == 1:
            with contextlib.suppress(OSError):  # the terminal may be gone
                say("stopping after this update, with a checkpoint; Ctrl-C again stops at once")

    with _handled(hear):
        yield lambda: bool(seen)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    wanted = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        wanted = []  # only the main thread may set handlers
    before = {number: signal.getsignal(number) for number in wanted}
    before = {number: old for number, old in before.items() if old not in (None, signal.SIG_IGN)}  # SIG_IGN: nohup
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
