import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fasten.ops.anchors import anchor_rows
from reference.anchors import ref_anchors


def draw(k: int, rows: int, seed: int = 0):
    return np.random.default_rng(seed).dirichlet(np.ones(k), rows)


@pytest.mark.parametrize("percentile", [None, 50, 97, 99.5])
@pytest.mark.parametrize(("k", "rows"), [(2, 20), (10, 300), (100, 500)])
def test_anchors_match_the_reference(k, rows, percentile):
    p = draw(k, rows)
    np.testing.assert_allclose(anchor_rows(torch.from_numpy(p), percentile), ref_anchors(p, percentile), rtol=1e-12)


@given(rows=st.integers(2, 200), percentile=st.floats(1, 99.9), seed=st.integers(0, 99))
def test_what_is_left_out_is_what_numpy_finds_at_or_above_the_percentile(rows, percentile, seed):
    p = draw(3, rows, seed)
    found = anchor_rows(torch.from_numpy(p), percentile).numpy()
    for i in range(3):
        left = p[p[:, i] < np.percentile(p[:, i], percentile, method="higher")]
        if len(left):
            np.testing.assert_array_equal(found[i], left[left[:, i].argmax()])


def test_a_hundred_and_none_leave_all_rows_in():
    p = torch.from_numpy(draw(4, 30))
    assert torch.equal(anchor_rows(p, 100), anchor_rows(p, None))
    assert torch.equal(anchor_rows(p, 100).diagonal(), p.amax(0))


def test_a_filter_on_the_table_leaves_zeros_to_later_classes_and_the_other_none():
    p = torch.tensor([[0.5, 0.5, 0.0], [0.6, 0.4, 0.0], [0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]).double() + 0.01
    before = p.clone()
    shared, own = anchor_rows(p, 60, "table"), anchor_rows(p, 60)
    assert (shared == 0).any()
    assert (own > 0).all()
    assert torch.equal(shared[0], own[0])  # the first class finds the table as it was
    assert torch.equal(p, before)


def test_few_rows_are_enough():
    p = torch.tensor([[0.7, 0.3]])
    assert torch.equal(anchor_rows(p), p.expand(2, 2))


def test_permuting_the_classes_permutes_the_anchors():
    p = torch.from_numpy(draw(6, 50))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert torch.equal(anchor_rows(p[:, order]), anchor_rows(p)[order][:, order])
