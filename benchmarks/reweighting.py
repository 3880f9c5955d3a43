"""What decides how well MW-Net and L2RW do at 80% noise? Their variants on a small CIFAR-10, on a CPU.

    PYTHONPATH=src python benchmarks/reweighting.py --root DATA --seconds 1200

The data are 10,000 noisy images of 16×16 pixels (those of CIFAR-10, with each 2×2 block averaged), 1,000 clean ones,
2,000 for selecting the epoch and 4,000 for testing, with symmetric 80% noise. The network is a residual network with
seven convolutions in its main path. Every variant has the same number of updates and the same rate schedule, so that
they differ only in their weights and their optimisers.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fasten.contract import Recipe
from fasten.data.cifar import read_cifar10
from fasten.data.source import Source
from fasten.data.task import Task
from fasten.datasets import DATASETS, Place, make_task
from fasten.engine import Fit
from fasten.evaluate import Watch
from fasten.files import write_text
from fasten.machine import Machine
from fasten.methods import METHODS
from fasten.metrics import auroc
from fasten.nets.resnet import BasicBlock
from fasten.records import environment
from fasten.runs.building import make_loader, plan_of
from fasten.seeds import torch_seed

RECIPE = Recipe("narrow-resnet", epochs=10, milestones=(8, 9))  # 1,000 updates; a run of the paper has 26,400
FASTER = {"meta_rate": 0.0264}  # faster by the same factor, so that the weighting network moves as far
FIRST = {"normalise": True, "meta_optim": "sgd", "nesterov": True} | FASTER
LATER = {"normalise": False, "meta_optim": "adam", "nesterov": False} | FASTER
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # options of the method, changes of the recipe
    "cross-entropy": ("cross-entropy", {}, {}),
    "mw-net, later script": ("mw-net", LATER, {}),
    "mw-net, first script": ("mw-net", FIRST, {}),
    "l2rw, momentum 0.9": ("l2rw", {}, {}),
    "l2rw, no momentum": ("l2rw", {}, {"momentum": 0.0}),
    "mw-net, later script, normalised": ("mw-net", LATER | {"normalise": True}, {}),
}


class NarrowResNet(nn.Module):
    """A stem and three residual blocks of 8, 16 and 32 channels."""

    num_features = 32

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 16, 2), BasicBlock(16, 32, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return torch.mean(self.blocks((x, x))[0], (2, 3))


def small_cifar(root: Path) -> Source:
    """The first 13,000 training and 4,000 test images, at half the resolution."""
    whole = read_cifar10(root)
    rows = np.concatenate([np.flatnonzero(~whole.test)[:13_000], np.flatnonzero(whole.test)[:4_000]])
    pixels = np.asarray(whole.x)[rows].reshape(len(rows), 16, 2, 16, 2, 3).mean((2, 4))
    return replace(whole, x=np.rint(pixels).astype(np.uint8), truth=whole.truth[rows], test=whole.test[rows])


def look(source: Source, variant: str, seed: int) -> dict[str, Any]:
    name, options, changes = VARIANTS[variant]
    task = make_task(replace(DATASETS["cifar10"], num_valid=2000, pad=2), source, "symmetric:0.8", seed)
    torch.manual_seed(torch_seed(seed, "init"))
    given = torch.from_numpy(task.given)
    method = METHODS[name].build(NarrowResNet(), given, num_classes=task.num_classes, **options)
    machine = Machine(torch.device("cpu"))
    machine.place(method)
    loader, began = make_loader(task, machine, seed), time.perf_counter()
    plan = plan_of(method, replace(RECIPE, **changes))
    fit = Fit(method, plan, loader, machine, Watch(task, loader))
    weights: dict[str, list[float]] = {}
    fit.after_update = lambda ended: _note_weights(method, task, weights) if ended else None
    fit.run()
    best = fit.progress.best
    assert best is not None
    kept = ("epoch", "valid_accuracy", "test_accuracy")
    found = {"variant": variant, "seed": seed, **{key: best[key] for key in kept}, "weights": weights}
    found["valid"] = [row["valid_accuracy"] for row in fit.progress.rows]
    return found | {"seconds": round(time.perf_counter() - began, 1)}


def _note_weights(method: nn.Module, task: Task, noted: dict[str, list[float]]) -> None:
    """Note mean, spread relative to the mean, and AUROC for wrong labels of the weights at each row's last visit."""
    if not hasattr(method, "weights"):
        return
    w = method.weights.double().numpy()
    found = {"mean": w.mean(), "spread": w.std() / w.mean(), "auroc": auroc(-w, task.given != task.truth)}
    for key, value in found.items():
        noted.setdefault(key, []).append(float(f"{value:.4g}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=Place.root)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this many seconds")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/reweighting.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    began, source, found = time.perf_counter(), small_cifar(asked.root), []
    for variant in asked.variants:
        for seed in asked.seeds:
            if time.perf_counter() - began < asked.seconds:
                found.append(look(source, variant, seed))
                print(found[-1], flush=True)
                lines = ",\n".join(json.dumps(run) for run in found)
                write_text(asked.out, f'{{"environment": {json.dumps(environment())}, "runs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
