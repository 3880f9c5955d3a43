"""Users' own data: how they are read, split, normalised and trained on by default."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fasten.audit.corrections import check_precision
from fasten.audit.evidence import hold_back
from fasten.contract import Recipe
from fasten.data.arrays import read_npz
from fasten.data.decoding import Decoding, Images
from fasten.data.encoding import Column
from fasten.data.folder import read_folder
from fasten.data.hub import is_hub_folder, read_hub
from fasten.data.images import ImageFiles, in_words, shape_of
from fasten.data.moments import moments
from fasten.data.noise import corrupt, parse_noise
from fasten.data.rows import Columns, Rows, add_verdicts, make_rows
from fasten.data.splits import Split, own_split
from fasten.data.table import TABLES, read_table
from fasten.data.task import Known, Labels, Task
from fasten.data.verdicts import read_verdicts
from fasten.seeds import numpy_stream
from fasten.sentences import some

# The command line options for the fields of `Own`.
FLAGS = {
    **{"clean": "--clean-folder", "valid": "--valid", "test": "--test", "verified": "--verified", "size": "--size"},
    **{"max_bad": "--max-bad", "min_precision": "--min-precision"},
}

ARRAYS = ".npz"

# Pixels of a side up to which the small CNN and the ResNet-18 are used; without a GPU, larger images get a pyramid.
SMALL_IMAGE = 16
MIDDLE_IMAGE = 64
EPOCHS = 30
MOST_EPOCHS, VIEWS = 60, 60_000  # few larger images get more epochs, to be seen so often (benchmarks/epochs.py)
AVERAGE = 0.1  # better than none in everything that benchmarks/averaging.py measures; 0.4 may correct fewer labels

# For rows of features, chosen on digits' pixels, Gaussians and clusters of 1,400 to 100,000 rows: docs/my-table.md.
UPDATES = 100  # per epoch, at least, before a mini-batch grows beyond 100 rows
MOST_AT_ONCE = 1000
VISITS = 1_200_000  # of rows in all epochs together; beyond this there are fewer epochs
FEWEST_EPOCHS = 6
FEATURES_DECAY = 0.01

AS_GIVEN = "no verified label: the given one counts as right"
PAD_SHARE = 8  # one pixel in so many is padded on each side before a random crop


@dataclass(frozen=True)
class Own:
    """How users' own data are read, and the precision that corrections must keep, as plain values.

    >>> Own.from_json(Own(size=64, verified="checked.txt").to_json()).verified
    'checked.txt'
    """

    clean: str | None = None  # a folder of clean images
    valid: str | None = None  # a folder of images
    test: str | None = None
    verified: str | None = None  # a list of verified names, or a CSV file with names and labels
    size: int | None = None  # of images, in pixels
    max_bad: int = Decoding.max_bad  # how many images may be unreadable
    min_precision: float | None = None  # of the corrections

    def __post_init__(self) -> None:
        self.decoding()
        check_precision(self.min_precision)

    def decoding(self, shape: Sequence[int] | None = None) -> Decoding:
        """Return how images are read; `shape` is that of a trained model's examples, (channels, height, width)."""
        if shape is None or len(shape) != 3:
            return Decoding(self.size, max_bad=self.max_bad)
        channels: Literal[1, 3] = 1 if shape[0] == 1 else 3
        return Decoding((shape[1], shape[2]), channels, self.max_bad)

    def to_json(self) -> dict[str, Any]:
        """Return the values that differ from the defaults."""
        return {key: value for key, value in asdict(self).items() if value != getattr(Own, key)}

    @staticmethod
    def from_json(values: Mapping[str, Any] | None) -> Own:
        known = {field.name for field in fields(Own)}
        return Own(**{key: value for key, value in (values or {}).items() if key in known})


def is_path(data: str) -> bool:
    """Return whether this names a user's own file or folder: one that exists, or a name that looks like one.

    >>> is_path("photos/"), is_path("items.csv"), is_path("cifar10")
    (True, True, False)
    """
    return os.sep in data or "/" in data or Path(data).suffix.lower() in (*TABLES, ARRAYS) or Path(data).exists()


def names_beside(path: Path) -> list[str]:
    """Return files and folders beside a missing path whose names are similar, the most similar first."""
    try:
        stems = {Path(name).stem: name for name in sorted(os.listdir(path.parent))}
    except OSError:
        return []
    return [stems[stem] for stem in difflib.get_close_matches(path.stem, stems, 2)]


def check_beside(data: str | os.PathLike[str], out: Path) -> None:
    """Raise if `out` is inside a folder of data: next time, its content would be read as data."""
    source, target = os.path.join(os.path.realpath(data), ""), os.path.join(os.path.realpath(out), "")
    if target.startswith(source):
        raise ValueError(f"{out} is inside the data {data}; choose a folder outside it")


def read_rows(
    path: str,
    own: Own,
    class_names: Sequence[str] | None = None,
    labelled: bool = True,
    *,
    shape: Sequence[int] | None = None,
    features: Sequence[Column] | None = None,
) -> Rows:
    """Read the rows of a folder, table or array file.

    `class_names`, `shape` and `features` are those of a trained model, from the `data` of its record; then rows
    need no label. Unless `labelled`, verdicts, and the labels of tables and arrays, are ignored.
    """
    place, how = Path(path), own.decoding(shape)
    if not place.exists():
        raise FileNotFoundError(_missing(place))
    if place.is_dir() and not is_hub_folder(place):
        rows = read_folder(
            place,
            clean=own.clean,
            verified=own.verified if labelled else None,
            valid=own.valid,
            test=own.test,
            how=how,
            class_names=class_names,
        )
    else:
        _check_one_file(path, own)
        rows = _read_file(place, how, class_names, features, labelled)
        if own.verified is not None and labelled:
            rows = _with_verdicts(rows, Path(own.verified), place, class_names)
        if own.size is not None and not isinstance(rows.x, ImageFiles):
            raise ValueError(f"{FLAGS['size']} is for image files, and {path} names none; leave it out")
    if shape is not None:
        _check_shape(rows, tuple(shape))
    return rows


def _missing(path: Path) -> str:
    """Write a message for missing data; a run may be resumed in another folder than the one it was started in."""
    if near := names_beside(path):
        return f"there is no file or folder {path}; did you mean {str(path.with_name(near[0]))!r}?"
    if path.is_absolute():
        return f"there is no file or folder {path}; give the path of the data"
    return (
        f"there is no file or folder {path} in {Path.cwd()}, where this relative path starts; give the path of the "
        "data, or run this in the folder where the path starts"
    )


def _check_one_file(path: str, own: Own) -> None:
    """Raise if folders are given beside a table or arrays, which say themselves what each row is for."""
    for key in ("clean", "valid", "test"):
        if getattr(own, key) is not None:
            raise ValueError(
                f"{FLAGS[key]} is for folders of images; leave it out: {path} says this itself, by the columns "
                "verified_label and split, or by arrays such as x_clean and x_test"
            )


def _read_file(
    path: Path,
    how: Decoding,
    class_names: Sequence[str] | None,
    features: Sequence[Column] | None,
    labelled: bool,
) -> Rows:
    if path.suffix.lower() == ARRAYS:
        return read_npz(path, class_names=class_names, labelled=labelled)
    if path.is_dir() or path.suffix.lower() in TABLES:
        read = read_hub if path.is_dir() else read_table
        return read(path, how=how, class_names=class_names, features=features, labelled=labelled)
    raise ValueError(
        f"{path} is neither a folder nor a table or arrays; give a folder, or a .csv, .parquet or .npz file"
    )


def _with_verdicts(rows: Rows, verified: Path, path: Path, class_names: Sequence[str] | None) -> Rows:
    folder = path if path.is_dir() else path.parent
    verdicts = read_verdicts(verified, folder, rows, class_names)
    columns = add_verdicts(rows.name, rows.columns, verdicts)
    return make_rows(rows.name, columns, rows.x, class_names, rows.notes, rows.features)


def _check_shape(rows: Rows, shape: tuple[int, ...]) -> None:
    found = shape_of(rows.x)
    if found != shape:
        raise ValueError(
            f"{rows.name} has examples of {in_words(found)}, but the model was trained on {in_words(shape)}; give "
            "examples of that shape"
        )


def make_own_task(rows: Rows, seed: int, noise: str = "none") -> Task:
    """Split what was read. With noise, the labels (verified if available) count as true and are then corrupted.

    >>> from fasten.data.arrays import rows_from_arrays
    >>> rows = rows_from_arrays(np.eye(4), list("abab"), y_verified=["a", None, None, None], picked=["chosen"] * 4)
    >>> task = make_own_task(rows, seed=0)
    >>> task.split.noisy.tolist(), task.split.clean.tolist(), task.clean.tolist(), task.ids
    ([1, 2, 3], [0], [0], ('0', '1', '2', '3'))
    """
    parts = {"valid": rows.rows_of("valid"), "test": rows.rows_of("test")}
    apart = np.isin(np.arange(len(rows)), np.concatenate(list(parts.values())))
    judged = rows.judged_codes()
    given, transition = _given(rows, judged, ~apart, noise, seed)
    verified = np.where(apart, -1, rows.verified_codes())
    picked_random = np.array([way == "random" for way in rows.picked], bool) & (verified >= 0)
    held = hold_back(given, verified, picked_random, seed)
    known = Known(rows.ids, given, verified, picked_random, held, rows.class_names)
    split = own_split(parts, given, verified, held, rows.num_classes, numpy_stream(seed, "split"))
    _check_split(rows, split)
    x = _in_memory(rows.x)
    mean, std = moments(x, split.noisy)
    return Task(
        name=rows.name,
        x=x,
        split=split,
        given=given[split.noisy],
        clean=verified[split.clean],
        valid=judged[split.valid],
        test=judged[split.test],
        class_names=rows.class_names,
        truth=None if transition is None else judged[split.noisy],
        transition=transition,
        mean=mean,
        std=std,
        pad=_pad(x.shape[1:3]) if x.ndim == 4 else 0,
        known=known,
        notes=(
            *rows.notes,
            *_notes(known, split),
            *_noise_on_noise(rows, transition),
            *_measured_as_given(rows, split),
        ),
        features=rows.features,
        measured_by=_verdicts(rows.take(np.flatnonzero(apart))),
        test_as_given=_num_as_given(rows, split.test),
    )


def _verdicts(columns: Columns) -> tuple[tuple[str, str, str], ...]:
    said = zip(columns.ids, columns.verified, columns.picked, strict=True)
    return tuple((name, label, way) for name, label, way in said if label is not None and way is not None)


def _given(
    rows: Rows, judged: Labels, free: NDArray[np.bool_], noise: str, seed: int
) -> tuple[Labels, NDArray[np.float64] | None]:
    """Return the given labels, with noise in those of the rows in `free` if asked for, and then its T."""
    given, wanted = rows.given_codes(), parse_noise(noise)
    if wanted.kind == "none":
        return given, None
    touched = np.flatnonzero((given >= 0) & free)
    rng = numpy_stream(seed, "noise")
    made = corrupt(judged[touched], wanted, rows.num_classes, rng, names=rows.class_names)
    given[touched] = made.labels
    return given, made.transition


def make_test_task(rows: Rows, data: Mapping[str, Any]) -> Task:
    """Make a task of new rows for a trained model; `data` is from its record.

    If some rows are marked as test rows, these are the test rows; otherwise, all are. Rows without a label count as
    class 0: predict them, but do not count how many are right.
    """
    split_says = rows.rows_of("test")
    test = split_says if len(split_says) else np.arange(len(rows))
    none = np.empty(0, np.int64)
    known = Known(rows.ids, rows.given_codes(), rows.verified_codes(), *(np.zeros((2, len(rows)), bool)))
    return Task(
        name=rows.name,
        x=_in_memory(rows.x),
        split=Split(none, none, none, test),
        given=none,
        clean=none,
        valid=none,
        test=np.maximum(rows.judged_codes()[test], 0),
        class_names=rows.class_names,
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        known=known,
        notes=rows.notes,
        features=rows.features,
    )


def _check_split(rows: Rows, split: Split) -> None:
    if not len(split.noisy):
        raise ValueError(
            f"{rows.name} has no row whose label is in doubt: all are verified, or set apart for validation and test; "
            "add rows with labels that nobody checked"
        )


def _notes(known: Known, split: Split) -> list[str]:
    """Write notes on what the run cannot say for lack of rows."""
    notes = []
    if not (known.picked_random & (known.given >= 0)).any():
        notes.append(
            "no row with a given label was verified at random, so the probabilities that labels are wrong are "
            "uncalibrated, and T is a model's estimate"
        )
    if not len(split.valid):
        notes.append("fewer than five clean rows per class and no validation rows: the last epoch is used as it is")
    if not len(split.test):
        notes.append("there are no test rows, so no test accuracy")
    return notes


def _noise_on_noise(rows: Rows, transition: NDArray[np.float64] | None) -> list[str]:
    """Write a note if noise is injected into labels that verdicts contradict, since they count as true."""
    given, verified = rows.given_codes(), rows.verified_codes()
    wrong = int(((given != verified) & (given >= 0) & (verified >= 0)).sum())
    said = (
        f"verdicts contradict {some(wrong, 'given label')}, but noise is injected as if the given labels of all "
        "unverified rows were right: these are wrong more often than verified rows show; inject noise only into labels "
        "that are right"
    )
    return [said] if wrong and transition is not None else []


def _measured_as_given(rows: Rows, split: Split) -> list[str]:
    found = (as_given(rows, split.valid, "validation rows"), as_given(rows, split.test, "test rows"))
    return [note for note in found if note]


def _num_as_given(rows: Rows, some: Labels) -> int:
    return int((rows.verified_codes()[some] < 0).sum())


def as_given(rows: Rows, some: Labels, name: str) -> str | None:
    """Write a note if nobody checked the labels of some rows that measure a model."""
    count = _num_as_given(rows, some)
    have = "has" if count == 1 else "have"
    return f"{count:,} of the {len(some):,} {name} {have} {AS_GIVEN}" if count else None


def _in_memory(x: NDArray[Any] | ImageFiles) -> NDArray[Any] | ImageFiles:
    """Return cached images as a plain array, and anything else unchanged."""
    return np.asarray(x) if isinstance(x, Images) and x.nbytes <= Decoding.cache_bytes else x


def _pad(size: Sequence[int]) -> int:
    """Return the padding for random crops, 0 for small images; no image is mirrored, since letters would suffer."""
    return 0 if min(size) <= SMALL_IMAGE else min(size) // PAD_SHARE


def auto_recipe(shape: Sequence[int], num_rows: int, num_classes: int, device_type: str) -> Recipe:
    """Choose network, epochs and rates for examples of a shape, (channels, height, width) or (features,).

    >>> auto_recipe((512,), 100_000, 20, "cpu").net, auto_recipe((3, 32, 32), 5000, 10, "cuda").net
    ('mlp', 'resnet18')
    """
    if len(shape) == 1:
        return _features_recipe(num_rows, num_classes)
    resnet = "resnet18" if min(shape[1:]) <= MIDDLE_IMAGE else "imagenet-resnet18"
    large = "pyramid-cnn" if device_type == "cpu" else resnet
    small = min(shape[1:]) <= SMALL_IMAGE
    epochs = EPOCHS if small else min(MOST_EPOCHS, max(EPOCHS, VIEWS // max(1, num_rows)))
    recipe = Recipe("small-cnn" if small else large, batch_size=max(100, num_classes), average=AVERAGE)
    return recipe.scaled(epochs)


def _features_recipe(num_rows: int, num_classes: int) -> Recipe:
    """Choose large mini-batches and few epochs for many rows: with small ones, Python would take most of the time."""
    batch_size = max(100, num_classes, min(MOST_AT_ONCE, num_rows // UPDATES))
    epochs = min(EPOCHS, max(FEWEST_EPOCHS, VISITS // max(1, num_rows)))
    recipe = Recipe("mlp", batch_size=batch_size, weight_decay=FEATURES_DECAY, average=AVERAGE)
    return recipe.scaled(epochs)
