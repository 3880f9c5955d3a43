from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.fake_cifar import FakeCifar, write_release
from fasten.data.cifar import CIFAR10, CIFAR100


@pytest.fixture
def fake_cifar10(tmp_path: Path) -> FakeCifar:
    """Six files of two images each, with labels that go round the ten classes."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32), np.uint8)
    labels = np.arange(12) % 10
    files: dict[str, object] = {}
    for i, name in enumerate([*(f"data_batch_{b}" for b in range(1, 6)), "test_batch"]):
        rows = slice(2 * i, 2 * i + 2)
        files[name] = {b"data": pixels[rows].reshape(2, -1), b"labels": labels[rows].tolist(), b"batch_label": b"a"}
    files["batches.meta"] = {b"label_names": [f"class {c}".encode() for c in range(10)], b"num_vis": 3072}
    return FakeCifar(tmp_path / "ten", write_release(tmp_path / "ten", CIFAR10, files), pixels, labels)


@pytest.fixture
def fake_cifar100(tmp_path: Path) -> FakeCifar:
    """Eight training and four test images of four classes in two superclasses: {0, 2} and {1, 3}."""
    pixels = np.random.default_rng(1).integers(0, 256, (12, 3, 32, 32), np.uint8)
    labels = np.arange(12) % 4
    files: dict[str, object] = {}
    for name, rows in (("train", slice(0, 8)), ("test", slice(8, 12))):
        files[name] = {
            b"data": pixels[rows].reshape(-1, 3072),
            b"fine_labels": labels[rows].tolist(),
            b"coarse_labels": (labels[rows] % 2).tolist(),
        }
    files["meta"] = {b"fine_label_names": [b"ant", b"bee", b"cow", b"dog"], b"coarse_label_names": [b"even", b"odd"]}
    return FakeCifar(tmp_path / "hundred", write_release(tmp_path / "hundred", CIFAR100, files), pixels, labels)
