"""Users' own rows are judged by the mean of what the network says up to its selected epoch, whatever interrupts it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fasten.contract import Recipe
from fasten.data.arrays import rows_from_arrays
from fasten.engine import predict
from fasten.loader import Loader
from fasten.machine import Machine
from fasten.metrics import auroc
from fasten.opinions import Opinions
from fasten.own import make_own_task
from fasten.records import Run
from fasten.runs import building
from fasten.runs.building import listen, make_fit
from fasten.runs.unseen import Unseen, judge_of
from fasten.stream import StreamLoader
from own_data import make_blobs, wrong_labels

CPU = Machine(torch.device("cpu"))
EPOCHS = 12
RUN = Run("rows", recipe=Recipe("mlp", EPOCHS, 50, rate=0.3, milestones=(), average=0.1), own={})


def judge(fit, run, task):
    return judge_of(fit, Unseen(run, task, fit.machine, fit.progress, print))


def task_of(n=300, *, verified=100):
    x, given, truth = make_blobs(n)
    checked = [str(t) if i < verified else None for i, t in enumerate(truth)]
    return make_own_task(rows_from_arrays(x, [str(g) for g in given], y_verified=checked, name="rows"), 0)


def fit_of(task, run=RUN):
    fit = make_fit(run, task, CPU)
    listen(fit, run, task)
    return fit


def test_it_is_the_mean_of_all_that_was_heard():
    rng, opinions = np.random.default_rng(0), Opinions(7, 3, num_valid=10)
    heard = rng.random((5, 7, 3)).astype(np.float32)
    for probs in torch.from_numpy(heard):
        opinions.listen(0.5, probs.split(3))
    np.testing.assert_allclose(opinions.mean, heard.mean(0), rtol=1e-5)
    opinions.select()
    opinions.forget()
    opinions.listen(0.1, [torch.ones(7, 3)])
    assert (opinions.mean == 1).all(), "nothing is left of an earlier stage"
    np.testing.assert_allclose(opinions.selected, heard.mean(0), rtol=1e-5)


def ref_heard(accuracies, n):
    """The epochs in the mean at the end, epoch by epoch."""
    heard = []
    for epoch, accuracy in enumerate(accuracies):
        best = max(accuracies[: epoch + 1])
        p = (best * n + 1) / (n + 2)
        least = best - np.sqrt(p * (1 - p) / n) - 1e-6
        if accuracy >= least:
            heard = [*(heard if all(accuracies[e] >= least for e in heard) else []), epoch]
    return heard


@pytest.mark.parametrize("n", [10, 50, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_epochs_that_knew_too_little_are_left_out(n, seed):
    rng = np.random.default_rng(seed)
    accuracies = (np.round(n * np.sort(rng.beta(4, 2, 30)) + rng.normal(0, 0.02 * n, 30)).clip(0, n) / n).tolist()
    opinions, said = Opinions(2, 3, num_valid=n), rng.dirichlet(np.ones(3), (30, 2)).astype(np.float32)
    for accuracy, probs in zip(accuracies, said, strict=True):
        opinions.listen(accuracy, [torch.from_numpy(probs)])
    heard = ref_heard(accuracies, n)
    assert int(opinions.times) == len(heard)
    np.testing.assert_allclose(opinions.mean, said[heard].mean(0), rtol=1e-5)


ACCURACIES = [0.1, 0.3, 0.9, 0.92, 0.5, 0.93, 0.92, 0.94, 0.93, 0.5, 0.9, 0.93]


@pytest.mark.parametrize(("most", "heard"), [(EPOCHS, [6, 7, 8]), (5, [6])])
def test_rows_are_judged_by_the_good_epochs_up_to_the_selected_one(most, heard):
    task = task_of()
    fit, said = fit_of(task), []
    fit.opinions.most, fit.opinions.num_valid = most, 100

    def measured(method, history):
        said.append(predict(method, fit.loader, "audited").numpy())
        return {"valid_accuracy": ACCURACIES[len(said) - 1]}

    fit.measure = measured
    fit.run()
    judged = judge(fit, RUN, task)(said[7])
    np.testing.assert_allclose(judged, np.mean([said[epoch - 1] for epoch in heard], axis=0), rtol=1e-5)


@pytest.mark.parametrize("stop", [3, 6, 17])
def test_a_stopped_run_that_continues_has_heard_the_same(stop):
    task = task_of()
    whole, broken = fit_of(task), fit_of(task)
    whole.run()

    def interrupt(epoch_ended):
        if broken.progress.done == stop:
            raise KeyboardInterrupt

    broken.after_update = interrupt
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    kept = {name: tensor.clone() for name, tensor in broken.tensors().items()}
    resumed = fit_of(task)
    resumed.restore(broken.snapshot(), kept)
    resumed.run()
    assert whole.opinions.selected.any()
    assert torch.equal(whole.opinions.selected, resumed.opinions.selected)
    assert torch.equal(whole.opinions.mean, resumed.opinions.mean)


def test_it_is_the_same_where_the_device_has_room_for_the_rows_and_where_it_has_not():
    task, found = task_of(), []
    for kind in (Loader, StreamLoader):
        fit = make_fit(RUN, task, CPU, kind(task, CPU.device, RUN.seed))
        listen(fit, RUN, task)
        fit.run()
        found.append(fit.opinions.selected)
    assert torch.equal(*found)


def test_training_is_the_same_with_and_without():
    task = task_of()
    with_it, without = fit_of(task), make_fit(RUN, task, CPU)
    with_it.run()
    without.run()
    state = without.method.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in with_it.method.state_dict().items())


def test_it_takes_a_method_that_gains_by_it_validation_rows_and_a_table_that_fits_in_memory(monkeypatch):
    task = task_of()
    assert judge(fit_of(task), RUN, task) is not None
    other = replace(RUN, method="mw-net")
    assert judge(fit_of(task, other), other, task) is None
    no_valid = task_of(verified=4)
    assert len(no_valid.valid) == 0
    assert judge(fit_of(no_valid), RUN, no_valid) is None
    monkeypatch.setattr(building, "MOST", 1000)
    assert judge(fit_of(task), RUN, task) is None


def test_wrong_labels_that_the_network_has_memorised_are_still_found():
    images, truth = load_digits(return_X_y=True)
    x, truth = images[:700].astype(np.float32), truth[:700]
    given = wrong_labels(truth, 0.6, 10, seed=0)
    checked = [str(t) if i < 100 else None for i, t in enumerate(truth)]
    task = make_own_task(rows_from_arrays(x, [str(g) for g in given], y_verified=checked, name="rows"), 0)
    run = replace(RUN, recipe=replace(RUN.recipe, epochs=60))
    fit = fit_of(task, run)
    fit.measure = lambda method, history: {"valid_accuracy": 0.5}  # the last epoch is selected
    fit.run()
    last = predict(fit.method, fit.loader, "audited").numpy()
    mean = judge(fit, run, task)(last)
    rows = np.flatnonzero(task.known.verified[task.audited] < 0)
    labels, wrong = given[task.audited][rows], (given != truth)[task.audited][rows]
    by_mean, by_last = (auroc(-probs[rows, labels], wrong) for probs in (mean, last))
    assert 1 - by_mean < 0.7 * (1 - by_last)
