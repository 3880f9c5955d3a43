"""The engine: takes a run through its stages, epochs and updates (`update.py`), and keeps the selected epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fasten.capture import OneUpdate, capture, uncompiled
from fasten.contract import Stage
from fasten.loader import Loader
from fasten.machine import Machine
from fasten.opinions import Opinions
from fasten.ranks import in_order, places
from fasten.update import Update

Row = dict[str, Any]  # the entry for one epoch in the record
Measure = Callable[[nn.Module, Mapping[str, Tensor]], Row]  # after an epoch, from the method and its traces


@dataclass
class Progress:
    """How far a run has come; together with `Fit.tensors`, all that is needed to continue it."""

    stage: int = 0
    epoch: int = 1  # of the stage, counted from 1
    update: int = 0  # updates done in this epoch
    done: int = 0  # updates done in total
    before: int = 0  # updates done in earlier stages
    seconds: float = 0.0  # training time so far, without set-up
    setup_seconds: float = 0.0
    images: int = 0
    rows: list[Row] = field(default_factory=list)
    best: Row | None = None  # the selected epoch of this stage
    rate_factor: float = 1.0  # multiplies every learning rate; lowered when diverged training is rewound


class Fit:
    """A training run: `run()` works through the plan, starting from `progress`.

    `measure` makes an epoch's row. `after_update` is called after every update, with True at the end of an epoch, and
    may save a checkpoint from `snapshot()` and `tensors()`.
    """

    def __init__(
        self, method: nn.Module, plan: list[Stage], loader: Loader, machine: Machine, measure: Measure
    ) -> None:
        self.method, self.plan, self.loader, self.machine, self.measure = method, plan, loader, machine, measure
        self.progress = Progress()
        self.after_update: Callable[[bool], None] = lambda epoch_ended: None
        self.selected: dict[str, Tensor] = {}  # the method's networks in the selected epoch
        self.opinions = Opinions()  # replaced if the audited rows are judged by a mean over epochs
        self.initial = _networks(method) if any(stage.start == "initial" for stage in plan) else {}
        self.update: Update | None = None
        self._clock = time.perf_counter()
        self._restored: dict[str, Tensor] = {}

    def run(self) -> None:
        while self.progress.stage < len(self.plan):
            self._run_stage()
            self.progress.stage += 1
            self.progress.epoch, self.progress.update, self.progress.before = 1, 0, self.progress.done
        self._load_networks(self.selected)

    def _run_stage(self) -> None:
        step, stage = self.start_stage()
        while self.progress.epoch <= stage.epochs:
            self._run_epoch(stage, step)
            self.progress.epoch, self.progress.update = self.progress.epoch + 1, 0
            self.after_update(True)

    def start_stage(self) -> tuple[OneUpdate, Stage]:
        """Set up the current stage; its updates are compiled or captured if the machine says so."""
        began = time.perf_counter()
        stage = self.plan[self.progress.stage]
        if self.progress.epoch == 1 and self.progress.update == 0:
            self._begin(stage)
        self.method.train()  # before `Update`: modules that stay in evaluation mode are not averaged
        before, self.update = self.update, Update(stage, self.loader, self.machine.device)
        if stage.go_on and before is not None:
            self.update.take_over(before)
        self._take_restored()
        step = self._fast(stage, self.update)
        self.machine.wait()
        self.progress.setup_seconds += time.perf_counter() - began
        self._clock = time.perf_counter()
        return step, stage

    def _begin(self, stage: Stage) -> None:
        self.opinions.forget()
        if stage.start != "last":
            self._load_networks(self.selected)
        self._prepare(stage)
        if stage.start == "initial":
            self._load_networks(self.initial)
            self.progress.best, self.selected = None, {}

    def _prepare(self, stage: Stage) -> None:
        if stage.prepare is not None:
            stage.prepare(self.predict)

    def _load_networks(self, state: Mapping[str, Tensor]) -> None:
        """Restore an earlier state of the networks; the method's own buffers, such as labels, stay as they are."""
        self.method.load_state_dict(state, strict=False)

    def _fast(self, stage: Stage, update: Update) -> OneUpdate:
        if self.machine.kernels == "compiled":
            for part in stage.optim:
                part.compile(dynamic=False)
        if not self.machine.capture:
            return update
        example = next(iter(self.loader.updates(stage, (self.progress.stage, 1))))
        update.set_rates(1)
        state = [*self.method.parameters(), *self.method.buffers(), *update.tensors().values()]
        return capture(update, example, state, update.clear)

    def _run_epoch(self, stage: Stage, step: OneUpdate) -> None:
        at, update = self.progress, self.update
        assert update is not None
        if stage.each_epoch and at.epoch > 1 and at.update == 0:
            self._prepare(stage)
            update.count_updates()
        images = self.images(stage)
        for picks in self.loader.updates(stage, (at.stage, at.epoch), at.update):
            update.set_rates(at.epoch, at.update, at.rate_factor)
            step(picks)
            at.update, at.done = at.update + 1, at.done + 1
            at.images += images
            update.mean.follow(at.done - at.before)
            if at.update < update.length:
                self.after_update(False)
        self._end_epoch(stage, update)

    def images(self, stage: Stage) -> int:
        """The number of examples in an update."""
        return sum(self.loader.batch_size(draw) for draw in stage.draws.values())

    def _end_epoch(self, stage: Stage, update: Update) -> None:
        """Evaluate the epoch, keep it if it is the best one, and add its row."""
        at = self.progress
        row: Row = {"epoch": len(at.rows) + 1, "stage": stage.name, "loss": update.loss.item() / at.update}
        with update.mean.in_place():
            row |= self.measure(self.method, update.seen())
            if self.opinions.due(at.epoch, stage.epochs):
                self.opinions.listen(row["valid_accuracy"], predictions(self.method, self.loader, "audited"))
            self._select(row)
        self.method.train()
        self.tick()
        main = list(stage.optim.values())[-1]
        rate = main.rate_at(at.epoch, at.epoch - 1) * at.rate_factor
        row |= {"learning_rate": rate, "seconds": at.seconds - sum(before["seconds"] for before in at.rows)}
        at.rows.append(row)
        update.clear()

    def tick(self) -> None:
        """Count the time since the last tick as training."""
        now = time.perf_counter()
        self.progress.seconds += now - self._clock
        self._clock = now

    def _select(self, row: Row) -> None:
        """Keep the epoch with the best validation accuracy, in a tie the later one; without validation, the last."""
        score, best = row.get("valid_accuracy"), self.progress.best
        if best is None or score is None or score >= best["valid_accuracy"]:
            self.progress.best = row
            self.selected = _networks(self.method)
            self.opinions.select()

    def predict(self, source: str, of: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Implements `Predict`, for `Stage.prepare`."""
        return predict(self.method, self.loader, source, of), self.loader.y[source]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a checkpoint keeps."""
        kept = {f"method.{name}": tensor for name, tensor in self.method.state_dict().items()}
        kept |= {f"selected.{name}": tensor for name, tensor in self.selected.items()}
        kept |= {f"initial.{name}": tensor for name, tensor in self.initial.items()} | self.opinions.tensors()
        return kept | (self.update.tensors() if self.update else self._restored)

    def restore(self, progress: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore what `snapshot()` and `tensors()` returned."""
        self.update = None
        move = {name: tensor.to(self.machine.device) for name, tensor in tensors.items()}
        with _of_this_version():
            self.progress = Progress(**{name: progress[name] for name in (*vars(Progress()), *progress)})
            self.method.load_state_dict(_under("method.", move))
            for name, tensor in self.opinions.tensors().items():
                tensor.copy_(move[name].view_as(tensor))
        self.selected, self.initial = _under("selected.", move), _under("initial.", move)
        self._restored = {n: t for n, t in move.items() if n.startswith(("sum.", "history.", "optim.", "mean."))}

    def _take_restored(self) -> None:
        assert self.update is not None
        if self.progress.update or self.progress.epoch > 1:
            with _of_this_version():
                for name, tensor in self.update.tensors().items():
                    tensor.copy_(self._restored[name].view_as(tensor))
        self._restored = {}

    def snapshot(self) -> dict[str, Any]:
        """`progress` as plain values, with the time brought up to date."""
        if self.update is not None:  # time before the first stage does not count as training
            self.tick()
        return asdict(self.progress)


@contextmanager
def _of_this_version() -> Iterator[None]:
    """Turn the errors of restoring a checkpoint that lacks or has other values or tensors into a sentence."""
    try:
        yield
    except (KeyError, TypeError, RuntimeError):
        other = "the checkpoint is from another version, which kept other values or tensors; continue with that version"
        raise ValueError(f"{other}, or train again in another folder") from None


def predict(method: nn.Module, loader: Loader, part: str, of: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Class probabilities (n, N) for a part of the data, or the output of `of`, in evaluation mode."""
    found = list(predictions(method, loader, part, of))
    return torch.cat(found) if found else torch.empty(0, loader.num_classes, device=loader.device)


@torch.no_grad()
def predictions(
    method: nn.Module, loader: Loader, part: str, of: Callable[[Tensor], Tensor] | None = None, chunk: int = 1000
) -> Iterator[Tensor]:
    """The same in chunks, for limited memory; the method stays in evaluation mode until the last chunk."""
    training = method.training
    method.eval()
    left = len(loader.rows[part])
    try:
        for x in loader.chunks(part, chunk, places(left).to(loader.device) % max(left, 1)):
            with uncompiled(method):
                found = in_order((of or method)(x), left)  # this rank's rows of the chunk, then those of all ranks
            left -= len(found)
            yield found
    finally:
        method.train(training)


def prefixes(method: nn.Module) -> tuple[str, ...]:
    """Prefixes of the names of the tensors in a method's networks; its other tensors are tables of rows."""
    return tuple(f"{name}." for name, _ in method.named_children())


def _networks(method: nn.Module) -> dict[str, Tensor]:
    """A copy of the tensors of a method's networks, under their names in the method."""
    return {name: t.detach().clone() for name, t in method.state_dict().items() if name.startswith(prefixes(method))}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
