"""Runs on Ray: which worker gets what, what comes back, and what happens when one is lost; a stand-in for Ray."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import fasten.grid.cluster as cluster
from command_line import refuse
from fasten.contract import Recipe
from fasten.grid.cluster import TRIES, Cluster, read_cluster, room_on_ray
from fasten.grid.workers import Job, own_package
from fasten.records import SHARED_GPU, Run

RUN = Run("digits", "symmetric:0.4", "cross-entropy", recipe=Recipe("small-cnn", epochs=1))


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class WorkerCrashedError(RayError):
    pass


class FakeRay:
    """Carries out what is asked for when it is waited for; `faults` are raised in place of the first answers."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, gpus: float = 0, *faults: BaseException) -> None:
        self.gpus, self.faults = gpus, list(faults)
        self.started: list[tuple] = []
        self.cancelled: list[int] = []
        self.said: dict = {}
        self.options: dict = {}
        self.up = False

    def init(self, **said) -> None:
        self.said, self.up = said, True
        if said.get("address") == "nowhere":
            raise ConnectionError("nobody there")

    def shutdown(self) -> None:
        self.up = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0, **({"GPU": self.gpus} if self.gpus else {})}

    def remote(self, **options):
        self.options = options

        def start(function):
            def go(*values) -> int:
                self.started.append((function, values))
                return len(self.started) - 1

            return SimpleNamespace(remote=go)

        return start

    def wait(self, references, num_returns, timeout):
        return references[:num_returns], references[num_returns:]

    def get(self, reference):
        if self.faults and (fault := self.faults.pop(0)) is not None:
            raise fault
        function, values = self.started[reference]
        return function(*json.loads(json.dumps(values)))

    def cancel(self, reference, force) -> None:
        self.cancelled.append(reference)


@pytest.fixture
def attempted(monkeypatch) -> list[tuple[Path, str]]:
    """Runs that leave a record at once; a negative seed fails."""
    seen = []

    def attempt(job, settings):
        seen.append((job.folder, settings.device))
        if job.run.seed < 0:
            return "training diverged"
        job.folder.mkdir(parents=True, exist_ok=True)
        (job.folder / "record.json").write_text(json.dumps(job.run.to_json()))
        (job.folder / "model.safetensors").write_bytes(b"x" * 100)
        (job.folder / "checkpoint").mkdir(exist_ok=True)
        (job.folder / "checkpoint/000000012.safetensors").write_bytes(b"x" * 50)
        return None

    monkeypatch.setattr(cluster, "attempt", attempt)
    return seen


def use(monkeypatch, ray: FakeRay) -> FakeRay:
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


def carry_out(ray: FakeRay, out: Path, seeds=(0, 1, 2), gpus: float | None = None, device: str = "auto"):
    said: list[str] = []
    ended: list[tuple[int, str | None]] = []
    jobs = [Job(replace(RUN, seed=seed), out / f"run{seed}") for seed in seeds]
    with room_on_ray(Cluster("local", gpus), device, out, said.append) as room:
        room.work(jobs, lambda job, error: ended.append((job.run.seed, error)))
    assert not ray.up
    return ended, said


def test_every_run_is_carried_out_in_its_own_folder(tmp_path, monkeypatch, attempted):
    ray = use(monkeypatch, FakeRay())
    ended, said = carry_out(ray, tmp_path, seeds=(0, -1, 2))
    assert ended == [(0, None), (-1, "training diverged"), (2, None)]
    assert (said, ray.options["num_gpus"], ray.options["max_calls"]) == ([], 0, 1)
    assert ray.said["address"] == "local"  # without an address Ray joins one that it remembers
    assert attempted == [(tmp_path / f"run{seed}", "cpu") for seed in (0, -1, 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run0", "run2"]


@pytest.mark.parametrize(("gpus", "each", "size"), [(0, None, 2), (1, None, 1), (4, None, 2), (1, 0.5, 2), (1, 0.4, 2)])
def test_it_is_known_how_many_run_at_a_time(tmp_path, monkeypatch, gpus, each, size):
    use(monkeypatch, FakeRay(gpus))
    with room_on_ray(Cluster("local", each), "auto", tmp_path) as room:
        assert room.size == size


def test_the_run_of_a_lost_worker_is_run_again(tmp_path, monkeypatch, attempted):
    ray = use(monkeypatch, FakeRay(0, WorkerCrashedError(), None, WorkerCrashedError()))
    ended, said = carry_out(ray, tmp_path)
    assert sorted(ended) == [(0, None), (1, None), (2, None)]
    assert len(ray.started) == 5
    assert said == [f"run{n}: its worker was lost (WorkerCrashedError); it is run again" for n in (0, 2)]


def test_a_run_that_always_loses_its_worker_is_given_up(tmp_path, monkeypatch, attempted):
    use(monkeypatch, FakeRay(0, *[WorkerCrashedError()] * TRIES))
    ended, _ = carry_out(FakeRay(), tmp_path, seeds=(0,))
    assert ended == [(0, f"its worker was lost (WorkerCrashedError) {TRIES} times")]


def test_a_fault_in_the_worker_is_the_runs_own(tmp_path, monkeypatch, attempted):
    ray = use(monkeypatch, FakeRay(0, RayTaskError("ray::carry_out_there()\n  File ...\nKeyError: 'x'")))
    ended, _ = carry_out(ray, tmp_path, seeds=(0, 1))
    assert ended == [(0, "'x'"), (1, None)]


def test_a_worker_that_does_not_see_the_folder_sends_its_files(tmp_path, monkeypatch, attempted):
    ray, out, far = FakeRay(), tmp_path / "out", tmp_path / "far"
    out.mkdir()
    use(monkeypatch, ray)
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(far))
    monkeypatch.setattr(cluster, "SMALL", 99)
    get, written = ray.get, []

    def unseen(reference):
        function, (values, device, mark, here) = ray.started[reference]
        ray.started[reference] = function, (values, device, str(far / Path(mark).name), here)
        return get(reference)

    ray.get = unseen
    write = cluster.write_bytes
    monkeypatch.setattr(cluster, "write_bytes", lambda path, data: written.append(path.name) or write(path, data))
    ended, said = carry_out(ray, out, seeds=(0,))
    assert ended == [(0, None)]
    (where, _), *_ = attempted
    assert where.is_relative_to(far)
    assert (out / "run0/record.json").read_bytes() == (where / "record.json").read_bytes()
    assert not (out / "run0/model.safetensors").exists()
    assert said[0].startswith("run0: model.safetensors stay on ")
    assert said[0].endswith(str(where))
    assert sorted(path.name for path in where.iterdir()) == ["model.safetensors", "record.json"]
    monkeypatch.setattr(cluster, "SMALL", 100)
    carry_out(ray, out, seeds=(1,))
    assert written[-2:] == ["model.safetensors", "record.json"]
    assert not attempted[-1][0].exists()  # nothing was left there


def test_an_interrupt_cancels_what_is_left(tmp_path, monkeypatch, attempted):
    ray = use(monkeypatch, FakeRay(0, None, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        carry_out(ray, tmp_path)
    assert ray.cancelled == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["run0"]
    assert not ray.up


@pytest.mark.parametrize(
    ("there", "asked", "device", "given"),
    [(0, None, "auto", 0), (2, None, "auto", 1), (2, 0.33, "auto", 0.33), (2, 0.33, "cpu", 0), (2, None, "cuda", 1)],
)
def test_a_run_gets_its_share_of_a_gpu(tmp_path, monkeypatch, attempted, there, asked, device, given):
    ray = use(monkeypatch, FakeRay(there))
    carry_out(ray, tmp_path, (0,), asked, device)
    assert ray.options["num_gpus"] == given
    assert attempted[0][1] == ("cuda" if given else "cpu")
    shared = {SHARED_GPU: "1"} if given == 0.33 else {}
    assert ray.options["runtime_env"]["env_vars"] == {**own_package(), **shared}


@pytest.mark.parametrize(
    ("there", "asked", "device", "words"),
    [(0, None, "cuda", "the cluster has 0"), (1, 2, "auto", "2 GPUs, and the cluster has 1"), (1, 1, "cuda:0", "auto")],
)
def test_what_the_cluster_has_not_is_refused(tmp_path, monkeypatch, there, asked, device, words):
    ray = use(monkeypatch, FakeRay(there))
    with pytest.raises(ValueError, match=words):
        carry_out(ray, tmp_path, (0,), asked, device)
    assert not ray.up
    assert list(tmp_path.iterdir()) == []


def test_an_address_where_nobody_is_is_refused(tmp_path, monkeypatch):
    use(monkeypatch, FakeRay())
    refused = pytest.raises(ValueError, match=r"no Ray cluster can be used at nowhere \(nobody there\)")
    with refused, room_on_ray(Cluster("nowhere"), "auto", tmp_path):
        pass


def test_a_cluster_is_named_with_what_belongs_to_it(monkeypatch):
    use(monkeypatch, FakeRay())
    assert read_cluster(None, None, 3) is None
    assert read_cluster("auto", 0.5) == Cluster("auto", 0.5)
    with pytest.raises(ValueError, match="--gpus-per-run is for --ray; leave it out, or name a cluster with --ray"):
        read_cluster(None, 0.5)
    with pytest.raises(ValueError, match="--jobs is for this machine"):
        read_cluster("auto", None, 2)


@pytest.mark.parametrize("command", ["compare digits --out out", "reproduce table1 --setting miniature --out out"])
def test_without_ray_the_cure_is_said_and_nothing_is_written(folder, capsys, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "ray", None)
    refuse(f"{command} --ray local", capsys, "pip install ray")
    refuse(f"{command} --gpus-per-run 0.5", capsys, "--gpus-per-run is for --ray")
    for wrong in ("1.5", "0", "-1", "inf", "nan", "half"):
        refuse(f"{command} --ray local --gpus-per-run {wrong}", capsys, "takes a part of a GPU")
    assert list(folder.iterdir()) == []
