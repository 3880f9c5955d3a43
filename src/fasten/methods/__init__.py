"""The methods by name: one literal dictionary, variants included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from fasten.contract import Recipe
from fasten.methods.causalnl import CausalNL
from fasten.methods.clean_only import CleanOnly
from fasten.methods.cross_entropy import CrossEntropy
from fasten.methods.deep_knn import DeepKNN
from fasten.methods.dividemix import DivideMix
from fasten.methods.fasten import FasTEN
from fasten.methods.forward import Forward
from fasten.methods.glc import GLC
from fasten.methods.l2rw import L2RW
from fasten.methods.mlac import MLaC
from fasten.methods.mloc import MLoC
from fasten.methods.mslc import MSLC
from fasten.methods.mw_net import MWNet
from fasten.methods.naive_oversampling import NaiveOversampling
from fasten.methods.t_revision import TRevision
from fasten.methods.volminnet import VolMinNet

__all__ = ["METHODS", "Entry", "Schedule"]

FASTEN_EPOCHS = 70


@dataclass(frozen=True)
class Schedule:
    """Epochs of all stages, and milestones, if FasTEN has 70 epochs: from its paper's appendix, or as commented."""

    epochs: int
    milestones: tuple[int, ...] = ()
    momentum: float | None = None  # None: the data set's

    def applied(self, recipe: Recipe) -> Recipe:
        """This schedule for a data set's recipe, longer or shorter in proportion to the recipe's epochs.

        >>> Schedule(60, (40, 50)).applied(Recipe(epochs=7)).epochs
        6
        """
        momentum = recipe.momentum if self.momentum is None else self.momentum
        mine = replace(recipe, epochs=self.epochs, milestones=self.milestones, momentum=momentum)
        return mine.scaled(max(1, round(recipe.epochs * self.epochs / FASTEN_EPOCHS)))


@dataclass(frozen=True)
class Entry:
    """A method as a user finds it: what builds it, what it needs, and how long it trains."""

    build: Callable[..., nn.Module]
    family: str
    about: str
    clean_set: bool = True
    images: bool = False  # it takes images only, unless its options are changed
    true_transition: bool = False
    stages: int = 1
    networks: int = 1
    backbones: int = 1  # how many of the networks are as large as the recipe says; `build` takes these first
    shaped: bool = False  # `build` also takes the shape of an example, as `shape`
    backprops: int = 1  # per iteration, in the stage that has the most
    options: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule | None = None  # None: FasTEN's
    by_mean: bool = False  # its users' own rows are judged by the mean of what it says about them over the epochs


METHODS: dict[str, Entry] = {
    "fasten": Entry(
        FasTEN,
        "transition matrix + label correction",
        "T̂ in every update, labels corrected on the fly",
        by_mean=True,
    ),
    "fasten-no-lc": Entry(
        FasTEN, "transition matrix", "FasTEN without label correction", options={"correct": False}, by_mean=True
    ),
    "fasten-oracle": Entry(
        FasTEN,
        "transition matrix",
        "FasTEN with the true T, without label correction",
        true_transition=True,
        options={"correct": False, "oracle": True},
    ),
    "deep-knn": Entry(
        DeepKNN,
        "re-weighting",
        "keeps the noisy rows whose neighbours, by the logits of a first network, have the same label",
        stages=3,
        schedule=Schedule(300),
    ),
    "glc": Entry(
        GLC,
        "transition matrix",
        "T̂ from a first network's predictions on clean rows, then a second network trained through it",
        stages=2,
        schedule=Schedule(150),  # its authors': the FasTEN paper gives none
    ),
    "glc-oracle": Entry(
        GLC,
        "transition matrix",
        "GLC with the true T, without its first network",
        true_transition=True,
        options={"oracle": True},
        schedule=Schedule(75),  # GLC's second stage alone
    ),
    "mloc": Entry(
        MLoC,
        "transition matrix",
        "T learned by looking ahead, after a warm-up with cross-entropy",
        stages=2,
        backprops=3,
        schedule=Schedule(150),
    ),
    "l2rw": Entry(
        L2RW,
        "re-weighting",
        "weights for one update, from what a step along each row's gradient does to the loss of clean rows",
        backprops=3,
        schedule=Schedule(80, (40, 60), momentum=0.0),
    ),
    "mlac": Entry(
        MLaC,
        "label correction",
        "soft labels from a network that sees features and given label, learned by looking ahead",
        networks=2,
        backprops=3,
        schedule=Schedule(120, (80, 100)),
    ),
    "mslc": Entry(
        MSLC,
        "label correction",
        "soft labels mixed from given label, earlier soft label and prediction, in shares learned by looking ahead",
        stages=2,
        networks=3,
        backprops=3,
        schedule=Schedule(120, (81, 101)),  # 80 of warm-up; then 20 at a tenth of the rate and 20 at a hundredth
    ),
    "mslc-no-lc": Entry(
        MSLC,
        "re-weighting",
        "MSLC without label correction: the given labels, weighted",
        stages=2,
        networks=2,
        backprops=3,
        options={"correct": False},
        schedule=Schedule(120, (81, 101)),
    ),
    "mw-net": Entry(
        MWNet,
        "re-weighting",
        "a tiny network, learned by looking ahead, weights rows by their losses",
        networks=2,
        backprops=3,
        schedule=Schedule(60, (40, 50)),
    ),
    "forward": Entry(
        Forward,
        "transition matrix",
        "T̂ from the rows that a first network is surest of, then a second network trained through it",
        clean_set=False,
        stages=2,
        schedule=Schedule(240, (42, 82)),  # its authors', in each stage: the FasTEN paper only quotes results
    ),
    "t-revision": Entry(
        TRevision,
        "transition matrix",
        "T̂ as in Forward, rows weighted by it, then T̂ revised along with the network",
        clean_set=False,
        stages=3,
        schedule=Schedule(420, (41, 81)),  # its authors', in the second stage; VolMinNet's is its authors' too
    ),
    "volminnet": Entry(
        VolMinNet,
        "transition matrix",
        "T learned along with the network: the one of smallest volume that explains the labels",
        clean_set=False,
        schedule=Schedule(80, (31, 61)),
    ),
    "dividemix": Entry(
        DivideMix,
        "semi-supervised",
        "two networks tell each other by their losses which labels to believe; the rest are guessed; MixUp",
        clean_set=False,
        stages=2,
        networks=2,
        backbones=2,
        backprops=2,
        schedule=Schedule(300, (151,)),  # its authors'
    ),
    "dividemix-clean": Entry(
        DivideMix,
        "semi-supervised",
        "DivideMix with the clean rows among the labelled ones",
        stages=2,
        networks=2,
        backbones=2,
        backprops=2,
        options={"clean_rows": True, "warm_up": 0.2},
        schedule=Schedule(150, (76,)),  # ours, like the warm-up: in fewer updates than CIFAR's it must learn something
    ),
    "augdesc": Entry(
        DivideMix,
        "semi-supervised",
        "DivideMix trained on strongly augmented views, with targets from weakly augmented ones",
        clean_set=False,
        images=True,
        stages=2,
        networks=2,
        backbones=2,
        backprops=2,
        options={"strong": True},
        schedule=Schedule(300, (151,)),  # its authors', for 20% and 50% noise
    ),
    "causalnl": Entry(
        CausalNL,
        "generative",
        "two auto-encoders of examples and given labels, whose classifiers tell each other which labels to believe",
        clean_set=False,
        networks=2,
        backbones=2,
        shaped=True,
        backprops=2,
        schedule=Schedule(150),  # its authors'
    ),
    "naive-oversampling": Entry(NaiveOversampling, "reference", "cross-entropy on noisy and balanced clean batches"),
    "cross-entropy": Entry(CrossEntropy, "reference", "cross-entropy on the labels as given", clean_set=False),
    "clean-only": Entry(CleanOnly, "reference", "cross-entropy on the clean rows alone"),
}
