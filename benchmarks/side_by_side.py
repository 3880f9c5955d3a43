"""Measure images per second of one, two, three and four FasTEN runs together that share a GPU.

    PYTHONPATH=src python benchmarks/side_by_side.py --out benchmarks/side_by_side.json

Each run is its own process, under NVIDIA MPS if that can be started, as in `fasten reproduce`. The runs set up, wait
for each other, and then make updates for the same time. `--method` measures the first stage of another method.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from fasten.bench import image_task
from fasten.contract import Recipe
from fasten.engine import Fit
from fasten.files import write_text
from fasten.grid.workers import mps, own_package
from fasten.machine import choose_machine
from fasten.records import Run, environment
from fasten.runs.building import build_method, make_loader, plan_of

TOGETHER = 20  # updates between checks of the clock


def work(method: str, seconds: float, net: str) -> None:
    """One of the runs: print "ready", wait for a line on stdin, then print the images per second."""
    machine, task = choose_machine(), image_task(32)
    run = Run("bench", method=method, recipe=Recipe(net))
    placed = machine.place(build_method(run, task))
    loader = make_loader(task, machine, 0)
    fit = Fit(placed, plan_of(placed, run.recipe), loader, machine, lambda method, history: {})
    step, stage = fit.start_stage()
    assert fit.update is not None
    fit.update.set_rates(1)
    picks = list(loader.updates(stage, (0, 1)))
    print("ready", flush=True)
    sys.stdin.readline()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(TOGETHER):
            fit.update.clear()  # its history has room for one epoch
            step(picks[done % len(picks)])
            done += 1
        if machine.device.type == "cuda":
            torch.cuda.synchronize()
    images = sum(pick.index.numel() for pick in picks[0].values())
    print(done * images / (time.perf_counter() - began), flush=True)


def together(count: int, asked: argparse.Namespace, own: dict[str, str]) -> list[float]:
    """Images per second of each of `count` runs."""
    command = [sys.executable, __file__, "--work", "--seconds", str(asked.seconds)]
    command += ["--method", asked.method, "--net", asked.net]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environ = {**os.environ, **own_package(), **own}
    runs = [subprocess.Popen(command, env=environ, **pipes) for _ in range(count)]
    for run in runs:
        assert run.stdout.readline() == "ready\n", "a run has failed; its error is above"
    for run in runs:
        run.stdin.write("go\n")
        run.stdin.flush()
    return [float(run.communicate()[0]) for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", default="1,2,3,4", help="comma-separated: how many runs at a time")
    parser.add_argument("--method", default="fasten")
    parser.add_argument("--net", default=Recipe.net)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        work(asked.method, asked.seconds, asked.net)
        return
    with mps("0") as own:
        found = {count: together(int(count), asked, own or {}) for count in asked.runs.split(",")}
    about = environment() | {"device": choose_machine().name, "mps": own is not None}
    rates = {count: round(sum(each)) for count, each in found.items()}
    lines = {"environment": about, "method": asked.method, "net": asked.net, "images_per_second": rates}
    print(json.dumps(lines, indent=1))
    if asked.out:
        write_text(asked.out, json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
