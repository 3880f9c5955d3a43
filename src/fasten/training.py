"""A run from beginning to end: Run -> Task -> fit -> evaluation -> the files of its folder."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

from fasten import audit
from fasten.checkpoint import Checkpoints
from fasten.contract import Method, Recipe, Stage
from fasten.data.task import Task
from fasten.datasets import Place, load_task
from fasten.engine import Fit, Row
from fasten.evaluate import Evaluation, Watch, evaluate
from fasten.files import write_bytes
from fasten.gallery import write_gallery
from fasten.loader import Loader
from fasten.machine import Machine, choose_machine
from fasten.nets import build_backbone, has_weights
from fasten.options import find_method, option_types
from fasten.records import SCHEMA, Log, Record, Run, environment, read_record, shared_gpu, write_record
from fasten.report import write_report
from fasten.stream import StreamLoader
from fasten.streams import torch_seed

EPOCH_CHECKPOINT_SECONDS = 20.0  # at an epoch's end, when so much has passed since the last one
UPDATE_CHECKPOINT_SECONDS = 300.0  # anywhere
FILES = (
    *("record.json", "model.safetensors", "tables.safetensors", "labels.csv", "transition.csv", "report.html"),
    *("probabilities.npy", "gallery.json", "log.jsonl", "checkpoint"),
)
MOST_PER_CLASS = 10  # clean rows in a batch of users' own data: the few there are must not be learnt by heart
REFERENCE_UPDATES = 1000  # what clean-only gets at least; a tenth of the run's updates where that is more


@dataclass(frozen=True)
class Settings:
    """How to carry out a run, none of which changes what it computes (up to rounding)."""

    place: Place = field(default_factory=Place)
    device: str = "auto"
    clean_reference: bool = True
    noisy_reference: bool = False
    deterministic: bool = False
    on_start: Callable[[Record, int], None] = lambda record, updates: None
    on_update: Callable[[int], None] = lambda updates: None
    on_epoch: Callable[[Row], None] = lambda row: None
    say: Callable[[str], None] = lambda sentence: None


def build_method(run: Run, task: Task) -> nn.Module:
    """The method with its network, initialised from the run's seed."""
    entry = find_method(run.method)
    options: dict[str, Any] = {**entry.options, **run.options}
    if options.get("oracle"):
        if task.transition is None:
            raise ValueError(f"{run.method} needs the true T, and for {task.name} nobody knows it")
        options["oracle"] = torch.tensor(task.transition, dtype=torch.float32)
    elif "oracle" in options:
        del options["oracle"]
    if task.known is not None and run.method != "clean-only" and "per_class" in option_types(entry):
        options.setdefault("per_class", max(1, min(MOST_PER_CLASS, run.recipe.batch_size // task.num_classes)))
    if entry.clean_set and len(task.clean) == 0:
        raise ValueError(
            f"{run.method} needs clean rows, and {task.name} has none; have some checked and name them with "
            "--verified FILE, or use --method cross-entropy"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(run.seed, "init"))
        backbone = build_backbone(run.recipe.net, task.shape, weights=run.recipe.weights, frozen=run.recipe.frozen)
        return entry.build(backbone, torch.from_numpy(task.given), num_classes=task.num_classes, **options)


def plan_of(method: nn.Module, recipe: Recipe) -> list[Stage]:
    """The stages of a method."""
    assert isinstance(method, Method)
    return method.plan(recipe)


def make_loader(task: Task, machine: Machine, seed: int) -> Loader:
    """On the device where the data lie in memory and take at most half of what is free there, else streamed."""
    fits = isinstance(task.x, np.ndarray)
    if fits and machine.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(machine.device)
        fits = task.x.nbytes <= free // 2
    return (Loader if fits else StreamLoader)(task, machine.device, seed, machine.dtype)


def train(run: Run, out: Path, settings: Settings | None = None) -> Record:
    """Carry out a run in a new folder."""
    settings = settings or Settings()
    began = time.perf_counter()
    check_folder(out)
    task = load_task(run.dataset, run.noise, run.seed, settings.place, run.clean, run.own)
    plan_of(build_method(run, task), run.recipe)  # a wrong option is refused before anything is written
    machine = choose_machine(settings.device, deterministic=settings.deterministic)
    out.mkdir(parents=True, exist_ok=True)
    record = _new_record(run, task, machine, settings)
    write_record(out, record)
    return _Session(run, task, out, settings, record).go(began)


def resume(out: Path, settings: Settings | None = None) -> Record:
    """Go on with a run whose folder is there; a finished one is left as it is."""
    settings = settings or Settings()
    began = time.perf_counter()
    record = read_record(out)
    if record["result"] is not None:
        settings.say(f"{out} is a finished run")
        return record
    run = Run.from_json(record["run"])
    how = record["environment"].get("how")
    if how is None:
        raise ValueError(f"{out / 'record.json'} does not say how it was run; run it again in another folder")
    root = Path(how["root"]) if settings.place == Place() else settings.place.root
    place = replace(settings.place, root=root, label_set=how["label_set"])
    device = how["device"] if settings.device == "auto" else settings.device
    references = {key: how[key] for key in ("clean_reference", "noisy_reference", "deterministic")}
    settings = replace(settings, place=place, device=device, **references)
    record["environment"] |= shared_gpu()
    task = load_task(run.dataset, run.noise, run.seed, place, run.clean, run.own)
    _check_same(record, task, run.dataset)
    return _Session(run, task, out, settings, record).go(began)


def _check_same(record: Record, task: Task, name: str) -> None:
    """A checkpoint fits the rows that it was made of, and a user's own data may have changed meanwhile."""
    now = _sizes(task) | {"class_names": list(task.class_names)}
    if any(record["data"].get(key, value) != value for key, value in now.items()):
        raise ValueError(f"{name} is no longer what the run was started on; bring it back, or begin anew elsewhere")


def check_folder(out: Path) -> None:
    """Refuse a folder that holds a run, a file that the run would replace, or something that is no folder."""
    for folder in (out, *out.parents):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; --out takes a new folder")
    if (out / "record.json").exists():
        raise ValueError(f"{out} already holds a run; `fasten resume {out}` goes on with it, or choose another --out")
    for name in FILES:
        if (out / name).exists():
            raise ValueError(f"{out} already holds {name}, which the run would replace; choose another --out")


def _new_record(run: Run, task: Task, machine: Machine, settings: Settings) -> Record:
    how = {"root": os.fspath(settings.place.root), "label_set": settings.place.label_set, "device": settings.device}
    how |= {k: getattr(settings, k) for k in ("clean_reference", "noisy_reference", "deterministic")}
    return {
        "schema": SCHEMA,
        "run": run.to_json(),
        "environment": environment() | _described(machine) | {"how": how},
        "data": _sizes(task)
        | {"num_classes": task.num_classes, "noise_rate": task.noise_rate, "class_names": list(task.class_names)}
        | _own_data(task),
        "epochs": [],
        "evaluation": None,
        "references": {},
        "result": None,
        "notes": [],
    }


def _sizes(task: Task) -> dict[str, int]:
    return {f"rows_{name}": len(getattr(task.split, name)) for name in ("noisy", "clean", "valid", "test")}


def _own_data(task: Task) -> dict[str, Any]:
    """What it takes to read new data as a user's own were read; known data sets need none of it."""
    if task.known is None:
        return {}
    values = {"shape": list(task.shape), "mean": list(task.mean), "std": list(task.std)}
    counts = {"rows_verified": int((task.known.verified >= 0).sum()), "rows_held": int(task.known.held.sum())}
    return values | {"feature_names": list(task.feature_names)} | counts


def _described(machine: Machine) -> dict[str, Any]:
    """What of the machine a number may depend on."""
    names = ("precision", "kernels", "capture", "deterministic")
    return {"device": machine.name} | {name: getattr(machine, name) for name in names}


class _Session:
    """One process's share of a run: all of it, or what is left of it."""

    def __init__(self, run: Run, task: Task, out: Path, settings: Settings, record: Record) -> None:
        self.run, self.task, self.out, self.settings, self.record = run, task, out, settings, record
        self.method = build_method(run, task)
        self.machine = choose_machine(settings.device, deterministic=settings.deterministic)
        self.machine.place(self.method)
        plan = plan_of(self.method, run.recipe)  # after that: a plan holds the method's buffers
        self.loader = make_loader(task, self.machine, run.seed)
        self.updates = _count_updates(plan, self.loader)
        self.fit = Fit(self.method, plan, self.loader, self.machine, Watch(task, self.loader))
        self.fit.after_update = self._after_update
        self.checkpoints = Checkpoints(out / "checkpoint")
        self.last_saved = time.monotonic()
        self.log = self._restore()

    def _restore(self) -> Log:
        found = self.checkpoints.load()
        if found is None:
            log = Log(self.out / "log.jsonl")
            for note in [*self.task.notes, *start_notes(self.run.recipe), *coverage_notes(self.task, self.fit.plan)]:
                self._note(note)
            return log
        tensors, meta, damaged = found
        self.fit.restore(meta["progress"], tensors)
        self.record["notes"] = meta["notes"]
        for sentence in damaged:
            self._note(sentence)
        return Log(self.out / "log.jsonl", meta["log_lines"])

    def _note(self, sentence: str) -> None:
        self.record["notes"].append(sentence)
        self.settings.say(sentence)

    def go(self, began: float) -> Record:
        self.settings.on_start(self.record, self.updates)
        preparation = time.perf_counter() - began
        try:
            self.fit.run()
        finally:
            self.checkpoints.close()
        min_precision = (self.run.own or {}).get("min_precision")
        found = evaluate(self.method, self.task, self.loader, min_precision, self.run.seed)
        for note in found.findings.notes if self.task.known is not None else ():
            self._note(note)
        self._fill(found, preparation)
        self._references()
        self._write(found)
        return self.record

    def _after_update(self, epoch_ended: bool) -> None:
        self.settings.on_update(self.fit.progress.done)
        if epoch_ended:
            row = self.fit.progress.rows[-1]
            check_sound(self.method, row, f"choose another --out and --set rate={self.run.recipe.rate / 10:g}")
            self.log.add(event="epoch", **row)
            self.settings.on_epoch(row)
        waited = time.monotonic() - self.last_saved
        if waited >= (EPOCH_CHECKPOINT_SECONDS if epoch_ended else UPDATE_CHECKPOINT_SECONDS):
            self.save()

    def save(self) -> None:
        """A checkpoint of this very update."""
        meta = {"progress": self.fit.snapshot(), "log_lines": self.log.lines, "notes": self.record["notes"]}
        self.checkpoints.save(self.fit.progress.done, self.fit.tensors(), meta)
        self.last_saved = time.monotonic()

    def _fill(self, found: Evaluation, preparation: float) -> None:
        at, best = self.fit.progress, self.fit.progress.best
        assert best is not None
        self.record["epochs"] = at.rows
        self.record["evaluation"] = found.scores
        self.record["result"] = {
            "test_accuracy": found.test_accuracy,
            "test_accuracy_last": at.rows[-1]["test_accuracy"],
            "valid_accuracy": best["valid_accuracy"],
            "best_epoch": best["epoch"],
            "selected_by": "last" if best["valid_accuracy"] is None else "valid",
            "train_seconds": at.seconds,
            "setup_seconds": preparation + at.setup_seconds,
            "examples_per_second": at.images / at.seconds if at.seconds else None,
            "peak_memory_bytes": _peak_memory(self.machine.device),
        }

    def _references(self) -> None:
        wanted = {"clean_only": ("clean-only", self.settings.clean_reference and len(self.task.clean) > 0)}
        wanted["noisy_only"] = ("cross-entropy", self.settings.noisy_reference)
        for name, (method, do) in wanted.items():
            if do and method != self.run.method:
                self.settings.say(f"now {method} on the same rows, to compare")
                self.record["references"][name] = self._reference(method)
        verdict = clean_rows_do_better(self.record)
        if verdict:
            self.record["notes"].append(verdict)

    def _reference(self, name: str) -> dict[str, Any]:
        """Another method on the same task: clean-only at a tenth of the updates or 1,000, cross-entropy in full."""
        recipe = self.run.recipe
        if name == "clean-only":
            share = max(0.1, min(1.0, REFERENCE_UPDATES / self.updates))
            recipe = recipe.scaled(math.ceil(recipe.epochs * share))
        run = replace(self.run, method=name, options={}, recipe=recipe)
        method = build_method(run, self.task)
        kernels = "plain" if self.machine.kernels == "compiled" else self.machine.kernels  # too short to compile for
        machine = replace(self.machine, kernels=kernels)
        machine.place(method)
        fit = Fit(method, plan_of(method, recipe), self.loader, machine, Watch(self.task, self.loader))
        fit.run()
        best = fit.progress.best
        assert best is not None
        updates = _count_updates(fit.plan, self.loader)
        values = {key: best[key] for key in ("test_accuracy", "valid_accuracy")}
        values["test_accuracy_last"] = fit.progress.rows[-1]["test_accuracy"]
        return values | {"updates": updates, "seconds": fit.progress.seconds}

    def _write(self, found: Evaluation) -> None:
        """The record last: a folder whose record has a result is complete."""
        names = self.task.class_names
        table = found.findings.table(found.known, names, verdicts=self.task.known is not None)
        audit.write_labels(table, self.out / "labels.csv")
        audit.write_probabilities(found.probs, self.out / "probabilities.npy")
        audit.write_transition(found.transition, names, self.out / "transition.csv")
        children, tables = _weights_and_tables(self.method)
        weights = safetensors.torch.save(children)
        self.record["result"]["model_sha256"] = hashlib.sha256(weights).hexdigest()
        write_bytes(self.out / "model.safetensors", weights)
        if tables:
            write_bytes(self.out / "tables.safetensors", safetensors.torch.save(tables))
        gallery = write_gallery(self.task, table, self.out / "gallery.json")
        write_report(self.record, self.out / "report.html", gallery)
        write_record(self.out, self.record)
        self.log.add(event="finished", test_accuracy=self.record["result"]["test_accuracy"])


def check_sound(method: nn.Module, row: Row, cure: str) -> None:
    """Refuse to go on from an epoch after which numbers are no longer finite."""
    sound = torch.stack([p.isfinite().all() for p in method.parameters()]).all()
    if not math.isfinite(row["loss"]) or not sound:
        raise ValueError(f"training diverged in epoch {row['epoch']}: the loss is {row['loss']:.3g}; {cure}")


def start_notes(recipe: Recipe) -> list[str]:
    """A network made to be trained by others, or one that is frozen, is rarely meant to start from nothing."""
    made_for_weights = recipe.frozen or recipe.net.startswith(("imagenet-", "timm:", "torchvision:", "hf:"))
    if recipe.weights is not None or not made_for_weights or has_weights(recipe.net):
        return []
    stays = ", and is frozen so" if recipe.frozen else ""
    return [f"{recipe.net} starts from random weights{stays}; --set weights=FILE starts it from trained ones"]


def coverage_notes(task: Task, plan: list[Stage]) -> list[str]:
    """What the run does where a class has few clean rows, or none."""
    balanced = [draw for stage in plan for draw in stage.draws.values() if draw.how == "balanced"]
    if not balanced:
        return []
    per_class = max(draw.size for draw in balanced) // task.num_classes
    count = np.bincount(task.clean, minlength=task.num_classes)
    few = [name for name, n in zip(task.class_names, count, strict=True) if 0 < n < per_class]
    none = [name for name, n in zip(task.class_names, count, strict=True) if n == 0]
    notes = []
    if few:
        notes.append(f"fewer than {per_class} clean rows in {', '.join(few)}: drawn with replacement")
    if none:
        notes.append(f"no clean rows in {', '.join(none)}: the row of T is the identity's, and labels are kept")
    return notes


def clean_rows_do_better(record: Record) -> str | None:
    """A sentence where clean-only wins by more than the standard error of its accuracy, on validation or test rows."""
    reference, result = record["references"].get("clean_only"), record["result"]
    for part, key in (("validation", "valid"), ("test", "test")):
        rows, name = record["data"][f"rows_{key}"], f"{key}_accuracy"
        if not reference or reference[name] is None or result[name] is None:
            continue
        alone, here = reference[name], result[name]
        if alone - here > math.sqrt(alone * (1 - alone) / rows):
            return (
                f"the clean rows alone do better: {alone:.1%} of the {part} rows against {here:.1%} with the noisy "
                "ones; use --method clean-only, or have more labels checked"
            )
    return None


def _weights_and_tables(method: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What prediction needs, the children's tensors; and what the method itself remembers: labels, weights, T."""
    children = tuple(f"{name}." for name, _ in method.named_children())
    # Copies, since the file format refuses what a network uses twice.
    state = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in method.state_dict().items()}
    weights = {name for name in state if name.startswith(children)}
    return {n: state[n] for n in state if n in weights}, {n: state[n] for n in state if n not in weights}


def _peak_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _count_updates(plan: list[Stage], loader: Loader) -> int:
    return sum(stage.epochs * loader.num_updates(stage) for stage in plan)
