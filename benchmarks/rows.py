"""Measure what a row costs in the label table, a checkpoint, a run and its audit, for 10,000 to 10,000,000 rows.

    PYTHONPATH=src python benchmarks/rows.py --out benchmarks/rows.json

The network is tiny and a row is eight numbers in a memory-mapped file, so that the rows' own cost is measured: FasTEN
trains one epoch on them, then all files of a run are written. Each measurement runs in its own process with one thread.
Seconds are CPU time, so that other work on the machine does not count. Memory is the peak beyond what the process holds
once everything is imported and the rows are made.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fasten.contract import Recipe
from fasten.data.source import Source
from fasten.datasets import DATASETS, Dataset, load_task
from fasten.engine import Fit
from fasten.files import write_text
from fasten.machine import choose_machine
from fasten.nets import NETS
from fasten.nets.small import MLP
from fasten.records import Run, environment
from fasten.runs.building import build_method, make_loader, plan_of
from fasten.runs.checkpoint import Checkpoints
from fasten.runs.training import Settings, train

FEATURES, NUM_CLASSES, NUM_CLEAN, BATCH = 8, 10, 1000, 1000
UPDATES = 50  # timed


def resident_bytes() -> int:
    """The resident memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """The peak resident memory of this program; `ru_maxrss` would count the process before it became this program."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of CPU time, and the result."""
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def make_source(folder: Path, rows: int) -> Source:
    """Make ten clusters whose rows are in a memory-mapped file."""
    rng = np.random.default_rng(0)
    means = 2 * rng.standard_normal((NUM_CLASSES, FEATURES), np.float32)
    truth = rng.integers(NUM_CLASSES, size=rows)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, FEATURES))
    for start in range(0, rows, 100_000):
        part = truth[start : start + 100_000]
        x[start : start + 100_000] = means[part] + rng.standard_normal((len(part), FEATURES), np.float32)
    x.flush()
    names = tuple(f"class {number}" for number in range(NUM_CLASSES))
    mapped = np.load(folder / "x.npy", mmap_mode="r+", allow_pickle=False)  # torch wants arrays that may be written to
    return Source("rows", mapped, truth, np.zeros(rows, bool), names)


def make_run(folder: Path, rows: int) -> Run:
    """Register a data set with this many rows and a small network; return a run of FasTEN on it for one epoch."""
    source = make_source(folder, rows)
    recipe = Recipe("mlp", epochs=1, batch_size=BATCH, rate=0.05, milestones=())
    DATASETS["rows"] = Dataset(lambda place: source, "", NUM_CLEAN, NUM_CLEAN, recipe, num_test=NUM_CLEAN)
    NETS["mlp"] = lambda shape: MLP(shape[0], width=16)
    return Run("rows", "symmetric:0.3", "fasten", {"per_class": 10}, recipe)


def measure_table(folder: Path, rows: int) -> dict[str, float]:
    """Measure the label table, an update, and a checkpoint."""
    run, machine = make_run(folder, rows), choose_machine("cpu")
    task = load_task(run.dataset, run.noise, run.seed)
    method = machine.place(build_method(run, task))
    fit = Fit(method, plan_of(method, run.recipe), make_loader(task, machine, 0), machine, lambda *_: {})
    step, stage = fit.start_stage()
    assert fit.update is not None
    fit.update.set_rates(1)
    coming = fit.loader.updates(stage, (0, 1))
    step(next(coming))  # draws the epoch's order
    done = list(islice(coming, UPDATES))
    update_seconds = min(timed(lambda picks=picks: step(picks))[0] for picks in done)
    checkpoints = Checkpoints(folder / "checkpoint")
    tensors = fit.tensors() | {f"selected.{name}": tensor for name, tensor in method.state_dict().items()}

    def save() -> None:
        checkpoints.save(1, tensors, {})
        checkpoints.close()

    save_seconds, load_seconds = timed(save)[0], timed(Checkpoints(folder / "checkpoint").load)[0]
    labels = method.get_buffer("labels")
    return {
        "table_bytes": labels.numel() * labels.element_size(),
        "update_seconds": update_seconds,
        "checkpoint_bytes": sum(file.stat().st_size for file in (folder / "checkpoint").iterdir()),
        "checkpoint_seconds": save_seconds + load_seconds,
    }


def measure_run(folder: Path, rows: int) -> dict[str, float]:
    """Measure a whole run: its set-up, its epoch, and the audit with all its files."""
    run = make_run(folder, rows)
    before, times = resident_bytes(), [time.process_time()]

    def note(*_: Any) -> None:
        times.append(time.process_time())

    train(run, folder / "run", Settings(device="cpu", clean_reference=False, on_start=note, on_epoch=note))
    note()
    setup, epoch, audit = (after - start for start, after in pairwise(times))
    return {
        "setup_seconds": setup,
        "epoch_seconds": epoch,
        "audit_seconds": audit,
        "memory_bytes": peak_bytes() - before,
        "disk_bytes": sum(file.stat().st_size for file in (folder / "run").rglob("*") if file.is_file()),
    }


def per_further_row(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    """The cost per row added since the previous line, so that fixed costs of a run drop out."""
    found = []
    for before, after in pairwise(lines):
        more = after["rows"] - before["rows"]
        costs = {name: (after[name] - before[name]) / more for name in after if name not in ("rows", "update_seconds")}
        found.append({"rows": after["rows"]} | {name: float(f"{cost:.3g}") for name, cost in costs.items()})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", choices=("table", "run"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            measure = measure_table if asked.part == "table" else measure_run
            print(json.dumps(measure(Path(folder), asked.rows[0])))
        return
    lines = []
    for rows in asked.rows:
        line: dict[str, float] = {"rows": rows}
        for part in ("table", "run"):
            command = [sys.executable, __file__, "--part", part, "--rows", str(rows)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                raise SystemExit(f"{part} with {rows} rows failed; the error is above")
            line |= {name: float(f"{value:.4g}") for name, value in json.loads(done.stdout).items()}
        lines.append(line)
        print(json.dumps(line))
    if asked.out:
        about = environment() | {"cpus": os.cpu_count(), "cpu": platform.processor() or platform.machine()}
        found = {"environment": about, "lines": lines, "per_further_row": per_further_row(lines)}
        write_text(asked.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
