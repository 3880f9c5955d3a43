"""How batch norm sees several batches that go through a network together.

`two-pass` calls the network once per batch. `split` calls it once for all, with statistics per batch: the same
outputs, gradients and running statistics, in fewer and larger kernels. `joint` mixes the statistics: another algorithm.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from fasten.contract import NormMode

Output = TypeVar("Output", Tensor, tuple[Tensor, ...])


class Parts:
    """The sizes of the batches now going through a network; its batch norms share one of these."""

    def __init__(self) -> None:
        self.sizes: tuple[int, ...] = ()


class PartedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm that normalises each part of a training batch with its own statistics, in the order of the parts."""

    parts: Parts

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # the layer that this one took the place of accepted any of these shapes; so does F.batch_norm

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or len(self.parts.sizes) < 2:
            return super().forward(x)
        return torch.cat(
            [super(PartedBatchNorm, self).forward(part) for part in torch.split(x, list(self.parts.sizes))]
        )


def share_parts(net: nn.Module) -> Parts:
    """Turn the batch norms of a network into parted ones, in place; names, weights and statistics stay."""
    parts = Parts()
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            module.__class__ = PartedBatchNorm
            vars(module)["parts"] = parts
    return parts


def forward_parts(net: nn.Module, parts: Parts, batches: list[Tensor], mode: NormMode) -> list[tuple[Tensor, ...]]:
    """The outputs of a network, a tuple of tensors, for each of several batches."""
    if mode == "two-pass":
        return [net(x) for x in batches]
    sizes = tuple(len(x) for x in batches)
    parts.sizes = sizes if mode == "split" else ()
    try:
        outputs = net(torch.cat(batches))
    finally:
        parts.sizes = ()
    return list(zip(*(torch.split(output, list(sizes)) for output in outputs), strict=True))
