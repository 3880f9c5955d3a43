"""What tests train on two ranks and on one; run as a program, this is one rank of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn

from builders import CPU64, make_tiny_task
from fasten import ranks
from fasten.contract import Recipe
from fasten.datasets import find_dataset
from fasten.engine import Fit
from fasten.evaluate import Watch
from fasten.loader import Loader
from fasten.methods import METHODS
from fasten.nets import Heads
from fasten.records import Run
from fasten.runs import training
from fasten.runs.building import plan_of
from fasten.runs.training import Settings
from fasten.stream import StreamLoader

ODD = {"batch_size": 23}  # with 66 noisy rows, 9 clean and 3 classes nothing divides evenly by two ranks
EVEN = {"batch_size": 24}
MIXED = ("dividemix", "dividemix-clean", "augdesc")  # each rank mixes its own rows

# Case: the method, its options, and what else is special. These are the same on two ranks as on one.
EXACT = {name: (name, {}, ODD) for name in METHODS if name not in ("l2rw", "mlac", "causalnl", *MIXED)} | {
    "l2rw": ("l2rw", {}, {**EVEN, "rate": 0.02, "near": 1e-5}),  # its weights are in float32
    "mlac": ("mlac", {}, EVEN),
    "causalnl": ("causalnl", {}, {**EVEN, "sync_norm": True}),  # it has batch norms of its own
    "causalnl, code": ("causalnl", {"objective": "code"}, {**EVEN, "sync_norm": True}),
    "causalnl, features": ("causalnl", {}, {**ODD, "features": True}),  # for which it has none
    "causalnl, features, code": ("causalnl", {"objective": "code"}, {**ODD, "features": True}),
    "wrong on purpose": ("fasten", {"perturbation": 0.5, "threshold": 0.4}, ODD),
    "few clean rows": ("fasten", {"per_class": 1}, ODD),
    "T of noisy rows": ("fasten", {"estimate": "noisy"}, ODD),
    "streamed": ("fasten", {}, {**ODD, "loader": StreamLoader}),
    "over the batch": ("glc", {"mean_over": "batch"}, ODD),
    "raw weights": ("mw-net", {"normalise": False}, ODD),
    "twice": ("mw-net", {"route": "graph"}, ODD),
    "twice, raw": ("mw-net", {"route": "graph", "normalise": False}, ODD),
    "twice, T": ("mloc", {"route": "graph", "clip": None}, ODD),
    "one batch norm": ("fasten", {}, {**EVEN, "norm": True, "sync_norm": True}),
    "one batch norm in groups": ("glc", {"norm": "split"}, {**EVEN, "norm": True, "sync_norm": True}),
    "one batch norm, ahead": ("mw-net", {}, {**EVEN, "norm": True, "sync_norm": True}),
}
# These are not, but both ranks must hold the same.
LOCAL = {
    f"{name} with batch norms": (name, {}, {**ODD, "norm": True})
    for name in ("fasten", "glc", "mlac", "mslc", "mw-net", "dividemix")
} | {name: (name, {}, ODD) for name in MIXED}


DIGITS = Run("digits", "symmetric:0.4", recipe=find_dataset("digits").recipe.scaled(3))


class Linear(nn.Linear):
    num_features = 20


class Net(nn.Module):
    """One convolution, with or without a batch norm."""

    num_features = 80

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5) if norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.conv(x))).flatten(1)


def make_fit(case: str) -> Fit:
    name, options, special = (EXACT | LOCAL)[case]
    special = {key: value for key, value in special.items() if key != "near"}
    norm, loader_class = special.pop("norm", False), special.pop("loader", Loader)
    flat = special.pop("features", False)
    recipe = Recipe("", **{"epochs": 8, "rate": 0.2, "milestones": (6,), **special})
    task, entry = make_tiny_task(), METHODS[name]
    if flat:
        x = task.x.reshape(len(task.x), -1).astype(np.float32) / 255
        task = replace(task, x=x, mean=(0.0,) * x.shape[1], std=(1.0,) * x.shape[1])
    options = {**entry.options, **({"shape": task.shape} if entry.shaped else {}), **options}
    if options.get("oracle"):
        options["oracle"] = torch.from_numpy(task.transition).float()
    torch.manual_seed(0)
    backbones = [Linear(task.shape[0], 20) if flat else Net(norm) for _ in range(entry.backbones)]
    method = CPU64.place(entry.build(*backbones, torch.from_numpy(task.given), num_classes=3, **options))
    for net in method.modules():
        if isinstance(net, Heads):
            net.parts.synced = recipe.sync_norm
    loader = loader_class(task, CPU64.device, 0, torch.float64)
    return Fit(method, plan_of(method, recipe), loader, CPU64, Watch(task, loader))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with ranks.joined():
        for number, case in enumerate(EXACT | LOCAL):
            fit = make_fit(case)
            fit.run()
            meta = {"rows": json.dumps(fit.progress.rows), "images": str(fit.progress.images)}
            safetensors.torch.save_file(fit.tensors(), folder / f"{ranks.rank()}-{number}.safetensors", meta)
        training.EPOCH_CHECKPOINT_SECONDS = 0.0
        training.train(DIGITS, folder / "run", Settings(device="cpu", clean_reference=False))
    check_threads()


def check_threads() -> None:
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]  # none where there is no /proc
    assert not any("gloo" in name for name in names), (
        "threads of the group that is gone may abort the process at its end"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
