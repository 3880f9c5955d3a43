"""Convolutions whose weight gradients are computed beside the rest of the way back, on a stream of their own.

The layers before a convolution wait for the gradient of its input; nobody needs that of its weights before the step. In
the small layers of a residual network neither fills a GPU, and batch norm between them waits for memory. Who asks for
`gradients` may also use them in passing: the way back reads a copy of the weights, so that they can be moved meanwhile.
Where weights are used again, autograd adds up their gradients on its own: it finds the first ready by then, and the
others are computed in line.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fasten.nets.columns import convolve, few_channels, small_kernel
from fasten.nets.norm import Parts

Use = Callable[[Sequence[Tensor], Sequence[Tensor]], None]  # of weights and their gradients
TOGETHER = 2**22  # numbers, at least, that are used at a time: two layers of ResNet-34's last stage
AT_ONCE = 2**20  # numbers that are brought to a lower precision before anything else: its first two stages

_streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}
_open: set[torch.cuda.Stream] = set()  # those that work for the present way back: a captured one knows no others
# Weights whose gradients have been computed, or are under way: since when they are whole, if on a stream of their own.
_found: dict[Tensor, torch.cuda.Event | None] = {}

_alone = threading.Lock()  # one way back at a time: autograd's own threads do not tell for whom they work


def gradients(loss: Tensor, weights: Sequence[Tensor], use: Use | None = None, **options: Any) -> tuple[Tensor, ...]:
    """`torch.autograd.grad`, with all of its work joined.

    `use` is called with some of the weights after the others, and their gradients, until it has had all; large ones
    come first, on a stream where they are whole while the way back still goes on.
    """
    with _alone:
        try:
            found: tuple[Tensor, ...] = torch.autograd.grad(loss, weights, **options)
            if use is None:
                join()
            else:
                _hand_over(dict(zip(weights, found, strict=True)), use)
        finally:
            _found.clear()
            _open.clear()
    return found


def _hand_over(found: dict[Tensor, Tensor], use: Use) -> None:
    for some, whole in _early(found):
        with _beside(some[0].device, "use", whole) as stream:
            _open.add(stream)
            use(some, [found.pop(weight) for weight in some])
    join()
    if found:
        use(list(found), list(found.values()))


def _early(wanted: Mapping[Tensor, Tensor]) -> list[tuple[list[Tensor], torch.cuda.Event]]:
    """Groups of weights in the order in which their gradients come, each with when its last one does."""
    groups, some = list[tuple[list[Tensor], torch.cuda.Event]](), list[Tensor]()
    for weight, whole in _found.items():
        if whole is not None and weight in wanted:
            some.append(weight)
            if sum(each.numel() for each in some) >= TOGETHER:
                groups.append((some, whole))
                some = []
    return groups


def join() -> None:
    """Let what follows wait for weight gradients that are under way, and for who uses them."""
    for stream in _open:
        torch.cuda.current_stream(stream.device).wait_stream(stream)


@contextmanager
def _beside(device: torch.device, name: str, after: torch.cuda.Event | None = None) -> Iterator[torch.cuda.Stream]:
    """Work on the stream of a name, after an event or else after what is on the present stream so far."""
    if (device, name) not in _streams:
        _streams[device, name] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream = _streams[device, name]
    stream.wait_stream(torch.cuda.current_stream(device)) if after is None else stream.wait_event(after)
    with torch.cuda.stream(stream):
        yield stream


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
        alone = ctx.weight not in _found and not small_kernel(ctx.weight)  # such a one may have a gradient in line, too
        _found[ctx.weight] = None
        if alone and x.is_cuda:
            with _beside(x.device, "gradients") as stream:
                _open.add(stream)
                dweight = wanted([False, True, False])[1].to(ctx.weight.dtype)
                _found[ctx.weight] = stream.record_event()
            for tensor in (dy, x, low):
                tensor.record_stream(stream)  # their memory is not to be used again before it is done
        else:
            dweight = wanted([False, True, False])[1].to(ctx.weight.dtype)
        dx = wanted([True, False, False])[0] if ctx.needs_input_grad[0] else None
        return dx, dweight, None, None


class OverlappedConv2d(nn.Conv2d):
    """A convolution without bias, in the precision of autocast."""

    parts: Parts

    def forward(self, x: Tensor) -> Tensor:
        low = self.parts.low.get(self.weight)
        if low is None:
            return super().forward(x)
        if (whole := self.parts.late.pop(self.weight, None)) is not None:
            torch.cuda.current_stream(x.device).wait_event(whole)
        if few_channels(x, self):
            return convolve(x, self, low.dtype)
        how = (self.stride, self.padding, self.dilation, self.groups)
        apply = cast(Any, _Convolve.apply)
        return cast(Tensor, apply(x, self.weight, low, how))


@contextmanager
def one_pass(net: nn.Module, parts: Parts) -> Iterator[None]:
    """Around a pass that is trained: what every layer needs is done for all of them at once, in a few kernels.

    That is to bring the weights to the precision of autocast, and to count the batches.
    """
    layers = [m for m in net.modules() if isinstance(m, OverlappedConv2d)]
    weights = list({m.weight: None for m in layers if m.weight.requires_grad})  # each once, though layers may share it
    low, late = list[Tensor](), dict[Tensor, torch.cuda.Event]()
    if weights and torch.is_autocast_enabled(weights[0].device.type):
        low = [torch.empty_like(w, dtype=torch.get_autocast_dtype(w.device.type)) for w in weights]
        late = _lowered(weights, low)
    with parts.using(low=dict(zip(weights, low, strict=False)), late=late, passed=[]):
        yield
        if parts.passed:
            torch._foreach_add_(parts.passed, max(len(parts.sizes), 1))
    if late:  # also where no layer has waited for it
        torch.cuda.current_stream(weights[0].device).wait_stream(_streams[weights[0].device, "lower"])


@torch.no_grad()
def _lowered(weights: list[Tensor], low: list[Tensor]) -> dict[Tensor, torch.cuda.Event]:
    """Copy weights to others of a lower precision, on a GPU most of them beside what follows: these, and until when.

    Layers are used in the order in which a network has them, as a rule; where they are not, one waits longer.
    """
    sizes = itertools.accumulate(weight.numel() for weight in weights)
    soon = sum(size <= AT_ONCE for size in sizes) if weights[0].is_cuda else len(weights)
    if soon:
        torch._foreach_copy_(low[:soon], weights[:soon])
    if soon == len(weights):
        return {}
    with _beside(weights[0].device, "lower") as stream:
        torch._foreach_copy_(low[soon:], weights[soon:])
        return dict.fromkeys(weights[soon:], stream.record_event())


def overlap_convolutions(net: nn.Module, parts: Parts) -> None:
    """Turn plain convolutions into such, in place; names and weights stay. They do nothing new until `parts` say so."""
    for module in net.modules():
        plain = type(module) is nn.Conv2d and module.bias is None and module.padding_mode == "zeros"
        if plain and isinstance(module.padding, tuple):
            module.__class__ = OverlappedConv2d
            vars(module)["parts"] = parts
