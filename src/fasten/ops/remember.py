"""What a method remembers about the rows that it visits."""

from __future__ import annotations

import torch
from torch import Tensor

from fasten.contract import Examples
from fasten.ranks import gathered


def remember(buffer: Tensor, visited: Examples, values: Tensor) -> None:
    """Write a value for each row of a draw, from all ranks, into a table of all rows; rows of weight 0 are left out.

    >>> table, one, x = torch.zeros(4), torch.ones(2), torch.zeros(2, 1)
    >>> draw = Examples(x, one, torch.tensor([3, 1]), weight=torch.tensor([1.0, 0.0]), coin=x)
    >>> remember(table, draw, torch.tensor([5.0, 7.0]))
    >>> table
    tensor([0., 0., 0., 5.])
    """
    index, weight, new = (gathered(t) for t in (visited.index, visited.weight, values.to(buffer.dtype)))
    counts = weight > 0
    new = torch.where(counts.view(-1, *[1] * (new.ndim - 1)), new, buffer[index])
    # Filling may be a row that counts elsewhere in the batch, so it writes what a row that counts writes, and there.
    source = torch.where(counts, torch.arange(len(index), device=index.device), weight.argmax())
    buffer.index_copy_(0, index[source], new[source])
