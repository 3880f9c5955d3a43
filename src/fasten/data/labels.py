"""Labels as people write them: texts out of whatever holds them, and the classes that they make."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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

# What other programs write for a blank, and where nobody looked.
NUMBER = r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*"
MOST_MEASURED = 20  # numbers with decimals that may be classes: sizes, say, or versions
BLANKS = ("nan", "NaN", "<NA>", "NA", "None", "NULL")
NOBODY = ("-1", "-1.0", *BLANKS)


def label_texts(values: Any, what: str) -> list[str | None]:
    """Labels as texts, None where there is none: from a list, an array, a tensor or a pandas object.

    None, NaN and blank texts are no label. Whole numbers may be stored as floats: 3.0 is "3".

    >>> label_texts([3, 4.0, None, float("nan"), "dog", " "], "y")
    ['3', '4', None, None, 'dog', None]
    """
    column = _flat(values, what)
    if column.dtype.kind in "iu":
        return [str(value) for value in column.tolist()]
    if column.dtype.kind == "S":
        column = np.char.decode(column, "utf-8")
    missing = np.asarray(pd.isna(column)).tolist()
    return [None if missing[row] else _text(value, row, what) for row, value in enumerate(column.tolist())]


def classes_of(name: str, labels: Iterable[str]) -> tuple[str, ...]:
    """The classes in order, whole numbers by size; two spellings of one label are refused.

    >>> classes_of("counts", ["10", "9"])
    ('9', '10')
    """
    found = set(labels)
    spelled: dict[str, str] = {}
    for label in sorted(found):
        other = spelled.setdefault(_spoken(label), label)
        if other != label:
            how = (
                f"in how Unicode writes their letters, as {other!a} and as {label!a}"
                if composed(other) == composed(label)
                else "in how they are written"
            )
            raise ValueError(f"{name}: the labels {other!r} and {label!r} differ only {how}; write them alike")
    if len(found) > MOST_MEASURED and all(re.fullmatch(NUMBER, label) for label in found) and _mostly_fractions(found):
        raise ValueError(
            f"{name} has {len(found):,} different labels, and they are numbers as {min(found)!r}, as of something "
            "measured; a label is a class: give texts or whole numbers"
        )
    if len(found) < 2:
        got = f"only the label {min(found)!r}" if found else "no labels"
        raise ValueError(f"{name} has {got}; a classifier needs rows of two classes or more")
    numbers = all(re.fullmatch(r"-?\d+", label, re.ASCII) for label in found)
    return tuple(sorted(found, key=lambda label: (int(label), label)) if numbers else sorted(found))


def _mostly_fractions(numbers: Collection[str]) -> bool:
    return sum(not float(number).is_integer() for number in numbers) > len(numbers) / 2


def check_nobody(name: str, ids: Sequence[Any], given: Collection[str | None], verified: Sequence[str | None]) -> None:
    """Refuse verdicts that are none, where no row is given such a label."""
    for text in NOBODY:
        if text in verified and text not in given:
            raise ValueError(
                f"{name}: {ids[verified.index(text)]!r} is verified as {text!r}, and no row is given that label; leave "
                "it blank where nobody checked"
            )


def note_blanks(name: str, given: Sequence[str | None]) -> tuple[str, ...]:
    """A word on given labels that may stand for none. They are classes, since NA may be Namibia.

    >>> note_blanks("flags.csv", ["NA", "FR", "NA"])[0][:62]
    "flags.csv: a class is made of the 2 rows with the label 'NA'; "
    """
    counts = {text: given.count(text) for text in BLANKS}
    return tuple(
        f"{name}: a class is made of the {f'{count:,} rows' if count > 1 else 'one row'} with the label {text!r}; if "
        "it stands for no label, write nothing there, or leave the rows out"
        for text, count in counts.items()
        if count
    )


def check_alike(name: str, given: Iterable[str | None], verified: Iterable[str | None]) -> None:
    """Refuse verified labels none of which any row is given: of several, they are other names for the same classes."""
    known, sure = ({label for label in labels if label is not None} for labels in (given, verified))
    if known and len(sure) > 1 and not known & sure:
        first, second, *_ = sorted(sure)
        raise ValueError(
            f"{name}: rows are verified as {first!r}, {second!r}, …, and no row is given any of these, but "
            f"{min(known)!r} for one; write given and verified labels alike"
        )


def check_classes(name: str, class_names: Sequence[str], labels: Iterable[str]) -> None:
    """The classes differ, and the labels are among them."""
    if len(class_names) < 2 or len(set(class_names)) < len(class_names):
        raise ValueError(f"{name}: the class names are {list(class_names)}; give two or more, each once")
    unknown = sorted(set(labels) - set(class_names))
    if unknown:
        raise ValueError(f"{name}: unknown label {unknown[0]!r}; {nearest(unknown[0], class_names)}")


def check_letters(what: str, texts: Iterable[str | None]) -> None:
    """Refuse texts that no file can hold, such as names of files in Latin-1 as Python reads them."""
    written = [text for text in texts if text is not None]
    if is_utf8("".join(written)):
        return
    raise ValueError(f"{what} {next(t for t in written if not is_utf8(t))!r} is not UTF-8; spell it otherwise")


def is_utf8(text: str) -> bool:
    """Whether a file can hold a text: Python reads names in other letters with marks that none can."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def label_reader(known: Iterable[str]) -> Callable[[str], str]:
    """What the cells of a list mean: a known label, whatever blanks are around either, or our mark before a formula.

    Letters may be written in either of Unicode's forms.

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
    """In one of Unicode's forms: macOS may write é as e and its accent."""
    return unicodedata.normalize("NFC", text)


def encode_labels(name: str, class_names: Sequence[str], labels: Sequence[str | None]) -> NDArray[np.int64]:
    """The numbers of labels, which are among the classes; -1 for none.

    >>> encode_labels("pets", ["cat", "dog"], ["dog", None]).tolist()
    [1, -1]
    """
    check_classes(name, class_names, {label for label in labels if label is not None})
    numbers: dict[str | None, int] = {label: number for number, label in enumerate(class_names)}
    return np.array([numbers.get(label, -1) for label in labels], np.int64)


def as_written(verified: list[str | None], given: set[str]) -> list[str | None]:
    """Numbers beside blanks are often written as 3.0; where the given label is 3, that is meant."""
    whole = {f"{label}.0": label for label in given}
    return [whole.get(text, text) if text is not None and text not in given else text for text in verified]


def codes_of(labels: Any, class_names: Sequence[str] | None, what: str) -> NDArray[np.int64]:
    """Labels as numbers of classes, from such numbers or, where the classes have names, from these; -1 for none.

    Truth values count as 0 and 1, unless classes are called so.

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
                cure = "labels count from 0, and -1 is none" + (f": give 0 to {most}, or names" if names else "")
            raise ValueError(f"{what}: unknown label {text!r} in row {row}; {cure}")
    return np.array([-1 if text is None else known[text] for text in texts], np.int64)


def _are_numbers(column: NDArray[Any]) -> bool:
    """Whether labels count the classes, some perhaps missing; texts and truth values are names."""
    if column.dtype.kind != "O":
        return column.dtype.kind in "iuf"
    return not any(isinstance(value, str | bytes | bool | np.bool_) for value in column.ravel().tolist())


def part_of(text: str | None, where: str) -> Part | None:
    """A part of the split by one of its usual names; None for a blank.

    >>> part_of("Validation", "pets.csv"), part_of("", "pets.csv")
    ('valid', None)
    """
    return _one_of(text, PARTS, f"{where}: unknown split", get_args(Part))


def picked_of(text: str | None, where: str) -> Picked | None:
    """How a row was picked for verification; None for a blank.

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
    """What is left of a label without case, blanks around it, ways to write one letter, and a number's '.0'."""
    plain = " ".join(unicodedata.normalize("NFKC", label).casefold().split())
    return re.sub(r"^(-?\d+)\.0+$", r"\1", plain)


def on_host(values: Any) -> Any:
    """A tensor, perhaps on a device, as an array; anything else as it is."""
    if not hasattr(values, "detach"):
        return values
    values = values.detach().cpu()
    try:
        return values.numpy()
    except TypeError:  # NumPy has no bfloat16
        return values.float().numpy()


def _flat(values: Any, what: str) -> NDArray[Any]:
    values = on_host(values)
    if isinstance(values, list | tuple):  # NumPy would make a text of a NaN among texts
        return np.fromiter(values, object, len(values))
    column = np.asarray(values)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        raise ValueError(f"{what} has shape {column.shape}; give one label for each row")
    return column


def _text(value: Any, row: int, what: str) -> str | None:
    if isinstance(value, str):
        return str(value) if value.strip() else None  # NumPy's texts are texts, but look otherwise in a message
    if isinstance(value, bool | int | np.bool_ | np.integer):
        return str(value)
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    raise ValueError(f"{what}: {value!r} in row {row} is not a label; give texts or whole numbers")
