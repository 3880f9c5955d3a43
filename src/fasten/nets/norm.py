"""How batch norm treats several batches that go through a network together.

`two-pass` calls the network once per batch. `split` calls it once for all, with statistics per batch: the same
outputs, gradients and running statistics, in fewer and larger kernels. `joint` mixes the statistics: another algorithm.

If the rows of two batches are mixed in one, in any proportion, `Parts.group` says which row belongs to which: the
result is that of one pass per group, but with fixed shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import NormMode
from fasten.nets import fused_norm
from fasten.nets.fused_apply import apply_act
from fasten.ranks import total, world

# One tensor for two uses. If our kernels made it, they also add its two gradients, in passing.
Twice = tuple[Tensor, Tensor]


class Parts:
    """What the batch norms of a network share: the batches now going through it, and which kernels to use."""

    def __init__(self) -> None:
        self.sizes: tuple[int, ...] = ()
        self.fused = False
        self.overlap = False  # weight gradients of convolutions in parallel with the rest
        self.low: Mapping[Tensor, Tensor] = {}  # the weights of a pass's convolutions in its precision
        self.passed: list[Tensor] | None = None  # counters of batches to increase at the end of a pass; None: at once
        self.virtual = False  # passes that leave the running statistics alone
        self.synced = False  # statistics over all ranks, not over each one's rows
        self.group: Tensor | None = None  # (B, G) 1 or 0: which group a row belongs to; filling to none

    @contextmanager
    def using(self, **values: Any) -> Iterator[None]:
        """Set other values for a while: `with parts.using(virtual=True, fused=False):`."""
        before = vars(self).copy()
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)


class PartedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm that normalises each part of a training batch with its own statistics, in the order of the parts."""

    parts: Parts
    after: tuple[str, ...] = ()  # children that its output goes through: timm's batch norms end in an activation

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # the layer that this one replaced accepted any of these shapes; so does F.batch_norm

    def forward(self, x: Tensor) -> Tensor:
        y = self._normalised(x)
        for name in self.after:
            y = self.get_submodule(name)(y)
        return y

    def _normalised(self, x: Tensor) -> Tensor:
        if self.can_fuse(x):
            return self.fused(x, None, relu=False)[0]
        if self.can_apply(x):
            return self.applied(x, None, relu=False)
        if self.training and self.parts.group is not None:
            return self._grouped(x, self.parts.group)
        if not self.training or len(self.parts.sizes) < 2:
            return self._whole(x)
        return torch.cat([self._whole(batch) for batch in torch.split(x, list(self.parts.sizes))])

    def _whole(self, x: Tensor) -> Tensor:
        if self.training and self._over_ranks:
            return self._grouped(x, x.new_ones(len(x), 1))
        if self.training and self.parts.virtual:
            return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)
        return super().forward(x)

    @property
    def _over_ranks(self) -> bool:
        return self.parts.synced and world() > 1

    def _grouped(self, x: Tensor, group: Tensor) -> Tensor:
        """Normalise each row by its group's statistics; rows of no group by the mean of all, to stay in range.

        No matrix products: under autocast they would round the statistics.
        """
        wide = x.to(torch.promote_types(x.dtype, torch.float32)).reshape(*x.shape[:2], -1)  # (B, C, pixels)
        member = group.to(wide.dtype)[:, :, None]  # (B, G, 1)
        everywhere = total if self._over_ranks else lambda here: here
        n = everywhere(member.sum(0)) * wide.shape[2]  # (G, 1)
        present = (n > 0).to(wide.dtype)
        share = torch.where(member.sum(1, keepdim=True) > 0, member, present / present.sum().clamp(min=1))

        def mean_of(values: Tensor) -> Tensor:  # (B, C, pixels) -> (G, C)
            return everywhere((member * values.sum(2)[:, None]).sum(0)) / n.clamp(min=1)

        def of_rows(statistic: Tensor) -> Tensor:  # (G, C) -> (B, C, 1)
            return (share * statistic).sum(1)[:, :, None]

        mean = mean_of(wide)
        centred = wide - of_rows(mean)
        var = mean_of(centred.square())
        y = centred * (of_rows(var) + self.eps).rsqrt()
        if self.affine:
            y = y * self.weight[:, None] + self.bias[:, None]
        if not self.parts.virtual:
            self._follow(mean.detach(), var.detach(), n)
        return y.reshape(x.shape).to(x.dtype)

    def _follow(self, means: Tensor, variances: Tensor, counts: Tensor) -> None:
        """Move the running statistics towards each group's in turn; a group without rows moves nothing.

        A single value does not move the variance either, since it has none; torch's own layer raises an error.
        """
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        for mean, var, n in zip(means, variances, counts, strict=True):
            there = (n > 0).to(n.dtype)
            self.num_batches_tracked.add_(there[0].to(self.num_batches_tracked.dtype))
            rate = there / self.num_batches_tracked.clamp(min=1) if self.momentum is None else there * self.momentum
            unbiased = torch.where(n > 1, var * n / (n - 1).clamp(min=1), self.running_var)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate.to(self.running_mean.dtype))
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), rate.to(self.running_var.dtype))

    @property
    def _plain(self) -> bool:
        return self.affine and self.track_running_stats

    def can_apply(self, x: Tensor) -> bool:
        still = self._plain and not self.training and not torch.is_grad_enabled()
        still = still and not self.parts.virtual  # such a pass may carry tangents
        return self.parts.fused and still and fused_norm.usable(x)

    def applied(self, x: Tensor, residual: Tensor | None, relu: bool) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        return apply_act(x, self.weight, self.bias, self.running_mean, self.running_var, self.eps, residual, relu)

    def can_fuse(self, x: Tensor) -> bool:
        plain = self._plain and self.momentum is not None and self.parts.group is None
        plain = plain and not self._over_ranks and len(self.parts.sizes) <= fused_norm.MOST_PARTS
        return self.parts.fused and self.training and plain and fused_norm.usable(x)

    def fused(self, x: Tensor, residual: Tensor | None, relu: bool) -> Twice:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        assert self.num_batches_tracked is not None
        parts = self.parts.sizes or (len(x),)
        virtual = self.parts.virtual
        if not virtual and self.parts.passed is not None:
            self.parts.passed.append(self.num_batches_tracked)
        elif not virtual:
            self.num_batches_tracked.add_(len(parts))
        momentum = 0.0 if virtual else self.momentum  # 1 · running + 0 · statistic
        statistics = (self.running_mean, self.running_var, parts, momentum, self.eps)
        return fused_norm.norm_act(x, self.weight, self.bias, *statistics, residual, relu)


def norm_relu(norm: nn.Module, x: Tensor, residual: Tensor | None = None) -> Twice:
    """relu(norm(x) + residual), in fewer passes over memory if the kernels for it can be used."""
    if isinstance(norm, PartedBatchNorm) and norm.can_fuse(x):
        return norm.fused(x, residual, relu=True)
    if isinstance(norm, PartedBatchNorm) and norm.can_apply(x):
        y = norm.applied(x, residual, relu=True)
        return y, y
    y = norm(x)
    y = F.relu(y if residual is None else y + residual)
    return y, y


def statistics(net: nn.Module) -> list[Tensor]:
    """The running means and variances of a network's batch norms, as far as training moves them."""
    norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    return [t for m in norms for t in (m.running_mean, m.running_var) if t is not None]


def share_parts(net: nn.Module, parts: Parts | None = None) -> Parts:
    """Turn the batch norms of a network into parted ones, in place; names, weights and statistics stay.

    They share `parts`, those of another network if given.
    """
    parts = Parts() if parts is None else parts
    for name, module in net.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            if not isinstance(module, PartedBatchNorm):
                vars(module)["after"] = _what_follows(name, module)
                module.__class__ = PartedBatchNorm
            vars(module)["parts"] = parts
    return parts


def _what_follows(name: str, norm: nn.Module) -> tuple[str, ...]:
    """The children that a batch norm applies after normalising: none, or timm's; other kinds are refused."""
    if type(norm).forward is nn.modules.batchnorm._BatchNorm.forward:
        return ()
    children = tuple(child for child, _ in norm.named_children())
    if children != ("drop", "act"):
        raise ValueError(
            f"the network's {name!r} is a custom batch norm, {type(norm).__name__}; use torch's, and put what comes "
            "after it into a separate layer"
        )
    return children


def forward_parts(net: nn.Module, parts: Parts, batches: list[Tensor], mode: NormMode) -> list[tuple[Tensor, ...]]:
    """The outputs of a network, a tuple of tensors, for each of several batches."""
    if mode == "two-pass":
        return [net(x) for x in batches]
    sizes = tuple(len(x) for x in batches)
    with parts.using(sizes=sizes if mode == "split" else ()):
        outputs = net(torch.cat(batches) if len(batches) > 1 else batches[0])
    return list(zip(*(torch.split(output, list(sizes)) for output in outputs), strict=True))
