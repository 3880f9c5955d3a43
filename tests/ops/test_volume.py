import numpy as np
import pytest
import torch

from fasten.ops.volume import eliminated, log_volume

both = pytest.mark.parametrize("volume", [log_volume, eliminated])


@both
@pytest.mark.parametrize("k", [1, 2, 10, 100])
def test_value_and_gradient_match_numpy(k, volume):
    T = np.random.default_rng(k).dirichlet(np.ones(k), k) + np.eye(k)
    ours = torch.from_numpy(T).requires_grad_()
    value = volume(ours)
    np.testing.assert_allclose(value.item(), np.linalg.slogdet(T)[1], rtol=1e-9, atol=1e-15)
    (grad,) = torch.autograd.grad(3 * value, ours)
    np.testing.assert_allclose(grad, 3 * np.linalg.inv(T).T, rtol=1e-9, atol=1e-12)


@both
def test_rows_may_stand_in_any_order(volume):
    """The first ones may then have no volume of their own."""
    T = torch.tensor([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 0.2, 0.8]], dtype=torch.float64)
    np.testing.assert_allclose(volume(T), np.log(0.3), rtol=1e-12)


@both
@pytest.mark.parametrize("k", [10, 100])
def test_float32_is_exact_enough_for_heavy_noise(k, volume):
    T = torch.full((k, k), 0.9 / k).fill_diagonal_(0.1 + 0.9 / k).requires_grad_()
    value = volume(T)
    np.testing.assert_allclose(value.item(), (k - 1) * np.log(0.1), rtol=1e-4)
    (grad,) = torch.autograd.grad(value, T)
    np.testing.assert_allclose(grad, np.linalg.inv(T.detach().double().numpy()).T, rtol=1e-3)


@both
@pytest.mark.parametrize("uneven", [0.0, 0.3])
@pytest.mark.parametrize("k", [2, 10, 100, 300])
def test_float32_is_exact_enough_wherever_volminnet_may_start(k, uneven, volume):
    """With up to 1,000 classes, too, which take long: the gradient of the elimination is off by 0.0013 at most."""
    generator = torch.Generator().manual_seed(0)
    for first in (-20.0, -2.0, 1.0, 5.0):
        T = torch.sigmoid(first + uneven * torch.randn(k, k, generator=generator)).fill_diagonal_(1)
        T = (T / T.sum(1, keepdim=True)).requires_grad_()
        exact = T.detach().double().numpy()
        value = volume(T)
        np.testing.assert_allclose(value.item(), np.linalg.slogdet(exact)[1], rtol=1e-5, atol=1e-2)
        (grad,) = torch.autograd.grad(value, T)
        wanted = np.linalg.inv(exact).T
        assert np.linalg.norm(grad.numpy() - wanted) <= 2e-3 * np.linalg.norm(wanted)
