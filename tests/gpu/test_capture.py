"""On a GPU: a captured run is the eager run, and nothing in an epoch waits for the device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from builders import make_tiny_task
from fasten.cli import main
from fasten.contract import Recipe
from fasten.engine import Fit
from fasten.evaluate import Watch
from fasten.loader import Loader
from fasten.machine import Machine
from fasten.methods import METHODS
from fasten.records import Run, read_record
from fasten.runs.building import build_method, plan_of
from fasten.stream import StreamLoader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

RECIPE = Recipe("resnet18", epochs=2, batch_size=16, rate=0.05, milestones=(2,), average=0.4)


def gpu(**options) -> Machine:
    return Machine(torch.device("cuda", 0), **{"precision": "bf16", "deterministic": True} | options)


def trained(
    name: str,
    machine: Machine,
    loader_type: type[Loader] = Loader,
    before=lambda fit: None,
    after=lambda fit: None,
    options=None,
) -> tuple[dict, list]:
    task = make_tiny_task()
    method = machine.place(build_method(Run("tiny", method=name, options=options or {}, recipe=RECIPE), task))
    loader = loader_type(task, machine.device, 0, machine.dtype)
    fit = Fit(method, plan_of(method, RECIPE), loader, machine, Watch(task, loader))
    before(fit)
    fit.after_update = lambda epoch_ended: after(fit)
    fit.run()
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in fit.progress.rows]
    return method.state_dict(), rows


@pytest.mark.parametrize("kernels", ["plain", "fused", "overlapped"])
@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in METHODS), ("fasten", {"estimate": "noisy"})])
def test_a_captured_run_is_the_eager_run(name, options, kernels):
    eager, eager_rows = trained(name, gpu(kernels=kernels), options=options)
    captured, captured_rows = trained(name, gpu(kernels=kernels, capture=True), options=options)
    assert all(torch.equal(eager[key], captured[key]) for key in eager)
    assert eager_rows == captured_rows


def first_change(name: str, machine: Machine) -> dict[str, torch.Tensor]:
    """What the first update of a run changes, all weights of each of its networks in one vector."""
    task = make_tiny_task()
    method = machine.place(build_method(Run("tiny", method=name, recipe=RECIPE), task))
    loader = Loader(task, machine.device, 0, machine.dtype)
    fit = Fit(method, plan_of(method, RECIPE), loader, machine, Watch(task, loader))
    step, stage = fit.start_stage()
    before = weights_of(method)
    fit.update.set_rates(1)
    step(next(iter(loader.updates(stage, (0, 1)))))
    return {child: after - before[child] for child, after in weights_of(method).items()}


def weights_of(method: nn.Module) -> dict[str, torch.Tensor]:
    """Of each child that has some."""
    found = {
        name: [p.detach().flatten().double() for p in child.parameters()] for name, child in method.named_children()
    }
    return {name: torch.cat(weights) for name, weights in found.items() if weights}


@pytest.mark.parametrize("kernels", ["fused", "overlapped"])
@pytest.mark.parametrize("name", METHODS)
def test_our_kernels_are_as_exact_as_the_plain_ones(name, kernels):
    """By the angle to the change in float32: Adam's first step is a sign, so that small errors are large there."""
    exact = first_change(name, gpu(precision="float32"))
    plain, ours = first_change(name, gpu(kernels="plain")), first_change(name, gpu(kernels=kernels))
    for child, change in exact.items():
        if change.any():
            off = [1 - float(F.cosine_similarity(found[child], change, dim=0)) for found in (plain, ours)]
            assert off[0] > 0, "bf16 rounds"
            assert off[1] <= 1.5 * off[0] + 0.01, child


@pytest.mark.parametrize(("name", "options"), [("fasten", {}), ("fasten", {"norm": "two-pass"}), ("mlac", {})])
def test_a_busy_gpu_changes_nothing(name, options):
    """Streams that do not wait for each other go unseen where the GPU is idle."""
    machine = gpu(capture=True, kernels="overlapped")
    alone, _ = trained(name, machine, options=options)
    with busy():
        beside, _ = trained(name, machine, options=options)
    assert all(torch.equal(alone[key], beside[key]) for key in alone)


@contextmanager
def busy() -> Iterator[None]:
    """Matrix products in other streams, large and small, as fast as they can be launched."""
    stop = threading.Event()

    def work(size: int) -> None:
        a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        # Of high priority: the others are 32, lent in turn, so that this may be the one that is captured.
        with torch.cuda.stream(torch.cuda.Stream(priority=-1)):
            while not stop.is_set():
                for _ in range(10):
                    a @ a
                torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(size,)) for size in (512, 4096)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_run_goes_on_from_its_checkpoint_under_capture():
    machine = gpu(capture=True, kernels="fused")
    weights, rows = trained("fasten", machine)
    kept = {}

    def keep(fit: Fit) -> None:
        if fit.progress.update == 3 and fit.progress.epoch == 2:
            kept["progress"] = fit.snapshot()
            kept["tensors"] = {key: tensor.cpu() for key, tensor in fit.tensors().items()}

    trained("fasten", machine, after=keep)
    again, again_rows = trained("fasten", machine, before=lambda fit: fit.restore(kept["progress"], kept["tensors"]))
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    assert rows == again_rows


def test_a_streamed_run_is_the_resident_run():
    resident, _ = trained("fasten", gpu(capture=True, kernels="fused"))
    streamed, _ = trained("fasten", gpu(capture=True, kernels="fused"), StreamLoader)
    assert all(torch.equal(resident[key], streamed[key]) for key in resident)


@pytest.mark.parametrize("name", METHODS)
def test_no_update_waits_for_the_device(name):
    task, machine = make_tiny_task(), gpu(capture=True, kernels="fused")
    method = machine.place(build_method(Run("tiny", method=name, recipe=RECIPE), task))
    loader = Loader(task, machine.device, 0, machine.dtype)
    fit = Fit(method, plan_of(method, RECIPE), loader, machine, Watch(task, loader))
    step, stage = fit.start_stage()
    list(loader.updates(stage, (0, 1)))  # the tables of balanced draws are made once, on the host
    torch.cuda.set_sync_debug_mode("error")
    try:
        for picks in loader.updates(stage, (0, 2)):
            step(picks)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_whole_command_runs_on_the_device_with_epochs_shorter_than_the_warm_up(tmp_path):
    options = ["--device", "cuda", "--epochs", "2", "--set", "batch_size=600", "--noise", "symmetric:0.4"]
    assert main(["train", "digits", *options, "--out", str(tmp_path / "run")]) == 0
    record = read_record(tmp_path / "run")
    assert [len(row["chi2"]) for row in record["epochs"]] == [2, 2]
