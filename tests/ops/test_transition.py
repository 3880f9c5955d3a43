import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fasten import correct_labels, corrected_nll, estimate_transition
from fasten.ops.transition import joint_of_heads, set_apart
from reference.transition import ref_correct, ref_corrected_nll, ref_estimate

SIZES = st.integers(2, 12)
SEEDS = st.integers(0, 2**32 - 1)


def draw(k: int, rows: int, seed: int):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(k), rows), rng.dirichlet(np.ones(k), k), rng.integers(k, size=rows)


@pytest.mark.parametrize("k", [2, 10, 100])
def test_estimate_matches_the_reference_on_unbalanced_batches_with_absent_classes(k):
    p, _, y = draw(k, 32, seed=k)
    y[y == 1] = 0
    got = estimate_transition(torch.from_numpy(p), torch.from_numpy(y), k)
    np.testing.assert_allclose(got, ref_estimate(p, y, k), rtol=1e-12)


@pytest.mark.parametrize("k", [2, 10, 100])
def test_corrected_nll_matches_the_reference(k):
    p, T, y = draw(k, 32, seed=k)
    got = corrected_nll(*map(torch.from_numpy, (p, T, y)))
    np.testing.assert_allclose(got, ref_corrected_nll(p, T, y), rtol=1e-12)


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.uint8, torch.bool])
def test_labels_of_any_kind_have_the_same_loss(kind):
    p, T, y = draw(3, 3, seed=0)  # as many rows as classes, which a mask would fit, too
    y = torch.from_numpy(y.clip(0, 1))
    p, T = torch.from_numpy(p), torch.from_numpy(T)
    assert torch.equal(corrected_nll(p, T, y.to(kind)), corrected_nll(p, T, y))


@pytest.mark.parametrize("label", [-1, -100, 3])
def test_a_label_that_is_no_class_has_no_loss(label):
    p, T, _ = draw(3, 3, seed=0)
    with pytest.raises(RuntimeError, match=f"index {label} is out of bounds"):
        corrected_nll(torch.from_numpy(p), torch.from_numpy(T), torch.tensor([0, 1, label]))


@pytest.mark.parametrize("threshold", [0.0, 0.4, 0.8, 1.0, 1.1])
def test_correct_labels_matches_the_reference(threshold):
    p, _, y = draw(4, 64, seed=1)
    got = correct_labels(torch.from_numpy(p), torch.from_numpy(y), threshold)
    np.testing.assert_array_equal(got, ref_correct(p, y, threshold))


@given(SIZES, SEEDS)
@settings(deadline=None, max_examples=40)
def test_rows_of_the_estimate_sum_to_one(k, seed):
    p, _, y = draw(k, 3 * k, seed)
    T = estimate_transition(torch.from_numpy(p), torch.from_numpy(y), k)
    np.testing.assert_allclose(T.sum(1), 1, rtol=1e-12)
    assert T.min() >= 0


@given(SIZES, SEEDS)
@settings(deadline=None, max_examples=40)
def test_the_identity_gives_the_plain_loss(k, seed):
    p, _, y = draw(k, 16, seed)
    got = corrected_nll(torch.from_numpy(p), torch.eye(k, dtype=torch.float64), torch.from_numpy(y))
    np.testing.assert_allclose(got, -np.log(p[np.arange(16), y] + 1e-7), rtol=1e-9)


@given(SIZES, SEEDS)
@settings(deadline=None, max_examples=40)
def test_permuting_the_classes_permutes_the_answer(k, seed):
    p, T, y = draw(k, 16, seed)
    order = np.random.default_rng(seed).permutation(k)  # new class c is old class order[c]
    back = np.argsort(order)
    estimate = estimate_transition(torch.from_numpy(p), torch.from_numpy(y), k)
    permuted = estimate_transition(torch.from_numpy(p[:, order]), torch.from_numpy(back[y]), k)
    np.testing.assert_allclose(permuted, estimate[order][:, order], rtol=1e-12)
    loss = corrected_nll(*map(torch.from_numpy, (p, T, y)))
    same = corrected_nll(*map(torch.from_numpy, (p[:, order], T[order][:, order], back[y])))
    np.testing.assert_allclose(loss, same, rtol=1e-10)


def test_rows_of_weight_zero_do_not_count():
    p, _, y = draw(3, 9, seed=0)
    weight = torch.tensor([1.0] * 6 + [0.0] * 3)
    got = estimate_transition(torch.from_numpy(p), torch.from_numpy(y), 3, weight)
    np.testing.assert_allclose(got, ref_estimate(p[:6], y[:6], 3), rtol=1e-12)


@pytest.mark.parametrize("scale", [0.001, 0.5, 1.0, 40.0])
def test_weights_are_worth_what_they_are_in_proportion(scale):
    p, _, y = draw(3, 9, seed=0)
    times = np.array([1, 2, 0, 3, 1, 1, 2, 1, 1])
    T = estimate_transition(*map(torch.from_numpy, (p, y)), 3, torch.from_numpy(scale * times))
    np.testing.assert_allclose(T, ref_estimate(p.repeat(times, 0), y.repeat(times), 3), rtol=1e-12)


@pytest.mark.parametrize("scale", [0.001, 0.5, 1.0, 40.0])
def test_the_joint_of_weighted_rows_is_that_of_as_many_rows(scale):
    p, _, _ = draw(3, 9, seed=0)
    q, _, _ = draw(3, 9, seed=1)
    times = np.array([1, 2, 0, 3, 1, 1, 2, 1, 1])
    joint = joint_of_heads(*map(torch.from_numpy, (p, q, scale * times)))
    np.testing.assert_allclose(joint, p.repeat(times, 0).T @ q.repeat(times, 0) / times.sum(), rtol=1e-12)
    assert joint_of_heads(*map(torch.from_numpy, (p, q, 0.0 * times))).count_nonzero() == 0


def test_a_forbidden_label_costs_a_bounded_loss():
    loss = corrected_nll(torch.tensor([[1.0, 0.0]]), torch.eye(2), torch.tensor([1]))
    assert loss.item() == pytest.approx(16.118, abs=1e-3)


def test_a_label_is_corrected_from_the_threshold_on():
    probs, given = torch.tensor([[0.25, 0.75], [0.2500001, 0.7499999]]), torch.tensor([0, 0])
    assert correct_labels(probs, given, threshold=0.75).tolist() == [1, 0]


@pytest.mark.parametrize("left", [0.0, 1e-9, 1e-7, 1e-3, 1.0])
def test_a_row_of_which_other_classes_take_nearly_all_still_sums_to_one(left):
    T = torch.tensor([[0.6 * left, 0.4 * left, 1 - left], [0.1, 0.9, 0.0], [0.2, 0.2, 0.6]])
    apart = set_apart(T, torch.tensor([True, True, False]))
    torch.testing.assert_close(apart.sum(1), torch.ones(3))
    assert (apart[:2, 2] == 0).all()
    assert apart[0, 0] >= 0.6 - 1e-6
    torch.testing.assert_close(apart[1:], T[1:], rtol=1e-5, atol=1e-7)


def test_where_all_classes_are_known_t_stays_what_it_is_to_the_bit():
    T = torch.rand(10, 10, generator=torch.Generator().manual_seed(0)).softmax(1)
    assert torch.equal(set_apart(T, torch.ones(10, dtype=torch.bool)), T)
