"""T̂ from anchors, and losses through it, with loops in float64 and the papers' letters."""

import math

import numpy as np


def ref_anchors(p, percentile=None):
    """T̂[i, ·]: p of the row with the highest p[i], of those below the percentile."""
    T = []
    for i in range(p.shape[1]):
        column = sorted(p[:, i])
        limit = math.inf if percentile is None else column[math.ceil((len(column) - 1) * percentile / 100)]
        best = max((n for n in range(len(p)) if p[n, i] < limit), key=lambda n: p[n, i])
        T.append(p[best] / p[best].sum())
    return np.array(T)


def ref_importance(f, T, y):
    """β = f[y] / (Tᵀf)[y] of each row."""
    return np.array([f[n, y[n]] / sum(T[k, y[n]] * f[n, k] for k in range(len(T))) for n in range(len(y))])
