"""On a GPU, in bf16 with fused kernels, the meta-gradient points where the exact one does."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from fasten.contract import Examples
from fasten.nets import OneHead, build_backbone
from fasten.ops.lookahead import look_ahead

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def rows(size: int, dtype: torch.dtype, seed: int) -> Examples:
    """Images with a pattern of their class, so that gradients have something in common."""
    generator = torch.Generator("cuda").manual_seed(seed)
    patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator("cuda").manual_seed(0), device="cuda")
    y = torch.randint(0, 10, (size,), generator=generator, device="cuda")
    x = torch.randn(size, 3, 32, 32, generator=generator, device="cuda") + patterns[y]
    x = x.to(dtype, memory_format=torch.channels_last)
    return Examples(x, y, torch.arange(size), torch.ones(size, device="cuda", dtype=dtype), torch.zeros(size, 2))


def meta_gradient(net, dtype, precision, route, moves):
    net = copy.deepcopy(net).to("cuda", dtype).to(memory_format=torch.channels_last).train()
    net.precision = precision
    net.parts.fused = net.parts.overlap = precision is not None
    noisy, clean = rows(100, dtype, 1), rows(100, dtype, 2)
    weights = torch.full((100,), float(moves), device="cuda", dtype=dtype).requires_grad_()

    def inner(outputs):
        return (weights * F.cross_entropy(outputs[0][0], noisy.y.roll(1), reduction="none")).mean()

    rate = torch.tensor(0.1, device="cuda", dtype=dtype)
    ahead = look_ahead(net, [noisy.x], inner, clean, rate=rate, moves=moves, route=route)
    return torch.autograd.grad(ahead.loss, weights)[0].double()


@pytest.mark.parametrize("moves", [True, False])
def test_bf16_tangents_point_where_float64_does(moves):
    torch.manual_seed(0)
    net = OneHead(build_backbone("resnet18", (3, 32, 32)), 10)
    exact = meta_gradient(net, torch.float64, None, "graph", moves)
    fused = meta_gradient(net, torch.float32, torch.bfloat16, "tangent", moves)
    assert F.cosine_similarity(exact, fused, dim=0) > 0.97
    assert 0.9 < fused.norm() / exact.norm() < 1.1
