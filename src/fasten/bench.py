"""How long an update takes, method against method, in one process and in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch

from fasten.data.synthetic import make_blobs
from fasten.data.task import Task
from fasten.datasets import Dataset, make_task
from fasten.engine import Fit
from fasten.loader import Loader
from fasten.machine import Kernels, Machine
from fasten.methods import METHODS
from fasten.options import find_method, option_types, parse
from fasten.records import Run
from fasten.training import build_method, make_loader, plan_of

BASELINE = "naive-oversampling"  # plain cross-entropy on the very images that FasTEN's update takes


@dataclass(frozen=True)
class Timing:
    """One method's line."""

    method: str
    milliseconds: float  # per update, median over rounds
    spread: float  # (slowest − fastest round) / median
    images_per_second: float
    ratio: float  # to the baseline, median over rounds
    setup_seconds: float
    peak_memory_bytes: int | None


def image_task(size: int, num_classes: int = 10, rows: int = 6000) -> Task:
    """Images of no meaning, as many bytes as real ones: what an update costs does not depend on what they show."""
    source = make_blobs(num_classes, rows // num_classes, size)
    dataset = Dataset(lambda place: source, "", 500, 500, Run("").recipe, num_test=500, pad=4, flip=True)
    return make_task(dataset, source, "symmetric:0.4", seed=0)


def bench(
    run: Run, task: Task, machine: Machine, methods: Sequence[str], rounds: int, updates: int, norm: str = "split"
) -> list[Timing]:
    """Time `updates` updates of each method in turn, `rounds` times over."""
    loader = make_loader(task, machine, run.seed)
    steps, setup, memory, images = {}, {}, {}, {}
    for name in dict.fromkeys([BASELINE, *methods]):
        _reset_peak(machine.device)
        began = time.perf_counter()
        steps[name], images[name] = _stepper(_with_norm(run, name, norm), task, machine, loader)
        _time(steps[name], updates, machine.device)
        setup[name] = time.perf_counter() - began
        memory[name] = _peak(machine.device)
    times = {name: [] for name in steps}  # type: dict[str, list[float]]
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(_time(step, updates, machine.device))
    return [_line(name, times, images[name], setup[name], memory[name]) for name in steps]


def _with_norm(run: Run, method: str, norm: str) -> Run:
    kinds = option_types(find_method(method))
    return replace(run, method=method, options={"norm": parse("norm", norm, kinds["norm"])} if "norm" in kinds else {})


def _stepper(run: Run, task: Task, machine: Machine, loader: Loader) -> tuple[Callable[[], None], int]:
    """A function that does the next update of a method, and the number of images in one."""
    method = machine.place(build_method(run, task))
    fit = Fit(method, plan_of(method, run.recipe), loader, machine, lambda method, history: {})
    step, stage = fit.start_stage()
    epoch = list(loader.updates(stage, (0, 1)))
    picks = cycle(epoch)
    assert fit.update is not None
    update = fit.update

    def one() -> None:
        update.clear()  # its history holds one epoch
        step(next(picks))

    return one, sum(p.index.numel() for p in epoch[0].values())


def _time(step: Callable[[], None], updates: int, device: torch.device) -> float:
    """Seconds per update."""
    _wait(device)
    began = time.perf_counter()
    for _ in range(updates):
        step()
    _wait(device)
    return (time.perf_counter() - began) / updates


def _line(name: str, times: dict[str, list[float]], images: int, setup: float, memory: int | None) -> Timing:
    median = statistics.median(times[name])
    ratio = statistics.median(a / b for a, b in zip(times[name], times[BASELINE], strict=True))
    spread = (max(times[name]) - min(times[name])) / median
    return Timing(name, 1000 * median, spread, images / median, ratio, setup, memory)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def with_kernels(machine: Machine, name: str) -> Machine:
    """The machine with other kernels; `auto` leaves it as it is, and a CPU has only the plain ones."""
    if name == "auto":
        return machine
    wanted = parse("kernels", name, Kernels)
    return replace(machine, kernels=wanted if machine.device.type == "cuda" else "plain")


def known_methods(names: str) -> list[str]:
    """`all`, or a list with commas."""
    return list(METHODS) if names == "all" else [name.strip() for name in names.split(",") if name.strip()]
