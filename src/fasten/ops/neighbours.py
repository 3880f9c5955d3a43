"""The k nearest neighbours of points, and their labels: exact, in chunks, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK_BYTES = 2**27  # of distances held at once: all of them would be 8 GB for 45,000 points


@torch.no_grad()
def vote(
    points: Tensor, labels: Tensor, queries: Tensor, *, k: int, num_classes: int, chunk_bytes: int = CHUNK_BYTES
) -> Tensor:
    """How many of the k nearest points of each query have each label, (Q, N).

    Queries are indices of `points` (P, D); a point is not its own neighbour. If there are fewer than k others, all
    count. Which of several points at the same distance count as the nearest is left open.

    >>> line, labels = torch.tensor([[0.0], [1.0], [3.0], [7.0]]), torch.tensor([0, 1, 1, 0])
    >>> vote(line, labels, torch.tensor([0, 3]), k=2, num_classes=2).tolist()
    [[0, 2], [0, 2]]
    """
    k = min(k, len(points) - 1)
    points = points - points.mean(0)  # smaller numbers: the products below lose digits if |b| is far above |a − b|
    half_squares = points.square().sum(1) / 2
    size = max(1, chunk_bytes // (points.element_size() * len(points)))
    found = []
    for rows in torch.split(queries, size):
        # |a − b|² / 2 minus |a|² / 2, which is the same for all neighbours of a query a.
        distances = torch.addmm(half_squares, points[rows], points.T, alpha=-1)  # (C, P)
        distances.scatter_(1, rows[:, None], torch.inf)
        nearest = distances.topk(k, dim=1, largest=False, sorted=False).indices  # (C, k)
        counts = torch.zeros(len(rows), num_classes, dtype=torch.int64, device=points.device)
        found.append(counts.scatter_add_(1, labels[nearest], torch.ones_like(nearest)))
    return torch.cat(found)
