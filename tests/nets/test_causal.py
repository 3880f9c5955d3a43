"""CausalNL's auto-encoders: examples of any shape, parts as large as the authors', and what depends on what."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fasten.nets.causal import CausalVAE, Reader, Writer


def test_for_cifar_the_parts_are_as_large_as_the_authors():
    """Counted by hand from their layers, with 25 numbers for z."""
    parts = Reader((3, 32, 32), 10, 50), Writer((3, 32, 32), 10, 25), Reader((3, 32, 32), 10, 10)
    assert [sum(p.numel() for p in part.parameters()) for part in parts] == [452_190, 434_787, 411_190]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 12), (2, 1, 1), (1, 2, 5), (3, 33, 20), (6,)])
def test_examples_of_any_shape_are_made_anew(shape):
    net = nn.Flatten()
    net.num_features = int(np.prod(shape))
    vae = CausalVAE(net, 4, shape, z_dim=3)
    x, y = torch.rand(5, *shape), torch.rand(5, 4)
    mean, log_variance, made, logits = vae.generate(x, y, torch.rand(5, 3))
    assert (mean.shape, log_variance.shape, made.shape, logits.shape) == ((5, 3), (5, 3), x.shape, (5, 4))
    assert vae(x)[0].shape == (5, 4)


@pytest.mark.parametrize("part", ["encoder", "decoder", "noisy"])
def test_what_is_made_depends_on_example_label_and_noise(part):
    torch.manual_seed(0)
    net = nn.Flatten()
    net.num_features = 64
    vae = CausalVAE(net, 4, (1, 8, 8), z_dim=3).eval()
    inputs = torch.rand(2, 1, 8, 8), torch.rand(2, 4), torch.rand(2, 3)
    mean, _, made, logits = vae.generate(*inputs)
    found = {"encoder": mean, "decoder": made, "noisy": logits}[part]
    moved = [torch.rand(2, 1, 8, 8), torch.rand(2, 4), torch.rand(2, 3)]
    for place in range(3):
        others = [moved[i] if i == place else inputs[i] for i in range(3)]
        mean, _, made, logits = vae.generate(*others)
        same = torch.equal({"encoder": mean, "decoder": made, "noisy": logits}[part], found)
        assert same is (part == "encoder" and place == 2)
