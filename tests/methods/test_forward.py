"""Forward against its authors' own numbers, and its losses and T̂ against loops in NumPy."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from authors import SmallNet, examples, numbers_of
from builders import CPU64
from fasten.contract import Batch, Recipe
from fasten.methods import METHODS
from fasten.methods.forward import Forward
from fasten.nets import Heads
from reference.anchors import ref_anchors
from reference.transition import softmax

AUTHORS = numbers_of("forward")
GIVEN = torch.tensor([0, 2, 1, 1, 0])


class Fixed(torch.nn.Module):
    """Features that are the logits."""

    num_features = 4

    def forward(self, x):
        return x


def build(backbone=None, num_classes=3, **options):
    method = Forward(backbone or SmallNet(), GIVEN, num_classes=num_classes, **options)
    return CPU64.place(method).train()


def rows_of(seed: int = 0):
    """Five rows, and two of filling."""
    torch.manual_seed(seed)
    y = torch.cat([GIVEN, GIVEN[:2]])
    weight = torch.tensor([1.0] * 5 + [0.0] * 2, dtype=torch.float64)
    return replace(examples(torch.randn(7, 3, 8, 8, dtype=torch.float64), y), weight=weight)


def loss_of(step, rows):
    ((_, loss),) = step(Batch({"noisy": rows}))
    return loss


def authors_table():
    rng = np.random.RandomState(AUTHORS["settings"]["seed"])
    rng.standard_normal((8, 4)), rng.randint(0, 4, 8), rng.uniform(size=(4, 4))
    table = rng.uniform(size=(40, 4)) ** 0.5
    table /= table.sum(1, keepdims=True)
    np.testing.assert_allclose(table.flatten()[:3], AUTHORS["check"]["table"]["first"], rtol=1e-12)
    return torch.from_numpy(table)


@pytest.mark.parametrize("correction", ["forward", "backward"])
def test_losses_and_gradients_are_those_of_the_authors_code(correction):
    method = build(Fixed(), 4, correction=correction)
    with torch.no_grad():
        method.net.clean.weight.copy_(torch.eye(4))
        method.net.clean.bias.zero_()
    T = torch.tensor(AUTHORS["matrix"], dtype=torch.float64)
    method.transition.copy_(T)
    method.inverse.copy_(torch.linalg.pinv(T))
    expected = AUTHORS[correction]
    logits = torch.tensor(AUTHORS["logits"], dtype=torch.float64, requires_grad=True)
    rows = examples(logits, AUTHORS["labels"])
    loss = loss_of(method.step, rows)
    np.testing.assert_allclose(loss.item(), np.mean(expected["loss"]), rtol=1e-9)
    (grad,) = torch.autograd.grad(loss, logits)
    np.testing.assert_allclose(grad, expected["gradient"], rtol=1e-9, atol=1e-15)
    for i in range(8):  # each for itself
        one = examples(logits.detach()[i : i + 1], AUTHORS["labels"][i : i + 1])
        np.testing.assert_allclose(loss_of(method.step, one).item(), expected["loss"][i], rtol=1e-9)


def test_the_first_stage_has_their_cross_entropy_where_nothing_is_clipped():
    logits, labels = torch.tensor(AUTHORS["logits"], dtype=torch.float64), torch.tensor(AUTHORS["labels"])
    found = F.cross_entropy(logits, labels, reduction="none")
    np.testing.assert_allclose(found[2:], AUTHORS["cross_entropy"]["loss"][2:], rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "expected"), [({"filter": "table"}, "estimate_filtered"), ({"percentile": None}, "estimate_plain")]
)
def test_the_estimate_is_that_of_the_authors_code(options, expected):
    method, table = build(Fixed(), 4, **options), authors_table()
    method.estimate(lambda source: (table, None))
    np.testing.assert_allclose(method.transition, AUTHORS[expected], rtol=1e-9)


@pytest.mark.parametrize("correction", ["forward", "backward"])
def test_the_estimate_is_made_of_noisy_rows_below_the_percentile(correction):
    p = np.random.default_rng(0).dirichlet(np.ones(3), 50)
    method, asked = build(correction=correction, percentile=90.0), []
    method.estimate(lambda source: asked.append(source) or (torch.from_numpy(p), None))
    T = ref_anchors(p, 90)
    np.testing.assert_allclose(method.transition, T, rtol=1e-12)
    np.testing.assert_allclose(method.inverse, np.linalg.inv(T) if correction == "backward" else np.eye(3), rtol=1e-9)
    assert asked == ["noisy"]


def test_a_singular_estimate_has_a_pseudo_inverse():
    p = torch.tensor([[0.5, 0.3, 0.2]] * 4, dtype=torch.float64)
    method = build(correction="backward")
    method.estimate(lambda source: (p, None))
    np.testing.assert_allclose(method.inverse, np.linalg.pinv(p[:3].numpy()), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("correction", ["forward", "backward"])
def test_the_loss_is_that_of_a_loop_over_the_rows_that_count(correction):
    T = np.random.default_rng(0).dirichlet(np.ones(3), 3)
    method = build(correction=correction)
    method.transition.copy_(torch.from_numpy(T))
    method.inverse.copy_(torch.from_numpy(np.linalg.inv(T)))
    rows = rows_of()
    f = softmax(copy.deepcopy(method).net(rows.x)[0].detach().numpy())
    found = []
    for n in range(5):
        y = GIVEN[n].item()
        if correction == "forward":
            found.append(-np.log(sum(T[k, y] * f[n, k] for k in range(3))))
        else:
            found.append(sum(np.linalg.inv(T)[y, k] * -np.log(f[n, k]) for k in range(3)))
    np.testing.assert_allclose(loss_of(method.step, rows).item(), np.mean(found), rtol=1e-9)


@pytest.mark.parametrize("correction", ["forward", "backward"])
def test_without_noise_it_is_plain_cross_entropy(correction):
    method, rows = build(correction=correction), rows_of()
    plain = loss_of(copy.deepcopy(method).step_noisy, rows)
    np.testing.assert_allclose(loss_of(method.step, rows).item(), plain.item(), rtol=1e-12)


def test_a_backward_loss_is_right_on_average():
    """Σ T[i, ȳ] ℓ←(ȳ) = ℓ(i), Patrini's Theorem 1."""
    T = torch.from_numpy(np.random.default_rng(1).dirichlet(np.ones(4), 4))
    method = build(Fixed(), 4, correction="backward")
    method.inverse.copy_(torch.linalg.inv(T))
    f = torch.from_numpy(np.random.default_rng(2).dirichlet(np.ones(4), 1))
    losses = torch.cat([method._nll(f, torch.tensor([y])) for y in range(4)])
    np.testing.assert_allclose(T @ losses, -f[0].log(), rtol=1e-9)


@pytest.mark.parametrize(("epochs", "halves"), [(240, (120, 120)), (5, (2, 3)), (1, (1, 1))])
def test_half_of_the_epochs_and_the_milestones_go_to_each_stage(epochs, halves):
    method = build()
    recipe = METHODS["forward"].schedule.applied(Recipe(epochs=70))
    noisy, corrected = method.plan(replace(recipe, epochs=epochs))
    assert (noisy.epochs, corrected.epochs) == halves
    for stage in (noisy, corrected):
        assert [stage.optim[method.net].rate_at(e) for e in (41, 42, 81, 82)] == [0.1, 0.01, 0.01, 0.001]
    assert (corrected.start, corrected.go_on) == ("initial", False)


def test_the_classifier_is_the_network_without_T():
    method = build()
    method.transition.copy_(torch.full((3, 3), 1 / 3))
    method.eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert isinstance(method.net, Heads)
    assert torch.equal(method(x), method.net(x)[0].softmax(1))


def test_a_label_that_no_anchor_has_costs_much_but_not_more_than_any_number():
    """A network that is sure of one class for all rows, as one may be after its first few updates."""
    method = build()
    sure = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64).expand(40, 3)
    method.estimate(lambda source, of=None: (sure, GIVEN))
    assert torch.equal(method.transition, sure[:3])
    loss = loss_of(method.step, rows_of())
    assert 1 < loss < 33
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, list(method.net.parameters())))
