"""A tiny generated data set, for tests and quick starts."""

from __future__ import annotations

import numpy as np

from fasten.data.source import Source


def make_blobs(num_classes: int = 4, per_class: int = 50, size: int = 8, channels: int = 3, seed: int = 0) -> Source:
    """Make images of `num_classes` separable classes: each class has a pattern, and an image is its pattern plus noise.

    Patterns are their own mirror images, so that random flips do not mix classes. Rows cycle through the classes.

    >>> source = make_blobs(num_classes=3, per_class=2, seed=1)
    >>> source.x.shape, source.truth.tolist()
    ((6, 8, 8, 3), [0, 1, 2, 0, 1, 2])
    """
    if num_classes < 2 or min(per_class, size, channels) < 1:
        raise ValueError(
            f"make_blobs needs two classes and one row, pixel and channel or more, got num_classes={num_classes}, "
            f"per_class={per_class}, size={size}, channels={channels}"
        )
    rng = np.random.default_rng(seed)
    half = rng.uniform(48, 208, (num_classes, size, (size + 1) // 2, channels))
    patterns = np.concatenate([half, half[:, :, : size // 2][:, :, ::-1]], axis=2)  # (N, size, size, C)
    truth = np.tile(np.arange(num_classes, dtype=np.int64), per_class)
    x = patterns[truth] + rng.normal(0, 16, (len(truth), size, size, channels))
    flips = {c: ((c + 1) % num_classes,) for c in range(0, num_classes, 2)}  # as in CIFAR-10, half keep their label
    return Source(
        name="blobs",
        x=np.clip(np.rint(x), 0, 255).astype(np.uint8),
        truth=truth,
        test=np.zeros(len(truth), bool),
        class_names=tuple(f"blob {c}" for c in range(num_classes)),
        flips=flips,
    )
