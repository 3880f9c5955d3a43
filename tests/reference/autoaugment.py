"""AutoAugment's policy for CIFAR-10 as a plain loop with Pillow, image by image."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

# As the paper's table has it: operation, probability, magnitude.
PAIRS = """
Invert 0.1 7, Contrast 0.2 6
Rotate 0.7 2, TranslateX 0.3 9
Sharpness 0.8 1, Sharpness 0.9 3
ShearY 0.5 8, TranslateY 0.7 9
AutoContrast 0.5 8, Equalize 0.9 2
ShearY 0.2 7, Posterize 0.3 7
Color 0.4 3, Brightness 0.6 7
Sharpness 0.3 9, Brightness 0.7 9
Equalize 0.6 5, Equalize 0.5 1
Contrast 0.6 7, Sharpness 0.6 5
Color 0.7 7, TranslateX 0.5 8
Equalize 0.3 7, AutoContrast 0.4 8
TranslateY 0.4 3, Sharpness 0.2 6
Brightness 0.9 6, Color 0.2 8
Solarize 0.5 2, Invert 0.0 3
Equalize 0.2 0, AutoContrast 0.6 0
Equalize 0.2 8, Equalize 0.6 4
Color 0.9 9, Equalize 0.6 6
AutoContrast 0.8 4, Solarize 0.2 8
Brightness 0.1 3, Color 0.7 0
Solarize 0.4 5, AutoContrast 0.9 3
TranslateY 0.9 9, TranslateY 0.7 9
AutoContrast 0.9 2, Solarize 0.8 3
Equalize 0.8 8, Invert 0.1 3
TranslateY 0.7 9, AutoContrast 0.9 1
"""
POLICY = [
    [(name, float(p), int(m)) for name, p, m in (part.split() for part in line.split(","))]
    for line in PAIRS.strip().splitlines()
]


def affine(image, matrix, resample=Image.Resampling.NEAREST):
    grey = 128 if image.mode == "L" else (128, 128, 128)
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=grey)


def operate(image, name, magnitude, sign):
    """One operation on a Pillow image."""
    m = np.linspace(0, 1, 10)[magnitude]
    if name == "ShearY":
        return affine(image, (1, 0, 0, sign * 0.3 * m, 1, 0), Image.Resampling.BICUBIC)
    if name == "TranslateX":
        return affine(image, (1, 0, sign * m * 150 / 331 * image.size[0], 0, 1, 0))
    if name == "TranslateY":
        return affine(image, (1, 0, 0, 0, 1, sign * m * 150 / 331 * image.size[1]))
    if name == "Rotate":
        return image.rotate(30 * m, fillcolor=128 if image.mode == "L" else (128, 128, 128))
    if name in ("Color", "Contrast", "Brightness", "Sharpness"):
        return getattr(ImageEnhance, name)(image).enhance(1 + sign * 0.9 * m)
    if name == "Solarize":
        return ImageOps.solarize(image, 256 - 256 * m)
    if name == "Posterize":
        return ImageOps.posterize(image, int(np.round(8 - 4 * m)))
    return {"Invert": ImageOps.invert, "AutoContrast": ImageOps.autocontrast, "Equalize": ImageOps.equalize}[name](
        image
    )


def to_pillow(pixels):
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def augment(pixels, random):
    """One image (H, W, C) by its five random numbers."""
    image = to_pillow(pixels)
    for number, (name, p, magnitude) in enumerate(POLICY[int(random[0] * 25)]):
        if random[1 + 2 * number] < p:
            image = operate(image, name, magnitude, 1 if random[2 + 2 * number] < 0.5 else -1)
    return np.asarray(image).reshape(pixels.shape)
