"""Classifiers on shared features."""

import torch
from torch import nn

from fasten.nets import TwoHead, build_backbone


def test_two_heads_are_what_each_of_them_says():
    torch.manual_seed(0)
    net = TwoHead(build_backbone("mlp", (6,)), 3).double().eval()
    x = torch.randn(5, 6, dtype=torch.float64)
    clean, noisy = net(x)
    features = net.features(x)
    torch.testing.assert_close(clean, net.clean(features), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(noisy, net.noisy(features), rtol=1e-12, atol=1e-12)
    slopes = torch.autograd.grad(clean.square().sum(), [net.clean.weight, net.noisy.weight])
    assert slopes[0].abs().max() > 0
    assert not slopes[1].any()


def test_another_layer_in_the_place_of_a_head_is_used():
    net = TwoHead(build_backbone("mlp", (6,)), 3).eval()
    net.noisy = nn.Sequential(nn.Linear(net.num_features, 3, bias=False), nn.ReLU())
    clean, noisy = net(torch.randn(5, 6))
    assert clean.shape == noisy.shape == (5, 3)
    assert (noisy >= 0).all()
    net.clean = nn.Linear(net.num_features, 3, bias=False)
    assert net(torch.randn(5, 6))[0].shape == (5, 3)
