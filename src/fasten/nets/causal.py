"""A classifier with a variational auto-encoder around it, for CausalNL.

Letters: x is an example, y a soft label, z the latent variable that also shapes x, ȳ the given label.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from fasten.nets.heads import OneHead
from fasten.nets.norm import share_parts

WIDTHS = (32, 64, 128, 256)  # channels of the authors' convolutions
HIDDEN = 256  # units, for rows of features


def halved(height: int, width: int) -> list[tuple[int, int]]:
    """The sizes of an image and of its maps: halved while a side has more than two pixels, four times at most.

    >>> halved(32, 32), halved(5, 3)
    ([(32, 32), (16, 16), (8, 8), (4, 4), (2, 2)], [(5, 3), (3, 2), (2, 1)])
    """
    sizes = [(height, width)]
    while max(sizes[-1]) > 2 and len(sizes) <= len(WIDTHS):
        sizes.append((math.ceil(sizes[-1][0] / 2), math.ceil(sizes[-1][1] / 2)))
    return sizes


class Reader(nn.Module):
    """From x and y to `outputs` numbers, for q(z | x, y) and p(ȳ | x, y).

    >>> Reader((3, 8, 8), 5, outputs=7)(torch.zeros(2, 3, 8, 8), torch.zeros(2, 5)).shape
    torch.Size([2, 7])
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int, outputs: int) -> None:
        super().__init__()
        self.example: nn.Module = nn.Identity()
        self.label: nn.Module = nn.Identity()
        if len(shape) == 1:
            layers, features = [nn.Linear(shape[0] + num_classes, HIDDEN), nn.LeakyReLU()], HIDDEN
        else:
            colours, height, width = shape
            sizes = halved(height, width)
            self.example = nn.Conv2d(colours, colours, 1)
            self.label = nn.Sequential(nn.Linear(num_classes, height * width), nn.Unflatten(1, (1, height, width)))
            channels = [colours + 1, *WIDTHS[: len(sizes) - 1]]
            down = [(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU()) for a, b in pairwise(channels)]
            layers, features = [layer for block in down for layer in block], channels[-1] * math.prod(sizes[-1])
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, outputs))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = self.layers(torch.cat([self.example(x), self.label(y)], 1))
        return found


class Writer(nn.Module):
    """From z and y to the mean of x, for p(x | z, y).

    >>> Writer((3, 5, 6), 10, z_dim=4)(torch.zeros(2, 4), torch.zeros(2, 10)).shape
    torch.Size([2, 3, 5, 6])
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int, z_dim: int) -> None:
        super().__init__()
        inputs = z_dim + num_classes
        if len(shape) == 1:
            self.layers = nn.Sequential(nn.Linear(inputs, HIDDEN), nn.LeakyReLU(), nn.Linear(HIDDEN, shape[0]))
            return
        colours, height, width = shape
        sizes = halved(height, width)[::-1]
        channels = [*reversed(WIDTHS[: len(sizes) - 1]), WIDTHS[0]]
        first = (channels[0], *sizes[0])
        layers: list[nn.Module] = [nn.Linear(inputs, math.prod(first)), nn.Unflatten(1, first)]
        for (a, b), (small, large) in zip(pairwise(channels), pairwise(sizes), strict=True):
            missing = large[0] - 2 * small[0] + 1, large[1] - 2 * small[1] + 1  # pixels, if the side is even
            up = nn.ConvTranspose2d(a, b, 3, 2, 1, output_padding=missing)
            layers += [up, nn.BatchNorm2d(b), nn.LeakyReLU()]
        # Differs: the authors' ends in a sigmoid, for pixels from 0 to 1; ours are normalised.
        self.layers = nn.Sequential(*layers, nn.Conv2d(channels[-1], colours, 3, padding=1))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        found: Tensor = self.layers(torch.cat([z, y], 1))
        return found


class CausalVAE(OneHead):
    """q(y | x) is the classifier, `forward` gives its logits; `generate` is everything after it.

    `shape` is that of x: (channels, height, width) or (features,).
    """

    def __init__(self, backbone: nn.Module, num_classes: int, shape: tuple[int, ...], z_dim: int) -> None:
        super().__init__(backbone, num_classes)
        self.encoder = Reader(shape, num_classes, 2 * z_dim)
        self.decoder = Writer(shape, num_classes, z_dim)
        self.noisy = Reader(shape, num_classes, num_classes)
        for part in (self.encoder, self.decoder, self.noisy):
            share_parts(part, self.parts)

    def generate(self, x: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Mean and log variance of z, x reconstructed from z and y, and logits of ȳ; `noise` is for the draw of z."""
        with torch.autocast(x.device.type, dtype=self.precision, enabled=self.precision is not None):
            mean, log_variance = self.encoder(x, y).to(x.dtype).chunk(2, 1)
            z = mean + (log_variance / 2).exp() * noise
            made = self.decoder(z, y)
            logits = self.noisy(made, y)
        return mean, log_variance, made.to(x.dtype), logits.to(x.dtype)
