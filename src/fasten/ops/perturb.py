"""Wrong corrections on purpose: the FasTEN paper's test of how robust a method is to its own mistakes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def perturb_soft_labels(soft: Tensor, coin: Tensor, share: float) -> Tensor:
    """Replace that share of the rows by a one-hot label, uniform over the classes: (B, N), (B, 2) -> (B, N).

    The first coin of a row decides whether it is replaced, the second by which class.

    >>> soft = torch.tensor([[0.2, 0.8], [0.3, 0.7]])
    >>> perturb_soft_labels(soft, torch.tensor([[0.9, 0.1], [0.1, 0.4]]), 0.5)
    tensor([[0.2000, 0.8000],
            [1.0000, 0.0000]])
    """
    num_classes = soft.shape[1]
    uniform = F.one_hot((coin[:, 1] * num_classes).long(), num_classes).to(soft.dtype)
    return torch.where(coin[:, :1] < share, uniform, soft)
