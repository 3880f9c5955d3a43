"""The same numbers as in fasten.metrics and fasten.audit, in float64, with loops and the paper's letters.

p[n][y] = p(y | xₙ), y the truth, g the given label ȳ, T[i][j] = P(ȳ = j | y = i), T_hat its estimate, N classes.
"""

import math

import numpy as np

# Student's t, 97.5% quantile, by degrees of freedom: from printed tables.
T_975 = {1: 12.706204736, 2: 4.302652730, 4: 2.776445105, 9: 2.262157163}


def ref_accuracy(p, y):
    hits = 0
    for n in range(len(y)):
        hits += max(range(len(p[n])), key=lambda k: p[n][k]) == y[n]
    return hits / len(y)


def ref_nll(p, y):
    return -sum(math.log(p[n][y[n]]) for n in range(len(y))) / len(y)


def ref_auroc(s, wrong):
    won, pairs = 0.0, 0
    for a in range(len(s)):
        for b in range(len(s)):
            if wrong[a] and not wrong[b]:
                won += 1.0 if s[a] > s[b] else 0.5 if s[a] == s[b] else 0.0
                pairs += 1
    return won / pairs


def ref_auprc(s, wrong):
    area, last_recall = 0.0, 0.0
    for threshold in sorted(set(s), reverse=True):
        found = [w for v, w in zip(s, wrong, strict=True) if v >= threshold]
        recall, precision = sum(found) / sum(wrong), sum(found) / len(found)
        area += (recall - last_recall) * precision
        last_recall = recall
    return area


def ref_counted_transition(y, g, N):
    T = np.eye(N)
    for i in range(N):
        labels = [g[n] for n in range(len(y)) if y[n] == i]
        for j in range(N):
            if labels:
                T[i, j] = labels.count(j) / len(labels)
    return T


def ref_chi_square(T_hat, T):
    N, chi2, off = len(T), 0.0, 0.0
    for i in range(N):
        for j in range(N):
            if T[i][j] > 0:
                chi2 += (T_hat[i][j] - T[i][j]) ** 2 / T[i][j]
            else:
                off += T_hat[i][j]
    return chi2 / N, off / N


def ref_interval95(values):
    n = len(values)
    mean = sum(values) / n
    variance = sum((v - mean) ** 2 for v in values) / (n - 1)
    return T_975[n - 1] * math.sqrt(variance / n)


def ref_posterior(p, T, g):
    q = np.empty_like(p)
    for n in range(len(g)):
        total = sum(T[y][g[n]] * p[n][y] for y in range(len(T)))
        for y in range(len(T)):
            q[n, y] = T[y][g[n]] * p[n][y] / total
    return q


def ref_given_transition(p, g, N, rounds):
    M = len(g)

    def estimate(q):
        T = np.eye(N)
        for i in range(N):
            mass = sum(q[n][i] for n in range(M))
            for j in range(N):
                if mass > 0:
                    T[i, j] = sum(q[n][i] for n in range(M) if g[n] == j) / mass
        return T

    pi_0 = [sum(p[n][i] for n in range(M)) / M for i in range(N)]
    T, pi = estimate(p), pi_0
    for _ in range(rounds):
        q = np.zeros((M, N))
        for n in range(M):
            for i in range(N):
                q[n, i] = pi[i] / pi_0[i] * T[i, g[n]] * p[n][i] if pi_0[i] > 0 else 0.0
            q[n] /= sum(q[n])
        T, pi = estimate(q), [sum(q[n][i] for n in range(M)) / M for i in range(N)]
    return T
