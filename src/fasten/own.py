"""Users' own data: how they are read, split, normalised and trained on unless one says otherwise."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fasten.audit.corrections import check_precision
from fasten.audit.evidence import hold_back
from fasten.contract import Recipe
from fasten.data.arrays import read_npz
from fasten.data.decoding import Decoding, Images
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

# What the command line calls the fields of `Own`.
FLAGS = {
    **{"clean": "--clean-folder", "valid": "--valid", "test": "--test", "verified": "--verified", "size": "--size"},
    **{"max_bad": "--max-bad", "min_precision": "--min-precision"},
}

ARRAYS = ".npz"

# Pixels of a side, up to which a network is the right one; without a GPU the small one is, up to the second of these.
SMALL_IMAGE = 16
MIDDLE_IMAGE = 64
EPOCHS = 30
AVERAGE = 0.1  # better than no average in all that benchmarks/averaging.py measures; 0.4 corrects fewer labels

# For rows of features, chosen on digits' pixels, Gaussians and clusters of 1,400 to 100,000 rows: docs/my-table.md.
UPDATES = 100  # of an epoch, at least, before a batch grows beyond 100 rows
MOST_AT_ONCE = 1000
VISITS = 1_200_000  # of rows in all epochs, beyond which these become fewer
FEWEST_EPOCHS = 6
FEATURES_DECAY = 0.01

AS_GIVEN = "no verified label: as given it counts as right"
PAD_SHARE = 8  # one pixel of so many is padded on each side before a random crop


@dataclass(frozen=True)
class Own:
    """How users' own data are read, and the precision their corrections must keep; plain values.

    >>> Own.from_json(Own(size=64, verified="checked.txt").to_json()).verified
    'checked.txt'
    """

    clean: str | None = None  # a folder of clean images
    valid: str | None = None  # a folder of images
    test: str | None = None
    verified: str | None = None  # a list of verified names, or a CSV file with names and labels
    size: int | None = None  # of images, in pixels
    max_bad: int = Decoding.max_bad  # images that may be unreadable
    min_precision: float | None = None  # of the corrections

    def __post_init__(self) -> None:
        self.decoding()
        check_precision(self.min_precision)

    def decoding(self, shape: Sequence[int] | None = None) -> Decoding:
        """How images are read; `shape` is that of a trained model's examples, (channels, height, width)."""
        if shape is None or len(shape) != 3:
            return Decoding(self.size, max_bad=self.max_bad)
        channels: Literal[1, 3] = 1 if shape[0] == 1 else 3
        return Decoding((shape[1], shape[2]), channels, self.max_bad)

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults."""
        return {key: value for key, value in asdict(self).items() if value != getattr(Own, key)}

    @staticmethod
    def from_json(values: Mapping[str, Any] | None) -> Own:
        known = {field.name for field in fields(Own)}
        return Own(**{key: value for key, value in (values or {}).items() if key in known})


def is_path(data: str) -> bool:
    """Whether this names a file or folder of a user's own: it is there, or looks like one.

    >>> is_path("photos/"), is_path("items.csv"), is_path("cifar10")
    (True, True, False)
    """
    return os.sep in data or "/" in data or Path(data).suffix.lower() in (*TABLES, ARRAYS) or Path(data).exists()


def names_beside(path: Path) -> list[str]:
    """Files and folders beside a path that has no file, with a name like its own, the nearest first."""
    try:
        stems = {Path(name).stem: name for name in sorted(os.listdir(path.parent))}
    except OSError:
        return []
    return [stems[stem] for stem in difflib.get_close_matches(path.stem, stems, 2)]


def check_beside(data: str | os.PathLike[str], out: Path) -> None:
    """Refuse to write into a folder of data: what lies there would be data the next time."""
    source, target = os.path.join(os.path.realpath(data), ""), os.path.join(os.path.realpath(out), "")
    if target.startswith(source):
        raise ValueError(f"{out} lies in the data {data}; choose a folder beside it")


def read_rows(
    path: str,
    own: Own,
    class_names: Sequence[str] | None = None,
    labelled: bool = True,
    *,
    shape: Sequence[int] | None = None,
    feature_names: Sequence[str] | None = None,
) -> Rows:
    """The rows of a folder, table or array file.

    `class_names`, `shape` and `feature_names` are those of a trained model, as its record's `data` has them; then rows
    need no label, and unless `labelled` verdicts, and labels of tables and arrays, are not looked at.
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
        rows = _read_file(place, how, class_names, feature_names, labelled)
        if own.verified is not None and labelled:
            rows = _with_verdicts(rows, Path(own.verified), place, class_names)
        if own.size is not None and not isinstance(rows.x, ImageFiles):
            raise ValueError(f"{FLAGS['size']} is for image files, and {path} names none; leave it out")
    if shape is not None:
        _check_shape(rows, tuple(shape))
    return rows


def _missing(path: Path) -> str:
    """A run that goes on may do so in another folder than it was begun in."""
    if near := names_beside(path):
        return f"there is no file or folder {path}; did you mean {str(path.with_name(near[0]))!r}?"
    if path.is_absolute():
        return f"there is no file or folder {path}; say where the data lie"
    return (
        f"there is no file or folder {path} in {Path.cwd()}, where this relative path is looked for; say where the "
        "data lie, or run this where the path leads to them"
    )


def _check_one_file(path: str, own: Own) -> None:
    """Tables and arrays say themselves which rows are what."""
    for key in ("clean", "valid", "test"):
        if getattr(own, key) is not None:
            raise ValueError(
                f"{FLAGS[key]} is for folders of images; {path} says such things itself, by the columns "
                "verified_label and split, or by arrays such as x_clean and x_test"
            )


def _read_file(
    path: Path,
    how: Decoding,
    class_names: Sequence[str] | None,
    feature_names: Sequence[str] | None,
    labelled: bool,
) -> Rows:
    if path.suffix.lower() == ARRAYS:
        return read_npz(path, class_names=class_names, labelled=labelled)
    if path.is_dir() or path.suffix.lower() in TABLES:
        read = read_hub if path.is_dir() else read_table
        return read(path, how=how, class_names=class_names, feature_names=feature_names, labelled=labelled)
    raise ValueError(f"{path} is neither a folder of images nor a table or arrays; give a .csv, .parquet or .npz file")


def _with_verdicts(rows: Rows, verified: Path, path: Path, class_names: Sequence[str] | None) -> Rows:
    folder = path if path.is_dir() else path.parent
    verdicts = read_verdicts(verified, folder, rows, class_names)
    columns = add_verdicts(rows.name, rows.columns, verdicts)
    return make_rows(rows.name, columns, rows.x, class_names, rows.notes, rows.feature_names)


def _check_shape(rows: Rows, shape: tuple[int, ...]) -> None:
    found = shape_of(rows.x)
    if found != shape:
        raise ValueError(
            f"{rows.name} has examples of {in_words(found)}, and the model was trained on {in_words(shape)}; give "
            "examples of that shape"
        )


def make_own_task(rows: Rows, seed: int, noise: str = "none") -> Task:
    """Split what was read. With noise, the labels as they are count as the truth, and noisy ones are made of them.

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
        feature_names=rows.feature_names,
        measured_by=_verdicts(rows.take(np.flatnonzero(apart))),
        test_as_given=_num_as_given(rows, split.test),
    )


def _verdicts(columns: Columns) -> tuple[tuple[str, str, str], ...]:
    said = zip(columns.ids, columns.verified, columns.picked, strict=True)
    return tuple((name, label, way) for name, label, way in said if label is not None and way is not None)


def _given(
    rows: Rows, judged: Labels, free: NDArray[np.bool_], noise: str, seed: int
) -> tuple[Labels, NDArray[np.float64] | None]:
    """The given labels; where noise is made, those of the rows that are free for it are noisy, and its T is known."""
    given, wanted = rows.given_codes(), parse_noise(noise)
    if wanted.kind == "none":
        return given, None
    touched = np.flatnonzero((given >= 0) & free)
    rng = numpy_stream(seed, "noise")
    made = corrupt(judged[touched], wanted, rows.num_classes, rng, names=rows.class_names)
    given[touched] = made.labels
    return given, made.transition


def make_test_task(rows: Rows, data: Mapping[str, Any]) -> Task:
    """New rows for a trained model, all of them test rows, or those that say so; `data` is of the model's record.

    Rows without a label are judged as of class 0: predict them, but do not count how many are right.
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
        feature_names=rows.feature_names,
    )


def _check_split(rows: Rows, split: Split) -> None:
    if not len(split.noisy):
        raise ValueError(
            f"{rows.name} has no row whose label is in doubt: all are verified, or set apart for validation and test; "
            "add rows with labels that nobody checked"
        )


def _notes(known: Known, split: Split) -> list[str]:
    """What the run cannot say for lack of rows."""
    notes = []
    if not (known.picked_random & (known.given >= 0)).any():
        notes.append(
            "no row with a given label was verified at random, so the probabilities that labels are wrong are "
            "uncalibrated, and T is a model's estimate"
        )
    if not len(split.valid):
        notes.append("fewer than five clean rows a class and no validation rows: the last epoch is used as it is")
    if not len(split.test):
        notes.append("there are no test rows, so no test accuracy")
    return notes


def _noise_on_noise(rows: Rows, transition: NDArray[np.float64] | None) -> list[str]:
    """A word where verdicts say that the labels, which count as the truth where noise is made, are none."""
    given, verified = rows.given_codes(), rows.verified_codes()
    wrong = int(((given != verified) & (given >= 0) & (verified >= 0)).sum())
    said = (
        f"verdicts contradict {some(wrong, 'given label')}, and with noise injected the given labels of all other rows "
        "count as right: they are wrong more often than verified rows show; inject noise into labels that are right"
    )
    return [said] if wrong and transition is not None else []


def _measured_as_given(rows: Rows, split: Split) -> list[str]:
    found = (as_given(rows, split.valid, "validation rows"), as_given(rows, split.test, "test rows"))
    return [note for note in found if note]


def _num_as_given(rows: Rows, some: Labels) -> int:
    return int((rows.verified_codes()[some] < 0).sum())


def as_given(rows: Rows, some: Labels, name: str) -> str | None:
    """What is to be said of rows that measure a model, if nobody checked the labels of all."""
    count = _num_as_given(rows, some)
    have = "has" if count == 1 else "have"
    return f"{count:,} of the {len(some):,} {name} {have} {AS_GIVEN}" if count else None


def _in_memory(x: NDArray[Any] | ImageFiles) -> NDArray[Any] | ImageFiles:
    """Images that were decoded once and kept as the array that they are."""
    return np.asarray(x) if isinstance(x, Images) and x.nbytes <= Decoding.cache_bytes else x


def _pad(size: Sequence[int]) -> int:
    """Larger images are seen through crops that move a little; none are mirrored, as letters would suffer."""
    return 0 if min(size) <= SMALL_IMAGE else min(size) // PAD_SHARE


def auto_recipe(shape: Sequence[int], num_rows: int, num_classes: int, device_type: str) -> Recipe:
    """Network, length and rates for examples of a shape, (channels, height, width) or (features,).

    >>> auto_recipe((512,), 100_000, 20, "cpu").net, auto_recipe((3, 32, 32), 5000, 10, "cuda").net
    ('mlp', 'resnet18')
    """
    if len(shape) == 1:
        return _features_recipe(num_rows, num_classes)
    side, small = min(shape[1:]), MIDDLE_IMAGE if device_type == "cpu" else SMALL_IMAGE
    net = "small-cnn" if side <= small else "resnet18" if side <= MIDDLE_IMAGE else "imagenet-resnet18"
    return replace(Recipe(net), batch_size=max(100, num_classes), average=AVERAGE).scaled(EPOCHS)


def _features_recipe(num_rows: int, num_classes: int) -> Recipe:
    """Large batches where there are many rows, since small ones would only wait for Python, and fewer epochs."""
    batch_size = max(100, num_classes, min(MOST_AT_ONCE, num_rows // UPDATES))
    epochs = min(EPOCHS, max(FEWEST_EPOCHS, VISITS // max(1, num_rows)))
    recipe = Recipe("mlp", batch_size=batch_size, weight_decay=FEATURES_DECAY, average=AVERAGE)
    return recipe.scaled(epochs)
