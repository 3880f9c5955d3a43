"""Deep kNN against loops in NumPy, and on blobs where the answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from authors import SmallNet, examples
from builders import CPU32, CPU64, make_tiny_task
from fasten.contract import Batch, Recipe
from fasten.engine import Fit
from fasten.evaluate import Watch
from fasten.loader import Loader
from fasten.methods.deep_knn import DeepKNN
from fasten.records import Run
from fasten.runs.building import build_method
from reference.neighbours import ref_keep, ref_mean_loss

N, NOISY, CLEAN = 4, 50, 10


def make_method(num_noisy: int = NOISY, **options) -> DeepKNN:
    torch.manual_seed(0)
    return CPU64.place(DeepKNN(SmallNet(), torch.zeros(num_noisy, dtype=torch.int64), num_classes=N, **options))


def looks(seed: int, labels, valid_hits: int, num_valid: int = 8):
    """What a network may show to `prepare`: made-up logits of all rows, and so many hits among the validation rows."""
    rng = np.random.default_rng(seed)
    logits = 0.7 * np.eye(N)[labels] + rng.normal(size=(len(labels), N))
    truth = np.arange(num_valid) % N
    guess = np.where(np.arange(num_valid) < valid_hits, truth, (truth + 1) % N)
    shown = {"both": (logits, labels), "valid": (np.eye(N)[guess], truth)}
    return logits, lambda source, of=None: tuple(map(torch.from_numpy, shown[source]))


@pytest.mark.parametrize("k", [1, 2, 6, 59, 500])
def test_a_row_is_kept_where_no_other_label_outvotes_its_own(k):
    labels = np.random.default_rng(k).integers(N, size=NOISY + CLEAN)
    method = make_method(neighbours=k)
    logits, predict = looks(k, labels, valid_hits=3)
    method.plan(Recipe())[1].prepare(predict)
    expected = ref_keep(logits, labels, NOISY, k, N)
    assert k >= 59 or 0 < expected.sum() < NOISY
    np.testing.assert_array_equal(method.keep, expected)


def test_a_rows_own_label_wins_a_tie():
    """Rows 0 and 2 have one neighbour of their own label and one of another; row 1 has two of another."""
    line = torch.tensor([[0.0], [1.0], [-2.0], [-30.0]], dtype=torch.float64)
    labels = torch.tensor([2, 1, 2, 0])
    method = make_method(num_noisy=3, neighbours=2)
    method.remember_clean(lambda source, of=None: (line, labels) if source == "both" else (line[:0], labels[:0]))
    assert method.keep.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("clean_hits", "union_hits", "num_valid", "decides"),
    [(5, 4, 8, "clean"), (4, 5, 8, "union"), (5, 5, 8, "union"), (0, 0, 0, "union")],
)
def test_the_better_preliminary_network_decides_and_that_of_all_rows_among_equals(
    clean_hits, union_hits, num_valid, decides
):
    labels = np.random.default_rng(0).integers(N, size=NOISY + CLEAN)
    method = make_method(neighbours=5)
    _, union, filtered = method.plan(Recipe())
    by_clean, predict_clean = looks(1, labels, clean_hits, num_valid)
    by_union, predict_union = looks(2, labels, union_hits, num_valid)
    union.prepare(predict_clean)
    filtered.prepare(predict_union)
    kept = {name: ref_keep(z, labels, NOISY, 5, N) for name, z in (("clean", by_clean), ("union", by_union))}
    assert (kept["clean"] != kept["union"]).any()
    np.testing.assert_array_equal(method.keep, kept[decides])
    facts = {name: value.item() for name, value in method.facts().items()}
    kept_fraction = pytest.approx(kept[decides].mean())
    assert facts == {"kept_fraction": kept_fraction, "filtered_by_all_rows": decides == "union"}


def make_batch(index, weight):
    rng = np.random.default_rng(0)
    size = len(index)
    rows = examples(torch.from_numpy(rng.normal(size=(size, 3, 8, 8))), rng.integers(N, size=size), torch.tensor(index))
    rows.weight.copy_(torch.tensor(weight))
    return rows


@pytest.mark.parametrize("dropped", [[], [0, 3, 7], range(66)])
def test_the_last_stage_passes_over_clean_rows_and_kept_ones_alone(dropped):
    task = make_tiny_task()
    method = CPU64.place(build_method(Run("tiny", method="deep-knn", recipe=Recipe("small-cnn")), task))
    method.keep[list(dropped)] = 0
    stage = method.plan(Recipe(batch_size=16))[2]
    loader = Loader(task, CPU64.device, 0)
    wanted = [row for row in range(66 + 9) if row not in dropped]  # the noisy rows, then the clean ones
    passes = []
    for epoch in (1, 2):
        picks = [p["both"] for p in loader.updates(stage, (2, epoch))]
        assert len(picks) == loader.num_updates(stage) == math.ceil(len(wanted) / 16)
        passes.append(torch.cat([p.index[p.weight > 0] for p in picks]).tolist())
        assert set(torch.cat([p.index for p in picks]).tolist()) <= set(wanted)  # the filling too
    assert sorted(passes[0]) == sorted(passes[1]) == wanted
    assert passes[0] != passes[1]


@pytest.mark.parametrize(("stage", "source"), [(0, "clean"), (1, "both"), (2, "both")])
def test_every_stage_takes_the_mean_over_the_rows_that_count(stage, source):
    method = make_method().eval()
    weight = [1, 1, 1, 0]
    rows = make_batch([0, 3, 7, 1], weight)
    planned = method.plan(Recipe())[stage]
    assert [draw.source for draw in planned.draws.values()] == [source]
    ((_, loss),) = planned.step(Batch({source: rows}))
    logits = method.logits(rows.x).detach().numpy()
    np.testing.assert_allclose(loss.item(), ref_mean_loss(logits, rows.y.numpy(), weight), rtol=1e-12)


@pytest.mark.parametrize(("epochs", "shares"), [(300, [100] * 3), (8, [2, 3, 3]), (4, [1, 1, 2]), (1, [1] * 3)])
def test_the_three_stages_share_the_epochs_and_have_adam_at_a_rate_of_its_own(epochs, shares):
    plan = make_method(adam_rate=0.02, adam_decay=0.1).plan(Recipe(epochs=epochs, rate=0.5))
    assert [stage.epochs for stage in plan] == shares
    assert [stage.start for stage in plan] == ["last", "initial", "initial"]
    for stage in plan:
        (optim,) = stage.optim.values()
        assert (optim.kind, optim.rate_at(epochs), optim.weight_decay) == ("adam", 0.02, 0.1)


def test_the_filter_drops_most_wrong_labels_and_keeps_most_right_ones():
    task = make_tiny_task("symmetric:0.4", per_class=60)
    recipe = Recipe("small-cnn", epochs=24, batch_size=16)
    method = CPU32.place(build_method(Run("tiny", method="deep-knn", recipe=recipe), task))
    loader = Loader(task, CPU32.device, 0)
    Fit(method, method.plan(recipe), loader, CPU32, Watch(task, loader)).run()
    kept, right = method.keep.numpy() > 0, task.given == task.truth
    assert kept[right].mean() > 0.9
    assert kept[~right].mean() < 0.1
