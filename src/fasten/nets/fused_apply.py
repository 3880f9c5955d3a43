"""Batch norm by its running statistics, the residual sum and ReLU, in one kernel, for evaluating a trained network.

    y = relu(weight · (x − mean) / sqrt(var + eps) + bias + residual)

As in `fused_norm.py`, a channels-last batch is a matrix with a row per pixel. Whole-tensor reads and writes: 2 (3 with
a residual); torch's own kernels take 4 (7).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fasten.kernels import AVAILABLE

if AVAILABLE:
    import triton
    import triton.language as tl

ROWS, CHANNELS = 64, 64  # of a program


def _apply(  # type: ignore[no-untyped-def]
    x, residual, y, weight, bias, mean, var, eps, rows, C, RELU: tl.constexpr, RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at, inside = r[:, None] * C + c[None, :], (r < rows)[:, None] & (c < C)[None, :]
    known = c < C
    scale = tl.load(weight + c, mask=known, other=0.0) * tl.rsqrt(tl.load(var + c, mask=known, other=1.0) + eps)
    apart = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - tl.load(mean + c, mask=known, other=0.0)[None, :]
    z = apart * scale[None, :] + tl.load(bias + c, mask=known, other=0.0)[None, :]
    if RESIDUAL:
        z += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        z = tl.where(z <= 0.0, 0.0, z)  # unlike a maximum, keeps NaN
    tl.store(y + at, z.to(y.dtype.element_ty), mask=inside)


_kernel: Any = triton.jit(_apply) if AVAILABLE else None


def apply_act(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float, residual: Tensor | None, relu: bool
) -> Tensor:
    """For inputs that `fused_norm.usable` accepts, if no gradient is needed; a residual is like x."""
    y, rows = torch.empty_like(x, memory_format=torch.channels_last), x.numel() // x.shape[1]
    added = x if residual is None else residual.contiguous(memory_format=torch.channels_last)
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(x.shape[1], CHANNELS))
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _kernel[grid](
            x, added, y, weight, bias, mean, var, eps, rows, x.shape[1],
            RELU=relu, RESIDUAL=residual is not None, ROWS=ROWS, CHANNELS=CHANNELS,
        )  # fmt: skip
    return y
