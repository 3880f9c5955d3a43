"""A run from beginning to end: Run -> Task -> fit -> evaluation -> the files of its folder."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from fasten import audit, ranks
from fasten.audit.gallery import Gallery, write_gallery
from fasten.contract import Recipe
from fasten.data.task import Task
from fasten.datasets import Place, find_dataset, load_task
from fasten.engine import Row
from fasten.evaluate import Evaluation, evaluate
from fasten.files import sweep, write_bytes
from fasten.machine import choose_machine
from fasten.options import check_settings, find_method, rate_of
from fasten.records import Log, Record, Run, shared_gpu, write_record
from fasten.report import write_report
from fasten.runs.beginnings import (
    at_work,
    check_plan,
    check_same,
    check_trained,
    holds,
    new_record,
    other_machine,
    saved_record,
)
from fasten.runs.building import build_method, listen, make_fit, plan_of, weights_and_tables
from fasten.runs.checkpoint import Checkpoints
from fasten.runs.divergence import LOWER, MOST_REWINDS, Diverged, advice, check_finite
from fasten.runs.folders import check_folder
from fasten.runs.lengths import count_updates, how_long
from fasten.runs.notes import (
    clean_rows_do_better,
    epoch_warnings,
    final_warnings,
    first_notes,
    most_labels_wrong,
    out_of_reach,
    stages_in_words,
)
from fasten.runs.unseen import AGAIN, Unseen, by_heart, forget, judge_of
from fasten.sentences import sentence, typed
from fasten.signals import asked_to_stop

EPOCH_CHECKPOINT_SECONDS = 20.0  # at the end of an epoch, if so much time has passed since the last one
UPDATE_CHECKPOINT_SECONDS = 300.0  # after any other update
MEETING = 20  # updates after which several ranks ask each other whether to stop or to save
KEPT = ("clean_reference", "noisy_reference", "deterministic", "checkpoint_every", "on_nan")  # for `resume`
REFERENCE_UPDATES = 1000  # of clean-only, but at most the run's; a tenth of the run's if that is more


@dataclass(frozen=True)
class Settings:
    """How to carry out a run; nothing here changes what it computes (up to rounding, and as long as it is finite)."""

    place: Place | None = None  # None: `Place()`, or where the run found its data
    device: str | None = None  # None: auto, or that of the run
    clean_reference: bool = True
    noisy_reference: bool = False
    deterministic: bool = False
    checkpoint_every: float | None = None  # seconds; None: the two numbers above
    on_nan: str | None = None  # stop or rewind; None: stop, or what the run was started with
    on_start: Callable[[Record, int], None] = lambda record, updates: None
    on_update: Callable[[int], None] = lambda updates: None
    on_epoch: Callable[[Row], None] = lambda row: None
    say: Callable[[str], None] = lambda sentence: None


def train(run: Run, out: Path, settings: Settings | None = None) -> Record:
    """Carry out a run in a new folder; continue it if torchrun has restarted this process after a rank died."""
    began, settings = time.perf_counter(), settings or Settings()
    place = settings.place or Place()
    settings = replace(settings, place=place, device=settings.device or "auto")
    if ranks.restarted() and ranks.first_says(holds(out, run)):
        return resume(out, settings)
    check_folder(out)
    check_settings(run.method, run.options, run.recipe)
    task = load_task(run.dataset, run.noise, run.seed, place, run.clean, run.own)
    method = build_method(run, task)
    check_plan(method, plan_of(method, run.recipe), task)  # a wrong option is refused before anything is written
    machine = choose_machine(settings.device, deterministic=settings.deterministic)
    how = {"root": os.fspath(place.root), "label_set": place.label_set, "device": settings.device}
    record = new_record(run, task, machine, how | {key: getattr(settings, key) for key in KEPT})
    ranks.wait()  # until all ranks have checked the folder, before anything is in it
    if ranks.rank() == 0:
        out.mkdir(parents=True, exist_ok=True)
    with at_work(out, new=True):
        if ranks.rank() == 0:
            write_record(out, record)
        return _Session(run, task, out, settings, record).go(began)


def resume(out: Path, settings: Settings | None = None) -> Record:
    """Continue the run in a folder; a finished one is left as it is."""
    with at_work(out):
        return _go_on(out, settings or Settings())


def _go_on(out: Path, settings: Settings) -> Record:
    began = time.perf_counter()
    record = saved_record(out, settings.say)
    check_trained(out, record)
    if record["result"] is not None:
        settings.say(f"{out} is a finished run")
        return record
    run = Run.from_json(record["run"])
    how = (record["environment"].get("how") or {}) | _said(settings)
    if not {"root", "label_set", "device"} <= how.keys():
        raise ValueError(f"{out / 'record.json'} does not say how it was run; run it again in another folder")
    place = replace(settings.place or Place(), root=Path(how["root"]), label_set=how["label_set"])
    settings = replace(settings, place=place, device=how["device"], **{key: how[key] for key in KEPT if key in how})
    environment = record["environment"] | {"how": how} | shared_gpu()
    task = load_task(run.dataset, run.noise, run.seed, place, run.clean, run.own)
    check_same(record, task, run.dataset)
    if environment != record["environment"]:  # what is asked for now also holds the next time
        record["environment"] = environment
        if ranks.rank() == 0:
            write_record(out, record)
    return _Session(run, task, out, settings, record).go(began)


def _said(settings: Settings) -> dict[str, Any]:
    """The settings that this `resume` changes."""
    said = {key: getattr(settings, key) for key in ("checkpoint_every", "on_nan", "device")}
    said["root"] = None if settings.place is None else os.fspath(settings.place.root)
    return {key: value for key, value in said.items() if value is not None}


class _Session:
    """One process's part in a run: in all of it, or in what is left of it."""

    def __init__(self, run: Run, task: Task, out: Path, settings: Settings, record: Record) -> None:
        self.run, self.task, self.out, self.settings, self.record = run, task, out, settings, record
        self.machine = choose_machine(settings.device, deterministic=settings.deterministic)
        self.fit = make_fit(run, task, self.machine)
        self.fit.after_update = self._after_update
        listen(self.fit, run, task)
        self.method, self.loader = self.fit.method, self.fit.loader
        self.updates = count_updates(self.fit)
        self.checkpoints = Checkpoints(out / "checkpoint")
        if ranks.rank() == 0:
            sweep(out)
            sweep(self.checkpoints.folder)
        self.last_saved = time.monotonic()
        self.log = self._restore()

    def _restore(self) -> Log | None:
        """Restore the newest checkpoint, if any, and return the log; None on all ranks but the first, which writes."""
        found = self.checkpoints.load()
        lines: list[str] = []
        if found is None:
            for note in first_notes(self.task, self.run, self.fit.plan, self.machine.device.type):
                self._note(note)
        else:
            tensors, meta, damaged = found
            self.fit.restore(meta["progress"], tensors)
            self.record = {**meta["record"], "environment": self.record["environment"]}
            lines = meta["log"]
            for sentence in [*damaged, *other_machine(self.record, self.machine)]:
                self._note(sentence)
        if not ranks.same(self.fit.progress.done):
            raise OSError(f"the ranks see different checkpoints in {self.out}; put it on a disk that they share")
        return Log(self.out / "log.jsonl", lines) if ranks.rank() == 0 else None

    def _note(self, sentence: str) -> None:
        if sentence not in self.record["notes"]:
            self.record["notes"].append(sentence)
        self.settings.say(sentence)

    def go(self, began: float) -> Record:
        self.settings.on_start(self.record, self.updates * (1 + AGAIN if by_heart(self.run, self.task) else 1))
        if stages := stages_in_words(self.fit.plan):
            self.settings.say(stages)
        min_precision = (self.run.own or {}).get("min_precision")
        if lack := out_of_reach(self.task, min_precision):
            self.settings.say(lack)
        preparation = time.perf_counter() - began
        try:
            with asked_to_stop(self.settings.say) as self.asked:
                self._train()
        finally:
            self.checkpoints.close()
        store = self.out / "probabilities.npy" if ranks.rank() == 0 else None
        peak, judge = _peak_memory(self.machine.device), judge_of(self.fit, self._unseen())
        found = evaluate(self.method, self.task, self.loader, min_precision, self.run.seed, store, judge)
        if self.task.known is not None:
            for note in found.findings.notes:
                self._note(note)
        best = self.fit.progress.best
        assert best is not None
        self.record["notes"] += final_warnings(best, found.probs, found.findings.transition)
        self._fill(found, best, preparation, peak)
        self._references()
        p_wrong = found.findings.calibrated(found.known.given).p_wrong
        hint = most_labels_wrong(self.run.method, float(p_wrong.mean()))
        self.record["notes"] += filter(None, [clean_rows_do_better(self.record) or hint])
        if self.log is not None:
            self._write(found, self.log)
        return self.record

    def _train(self) -> None:
        if self.settings.on_nan == "rewind" and self.checkpoints.newest is None:
            self.save()  # otherwise there might be nothing to go back to
        while True:
            try:
                self.fit.run()
                break
            except Diverged as error:
                self._rewind(error)
        if ranks.votes(self.asked()):  # after the last update
            self.save()
            raise KeyboardInterrupt
        if by_heart(self.run, self.task):
            self.save()  # what comes now takes longer than all before

    def _unseen(self) -> Unseen:
        def on_share(share: float) -> None:
            self.settings.on_update(round(self.updates * (1 + AGAIN * share)))

        run, task, say, folder = self.run, self.task, self.settings.say, self.checkpoints.folder
        return Unseen(run, task, self.machine, self.fit.progress, self._note, folder=folder, say=say, on_share=on_share)

    def _after_update(self, epoch_ended: bool) -> None:
        self.settings.on_update(self.fit.progress.done)
        every, waited = self.settings.checkpoint_every, time.monotonic() - self.last_saved
        usual = EPOCH_CHECKPOINT_SECONDS if epoch_ended else UPDATE_CHECKPOINT_SECONDS
        stop, due = self._agreed(epoch_ended, waited >= (usual if every is None else every))
        if epoch_ended or due:
            check_finite(self.fit, self.task)
        if epoch_ended:
            row = self.fit.progress.rows[-1]
            self._tell(event="epoch", **row)
            for warning in epoch_warnings(row):
                self._tell(event="warning", epoch=row["epoch"], warning=warning)
            self.settings.on_epoch(row)
        if due:
            self.save()
        if stop:
            raise KeyboardInterrupt

    def _agreed(self, epoch_ended: bool, due: bool) -> tuple[bool, bool]:
        """Whether to stop, and whether to save. Several ranks must meet to agree, and do so only now and then."""
        if ranks.world() > 1 and not epoch_ended and self.fit.progress.done % MEETING:
            return False, False
        stop = ranks.votes(self.asked()) > 0
        return stop, ranks.first_says(stop or due)

    def _tell(self, **event: Any) -> None:
        if self.log is not None:
            self.log.add(**event)

    def _rewind(self, error: Diverged) -> None:
        """Go back to the last checkpoint, which is finite, and continue at a lower rate; raise if that is unwanted."""
        self._tell(event="diverged", **vars(error.found))
        self.checkpoints.wait()
        ranks.wait()  # for the rank that writes
        newest = self.checkpoints.newest
        name, rate = rate_of(self.run.method, self.run.options, self.run.recipe)
        rate *= self.fit.progress.rate_factor
        rewinds, notes = self.record.get("rewinds", []), self.record["notes"]
        if len(rewinds) == MOST_REWINDS or self.settings.on_nan != "rewind":
            raise ValueError(
                f"{error}; {advice(newest, self.out, (name, rate), len(rewinds) == MOST_REWINDS)}"
            ) from None
        if ranks.votes(bool(rewinds) and newest == rewinds[-1]["back_to"]):  # finite, but too far gone
            if ranks.rank() == 0:  # after all have seen which one it is
                self.checkpoints.drop_newest()
            ranks.wait()
        before, self.log = self.log, self._restore()
        if before is not None and self.log is not None:
            self.log.keep(before, "diverged", "rewind")
        factor = self.fit.progress.rate_factor = 1 / LOWER ** (len(rewinds) + 1)
        found, there = error.found, self.checkpoints.newest
        went = {"epoch": found.epoch, "update": found.update, "back_to": there, "rate_factor": factor}
        self.record |= {"rewinds": [*rewinds, went], "notes": list(dict.fromkeys([*notes, *self.record["notes"]]))}
        self._tell(event="rewind", **went)
        self._note(f"{error}; went back to checkpoint {there}, and continued with {factor:g} of the learning rate")
        self.save()

    def save(self) -> None:
        """Save a checkpoint of the current update: all ranks hold the same state, and the first one writes it."""
        if self.log is None:
            return
        meta = {"progress": self.fit.snapshot(), "log": self.log.lines, "record": self.record}
        self.checkpoints.save(self.fit.progress.done, self.fit.tensors(), meta)
        self.last_saved = time.monotonic()

    def _fill(self, found: Evaluation, best: Row, preparation: float, peak: int | None) -> None:
        at = self.fit.progress
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
            "peak_memory_bytes": peak,
        }

    def _references(self) -> None:
        for name, method, wanted in (
            ("clean_only", "clean-only", self.settings.clean_reference and len(self.task.clean) > 0),
            ("noisy_only", "cross-entropy", self.settings.noisy_reference),
        ):
            if wanted and method != self.run.method:
                try:
                    self.record["references"][name] = self._reference(method)
                except Diverged as error:
                    self.record["references"][name] = None
                    self._note(f"{method} is left out of the comparison: {error}")

    def _reference(self, name: str) -> dict[str, Any]:
        """Train another method on the same task: clean-only for a tenth of the updates or 1,000, cross-entropy in full.

        If the run went back after a divergence, this has its lower rate from the start.
        """
        recipe = self._plain_recipe()
        if name == "clean-only":
            share = max(0.1, min(1.0, REFERENCE_UPDATES / self.updates))
            recipe = recipe.scaled(math.ceil(recipe.epochs * share))
        run = replace(self.run, method=name, options={}, recipe=recipe)
        kernels = "plain" if self.machine.kernels == "compiled" else self.machine.kernels  # too short to compile for
        fit = make_fit(run, self.task, replace(self.machine, kernels=kernels), self.loader)
        self.settings.say(f"now training {name} on the same rows, for comparison{how_long(fit, self.fit.progress)}")
        fit.progress.rate_factor = self.fit.progress.rate_factor
        fit.after_update = lambda epoch_ended: check_finite(fit, self.task) if epoch_ended else None
        fit.run()
        best = fit.progress.best
        assert best is not None
        values = {key: best[key] for key in ("test_accuracy", "valid_accuracy")}
        values["test_accuracy_last"] = fit.progress.rows[-1]["test_accuracy"]
        return values | {"updates": count_updates(fit), "seconds": fit.progress.seconds}

    def _plain_recipe(self) -> Recipe:
        """The run's recipe, with the data's own schedule: a reference must not depend on what it is compared with."""
        recipe = self.run.recipe
        if find_method(self.run.method).schedule is None:
            return recipe
        usual = Recipe() if self.task.known is not None else find_dataset(self.run.dataset).recipe
        course = {name: getattr(usual, name) for name in ("epochs", "milestones", "momentum")}
        return replace(recipe, **course).scaled(recipe.epochs)

    def _write(self, found: Evaluation, log: Log) -> None:
        """Write all files, the record last: a folder whose record has a result is complete."""
        names = self.task.class_names
        table = found.findings.table(found.known, names, verdicts=self.task.known is not None)
        audit.write_labels(table, self.out / "labels.csv")
        audit.write_transition(found.findings.transition, names, self.out / "transition.csv")
        children, tables = weights_and_tables(self.method)
        weights = safetensors.torch.save(children)
        self.record["result"]["model_sha256"] = hashlib.sha256(weights).hexdigest()
        write_bytes(self.out / "model.safetensors", weights)
        if tables:
            write_bytes(self.out / "tables.safetensors", safetensors.torch.save(tables))
        gallery = write_gallery(self.task, table, self.out / "gallery.json")
        self._report(gallery)
        log.add(event="finished", test_accuracy=self.record["result"]["test_accuracy"])
        write_record(self.out, self.record)
        forget(self.checkpoints.folder)

    def _report(self, gallery: Gallery) -> None:
        """Write the page, without which the run is whole. If the disk is full, `resume` writes it with the rest."""
        try:
            write_report(self.record, self.out / "report.html", gallery)
        except OSError:
            raise
        except Exception as error:  # whatever it is, it would come again at each `resume`
            again = typed("report", self.out)
            self._note(f"report.html could not be written ({sentence(error)}); once that is fixed, {again} writes it")


def _peak_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
