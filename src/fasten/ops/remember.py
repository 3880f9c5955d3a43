"""What a method keeps of the rows that it visits."""

from __future__ import annotations

import torch
from torch import Tensor

from fasten.contract import Examples


def remember(buffer: Tensor, visited: Examples, values: Tensor) -> None:
    """Write a value for each row of a draw into a table of all rows, but for rows that only fill the batch.

    >>> table, one, x = torch.zeros(4), torch.ones(2), torch.zeros(2, 1)
    >>> draw = Examples(x, one, torch.tensor([3, 1]), weight=torch.tensor([1.0, 0.0]), coin=x)
    >>> remember(table, draw, torch.tensor([5.0, 7.0]))
    >>> table
    tensor([0., 0., 0., 5.])
    """
    counts = (visited.weight > 0).view(-1, *[1] * (values.ndim - 1))
    new = torch.where(counts, values.to(buffer.dtype), buffer[visited.index])
    buffer.index_copy_(0, visited.index, new)
