"""Classifiers on shared features."""

import pytest
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


class Words(nn.Module):
    """Features of texts, as tokens or as a dictionary that holds them."""

    num_features = 4

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, x):
        return self.embedding(x["tokens"] if isinstance(x, dict) else x).mean(1)


def test_a_batch_may_be_of_tokens_or_a_dictionary():
    net, tokens = TwoHead(Words(), 3), torch.randint(10, (5, 6))
    features = net.backbone(tokens)
    for x in (tokens, {"tokens": tokens, "text": ["five"] * 5}):
        clean, noisy = net(x)
        torch.testing.assert_close(clean, net.clean(features))
        torch.testing.assert_close(noisy, net.noisy(features))
    assert net.double()(tokens)[0].dtype == torch.float64
    net.float().precision = torch.bfloat16
    assert net(tokens)[0].dtype == torch.float32


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_logits_have_the_precision_of_the_heads(precision, autocast):
    net = TwoHead(build_backbone("mlp", (6,)), 3).eval()
    net.precision = precision
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        clean, _ = net(torch.randn(5, 6))
        assert net.features(torch.randn(5, 6)).dtype == torch.float32
    assert clean.dtype == (torch.bfloat16 if autocast else torch.float32)
