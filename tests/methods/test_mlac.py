"""MLaC against its authors' own numbers, a step taken by torch's own optimiser, and its network in NumPy."""

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
from builders import CPU64, make_tiny_task
from fasten import ranks
from fasten.contract import Batch, Recipe
from fasten.methods.mlac import MLaC
from fasten.nets.corrector import Corrector
from fasten.ops.lookahead import with_gradient
from fasten.records import Run
from fasten.runs.beginnings import check_plan
from fasten.runs.building import build_method, plan_of
from fasten.update import Update

AUTHORS = numbers_of("mlac")
PLAIN = AUTHORS["runs"][0]
RUNS = list(zip(AUTHORS["runs"], AUTHORS["check"].values(), strict=True))
RATE = 0.1


def corrector_name(name: str) -> str:
    return name.replace("cls_emb.", "embedding.").replace("net.", "layers.")


def authors_problem(run, check, **options):
    """The method, its stage and six batches as the file has them."""
    rng = np.random.RandomState(AUTHORS["settings"]["seed"])
    main, meta = draw_weights(rng, AUTHORS["parameters"]), draw_weights(rng, run["meta_parameters"])
    images = draw_checked(rng, (48, 3, 8, 8), check["images"])
    given = torch.from_numpy(rng.randint(0, 4, 48))
    clean = draw_checked(rng, (48, 3, 8, 8), check["clean"])
    clean_y = torch.from_numpy(rng.randint(0, 4, 48))
    assert given.tolist() == check["given"]
    assert clean_y.tolist() == check["clean_y"]

    sizes = {"embedding": 6, "hidden": 10, "skip": run["skip_link"]}
    method = CPU64.place(MLaC(SmallNet(), given, num_classes=4, **sizes, **options)).train()
    load_weights(method.net, main)
    load_weights(method.corrector, meta, corrector_name)
    (stage,) = method.plan(Recipe(batch_size=8, rate=RATE, milestones=()))
    rows = torch.arange(48).split(8)
    draws = [{"noisy": examples(images[r], given[r], r), "clean": examples(clean[r], clean_y[r])} for r in rows]
    return method, stage, draws


def clean_loss(method, draws):
    """Of the half that the meta-loss is made of, with the weights as they are now."""
    clean = draws["clean"]
    with method.net.parts.using(virtual=True):
        logits, _ = method.net(clean.x[:4])
    return F.cross_entropy(logits, clean.y[:4])


def trained(method, stage, draws) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What the file records of each update, seen from outside, and all of the meta-gradient."""
    seen, gradients = {name: [] for name in PLAIN["per_update"]}, []
    theta, last = list(method.net.parameters()), method.corrector.layers[4]
    update = Update(stage, Served(draws), CPU64.device)
    at_start = clean_loss(method, draws[0])
    for t, loss in enumerate(updates(update, [(1, 0)] * len(draws))):
        meta_loss = clean_loss(method, draws[t])  # the look-ahead ends where the step ends
        slopes = torch.autograd.grad(meta_loss, theta)
        seen["clean_loss_at_start"].append(at_start.item())
        seen["inner_loss"].append(loss)
        seen["meta_loss"].append(meta_loss.item())
        seen["proxy"].append(-RATE * sum((w.grad * slope).sum().item() for w, slope in zip(theta, slopes, strict=True)))
        seen["soft_labels"].append(method.soft_labels[draws[t]["noisy"].index].tolist())
        seen["meta_output_bias"].append(last.bias.tolist())
        seen["meta_gradient_output_layer"].append([*last.weight.grad.flatten().tolist(), *last.bias.grad.tolist()])
        gradients.append(flat([p.grad for p in method.corrector.parameters()]).numpy())
        seen["meta_gradient_norm"].append(np.linalg.norm(gradients[-1]))
        at_start = clean_loss(method, draws[min(t + 1, len(draws) - 1)])
    return {name: np.array(values) for name, values in seen.items()}, np.array(gradients)


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.flatten() for t in tensors])


def as_released(method, stage, steps):
    """The authors' meta-gradient: taken with the weights moved already, as a discounted sum over `steps` updates."""
    total, done = [], []

    def step(batch):
        (corrector, meta_loss), (net, loss) = list(stage.step(batch))
        omega, theta = list(corrector.parameters()), list(net.parameters())
        before = torch.autograd.grad(clean_loss(method, batch), theta)
        forces = torch.autograd.grad(loss, theta, retain_graph=True)
        here = [w.data for w in theta]
        for w, force, v in zip(theta, forces, batch.velocities[net], strict=True):
            w.data = w.data - RATE * (0.9 * v + force + 5e-4 * w.data)
        after = torch.autograd.grad(clean_loss(method, batch), theta)
        new = torch.autograd.grad(meta_loss, omega)
        for w, data in zip(theta, here, strict=True):
            w.data = data
        gamma = (1 - RATE) * flat(after) @ flat(before) / flat(before).square().sum()
        total[:] = [n + gamma * t for n, t in zip(new, total or [0.0] * len(new), strict=True)]
        for p, g in zip(omega, total, strict=True):
            p.grad = g
        done.append(batch)
        if len(done) % steps == 0:
            yield corrector, with_gradient(meta_loss.detach(), omega, total)
            total.clear()
        yield net, loss

    return replace(stage, step=step)


def without_running(state: dict) -> dict:
    """The authors let virtual passes move the running statistics, which have no part in training."""
    return {name: values for name, values in state.items() if "running" not in name}


def follow_the_authors(run, check):
    method, stage, draws = authors_problem(run, check, route="graph")
    found, gradients = trained(method, as_released(method, stage, run["gradient_steps"]), draws)
    return method, found, gradients


@pytest.mark.parametrize(("run", "check"), RUNS, ids=["one step", "three steps, skip link"])
def test_six_updates_are_those_of_the_authors_code_given_its_meta_gradient(run, check):
    method, found, _ = follow_the_authors(run, check)
    for name, values in run["per_update"].items():
        np.testing.assert_allclose(found[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
    assert_state(method.net, without_running(run["after"]["main"]))
    assert_state(method.corrector, run["after"]["meta"], corrector_name)
    np.testing.assert_allclose(weight_sum(method.net), run["weight_sum"], rtol=1e-9)
    np.testing.assert_allclose(weight_sum(method.corrector), run["meta_weight_sum"], rtol=1e-9)


@pytest.mark.parametrize("route", ["tangent", "graph"])
def test_the_exact_meta_gradient_is_as_far_from_the_authors_as_their_file_says(route):
    _, _, theirs = follow_the_authors(*RUNS[0])
    method, stage, draws = authors_problem(*RUNS[0], route=route)
    found, ours = trained(method, stage, draws)
    distances = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(ours, axis=1)
    np.testing.assert_allclose(distances, PLAIN["exact_meta_gradient"]["relative_distance_per_update"], rtol=1e-7)
    for name, values in PLAIN["per_update"].items():
        if name.startswith("meta_gradient"):
            continue
        np.testing.assert_allclose(found[name][0], values[0], rtol=1e-9, atol=1e-12, err_msg=name)  # before ω matters
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
    assert_state(method.net, without_running(PLAIN["after"]["main"]), rtol=1e-6)
    assert_state(method.corrector, PLAIN["after"]["meta"], corrector_name, rtol=1e-5)


def problem(**options):
    """After two updates, so that there is momentum, the batch of a third and where the optimiser stands."""
    torch.manual_seed(0)
    y = torch.randint(0, 3, (6,))
    method = MLaC(SmallNet(), y, num_classes=3, embedding=4, hidden=5, **options)
    CPU64.place(method).train()
    (stage,) = method.plan(Recipe(batch_size=6, rate=0.3, weight_decay=0.05, milestones=()))
    draws = [{"noisy": examples(randn(6), y), "clean": examples(randn(7), torch.randint(0, 3, (7,)))} for _ in range(3)]
    update = Update(stage, Served(draws), CPU64.device)
    list(updates(update, [(1, 0)] * 2))
    assert min(v.abs().max() for v in update.velocities[method.net]) > 0
    return method, stage, Batch(draws[2], update.rates, update.velocities)


def randn(rows: int) -> torch.Tensor:
    return torch.randn(rows, 3, 8, 8, dtype=torch.float64)


def clean_loss_after_a_step(method, batch) -> float:
    """A real step of torch's optimiser on a copy, and the loss of the first three clean rows from there."""
    net, noisy, clean = copy.deepcopy(method.net), batch["noisy"], batch["clean"]
    sgd = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9, weight_decay=0.05)
    for weight, velocity in zip(net.parameters(), batch.velocities[method.net], strict=True):
        sgd.state[weight]["momentum_buffer"] = velocity.clone()
    (z, h), (z_c, _) = net(noisy.x), net(clean.x[3:])
    q = method.corrector(h, noisy.y).detach()
    soft = [-sum(q[i, j] * z[i].log_softmax(0)[j] for j in range(3)) for i in range(6)]
    plain = [-z_c[i].log_softmax(0)[clean.y[3 + i]] for i in range(4)]
    (sum(soft + plain) / 10).backward()
    sgd.step()
    return F.cross_entropy(net(clean.x[:3])[0], clean.y[:3]).item()


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("route", ["tangent", "graph"])
def test_the_meta_gradient_is_that_of_a_step_really_taken(route, skip):
    method, stage, batch = problem(route=route, skip=skip)
    (_, meta_loss), _ = list(stage.step(batch))
    assert meta_loss.item() == pytest.approx(clean_loss_after_a_step(method, batch), rel=1e-12)
    omega = list(method.corrector.parameters())
    for parameter, gradient in zip(omega, torch.autograd.grad(meta_loss, omega), strict=True):
        place = gradient.abs().argmax()
        entry, values = parameter.data.view(-1), []
        for nudge in (1e-5, -2e-5):
            entry[place] += nudge
            values.append(clean_loss_after_a_step(method, batch))
        entry[place] += 1e-5
        expected = (values[0] - values[1]) / 2e-5
        assert gradient.view(-1)[place].item() == pytest.approx(expected, rel=1e-6, abs=1e-10)


@pytest.mark.parametrize("skip", [False, True])
def test_both_routes_find_the_same_gradients(skip):
    found = []
    for route in ("tangent", "graph"):
        _, stage, batch = problem(route=route, skip=skip)
        found.append([flat(torch.autograd.grad(loss, list(part.parameters()))) for part, loss in stage.step(batch)])
    for ours, theirs in zip(*found, strict=True):
        assert ours.abs().max() > 1e-4
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("route", ["tangent", "graph"])
def test_the_running_statistics_are_those_of_one_pass_of_the_rows_that_train(route):
    method, stage, batch = problem(route=route)
    other = copy.deepcopy(method.net)
    other.each([batch["noisy"].x, batch["clean"].x[3:]], "two-pass")
    list(stage.step(batch))
    for (name, ours), theirs in zip(method.net.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14, msg=name)


def test_rows_that_only_fill_a_batch_count_nowhere():
    """Whatever their labels are; the last noisy and the last clean row are such."""
    gradients = []
    for other_label in (0, 1):
        method, stage, batch = problem()
        noisy, clean = (replace(draw, weight=draw.weight.clone(), y=draw.y.clone()) for draw in batch.draws.values())
        for draw in (noisy, clean):
            draw.weight[-1], draw.y[-1] = 0, other_label
        before = method.soft_labels.clone()
        found = list(stage.step(replace(batch, draws={"noisy": noisy, "clean": clean})))
        assert torch.equal(method.soft_labels[5:], before[5:])
        (z, _), (z_c, _) = method.net.each([noisy.x, clean.x[3:]], "two-pass")
        soft = F.cross_entropy(z[:5], method.soft_labels[:5], reduction="sum")
        plain = F.cross_entropy(z_c[:3], clean.y[3:6], reduction="sum")
        assert found[1][1].item() == pytest.approx((soft + plain).item() / 8, rel=1e-12)
        gradients.append([flat(torch.autograd.grad(loss, list(part.parameters()))) for part, loss in found])
    for one, other in zip(*gradients, strict=True):
        assert one.abs().max() > 1e-4
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_perturbed_soft_labels_are_certain_wherever_the_coin_says_so(share):
    method, stage, batch = problem(perturbation=share)
    coin = torch.tensor([[0.1, 0.99], [0.9, 0.1], [0.4, 0.0], [0.7, 0.5], [0.2, 0.5], [0.6, 0.3]], dtype=torch.float64)
    noisy, clean = replace(batch["noisy"], coin=coin), batch["clean"]
    (_, h), (z_c, _) = method.net.each([noisy.x, clean.x[3:]], "two-pass")
    q = method.corrector(h, noisy.y).detach()
    (corrector, meta_loss), (_, loss) = list(stage.step(replace(batch, draws={"noisy": noisy, "clean": clean})))
    for row, (whether, which) in enumerate(coin.tolist()):
        expected = torch.eye(3, dtype=torch.float64)[int(3 * which)] if whether < share else q[row]
        torch.testing.assert_close(method.soft_labels[row], expected, rtol=1e-9, atol=1e-12)
    (z, _) = method.net(noisy.x)
    soft, plain = F.cross_entropy(z, method.soft_labels), F.cross_entropy(z_c, clean.y[3:])
    assert loss.item() == pytest.approx((6 * soft + 4 * plain).item() / 10, rel=1e-12)  # trained on what is kept
    gradient = flat(torch.autograd.grad(meta_loss, list(corrector.parameters())))
    assert (gradient.abs().max().item() > 0) == (share < 1)  # certain labels have nothing to teach


@pytest.mark.parametrize("skip", [False, True])
def test_the_corrector_is_its_formula(skip):
    torch.manual_seed(0)
    net = Corrector(3, num_classes=4, embedding=2, hidden=5, skip=skip).double()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter)
    E, A, a, B, b, C, c = (p.detach().numpy() for p in net.parameters())
    h, y = np.random.default_rng(0).normal(size=(6, 3)), [0, 1, 2, 3, 3, 0]
    found = net(torch.from_numpy(h), torch.tensor(y)).detach().numpy()
    for i in range(6):
        outputs = C @ np.tanh(B @ np.tanh(A @ np.array([*h[i], *E[y[i]]]) + a) + b) + c
        q = np.exp(outputs[:4]) / np.exp(outputs[:4]).sum()
        if skip:
            kept = 1 / (1 + np.exp(-outputs[4]))
            q = [(1 - kept) * q[j] + kept * (j == y[i]) for j in range(4)]
        np.testing.assert_allclose(found[i], q, rtol=1e-12)


@pytest.mark.parametrize(("num_classes", "size"), [(10, 101_130), (100, 124_260)])
def test_the_corrector_has_the_published_size_and_starts_as_published(num_classes, size):
    torch.manual_seed(0)
    net = Corrector(512, num_classes)
    assert sum(p.numel() for p in net.parameters()) == size
    assert not any(layer.bias.any() for layer in net.layers[::2])
    for layer, fan in zip(net.layers[::2], (640 + 128, 256, 128 + num_classes), strict=True):
        assert layer.weight.std().item() == pytest.approx((2 / fan) ** 0.5, rel=0.1)
    limit = (6 / (num_classes + 128)) ** 0.5
    assert 0.95 * limit < net.embedding.weight.abs().max().item() <= limit


@pytest.mark.parametrize(
    ("clean_batch", "world", "fits"),
    [
        (4, 1, True),
        (6, 2, False),
        (7, 2, True),  # four rows on each rank, one of them filling
        (8, 2, True),
        (8, 3, False),
        (None, 5, False),  # as many as noisy rows, 12
    ],
)
def test_clean_rows_are_refused_where_half_of_a_ranks_share_is_a_single_one(monkeypatch, clean_batch, world, fits):
    task, recipe = make_tiny_task(), Recipe("mlp", batch_size=12, milestones=())
    task = replace(task, x=task.x.reshape(len(task.x), -1).astype(np.float32))
    options = {} if clean_batch is None else {"clean_batch": clean_batch}
    method = build_method(Run("tiny", method="mlac", options=options, recipe=recipe), task)
    monkeypatch.setattr(ranks, "world", lambda: world)
    if fits:
        check_plan(method, plan_of(method, recipe), task)
        return
    refused = f"one clean row of blobs at a time, .* on {world} ranks set clean_batch to {4 * world} or more"
    with pytest.raises(ValueError, match=refused):
        check_plan(method, plan_of(method, recipe), task)
