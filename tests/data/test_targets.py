"""The classes that labels of any kind make."""

import numpy as np
import pandas as pd
import pytest

from fasten.data.targets import checked_labels, known_texts, make_classes


@pytest.mark.parametrize(
    ("y", "clean", "verified", "expected"),
    [
        (np.array([3, 1]), ["2"], None, [1, 2, 3]),
        (np.array([3, 1], object), ["2"], None, [1, 2, 3]),
        (np.array([3.0, 1.0]), None, ["2", None], [1.0, 2.0, 3.0]),
        (np.array(["b", "a"]), ["longer"], ["c", None], ["a", "b", "c", "longer"]),
        (np.array(["10", "9"]), None, ["5", None], ["10", "5", "9"]),  # scikit-learn sorts texts as texts
        (np.array([True, True]), ["False"], None, [False, True]),
        (np.array([0, 1]), None, ["-1", "1"], [0, 1]),  # nobody checked
        (np.array([-1, 1]), None, ["-1", None], [-1, 1]),
        (np.array([0, 1]), ["-1"], None, [-1, 0, 1]),
    ],
)
def test_classes_are_sorted_and_of_the_kind_of_y(y, clean, verified, expected):
    found = make_classes(y, known_texts(y, "y"), clean, verified)
    assert found.tolist() == expected
    assert [type(value) for value in found.tolist()] == [type(value) for value in expected]


def test_labels_of_two_kinds_are_refused():
    with pytest.raises(ValueError, match="y holds numbers, but a verified label does not"):
        make_classes(np.array([0, 1]), ["0", "1"], None, ["cat", None])


def test_a_text_for_no_verdict_is_refused_unless_it_is_a_label():
    """As numpy makes it of ["a", np.nan]."""
    with pytest.raises(ValueError, match="y_verified: 1 is verified as 'nan', which is no row's given label"):
        make_classes(np.array(["a", "b"]), ["a", "b"], None, ["a", "nan"])
    assert make_classes(np.array(["a", "nan"]), ["a", "nan"], None, ["a", "nan"]).tolist() == ["a", "nan"]


def test_one_class_is_none():
    with pytest.raises(ValueError, match="two classes or more"):
        make_classes(np.array([0, 0]), ["0", "0"], None, None)


def test_verdicts_on_some_rows_alone_are_refused_with_what_makes_them_fit():
    y = pd.Series([0, 1, 0, 1], index=list("abcd"))
    checked = pd.Series([1, 0], index=["d", "b"])
    with pytest.raises(ValueError, match=r"2 of the 4 entries in the index of y; give y_verified.reindex\(y.index\)"):
        checked_labels(y, checked)
    for fits in (checked.reindex(y.index), pd.Series([1, 0], index=["d", "x"]), pd.Series([1, 0], index=["d", "d"])):
        assert checked_labels(y, fits).equals(y), "or is refused for its length"
