"""Runs that are killed, stopped, or whose files are damaged: they go on, and end as if nothing had happened."""

from __future__ import annotations

import errno
import importlib
import io
import json
import multiprocessing
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fasten import files, own
from fasten.cli import main
from fasten.commands.console import Display
from fasten.data.decoding import Decoding
from fasten.engine import Fit
from fasten.files import alone_in
from fasten.records import read_record
from fasten.runs.checkpoint import read_tensors, write_tensors
from fasten.update import Update
from own_data import make_blobs, write_digits

TRAIN = shlex.split("train digits --noise symmetric:0.4 --device cpu --epochs 5 --set batch_size=200 --no-references")
OFTEN = ["--checkpoint-every", "0"]  # after every update
POINTS = ("before-write", "mid-write", "before-rename", "after-rename")
PATIENCE = 120.0

# Each process is forked from one that has imported everything and done nothing: a tenth of the time.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["fasten.cli", "fasten.commands.console", "fasten.runs.training", "sklearn.datasets"])


def command(words: list[str], here: Path, fault: str, update_seconds: float) -> None:
    """The command line in a process of its own; an update may be made to last."""
    os.chdir(here)
    torch.set_num_threads(1)
    os.environ["FASTEN_FAULT"] = fault
    importlib.reload(files)  # where it is read
    if update_seconds:
        Update.__call__ = lambda *_: time.sleep(update_seconds)
    with open("stderr", "w", buffering=1) as sys.stderr, open("stdout", "w") as sys.stdout:
        status = main(words)
    sys.exit(status)


def start(words: list[str], here: Path, fault: str = "", update_seconds: float = 0.0) -> BaseProcess:
    process = PROCESSES.Process(target=command, args=(words, here, fault, update_seconds))
    process.start()
    return process


def finish(process: BaseProcess, here: Path) -> tuple[int | None, str]:
    """Its exit status, and what it said on standard error."""
    process.join(PATIENCE)
    said = here / "stderr"
    return process.exitcode, said.read_text() if said.exists() else ""  # not there if it was killed at once


def go_on(here: Path) -> list[str]:
    """As anyone would: begin, or resume what has begun."""
    return ["resume", "run", *OFTEN] if (here / "run/record.json").exists() else [*TRAIN, *OFTEN, "--out", "run"]


def newest(here: Path) -> int:
    """Updates done when the last checkpoint was written."""
    return max((int(path.stem) for path in here.glob("run/checkpoint/*.safetensors")), default=0)


def killed_at(point: str, number: int, here: Path) -> None:
    status, said = finish(start(go_on(here), here, f"{point}:{number}"), here)
    assert status == -signal.SIGKILL, said


def killed_after(checkpoints: int, delay: float, here: Path) -> None:
    """A while after so many more checkpoints, wherever it then is; not at all if it is done before."""
    wanted, process, end = newest(here) + checkpoints, start(go_on(here), here), time.monotonic() + PATIENCE
    while newest(here) < wanted and process.exitcode is None and time.monotonic() < end:
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    finish(process, here)


def left_by(folder: Path) -> dict[str, Any]:
    """What must be the same: the record and the log without times, and the bytes of every other file."""

    def timeless(values: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if "second" not in key}

    def read(path: Path) -> Any:
        if path.name == "record.json":
            return json.loads(path.read_text(), object_hook=timeless)
        if path.name == "log.jsonl":
            return [json.loads(line, object_hook=timeless) for line in path.read_text().splitlines()]
        return path.read_bytes()

    names = {path.name for path in folder.iterdir() if path.is_file()} - {"report.html"}  # which shows times
    return {name: read(folder / name) for name in names}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run that nobody touched, in a process of its own."""
    here = tmp_path_factory.mktemp("alone")
    status, said = finish(start(go_on(here), here), here)
    assert status == 0, said
    return here / "run"


@pytest.fixture
def begun(alone, tmp_path, monkeypatch):
    """The same run before its end, as a kill during the writing of its last files leaves it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(alone, "run")
    record = read_record(Path("run")) | {"epochs": [], "evaluation": None, "result": None, "notes": []}
    Path("run/record.json").write_text(json.dumps(record))
    return tmp_path / "run"


def test_the_same_seed_gives_the_same_run_in_another_process(alone, tmp_path, monkeypatch):
    """This process is the other one. The record says that it is deterministic."""
    monkeypatch.chdir(tmp_path)
    assert main([*go_on(tmp_path), "--json"]) == 0
    assert left_by(tmp_path / "run") == left_by(alone)
    assert read_record(alone)["environment"]["deterministic"] is True


def test_a_run_killed_eight_times_is_the_run_that_was_left_alone(alone, tmp_path):
    """Half of the kills wherever it is, half at a fault point: of the first file, of checkpoints, of the last files."""
    killed_at("before-write", 1, tmp_path)
    assert not list((tmp_path / "run").iterdir())
    killed_after(3, 0.01, tmp_path)
    killed_at("mid-write", 5, tmp_path)
    assert list((tmp_path / "run/checkpoint").glob("*.tmp"))
    killed_after(2, 0.0, tmp_path)
    killed_at("before-rename", 4, tmp_path)
    killed_after(1, 0.02, tmp_path)
    assert 9 <= newest(tmp_path) < 30
    # log.jsonl, what is left of 30 checkpoints, probabilities.npy, labels.csv
    killed_at("after-rename", 33 - newest(tmp_path), tmp_path)
    assert (tmp_path / "run/labels.csv").exists()
    killed_after(0, 0.0, tmp_path)
    assert read_record(tmp_path / "run")["result"] is None
    status, said = finish(start(go_on(tmp_path), tmp_path), tmp_path)
    assert status == 0, said
    assert left_by(tmp_path / "run") == left_by(alone)
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_a_run_killed_while_it_judges_labels_trains_only_the_networks_that_are_left(tmp_path):
    """The writes before are those of record, log, checkpoint and probabilities; a resumed run has its record."""
    alone, here = tmp_path / "alone", tmp_path / "killed"
    x, given, _ = make_blobs(300)
    for folder in (alone, here):
        folder.mkdir()
        np.savez(folder / "rows.npz", x=x, labels=given)
    words = shlex.split("train rows.npz --method cross-entropy --device cpu --epochs 2 --out run")
    status, said = finish(start(words, alone), alone)
    assert status == 0, said
    for fault, kept in (("mid-write:6", 1), ("after-rename:4", 2)):
        status, said = finish(start(words, here, fault), here)
        assert status == -signal.SIGKILL, said
        assert len(list(here.glob("run/checkpoint/unseen*.safetensors"))) == kept
        words = ["resume", "run"]
    status, said = finish(start(words, here), here)
    assert status == 0, said
    assert "1 more network to train" in said
    assert "epoch" not in said
    assert left_by(here / "run") == left_by(alone / "run")
    assert not list(here.glob("run/checkpoint/unseen*"))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_run_killed_a_hundred_times_is_the_run_that_was_left_alone(alone, tmp_path):
    """Half of the kills at a fault point of some write, of the first files, of checkpoints or of the last files."""
    rng, kills, finished = random.Random(0), {}, 0
    while sum(kills.values()) < 100:
        here = tmp_path / str(finished)
        here.mkdir(exist_ok=True)
        if sum(kills.values()) % 2:
            point = rng.choice(POINTS)
            process = start(go_on(here), here, f"{point}:{rng.randint(1, 12)}")
        else:
            point, process = "anywhere", start(go_on(here), here)
            wanted = newest(here) + rng.randint(0, 8)
            while newest(here) < wanted and process.exitcode is None:
                time.sleep(0.002)
            time.sleep(rng.random() * 0.3)
            process.kill()
        status, said = finish(process, here)
        assert status in (0, -signal.SIGKILL), said
        if status:
            kills[point] = kills.get(point, 0) + 1
        if (here / "run/record.json").exists() and read_record(here / "run")["result"] is not None:
            assert left_by(here / "run") == left_by(alone)
            finished += 1
    assert finished >= 5
    print(f"{kills}: {finished} runs ended as the one that was left alone")  # `pytest -s` shows it


# Files that a disk, not a process, has torn.


def torn(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "torn": content[: len(content) // 2], "zeros": bytes(len(content))}[how])


@pytest.mark.parametrize("how", ["empty", "torn", "zeros"])
@pytest.mark.parametrize("name", ["checkpoint", "record.json", "log.jsonl", "model.safetensors", "labels.csv"])
def test_a_torn_file_is_made_again(alone, begun, capsys, name, how):
    path = max((begun / "checkpoint").iterdir()) if name == "checkpoint" else begun / name
    torn(path, how)
    assert main(["resume", "run"]) == 0
    ours, said = left_by(begun), capsys.readouterr().err
    told = [note for note in ours["record.json"]["notes"] if f"checkpoint {path.name} is damaged" in note]
    ours["record.json"]["notes"] = [note for note in ours["record.json"]["notes"] if note not in told]
    assert ours == left_by(alone)
    assert len(told) == (name == "checkpoint")
    assert all(note in said for note in told)
    if name == "record.json":
        assert "record.json is lost or damaged; it is restored from the last checkpoint" in said


def test_where_no_checkpoint_is_whole_that_is_said(begun, capsys):
    for path in (begun / "checkpoint").iterdir():
        torn(path, "torn")
    assert main(["resume", "run", "--json"]) == 2
    assert "no checkpoint in run/checkpoint is whole" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["method.", "optim.", "history.", "momentum is lost", "progress", "before"])
def test_a_checkpoint_of_another_version_is_refused_in_a_sentence(begun, capsys, part):
    for path in (begun / "checkpoint").iterdir():
        tensors, meta = read_tensors(path)
        if part == "progress":
            meta["progress"]["of_a_later_version"] = 1
        elif part == "before":
            del meta["progress"]["before"]
        elif part == "momentum is lost":
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("optim.")}
        else:
            tensors[min(name for name in tensors if name.startswith(part))] = torch.zeros(2, 3, 4, 5, 6)
        write_tensors(path, tensors, json.dumps(meta))
    assert main(["resume", "run"]) == 2
    assert "checkpoint is from another version" in capsys.readouterr().err


@pytest.mark.parametrize("length", [0, 5, 500, None])
def test_a_run_of_which_the_log_alone_is_left_begins_anew(alone, tmp_path, capsys, monkeypatch, length):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    log = (alone / "log.jsonl").read_bytes()
    Path("run/log.jsonl").write_bytes(log[:length])
    assert main(["resume", "run", "--json"]) == 2
    assert "; the same `fasten train` as before starts it again\n" in capsys.readouterr().err
    assert Path("run/log.jsonl").read_bytes() == log[:length]
    assert main([*go_on(tmp_path), "--json"]) == 0
    assert left_by(tmp_path / "run") == left_by(alone)


def test_leftovers_of_a_kill_are_swept_and_other_files_are_not(begun):
    left = [begun / f".{'0a' * 16}.tmp", begun / "checkpoint" / f".{'b1' * 16}.tmp"]
    mine = [begun / ".mine.tmp", begun / "notes.txt", begun / f"{'0a' * 16}.tmp"]
    for path in (*left, *mine):
        path.write_bytes(b"")
    assert main(["resume", "run", "--json"]) == 0
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in mine)


# Signals.


def test_ctrl_c_and_sigterm_end_the_update_write_a_checkpoint_and_say_how_to_go_on(alone, tmp_path, monkeypatch):
    for number, checkpoints in ((signal.SIGTERM, 2), (signal.SIGINT, 3)):
        before, process = newest(tmp_path), start(go_on(tmp_path), tmp_path)
        while newest(tmp_path) < before + checkpoints and process.exitcode is None:
            time.sleep(0.002)
        os.kill(process.pid, number)
        status, said = finish(process, tmp_path)
        assert status == 130
        assert said.endswith("fasten: interrupted; `fasten resume run` continues from the last checkpoint\n")
        assert "stopping after this update, with a checkpoint" in said
    monkeypatch.chdir(tmp_path)
    assert main([*go_on(tmp_path), "--json"]) == 0
    assert left_by(tmp_path / "run") == left_by(alone)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_checkpoint_is_that_of_the_update_at_hand(tmp_path, monkeypatch, number):
    """No other was due: nothing is lost, not even an update."""
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Display, "update", lambda self, done: os.kill(os.getpid(), number) if done == 8 else None)
        assert main([*TRAIN, "--json", "--out", "run"]) == 130
    assert newest(tmp_path) == 8


def test_a_signal_after_the_last_update_stops_too(alone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Fit.run
    with monkeypatch.context() as patch:
        patch.setattr(Fit, "run", lambda fit: (run(fit), os.kill(os.getpid(), signal.SIGTERM)))
        assert main([*go_on(tmp_path), "--json"]) == 130
    assert newest(tmp_path) == 30
    assert main([*go_on(tmp_path), "--json"]) == 0
    assert left_by(tmp_path / "run") == left_by(alone)


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    process = start([*TRAIN, "--out", "run"], tmp_path, update_seconds=PATIENCE)
    while "symmetric:0.4" not in (tmp_path / "stderr").read_text() if (tmp_path / "stderr").exists() else True:
        time.sleep(0.01)
    for said in ("stopping after this update", "interrupted; `fasten resume run`"):
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGINT)
        while said not in (tmp_path / "stderr").read_text():
            time.sleep(0.01)
    began = time.monotonic()
    assert finish(process, tmp_path)[0] == 130
    assert time.monotonic() - began < PATIENCE / 4


# Disks and mounts.


def limited(words: list[str], here: Path, file_bytes: int) -> None:
    """The command line where no file may grow beyond a size: writes fail in their middle, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    command(words, here, "", 0.0)


def test_a_write_that_fails_in_its_middle_leaves_the_last_checkpoint(alone, begun, capsys):
    kept = {path.name: path.read_bytes() for path in (begun / "checkpoint").iterdir()}
    (begun / "checkpoint" / max(kept)).unlink()  # so that there is one to write
    del kept[max(kept)]
    process = PROCESSES.Process(target=limited, args=(["resume", "run"], begun.parent, 60_000))
    process.start()
    status, said = finish(process, begun.parent)
    assert status == 2
    cure = "once that is fixed, `fasten resume run` continues from the last checkpoint"
    assert said.endswith(f"fasten: File too large: run/checkpoint/000000030.safetensors; {cure}\n")
    assert {path.name: path.read_bytes() for path in (begun / "checkpoint").iterdir()} == kept
    assert main(["resume", "run", "--json"]) == 0
    assert left_by(begun) == left_by(alone)


def test_a_folder_that_can_no_longer_be_written_leaves_the_last_checkpoint(alone, begun, capsys, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    kept = {path.name: path.read_bytes() for path in (begun / "checkpoint").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        assert main(["resume", "run", "--json"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fasten: Read-only file system: run/log.jsonl; once that is fixed, `fasten resume run`")
    assert {path.name: path.read_bytes() for path in (begun / "checkpoint").iterdir()} == kept
    assert main(["resume", "run", "--json"]) == 0
    assert left_by(begun) == left_by(alone)


@dataclass(frozen=True)
class NotKept(Decoding):
    """Images are decoded each time that they are needed."""

    cache_bytes: int = 0


def test_data_that_are_lost_on_the_way_and_come_back(tmp_path, capsys, monkeypatch):
    """Images that are read from their files in every update, on a mount that goes away in the second epoch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own, "Decoding", NotKept)
    write_digits(tmp_path / "photos")
    train = shlex.split("train photos --verified verified.txt --device cpu --epochs 3 --no-references --json")
    train += ["--set", "batch_size=4", *OFTEN]  # more updates than are fetched ahead
    assert main([*train, "--out", "whole"]) == 0

    def lose(self, done: int) -> None:
        if done == 20:
            Path("photos").rename("gone")

    with monkeypatch.context() as patch:
        patch.setattr(Display, "update", lose)
        assert main([*train, "--out", "run"]) == 2
    said = capsys.readouterr().err
    lost = r"the image d\d/\d+.png cannot be read any more .no such file.*"
    assert re.fullmatch(rf"fasten: {lost}`fasten resume run` continues from the last checkpoint\n", said)
    assert newest(tmp_path) >= 20
    assert main(["resume", "run", "--json"]) == 2
    assert "photos" in capsys.readouterr().err
    Path("gone").rename("photos")
    assert main(["resume", "run", "--json"]) == 0
    assert left_by(tmp_path / "run") == left_by(tmp_path / "whole")


@pytest.mark.parametrize(
    "command", ["compare digits --noise symmetric:0.4 --epochs 1", "reproduce table1 --setting miniature --seeds 1"]
)
def test_two_commands_do_not_work_on_one_table(command, tmp_path, capsys):
    """They would take each other's runs for failures."""
    (tmp_path / "out").mkdir()
    with alone_in(tmp_path / "out"):
        assert main([*command.split(), "--out", str(tmp_path / "out")]) == 2
    assert "another process is at work in" in capsys.readouterr().err


class Unread(io.StringIO):
    """The end of a pipe whose reader is gone, or a terminal that was closed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def isatty(self) -> bool:
        return self.number == errno.EIO

    def write(self, text: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO])
def test_a_run_outlives_the_reader_of_its_progress(number, monkeypatch):
    """Ctrl-C ends `tee` as well: what is said of the checkpoint must not prevent it."""
    monkeypatch.setenv("TERM", "xterm")
    with Display() as display:
        display.console.file = Unread(number)
        display.say("stopping after this update")
        display.show_bar("training", 2)
        assert (display.bar is not None) == display.console.file.isatty()
        display.update(1)
        display.say("again")


def test_two_commands_do_not_work_on_one_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = start([*TRAIN, "--out", "run"], tmp_path, update_seconds=0.05)
    end = time.monotonic() + PATIENCE
    while not (tmp_path / "run/log.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.01)
    for words in (["resume", "run"], [*TRAIN, "--out", "run"]):
        assert main(words) == 2
    said = capsys.readouterr().err
    assert "another process is at work in run; wait until it ends, or stop it" in said
    assert "run already holds a run" in said
    first.kill()
    finish(first, tmp_path)
    with alone_in(tmp_path / "run"):
        pass
