"""Two ranks compute what one process does, write it once, and outlive one of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from builders import make_tiny_task
from fasten import loader, machine, ranks
from fasten.cli import main
from fasten.contract import Examples, Recipe
from fasten.loader import Picks
from fasten.ops.remember import remember
from fasten.records import Run
from fasten.runs.building import build_method
from fasten.runs.checkpoint import Checkpoints
from fasten.runs.training import MEETING
from rank_cases import EXACT, LOCAL, make_fit

HERE = Path(__file__).parent
CASES = [*EXACT, *LOCAL]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
MEASURES = ("loss", "valid_accuracy", "test_accuracy", "corrected_fraction", "label_accuracy")
PATHS = {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "src")]), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """All cases, trained on two ranks at once."""
    folder = tmp_path_factory.mktemp("ranks")
    for process, said in on_two_ranks("rank_cases.py", str(folder)):
        assert process.returncode == 0, said
    return folder


def on_two_ranks(script: str, *arguments: str) -> list[tuple[subprocess.Popen, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {**os.environ, **PATHS, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(HERE / script), *arguments]
    both = [subprocess.Popen(command, env={**world, "RANK": rank}, stderr=subprocess.PIPE) for rank in "01"]
    return [(process, process.communicate(timeout=240)[1].decode()) for process in both]


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
    """But for warnings: a run as short as this one has reason for some."""
    found = [json.loads(line)["event"] for line in (folder / "log.jsonl").read_text().splitlines()]
    return [event for event in found if event != "warning"]


def test_the_first_rank_writes_the_folder_of_a_run(trained):
    found = record(trained / "run")
    assert found["result"]["test_accuracy"] > 0.5
    assert found["environment"]["ranks"] == 2
    assert found["environment"]["batch_norm"] == "local"
    assert found["environment"]["device"].endswith(", 2 ranks")
    assert events(trained / "run") == ["epoch"] * 3 + ["finished"]


def test_one_process_goes_on_with_what_two_ranks_began(trained, tmp_path, capsys):
    shutil.copytree(trained / "run", tmp_path / "run")
    begun = record(tmp_path / "run")
    (tmp_path / "run" / "record.json").write_text(json.dumps({**begun, "epochs": [], "result": None}))
    last = max((tmp_path / "run" / "checkpoint").iterdir())
    last.unlink()
    assert main(["resume", str(tmp_path / "run")]) == 0
    found = record(tmp_path / "run")
    name = found["environment"]["device"]
    note = f"started on {name}, continued on {name.removesuffix(', 2 ranks')}"
    assert note in found["notes"]
    assert note in capsys.readouterr().err.replace("\n", " ")
    assert without_times(found["epochs"][:2]) == without_times(begun["epochs"][:2])
    assert len(found["epochs"]) == 3


def test_only_the_same_run_goes_on_when_torchrun_starts_it_again(trained, capsys, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    train = ["train", "digits", "--noise", "symmetric:0.4", "--epochs", "3", "--device", "cpu"]
    assert main([*train, "--out", str(trained / "run")]) == 0
    assert "is a finished run" in capsys.readouterr().err
    assert main([*train, "--seed", "1", "--out", str(trained / "run")]) == 2
    assert "already holds a finished run" in capsys.readouterr().err


@pytest.mark.parametrize("size", [1, 2, 3, 7, 24])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_the_shares_of_the_ranks_are_the_batch(monkeypatch, size, world):
    index = torch.randint(100, (4, size))
    weight = (torch.arange(size) < max(1, size - 2)).float().expand(4, size)
    block = Picks(index, weight, index[:, :, None] / 100)
    found = []
    for number in range(world):
        set_rank(monkeypatch, number, world)
        found.append(block.share())
    assert len({share.index.shape for share in found}) == 1
    assert found[0].index.shape[1] >= min(2, size)  # batch norm needs two
    for update in range(4):
        counted = [share.index[update][share.weight[update] > 0] for share in found]
        assert sorted(torch.cat(counted).tolist()) == sorted(index[update][weight[update] > 0].tolist())
    for share in found:
        assert torch.equal(share.random[:, :, 0], share.index / 100)


def set_rank(monkeypatch, number: int, world: int) -> None:
    for module in (ranks, loader):
        monkeypatch.setattr(module, "world", lambda: world)
    monkeypatch.setattr(ranks, "rank", lambda: number)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_filling_does_not_undo_what_its_row_wrote_elsewhere_in_the_batch(order):
    index, weight = torch.tensor([3, 3, 1])[order], torch.tensor([1.0, 0.0, 1.0])[order]
    table = torch.zeros(4, 2)
    remember(
        table, Examples(index, index, index, weight, index), torch.tensor([[5.0], [6.0], [7.0]]).expand(3, 2)[order]
    )
    assert table[:, 0].tolist() == [0, 7, 0, 5]
    remember(table, Examples(index, index, index, 0 * weight, index), torch.ones(3, 2))
    assert table[:, 1].tolist() == [0, 7, 0, 5]


def test_what_is_not_made_for_several_ranks_says_so(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(ranks, "joined", nullcontext)  # no other rank is there
    assert main(["methods"]) == 2
    assert "only train and resume run under torchrun; start `fasten methods` without it" in capsys.readouterr().err
    monkeypatch.setattr(machine, "world", lambda: 2)
    with pytest.raises(ValueError, match="write --device cuda, not cuda:1"):
        machine.choose_machine("cuda:1")


@pytest.mark.parametrize("text", ["two", "1.5", "0"])
def test_a_number_of_ranks_that_is_none_is_named(monkeypatch, capsys, text):
    monkeypatch.setenv("WORLD_SIZE", text)
    assert main(["methods"]) == 2
    said = capsys.readouterr().err
    assert f"WORLD_SIZE={text}, and torchrun sets a whole number of 1 or more; unset WORLD_SIZE" in said
    with pytest.raises(ValueError, match=f"WORLD_SIZE={text}"), ranks.joined():
        pass


@pytest.mark.parametrize("text", ["", "1"])
def test_a_process_alone_is_one_rank(monkeypatch, text):
    monkeypatch.setenv("WORLD_SIZE", text)
    with ranks.joined():
        assert (ranks.world(), ranks.rank(), ranks.local_world()) == (1, 0, 1)


@pytest.mark.parametrize("wanted", [False, True])
def test_a_recipe_says_whether_batch_norms_are_one(wanted):
    recipe = Recipe("small-cnn", sync_norm=wanted)
    assert build_method(Run("tiny", recipe=recipe), make_tiny_task()).net.parts.synced is wanted


def test_a_rank_that_is_killed_twice_changes_nothing(trained, tmp_path):
    """Before the first checkpoint and after it."""
    launch = [*TORCHRUN, "--max-restarts", "2"]
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


def test_after_an_error_in_one_rank_both_end_with_their_sentence():
    """Threads of the group would abort the process at its end, now and then."""
    (first, lost), (second, failed) = on_two_ranks("failing_rank.py")
    assert lost.startswith("rank 0 has lost the others (")
    assert "`fasten resume` under torchrun continues the run" in lost
    assert (len(lost.splitlines()), failed) == (1, "the disk is full\n")
    assert (first.returncode, second.returncode) == (0, 0), lost


def test_ranks_go_back_to_the_same_checkpoint_though_one_is_slow(tmp_path):
    for process, said in on_two_ranks("rewinding_rank.py", str(tmp_path / "run")):
        assert process.returncode == 2, said
        assert "training diverged in epoch 2" in said.splitlines()[-1], said
    rewinds = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    back_to = [event["back_to"] for event in rewinds if event["event"] == "rewind"]
    assert back_to == [f"{number:09d}.safetensors" for number in (20, 12, 20)]


def test_ranks_that_are_told_to_stop_do_so_together_and_leave_a_checkpoint(tmp_path):
    train = ["-m", "fasten", "train", "digits", "--noise", "symmetric:0.4", "--no-references", "--device", "cpu"]
    command = [sys.executable, *TORCHRUN, *train, "--epochs", "2000", "--out", "run"]
    log, until = tmp_path / "run" / "log.jsonl", time.monotonic() + 120
    process = subprocess.Popen(command, env={**os.environ, **PATHS}, cwd=tmp_path, stderr=subprocess.PIPE)
    while not (log.exists() and log.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert b"stopping after this update" in said
    assert b"has lost the others" not in said
    _, meta, damaged = Checkpoints(tmp_path / "run" / "checkpoint").load()
    assert not damaged
    assert meta["progress"]["done"] % MEETING == 0 or meta["progress"]["update"] == 0
