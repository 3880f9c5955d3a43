"""The parts of a run: its method with the network, the stages, the loader, and the fit that joins them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fasten import ranks
from fasten.contract import Method, Recipe, Stage
from fasten.data.task import Task
from fasten.engine import Fit, prefixes
from fasten.evaluate import Watch
from fasten.loader import Loader
from fasten.machine import OWN_KERNELS, Machine
from fasten.nets import Heads, build_backbone
from fasten.opinions import MOST, TIMES, TIMES_FILES, Opinions
from fasten.options import find_method, option_types
from fasten.records import Run
from fasten.seeds import Key, torch_seed
from fasten.stream import StreamLoader

# Defaults for users' own data: the most clean rows of a class in a batch, so that the few clean rows are not memorised;
# and the rows that FasTEN's T̂ is estimated on, as benchmarks/estimate.py suggests.
MOST_PER_CLASS, ESTIMATE = 10, "noisy"
_SEEDING = threading.RLock()  # torch's generators belong to the process: threads take turns
_at_work = 0  # how many threads draw from them in training
_before = ExitStack()  # restores their state from before the first of these threads


@contextmanager
def seeded(seed: int, *key: Key) -> Iterator[None]:
    """Seed torch's own generators, which dropout, for example, draws from; afterwards they are as they were.

    They belong to the process: if several threads train at once, what each of them draws is not determined.
    """
    global _at_work
    with _SEEDING:
        if not _at_work:
            _before.enter_context(_forked(seed, *key))
        _at_work += 1
    try:
        yield
    finally:
        with _SEEDING:
            _at_work -= 1
            if not _at_work:
                _before.close()


@contextmanager
def _forked(seed: int, *key: Key) -> Iterator[None]:
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(gpus):
        torch.manual_seed(torch_seed(seed, *key))
        yield


def build_method(run: Run, task: Task, net: nn.Module | None = None) -> nn.Module:
    """The method with its network, initialised from the run's seed; with `net`, a copy of it replaces the recipe's."""
    entry, recipe, options = find_method(run.method), run.recipe, _options(run, task)
    if (entry.clean_set or options.get("clean_rows")) and len(task.clean) == 0:
        what = run.method if entry.clean_set else f"{run.method} with clean_rows=true"
        raise ValueError(
            f"{what} needs clean rows, and {task.name} has none; have some checked and list them with --verified FILE "
            "(in a table also in the column verified_label). If nobody has checked any, start with --method "
            "cross-entropy, which finds labels that look wrong and rows to check"
        )
    if options.get("strong") and task.x.ndim != 4:
        cure = "use dividemix, which is the same without them" if entry.images else "leave strong=true out"
        raise ValueError(f"{run.method} here uses strong augmentation of images, and {task.name} has no images; {cure}")
    with _SEEDING, _forked(run.seed, "init"):
        wanted = [recipe.net if net is None else copy.deepcopy(net) for _ in range(entry.backbones)]
        backbones = [build_backbone(w, task.shape, weights=recipe.weights, frozen=recipe.frozen) for w in wanted]
        told = {"num_classes": task.num_classes, **({"shape": task.shape} if entry.shaped else {}), **options}
        method = entry.build(*backbones, torch.from_numpy(task.given), **told)
    for heads in method.modules():
        if isinstance(heads, Heads):
            heads.parts.synced = recipe.sync_norm
    _check_tables(method, len(task.given), task.num_classes)
    return method


def _check_tables(method: nn.Module, rows: int, num_classes: int) -> None:
    """Refuse a new method whose tables, which records score against the truth, are not of the noisy rows."""
    shapes = {"labels": (rows,), "soft_labels": (rows, num_classes), "weights": (rows,), "keep": (rows,)}
    for name, shape in shapes.items():
        table = getattr(method, name, None)
        if isinstance(table, Tensor) and table.shape != shape:
            raise ValueError(
                f"the buffer {name} of {type(method).__name__} has the shape {tuple(table.shape)}, expected {shape}: a "
                "row for each noisy row; if it is something else, give it another name"
            )


def _options(run: Run, task: Task) -> dict[str, Any]:
    """The method's options, with the defaults for this kind of data."""
    entry = find_method(run.method)
    options: dict[str, Any] = {**entry.options, **run.options}
    if options.pop("oracle", False):
        if task.transition is None:
            raise ValueError(
                f"{run.method} needs the true T, which is not known for {task.name}; inject noise with --noise, whose "
                "T is known, or use another method"
            )
        options["oracle"] = torch.tensor(task.transition, dtype=torch.float32)
    alone = run.method == "clean-only"  # its batch is no larger than its set: no row twice, if classes are even
    if "per_class" in option_types(entry) and (alone or task.known is not None):
        most = len(task.clean) // task.num_classes if alone else MOST_PER_CLASS
        options.setdefault("per_class", max(1, min(most, run.recipe.batch_size // task.num_classes)))
    if "estimate" in option_types(entry) and task.known is not None:
        options.setdefault("estimate", ESTIMATE)
    return options


def plan_of(method: nn.Module, recipe: Recipe) -> list[Stage]:
    """The stages of a method, with the averaging of the recipe, which methods need not know about."""
    assert isinstance(method, Method)
    return [replace(stage, average=recipe.average) for stage in method.plan(recipe)]


def make_fit(run: Run, task: Task, machine: Machine, loader: Loader | None = None, net: nn.Module | None = None) -> Fit:
    """The fit of a run, on its device; `loader` may be another run's on the same task, `net` a user's own network."""
    method = machine.place(build_method(run, task, net))
    if loader is None:
        loader = make_loader(task, machine, run.seed)
    plan = plan_of(method, run.recipe)  # made on the device: a plan holds buffers of the method
    return Fit(method, plan, loader, machine, Watch(task, loader))


def listen(fit: Fit, run: Run, task: Task) -> None:
    """Have users' own rows judged by the mean of what the network says about them, if the method gains by it."""
    rows, classes, valid = len(task.audited), task.num_classes, len(task.valid)
    if task.known is not None and find_method(run.method).by_mean and valid and rows * classes <= MOST:
        most = TIMES if isinstance(task.x, np.ndarray) else TIMES_FILES
        fit.opinions = Opinions(rows, classes, fit.machine.device, num_valid=valid, most=most)


def make_loader(task: Task, machine: Machine, seed: int) -> Loader:
    """A loader on the device if the data are in memory and take at most half of what is free there, else streamed."""
    fits = isinstance(task.x, np.ndarray)
    if fits and machine.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(machine.device)
        fits = task.x.nbytes <= free // 2
    fits = ranks.votes(fits) == ranks.world()  # ranks predict in step, with the same number of rows at a time
    kind = Loader if fits else StreamLoader
    return kind(task, machine.device, seed, machine.dtype, fused=machine.kernels in OWN_KERNELS)


def weights_and_tables(method: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The networks' tensors, which prediction needs; and what the method itself remembers: labels, weights, T."""
    # Copies, since the file format refuses one tensor under two names, such as weights that a network uses twice.
    state = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in method.state_dict().items()}
    weights = {name: tensor for name, tensor in state.items() if name.startswith(prefixes(method))}
    return weights, {name: tensor for name, tensor in state.items() if name not in weights}


def fill_networks(method: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    """Load a method's weights; False if they are not those of all its networks, RuntimeError for other shapes."""
    missing, unexpected = method.load_state_dict(weights, strict=False)
    return not unexpected and not any(name.startswith(prefixes(method)) for name in missing)
