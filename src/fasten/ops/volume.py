"""The volume that the rows of T span, |det T|: the smaller, the more tightly T encloses what the noisy labels say."""

from __future__ import annotations

import torch
from torch import Tensor

from fasten.ops.lookahead import with_gradient


def log_volume(T: Tensor) -> Tensor:
    """log |det T|, differentiable once: its gradient is T⁻ᵀ.

    On a CPU by torch's LU factorisation, which in float32 would be off by 3% where T is almost singular; elsewhere by
    `eliminated`.

    >>> T = torch.tensor([[0.5, 0.5], [0.25, 0.75]], requires_grad=True)
    >>> volume = log_volume(T)
    >>> volume.exp(), torch.autograd.grad(volume, T)[0].round(decimals=4)
    (tensor(0.2500, grad_fn=<ExpBackward0>), tensor([[ 3., -1.],
            [-2.,  2.]]))
    """
    if T.device.type == "cpu":
        value: Tensor = torch.linalg.slogdet(T.cpu().double()).logabsdet
        return value.to(T.dtype)
    return eliminated(T)


def eliminated(T: Tensor) -> Tensor:
    """The same by N steps of elimination with plain tensor operations, which any CUDA graph can capture.

    Each column is eliminated by the row with its largest entry, among the rows not used yet; rows stay in their places.
    """
    with torch.no_grad():
        identity = torch.eye(len(T), dtype=T.dtype, device=T.device)
        rows, left = torch.cat([T, identity], 1), torch.ones_like(T[0])  # (N, 2N), (N,)
        places, pivots = [], []
        for k in range(len(T)):
            place = (left * rows[:, k].abs()).argmax()[None]
            row, chosen = rows.index_select(0, place)[0], identity.index_select(0, place)[0]
            rows = torch.addr(rows, rows[:, k] - chosen, row / row[k], alpha=-1)
            left = left - chosen
            places.append(place)
            pivots.append(row[k])
        inverse = rows[:, len(T) :].index_select(0, torch.cat(places))
        value = torch.stack(pivots).abs().log().sum()
    return with_gradient(value, [T], [inverse.T])
