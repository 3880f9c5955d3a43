"""Settings and fixtures of all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other

# Under nohup, or in the background of a script, some signals are ignored; tests that send them need them to arrive.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write our own golden trajectories anew")


@pytest.fixture
def all_cores() -> Iterator[None]:
    """For the few tests with a real network."""
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.delenv("FASTEN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path
