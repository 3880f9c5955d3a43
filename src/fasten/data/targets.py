"""Labels as users of scikit-learn give them, of any kind, and their classes in scikit-learn's order."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fasten.data.labels import check_nobody, classes_of, label_texts, on_host

Texts = list[str | None]


def checked_labels(y: Any, y_verified: Any = None) -> Any:
    """Return labels as scikit-learn can take them; raise if they are of two kinds, or some are missing."""
    _check_one_kind(y)
    _check_same_index(y, y_verified)
    y = _plain_labels(on_host(y))
    _check_labelled(y)
    return y


def _check_one_kind(y: Any) -> None:
    """Raise if texts and numbers are mixed: NumPy would turn all into texts, and predictions would be texts too."""
    labels = y.tolist() if getattr(y, "dtype", None) == np.dtype(object) else y  # an array or a pandas column
    if isinstance(labels, list | tuple):
        kinds = {
            isinstance(label, str) for label in labels if isinstance(label, str | Real) and label == label
        }  # no NaN
        if len(kinds) > 1:
            raise ValueError("y has both texts and numbers as labels; write all of them as texts, or all as numbers")


def _check_labelled(y: Any) -> None:
    """Raise if a label is missing in a list, a pandas object or an array of objects.

    Without this check scikit-learn would call the labels regression targets, or fail at pandas' NA.
    """
    of_objects = getattr(y, "dtype", None) == np.dtype(object)
    if of_objects or isinstance(y, list | tuple | pd.Series | pd.Categorical | pd.DataFrame):
        missing = np.argwhere(pd.isna(np.asarray(y, object)))
        if len(missing):
            raise ValueError(f"y holds no label in row {missing[0][0]}; give one for each row")


def _check_same_index(y: Any, y_verified: Any) -> None:
    """Raise if the index of y_verified has the entries of y's in another order, or only some of them.

    In the first case it is unclear what counts; in the second the rows that were not checked were left out.

    >>> _check_same_index(pd.Series([0, 1]), pd.Series([1, 0], [1, 0]))
    Traceback (most recent call last):
    ValueError: y and y_verified have the same index in another order; give y_verified.loc[y.index] or, if it has the \
order of y already, y_verified.to_numpy()
    """
    if not all(isinstance(values, pd.Series | pd.DataFrame) for values in (y, y_verified)):
        return
    one, other = y.index, y_verified.index
    if not one.is_unique or one.equals(other):
        return
    if set(one) == set(other):
        raise ValueError(
            "y and y_verified have the same index in another order; give y_verified.loc[y.index] or, if it has the "
            "order of y already, y_verified.to_numpy()"
        )
    if other.is_unique and set(other) < set(one):
        raise ValueError(
            f"y_verified has {len(other):,} of the {len(one):,} entries in the index of y; give "
            "y_verified.reindex(y.index), which leaves the other rows unverified"
        )


def _plain_labels(y: Any) -> Any:
    """Return labels of pandas' nullable types, and objects that are truth values, as NumPy arrays; others unchanged.

    >>> _plain_labels(pd.Series([2, 1], dtype="Int64")), _plain_labels(np.array([True, False], object))
    (array([2, 1]), array([ True, False]))
    """
    kind = getattr(y, "dtype", None)
    if kind == np.dtype(object) and all(isinstance(label, bool | np.bool_) for label in np.ravel(y)):
        return np.asarray(y, bool)
    kind = getattr(kind, "numpy_dtype", None)
    return y if kind is None or kind.kind not in "biuf" or pd.isna(y).any() else np.asarray(y, kind)


def truths_as_given(given: Texts, others: Texts) -> Texts:
    """Return other labels with truth values as 0 and 1 if the given labels are 0 and 1, or the reverse.

    >>> truths_as_given(["0", "1"], ["True", None]), truths_as_given(["False", "True"], ["1", "0"])
    (['1', None], ['True', 'False'])
    """
    numbers: dict[str | None, str] = {"False": "0", "True": "1"}
    if set(given) <= set(numbers.values()):
        return [numbers.get(text, text) for text in others]
    if set(given) <= set(numbers):
        truths: dict[str | None, str] = {"0": "False", "1": "True"}
        return [truths.get(text, text) for text in others]
    return others


def known_texts(values: Any, what: str) -> Texts:
    """Return labels as texts; a missing one raises ValueError.

    >>> known_texts([1, 2], "y")
    ['1', '2']
    """
    texts = label_texts(values, what)
    if None in texts:
        raise ValueError(f"{what} holds no label in row {texts.index(None)}; give one for each row")
    return texts


def make_classes(y: NDArray[Any], y_texts: Texts, clean: Texts | None, verified: Texts | None) -> NDArray[Any]:
    """Return all labels, sorted, with the type of y; clean and verified rows may have labels that are not in y.

    In `verified`, None means no verdict, and so does -1 if it is not a label.

    >>> make_classes(np.array([3, 1, 1]), ["3", "1", "1"], None, [None, "-1", "2"])
    array([1, 2, 3])
    """
    own, sure = set(y_texts), set(clean or ())
    known = own | sure
    verdicts = [None if text == "-1" and text not in known else text for text in verified or ()]
    check_nobody("y_verified", range(len(verdicts)), known, verdicts)
    texts = {text for text in known.union(verdicts) if text is not None}
    classes_of("y", texts)  # raises for fewer than two classes, or two spellings of one
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
        raise ValueError(f"y holds numbers, but a verified label does not ({error}); give both in one form") from None
