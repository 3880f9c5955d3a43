"""MixUp: every row of a batch, and its target, mixed with another one in shares from a folded beta distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fasten.nets import Heads

GRID = 2**16  # steps of the integral
POINTS = 4097  # of the table


def folded_beta(alpha: float) -> Tensor:
    """Quantiles of max(l, 1 − l), l ~ Beta(alpha, alpha), at equal steps from 0 to 1.

    >>> table = folded_beta(1.0)  # uniform: l is uniform in [0.5, 1]
    >>> [round(table[i].item(), 4) for i in (0, 1024, 4096)]
    [0.5, 0.625, 1.0]
    """
    # With l = sin² t the density is (sin t cos t)^(2 alpha − 1), which has no pole if alpha is at least 1/2. With a
    # smaller alpha the poles are at the ends, so the density is taken in the middle of each step.
    step = np.pi / 4 / GRID
    t = np.pi / 4 + step * (np.arange(GRID) + 0.5)
    mass = np.concatenate([[0.0], np.cumsum(np.exp((2 * alpha - 1) * np.log(np.sin(2 * t))))])
    ends = np.sin(np.pi / 4 + step * np.arange(GRID + 1)) ** 2
    return torch.from_numpy(np.interp(np.linspace(0, 1, POINTS), mass / mass[-1], ends))


def look_up(table: Tensor, u: Tensor) -> Tensor:
    """The quantile at u in [0, 1), by linear interpolation in the table.

    >>> look_up(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([0.25, 0.75]))
    tensor([0.5000, 2.0000])
    """
    place = u.to(table.dtype) * (len(table) - 1)
    below = place.long().clamp(0, len(table) - 2)
    return torch.lerp(table[below], table[below + 1], place - below)


def mix_up(tables: Sequence[Tensor], coins: Sequence[Tensor], quantiles: Tensor) -> list[Tensor]:
    """Mix each row of the tables (examples, targets) with another one, the same in all tables.

    `coins` are those of draws of two views; the rows are the first draw's two views, then the next one's. They shuffle
    the rows, and one more number from them, looked up in `quantiles` (see `folded_beta`), is the share of the row
    itself, the same for the whole batch.
    """
    order = torch.cat([view for coin in coins for view in coin[:, :2].T]).argsort()
    share = look_up(quantiles, coins[0][:1, 2])
    return [torch.lerp(rows[order], rows, share.to(rows.dtype)) for rows in tables]


def mean_prediction(net: Heads, views: list[Tensor]) -> Tensor:
    """The mean over views of the same rows, (B, N); in training each view has its own batch-norm statistics."""
    return torch.stack([logits.softmax(1) for logits, *_ in net.each(views, "split")]).mean(0)


def sharpened(p: Tensor, temperature: float) -> Tensor:
    """p^(1 / temperature), normalised so that rows sum to one again.

    >>> sharpened(torch.tensor([[0.75, 0.25]]), 0.5)
    tensor([[0.9000, 0.1000]])
    """
    return (p.clamp(min=torch.finfo(p.dtype).tiny).log() / temperature).softmax(1)
