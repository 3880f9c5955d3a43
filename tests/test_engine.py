"""Stages, schedule and selection, seen through small methods made for the purpose."""

from __future__ import annotations

import importlib
import math
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from builders import CPU64, make_tiny_task
from fasten import update
from fasten.capture import record, warm_up
from fasten.contract import Draw, Optim, Recipe, Stage
from fasten.engine import Fit, predict
from fasten.loader import Loader
from fasten.methods import METHODS, Entry
from fasten.optimizers import SGD
from fasten.records import Run
from fasten.runs.building import build_method
from fasten.update import Update


class Counting(nn.Module):
    """One number that each update raises by the learning rate."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.net.weight)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def step(self, batch):
        yield self.net, -self.net.weight.sum()
        self.seen += batch["noisy"].weight.sum()

    def stage(self, **options) -> Stage:
        optim = {self.net: options.pop("optim", Optim(0.1, momentum=0.0))}
        return Stage("count", self.step, {"noisy": Draw("noisy", 16)}, optim, **options)


def fit_of(method, plan, measure=lambda method, history: {}):
    CPU64.place(method)
    return Fit(method, plan, Loader(make_tiny_task(), CPU64.device, 0, torch.float64), CPU64, measure)


def test_the_rate_falls_at_the_authors_epoch_boundaries():
    rates = [Recipe().sgd().rate_at(epoch) for epoch in range(1, 71)]
    assert [rates.count(rate) for rate in (0.1, 0.01, 0.001)] == [49, 10, 11]


def test_an_update_steps_by_the_rate_of_its_epoch():
    method = Counting()
    fit = fit_of(method, [method.stage(epochs=2, optim=Optim(0.1, momentum=0.0, milestones=(2,)))])
    updates = fit.loader.num_updates(fit.plan[0])
    fit.run()
    assert method.net.weight.item() == pytest.approx(updates * 0.11)
    assert [row["learning_rate"] for row in fit.progress.rows] == [0.1, 0.01]
    assert method.seen == 2 * len(fit.loader.y["noisy"])


def test_the_rate_of_a_row_is_that_of_the_first_update_of_its_epoch():
    method = Counting()
    fit = fit_of(method, [method.stage(epochs=3, optim=Optim(0.1, momentum=0.0, cosine=4))])
    weights = [0.0]
    fit.after_update = lambda epoch_ended: weights.append(method.net.weight.item())
    fit.run()
    steps, updates = np.diff(weights), fit.loader.num_updates(fit.plan[0])
    assert [row["learning_rate"] for row in fit.progress.rows] == pytest.approx(steps[::updates].tolist())


@pytest.mark.parametrize("size", [16, 60, 66])
def test_a_cosine_lasts_as_long_as_the_epochs_however_short_the_last_batch(size):
    method, epochs = Counting(), 4
    stage = method.stage(epochs=epochs, optim=Optim(0.1, momentum=0.0, cosine=epochs))
    fit = fit_of(method, [Stage(**{**vars(stage), "draws": {"noisy": Draw("noisy", size)}})])
    weights = [0.0]
    fit.after_update = lambda epoch_ended: weights.append(method.net.weight.item())
    fit.run()
    updates = epochs * math.ceil(66 / size)
    assert np.diff(weights).tolist() == pytest.approx(
        [0.05 * (1 + math.cos(math.pi * number / updates)) for number in range(updates)]
    )


def test_what_comes_before_the_first_stage_is_not_training():
    fit = fit_of(Counting(), [])
    fit._clock -= 100
    assert fit.snapshot()["seconds"] == 0


def test_sgd_has_momentum_and_weight_decay_as_torch_defines_them():
    method = Counting()
    fit = fit_of(method, [method.stage(updates=3, optim=Optim(0.1, momentum=0.9, weight_decay=0.5))])
    fit.run()
    w = m = 0.0
    for _ in range(3):
        m = 0.9 * m + (-1 + 0.5 * w)
        w -= 0.1 * m
    assert method.net.weight.item() == pytest.approx(w)


@pytest.mark.parametrize(
    ("momentum", "weight_decay", "nesterov"), [(0.9, 0.01, False), (0.9, 0.0, True), (0.0, 0.1, False)]
)
def test_sgd_steps_bit_for_bit_as_torch_does_tensor_by_tensor(momentum, weight_decay, nesterov):
    generator = torch.Generator().manual_seed(0)
    mine = [nn.Parameter(torch.randn(size, generator=generator)) for size in ((33, 7), (33,), (7, 33))]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in mine]
    options = {"momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
    rate = torch.tensor(0.03, dtype=torch.float64)
    optimizer = SGD(Optim(0.0, **options), mine, rate)
    reference = torch.optim.SGD(theirs, lr=0.03, foreach=False, **options)
    for number in range(4):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        rate.fill_(0.03 / 10**number)
        reference.param_groups[0]["lr"] = 0.03 / 10**number
        optimizer.step()
        reference.step()
    assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))


def test_the_best_validation_epoch_is_selected_and_the_later_one_of_equals():
    method, scores = Counting(), iter([0.5, 0.7, 0.6, 0.7, 0.2])
    fit = fit_of(method, [method.stage(epochs=5, updates=1)], lambda method, history: {"valid_accuracy": next(scores)})
    fit.run()
    assert fit.progress.best["epoch"] == 4
    assert method.net.weight.item() == pytest.approx(0.4)
    assert method.seen == 5 * 16, "what the method itself remembers is that of the end"


def test_without_validation_the_last_epoch_is_selected():
    method = Counting()
    fit = fit_of(method, [method.stage(epochs=3, updates=1)], lambda method, history: {"valid_accuracy": None})
    fit.run()
    assert fit.progress.best["epoch"] == 3


def test_a_fresh_stage_starts_from_the_initial_weights_and_keeps_what_prepare_found():
    method, looked = Counting(), []

    def prepare(predict) -> None:
        looked.append((method.net.weight.item(), tuple(predict("clean")[0].shape)))
        method.seen.fill_(1000)

    method.forward = lambda x: torch.zeros(len(x), 3, dtype=torch.float64)
    plan = [method.stage(updates=2), method.stage(updates=1, prepare=prepare, start="initial")]
    fit = fit_of(method, plan)
    fit.run()
    assert looked == [(pytest.approx(0.2), (9, 3))]
    assert method.net.weight.item() == pytest.approx(0.1)
    assert method.seen > 1000


def test_traces_hold_every_update_of_the_epoch():
    method, found = Counting(), []
    stage = method.stage(epochs=2, updates=3)
    fit = fit_of(method, [stage], lambda method, history: found.append(history["w"].flatten().tolist()) or {})
    fit.plan[0] = Stage(**{**vars(stage), "trace": {"w": method.net.weight.data}})
    fit.run()
    assert found == [pytest.approx([0.1, 0.2, 0.3]), pytest.approx([0.4, 0.5, 0.6])]


@pytest.mark.parametrize(("room", "kept"), [(3, [0.2, 0.4, 0.5]), (2, [0.3, 0.5]), (0.1, [0.5])])
def test_traces_too_large_to_hold_every_update_hold_the_last_of_every_few(room, kept, monkeypatch):
    """T of a thousand classes takes 4 MB: of ten thousand updates, that is 40 GB."""
    method, found = Counting(), []
    monkeypatch.setattr(update, "TRACE_BYTES", room * method.net.weight.double().nbytes)
    stage = method.stage(updates=5)
    fit = fit_of(method, [stage], lambda method, history: found.append(history) or {})
    fit.plan[0] = Stage(**{**vars(stage), "trace": {"w": method.net.weight.data}})
    fit.run()
    (history,) = found
    assert history["w"].flatten().tolist() == pytest.approx(kept)
    assert len(history["loss"]) == 5


@pytest.mark.parametrize(("batch_size", "done"), [(16, 0), (16, 3), (16, 4), (40, 0), (40, 1)])
def test_warming_up_changes_nothing_wherever_the_epoch_stands(batch_size, done):
    """Late in an epoch, and in epochs shorter than the warm-up; on a GPU such a write would end the process."""
    recipe, task = Recipe("small-cnn", batch_size=batch_size, milestones=()), make_tiny_task()
    method = CPU64.place(build_method(Run("tiny", recipe=recipe), task))
    loader = Loader(task, CPU64.device, 0, torch.float64)
    (stage,) = method.plan(recipe)
    update = Update(stage, loader, CPU64.device)
    update.set_rates(1)
    method.train()
    picks = list(loader.updates(stage, (0, 1)))
    for pick in picks[:done]:
        update(pick)
    state = [*method.parameters(), *method.buffers(), *update.tensors().values()]
    before = [tensor.detach().clone() for tensor in state]
    warm_up(update, picks[0], state, update.clear)
    assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True))
    assert update.cursor.item() == done


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (RuntimeError("CUDA error: not permitted\nCompile"), ValueError, r"graph \(CUDA error: not permitted\); on"),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError, "^CUDA out of memory$"),
    ],
)
def test_a_network_that_cannot_be_recorded_is_told_with_the_first_reason(monkeypatch, error, kind, message):
    @contextmanager
    def recording(graph, capture_error_mode):
        try:
            yield
        except RuntimeError:
            raise RuntimeError("CUDA error: failed due to a previous error during capture")  # noqa: B904 (as torch's)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", recording)

    def update(picks):
        raise error

    with pytest.raises(kind, match=message):
        record(update, {})


class Mistaken(Counting):
    """A method whose step is wrong, as a new one's may be."""

    def __init__(self, yields) -> None:
        super().__init__()
        self.yields = yields

    def step(self, batch):
        yield from self.yields(self, batch)


@pytest.mark.parametrize(
    ("yields", "message"),
    [
        (lambda method, batch: [], "step of the stage 'count' yields no loss; yield \\(part, loss\\)"),
        (lambda method, batch: [(method, method.net.weight.sum())], "trains Mistaken, which has no optimiser; give it"),
        (lambda method, batch: [(method.net, method.net.weight)], "a loss of shape \\(1, 1\\); make it one number"),
        (
            lambda method, batch: [(method.net, batch["nosy"].x.sum())],
            "draws no 'nosy' for its step; did you mean 'noisy'",
        ),
    ],
)
def test_a_mistake_in_a_step_is_told(yields, message):
    method = Mistaken(yields)
    with pytest.raises(ValueError, match=message):
        fit_of(method, [method.stage()]).run()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("nosy", 16), "unknown set 'nosy' in a draw; did you mean 'noisy'"),
        (("noisy", 0), "at least one row, got a size of 0"),
        (("noisy", 16, "random"), "no draw of the stage 'count' says how long its epochs are; make one a pass"),
    ],
)
def test_a_mistake_in_a_plan_is_told(values, message):
    with pytest.raises(ValueError, match=message):
        Stage("count", Counting().step, {"noisy": Draw(*values)}, {})


@pytest.mark.parametrize(
    ("name", "shape"), [("labels", (5,)), ("soft_labels", (66,)), ("weights", ()), ("keep", (75,))]
)
def test_a_table_that_is_not_of_the_noisy_rows_is_told(name, shape, monkeypatch):
    class Tabled(Counting):
        def __init__(self, backbone, labels, *, num_classes) -> None:
            super().__init__()
            self.register_buffer(name, torch.ones(shape))

    monkeypatch.setitem(METHODS, "tabled", Entry(Tabled, "", ""))
    with pytest.raises(
        ValueError, match=rf"the buffer {name} of Tabled has the shape .* expected \(66.* for each noisy"
    ):
        build_method(Run("tiny", method="tabled", recipe=Recipe("small-cnn")), make_tiny_task())


def test_threads_that_predict_at_once_leave_the_compiler_switched_on():
    importlib.import_module("torch._dynamo")
    fit, compiled = fit_of(Counting(), []), []
    first_began, last_began, first_ended = threading.Event(), threading.Event(), threading.Event()

    def first(x):
        first_began.set()
        assert last_began.wait(30)
        return x.flatten(1)

    def last(x):
        last_began.set()
        assert first_ended.wait(30)
        return x.flatten(1)

    threads = [threading.Thread(target=predict, args=[fit.method, fit.loader, "valid", of]) for of in (first, last)]
    threads[0].start()
    assert first_began.wait(30)
    threads[1].start()
    threads[0].join()
    first_ended.set()
    threads[1].join()
    torch.compile(lambda x: 2 * x, backend=lambda graph, _: compiled.append(graph) or graph)(torch.ones(2))
    assert len(compiled) == 1


def test_a_compiled_network_predicts_without_its_compiled_code():
    class Twice(nn.Module):
        def forward(self, x):
            return 2 * x.flatten(1)

    fit, compiled = fit_of(nn.Sequential(Twice()), []), []
    fit.method[0].compile(backend=lambda graph, _: compiled.append(graph) or graph)
    predict(fit.method, fit.loader, "valid")
    assert not compiled
    fit.method(torch.ones(2, 3))
    assert len(compiled) == 1
