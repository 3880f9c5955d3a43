"""Tables of numbers in .npy files, written a part at a time and read as they are needed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasten.files import replaced


def write_npy(path: str | os.PathLike[str], parts: Iterable[NDArray[Any]], shape: tuple[int, int]) -> None:
    """Write rows of float32 from parts that come one after the other; the file is whole or absent.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "table.npy"
    ...     write_npy(path, [np.zeros((2, 3)), np.ones((1, 3))], (3, 3))
    ...     np.load(path, allow_pickle=False).sum(1).tolist()
    [0.0, 0.0, 3.0]
    """
    rows = 0
    with replaced(path) as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            assert part.shape[1:] == shape[1:]
            file.write(np.ascontiguousarray(part, "<f4").data)
            rows += len(part)
        assert rows == shape[0], f"{rows} rows came, and {shape[0]} were expected"


def read_npy(path: str | os.PathLike[str]) -> NDArray[Any]:
    """A memory map of the file; ValueError or EOFError if it is damaged."""
    found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found
