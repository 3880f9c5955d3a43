"""One update of a stage. This is the only place that changes weights; methods differentiate only to look ahead.

The losses of a step are differentiated part by part, in the order in which the step yields them. Nothing waits for the
device, so an update can be captured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fasten.averaging import Mean
from fasten.contract import Batch, Stage
from fasten.loader import Loader, Picks
from fasten.nets.norm import statistics
from fasten.nets.overlap import gradients
from fasten.optimizers import make_optimizer, velocities
from fasten.ranks import totals, world

TRACE_BYTES = 2**27  # limit of a buffer's history in an epoch: T̂ of a thousand classes takes 4 MB per update


class Update:
    """One update of a stage, and the sums and histories that it keeps on the device."""

    def __init__(self, stage: Stage, loader: Loader, device: torch.device) -> None:
        self.stage, self.loader = stage, loader
        self.parts = {part: [p for p in part.parameters() if p.requires_grad] for part in stage.optim}
        # Fused optimiser steps on an NVIDIA GPU read a float32 rate, and Apple's GPUs have no float64 at all.
        precise = torch.float64 if device.type == "cpu" else torch.float32
        self.rates = {part: torch.zeros((), dtype=precise, device=device) for part in stage.optim}
        self.optimizers = {p: make_optimizer(spec, self.parts[p], self.rates[p]) for p, spec in stage.optim.items()}
        self.velocities = {part: velocities(optimizer) for part, optimizer in self.optimizers.items()}
        self.count_updates()
        most = loader.most_updates(stage)
        self._last_set: dict[nn.Module, float] = {}  # the host's copy of the rates
        self.every = {name: math.ceil(most * t.nbytes / TRACE_BYTES) for name, t in stage.trace.items()}
        rows = {name: math.ceil(most / every) for name, every in self.every.items()}
        self.history = {name: t.new_zeros(rows[name], *t.shape) for name, t in stage.trace.items()}
        self.history["loss"] = torch.zeros(most, dtype=loader.dtype, device=device)  # summed over the parts
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=loader.dtype, device=device)
        self.mean = Mean(stage.optim, stage.average, most)

    def count_updates(self) -> None:
        """Count the updates of an epoch; each is the same share of the epoch, even if the last batch is short."""
        self.length = self.loader.num_updates(self.stage)
        self.share = 1 / self.length

    def __call__(self, picks: Mapping[str, Picks]) -> None:
        batch = Batch(self.loader.draws(self.stage, picks), self.rates, self.velocities)
        losses = []
        for part, loss in self.stage.step(batch):
            self._check(part, loss)
            found = gradients(loss, self.parts[part], allow_unused=True, materialize_grads=True)
            *grads, last = _over_ranks(part, [*found, loss.detach()])
            for parameter, grad in zip(self.parts[part], grads, strict=True):
                parameter.grad = _laid_out_as(parameter, grad)
            self.optimizers[part].step()
            losses.append(last)
        if not losses:
            raise ValueError(f"the step of the stage {self.stage.name!r} yields no loss; yield (part, loss) for a part")
        self.loss.add_(losses[-1])
        for name, value in {**self.stage.trace, "loss": torch.stack(losses).sum().to(self.loss)}.items():
            every = self.every.get(name, 1)
            place = self.cursor if every == 1 else self.cursor // every  # of every few updates, the last one is kept
            self.history[name].index_copy_(0, place, value[None])
        self.cursor.add_(1)

    def _check(self, part: nn.Module, loss: Tensor) -> None:
        """Refuse what a new method's step may get wrong."""
        step = f"the step of the stage {self.stage.name!r}"
        if part not in self.parts:
            raise ValueError(f"{step} trains {type(part).__name__}, which has no optimiser; give it one in `optim`")
        if loss.ndim:
            raise ValueError(f"{step} yields a loss of shape {tuple(loss.shape)}; make it one number, such as a mean")

    def set_rates(self, epoch: int, update: int = 0, factor: float = 1.0) -> None:
        """Set the rates for an update of an epoch; only those that have changed are written."""
        passed = ((epoch - 1) * self.length + update) * self.share
        for part, rate in self.rates.items():
            now = self.stage.optim[part].rate_at(epoch, passed) * factor
            if now != self._last_set.get(part):
                rate.fill_(now)
                self._last_set[part] = now

    def take_over(self, before: Update) -> None:
        """Continue with the momentum of an earlier stage, part by part."""
        for part in self.optimizers.keys() & before.optimizers.keys():
            for parameter, state in self.optimizers[part].state.items():
                for name, tensor in state.items():
                    tensor.copy_(before.optimizers[part].state[parameter][name])

    def seen(self) -> dict[str, Tensor]:
        """The histories, cut to the length of this epoch."""
        return {name: t[: math.ceil(self.length / self.every.get(name, 1))] for name, t in self.history.items()}

    def clear(self) -> None:
        self.cursor.zero_()
        self.loss.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint must keep of an update, under stable names."""
        kept = {"sum.cursor": self.cursor, "sum.loss": self.loss}
        kept |= {f"history.{name}": tensor for name, tensor in self.history.items()}
        for number, optimizer in enumerate(self.optimizers.values()):
            for position, state in enumerate(optimizer.state.values()):
                kept |= {f"optim.{number}.{position}.{key}": value for key, value in state.items()}
        return kept | {f"mean.{number}": tensor for number, tensor in enumerate(self.mean.values)}


def _over_ranks(part: nn.Module, sums: list[Tensor]) -> list[Tensor]:
    """Add up `sums` over the ranks; the same exchange averages the running statistics of the batch norms.

    These only matter for evaluation: training does not read them.
    """
    if world() == 1:
        return sums
    seen = statistics(part)
    found = totals([*sums, *(tensor / world() for tensor in seen)])
    for tensor, mean in zip(seen, found[len(sums) :], strict=True):
        tensor.copy_(mean)
    return found[: len(sums)]


def _laid_out_as(parameter: Tensor, grad: Tensor) -> Tensor:
    """Fused optimiser steps need both in the same memory layout; a convolution's gradient may have another."""
    return grad if grad.stride() == parameter.stride() else torch.empty_like(parameter).copy_(grad)
