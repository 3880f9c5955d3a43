"""Grids on a real Ray cluster of this machine, with a worker killed in the middle of its run."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fasten.cli import main
from fasten.grid.workers import own_package
from fasten.records import read_record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install ray"),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc"),
]

COMPARE = "compare digits --noise symmetric:0.4 --methods fasten,cross-entropy --seeds 2 --device cpu"
PATIENCE_SECONDS = 600


def start(command: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, **own_package(), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "fasten", *command.split(), "--ray", "local"]
    return subprocess.Popen(
        words, cwd=folder, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def below(pid: int) -> Iterator[int]:
    """All processes that it started, and those that they did."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            child = int(path.parent.name)
            yield child
            yield from below(child)


def workers(pid: int) -> list[int]:
    """Those that are at work on a run."""
    found = []
    for child in below(pid):
        try:
            if b"carry_out_there" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
        except OSError:
            continue
    return found


def plain(record: dict) -> dict:
    """What does not depend on time and place."""
    record = json.loads(json.dumps(record))
    for row in record["epochs"]:
        del row["seconds"]
    kept = ("test_accuracy", "test_accuracy_last", "best_epoch", "model_sha256")
    return {"epochs": record["epochs"], "run": record["run"], "result": {k: record["result"].get(k) for k in kept}}


def test_a_comparison_survives_a_killed_worker_and_gives_what_it_would_have(tmp_path, monkeypatch):
    command = f"{COMPARE} --epochs 40"
    process = start(f"{command} --out far", tmp_path)
    deadline = time.monotonic() + PATIENCE_SECONDS
    killed = False
    while process.poll() is None and time.monotonic() < deadline:
        begun = list((tmp_path / "far").glob("*/log.jsonl"))
        if not killed and any(len(path.read_text().splitlines()) > 2 for path in begun):
            os.kill(workers(process.pid)[0], signal.SIGKILL)
            killed = True
        time.sleep(0.05)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert killed
    assert said.count("its worker was lost") == 1
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = subprocess.run(
        [sys.executable, "-m", "fasten", *command.split(), "--out", "near"], env={**os.environ, **own_package()}
    )
    assert done.returncode == 0
    names = sorted(path.parent.name for path in Path("near").glob("*/record.json"))
    assert len(names) == 4
    for name in names:
        assert plain(read_record(Path("far") / name)) == plain(read_record(Path("near") / name))
    assert not list(Path("far").glob(".*"))


def test_a_table_of_the_paper_is_made_on_the_cluster(tmp_path, capsys, monkeypatch):
    names = "table1 --only method=fasten --setting miniature --seeds 1 --device cpu"
    process = start(f"reproduce {names} --out far", tmp_path)
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, said
    monkeypatch.chdir(tmp_path)
    assert main(f"reproduce {names} --records far/runs --json --out near".split()) == 0
    near = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "near/runs").exists()  # the cluster's records are what is wanted
    assert (
        near["experiments"]["table1"]["cells"]
        == json.loads((tmp_path / "far/reproduce.json").read_text())["experiments"]["table1"]["cells"]
    )
