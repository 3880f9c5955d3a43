"""Runs side by side: order, room, environment, failures, interruptions, NVIDIA's daemon; tiny scripts as children."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import fasten.grid.workers as workers
import fasten.runs.training as training
from fasten.contract import Recipe
from fasten.grid.workers import Job, Slot, attempt, find_slots, in_children, in_this_process, mps, read_devices
from fasten.records import SHARED_GPU, Run, read_record
from fasten.runs.training import Settings
from fasten.signals import stopped_by_signals

TINY = Run("digits", "symmetric:0.4", "cross-entropy", recipe=Recipe("small-cnn", epochs=1, batch_size=400))

# Notes when it starts and ends, and does what the run's options say.
SCRIPT = """
import json, os, signal, sys, time
job = json.load(open(sys.argv[1]))
options, seed = job["run"]["options"], job["run"]["seed"]
def note(word):
    line = {"word": word, "seed": seed, "pid": os.getpid(), "device": job["device"], "environment": dict(os.environ)}
    with open(os.environ["EVENTS"], "a") as file:
        file.write(json.dumps(line) + "\\n")
if "deaf" in options:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
note("start")
time.sleep(options.get("sleep", 0.15))
if "said" in options:
    sys.stderr.write(options["said"])
note("end")
sys.exit(options.get("status", 0))
"""


@pytest.fixture
def children(tmp_path, monkeypatch):
    """The script in place of real workers; what they noted."""
    (tmp_path / "worker.py").write_text(SCRIPT)
    command = [sys.executable, "-S", "-E", str(tmp_path / "worker.py")]
    monkeypatch.setattr(workers, "command", lambda job: [*command, os.fspath(job)])
    monkeypatch.setenv("EVENTS", str(tmp_path / "events"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv(workers.MPS_FOLDER, raising=False)

    def events(word: str | None = None) -> list[dict]:
        lines = (tmp_path / "events").read_text().splitlines() if (tmp_path / "events").exists() else []
        return [event for event in map(json.loads, lines) if word in (None, event["word"])]

    return events


def jobs(folder: Path, *options: dict) -> list[Job]:
    return [Job(replace(TINY, seed=seed, options=own), folder / f"run{seed}") for seed, own in enumerate(options)]


def most_at_once(events: list[dict]) -> int:
    running, most = 0, 0
    for event in events:
        running += 1 if event["word"] == "start" else -1
        most = max(most, running)
    return most


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def carry_out(todo: list[Job], slots: list[Slot], folder: Path) -> list[tuple[int, str | None]]:
    ended: list[tuple[int, str | None]] = []
    in_children(slots, folder / "logs")(todo, lambda job, error: ended.append((job.run.seed, error)))
    return ended


# Children.


@pytest.mark.parametrize("room", [1, 2, 3])
def test_as_many_run_at_a_time_as_there_is_room_for(tmp_path, children, room):
    ended = carry_out(jobs(tmp_path, *[{}] * 5), [Slot("cpu")] * room, tmp_path)
    assert sorted(ended) == [(seed, None) for seed in range(5)]
    assert most_at_once(children()) == room


def test_jobs_start_in_the_order_given(tmp_path, children):
    carry_out(jobs(tmp_path, {"sleep": 0.5}, {}, {}, {}), [Slot("cpu")] * 2, tmp_path)
    first_two, others = children("start")[:2], children("start")[2:]
    assert {event["seed"] for event in first_two} == {0, 1}
    assert [event["seed"] for event in others] == [2, 3]


def test_one_room_means_strictly_one_after_the_other(tmp_path, children):
    carry_out(jobs(tmp_path, *[{"sleep": 0.01}] * 3), [Slot("cpu")], tmp_path)
    assert [(e["seed"], e["word"]) for e in children()] == [(s, w) for s in range(3) for w in ("start", "end")]


def test_a_child_gets_its_slots_environment_and_ours(tmp_path, children, monkeypatch):
    monkeypatch.setenv("FROM_OUTSIDE", "kept")
    slots = [Slot("cuda", {"CUDA_VISIBLE_DEVICES": str(number)}) for number in (4, 7)]
    carry_out(jobs(tmp_path, {"sleep": 0.3}, {"sleep": 0.3}), slots, tmp_path)
    seen = {event["environment"]["CUDA_VISIBLE_DEVICES"] for event in children("start")}
    assert seen == {"4", "7"}
    assert {(e["device"], e["environment"]["FROM_OUTSIDE"]) for e in children()} == {("cuda", "kept")}
    package = str(Path(workers.__file__).parents[2])
    assert all(event["environment"]["PYTHONPATH"].split(os.pathsep)[0] == package for event in children())


def test_a_child_that_fails_is_told_and_the_others_go_on(tmp_path, children):
    said = "Traceback …\nfasten: training diverged in epoch 1\na warning at exit\n"
    ended = carry_out(jobs(tmp_path, {"status": 1, "said": said}, {}, {"status": 3}), [Slot("cpu")], tmp_path)
    silent = "it ended with status 3 and said nothing"
    assert ended == [(0, "training diverged in epoch 1"), (1, None), (2, silent)]
    assert (tmp_path / "logs/run0.txt").read_text() == said
    assert not (tmp_path / "logs/run1.txt").exists()


def test_nothing_is_left_of_runs_that_went_well(tmp_path, children):
    carry_out(jobs(tmp_path, {}, {}), [Slot("cpu")], tmp_path)
    assert not (tmp_path / "logs").exists()


def wait_for(events, number: int) -> None:
    until = time.monotonic() + 30
    while len(events("start")) < number and time.monotonic() < until:
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_children_and_starts_no_more(tmp_path, children, number):
    def send():
        wait_for(children, 3)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    sender = threading.Thread(target=send)
    todo = jobs(tmp_path, {"sleep": 0.01}, {"sleep": 60}, {"sleep": 60}, {}, {})
    sender.start()
    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        carry_out(todo, [Slot("cpu")] * 2, tmp_path)
    sender.join()
    assert [event["seed"] for event in children("end")] == [0]
    assert {event["seed"] for event in children("start")} == {0, 1, 2}
    assert not any(alive(event["pid"]) for event in children())
    assert signal.getsignal(number) == before
    assert not (tmp_path / "logs").exists()


def test_a_signal_that_comes_while_a_child_starts_stops_that_one_too(tmp_path, children, monkeypatch):
    class Slow(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            wait_for(children, 1)
            os.kill(os.getpid(), signal.SIGTERM)  # it runs, and nobody has been told so

    monkeypatch.setattr(workers.subprocess, "Popen", Slow)
    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        carry_out(jobs(tmp_path, {"sleep": 60}, {"sleep": 60}), [Slot("cpu")], tmp_path)
    (started,) = children("start")
    assert not alive(started["pid"])


def test_a_child_that_does_not_listen_is_killed(tmp_path, children, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE_SECONDS", 0.2)

    def interrupt(job, error):
        wait_for(children, 2)
        raise KeyboardInterrupt

    todo = jobs(tmp_path, {"sleep": 0.01}, {"sleep": 60, "deaf": True})
    with pytest.raises(KeyboardInterrupt):
        in_children([Slot("cpu")] * 2, tmp_path / "logs")(todo, interrupt)
    assert not any(alive(event["pid"]) for event in children())


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# Where runs go.


def slots_on(monkeypatch, names: list[str], jobs: int | None, runs: int = 100) -> tuple[list[Slot], list[str]]:
    """The slots on devices that need not be there, and what was said."""
    monkeypatch.setattr(workers, "read_devices", lambda text: names)
    said: list[str] = []
    with find_slots("any", jobs, runs, said.append) as slots:
        return slots, said


def test_a_cpu_takes_one_run_in_this_process(monkeypatch):
    assert slots_on(monkeypatch, ["cpu"], None) == ([Slot("cpu", in_child=False)], [])


def test_several_on_a_cpu_share_its_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert slots_on(monkeypatch, ["cpu"], 3)[0] == [Slot("cpu", {"OMP_NUM_THREADS": "2"})] * 3


def test_a_child_sees_its_own_gpu_alone(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    slots, said = slots_on(monkeypatch, ["cuda:0", "cuda:1"], 1)
    assert [slot.environment for slot in slots] == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    assert all(slot.in_child and slot.device == "cuda" for slot in slots)
    assert said == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-7")
    slots, _ = slots_on(monkeypatch, ["cuda:0", "cuda:1"], 1)
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["4", "GPU-7"]


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """A program of NVIDIA's that notes what it is told; `status` is that of its start, `probe` that of a try."""

    def install(status: int = 0, probe: int = 0):
        program, log = tmp_path / "bin" / workers.MPS_CONTROL, tmp_path / "daemon"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\necho "$* $(cat) $CUDA_MPS_PIPE_DIRECTORY" >> {log}\nif [ "$1" = -d ]; then exit {status}; fi\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(workers, "MPS_PROBE", ("sh", "-c", f"exit {probe}"))

        def told() -> list[str]:
            return [line.rsplit(" ", 1)[0].strip() for line in log.read_text().splitlines()] if log.exists() else []

        return told

    monkeypatch.delenv(workers.MPS_FOLDER, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return install


def test_with_a_daemon_three_share_a_gpu_and_it_ends_with_us(monkeypatch, daemon):
    told = daemon()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")  # the daemon numbers what it sees anew
    monkeypatch.setattr(workers, "read_devices", lambda text: ["cuda:0", "cuda:1"])
    said: list[str] = []
    with find_slots("any", None, 100, said.append) as slots:
        assert told() == ["-d"]
        folder = Path(slots[0].environment[workers.MPS_FOLDER])
        assert folder.is_dir()
        assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["0", "1"] * 3
        assert {slot.environment[SHARED_GPU] for slot in slots} == {"1"}
        assert {slot.environment["CUDA_MPS_LOG_DIRECTORY"] for slot in slots} == {str(folder.parent / "log")}
    assert told() == ["-d", "quit"]
    assert not folder.exists()
    assert said == []


def test_the_daemon_ends_with_an_exception_too(daemon):
    told = daemon()
    with pytest.raises(KeyboardInterrupt), mps("0"):
        raise KeyboardInterrupt
    assert told() == ["-d", "quit"]


def test_without_the_program_one_run_has_a_gpu(monkeypatch, daemon, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    slots, said = slots_on(monkeypatch, ["cuda:0"], None)
    assert slots == [Slot("cuda", {"CUDA_VISIBLE_DEVICES": "0"})]
    assert said == ["NVIDIA MPS could not be started: one run at a time"]


def test_a_daemon_that_does_not_start_is_done_without(monkeypatch, daemon):
    told = daemon(status=1)
    slots, said = slots_on(monkeypatch, ["cuda:0"], 2)
    assert slots == [Slot("cuda", {"CUDA_VISIBLE_DEVICES": "0", SHARED_GPU: "1"})] * 2
    assert said == ["NVIDIA MPS could not be started: 2 runs take turns on a GPU"]
    assert told() == ["-d"]


def test_a_daemon_that_starts_and_does_not_work_is_ended(monkeypatch, daemon):
    told = daemon(probe=1)
    slots, said = slots_on(monkeypatch, ["cuda:0"], None)
    assert (len(slots), len(said)) == (1, 1)
    assert told() == ["-d", "quit"]


def test_a_daemon_of_the_users_own_is_left_alone(monkeypatch, daemon):
    told = daemon()
    monkeypatch.setenv(workers.MPS_FOLDER, "/theirs")
    slots, _ = slots_on(monkeypatch, ["cuda:0"], None)
    assert slots == [Slot("cuda", {"CUDA_VISIBLE_DEVICES": "0", SHARED_GPU: "1"})] * 3
    assert told() == []


def test_a_run_that_is_alone_does_not_count_as_sharing(monkeypatch, daemon):
    told = daemon()
    assert [SHARED_GPU in slot.environment for slot in slots_on(monkeypatch, ["cuda:0"], 3, runs=1)[0]] == [False]
    assert told() == []
    assert len(slots_on(monkeypatch, ["cuda:0"], 3, runs=2)[0]) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("banana", ["unknown device 'banana'"]),
        ("cuda:64", ["'cuda:64' does not exist"]),
        ("cpu,cpu", ["several GPUs separated by commas", "'cpu,cpu'"]),
        ("cpu,", ["''"]),
    ],
)
def test_devices_that_cannot_be_are_refused(text, words):
    with pytest.raises(ValueError, match=r".") as error:
        read_devices(text)
    assert all(word in str(error.value) for word in words)


def test_a_gpu_is_named_once(monkeypatch):
    monkeypatch.setattr(workers, "choose_machine", lambda name: replace(training.choose_machine("cpu"), device=name))
    assert read_devices("cuda:1, cuda:0") == ["cuda:1", "cuda:0"]
    with pytest.raises(ValueError, match="names cuda:0 twice"):
        read_devices("cuda:0,cuda:0")


# What a worker does.


def without_times(record: dict) -> tuple:
    result = {name: value for name, value in record["result"].items() if "second" not in name}
    return record["run"], record["data"], record["evaluation"], result


def job_file(folder: Path, job: Job, **changes) -> list[str]:
    path = folder / "job.json"
    path.write_text(json.dumps({**job.to_json(), "device": "cpu", "parent": os.getpid(), **changes}))
    return [str(path)]


def test_a_real_child_makes_what_train_makes(tmp_path):
    (job,) = jobs(tmp_path, {})
    plain = training.train(job.run, tmp_path / "plain", Settings(device="cpu", clean_reference=False))
    slot = Slot("cpu", {SHARED_GPU: "1", "OMP_NUM_THREADS": "1"})
    assert carry_out([job], [slot], tmp_path) == [(0, None)]
    record = read_record(job.folder)
    assert without_times(record) == without_times(plain)
    assert record["environment"]["shared_gpu"] is True
    assert "shared_gpu" not in plain["environment"]
    assert sorted(p.name for p in job.folder.iterdir()) == sorted(p.name for p in (tmp_path / "plain").iterdir())


def test_a_worker_whose_parent_is_gone_stops_and_its_job_goes_on(tmp_path, capsys, monkeypatch):
    (job,) = jobs(tmp_path, {})
    assert workers.main(job_file(tmp_path, job, parent=os.getppid() + 1)) == 1
    assert capsys.readouterr().err == "fasten: interrupted\n"
    assert read_record(job.folder)["result"] is None
    monkeypatch.setenv(SHARED_GPU, "1")
    assert workers.main(job_file(tmp_path, job, parent=os.getppid())) == 0
    record = read_record(job.folder)
    plain = training.train(job.run, tmp_path / "plain", Settings(device="cpu", clean_reference=False))
    assert without_times(record) == without_times(plain)
    assert record["environment"]["shared_gpu"] is True  # its second half was not alone


def test_a_worker_says_why_it_failed(tmp_path, capsys):
    run = replace(TINY, recipe=replace(TINY.recipe, rate=1e30))
    assert workers.main(job_file(tmp_path, Job(run, tmp_path / "run"), parent=os.getppid())) == 1
    said = capsys.readouterr().err
    assert said.startswith("fasten: training diverged in epoch 1")
    assert said.count("\n") == 1


def test_faults_of_ours_are_named_and_memory_is_a_sentence(tmp_path, monkeypatch):
    (job,) = jobs(tmp_path, {})
    for error, told in (
        (RuntimeError("a bug"), "RuntimeError: a bug"),
        (MemoryError(), "not enough memory"),
        (ValueError("no such thing"), "no such thing"),
    ):

        def fail(*args, error=error):
            raise error

        monkeypatch.setattr(workers, "train", fail)
        assert attempt(job, Settings()).startswith(told)
    monkeypatch.setenv("FASTEN_DEBUG", "1")
    with pytest.raises(ValueError, match="no such thing"):
        attempt(job, Settings())


def test_a_full_disk_stops_all(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(workers, "train", fail)
    with pytest.raises(OSError, match="No space"):
        in_this_process(Settings(device="cpu"))(jobs(tmp_path, {}, {}), lambda job, error: None)
    assert workers.main(job_file(tmp_path, jobs(tmp_path, {})[0], parent=os.getppid())) == workers.DISK_FULL


def test_a_child_whose_disk_is_full_stops_all(tmp_path, children):
    full = {"status": workers.DISK_FULL, "said": "fasten: no space left on the disk"}
    with pytest.raises(OSError, match=r"No space left.*run0"):
        carry_out(jobs(tmp_path, full, {"sleep": 60}, {}), [Slot("cpu")] * 2, tmp_path)
    started = children("start")
    assert {event["seed"] for event in started} == {0, 1}
    assert not any(alive(event["pid"]) for event in started)
    assert not (tmp_path / "logs").exists()
