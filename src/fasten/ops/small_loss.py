"""Which rows of a batch have small losses."""

from __future__ import annotations

import torch
from torch import Tensor

from fasten.ranks import gathered, rank, total

GUARD = 1e-4  # of a row: 0.6 of 100 rows are 60, despite rounding errors


def smallest(losses: Tensor, weight: Tensor, share: Tensor) -> Tensor:
    """1 for the rows with the smallest losses of a batch (over all ranks), otherwise 0; filling has 0.

    Chosen are `share` of the rows that count, rounded down, but at least one.

    >>> smallest(torch.tensor([3.0, 1.0, 0.0, 2.0]), torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor(0.67))
    tensor([0., 1., 0., 1.])
    """
    every = gathered(torch.where(weight > 0, losses.detach(), torch.inf))
    place = every.argsort(stable=True).argsort()[rank() * len(losses) :][: len(losses)]
    count = (share * total(weight.sum()) + GUARD).floor().clamp(min=1)
    return (place < count).to(weight.dtype) * weight
