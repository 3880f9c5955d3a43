"""Means over the rows of a batch that count."""

from __future__ import annotations

from torch import Tensor

from fasten.ranks import total


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Σ w v / Σ w, and 0 where no row counts; of a rank's share of a batch, its part of the whole batch's mean.

    >>> import torch
    >>> weighted_mean(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([1.0, 1.0, 0.0]))
    tensor(2.)
    """
    return (weight * values).sum() / total(weight.sum()).clamp(min=1)
