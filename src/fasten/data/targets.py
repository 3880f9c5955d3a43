"""Labels as scikit-learn's users give them: of any kind, and the classes that they make in its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasten.data.labels import check_nobody, classes_of, label_texts

Texts = list[str | None]


def known_texts(values: Any, what: str) -> Texts:
    """Labels as texts, of which none may be missing.

    >>> known_texts([1, 2], "y")
    ['1', '2']
    """
    texts = label_texts(values, what)
    if None in texts:
        raise ValueError(f"{what} holds no label in row {texts.index(None)}; give one for each row")
    return texts


def make_classes(y: NDArray[Any], y_texts: Texts, clean: Texts | None, verified: Texts | None) -> NDArray[Any]:
    """All labels, sorted, of the kind of y; those of clean and verified rows may be new.

    In `verified` None is no verdict, and -1 neither where it is no label.

    >>> make_classes(np.array([3, 1, 1]), ["3", "1", "1"], None, [None, "-1", "2"])
    array([1, 2, 3])
    """
    own, sure = set(y_texts), set(clean or ())
    known = own | sure
    verdicts = [None if text == "-1" and text not in known else text for text in verified or ()]
    check_nobody("y_verified", range(len(verdicts)), known, verdicts)
    texts = {text for text in known.union(verdicts) if text is not None}
    classes_of("y", texts)  # refuses what is no two classes, or two spellings of one
    values = np.array(y.tolist()) if y.dtype.kind == "O" else y
    given = np.unique(values if values.dtype.kind in "iufb" else y)
    new = sorted(texts - own)
    return np.unique(np.concatenate([given, _of_kind(given.dtype.kind, new)])) if new else given


def _of_kind(kind: str, texts: Sequence[str]) -> NDArray[Any]:
    if kind == "b":
        return np.array([text == "True" for text in texts])
    try:
        return np.array([int(text) if kind in "iuf" else text for text in texts])
    except ValueError as error:
        raise ValueError(f"y holds numbers, but some verified label is none ({error}); give both in one form") from None
