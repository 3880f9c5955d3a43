"""An epoch's row and the evaluation of a method that says the same of a row at any time, against loops."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from builders import CPU32, make_tiny_task
from fasten.contract import Recipe
from fasten.data.arrays import rows_from_arrays
from fasten.engine import predictions
from fasten.evaluate import Watch, evaluate
from fasten.own import make_own_task
from fasten.records import Run
from fasten.runs.building import build_method, make_loader
from reference.metrics import ref_auroc, ref_chi_square, ref_counted_transition

TASK = make_tiny_task()
N = TASK.num_classes


class Fixed(nn.Module):
    """Does not train; says something of each row, and has kept what it is given."""

    def __init__(self, **tables: torch.Tensor) -> None:
        super().__init__()
        for name, table in tables.items():
            self.register_buffer(name, table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Probabilities that depend on the pixels in some way."""
        return (x.flatten(1)[:, :N] / 3).softmax(1)


def row_of(task=TASK, history=None, **tables):
    return Watch(task, make_loader(task, CPU32, 0))(Fixed(**tables), history or {})


def changed(some: int) -> torch.Tensor:
    """The given labels, the first of them moved to the next class."""
    labels = TASK.given.copy()
    labels[:some] = (labels[:some] + 1) % N
    return torch.from_numpy(labels)


@pytest.mark.parametrize("soft", [False, True])
def test_the_labels_in_use_are_held_against_the_given_ones_and_the_truth(soft):
    labels = changed(7)
    tables = {"soft_labels": nn.functional.one_hot(labels, N).float()} if soft else {"labels": labels.int()}
    row = row_of(**tables)
    assert row["corrected_fraction"] == 7 / len(labels)
    assert row["label_accuracy"] == np.mean(labels.numpy() == TASK.truth)
    assert row["t_diagonal_true"] == pytest.approx(np.diag(ref_counted_transition(TASK.truth, labels, N)).mean())
    assert row_of()["corrected_fraction"] == 0


@pytest.mark.parametrize("some", [0, 7])
@pytest.mark.parametrize("known", [True, False])
def test_an_estimated_t_is_held_against_that_of_the_labels_in_use(some, known):
    """With corrected labels it is another than the one that was injected, and without the truth nobody knows it."""
    rng = np.random.default_rng(0)
    T_hat = rng.dirichlet(np.ones(N), (3, N))
    task = TASK if known else replace(TASK, truth=None)
    row = row_of(task, {"transition": torch.from_numpy(T_hat)}, labels=changed(some).int())
    assert row["t_diagonal"] == pytest.approx(np.mean([np.diag(T).mean() for T in T_hat]))
    if some and not known:
        assert row["chi2"] is None
        assert row["off_support"] is None
        return
    T = ref_counted_transition(TASK.truth, changed(some).numpy(), N) if some else TASK.transition
    chi2, off = zip(*(ref_chi_square(one, T) for one in T_hat), strict=True)
    assert row["chi2"] == pytest.approx(chi2, rel=1e-4)
    assert row["off_support"] == pytest.approx(np.mean(off))


def test_suspicion_is_high_where_a_label_is_likely_wrong():
    rng = np.random.default_rng(1)
    n = len(TASK.given)
    wrong = TASK.given != TASK.truth
    tables = {"weights": rng.random(n), "keep": rng.integers(0, 2, n), "soft_labels": rng.dirichlet(np.ones(N), n)}
    method = Fixed(**{name: torch.from_numpy(table) for name, table in tables.items()})
    found = evaluate(method, TASK, make_loader(TASK, CPU32, 0))
    p_given = np.array([found.probs[row, label] for row, label in enumerate(TASK.given)])
    kept = np.array([tables["soft_labels"][row, label] for row, label in enumerate(TASK.given)])
    scores = {"minus_p_given": -p_given, "minus_weight": -tables["weights"], "dropped": 1 - tables["keep"]}
    for name, score in {**scores, "minus_p_given_corrected": -kept}.items():
        assert found.scores["detection"][name]["auroc"] == pytest.approx(ref_auroc(score, wrong)), name
    assert found.scores["relabel"]["accuracy"] == np.mean(found.probs.argmax(1) == TASK.truth)
    assert found.scores["relabel_corrected"]["accuracy"] == np.mean(tables["soft_labels"].argmax(1) == TASK.truth)
    off = np.abs(found.findings.transition - TASK.transition)
    assert found.scores["transition"]["largest_error"] == off.max()


def test_a_method_that_relabels_is_judged_by_what_it_says_now(monkeypatch):
    """By its networks as they stand, in evaluation mode and in the order of the rows; not by what it once said."""
    monkeypatch.setattr("fasten.evaluate.predictions", partial(predictions, chunk=7))
    torch.manual_seed(0)
    method = build_method(Run("tiny", method="mlac", recipe=Recipe("small-cnn")), TASK).train()
    with torch.no_grad():
        for layer in method.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.normal_()
    found = evaluate(method, TASK, make_loader(TASK, CPU32, 0)).scores
    method.eval()
    loader = make_loader(TASK, CPU32, 0)
    with torch.no_grad():
        _, features = method.net(torch.cat(list(loader.chunks("noisy", 1000))))
        q = method.corrector(features, torch.from_numpy(TASK.given)).double().numpy()
    assert found["relabel_corrected"]["nll"] == pytest.approx(-np.log(q[np.arange(len(q)), TASK.truth]).mean())
    p_given, wrong = q[np.arange(len(q)), TASK.given], TASK.given != TASK.truth
    assert found["detection"]["minus_p_given_corrected"]["auroc"] == pytest.approx(ref_auroc(-p_given, wrong))


def test_of_own_data_the_noisy_rows_are_judged_and_not_others_in_their_place():
    """Verified rows stand among them: they are audited too, and their probabilities are those of other rows."""
    truth = np.arange(60) % N
    x = np.random.default_rng(2).normal(size=(60, N))
    verified = [label if row % 5 == 0 else None for row, label in enumerate(truth.tolist())]
    task = make_own_task(rows_from_arrays(x, truth, y_verified=verified), seed=0, noise="pair:0.4")
    found = evaluate(Fixed(), task, make_loader(task, CPU32, 0))
    assert len(task.audited) > len(task.split.noisy)
    place = {row: number for number, row in enumerate(task.audited.tolist())}
    p_given = [found.probs[place[row], label] for row, label in zip(task.split.noisy.tolist(), task.given, strict=True)]
    wrong = task.given != truth[task.split.noisy]
    assert found.scores["detection"]["minus_p_given"]["auroc"] == pytest.approx(ref_auroc(-np.array(p_given), wrong))
    best = [found.probs[place[row]].argmax() for row in task.split.noisy.tolist()]
    assert found.scores["relabel"]["accuracy"] == np.mean(best == truth[task.split.noisy])
