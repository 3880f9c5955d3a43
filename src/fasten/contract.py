"""What methods and the engine agree on: the examples of a batch, how they are drawn, and the stages of a run.

A method is an `nn.Module`: what it trains are its children, what it remembers are its buffers. It adds `plan(recipe)`,
its stages in order, and `forward(x)`, class probabilities. A step yields `(part, loss)`, one update of that part each;
the engine alone takes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from fasten.ranges import BelowOne, Count, NotNegative, Positive, Share

if TYPE_CHECKING:  # what a recipe says, no one waits for torch to read
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
    average: Share = 0.0  # of the updates so far, over which the weights are averaged that are evaluated and kept
    weights: str | None = None  # a .safetensors file from which the network starts, its classifier apart
    frozen: bool = False  # only the classifiers train, on the features that the network starts with
    sync_norm: bool = False  # on several ranks, batch norm takes its statistics from all of their rows

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
        """So many clean rows, whatever their class; None: as many as noisy ones."""
        return Draw("clean", self.batch_size if size is None else size, "random")

    def balanced_clean(self, per_class: int | None, num_classes: int) -> Draw:
        """So many clean rows of each class; None: about as many in all as noisy ones."""
        each = max(1, self.batch_size // num_classes) if per_class is None else per_class
        return Draw("clean", each * num_classes, "balanced")


@dataclass(frozen=True)
class Optim:
    """How one part of a method is trained in one stage: SGD with momentum or Adam, and the course of its rate."""

    rate: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    kind: Literal["sgd", "adam"] = "sgd"
    nesterov: bool = False  # of SGD
    amsgrad: bool = False  # of Adam
    cosine: int | None = None  # the rate falls along half a cosine, over so many epochs

    def rate_at(self, epoch: int, passed: float = 0.0) -> float:
        """The rate of an epoch, counted from 1, after `passed` whole and part epochs: a tenth for each milestone.

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
    """What a batch holds of one set: `size` rows of a shuffled pass, as many at random, or `size / N` of each class.

    A pass ends with the last row; a cycle begins again, as often as an epoch lasts. Both may leave rows out: `keep` is
    1 or 0 for the first rows of the set, read when an epoch starts; what it does not reach is in.
    """

    source: SetName
    size: int
    how: Literal["pass", "cycle", "random", "balanced"] = "pass"
    keep: Tensor | None = field(default=None, compare=False)  # 0: not in the pass
    views: Literal[1, 2] = 1  # how often each row is augmented
    coins: int = 0  # of each row, beyond two for each view
    strong: bool = False  # two more views of each row, augmented strongly
    parts: int = 1  # into which a step cuts it, each for itself

    @property
    def shuffled(self) -> bool:
        """Whether rows come in an order of the epoch's, none of them twice in a batch."""
        return self.how in ("pass", "cycle")


@dataclass(frozen=True)
class Examples:
    """One draw, on the device. Rows of weight 0 only fill the batch: no loss may count them, no label be kept."""

    x: Tensor  # (B, C, H, W) or (B, D), augmented and normalised
    y: Tensor  # (B,) int64: the given labels of noisy rows, the verified ones of clean rows
    index: Tensor  # (B,) int64: the row within its set; of both, clean rows count on after the noisy ones
    weight: Tensor  # (B,) 1 or 0
    coin: Tensor  # (B, 2), of two views (B, 4), then what the draw asks for: uniform in [0, 1), for a method's own use
    again: Tensor | None = None  # as x, augmented anew, where a draw asks for two views
    strong: Tensor | None = None  # (B, 2, …): two more, augmented strongly, where a draw asks for them

    @property
    def views(self) -> list[Tensor]:
        return [self.x] if self.again is None else [self.x, self.again]

    @property
    def strong_views(self) -> list[Tensor]:
        """The strong ones, where there are some."""
        return self.views if self.strong is None else [*self.strong.unbind(1)]

    def __getitem__(self, rows: slice) -> Examples:
        return Examples(**{name: tensor[rows] for name, tensor in vars(self).items() if tensor is not None})


@dataclass(frozen=True)
class Batch:
    """The draws of one update, by name, and where each part's optimiser stands, for steps that look ahead."""

    draws: Mapping[str, Examples]
    rates: Mapping[nn.Module, Tensor] = field(default_factory=dict)  # the current learning rate
    velocities: Mapping[nn.Module, Sequence[Tensor]] = field(default_factory=dict)  # SGD's, in the parameters' order

    def __getitem__(self, name: str) -> Examples:
        return self.draws[name]


class Predict(Protocol):
    """Class probabilities (n, N), or what else `of` makes of examples, and the labels (n,) of a whole set.

    In evaluation mode and without augmentation.
    """

    def __call__(
        self, source: SetName | Literal["valid"], of: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]: ...


Step: TypeAlias = "Callable[[Batch], Iterator[tuple[nn.Module, Tensor]]]"


@dataclass(frozen=True)
class Stage:
    """One part of a run; an epoch is a pass over the first `pass` draw unless `updates` says otherwise.

    A stage starts from the weights that the one before left, from its best epoch, or again from the initial ones. The
    last two let `prepare` see the best epoch first; after the last, the epochs before are not chosen from any more.
    """

    name: str
    step: Step
    draws: Mapping[str, Draw]
    optim: Mapping[nn.Module, Optim]
    epochs: int = 1
    updates: int | None = None  # per epoch
    trace: Mapping[str, Tensor] = field(default_factory=dict)  # buffers to keep an epoch's history of
    prepare: Callable[[Predict], None] | None = None  # host work before the stage: estimate T, choose rows
    each_epoch: bool = False  # prepare before each of its epochs, which may change how many updates an epoch has
    start: Literal["last", "best", "initial"] = "last"
    go_on: bool = False  # with the momentum of the stage before
    average: float = 0.0  # as the recipe says; no concern of a method


@runtime_checkable
class Method(Protocol):
    """What the engine needs of a method, beside its being an `nn.Module`."""

    def plan(self, recipe: Recipe) -> list[Stage]: ...

    def forward(self, x: Tensor) -> Tensor: ...
