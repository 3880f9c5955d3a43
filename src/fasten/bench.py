"""How long an update of each method takes, measured in one process and in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch

from fasten.contract import Stage
from fasten.data.synthetic import make_blobs
from fasten.data.task import Task
from fasten.datasets import Dataset, make_task
from fasten.kernels import AVAILABLE
from fasten.loader import Loader
from fasten.machine import Kernels, Machine
from fasten.options import apply_settings, find_method, option_types, parse
from fasten.records import Run
from fasten.runs.building import make_fit, make_loader
from fasten.suggest import nearest

BASELINE = "naive-oversampling"  # plain cross-entropy on the same images as FasTEN's update
YARDSTICK = "fasten"  # what whole runs are compared with
PROTOCOL = {"noisy": 44_000, "clean": 1_000, "both": 45_000}  # rows in the paper's runs on CIFAR


@dataclass(frozen=True)
class Timing:
    """One stage of one method."""

    method: str
    stage: str
    milliseconds: float  # per update, median over rounds
    spread: float  # (slowest − fastest round) / median
    images_per_second: float
    ratio: float  # to the baseline, median over rounds
    updates: int  # in a run of the paper's protocol
    chooses: bool  # whether a run chooses its rows: `updates` is as if it took all of them
    setup_seconds: float
    peak_memory_bytes: int | None  # beyond what was there before

    @property
    def seconds(self) -> float:
        """Seconds for the stage in such a run, without evaluation."""
        return self.updates * self.milliseconds / 1000


def image_task(size: int) -> Task:
    """Meaningless images, with as many bytes as real ones: what an update costs does not depend on what they show."""
    source = make_blobs(num_classes=10, per_class=600, size=size)
    dataset = Dataset(lambda place: source, "", 500, 500, Run("").recipe, num_test=500, pad=4, flip=True)
    return make_task(dataset, source, "symmetric:0.4", seed=0)


def bench(
    run: Run,
    task: Task,
    machine: Machine,
    methods: Sequence[str],
    rounds: int,
    updates: int,
    settings: Sequence[str] = (),
) -> list[Timing]:
    """Time `updates` updates of each stage of each method in turn, `rounds` times over."""
    _check_settings(settings, methods)
    loader = make_loader(task, machine, run.seed)
    steppers = [
        _Stepper(_with_settings(run, name, settings), number, task, machine, loader, updates)
        for name in dict.fromkeys([BASELINE, YARDSTICK, *methods])
        for number in range(find_method(name).stages)
    ]
    times: list[list[float]] = [[] for _ in steppers]
    for _ in range(rounds):
        for stepper, mine in zip(steppers, times, strict=True):
            mine.append(_time(stepper.step, updates, machine))
    return [stepper.timing(mine, times[0]) for stepper, mine in zip(steppers, times, strict=True)]


def run_ratios(lines: Sequence[Timing]) -> dict[str, float]:
    """How long a whole run of each method takes, relative to FasTEN."""
    total = {name: sum(line.seconds for line in lines if line.method == name) for name in (t.method for t in lines)}
    return {name: seconds / total[YARDSTICK] for name, seconds in total.items()}


def _with_settings(run: Run, method: str, settings: Sequence[str]) -> Run:
    """The run of a method, with those of the settings that it knows."""
    kinds = option_types(find_method(method))
    mine = [text for text in settings if text.partition("=")[0] in kinds]
    options, recipe = apply_settings(method, run.recipe, mine)
    return replace(run, method=method, options=options, recipe=recipe)


def _check_settings(settings: Sequence[str], methods: Sequence[str]) -> None:
    known = {key for name in [BASELINE, YARDSTICK, *methods] for key in option_types(find_method(name))}
    for key in (text.partition("=")[0] for text in settings):
        if key not in known:
            raise ValueError(f"none of the methods knows the option {key!r}; {nearest(key, sorted(known))}")


class _Stepper:
    """Does the next update of a stage of a method, again and again."""

    def __init__(self, run: Run, number: int, task: Task, machine: Machine, loader: Loader, updates: int) -> None:
        before = _memory(machine.device)
        began = time.perf_counter()
        fit = make_fit(run, task, machine, loader)
        fit.progress.stage = number
        self._step, stage = fit.start_stage()
        assert fit.update is not None
        fit.update.set_rates(1)
        self._update, self._name, self._stage = fit.update, run.method, stage
        self._epoch = list(loader.updates(stage, (number, 1)))
        self._picks = cycle(self._epoch)
        _time(self.step, updates, machine)
        self._setup = time.perf_counter() - began
        self._memory = None if before is None else torch.cuda.max_memory_allocated(machine.device) - before

    def step(self) -> None:
        self._update.clear()  # its history holds one epoch
        self._step(next(self._picks))

    def timing(self, times: list[float], baseline: list[float]) -> Timing:
        median = statistics.median(times)
        return Timing(
            self._name,
            self._stage.name,
            1000 * median,
            (max(times) - min(times)) / median,
            sum(p.index.numel() for p in self._epoch[0].values()) / median,
            statistics.median(a / b for a, b in zip(times, baseline, strict=True)),
            self._stage.epochs * _protocol_updates(self._stage),
            any(draw.keep is not None for draw in self._stage.draws.values()),
            self._setup,
            self._memory,
        )


def _protocol_updates(stage: Stage) -> int:
    """Updates per epoch; a stage without a pass over rows is counted by the noisy rows, a hundred at a time."""
    draw = next((d for d in stage.draws.values() if d.how == "pass"), None)
    return math.ceil(PROTOCOL[draw.source] / draw.size) if draw else PROTOCOL["noisy"] // 100


def _time(step: Callable[[], None], updates: int, machine: Machine) -> float:
    """Seconds per update."""
    machine.wait()
    began = time.perf_counter()
    for _ in range(updates):
        step()
    machine.wait()
    return (time.perf_counter() - began) / updates


def _memory(device: torch.device) -> int | None:
    """The memory that is allocated now; peaks are counted from here on."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def with_kernels(machine: Machine, name: str) -> Machine:
    """The machine with other kernels; `auto` leaves it as it is, and only an NVIDIA GPU has any but plain ones."""
    if name == "auto":
        return machine
    wanted = parse("kernels", name, Kernels)
    if wanted != "plain" and machine.device.type != "cuda":
        raise ValueError(
            f"{machine.device} has plain kernels only, got --kernels {name}; leave it out, or add --device cuda"
        )
    if wanted != "plain" and not AVAILABLE:
        raise ValueError(
            f"--kernels {name} needs Triton and a C compiler; `pip install triton`, install gcc, or leave it out"
        )
    return replace(machine, kernels=wanted)
