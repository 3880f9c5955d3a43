"""The demo: FasTEN on scikit-learn's digits, with 40% and 80% symmetric noise and 100 clean labels.

make demo
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from fasten.datasets import DATASETS
from fasten.records import Run
from fasten.runs.folders import FILES
from fasten.runs.training import Settings, train

SEEDS = range(5)
RUNS = (*(f"noise40-seed{seed}" for seed in SEEDS), "noise80-seed0")
AT_ONCE = min(2, os.cpu_count() or 1)  # runs, each on one thread: the network is too small for more


def clear(out: Path) -> None:
    """Remove the runs of an earlier demo; refuse a folder that holds anything else."""
    runs = sorted(out.iterdir()) if out.is_dir() else []
    theirs = [run for run in runs if run.name not in RUNS or not run.is_dir()]
    theirs += [file for run in runs if run.is_dir() for file in run.iterdir() if not is_ours(file)]
    if theirs or (out.exists() and not out.is_dir()):
        raise SystemExit(f"demo: {theirs[0] if theirs else out} is not from an earlier demo; choose another --out")
    for run in runs:
        shutil.rmtree(run)


def is_ours(file: Path) -> bool:
    return file.name in FILES or file.name.startswith(".")  # half-written files, and the lock


def run(noise: str, seed: int, out: Path) -> dict:
    """Train one run with both references in its own folder."""
    settings = Settings(device="cpu", noisy_reference=True)
    return train(Run("digits", noise, recipe=DATASETS["digits"].recipe, seed=seed), out, settings)


def told(seed: int, record: dict) -> dict:
    print(f"  seed {seed}: {row(record)}", file=sys.stderr)
    return record


def accuracies(record: dict) -> tuple[float, float, float]:
    """Test accuracy of noisy-only at its last epoch (no trusted label could select one), clean-only and FasTEN."""
    references = record["references"]
    noisy, clean = references["noisy_only"]["test_accuracy_last"], references["clean_only"]["test_accuracy"]
    return noisy, clean, record["result"]["test_accuracy"]


def row(record: dict) -> str:
    return "noisy-only {:.3f}, clean-only {:.3f}, FasTEN {:.3f}".format(*accuracies(record))


def show_matrices(record: dict) -> None:
    """Print the run's estimate of T of the given labels beside the true T."""
    found = record["evaluation"]["transition"]
    print("T[i, j] = P(given j | true i), in per cent: estimated | true")
    for ours, true in zip(found["given"], found["true"], strict=True):
        print("  " + " ".join(f"{100 * v:3.0f}" for v in ours) + "  | " + " ".join(f"{100 * v:3.0f}" for v in true))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-run"))
    out = parser.parse_args().out
    clear(out)
    began = time.perf_counter()
    with ProcessPoolExecutor(AT_ONCE, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        some_wrong = [pool.submit(run, "symmetric:0.4", seed, out / RUNS[seed]) for seed in SEEDS]
        most_wrong = pool.submit(run, "symmetric:0.8", 0, out / RUNS[-1])
        print("digits, 40% symmetric noise, 100 clean labels, 1,197 noisy ones:", file=sys.stderr)
        records = [told(seed, future.result()) for seed, future in zip(SEEDS, some_wrong, strict=True)]
        print("\nthe same with 80% symmetric noise:", file=sys.stderr)
        bad = told(0, most_wrong.result())
    noisy, clean, ours = np.mean([accuracies(record) for record in records], axis=0)
    seconds = time.perf_counter() - began

    print(f"\ntest accuracy at 40% noise, mean over seeds 0 to {len(records) - 1}")
    chosen = np.mean([record["references"]["noisy_only"]["test_accuracy"] for record in records])
    print(f"  noisy labels only  {noisy:.3f}   (last epoch; {chosen:.3f} if 100 verified labels choose the epoch)")
    print(f"  clean rows only    {clean:.3f}\n  FasTEN             {ours:.3f}\n")
    show_matrices(records[0])
    print(f"\nat 80% noise: {row(bad)}")
    for note in bad["notes"]:
        print(f"  note: {note}")
    print(f"\n{seconds:.0f} s; reports:")
    for name in (RUNS[0], RUNS[-1]):
        print(f"  {out / name / 'report.html'}")


if __name__ == "__main__":
    main()
