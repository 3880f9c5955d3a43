"""CausalNL on rows of features, in NumPy: networks and losses with the paper's letters, one row after another."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from reference.transition import softmax


def linear(weights, name, v):
    return weights[f"{name}.weight"] @ v + weights[f"{name}.bias"]


def hidden(weights, name, v):
    """Two layers with a leaky ReLU between them; `last` is the number of the second."""
    h = linear(weights, f"{name}.0", v)
    last = max(int(key.split(".")[-2]) for key in weights if key.startswith(f"{name}."))
    return linear(weights, f"{name}.{last}", np.array([e if e > 0 else 0.01 * e for e in h]))


def relaxed(logits, u):
    """ŷ, at a temperature of 1."""
    return softmax(np.array([[c - math.log(-math.log(e)) for c, e in zip(logits, u, strict=True)]]))[0]


def chosen(nll, weight, share):
    """Row numbers with the smallest losses among those that count."""
    counted = [i for i in range(len(nll)) if weight[i] > 0]
    return sorted(counted, key=lambda i: nll[i])[: max(1, int(share * len(counted) + 1e-4))]


def loss(weights, logits, others, x, y, weight, uniform, share, scale, objective):
    """Of one network with these logits; the other one's are `others`, `scale` the weights of x̂, ȳ, z and p(y)."""
    rows = [i for i in range(len(x)) if weight[i] > 0]
    p = softmax(logits)
    nll = [-math.log(p[i][y[i]]) for i in range(len(x))]
    kept = chosen([-math.log(row[label]) for row, label in zip(softmax(others), y, strict=True)], weight, share)
    example = label = latent = uneven = 0.0
    for i in rows:
        n = len(logits[i])
        y_hat = relaxed(logits[i], uniform[i][:n])
        mu, log_var = np.split(hidden(weights, "encoder.layers", np.concatenate([x[i], y_hat])), 2)
        for_z = uniform[i][n:]
        noise = for_z if objective == "code" else [NormalDist().inv_cdf(u) for u in for_z]
        z = np.array([m + math.exp(v / 2) * e for m, v, e in zip(mu, log_var, noise, strict=True)])
        x_hat = hidden(weights, "decoder.layers", np.concatenate([z, y_hat]))
        noisy = softmax(hidden(weights, "noisy.layers", np.concatenate([x_hat, y_hat]))[None])[0]
        example += sum((a - b) ** 2 for a, b in zip(x_hat, x[i], strict=True)) / len(x[i])
        label += -math.log(noisy[y[i]])
        latent += -sum(1 + v - m**2 - math.exp(v) for m, v in zip(mu, log_var, strict=True))
        uneven += sum(q * math.log(q) for q in p[i])
    taught = sum(nll[i] for i in kept) / len(kept)
    found = (scale[0] * example + scale[1] * label) / len(rows)
    if objective == "code":
        return taught / len(kept) + found + scale[2] * latent
    return taught + found + (scale[2] * latent / 2 + scale[3] * uneven) / len(rows)
