"""Batch norm with statistics per part of a batch, the residual sum and ReLU, in two kernels per direction.

A channels-last batch is a matrix: one row per pixel, one column per channel; a part is a range of its rows. Forward:

    y = relu(weight · (x − mean) · rstd + bias + residual)          mean and rstd: per part and channel
    running = (1 − momentum) · running + momentum · statistic       part after part; the unbiased variance

Backward, with x̂ = (x − mean) · rstd, dz = dy where y > 0, and means over the rows of a part:

    dx = weight · rstd · (dz − mean(dz) − x̂ · mean(dz · x̂))        dresidual = dz
    dweight = Σ dz · x̂,   dbias = Σ dz                              over all rows

where dy may come in two parts: from y's use in a convolution, and from its use as the next residual.

Forward mode, with tangents t of the inputs, where y > 0 (else zero):

    ty = weight · rstd · (tx − mean(tx) − x̂ · mean(tx · x̂)) + tweight · x̂ + tbias + tresidual

In each direction the first kernel reduces tiles of rows; the second merges the tiles of a part and writes the result.
Whole-tensor reads and writes: 3 forward (4 with a residual), 5 backward (7, and one more for dy in two parts), 5 for
tangents (7). No atomics: the same bits every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fasten.kernels import AVAILABLE

if AVAILABLE:
    import triton
    import triton.language as tl

# All kernels share one grid: 32 channels (64 bytes of bfloat16, what the memory delivers at once) by a tile of rows,
# 256 programs in all, two per multiprocessor of an H200. Before its rows, a program of a second kernel reads 8 bytes
# per channel and tile of its part: with two parts of 100 images, 8% of the bytes that follow, in every layer of a
# ResNet; four times that with twice the programs or twice the channels. A third launch, to merge once, would idle
# longer. These numbers do not depend on the device, so sums are taken in the same order everywhere.
PROGRAMS, CHANNELS = 256, 32
MOST_PARTS = 3  # of a batch: the kernels take as many sizes
TILES, MIN_TILE_ROWS = 128, 32  # most tiles of a part, as many as rows in a chunk (one layout); fewest rows of a tile
CHUNK_BYTES = 8192  # of each tensor at a time
# The depth of the pipeline (without one, each load is waited for) and the number of warps. If a part has few tiles,
# most time is spent waiting: for the tiles to be merged, and for each other.
STAGES, WARPS = 4, 8
FEW_TILES, FEW_STAGES, FEW_WARPS = 32, 3, 4


def _kernel(body: Callable[..., Any]) -> Any:
    """A kernel compiled once for all sizes: only C, a multiple of 16, tells the compiler about alignment."""
    return triton.jit(body, do_not_specialize=["rows0", "rows1", "rows2", "tile_rows"]) if AVAILABLE else body


@_kernel
def _tile(part, tile, rows0, rows1, rows2, tile_rows):  # type: ignore[no-untyped-def]
    """A tile's first row in the batch, its number of rows (0 past the end of a shorter part), and its part's number."""
    first = tl.where(part == 0, 0, tl.where(part == 1, rows0, rows0 + rows1))
    rows = tl.where(part == 0, rows0, tl.where(part == 1, rows1, rows2))
    return (first + tile * tile_rows).to(tl.int64), tl.minimum(rows - tile * tile_rows, tile_rows), rows


@_kernel
def _block(first, stop, c, C, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Offsets and mask of some rows of some channels."""
    r = first + tl.arange(0, ROWS)
    return r[:, None] * C + c[None, :], (r < stop)[:, None] & (c < C)[None, :]


@_kernel
def _merge_moments(mean, m2, start, rows, tile_rows, c, C, TILES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Mean and sum of squared deviations of a part from those of its tiles (Chan, Golub and LeVeque, 1979)."""
    at, inside = _block(start, start + tl.cdiv(rows, tile_rows), c, C, TILES)
    n = tl.minimum(rows - tl.arange(0, TILES) * tile_rows, tile_rows).to(tl.float32)[:, None]
    tile_mean = tl.load(mean + at, mask=inside, other=0.0)
    tile_m2 = tl.load(m2 + at, mask=inside, other=0.0)
    part_mean = tl.sum(tl.where(inside, n * tile_mean, 0.0), 0) / rows.to(tl.float32)
    apart = tile_mean - part_mean[None, :]
    return part_mean, tl.sum(tl.where(inside, tile_m2 + n * apart * apart, 0.0), 0)


@_kernel
def _merge_sums(a, b, start, rows, tile_rows, c, C, TILES: tl.constexpr):  # type: ignore[no-untyped-def]
    at, inside = _block(start, start + tl.cdiv(rows, tile_rows), c, C, TILES)
    return tl.sum(tl.load(a + at, mask=inside, other=0.0), 0), tl.sum(tl.load(b + at, mask=inside, other=0.0), 0)


@_kernel
def _moments(  # type: ignore[no-untyped-def]
    x, mean, m2, rows0, rows1, rows2, tile_rows, C, CHANNELS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """Mean and sum of squared deviations of each tile, relative to its first row: one pass, without cancellation."""
    tile, part = tl.program_id(1), tl.program_id(2)
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    row, count, _ = _tile(part, tile, rows0, rows1, rows2, tile_rows)
    known = c < tl.where(count > 0, C, 0)
    x += row * C
    pivot = tl.load(x + c, mask=known, other=0.0).to(tl.float32)
    total, square = tl.zeros((ROWS, CHANNELS), tl.float32), tl.zeros((ROWS, CHANNELS), tl.float32)
    for first in tl.range(0, count, ROWS, num_stages=STAGES):
        at, inside = _block(first, count, c, C, ROWS)
        apart = tl.where(inside, tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - pivot[None, :], 0.0)
        total += apart
        square += apart * apart
    shift = tl.sum(total, 0)
    away = shift / tl.maximum(count, 1).to(tl.float32)
    rest = tl.sum(square, 0) - shift * away
    at_tile = (part * tl.num_programs(1) + tile) * C + c
    tl.store(mean + at_tile, pivot + away, mask=known)
    tl.store(m2 + at_tile, tl.where(rest < 0.0, 0.0, rest), mask=known)


@_kernel
def _normalize(  # type: ignore[no-untyped-def]
    x, residual, y, weight, bias, tile_mean, tile_m2, mean, rstd, running_mean, running_var, momentum, eps,
    rows0, rows1, rows2, tile_rows, C, RELU: tl.constexpr, RESIDUAL: tl.constexpr,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Write the output; the first programs, which have no rows, write the statistics of all parts, in their order."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    tiles, parts = tl.num_programs(1) - 1, tl.num_programs(2)
    # From the end: the cache still holds what the previous kernel read last.
    tile, part = tiles - tl.program_id(1), parts - 1 - tl.program_id(2)
    if tile < tiles:
        row, count, rows = _tile(part, tile, rows0, rows1, rows2, tile_rows)
        mu, m2 = _merge_moments(tile_mean, tile_m2, part * tiles, rows, tile_rows, c, C, TILES)
        scale = tl.load(weight + c, mask=c < C, other=0.0) * tl.rsqrt(m2 / rows.to(tl.float32) + eps)
        shift = tl.load(bias + c, mask=c < C, other=0.0)
        for first in tl.range(0, count, ROWS, num_stages=STAGES):
            at, inside = _block(first, count, c, C, ROWS)
            apart = tl.load(x + row * C + at, mask=inside, other=0.0).to(tl.float32) - mu[None, :]
            z = apart * scale[None, :] + shift[None, :]
            if RESIDUAL:
                z += tl.load(residual + row * C + at, mask=inside, other=0.0).to(tl.float32)
            if RELU:
                z = tl.where(z <= 0.0, 0.0, z)  # unlike a maximum, keeps NaN
            tl.store(y + row * C + at, z.to(y.dtype.element_ty), mask=inside)
    elif part == parts - 1:
        new_mean = tl.load(running_mean + c, mask=c < C, other=0.0)
        new_var = tl.load(running_var + c, mask=c < C, other=0.0)
        for p in range(0, parts):
            _, _, n = _tile(p, 0, rows0, rows1, rows2, tile_rows)
            part_mean, part_m2 = _merge_moments(tile_mean, tile_m2, p * tiles, n, tile_rows, c, C, TILES)
            tl.store(mean + p * C + c, part_mean, mask=c < C)
            tl.store(rstd + p * C + c, tl.rsqrt(part_m2 / n.to(tl.float32) + eps), mask=c < C)
            new_mean += momentum * (part_mean - new_mean)
            new_var += momentum * (part_m2 / (n - 1).to(tl.float32) - new_var)
        tl.store(running_mean + c, new_mean, mask=c < C)
        tl.store(running_var + c, new_var, mask=c < C)


@_kernel
def _gradient_sums(  # type: ignore[no-untyped-def]
    dy, again, x, y, dz, weight, bias, mean, rstd, tile_dz, tile_dzx, rows0, rows1, rows2, tile_rows, C,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, TWICE: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Σ dz and Σ dz · (x − mean) of each tile; `TWICE` if dy comes in two parts. With a residual or two parts, dz
    is written, and the next kernel reads neither dy nor y. Without a residual the sign of y follows from x, and y is
    never read."""
    tile, part = tl.program_id(1), tl.program_id(2)
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    row, count, _ = _tile(part, tile, rows0, rows1, rows2, tile_rows)
    mu = tl.load(mean + part * C + c, mask=c < C, other=0.0)
    scale = tl.load(weight + c, mask=c < C, other=0.0) * tl.load(rstd + part * C + c, mask=c < C, other=0.0)
    shift = tl.load(bias + c, mask=c < C, other=0.0)
    dy, again, x, y, dz = dy + row * C, again + row * C, x + row * C, y + row * C, dz + row * C
    total, product = tl.zeros((ROWS, CHANNELS), tl.float32), tl.zeros((ROWS, CHANNELS), tl.float32)
    for first in tl.range(0, count, ROWS, num_stages=STAGES):
        at, inside = _block(first, count, c, C, ROWS)
        grad = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        if TWICE:
            grad += tl.load(again + at, mask=inside, other=0.0).to(tl.float32)
        apart = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mu[None, :]
        if RELU and RESIDUAL:
            grad = tl.where(tl.load(y + at, mask=inside, other=0.0).to(tl.float32) <= 0.0, 0.0, grad)
        elif RELU:
            grad = tl.where(apart * scale[None, :] + shift[None, :] <= 0.0, 0.0, grad)
        if (RELU and RESIDUAL) or TWICE:
            tl.store(dz + at, grad.to(dz.dtype.element_ty), mask=inside)
        total += grad
        product += grad * apart
    at_tile = (part * tl.num_programs(1) + tile) * C + c
    tl.store(tile_dz + at_tile, tl.sum(total, 0), mask=c < tl.where(count > 0, C, 0))
    tl.store(tile_dzx + at_tile, tl.sum(product, 0), mask=c < tl.where(count > 0, C, 0))


@_kernel
def _gradient(  # type: ignore[no-untyped-def]
    dz, x, dx, weight, bias, mean, rstd, tile_dz, tile_dzx, dweight, dbias, rows0, rows1, rows2, tile_rows, C,
    MASKED: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x (`MASKED` if dz is still dy); the first programs write those of weight and bias."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    tiles, parts = tl.num_programs(1) - 1, tl.num_programs(2)
    tile, part = tiles - tl.program_id(1), parts - 1 - tl.program_id(2)
    if tile < tiles:
        row, count, rows = _tile(part, tile, rows0, rows1, rows2, tile_rows)
        mu = tl.load(mean + part * C + c, mask=c < C, other=0.0)
        part_rstd = tl.load(rstd + part * C + c, mask=c < C, other=0.0)
        scale = tl.load(weight + c, mask=c < C, other=0.0) * part_rstd
        shift = tl.load(bias + c, mask=c < C, other=0.0)
        sum_dz, sum_dzx = _merge_sums(tile_dz, tile_dzx, part * tiles, rows, tile_rows, c, C, TILES)
        level = sum_dz / rows.to(tl.float32)
        slope = sum_dzx / rows.to(tl.float32) * part_rstd * part_rstd
        for first in tl.range(0, count, ROWS, num_stages=STAGES):
            at, inside = _block(first, count, c, C, ROWS)
            grad = tl.load(dz + row * C + at, mask=inside, other=0.0).to(tl.float32)
            apart = tl.load(x + row * C + at, mask=inside, other=0.0).to(tl.float32) - mu[None, :]
            if MASKED:
                grad = tl.where(apart * scale[None, :] + shift[None, :] <= 0.0, 0.0, grad)
            out = scale[None, :] * (grad - level[None, :] - slope[None, :] * apart)
            tl.store(dx + row * C + at, out.to(dx.dtype.element_ty), mask=inside)
    elif part == parts - 1:
        all_dz, all_dzx = tl.zeros((CHANNELS,), tl.float32), tl.zeros((CHANNELS,), tl.float32)
        for p in range(0, parts):
            _, _, n = _tile(p, 0, rows0, rows1, rows2, tile_rows)
            part_dz, part_dzx = _merge_sums(tile_dz, tile_dzx, p * tiles, n, tile_rows, c, C, TILES)
            all_dz += part_dz
            all_dzx += part_dzx * tl.load(rstd + p * C + c, mask=c < C, other=0.0)
        tl.store(dbias + c, all_dz.to(dbias.dtype.element_ty), mask=c < C)
        tl.store(dweight + c, all_dzx.to(dweight.dtype.element_ty), mask=c < C)


@_kernel
def _tangent(  # type: ignore[no-untyped-def]
    tx, x, y, tresidual, ty, weight, bias, tweight, tbias, mean, rstd, tile_tx, tile_txx,
    rows0, rows1, rows2, tile_rows, C, RELU: tl.constexpr, RESIDUAL: tl.constexpr,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The tangent of the output; as in the backward pass, y is read only after a residual."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    tiles, parts = tl.num_programs(1), tl.num_programs(2)
    tile, part = tiles - 1 - tl.program_id(1), parts - 1 - tl.program_id(2)
    row, count, rows = _tile(part, tile, rows0, rows1, rows2, tile_rows)
    mu = tl.load(mean + part * C + c, mask=c < C, other=0.0)
    part_rstd = tl.load(rstd + part * C + c, mask=c < C, other=0.0)
    scale = tl.load(weight + c, mask=c < C, other=0.0) * part_rstd
    shift = tl.load(bias + c, mask=c < C, other=0.0)
    sum_tx, sum_txx = _merge_sums(tile_tx, tile_txx, part * tiles, rows, tile_rows, c, C, TILES)
    level = sum_tx / rows.to(tl.float32)
    slope = sum_txx / rows.to(tl.float32) * part_rstd * part_rstd
    lift = tl.load(tweight + c, mask=c < C, other=0.0) * part_rstd - scale * slope
    offset = tl.load(tbias + c, mask=c < C, other=0.0) - scale * level
    for first in tl.range(0, count, ROWS, num_stages=STAGES):
        at, inside = _block(first, count, c, C, ROWS)
        apart = tl.load(x + row * C + at, mask=inside, other=0.0).to(tl.float32) - mu[None, :]
        out = scale[None, :] * tl.load(tx + row * C + at, mask=inside, other=0.0).to(tl.float32)
        out += lift[None, :] * apart + offset[None, :]
        if RESIDUAL:
            out += tl.load(tresidual + row * C + at, mask=inside, other=0.0).to(tl.float32)
        if RELU and RESIDUAL:
            out = tl.where(tl.load(y + row * C + at, mask=inside, other=0.0).to(tl.float32) <= 0.0, 0.0, out)
        elif RELU:
            out = tl.where(apart * scale[None, :] + shift[None, :] <= 0.0, 0.0, out)
        tl.store(ty + row * C + at, out.to(ty.dtype.element_ty), mask=inside)


class _Plan:
    """How to cut a batch: the grids of first and second kernels, and the numbers that all kernels take."""

    def __init__(self, x: Tensor, parts: tuple[int, ...]) -> None:
        rows = [size * x.shape[2] * x.shape[3] for size in parts]
        blocks = -(-x.shape[1] // CHANNELS)
        tile_rows = max(MIN_TILE_ROWS, -(-sum(rows) * blocks // PROGRAMS), -(-max(rows) // TILES))
        tiles, chunk = -(-max(rows) // tile_rows), CHUNK_BYTES // CHANNELS // x.element_size()
        self.first, self.second = (blocks, tiles, len(rows)), (blocks, tiles + 1, len(rows))
        self.buffers = (2, len(rows), tiles, x.shape[1])
        self.sizes = (*rows, *[0] * (MOST_PARTS - len(rows)), tile_rows, x.shape[1])
        self.merged, stages, warps = (
            (FEW_TILES, FEW_STAGES, FEW_WARPS) if tiles <= FEW_TILES else (TILES, STAGES, WARPS)
        )
        self.fixed = {"CHANNELS": CHANNELS, "ROWS": chunk, "STAGES": stages, "num_warps": warps}


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
        residual: Tensor | None, parts: tuple[int, ...], momentum: float, eps: float, relu: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        plan = _Plan(x, parts)
        y = torch.empty_like(x, memory_format=torch.channels_last)
        tile_mean, tile_m2 = x.new_empty(plan.buffers, dtype=torch.float32)
        mean, rstd = x.new_empty((2, len(parts), x.shape[1]), dtype=torch.float32)
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            _moments[plan.first](x, tile_mean, tile_m2, *plan.sizes, **plan.fixed)
            _normalize[plan.second](
                x, x if residual is None else residual, y, weight, bias, tile_mean, tile_m2, mean, rstd, running_mean,
                running_var, momentum, eps, *plan.sizes,
                RELU=relu, RESIDUAL=residual is not None, TILES=plan.merged, **plan.fixed,
            )  # fmt: skip
        saved = (x, weight, bias, mean, rstd, y if relu and residual is not None else None)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(*saved)
        else:  # if a gradient is needed, this would keep y alive for ever
            ctx.save_for_forward(*saved)
        ctx.plan, ctx.relu, ctx.residual = plan, relu, residual is not None
        ctx.set_materialize_grads(False)
        return y, y.detach()  # the same memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (x, weight, bias, mean, rstd, y), plan = ctx.saved_tensors, ctx.plan
        dy, *more = [dy.contiguous(memory_format=torch.channels_last) for dy in grads if dy is not None]
        dx = torch.empty_like(x, memory_format=torch.channels_last)
        masked = ctx.relu and y is None and not more  # dz is still to be computed from dy
        dz = dy if y is None and not more else torch.empty_like(dx)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        tile_dz, tile_dzx = x.new_empty(plan.buffers, dtype=torch.float32)
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            _gradient_sums[plan.first](
                dy, more[0] if more else dy, x, dy if y is None else y, dz, weight, bias, mean, rstd, tile_dz, tile_dzx,
                *plan.sizes, RELU=ctx.relu, RESIDUAL=y is not None, TWICE=bool(more), **plan.fixed,
            )  # fmt: skip
            _gradient[plan.second](
                dz, x, dx, weight, bias, mean, rstd, tile_dz, tile_dzx, dweight, dbias, *plan.sizes,
                MASKED=masked, TILES=plan.merged, **plan.fixed,
            )  # fmt: skip
        return dx, dweight, dbias, None, None, dz if ctx.residual else None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, Tensor]:
        (x, weight, bias, mean, rstd, y), plan = ctx.saved_tensors, ctx.plan
        tx, tweight, tbias = map(_or_zeros, tangents[:3], (x, weight, bias))
        tx = tx.contiguous(memory_format=torch.channels_last)
        tresidual = _or_zeros(tangents[5], x).contiguous(memory_format=torch.channels_last) if ctx.residual else tx
        ty = torch.empty_like(x, memory_format=torch.channels_last)
        tile_tx, tile_txx = x.new_empty(plan.buffers, dtype=torch.float32)
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            _gradient_sums[plan.first](
                tx, tx, x, x, tx, weight, bias, mean, rstd, tile_tx, tile_txx, *plan.sizes,
                RELU=False, RESIDUAL=False, TWICE=False, **plan.fixed,
            )  # fmt: skip
            _tangent[plan.first](
                tx, x, x if y is None else y, tresidual, ty, weight, bias, tweight, tbias, mean, rstd, tile_tx,
                tile_txx, *plan.sizes, RELU=ctx.relu, RESIDUAL=ctx.residual, TILES=plan.merged, **plan.fixed,
            )  # fmt: skip
        return ty, ty.detach()


def _or_zeros(tangent: Tensor | None, value: Tensor) -> Tensor:
    """The tangent of an input; frozen weights, and what comes of nothing else, have none."""
    return torch.zeros_like(value) if tangent is None else tangent


def usable(x: Tensor) -> bool:
    """Whether to use `norm_act` for this input: half-precision activations on a GPU, as in training there.

    >>> usable(torch.zeros(2, 16, 4, 4))
    False
    """
    layout = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and x.shape[1] % 16 == 0
    return AVAILABLE and x.is_cuda and layout and x.dtype in (torch.bfloat16, torch.float16)


def norm_act(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, parts: tuple[int, ...],
    momentum: float, eps: float, residual: Tensor | None = None, relu: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Batch norm in training mode with statistics per part, plus `residual`, then ReLU; moves the running statistics.

    `parts`: the sizes of 1 to 3 consecutive slices of the batch. The output is returned twice, in the same memory, for
    its two uses: their gradients are added in passing; autograd would take three more passes over memory.
    Differentiable once, backward or forward. The first call for a kind of input compiles its kernels: make it before a
    CUDA graph is captured.
    """
    if not 1 <= len(parts) <= 3 or min(parts) < 1 or sum(parts) != len(x):
        raise ValueError(f"parts must be 1 to 3 sizes that add up to the batch's {len(x)}, got {parts}")
    if min(parts) * x.shape[2] * x.shape[3] < 2:
        raise ValueError(f"a part needs more than one value per channel, got shape {tuple(x.shape)} and parts {parts}")
    if residual is not None:
        if (residual.shape, residual.dtype) != (x.shape, x.dtype):
            raise ValueError(f"residual must be like x, {x.shape} {x.dtype}, got {residual.shape} {residual.dtype}")
        residual = residual.contiguous(memory_format=torch.channels_last)
    apply = cast(Callable[..., tuple[Tensor, Tensor]], _NormAct.apply)
    return apply(x, weight, bias, running_mean, running_var, residual, parts, momentum, eps, relu)
