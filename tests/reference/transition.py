"""FasTEN's formulas with loops, in float64, in the paper's letters."""

import numpy as np


def ref_estimate(f_bar, y, N):
    """T̂[i, ·]: the mean of f̄ over the rows of class i; the identity's row where there is none."""
    T = np.eye(N)
    for i in range(N):
        rows = [f_bar[n] for n in range(len(y)) if y[n] == i]
        if rows:
            T[i] = sum(rows) / len(rows)
    return T


def ref_joint(f, f_bar):
    """The mean over rows of f_i f̄_j."""
    N, n = len(f[0]), len(f)
    return np.array([[sum(f[k][i] * f_bar[k][j] for k in range(n)) / n for j in range(N)] for i in range(N)])


def ref_corrected_nll(p, T, y):
    return np.array([-np.log(sum(T[j, y[i]] * p[i, j] for j in range(len(T))) + 1e-7) for i in range(len(y))])


def ref_correct(p, given, rho):
    return np.array([int(np.argmax(p[i])) if max(p[i]) >= rho else given[i] for i in range(len(given))])


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def ref_fasten_loss(clean_n, noisy_n, clean_c, noisy_c, labels, y, N, lam, T=None):
    """The loss of one update, from the four logits: clean and noisy head on the noisy (n) and the clean (c) batch."""
    T = ref_estimate(softmax(noisy_c), y, N) if T is None else T
    a = ref_corrected_nll(softmax(clean_n), T, labels)
    b = [-np.log(softmax(clean_c)[i, y[i]]) for i in range(len(y))]
    noisy = [-np.log(softmax(noisy_n)[i, labels[i]]) for i in range(len(labels))]
    return np.mean([*a, *b]) + lam * np.mean(noisy), T
