"""Builders of tiny CIFAR files in the official form: Python 2 pickles, as Python 3 no longer writes them."""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fasten.data.cifar import Release


def py2_pickle(value: object) -> bytes:
    """A protocol-2 pickle with the opcodes of Python 2: `bytes` here are its strings."""
    return b"\x80\x02" + _py2(value) + b"."


def _py2(value: object) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_py2(key) + _py2(item) for key, item in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_py2, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_py2, value)) + b"t"
    if isinstance(value, bool) or value is None:
        return {True: b"\x88", False: b"\x89", None: b"N"}[value]
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    assert isinstance(value, np.ndarray)
    dtype = b"cnumpy\ndtype\n" + _py2((value.dtype.str[1:].encode(), 0, 1)) + b"R"
    dtype += _py2((3, value.dtype.str[:1].encode(), None, None, None, -1, -1, 0)) + b"b"
    state = b"(" + _py2(1) + _py2(value.shape) + dtype + _py2(False) + _py2(value.tobytes()) + b"t"
    return b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _py2((0,)) + _py2(b"b") + b"tR" + state + b"b"


@dataclass(frozen=True)
class FakeCifar:
    """Where the files lie, their release with its own checksums, and what is in them."""

    root: Path
    release: Release
    pixels: np.ndarray  # (n, 3, 32, 32), training rows first
    labels: np.ndarray  # (n,)

    def pack(self, target: Path) -> Release:
        """Write the archive; the release with its checksum."""
        with tarfile.open(target, "w:gz") as archive:
            for name in self.release.files:
                data = (self.root / self.release.folder / name).read_bytes()
                member = tarfile.TarInfo(f"{self.release.folder}/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        return replace(self.release, md5=hashlib.md5(target.read_bytes()).hexdigest())


def write_release(root: Path, release: Release, files: dict[str, object]) -> Release:
    folder = root / release.folder
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(py2_pickle(content))
    return replace(release, files={name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in files})
