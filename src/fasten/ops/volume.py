"""The volume that the rows of T span, |det T|: the smaller, the closer T is around what the noisy labels say."""

from __future__ import annotations

import torch
from torch import Tensor

from fasten.ops.lookahead import with_gradient


def log_volume(T: Tensor) -> Tensor:
    """log |det T|, differentiable once: its gradient is T⁻ᵀ.

    By N steps of elimination with plain tensor operations, which any device can run and any graph capture. TᵀT has the
    volume squared and is positive, so that no rows need to change places, and its elimination turns Tᵀ into T⁻¹.

    >>> T = torch.tensor([[0.5, 0.5], [0.25, 0.75]], requires_grad=True)
    >>> volume = log_volume(T)
    >>> volume.exp(), torch.autograd.grad(volume, T)[0].round(decimals=4)
    (tensor(0.2500, grad_fn=<ExpBackward0>), tensor([[ 3., -1.],
            [-2.,  2.]]))
    """
    with torch.no_grad():
        identity = torch.eye(len(T), dtype=T.dtype, device=T.device)
        rows, pivots = T.T @ torch.cat([T, identity], 1), []  # (N, 2N)
        for k in range(len(T)):
            pivots.append(rows[k, k])
            rows = torch.addr(rows, rows[:, k] - identity[k], rows[k] / rows[k, k], alpha=-1)
        inverse = rows[:, len(T) :]
        value = torch.stack(pivots).log().sum() / 2
    return with_gradient(value, [T], [inverse.T])
