"""DivideMix against its authors' own numbers, and its pieces against loops in NumPy."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch

from authors import Served, SmallNet, assert_state, draw_checked, draw_weights, load_weights, numbers_of, updates
from builders import CPU64, make_tiny_task
from fasten.contract import Batch, Examples, Recipe
from fasten.engine import Fit
from fasten.evaluate import Watch
from fasten.loader import Loader
from fasten.methods.dividemix import DivideMix
from fasten.ops.mixture import lower_group
from fasten.records import Run
from fasten.runs.building import build_method, plan_of
from fasten.update import Update
from reference.transition import softmax

AUTHORS = numbers_of("dividemix")
RUNS = {run["noise_mode"]: run for run in AUTHORS["runs"]}
RECIPE = Recipe(epochs=12, batch_size=8, milestones=())  # ten of warm-up, as the authors have


def drawn(run):
    """The weights of both networks, two views of the images, given labels, and shares of mixtures."""
    rng = np.random.RandomState(run["seed"])
    weights = [draw_weights(rng, AUTHORS["parameters"]) for _ in range(2)]
    view = draw_checked(rng, (32, 3, 8, 8), run["check"]["view1"])
    again = view + 0.3 * torch.from_numpy(rng.standard_normal((32, 3, 8, 8)))
    np.testing.assert_allclose(again.sum(), run["check"]["view2"]["sum"], rtol=1e-9)
    given = torch.from_numpy(rng.randint(0, 4, 32))
    assert given.tolist() == run["given"]
    return weights, view, again, given, rng.beta(4, 4, 40)


def make(run, **options):
    weights, *rest = drawn(run)
    method = CPU64.place(DivideMix(SmallNet(), SmallNet(), rest[2], num_classes=4, **options)).train()
    for net, mine in zip((method.net, method.twin), weights, strict=True):
        load_weights(net, mine)
    return method, *rest


def rows(view, again, given, index, coin=None):
    index = torch.as_tensor(index)
    ones = torch.ones(len(index), dtype=torch.float64)
    coin = torch.zeros(len(index), 4, dtype=torch.float64) if coin is None else coin
    return Examples(view[index], given[index], index, ones, coin, again[index])


def coins(method, labelled, unlabelled, share, order):
    """Those that make a step mix its rows in this share and order."""
    keys = torch.empty(len(order), dtype=torch.float64)
    keys[torch.as_tensor(order)] = torch.arange(len(order), dtype=torch.float64) / len(order)
    x, u = keys.split([2 * labelled, 2 * unlabelled])
    found = [torch.zeros(labelled, 4, dtype=torch.float64), torch.zeros(unlabelled, 4, dtype=torch.float64)]
    found[0][:, :2], found[1][:, :2] = x.view(2, -1).T, u.view(2, -1).T
    table = method.quantiles.numpy()
    found[0][0, 2] = np.interp(max(share, 1 - share), table, np.linspace(0, 1, len(table)))
    return found


def batches(index):
    return [index[i : i + 8] for i in range(0, len(index), 8)]


@pytest.mark.parametrize("noise", RUNS)
def test_a_whole_run_is_that_of_the_authors_code(noise):
    run = RUNS[noise]
    options = {"warm_up": 10 / 12, "ramp": 16 * 300 / 12, "confidence_penalty": noise == "asym"}
    method, view, again, given, shares = make(run, **options)
    warm_up, mix = method.plan(RECIPE)
    assert (warm_up.epochs, mix.epochs, mix.go_on, mix.each_epoch) == (10, 2, True, True)

    draws = [{"rows": rows(view, again, given, range(i, i + 16))} for i in (0, 16)] * 10
    first = Update(warm_up, Served(draws, per_epoch=2), CPU64.device)
    places = [(epoch, update) for epoch in range(1, 11) for update in range(2)]
    for t, loss in enumerate(updates(first, places)):
        np.testing.assert_allclose(loss, run["warm_up_loss_net2"][t], rtol=1e-9)
        np.testing.assert_allclose(first.history["loss"][0] - loss, run["warm_up_loss_net1"][t], rtol=1e-9, atol=1e-9)
    for number, net in enumerate((method.net, method.twin), 1):
        assert_state(net, run[f"net{number}_after_warm_up"])

    orders, shares = iter(run["permutations"]), iter(shares)
    second = [one_network(mix, k, net) for k, net in enumerate((method.net, method.twin))]
    for update in second:
        update.take_over(first)
    told, losses = iter(zip(run["clean_probability"], run["labelled_rows"], strict=True)), iter(run["train_loss"])
    for epoch in (1, 2):
        method.eval()
        mix.prepare(lambda source, of: (of(view).detach(), given))
        method.train()
        for k in (0, 1):  # one after the other, as there
            w, labelled = next(told)
            np.testing.assert_allclose(method.clean_probability[k, :-1], w, rtol=1e-9)
            assert torch.nonzero(method.clean_probability[k, :-1] > 0.5).flatten().tolist() == labelled
            if 8 <= len(labelled) <= 24:
                assert torch.nonzero(method.split[0, k]).flatten().tolist() == labelled
                assert torch.equal(method.split[1, k], ~method.split[0, k])
            unlabelled = cycle(batches(sorted(set(range(32)) - set(labelled))))
            method.done.zero_()
            method.share.fill_(1 / (len(labelled) // 8 + 1))  # there either network has epochs of its own
            for update, index in enumerate(batches(labelled)):
                others = next(unlabelled)
                tossed = coins(method, len(index), len(others), next(shares), next(orders))
                draw = {f"labelled {k}": rows(view, again, given, index, tossed[0])}
                draw[f"unlabelled {k}"] = rows(view, again, given, others, tossed[1])
                second[k].loader.waiting.append(draw)
                (loss,) = updates(second[k], [(epoch, update)])
                np.testing.assert_allclose(loss, next(losses), rtol=1e-9)
                method.done.add_(1)
    for number, net in enumerate((method.net, method.twin), 1):
        assert_state(net, run[f"net{number}_after"])
        np.testing.assert_allclose(
            sum(p.sum().item() for p in net.parameters()), run["weight_sum"][number - 1], rtol=1e-9
        )


def one_network(mix, k, net):
    """The stage's step for one of the networks alone."""

    def step(batch):
        yield net, mix.step.func.__self__.loss(batch, k, **mix.step.keywords)

    return Update(replace(mix, step=step, optim={net: mix.optim[net]}), Served([], per_epoch=4), CPU64.device)


def ref_sharpened(p, temperature):
    p = p ** (1 / temperature)
    return p / p.sum(1, keepdims=True)


def test_the_loss_is_that_of_the_paper_and_filling_does_not_count():
    method, view, again, given, _ = make(RUNS["sym"], temperature=0.7, unlabelled_weight=3.0)
    method.clean_probability[0, :-1] = torch.linspace(0, 1, 32, dtype=torch.float64)
    method.epoch.fill_(2)
    method.done.fill_(1)
    method.share.fill_(0.25)
    order, own = np.random.RandomState(0).permutation(20), 0.6
    tossed = coins(method, 5, 5, own, order)
    x, u = rows(view, again, given, range(5), tossed[0]), rows(view, again, given, range(20, 25), tossed[1])
    x = replace(x, weight=torch.tensor([1.0, 1, 1, 1, 0], dtype=torch.float64))

    def f(net, images):
        with torch.no_grad():
            return softmax(net(images)[0].numpy())

    p = {name: f(method.net, images) for name, images in (("x1", x.x), ("x2", x.again), ("u1", u.x), ("u2", u.again))}
    method.twin.eval()
    theirs = [f(method.twin, images) for images in u.views]
    method.twin.train()
    w = np.linspace(0, 1, 32)[:5, None]
    q_x = ref_sharpened(w * np.eye(4)[x.y] + (1 - w) * (p["x1"] + p["x2"]) / 2, 0.7)
    q_u = ref_sharpened((p["u1"] + p["u2"] + theirs[0] + theirs[1]) / 4, 0.7)
    images, q = torch.cat([*x.views, *u.views]), np.concatenate([q_x, q_x, q_u, q_u])
    q = own * q + (1 - own) * q[order]
    found = f(method.net, own * images + (1 - own) * images[order])
    counts = [0, 1, 2, 3, 5, 6, 7, 8]
    labelled = np.mean([-(q[i] * np.log(found[i])).sum() for i in counts])
    unlabelled = np.mean([((q[i] - found[i]) ** 2).mean() for i in range(10, 20)])
    mean = np.mean([found[i] for i in [*counts, *range(10, 20)]], axis=0)
    penalty = sum(np.log(0.25 / m) / 4 for m in mean)
    expected = labelled + 3.0 * (2 + 1 * 0.25) / 9 * unlabelled + penalty

    loss = method.loss(Batch({"labelled 0": x, "unlabelled 0": u}), 0, ramp=9.0)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-9)


def test_augdesc_takes_targets_from_weak_views_and_trains_on_strong_ones():
    method, view, again, given, _ = make(RUNS["sym"], strong=True, unlabelled_weight=3.0)
    method.clean_probability[0, :-1] = torch.linspace(0, 1, 32, dtype=torch.float64)
    method.epoch.fill_(9)
    order, own = np.random.RandomState(0).permutation(16), 0.7
    tossed = coins(method, 4, 4, own, order)
    x, u = rows(view, again, given, range(4), tossed[0]), rows(view, again, given, range(20, 24), tossed[1])
    strong = torch.from_numpy(np.random.RandomState(1).standard_normal((2, 4, 2, 3, 8, 8)))

    def f(images):
        with torch.no_grad():
            return softmax(method.net(images)[0].numpy())

    q = np.concatenate([target.numpy() for target in method._targets(0, x, u)])  # of rows without strong views
    images = torch.cat([strong[0][:, 0], strong[0][:, 1], strong[1][:, 0], strong[1][:, 1]])
    q = own * q + (1 - own) * q[order]
    found = f(own * images + (1 - own) * images[order])
    labelled = np.mean([-(q[i] * np.log(found[i])).sum() for i in range(8)])
    unlabelled = np.mean([((q[i] - found[i]) ** 2).mean() for i in range(8, 16)])
    penalty = sum(np.log(0.25 / m) / 4 for m in found.mean(0))

    batch = Batch({"labelled 0": replace(x, strong=strong[0]), "unlabelled 0": replace(u, strong=strong[1])})
    loss = method.loss(batch, 0, ramp=9.0)
    np.testing.assert_allclose(loss.item(), labelled + 3.0 * unlabelled + penalty, rtol=1e-9)
    assert loss != method.loss(Batch({"labelled 0": x, "unlabelled 0": u}), 0, ramp=9.0)


@pytest.mark.parametrize("strong", [True, False])
def test_strong_views_are_drawn_for_mixing_alone(strong):
    method, *_ = make(RUNS["sym"], strong=strong)
    warm_up, mix = method.plan(RECIPE)
    assert not any(draw.strong for draw in warm_up.draws.values())
    assert [draw.strong for draw in mix.draws.values()] == [strong] * 4


@pytest.mark.parametrize(
    ("name", "options", "cure"),
    [("augdesc", {}, "use dividemix"), ("dividemix", {"strong": True}, "leave strong=true out")],
)
def test_rows_that_are_no_images_have_no_strong_views(name, options, cure):
    task = make_tiny_task()
    table = replace(task, x=task.x.reshape(len(task.x), -1).astype(np.float32))
    with pytest.raises(ValueError, match=f"{name} here uses strong augmentation of images, .* has no images; {cure}"):
        build_method(Run("tiny", method=name, options=options, recipe=Recipe("mlp")), table)


@pytest.mark.parametrize("name", ["augdesc", "dividemix"])
def test_clean_rows_that_are_not_there_are_refused(name):
    task = make_tiny_task()
    task = replace(task, clean=task.clean[:0], split=replace(task.split, clean=task.split.clean[:0]))
    with pytest.raises(ValueError, match=f"{name} with clean_rows=true needs clean rows, and blobs has none"):
        build_method(Run("tiny", method=name, options={"clean_rows": True}, recipe=Recipe("small-cnn")), task)


def test_no_gradient_reaches_the_other_network_or_the_targets():
    method, view, again, given, _ = make(RUNS["sym"])
    draws = {name: rows(view, again, given, range(8)) for name in ("labelled 1", "unlabelled 1")}
    loss = method.loss(Batch(draws), 1, ramp=9.0)
    grads = torch.autograd.grad(loss, [*method.net.parameters(), *method.twin.parameters()], allow_unused=True)
    half = len(grads) // 2
    assert all(g is None for g in grads[:half])
    assert all(g is not None for g in grads[half:])
    assert method.net.training  # again, after its turn as the other one


def test_each_network_is_told_by_the_other():
    method, view, _, given, _ = make(RUNS["sym"])
    method.eval().divide(lambda source, of: (of(view).detach(), given), batch_size=4)
    for k, other in enumerate((method.twin, method.net)):
        p = softmax(other(view)[0].detach().numpy())
        nll = np.array([-np.log(p[i, given[i]]) for i in range(32)])
        w = lower_group(torch.from_numpy(nll))
        np.testing.assert_allclose(method.clean_probability[k, :-1], w, rtol=1e-9)
        assert torch.equal(method.split[0, k], w > 0.5)
        if k == 0:  # whose rows an epoch passes over
            assert method.share == 1 / ((w > 0.5).sum().item() // 4 + 1)  # as the authors count an epoch's updates
    assert torch.equal(method.split[1], ~method.split[0])
    torch.testing.assert_close(method.weights, method.clean_probability[:, :-1].mean(0))


def test_clean_rows_are_labelled_for_good_if_asked_for():
    task = make_tiny_task()
    for wanted in (False, True):
        run = Run("tiny", method="dividemix", options={"clean_rows": wanted}, recipe=Recipe("small-cnn", batch_size=16))
        method = CPU64.place(build_method(run, task))
        loader = Loader(task, CPU64.device, 0, CPU64.dtype)
        warm_up, mix = plan_of(method, run.recipe)
        assert mix.start == ("best" if wanted else "last")
        method.split[0] = False
        method.split[0, :, :10] = True
        method.clean_probability[:, :-1] = 0
        picked = {}
        for stage in (warm_up, mix):
            for picks in loader.updates(stage, (0, 1)):
                for name, p in picks.items():
                    picked.setdefault(name, set()).update(p.index[p.weight > 0].tolist())
        clean = set(range(66, 75)) if wanted else set()
        assert picked["rows"] == set(range(66)) | clean
        assert picked["labelled 0"] == set(range(10)) | clean
        assert picked["unlabelled 0"] <= set(range(66))
        if wanted:
            x = loader.draws(mix, {"labelled 0": next(iter(loader.updates(mix, (0, 1))))["labelled 0"]})["labelled 0"]
            certain = x.index >= 66
            q = method._targets(0, x, x)[0]
            assert torch.equal(q[certain].argmax(1), x.y[certain])
            assert bool((q[certain].amax(1) > 1 - 1e-9).all())
            assert not bool((q[~certain].amax(1) > 1 - 1e-9).any())


def test_where_all_losses_are_the_same_there_are_still_rows_on_either_side():
    method, _, _, given, _ = make(RUNS["sym"])
    method.divide(lambda source, of: (torch.zeros(32, 4, dtype=torch.float64), given), batch_size=8)
    assert bool(torch.isfinite(method.clean_probability).all())
    assert bool((method.split.sum(2) >= 8).all())


def test_predictions_are_of_both_networks():
    method, view, *_ = make(RUNS["sym"])
    method.eval()
    with torch.no_grad():
        z = (method.net(view)[0] + method.twin(view)[0]) / 2
        np.testing.assert_allclose(method(view), softmax(z.numpy()), rtol=1e-9)


def test_both_networks_begin_differently():
    method = build_method(Run("tiny", method="dividemix", recipe=Recipe("small-cnn")), make_tiny_task())
    mine, theirs = (list(net.parameters()) for net in (method.net, method.twin))
    assert not any(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True) if a.ndim > 1)


def test_the_rate_falls_where_the_recipe_says_whatever_the_warm_up_takes():
    method, *_ = make(RUNS["sym"], warm_up=0.1)
    warm_up, mix = method.plan(Recipe(epochs=30, milestones=(16,), rate=0.1))
    assert (warm_up.epochs, mix.epochs) == (3, 27)
    assert [mix.optim[method.twin].rate_at(epoch) for epoch in (12, 13)] == pytest.approx([0.02, 0.002])


class Stopped(Exception):
    pass


def make_fit(name="dividemix", task=None, **options):
    recipe, task = Recipe("small-cnn", epochs=5, batch_size=8, milestones=(), average=0.4), task or make_tiny_task()
    method = CPU64.place(build_method(Run("tiny", method=name, options=options, recipe=recipe), task))
    loader = Loader(task, CPU64.device, 0, CPU64.dtype)
    return Fit(method, plan_of(method, recipe), loader, CPU64, Watch(task, loader))


@pytest.mark.parametrize("noise", ["symmetric:0.3", "symmetric:0.6"])
@pytest.mark.parametrize("name", ["dividemix", "dividemix-clean"])
def test_the_ramp_rises_with_every_update_and_by_one_in_an_epoch(name, noise):
    """For both networks, whatever rows each of them has; clean rows may be among them."""
    fit, come = make_fit(name, make_tiny_task(noise), warm_up=0.2), []

    def look(ended):
        method, updates = fit.method, fit.update.length
        if fit.progress.stage == 1:
            come.append((method.epoch + method.done * method.share).expand(2).tolist())
            assert max(come[-1]) <= method.epoch + 1
            assert not ended or min(come[-1]) >= method.epoch + updates / (updates + 1)

    fit.after_update = look
    fit.run()
    assert bool((np.diff(come, axis=0) > 0).all())


def test_rows_are_divided_before_every_epoch_and_a_stop_at_any_update_changes_nothing():
    whole, lengths = make_fit(), []
    whole.after_update = lambda ended: lengths.append(whole.update.length) if ended else None
    whole.run()
    expected = whole.method.state_dict()
    assert whole.method.epoch == 3  # four divisions
    assert len(set(lengths[1:])) > 1  # epochs of different lengths
    calls = sum(lengths)
    for stop in (lengths[0] + 2, sum(lengths[:2]), sum(lengths[:2]) + 1, calls - 1):
        broken, kept = make_fit(), {"calls": 0}

        def stop_here(ended, broken=broken, kept=kept, stop=stop):
            kept["calls"] += 1
            if kept["calls"] == stop:
                kept |= {"progress": broken.snapshot(), "tensors": {k: t.clone() for k, t in broken.tensors().items()}}
                raise Stopped

        broken.after_update = stop_here
        with pytest.raises(Stopped):
            broken.run()
        resumed = make_fit()
        resumed.restore(kept["progress"], kept["tensors"])
        resumed.run()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in resumed.method.state_dict().items())
