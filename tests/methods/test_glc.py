"""GLC against its authors' own numbers, and its loss and T̂ against loops in NumPy."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from authors import (
    Served,
    SmallNet,
    assert_state,
    draw_checked,
    draw_weights,
    examples,
    load_weights,
    numbers_of,
    updates,
    weight_sum,
)
from builders import CPU64
from fasten.contract import Batch, Recipe
from fasten.methods.glc import GLC
from fasten.update import Update
from reference.transition import ref_corrected_nll, ref_estimate, softmax

AUTHORS = numbers_of("glc")
GIVEN = torch.tensor([0, 2, 1, 1, 0])


def places(per_epoch: int) -> list[tuple[int, int]]:
    return [(epoch, update) for epoch in (1, 2) for update in range(per_epoch)]


def filled(x, y, order):
    """Batches of eight of a pass over all rows; the last is filled from the start of the pass, with weight 0."""
    rows = torch.tensor(order + order[: -len(order) % 8])
    draws = [examples(x[r], y[r], r) for r in rows.split(8)]
    weight = torch.ones(len(rows), dtype=torch.float64)
    weight[len(order) :] = 0
    return [{"both": replace(d, weight=w)} for d, w in zip(draws, weight.split(8), strict=True)]


def test_both_stages_are_those_of_the_authors_code():
    rng = np.random.RandomState(AUTHORS["settings"]["seed"])
    weights = draw_weights(rng, AUTHORS["parameters"])
    gold = draw_checked(rng, (20, 3, 8, 8), AUTHORS["check"]["gold"])
    silver = draw_checked(rng, (24, 3, 8, 8), AUTHORS["check"]["silver"])
    given, gold_y = torch.from_numpy(rng.randint(0, 10, 24)), torch.arange(10).repeat_interleave(2)
    assert given.tolist() == AUTHORS["given"]

    options = {"norm": "split", "mean_over": "batch", "guard": 0.0}
    method = CPU64.place(GLC(SmallNet(), given, num_classes=10, **options)).train()
    load_weights(method.net, weights)
    initial = copy.deepcopy(method.net.state_dict())
    noisy, corrected = method.plan(Recipe(epochs=4, batch_size=8, milestones=()))
    assert (noisy.epochs, corrected.epochs) == (2, 2)
    expected = AUTHORS["per_update"]

    batches = [rows for order in AUTHORS["stage1_order"] for rows in torch.tensor(order).split(8)]
    served = Served([{"noisy": examples(silver[r], given[r], r)} for r in batches], per_epoch=3)
    first = Update(noisy, served, CPU64.device)
    for t, loss in enumerate(updates(first, places(3))):
        np.testing.assert_allclose(loss, expected["stage1_loss"][t], rtol=1e-9)
        np.testing.assert_allclose(first.rates[method.net], expected["learning_rate"][t], rtol=1e-9)
    assert_state(method.net, AUTHORS["after_stage1"])
    np.testing.assert_allclose(weight_sum(method.net), AUTHORS["stage1_weight_sum"], rtol=1e-9)

    method.eval()
    with torch.no_grad():
        corrected.prepare(lambda source: (method(gold), gold_y))
    np.testing.assert_allclose(method.transition, AUTHORS["T"], rtol=1e-9)

    method.train().net.load_state_dict(initial)
    x, y = torch.cat([silver, gold]), torch.cat([given, gold_y])  # the file has them the other way round
    orders = [[row - 20 if row >= 20 else row + 24 for row in order] for order in AUTHORS["stage2_order"]]
    draws = [draw for order in orders for draw in filled(x, y, order)]
    second = Update(corrected, Served(draws, per_epoch=6), CPU64.device)
    second.share = 8 / 44  # an epoch of six updates counts as more than one there
    assert corrected.go_on
    second.take_over(first)
    for t, loss in enumerate(updates(second, places(6))):
        np.testing.assert_allclose(loss, expected["stage2_loss"][t], rtol=1e-9)
        np.testing.assert_allclose(second.rates[method.net], expected["learning_rate"][6 + t], rtol=1e-9)
    assert_state(method.net, AUTHORS["after"])
    np.testing.assert_allclose(weight_sum(method.net), AUTHORS["weight_sum"], rtol=1e-9)


def mixed_rows(seed: int = 0):
    """Five noisy rows (as GIVEN), three clean ones, and two of filling, one of either kind."""
    torch.manual_seed(seed)
    index = torch.tensor([5, 0, 1, 6, 2, 3, 4, 7, 0, 5])
    y = torch.cat([GIVEN, torch.tensor([0, 1, 2])])[index]
    weight = torch.tensor([1.0] * 8 + [0.0] * 2, dtype=torch.float64)
    return replace(examples(torch.randn(10, 3, 8, 8, dtype=torch.float64), y, index), weight=weight)


def one_loss(method, rows):
    ((_, loss),) = method.step_corrected(Batch({"both": rows}), len(rows.y))
    return loss


@pytest.mark.parametrize(("mean_over", "count"), [("rows", 8), ("batch", 10)])
@pytest.mark.parametrize("guard", [1e-7, 0.01])
def test_the_loss_is_corrected_on_noisy_rows_and_plain_on_clean_ones(mean_over, count, guard):
    T = np.random.default_rng(0).dirichlet(np.ones(3), 3)
    method = GLC(SmallNet(), GIVEN, num_classes=3, oracle=torch.from_numpy(T), mean_over=mean_over, guard=guard)
    CPU64.place(method).train()
    rows = mixed_rows()
    f = softmax(copy.deepcopy(method).net(rows.x)[0].detach().numpy())
    expected = 0
    for i in range(8):
        y = rows.y[i].item()
        noisy = -np.log(sum(T[k, y] * f[i, k] for k in range(3)) + guard)
        expected += noisy if rows.index[i] < 5 else -np.log(f[i, y])
    np.testing.assert_allclose(one_loss(method, rows).item(), expected / count, rtol=1e-12)
    if guard == 1e-7:
        is_noisy = (rows.index < 5).numpy()
        both = ref_corrected_nll(f, T, rows.y.numpy())[:8], ref_corrected_nll(f, np.eye(3), rows.y.numpy())[:8]
        np.testing.assert_allclose(np.where(is_noisy[:8], *both).sum() / count, expected / count, rtol=1e-6)


def test_with_split_norm_filling_changes_nothing():
    method = CPU64.place(GLC(SmallNet(), GIVEN, num_classes=3, norm="split")).train()
    rows, found = mixed_rows(), []
    for scale in (1, 50):
        model = copy.deepcopy(method)
        x = rows.x.clone()
        x[8:] *= scale
        loss = one_loss(model, replace(rows, x=x))
        grads = torch.autograd.grad(loss, list(model.net.parameters()))
        found.append([loss, *grads, *model.net.buffers()])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)


def test_the_estimate_is_the_mean_prediction_of_each_class():
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.ones(4), 9), rng.integers(0, 3, 9)  # no row of the last class
    method = CPU64.place(GLC(SmallNet(), GIVEN, num_classes=4))
    asked = []
    method.estimate(lambda source: asked.append(source) or (torch.from_numpy(p), torch.from_numpy(y)))
    np.testing.assert_allclose(method.transition, ref_estimate(p, y, 4), rtol=1e-12)
    assert asked == ["clean"]


@pytest.mark.parametrize(("epochs", "halves"), [(150, (75, 75)), (5, (2, 3)), (1, (1, 1))])
def test_half_of_the_epochs_and_half_a_cosine_go_to_each_stage(epochs, halves):
    method = GLC(SmallNet(), GIVEN, num_classes=3)
    noisy, corrected = method.plan(Recipe(epochs=epochs))
    assert (noisy.epochs, corrected.epochs) == halves
    assert tuple(stage.optim[method.net].cosine for stage in (noisy, corrected)) == halves
    assert (corrected.start, corrected.go_on) == ("initial", True)


def test_with_an_oracle_there_is_only_the_second_stage_and_T_is_the_true_one():
    T = torch.tensor([[0.8, 0.2], [0.0, 1.0]])
    method = GLC(SmallNet(), GIVEN, num_classes=2, oracle=T)
    (only,) = method.plan(Recipe(epochs=7))
    assert (only.epochs, only.optim[method.net].cosine) == (7, 7)
    assert (only.prepare, only.start) == (None, "last")
    assert torch.equal(method.transition, T)


def test_a_label_that_the_estimate_forbids_costs_a_bounded_loss_unless_unguarded():
    rows = mixed_rows()
    losses = {}
    for guard in (1e-7, 0.0):
        T = torch.tensor([[0.5, 0.5, 0.0]] * 3)  # nothing becomes class 2, but a given label is
        method = CPU64.place(GLC(SmallNet(), GIVEN, num_classes=3, oracle=T, guard=guard)).train()
        losses[guard] = one_loss(method, rows).item()
    assert losses[1e-7] < 17
    assert losses[0.0] == np.inf


def test_momentum_may_be_none_at_all():
    (stage, _) = GLC(SmallNet(), GIVEN, num_classes=3).plan(Recipe(momentum=0, epochs=2))
    Update(stage, Served([{}]), CPU64.device)
