"""Small networks that train in seconds on a CPU."""

from __future__ import annotations

import math

from torch import Tensor, nn

FEW_PIXELS, MOST_CHANNELS = 4, 128  # of a side, at the end of a pyramid
LARGE = 64  # pixels of a side


class SmallCNN(nn.Module):
    """Three 3×3 convolutions with batch norm, max-pooling before the third, and the mean over the remaining pixels."""

    def __init__(self, channels: int, width: int = 16) -> None:
        super().__init__()
        self.num_features = 4 * width
        self.layers = nn.Sequential(
            *_convolution(channels, width),
            *_convolution(width, 2 * width),
            nn.MaxPool2d(2),
            *_convolution(2 * width, 4 * width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return _mean_of_pixels(self.layers(x))


class PyramidCNN(nn.Module):
    """A 3×3 convolution with batch norm; then max-pooling and two more, again and again until few pixels are left.

    Each pooling leaves half of the pixels of a side, and four to seven remain; channels double, up to 128. On 32 × 32
    images that takes no longer than `SmallCNN`, whose features see ten pixels of a side, while these see all of them.
    Of large images, on which the first convolution would take most of the time, it takes every other pixel.
    """

    def __init__(self, channels: int, side: int, width: int = 16) -> None:
        super().__init__()
        stride = 2 if side > LARGE else 1
        layers = _convolution(channels, width, stride)
        side = math.ceil(side / stride)
        while side >= 2 * FEW_PIXELS:
            side, before, width = side // 2, width, min(2 * width, MOST_CHANNELS)
            layers += [nn.MaxPool2d(2), *_convolution(before, width), *_convolution(width, width)]
        self.num_features = width
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return _mean_of_pixels(self.layers(x))


def _mean_of_pixels(features: Tensor) -> Tensor:
    return features.permute(0, 2, 3, 1).flatten(1, 2).mean(1)  # its gradient comes channels last


def _convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


class MLP(nn.Module):
    """Two hidden layers with batch norm, for tables and embeddings."""

    def __init__(self, inputs: int, width: int = 256) -> None:
        super().__init__()
        self.num_features = width
        self.layers = nn.Sequential(
            nn.Linear(inputs, width, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features
