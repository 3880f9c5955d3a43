"""Kernels without a GPU: Triton's interpreter runs them."""

import os
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest

from fasten.kernels import AVAILABLE

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

interpreted = pytest.mark.skipif(
    not (AVAILABLE and INTERPRETED), reason="needs triton, and TRITON_INTERPRET=1 from the start"
)


def not_interpreted(test):
    """For the one test of a file that starts all others again."""
    there = pytest.mark.skipif(not AVAILABLE, reason="triton is not installed")
    return there(pytest.mark.skipif(INTERPRETED, reason="is what this test starts")(test))


def in_the_interpreter(file: str) -> None:
    """The tests of a file, in a process of its own: Triton reads the variable when it is first imported."""
    if _numbers(version("triton")) < (3, 7) and _numbers(np.__version__) >= (2, 4):
        pytest.skip("the interpreter of triton before 3.7 does not know numpy from 2.4 on")
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(".")[:2])
