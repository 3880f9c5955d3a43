"""Evaluate a method: the row of an epoch during training, and the evaluation at the selected epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fasten import metrics
from fasten.audit.findings import Findings, find
from fasten.data.task import Known, Task
from fasten.engine import Row, predict, predictions
from fasten.loader import Loader
from fasten.nets import TwoHead
from fasten.npy import read_npy, write_npy
from fasten.ops.transition import estimate_transition

Probabilities: TypeAlias = "NDArray[np.floating[Any]]"

CHI_SQUARE_POINTS = 44  # per epoch in the record: the paper's 440 updates in groups of ten

# Fields of an epoch's row that are null without a hidden truth, or for a method without T̂.
PERHAPS_KNOWN = ("label_accuracy", "t_diagonal", "t_diagonal_true", "t_smallest_singular", "chi2", "off_support")


class Watch:
    """Makes the row of an epoch, at its end: the only time when numbers are read back from the device."""

    def __init__(self, task: Task, loader: Loader) -> None:
        self.task, self.loader = task, loader

    def __call__(self, method: nn.Module, history: Mapping[str, Tensor]) -> Row:
        parts = {part: y for part in ("valid", "test") if len(y := self.loader.y[part])}
        predicted = {part: predict(method, self.loader, part).argmax(1) for part in parts}
        row: Row = {"valid_accuracy": None, "test_accuracy": None, "predicted_classes": None}
        row |= {f"{part}_accuracy": int((predicted[part] == y).sum()) / len(y) for part, y in parts.items()}
        if len(np.union1d(self.task.valid, self.task.test)) > 1:  # otherwise there may be only one class
            row["predicted_classes"] = int((torch.cat(list(predicted.values())).bincount() > 0).sum())
        labels, T = self._labels(method)
        return row | labels | self._transition(history, T)

    def _labels(self, method: nn.Module) -> tuple[Row, NDArray[np.float64] | None]:
        """Compare the current labels with the given ones and the truth; returns also their true T, if it is known."""
        labels, soft = getattr(method, "labels", None), getattr(method, "soft_labels", None)
        if soft is not None:
            labels = soft.argmax(1)
        now = self.task.given if labels is None else labels.cpu().numpy().astype(np.int64)
        row: Row = {"corrected_fraction": float(np.mean(now != self.task.given)), **dict.fromkeys(PERHAPS_KNOWN)}
        T, truth = self.task.transition, self.task.truth
        if truth is None:
            return row, T if row["corrected_fraction"] == 0 else None
        known = truth >= 0
        counted = metrics.counted_transition(truth, now, self.task.num_classes)
        row["label_accuracy"] = metrics.accuracy(now[known], truth[known])
        row["t_diagonal_true"] = metrics.mean_diagonal(counted)
        return row, counted if row["corrected_fraction"] > 0 or T is None else T

    def _transition(self, history: Mapping[str, Tensor], T: NDArray[np.float64] | None) -> Row:
        """Compare T̂ of the updates of the epoch with the T of the current labels."""
        if "transition" not in history:
            return {}
        T_hat = history["transition"].cpu().double().numpy()  # (U, N, N)
        mean = T_hat.mean(0)
        found: Row = {
            "t_diagonal": metrics.mean_diagonal(mean),
            "t_smallest_singular": metrics.smallest_singular(mean),
        }
        if T is not None:
            chi2, off = metrics.chi_square(T_hat, T)
            groups = np.array_split(chi2, min(CHI_SQUARE_POINTS, len(chi2)))
            found |= {"chi2": [float(f"{g.mean():.5g}") for g in groups], "off_support": float(off.mean())}
        return found


@dataclass(frozen=True)
class Evaluation:
    """The numbers for the record, and what labels.csv, transition.csv and probabilities.npy are made from."""

    scores: dict[str, Any]
    test_accuracy: float | None
    probs: Probabilities  # (audited rows, N): p(y | x)
    findings: Findings
    known: Known  # of the same rows


def evaluate(
    method: nn.Module,
    task: Task,
    loader: Loader,
    min_precision: float | None = None,
    seed: int = 0,
    store: Path | None = None,
    judge: Callable[[Probabilities], Probabilities] | None = None,
) -> Evaluation:
    """Evaluate a method as it is now; `min_precision` is the precision that the corrections of labels must keep.

    With `store`, the probabilities are written to that file as they come and are read from it, so they need no memory.
    `judge` replaces the method's probabilities of the audited rows by others, which know wrong labels better.
    """
    test = predict(method, loader, "test").cpu().double().numpy()
    probs = _probabilities(method, loader, store)
    if judge is not None:
        probs = judge(probs)
        if store is not None:
            write_npy(store, iter([probs]), probs.shape)
    known = audited_known(task)
    found = find(probs, known, min_precision, seed, task.unseen_classes)
    noisy = np.searchsorted(task.audited, task.split.noisy) if task.known is not None else np.arange(len(task.given))
    corrected = _corrected(method, loader)
    scores = {
        "test_nll": metrics.nll(test, task.test),
        "relabel": metrics.relabel_scores(probs, task.truth, task.given, noisy),
        "relabel_corrected": None if corrected is None else metrics.relabel_scores(corrected, task.truth, task.given),
        "detection": _detection(method, task, probs[noisy, task.given], found.judged.p_wrong[noisy], corrected),
        "transition": _compare(found.transition, task.transition) | {"estimated": _clean_set_estimate(method, loader)},
    }
    facts = getattr(method, "facts", None)
    if facts is not None:
        scores["facts"] = {name: value.item() for name, value in facts().items()}
    if task.known is not None:
        scores["evidence"] = None if found.evidence is None else found.evidence.to_json()
    return Evaluation(scores, metrics.accuracy(test, task.test), probs, found, known)


def _probabilities(method: nn.Module, loader: Loader, store: Path | None) -> Probabilities:
    if store is None:
        return _finite(predict(method, loader, "audited").cpu().numpy())
    parts = (_finite(part.cpu().numpy()) for part in predictions(method, loader, "audited"))
    write_npy(store, parts, (len(loader.rows["audited"]), loader.num_classes))
    return read_npy(store)


def _finite(probs: Probabilities) -> Probabilities:
    """Raise if probabilities are not finite: weights may be finite, but so large that their outputs are not."""
    if not np.isfinite(probs).all():
        raise ValueError(
            "training diverged: the weights have grown so large that the network's probabilities are not finite "
            "numbers; train again with a smaller rate"
        )
    return probs


def audited_known(task: Task) -> Known:
    """What is known about the audited rows; if they are not the user's own data, only the given label."""
    if task.known is not None:
        return task.known.take(task.audited)
    no = np.zeros(len(task.given), bool)
    return Known(tuple(map(str, task.ids)), task.given, np.full(len(no), -1), no, no)


def _detection(
    method: nn.Module,
    task: Task,
    p_given: NDArray[np.floating[Any]],
    p_wrong: NDArray[np.float64],
    corrected: NDArray[np.float64] | None,
) -> dict[str, Any]:
    """How well wrong labels are found, by each score of suspicion.

    Besides the classifier's scores, these are what the method itself did to the noisy rows: low weight, dropped,
    corrected.
    """
    suspicion = {"minus_p_given": -p_given, "posterior": p_wrong}
    weights, keep = _table(method, "weights"), _table(method, "keep")
    if weights is not None:
        suspicion["minus_weight"] = -weights
    if keep is not None:
        suspicion["dropped"] = 1 - keep
    if corrected is not None:
        suspicion["minus_p_given_corrected"] = -corrected[np.arange(len(corrected)), task.given]
    return {name: metrics.detection_scores(score, task.truth, task.given) for name, score in suspicion.items()}


def _table(method: nn.Module, name: str) -> NDArray[np.float64] | None:
    """A buffer of a method with a row for each noisy row, as it is at the end of training."""
    buffer = getattr(method, name, None)
    return buffer.cpu().double().numpy() if isinstance(buffer, Tensor) else None


@torch.no_grad()
def _corrected(method: nn.Module, loader: Loader) -> NDArray[np.float64] | None:
    """Soft labels of the noisy rows: what the method's `relabel` gives now, or the ones that it has kept."""
    features_of, relabel = getattr(method, "features", None), getattr(method, "relabel", None)
    if relabel is None:
        return _table(method, "soft_labels")
    found: list[Tensor] = []
    given = loader.y["noisy"]
    for features in predictions(method, loader, "noisy", features_of):
        found.append(relabel(features, given[: len(features)]))
        given = given[len(features) :]
    return torch.cat(found).cpu().double().numpy()


def _compare(T: NDArray[np.float64], true: NDArray[np.float64] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"given": T.tolist(), "true": None, "chi2": None, "off_support": None}
    if true is not None:
        chi2, off = metrics.chi_square(T, true)
        found |= {"true": true.tolist(), "chi2": float(chi2), "off_support": float(off)}
    return found | {"largest_error": None if true is None else float(np.abs(T - true).max())}


def _clean_set_estimate(method: nn.Module, loader: Loader) -> list[list[float]] | None:
    """T̂ over the whole clean set, in evaluation mode; None for methods without a noisy head."""
    net = getattr(method, "net", None)
    if not isinstance(net, TwoHead) or len(loader.y["clean"]) == 0:
        return None
    probs = predict(method, loader, "clean", lambda x: net(x)[1].softmax(1))
    T: list[list[float]] = estimate_transition(probs, loader.y["clean"], loader.num_classes).cpu().double().tolist()
    return T
