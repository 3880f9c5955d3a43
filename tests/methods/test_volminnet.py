"""VolMinNet against its authors' own numbers, and its loss against loops in NumPy."""

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
from fasten.methods import METHODS
from fasten.methods import volminnet as module
from fasten.methods.volminnet import VolMinNet, default_initial
from fasten.update import Update
from reference.transition import softmax

AUTHORS = numbers_of("volminnet")
GIVEN = torch.tensor([0, 2, 1, 1, 0])
RECIPE = Recipe(rate=0.1, momentum=0.9, weight_decay=1e-4, batch_size=8, milestones=())


def build(num_classes=3, **options):
    return CPU64.place(VolMinNet(SmallNet(), GIVEN, num_classes=num_classes, **options)).train()


def rows_of():
    """Five rows, and two of filling."""
    torch.manual_seed(0)
    weight = torch.tensor([1.0] * 5 + [0.0] * 2, dtype=torch.float64)
    x = torch.randn(7, 3, 8, 8, dtype=torch.float64)
    return replace(examples(x, torch.cat([GIVEN, GIVEN[:2]])), weight=weight)


def ref_transition(w):
    N = len(w)
    T = np.array([[1.0 if i == j else 1 / (1 + np.exp(-w[i, j])) for j in range(N)] for i in range(N)])
    return T / T.sum(1, keepdims=True)


def test_six_updates_are_those_of_the_authors_code():
    rng = np.random.RandomState(AUTHORS["settings"]["seed"])
    weights = draw_weights(rng, AUTHORS["parameters"])
    images = draw_checked(rng, (20, 3, 8, 8), AUTHORS["check"]["images"])
    given = torch.from_numpy(rng.randint(0, 10, 20))
    assert given.tolist() == AUTHORS["given"]
    method = build(10, guard=0.0)
    load_weights(method.net, weights)
    (stage,) = method.plan(RECIPE)
    batches = [rows for order in AUTHORS["orders"] for rows in torch.tensor(order).split(8)]
    served = Served([{"noisy": examples(images[r], given[r], r)} for r in batches], per_epoch=3)
    expected = AUTHORS["per_update"]
    places = [(epoch, update) for epoch in (1, 2) for update in range(3)]
    for t, loss in enumerate(updates(Update(stage, served, CPU64.device), places)):
        np.testing.assert_allclose(loss, expected["loss"][t], rtol=1e-9)
        np.testing.assert_allclose(method.transition, expected["T"][t], rtol=1e-9)
    np.testing.assert_allclose(method._transition().detach(), AUTHORS["T_after"], rtol=1e-9)
    off = ~np.eye(10, dtype=bool)  # the diagonal of w has no effect
    np.testing.assert_allclose(method.matrix["w"].detach().numpy()[off], np.array(AUTHORS["w_after"])[off], rtol=1e-9)
    assert_state(method.net, AUTHORS["after"])
    np.testing.assert_allclose(weight_sum(method.net), AUTHORS["weight_sum"], rtol=1e-9)


@pytest.mark.parametrize("guard", [1e-7, 0.01])
def test_both_losses_are_that_of_a_loop_over_the_rows_that_count(guard):
    method, rows = build(volume_weight=0.3, guard=guard), rows_of()
    with torch.no_grad():
        method.matrix["w"].copy_(torch.randn(3, 3))
    f = softmax(copy.deepcopy(method).net(rows.x)[0].detach().numpy())
    T = ref_transition(method.matrix["w"].detach().numpy())
    expected = np.mean([-np.log(sum(T[k, GIVEN[n]] * f[n, k] for k in range(3)) + guard) for n in range(5)])
    expected += 0.3 * np.log(abs(np.linalg.det(T)))
    found = [(part, loss.item()) for part, loss in method.step(Batch({"noisy": rows}))]
    assert [part for part, _ in found] == [method.matrix, method.net]
    np.testing.assert_allclose([loss for _, loss in found], expected, rtol=1e-12)
    np.testing.assert_allclose(method.transition, T, rtol=1e-12)


def test_each_part_has_the_gradient_of_one_joint_loss():
    method, rows = build(volume_weight=0.3), rows_of()
    joint = copy.deepcopy(method)
    T = joint._transition()
    p = joint.net(rows.x)[0].softmax(1)
    nll = -torch.log((p @ T).gather(1, rows.y[:, None])[:, 0] + 1e-7)
    loss = nll[:5].mean() + 0.3 * torch.linalg.slogdet(T).logabsdet
    for (part, ours), name in zip(method.step(Batch({"noisy": rows})), ("matrix", "net"), strict=True):
        found = torch.autograd.grad(ours, list(part.parameters()))
        wanted = torch.autograd.grad(loss, list(getattr(joint, name).parameters()), retain_graph=True)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
        with torch.no_grad():  # the network's gradient is taken where the matrix was before its step
            method.matrix["w"].add_(1)


@pytest.mark.parametrize(("num_classes", "theirs"), [(10, -2.0), (100, -4.5)])
def test_w_starts_as_the_authors_have_it(num_classes, theirs):
    assert default_initial(num_classes) == pytest.approx(theirs, abs=0.02)
    T = build(num_classes).transition
    assert T.diagonal().mean().item() == pytest.approx(0.482, abs=1e-3)
    np.testing.assert_allclose(T.sum(1), 1, rtol=1e-6)


def test_w_may_start_elsewhere():
    T = build(3, initial=-20.0).transition
    np.testing.assert_allclose(T, np.eye(3), atol=1e-8)


def test_the_volume_counts_once_on_several_ranks(monkeypatch):
    rows = rows_of()
    alone = [loss.item() for _, loss in build_seeded().step(Batch({"noisy": rows}))]
    monkeypatch.setattr(module, "world", lambda: 4)
    shares = [loss.item() for _, loss in build_seeded().step(Batch({"noisy": rows}))]
    volume = 0.3 * np.log(np.linalg.det(build_seeded()._transition().detach()))
    np.testing.assert_allclose(np.subtract(alone, shares), 0.75 * volume, rtol=1e-9)


def build_seeded():
    torch.manual_seed(1)
    return build(volume_weight=0.3)


def test_rates_are_the_authors_on_the_papers_recipe():
    method = build()
    (stage,) = method.plan(METHODS["volminnet"].schedule.applied(Recipe()))
    assert stage.epochs == 80
    for part in (method.net, method.matrix):
        rates = [stage.optim[part].rate_at(epoch) for epoch in (30, 31, 60, 61)]
        assert rates == pytest.approx([1e-2, 1e-3, 1e-3, 1e-4])
    assert (stage.optim[method.matrix].weight_decay, stage.optim[method.net].weight_decay) == (0, 5e-4)
