"""The benchmarks of scale run, and a million rows stay within a gigabyte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fasten.grid.workers import own_package

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

pytestmark = pytest.mark.slow


def run(name: str, *words: str) -> str:
    environment = {**os.environ, **own_package(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCHMARKS / name), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_streaming_is_measured_on_a_cpu_too(tmp_path):
    tiny = "--files 12 --rows 300 --side 40 --crop 32 --batch 14 --net small-cnn --updates 3 --rounds 1 --device cpu"
    run("streaming.py", *tiny.split(), "--out", str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    speeds = found["rows_per_second"]
    assert all(speeds[name] > 0 for name in ("decoding_limit", "loader_alone", "resident", "streamed"))
    assert found["streamed_of_resident"] == pytest.approx(speeds["streamed"] / speeds["resident"], abs=0.01)


def test_rows_are_measured(tmp_path):
    run("rows.py", "--rows", "5000", "8000", "--out", str(tmp_path / "found.json"))
    (further,) = json.loads((tmp_path / "found.json").read_text())["per_further_row"]
    assert (further["rows"], further["table_bytes"]) == (8000, 4)


def test_a_million_rows_need_less_than_a_gigabyte():
    found = json.loads(run("rows.py", "--part", "run", "--rows", "1000000"))
    assert found["memory_bytes"] < 1e9
