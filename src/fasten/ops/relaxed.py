"""Random draws that gradients flow through, made from uniform numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

GUARD = 2.0**-24  # a step of uniform float32 numbers: keeps logarithms and quantiles finite


def gumbel_softmax(logits: Tensor, uniform: Tensor) -> Tensor:
    """A soft label for each row, at a temperature of 1; its largest entry is a draw from the softmax of the logits.

    >>> gumbel_softmax(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]))
    tensor([[0.5000, 0.5000]])
    """
    u = uniform.to(logits.dtype).clamp(GUARD, 1 - GUARD)
    return (logits - (-u.log()).log()).softmax(1)


def standard_normal(uniform: Tensor) -> Tensor:
    """Quantiles of the standard normal distribution.

    >>> standard_normal(torch.tensor([0.5, 0.975]))
    tensor([0.0000, 1.9600])
    """
    return math.sqrt(2) * torch.erfinv(2 * uniform.clamp(GUARD, 1 - GUARD) - 1)
