"""Profile the kernels of a FasTEN update on a GPU, longest first.

PYTHONPATH=src python benchmarks/profile_step.py [plain|fused|compiled]
"""

from __future__ import annotations

import sys

import torch
from torch.profiler import ProfilerActivity, profile

from fasten.bench import image_task, with_kernels
from fasten.contract import Recipe
from fasten.engine import Fit
from fasten.machine import choose_machine
from fasten.records import Run
from fasten.runs.building import build_method, make_loader, plan_of

UPDATES = 10


def main() -> None:
    machine = with_kernels(choose_machine("cuda"), sys.argv[1] if len(sys.argv) > 1 else "auto")
    run, task = Run("bench", recipe=Recipe()), image_task(32)
    method = machine.place(build_method(run, task))
    loader = make_loader(task, machine, 0)
    fit = Fit(method, plan_of(method, run.recipe), loader, machine, lambda method, history: {})
    step, stage = fit.start_stage()
    picks = list(loader.updates(stage, (0, 1)))[:UPDATES]
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for pick in picks:
            step(pick)
        torch.cuda.synchronize()
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows)
    launches = sum(row.count for row in rows)
    print(f"{machine.kernels}: {total / UPDATES / 1000:.2f} ms of kernels an update, {launches / UPDATES:.0f} launches")
    for row in rows[:25]:
        share, each = row.self_device_time_total / total, row.self_device_time_total / row.count
        print(f"{share:6.1%} {row.count / UPDATES:6.1f} x {each:7.1f} us  {row.key[:110]}")


if __name__ == "__main__":
    main()
