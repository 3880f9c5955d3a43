"""Two ranks compute what one process does, write it once, and outlive one of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from rank_cases import EXACT, LOCAL, make_fit

HERE = Path(__file__).parent
CASES = [*EXACT, *LOCAL]
MEASURES = ("loss", "valid_accuracy", "test_accuracy", "corrected_fraction", "label_accuracy")
PATHS = {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "src")]), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """All cases, trained on two ranks at once."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {**os.environ, **PATHS, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(HERE / "rank_cases.py"), str(folder)]
    both = [subprocess.Popen(command, env={**world, "RANK": rank}, stderr=subprocess.PIPE) for rank in "01"]
    for process in both:
        _, said = process.communicate(timeout=240)
        assert process.returncode == 0, said.decode()
    return folder


def read(folder: Path, rank: int, case: str):
    with safe_open(folder / f"{rank}-{CASES.index(case)}.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def without_times(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@pytest.mark.parametrize("case", EXACT)
def test_two_ranks_compute_what_one_process_does(trained, case):
    alone = make_fit(case)
    alone.run()
    assert alone.progress.done >= 20
    tensors, meta = read(trained, 0, case)
    near = EXACT[case][2].get("near", 1e-9)
    assert tensors.keys() == alone.tensors().keys()
    for name, tensor in alone.tensors().items():
        torch.testing.assert_close(tensors[name], tensor, rtol=near, atol=near, msg=lambda text, n=name: f"{n}: {text}")
    for row, expected in zip(json.loads(meta["rows"]), alone.progress.rows, strict=True):
        assert [row[name] for name in MEASURES] == pytest.approx([expected[name] for name in MEASURES], rel=near)
    assert int(meta["images"]) == alone.progress.images


@pytest.mark.parametrize("case", CASES)
def test_both_ranks_hold_the_same_bit_for_bit(trained, case):
    (first, meta), (second, other) = (read(trained, rank, case) for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    rows, others = (without_times(json.loads(found["rows"])) for found in (meta, other))
    assert rows == others


def record(folder: Path):
    return json.loads((folder / "record.json").read_text())


def events(folder: Path):
    return [json.loads(line)["event"] for line in (folder / "log.jsonl").read_text().splitlines()]


def test_the_first_rank_writes_the_folder_of_a_run(trained):
    found = record(trained / "run")
    assert found["result"]["test_accuracy"] > 0.5
    assert found["environment"]["ranks"] == 2
    assert found["environment"]["batch_norm"] == "local"
    assert found["environment"]["device"].endswith(", 2 ranks")
    assert events(trained / "run") == ["epoch"] * 3 + ["finished"]


def test_a_rank_that_is_killed_twice_changes_nothing(trained, tmp_path):
    """Before the first checkpoint and after it."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2"]
    train = ["train", "digits", "--noise", "symmetric:0.4", "--epochs", "3", "--no-references", "--device", "cpu"]
    command = [sys.executable, *launch, str(HERE / "dying_rank.py"), *train, "--json", "--out", "run"]
    done = subprocess.run(command, env={**os.environ, **PATHS}, cwd=tmp_path, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr.count(b"rank 0 has lost the others") == 2
    assert len(done.stdout.splitlines()) == 1  # from the first rank alone
    calm, hard = record(trained / "run"), record(tmp_path / "run")
    assert without_times(hard["epochs"]) == without_times(calm["epochs"])
    assert hard["result"]["model_sha256"] == calm["result"]["model_sha256"]
    for part in ("run", "data", "evaluation", "notes"):
        assert hard[part] == calm[part]
    assert events(tmp_path / "run") == ["epoch"] * 3 + ["finished"]
