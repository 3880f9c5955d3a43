"""What moves weights along their gradients, SGD or Adam: rates are tensors, and all state is there from the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from fasten.contract import Optim


class SGD:
    """The step of `torch.optim.SGD`, without the class: with it torch imports its compiler, a second of every run."""

    in_parts = True  # some weights may be moved before the gradients of others are known

    def __init__(self, spec: Optim, parameters: list[nn.Parameter], rate: Tensor) -> None:
        self.spec, self.rate = spec, rate
        self.state: dict[Tensor, dict[str, Tensor]] = {p: {"momentum_buffer": torch.zeros_like(p)} for p in parameters}

    @torch.no_grad()
    def move(self, weights: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        on_cpu = self.rate.device.type == "cpu"
        rate: Any = self.rate.item() if on_cpu else self.rate  # a GPU reads it when the captured update is replayed
        sgd(
            list(weights),
            list(map(_laid_out_as, weights, grads)),
            [self.state[weight]["momentum_buffer"] for weight in weights],
            foreach=on_cpu,  # the same sums, in fewer calls
            fused=self.rate.device.type == "cuda",
            weight_decay=self.spec.weight_decay,
            momentum=self.spec.momentum,
            lr=rate,
            dampening=0,
            nesterov=self.spec.nesterov,
            maximize=False,
        )


class Adam:
    """torch's, with all of its state there from the start."""

    in_parts = False  # it counts its steps

    def __init__(self, spec: Optim, parameters: list[nn.Parameter], rate: Tensor) -> None:
        on_gpu, decay = rate.device.type == "cuda", spec.weight_decay
        how = {"amsgrad": spec.amsgrad, "fused": on_gpu, "capturable": on_gpu}
        self.optimizer = torch.optim.Adam(parameters, lr=rate, weight_decay=decay, **how)  # type: ignore[arg-type]
        self.state = self.optimizer.state
        names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if spec.amsgrad else [])]
        for parameter in parameters:
            self.state[parameter] = {name: torch.zeros_like(parameter) for name in names}
            self.state[parameter]["step"] = torch.zeros((), device=parameter.device)

    def move(self, weights: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = _laid_out_as(weight, grad)
        self.optimizer.step()


Optimizer = SGD | Adam


def make_optimizer(spec: Optim, parameters: list[nn.Parameter], rate: Tensor) -> Optimizer:
    """With all of its state there from the start: a captured graph cannot make it at the first step."""
    return SGD(spec, parameters, rate) if spec.kind == "sgd" else Adam(spec, parameters, rate)


def _laid_out_as(weight: Tensor, grad: Tensor) -> Tensor:
    """Fused steps want both in one memory layout; a convolution's gradient may come in another."""
    return grad if grad.stride() == weight.stride() else torch.empty_like(weight).copy_(grad)


def velocities(optimizer: Optimizer) -> list[Tensor]:
    """SGD's, in the order of the parameters; Adam has none."""
    return [state["momentum_buffer"] for state in optimizer.state.values() if "momentum_buffer" in state]
