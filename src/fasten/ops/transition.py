"""The label transition matrix: estimate it, correct a loss by it, correct labels.

T[i, j] is P(noisy = j | true = i): rows sum to one. N is the number of classes, B a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fasten.ranks import totals

LOG_GUARD = 1e-7  # inside the log, as in FasTEN's code: bounds the loss at 16.1 if T rules out the label


def estimate_transition(
    noisy_probs: Tensor, labels: Tensor, num_classes: int, weight: Tensor | None = None, *, shared: bool = False
) -> Tensor:
    """Mean noisy-head probabilities of each true class, (B, N) and (B,) -> (N, N).

    With `weight` (not negative), rows count that much. A class that is absent from the batch (or has only rows of
    weight 0) gets the identity's row. `shared`: the rows are this rank's share of a batch, and T is the whole batch's.

    >>> estimate_transition(torch.tensor([[0.9, 0.1], [0.7, 0.3]]), torch.tensor([0, 0]), 2)
    tensor([[0.8000, 0.2000],
            [0.0000, 1.0000]])
    """
    classes = torch.arange(num_classes, device=labels.device)
    member = (labels[:, None] == classes).to(noisy_probs.dtype)  # (B, N)
    if weight is not None:
        member = member * weight[:, None].to(member.dtype)
    sums, count = member.T @ noisy_probs, member.sum(0)[:, None]  # (N, N), (N, 1)
    if shared:
        sums, count = totals([sums, count])
    # Differs: the paper divides column j by the count of class j, which is right for balanced batches only.
    mean = sums / _not_zero(count)
    identity = torch.eye(num_classes, dtype=mean.dtype, device=mean.device)
    return torch.where(count > 0, mean, identity)


def set_apart(T: Tensor, known: Tensor) -> Tensor:
    """T in which no known class (one with clean rows, true in `known`, (N,)) is mistaken for an unknown one.

    Labels of a class without clean rows are kept, so they have to mean that class: as long as other classes could
    explain them, however rarely, the loss would never teach it.

    >>> set_apart(torch.tensor([[0.6, 0.2, 0.2], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]), torch.tensor([True, True, False]))
    tensor([[0.7500, 0.2500, 0.0000],
            [0.0000, 1.0000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    foreign = known[:, None] > known
    kept = T.masked_fill(foreign, 0) + LOG_GUARD * torch.eye(len(T), dtype=T.dtype, device=T.device)  # no row is empty
    return torch.where(foreign.any(1, keepdim=True), kept / kept.sum(1, keepdim=True), T)


def joint_of_heads(
    clean_probs: Tensor, noisy_probs: Tensor, weight: Tensor | None = None, *, shared: bool = False
) -> Tensor:
    """How often the class is i and the label j, according to two heads on the same rows: (B, N) each -> (N, N).

    The mean of p(i | x) p(j | x), which sums to one; its rows, each divided by its sum, make a T. `shared`: as in
    `estimate_transition`.

    >>> joint_of_heads(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.8, 0.2], [0.5, 0.5]]))
    tensor([[0.4000, 0.1000],
            [0.2500, 0.2500]])
    """
    counted = clean_probs.new_ones(len(clean_probs)) if weight is None else weight.to(clean_probs.dtype)
    sums, count = (counted[:, None] * clean_probs).T @ noisy_probs, counted.sum()
    if shared:
        sums, count = totals([sums, count])
    return sums / _not_zero(count)


def _not_zero(count: Tensor) -> Tensor:
    """The count, made safe to divide by: where it is 0, so is the sum. Weights may add up to less than 1."""
    return count.clamp(min=torch.finfo(count.dtype).tiny)


def corrected_nll(probs: Tensor, T: Tensor, labels: Tensor, guard: float = LOG_GUARD) -> Tensor:
    """Forward-corrected loss per row, −log P(noisy = label | x) with P = Tᵀ p: (B, N), (N, N), (B,) -> (B,).

    `guard` is added inside the log. On a CPU, a label that is not a class raises an error.

    >>> corrected_nll(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([1]))
    tensor([0.6931])
    """
    labels = labels.long()  # some other types would index as a mask
    T[0].detach().gather(0, labels)  # raises on −1, which would index the last class; the host waits for no device
    return -torch.log((T.T[labels] * probs).sum(1) + guard)


def correct_labels(probs: Tensor, given: Tensor, threshold: float) -> Tensor:
    """The most probable label if its probability reaches the threshold, else the given one: (B, N), (B,) -> (B,).

    >>> correct_labels(torch.tensor([[0.1, 0.9], [0.6, 0.4]]), torch.tensor([0, 1]), threshold=0.8)
    tensor([1, 1])
    """
    confidence, guess = probs.max(1)
    return torch.where(confidence >= threshold, guess.to(given.dtype), given)
