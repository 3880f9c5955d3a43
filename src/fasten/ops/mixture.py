"""Two groups among numbers, found by a mixture of two normal distributions, and rows divided by it."""

from __future__ import annotations

import torch
from torch import Tensor

ITERATIONS, TOLERANCE, FLOOR = 10, 1e-2, 5e-4  # at most; of the mean log-likelihood; added to variances


@torch.no_grad()
def lower_group(values: Tensor) -> Tensor:
    """The probability that each of the numbers (n,) is in the group with the lower mean; on the host, in float64.

    >>> lower_group(torch.tensor([0.0, 0.2, 0.2, 1.8, 2.0])).round().tolist()
    [1.0, 1.0, 1.0, 0.0, 0.0]
    """
    x = values.cpu().double()
    x = (x - x.min()) / (x.max() - x.min()).clamp(min=torch.finfo(x.dtype).tiny)  # in [0, 1], as the constants above
    member = _two_means(x)  # (n, 2)
    before = -torch.inf
    share, mean, var = _fitted(x, member)
    for _ in range(ITERATIONS):
        member, likelihood = _expected(x, share, mean, var)
        share, mean, var = _fitted(x, member)
        if abs(likelihood - before) < TOLERANCE:
            break
        before = likelihood
    member, _ = _expected(x, share, mean, var)
    return member[:, int(mean.argmin())]


def divided(probability: Tensor, threshold: float, least: int) -> tuple[Tensor, Tensor]:
    """Which rows are more probable than `threshold` and which are not, (n,) each, with at least `least` of either.

    >>> divided(torch.tensor([0.9, 0.1, 0.8]), 0.5, least=1), divided(torch.tensor([0.9, 0.6]), 0.5, least=1)
    ((tensor([ True, False,  True]), tensor([False,  True, False])), (tensor([ True, False]), tensor([False,  True])))
    """
    n = len(probability)
    least = max(1, min(least, n // 2))
    count = (probability > threshold).sum().clamp(least, max(n - least, 1))
    place = probability.argsort(descending=True, stable=True).argsort()  # of each row, the most probable first
    return place < count, place >= count.clamp(max=n - 1)  # a single row is on both sides


def _two_means(x: Tensor) -> Tensor:
    """The best split into two clusters, as 0 and 1: in sorted numbers it is a cut, so all of them can be tried."""
    ordered = x.sort().values
    left = torch.arange(1, len(x), dtype=x.dtype, device=x.device)
    sums, total = ordered.cumsum(0)[:-1], ordered.sum()
    between = sums.square() / left + (total - sums).square() / (len(x) - left)  # the more, the less within
    cut = ordered[int(between.argmax())] if len(x) > 1 else ordered[0]
    return torch.stack([x <= cut, x > cut], 1).to(x.dtype)


def _fitted(x: Tensor, member: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shares, means and variances of the two groups, (2,) each."""
    count = member.sum(0) + 10 * torch.finfo(x.dtype).eps  # a group may be empty
    mean = (member * x[:, None]).sum(0) / count
    var = (member * (x[:, None] - mean).square()).sum(0) / count + FLOOR
    return count / len(x), mean, var


def _expected(x: Tensor, share: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, float]:
    """Each number's probability of being in either group, (n, 2), and the mean log-likelihood."""
    log_p = share.log() - ((x[:, None] - mean).square() / var + (2 * torch.pi * var).log()) / 2
    norm = log_p.logsumexp(1, keepdim=True)
    return (log_p - norm).exp(), float(norm.mean())
