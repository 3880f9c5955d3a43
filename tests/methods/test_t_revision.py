"""T-Revision against its authors' own numbers, and its losses and T̂ against loops in NumPy."""

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
from fasten.methods import t_revision as module
from fasten.methods.t_revision import TRevision
from fasten.update import Update
from reference.anchors import ref_anchors, ref_importance
from reference.transition import softmax

AUTHORS = numbers_of("t-revision")
RELEASED = {"filter": "table", "normalise": "columns", "shift": "counted", "guard": 0.0}
GIVEN = torch.tensor([0, 2, 1, 1, 0])
RECIPE = Recipe(epochs=6, rate=0.1, momentum=0.9, weight_decay=1e-4, batch_size=8, milestones=())


def build(num_classes=3, given=GIVEN, **options):
    return CPU64.place(TRevision(SmallNet(), given, num_classes=num_classes, **options)).train()


def rows_of():
    """Five rows, and two of filling."""
    torch.manual_seed(0)
    weight = torch.tensor([1.0] * 5 + [0.0] * 2, dtype=torch.float64)
    x = torch.randn(7, 3, 8, 8, dtype=torch.float64)
    return replace(examples(x, torch.cat([GIVEN, GIVEN[:2]])), weight=weight)


class Problem:
    """The draws of the authors' file, and a stage of theirs."""

    def __init__(self) -> None:
        rng = np.random.RandomState(AUTHORS["settings"]["seed"])
        self.weights = draw_weights(rng, AUTHORS["parameters"])
        self.x = draw_checked(rng, (40, 3, 8, 8), AUTHORS["check"]["images"])
        self.y = torch.from_numpy(rng.randint(0, 10, 40))
        self.valid = draw_checked(rng, (16, 3, 8, 8), AUTHORS["check"]["validation"])
        self.valid_y = torch.from_numpy(rng.randint(0, 10, 16))
        assert self.y.tolist() == AUTHORS["given"]
        assert self.valid_y.tolist() == AUTHORS["validation_labels"]
        self.orders = list(AUTHORS["orders"])

    def train(self, method, stage, name, T):
        """Two epochs; the network of the better one, by validation rows through T, the first of equals."""
        orders, self.orders = self.orders[:2], self.orders[2:]
        batches = [rows for order in orders for rows in torch.tensor(order).split(8)]
        served = Served([{"noisy": examples(self.x[r], self.y[r], r)} for r in batches], per_epoch=5)
        kept = []
        places = [(epoch, update) for epoch in (1, 2) for update in range(5)]
        for t, loss in enumerate(updates(Update(stage, served, CPU64.device), places)):
            np.testing.assert_allclose(loss, AUTHORS["per_update"][name][t], rtol=1e-9)
            if t % 5 == 4:
                with torch.no_grad():
                    right = ((method.eval()(self.valid) @ T).argmax(1) == self.valid_y).sum().item()
                kept.append((right, copy.deepcopy(method.net.state_dict())))
                method.train()
        return max(kept, key=lambda pair: pair[0])[1]


def test_three_stages_are_those_of_the_authors_code():
    problem = Problem()
    method = build(10, problem.y, revision_rate=1e-3, **RELEASED)
    weights = {name: value for name, value in problem.weights.items() if name != "T_revision.weight"}
    load_weights(method.net, weights)
    noisy, weighted, revised = (replace(stage, epochs=2) for stage in method.plan(RECIPE))

    best = problem.train(method, noisy, "estimate_loss", torch.eye(10, dtype=torch.float64))
    method.net.load_state_dict(best)
    method.eval()
    with torch.no_grad():
        p = method(problem.x)
    np.testing.assert_allclose(p.abs().sum(), AUTHORS["probabilities"]["abs_sum"], rtol=1e-9)
    weighted.prepare(lambda source: (p, problem.y))
    np.testing.assert_allclose(module.anchor_rows(p, 97, "table"), AUTHORS["T_anchor"], rtol=1e-9)
    np.testing.assert_allclose(method.transition, AUTHORS["T"], rtol=1e-9)

    best = problem.train(method.train(), weighted, "reweight_loss", method.transition)
    method.net.load_state_dict(best)
    assert_state(method.net, AUTHORS["before_revision"])

    problem.train(method.train(), revised, "revision_loss", method.transition)
    np.testing.assert_allclose(method.revision["delta"].detach(), AUTHORS["T_revision_after"], rtol=1e-9)
    after = {name: value for name, value in AUTHORS["after"].items() if name != "T_revision.weight"}
    assert_state(method.net, after)
    total = weight_sum(method.net) + weight_sum(method.revision)
    np.testing.assert_allclose(total, AUTHORS["weight_sum"], rtol=1e-9)


def ready(**options):
    """A method with some T̂ and ΔT, and the softmax of its network."""
    rng = np.random.default_rng(0)
    torch.manual_seed(1)
    method, rows = build(**options), rows_of()
    T, dT = rng.dirichlet(np.ones(3), 3), 0.01 * rng.standard_normal((3, 3))
    with torch.no_grad():
        method.transition.copy_(torch.from_numpy(T))
        method.revision["delta"].copy_(torch.from_numpy(dT))
    f = softmax(copy.deepcopy(method).net(rows.x)[0].detach().numpy())[:5]
    return method, rows, T, dT, f


def test_the_second_stage_weighs_the_rows_that_count_by_importance():
    method, rows, T, _, f = ready()
    y = GIVEN.numpy()
    ((part, loss),) = method.step(Batch({"noisy": rows}))
    nll = np.array([-np.log(f[n, y[n]]) for n in range(5)])
    np.testing.assert_allclose(loss.item(), np.mean(ref_importance(f, T, y) * nll), rtol=1e-9)
    assert part is method.net


@pytest.mark.parametrize("shift", ["once", "counted"])
def test_the_third_stage_weighs_them_by_the_revised_T(shift):
    method, rows, T, dT, f = ready(shift=shift)
    y = GIVEN.numpy()
    times = [n + 1 if shift == "counted" else 1 for n in range(5)]
    beta = [ref_importance(f[[n]], T + times[n] * dT, y[[n]])[0] for n in range(5)]
    expected = np.mean([beta[n] * -np.log(f[n, y[n]]) for n in range(5)])
    found = [(part, loss.item()) for part, loss in method.step_revised(Batch({"noisy": rows}))]
    assert [part for part, _ in found] == [method.revision, method.net]
    np.testing.assert_allclose([loss for _, loss in found], expected, rtol=1e-9)
    np.testing.assert_allclose(method.revised, T + dT, rtol=1e-12)


def joint_loss(method, rows, constant: bool):
    """In one piece, as autograd sees it."""
    (logits,) = method.net(rows.x[:7])
    f, T = logits.softmax(1), method.transition + method.revision["delta"]
    own = f.gather(1, rows.y[:, None])[:, 0]
    beta = own / (f @ T).gather(1, rows.y[:, None])[:, 0]
    return ((beta.detach() if constant else beta) * -own.log())[:5].mean()


def test_each_part_has_the_gradient_of_one_joint_loss_through_the_weights_too():
    method, rows, *_ = ready()
    joint, steps = copy.deepcopy(method), method.step_revised(Batch({"noisy": rows}))
    loss = joint_loss(joint, rows, constant=False)
    for (part, ours), name in zip(steps, ("revision", "net"), strict=True):
        found = torch.autograd.grad(ours, list(part.parameters()))
        wanted = torch.autograd.grad(loss, list(getattr(joint, name).parameters()), retain_graph=True)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
        with torch.no_grad():  # the network's gradient is taken where ΔT was before its step
            method.revision["delta"].add_(1)


def test_the_weights_of_the_second_stage_are_constants():
    method, rows, *_ = ready()
    with torch.no_grad():
        method.revision["delta"].zero_()
    loss = joint_loss(copy.deepcopy(method), rows, constant=True)
    ((_, ours),) = method.step(Batch({"noisy": rows}))
    np.testing.assert_allclose(ours.item(), loss.item(), rtol=1e-9)
    bias = torch.autograd.grad(ours, method.net.clean.bias)[0]
    twin = copy.deepcopy(method)
    np.testing.assert_allclose(
        bias, torch.autograd.grad(joint_loss(twin, rows, constant=True), twin.net.clean.bias)[0], rtol=1e-9
    )


def test_the_estimate_is_made_of_noisy_rows_below_the_percentile():
    p = np.random.default_rng(0).dirichlet(np.ones(3), 50)
    method, asked = build(percentile=90.0), []
    method.estimate(lambda source: asked.append(source) or (torch.from_numpy(p), None))
    np.testing.assert_allclose(method.transition, ref_anchors(p, 90), rtol=1e-12)
    assert asked == ["noisy"]


def test_with_the_identity_and_no_revision_it_is_plain_cross_entropy():
    method, rows = build(), rows_of()
    losses = [copy.deepcopy(method).step_noisy, copy.deepcopy(method).step]
    plain, weighted = (next(iter(step(Batch({"noisy": rows}))))[1].item() for step in losses)
    np.testing.assert_allclose(plain, weighted, rtol=1e-12)


def test_a_label_that_T_forbids_weighs_a_bounded_amount_unless_unguarded():
    f, labels = torch.tensor([[0.5, 0.5]], dtype=torch.float64), torch.tensor([0])
    nothing = torch.zeros(1, 2, dtype=torch.float64)
    assert build(2)._importance(f, nothing, labels).item() == pytest.approx(5e6)
    assert build(2, guard=0.0)._importance(f, nothing, labels).item() == np.inf


def test_a_row_is_counted_in_the_whole_batch_on_several_ranks(monkeypatch):
    method, _, T, dT, _ = ready(shift="counted")
    monkeypatch.setattr(module, "world", lambda: 2)
    monkeypatch.setattr(module, "rank", lambda: 1)
    found = method._columns(method.revision["delta"], torch.tensor([0, 2])).detach()
    np.testing.assert_allclose(found, [T[:, 0] + 2 * dT[:, 0], T[:, 2] + 4 * dT[:, 2]], rtol=1e-12)


@pytest.mark.parametrize(("epochs", "parts"), [(420, (20, 200, 200)), (240, (11, 114, 115)), (2, (1, 1, 1))])
def test_stages_are_as_long_and_as_fast_as_the_authors(epochs, parts):
    method = build()
    recipe = METHODS["t-revision"].schedule.applied(Recipe())
    assert recipe.epochs == 420
    stages = method.plan(replace(recipe, epochs=epochs))
    assert tuple(stage.epochs for stage in stages) == parts
    assert [stage.start for stage in stages] == ["last", "best", "best"]
    early, slow = (stage.optim[method.net] for stage in stages[:2])
    assert (early.momentum, slow.momentum) == (0, 0.9)
    assert [early.rate_at(e) for e in (1, 100)] == pytest.approx([0.01, 0.01])
    assert [slow.rate_at(e) for e in (40, 41, 80, 81)] == pytest.approx([0.01, 0.001, 0.001, 1e-4])
    for spec in stages[2].optim.values():
        assert (spec.kind, spec.rate_at(200), spec.weight_decay) == ("adam", 5e-7, 5e-4)
