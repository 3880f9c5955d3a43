"""The fused kernels against batch norm in float64, part by part, at the sizes of a ResNet-34 on 32×32 images."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F

from fasten.kernels import AVAILABLE
from fasten.nets.fused_norm import norm_act, usable

MOMENTUM, EPS = 0.1, 1e-5
LAYERS = [(64, 32), (128, 16), (256, 8), (512, 4)]  # channels, height and width
KINDS = [(True, True), (False, True), (False, False), (True, False)]  # residual, relu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not AVAILABLE, reason="triton is not installed"),
]


def make(parts, channels, size, residual, dtype, seed=0):
    """x, weight, bias, running mean and variance, residual or None, dy."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, device="cuda")

    shape = (sum(parts), channels, size, size)
    x, z, dy = (normal(*shape).contiguous(memory_format=torch.channels_last) for _ in range(3))
    x = x * (normal(channels).abs() + 0.5)[:, None, None] + normal(channels)[:, None, None]
    x[: parts[0]] += 1.5  # the parts differ
    x, z, dy = (tensor.to(dtype) for tensor in (x, z, dy))
    weight, bias = normal(channels).abs() + 0.5, normal(channels)
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    return [*leaves, normal(channels), normal(channels).abs(), z.requires_grad_() if residual else None, dy]


def fused(tensors, parts, relu):
    """y, running mean and variance, and the gradients of x, weight, bias and residual."""
    x, weight, bias, mean, var, residual, dy = tensors
    mean, var = mean.clone(), var.clone()
    y, _ = norm_act(x, weight, bias, mean, var, parts, MOMENTUM, EPS, residual=residual, relu=relu)
    leaves = [leaf for leaf in (x, weight, bias, residual) if leaf is not None]
    return [y.detach(), mean, var, *torch.autograd.grad(y, leaves, dy)]


def reference(tensors, parts, relu):
    """The same in float64. Where the sign of y hangs on rounding, dy is set to zero in place, for both."""
    doubles = [t if t is None else t.detach().double().requires_grad_(t.requires_grad) for t in tensors[:-1]]
    x, weight, bias, mean, var, residual = doubles
    normed = [F.batch_norm(part, mean, var, weight, bias, True, MOMENTUM, EPS) for part in torch.split(x, list(parts))]
    y = torch.cat(normed) if residual is None else torch.cat(normed) + residual
    dy = tensors[-1]
    dy.mul_(y.detach().abs() > 1e-3)
    y = F.relu(y) if relu else y
    inputs = [leaf for leaf in (x, weight, bias, residual) if leaf is not None]
    return [y.detach(), mean, var, *torch.autograd.grad(y, inputs, dy.double())]


def check(tensors, parts, relu):
    wanted = reference(tensors, parts, relu)
    rounding = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 1e-5}[tensors[0].dtype]
    for got, want in zip(fused(tensors, parts, relu), wanted, strict=True):
        whole = want.dim() == 4  # the rest are per channel: statistics, and sums over some 100,000 rows
        rtol, atol = (rounding, max(rounding / 8, 1e-4)) if whole else (1e-4, 1e-2 if want.abs().max() > 10 else 1e-4)
        torch.testing.assert_close(got.double(), want, rtol=rtol, atol=atol)
        assert (got - want).norm() <= max(0.6 * rounding, 1e-5) * want.norm()


@pytest.mark.parametrize(("residual", "relu"), KINDS)
@pytest.mark.parametrize(("channels", "size"), LAYERS)
def test_two_parts_of_a_hundred_match_float64_up_to_one_rounding(channels, size, residual, relu):
    check(make((100, 100), channels, size, residual, torch.bfloat16), (100, 100), relu)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("channels", "size"), LAYERS)
def test_other_precisions_match_too(channels, size, dtype):
    check(make((100, 100), channels, size, True, dtype), (100, 100), True)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("parts", [(200,), (128, 37), (5, 100, 1), (1, 2)])
@pytest.mark.parametrize(("channels", "size"), [(64, 32), (48, 9), (16, 5), (512, 4)])
def test_parts_of_other_sizes_match_too(parts, channels, size, residual):
    check(make(parts, channels, size, residual, torch.bfloat16), parts, True)


def test_a_gradient_in_another_layout_is_the_same_gradient():
    *tensors, dy = make((100, 100), 128, 16, True, torch.bfloat16)
    here, there = (fused([*tensors, grad], (100, 100), True) for grad in (dy, dy.contiguous()))
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("channels", "size"), LAYERS)
def test_the_same_input_gives_the_same_bits(channels, size, residual):
    tensors = make((100, 100), channels, size, residual, torch.bfloat16)
    first = fused(tensors, (100, 100), True)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, fused(tensors, (100, 100), True), strict=True))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_call_does_not_wait_for_the_device():
    tensors = make((100, 100), 64, 32, True, torch.bfloat16)
    fused(tensors, (100, 100), True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        fused(tensors, (100, 100), True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("residual", [True, False])
def test_a_captured_call_does_what_a_plain_one_does(residual):
    tensors, others = (make((100, 100), 64, 32, residual, torch.bfloat16, seed) for seed in (0, 1))
    wanted = fused(others, (100, 100), True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            fused(tensors, (100, 100), True)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = fused(tensors, (100, 100), True)
    with torch.no_grad():
        for tensor, other in zip(tensors, others, strict=True):
            if tensor is not None:
                tensor.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(captured, wanted, strict=True))


def test_what_the_kernels_cannot_take_is_not_usable():
    x = torch.zeros(2, 16, 4, 4, device="cuda").contiguous(memory_format=torch.channels_last)
    x = x.bfloat16()
    assert all(usable(x.to(dtype)) for dtype in (torch.bfloat16, torch.float16))
    assert not any(usable(wrong) for wrong in (x.float(), x.contiguous(), x.cpu(), x[0], x[:, :8]))


@pytest.mark.parametrize(("residual", "relu"), KINDS)
@pytest.mark.parametrize(("channels", "size"), LAYERS)
def test_tangents_match_float64_up_to_a_rounding(channels, size, residual, relu):
    x, weight, bias, mean, var, z, dy = make((100,), channels, size, residual, torch.bfloat16)
    reference([x, weight, bias, mean, var, z, dy], (100,), relu)  # zeroes dy where the sign hangs on rounding
    points = [t.detach() for t in (x, weight, bias, z) if t is not None]
    along = [torch.randn_like(t) for t in points]

    def tangent(function, points, along):
        with forward_ad.dual_level():
            y = function(*(forward_ad.make_dual(p, t) for p, t in zip(points, along, strict=True)))
            return forward_ad.unpack_dual(y).tangent

    def ours(x, weight, bias, residual=None):
        return norm_act(x, weight, bias, mean, var, (100,), 0.0, EPS, residual=residual, relu=relu)[0]

    def plain(x, weight, bias, residual=0.0):
        y = F.batch_norm(x, None, None, weight, bias, True, 0.0, EPS) + residual
        return F.relu(y) if relu else y

    before = mean.clone()
    got = tangent(ours, points, along).double() * (dy != 0)
    want = tangent(plain, [t.double() for t in points], [t.double() for t in along]) * (dy != 0)
    assert torch.equal(mean, before)  # a virtual pass
    assert (got - want).norm() <= 2**-8 * want.norm()
