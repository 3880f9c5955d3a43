"""Strong augmentation against Pillow, operation by operation and as a whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fasten.strong_augment import POLICY, AutoAugment
from reference import autoaugment

CPU = torch.device("cpu")
NAMES = {
    "shear-y": "ShearY",
    "translate-x": "TranslateX",
    "translate-y": "TranslateY",
    "rotate": "Rotate",
    "brightness": "Brightness",
    "contrast": "Contrast",
    "colour": "Color",
    "sharpness": "Sharpness",
    "invert": "Invert",
    "solarize": "Solarize",
    "posterize": "Posterize",
    "autocontrast": "AutoContrast",
    "equalize": "Equalize",
}
ROUNDED = {"shear-y", "autocontrast"}  # by Pillow in double precision, here otherwise


def make_images(count: int, height: int, width: int, channels: int) -> np.ndarray:
    """Half of them noise, half smooth and of few values, as shades are."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (count, height, width, channels), dtype=np.uint8)
    shades = np.linspace(0, 1, height)[:, None, None] * rng.integers(0, 100, (count, 1, 1, 1))
    smooth = (rng.integers(0, 150, (count, 1, 1, channels)) + shades + noise % 6).astype(np.uint8)
    return np.concatenate([noise[::2], smooth[1::2]])


def run(policy: AutoAugment, images: np.ndarray, random: np.ndarray) -> np.ndarray:
    return policy(torch.from_numpy(images), torch.from_numpy(random)).numpy()


def assert_near(found, expected):
    """Some values are one off; of a pixel from the very border it may be open whether it is from outside."""
    off = np.abs(found.astype(int) - expected)
    assert (off > 0).mean() < 0.12  # in images of six pixels
    assert (off > 1).mean() < 0.02


@pytest.mark.parametrize("shape", [(32, 32, 3), (9, 14, 1), (2, 3, 3)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_an_operation_is_that_of_pillow(name, shape):
    images = make_images(6, *shape)
    for magnitude in range(10):
        for slot, way in ((0, 0.2), (1, 0.7)) if name != "shear-y" else ((0, 0.2), (0, 0.7)):
            pair = [("invert", 0, 0), ("invert", 0, 0)]
            pair[slot] = (name, 10, magnitude)
            random = np.full((6, 5), way, np.float32)
            found = run(AutoAugment((shape[2], *shape[:2]), CPU, [tuple(pair)]), images, random)
            sign = 1 if way < 0.5 else -1
            pillow = [autoaugment.operate(autoaugment.to_pillow(i), NAMES[name], magnitude, sign) for i in images]
            expected = np.stack([np.asarray(image) for image in pillow]).reshape(images.shape)
            if name in ROUNDED:
                assert_near(found, expected)
            else:
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(32, 32, 3), (8, 8, 1)], ids=str)
def test_the_policy_is_a_loop_with_pillow(shape):
    images = make_images(500, *shape)
    random = np.random.default_rng(1).random((500, 5), dtype=np.float32)
    found = run(AutoAugment((shape[2], *shape[:2]), CPU), images, random)
    expected = np.stack([autoaugment.augment(image, mine) for image, mine in zip(images, random, strict=True)])
    off = np.abs(found.astype(int) - expected)
    assert (off > 0).mean() < 0.005
    assert off.max() <= 8  # after one of them is one off, `posterize` may round it down a step
    assert (off.max((1, 2, 3)) > 1).mean() < 0.02
    assert 0.1 < (expected == images).all((1, 2, 3)).mean() < 0.6


def test_the_policy_is_that_of_the_paper():
    found = [[(NAMES[name], tenths / 10, magnitude) for name, tenths, magnitude in pair] for pair in POLICY]
    assert found == autoaugment.POLICY


def test_an_image_goes_by_its_own_numbers_whatever_is_beside_it():
    images = make_images(40, 8, 8, 3)
    random = np.random.default_rng(2).random((40, 5), dtype=np.float32)
    policy = AutoAugment((3, 8, 8), CPU)
    alone = [run(policy, images[i : i + 1], random[i : i + 1])[0] for i in range(40)]
    np.testing.assert_array_equal(run(policy, images, random), alone)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_where_nothing_is_done_an_image_stays_as_it_is(channels):
    images = make_images(50, 7, 5, channels)
    random = np.random.default_rng(3).random((50, 5), dtype=np.float32)
    random[:, [1, 3]] = 1 - 2**-24
    np.testing.assert_array_equal(run(AutoAugment((channels, 7, 5), CPU), images, random), images)


def test_pairs_come_equally_often_and_operations_as_often_as_they_should():
    policy = AutoAugment((1, 1, 1), CPU, [(("invert", 3, 0), ("invert", 0, 0)), (("solarize", 8, 9), ("invert", 0, 0))])
    random = np.random.default_rng(4).random((20_000, 5), dtype=np.float32)
    changed = run(policy, np.zeros((20_000, 1, 1, 1), np.uint8), random).flatten() == 255
    first = random[:, 0] < 0.5
    np.testing.assert_allclose([changed[first].mean(), changed[~first].mean()], [0.3, 0.8], atol=0.015)
