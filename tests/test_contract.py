"""What every method must hold; a new entry of METHODS is tested by being there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from builders import CPU32, CPU64, make_tiny_task
from fasten.contract import Batch, Examples, Recipe
from fasten.engine import Fit, predict
from fasten.evaluate import Watch
from fasten.loader import Loader
from fasten.machine import Machine
from fasten.methods import METHODS
from fasten.options import option_types
from fasten.records import Run
from fasten.runs.building import build_method, plan_of

RECIPE = Recipe("small-cnn", epochs=2, batch_size=16, rate=0.05, milestones=(2,))
GOLDEN = Path(__file__).parent / "golden" / "ours"
NO_GUESSES = {"unlabelled_weight": 0.0}  # as DivideMix's authors have it where few labels are wrong
LITTLE_NOISE = {name: NO_GUESSES for name in ("dividemix", "dividemix-clean", "augdesc")}
OTHERWISE = {"fasten-noisy-t": ("fasten", {"estimate": "noisy"})}  # options that change what a method remembers
ALL = [*METHODS, *OTHERWISE]
TRUTHFUL = [name for name in ALL if name in OTHERWISE or not METHODS[name].true_transition]


class Stopped(Exception):
    pass


def make_fit(name: str, *, recipe: Recipe = RECIPE, machine: Machine = CPU64, task=None, seed=0, options=None) -> Fit:
    task = task or make_tiny_task()
    name, otherwise = OTHERWISE.get(name, (name, {}))
    run = Run("tiny", method=name, options=otherwise | (options or {}), recipe=recipe, seed=seed)
    method = machine.place(build_method(run, task))
    loader = Loader(task, machine.device, seed, machine.dtype)
    return Fit(method, plan_of(method, recipe), loader, machine, Watch(task, loader))


def final(fit: Fit) -> dict[str, torch.Tensor]:
    fit.run()
    return fit.method.state_dict()


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def without_times(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("warm_up", [None, 0.05, 0.95])
def test_its_stages_share_the_epochs_out_and_have_at_least_one_each(name, warm_up):
    entry = METHODS[name]
    options = {} if warm_up is None or "warm_up" not in option_types(entry) else {"warm_up": warm_up}
    method = build_method(Run("tiny", method=name, options=options), make_tiny_task())
    for epochs in range(1, 12):
        found = [stage.epochs for stage in plan_of(method, Recipe(epochs=epochs))]
        assert len(found) == entry.stages
        assert min(found) >= 1
        assert sum(found) == max(epochs, entry.stages)


@pytest.mark.parametrize("name", METHODS)
def test_it_learns_separable_data(name):
    task = make_tiny_task("symmetric:0.1", per_class=40)
    epochs = 8 * METHODS[name].stages
    recipe = replace(RECIPE, epochs=epochs, milestones=(epochs - 1,))
    fit = make_fit(name, recipe=recipe, machine=CPU32, task=task, options=LITTLE_NOISE.get(name))
    fit.run()
    assert fit.progress.best["test_accuracy"] >= 0.6  # chance is a third


@pytest.mark.parametrize("name", METHODS)
def test_it_predicts_a_probability_for_each_class(name):
    fit = make_fit(name)
    probs = predict(fit.method, fit.loader, "test")
    assert probs.shape == (len(fit.loader.y["test"]), fit.loader.num_classes)
    assert (probs >= 0).all()
    torch.testing.assert_close(probs.sum(1), torch.ones_like(probs[:, 0]))


@pytest.mark.parametrize("name", ALL)
def test_it_repeats_itself_from_the_same_seed(name):
    first, second = make_fit(name), make_fit(name)
    assert same(final(first), final(second))
    assert without_times(first.progress.rows) == without_times(second.progress.rows)
    assert not same(first.method.state_dict(), final(make_fit(name, seed=1)))


@pytest.mark.parametrize("name", METHODS)
def test_weights_that_do_not_train_stay_as_they_are(name):
    fit = make_fit(name)
    frozen, *_, trained = fit.method.net.parameters()
    frozen.requires_grad_(False)
    before = frozen.clone(), trained.clone()
    fit.run()
    assert torch.equal(frozen, before[0])
    assert not torch.equal(trained, before[1])


@pytest.mark.parametrize("stop", [1, 4, 5, 7])
@pytest.mark.parametrize("name", ALL)
def test_it_goes_on_after_a_stop_as_if_there_had_been_none(name, stop):
    recipe = replace(RECIPE, average=0.4)
    whole = make_fit(name, recipe=recipe)
    weights = final(whole)
    kept = {}

    def stop_here(epoch_ended: bool) -> None:
        kept["calls"] = kept.get("calls", 0) + 1
        if kept["calls"] == stop:
            kept["progress"] = json.loads(json.dumps(broken.snapshot()))
            kept["tensors"] = {key: tensor.clone() for key, tensor in broken.tensors().items()}
            raise Stopped

    broken = make_fit(name, recipe=recipe)
    broken.after_update = stop_here
    with pytest.raises(Stopped):
        broken.run()
    resumed = make_fit(name, recipe=recipe)
    resumed.restore(kept["progress"], kept["tensors"])
    assert same(final(resumed), weights)
    assert without_times(resumed.progress.rows) == without_times(whole.progress.rows)


@pytest.mark.parametrize("name", TRUTHFUL)
def test_it_never_looks_at_the_hidden_truth(name):
    task = make_tiny_task()
    rng = np.random.default_rng(0)
    garbage = replace(task, truth=rng.integers(0, 3, len(task.given)), transition=rng.dirichlet(np.ones(3), 3))
    assert same(final(make_fit(name, task=task)), final(make_fit(name, task=garbage)))


@pytest.mark.parametrize("name", ALL)
def test_its_steps_never_reach_the_host(name):
    """On fake tensors `.item()`, boolean masks and tensor `if`s raise, as they would stall a GPU."""
    fit = make_fit(name, machine=CPU32)
    run_on_fake_tensors(fit, fit.plan)


@pytest.mark.parametrize("peek", [lambda loss: loss.item(), lambda loss: bool(loss > 0), lambda loss: loss[loss > 0]])
def test_a_step_that_reaches_the_host_is_caught(peek):
    fit = make_fit("cross-entropy", machine=CPU32)

    def step(batch):
        for part, loss in fit.method.step(batch):
            peek(loss)
            yield part, loss

    with pytest.raises(Exception, match=r"DataDependent|DynamicOutputShape|data-dependent|aten"):
        run_on_fake_tensors(fit, [replace(stage, step=step) for stage in fit.plan])


def run_on_fake_tensors(fit, plan):
    loader = fit.loader
    for stage in plan:
        picks = next(iter(loader.updates(stage, (0, 1))))
        examples = loader.draws(stage, picks)
        mode = FakeTensorMode()
        fake_method(fit.method, mode)
        draws = {n: Examples(**fake_tensors(vars(e), mode)) for n, e in examples.items()}
        with mode:
            rates = {part: torch.tensor(0.1) for part in stage.optim}
            velocities = {part: [torch.zeros_like(p) for p in part.parameters()] for part in stage.optim}
            for part, loss in stage.step(Batch(draws, rates, velocities)):
                torch.autograd.grad(loss, list(part.parameters()), allow_unused=True)


def fake_tensors(values, mode):
    return {key: mode.from_tensor(value) for key, value in values.items() if value is not None}


def fake_method(method, mode):
    """Replace every parameter and buffer of a method by a fake one, in place."""
    for module in method.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = torch.nn.Parameter(mode.from_tensor(parameter.detach()))
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = mode.from_tensor(buffer)


@pytest.mark.parametrize("name", ALL)
def test_its_losses_have_not_moved(name, request):
    """Twenty float64 updates; `pytest --update-golden` writes them anew, and the changelog says why."""
    fit = make_fit(name, recipe=replace(RECIPE, epochs=4, milestones=(3,)))
    losses = []
    fit.after_update = lambda ended: None if ended else losses.append(fit.update.loss.item())
    fit.run()
    path = GOLDEN / f"{name}.json"
    found = {"losses": losses[:20], "epoch_losses": [row["loss"] for row in fit.progress.rows]}
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    assert path.exists(), "a new method: write its golden trajectory with --update-golden"
    expected = json.loads(path.read_text())
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-9)
    np.testing.assert_allclose(found["epoch_losses"], expected["epoch_losses"], rtol=1e-9)


def test_every_method_says_what_it_needs():
    for name, entry in METHODS.items():
        assert entry.family, name
        assert entry.about, name
        assert len(plan_of(make_fit(name).method, RECIPE)) == entry.stages
