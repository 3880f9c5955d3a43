from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasten.data.digits import read_digits
from fasten.data.splits import Split, balanced_split, stratified_split

seeds = st.integers(0, 2**32 - 1)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def rows(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def all_rows(split: Split) -> list[int]:
    return sorted(np.concatenate([split.noisy, split.clean, split.valid, split.test]).tolist())


def ref_shares(counts: list[int], size: int) -> list[int]:
    """Largest remainders, in whole numbers: the floor of each share, then one more to the largest remainders."""
    total = sum(counts)
    whole = [count * size // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda c: (-(counts[c] * size % total), c))
    for c in by_remainder[: size - sum(whole)]:
        whole[c] += 1
    return whole


@given(seeds, st.integers(2, 6), st.integers(0, 4), st.integers(0, 4), st.integers(0, 5))
def test_a_balanced_split_is_disjoint_balanced_and_covers(
    seed: int, num_classes: int, clean: int, valid: int, extra: int
) -> None:
    labels = rng(seed).permutation(np.arange(num_classes * (clean + valid + extra + 2)) % num_classes)
    train = np.sort(rng(seed).permutation(len(labels))[: len(labels) - 2])
    counts = np.bincount(labels[train], minlength=num_classes)
    split = balanced_split(labels, train, num_classes, clean * num_classes, valid * num_classes, rng(seed))
    assert all_rows(split) == list(range(len(labels)))
    assert np.bincount(labels[split.clean], minlength=num_classes).tolist() == [clean] * num_classes
    assert np.bincount(labels[split.valid], minlength=num_classes).tolist() == [valid] * num_classes
    assert np.bincount(labels[split.noisy], minlength=num_classes).tolist() == (counts - clean - valid).tolist()
    assert split.test.tolist() == sorted(set(range(len(labels))) - set(train.tolist()))


@given(st.data())
def test_a_stratified_split_is_disjoint_covers_and_has_the_sizes_asked_for(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 12), min_size=2, max_size=6))
    labels = rng(1).permutation(np.repeat(np.arange(len(counts)), counts))
    n, num_classes = len(labels), len(counts)
    test = data.draw(st.integers(0, n))
    clean = data.draw(st.integers(0, n - test))
    valid = data.draw(st.integers(0, n - test - clean))
    rarest = min(np.array(counts) - ref_shares(counts, test))
    if rarest < sum(size // num_classes for size in (clean, valid) if size % num_classes == 0):
        with pytest.raises(ValueError, match="balanced parts take"):
            stratified_split(labels, num_classes, clean=clean, valid=valid, test=test, rng=rng())
        return
    split = stratified_split(labels, num_classes, clean=clean, valid=valid, test=test, rng=rng())
    assert all_rows(split) == list(range(n))
    assert (len(split.clean), len(split.valid), len(split.test)) == (clean, valid, test)
    assert np.bincount(labels[split.test], minlength=num_classes).tolist() == ref_shares(counts, test)
    for part in (split.clean, split.valid):
        per_class = np.bincount(labels[part], minlength=num_classes)
        assert len(part) % num_classes or np.ptp(per_class) == 0


@given(seeds, st.permutations(range(4)))
def test_renaming_the_classes_keeps_the_sizes_of_a_stratified_split(seed: int, names: list[int]) -> None:
    labels = np.repeat(np.arange(4), [5, 9, 7, 11])
    plain = stratified_split(labels, 4, clean=4, valid=4, test=8, rng=rng(seed))
    renamed = stratified_split(np.array(names)[labels], 4, clean=4, valid=4, test=8, rng=rng(seed))
    for before, after in ((plain.clean, renamed.clean), (plain.test, renamed.test)):
        assert np.bincount(labels[before], minlength=4).tolist() == np.bincount(labels[after], minlength=4).tolist()


def test_cifar_sized_labels_split_into_44000_1000_5000_and_10000() -> None:
    labels = np.arange(60_000) % 10
    split = balanced_split(labels, np.arange(50_000), 10, clean=1000, valid=5000, rng=rng())
    assert [len(part) for part in (split.noisy, split.clean, split.valid, split.test)] == [44_000, 1000, 5000, 10_000]


def test_digits_split_into_1197_100_100_and_400() -> None:
    truth = read_digits().truth
    split = stratified_split(truth, 10, clean=100, valid=100, test=400, rng=rng())
    assert [len(part) for part in (split.noisy, split.clean, split.valid, split.test)] == [1197, 100, 100, 400]
    assert np.bincount(truth[split.clean]).tolist() == np.bincount(truth[split.valid]).tolist() == [10] * 10
    assert abs(np.bincount(truth[split.test]) - np.bincount(truth) * (400 / 1797)).max() < 1


def test_a_split_repeats_from_the_same_seed_and_differs_from_another() -> None:
    labels = np.arange(100) % 5
    splits = [stratified_split(labels, 5, clean=10, valid=10, test=20, rng=rng(seed)) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(splits[0].clean, splits[1].clean)
    assert splits[0].clean.tolist() != splits[2].clean.tolist()


def test_every_row_is_clean_about_as_often() -> None:
    labels = np.arange(20) % 2
    generator, hits = rng(5), np.zeros(20)
    for _ in range(1000):
        hits[balanced_split(labels, np.arange(20), 2, 4, 4, generator).clean] += 1
    assert abs(hits / 1000 - 0.2).max() < 0.07  # five deviations


def test_a_row_in_two_parts_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="row 3 is more than once in clean and test"):
        Split(noisy=rows(0, 1), clean=rows(2, 3), valid=rows(), test=rows(3, 4))


def test_a_row_twice_in_one_part_is_refused() -> None:
    with pytest.raises(ValueError, match="row 1 is more than once in noisy"):
        Split(noisy=rows(1, 1), clean=rows(), valid=rows(), test=rows())


def test_masks_are_refused_where_indices_belong() -> None:
    with pytest.raises(ValueError, match="clean rows are bool"):
        Split(noisy=rows(0), clean=np.array([True]), valid=rows(), test=rows())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("clean", "valid", "message"),
    [
        (15, 0, "15 clean rows cannot be balanced over 10 classes; .* such as 20"),
        (5, 0, "5 clean rows .* such as 10"),
        (10, 7, "7 valid rows cannot be balanced"),
        (60, 50, "take 11 rows of each class, but class 0 has only 10 left; .* at most 100 clean and validation rows"),
        (-10, 0, "number of clean rows must be 0 or more, got -10"),
    ],
)
def test_a_balanced_split_that_cannot_be_says_what_to_do(clean: int, valid: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        balanced_split(np.arange(100) % 10, np.arange(100), 10, clean, valid, rng())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"clean": 10, "valid": 5, "test": 10}, "10 clean, 5 validation and 10 test rows are more than the 20"),
        ({"clean": 8, "valid": 0, "test": 10}, "take 4 rows of each class, but class 1 has only 2 left"),
        ({"clean": 2, "valid": 2, "test": -1}, "number of test rows must be 0 or more, got -1"),
    ],
)
def test_a_stratified_split_that_cannot_be_says_what_to_do(sizes: dict[str, int], message: str) -> None:
    labels = np.repeat([0, 1], [16, 4])
    with pytest.raises(ValueError, match=message):
        stratified_split(labels, 2, **sizes, rng=rng())


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="labels run from 0 to 3, outside the 3 classes"):
        stratified_split(np.arange(4), 3, clean=0, valid=0, test=0, rng=rng())
