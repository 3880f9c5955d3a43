"""Residual networks without their classifier: for 32×32 images, and for ImageNet's with torchvision's names.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from fasten.nets.norm import Twice, norm_relu


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    if inputs == outputs and stride == 1:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, post-activation."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, features: Twice) -> Twice:
        x, identity = features
        identity = identity if self.downsample is None else self.downsample(identity)
        x, _ = norm_relu(self.bn1, self.conv1(x))
        return norm_relu(self.bn2, self.conv2(x), identity)


class Bottleneck(nn.Module):
    """1×1, 3×3 (which carries the stride), 1×1."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, features: Twice) -> Twice:
        x, identity = features
        identity = identity if self.downsample is None else self.downsample(identity)
        x, _ = norm_relu(self.bn1, self.conv1(x))
        x, _ = norm_relu(self.bn2, self.conv2(x))
        return norm_relu(self.bn3, self.conv3(x), identity)


class ResNet(nn.Module):
    """Features of an image. Stem `small` is 3×3 with stride 1 (CIFAR), `large` 7×7 with stride 2, pooled (ImageNet)."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        channels: int = 3,
        stem: Literal["small", "large"] = "small",
    ) -> None:
        super().__init__()
        small = stem == "small"
        self.conv1 = nn.Conv2d(channels, 64, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = None if small else nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for number, depth in enumerate(depths, start=1):
            width, blocks = 64 * 2 ** (number - 1), []
            for position in range(depth):
                blocks.append(block(inputs, width, 2 if number > 1 and position == 0 else 1))
                inputs = width * block.expansion
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
        self.num_stages = len(depths)
        self.num_features = inputs

    def forward(self, x: Tensor) -> Tensor:
        features = norm_relu(self.bn1, self.conv1(x))
        if self.pool is not None:
            pooled = self.pool(features[0])
            features = pooled, pooled
        for number in range(1, self.num_stages + 1):
            features = self.get_submodule(f"layer{number}")(features)
        return features[0].permute(0, 2, 3, 1).flatten(1, 2).mean(1)  # its gradient comes channels last
