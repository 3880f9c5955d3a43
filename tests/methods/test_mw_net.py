"""MW-Net against its authors' own numbers and against its equations in NumPy."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

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
from fasten.contract import Recipe
from fasten.methods.mw_net import MWNet
from fasten.update import Update

AUTHORS = numbers_of("mw-net")


@pytest.mark.parametrize("route", ["tangent", "graph"])
def test_six_updates_are_those_of_the_authors_later_script(route):
    settings = AUTHORS["settings"]
    rng = np.random.RandomState(settings["seed"])
    main, meta = draw_weights(rng, AUTHORS["parameters"]), draw_weights(rng, AUTHORS["meta_parameters"])
    images = draw_checked(rng, (48, 3, 8, 8), AUTHORS["check"]["images"])
    given = torch.from_numpy(rng.randint(0, 4, 48))
    clean = draw_checked(rng, (48, 3, 8, 8), AUTHORS["check"]["clean"])
    clean_y = torch.from_numpy(rng.randint(0, 4, 48))
    assert given.tolist() == AUTHORS["given"]

    script = {"normalise": False, "meta_optim": "adam", "nesterov": False}
    method = CPU64.place(MWNet(SmallNet(), given, num_classes=4, route=route, **script))
    load_weights(method.net, main)
    load_weights(method.weigher, meta, str)
    (stage,) = method.plan(Recipe(batch_size=8, milestones=(81, 101)))
    rows = torch.arange(48).split(8)
    draws = [{"noisy": examples(images[r], given[r], r), "clean": examples(clean[r], clean_y[r])} for r in rows]
    method.train()
    expected = AUTHORS["per_update"]
    places = [(epoch + 1, 0) for epoch in settings["epoch_of_update"]]
    for t, loss in enumerate(updates(Update(stage, Served(draws), CPU64.device), places)):
        np.testing.assert_allclose(loss, expected["outer_loss"][t], rtol=1e-9)
        np.testing.assert_allclose(method.weights[rows[t]], expected["weights_outer"][t], rtol=1e-9)
        bias = method.weigher.linear2.bias.item()
        np.testing.assert_allclose(bias, expected["meta_output_bias"][t], rtol=1e-9)
    assert_state(method.net, AUTHORS["after"]["main"])
    assert_state(method.weigher, AUTHORS["after"]["meta"], str)
    np.testing.assert_allclose(weight_sum(method.net), AUTHORS["weight_sum"], rtol=1e-9)
    np.testing.assert_allclose(weight_sum(method.weigher), AUTHORS["meta_weight_sum"], rtol=1e-9)


def test_weights_follow_the_formula_and_normalised_ones_average_to_one():
    method = CPU64.place(MWNet(SmallNet(), torch.zeros(4, dtype=torch.int64), num_classes=4))
    losses = torch.tensor([0.1, 0.5, 1.0, 4.0], dtype=torch.float64)
    W1, b1, W2, b2 = (p.detach().numpy() for p in method.weigher.parameters())
    outputs = [W2[0] @ np.maximum(W1[:, 0] * loss + b1, 0) + b2[0] for loss in losses.numpy()]
    plain = 1 / (1 + np.exp(-np.array(outputs)))
    np.testing.assert_allclose(method.weigher(losses).detach(), plain, rtol=1e-12)
    counted = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    found = method._weigh(losses, counted).detach()
    np.testing.assert_allclose(found, plain / plain[:3].mean(), rtol=1e-12)


def test_the_first_script_is_plain_torch_by_its_description():
    """Shares that add up to one, V by SGD with Nesterov's momentum and decay, and so the classifier."""
    torch.manual_seed(0)
    given, rate = torch.randint(0, 4, (24,)), 0.5
    method = CPU64.place(MWNet(SmallNet(), given, num_classes=4, meta_rate=rate)).train()
    x, clean = (torch.randn(24, 3, 8, 8, dtype=torch.float64) for _ in range(2))
    clean_y, rows = torch.randint(0, 4, (24,)), torch.arange(24).split(8)
    draws = [{"noisy": examples(x[r], given[r], r), "clean": examples(clean[r], clean_y[r])} for r in rows]
    net, weigher = copy.deepcopy(method.net), copy.deepcopy(method.weigher)
    main = torch.optim.SGD(net.parameters(), 0.1, 0.9, weight_decay=5e-4, nesterov=True)
    meta = torch.optim.SGD(weigher.parameters(), rate, 0.9, weight_decay=5e-4, nesterov=True)

    def weighted(logits, y):
        losses = F.cross_entropy(logits, y, reduction="none")
        w = weigher(losses.detach())
        return (losses * w / w.sum()).sum()

    (stage,) = method.plan(Recipe(batch_size=8))
    before = weigher.linear1.weight.detach().clone()
    for r, loss in zip(rows, updates(Update(stage, Served(draws), CPU64.device), [(1, 0)] * 3), strict=True):
        names, weights = zip(*net.named_parameters(), strict=True)
        virtual = copy.deepcopy(net)
        (logits,) = functional_call(virtual, dict(net.named_parameters()), (x[r],))
        grads = torch.autograd.grad(weighted(logits, given[r]), weights, create_graph=True)
        ahead = {name: w - 0.1 * g for name, w, g in zip(names, weights, grads, strict=True)}
        meta.zero_grad()
        F.cross_entropy(functional_call(virtual, ahead, (clean[r],))[0], clean_y[r]).backward()
        meta.step()
        main.zero_grad()
        real = weighted(net(x[r])[0], given[r])
        real.backward()
        main.step()
        assert loss == pytest.approx(real.item(), rel=1e-9)
    assert (weigher.linear1.weight - before).abs().max() > 1e-4, "V has moved"
    for ours, theirs in ((method.net, net), (method.weigher, weigher)):
        for name, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-9, atol=1e-12, msg=name)


def test_without_momentum_there_is_no_nesterovs():
    method = MWNet(SmallNet(), torch.zeros(4, dtype=torch.int64), num_classes=4)
    for momentum in (0.9, 0.0):
        (stage,) = method.plan(Recipe(momentum=momentum))
        assert stage.optim[method.net].nesterov == (momentum > 0)
