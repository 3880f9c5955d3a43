"""Strong augmentation of whole batches: AutoAugment's policy for CIFAR-10, from random numbers drawn beforehand.

Cubuk, Zoph, Mané, Vasudevan, Le, CVPR 2019. The policy has 25 pairs of operations, each operation with a probability
and a magnitude; an image gets one of the pairs. To keep shapes fixed, every image goes through the same three steps for
each operation: its pixels are taken from other places, then blended with another image, then their values are looked up
in a table. Steps that are not part of its operation leave an image unchanged to the bit.

Operations are Pillow's, used as by AugDesc's authors: sheared images are interpolated and others are not, rotation goes
in one direction only, and pixels from outside the image are grey.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NUM_STRONG = 5  # random numbers per image: which pair; for each operation, whether it is done and its direction

Pair = tuple[tuple[str, int, int], tuple[str, int, int]]  # operation, probability in tenths, magnitude in ninths
POLICY: tuple[Pair, ...] = (
    (("invert", 1, 7), ("contrast", 2, 6)),
    (("rotate", 7, 2), ("translate-x", 3, 9)),
    (("sharpness", 8, 1), ("sharpness", 9, 3)),
    (("shear-y", 5, 8), ("translate-y", 7, 9)),
    (("autocontrast", 5, 8), ("equalize", 9, 2)),
    (("shear-y", 2, 7), ("posterize", 3, 7)),
    (("colour", 4, 3), ("brightness", 6, 7)),
    (("sharpness", 3, 9), ("brightness", 7, 9)),
    (("equalize", 6, 5), ("equalize", 5, 1)),
    (("contrast", 6, 7), ("sharpness", 6, 5)),
    (("colour", 7, 7), ("translate-x", 5, 8)),
    (("equalize", 3, 7), ("autocontrast", 4, 8)),
    (("translate-y", 4, 3), ("sharpness", 2, 6)),
    (("brightness", 9, 6), ("colour", 2, 8)),
    (("solarize", 5, 2), ("invert", 0, 3)),
    (("equalize", 2, 0), ("autocontrast", 6, 0)),
    (("equalize", 2, 8), ("equalize", 6, 4)),
    (("colour", 9, 9), ("equalize", 6, 6)),
    (("autocontrast", 8, 4), ("solarize", 2, 8)),
    (("brightness", 1, 3), ("colour", 7, 0)),
    (("solarize", 4, 5), ("autocontrast", 9, 3)),
    (("translate-y", 9, 9), ("translate-y", 7, 9)),
    (("autocontrast", 9, 2), ("solarize", 8, 3)),
    (("equalize", 8, 8), ("invert", 1, 3)),
    (("translate-y", 7, 9), ("autocontrast", 9, 1)),
)
GREY = 128  # the value of pixels from outside the image
ONE = 2**16  # a pixel in fixed-point numbers, which make places the same on every device
LUMA = (19595, 38470, 7471)  # shares of red, green and blue in a grey value, in units of 1 / ONE
BLACK, MEAN, COLOURLESS, SMOOTH = range(4)  # which image to blend with
LEVELS = np.arange(256)


@dataclass(frozen=True)
class Operation:
    """What is done to an image; nothing by default."""

    affine: tuple[float, ...] = (1, 0, 0, 0, 1, 0)  # where a pixel comes from: x' = ax + by + c, y' = dx + ey + f
    cubic: bool = False  # whether to interpolate between rows
    other: int = BLACK
    factor: float = 1.0  # the other image + factor · (this one − the other)
    table: NDArray[np.int64] = field(default_factory=LEVELS.copy)  # maps values
    stretched: bool = False  # instead use a table that maps the darkest value to 0 and the brightest to 255
    equalized: bool = False  # instead use a table that makes all values about equally frequent


def operation(name: str, magnitude: float, way: int, height: int, width: int) -> Operation:
    """Make an operation by its name, with a magnitude from 0 to 1, in one direction or the other (`way` 1 or −1)."""
    factor, far = 1 + way * 0.9 * magnitude, way * magnitude * 150 / 331
    bits, dark = round(8 - 4 * magnitude), 256 * (1 - magnitude) > LEVELS
    return {
        "shear-y": Operation((1, 0, 0, way * 0.3 * magnitude, 1, 0), cubic=True),
        "translate-x": Operation((1, 0, far * width, 0, 1, 0)),
        "translate-y": Operation((1, 0, 0, 0, 1, far * height)),
        "rotate": Operation(_rotation(30 * magnitude, height, width)),
        "brightness": Operation(other=BLACK, factor=factor),
        "contrast": Operation(other=MEAN, factor=factor),
        "colour": Operation(other=COLOURLESS, factor=factor),
        "sharpness": Operation(other=SMOOTH, factor=factor),
        "invert": Operation(table=255 - LEVELS),
        "solarize": Operation(table=np.where(dark, LEVELS, 255 - LEVELS)),
        "posterize": Operation(table=LEVELS & -(2 ** (8 - bits))),
        "autocontrast": Operation(stretched=True),
        "equalize": Operation(equalized=True),
    }[name]


def _rotation(degrees: float, height: int, width: int) -> tuple[float, ...]:
    """Rotate anticlockwise about the centre."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = width / 2, height / 2
    return (c, -s, x - c * x + s * y, s, c, y - s * x - c * y)


def _fixed(affine: tuple[float, ...]) -> list[int]:
    """The map from the centre of a pixel to where it comes from, in fixed-point numbers."""
    a, b, c, d, e, f = affine
    return [math.floor(v * ONE + 0.5) for v in (a, b, c + (a + b) / 2, d, e, f + (d + e) / 2)]


class AutoAugment:
    """The policy for images of one shape (C, H, W), on a device.

    >>> policy = AutoAugment((1, 2, 2), torch.device("cpu"))
    >>> random = torch.tensor([[0.57, 0.0, 0.0, 0.9, 0.0]])  # the 15th pair: its first operation, not the second
    >>> policy(torch.tensor([[[[10], [200]], [[199], [255]]]], dtype=torch.uint8), random).flatten().tolist()
    [10, 55, 199, 0]
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device, policy: Sequence[Pair] = POLICY) -> None:
        channels, height, width = shape
        rows = [operation(n, m / 9, w, height, width) for pair in policy for n, _, m in pair for w in (-1, 1)]
        rows.append(Operation())  # used if an operation is not done
        self.cubic_too = [any(pair[slot][0] == "shear-y" for pair in policy) for slot in (0, 1)]
        self.chance = torch.tensor([[tenths / 10 for _, tenths, _ in pair] for pair in policy], device=device)
        self.affine = torch.tensor([_fixed(row.affine) for row in rows], dtype=torch.int32, device=device)
        self.cubic = torch.tensor([row.cubic for row in rows], device=device)
        self.other = torch.tensor([row.other for row in rows], device=device)
        self.factor = torch.tensor([row.factor for row in rows], dtype=torch.float32, device=device)
        self.table = torch.tensor(np.stack([row.table for row in rows]), dtype=torch.float32, device=device)
        self.stretched = torch.tensor([row.stretched for row in rows], device=device)
        self.equalized = torch.tensor([row.equalized for row in rows], device=device)
        # Without three channels, the colourless image is the mean of the channels.
        luma = LUMA if channels == 3 else (ONE // channels,) * channels
        self.luma = torch.tensor(luma, dtype=torch.int32, device=device).view(-1, 1, 1)

    def __call__(self, images: Tensor, random: Tensor) -> Tensor:
        """Augment uint8 images (B, H, W, C), each with its own random numbers (B, 5), uniform in [0, 1)."""
        pixels = images.permute(0, 3, 1, 2).contiguous()
        pair = (random[:, 0] * len(self.chance)).long()
        for slot in (0, 1):
            done, way = random[:, 2 * slot + 1] < self.chance[pair, slot], random[:, 2 * slot + 2] < 0.5
            row = torch.where(done, 4 * pair + 2 * slot + way, len(self.cubic) - 1)
            pixels = self._moved(pixels, row, self.cubic_too[slot])
            pixels = self._blended(pixels, row)
            pixels = self._looked_up(pixels, row)
        return pixels.permute(0, 2, 3, 1)

    def _moved(self, pixels: Tensor, row: Tensor, cubic_too: bool) -> Tensor:
        """Take each pixel from the place that the operation says."""
        height, width = pixels.shape[2:]
        x, y = (torch.arange(n, dtype=torch.int32, device=row.device) for n in (width, height))
        a, b, c, d, e, f = self.affine[row].T[:, :, None, None]  # (B, 1, 1)
        xs, ys = (a * x + (b * y[:, None] + c)) >> 16, d * x + (e * y[:, None] + f)  # (B, H, W)
        inside = (xs >= 0) & (xs < width) & (ys >= 0) & (ys < height * ONE)
        xs = xs.clamp(0, width - 1)

        def rows_at(place: Tensor) -> Tensor:
            at = (place.clamp(0, height - 1) * width + xs).long().flatten(1)[:, None]
            return pixels.flatten(2).gather(2, at.expand(-1, pixels.shape[1], -1)).view_as(pixels)

        if cubic_too:
            cubic = self.cubic[row][:, None, None]
            ys = torch.where(cubic, ys - ONE // 2, ys)
            share = (torch.where(cubic, ys & (ONE - 1), 0) / ONE)[:, None]
            found = _between([rows_at((ys >> 16) + k).float() for k in (-1, 0, 1, 2)], share)
        else:
            found = rows_at(ys >> 16)
        return torch.where(inside[:, None], found, GREY)

    def _blended(self, pixels: Tensor, row: Tensor) -> Tensor:
        """Blend with the other image, or move away from it."""
        kind, factor = self.other[row][:, None, None, None], self.factor[row][:, None, None, None]
        pixels = pixels.int()
        grey = ((pixels * self.luma).sum(1, keepdim=True, dtype=torch.int32) + ONE // 2) >> 16  # (B, 1, H, W)
        count = grey[0].numel()
        mean = (2 * grey.sum((1, 2, 3), keepdim=True) + count) // (2 * count)
        flat = torch.where(kind == COLOURLESS, grey, torch.where(kind == MEAN, mean.int(), 0))
        other = torch.where(kind == SMOOTH, _smooth(pixels), flat)
        return (other + factor * (pixels - other)).clamp(0, 255).to(torch.uint8)

    def _looked_up(self, pixels: Tensor, row: Tensor) -> Tensor:
        """Look values up in a table for each channel of each image."""
        at = pixels.flatten(2).long()
        count = torch.zeros(*at.shape[:2], 256, dtype=torch.int32, device=row.device)
        count = count.scatter_add_(2, at, torch.ones_like(at, dtype=torch.int32))
        low, high = at.amin(2, keepdim=True), at.amax(2, keepdim=True)  # (B, C, 1)
        levels = torch.arange(256, dtype=torch.int32, device=row.device)
        step = (at.shape[2] - count.gather(2, high)) // 255
        # In float32, which is exact here, and on a CPU several times as fast as dividing whole numbers.
        spread = (levels - low.int()) * 255 / (high - low).clamp(min=1)
        even = (step // 2 + count.cumsum(2, dtype=torch.int32) - count) / step.clamp(min=1)
        stretched = self.stretched[row][:, None, None] & (high > low)
        equalized = self.equalized[row][:, None, None] & (step > 0)
        table = torch.where(stretched, spread, torch.where(equalized, even, self.table[row][:, None]))
        return table.clamp(0, 255).to(torch.uint8).gather(2, at).view_as(pixels)


def _between(four: list[Tensor], share: Tensor) -> Tensor:
    """Interpolate between the second and third of four neighbouring values by a cubic."""
    a, b, c, d = four
    found = b + share * (c - a + share * (2 * (a - b) + c - d + share * (b - a + d - c)))
    return found.clamp(0, 255).to(torch.uint8)


def _smooth(pixels: Tensor) -> Tensor:
    """The weighted mean of each pixel (weight 5) and its eight neighbours; border pixels stay as they are."""
    rows = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * pixels[:, :, 1:-1, 1:-1]
    found = pixels.clone()
    found[:, :, 1:-1, 1:-1] = (total / 13 + 0.5).int()
    return found
