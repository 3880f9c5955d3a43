"""The interface between methods and the engine: the examples of a batch, how they are drawn, and the stages of a run.

A method is an `nn.Module`. Its children are what it trains, its buffers are what it remembers. It adds two functions:
`plan(recipe)` returns its stages in order, `forward(x)` returns class probabilities. A step yields `(part, loss)` once
for each update of a part; only the engine differentiates the loss and updates the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from fasten.ranges import BelowOne, Count, NotNegative, Positive, Share
from fasten.suggest import nearest

if TYPE_CHECKING:  # so that reading a recipe does not import torch
    from torch import Tensor, nn

NormMode = Literal["split", "two-pass", "joint"]
SetName = Literal["noisy", "clean", "both"]  # both: the noisy rows, then the clean ones


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train; the rate falls tenfold at the start of each milestone (epochs count from 1)."""

    net: str = "resnet34"
    epochs: Count = 70
    batch_size: Count = 100
    rate: Positive = 0.1
    momentum: BelowOne = 0.9
    weight_decay: NotNegative = 5e-4
    milestones: tuple[Count, ...] = (50, 60)
    average: Share = 0.0  # the weights that are evaluated and kept are a mean over this share of the updates so far
    weights: str | None = None  # a .safetensors file of initial weights, for all of the network but its classifier
    frozen: bool = False  # train the classifiers only, on the features of the initial network
    sync_norm: bool = False  # with several ranks, batch norm computes its statistics over the rows of all of them

    def scaled(self, epochs: int) -> Recipe:
        """The same schedule, shrunk or stretched to `epochs`; the first epoch keeps its rate.

        >>> Recipe(epochs=70, milestones=(50, 60)).scaled(7).milestones
        (6, 7)
        """
        milestones = tuple(max(round((m - 1) * epochs / self.epochs), min(m - 1, 1)) + 1 for m in self.milestones)
        return replace(self, epochs=epochs, milestones=milestones)

    def divided(self, share: float) -> tuple[int, int]:
        """The epochs of two stages, the first of which has that share of them; each has at least one.

        >>> Recipe(epochs=120).divided(2 / 3), Recipe(epochs=2).divided(0.9), Recipe(epochs=1).divided(0.5)
        ((80, 40), (1, 1), (1, 1))
        """
        first = max(1, min(round(share * self.epochs), self.epochs - 1))
        return first, max(1, self.epochs - first)

    def sgd(self) -> Optim:
        return Optim(self.rate, self.momentum, self.weight_decay, self.milestones)

    def random_clean(self, size: int | None) -> Draw:
        """Draw `size` clean rows, regardless of class; None: as many as noisy ones."""
        return Draw("clean", self.batch_size if size is None else size, "random")

    def balanced_clean(self, per_class: int | None, num_classes: int) -> Draw:
        """Draw this many clean rows of each class; None: about as many in total as noisy ones."""
        each = max(1, self.batch_size // num_classes) if per_class is None else per_class
        return Draw("clean", each * num_classes, "balanced")


@dataclass(frozen=True)
class Optim:
    """How one part of a method is trained in one stage: SGD with momentum or Adam, and the schedule of its rate."""

    rate: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    kind: Literal["sgd", "adam"] = "sgd"
    nesterov: bool = False  # SGD only
    amsgrad: bool = False  # Adam only
    cosine: int | None = None  # the rate falls along half a cosine over this many epochs

    def rate_at(self, epoch: int, passed: float = 0.0) -> float:
        """The rate in an epoch, counted from 1, after `passed` epochs (maybe a fraction): a tenth at each milestone.

        >>> [Optim(0.1, milestones=(50, 60)).rate_at(e) for e in (49, 50, 60)]
        [0.1, 0.01, 0.001]
        >>> [round(Optim(0.1, cosine=4).rate_at(1, passed), 4) for passed in (0, 2, 4)]
        [0.1, 0.05, 0.0001]
        """
        if self.cosine is not None:
            angle = min(math.pi * passed / self.cosine, math.pi - 0.05)  # never quite zero, as GLC's authors have it
            return self.rate * (1 + math.cos(angle)) / 2
        reached: int = sum(epoch >= m for m in self.milestones)
        return float(self.rate / 10**reached)


@dataclass(frozen=True)
class Draw:
    """The rows that a batch takes from one set: `size` rows of a shuffled pass, or at random, or `size / N` per class.

    A pass ends with the last row; a cycle starts again until the epoch ends. Both may leave rows out: `keep` is 1 or 0
    for the first rows of the set, and is read when an epoch starts. Rows beyond its length are included.
    """

    source: SetName
    size: int
    how: Literal["pass", "cycle", "random", "balanced"] = "pass"
    keep: Tensor | None = field(default=None, compare=False)  # 0: left out
    views: Literal[1, 2] = 1  # how often each row is augmented
    coins: int = 0  # random numbers per row, beyond two for each view
    strong: bool = False  # two more views of each row, strongly augmented
    parts: int = 1  # the step cuts the draw into this many parts and treats each separately

    def __post_init__(self) -> None:
        if self.source not in get_args(SetName):
            raise ValueError(f"unknown set {self.source!r} in a draw; {nearest(self.source, get_args(SetName))}")
        if self.size < 1:
            raise ValueError(f"a draw needs at least one row, got a size of {self.size}; make it larger")

    @property
    def shuffled(self) -> bool:
        """Whether rows follow a permutation made for the epoch, so that no row is in a batch twice."""
        return self.how in ("pass", "cycle")


@dataclass(frozen=True)
class Examples:
    """The rows of one draw, on the device. Rows of weight 0 only fill the batch; losses and stored labels skip them."""

    x: Tensor  # (B, C, H, W) or (B, D), augmented and normalised
    y: Tensor  # (B,) int64: the given labels of noisy rows, the verified ones of clean rows
    index: Tensor  # (B,) int64: the row within its set; in `both`, clean rows are numbered after the noisy ones
    weight: Tensor  # (B,) 1 or 0
    coin: Tensor  # uniform in [0, 1), for the method's own use: two per row and view, then the draw's `coins`
    again: Tensor | None = None  # x with another augmentation, if the draw asks for two views
    strong: Tensor | None = None  # (B, 2, …): two strongly augmented views, if the draw asks for them

    @property
    def views(self) -> list[Tensor]:
        return [self.x] if self.again is None else [self.x, self.again]

    @property
    def strong_views(self) -> list[Tensor]:
        """The strongly augmented views, or the ordinary ones if there are none."""
        return self.views if self.strong is None else [*self.strong.unbind(1)]

    def __getitem__(self, rows: slice) -> Examples:
        return Examples(**{name: tensor[rows] for name, tensor in vars(self).items() if tensor is not None})


@dataclass(frozen=True)
class Batch:
    """The draws of one update, by name, and the state of each part's optimiser, for steps that look ahead."""

    draws: Mapping[str, Examples]
    rates: Mapping[nn.Module, Tensor] = field(default_factory=dict)  # the current learning rate
    velocities: Mapping[nn.Module, Sequence[Tensor]] = field(default_factory=dict)  # SGD's, in the parameters' order

    def __getitem__(self, name: str) -> Examples:
        if name not in self.draws:
            raise ValueError(f"the stage draws no {name!r} for its step; {nearest(name, self.draws)}")
        return self.draws[name]


class Predict(Protocol):
    """Class probabilities (n, N), or the output of `of`, for a whole set, and the labels (n,) of the set.

    The method is in evaluation mode, and examples are not augmented.
    """

    def __call__(
        self, source: SetName | Literal["valid"], of: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]: ...


Step: TypeAlias = "Callable[[Batch], Iterator[tuple[nn.Module, Tensor]]]"


@dataclass(frozen=True)
class Stage:
    """One part of a run; an epoch is a pass over the first `pass` draw unless `updates` says otherwise.

    A stage starts from the last weights of the stage before, from its best epoch's, or from the initial ones. With
    `best` and `initial`, `prepare` sees the network of the best epoch; with `initial`, the epochs of earlier stages can
    no longer be selected.
    """

    name: str
    step: Step
    draws: Mapping[str, Draw]
    optim: Mapping[nn.Module, Optim]
    epochs: int = 1
    updates: int | None = None  # per epoch
    trace: Mapping[str, Tensor] = field(default_factory=dict)  # buffers whose history is kept for an epoch
    prepare: Callable[[Predict], None] | None = None  # host work before the stage: estimate T, choose rows
    each_epoch: bool = False  # prepare before each epoch; this may change the number of updates
    start: Literal["last", "best", "initial"] = "last"
    go_on: bool = False  # keep the momentum of the stage before
    average: float = 0.0  # from the recipe; methods leave it alone

    def __post_init__(self) -> None:
        if self.updates is None and not any(draw.how == "pass" for draw in self.draws.values()):
            cure = 'make one a pass (how="pass"), or set updates'
            raise ValueError(f"no draw of the stage {self.name!r} says how long its epochs are; {cure}")


@runtime_checkable
class Method(Protocol):
    """What the engine needs from a method, which is also an `nn.Module`."""

    def plan(self, recipe: Recipe) -> list[Stage]: ...

    def forward(self, x: Tensor) -> Tensor: ...
