"""Convolutions with gradients beside give what plain ones give; here without streams, in tests/gpu with them."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fasten.nets import OneHead, build_backbone, overlap
from fasten.nets.overlap import OverlappedConv2d, gradients, overlap_convolutions


def trained(net: OneHead, beside: bool) -> list[torch.Tensor]:
    net = copy.deepcopy(net).train()
    net.precision, net.parts.overlap = torch.bfloat16, beside
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


def test_gradients_of_weights_used_more_than_once_add_up():
    """Autograd adds these up on its own, and cannot know of a second stream."""
    torch.manual_seed(0)
    net = OneHead(Repeated(), 3)
    x = torch.randn(5, 4, 6, 6, generator=torch.Generator().manual_seed(1))
    assert_as_plain(net, lambda: net(x)[0].square().sum())


@pytest.mark.parametrize("norm", ["split", "joint", "two-pass"])
def test_gradients_of_several_passes_add_up(norm):
    torch.manual_seed(0)
    net = OneHead(build_backbone("small-cnn", (3, 8, 8)), 4)
    batches = [torch.randn(n, 3, 8, 8) for n in (3, 2, 4)]
    assert_as_plain(net, lambda: sum(logits.square().sum() for (logits,) in net.each(batches, norm)))


def assert_as_plain(net, loss_of):
    found = {}
    for beside in (False, True):
        net.precision, net.parts.overlap = torch.bfloat16, beside
        found[beside] = gradients(loss_of(), list(net.parameters()))
    for ours, plain in zip(found[True], found[False], strict=True):
        assert F.cosine_similarity(ours.flatten(), plain.flatten(), dim=0) > 0.9999
        torch.testing.assert_close(ours, plain, rtol=2e-2, atol=1e-3 * float(plain.abs().max()))


def test_what_failed_leaves_nothing_behind():
    torch.manual_seed(0)
    net = OneHead(build_backbone("small-cnn", (3, 8, 8)), 4)
    net.precision, net.parts.overlap = torch.bfloat16, True
    x = torch.randn(2, 3, 8, 8)
    loss = net(x)[0].sum()
    first = gradients(loss, list(net.parameters()))
    with pytest.raises(RuntimeError):
        gradients(loss, list(net.parameters()))  # the graph is gone
    again = gradients(net(x)[0].sum(), list(net.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not overlap._found
