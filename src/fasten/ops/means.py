"""Means over the rows of a batch that count, and the loss that most methods use."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fasten.contract import Examples
from fasten.ranks import total, world


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Σ w v / Σ w, or 0 if no row counts; for a rank's share of a batch, its part of the whole batch's mean.

    >>> import torch
    >>> weighted_mean(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([1.0, 1.0, 0.0]))
    tensor(2.)
    """
    return (weight * values).sum() / total(weight.sum()).clamp(min=1)


def plain_loss(logits: Tensor, rows: Examples) -> Tensor:
    """Cross-entropy against the labels of a draw."""
    return weighted_mean(F.cross_entropy(logits, rows.y, reduction="none"), rows.weight)


def unevenness(p: Tensor, weight: Tensor) -> Tensor:
    """How far a batch's mean prediction is from uniform, Σ 1/N log (1/N / mean); on several ranks, this one's part.

    >>> import torch
    >>> unevenness(torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.ones(2)).abs() < 1e-6
    tensor(True)
    """
    mean = total((weight[:, None] * p).sum(0)) / total(weight.sum()).clamp(min=1)
    return -(p.shape[1] * mean).log().mean() / world()  # all ranks have the same mean
