"""Statistics of a few seeds: means with Student's 95% intervals, paired differences, Holm's correction.

And of a few rows: shares with Clopper–Pearson intervals. The functions are pure, take plain numbers, and return None
for a number that does not exist. Sums are exact, so that the order of the seeds does not matter. Student's and the beta
distribution are here because SciPy is not among the dependencies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.05  # of tests; the confidence of intervals is 1 − LEVEL
MAX_TERMS = 10_000  # of the continued fraction, which needs about √df
EPSILON = 2.0**-52  # a factor this close to 1 changes nothing any more


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; `ci95` is half the width of its 95% interval, None for one seed."""

    n: int
    mean: float | None
    ci95: float | None


@dataclass(frozen=True)
class Difference:
    """The difference of two methods over the seeds they share; `p` is from the paired t-test, None below two seeds."""

    n: int
    mean: float | None
    ci95: float | None
    p: float | None


@dataclass(frozen=True)
class Proportion:
    """`k` of `n` rows, with the 95% interval of the share; from 0 to 1 where there are no rows."""

    k: int
    n: int
    low: float
    high: float

    @property
    def share(self) -> float | None:
        return self.k / self.n if self.n else None


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and Student's 95% interval.

    >>> e = estimate([0.79, 0.80, 0.81])
    >>> round(e.mean, 4), round(e.ci95, 4)
    (0.8, 0.0248)
    """
    mean, error = _mean_and_error(values)
    ci95 = None if error is None else t_quantile(1 - LEVEL / 2, len(values) - 1) * error
    return Estimate(len(values), mean, ci95)


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Mean of ours − theirs, seed by seed. If all differences are equal, p is 1 if they are 0, otherwise 0.

    >>> d = paired_difference([0.9, 0.8, 0.9], [0.8, 0.6, 0.6])
    >>> round(d.mean, 4), round(d.p, 4)
    (0.2, 0.0742)
    """
    values = [a - b for a, b in zip(ours, theirs, strict=True)]
    found, error = estimate(values), _mean_and_error(values)[1]
    if error is None or found.mean is None:
        return Difference(found.n, found.mean, None, None)
    t = found.mean / error if error > 0 else math.inf
    return Difference(found.n, found.mean, found.ci95, 1.0 if found.mean == 0 else two_sided_p(t, found.n - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given: those below a level hold together at that level (Holm, 1979).

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def two_sided_p(t: float, df: float) -> float:
    """P(|T| ≥ |t|) of Student's distribution: the incomplete beta function I(df / (df + t²); df / 2, 1 / 2).

    >>> round(two_sided_p(2.776445, 4), 6)
    0.05
    """
    ratio = abs(t) / math.sqrt(df)
    x = 1 / (1 + ratio * ratio)
    return _incomplete_beta(x, 1 - x if ratio > 1 else ratio * ratio * x, df / 2, 0.5)


@cache
def t_quantile(q: float, df: float) -> float:
    """The quantile q ≥ 1/2 of Student's distribution, by bisection.

    >>> round(t_quantile(0.975, 4), 6)
    2.776445
    """
    low, high, tail = 0.0, 1.0, 2 * (1 - q)
    while two_sided_p(high, df) > tail:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if two_sided_p(middle, df) > tail else (low, middle)
    return high


def beta_cdf(x: float, a: float, b: float) -> float:
    """P(X ≤ x) of the beta distribution: the incomplete beta function I(x; a, b).

    >>> round(beta_cdf(0.5, 1, 3), 6)
    0.875
    """
    return 1.0 if x >= 1 else _incomplete_beta(x, 1 - x, a, b)


@cache
def beta_quantile(q: float, a: float, b: float) -> float:
    """The quantile q of the beta distribution, by bisection.

    >>> round(beta_quantile(0.875, 1, 3), 6)
    0.5
    """
    if q <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if beta_cdf(middle, a, b) < q else (low, middle)
    return high


def lower_bound(k: int, n: int, level: float = LEVEL) -> float:
    """The Clopper–Pearson lower bound: a share below it would give k or more of n with a probability under `level`.

    >>> round(lower_bound(29, 29), 4)  # 0.05 ** (1 / 29)
    0.9019
    """
    return beta_quantile(level, k, n - k + 1) if k else 0.0


def proportion(k: int, n: int) -> Proportion:
    """k of n, with the two-sided 95% Clopper–Pearson interval.

    >>> found = proportion(8, 10)
    >>> found.share, round(found.low, 4), round(found.high, 4)
    (0.8, 0.4439, 0.9748)
    """
    return Proportion(k, n, lower_bound(k, n, LEVEL / 2), 1 - lower_bound(n - k, n, LEVEL / 2))


def reaches(k: int, n: int, share: float) -> bool:
    """Whether the lower bound of k of n is at least `share`; cheaper than computing the bound itself.

    >>> reaches(29, 29, 0.9), reaches(28, 28, 0.9)
    (True, False)
    """
    return k > 0 and beta_cdf(share, k, n - k + 1) <= LEVEL


def _mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard error. Equal values have the error 0, which a rounded mean would hide."""
    n = len(values)
    if n == 0:
        return None, None
    mean = values[0] if min(values) == max(values) else math.fsum(values) / n
    if n == 1:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)


def _incomplete_beta(x: float, y: float, a: float, b: float) -> float:
    """The regularised function I(x; a, b); y is 1 − x, which the caller knows more precisely if x is near 1."""
    if x <= 0:
        return 0.0
    if x > (a + 1) / (a + b + 2):  # the fraction would converge slowly
        return 1 - _incomplete_beta(y, x, b, a)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp(a * math.log(x) + b * math.log(y) - log_beta) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """1 + k₁/(1 + k₂/(1 + …)), from the front, by Lentz's method."""
    value, c, d = 1.0, 1.0, 0.0
    for n in range(1, MAX_TERMS):
        m = n // 2
        top = m * (b - m) if n % 2 == 0 else -(a + m) * (a + b + m)
        k = top * x / ((a + n - 1) * (a + n))
        d = 1 / (1 + k * d)
        c = 1 + k / c
        value *= c * d
        if abs(c * d - 1) <= EPSILON:
            break
    return value
