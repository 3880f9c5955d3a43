"""Augmentation and normalisation of whole batches, on the device, from random numbers drawn beforehand."""

from __future__ import annotations

import torch
from torch import Tensor

NUM_RANDOM = 3  # per image: the crop's row, its column, whether to flip


def gather_crop_flip(
    images: Tensor, rows: Tensor, random: Tensor, pad: int, flip: bool, crop: int | None = None
) -> Tensor:
    """Rows of `images` (n, H, W, C), each zero-padded by `pad`, cropped at a random place and randomly flipped.

    A crop is a square of `crop` × `crop` pixels, or as large as the image. `random` (B, 3) is uniform in [0, 1). It is
    one gather, without a padded copy.
    """
    height, width = images.shape[1:3]
    ys = _window(random[:, :1], height, pad, crop or height)  # (B, H), or (B, crop)
    xs = _window(random[:, 1:2], width, pad, crop or width)
    if flip:
        xs = torch.where(random[:, 2:3] < 0.5, xs.flip(1), xs)
    inside = ((ys >= 0) & (ys < height))[:, :, None] & ((xs >= 0) & (xs < width))[:, None, :]  # (B, H, W)
    picked = images[rows[:, None, None], ys.clamp(0, height - 1)[:, :, None], xs.clamp(0, width - 1)[:, None, :]]
    return picked * inside[..., None]


def _window(random: Tensor, size: int, pad: int, crop: int) -> Tensor:
    """Consecutive places (B, crop) within −pad to size + pad − 1; every start is equally likely."""
    start = (random * (2 * pad + size - crop + 1)).long() - pad
    return start + torch.arange(crop, device=random.device)


def centre_crop(images: Tensor, crop: int | None) -> Tensor:
    """The middle `crop` × `crop` pixels of images (n, H, W, C), or all pixels if `crop` is None."""
    if crop is None:
        return images
    top, left = ((size - crop) // 2 for size in images.shape[1:3])
    return images[:, top : top + crop, left : left + crop]


def image_layout(device: torch.device, dtype: torch.dtype) -> torch.memory_format:
    """The memory layout of images and their networks: channels last if convolutions are faster that way."""
    faster = device.type == "cuda" or (device.type == "cpu" and dtype == torch.float32)
    return torch.channels_last if faster else torch.contiguous_format


class Normalise:
    """Compute (x − mean) / std per channel; images go in as (B, H, W, C) uint8 and come out as (B, C, H, W)."""

    def __init__(
        self, mean: tuple[float, ...], std: tuple[float, ...], image: bool, device: torch.device, dtype: torch.dtype
    ) -> None:
        unit = 255.0 if image else 1.0
        self.scale = 1.0 / (unit * torch.tensor(std, dtype=dtype, device=device))
        self.shift = -torch.tensor(mean, dtype=dtype, device=device) / torch.tensor(std, dtype=dtype, device=device)
        self.image, self.dtype = image, dtype
        self.layout = image_layout(device, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        x = torch.addcmul(self.shift, x.to(self.dtype), self.scale)
        return x.permute(0, 3, 1, 2).contiguous(memory_format=self.layout) if self.image else x
