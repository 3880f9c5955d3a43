"""The mean of the weights, against the sum that it stands for, and what it must not touch."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from builders import CPU64, make_tiny_task
from fasten.averaging import PER_EPOCH, Mean
from fasten.contract import Draw, Optim, Recipe, Stage
from fasten.engine import Fit
from fasten.loader import Loader
from test_contract import RECIPE, make_fit

AVERAGED = replace(RECIPE, epochs=3, average=0.4)


def ref_mean(first: np.ndarray, weights: np.ndarray, share: float) -> np.ndarray:
    """As a weighted sum: how much of each is left after all that followed it."""
    pull = 1 / (1 + share * np.arange(1, len(weights) + 1))
    left = np.append(np.cumprod((1 - pull)[::-1])[::-1], 1.0)
    return left[0] * first + ((pull * left[1:])[:, None] * weights).sum(0)


@pytest.mark.parametrize("share", [0.1, 0.4, 1.0])
@pytest.mark.parametrize("length", [7, 3 * PER_EPOCH + 5])
def test_the_mean_is_a_weighted_sum_of_the_weights_so_far(share, length):
    net = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    first, rng = net.weight.detach().numpy()[0].copy(), np.random.default_rng(0)
    mean, taken = Mean([net], share, length), []
    for done in range(1, 2 * length + 1):
        with torch.no_grad():
            net.weight.copy_(torch.from_numpy(rng.normal(size=(1, 3))))
        mean.follow(done)
        if done % max(1, length // PER_EPOCH) == 0:
            taken.append(net.weight.detach().numpy()[0].copy())
    np.testing.assert_allclose(mean.values[0].numpy()[0], ref_mean(first, np.array(taken), share), rtol=1e-12)


def test_with_a_share_of_one_it_is_the_plain_mean_and_with_none_there_is_none():
    net = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(net.weight, 3.0)
    mean, none = Mean([net], 1.0, 1), Mean([net], 0.0, 1)
    for done, value in enumerate([5.0, 10.0, 2.0], 1):
        nn.init.constant_(net.weight, value)
        mean.follow(done)
        none.follow(done)
    assert mean.values[0].item() == pytest.approx((3 + 5 + 10 + 2) / 4)
    with none.in_place():
        assert net.weight.item() == 2
    assert none.values == []


def test_statistics_are_averaged_counts_are_not_and_all_comes_back():
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    mean = Mean([net, net[1]], 0.5, 1)  # what two parts share is taken in once
    assert len(mean.weights) == 6
    net(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)))
    mean.follow(1)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    places = {name: tensor.data_ptr() for name, tensor in net.state_dict().items()}
    with contextlib.suppress(KeyError), mean.in_place():
        assert not torch.equal(net[0].running_mean, before["0.running_mean"])
        assert net[0].num_batches_tracked == 1
        raise KeyError
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert places == {name: tensor.data_ptr() for name, tensor in net.state_dict().items()}


def test_training_is_the_same_and_what_is_evaluated_and_kept_is_the_mean():
    (plain, before), (averaged, track) = trained(replace(AVERAGED, average=0.0)), trained(AVERAGED)
    np.testing.assert_array_equal(before, track)
    assert [row["loss"] for row in plain.progress.rows] == [row["loss"] for row in averaged.progress.rows]
    assert plain.progress.rows[-1]["test_accuracy"] != averaged.progress.rows[-1]["test_accuracy"]

    best = averaged.progress.best
    expected = ref_mean(track[0], np.array(track[1 : best["epoch"] * averaged.update.length + 1]), AVERAGED.average)
    np.testing.assert_allclose(weights_of(averaged), expected, rtol=1e-9)
    again = averaged.measure(averaged.method, averaged.update.history)
    assert again["test_accuracy"] == best["test_accuracy"]


def test_of_a_frozen_network_the_classifier_alone_is_averaged():
    """All else stays as it is, batch-norm statistics too, and checkpoints hold it once."""
    fit = make_fit("dividemix", recipe=replace(AVERAGED, frozen=True))
    backbones = {name: t.clone() for name, t in fit.method.state_dict().items() if "backbone" in name}
    fit.run()
    heads = [p for net in (fit.method.net, fit.method.twin) for p in net.clean.parameters()]
    assert [t.data_ptr() for t in fit.update.mean.weights] == [p.data_ptr() for p in heads]
    assert sum(name.startswith("mean.") for name in fit.tensors()) == 4
    assert any("running_mean" in name for name in backbones)
    assert all(torch.equal(fit.method.state_dict()[name], t) for name, t in backbones.items())


def test_weights_that_do_not_train_are_not_averaged_and_what_trains_is_whatever_mode_it_comes_in():
    fit = make_fit("fasten", recipe=AVERAGED)
    still, *_ = fit.method.net.parameters()
    still.requires_grad_(False)
    fit.method.eval()
    fit.start_stage()
    averaged = {t.data_ptr() for t in fit.update.mean.weights}
    state = {name: t for name, t in fit.method.net.state_dict().items() if t.is_floating_point()}
    assert any("running_mean" in name for name in state)
    assert averaged == {t.data_ptr() for t in state.values()} - {still.data_ptr()}


class Changing(nn.Module):
    """One number that each update raises; the epochs of its second stage are as long as `lengths` says."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1, bias=False)
        self.register_buffer("keep", torch.ones(360))
        self.lengths, self.waiting = lengths, iter(lengths)

    def plan(self) -> list[Stage]:
        draws, optim = {"noisy": Draw("noisy", 3, keep=self.keep)}, {self.net: Optim(0.1, momentum=0.0)}
        first = Stage("first", self.step, draws, optim, 2)
        return [first, replace(first, epochs=len(self.lengths), prepare=self.divide, each_epoch=True, average=0.4)]

    def step(self, batch):
        yield self.net, -self.net.weight.sum()

    def divide(self, predict) -> None:
        self.keep.fill_(0)
        self.keep[: 3 * next(self.waiting)] = 1


@pytest.mark.parametrize("lengths", [[2] * 5, [1] * 7, [5, 120, 7, 1, 40]])
def test_updates_are_counted_that_were_done_where_epochs_change_their_length(lengths):
    """Of a stage of its own; three updates are more than some epochs have, none of which is left out for good."""
    method, task = CPU64.place(Changing(lengths)), make_tiny_task(per_class=128)  # 360 noisy rows
    found, track = [], []

    def weigh(*_) -> dict:
        found.append(method.net.weight.item())
        return {}

    fit = Fit(method, method.plan(), Loader(task, CPU64.device, 0, CPU64.dtype), CPU64, weigh)
    fit.after_update = lambda epoch_ended: track.append(method.net.weight.item())
    fit.run()
    start, second = track[239], np.array(track[240:])[:, None]
    for epoch, mean in enumerate(found[2:], 1):
        taken = second[: sum(lengths[:epoch])][2::3]
        np.testing.assert_allclose(mean, ref_mean(np.array([start]), taken, 0.4)[0], rtol=1e-12)


def trained(recipe: Recipe) -> tuple[Fit, list[np.ndarray]]:
    """A run, and its weights before and after every update."""
    fit = make_fit("fasten", recipe=recipe)
    track = [weights_of(fit)]
    fit.after_update = lambda epoch_ended: track.append(weights_of(fit))
    fit.run()
    return fit, track


def weights_of(fit: Fit) -> np.ndarray:
    return nn.utils.parameters_to_vector(fit.method.net.parameters()).detach().numpy().copy()
