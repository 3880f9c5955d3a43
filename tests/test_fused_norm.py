"""The fused kernels do what batch norm, part by part, then the sum and ReLU do. Triton's interpreter runs them here."""

import copy

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F

from fasten.contract import Examples
from fasten.nets import OneHead, fused_norm
from fasten.nets.fused_norm import norm_act, usable
from fasten.nets.resnet import BasicBlock, ResNet
from fasten.ops.lookahead import look_ahead
from interpreter import in_the_interpreter, interpreted, not_interpreted

MOMENTUM, EPS = 0.1, 1e-5

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")


def reference(x, weight, bias, mean, var, parts, residual, relu):
    """In float64; `mean` and `var`, the running statistics, change in place."""
    normed = [F.batch_norm(part, mean, var, weight, bias, True, MOMENTUM, EPS) for part in torch.split(x, list(parts))]
    y = torch.cat(normed) if residual is None else torch.cat(normed) + residual
    return F.relu(y) if relu else y


def inputs(parts, channels, size, residual, dtype=torch.float32, offset=0.0):
    """x, weight, bias, running mean and variance, residual or None, dy: the first ones as leaves."""
    torch.manual_seed(sum(parts) * channels + size)
    shape = (sum(parts), channels, size, size)
    x, z, dy = (torch.randn(shape).contiguous(memory_format=torch.channels_last).to(dtype) for _ in range(3))
    x = x * 2 + offset
    weight, bias = torch.rand(channels) + 0.5, torch.randn(channels)
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    return *leaves, torch.randn(channels), torch.rand(channels), z.requires_grad_() if residual else None, dy


def results(function, x, weight, bias, mean, var, residual, dy, parts, relu):
    y = function(x, weight, bias, mean, var, parts, residual, relu)
    leaves = [leaf for leaf in (x, weight, bias, residual) if leaf is not None]
    return [y, mean, var, *torch.autograd.grad(y, leaves, dy)]


def fused(x, weight, bias, mean, var, parts, residual, relu):
    return norm_act(x, weight, bias, mean, var, parts, MOMENTUM, EPS, residual=residual, relu=relu)[0]


def double(tensor):
    if tensor is None:
        return None
    return tensor.detach().to(torch.float64, copy=True).requires_grad_(tensor.requires_grad)


def check(tensors, parts, relu, rtol=1e-5, atol=1e-5):
    expected = results(reference, *map(double, tensors), parts, relu)
    for got, want in zip(results(fused, *tensors, parts, relu), expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=rtol, atol=atol)


@not_interpreted
def test_all_that_follows_holds_in_the_interpreter():
    in_the_interpreter(__file__)


@interpreted
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("parts", "channels", "size"), [((3, 2), 16, 4), ((4,), 32, 3), ((2, 3, 1), 48, 4)])
def test_outputs_gradients_and_running_statistics_are_those_of_batch_norm(parts, channels, size, residual, relu):
    check(inputs(parts, channels, size, residual), parts, relu)


@interpreted
@pytest.mark.parametrize("parts", [(5,), (1, 4), (4, 1), (2, 1, 3)])
@pytest.mark.parametrize(("programs", "min_tile_rows", "tiles"), [(1, 1, 128), (30, 1, 128), (256, 1, 4), (7, 16, 128)])
@pytest.mark.parametrize("few", [0, 32])
def test_how_the_rows_are_cut_does_not_matter(monkeypatch, parts, programs, min_tile_rows, tiles, few):
    monkeypatch.setattr(fused_norm, "FEW_TILES", few)
    monkeypatch.setattr(fused_norm, "PROGRAMS", programs)
    monkeypatch.setattr(fused_norm, "MIN_TILE_ROWS", min_tile_rows)
    monkeypatch.setattr(fused_norm, "TILES", tiles)
    check(inputs(parts, 32, 6, residual=True), parts, relu=True)


@interpreted
def test_a_mean_far_from_zero_costs_no_accuracy():
    tensors = inputs((3, 2), 16, 4, residual=False, offset=1000.0)
    check(tensors, (3, 2), relu=False, rtol=1e-4, atol=1e-3)  # float32 holds 1000 to 6e-5 only


@interpreted
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("dtype", "eps"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-11)])
def test_half_precision_is_rounded_once(dtype, eps, residual):
    # To the nearest, which is half of bfloat16's 2**-7, on a device; the interpreter cuts its last bits off.
    check(inputs((3, 2), 32, 4, residual, dtype), (3, 2), relu=True, rtol=eps, atol=1e-5)


@interpreted
@pytest.mark.parametrize("residual", [True, False])
def test_a_gradient_in_another_layout_is_the_same_gradient(residual):
    *tensors, dy = inputs((3, 2), 16, 4, residual)
    check([*tensors, dy.contiguous()], (3, 2), relu=True)
    check([*tensors, dy.mean().expand(dy.shape)], (3, 2), relu=True)


@interpreted
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_the_gradients_of_two_uses_add_up(residual, relu, layout):
    parts = (3, 2)
    *rest, dy = inputs(parts, 32, 4, residual)
    again = torch.randn(dy.shape).contiguous(memory_format=layout)
    wanted = results(reference, *map(double, rest), double(dy + again), parts, relu)[3:]
    x, weight, bias, mean, var, z = rest
    both = norm_act(x, weight, bias, mean, var, parts, MOMENTUM, EPS, residual=z, relu=relu)
    leaves = [leaf for leaf in (x, weight, bias, z) if leaf is not None]
    for got, want in zip(torch.autograd.grad(both, leaves, [dy, again]), wanted, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@interpreted
def test_the_second_output_may_be_the_one_that_is_used():
    x, weight, bias, mean, var, z, dy = inputs((5,), 16, 4, residual=True)
    first, second = norm_act(x, weight, bias, mean, var, (5,), MOMENTUM, EPS, residual=z)
    assert first.data_ptr() == second.data_ptr()
    by_first, by_second = (torch.autograd.grad(y, [x, z], dy, retain_graph=True) for y in (first, second))
    assert all(torch.equal(a, b) for a, b in zip(by_first, by_second, strict=True))


@interpreted
def test_the_output_keeps_the_layout_of_the_input():
    x, weight, bias, mean, var, _, _ = inputs((3, 2), 16, 4, residual=False)
    y = fused(x, weight, bias, mean, var, (3, 2), None, True)
    assert y.is_contiguous(memory_format=torch.channels_last)


@interpreted
def test_a_channel_that_is_not_a_number_stays_one():
    x, weight, bias, mean, var, _, _ = inputs((3, 2), 16, 4, residual=False)
    with torch.no_grad():
        x[0, 3] = float("nan")
    y = fused(x, weight, bias, mean, var, (3, 2), None, True)
    assert torch.equal(y[:3].isnan().any((0, 2, 3)), torch.arange(16) == 3)
    assert y[:3, 3].isnan().all()
    assert not y[3:].isnan().any()


@interpreted
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("parts", "channels", "size"), [((3, 2), 16, 4), ((4,), 32, 3)])
def test_tangents_are_those_of_batch_norm(parts, channels, size, residual, relu):
    x, weight, bias, mean, var, z, _ = inputs(parts, channels, size, residual)
    points = [t.detach() for t in (x, weight, bias, z) if t is not None]
    along = [torch.randn_like(t) for t in points]
    found = tangent(fused, points, along, mean, var, parts, relu)
    doubles = ([t.double() for t in group] for group in (points, along))
    wanted = tangent(reference, *doubles, mean.double(), var.double(), parts, relu)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


def tangent(function, points, along, mean, var, parts, relu):
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(p, t) for p, t in zip(points, along, strict=True)]
        x, weight, bias, *residual = duals
        y = function(x, weight, bias, mean, var, parts, residual[0] if residual else None, relu)
        return forward_ad.unpack_dual(y).tangent


@pytest.mark.parametrize("parts", [(), (3, 1), (5, 0), (6, -1), (1, 1, 1, 2)])
def test_parts_that_do_not_make_the_batch_are_refused(parts):
    x, weight, bias, mean, var, _, _ = inputs((5,), 16, 4, residual=False)
    with pytest.raises(ValueError, match="add up to the batch's 5"):
        fused(x, weight, bias, mean, var, parts, None, True)


def test_a_part_of_one_value_per_channel_is_refused():
    x, weight, bias, mean, var, _, _ = inputs((3, 1), 16, 1, residual=False)
    with pytest.raises(ValueError, match="more than one value per channel"):
        fused(x, weight, bias, mean, var, (3, 1), None, True)


def test_a_residual_of_another_kind_is_refused():
    x, weight, bias, mean, var, residual, _ = inputs((3, 2), 16, 4, residual=True)
    for wrong in (residual.double(), residual[:, :, :1]):
        with pytest.raises(ValueError, match="residual must be like x"):
            fused(x, weight, bias, mean, var, (3, 2), wrong, True)


def test_tensors_of_the_host_are_left_to_torch():
    assert not usable(torch.zeros(2, 16, 4, 4).contiguous(memory_format=torch.channels_last))


@interpreted
@pytest.mark.parametrize(
    ("moves", "frozen"),
    [
        (True, ()),
        (False, ()),
        (True, ("backbone.conv1",)),
        (True, ("backbone.conv1", "backbone.bn1")),
        (True, ("bn", "downsample.1")),
    ],
)
def test_a_look_ahead_through_the_kernels_is_the_plain_one(monkeypatch, moves, frozen):
    """Real pass, its gradient, the pass at θ′, tangents, and a second gradient of the real pass, in that order."""
    monkeypatch.setattr(fused_norm, "usable", lambda x: x.dim() == 4)
    torch.manual_seed(0)
    net = OneHead(ResNet(BasicBlock, (1, 1), channels=3), 4).train().to(memory_format=torch.channels_last)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(not any(part in name for part in frozen))
    x, y = torch.randn(2, 6, 3, 4, 4), torch.randint(0, 4, (2, 6))
    found = []
    for fuse in (True, False):
        copied = copy.deepcopy(net)
        copied.parts.fused = fuse
        weights = torch.full((6,), float(moves)).requires_grad_()

        def inner(outputs, weights=weights):
            return (weights * F.cross_entropy(outputs[0][0], y[0], reduction="none")).mean()

        one = torch.ones(6)
        clean = Examples(x[1], y[1], torch.arange(6), one, one)
        ahead = look_ahead(copied, [x[0]], inner, clean, rate=torch.tensor(0.1), moves=moves)
        (slopes,) = torch.autograd.grad(ahead.loss, weights, retain_graph=True)
        trained = [parameter for parameter in copied.parameters() if parameter.requires_grad]
        real = torch.autograd.grad(F.cross_entropy(ahead.outputs[0][0], y[0]), trained)
        found.append([slopes, *real, *copied.buffers()])
    assert found[0][0].abs().max() > 1e-3
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4)
