"""MSLC's equations with loops, in float64. A loss mixed of three is the one against the mixture of their targets."""

import numpy as np

from reference.transition import softmax


def ref_weigher(loss, W1, b1, W2, b2):
    hidden = [max(0.0, W1[h, 0] * loss + b1[h]) for h in range(len(b1))]
    return 1 / (1 + np.exp(-(sum(W2[0, h] * hidden[h] for h in range(len(b1))) + b2[0])))


def ref_cross_entropy(target, p):
    return -sum(target[c] * np.log(p[c]) for c in range(len(p)))


def hard(p):
    return np.eye(len(p))[int(np.argmax(p))]


def ref_mslc(z, given, s, V1, V2=None, soft_targets=False):
    """Of each row the target of its loss, the new soft label, and α; without V2 there is no correction."""
    targets, new, alphas = [], [], []
    for i, p in enumerate(softmax(z)):
        y = np.eye(len(p))[given[i]]
        k, a = (s[i], p) if soft_targets else (hard(s[i]), hard(p))
        alpha = ref_weigher(ref_cross_entropy(y, p), *V1)
        beta = ref_weigher(ref_cross_entropy(k, p), *V2) if V2 else None
        targets.append(alpha * y + (1 - alpha) * (beta * k + (1 - beta) * a) if V2 else alpha * y)
        new.append(alpha * y + (1 - alpha) * (beta * s[i] + (1 - beta) * p) if V2 else s[i])
        alphas.append(alpha)
    return np.array(targets), np.array(new), np.array(alphas)


def ref_loss(targets, z):
    return np.mean([ref_cross_entropy(target, p) for target, p in zip(targets, softmax(z), strict=True)])
