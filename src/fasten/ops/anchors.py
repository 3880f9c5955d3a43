"""Anchors: the rows that a network trained on noisy labels is surest of, and the T that they give.

If a row certainly belongs to class i, such a network's prediction for it is row i of T. N is the number of classes.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from torch import Tensor

from fasten.ranges import Range

Percentile = Annotated[float, Range(0, 100, "(]")]
Filter = Literal["column", "table"]


@torch.no_grad()
def anchor_rows(probs: Tensor, percentile: float | None = 97.0, filter: Filter = "column") -> Tensor:
    """The probabilities of each class's anchor, the row with its highest probability: (n, N) -> (N, N).

    Rows at or above the percentile (the next higher value of the column, not interpolated) are outliers and are left
    out; 100 or None keeps all. With `filter="table"`, what one class leaves out is zero for the classes after it.

    >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    >>> anchor_rows(probs, None)
    tensor([[0.9000, 0.1000],
            [0.2000, 0.8000]])
    >>> anchor_rows(probs)
    tensor([[0.6000, 0.4000],
            [0.6000, 0.4000]])
    """
    table, found = probs.clone(), []
    for i in range(table.shape[1]):
        column = table[:, i] if filter == "table" else table[:, i].clone()
        if percentile is not None and percentile < 100:
            below = math.ceil((len(column) - 1) * (percentile / 100))  # as NumPy's "higher" counts
            column.masked_fill_(column >= column.kthvalue(below + 1).values, 0)
        found.append(table.index_select(0, column.argmax(0, keepdim=True)))
    return torch.cat(found)
