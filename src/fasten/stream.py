"""A loader for data that do not fit on the device, or lie in files: worker threads fetch the rows of coming updates.

The picks are drawn exactly as by the resident loader, and augmentation and normalisation are the same code, so the
same order of rows gives the same batches.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fasten.augment import centre_crop
from fasten.contract import Stage
from fasten.data.task import Task
from fasten.loader import Loader, Picks

WORKERS = max(4, min(16, os.cpu_count() or 1))
AHEAD = max(8, WORKERS)  # updates, or chunks of a whole part, fetched beforehand
CHUNK_BYTES = 2**24  # of a whole part at a time: what is fetched beforehand stays small, and every worker has some

T = TypeVar("T")
Rows = NDArray[np.int64]


class StreamLoader(Loader):
    """Rows stay where they are, in memory, in a mapped file or in images' own files; batches travel."""

    def _store(self, task: Task) -> None:
        self.host = task.x
        self.host_rows = {name: rows.cpu().numpy() for name, rows in self.rows.items()}

    def _fetch(self, rows: Rows) -> Tensor:
        raw = torch.from_numpy(np.ascontiguousarray(self.host[rows]))
        return raw.pin_memory() if self.device.type == "cuda" else raw

    def _ahead(self, wanted: Iterator[tuple[T, Sequence[Rows]]]) -> Iterator[tuple[T, list[Tensor]]]:
        """Each of `wanted` with its rows on the device, in order; the next ones are fetched meanwhile."""
        waiting: deque[tuple[T, list[Future[Tensor]]]] = deque()
        pool = ThreadPoolExecutor(WORKERS, "fasten-fetch")
        try:
            while True:
                for what, parts in islice(wanted, AHEAD - len(waiting)):
                    waiting.append((what, [pool.submit(self._fetch, rows) for rows in parts]))
                if not waiting:
                    return
                what, raw = waiting.popleft()
                yield what, [part.result().to(self.device, non_blocking=True) for part in raw]
        finally:
            pool.shutdown(cancel_futures=True)

    def updates(self, stage: Stage, key: tuple[int, int], start: int = 0) -> Iterator[dict[str, Picks]]:
        planned = super().updates(stage, key, start)
        wanted = ((p, [self._rows_of(stage.draws[n].source, p[n].index) for n in p]) for p in planned)
        for picks, raw in self._ahead(wanted):
            yield {name: replace(p, x=x) for (name, p), x in zip(picks.items(), raw, strict=True)}

    def _rows_of(self, source: str, index: Tensor) -> Rows:
        rows: Rows = self.host_rows[source][index.cpu().numpy()]
        return rows

    def chunks(self, name: str, size: int, places: Tensor | None = None) -> Iterator[Tensor]:
        rows = self.host_rows[name] if places is None else self.host_rows[name][places.cpu().numpy()]
        row_bytes = self.host.nbytes // max(1, len(self.host))
        size = max(1, min(size, CHUNK_BYTES // max(1, row_bytes)))
        wanted = ((None, [rows[first : first + size]]) for first in range(0, len(rows), size))
        for _, (raw,) in self._ahead(wanted):
            yield self.normalise(centre_crop(raw, self.crop))
