"""Small data as users have them: a folder of digits, a table, arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits


def wrong_labels(truth: NDArray[np.int64], share: float, num_classes: int, seed: int) -> NDArray[np.int64]:
    """That share of labels exchanged for another, at random."""
    rng = np.random.default_rng(seed)
    moved = (truth + rng.integers(1, num_classes, len(truth))) % num_classes
    return np.where(rng.random(len(truth)) < share, moved, truth)


def write_digits(
    folder: Path, *, classes: int = 3, per_class: int = 40, share: float = 0.3, num_verified: int = 60, seed: int = 0
) -> tuple[list[str], dict[str, str]]:
    """PNG files `d3/17.png`, of which a share lies in the wrong folder; the verified names, and every file's truth.

    Beside the folder lies verified.txt, with a line `name,label` for each verified image.
    """
    rng = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    rows = np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:per_class] for c in range(classes)])
    given = wrong_labels(labels[rows], share, classes, seed)
    truth = {}
    for row, label in zip(rows.tolist(), given.tolist(), strict=True):
        path = folder / f"d{label}" / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((images[row].reshape(8, 8) * 15.9).astype(np.uint8)).save(path)
        truth[f"d{label}/{row}.png"] = f"d{labels[row]}"
    verified = [str(name) for name in rng.permutation(sorted(truth))[:num_verified]]
    lines = [f"{name},{truth[name]}" for name in verified]
    folder.with_name("verified.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return verified, truth


def make_blobs(
    n: int = 400, num_classes: int = 4, size: int = 6, share: float = 0.3, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Features, given labels and truth of Gaussian classes that overlap a little."""
    rng = np.random.default_rng(seed)
    means = 3 * rng.standard_normal((num_classes, size))
    truth = rng.integers(num_classes, size=n)
    x = (means[truth] + rng.standard_normal((n, size))).astype(np.float32)
    return x, wrong_labels(truth, share, num_classes, seed), truth


def write_table(path: Path, *, n: int = 400, verified: int = 120, test: int = 60, seed: int = 0) -> NDArray[np.int64]:
    """A CSV file of features, `label`, `verified_label` and `split`; the truth of its rows."""
    x, given, truth = make_blobs(n, seed=seed)
    names = [f"kind {c}" for c in range(4)]
    lines = [",".join(["id", *(f"f{i}" for i in range(x.shape[1])), "label", "verified_label", "split"])]
    for row in range(n):
        is_test = row >= n - test
        label = names[truth[row] if is_test else given[row]]
        checked = names[truth[row]] if row < verified else ""
        lines.append(",".join([f"r{row}", *(f"{v:.4f}" for v in x[row]), label, checked, "test" if is_test else ""]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return truth
