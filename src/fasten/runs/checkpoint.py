"""Checkpoints: one safetensors file each, whole or absent, with a checksum; the last two are kept.

They are written outside the training thread, from a copy of the tensors that is made at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fasten.files import write_bytes

KEEP = 2


class Checkpoints:
    """The checkpoints of one run, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pool = ThreadPoolExecutor(1, "fasten-checkpoint")
        self._pending: Future[None] | None = None

    def save(self, number: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Save checkpoint `number` (numbers increase); an error of the previous write is raised here."""
        self.wait()
        copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        text = json.dumps(meta)  # now: the caller may change it while the file is written
        self._pending = self._pool.submit(self._write, number, copies, text)

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    def _write(self, number: int, tensors: dict[str, Tensor], meta: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{number:09d}.safetensors"
        write_tensors(path, tensors, meta)
        files = self._files()
        written = files.index(path) + 1  # a later one was damaged, or the run would have continued from it
        for other in [*files[: max(0, written - KEEP)], *files[written:]]:
            other.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.safetensors"))

    @property
    def newest(self) -> str | None:
        """The file name of the newest checkpoint, or None."""
        files = self._files()
        return files[-1].name if files else None

    def drop_newest(self) -> None:
        """Delete the newest, unless it is the only one."""
        for path in self._files()[1:][-1:]:
            path.unlink()

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any], list[str]] | None:
        """The newest whole checkpoint, its JSON, and a sentence for each damaged one; None if there is none at all."""
        damaged: list[str] = []
        for path in reversed(self._files()):
            try:
                return (*read_tensors(path), damaged)
            except (OSError, ValueError, SafetensorError) as error:
                damaged.append(f"checkpoint {path.name} is damaged ({error}); the one before it is used")
        if damaged:
            raise ValueError(f"no checkpoint in {self.folder} is whole: {damaged[0]}; start the run again")
        return None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: str) -> None:
    """Write one safetensors file of tensors in CPU memory, with JSON beside them and a checksum of both."""
    header = {"meta": meta, "sha256": _checksum(tensors, meta)}
    write_bytes(path, safetensors.torch.save(dict(tensors), header))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote; OSError, ValueError or SafetensorError if it is not whole."""
    with safe_open(path, "pt") as file:
        header = file.metadata() or {}
        # Copies, since the others are the file itself, mapped: deleted, it would keep its place on the disk.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a mapping
    if header.get("sha256") != _checksum(tensors, header.get("meta", "")):
        raise ValueError("its checksum does not match")
    return tensors, json.loads(header["meta"])


def _checksum(tensors: Mapping[str, Tensor], meta: str) -> str:
    digest = hashlib.sha256(meta.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
