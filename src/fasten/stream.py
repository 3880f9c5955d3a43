"""A loader for data that do not fit on the device, or are in files: it fetches the rows of coming updates in advance.

Threads fetch the rows; images in files are decoded by other processes if there are cores for them. Picks are drawn
exactly as in the resident loader, and augmentation and normalisation are the same code, so batches are the same.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fasten.augment import centre_crop
from fasten.contract import Stage
from fasten.data.decoders import Decoders
from fasten.data.images import ImageFiles
from fasten.data.task import Task
from fasten.loader import Loader, Picks
from fasten.ranks import local_world

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
WORKERS = max(4, CORES)
AHEAD = 8  # updates, or chunks of a whole part, fetched in advance
PIECE_ROWS, PIECE_BYTES = 16, 2**20  # a worker fetches at least this much at a time, so that many share an update
CHUNK_BYTES = 2**25  # most of a whole part that is read at a time, so that what is fetched in advance stays small
SENT = 3  # updates that the device may be behind; rows that it has not read stay in pinned memory

T = TypeVar("T")
Rows = NDArray[np.int64]


class StreamLoader(Loader):
    """Leaves the rows where they are (in memory, in a mapped file or in image files), and moves one batch at a time.

    `decoders` is the number of processes that decode image files, for all ranks on a machine together; with 0, threads
    of this process do it. The processes start when the first row is needed.
    """

    decoders = CORES if CORES > 1 else 0

    def _store(self, task: Task) -> None:
        self.host = task.x
        self.host_rows = {name: rows.cpu().numpy() for name, rows in self.rows.items()}
        self._processes: Decoders | None = None
        on_gpu = self.device.type == "cuda"
        self._side = torch.cuda.Stream(self.device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._sent: deque[torch.cuda.Event] = deque()

    def _fetch(self, rows: Rows, out: NDArray[Any]) -> None:
        if self._processes is not None:
            assert isinstance(self.host, ImageFiles)
            self._processes.read(self.host, rows, out)
        else:
            out[:] = self.host[rows]

    def _start_processes(self) -> None:
        first = np.arange(min(1, len(self.host)))
        if self._processes is None and self.decoders and isinstance(self.host, ImageFiles) and self.host.told(first):
            self._processes = Decoders(max(1, self.decoders // local_world()))

    def _ahead(self, wanted: Iterator[tuple[T, Sequence[Rows]]]) -> Iterator[tuple[T, list[Tensor]]]:
        """Yield each of `wanted` with its rows on the device, in order, while the next ones are being fetched."""
        waiting: deque[tuple[T, list[Tensor], list[Future[None]]]] = deque()
        self._start_processes()
        pool = ThreadPoolExecutor(WORKERS, "fasten-fetch")
        try:
            while True:
                for what, parts in islice(wanted, AHEAD - len(waiting)):
                    raw = [self._room(len(rows)) for rows in parts]
                    pieces = [self._submit(pool, rows, x) for rows, x in zip(parts, raw, strict=True)]
                    waiting.append((what, raw, list(chain(*pieces))))
                if not waiting:
                    return
                what, raw, fetched = waiting.popleft()
                for piece in fetched:
                    piece.result()
                yield what, self._send(raw)
        finally:
            pool.shutdown(cancel_futures=True)

    def _room(self, count: int) -> Tensor:
        like = torch.from_numpy(np.empty(0, self.host.dtype))
        return torch.empty((count, *self.host.shape[1:]), dtype=like.dtype, pin_memory=self._side is not None)

    def _submit(self, pool: ThreadPoolExecutor, rows: Rows, raw: Tensor) -> Iterator[Future[None]]:
        out = raw.numpy()
        size = max(PIECE_ROWS, PIECE_BYTES // self._row_bytes)
        for first in range(0, len(rows), size):
            yield pool.submit(self._fetch, rows[first : first + size], out[first : first + size])

    @property
    def _row_bytes(self) -> int:
        return max(1, self.host.nbytes // max(1, len(self.host)))

    def _send(self, raw: list[Tensor]) -> list[Tensor]:
        """Copy to the device on a separate stream, while the previous update is still running."""
        if self._side is None:
            return [x.to(self.device) for x in raw]
        now = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._side):
            sent = [x.to(self.device, non_blocking=True) for x in raw]
        now.wait_stream(self._side)
        for x in sent:
            x.record_stream(now)
        self._sent.append(now.record_event())
        if len(self._sent) > SENT:  # a host far ahead would fill the memory of both
            self._sent.popleft().synchronize()
        return sent

    def updates(self, stage: Stage, key: tuple[int, int], start: int = 0) -> Iterator[dict[str, Picks]]:
        for picks, raw in self._ahead(self._planned(stage, key, start)):
            yield {name: replace(p, x=x) for (name, p), x in zip(picks.items(), raw, strict=True)}

    def _planned(
        self, stage: Stage, key: tuple[int, int], start: int
    ) -> Iterator[tuple[dict[str, Picks], Sequence[Rows]]]:
        """Picks and their rows. The host waits for the device once per block, not once per update."""
        for block, numbers in self.blocks(stage, key, start):
            rows = [self.host_rows[stage.draws[name].source][p.index.cpu().numpy()] for name, p in block.items()]
            for number in numbers:
                yield {name: p.update(number) for name, p in block.items()}, [part[number] for part in rows]

    def chunks(self, name: str, size: int, places: Tensor | None = None) -> Iterator[Tensor]:
        rows = self.host_rows[name] if places is None else self.host_rows[name][places.cpu().numpy()]
        size = max(1, min(self._chunk(size), CHUNK_BYTES // self._row_bytes))
        wanted = ((None, [rows[first : first + size]]) for first in range(0, len(rows), size))
        for _, (raw,) in self._ahead(wanted):
            yield self.normalise(centre_crop(raw, self.crop))
