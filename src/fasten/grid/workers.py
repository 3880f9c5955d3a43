"""Carry out runs one after the other in this process, or in parallel: in child processes, several on each GPU.

A child is `python -m fasten.grid.workers JOB.json`. It stops at SIGTERM, and when its parent is gone; what it has done
is in its folder, and the same job continues from there.
"""

from __future__ import annotations

import errno
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fasten.datasets import Place
from fasten.files import write_text
from fasten.machine import choose_machine
from fasten.records import SHARED_GPU, Record, Run
from fasten.runs.beginnings import record_in
from fasten.runs.training import Settings, resume, train
from fasten.sentences import FULL_DISK, is_out_of_memory, sentence
from fasten.signals import asked_to_stop, stopped_by_signals

MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_FOLDER = "CUDA_MPS_PIPE_DIRECTORY"  # set by users who run a daemon of their own
MPS_PROBE = (sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')")
JOBS_WITH_MPS = 3
POLL_SECONDS, WATCH_SECONDS = 0.05, 1.0
DISK_FULL = errno.ENOSPC  # exit status of a child
PATIENCE_SECONDS = 60.0  # for a child to end once it was told to, and for the daemon to answer


@dataclass(frozen=True)
class Job:
    """A run, and where its folder and its data are."""

    run: Run
    folder: Path
    root: Path = Place.root
    label_set: str = Place.label_set

    def to_json(self) -> dict[str, Any]:
        """As plain values; the paths do not depend on the reader's current folder."""
        places = {"folder": os.fspath(self.folder.absolute()), "root": os.fspath(self.root.absolute())}
        return {"run": self.run.to_json(), **places, "label_set": self.label_set}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Job:
        places = Path(values["folder"]), Path(values["root"])
        return Job(Run.from_json(values["run"]), *places, values["label_set"])


@dataclass(frozen=True)
class Slot:
    """Room for one run at a time: in a child with this environment, or in this process."""

    device: str
    environment: Mapping[str, str] = field(default_factory=dict)
    in_child: bool = True


Done = Callable[[Job, str | None], None]  # a job that ended, and why it failed
Watch = Callable[[int], None]  # is told now and then how many runs are in progress
Work = Callable[[Sequence[Job], Done], None]  # carries out all jobs; `Done` is told of each as it ends


@dataclass(frozen=True)
class Room:
    """Workers, and how many jobs they carry out at a time."""

    work: Work
    size: int


def carry_out(job: Job, settings: Settings) -> Record:
    """Start a run, or continue it."""
    begun = record_in(job.folder) is not None
    return resume(job.folder, settings) if begun else train(job.run, job.folder, settings)


def attempt(job: Job, settings: Settings) -> str | None:
    """Carry out a run; return a sentence if it fails. A full disk is not the run's fault: it stops everything."""
    try:
        carry_out(job, settings)
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        if os.environ.get("FASTEN_DEBUG") or (isinstance(error, OSError) and error.errno in FULL_DISK):
            raise
        if not isinstance(error, RuntimeError) or is_out_of_memory(error):
            return sentence(error)
        traceback.print_exc()  # a bug of ours, or a fault of the GPU
        return f"{type(error).__name__}: {sentence(error)}"
    return None


def in_this_process(settings: Settings) -> Work:
    """Carry out one job after the other."""

    def work(jobs: Sequence[Job], done: Done) -> None:
        for job in jobs:
            _forget_memory(settings.device)
            done(job, attempt(job, settings))

    return work


def in_children(slots: Sequence[Slot], logs: Path, watch: Watch = lambda running: None) -> Work:
    """Carry out as many jobs at a time as there are slots, in order; those that fail have their log in `logs`."""
    return lambda jobs, done: _Children(slots, logs, done, watch).work(jobs)


def sweep_logs(logs: Path, folders: Iterable[Path]) -> None:
    """Remove the logs of runs that have finished since or start again, such as a killed process leaves."""
    for folder in folders:
        _log_of(folder, logs).unlink(missing_ok=True)
    with suppress(OSError):
        logs.rmdir()  # if it is empty


def _log_of(folder: Path, logs: Path) -> Path:
    return logs / f"{folder.name}.txt"


def _forget_memory(device: str | None) -> None:
    """Free the memory of earlier runs, whose images are in reference cycles: a record gives the peak of its own run."""
    chosen = choose_machine(device).device
    gc.collect()
    if chosen.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(chosen)


@contextmanager
def room_here(
    devices: str, jobs: int | None, runs: int, settings: Settings, logs: Path, watch: Watch = lambda running: None
) -> Iterator[Room]:
    """Workers on this machine's devices for this many runs; runs in this process report through `settings`."""
    with find_slots(devices, jobs, runs, settings.say) as slots:
        here = replace(settings, device=slots[0].device)
        yield Room(in_children(slots, logs, watch) if slots[0].in_child else in_this_process(here), len(slots))


@dataclass(frozen=True)
class _Child:
    job: Job
    slot: Slot
    log: Path
    process: subprocess.Popen[bytes]


class _Children:
    """Child processes, as many at a time as there are slots."""

    def __init__(self, slots: Sequence[Slot], logs: Path, done: Done, watch: Watch) -> None:
        self.free, self.logs, self.done, self.watch = list(slots), logs, done, watch
        self.busy: list[_Child] = []
        self.watched = -math.inf

    def work(self, jobs: Sequence[Job]) -> None:
        waiting = deque(jobs)
        self.logs.mkdir(parents=True, exist_ok=True)
        # Asked, not interrupted: a child that had just been started would not be known yet, and would live on.
        with tempfile.TemporaryDirectory(prefix="fasten-") as folder, asked_to_stop(lambda said: None) as asked:
            try:
                while waiting or self.busy:
                    if asked():
                        raise KeyboardInterrupt
                    if waiting and self.free:
                        self._start(waiting.popleft(), self.free.pop(0), Path(folder))
                    else:
                        self._gather()
            finally:
                self._stop()
                sweep_logs(self.logs, ())

    def _start(self, job: Job, slot: Slot, folder: Path) -> None:
        path, log = folder / f"{job.folder.name}.json", _log_of(job.folder, self.logs)
        write_text(path, json.dumps({**job.to_json(), "device": slot.device, "parent": os.getpid()}))
        with log.open("wb") as said:
            process = subprocess.Popen(
                command(path),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, **own_package(), **slot.environment},
                start_new_session=True,  # Ctrl-C only reaches this process, which stops them in order
            )
        self.busy.append(_Child(job, slot, log, process))

    def _gather(self) -> None:
        ended = [child for child in self.busy if child.process.poll() is not None]
        for child in ended:
            status = child.process.returncode
            if status == DISK_FULL:
                raise OSError(status, os.strerror(status), os.fspath(child.job.folder))
            self.busy.remove(child)
            self.free.append(child.slot)
            error = None if status == 0 else last_sentence(child.log.read_text("utf-8", "replace"), status)
            if error is None:
                child.log.unlink()
            self.done(child.job, error)
        if not ended:
            time.sleep(POLL_SECONDS)
            if time.monotonic() - self.watched > WATCH_SECONDS:
                self.watch(len(self.busy))
                self.watched = time.monotonic()

    def _stop(self) -> None:
        """Terminate the children that are left, and kill those that do not end; a second Ctrl-C cuts the wait short."""
        for child in self.busy:
            child.process.terminate()
        try:
            until = time.monotonic() + PATIENCE_SECONDS
            while any(child.process.poll() is None for child in self.busy) and time.monotonic() < until:
                time.sleep(POLL_SECONDS)
        finally:
            for child in self.busy:
                child.process.kill()
                child.process.wait()
                child.log.unlink(missing_ok=True)


def command(job: Path) -> list[str]:
    """The command that starts a child."""
    return [sys.executable, "-m", "fasten.grid.workers", os.fspath(job)]


def own_package() -> dict[str, str]:
    """The environment in which a child finds this package, installed or not."""
    paths = [os.fspath(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def last_sentence(said: str, status: int) -> str:
    """Why a child failed: its own sentence, otherwise its last line, otherwise its exit status.

    >>> last_sentence("a warning\\nfasten: training diverged\\nanother warning\\n", 1), last_sentence("", -9)
    ('training diverged', 'it ended with status -9 and said nothing')
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    ours = [line.removeprefix("fasten: ") for line in lines if line.startswith("fasten: ")]
    return (ours or lines or [f"it ended with status {status} and said nothing"])[-1]


@contextmanager
def find_slots(
    devices: str, jobs: int | None, runs: int, say: Callable[[str], None] = lambda text: None
) -> Iterator[list[Slot]]:
    """Slots for runs: one in this process on a CPU, unless more are asked for; `jobs` children on each GPU."""
    names = read_devices(devices)
    most = max(1, math.ceil(runs / len(names)))  # the time of a run is worth keeping if it has its GPU to itself
    with stopped_by_signals():
        if not names[0].startswith("cuda"):
            yield _on_host(names[0], min(jobs or 1, most))
        elif jobs == 1 or most == 1:
            yield _on_gpus(names, 1, None)
        else:
            with mps(names[0].partition(":")[2]) as environment:
                each = min(jobs or (JOBS_WITH_MPS if environment is not None else 1), most)
                if environment is None:
                    how = f"{each} runs take turns on a GPU" if each > 1 else "one run at a time"
                    say(f"NVIDIA MPS could not be started: {how}")
                yield _on_gpus(names, each, environment)


def read_devices(text: str) -> list[str]:
    """Read one device that is there, or several GPUs separated by commas."""
    names = [str(choose_machine(part.strip()).device) for part in text.split(",")]
    if len(names) > 1 and not all(name.startswith("cuda") for name in names):
        raise ValueError(f"--device takes one device, or several GPUs separated by commas, got {text!r}")
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ValueError(f"--device names {twice[0]} twice; give it once, and --jobs for several runs on it")
    return names


def _on_host(device: str, jobs: int) -> list[Slot]:
    if jobs == 1:
        return [Slot(device, in_child=False)]
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    return [Slot(device, {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)})] * jobs


def _on_gpus(names: Sequence[str], each: int, own_mps: Mapping[str, str] | None) -> list[Slot]:
    """Slots on each GPU in turn, so that the first runs go to different ones. A child sees only its own GPU."""
    shared = {SHARED_GPU: "1"} if each > 1 else {}
    slots = []
    for name in names:
        number = int(name.partition(":")[2])
        visible = str(number) if own_mps else _visible(number)  # our own daemon numbers the GPUs that it sees from 0
        slots.append(Slot("cuda", {"CUDA_VISIBLE_DEVICES": visible, **shared, **(own_mps or {})}))
    return slots * each


def _visible(number: int) -> str:
    """The name outside this process of the GPU that it knows by this number."""
    given = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return given[number] if number < len(given) else str(number)


@contextmanager
def mps(gpu: str) -> Iterator[dict[str, str] | None]:
    """Start a daemon of NVIDIA's multi-process service for our children; yield their environment, or None if it fails.

    It has a folder of its own and ends with us; whether it works is tried on one of the GPUs. If the user runs a
    daemon, that one is used and left alone.
    """
    if os.environ.get(MPS_FOLDER):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="fasten-", ignore_cleanup_errors=True) as folder:
        own = {MPS_FOLDER: f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in own.values():
            Path(path).mkdir()
        started = False
        try:
            started = _succeeds([MPS_CONTROL, "-d"], own)
            works = started and _succeeds(MPS_PROBE, own | {"CUDA_VISIBLE_DEVICES": gpu})
            yield own if works else None
        finally:
            if started:
                _succeeds([MPS_CONTROL], own, "quit\n")


def _succeeds(command: Sequence[str], environment: Mapping[str, str], told: str = "") -> bool:
    """Whether a command succeeds. Its output is discarded: a daemon would keep a pipe open."""
    try:
        found = subprocess.run(
            command,
            input=told.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            timeout=PATIENCE_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return found.returncode == 0


def main(arguments: Sequence[str]) -> int:
    """Carry out the job in a file, in a child: exit status 0, or a sentence and 1; a full disk has its own status."""
    values = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    job = Job.from_json(values)

    def stop_if_orphaned(updates: int) -> None:
        if os.getppid() != values["parent"]:
            raise KeyboardInterrupt

    place = Place(job.root, label_set=job.label_set)
    how = Settings(place, values["device"], clean_reference=False, on_update=stop_if_orphaned)
    status = 1
    try:
        with stopped_by_signals():
            error = attempt(job, how)
    except KeyboardInterrupt:
        error = "interrupted"
    except OSError as fault:
        error, status = sentence(fault), DISK_FULL if fault.errno in FULL_DISK else 1
    if error:
        sys.stderr.write(f"fasten: {error}\n")
    return status if error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
