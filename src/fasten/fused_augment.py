"""Look up, crop, flip and normalise the images of a batch in one kernel, on a GPU with Triton.

`augment.py` does the same in some thirty operations; each is a kernel launch, which takes longer than its work.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fasten.augment import Normalise
from fasten.kernels import AVAILABLE

if AVAILABLE:
    import triton
    import triton.language as tl

BLOCK = 1024  # numbers of an image that one program computes


def _look(  # type: ignore[no-untyped-def]
    images, rows, random, per_row, scale, shift, out, height, width, h, w, pad, C, FLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # place in the output: by row, then pixel, then channel
    c, y, x = at % C, at // C // w, at // C % w
    random += b * per_row
    if FLIP:
        x = tl.where(tl.load(random + 2) < 0.5, w - 1 - x, x)
    y += (tl.load(random) * (2 * pad + height - h + 1)).to(tl.int32) - pad
    x += (tl.load(random + 1) * (2 * pad + width - w + 1)).to(tl.int32) - pad
    wanted = at < h * w * C
    inside = wanted & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    pixel = tl.load(images + (tl.load(rows + b) * height + y) * width * C + x * C + c, mask=inside, other=0)
    value = pixel.to(tl.float32) * tl.load(scale + c) + tl.load(shift + c)
    tl.store(out + b.to(tl.int64) * h * w * C + at, value, mask=wanted)


_kernel: Any = triton.jit(_look) if AVAILABLE else None


def usable(images: Tensor, normalise: Normalise) -> bool:
    """Whether the kernel can take these images: uint8 pixels on a GPU, to be normalised to float32."""
    return AVAILABLE and images.is_cuda and images.dtype == torch.uint8 and normalise.dtype == torch.float32


def look(
    images: Tensor, rows: Tensor, random: Tensor, pad: int, flip: bool, crop: int | None, normalise: Normalise
) -> Tensor:
    """The same as `normalise(gather_crop_flip(…))`: (n, H, W, C) pixels to (B, C, h, w), channels last."""
    height, width, channels = images.shape[1:]
    h, w = crop or height, crop or width
    out = torch.empty(len(rows), h, w, channels, device=images.device)
    scale, shift = (values.expand(channels).contiguous() for values in (normalise.scale, normalise.shift))
    grid = (len(rows), triton.cdiv(h * w * channels, BLOCK))
    with torch.cuda.device_of(images):  # type: ignore[no-untyped-call]
        _kernel[grid](
            images, rows, random, random.stride(0), scale, shift, out, height, width, h, w, pad, channels,
            FLIP=flip, BLOCK=BLOCK,
        )  # fmt: skip
    return out.permute(0, 3, 1, 2)
