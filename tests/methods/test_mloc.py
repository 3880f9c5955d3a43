"""MLoC against its authors' own numbers, and its reconstruction against finite differences and loops in NumPy."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

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
from fasten.methods import mloc
from fasten.methods.mloc import MLoC
from fasten.update import Update
from reference.transition import ref_corrected_nll, softmax

AUTHORS = numbers_of("mloc")
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


class Watched(MLoC):
    """Keeps each G."""

    def _clipped(self, G):
        self.G = G
        return super()._clipped(G)


@pytest.mark.parametrize("route", ["tangent", "graph"])
def test_six_updates_are_those_of_the_authors_code(route, monkeypatch):
    rng = np.random.RandomState(AUTHORS["settings"]["seed"])
    weights = draw_weights(rng, AUTHORS["parameters"])
    images = draw_checked(rng, (48, 3, 8, 8), AUTHORS["check"]["images"])
    given = torch.from_numpy(rng.randint(0, 10, 48))
    clean = draw_checked(rng, (20, 3, 8, 8), AUTHORS["check"]["clean"])
    clean_y = torch.tensor(AUTHORS["clean_y"])
    assert given.tolist() == AUTHORS["given"]
    seen = {}

    def look_ahead(net, batches, inner, *args, **kwargs):
        ahead = mloc_look_ahead(net, batches, inner, *args, **kwargs)
        seen.update(inner=8 * inner(ahead.outputs).item(), meta=ahead.loss.item())
        return ahead

    mloc_look_ahead = mloc.look_ahead
    monkeypatch.setattr(mloc, "look_ahead", look_ahead)
    options = {"persistent": False, "on": "logits", "normalise": "columns", "clip": None, "loss": "sum"}
    method = Watched(SmallNet(), given, num_classes=10, virtual_rate=8 * 1e-3, route=route, **options)
    CPU64.place(method).train()
    load_weights(method.net, weights)
    _, stage = method.plan(Recipe(batch_size=8, milestones=()))
    rows = torch.arange(48).split(8)
    draws = [{"noisy": examples(images[r], given[r], r), "clean": examples(clean, clean_y)} for r in rows]
    expected = AUTHORS["per_update"]
    for t, loss in enumerate(updates(Update(stage, Served(draws), CPU64.device), [(1, 0)] * 6)):
        np.testing.assert_allclose(seen["inner"], expected["inner_loss"][t], rtol=1e-9)
        np.testing.assert_allclose(seen["meta"], expected["meta_loss"][t], rtol=1e-9)
        np.testing.assert_allclose(method.G[0], expected["T_gradient_first_row"][t], rtol=1e-9)
        np.testing.assert_allclose(method.G.norm(), expected["T_gradient_norm"][t], rtol=1e-9)
        np.testing.assert_allclose(method.transition, expected["T"][t], rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(loss, expected["outer_loss"][t], rtol=1e-9)
    assert_state(method.net, AUTHORS["after"]["main"])
    np.testing.assert_allclose(weight_sum(method.net), AUTHORS["weight_sum"], rtol=1e-9)


def small_problem(**options):
    """A method on three classes, and a batch whose last noisy row is filling."""
    torch.manual_seed(0)
    method = CPU64.place(Watched(SmallNet(), LABELS, num_classes=3, **options)).train()
    noisy = examples(torch.randn(6, 3, 8, 8, dtype=torch.float64), LABELS)
    noisy = replace(noisy, weight=torch.tensor([1.0] * 5 + [0.0], dtype=torch.float64))
    clean = examples(torch.randn(5, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 1]))
    return method, Batch({"noisy": noisy, "clean": clean})


def clean_loss_after_a_step(method, batch, T, rate):
    """What the clean loss is after a step, really taken, by the mean loss corrected by T."""
    model, noisy, clean = copy.deepcopy(method.net), batch["noisy"], batch["clean"]
    f = model(noisy.x)[0].softmax(1)
    loss = -torch.log(sum(f[:, k] * T[k, noisy.y] for k in range(3)) + 1e-7)[:5].mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
        return F.cross_entropy(model(clean.x)[0], clean.y).item()


@pytest.mark.parametrize("clip", [None, 1e-3, 10.0])
@pytest.mark.parametrize(("loss", "count"), [("sum", 1), ("mean", 5)])
def test_an_update_follows_the_slope_of_the_clean_loss_by_T(clip, loss, count):
    options = {"virtual_rate": 0.5, "transition_rate": 3.0, "clip": clip, "loss": loss}
    method, batch = small_problem(prior=0.7, **options)
    start = np.full((3, 3), 0.15) + 0.55 * np.eye(3)
    np.testing.assert_allclose(method.transition, start, rtol=1e-6)  # it is made in float32
    method.transition.copy_(torch.from_numpy(start))
    f = softmax(copy.deepcopy(method.net)(batch["noisy"].x)[0].detach().numpy())
    G, h = np.zeros((3, 3)), 1e-5
    for i in range(3):
        for j in range(3):
            move = torch.zeros(3, 3, dtype=torch.float64)
            move[i, j] = h
            up, down = (clean_loss_after_a_step(method, batch, method.transition + s * move, 0.5) for s in (1, -1))
            G[i, j] = (up - down) / (2 * h)
    ((_, found),) = list(method.step(batch))
    np.testing.assert_allclose(method.G, G, rtol=1e-6, atol=1e-9)
    size = np.sqrt((G**2).sum())
    assert 1e-3 < size < 10  # so that clipping does something, and not always
    T = np.maximum(start - 3.0 * G * (1e-3 / size if clip == 1e-3 else 1), 0)
    T = np.array([row / row.sum() for row in T])
    np.testing.assert_allclose(method.transition, T, rtol=1e-6)
    expected = ref_corrected_nll(f, method.transition.numpy(), LABELS.numpy())[:5].sum() / count
    np.testing.assert_allclose(found.item(), expected, rtol=1e-9)


def test_a_persistent_T_goes_on_and_another_starts_again():
    for persistent in (True, False):
        method, batch = small_problem(persistent=persistent, prior=1.0)
        list(method.step(batch))
        first, G = method.transition.clone(), method.G
        list(method.step(batch))  # the same network: nothing has stepped it
        assert torch.equal(method.transition, first) != persistent
        assert torch.equal(method.G, G) != persistent


def test_filling_moves_nothing_but_the_statistics_of_batch_norm():
    """The labels of filling rows: their images are part of batch norm's statistics in every method."""
    method, batch = small_problem()
    other = copy.deepcopy(method)
    noisy = replace(batch["noisy"], y=torch.tensor([0, 1, 2, 0, 1, 0]))
    ((_, ours),) = list(method.step(batch))
    ((_, theirs),) = list(other.step(Batch({"noisy": noisy, "clean": batch["clean"]})))
    assert ours.item() == theirs.item()
    assert torch.equal(method.transition, other.transition)


@pytest.mark.parametrize(("normalise", "axis"), [("rows", 1), ("columns", 0)])
def test_a_step_however_long_leaves_a_matrix_that_sums_to_one(normalise, axis):
    method, batch = small_problem(on="logits", normalise=normalise, clip=None, transition_rate=1e6)
    list(method.step(batch))
    assert method.transition.min() >= 0
    np.testing.assert_allclose(method.transition.sum(axis), 1, rtol=1e-12)
    untouched = method._normal(torch.full((3, 3), -1.0), torch.eye(3))
    assert torch.equal(untouched, torch.eye(3))


def test_the_warm_up_takes_its_share_and_the_meta_stage_starts_from_its_best_epoch():
    method, _ = small_problem()
    recipe = Recipe(epochs=150, milestones=())
    warm_up, meta = method.plan(recipe)
    assert (warm_up.epochs, meta.epochs, meta.start) == (75, 75, "best")
    assert warm_up.optim[method.net] == recipe.sgd()
    assert meta.optim[method.net] == replace(recipe.sgd(), rate=1e-4)
    assert [stage.epochs for stage in small_problem(warm_up=0.9)[0].plan(Recipe(epochs=1))] == [1, 1]


def test_columns_that_sum_to_one_are_for_logits():
    with pytest.raises(ValueError, match="set on=logits too, or normalise=rows"):
        small_problem(normalise="columns")
