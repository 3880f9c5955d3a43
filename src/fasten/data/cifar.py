"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), read from their official Python files, unpacked or in the archive."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasten.data.download import download as fetch
from fasten.data.pickles import load_plain
from fasten.data.source import Source

Labels = NDArray[np.int64]
Contents = dict[str, dict[str, Any]]  # file -> key -> value

SIDE, CHANNELS = 32, 3
LARGEST_MEMBER = 2**28  # bytes of a file in an archive; the largest official file has 155 million


@dataclass(frozen=True)
class Release:
    """The files as published: their names, their md5, and where to download them."""

    title: str
    folder: str
    files: Mapping[str, str]  # name -> md5
    url: str
    md5: str  # of the archive

    @property
    def archive(self) -> str:
        return self.url.rpartition("/")[2]


CIFAR10 = Release(
    title="CIFAR-10",
    folder="cifar-10-batches-py",
    files=MappingProxyType(
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        }
    ),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
)

CIFAR100 = Release(
    title="CIFAR-100",
    folder="cifar-100-python",
    files=MappingProxyType(
        {
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        }
    ),
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
)

# Patrini et al. (2017): truck -> automobile, bird -> airplane, deer -> horse, cat <-> dog.
CIFAR10_FLIPS = {9: (1,), 2: (0,), 4: (7,), 3: (5,), 5: (3,)}


def read_cifar10(root: Path, download: bool = False, *, release: Release = CIFAR10) -> Source:
    """Read CIFAR-10: 50,000 training rows, then 10,000 test rows.

    `root` is the folder cifar-10-batches-py, a folder that holds it or the archive, or the archive itself. With
    `download`, the archive is downloaded to `root` if nothing is found.
    """
    files = _read_files(root, release, download)
    train = [_labels(files, name, "labels") for name in release.files if name.startswith("data_batch")]
    test = _labels(files, "test_batch", "labels")
    x = _images(files, [name for name in release.files if name != "batches.meta"])
    names = _names(files, "batches.meta", "label_names")
    return Source("cifar10", x, np.concatenate([*train, test]), _last(len(test), len(x)), names, CIFAR10_FLIPS)


def read_cifar100(root: Path, download: bool = False, *, release: Release = CIFAR100) -> Source:
    """Read CIFAR-100 with fine labels: 50,000 training rows, then 10,000 test rows; `root` as for `read_cifar10`."""
    files = _read_files(root, release, download)
    train, test = (_labels(files, name, "fine_labels") for name in ("train", "test"))
    x = _images(files, ["train", "test"])
    names = _names(files, "meta", "fine_label_names")
    flips = superclass_flips(train, _labels(files, "train", "coarse_labels"))
    return Source("cifar100", x, np.concatenate([train, test]), _last(len(test), len(x)), names, flips)


def superclass_flips(fine: Labels, coarse: Labels) -> dict[int, tuple[int, ...]]:
    """Map each fine class to the other fine classes of its superclass, if there are any.

    >>> superclass_flips(np.array([0, 1, 2, 3, 4]), np.array([0, 1, 0, 2, 0]))
    {0: (2, 4), 2: (0, 4), 4: (0, 2)}
    """
    above = dict(sorted(zip(fine.tolist(), coarse.tolist(), strict=True)))
    siblings = {c: tuple(other for other in above if other != c and above[other] == above[c]) for c in above}
    return {c: others for c, others in siblings.items() if others}


def _last(count: int, total: int) -> NDArray[np.bool_]:
    return np.arange(total) >= total - count


def _images(files: Contents, names: list[str]) -> NDArray[np.uint8]:
    views = []
    for name in names:
        data = _field(files, name, "data")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (CHANNELS * SIDE * SIDE,):
            raise ValueError(f"{name} holds images in another form than CIFAR; use the official Python files")
        views.append(data.reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1))  # (n, H, W, C)
    x = np.empty((sum(map(len, views)), SIDE, SIDE, CHANNELS), np.uint8)
    return np.concatenate(views, out=x)  # without `out`, the memory layout would stay channels-first


def _labels(files: Contents, name: str, key: str) -> Labels:
    labels = _field(files, name, key)
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError(f"{name} holds {key} that are not a list of whole numbers; use the official Python files")
    return np.array(labels, np.int64)


def _names(files: Contents, name: str, key: str) -> tuple[str, ...]:
    return tuple(_text(label) for label in _field(files, name, key))


def _field(files: Contents, name: str, key: str) -> Any:
    if key not in files[name]:
        raise ValueError(f"{name} holds no {key}; use the official Python files")
    return files[name][key]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _read_files(root: Path, release: Release, download: bool) -> Contents:
    place = _find(Path(root).expanduser(), release, download)
    contents = {}
    for name, data in (_unpacked(place, release) if place.is_dir() else _archived(place, release)).items():
        found = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if found != release.files[name]:
            raise ValueError(
                f"{name} in {place} has md5 {found}, the official file {release.files[name]}: it is damaged or "
                f"another version; remove it and fetch {release.title} again (--download)"
            )
        content = load_plain(data)
        if not isinstance(content, dict):
            raise ValueError(f"{name} in {place} holds a {type(content).__name__}; use the official Python files")
        contents[name] = {_text(key): value for key, value in content.items()}
    return contents


def _find(root: Path, release: Release, download: bool) -> Path:
    """Return the folder with all files, or the archive, downloaded if missing and allowed."""
    if root.is_file():
        return root
    folders = [root, root / release.folder]
    for folder in folders:
        if all((folder / name).is_file() for name in release.files):
            return folder
    archive = root if root.name.endswith(".tar.gz") else root / release.archive
    if not archive.is_file() and download:
        fetch(release.url, archive, release.md5)
    if archive.is_file():
        return archive
    for folder in folders:
        lacking = [name for name in release.files if not (folder / name).is_file()]
        if len(lacking) < len(release.files):
            missing = f"{folder} lacks {', '.join(lacking)}"
            break
    else:
        missing = f"{release.title} is not in {root}: neither the folder {release.folder} nor {release.archive}"
    raise FileNotFoundError(f"{missing}; give their folder with --root, or fetch them there with --download")


def _unpacked(folder: Path, release: Release) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in release.files}


def _archived(path: Path, release: Release) -> dict[str, bytes]:
    """Return the bytes of the files in the archive; nothing is written to disk."""
    files = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                inside = PurePosixPath(member.name)
                if inside.parent.name == release.folder and inside.name in release.files and member.isfile():
                    if member.size > LARGEST_MEMBER:
                        raise tarfile.TarError(f"{member.name} claims {member.size:,} bytes")
                    stream = archive.extractfile(member)
                    assert stream is not None  # it is a regular file
                    files[inside.name] = stream.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(
            f"{path} cannot be read as the archive of {release.title} ({error}); it is damaged or cut short: remove it "
            "and fetch it again (--download)"
        ) from error
    lacking = [name for name in release.files if name not in files]
    if lacking:
        raise ValueError(f"{path} holds no {release.folder}/{lacking[0]}; give the official {release.archive}")
    return files
