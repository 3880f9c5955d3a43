"""The paper's bounds, tried by simulation: the valid ones must hold, the others must fail where we say so."""

import doctest
import inspect
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fasten import theory

SEEDS = st.integers(0, 2**32 - 1)
quick = settings(max_examples=50, deadline=None, derandomize=True)


def symmetric(num_classes, rate):
    return (1 - rate) * np.eye(num_classes) + rate / num_classes


def asymmetric(num_classes, rate):
    return (1 - rate) * np.eye(num_classes) + rate * np.roll(np.eye(num_classes), 1, axis=1)


def draw(rng, rows):
    """One draw from each row of probabilities."""
    return (rng.random(len(rows))[:, None] > rows.cumsum(axis=1)).sum(axis=1).clip(max=rows.shape[1] - 1)


class World:
    """Finitely many inputs x, with p(x | class) and g(x) = p(noisy | x) known, noisy ⟂ true given x."""

    def __init__(self, seed, num_classes=3, num_inputs=8):
        rng = np.random.default_rng(seed)
        self.prior = 0.5 / num_classes + 0.5 * rng.dirichlet(np.ones(num_classes))
        self.inputs = rng.dirichlet(np.ones(num_inputs), num_classes)  # (N, inputs): p(x | class)
        self.g = rng.dirichlet(np.full(num_classes, 0.3), num_inputs)  # (inputs, N)
        self.T = self.inputs @ self.g

    def excess(self, f):
        """Expected log-loss of f over that of g."""
        kl = (self.g * np.log(np.where(self.g > 0, self.g / f, 1.0))).sum(axis=1)
        return float(self.prior @ self.inputs @ kl)

    def estimates(self, f, per_class, trials, seed=0):
        """(trials, N, N): T̂ from `per_class` clean samples of each class."""
        rng = np.random.default_rng(seed)
        return np.stack([rng.multinomial(per_class, p, trials) @ f / per_class for p in self.inputs], axis=1)


def biased(world, pull=0.3):
    """A classifier that says the first class too often, everywhere."""
    return (1 - pull) * world.g + pull * np.array([0.8, 0.1, 0.1])


MIXED = np.array([[0.9, 0.1, 0.0], [0.3, 0.4, 0.3], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("T", "prior", "formula"),
    [
        pytest.param(symmetric(4, 0.6), [0.25] * 4, theory.noisy_accuracy_symmetric(4, 0.6), id="symmetric"),
        pytest.param(asymmetric(4, 0.3), [0.25] * 4, theory.noisy_accuracy_asymmetric(0.3), id="asymmetric"),
        pytest.param(MIXED, [0.1, 0.7, 0.2], theory.noisy_accuracy(MIXED, [0.1, 0.7, 0.2]), id="unbalanced"),
    ],
)
def test_formulas_are_what_a_network_with_confusion_T_scores_on_noisy_labels(T, prior, formula):
    rng = np.random.default_rng(0)
    truth = rng.choice(len(T), p=prior, size=200_000)
    noisy, guess = draw(rng, T[truth]), draw(rng, T[truth])
    assert formula == pytest.approx((guess == noisy).mean(), abs=0.005)
    assert prior @ np.diag(T) == pytest.approx((guess == truth).mean(), abs=0.005)  # on clean labels: another number


@quick
@given(num_classes=st.integers(2, 30), rate=st.floats(0, 0.99))
def test_closed_forms_agree_with_the_matrices(num_classes, rate):
    expected = sum(p**2 for row in symmetric(num_classes, rate) for p in row) / num_classes
    assert theory.noisy_accuracy_symmetric(num_classes, rate) == pytest.approx(expected, rel=1e-12)
    expected = sum(p**2 for row in asymmetric(num_classes, rate) for p in row) / num_classes
    assert theory.noisy_accuracy_asymmetric(rate) == pytest.approx(expected, rel=1e-12)


def test_symmetric_accuracy_falls_all_the_way_to_chance_at_rate_one():
    values = [theory.noisy_accuracy_symmetric(10, rate) for rate in np.linspace(0, 0.999, 200)]
    assert values[0] == 1.0
    assert np.all(np.diff(values) < 0)
    assert values[-1] == pytest.approx(1 / 10, abs=1e-5)


def test_asymmetric_accuracy_is_least_at_one_half_and_even_about_it():
    values = np.array([theory.noisy_accuracy_asymmetric(rate) for rate in np.linspace(0, 0.99, 199)])
    assert np.linspace(0, 0.99, 199)[values.argmin()] == pytest.approx(0.5, abs=0.01)
    assert theory.noisy_accuracy_asymmetric(0.5) == 0.5
    assert theory.noisy_accuracy_asymmetric(0.3) == pytest.approx(theory.noisy_accuracy_asymmetric(0.7))


@quick
@given(seed=SEEDS)
def test_noisy_accuracy_bounds_neither_accuracy_from_above(seed):
    T = np.random.default_rng(seed).dirichlet(np.ones(4), 4)
    best_on_noisy = T.max(axis=1).mean()  # the commonest noisy label of each class as prediction
    assert theory.noisy_accuracy(T) < best_on_noisy
    assert theory.noisy_accuracy(T) < 1.0  # what the true label as prediction scores on clean labels


def test_half_the_classes_clean_is_half_way_between_clean_and_the_formula():
    T = np.eye(10)
    T[:5] = asymmetric(10, 0.4)[:5]
    assert theory.noisy_accuracy(T) == pytest.approx((1 + theory.noisy_accuracy_asymmetric(0.4)) / 2)


@pytest.mark.parametrize("T", [[[0.5, 0.6], [0, 1]], [[1.5, -0.5], [0, 1]], [[0.5, 0.5]], 0.3, [[math.nan]]])
def test_what_is_not_a_transition_matrix_is_refused(T):
    with pytest.raises(ValueError, match="T must be N by N"):
        theory.noisy_accuracy(T)


@pytest.mark.parametrize("prior", [[0.5, 0.4], [1.0], [1.5, -0.5], [[0.5, 0.5]]])
def test_what_is_not_a_prior_is_refused(prior):
    with pytest.raises(ValueError, match="prior N long"):
        theory.noisy_accuracy(np.eye(2), prior)


def worst_deviations(rows, flipped, trials, seed=0):
    """Per trial, sup over thresholds of |error on noisy rows − true error|; truth is x > 0.4, x uniform."""
    rng, thresholds = np.random.default_rng(seed), np.linspace(0, 1, 41)
    for _ in range(trials):
        x = rng.random(rows)
        labels = x > 0.4
        labels[np.argsort(x)[: int(flipped * rows)]] ^= True  # the same end each time: as harmful as can be
        errors = ((x > thresholds[:, None]) != labels).mean(axis=1)
        yield np.abs(errors - np.abs(thresholds - 0.4)).max()


@pytest.mark.parametrize("flipped", [0.0, 0.1, 0.3])
def test_valid_vc_bound_holds_for_thresholds(flipped):
    rows, trials = 2_000, 40
    worst = np.array(list(worst_deviations(rows, flipped, trials)))
    for epsilon in flipped + np.array([0.01, 0.05, 0.2, 0.25]):
        assert (worst > epsilon).mean() <= theory.vc_bound_valid(epsilon, rows, 1, flipped)
    assert theory.vc_bound_valid(flipped + 0.25, rows, 1, flipped) < 0.01  # so the test says something


def test_printed_vc_bound_fails_where_the_noise_exceeds_epsilon():
    worst = np.array(list(worst_deviations(10_000, flipped=0.3, trials=10)))
    assert (worst > 0.2).all()  # probability 1
    assert theory.vc_bound(0.2, 10_000, 1, noise_rate=0.3) < 0.31
    assert theory.vc_bound_valid(0.2, 10_000, 1, noise_rate=0.3) == 1.0


@quick
@given(seed=SEEDS, rows=st.integers(1, 50))
def test_flipped_share_bounds_the_difference_of_the_errors(seed, rows):
    rng = np.random.default_rng(seed)
    guess, clean, flip = rng.random((3, rows)) < 0.5
    difference = (guess != (clean ^ flip)).mean() - (guess != clean).mean()
    assert abs(difference) <= flip.mean() + 1e-12


@pytest.mark.parametrize("vc_dimension", [1, 2, 3])
def test_growth_used_by_the_valid_bound_is_no_less_than_sauers(vc_dimension):
    for rows in (1, 2, 5, 50):
        sauer = sum(math.comb(2 * rows, k) for k in range(vc_dimension + 1))
        m = math.exp(theory.deviation(rows, vc_dimension, 0.5) ** 2 * rows / 8) * 0.5 / 4  # solved for m
        assert m >= sauer * (1 - 1e-9)


def test_vc_bound_matches_the_formula_by_hand_and_does_not_overflow():
    by_hand = 0.1 + 4 * (2 * 500) ** 2 * math.exp(-(0.9**2) * 500 / 8)
    assert theory.vc_bound(0.9, 500, 2, 0.1, clip=False) == pytest.approx(by_hand, rel=1e-12)
    assert theory.vc_bound(0.1, 500, 2, clip=False) > 1
    assert theory.vc_bound(0.1, 44_000, 10**6) == 1.0
    assert theory.vc_bound_valid(0.1, 44_000, 10**6) == 1.0


@quick
@given(rows=st.integers(1, 10**6), vc_dimension=st.integers(1, 100), delta=st.floats(1e-6, 0.99))
def test_deviation_is_where_the_bound_falls_to_delta(rows, vc_dimension, delta):
    epsilon = theory.deviation(rows, vc_dimension, delta)
    assert theory.vc_bound_valid(epsilon, rows, vc_dimension) == pytest.approx(delta, rel=1e-6)
    assert theory.vc_bound_valid(epsilon * 0.999, rows, vc_dimension) > delta


def test_deviation_matches_the_closed_form_by_hand():
    expected = math.sqrt(8 / 1000 * (5 * math.log(2000) + math.log(4 / 0.1)))
    assert theory.deviation(1000, 5, 0.1) == pytest.approx(expected, rel=1e-12)


@quick
@given(dropped=st.floats(0.01, 0.99), share=st.floats(0, 2), rows=st.integers(1_000, 10**6))
def test_correcting_is_better_exactly_below_the_break_even_noise(dropped, share, rows):
    break_even = theory.correct_or_drop(rows, 10, 0.05, dropped=dropped, noise_left=0.0).break_even
    noise_left = min(0.99, share * break_even)
    choice = theory.correct_or_drop(rows, 10, 0.05, dropped=dropped, noise_left=noise_left)
    if abs(noise_left - break_even) > 1e-9:
        assert (choice.correct < choice.drop) == (noise_left < break_even)
    assert break_even > 0  # correction without a miss always wins
    assert choice.drop == pytest.approx(theory.deviation(round(rows - dropped * rows), 10, 0.05), rel=1e-3)


@pytest.mark.parametrize("per_class", [1, 5, 40])
@pytest.mark.parametrize("epsilon", [0.05, 0.2, 0.4])
def test_theorem_2_holds_per_entry_and_for_the_matrix(per_class, epsilon):
    world = World(seed=3)
    off = np.abs(world.estimates(world.g, per_class, trials=4_000) - world.T) > epsilon  # (trials, N, N)
    assert off.mean(axis=0).max() <= theory.entry_error_bound(epsilon, per_class)
    assert off.any(axis=(1, 2)).mean() <= theory.matrix_error_bound(epsilon, per_class, 3)


def test_theorem_2_is_within_a_factor_of_ten_for_a_coin():
    """Noisy labels that x determines, half and half: the worst case of Hoeffding's inequality."""
    world = World(seed=0, num_classes=2, num_inputs=2)
    world.inputs, world.g, world.T = np.full((2, 2), 0.5), np.eye(2), np.full((2, 2), 0.5)
    off = np.abs(world.estimates(world.g, 100, trials=20_000) - world.T)[:, 0, 0] > 0.1
    assert theory.entry_error_bound(0.1, 100) / 10 < off.mean() <= theory.entry_error_bound(0.1, 100)


@quick
@given(epsilon=st.floats(0.01, 0.9), delta=st.floats(1e-6, 0.99), num_classes=st.integers(2, 1000))
def test_clean_rows_needed_suffice_and_one_fewer_does_not(epsilon, delta, num_classes):
    def bound(per_class):
        return 2 * num_classes**2 * math.exp(-2 * epsilon**2 * per_class)

    needed = theory.clean_rows_needed(epsilon, delta, num_classes)
    assert bound(needed) <= delta * (1 + 1e-9)
    assert bound(needed - 1) > delta * (1 - 1e-9)


@quick
@given(per_class=st.integers(15, 10**5), delta=st.floats(1e-6, 0.99), num_classes=st.integers(2, 1000))
def test_entry_error_inverts_the_matrix_bound(per_class, delta, num_classes):
    epsilon = theory.entry_error(per_class, delta, num_classes)
    assert epsilon < theory.entry_error(1, delta, num_classes) == 1.0  # no entry can be off by more
    assert theory.matrix_error_bound(epsilon, per_class, num_classes) == pytest.approx(delta, rel=1e-9)
    assert abs(theory.clean_rows_needed(epsilon, delta, num_classes) - per_class) <= 1


def test_class_dependent_noise_on_overlapping_classes_biases_a_perfect_classifier():
    """Theorem 2 needs noisy ⟂ true given x; class-dependent noise alone leaves an error that no K removes."""
    inputs, T = np.array([[0.7, 0.3], [0.3, 0.7]]), asymmetric(2, 0.2)  # p(x | class); two inputs, equal prior
    posterior = inputs.T / inputs.sum(axis=0)[:, None]  # (inputs, N): p(class | x)
    limit = inputs @ posterior @ T  # T̂ from g = posterior @ T, with all the samples there are
    assert np.abs(limit - T).max() > 0.2
    assert theory.matrix_error_bound(0.2, per_class=1_000, num_classes=2) < 1e-30


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("epsilon", [0.03, 0.1])
def test_valid_theorem_1_holds_for_a_biased_classifier(seed, epsilon):
    world, per_class = World(seed), 200
    f = biased(world)
    error = np.abs(world.estimates(f, per_class, trials=1_000) - world.T)
    for i, prior in enumerate(world.prior):
        bound = theory.theorem1_valid(epsilon, per_class, prior, world.excess(f))
        off = (error[:, i] > bound.approximation + bound.estimation).mean(axis=0)
        assert off.max() <= bound.failure


def test_theorem_2_fails_for_the_biased_classifier_so_the_extra_term_is_needed():
    world = World(seed=0)
    error = np.abs(world.estimates(biased(world), 500, trials=200) - world.T)
    assert (error > 0.1).mean(axis=0).max() == 1.0
    assert theory.entry_error_bound(0.1, 500) < 1e-3


@quick
@given(seed=SEEDS, pull=st.floats(0.01, 0.99))
def test_approximation_term_covers_the_bias_of_every_entry(seed, pull):
    world = World(seed)
    f = biased(world, pull)
    bias = np.abs(world.inputs @ f - world.T).max(axis=1)
    for b, prior in zip(bias, world.prior, strict=True):
        assert b <= theory.theorem1_valid(0.1, 1, prior, world.excess(f)).approximation + 1e-12


def test_approximation_term_is_within_a_factor_of_the_bias_for_a_small_pull():
    """Two classes, one input each, g = ½: KL ≈ 2 b², so the bound √(KL / 2π) is b √2 when both are off by b."""
    world = World(seed=0, num_classes=2, num_inputs=2)
    world.prior, world.inputs, world.g = np.full(2, 0.5), np.eye(2), np.full((2, 2), 0.5)
    f = world.g + 0.01 * np.array([1, -1])
    approximation = theory.theorem1_valid(0.1, 1, 0.5, world.excess(f)).approximation
    assert approximation == pytest.approx(0.01 * math.sqrt(2), rel=1e-3)


def test_valid_theorem_1_without_excess_is_theorem_2():
    bound = theory.theorem1_valid(0.1, 300, prior=0.1, excess=0.0)
    assert bound == theory.EntryBound(0.0, 0.1, theory.entry_error_bound(0.1, 300))
    assert theory.theorem1_valid(0.1, 300, 0.1, 0.0, failure=0.05).failure == pytest.approx(0.05 + bound.failure)
    assert theory.theorem1_valid(0.1, 300, prior=0.1, excess=50.0).approximation == 1.0


def test_excess_risk_bound_holds_for_the_minimiser_over_a_few_classifiers():
    world, rng, rows, delta = World(seed=2), np.random.default_rng(0), 3_000, 0.1
    candidates = np.stack([0.9 * rng.dirichlet(np.ones(3), 8) + 0.1 / 3 for _ in range(6)] + [biased(world)])
    losses = -np.log(candidates)  # (classifiers, inputs, N)
    joint = (world.prior @ world.inputs)[:, None] * world.g
    risks = (losses * joint).sum(axis=(1, 2))
    top = float(losses.max())
    massart = top * math.sqrt(2 * math.log(len(candidates)) / rows)  # Rademacher complexity of finitely many
    bound = theory.excess_risk_bound(massart, rows, top, delta)
    counts = rng.multinomial(rows, joint.ravel(), 500).reshape(500, 1, *joint.shape)
    chosen = (losses * counts).sum(axis=(2, 3)).argmin(axis=1)
    assert (risks[chosen] - risks.min() > bound).mean() <= delta
    assert bound < np.ptp(risks)  # so the test says something


def test_excess_risk_bound_matches_the_formula_by_hand():
    by_hand = 4 * 0.02 + 2 * 3.0 * math.sqrt(math.log(2 / 0.1) / (2 * 500))
    assert theory.excess_risk_bound(0.02, 500, 3.0, 0.1) == pytest.approx(by_hand, rel=1e-12)


def test_printed_theorem_1_matches_the_formula_by_hand():
    complexity = theory.network_complexity(900, num_classes=3, lipschitz=2.0, norms=[1.5, 0.5, 0.7, 0.2])
    by_hand = 3 * 2.0 * 1.5 * (math.sqrt(2 * 3 * math.log(2)) + 1) * 0.2 * (0.5 * 0.7) / 30
    assert complexity == pytest.approx(by_hand, rel=1e-12)
    by_hand += math.sqrt(-math.log(0.2)) / math.sqrt(2 * 900) + 2 * math.exp(-2 * 0.04 * 10)
    assert theory.theorem1_as_printed(0.2, 10, 900, complexity) == pytest.approx(by_hand, rel=1e-12)


def test_printed_theorem_1_calls_a_certain_event_impossible():
    """Norms near 0 leave one network, the constant 1/N: T̂ is 1/N for sure, whatever T; the printed value nears 0."""
    T, rows, per_class = symmetric(10, 0.2), 10**8, 1_000
    complexity = theory.network_complexity(rows, 10, lipschitz=math.sqrt(2), norms=[1.0, 1e-3, 1e-3])
    assert np.abs(1 / 10 - T).max() > 0.3  # the error of every such T̂: probability 1
    assert theory.theorem1_as_printed(0.3, per_class, rows, complexity) < 1e-3
    kl = -(T * np.log(1 / 10 / T)).sum(axis=1).mean()
    assert theory.theorem1_valid(0.3, per_class, 0.1, kl).approximation == 1.0  # the valid form promises nothing


def test_printed_theorem_1_is_vacuous_at_the_papers_size_and_has_no_value_beyond_one():
    complexity = theory.network_complexity(44_000, 10, lipschitz=1.0, norms=[1.0, 2.0, 2.0, 2.0])
    assert theory.theorem1_as_printed(0.1, 10**6, 44_000, complexity) > 1  # whatever K
    confidences = [theory.theorem1_as_printed(e, 10**9, 100, complexity) - complexity for e in (0.5, 0.1, 0.01)]
    expected = [math.sqrt(math.log(1 / e) / 200) for e in (0.5, 0.1, 0.01)]
    assert confidences == pytest.approx(expected)  # ε plays the part of a confidence
    with pytest.raises(ValueError, match="at most 1"):
        theory.theorem1_as_printed(1.1, 10, 44_000, complexity)


@quick
@given(epsilon=st.floats(0.01, 1), per_class=st.integers(1, 1000))
def test_every_bound_of_a_probability_is_at_most_one_and_falls_with_more_samples(epsilon, per_class):
    bounds = [
        lambda k: theory.entry_error_bound(epsilon, k),
        lambda k: theory.matrix_error_bound(epsilon, k, 10),
        lambda k: theory.theorem1_valid(epsilon, k, 0.1, 0.01, failure=0.01).failure,
        lambda k: theory.vc_bound_valid(epsilon, 10**6 * k, 3, 0.1),
    ]
    for bound in bounds:
        assert 0 <= bound(per_class + 1) <= bound(per_class) <= 1


SHARES = ("rate", "noise_rate", "dropped", "noise_left", "failure")
GOOD = {
    **dict.fromkeys((*SHARES, "delta", "prior", "epsilon", "lipschitz", "loss_bound", "excess", "complexity"), 0.1),
    **dict.fromkeys(("rows", "per_class", "vc_dimension", "num_classes"), 10),
    "norms": (1.0, 2.0),
}
SHARE, OPEN, POSITIVE, COUNT = (-0.1, 1.0, 40, math.nan), (0.0, 1.0, -1, math.nan), (0.0, -1.0, math.inf), (0, -3, 1.5)
BAD = {
    **dict.fromkeys(SHARES, SHARE),
    **dict.fromkeys(("delta", "prior"), OPEN),
    **dict.fromkeys(("epsilon", "lipschitz", "loss_bound"), (*POSITIVE, math.nan)),
    **dict.fromkeys(("excess", "complexity"), (-1.0, math.inf, math.nan)),
    **dict.fromkeys(("rows", "per_class", "vc_dimension"), COUNT),
    "num_classes": (*COUNT, 1),
}
FUNCTIONS = dict(inspect.getmembers(theory, inspect.isfunction))
CASES = [
    (name, argument)
    for name, function in FUNCTIONS.items()
    for argument in inspect.signature(function).parameters
    if not name.startswith("_") and name != "noisy_accuracy" and argument in BAD
]


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_a_bad_argument_is_refused_by_name(name, argument):
    function = FUNCTIONS[name]
    good = {known: GOOD[known] for known in inspect.signature(function).parameters if known in GOOD}
    function(**good)
    for value in BAD[argument]:
        with pytest.raises(ValueError, match=f"^{argument} must be .*, got {value}"):
            function(**(good | {argument: value}))


@pytest.mark.parametrize("norms", [(), (1.0,), (1.0, 0.0), (1.0, math.nan)])
def test_norms_that_make_no_network_are_refused(norms):
    with pytest.raises(ValueError, match=r"^(layers|norms\[1\]) must be"):
        theory.network_complexity(100, 10, 1.0, norms)


def test_numbers_in_the_theory_page_are_those_of_the_functions():
    page = str(Path(__file__).parents[1] / "docs" / "theory.md")
    result = doctest.testfile(page, module_relative=False, encoding="utf-8")
    assert result.attempted >= 6
    assert result.failed == 0
