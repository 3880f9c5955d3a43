"""Does bf16 spoil the meta-gradients? Compare the weights that L2RW gives to a batch in bf16 and in float32.

    PYTHONPATH=src python benchmarks/meta_precision.py --root DATA

The data are CIFAR-10 with 80% symmetric noise; the network is trained briefly in float32, on a CPU. At some updates the
decrease of the clean loss by a step along each noisy row's gradient is computed twice, with the network in float32 and
in bf16.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fasten.contract import Batch, Recipe
from fasten.datasets import Place, load_task
from fasten.files import write_text
from fasten.machine import Machine
from fasten.methods.l2rw import L2RW
from fasten.nets import Heads
from fasten.ops.lookahead import look_ahead
from fasten.records import Run, environment
from fasten.runs.building import build_method, make_loader, plan_of


def falls(net: Heads, batch: Batch, precision: torch.dtype | None) -> Tensor:
    """u of the L2RW paper, before it is clipped at zero."""
    noisy, before = batch["noisy"], net.precision
    net.precision = precision
    epsilon = torch.zeros_like(noisy.weight).requires_grad_()

    def inner(outputs: Any) -> Tensor:
        return (epsilon * F.cross_entropy(outputs[0][0], noisy.y, reduction="none")).sum()

    ahead = look_ahead(net, [noisy.x], inner, batch["clean"], rate=torch.tensor(1.0), moves=False)
    (slope,) = torch.autograd.grad(ahead.loss, epsilon)
    net.precision = before
    return -slope


def compare(net: Heads, batch: Batch) -> dict[str, float]:
    """Correlation, share of rows with the same sign, half the summed absolute differences of normalised weights."""
    exact, rounded = falls(net, batch, None), falls(net, batch, torch.bfloat16)
    shares = [torch.relu(u) / torch.relu(u).sum() for u in (exact, rounded)]
    return {
        "correlation": torch.corrcoef(torch.stack([exact, rounded]))[0, 1].item(),
        "same_sign": ((exact > 0) == (rounded > 0)).double().mean().item(),
        "weight_moved": 0.5 * (shares[0] - shares[1]).abs().sum().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=Place.root)
    parser.add_argument("--net", default="resnet18")
    parser.add_argument("--at", type=int, nargs="+", default=[5, 20, 40], help="updates at which to compare")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/meta_precision.json"))
    asked = parser.parse_args()
    run = Run("cifar10", "symmetric:0.8", "l2rw", seed=1, recipe=Recipe(asked.net))
    task = load_task(run.dataset, run.noise, run.seed, Place(asked.root))
    machine = Machine(torch.device("cpu"))
    method = machine.place(build_method(run, task))
    assert isinstance(method, L2RW)
    loader, (stage, *_) = make_loader(task, machine, run.seed), plan_of(method, run.recipe)
    optimizer = torch.optim.SGD(method.net.parameters(), lr=0.1, momentum=0.9)
    found = []
    for update, picks in enumerate(loader.updates(stage, (0, 1))):
        batch = Batch(loader.draws(stage, picks), {}, {})
        if update in asked.at:
            found.append({"update": update, **compare(method.net, batch)})
            print(found[-1], flush=True)
        if update == max(asked.at):
            break
        losses = [F.cross_entropy(method.net(rows.x)[0], rows.y) for rows in (batch["noisy"], batch["clean"])]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()
    write_text(asked.out, json.dumps({"net": asked.net, "environment": environment(), "looks": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
