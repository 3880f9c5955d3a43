"""The vote of neighbours against loops, and what must not change it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fasten.ops.neighbours import vote
from reference.neighbours import ref_votes

SEEDS = st.integers(0, 2**32 - 1)


def draw(rows: int, dims: int, classes: int, seed: int):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, dims)), rng.integers(classes, size=rows)


def votes_of(points, labels, queries, **options):
    return vote(*map(torch.from_numpy, (points, labels, queries)), **options).numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 2, 7, 38, 39])
def test_votes_match_the_reference(k, dtype):
    points, labels = draw(40, 3, 4, seed=k)
    queries = np.array([5, 0, 39, 17, 5])
    got = votes_of(points.astype(dtype), labels, queries, k=k, num_classes=4)
    np.testing.assert_array_equal(got, ref_votes(points.astype(dtype), labels, queries, k, 4))


def test_more_neighbours_than_there_are_means_all_of_them():
    points, labels = draw(6, 2, 3, seed=0)
    got = votes_of(points, labels, np.arange(6), k=500, num_classes=3)
    np.testing.assert_array_equal(got, np.bincount(labels, minlength=3) - np.eye(3, dtype=int)[labels])


def test_a_lone_row_has_no_neighbours():
    got = votes_of(np.zeros((1, 2)), np.array([1]), np.array([0]), k=5, num_classes=3)
    np.testing.assert_array_equal(got, [[0, 0, 0]])


def test_a_row_does_not_vote_for_itself_even_among_equals():
    """All points in one place: the query is at distance 0 from itself as from the others."""
    got = votes_of(np.ones((4, 2)), np.array([0, 1, 1, 1]), np.arange(4), k=3, num_classes=2)
    np.testing.assert_array_equal(got, [[0, 3], [1, 2], [1, 2], [1, 2]])


@pytest.mark.parametrize("chunk_bytes", [1, 8 * 50, 8 * 50 * 7])
def test_chunks_do_not_change_the_answer(chunk_bytes):
    """One row, one row and seven rows at once; seven do not go into 45."""
    points, labels = draw(50, 5, 3, seed=1)
    queries = np.arange(45)
    whole = votes_of(points, labels, queries, k=9, num_classes=3)
    parts = votes_of(points, labels, queries, k=9, num_classes=3, chunk_bytes=chunk_bytes)
    np.testing.assert_array_equal(parts, whole)


def test_points_far_from_the_origin_keep_their_neighbours_in_float32():
    """Their squares are of the order of 1e9, where float32 has steps of 64: far more than the distances."""
    points, labels = draw(60, 10, 3, seed=2)
    far = (points + 1e4).astype(np.float32)
    got = votes_of(far, labels, np.arange(60), k=5, num_classes=3)
    np.testing.assert_array_equal(got, ref_votes(far, labels, range(60), 5, 3))


@given(st.integers(1, 30), SEEDS)
@settings(deadline=None, max_examples=30)
def test_every_neighbour_has_one_vote_and_permuting_the_classes_permutes_the_votes(k, seed):
    points, labels = draw(20, 4, 5, seed)
    order = np.random.default_rng(seed).permutation(5)  # old class c is new class order[c]
    votes = votes_of(points, labels, np.arange(20), k=k, num_classes=5)
    assert (votes.sum(1) == min(k, 19)).all()
    np.testing.assert_array_equal(votes_of(points, order[labels], np.arange(20), k=k, num_classes=5)[:, order], votes)
