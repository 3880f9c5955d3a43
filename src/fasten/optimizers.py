"""The optimisers, SGD and Adam: learning rates are tensors, and all state exists from the start."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from fasten.contract import Optim


class SGD:
    """The step of `torch.optim.SGD` without the class, for which torch imports its compiler: a second of every run."""

    def __init__(self, spec: Optim, parameters: list[nn.Parameter], rate: Tensor) -> None:
        self.spec, self.parameters, self.rate = spec, parameters, rate
        self.state: dict[Tensor, dict[str, Tensor]] = {p: {"momentum_buffer": torch.zeros_like(p)} for p in parameters}

    @torch.no_grad()
    def step(self) -> None:
        on_cpu = self.rate.device.type == "cpu"
        rate: Any = self.rate.item() if on_cpu else self.rate  # a GPU reads it when a captured update is replayed
        sgd(
            list(self.parameters),
            cast(list[Tensor], [parameter.grad for parameter in self.parameters]),  # an update sets all of them
            list(velocities(self)),
            foreach=on_cpu,  # the same result in fewer calls
            fused=self.rate.device.type == "cuda",
            weight_decay=self.spec.weight_decay,
            momentum=self.spec.momentum,
            lr=rate,
            dampening=0,
            nesterov=self.spec.nesterov,
            maximize=False,
        )


Optimizer = SGD | torch.optim.Adam


def make_optimizer(spec: Optim, parameters: list[nn.Parameter], rate: Tensor) -> Optimizer:
    """Make an optimiser with all of its state, since a captured graph cannot create it in the first step."""
    if spec.kind == "sgd":
        return SGD(spec, parameters, rate)
    on_gpu = rate.device.type == "cuda"
    optimizer = torch.optim.Adam(
        parameters, lr=rate, weight_decay=spec.weight_decay, amsgrad=spec.amsgrad, fused=on_gpu, capturable=on_gpu
    )
    names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if spec.amsgrad else [])]
    for parameter in parameters:
        optimizer.state[parameter] = {name: torch.zeros_like(parameter) for name in names}
        optimizer.state[parameter]["step"] = torch.zeros((), device=parameter.device)
    return optimizer


def velocities(optimizer: Optimizer) -> list[Tensor]:
    """SGD's momentum buffers, in the order of the parameters; Adam has none."""
    return [state["momentum_buffer"] for state in optimizer.state.values() if "momentum_buffer" in state]
