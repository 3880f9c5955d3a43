"""MSLC against its authors' own numbers, and against its equations in NumPy."""

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
from fasten.methods import mslc
from fasten.methods.mslc import MSLC
from fasten.update import Update
from reference.mslc import ref_loss, ref_mslc
from reference.transition import softmax

AUTHORS = numbers_of("mslc")
RATE = torch.tensor(0.1, dtype=torch.float64)
VARIANTS = pytest.mark.parametrize("options", [{}, {"soft_targets": True}, {"correct": False}], ids=str)


def recorded(stage, losses: list):
    """The stage, with the values of all that its step yields kept, update by update."""

    def step(batch):
        losses.append([])
        for part, loss in stage.step(batch):
            losses[-1].append(loss.item())
            yield part, loss

    return replace(stage, step=step)


def record_inner_losses(monkeypatch, losses: list) -> None:
    plain = mslc.look_ahead

    def look_ahead(net, batches, inner, clean, **options):
        def kept(outputs):
            losses.append(inner(outputs))
            return losses[-1]

        return plain(net, batches, kept, clean, **options)

    monkeypatch.setattr(mslc, "look_ahead", look_ahead)


@pytest.mark.parametrize("route", ["tangent", "graph"])
def test_four_updates_of_the_warm_up_and_six_after_it_are_those_of_the_authors_code(route, monkeypatch):
    rng = np.random.RandomState(AUTHORS["settings"]["seed"])
    main = draw_weights(rng, AUTHORS["parameters"])
    mixers = {name: draw_weights(rng, AUTHORS["meta_parameters"]) for name in ("alpha", "beta")}
    images = draw_checked(rng, (16, 3, 8, 8), AUTHORS["check"]["images"])
    given = torch.from_numpy(rng.randint(0, 4, 16))
    rng.randint(0, 4, 16)  # the true labels, of no use here
    clean = draw_checked(rng, (48, 3, 8, 8), AUTHORS["check"]["clean"])
    clean_y = torch.from_numpy(rng.randint(0, 4, 48))
    ring = rng.uniform(size=(16, 10, 4))
    ring /= ring.sum(2, keepdims=True)
    np.testing.assert_allclose(ring.flatten()[:3], AUTHORS["check"]["ring0"]["first"], rtol=1e-12)
    assert given.tolist() == AUTHORS["given"]
    assert clean_y.tolist() == AUTHORS["clean_y"]

    method = CPU64.place(MSLC(SmallNet(), given, num_classes=4, warm_up=79 / 120, route=route))
    load_weights(method.net, main)
    for name, weights in mixers.items():
        load_weights(method.mixers[name], weights, str)
    method.visits.fill_(77)
    method.soft_labels.copy_(torch.from_numpy(np.delete(ring, [7, 8], 1).mean(1)))  # of epochs 70 to 77
    warm_up, meta = method.plan(Recipe(epochs=120, batch_size=8, milestones=(80, 100)))
    assert [(stage.epochs, stage.go_on) for stage in (warm_up, meta)] == [(79, False), (41, True)]

    rows = torch.arange(16).split(8)
    first_draws = [{"noisy": examples(images[r], given[r], r)} for r in rows]
    draws = [
        first_draws[m % 2] | {"clean": examples(clean[r], clean_y[r])} for m, r in enumerate(torch.arange(48).split(8))
    ]
    method.train()
    expected, soft = AUTHORS["per_update"], dict(zip(*AUTHORS["soft_labels_after_epoch"].values(), strict=True))
    first = Update(warm_up, Served(first_draws * 2, per_epoch=2), CPU64.device)
    losses = list(updates(first, [(78, 0), (78, 1), (79, 0), (79, 1)]))
    np.testing.assert_allclose(losses, expected["warm_up_loss"], rtol=1e-9)
    np.testing.assert_allclose(method.soft_labels, soft[79], rtol=1e-9)

    steps, inner, said = [], [], {"alpha": [], "beta": []}
    record_inner_losses(monkeypatch, inner)
    for name, values in said.items():
        method.mixers[name].register_forward_hook(lambda net, x, y, values=values: values.append(y.detach()))
    second = Update(recorded(meta, steps), Served(draws, per_epoch=2), CPU64.device)
    second.take_over(first)
    epochs = [80, 80, 81, 81, 100, 100]
    for t, loss in enumerate(updates(second, [(epoch - 79, t % 2) for t, epoch in enumerate(epochs)])):
        np.testing.assert_allclose(loss, expected["outer_loss"][t], rtol=1e-9)
        np.testing.assert_allclose(steps[t], [expected["meta_loss"][t], expected["outer_loss"][t]], rtol=1e-9)
        np.testing.assert_allclose(inner[0].item(), expected["inner_loss"][t], rtol=1e-9)
        for name, values in said.items():
            np.testing.assert_allclose(values[0], expected[f"{name}_inner"][t], rtol=1e-9)
            np.testing.assert_allclose(values[-1], expected[f"{name}_outer"][t], rtol=1e-9)
            values.clear()
        inner.clear()
        np.testing.assert_allclose(method.weights[rows[t % 2]], expected["alpha_outer"][t], rtol=1e-9)
        np.testing.assert_allclose(second.rates[method.net], AUTHORS["settings"]["learning_rate_of_update"][4 + t])
        if t % 2:
            np.testing.assert_allclose(method.soft_labels, soft[epochs[t]], rtol=1e-9)
    assert_state(method.net, AUTHORS["after"]["main"])
    np.testing.assert_allclose(weight_sum(method.net), AUTHORS["weight_sum"], rtol=1e-9)
    for name, mixer in method.mixers.items():
        assert_state(mixer, AUTHORS["after"][f"{name}_net"], str)
        np.testing.assert_allclose(weight_sum(mixer), AUTHORS[f"{name}_net_sum"], rtol=1e-9)


def make_problem(**options) -> tuple[MSLC, Batch]:
    """A method in its second stage, of six rows and four classes, and a batch of all rows."""
    torch.manual_seed(0)
    given = torch.tensor([0, 1, 2, 3, 0, 1])
    method = CPU64.place(MSLC(SmallNet(), given, num_classes=4, **options)).train()
    if method.correct:
        method.soft_labels.copy_(torch.randn(6, 4).softmax(1))
    noisy = examples(torch.randn(6, 3, 8, 8, dtype=torch.float64), given)
    clean = examples(torch.randn(5, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0]))
    return method, Batch({"noisy": noisy, "clean": clean}, {method.net: RATE})


def with_noisy(batch: Batch, **changes) -> Batch:
    return replace(batch, draws={**batch.draws, "noisy": replace(batch["noisy"], **changes)})


def logits_of(method: MSLC, batch: Batch) -> np.ndarray:
    (logits,) = copy.deepcopy(method.net)(batch["noisy"].x)
    return logits.detach().numpy()


def reference(method: MSLC, batch: Batch, z: np.ndarray):
    """Targets, new soft labels and weights of the rows, by the method's networks as they are."""
    V = [[p.detach().numpy() for p in mixer.parameters()] for mixer in method.mixers.values()]
    s = method.soft_labels.numpy().copy() if method.correct else np.eye(4)[batch["noisy"].y]
    return ref_mslc(z, batch["noisy"].y.numpy(), s, *V, soft_targets=method.soft_targets)


@VARIANTS
def test_loss_weights_and_new_soft_labels_are_those_of_the_equations(options):
    method, batch = make_problem(**options)
    z = logits_of(method, batch)
    targets, new, alpha = reference(method, batch, z)
    (first, _), (second, loss) = method.step(batch)
    assert (first, second) == (method.mixers, method.net)
    np.testing.assert_allclose(loss.item(), ref_loss(targets, z), rtol=1e-12)
    if method.correct:
        np.testing.assert_allclose(method.soft_labels, new, rtol=1e-12)
    np.testing.assert_allclose(method.weights, alpha, rtol=1e-12)


@VARIANTS
def test_the_meta_gradient_is_that_of_a_step_really_taken(options):
    method, batch = make_problem(virtual_rate=5.0, **options)
    before, z = copy.deepcopy(method), logits_of(method, batch)

    def clean_loss_after_a_step() -> float:
        net, (targets, _, _) = copy.deepcopy(before.net), reference(before, batch, z)
        loss = -(torch.from_numpy(targets) * net(batch["noisy"].x)[0].log_softmax(1)).sum(1).mean()
        for p, g in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
            p.data -= 5 * RATE * g
        return F.cross_entropy(net(batch["clean"].x)[0], batch["clean"].y).item()

    _, loss = next(method.step(batch))
    assert loss.item() == pytest.approx(clean_loss_after_a_step(), rel=1e-12)
    found = torch.autograd.grad(loss, [mixer.linear2.bias for mixer in method.mixers.values()])
    for mixer, slope in zip(before.mixers.values(), found, strict=True):
        ends = []
        for change in (1e-5, -2e-5):
            mixer.linear2.bias.data += change
            ends.append(clean_loss_after_a_step())
        mixer.linear2.bias.data += 1e-5
        assert slope.item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)


def test_without_correction_there_are_no_soft_labels_to_score():
    method, batch = make_problem(correct=False)
    for stage in method.plan(Recipe(epochs=2)):
        list(stage.step(batch))
    assert [name for name, _ in method.named_buffers() if "." not in name] == ["weights"]
    assert list(method.mixers) == ["alpha"]


def test_rows_that_fill_the_batch_count_for_nothing():
    method, batch = make_problem()
    batch = with_noisy(batch, weight=torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    other = with_noisy(batch, y=torch.tensor([0, 1, 2, 3, 3, 3]))
    before, found = copy.deepcopy(method.state_dict()), []
    for draws in (batch, other):
        method.load_state_dict(before)
        found.append([loss.item() for stage in method.plan(Recipe(epochs=2)) for _, loss in stage.step(draws)])
        for name in ("soft_labels", "weights", "visits"):
            same = (method.state_dict()[name] == before[name]).view(6, -1).all(1)
            assert same.tolist() == [False] * 4 + [True] * 2, name
    assert len(found[0]) == 3
    assert found[0] == found[1]


@pytest.mark.parametrize(("epochs", "history", "counted"), [(9, 10, 6), (9, 2, 2), (2, 3, 1)])
def test_the_first_soft_label_is_the_mean_prediction_of_the_last_warm_up_epochs(epochs, history, counted):
    method, batch = make_problem(history=history)
    given = F.one_hot(batch["noisy"].y, 4).double()
    method.soft_labels.copy_(given)
    stage, _ = method.plan(Recipe(epochs=epochs))
    predictions = []
    for epoch in range(stage.epochs):
        if epoch <= stage.epochs - counted:
            assert torch.equal(method.soft_labels, given)
        x = torch.randn(6, 3, 8, 8, dtype=torch.float64)
        for rows in (slice(0, 2), slice(2, 6)):  # each row once an epoch
            half_batch = with_noisy(batch, **vars(batch["noisy"][rows]) | {"x": x[rows]})
            predictions.append(softmax(logits_of(method, half_batch)))
            list(stage.step(half_batch))
        np.testing.assert_allclose(method.soft_labels.sum(1), 1, rtol=1e-12)
    whole = [np.concatenate(predictions[i : i + 2]) for i in range(0, len(predictions), 2)]
    np.testing.assert_allclose(method.soft_labels, np.mean(whole[-counted:], 0), rtol=1e-12)


def test_perturbation_puts_that_share_of_the_new_soft_labels_on_uniform_classes():
    method, batch = make_problem(perturbation=0.5)
    _, new, _ = reference(method, batch, logits_of(method, batch))
    coin = torch.tensor([[0.49, 0.0], [0.5, 0.3], [0.9, 0.9], [0.0, 0.999], [0.1, 0.26], [0.7, 0.5]])
    list(method.step(with_noisy(batch, coin=coin)))
    new[[0, 3, 4]] = np.eye(4)[[0, 3, 1]]
    np.testing.assert_allclose(method.soft_labels, new, rtol=1e-12)


@pytest.mark.parametrize(
    ("warm_up", "epochs", "milestones", "lengths", "rates"),
    [
        (2 / 3, 120, (81, 101), (80, 40), {80: 0.1, 81: 0.01, 100: 0.01, 101: 0.001, 120: 0.001}),
        (2 / 3, 12, (5, 11), (8, 4), {4: 0.1, 5: 0.01, 8: 0.01, 9: 0.01, 11: 0.001}),
        (0.9, 2, (2,), (1, 1), {1: 0.1, 2: 0.01}),  # no stage is left out
        (0.1, 2, (2,), (1, 1), {1: 0.1, 2: 0.01}),
        (0.5, 1, (), (1, 1), {1: 0.1, 2: 0.1}),
    ],
)
def test_epochs_and_milestones_count_over_both_stages(warm_up, epochs, milestones, lengths, rates):
    method, _ = make_problem(warm_up=warm_up)
    plan = method.plan(Recipe(epochs=epochs, milestones=milestones))
    assert tuple(stage.epochs for stage in plan) == lengths
    found = [stage.optim[method.net].rate_at(epoch) for stage in plan for epoch in range(1, stage.epochs + 1)]
    assert {epoch: found[epoch - 1] for epoch in rates} == pytest.approx(rates)
