"""The engine: a run goes through its stages, epochs and updates (`update.py`), and keeps what is selected."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fasten.capture import OneUpdate, capture, uncompiled
from fasten.contract import Stage
from fasten.loader import Loader
from fasten.machine import Machine
from fasten.ranks import in_order, places
from fasten.update import Update

Row = dict[str, Any]  # what the record says of one epoch
Measure = Callable[[nn.Module, Mapping[str, Tensor]], Row]  # after an epoch, from the method and its traces


@dataclass
class Progress:
    """Where a run stands: with the tensors of `Fit.tensors`, all that it takes to go on."""

    stage: int = 0
    epoch: int = 1  # of the stage, counted from 1
    update: int = 0  # done in this epoch
    done: int = 0  # updates in all
    before: int = 0  # of these, those of the stages before
    seconds: float = 0.0  # of training so far, set-up not counted
    setup_seconds: float = 0.0
    images: int = 0
    rows: list[Row] = field(default_factory=list)
    best: Row | None = None  # the selected epoch of this stage
    rate_factor: float = 1.0  # of every learning rate; less after training has diverged and was taken back


class Fit:
    """A training run: `run()` goes through the plan, from wherever `progress` stands.

    `measure` makes an epoch's row; `after_update` is called after every update (True: an epoch has just ended) and may
    take a checkpoint from `progress` and `tensors()`.
    """

    def __init__(
        self, method: nn.Module, plan: list[Stage], loader: Loader, machine: Machine, measure: Measure
    ) -> None:
        self.method, self.plan, self.loader, self.machine, self.measure = method, plan, loader, machine, measure
        self.progress = Progress()
        self.after_update: Callable[[bool], None] = lambda epoch_ended: None
        self.selected: dict[str, Tensor] = {}  # the method's networks at the selected epoch
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
        """What does one update of the stage at hand, compiled and captured where the machine says so."""
        began = time.perf_counter()
        stage = self.plan[self.progress.stage]
        if self.progress.epoch == 1 and self.progress.update == 0:
            self._begin(stage)
        self.method.train()  # first: what stays in evaluation mode has no part in the mean
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
        """The networks of another time; what the method itself remembers, of its rows say, stays."""
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
        images = sum(self.loader.batch_size(draw) for draw in stage.draws.values())
        for picks in self.loader.updates(stage, (at.stage, at.epoch), at.update):
            update.set_rates(at.epoch, at.update, at.rate_factor)
            step(picks)
            at.update, at.done = at.update + 1, at.done + 1
            at.images += images
            update.mean.follow(at.done - at.before)
            if at.update < update.length:
                self.after_update(False)
        self._end_epoch(stage, update)

    def _end_epoch(self, stage: Stage, update: Update) -> None:
        """Measure what the epoch came to, keep it if it is the best, and write its row."""
        at = self.progress
        row: Row = {"epoch": len(at.rows) + 1, "stage": stage.name, "loss": update.loss.item() / at.update}
        with update.mean.in_place():
            row |= self.measure(self.method, update.seen())
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
        """Keep the epoch with the best validation accuracy, the later one of equals; without validation, the last."""
        score, best = row.get("valid_accuracy"), self.progress.best
        if best is None or score is None or score >= best["valid_accuracy"]:
            self.progress.best = row
            self.selected = _networks(self.method)

    def predict(self, source: str, of: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """What `Stage.prepare` may look at."""
        return predict(self.method, self.loader, source, of), self.loader.y[source]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a checkpoint keeps."""
        kept = {f"method.{name}": tensor for name, tensor in self.method.state_dict().items()}
        kept |= {f"selected.{name}": tensor for name, tensor in self.selected.items()}
        kept |= {f"initial.{name}": tensor for name, tensor in self.initial.items()}
        return kept | (self.update.tensors() if self.update else self._restored)

    def restore(self, progress: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go back to what `asdict(progress)` and `tensors()` said."""
        self.progress, self.update = Progress(**progress), None
        move = {name: tensor.to(self.machine.device) for name, tensor in tensors.items()}
        try:
            self.method.load_state_dict(_under("method.", move))
        except RuntimeError:
            other = "the checkpoint is of another version, whose method had other tensors; go on with that version"
            raise ValueError(f"{other}, or train again in another folder") from None
        self.selected, self.initial = _under("selected.", move), _under("initial.", move)
        self._restored = {n: t for n, t in move.items() if n.startswith(("sum.", "history.", "optim.", "mean."))}

    def _take_restored(self) -> None:
        assert self.update is not None
        if self.progress.update or self.progress.epoch > 1:
            for name, tensor in self.update.tensors().items():
                if name in self._restored:
                    tensor.copy_(self._restored[name])
        self._restored = {}

    def snapshot(self) -> dict[str, Any]:
        """`progress` as plain values."""
        if self.update is not None:  # what was before the first stage is no training
            self.tick()
        return asdict(self.progress)


def predict(method: nn.Module, loader: Loader, part: str, of: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Class probabilities (n, N) of a part of the data, or what else `of` makes of it, in evaluation mode."""
    found = list(predictions(method, loader, part, of))
    return torch.cat(found) if found else torch.empty(0, loader.num_classes, device=loader.device)


@torch.no_grad()
def predictions(
    method: nn.Module, loader: Loader, part: str, of: Callable[[Tensor], Tensor] | None = None, chunk: int = 1000
) -> Iterator[Tensor]:
    """The same, a chunk at a time, for what does not fit in memory; until the last one the method is not training."""
    training = method.training
    method.eval()
    left = len(loader.rows[part])
    try:
        for x in loader.chunks(part, chunk, places(left).to(loader.device) % max(left, 1)):
            with uncompiled():
                found = in_order((of or method)(x), left)  # this rank's rows of a chunk, then all of its rows
            left -= len(found)
            yield found
    finally:
        method.train(training)


def prefixes(method: nn.Module) -> tuple[str, ...]:
    """What the names of a method's networks' tensors begin with; what else it has are tables of its rows."""
    return tuple(f"{name}." for name, _ in method.named_children())


def _networks(method: nn.Module) -> dict[str, Tensor]:
    """A copy of the tensors of a method's networks, under their names in the method."""
    return {name: t.detach().clone() for name, t in method.state_dict().items() if name.startswith(prefixes(method))}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
