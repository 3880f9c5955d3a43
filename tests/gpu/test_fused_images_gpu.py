"""On a GPU: images looked up, convolved and evaluated by our kernels, at the sizes of a ResNet-34 on 32×32 images."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fasten import fused_augment
from fasten.augment import Normalise, gather_crop_flip
from fasten.kernels import AVAILABLE
from fasten.nets import OneHead, build_backbone
from fasten.nets.columns import convolve, few_channels
from fasten.nets.fused_apply import apply_act
from fasten.nets.overlap import gradients

pytestmark = [
    pytest.mark.gpu,
    # What torch says where a matrix product is the first thing that its thread for the way back does.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not AVAILABLE, reason="triton is not installed"),
]


def close(found, wanted, rounding):
    assert (found.double() - wanted).norm() <= rounding * wanted.norm()


@pytest.mark.parametrize(
    ("size", "pad", "flip", "crop"), [(32, 4, True, None), (32, 0, True, None), (96, 0, False, 80)]
)
def test_images_are_looked_up_as_by_plain_operations(size, pad, flip, crop):
    images = torch.randint(0, 256, (500, size, size, 3), dtype=torch.uint8, device="cuda")
    rows, random = torch.randint(0, 500, (100,), device="cuda"), torch.rand(100, 5, device="cuda")
    normalise = Normalise((0.49, 0.48, 0.45), (0.2, 0.21, 0.22), True, images.device, torch.float32)
    assert fused_augment.usable(images, normalise)
    how = (images, rows, random, pad, flip, crop)
    torch.testing.assert_close(
        fused_augment.look(*how, normalise), normalise(gather_crop_flip(*how)), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("channels", "size"), [(64, 32), (128, 16), (256, 8), (512, 4)])
def test_running_statistics_are_applied_up_to_one_rounding(channels, size, residual):
    shape = (200, channels, size, size)
    x, z = (torch.randn(shape, device="cuda").to(torch.bfloat16, memory_format=torch.channels_last) for _ in range(2))
    weight, bias, mean = torch.randn(3, channels, device="cuda").unbind(0)
    var = torch.rand(channels, device="cuda") + 0.1
    wide = [t.double() for t in (x, mean, var, weight, bias)]
    wanted = F.relu(F.batch_norm(*wide, False, 0.0, 1e-5) + (z.double() if residual else 0))
    close(apply_act(x, weight, bias, mean, var, 1e-5, z if residual else None, True), wanted, 2**-8)


def test_few_channels_are_convolved_by_a_matrix_product():
    layer = nn.Conv2d(3, 64, 3, 1, 1, bias=False).to("cuda", memory_format=torch.channels_last)
    x = torch.randn(200, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    assert few_channels(x, layer)
    assert not few_channels(x.requires_grad_(), layer)
    y = convolve(x.detach(), layer, torch.bfloat16)
    dy = torch.randn_like(y)
    exact = layer.weight.detach().double().requires_grad_()
    wanted = F.conv2d(x.detach().double(), exact, None, 1, 1)
    close(y, wanted.detach(), 2**-7)
    found = torch.autograd.grad(y, layer.weight, dy)[0]
    close(found, torch.autograd.grad(wanted, exact, dy.double())[0], 2**-7)


def test_a_small_kernel_that_is_used_twice_has_both_gradients(monkeypatch):
    """The second use has a gradient of its input, and is convolved in another way."""
    calls = []
    monkeypatch.setattr("fasten.nets.overlap.convolve", lambda *how: calls.append(1) or convolve(*how))
    backbone = nn.Sequential(*[nn.Conv2d(3, 3, 3, padding=1, bias=False)] * 2, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    backbone.num_features = 3
    net = OneHead(backbone, 5).to("cuda", memory_format=torch.channels_last)
    x = torch.randn(200, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)

    def slope() -> torch.Tensor:
        return gradients(net(x)[0].square().sum(), [backbone[0].weight])[0].double()

    exact = slope()
    net.precision, net.parts.overlap = torch.bfloat16, True
    for _ in range(10):
        close(slope(), exact, 0.03)
    assert len(calls) == 10


def test_an_evaluated_network_says_the_same(monkeypatch):
    calls = []
    monkeypatch.setattr("fasten.nets.norm.apply_act", lambda *how: calls.append(1) or apply_act(*how))
    net = OneHead(build_backbone("resnet18", (3, 32, 32)), 10).to("cuda", memory_format=torch.channels_last)
    x = torch.randn(300, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    net(x)  # statistics of some kind
    net.eval()
    with torch.no_grad():
        exact = net(x)[0].double()
        net.precision = torch.bfloat16
        plain = net(x)[0].double()
        net.parts.fused = True
        ours = net(x)[0].double()
    assert len(calls) == 20  # all norms of a ResNet-18
    assert (ours - exact).norm() <= 1.5 * (plain - exact).norm()
