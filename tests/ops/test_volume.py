import numpy as np
import pytest
import torch

from fasten.ops.volume import log_volume


@pytest.mark.parametrize("k", [1, 2, 10, 100])
def test_value_and_gradient_match_numpy(k):
    T = np.random.default_rng(k).dirichlet(np.ones(k), k) + np.eye(k)
    ours = torch.from_numpy(T).requires_grad_()
    value = log_volume(ours)
    np.testing.assert_allclose(value.item(), np.linalg.slogdet(T)[1], rtol=1e-9, atol=1e-15)
    (grad,) = torch.autograd.grad(3 * value, ours)
    np.testing.assert_allclose(grad, 3 * np.linalg.inv(T).T, rtol=1e-9, atol=1e-12)


def test_rows_may_stand_in_any_order():
    """The first ones may then have no volume of their own."""
    T = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 0.2, 0.8]], dtype=torch.float64)
    np.testing.assert_allclose(log_volume(T), np.log(0.3), rtol=1e-12)


@pytest.mark.parametrize("k", [10, 100])
def test_float32_is_exact_enough_for_heavy_noise(k):
    T = torch.full((k, k), 0.9 / k).fill_diagonal_(0.1 + 0.9 / k).requires_grad_()
    value = log_volume(T)
    np.testing.assert_allclose(value.item(), (k - 1) * np.log(0.1), rtol=1e-4)
    (grad,) = torch.autograd.grad(value, T)
    np.testing.assert_allclose(grad, np.linalg.inv(T.detach().double().numpy()).T, rtol=1e-3)
