"""Commands as a user types them, what must come of them, and what may come between."""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
from pathlib import Path

from fasten.cli import main


def tree(folder: Path) -> dict[str, str]:
    """Every file and folder with a checksum of what it holds."""
    found = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): hashlib.md5(p.read_bytes()).hexdigest() if p.is_file() else "" for p in found}


def refuse(command: str, capsys, *words: str, folder: Path | None = None) -> str:
    """Run a command that must fail in the one way that is allowed; its sentence."""
    folder = folder or Path.cwd()
    before = tree(folder)
    capsys.readouterr()
    assert main(shlex.split(command)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("fasten: ")
    assert said.err.endswith("\n")
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err, f"{word!r} is not in {said.err!r}"
    assert tree(folder) == before
    return said.err


def answer(command: str, capsys) -> str:
    """Run a command that must succeed; its standard output."""
    capsys.readouterr()
    assert main(shlex.split(command)) == 0
    return capsys.readouterr().out


def fill_disk(monkeypatch, pattern: str, number: int) -> None:
    """The disk is full from the `number`-th time that a file of this name is written."""
    real, seen = os.replace, []

    def replace_file(source, target):
        if Path(target).match(pattern):
            seen.append(target)
            if len(seen) >= number:
                raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace_file)


def interrupt_at(monkeypatch, number: int) -> None:
    """At the first update of the `number`-th run that starts."""
    started = []

    def start(display, record, updates):
        started.append(record)
        if len(started) == number:
            raise KeyboardInterrupt

    monkeypatch.setattr("fasten.commands.console.Runs.start", start)
