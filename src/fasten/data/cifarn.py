"""CIFAR-10N and CIFAR-100N: CIFAR's training images with labels given by people (Wei et al., ICLR 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasten.data.cifar import CIFAR10, CIFAR100, Release, read_cifar10, read_cifar100
from fasten.data.pickles import load_torch_file
from fasten.data.source import Source
from fasten.suggest import nearest

LABEL_SETS10 = MappingProxyType(
    {
        "worst": "worse_label",
        "aggregate": "aggre_label",
        "random1": "random_label1",
        "random2": "random_label2",
        "random3": "random_label3",
    }
)
LABEL_SETS100 = MappingProxyType({"noisy": "noisy_label", "worst": "noisy_label"})  # one set, under two names

HOME = "https://github.com/UCSC-REAL/cifar-10-100n"


def read_cifar10n(
    root: Path, label_set: str = "worst", download: bool = False, *, release: Release = CIFAR10
) -> Source:
    """Read CIFAR-10 with one of its sets of human labels: worst, aggregate, random1, random2, random3.

    `root` holds the images as for `read_cifar10`, and CIFAR-10_human.pt, or CIFAR-10_human.npz with the same keys.
    `download` fetches only the images: no official checksums of the labels are known.
    """
    key = _key("CIFAR-10N", label_set, LABEL_SETS10)
    labels = _read_labels(root, "CIFAR-10_human", key)
    return _with_given("cifar10n", read_cifar10(root, download, release=release), *labels)


def read_cifar100n(
    root: Path, label_set: str = "noisy", download: bool = False, *, release: Release = CIFAR100
) -> Source:
    """Read CIFAR-100 with its only set of human labels (noisy); `root` as for `read_cifar10n`."""
    key = _key("CIFAR-100N", label_set, LABEL_SETS100)
    labels = _read_labels(root, "CIFAR-100_human", key)
    return _with_given("cifar100n", read_cifar100(root, download, release=release), *labels)


def _key(title: str, label_set: str, known: Mapping[str, str]) -> str:
    if label_set not in known:
        raise ValueError(f"unknown label set {label_set!r} of {title}; {nearest(label_set, known)}")
    return known[label_set]


def _read_labels(root: Path, stem: str, key: str) -> tuple[Path, NDArray[np.int64], NDArray[np.int64]]:
    """Return the path of the file, and for the training rows its clean labels and the labels called `key`."""
    path = _find(Path(root).expanduser(), stem)
    arrays = load_torch_file(path) if path.suffix == ".pt" else _load_npz(path, ("clean_label", key))
    for name in ("clean_label", key):
        if name not in arrays or arrays[name].ndim != 1 or arrays[name].dtype.kind not in "iu":
            raise ValueError(f"{path} holds no list of whole numbers called {name}; use the official file from {HOME}")
    return path, arrays["clean_label"].astype(np.int64), arrays[key].astype(np.int64)


def _find(root: Path, stem: str) -> Path:
    """Look in `root`, then beside it, since `root` may be the folder or archive of the images."""
    for folder in (root, root.parent):
        for suffix in (".pt", ".npz"):
            if (folder / (stem + suffix)).is_file():
                return folder / (stem + suffix)
    raise FileNotFoundError(
        f"{stem}.pt is not in {root}; fetch it from {HOME} and put it there, or give its folder with --root "
        "(--download fetches only the images)"
    )


def _load_npz(path: Path, keys: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in keys if key in arrays}
    except Exception as error:  # a damaged file fails in many ways, and the details do not help the user
        raise ValueError(f"{path}: the file cannot be read ({type(error).__name__}: {error}); save it again") from error


def _with_given(name: str, images: Source, path: Path, clean: NDArray[np.int64], labels: NDArray[np.int64]) -> Source:
    truth = images.truth[~images.test]
    if not len(clean) == len(labels) == len(truth):
        raise ValueError(
            f"{path} has {len(clean)} clean and {len(labels)} given labels for {len(truth)} training images; use the "
            f"official file from {HOME}"
        )
    wrong = np.flatnonzero(clean != truth)
    if len(wrong):
        row = wrong[0]
        raise ValueError(
            f"{path}: clean_label differs from the images' labels in {len(wrong)} of {len(truth)} rows, first in row "
            f"{row} ({clean[row]}, the image is a {truth[row]}); the labels are in another order than the images: use "
            "the official Python files for both"
        )
    given = np.full(len(images.x), -1, np.int64)
    given[~images.test] = labels
    return replace(images, name=name, given=given)
