"""Convolutions whose weight gradients are computed in parallel with the rest of the backward pass, on their own stream.

The layers before a convolution wait for the gradient of its input; that of its weights is not needed before the step.
In the small layers of a residual network neither fills a GPU, and the batch norms between them wait for memory. Whoever
asks for gradients has to `join` before using them, as `gradients` does. If weights are used more than once, autograd
adds up their gradients on its own: the first is ready by then, and the others are computed in line.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fasten.nets.columns import convolve, few_channels, small_kernel
from fasten.nets.norm import Parts

_sides: dict[torch.device, torch.cuda.Stream] = {}
_found: set[Tensor] = set()  # weights whose gradients have been computed, or are under way

_alone = threading.Lock()  # one backward pass at a time: autograd's threads do not say for whom they work


def gradients(loss: Tensor, weights: Sequence[Tensor], **options: Any) -> tuple[Tensor, ...]:
    """`torch.autograd.grad`, with all of its work joined."""
    with _alone:
        try:
            found: tuple[Tensor, ...] = torch.autograd.grad(loss, weights, **options)
            join()
        finally:
            _found.clear()
    return found


def join() -> None:
    """Make what follows wait for weight gradients that are still being computed."""
    for device in {weight.device for weight in _found} & _sides.keys():
        torch.cuda.current_stream(device).wait_stream(_sides[device])


@contextmanager
def _beside(device: torch.device, *used: Tensor) -> Iterator[None]:
    """Work on the side stream, after what is on the current one so far."""
    if device.type != "cuda":
        yield
        return
    if device not in _sides:
        _sides[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side = _sides[device]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield
    for tensor in used:
        tensor.record_stream(side)  # their memory must not be reused before the side stream is done


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, low: Tensor, how: tuple[Any, ...]) -> Tensor:
        x = x.to(low.dtype)
        ctx.save_for_backward(x, low)
        ctx.weight, ctx.how = weight, how
        return F.conv2d(x, low, None, *how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, low = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.how

        def wanted(mask: list[bool]) -> tuple[Tensor, ...]:
            call = (dy, x, low, None, stride, padding, dilation, False, [0, 0], groups, mask)
            return cast(tuple[Tensor, ...], torch.ops.aten.convolution_backward(*call))

        if ctx.weight in _found:
            join()
        alone = ctx.weight not in _found and not small_kernel(ctx.weight)  # a small one may have a gradient in line
        with _beside(x.device, dy, x, low) if alone else nullcontext():
            dweight = wanted([False, True, False])[1].to(ctx.weight.dtype)
        _found.add(ctx.weight)
        dx = wanted([True, False, False])[0] if ctx.needs_input_grad[0] else None
        return dx, dweight, None, None


class OverlappedConv2d(nn.Conv2d):
    """A convolution without bias, in the precision of autocast."""

    parts: Parts

    def forward(self, x: Tensor) -> Tensor:
        low = self.parts.low.get(self.weight)
        if low is None:
            return super().forward(x)
        if few_channels(x, self):
            return convolve(x, self, low.dtype)
        how = (self.stride, self.padding, self.dilation, self.groups)
        apply = cast(Any, _Convolve.apply)
        return cast(Tensor, apply(x, self.weight, low, how))


@contextmanager
def one_pass(net: nn.Module, parts: Parts) -> Iterator[None]:
    """Around a training pass: do what every layer needs for all of them at once, in a few kernels.

    That is to cast the weights to the precision of autocast, and to count the batches.
    """
    layers = [m for m in net.modules() if isinstance(m, OverlappedConv2d)]
    weights = list({m.weight: None for m in layers if m.weight.requires_grad})  # each once, though layers may share it
    low: list[Tensor] = []
    if weights and torch.is_autocast_enabled(weights[0].device.type):
        dtype = torch.get_autocast_dtype(weights[0].device.type)
        low = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(low, weights)
    with parts.using(low=dict(zip(weights, low, strict=False)), passed=[]):
        yield
        if parts.passed:
            torch._foreach_add_(parts.passed, max(len(parts.sizes), 1))


def overlap_convolutions(net: nn.Module, parts: Parts) -> None:
    """Turn plain convolutions into overlapped ones, in place; names and weights stay. `parts` switches the overlap."""
    for module in net.modules():
        plain = type(module) is nn.Conv2d and module.bias is None and module.padding_mode == "zeros"
        if plain and isinstance(module.padding, tuple):
            module.__class__ = OverlappedConv2d
            vars(module)["parts"] = parts
