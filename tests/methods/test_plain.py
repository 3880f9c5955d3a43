"""Cross-entropy, clean-only and naive oversampling against plain gradient descent, written out in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from authors import Served, SmallNet, examples, updates
from builders import CPU64
from fasten.contract import Recipe
from fasten.methods.clean_only import CleanOnly
from fasten.methods.cross_entropy import CrossEntropy
from fasten.methods.naive_oversampling import NaiveOversampling
from fasten.update import Update

RECIPE = Recipe(batch_size=8, epochs=3, rate=0.2, momentum=0.8, weight_decay=0.01, milestones=(3,))
RATES = (0.2, 0.2, 0.2, 0.2, 0.02, 0.02)  # of two updates an epoch
PLACES = [(epoch, update) for epoch in (1, 2, 3) for update in (0, 1)]
STATISTICS, SLOWLY, TINY = ("mean", "var"), 0.1, 1e-5  # of a batch norm: what it keeps, how fast, its epsilon
TAKES = {CrossEntropy: ("noisy",), CleanOnly: ("clean",), NaiveOversampling: ("noisy", "clean")}


def ref_norm(x, state, name):
    """By the statistics of these rows alone, which also enter the running ones."""
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
    count = x.numel() / len(mean)
    for key, value in zip(STATISTICS, (mean, var * count / (count - 1)), strict=True):
        kept = f"backbone.{name}.running_{key}"
        state[kept] = (1 - SLOWLY) * state[kept] + SLOWLY * value.detach()
    scaled = (x - mean[:, None, None]) / (var[:, None, None] + TINY) ** 0.5
    return scaled * state[f"backbone.{name}.weight"][:, None, None] + state[f"backbone.{name}.bias"][:, None, None]


def ref_logits(x, state):
    x = ref_norm(F.conv2d(x, state["backbone.conv1.weight"], padding=1), state, "bn1").clamp(min=0)
    x = ref_norm(F.conv2d(x, state["backbone.conv2.weight"], stride=2, padding=1), state, "bn2").clamp(min=0)
    return x.mean((2, 3)) @ state["clean.weight"].T + state["clean.bias"]


def ref_loss(parts, state):
    """The mean of -log p(y | x) over the rows that count, of all parts together."""
    losses, count = [], 0.0
    for part in parts:
        logits = ref_logits(part.x, state)
        for i, y in enumerate(part.y.tolist()):
            losses.append(part.weight[i] * (logits[i].exp().sum().log() - logits[i, y]))
            count += part.weight[i].item()
    return sum(losses) / count


def ref_train(draws, state, names):
    """θ ← θ − rate · v, with v ← momentum · v + ∇ + decay · θ."""
    velocity, losses = {name: torch.zeros_like(state[name]) for name in names}, []
    for parts, rate in zip(draws, RATES, strict=True):
        for name in names:
            state[name].requires_grad_()
        loss = ref_loss(parts, state)
        grads = torch.autograd.grad(loss, [state[name] for name in names])
        for name, grad in zip(names, grads, strict=True):
            here = state[name].detach()
            velocity[name] = 0.8 * velocity[name] + grad + 0.01 * here
            state[name] = here - rate * velocity[name]
        losses.append(loss.item())
    return losses


def some_rows(rng, labels):
    """Random images; the fourth does not count, as where a batch or a class lacks rows."""
    rows = examples(torch.from_numpy(rng.standard_normal((len(labels), 3, 8, 8))), labels)
    return replace(rows, weight=rows.weight.index_fill(0, torch.tensor(3), 0))


def make_draws(rng):
    """Eight noisy and six clean rows an update."""
    clean = torch.arange(3).repeat_interleave(2)
    return [{"noisy": some_rows(rng, rng.integers(3, size=8)), "clean": some_rows(rng, clean)} for _ in RATES]


@pytest.mark.parametrize("make", TAKES, ids=lambda make: make.__name__)
def test_six_updates_are_plain_gradient_descent_on_the_rows_that_it_takes(make):
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    method = CPU64.place(make(SmallNet(), torch.zeros(16, dtype=torch.int64), num_classes=3)).train()
    (stage,) = method.plan(RECIPE)
    assert tuple(stage.draws) == TAKES[make]
    state = {name: tensor.clone() for name, tensor in method.net.state_dict().items()}
    draws = [{name: draw[name] for name in stage.draws} for draw in make_draws(rng)]
    expected = ref_train([draw.values() for draw in draws], state, [n for n, _ in method.net.named_parameters()])
    losses = list(updates(Update(stage, Served(draws, per_epoch=2), CPU64.device), PLACES))
    np.testing.assert_allclose(losses, expected, rtol=1e-10)
    for name, tensor in method.net.state_dict().items():
        if "num_batches" not in name:
            np.testing.assert_allclose(tensor, state[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("make", [CleanOnly, NaiveOversampling])
def test_clean_batches_are_balanced_and_as_large_as_the_noisy_ones_allow(make):
    (stage,) = make(SmallNet(), torch.zeros(17, dtype=torch.int64), num_classes=3).plan(RECIPE)
    assert (stage.draws["clean"].how, stage.draws["clean"].size) == ("balanced", 6)
    assert stage.updates == (3 if make is CleanOnly else None)  # as many as a pass over the noisy rows takes
