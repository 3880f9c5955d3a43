"""A loader for data that do not fit on the device: worker threads fetch the rows of the coming updates.

The picks are drawn exactly as by the resident loader, and augmentation and normalisation are the same code, so the
same order of rows gives the same batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fasten.contract import Stage
from fasten.data.task import Task
from fasten.loader import Loader, Picks

AHEAD = 8  # updates fetched beforehand
WORKERS = 4


class StreamLoader(Loader):
    """Rows stay where they are, in memory or in a mapped file; batches travel."""

    def _store(self, task: Task) -> None:
        self.host = task.x
        self.host_rows = {name: rows.cpu().numpy() for name, rows in self.rows.items()}

    def _fetch(self, rows: NDArray[np.int64]) -> Tensor:
        raw = torch.from_numpy(np.ascontiguousarray(self.host[rows]))
        return raw.pin_memory() if self.device.type == "cuda" else raw

    def updates(self, stage: Stage, key: tuple[int, int], start: int = 0) -> Iterator[dict[str, Picks]]:
        planned = super().updates(stage, key, start)
        waiting: deque[tuple[dict[str, Picks], dict[str, Future[Tensor]]]] = deque()
        with ThreadPoolExecutor(WORKERS, "fasten-fetch") as pool:
            while True:
                for picks in islice(planned, AHEAD - len(waiting)):
                    rows = {n: self.host_rows[stage.draws[n].source][p.index.cpu().numpy()] for n, p in picks.items()}
                    waiting.append((picks, {name: pool.submit(self._fetch, r) for name, r in rows.items()}))
                if not waiting:
                    return
                picks, raw = waiting.popleft()
                yield {n: replace(p, x=raw[n].result().to(self.device, non_blocking=True)) for n, p in picks.items()}

    def chunks(self, name: str, size: int) -> Iterator[Tensor]:
        rows = self.host_rows[name]
        for first in range(0, len(rows), size):
            yield self.normalise(self._fetch(rows[first : first + size]).to(self.device, non_blocking=True))
