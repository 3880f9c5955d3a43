"""L2RW against a published implementation's numbers, and against explicit products of gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

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
from fasten.methods.l2rw import L2RW
from fasten.update import Update

AUTHORS = numbers_of("l2rw")


class OneLogit(nn.Module):
    """A binary classifier's single logit z as the pair (0, z): softmax of the pair is sigmoid of z."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(1, 8)), nn.Parameter(torch.empty(1))

    def forward(self, features):
        return F.pad(F.linear(features, self.weight, self.bias), (1, 0))


@pytest.mark.parametrize("route", ["tangent", "graph"])
@pytest.mark.parametrize("run", AUTHORS["runs"], ids=lambda run: run["name"])
def test_six_updates_are_those_of_the_published_code(run, route):
    rng = np.random.RandomState(AUTHORS["settings"]["seed"])
    weights = draw_weights(rng, run["parameters"])
    images = draw_checked(rng, (48, 3, 8, 8), run["check"]["images"])
    given = torch.from_numpy(rng.randint(0, run["num_classes"], 48))
    clean = draw_checked(rng, (10, 3, 8, 8), run["check"]["clean"])
    clean_y = torch.from_numpy(rng.randint(0, run["num_classes"], 10))
    assert given.tolist() == run["given"]

    method = L2RW(SmallNet(), given, num_classes=run["num_classes"], route=route)
    if run["num_classes"] == 2:
        method.net.clean = OneLogit()
    CPU64.place(method)
    load_weights(method.net, weights)
    recipe = Recipe(batch_size=8, rate=run["learning_rate"], momentum=0, weight_decay=0, milestones=())
    (stage,) = method.plan(recipe)
    rows = torch.arange(48).split(8)
    draws = [{"noisy": examples(images[r], given[r], r), "clean": examples(clean, clean_y)} for r in rows]
    method.train()
    expected = run["per_update"]
    for t, loss in enumerate(updates(Update(stage, Served(draws), CPU64.device), [(1, 0)] * 6)):
        np.testing.assert_allclose(method.weights[rows[t]] / 8, expected["weights"][t], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(loss, expected["outer_loss"][t], rtol=1e-9)
    assert_state(method.net, run["after"])
    np.testing.assert_allclose(weight_sum(method.net), run["weight_sum"], rtol=1e-9)


def test_weights_are_the_products_of_each_rows_gradient_with_the_clean_gradient():
    """Row by row with plain back-propagation; batch norm couples the rows, so each loss is that of the whole batch."""
    torch.manual_seed(0)
    method = CPU64.place(L2RW(SmallNet(), torch.zeros(6, dtype=torch.int64), num_classes=3)).train()
    noisy = examples(torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2]))
    clean = examples(torch.randn(5, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1]))
    batch = Batch({"noisy": noisy, "clean": clean}, {method.net: torch.tensor(0.1, dtype=torch.float64)})
    weights = list(method.net.parameters())
    (logits,) = method.net(clean.x)
    towards = torch.autograd.grad(F.cross_entropy(logits, clean.y), weights)
    (logits,) = method.net(noisy.x)
    products = []
    for nll in F.cross_entropy(logits, noisy.y, reduction="none"):
        own = torch.autograd.grad(nll, weights, retain_graph=True)
        products.append(sum((a * b).sum().item() for a, b in zip(own, towards, strict=True)))
    positive = np.maximum(products, 0)
    assert 0 < np.count_nonzero(positive) < 6
    list(method.step(batch))
    np.testing.assert_allclose(method.weights, 6 * positive / positive.sum(), rtol=1e-9)


def test_rows_that_fill_up_a_batch_do_not_count_in_the_weights_that_are_kept():
    torch.manual_seed(0)
    method = CPU64.place(L2RW(SmallNet(), torch.zeros(6, dtype=torch.int64), num_classes=3)).train()
    x, y = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    noisy = replace(examples(x, y), weight=torch.tensor([1.0, 1, 1, 0, 0, 0], dtype=torch.float64))
    batch = Batch({"noisy": noisy, "clean": examples(x, y)}, {method.net: torch.tensor(0.1, dtype=torch.float64)})
    list(method.step(batch))
    assert method.weights[:3].mean().item() == pytest.approx(1), "1 is average"


def test_where_no_row_helps_all_weights_are_zero():
    """One image with a wrong label against the same with the right one: of two classes, the gradients are opposite."""
    torch.manual_seed(0)
    method = CPU64.place(L2RW(SmallNet(), torch.zeros(1, dtype=torch.int64), num_classes=2)).train()
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    draws = {"noisy": examples(x, torch.tensor([1])), "clean": examples(x, torch.tensor([0]))}
    batch = Batch(draws, {method.net: torch.tensor(0.1, dtype=torch.float64)})
    ((_, loss),) = list(method.step(batch))
    assert loss.item() == 0
    assert method.weights.tolist() == [0]
