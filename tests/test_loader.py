from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fasten.loader as loader_module
from builders import CPU64, make_tiny_task
from fasten import stream
from fasten.augment import Normalise, centre_crop, gather_crop_flip
from fasten.contract import Draw, Stage
from fasten.loader import BLOCK, BalancedDraw, Loader
from fasten.stream import StreamLoader

CPU = torch.device("cpu")


def stage(size: int = 16, per_class: int = 2) -> Stage:
    draws = {"noisy": Draw("noisy", size), "clean": Draw("clean", 3 * per_class, "balanced")}
    return Stage("train", lambda batch: iter(()), draws, {}, epochs=2)


def all_picks(loader: Loader, epoch: int = 1, start: int = 0):
    return list(loader.updates(stage(), (0, epoch), start))


def test_an_epoch_visits_every_noisy_row_once_and_fills_the_last_batch_from_its_start():
    task = make_tiny_task()
    picks = all_picks(Loader(task, CPU, seed=0))
    index = torch.cat([p["noisy"].index for p in picks])
    weight = torch.cat([p["noisy"].weight for p in picks])
    rows = len(task.given)
    assert weight.sum() == rows
    assert sorted(index[weight > 0].tolist()) == list(range(rows))
    assert index[rows:].tolist() == index[: len(index) - rows].tolist()
    assert all(len(set(p["noisy"].index.tolist())) == 16 for p in picks)


def test_a_cycle_begins_again_and_leaves_out_what_is_not_kept():
    loader = Loader(make_tiny_task(), CPU, seed=0)
    keep = torch.arange(66) % 3 != 0  # 44 of 66
    draws = {"all": Draw("noisy", 16), "some": Draw("noisy", 16, "cycle", keep)}
    short = Stage("", lambda batch: iter(()), draws, {})
    picks = list(loader.updates(short, (0, 1)))
    index = torch.cat([p["some"].index for p in picks])
    assert len(picks) == 5  # as many as the pass has
    assert sorted(index[:44].tolist()) == torch.nonzero(keep).flatten().tolist()
    assert index[44:].tolist() == index[: 80 - 44].tolist()
    assert all(bool((p["some"].weight == 1).all()) for p in picks)


def test_each_epoch_goes_by_what_is_kept_when_it_starts():
    loader = Loader(make_tiny_task(), CPU, seed=0)
    keep = torch.ones(66)
    changing = Stage("", lambda batch: iter(()), {"noisy": Draw("noisy", 16, keep=keep)}, {}, each_epoch=True)
    assert len(list(loader.updates(changing, (0, 1)))) == 5
    keep[10:] = 0
    (only,) = loader.updates(changing, (0, 2))
    assert sorted(only["noisy"].index[only["noisy"].weight > 0].tolist()) == list(range(10))
    assert (loader.num_updates(changing), loader.most_updates(changing)) == (1, 5)


def test_an_epoch_that_is_begun_again_goes_by_what_is_kept_then():
    """As after a rewind, where a stage before it comes to keep other rows."""
    loader = Loader(make_tiny_task(), CPU, seed=0)
    keep = torch.arange(66) < 10
    stage = Stage("", lambda batch: iter(()), {"noisy": Draw("noisy", 16, keep=keep)}, {})
    for rows in (range(10), range(10, 20)):
        keep.copy_(torch.isin(torch.arange(66), torch.tensor(rows)))
        (picks,) = loader.updates(stage, (1, 1))
        assert sorted(picks["noisy"].index[picks["noisy"].weight > 0].tolist()) == list(rows)


def test_draws_of_the_same_name_in_another_run_are_their_own():
    loader = Loader(make_tiny_task(), CPU, seed=0)
    keep = torch.arange(66) < 20
    wide, narrow = (
        Stage("", lambda batch: iter(()), {"rows": draw}, {})
        for draw in (Draw("both", 75), Draw("noisy", 66, keep=keep))
    )
    for stage, rows in ((wide, 75), (narrow, 20), (wide, 75)):
        (picks,) = loader.updates(stage, (0, 1))
        counted = picks["rows"].index[picks["rows"].weight > 0]
        assert sorted(counted.tolist()) == list(range(rows))


def test_two_views_of_a_row_are_augmented_apart():
    loader = Loader(make_tiny_task(), CPU, seed=0)
    single, both = (Stage("", lambda batch: iter(()), {"noisy": Draw("noisy", 16, views=v)}, {}) for v in (1, 2))
    picks = next(iter(loader.updates(both, (0, 1))))["noisy"]
    found = loader.draws(both, {"noisy": picks})["noisy"]
    assert found.coin.shape == (16, 4)
    for number, view in enumerate(found.views):
        alone = replace(picks, random=picks.random[:, 5 * number : 5 * number + 5])
        one = loader.draws(single, {"noisy": alone})["noisy"]
        assert one.again is None
        assert view.equal(one.x)
        assert found.coin[:, 2 * number : 2 * number + 2].equal(one.coin)
    assert not found.x.equal(found.again)


@pytest.mark.parametrize("views", [1, 2])
def test_more_coins_change_nothing_else(views):
    loader = Loader(make_tiny_task(), CPU, seed=0)
    found = []
    for coins in (0, 7):
        stage = Stage("", lambda batch: iter(()), {"noisy": Draw("noisy", 16, views=views, coins=coins)}, {})
        found.append(loader.draws(stage, next(iter(loader.updates(stage, (0, 1)))))["noisy"])
    few, many = found
    assert many.coin.shape == (16, 2 * views + 7)
    assert many.coin[:, : 2 * views].equal(few.coin)
    assert all(a.equal(b) for a, b in zip(many.views, few.views, strict=True))
    more = many.coin[:, 2 * views :]
    assert bool(((more >= 0) & (more < 1)).all())
    assert len(more.unique()) == 16 * 7


def test_a_part_of_a_draw_has_that_part_of_everything():
    loader = Loader(make_tiny_task(), CPU, seed=0)
    both = Stage("", lambda batch: iter(()), {"noisy": Draw("noisy", 16, views=2, strong=True)}, {})
    whole = loader.draws(both, next(iter(loader.updates(both, (0, 1)))))["noisy"]
    part = whole[4:]
    assert all(getattr(part, name).equal(tensor[4:]) for name, tensor in vars(whole).items())


def strong_stage(strong: bool) -> Stage:
    return Stage("", lambda batch: iter(()), {"noisy": Draw("noisy", 16, views=2, strong=strong)}, {})


def test_strong_views_are_augmented_as_any_and_then_by_the_policy():
    loader = Loader(make_tiny_task(), CPU, seed=0)
    picks = next(iter(loader.updates(strong_stage(True), (0, 1))))
    found, random = loader.draws(strong_stage(True), picks)["noisy"], picks["noisy"].random[:, 10:]
    assert len(found.strong_views) == 2
    for number, view in enumerate(found.strong_views):
        mine = random[:, 8 * number : 8 * number + 8]
        weak = gather_crop_flip(loader.x, loader.rows["noisy"][found.index], mine, 1, flip=True)
        assert view.equal(loader.normalise(loader.policy(weak, mine[:, 3:])))
        assert not any(view.equal(other) for other in found.views)


def test_strong_views_leave_all_else_as_it_is_without_them():
    loader = Loader(make_tiny_task(), CPU, seed=0)
    picks = [list(loader.updates(strong_stage(strong), (0, 1))) for strong in (True, False)]
    for a, b in zip(*picks, strict=True):
        assert a["noisy"].random[:, :10].equal(b["noisy"].random)
        mine, theirs = (loader.draws(strong_stage(s), p)["noisy"] for s, p in ((True, a), (False, b)))
        for name in ("x", "y", "index", "weight", "coin", "again"):
            assert getattr(mine, name).equal(getattr(theirs, name))
        assert theirs.strong is None
        assert all(one is other for one, other in zip(theirs.strong_views, theirs.views, strict=True))


def test_a_batch_larger_than_the_set_shrinks_to_it():
    loader = Loader(make_tiny_task(), CPU, seed=0)
    assert loader.batch_size(Draw("noisy", 10_000)) == len(loader.y["noisy"])


def test_epochs_differ_and_repeat_from_the_seed():
    a, b = Loader(make_tiny_task(), CPU, seed=0), Loader(make_tiny_task(), CPU, seed=0)
    first, again, second = all_picks(a), all_picks(b), all_picks(a, epoch=2)
    for x, y in zip(first, again, strict=True):
        assert all(s.equal(t) for name in x for s, t in zip(x[name].tensors(), y[name].tensors(), strict=True))
    assert not first[0]["noisy"].index.equal(second[0]["noisy"].index)


@pytest.mark.parametrize("start", [0, 1, 63, 64, 65, 100])
def test_an_epoch_can_begin_at_any_update(start):
    task = make_tiny_task(per_class=700)
    loader = Loader(task, CPU, seed=3)
    whole = all_picks(loader)
    assert len(whole) > BLOCK + 40
    rest = all_picks(Loader(task, CPU, seed=3), start=start)
    assert len(rest) == len(whole) - start
    for x, y in zip(whole[start:], rest, strict=True):
        assert all(s.equal(t) for name in x for s, t in zip(x[name].tensors(), y[name].tensors(), strict=True))


@pytest.fixture(params=["in a table", "one by one"])
def way(request, monkeypatch):
    """Of drawing: for classes of like sizes, or for any."""
    monkeypatch.setattr(loader_module, "PADDING", 4 if request.param == "in a table" else 0)


def ref_balanced(labels, per_class, num_classes, updates, generator):
    """The rows with the highest keys of a table with room for the largest class in each."""
    members = [[row for row, label in enumerate(labels) if label == c] for c in range(num_classes)]
    most = max(per_class, *map(len, members))
    keys = torch.rand(updates, num_classes, most, generator=generator).numpy()
    free = torch.rand(updates, num_classes, per_class, generator=generator).numpy()
    index = np.zeros((updates, num_classes, per_class), np.int64)
    for u, (c, mine) in product(range(updates), enumerate(members)):
        if len(mine) >= per_class:
            index[u, c] = np.array(mine)[np.argsort(-keys[u, c, : len(mine)])[:per_class]]
        elif mine:
            index[u, c] = np.array(mine)[(free[u, c] * np.float32(len(mine))).astype(int)]
    return index.reshape(updates, -1)


@pytest.mark.parametrize("per_class", [1, 3, 10])
@pytest.mark.parametrize(
    "sizes", [[100] * 10, [90, 110, 7, 3], [1000, *[2] * 50], [4, 0, 2, 0], [500], [2] * 3], ids=str
)
def test_balanced_draws_are_those_of_random_keys_as_they_were_always_made(sizes, per_class):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    draw = BalancedDraw(torch.from_numpy(labels), per_class, len(sizes))
    index, weight = draw(5, torch.Generator().manual_seed(1))
    expected = ref_balanced(labels.tolist(), per_class, len(sizes), 5, torch.Generator().manual_seed(1))
    np.testing.assert_array_equal(index, expected)
    np.testing.assert_array_equal(weight, np.tile(np.repeat(np.array(sizes) > 0, per_class), (5, 1)))


class Largest(TorchDispatchMode):
    """The most entries that a tensor had meanwhile."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        tensors = [t for t in tree_leaves(found) if isinstance(t, torch.Tensor)]
        self.entries = max([self.entries, *(t.untyped_storage().nbytes() // t.element_size() for t in tensors)])
        return found


def test_one_large_class_among_many_small_ones_takes_no_more_memory_than_its_rows():
    labels, num_classes = torch.cat([torch.zeros(2000, dtype=torch.int64), torch.arange(300).repeat(3)]), 300
    with Largest() as largest:
        index, weight = BalancedDraw(labels, 2, num_classes)(BLOCK, torch.Generator().manual_seed(0))
    assert largest.entries <= max(index.numel(), 2 * len(labels))
    assert labels[index].equal(torch.arange(num_classes).repeat_interleave(2).expand(BLOCK, -1))
    assert weight.all()


@pytest.mark.usefixtures("way")
def test_ordered_draws_are_all_as_likely():
    index, _ = BalancedDraw(torch.tensor([0] * 4 + [1] * 3), 3, 2)(24_000, torch.Generator().manual_seed(0))
    for columns, expected in ((index[:, :3], 1000), (index[:, 3:], 4000)):
        orders, count = columns.unique(dim=0, return_counts=True)
        assert all(len(set(order)) == 3 for order in orders.tolist())
        np.testing.assert_allclose(count, expected, atol=5 * expected**0.5)
        assert len(count) == 24_000 // expected


@pytest.mark.usefixtures("way")
def test_balanced_draws_hold_k_distinct_rows_of_each_class_in_class_order():
    labels = torch.tensor([0, 1, 2] * 10)
    index, weight = BalancedDraw(labels, 4, 3)(50, torch.Generator().manual_seed(0))
    assert (labels[index] == torch.tensor([0, 1, 2]).repeat_interleave(4)).all()
    assert all(len(set(row.tolist())) == 12 for row in index)
    assert weight.all()


def test_balanced_draws_take_labels_of_any_kind_and_none_that_are_no_class():
    labels = [0, -1, 1, 1, 0, 2]
    kinds = (torch.tensor(labels), np.array(labels), np.array(labels, np.int8), labels)
    draws = [BalancedDraw(kind, 2, 2)(50, torch.Generator().manual_seed(0)) for kind in kinds]
    assert set(draws[0][0].flatten().tolist()) == {0, 2, 3, 4}
    for index, weight in draws[1:]:
        assert torch.equal(index, draws[0][0])
        assert torch.equal(weight, draws[0][1])


@pytest.mark.parametrize("num_classes", [2, 5000])
def test_a_table_of_many_classes_takes_no_more_passes_over_the_rows(num_classes):
    calls = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            calls.append(function)
            return function(*arguments, **(options or {}))

    with Count():
        draw = BalancedDraw(torch.arange(10_000) % num_classes, 1, num_classes)
    assert len(calls) < 50
    assert draw.count.tolist() == [10_000 // num_classes] * num_classes


def test_balanced_draws_are_uniform_over_the_rows_of_a_class():
    labels = torch.tensor([0] * 5 + [1] * 20)
    index, _ = BalancedDraw(labels, 2, 2)(20_000, torch.Generator().manual_seed(0))
    share = torch.bincount(index[:, :2].flatten(), minlength=5).double() / 40_000
    np.testing.assert_allclose(share[:5], 0.2, atol=0.01)


@pytest.mark.usefixtures("way")
def test_a_class_with_too_few_rows_is_drawn_with_replacement_and_an_empty_one_weighs_nothing():
    labels = torch.tensor([0, 0, 2, 2, 2, 2])
    index, weight = BalancedDraw(labels, 3, 3)(200, torch.Generator().manual_seed(0))
    assert set(index[:, :3].flatten().tolist()) == {0, 1}
    assert weight[0].tolist() == [1, 1, 1, 0, 0, 0, 1, 1, 1]
    assert all(len(set(row.tolist())) == 3 for row in index[:, 6:])


def ref_crop_flip(image, dy, dx, flip, pad):
    """Pad, crop, flip, with NumPy's slices."""
    height, width = image.shape[:2]
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
    crop = padded[dy : dy + height, dx : dx + width]
    return crop[:, ::-1] if flip else crop


@pytest.mark.parametrize("pad", [0, 1, 4])
def test_augmentation_matches_padding_cropping_and_flipping(pad):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)
    random = rng.random((40, 5))
    rows = rng.integers(0, 5, 40)
    got = gather_crop_flip(torch.from_numpy(images), torch.from_numpy(rows), torch.from_numpy(random), pad, flip=True)
    for i, row in enumerate(rows):
        dy, dx = (int(v * (2 * pad + 1)) for v in random[i, :2])
        np.testing.assert_array_equal(got[i], ref_crop_flip(images[row], dy, dx, random[i, 2] < 0.5, pad))


@pytest.mark.parametrize(("pad", "crop"), [(0, 6), (0, 4), (2, 5), (1, 1)])
def test_a_smaller_crop_is_a_window_of_the_padded_image(pad, crop):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (5, 6, 9, 3), dtype=np.uint8)
    random, rows = rng.random((40, 5)), rng.integers(0, 5, 40)
    random[:2, :2] = [[0, 0], [1 - 2**-24, 1 - 2**-24]]  # the first and the last window
    args = (torch.from_numpy(a) for a in (images, rows, random))
    got = gather_crop_flip(*args, pad, flip=True, crop=crop).numpy()
    assert got.shape == (40, crop, crop, 3)
    for i, row in enumerate(rows):
        padded = np.pad(images[row], ((pad, pad), (pad, pad), (0, 0)))
        top, left = (int(v * (n - crop + 1)) for v, n in zip(random[i, :2], padded.shape[:2], strict=True))
        window = padded[top : top + crop, left : left + crop]
        np.testing.assert_array_equal(got[i], window[:, ::-1] if random[i, 2] < 0.5 else window)


def test_the_middle_is_cut_out():
    images = torch.arange(5 * 8).view(1, 5, 8, 1)
    assert centre_crop(images, 4)[0, :, :, 0].tolist() == [[8 * y + x for x in range(2, 6)] for y in range(4)]
    assert centre_crop(images, None) is images


def test_both_loaders_crop_in_training_and_in_evaluation():
    task = replace(make_tiny_task(), crop=4, pad=0)
    resident, streamed = Loader(task, CPU, 0), StreamLoader(task, CPU, 0)
    assert task.shape == (3, 4, 4)
    for ours, theirs in zip(streamed.updates(stage(), (0, 1)), resident.updates(stage(), (0, 1)), strict=True):
        a, b = streamed.draws(stage(), ours)["noisy"].x, resident.draws(stage(), theirs)["noisy"].x
        assert a.shape == (16, 3, 4, 4)
        assert a.equal(b)
    middle = torch.from_numpy(task.x[task.split.test][:, 1:5, 1:5]).permute(0, 3, 1, 2) / 255
    for loader in (resident, streamed):
        torch.testing.assert_close(torch.cat(list(loader.chunks("test", 4))), middle)


@pytest.mark.parametrize("crop", [0, 7])
def test_a_crop_that_does_not_fit_is_refused(crop):
    with pytest.raises(ValueError, match=f"a crop of {crop} pixels does not fit"):
        replace(make_tiny_task(), crop=crop)


def test_streamed_chunks_are_small_and_a_failure_reaches_the_caller(monkeypatch):
    task = make_tiny_task()
    loader = StreamLoader(task, CPU, 0)
    monkeypatch.setattr(stream, "CHUNK_BYTES", 2 * task.x[0].nbytes)
    assert [len(x) for x in loader.chunks("test", 1000)] == [2, 2, 2, 2, 1]

    def fail(rows, out):
        raise ValueError("row 3 is damaged")

    loader._fetch = fail
    with pytest.raises(ValueError, match="row 3 is damaged"):
        list(loader.chunks("test", 4))
    with pytest.raises(ValueError, match="row 3 is damaged"):
        next(loader.updates(stage(), (0, 1)))


@pytest.mark.parametrize("loader_type", [Loader, StreamLoader])
@pytest.mark.parametrize(
    ("pixels", "crop", "sizes"), [(2 * 36, None, [2, 2, 2, 2, 1]), (5 * 16, 4, [5, 4]), (35, None, [1] * 9)]
)
def test_a_chunk_has_fewer_rows_of_large_images_but_not_of_features(monkeypatch, loader_type, pixels, crop, sizes):
    monkeypatch.setattr(loader_module, "CPU_PIXELS", pixels)
    task = replace(make_tiny_task(), crop=crop)
    assert [len(x) for x in loader_type(task, CPU, 0).chunks("test", 1000)] == sizes
    features = replace(task, x=task.x.reshape(len(task.x), -1), crop=None, mean=(0.5,), std=(0.5,))
    assert [len(x) for x in loader_type(features, CPU, 0).chunks("test", 8)] == [8, 1]


def test_every_offset_is_equally_likely():
    images = torch.zeros(1, 3, 3, 1, dtype=torch.uint8)
    images[0, 1, 1, 0] = 1
    random = torch.rand(9000, 5, generator=torch.Generator().manual_seed(0))
    out = gather_crop_flip(images, torch.zeros(9000, dtype=torch.long), random, 1, flip=False)[..., 0]
    np.testing.assert_allclose(out.double().mean(0), 1 / 9, atol=0.015)


def test_normalisation_is_per_channel():
    x = torch.full((1, 2, 2, 3), 51, dtype=torch.uint8)
    out = Normalise((0.1, 0.2, 0.3), (0.1, 0.5, 1.0), True, CPU, torch.float64)(x)
    assert out.shape == (1, 3, 2, 2)
    np.testing.assert_allclose(out[0, :, 0, 0], [1.0, 0.0, -0.1], atol=1e-12)


def test_streamed_batches_are_those_of_the_resident_loader():
    task = make_tiny_task()
    resident = Loader(task, CPU64.device, 0, torch.float64)
    streamed = StreamLoader(task, CPU64.device, 0, torch.float64)
    for ours, theirs in zip(streamed.updates(stage(), (0, 1), 2), resident.updates(stage(), (0, 1), 2), strict=True):
        a, b = streamed.draws(stage(), ours), resident.draws(stage(), theirs)
        for name in ("noisy", "clean"):
            for field in ("x", "y", "index", "weight", "coin"):
                assert getattr(a[name], field).equal(getattr(b[name], field))
    ours, theirs = (next(iter(loader.updates(strong_stage(True), (0, 1)))) for loader in (streamed, resident))
    a, b = streamed.draws(strong_stage(True), ours)["noisy"], resident.draws(strong_stage(True), theirs)["noisy"]
    assert a.strong.equal(b.strong)
    for part in ("valid", "test"):
        assert torch.cat(list(streamed.chunks(part, 4))).equal(torch.cat(list(resident.chunks(part, 5))))
