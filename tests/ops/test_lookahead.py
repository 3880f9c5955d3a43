"""The look-ahead against finite differences through a real step, and against itself by the other route."""

from __future__ import annotations

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from authors import SmallNet, examples
from fasten.nets import OneHead, build_backbone
from fasten.nets.weigher import Weigher
from fasten.ops.lookahead import look_ahead, with_gradient

RATE = torch.tensor(0.1, dtype=torch.float64)


@pytest.fixture
def problem():
    torch.manual_seed(0)
    net = OneHead(SmallNet(), 4).double().train()
    noisy, extra, clean = (torch.randn(n, 3, 8, 8, dtype=torch.float64) for n in (6, 4, 5))
    y = torch.randint(0, 4, (15,))
    return net, [noisy, extra], y[:10], examples(clean, y[10:])


def inner_of(weights, y):
    """A mean of weighted losses on the first batch, plain losses on the second."""

    def inner(outputs):
        (first,), (second,) = outputs
        nll = F.cross_entropy(first, y[:6], reduction="none")
        return (weights * nll).sum() / 6 + F.cross_entropy(second, y[6:])

    return inner


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("route", ["tangent", "graph"])
def test_the_meta_gradient_is_that_of_a_step_really_taken(problem, route, frozen):
    net, batches, y, clean = problem
    next(net.parameters()).requires_grad_(not frozen)
    weights = torch.rand(6, dtype=torch.float64, requires_grad=True)
    ahead = look_ahead(net, batches, inner_of(weights, y), clean, rate=RATE, route=route)
    (found,) = torch.autograd.grad(ahead.loss, weights)

    def clean_loss_after_a_step(values):
        other = copy.deepcopy(net)
        loss = inner_of(values, y)(other.each(batches, "two-pass"))
        trained = [p for p in other.parameters() if p.requires_grad]
        for p, g in zip(trained, torch.autograd.grad(loss, trained), strict=True):
            p.data -= RATE * g
        return F.cross_entropy(other(clean.x)[0], clean.y).item()

    assert ahead.loss.item() == pytest.approx(clean_loss_after_a_step(weights.detach()), rel=1e-12)
    step = 1e-5
    for i in range(6):
        nudge = step * torch.eye(6, dtype=torch.float64)[i]
        high, low = (clean_loss_after_a_step(weights.detach() + s * nudge) for s in (1, -1))
        assert found[i].item() == pytest.approx((high - low) / (2 * step), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("moves", [True, False])
def test_both_routes_agree(problem, moves):
    net, batches, y, clean = problem
    start = [p.detach() * 0.99 for p in net.parameters()] if moves else None
    grads, losses = [], []
    for route in ("tangent", "graph"):
        weights = (torch.arange(6.0, dtype=torch.float64) * moves).requires_grad_()
        first = batches[:1]
        inner = lambda out, w=weights: (w * F.cross_entropy(out[0][0], y[:6], reduction="none")).sum()  # noqa: E731
        ahead = look_ahead(net, first, inner, clean, rate=RATE, start=start, moves=moves, route=route)
        losses.append(ahead.loss.item())
        grads.append(torch.autograd.grad(ahead.loss, weights)[0])
    assert grads[0].abs().max() > 1e-4
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-9, atol=1e-12)
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@pytest.mark.parametrize("route", ["tangent", "graph"])
def test_the_network_is_left_as_one_plain_pass_leaves_it(problem, route):
    net, batches, y, clean = problem
    other = copy.deepcopy(net)
    other.each(batches, "split")
    weights = torch.ones(6, dtype=torch.float64, requires_grad=True)
    ahead = look_ahead(net, batches, inner_of(weights, y), clean, rate=RATE, route=route)
    torch.autograd.grad(ahead.loss, weights, retain_graph=True)
    torch.autograd.grad(inner_of(weights, y)(ahead.outputs), list(net.parameters()))  # the same graph, once more
    for (name, ours), theirs in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    assert all(p.grad is None for p in net.parameters())
    assert not net.parts.virtual


def attention_kernels():
    return torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()


@pytest.mark.parametrize("route", ["tangent", "graph"])
def test_threads_that_look_ahead_do_not_disturb_each_other(problem, route):
    net, batches, y, clean = problem
    before = attention_kernels()

    def slope(seconds):
        mine, weights = copy.deepcopy(net), torch.ones(6, dtype=torch.float64, requires_grad=True)
        mine.backbone.register_forward_hook(lambda *_: time.sleep(seconds))
        ahead = look_ahead(mine, batches, inner_of(weights, y), clean, rate=RATE, route=route)
        return torch.autograd.grad(ahead.loss, weights)[0]

    alone = slope(0)
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(slope, [0.1, 0.15]):
            assert torch.equal(found, alone)
    assert attention_kernels() == before


def test_the_inner_gradient_comes_with_it(problem):
    net, batches, y, clean = problem
    weights = torch.ones(6, dtype=torch.float64)
    ahead = look_ahead(net, batches, inner_of(weights, y), clean, rate=RATE)
    plain = torch.autograd.grad(inner_of(weights, y)(net.each(batches, "split")), list(net.parameters()))
    for ours, theirs in zip(ahead.grads, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_value_takes_the_gradient_that_it_is_given():
    weights = [torch.ones(2, 3, requires_grad=True), torch.zeros(4, requires_grad=True)]
    given = [torch.arange(6.0).view(2, 3), -torch.ones(4)]
    loss = with_gradient(torch.tensor(2.5), weights, given)
    assert loss.item() == 2.5
    found = torch.autograd.grad(loss, weights[::-1], retain_graph=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, given[::-1], strict=True))
    (found,) = torch.autograd.grad(3 * loss, weights[0])
    assert torch.equal(found, 3 * given[0])


@pytest.mark.parametrize("route", ["tangent", "graph"])
def test_the_gradient_of_a_look_ahead_is_good_for_the_real_step(problem, route):
    net, batches, y, clean = problem
    weights = torch.rand(6, dtype=torch.float64, requires_grad=True)
    theta = list(net.parameters())
    ahead = look_ahead(net, batches, inner_of(weights, y), clean, rate=RATE, route=route)
    plain = torch.autograd.grad(inner_of(weights.detach().clone(), y)(ahead.outputs), theta, retain_graph=True)
    loss = with_gradient(ahead.loss.detach(), theta, ahead.grads)
    torch.autograd.grad(ahead.loss, weights)  # frees the graph
    with torch.no_grad():
        weights.zero_()  # the meta update comes first
    for ours, theirs in zip(torch.autograd.grad(loss, theta), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rate", [0.1, 1e-3])
def test_in_bf16_the_gradient_of_a_weighting_network_neither_vanishes_nor_turns(rate):
    """However short the step: the weights of a bf16 pass may not even show it, but its derivative is exact in it."""
    torch.manual_seed(0)
    net, weigher = OneHead(build_backbone("small-cnn", (3, 16, 16)), 4).train(), Weigher()
    noisy, clean, y = torch.randn(48, 3, 16, 16), torch.randn(48, 3, 16, 16), torch.arange(96) % 4
    patterns = torch.randn(4, 3, 16, 16)

    def meta_gradient(dtype, precision, route):
        heads, v = copy.deepcopy(net).to(dtype), copy.deepcopy(weigher).to(dtype)
        heads.precision = precision
        x, seen = ((rows + patterns[labels]).to(dtype) for rows, labels in ((noisy, y[:48]), (clean, y[48:])))

        def inner(outputs):
            losses = F.cross_entropy(outputs[0][0], y[:48].roll(9), reduction="none")  # three of four labels are wrong
            assert losses.dtype == dtype, "only the backbone is in bf16"
            return (v(losses.detach()) * losses).mean()

        rows = replace(examples(seen, y[48:]), weight=torch.ones(48, dtype=dtype))
        ahead = look_ahead(heads, [x], inner, rows, rate=torch.tensor(rate, dtype=dtype), route=route)
        return torch.cat([g.flatten().double() for g in torch.autograd.grad(ahead.loss, list(v.parameters()))])

    exact = meta_gradient(torch.float64, None, "graph")
    rounded = meta_gradient(torch.float32, torch.bfloat16, "tangent")
    assert not torch.equal(rounded, meta_gradient(torch.float32, None, "tangent")), "bf16 rounds"
    assert F.cosine_similarity(exact, rounded, dim=0) > 0.99
    assert 0.95 < rounded.norm() / exact.norm() < 1.05
