"""A convolution of few channels, such as an image's, as one matrix product: cuDNN's kernels are made for many.

Row (image, pixel) of the columns holds what the kernel sees there, one number for each of its places and channels. Then
y = columns · weightᵀ, and autograd does the rest. A 3×3 kernel on 3 channels has 27 numbers, padded to 32: half the
bytes of an activation of 64 channels.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.kernels import AVAILABLE

if AVAILABLE:
    import triton
    import triton.language as tl

WIDTH = 32  # of the columns: matrix units want a multiple of 16
ROWS = 128  # of a program


def _gather(  # type: ignore[no-untyped-def]
    x, out, rows, height, width, h, w, down, right, top, left, C: tl.constexpr, KW: tl.constexpr, USED: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, WIDTH)
    image, y, column = r // (h * w), r // w % h, r % w
    y = (y * down - top)[:, None] + (k // (KW * C))[None, :]
    column = (column * right - left)[:, None] + (k // C % KW)[None, :]
    inside = (r < rows)[:, None] & (k < USED)[None, :] & (y >= 0) & (y < height) & (column >= 0) & (column < width)
    value = tl.load(x + ((image[:, None] * height + y) * width + column) * C + (k % C)[None, :], mask=inside, other=0.0)
    tl.store(
        out + r.to(tl.int64)[:, None] * WIDTH + k[None, :], value.to(out.dtype.element_ty), mask=(r < rows)[:, None]
    )


_kernel: Any = triton.jit(_gather) if AVAILABLE else None


def small_kernel(weight: Tensor) -> bool:
    """Whether the columns have room for what a kernel sees."""
    return weight.shape[1:].numel() <= WIDTH


def few_channels(x: Tensor, layer: nn.Conv2d) -> bool:
    """Whether a convolution is of this kind: a small kernel on images that need no gradient, on a GPU."""
    whole = small_kernel(layer.weight) and layer.groups == 1 and max(layer.dilation) == 1
    ready = x.is_cuda and x.is_contiguous(memory_format=torch.channels_last) and not x.requires_grad
    return AVAILABLE and whole and ready and x.numel() * WIDTH < 2**31  # places are counted in 32 bits


def convolve(x: Tensor, layer: nn.Conv2d, dtype: torch.dtype) -> Tensor:
    """The output, (B, O, h, w) and channels last, in this precision."""
    weight = layer.weight.permute(0, 2, 3, 1).flatten(1)  # (O, places · channels)
    weight = F.pad(weight, (0, WIDTH - weight.shape[1])).to(dtype)
    sides = zip(x.shape[2:], layer.kernel_size, layer.stride, cast(tuple[int, int], layer.padding), strict=True)
    h, w = ((size + 2 * padding - kernel) // stride + 1 for size, kernel, stride, padding in sides)
    return F.linear(_columns(x, layer, h, w, dtype), weight).permute(0, 3, 1, 2)


def _columns(x: Tensor, layer: nn.Conv2d, h: int, w: int, dtype: torch.dtype) -> Tensor:
    """What the kernel sees at each pixel of the output: (B, h, w, WIDTH)."""
    batch, channels, height, width = x.shape
    out, rows = torch.empty(batch, h, w, WIDTH, dtype=dtype, device=x.device), batch * h * w
    kernel, used = layer.kernel_size[1], layer.weight.shape[1:].numel()
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _kernel[(triton.cdiv(rows, ROWS),)](
            x, out, rows, height, width, h, w, *layer.stride, *layer.padding,
            C=channels, KW=kernel, USED=used, ROWS=ROWS, WIDTH=WIDTH, num_warps=8,
        )  # fmt: skip
    return out
