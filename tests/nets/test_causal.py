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


def test_for_cifar_the_parts_compute_what_the_authors_layers_do():
    """Their layers, one after the other, with our weights."""
    torch.manual_seed(0)
    x, y, z = torch.rand(4, 3, 32, 32), torch.rand(4, 10), torch.rand(4, 25)
    reader, writer = Reader((3, 32, 32), 10, 50), Writer((3, 32, 32), 10, 25)
    down = [_down(a, b) for a, b in ((4, 32), (32, 64), (64, 128), (128, 256))]
    up = [_up(a, b) for a, b in ((256, 128), (128, 64), (64, 32), (32, 32))]
    embed, project = nn.Conv2d(3, 3, 1), nn.Linear(10, 32 * 32)
    read = nn.Sequential(*down, nn.Flatten(), nn.Linear(256 * 2 * 2, 50))
    start, write = nn.Linear(35, 256 * 2 * 2), nn.Sequential(*up, nn.Conv2d(32, 3, 3, padding=1))
    _copy([reader.example, reader.label, reader.layers], [embed, project, read])
    _copy([writer.layers], [start, write])
    theirs = read(torch.cat([embed(x), project(y).view(4, 1, 32, 32)], 1))
    torch.testing.assert_close(reader(x, y), theirs)
    theirs = write(start(torch.cat([z, y], 1)).view(4, 256, 2, 2))
    torch.testing.assert_close(writer(z, y), theirs)


def _down(a, b):
    return nn.Sequential(nn.Conv2d(a, b, kernel_size=3, stride=2, padding=1), nn.BatchNorm2d(b), nn.LeakyReLU(0.01))


def _up(a, b):
    grow = nn.ConvTranspose2d(a, b, kernel_size=3, stride=2, padding=1, output_padding=1)
    return nn.Sequential(grow, nn.BatchNorm2d(b), nn.LeakyReLU(0.01))


def _copy(ours, theirs):
    pairs = zip((p for m in ours for p in m.parameters()), (p for m in theirs for p in m.parameters()), strict=True)
    for source, target in pairs:
        target.data.copy_(source.data)


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
