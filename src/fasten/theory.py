"""The bounds of the FasTEN paper as functions, and forms of them that hold; `docs/theory.md` compares them.

N is the number of classes, K the clean samples per class, n = |D̄| the noisy rows, γ the noise rate, d the VC dimension,
π the class prior, T[i, j] = P(noisy = j | true = i); f̄ is the noisy classifier and g(x) = p(noisy | x) its ideal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


def noisy_accuracy(T: ArrayLike, prior: ArrayLike | None = None) -> float:
    """Accuracy on *noisy* test labels of a network whose predictions are drawn from T's rows too: Σᵢ πᵢ Σⱼ Tᵢⱼ².

    This is not the accuracy on clean labels (which is Σᵢ πᵢ Tᵢᵢ for this network), nor, as the paper claims, an upper
    bound of it or of any other: a network that learns the truth has accuracy 1 on clean labels, and one that predicts
    the most common noisy label has Σᵢ πᵢ maxⱼ Tᵢⱼ on noisy ones, never less than this. `prior` is uniform by default.

    >>> round(noisy_accuracy([[0.8, 0.2], [0.0, 1.0]]), 2)
    0.84
    """
    T = np.atleast_2d(np.asarray(T, dtype=float))  # (N, N)
    pi = np.full(len(T), 1 / len(T)) if prior is None else np.asarray(prior, dtype=float)  # (N,)
    if T.shape != pi.shape * 2 or not all((p >= 0).all() and np.allclose(p.sum(axis=-1), 1) for p in (T, pi)):
        raise ValueError(f"T must be N by N and prior N long, no entry negative, rows of sum 1, got\nT={T}\nprior={pi}")
    return float(pi @ (T**2).sum(axis=1))


def noisy_accuracy_symmetric(num_classes: int, rate: float) -> float:
    """`noisy_accuracy` of symmetric noise, γ spread over all N classes; falls to 1/N as γ nears 1.

    >>> round(noisy_accuracy_symmetric(10, 0.8), 3)  # while this T keeps 28% of the labels
    0.136
    """
    _check(num_classes=num_classes, rate=rate)
    return 1 - (num_classes - 1) / num_classes * (2 * rate - rate**2)


def noisy_accuracy_asymmetric(rate: float) -> float:
    """`noisy_accuracy` of noise that moves γ of *every* class (CIFAR-10's spares five) to one other; least at γ = ½.

    >>> round(noisy_accuracy_asymmetric(0.4), 2)
    0.52
    """
    _check(rate=rate)
    return 2 * rate**2 - 2 * rate + 1


def vc_bound(epsilon: float, rows: int, vc_dimension: int, noise_rate: float = 0.0, *, clip: bool = True) -> float:
    """The paper's bound of P(|error on noisy training rows − true error| > ε): γ + 4 (2n)ᵈ exp(−ε² n / 8).

    With γ = 0 it is Vapnik's (one dichotomy short at d = 1). With noise it is not a bound: γ limits the difference
    between the errors on noisy and on clean labels, not the probability of a difference; and a sum above ε need not
    have a term above ε, only one above ε/2. If ε < γ, the probability can be 1. `clip=False` lets the value exceed 1.

    >>> round(vc_bound(0.1, 44_000, 3, noise_rate=0.4), 3)
    0.4
    """
    _check(epsilon=epsilon, rows=rows, vc_dimension=vc_dimension, noise_rate=noise_rate)
    log_tail = math.log(4) + vc_dimension * math.log(2 * rows) - epsilon**2 * rows / 8
    return min(1.0 if clip else math.inf, noise_rate + math.exp(min(700.0, log_tail)))  # exp(710) overflows


def vc_bound_valid(epsilon: float, rows: int, vc_dimension: int, noise_rate: float = 0.0) -> float:
    """A bound of the same probability that holds, for all binary classifiers of the class at once: 1 if ε ≤ γ.

    If γ is the share of these rows whose label is wrong, by any rule, the errors on noisy and on clean labels differ by
    at most γ, so sampling must supply ε − γ: 4 m exp(−(ε − γ)² n / 8), m = (2n)ᵈ, or 2n + 1 at d = 1 (Sauer).

    >>> vc_bound_valid(0.1, 44_000, 3, noise_rate=0.4), vc_bound_valid(0.5, 44_000, 3, noise_rate=0.4) < 1e-8
    (1.0, True)
    """
    _check(epsilon=epsilon, rows=rows, vc_dimension=vc_dimension, noise_rate=noise_rate)
    return math.exp(min(0.0, _log_4m(rows, vc_dimension) - max(0.0, epsilon - noise_rate) ** 2 * rows / 8))


def deviation(rows: int, vc_dimension: int, delta: float) -> float:
    """The ε at which `vc_bound_valid` without noise falls to δ: √(8/n · ln(4m/δ)). Above 1 it says nothing.

    >>> round(deviation(44_000, 20, 0.05), 3)
    0.205
    """
    _check(rows=rows, vc_dimension=vc_dimension, delta=delta)
    return math.sqrt(8 / rows * (_log_4m(rows, vc_dimension) - math.log(delta)))


@dataclass(frozen=True)
class CorrectOrDrop:
    """How far training and true error may differ, with confidence 1 − δ, in either case; less is better."""

    drop: float
    correct: float
    break_even: float  # correcting is better while it leaves less noise than this


def correct_or_drop(rows: int, vc_dimension: int, delta: float, *, dropped: float, noise_left: float) -> CorrectOrDrop:
    """Drop a share of the rows, or keep all and correct labels until only a share `noise_left` is wrong?

    This is the paper's case for correction, made with the valid bound. It compares two upper bounds, not two errors,
    and favours dropping: it assumes that every wrong row is found, and that the remaining rows are distributed as
    before.

    >>> round(correct_or_drop(44_000, 20, 0.05, dropped=0.4, noise_left=0.03).break_even, 3)
    0.054
    """
    _check(rows=rows, dropped=dropped, noise_left=noise_left)
    drop = deviation(max(1, round(rows * (1 - dropped))), vc_dimension, delta)
    keep = deviation(rows, vc_dimension, delta)
    return CorrectOrDrop(drop=drop, correct=noise_left + keep, break_even=drop - keep)


def entry_error_bound(epsilon: float, per_class: int) -> float:
    """Theorem 2: P(|T̂ᵢⱼ − Tᵢⱼ| > ε) ≤ 2 exp(−2 ε² K), for one entry.

    True if (1) noisy and true label are independent given x, (2) the K samples of class i are independent draws, and f̄
    was not trained on them, (3) f̄ = g. Class-dependent noise meets (1) only if x determines the true label (or
    overlapping classes have equal rows of T); otherwise T̂ tends to Σₖ E[p(k | x) | i] Tₖⱼ, not to Tᵢⱼ.

    >>> round(entry_error_bound(0.3, per_class=10), 2)
    0.33
    """
    _check(epsilon=epsilon, per_class=per_class)
    return min(1.0, 2 * math.exp(-2 * epsilon**2 * per_class))


def matrix_error_bound(epsilon: float, per_class: int, num_classes: int) -> float:
    """P(some entry of T̂ is off by more than ε) ≤ 2 N² exp(−2 ε² K): Theorem 2 for all N² entries at once.

    >>> round(matrix_error_bound(0.3, per_class=50, num_classes=10), 3)
    0.025
    """
    _check(epsilon=epsilon, per_class=per_class, num_classes=num_classes)
    return min(1.0, 2 * num_classes**2 * math.exp(-2 * epsilon**2 * per_class))


def clean_rows_needed(epsilon: float, delta: float, num_classes: int) -> int:
    """The smallest K, clean samples *per class*, at which `matrix_error_bound` is at most δ.

    >>> clean_rows_needed(0.1, 0.05, num_classes=10)
    415
    """
    _check(epsilon=epsilon, delta=delta, num_classes=num_classes)
    return math.ceil(math.log(2 * num_classes**2 / delta) / (2 * epsilon**2))


def entry_error(per_class: int, delta: float, num_classes: int) -> float:
    """The ε that K clean samples per class reach: with probability 1 − δ no entry of T̂ is off by more; at most 1.

    >>> round(entry_error(10, 0.05, num_classes=10), 2)
    0.64
    """
    _check(per_class=per_class, delta=delta, num_classes=num_classes)
    return min(1.0, math.sqrt(math.log(2 * num_classes**2 / delta) / (2 * per_class)))


def network_complexity(rows: int, num_classes: int, lipschitz: float, norms: Sequence[float]) -> float:
    """The first term of Theorem 1, N L B (√(2 H ln 2) + 1) Θ̄ Πₕ Φ̄ₕ / √n; the paper writes Φ̄ᵢ under Πₕ.

    `norms` are B, that of the inputs, then the Frobenius norms Φ̄₁, …, Φ̄_{H−1}, Θ̄ of the layers. Golowich et al. (2018)
    give it for each of N outputs, with ReLU but no biases, batch normalisation or skip connections.

    >>> round(network_complexity(44_000, 10, lipschitz=1.0, norms=[1.0, 2.0, 2.0, 2.0]), 2)
    1.16
    """
    _check(rows=rows, num_classes=num_classes, lipschitz=lipschitz, layers=len(norms) - 1)
    _check(**{f"norms[{h}]": norm for h, norm in enumerate(norms)})
    depth = math.sqrt(2 * (len(norms) - 1) * math.log(2)) + 1
    return num_classes * lipschitz * depth * math.prod(norms) / math.sqrt(rows)


def theorem1_as_printed(epsilon: float, per_class: int, rows: int, complexity: float) -> float:
    """Theorem 1's right-hand side, `network_complexity` + √(−ln ε / 2n) + 2 exp(−2 ε² K), not clipped: not a bound.

    What is wrong with it: a bound of a risk is added to a probability; ε is also used as that bound's confidence δ,
    hence ε ≤ 1; excess risk is taken for the error of an entry; the best network's distance from g is left out (norms
    near 0 force f̄ to 1/N, and the value to 0); and ε is spent in full on each of two summands.

    >>> round(theorem1_as_printed(0.3, per_class=10, rows=44_000, complexity=1.16), 2)
    1.49
    """
    _check(epsilon=epsilon, per_class=per_class, rows=rows, complexity=complexity)
    if epsilon > 1:
        raise ValueError(f"epsilon must be at most 1, got {epsilon}; the theorem's √(−log ε) is not real beyond")
    return complexity + math.sqrt(-math.log(epsilon) / (2 * rows)) + 2 * math.exp(-2 * epsilon**2 * per_class)


def excess_risk_bound(complexity: float, rows: int, loss_bound: float, delta: float) -> float:
    """With probability 1 − δ, what an empirical risk minimiser loses to the best of its class: 4 R + 2 M √(ln(2/δ)/2n).

    For n independent rows and losses in [0, M]. R is the Rademacher complexity of the losses: up to √2 times
    `network_complexity` (Maurer, 2016), L = √2 for softmax with log-loss. M exists if probabilities are e⁻ᴹ or more:
    adding 1e−7 in the logarithm, which is log-loss of (f̄ + 1e−7) / (1 + 1e−7 N) up to a constant, gives 16.1.

    >>> round(excess_risk_bound(0.01, 44_000, loss_bound=16.1, delta=0.05), 3)
    0.248
    """
    _check(complexity=complexity, rows=rows, loss_bound=loss_bound, delta=delta)
    return 4 * complexity + 2 * loss_bound * math.sqrt(math.log(2 / delta) / (2 * rows))


@dataclass(frozen=True)
class EntryBound:
    """P(|T̂ᵢⱼ − Tᵢⱼ| > approximation + estimation) ≤ failure."""

    approximation: float  # from f̄ ≠ g: no number of clean samples removes it
    estimation: float  # from K samples instead of all
    failure: float


def theorem1_valid(epsilon: float, per_class: int, prior: float, excess: float, failure: float = 0.0) -> EntryBound:
    """Theorem 1 in a form that holds: P(|T̂ᵢⱼ − Tᵢⱼ| > √(r / 2πᵢ) + ε) ≤ δ + 2 exp(−2 ε² K).

    Assumes (1) and (2) of `entry_error_bound`, x given class i distributed alike in noisy and clean rows, πᵢ = `prior`
    among the noisy ones, and f̄'s expected log-loss on those at most r = `excess` above g's except with probability
    δ = `failure`; r is the best network's excess, which is unknown, plus `excess_risk_bound`. Then E KL(g ‖ f̄) ≤ r, and
    |f̄ⱼ − gⱼ| ≤ ½‖f̄ − g‖₁ ≤ √(KL/2) (Pinsker) gives |E[T̂ᵢⱼ] − Tᵢⱼ|² ≤ E[(f̄ⱼ − gⱼ)² | i] ≤ r / 2πᵢ; Hoeffding adds ε.

    >>> round(theorem1_valid(0.1, per_class=415, prior=0.1, excess=0.002).approximation, 3)
    0.1
    """
    _check(epsilon=epsilon, per_class=per_class, prior=prior, excess=excess, failure=failure)
    approximation = min(1.0, math.sqrt(excess / (2 * prior)))
    return EntryBound(approximation, epsilon, min(1.0, failure + entry_error_bound(epsilon, per_class)))


def _log_4m(rows: int, vc_dimension: int) -> float:
    return math.log(4) + max(vc_dimension * math.log(2 * rows), math.log(2 * rows + 1))


def _check(**values: float) -> None:
    for name, value in values.items():
        if name in ("rate", "noise_rate", "dropped", "noise_left", "failure"):
            ok, expected = 0 <= value < 1, "in [0, 1); write 40% as 0.4"
        elif name in ("delta", "prior"):
            ok, expected = 0 < value < 1, "in (0, 1); write 5% as 0.05"
        elif name in ("rows", "per_class", "vc_dimension", "num_classes", "layers"):
            least = 2 if name == "num_classes" else 1
            ok, expected = value >= least and value % 1 == 0, f"a whole number, {least} or more"
        elif name in ("complexity", "excess"):
            ok, expected = 0 <= value < math.inf, "zero or positive, and finite"
        else:
            ok, expected = 0 < value < math.inf, "positive and finite"
        if not ok:
            raise ValueError(f"{name} must be {expected}, got {value}")
