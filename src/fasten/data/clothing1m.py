"""Clothing1M (Xiao et al., CVPR 2015): a million shop images, labelled by the text around them; some also by people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fasten.data.images import ImageFiles
from fasten.data.source import Source
from fasten.data.splits import Split
from fasten.sentences import are, some

NUM_CLASSES = 14
SIDE = 256  # of the images from which the network's crops are cut

# The official split: one list of images for each field of a Split, in the same order.
LISTS = MappingProxyType(
    {
        "noisy": "noisy_train_key_list.txt",
        "clean": "clean_train_key_list.txt",
        "valid": "clean_val_key_list.txt",
        "test": "clean_test_key_list.txt",
    }
)
NOISY_LABELS, CLEAN_LABELS, NAMES = "noisy_label_kv.txt", "clean_label_kv.txt", "category_names_eng.txt"
FILES = (*LISTS.values(), NOISY_LABELS, CLEAN_LABELS, NAMES)
FOLDERS = ("", "clothing1M", "clothing1m", "Clothing1M")  # of the data set, in --root
HOME = "https://github.com/Cysu/noisy_label"


def read_clothing1m(root: Path, download: bool = False) -> Source:
    """Read the rows of the four official lists, noisy ones first; images are decoded when they are requested.

    `root` holds the lists and labels, or a folder `annotations` with them, and the images at the paths that the lists
    give; or it holds a folder clothing1M of that form. The given label of a noisy row comes from the text around the
    image; its true label is known only if people gave one. Clean rows also keep their given label, if any: from these,
    T can be counted.
    """
    base, folder = _find(Path(root).expanduser(), download)
    keys = {part: _read_keys(folder / name) for part, name in LISTS.items()}
    _check_apart(folder, keys)
    for part in keys:
        _check_there(base, keys[part][0])
    given = _read_labels(folder / NOISY_LABELS)
    truth = _read_labels(folder / CLEAN_LABELS)
    split = _consecutive({part: len(found) for part, found in keys.items()})
    rows = [key for part in keys.values() for key in part]
    source_truth, source_given = (np.full(len(rows), -1, np.int64) for _ in range(2))
    source_truth[split.noisy] = [truth.get(key, -1) for key in keys["noisy"]]
    source_given[split.clean] = [given.get(key, -1) for key in keys["clean"]]
    source_given[split.noisy] = _look_up(keys["noisy"], given, folder / NOISY_LABELS)
    for part in ("clean", "valid", "test"):
        source_truth[getattr(split, part)] = _look_up(keys[part], truth, folder / CLEAN_LABELS)
    test = np.zeros(len(rows), bool)
    test[split.test] = True
    names = _read_names(folder / NAMES)
    return Source(
        "clothing1m", ImageFiles(base, rows, SIDE), source_truth, test, names, given=source_given, split=split
    )


def _find(root: Path, download: bool) -> tuple[Path, Path]:
    """Return the data set's folder, to which the paths in the lists are relative, and the folder of the lists."""
    places = [(root / name, root / name / inside) for name in FOLDERS for inside in ("", "annotations")]
    for base, folder in places:
        if all((folder / name).is_file() for name in FILES):
            return base, folder
    for _, folder in places:
        lacking = [name for name in FILES if not (folder / name).is_file()]
        if len(lacking) < len(FILES):
            raise FileNotFoundError(f"{folder} lacks {', '.join(lacking)}; get all files of the official release")
    cannot = "it cannot be downloaded: " if download else ""
    raise FileNotFoundError(
        f"Clothing1M is not in {root}, nor in {root / FOLDERS[1]}: no {FILES[0]}; {cannot}ask its authors for it "
        f"({HOME}), and give its folder with --root"
    )


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file ({error}); get it from the official release again") from None


def _read_keys(path: Path) -> list[str]:
    keys = [line for line in _lines(path) if line]
    if not keys:
        raise ValueError(f"{path} names no image; get it from the official release again")
    return keys


def _read_labels(path: Path) -> dict[str, int]:
    """Return the class of each image, from lines with an image and a class, separated by a space."""
    labels: dict[str, int] = {}
    known = {str(label): label for label in range(NUM_CLASSES)}
    for number, line in enumerate(_lines(path), start=1):
        key, _, label = line.rpartition(" ")
        if line and not (key and label in known):
            raise ValueError(
                f"{path}: line {number} is {line!r}; expected an image and its class from 0 to {NUM_CLASSES - 1}, with "
                "a space between them"
            )
        if line:
            labels[key.rstrip()] = known[label]
    return labels


def _read_names(path: Path) -> tuple[str, ...]:
    names = tuple(line for line in _lines(path) if line)
    if len(names) != NUM_CLASSES:
        raise ValueError(f"{path} names {len(names)} classes, one per line; Clothing1M has {NUM_CLASSES}")
    return names


def _check_apart(folder: Path, keys: Mapping[str, Sequence[str]]) -> None:
    """Refuse an image in two lists: it might be used for both training and testing. The official lists share none."""
    count = Counter(key for part in keys.values() for key in set(part))
    key, most = max(count.items(), key=lambda pair: pair[1])
    if most > 1:
        where = " and ".join(LISTS[part] for part in keys if key in keys[part])
        shared = sum(lists > 1 for lists in count.values())
        raise ValueError(
            f"{folder}: {key} is in {where}, and {some(shared, 'image')} {are(shared)} in more than one list; use the "
            "official lists"
        )


def _check_there(base: Path, key: str) -> None:
    if not (base / key).is_file():
        raise FileNotFoundError(
            f"the image {key} is not in {base}, and others may be missing too; unpack all of the release's images there"
        )


def _consecutive(sizes: Mapping[str, int]) -> Split:
    ends = np.cumsum([0, *sizes.values()])
    parts = {p: np.arange(first, last) for p, first, last in zip(sizes, ends[:-1], ends[1:], strict=True)}
    return Split(**parts)


def _look_up(keys: Sequence[str], labels: Mapping[str, int], path: Path) -> NDArray[np.int64]:
    try:
        return np.array([labels[key] for key in keys], np.int64)
    except KeyError as error:
        raise ValueError(f"{path} has no label for {error.args[0]}; use the official files of one release") from None
