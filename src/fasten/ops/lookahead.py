"""One virtual step of a network, and the gradient that reaches back through it: the core of the meta-learning methods.

With weights θ, meta variables ω, an inner loss L_in(θ, ω) on noisy rows and the cross-entropy L_meta on clean ones:

    θ′(ω) = θ − α ∇_θ L_in(θ, ω)          wanted: ∂ L_meta(θ′(ω)) / ∂ω

Two routes, equal up to rounding. `graph` keeps the graph of the inner gradient and differentiates twice. `tangent` has
no second-order graph: with v = ∇L_meta(θ′) the wanted gradient is −α ∇_ω ⟨∇_θ L_in, v⟩, and ⟨∇_θ L_in, v⟩ is the rate
at which L_in changes along v. It takes the logits z and their tangent ż = (∂z/∂θ) v, from one forward-mode pass; with
these as constants, ω only enters through the small loss on top of z.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from fasten.contract import Examples
from fasten.nets import Heads
from fasten.nets.overlap import gradients
from fasten.ops.means import plain_loss
from fasten.ranks import totals

Route = Literal["tangent", "graph"]
Outputs = Sequence[tuple[Tensor, ...]]  # of each batch, what the network returns
_TURN = threading.Lock()


@dataclass(frozen=True)
class Ahead:
    """The result of a look-ahead."""

    outputs: Outputs  # of the real pass at θ, with its graph: also usable for the loss of the real step
    grads: Sequence[Tensor]  # ∇_θ L_in, this rank's part of it; may be empty if nothing moves
    loss: Tensor  # L_meta(θ′), differentiable with respect to ω and to nothing else that matters


@contextmanager
def _alone() -> Iterator[None]:
    """Let one thread at a time look ahead, since forward mode and the choice of attention kernels are the process's.

    The fast attention kernels have neither tangents nor second derivatives.
    """
    with _TURN, sdpa_kernel(SDPBackend.MATH):
        yield


@_alone()
def look_ahead(
    net: Heads,
    batches: list[Tensor],
    inner: Callable[[Outputs], Tensor],
    clean: Examples,
    *,
    rate: Tensor,
    start: Sequence[Tensor] | None = None,
    moves: bool = True,
    route: Route = "tangent",
) -> Ahead:
    """Take a virtual step along the gradient of `inner(outputs of batches)` and compute the clean rows' loss there.

    Meta variables may enter `inner` through the first of the batches only. `start`: where the step starts, if not at θ
    (for example, at the point that momentum alone reaches). `moves=False`: `inner` is zero but its derivative is not,
    so θ′ = θ. Only the pass at θ moves batch-norm statistics; the virtual ones leave the network as it was, bit for
    bit.
    """
    names, weights = zip(
        *((name, weight) for name, weight in net.named_parameters() if weight.requires_grad), strict=True
    )
    twice = route == "graph"
    once = {"fused": False, "overlap": False} if twice else {}  # those kernels can be differentiated only once
    spare = {"allow_unused": True, "materialize_grads": True}  # networks may have weights that they do not use
    with net.parts.using(**once):
        outputs = net.each(batches, "split")
    grads: Sequence[Tensor] = ()
    place: list[Tensor] = list(start or weights)
    if moves or twice:
        grads = gradients(inner(outputs), weights, retain_graph=True, create_graph=twice, **spare)
        move = torch._foreach_mul(totals(grads), rate.to(grads[0].dtype))  # all weights in a few kernels
        place = list(torch._foreach_sub(place, move))
    if not twice:
        place = [p.detach().requires_grad_() for p in place]
    with net.parts.using(virtual=True, **once):
        logits = functional_call(net, dict(zip(names, place, strict=True)), (clean.x,))[0]
    loss = plain_loss(logits, clean)
    if twice:
        return Ahead(outputs, [g.detach() for g in grads], loss)
    along = totals(gradients(loss, place, **spare))
    change = _change_along(net, names, weights, along, batches[0], outputs, inner)
    proxy = -rate.to(change.dtype) * change
    return Ahead(outputs, grads, loss.detach() + proxy - proxy.detach())


def _change_along(
    net: Heads,
    names: Sequence[str],
    weights: Sequence[Tensor],
    along: Sequence[Tensor],
    x: Tensor,
    outputs: Outputs,
    inner: Callable[[Outputs], Tensor],
) -> Tensor:
    """⟨∇_θ L_in, along⟩ as a function of ω, with the outputs and their tangents as constants."""
    fixed = [tuple(t.detach() for t in output) for output in outputs]
    first = tuple(t.requires_grad_() for t in fixed[0])
    slopes = torch.autograd.grad(
        inner([first, *fixed[1:]]), first, create_graph=True, allow_unused=True, materialize_grads=True
    )
    tangents = _tangents(net, names, weights, along, x)
    both = zip(slopes, tangents, strict=True)
    return torch.stack([(slope * t).sum() for slope, t in both if t is not None]).sum()


@torch.no_grad()
def _tangents(
    net: Heads, names: Sequence[str], weights: Sequence[Tensor], along: Sequence[Tensor], x: Tensor
) -> list[Tensor | None]:
    """How the outputs for `x` change as the weights move along a direction: (∂ outputs / ∂θ) · along.

    None for outputs that do not change, such as the features of a frozen network.
    """
    with forward_ad.dual_level(), net.parts.using(virtual=True):
        dual: dict[str, Any] = {}
        for name, weight, tangent in zip(names, weights, along, strict=True):
            dual[name] = forward_ad.make_dual(weight.detach(), tangent)  # type: ignore[no-untyped-call]
        moved: Any = functional_call(net, dual, (x,))
        found = [forward_ad.unpack_dual(output).tangent for output in moved]  # type: ignore[no-untyped-call]
    return found


def with_gradient(value: Tensor, weights: Sequence[Tensor], grads: Sequence[Tensor]) -> Tensor:
    """A scalar of this value whose gradient with respect to `weights` is `grads`, without another backward pass.

    >>> w = torch.ones(2, requires_grad=True)
    >>> loss = with_gradient(torch.tensor(3.0), [w], [torch.tensor([1.0, 2.0])])
    >>> loss.item(), torch.autograd.grad(loss, w)
    (3.0, (tensor([1., 2.]),))
    """
    found: Tensor = _WithGradient.apply(value, len(weights), *weights, *grads)  # type: ignore[no-untyped-call]
    return found


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, count: int, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors[count:])
        return value.clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        grads = ctx.saved_tensors
        return None, None, *(scale * g for g in grads), *(None for _ in grads)
