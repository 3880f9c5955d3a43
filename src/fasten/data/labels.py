"""Labels as people write them: as texts, whatever holds them, and the classes that they form."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fasten.cells import unescaped
from fasten.suggest import nearest

Part = Literal["train", "valid", "test"]
Picked = Literal["random", "chosen"]
T = TypeVar("T")

PARTS: Mapping[str, Part] = {
    **{"train": "train", "training": "train", "valid": "valid", "val": "valid", "validation": "valid", "dev": "valid"},
    **{"test": "test", "testing": "test"},
}
PICKED: Mapping[str, Picked] = {"random": "random", "chosen": "chosen"}

NUMBER = r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*"
MOST_MEASURED = 20  # so many different numbers with decimals may be classes, such as sizes or versions
# What other programs write for a blank, and for rows that nobody checked.
BLANKS = ("nan", "NaN", "<NA>", "NA", "None", "NULL")
NOBODY = ("-1", "-1.0", *BLANKS)


def label_texts(values: Any, what: str) -> list[str | None]:
    """Return the labels of a list, an array, a tensor or a pandas object as texts, with None for no label.

    None, NaN and blank texts mean no label. Whole numbers may be stored as floats: 3.0 is "3".

    >>> label_texts([3, 4.0, None, float("nan"), "dog", " "], "y")
    ['3', '4', None, None, 'dog', None]
    """
    column = _flat(values, what)
    if column.dtype.kind in "iu":
        return [str(value) for value in column.tolist()]
    if column.dtype.kind == "S":
        column = _decoded(column, what)
    missing = np.asarray(pd.isna(column)).tolist()
    return [None if missing[row] else _text(value, row, what) for row, value in enumerate(column.tolist())]


def classes_of(name: str, labels: Iterable[str]) -> tuple[str, ...]:
    """Return the classes in order, whole numbers by size; two spellings of one label raise ValueError.

    >>> classes_of("counts", ["10", "9"])
    ('9', '10')
    """
    found = set(labels)
    spelled: dict[str, str] = {}
    for label in sorted(found):
        other = spelled.setdefault(_spoken(label), label)
        if other != label:
            how = (
                f"in their Unicode form, {other!a} and {label!a}"
                if composed(other) == composed(label)
                else "in how they are written"
            )
            raise ValueError(f"{name}: the labels {other!r} and {label!r} differ only {how}; write them the same way")
    if len(found) > MOST_MEASURED and all(re.fullmatch(NUMBER, label) for label in found) and _mostly_fractions(found):
        raise ValueError(
            f"{name} has {len(found):,} different labels, and they are numbers such as {min(found)!r}, like "
            "measurements; a label is a class: give texts or whole numbers"
        )
    if len(found) < 2:
        got = f"only the label {min(found)!r}" if found else "no labels"
        raise ValueError(f"{name} has {got}; a classifier needs rows of two classes or more")
    numbers = all(re.fullmatch(r"-?\d+", label, re.ASCII) for label in found)
    return tuple(sorted(found, key=lambda label: (int(label), label)) if numbers else sorted(found))


def _mostly_fractions(numbers: Collection[str]) -> bool:
    return sum(not float(number).is_integer() for number in numbers) > len(numbers) / 2


def check_nobody(name: str, ids: Sequence[Any], given: Collection[str | None], verified: Sequence[str | None]) -> None:
    """Raise if a verdict looks like a mark for "nobody checked" and is not a given label."""
    for text in NOBODY:
        if text in verified and text not in given:
            raise ValueError(
                f"{name}: {ids[verified.index(text)]!r} is verified as {text!r}, which is no row's given label; leave "
                "the verified label blank if nobody checked"
            )


def note_blanks(name: str, given: Sequence[str | None]) -> tuple[str, ...]:
    """Write a note on given labels that may mean "no label". They are classes, since NA may be Namibia.

    >>> note_blanks("flags.csv", ["NA", "FR", "NA"])[0][:62]
    "flags.csv: a class is made of the 2 rows with the label 'NA'; "
    """
    counts = {text: given.count(text) for text in BLANKS}
    return tuple(
        f"{name}: a class is made of the {f'{count:,} rows' if count > 1 else 'one row'} with the label {text!r}; if "
        "it means that the label is missing, leave these rows out, or verify them and leave the given label blank"
        for text, count in counts.items()
        if count
    )


def check_alike(name: str, given: Iterable[str | None], verified: Iterable[str | None]) -> None:
    """Raise if several labels are verified and none is a given label: they are other names for the same classes."""
    known, sure = ({label for label in labels if label is not None} for labels in (given, verified))
    if known and len(sure) > 1 and not known & sure:
        first, second, *_ = sorted(sure)
        raise ValueError(
            f"{name}: rows are verified as {first!r}, {second!r}, …, and none of these is a given label, but "
            f"{min(known)!r} is; write given and verified labels the same way"
        )


def check_classes(name: str, class_names: Sequence[str], labels: Iterable[str]) -> None:
    """Raise unless the class names differ and the labels are among them."""
    if len(class_names) < 2 or len(set(class_names)) < len(class_names):
        raise ValueError(f"{name}: the class names are {list(class_names)}; give two or more, each once")
    unknown = sorted(set(labels) - set(class_names))
    if unknown:
        raise ValueError(f"{name}: unknown label {unknown[0]!r}; {nearest(unknown[0], class_names)}")


def check_letters(what: str, texts: Iterable[str | None]) -> None:
    """Raise for texts that cannot be encoded, such as the names of files in Latin-1 as Python reads them."""
    written = [text for text in texts if text is not None]
    if is_utf8("".join(written)):
        return
    raise ValueError(f"{what} {next(t for t in written if not is_utf8(t))!r} is not UTF-8; spell it differently")


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded: Python reads file names in other encodings as texts that cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def label_reader(known: Iterable[str]) -> Callable[[str], str]:
    """Return a function that reads a list's cells as known labels, despite spaces and our mark before a formula.

    Letters may be in either Unicode form.

    >>> read = label_reader([" cat", "=dog"])
    >>> read("cat "), read("'=dog"), read(" emu")
    (' cat', '=dog', 'emu')
    """
    labels = {composed(label.strip()): label for label in known}

    def read(cell: str) -> str:
        plain = cell.strip()
        return labels.get(composed(unescaped(plain))) or labels.get(composed(plain), unescaped(plain))

    return read


def composed(text: str) -> str:
    """Return the text in composed Unicode form: macOS may write é as e and its accent."""
    return unicodedata.normalize("NFC", text)


def encode_labels(name: str, class_names: Sequence[str], labels: Sequence[str | None]) -> NDArray[np.int64]:
    """Return the class numbers of the labels, -1 for none; an unknown label raises ValueError.

    >>> encode_labels("pets", ["cat", "dog"], ["dog", None]).tolist()
    [1, -1]
    """
    check_classes(name, class_names, {label for label in labels if label is not None})
    numbers: dict[str | None, int] = {label: number for number, label in enumerate(class_names)}
    return np.array([numbers.get(label, -1) for label in labels], np.int64)


def as_written(verified: list[str | None], given: set[str]) -> list[str | None]:
    """Read 3.0 as 3 if that is a given label: numbers in a column with blanks are often written so."""
    whole = {f"{label}.0": label for label in given}
    return [whole.get(text, text) if text is not None and text not in given else text for text in verified]


def codes_of(labels: Any, class_names: Sequence[str] | None, what: str) -> NDArray[np.int64]:
    """Return labels as class numbers, from such numbers or, if the classes have names, from names; -1 for none.

    Truth values count as 0 and 1, unless a class is called True.

    >>> codes_of(["dog", None], ["cat", "dog"], "verified").tolist(), codes_of([0, 1], None, "y").tolist()
    ([1, -1], [0, 1])
    """
    column, names = np.asarray(on_host(labels)), list(class_names or ())
    if class_names is not None:
        check_classes(what, names, ())
    if column.ndim == 1 and column.dtype.kind in "bO" and "True" not in names:
        plain = [int(value) if isinstance(value, bool | np.bool_) else value for value in column.tolist()]
        column = labels = np.fromiter(plain, object, len(plain))
    texts, counted = label_texts(labels, what), _are_numbers(column)
    known = {name: number for number, name in enumerate(names)}
    if counted:
        most = math.inf if class_names is None else len(names) - 1
        known = {text: int(text) for text in set(texts) if text is not None and -1 <= int(text) <= most}
    for row, text in enumerate(texts):
        if text is not None and text not in known:
            cure = nearest(text, names) if names else "name the classes with class_names, in the order of their numbers"
            if counted:
                cure = "labels count from 0, and -1 means none" + (f": give 0 to {most}, or names" if names else "")
            raise ValueError(f"{what}: unknown label {text!r} in row {row}; {cure}")
    return np.array([-1 if text is None else known[text] for text in texts], np.int64)


def _are_numbers(column: NDArray[Any]) -> bool:
    """Return whether labels are class numbers, some perhaps missing; texts and truth values are names."""
    if column.dtype.kind != "O":
        return column.dtype.kind in "iuf"
    return not any(isinstance(value, str | bytes | bool | np.bool_) for value in column.ravel().tolist())


def part_of(text: str | None, where: str) -> Part | None:
    """Return the part of the split with this usual name; None for a blank.

    >>> part_of("Validation", "pets.csv"), part_of("", "pets.csv")
    ('valid', None)
    """
    return _one_of(text, PARTS, f"{where}: unknown split", get_args(Part))


def picked_of(text: str | None, where: str) -> Picked | None:
    """Return how a row was picked for verification; None for a blank.

    >>> picked_of("chosen", "pets.csv")
    'chosen'
    """
    return _one_of(text, PICKED, f"{where}: unknown way of picking", get_args(Picked))


def _one_of(text: str | None, known: Mapping[str, T], what: str, names: Sequence[str]) -> T | None:
    plain = "" if text is None else text.strip().lower()
    if plain and plain not in known:
        raise ValueError(f"{what} {text!r}; {nearest(plain, names)}")
    return known[plain] if plain else None


def _spoken(label: str) -> str:
    """Return a label without case, surplus spaces, variants of one character, and the '.0' of a number."""
    plain = " ".join(unicodedata.normalize("NFKC", label).casefold().split())
    return re.sub(r"^(-?\d+)\.0+$", r"\1", plain)


def on_host(values: Any) -> Any:
    """Return a tensor, perhaps on a device, as an array, what a mask hides as None, and anything else unchanged."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):  # NumPy would show what the mask hides
        return np.where(np.ma.getmaskarray(values), np.array(None), values.data)
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    try:
        return values.numpy()
    except TypeError:  # NumPy has no bfloat16
        return values.float().numpy()


def _flat(values: Any, what: str) -> NDArray[Any]:
    values = on_host(values)
    if isinstance(values, list | tuple):  # NumPy would turn a NaN among texts into a text
        return np.fromiter(values, object, len(values))
    column = np.asarray(values)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        raise ValueError(f"{what} has shape {column.shape}; give one label for each row")
    return column


def _decoded(column: NDArray[Any], what: str) -> NDArray[Any]:
    try:
        return np.char.decode(column, "utf-8")
    except UnicodeDecodeError as error:
        cure = "give texts instead of bytes, np.array(texts, dtype=str)"
        raise ValueError(f"{what}: {error.object!r} is not UTF-8; {cure}") from None


def _text(value: Any, row: int, what: str) -> str | None:
    if isinstance(value, str):
        return str(value) if value.strip() else None  # NumPy's texts are texts too, but their repr in a message differs
    if isinstance(value, bool | int | np.bool_ | np.integer):
        return str(value)
    if isinstance(value, float | np.floating | Decimal) and float(value).is_integer():
        return str(int(value))
    raise ValueError(f"{what}: {value!r} in row {row} cannot be a label or an id; give texts or whole numbers")
