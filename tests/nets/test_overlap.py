"""Convolutions with gradients beside give what plain ones give; here without streams, in tests/gpu with them."""

from __future__ import annotations

import copy
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fasten.nets import OneHead, build_backbone
from fasten.nets.overlap import OverlappedConv2d, gradients, overlap_convolutions


def trained(net: OneHead, overlap: bool) -> list[torch.Tensor]:
    net = copy.deepcopy(net).train()
    net.precision, net.parts.overlap = torch.bfloat16, overlap
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 3, 8, 8, generator=generator), torch.arange(6) % 4
    loss = F.cross_entropy(net(x)[0], y)
    twice = [gradients(loss, list(net.parameters()), retain_graph=True) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*twice, strict=True))
    return [loss.detach(), *twice[0]]


def test_outputs_and_gradients_are_those_of_plain_convolutions():
    torch.manual_seed(0)
    net = OneHead(build_backbone("resnet18", (3, 8, 8)), 4)
    for beside, plain in zip(trained(net, True), trained(net, False), strict=True):
        torch.testing.assert_close(beside, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("layer", "converted"),
    [
        (nn.Conv2d(3, 4, 3, bias=False), True),
        (nn.Conv2d(3, 4, 3), False),
        (nn.Conv2d(3, 4, 3, padding="same", bias=False), False),
        (nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect", bias=False), False),
    ],
)
def test_only_convolutions_that_it_can_do_are_converted(layer, converted):
    net = nn.Sequential(layer)
    overlap_convolutions(net, OneHead(build_backbone("mlp", (3,)), 2).parts)
    assert isinstance(net[0], OverlappedConv2d) == converted


def test_without_training_or_lower_precision_it_is_the_plain_convolution(monkeypatch):
    torch.manual_seed(0)
    net = OneHead(build_backbone("small-cnn", (3, 8, 8)), 4)
    net.parts.overlap = True
    monkeypatch.setattr("fasten.nets.overlap._Convolve", None)  # whoever touched it would fail
    x = torch.randn(2, 3, 8, 8)
    net(x)
    net.precision = torch.bfloat16
    with torch.no_grad():
        net(x)
    with pytest.raises(AttributeError):
        net(x)


class Repeated(nn.Module):
    """One convolution twice over, and another layer with the weights of a third."""

    num_features = 4

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.once = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(3))
        self.tied = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.tied.weight = self.again.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.again(self.first(self.first(x)).relu())
        return self.once(self.tied(x)).mean((2, 3))


@pytest.fixture
def beside(monkeypatch):
    """The weights whose gradients are computed beside the rest."""
    seen = []

    @contextmanager
    def spy(device, dy, x, low):
        seen.append(low)
        yield

    monkeypatch.setattr("fasten.nets.overlap._beside", spy)
    return seen


def test_weights_used_more_than_once_wait_for_their_gradients(beside):
    """Autograd adds these up on its own, and cannot know of a second stream."""
    torch.manual_seed(0)
    net = OneHead(Repeated(), 3)
    x = torch.randn(5, 4, 6, 6, generator=torch.Generator().manual_seed(1))
    found = {}
    for overlap in (False, True):
        net.precision, net.parts.overlap = torch.bfloat16, overlap
        found[overlap] = gradients(net(x)[0].square().sum(), list(net.parameters()))
    assert len(beside) == 1
    assert torch.equal(beside[0], net.backbone.once.weight.bfloat16())
    for ours, plain in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(ours, plain, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(("norm", "count"), [("split", 20), ("joint", 20), ("two-pass", 0)])
def test_a_network_that_is_called_twice_has_no_gradients_beside(beside, norm, count):
    net = OneHead(build_backbone("resnet18", (3, 8, 8)), 4)
    net.precision, net.parts.overlap = torch.bfloat16, True
    (a,), (b,) = net.each([torch.randn(3, 3, 8, 8), torch.randn(2, 3, 8, 8)], norm)
    gradients(a.sum() + b.sum(), list(net.parameters()))
    assert len(beside) == count
