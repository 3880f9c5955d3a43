"""Kernels that look images up, convolve them and evaluate batch norms: what torch does in more of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fasten import fused_augment
from fasten.augment import Normalise, gather_crop_flip
from fasten.nets import OneHead, fused_norm
from fasten.nets.columns import convolve, few_channels
from fasten.nets.fused_apply import apply_act
from fasten.nets.resnet import BasicBlock, ResNet
from interpreter import in_the_interpreter, interpreted, not_interpreted

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")


@not_interpreted
def test_all_that_follows_holds_in_the_interpreter():
    in_the_interpreter(__file__)


@interpreted
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(("size", "pad", "crop"), [((8, 8), 2, None), ((5, 9), 0, None), ((40, 33), 3, 30)])
def test_images_are_looked_up_as_by_plain_operations(size, pad, crop, flip, channels):
    torch.manual_seed(0)
    images = torch.randint(0, 256, (6, *size, channels), dtype=torch.uint8)
    rows, random = torch.randint(0, 6, (9,)), torch.rand(9, 10)[:, 5:]  # the second view of two
    normalise = Normalise((0.4,) * channels, (0.2, 0.3, 0.5)[:channels], True, torch.device("cpu"), torch.float32)
    how = (images, rows, random, pad, flip, crop)
    found = fused_augment.look(*how, normalise)
    torch.testing.assert_close(found, normalise(gather_crop_flip(*how)), rtol=1e-6, atol=1e-6)
    assert found.is_contiguous(memory_format=torch.channels_last)


@interpreted
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("batch", "channels", "size"), [(3, 16, 5), (1, 80, 9)])
def test_running_statistics_are_applied_as_batch_norm_does(batch, channels, size, residual, relu):
    torch.manual_seed(0)
    shape = (batch, channels, size, size)
    x, z = (torch.randn(shape).contiguous(memory_format=torch.channels_last) for _ in range(2))
    weight, bias, mean, var = (*torch.randn(3, channels).unbind(0), torch.rand(channels) + 0.1)
    y = F.batch_norm(x, mean, var, weight, bias, False, 0.0, 1e-5) + (z if residual else 0)
    found = apply_act(x, weight, bias, mean, var, 1e-5, z if residual else None, relu)
    torch.testing.assert_close(found, F.relu(y) if relu else y, rtol=1e-5, atol=1e-5)


@interpreted
def test_a_residual_may_be_the_input_itself():
    x, one, none = (
        torch.randn(2, 16, 3, 3).contiguous(memory_format=torch.channels_last),
        torch.ones(16),
        torch.zeros(16),
    )
    torch.testing.assert_close(apply_act(x, one, none, none, one, 0.0, x, False), 2 * x)


@interpreted
def test_a_network_is_evaluated_by_the_kernel_but_not_where_tangents_may_come(monkeypatch):
    monkeypatch.setattr(fused_norm, "usable", lambda x: True)
    calls = []
    monkeypatch.setattr("fasten.nets.norm.apply_act", lambda *how: calls.append(1) or apply_act(*how))
    torch.manual_seed(0)
    net = OneHead(ResNet(BasicBlock, (1, 1), channels=3), 4).to(memory_format=torch.channels_last)
    x = torch.randn(6, 3, 8, 8)
    net(x)  # statistics of some kind
    net.eval()
    plain = net(x)[0].detach()
    net.parts.fused = True
    assert torch.equal(net(x)[0].detach(), plain)  # gradients may be asked for
    with torch.no_grad(), net.parts.using(virtual=True):
        assert torch.equal(net(x)[0], plain)
    assert calls == []
    with torch.no_grad():
        torch.testing.assert_close(net(x)[0], plain, rtol=1e-4, atol=1e-5)
    assert len(calls) == 6  # the stem's, two of each block, a shortcut's


@interpreted
@pytest.mark.parametrize(("channels", "kernel", "stride", "padding"), [(3, 3, 1, 1), (1, 5, 2, 2), (2, 3, (1, 2), 0)])
def test_few_channels_are_convolved_by_a_matrix_product(channels, kernel, stride, padding):
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, 16, kernel, stride, padding, bias=False).to(memory_format=torch.channels_last)
    x = torch.randn(5, channels, 9, 8).contiguous(memory_format=torch.channels_last)
    y, found = layer(x), convolve(x, layer, torch.float32)
    torch.testing.assert_close(found, y, rtol=1e-5, atol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last)
    wanted, got = (torch.autograd.grad(out.square().sum(), layer.weight)[0] for out in (y, found))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_what_lies_on_the_host_is_left_to_torch():
    images, layer = torch.zeros(2, 8, 8, 3, dtype=torch.uint8), nn.Conv2d(3, 16, 3)
    normalise = Normalise((0.5,) * 3, (0.5,) * 3, True, torch.device("cpu"), torch.float32)
    assert not fused_augment.usable(images, normalise)
    assert not few_channels(torch.zeros(2, 3, 8, 8).contiguous(memory_format=torch.channels_last), layer)
