"""Draws made of uniform numbers: they have the distribution that they should, and are finite at the ends."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import torch

from fasten.ops.relaxed import gumbel_softmax, standard_normal

ENDS = torch.tensor([0.0, 2.0**-24, 1 - 2.0**-24])


def test_the_largest_entry_is_a_draw_from_the_softmax():
    p = np.array([0.1, 0.2, 0.7])
    uniform = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0))
    found = gumbel_softmax(torch.from_numpy(np.log(p)).expand(20_000, 3), uniform)
    torch.testing.assert_close(found.sum(1), torch.ones(20_000, dtype=torch.float64))
    np.testing.assert_allclose(found.argmax(1).bincount() / 20_000, p, atol=0.01)


def test_normal_numbers_are_those_of_the_standard_library():
    uniform = torch.linspace(0.001, 0.999, 50, dtype=torch.float64)
    np.testing.assert_allclose(standard_normal(uniform), [NormalDist().inv_cdf(u) for u in uniform.tolist()], atol=1e-9)


def test_both_are_finite_for_every_uniform_number():
    assert bool(standard_normal(ENDS).isfinite().all())
    for end in ENDS:
        assert bool(gumbel_softmax(torch.zeros(1, 3), end.expand(1, 3)).isfinite().all())
    assert standard_normal(ENDS).abs().max() < 6
