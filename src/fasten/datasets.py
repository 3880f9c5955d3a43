"""The known data sets: how each is read, split, augmented and trained on by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasten.contract import Recipe
from fasten.data.cifar import read_cifar10, read_cifar100
from fasten.data.cifarn import read_cifar10n, read_cifar100n
from fasten.data.clothing1m import read_clothing1m
from fasten.data.digits import read_digits
from fasten.data.images import shape_of
from fasten.data.noise import corrupt, parse_noise
from fasten.data.rows import Rows
from fasten.data.source import Source
from fasten.data.splits import Split, balanced_split, stratified_split
from fasten.data.task import Task
from fasten.metrics import counted_transition
from fasten.own import FLAGS, Own, auto_recipe, is_path, make_own_task, names_beside, read_rows
from fasten.seeds import numpy_stream
from fasten.suggest import nearest


@dataclass(frozen=True)
class Place:
    """Where and how to find a data set's files; `rows` are a user's own data, if they were already read."""

    root: Path = Path("data")
    download: bool = False
    label_set: str = "worst"
    rows: Rows | None = field(default=None, compare=False, repr=False)

    @property
    def other_labels(self) -> str | None:
        """The set of labels, if it is not the default one."""
        return None if self.label_set == Place.label_set else self.label_set


@dataclass(frozen=True)
class Dataset:
    """A data set by name."""

    read: Callable[[Place], Source]
    about: str
    num_clean: int
    num_valid: int
    recipe: Recipe
    num_test: int = 0  # if the files have no test rows of their own
    shape: tuple[int, ...] = ()  # of an example as the network sees it, which records do not contain
    mean: tuple[float, ...] = (0.0,)  # of pixels in [0, 1]
    std: tuple[float, ...] = (1.0,)
    pad: int = 0
    flip: bool = False
    crop: int | None = None  # of larger images; None: no crop
    given: bool = False  # comes with noisy labels of its own; noise is not injected
    label_sets: bool = False  # has several sets of labels to choose from


# The paper's split and recipe.
CIFAR: Any = {"num_clean": 1000, "num_valid": 5000, "recipe": Recipe(), "shape": (3, 32, 32), "pad": 4, "flip": True}
CIFAR10: Any = CIFAR | {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}
CIFAR100: Any = CIFAR | {"mean": (0.507, 0.487, 0.441), "std": (0.267, 0.256, 0.276)}

DATASETS: dict[str, Dataset] = {
    "digits": Dataset(
        lambda place: read_digits(),
        "1,797 handwritten digits, 8×8, from scikit-learn; needs no files",
        num_clean=100,
        num_valid=100,
        num_test=400,
        recipe=Recipe("small-cnn", epochs=40, rate=0.2, milestones=(29, 35)),
        shape=(1, 8, 8),
        mean=(0.305,),
        std=(0.376,),
    ),
    "cifar10": Dataset(
        lambda place: read_cifar10(place.root, place.download),
        "60,000 colour images of 10 classes, 32×32",
        **CIFAR10,
    ),
    "cifar100": Dataset(
        lambda place: read_cifar100(place.root, place.download),
        "60,000 colour images of 100 classes, 32×32",
        **CIFAR100,
    ),
    "cifar10n": Dataset(
        lambda place: read_cifar10n(place.root, place.label_set, place.download),
        "CIFAR-10 with labels given by people (--labels worst, aggregate, random1, random2, random3)",
        **CIFAR10,
        given=True,
        label_sets=True,
    ),
    "cifar100n": Dataset(
        lambda place: read_cifar100n(place.root, place.label_set, place.download),
        "CIFAR-100 with labels given by people",
        **CIFAR100,
        given=True,
        label_sets=True,
    ),
    # The paper's recipe, which does not state the weight decay and the augmentation: docs/clothing1m.md has ours.
    "clothing1m": Dataset(
        lambda place: read_clothing1m(place.root, place.download),
        "1,000,000 images of 14 kinds of clothing, labelled by the text around them; split officially",
        num_clean=47_570,
        num_valid=14_313,
        recipe=Recipe("imagenet-resnet50", epochs=2, batch_size=42, rate=0.01, milestones=(2,)),
        shape=(3, 224, 224),
        mean=(0.485, 0.456, 0.406),  # ImageNet's
        std=(0.229, 0.224, 0.225),
        flip=True,
        crop=224,
        given=True,
    ),
}


def find_dataset(name: str) -> Dataset:
    """Return a known data set; for an unknown name, the error names the nearest."""
    if name not in DATASETS:
        known = [*DATASETS, *names_beside(Path(name))]
        raise ValueError(f"unknown data set {name!r}, and no file or folder has that name; {nearest(name, known)}")
    return DATASETS[name]


def is_own(name: str) -> bool:
    """Return whether this is a path to a user's own data, and not the name of a known data set.

    >>> is_own("digits"), is_own("./digits")
    (False, True)
    """
    return name not in DATASETS and is_path(name)


def check_noise(name: str, noise: str) -> None:
    """Raise, before anything is read, if this data set cannot have this noise."""
    kind = parse_noise(noise).kind
    if not is_own(name) and find_dataset(name).given and kind != "none":
        raise ValueError(f"{name} comes with noisy labels of its own; leave --noise out, got {noise!r}")


def check_labels(name: str, label_set: str | None) -> None:
    """Raise, before anything is read, if a set of labels is asked for and this data set has only one."""
    if label_set is None or (not is_own(name) and find_dataset(name).label_sets):
        return
    if is_own(name):
        raise ValueError(f"--labels is for known data sets, and {name} is your own; leave it out")
    known = ", ".join(key for key, value in DATASETS.items() if value.label_sets)
    raise ValueError(f"{name} has no label set {label_set!r}; leave --labels out: it is for {known}")


def load_task(
    name: str,
    noise: str = "none",
    seed: int = 0,
    place: Place | None = None,
    clean: int | None = None,
    own: Mapping[str, Any] | None = None,
) -> Task:
    """Read a data set, split it and corrupt its labels with this seed; `clean` is the number of clean rows.

    If `name` is a path, `own` says how to read it.
    """
    place = place or Place()
    if own is not None or is_own(name):  # own: also if a resumed run no longer finds the data
        rows = place.rows if place.rows is not None else read_rows(name, Own.from_json(own))
        return make_own_task(rows, seed, noise)
    check_noise(name, noise)
    check_labels(name, place.other_labels)
    dataset = DATASETS[name]
    source = dataset.read(place)
    if clean is not None:
        if source.split is not None:
            raise ValueError(f"{name} is split officially, with its own clean rows; leave --clean out, got {clean}")
        dataset = replace(dataset, num_clean=clean)
    task = make_task(dataset, source, noise, seed)
    if not len(task.given):
        raise ValueError(f"{name} has no noisy row left beside its {len(task.clean)} clean ones; lower --clean")
    return task


@dataclass(frozen=True)
class Ready:
    """What a run starts from: the default recipe, where the data are, and how a user's own data are read."""

    recipe: Recipe
    place: Place
    own: dict[str, Any] | None = None


def prepare_data(name: str, own: Own, place: Place, clean: int | None = None, device_type: str = "cpu") -> Ready:
    """Check the options for the data before any training; a user's own data are read, once for all runs."""
    if not is_own(name):
        recipe, asked = find_dataset(name).recipe, [FLAGS[key] for key in own.to_json()]
        if asked:
            raise ValueError(f"{asked[0]} is for your own data, and {name} is a known data set; leave it out")
        return Ready(recipe, place)
    _refuse_for_own(name, place, clean)
    rows = read_rows(name, own)
    recipe = auto_recipe(shape_of(rows.x), len(rows), rows.num_classes, device_type)
    return Ready(recipe, replace(place, rows=rows), own.to_json())


def _refuse_for_own(name: str, place: Place, clean: int | None) -> None:
    if clean is not None:
        raise ValueError(
            f"--clean {clean} splits verified rows off a known data set; for your own data, say which rows are "
            "verified with --verified FILE or --clean-folder DIR"
        )
    check_labels(name, place.other_labels)
    if place.download:
        raise ValueError(f"--download is for known data sets, and {name} is your own; leave it out")


def make_task(dataset: Dataset, source: Source, noise: str, seed: int) -> Task:
    """Split and corrupt what was read. Clean, validation and test rows keep their true labels."""
    split = source.split or _split(dataset, source, numpy_stream(seed, "split"))
    truth = source.truth[split.noisy]
    transition: NDArray[np.float64] | None
    if source.given is not None:
        given, transition = source.given[split.noisy], _true_transition(source, split)
    else:
        rng = numpy_stream(seed, "noise")
        made = corrupt(truth, parse_noise(noise), source.num_classes, rng, source.flips, source.class_names)
        given, transition = made.labels, made.transition
    return Task(
        name=source.name,
        x=source.x,
        split=split,
        given=given,
        clean=source.truth[split.clean],
        valid=source.truth[split.valid],
        test=source.truth[split.test],
        class_names=source.class_names,
        truth=truth if (truth >= 0).any() else None,
        transition=transition,
        mean=dataset.mean,
        std=dataset.std,
        pad=dataset.pad,
        flip=dataset.flip,
        crop=dataset.crop,
    )


def _true_transition(source: Source, split: Split) -> NDArray[np.float64] | None:
    """Count T over noisy rows whose truth is known, otherwise over clean rows with a given label; None if neither."""
    assert source.given is not None
    for rows in (split.noisy, split.clean):
        truth, given = source.truth[rows], source.given[rows]
        if len(np.unique(truth[(truth >= 0) & (given >= 0)])) == source.num_classes:
            return counted_transition(truth, given, source.num_classes)
    return None  # a class has no such row


def _split(dataset: Dataset, source: Source, rng: np.random.Generator) -> Split:
    num_classes = len(source.class_names)
    if source.test.any():
        rows = np.flatnonzero(~source.test)
        return balanced_split(source.truth, rows, num_classes, dataset.num_clean, dataset.num_valid, rng)
    sizes = {"clean": dataset.num_clean, "valid": dataset.num_valid, "test": dataset.num_test}
    return stratified_split(source.truth, num_classes, **sizes, rng=rng)
