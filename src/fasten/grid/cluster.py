"""Runs on the machines of a Ray cluster, each with a share of a GPU; a run whose worker is lost is run again.

A worker that sees the folder of the command, on a shared disk or on the same machine, works in it: a run that was lost
continues from its checkpoint. Any other worker works in a folder of its own, and sends its smaller files back.
"""

from __future__ import annotations

import importlib
import math
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fasten.datasets import Place
from fasten.files import write_bytes
from fasten.grid.workers import Done, Job, Room, attempt, own_package
from fasten.records import MATRICES, SHARED_GPU
from fasten.runs.training import Settings
from fasten.sentences import sentence
from fasten.signals import stopped_by_signals

LOCAL = "local"  # an address: a cluster on this machine, for as long as the command runs
TRIES = 4  # of a run whose worker is lost
SMALL = 16 * 2**20  # bytes; a larger file is not sent back
POLL_SECONDS = 1.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Cluster:
    """Which cluster, and how much of a GPU a run gets; None: a whole one, if there are any."""

    address: str
    gpus_per_run: float | None = None


def read_cluster(address: str | None, gpus_per_run: float | None, jobs: int | None = None) -> Cluster | None:
    """The cluster that the command line names; None: this machine."""
    if address is None:
        if gpus_per_run is not None:
            raise ValueError("--gpus-per-run is for --ray; leave it out, or name a cluster with --ray")
        return None
    if jobs is not None:
        raise ValueError("--jobs is for this machine; with --ray, --gpus-per-run says how many runs share a GPU")
    _find_ray()
    return Cluster(address, gpus_per_run)


@contextmanager
def room_on_ray(cluster: Cluster, device: str, out: Path, say: Say = lambda text: None) -> Iterator[Room]:
    """A cluster's workers for the runs whose folders are in `out`."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"--ray chooses the GPU itself, so --device takes auto, cpu or cuda, got {device!r}")
    ray = _connect(cluster.address)
    mark = out.absolute() / f".{uuid.uuid4().hex}.tmp"  # a worker that sees this file sees the folder
    try:
        gpus = _gpus(ray, cluster, device)
        write_bytes(mark, b"")
        with stopped_by_signals():
            yield Room(_Remote(ray, gpus, mark, say).work, _at_a_time(ray, gpus))
    finally:
        mark.unlink(missing_ok=True)
        ray.shutdown()


def _find_ray() -> Any:
    """The package, which is optional."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ValueError("--ray needs Ray, which is not installed: pip install ray") from None


def _connect(address: str) -> Any:
    ray = _find_ray()
    try:
        ray.init(
            address=address,  # never left out: Ray would join a cluster that it remembers, dead or alive
            runtime_env={"env_vars": own_package()},
            include_dashboard=False if address == LOCAL else None,
            log_to_driver=False,
            logging_level="error",
        )
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise ValueError(
            f"no Ray cluster can be used at {address} ({sentence(error)}); `ray start --head` starts one, and `--ray "
            f"{LOCAL}` starts one for this command alone"
        ) from None
    return ray


def _gpus(ray: Any, cluster: Cluster, device: str) -> float:
    """How many GPUs each run gets."""
    there = float(ray.cluster_resources().get("GPU", 0))
    wanted = cluster.gpus_per_run if cluster.gpus_per_run is not None else float(there > 0)
    if device == "cpu":
        return 0.0
    if there < wanted or (device == "cuda" and not wanted):
        raise ValueError(f"a run needs {wanted:g} GPUs, and the cluster has {there:g}; try --device cpu")
    return wanted


def _at_a_time(ray: Any, gpus: float) -> int:
    """How many runs the whole cluster carries out at a time; each has a CPU of its own."""
    there = ray.cluster_resources()
    return int(min(there.get("CPU", 1.0), there["GPU"] / gpus if gpus else math.inf))


class _Remote:
    """All jobs are handed to Ray at once: it knows best which worker has room."""

    def __init__(self, ray: Any, gpus: float, mark: Path, say: Say) -> None:
        self.ray, self.mark, self.say, self.device = ray, mark, say, "cuda" if gpus else "cpu"
        shared = {SHARED_GPU: "1"} if 0 < gpus < 1 else {}
        environment = {"env_vars": {**own_package(), **shared}}
        options = {"num_gpus": gpus, "max_calls": 1, "max_retries": 0, "runtime_env": environment}
        self.remote = ray.remote(**options)(carry_out_there)  # max_calls: the next run has a process of its own

    def work(self, jobs: Sequence[Job], done: Done) -> None:
        waiting = {self._start(job): (job, 1) for job in jobs}
        try:
            while waiting:
                ended, _ = self.ray.wait(list(waiting), num_returns=1, timeout=POLL_SECONDS)
                for reference in ended:
                    job, tries = waiting.pop(reference)
                    answer = self._answer(reference, job, tries)
                    if answer is None:
                        waiting[self._start(job)] = (job, tries + 1)
                    else:
                        done(job, self._take(job, answer))
        finally:
            for reference in waiting:  # after an interrupt
                self.ray.cancel(reference, force=True)

    def _start(self, job: Job) -> Any:
        return self.remote.remote(job.to_json(), self.device, os.fspath(self.mark), os.getcwd())

    def _answer(self, reference: Any, job: Job, tries: int) -> dict[str, Any] | None:
        """What the worker answers; None if it was lost and the run is tried again."""
        errors = self.ray.exceptions
        try:
            return dict(self.ray.get(reference))
        except errors.RayTaskError as error:  # a bug of ours
            return {"error": sentence(error).rpartition("Error: ")[2]}
        except errors.RayError as error:
            reason = f"its worker was lost ({type(error).__name__})"
            if tries == TRIES:
                return {"error": f"{reason} {tries} times"}
            self.say(f"{job.folder.name}: {reason}; it is run again")
            return None

    def _take(self, job: Job, answer: dict[str, Any]) -> str | None:
        """Write what was sent back, the record last: it shows that everything else is there."""
        files: dict[str, bytes] = answer.get("files", {})
        for name in sorted(files, key=lambda name: name == "record.json"):
            job.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(job.folder / name, files[name])
        if answer.get("left"):
            self.say(f"{job.folder.name}: {', '.join(answer['left'])} stay on {answer['host']}, in {answer['folder']}")
        error: str | None = answer["error"]
        return error


def carry_out_there(values: dict[str, Any], device: str, mark: str, here: str) -> dict[str, Any]:
    """Carry out a run in a worker: in the command's folder if it is there, else in our own, and send its files back."""
    job, shared = Job.from_json(values), Path(mark).exists()
    if os.path.isdir(here):
        os.chdir(here)  # file names are relative to it
    if not shared:
        job = replace(job, folder=_own_folder(Path(mark)) / job.folder.name)
    settings = Settings(Place(job.root, label_set=job.label_set), device, clean_reference=False)
    try:
        error = attempt(job, settings)
    except OSError as full:
        error = sentence(full)
    if shared or error:
        return {"error": error}
    found = _sent_back(job.folder)
    # What is not sent back stays; the rest would fill the disk without anybody knowing.
    shutil.rmtree(job.folder / "checkpoint" if found["left"] else job.folder, ignore_errors=True)
    return {"error": None, "host": socket.gethostname(), "folder": os.fspath(job.folder), **found}


def _own_folder(mark: Path) -> Path:
    """A worker's own folder: the same for every try of one command on one machine."""
    return Path(tempfile.gettempdir()) / f"fasten-ray-{mark.stem.strip('.')}"


def _sent_back(folder: Path) -> dict[str, Any]:
    found = [path for path in sorted(folder.iterdir()) if path.is_file()]
    small = [path for path in found if path.name in ("record.json", MATRICES) or path.stat().st_size <= SMALL]
    return {"files": {p.name: p.read_bytes() for p in small}, "left": [p.name for p in found if p not in small]}
