"""Deep kNN's filter with loops, in float64."""

import numpy as np


def ref_votes(points, labels, queries, k, N):
    """How many of the k points nearest to each query, itself left out, have each label."""
    points = np.asarray(points, dtype=np.float64)
    votes = np.zeros((len(queries), N), dtype=np.int64)
    for row, i in enumerate(queries):
        others = [j for j in range(len(points)) if j != i]
        others.sort(key=lambda j: sum((points[i, d] - points[j, d]) ** 2 for d in range(points.shape[1])))
        for j in others[:k]:
            votes[row, labels[j]] += 1
    return votes


def ref_keep(logits, labels, n, k, N):
    """Of the first n rows, those with a label that no other outvotes."""
    votes = ref_votes(logits, labels, range(n), k, N)
    return np.array([all(votes[i, labels[i]] >= votes[i, c] for c in range(N)) for i in range(n)])


def ref_mean_loss(logits, labels, weight):
    """The mean cross-entropy of the rows that count."""
    losses = []
    for z, y, w in zip(logits, labels, weight, strict=True):
        if w > 0:
            losses.append(np.log(sum(np.exp(z - z.max()))) + z.max() - z[y])
    return sum(losses) / max(len(losses), 1)
