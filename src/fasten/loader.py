"""Task -> device tensors -> Batch.

The random numbers of an epoch (order, balanced draws, crops) are drawn in blocks of updates, outside the update itself.
An update is therefore a pure function of its picks, so it can be captured once and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fasten import fused_augment
from fasten.augment import NUM_RANDOM, Normalise, centre_crop, gather_crop_flip
from fasten.contract import Draw, Examples, Stage
from fasten.data.task import Task
from fasten.ranks import LEAST, places, world
from fasten.seeds import torch_stream
from fasten.strong_augment import NUM_STRONG, AutoAugment

BLOCK = 64  # updates whose random numbers are drawn together
PADDING = 4  # a table of keys, padded to the largest class, may have this many places per row
FEW = 65_536  # with fewer rows, the table may be as large as with this many
STRONG = 2 * (NUM_RANDOM + NUM_STRONG)  # random numbers for a row's strong views
# Most pixels of a chunk of images: the outputs of a network's layers take hundreds of times its memory. A CPU is also
# slower with larger ones.
CPU_PIXELS, GPU_PIXELS = 2**18, 2**22


@dataclass(frozen=True)
class Picks:
    """The rows that an update (B, …), or a block of updates (U, B, …), takes from one set, and their random numbers."""

    index: Tensor  # int64, the row within its set
    weight: Tensor  # 1, or 0 for filling
    random: Tensor  # uniform in [0, 1): for each view (one or two) three for augmentation and two coins; then the
    # draw's own coins; then 16 for two strong views
    x: Tensor | None = None  # the raw examples, if they are not stored on the device

    def tensors(self) -> list[Tensor]:
        return [t for t in (self.index, self.weight, self.random, self.x) if t is not None]

    def update(self, number: int) -> Picks:
        """Return one update of a block."""
        return Picks(self.index[number], self.weight[number], self.random[number])

    def share(self) -> Picks:
        """Return this rank's rows of a block; missing ones are filled from the start of the batch, with weight 0."""
        if world() == 1:
            return self
        size = self.index.shape[1]
        place = places(size, min(LEAST, size)).to(self.index.device)
        here = place % size
        return Picks(self.index[:, here], self.weight[:, here] * (place < size), self.random[:, here])


class BalancedDraw:
    """Draws the same number of rows of every class, without replacement unless a class has too few rows.

    A class without rows gets rows of weight 0. Labels are a tensor, an array or a list; rows whose label is not a class
    number are never drawn.

    >>> draw = BalancedDraw(torch.tensor([0, 0, 1, 1, 1]), per_class=2, num_classes=2)
    >>> index, weight = draw(1, torch.Generator().manual_seed(0))
    >>> index.shape, sorted(index[0, :2].tolist()), weight.sum().item()
    (torch.Size([1, 4]), [0, 1], 4.0)
    """

    def __init__(self, labels: Any, per_class: int, num_classes: int) -> None:
        labels = torch.as_tensor(labels)
        self.per_class = per_class
        classes = labels.long()
        known = torch.nonzero((classes == labels) & (classes >= 0) & (classes < num_classes)).flatten()
        self.count = torch.bincount(classes[known], minlength=num_classes)
        by_class = known[classes[known].argsort(stable=True)]
        self.rows = torch.cat([by_class, by_class.new_zeros(1)])  # the last is for empty classes
        self.first = torch.where(self.count > 0, self.count.cumsum(0) - self.count, len(self.rows) - 1)
        self.most = max(per_class, int(self.count.max()))
        self.even = num_classes * self.most <= PADDING * max(len(labels), FEW)

    def __call__(self, updates: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw rows and weights for several updates, (U, K·N) each, ordered by class."""
        distinct = (self._by_keys if self.even else self._one_by_one)(updates, generator)
        repeated = (self._random(updates, self.per_class, generator) * self.count[:, None]).long()
        place = torch.where(self.count[:, None] >= self.per_class, distinct, repeated)  # (U, N, K), within its class
        weight = (self.count > 0).float()[:, None].expand(updates, -1, self.per_class)
        return self.rows[self.first[:, None] + place].flatten(1), weight.flatten(1)

    def _random(self, updates: int, each: int, generator: torch.Generator) -> Tensor:
        return torch.rand(updates, len(self.count), each, generator=generator, device=self.count.device)

    def _by_keys(self, updates: int, generator: torch.Generator) -> Tensor:
        """The K rows of each class with the highest random keys, in a table padded to the largest class."""
        keys = self._random(updates, self.most, generator)
        keys.masked_fill_(torch.arange(self.most, device=keys.device) >= self.count[:, None], -1)
        return keys.topk(self.per_class, dim=2).indices

    def _one_by_one(self, updates: int, generator: torch.Generator) -> Tensor:
        """The same distribution in less memory: each row is drawn from those left, numbered without earlier ones."""
        drawn = self.count.new_empty(updates, len(self.count), self.per_class)
        for number in range(self.per_class):
            left = (self.count - number).clamp(min=1)
            place = (self._random(updates, 1, generator)[..., 0] * left).long()
            for before in drawn[..., :number].sort(dim=2).values.unbind(2):
                place += place >= before
            drawn[..., number] = place
        return drawn


def _counts(draw: Draw) -> list[int]:
    """How many random numbers a row needs: for views and their coins, for the draw's own coins, for strong views."""
    return [draw.views * (NUM_RANDOM + 2), draw.coins, STRONG if draw.strong else 0]


class Loader:
    """Keeps all rows on the device in their stored form; a batch is one gather."""

    def __init__(
        self, task: Task, device: torch.device, seed: int, dtype: torch.dtype = torch.float32, *, fused: bool = True
    ) -> None:
        self.device, self.seed, self.dtype, self.num_classes = device, seed, dtype, task.num_classes
        self.fused = fused  # look images up with our own kernel, where possible
        self.is_image, self.pad, self.flip, self.crop = task.x.ndim == 4, task.pad, task.flip, task.crop
        self._pixels = math.prod(task.shape[1:])  # of an image
        self.normalise = Normalise(task.mean, task.std, self.is_image, device, dtype)
        self.policy = AutoAugment(task.shape, device) if self.is_image else None
        self.rows = {name: self._move(getattr(task.split, name)) for name in ("noisy", "clean", "valid", "test")}
        labels = {"noisy": task.given, "clean": task.clean, "valid": task.valid, "test": task.test}
        self.y = {name: self._move(given) for name, given in labels.items()}
        for table in (self.rows, self.y):
            table["both"] = torch.cat([table["noisy"], table["clean"]])
        self.rows["audited"] = self.rows["noisy"] if task.known is None else self._move(task.audited)
        self._orders: dict[str, tuple[object, Tensor]] = {}  # the current epoch's permutation, per shuffled draw
        self._balanced: dict[Draw, BalancedDraw] = {}
        self._store(task)

    def _move(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _store(self, task: Task) -> None:
        assert isinstance(task.x, np.ndarray), "images in files are streamed"
        self.x = self._move(task.x)

    def num_updates(self, stage: Stage) -> int:
        """The number of updates per epoch, from the rows that are in it now."""
        if stage.updates is not None:
            return stage.updates
        first = next(d for d in stage.draws.values() if d.how == "pass")
        return math.ceil(self._num_kept(first) / self.batch_size(first))

    def most_updates(self, stage: Stage) -> int:
        """The largest number of updates that an epoch of the stage can have."""
        if stage.updates is not None or not stage.each_epoch:
            return self.num_updates(stage)
        return self.num_updates(replace(stage, draws={n: replace(d, keep=None) for n, d in stage.draws.items()}))

    def _num_kept(self, draw: Draw) -> int:
        """The number of rows in a pass. The host waits for a mask, so this is for the start of a stage or an epoch."""
        rows = len(self.rows[draw.source])
        return rows if draw.keep is None else rows - int((draw.keep == 0).sum())

    def batch_size(self, draw: Draw) -> int:
        """A batch of a pass has at most as many rows as the set, so that no row is in it twice."""
        return min(draw.size, len(self.rows[draw.source])) if draw.shuffled else draw.size

    def updates(self, stage: Stage, key: tuple[int, int], start: int = 0) -> Iterator[dict[str, Picks]]:
        """The picks of each update of an epoch from `start` on; `key` has the numbers of the stage and the epoch."""
        for block, numbers in self.blocks(stage, key, start):
            for number in numbers:
                yield {name: picks.update(number) for name, picks in block.items()}

    def blocks(self, stage: Stage, key: tuple[int, int], start: int) -> Iterator[tuple[dict[str, Picks], range]]:
        """The same in blocks of many updates, each with the numbers of those still to be done."""
        total = self.num_updates(stage)
        for first in range(start - start % BLOCK, total, BLOCK):
            block = {name: self._block(draw, name, key, first, total) for name, draw in stage.draws.items()}
            yield block, range(max(start - first, 0), min(BLOCK, total - first))

    def _block(self, draw: Draw, name: str, key: tuple[int, int], first: int, total: int) -> Picks:
        generator = torch_stream(self.device, self.seed, name, *key, first)
        updates = min(BLOCK, total - first)
        if not draw.shuffled:
            if draw not in self._balanced:
                self._balanced[draw] = self._balance(draw)
            index, weight = self._balanced[draw](updates, generator)
        else:
            index, weight = self._pass(draw, name, key, first, updates)
        # One kind after the other, so that views get the same numbers whatever else a draw asks for.
        counts = [count for count in _counts(draw) if count]
        random = [torch.rand(*index.shape, n, generator=generator, device=self.device) for n in counts]
        return Picks(index, weight, torch.cat(random, -1)).share()

    def _balance(self, draw: Draw) -> BalancedDraw:
        """A random draw, regardless of class, is a balanced draw of a single class."""
        labels = self.y[draw.source]
        if draw.how == "random":
            return BalancedDraw(torch.zeros_like(labels), draw.size, 1)
        return BalancedDraw(labels, draw.size // self.num_classes, self.num_classes)

    def _pass(self, draw: Draw, name: str, key: tuple[int, int], first: int, count: int) -> tuple[Tensor, Tensor]:
        """Consecutive batches of the epoch's permutation, repeated past its end; in a pass, repeats have weight 0."""
        size, kept = self.batch_size(draw), None if draw.keep is None else (id(draw.keep), draw.keep._version)
        of = key, draw.source, kept  # other runs may use this loader, and a rewound run may keep other rows
        if self._orders.get(name, (None, None))[0] != of:
            generator = torch_stream(self.device, self.seed, name, *key)
            order = torch.randperm(len(self.rows[draw.source]), generator=generator, device=self.device)
            if draw.keep is not None:
                dropped = torch.nonzero(draw.keep == 0).flatten()
                order = order[~torch.isin(order, dropped)]
            self._orders[name] = (of, order)
        order = self._orders[name][1]
        place = torch.arange(first * size, (first + count) * size, device=self.device)
        counts = (place < len(order)) | (draw.how == "cycle")
        return order[place % len(order)].view(count, size), counts.float().view(count, size)

    def draws(self, stage: Stage, picks: Mapping[str, Picks]) -> dict[str, Examples]:
        """Look rows up, augment and normalise them, by tensor operations of fixed shapes only."""
        return {name: self._examples(stage.draws[name], p) for name, p in picks.items()}

    def _examples(self, draw: Draw, picks: Picks) -> Examples:
        rows, y = self.rows[draw.source][picks.index], self.y[draw.source][picks.index]
        store, place = (self.x, rows) if picks.x is None else (picks.x, torch.arange(len(rows), device=self.device))
        of_views, own, of_strong = torch.split(picks.random, _counts(draw), 1)
        views = torch.split(of_views, NUM_RANDOM + 2, 1)  # one or two
        x, *again = (self._view(store, place, random) for random in views)
        coin = torch.cat([*(random[:, NUM_RANDOM:] for random in views), own], 1)
        strong = self._strong(store, place, of_strong) if draw.strong else None
        return Examples(x, y, picks.index, picks.weight, coin, again[0] if again else None, strong)

    def _view(self, store: Tensor, place: Tensor, random: Tensor) -> Tensor:
        """Return rows of `store`, augmented and normalised."""
        if self._augments and self.fused and fused_augment.usable(store, self.normalise):
            return fused_augment.look(store, place, random, self.pad, self.flip, self.crop, self.normalise)
        return self.normalise(self._augmented(store, place, random))

    @property
    def _augments(self) -> bool:
        return self.is_image and bool(self.pad or self.flip or self.crop)

    def _augmented(self, store: Tensor, place: Tensor, random: Tensor) -> Tensor:
        if self._augments:
            return gather_crop_flip(store, place, random, self.pad, self.flip, self.crop)
        return store.index_select(0, place)  # on a CPU, several times as fast as store[place]

    def _strong(self, store: Tensor, place: Tensor, random: Tensor) -> Tensor:
        """Two strong views of each row (B, 2, …): the ordinary augmentation, then the policy."""
        assert self.policy is not None, "strong views need images"
        random = random.reshape(2 * len(place), -1)
        images = self._augmented(store, place.repeat_interleave(2), random)
        found = self.normalise(self.policy(images, random[:, NUM_RANDOM:]))
        return found.view(len(place), 2, *found.shape[1:])

    def chunks(self, name: str, size: int, places: Tensor | None = None) -> Iterator[Tensor]:
        """A whole part in order, or its rows at `places`, at most `size` at a time, without augmentation."""
        wanted = self.rows[name] if places is None else self.rows[name][places]
        size = self._chunk(size)
        for rows in torch.split(wanted, size) if len(wanted) else ():  # not every network takes an empty batch
            yield self.normalise(centre_crop(self.x.index_select(0, rows), self.crop))

    def _chunk(self, most: int) -> int:
        """The rows of a chunk: of large images, fewer than `most`."""
        pixels = CPU_PIXELS if self.device.type == "cpu" else GPU_PIXELS
        return max(1, min(most, pixels // self._pixels)) if self.is_image else most
