"""CausalNL against loops in NumPy: its losses, and which rows teach whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from builders import CPU64, make_tiny_task
from fasten.contract import Batch, Examples, Recipe
from fasten.methods.causalnl import CausalNL
from fasten.records import Run
from fasten.runs.building import build_method
from reference import causalnl as reference
from reference.transition import softmax

ROWS, FEATURES, CLASSES, Z = 9, 4, 3, 2
SCALE = {"example_weight": 0.3, "label_weight": 0.7, "latent_weight": 0.2, "prior_weight": 0.4}


def backbone() -> nn.Module:
    net = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh())
    net.num_features = 5
    return net


def make(**options) -> CausalNL:
    torch.manual_seed(0)
    shape, labels = (FEATURES,), torch.zeros(20, dtype=torch.int64)
    known = {"num_classes": CLASSES, "shape": shape, "z_dim": Z}
    return CPU64.place(CausalNL(backbone(), backbone(), labels, **known, **options)).train()


def make_rows(seed: int = 0, filling: int = 2) -> Examples:
    rng = np.random.default_rng(seed)
    x, coin = rng.normal(size=(ROWS, FEATURES)), rng.random((ROWS, 2 + 2 * (CLASSES + Z)))
    weight = torch.tensor([1.0] * (ROWS - filling) + [0.0] * filling, dtype=torch.float64)
    y, index = torch.from_numpy(rng.integers(CLASSES, size=ROWS)), torch.from_numpy(rng.permutation(20)[:ROWS])
    return Examples(torch.from_numpy(x), y, index, weight, torch.from_numpy(coin))


def losses_of(method: CausalNL, rows: Examples, ramp: float = 9.0) -> list[torch.Tensor]:
    found = list(method.step(Batch({"noisy": rows}), ramp))
    assert tuple(net for net, _ in found) == method.nets
    return [loss for _, loss in found]


@pytest.mark.parametrize("objective", ["code", "paper"])
def test_the_losses_are_those_of_the_loops(objective):
    method, rows = make(objective=objective, noise_rate=0.5, **SCALE), make_rows()
    method.epoch.fill_(6)
    logits = [net(rows.x)[0].detach().numpy() for net in method.nets]
    uniform = np.split(rows.coin[:, 2:].numpy(), 2, axis=1)
    share = 1 - 0.5 * 6 / 9
    for k, loss in enumerate(losses_of(method, rows)):
        weights = {name: tensor.numpy() for name, tensor in method.nets[k].state_dict().items()}
        expected = reference.loss(
            weights, logits[k], logits[1 - k], rows.x.numpy(), rows.y.numpy(), rows.weight.numpy(), uniform[k], share,
            list(SCALE.values()), objective,
        )  # fmt: skip
        np.testing.assert_allclose(loss.item(), expected, rtol=1e-9)


@pytest.mark.parametrize("objective", ["code", "paper"])
def test_filling_does_not_count(objective):
    method, rows, other = make(objective=objective), make_rows(), make_rows(1)
    method.epoch.fill_(20)
    counts = rows.weight[:, None] > 0
    changed = replace(
        rows,
        x=torch.where(counts, rows.x, other.x),
        y=torch.where(counts[:, 0], rows.y, (rows.y + 1) % CLASSES),
        coin=torch.where(counts, rows.coin, other.coin),
    )
    without = rows[: ROWS - 2]
    expected = [loss.item() for loss in losses_of(method, rows)]
    for same in (changed, without):
        assert [loss.item() for loss in losses_of(method, same)] == pytest.approx(expected, rel=1e-12)


def test_each_network_is_taught_by_the_other_and_no_gradient_crosses():
    method, rows = make(noise_rate=0.6), make_rows(filling=0)
    method.epoch.fill_(9)
    first, second = losses_of(method, rows)
    for loss, net, other in ((first, *method.nets), (second, *method.nets[::-1])):
        own = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True, allow_unused=True)
        assert all(grad is not None and grad.any() for grad in own)
        grads = torch.autograd.grad(loss, list(other.parameters()), retain_graph=True, allow_unused=True)
        assert all(grad is None for grad in grads)
    kept = np.zeros(20) + 1
    kept[rows.index] = 0
    for net in method.nets:
        p = softmax(net(rows.x)[0].detach().numpy())
        nll = [-np.log(p[i][rows.y[i]]) for i in range(ROWS)]
        kept[rows.index.numpy()[reference.chosen(nll, np.ones(ROWS), 0.4)]] += 0.5
    assert method.weights.tolist() == kept.tolist()  # rows that were not seen keep their 1


def test_as_many_rows_are_left_out_as_in_the_authors_epochs():
    """None in the first of 150, the noise rate from the tenth on, in equal steps between; in proportion otherwise."""
    method, rows = make(noise_rate=0.45), make_rows(filling=0)
    (stage,) = method.plan(Recipe(epochs=150, batch_size=4))
    assert (stage.epochs, stage.each_epoch, stage.draws["noisy"].coins) == (150, True, 2 * (CLASSES + Z))
    for rate in [*np.linspace(0, 0.45, 10), 0.45]:
        stage.prepare(None)
        list(stage.step(Batch({"noisy": rows})))
        chosen = 2 * method.weights[rows.index].sum().item()
        assert chosen == 2 * int((1 - rate) * ROWS + 1e-4)
    assert method.plan(Recipe(epochs=50))[0].step.keywords["ramp"] == pytest.approx(3.0)


def test_both_are_trained_by_adam_at_a_constant_rate():
    method = make(adam_rate=0.01)
    (stage,) = method.plan(Recipe(epochs=10, milestones=(2,), rate=0.5))
    assert tuple(stage.optim) == method.nets
    for optim in stage.optim.values():
        assert (optim.kind, optim.weight_decay, optim.rate_at(1), optim.rate_at(10)) == ("adam", 0.0, 0.01, 0.01)


def test_the_first_network_alone_predicts():
    method, rows = make().eval(), make_rows()
    with torch.no_grad():
        np.testing.assert_allclose(method(rows.x), softmax(method.net(rows.x)[0].numpy()), rtol=1e-12)


def test_both_networks_begin_differently():
    method = build_method(Run("tiny", method="causalnl", recipe=Recipe("small-cnn")), make_tiny_task())
    mine, theirs = (list(net.parameters()) for net in method.nets)
    assert not any(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True) if a.ndim > 1)
