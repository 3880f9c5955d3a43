"""observe(): the audit of a run, for your own training loop.

The recorder keeps p(y | x) of each row as the mean over all times that the loop has shown the row. Early in training a
network has not yet memorised wrong labels; at the end it may have. The last epoch then tells nothing, but the mean
still does. If a loop does not memorise them, it makes no difference. `forget()` leaves out what came before.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fasten.audit.corrections import check_precision
from fasten.audit.findings import find
from fasten.audit.gallery import thumbnail
from fasten.audit.stored import audit_probabilities, make_known
from fasten.data.labels import Picked
from fasten.data.task import Known, Labels
from fasten.sentences import some

SHOWN = 5  # rows in a sentence


def observe(
    labels: Any,
    *,
    class_names: Sequence[str] | None = None,
    verified: Any = None,
    picked: Sequence[Picked | None] | None = None,
    ids: Any = None,
    min_precision: float | None = None,
    seed: int = 0,
) -> Observer:
    """Return a recorder for a training loop: `update(index, logits)` in every batch, `audit()` at the end.

    `labels` are the given ones: numbers of logits, or names among `class_names`, which are in the order of the logits.
    `verified` holds the labels that somebody checked, and None, NaN or -1 if nobody did; `picked` says how these rows
    were picked, "random" (the default) or "chosen". A third of the random verdicts is held back to judge the audit, so
    train on `observer.labels`, which holds the others. `ids` are the names of the rows.

    >>> watch = observe([0, 1, 1], class_names=["cat", "dog"])
    >>> watch.update(torch.tensor([0, 1, 2]), torch.tensor([[9.0, 0.0], [0.0, 9.0], [9.0, 0.0]]))
    >>> watch.audit().label_issues[["row", "given", "suggested"]].values.tolist()[0]
    [2, 'dog', 'cat']
    """
    check_precision(min_precision)  # before the training
    names = None if class_names is None else [str(name) for name in class_names]
    known = make_known(labels, names, ids=ids, verified=verified, picked=picked, seed=seed, what="labels")
    return Observer(known, names, min_precision, seed)


class Observer:
    """Keeps the mean p(y | x) of every row, on the device where the logits are; see `observe`.

    `labels` are those to train on: the verified label if there is one that is not held back, otherwise the given one.
    `clean` are the rows of such verdicts.
    """

    def __init__(self, known: Known, class_names: list[str] | None, min_precision: float | None, seed: int) -> None:
        self.known, self.class_names, self.min_precision, self.seed = known, class_names, min_precision, seed
        self.labels = torch.from_numpy(np.where(known.trained, known.verified, known.given))
        self.clean = torch.from_numpy(np.flatnonzero(known.trained))
        self._total: Tensor | None = None  # (rows, N): sums of probabilities
        self._times: Tensor | None = None  # (rows,): how often each was seen

    def update(self, index: Any, logits: Any) -> None:
        """Record a batch: which rows it holds, and the logits of each. The host does not wait for the device."""
        rows, logits = torch.as_tensor(index), torch.as_tensor(logits)
        if rows.dtype == torch.bool or rows.is_floating_point():
            raise ValueError(f"index holds {rows.dtype}; give the numbers of the rows, as whole numbers")
        rows = rows.long()  # torch has no minimum for some unsigned types
        if logits.ndim != 2 or rows.shape != logits.shape[:1]:
            raise ValueError(
                f"index has shape {tuple(rows.shape)} and logits {tuple(logits.shape)}; give (B,) and (B, classes)"
            )
        if rows.device.type == "cpu":  # elsewhere the check would make the host wait
            self._check_rows(rows)
        total, times = self._tables(logits)
        rows = rows.to(logits.device, non_blocking=True)
        p = logits.detach().float().softmax(1)
        total.index_add_(0, rows, p)
        times.index_add_(0, rows, torch.ones_like(p[:, 0]))

    def forget(self) -> None:
        """Start again, for example after a warm-up."""
        self._total = self._times = None

    def audit(self) -> ObservedAudit:
        """Audit the labels of the rows seen so far."""
        if self._total is None or self._times is None:
            raise ValueError("no row was observed; call update(index, logits) in the training loop")
        times = self._times.cpu().numpy()
        rows = np.flatnonzero(times)
        probs = self._total.cpu().numpy()[rows]
        probs /= times[rows, None]
        broken = rows[~np.isfinite(probs).all(1)]
        if len(broken):
            raise ValueError(
                f"the logits of {some(len(broken), 'row')} were not finite at some time, first row {broken[0]}; lower "
                "the learning rate, or call forget() once they are finite again"
            )
        known = self.known.take(rows)
        found = find(probs, known, self.min_precision, self.seed)
        never_seen = np.flatnonzero(times == 0)
        unseen = _unseen(never_seen, len(times))
        for sentence in unseen:
            warnings.warn(sentence, UserWarning, stacklevel=2)
        names = tuple(self.class_names or map(str, range(probs.shape[1])))
        table = found.table(known, names)
        return ObservedAudit(
            label_issues=table.assign(row=rows[table["row"]]),
            transition_matrix=found.transition,
            evidence=None if found.evidence is None else found.evidence.to_json(),
            probabilities=probs,
            never_seen=never_seen,
            class_names=names,
            notes=(*unseen, *found.notes),
            observer=self,
        )

    def _check_rows(self, rows: Tensor) -> None:
        total = len(self.labels)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < total:
            raise ValueError(
                f"index runs from {int(rows.min())} to {int(rows.max())}, but there are {total} labels; number the "
                "rows from 0, in the order of the labels"
            )

    @torch.inference_mode(False)  # a tensor made in inference mode could not be changed outside of it
    def _tables(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The two tables, where the logits are; made at the first batch, which shows how many classes there are."""
        if self._total is None or self._times is None:
            least = len(self.class_names or ()) or 1 + max(1, self.known.given.max(), self.known.verified.max())
            if logits.shape[1] < least or (self.class_names and logits.shape[1] != least):
                cure = f"give one for each class, 0 to {least - 1}"
                raise ValueError(f"logits have {logits.shape[1]} columns for {least} classes; {cure}")
            self._total = torch.zeros(len(self.labels), logits.shape[1], device=logits.device)
            self._times = torch.zeros(len(self.labels), device=logits.device)
        if self._total.shape[1] != logits.shape[1]:
            raise ValueError(
                f"logits have {logits.shape[1]} columns, but had {self._total.shape[1]} before; give as many every time"
            )
        self._total, self._times = self._total.to(logits.device), self._times.to(logits.device)
        return self._total, self._times


@dataclass(frozen=True, eq=False)
class ObservedAudit:
    """What is found about the labels of the rows that were seen, and what randomly verified ones say about it."""

    label_issues: pd.DataFrame  # the columns of labels.csv, most suspect row first
    transition_matrix: NDArray[np.float64]  # T[i, j] = P(given = j | true = i)
    evidence: Mapping[str, Any] | None  # as in record.json; None: no row was verified at random
    probabilities: NDArray[np.float32]  # p(y | x) of the rows that were seen
    never_seen: Labels  # rows without logits
    class_names: tuple[str, ...]
    notes: tuple[str, ...]  # sentences for the user
    observer: Observer

    def save(self, folder: str | os.PathLike[str], *, name: str = "my data", images: Any = None) -> None:
        """Write labels.csv, transition.csv, report.html and what `fasten audit` reads into a new folder.

        `images` holds an array (H, W) or (H, W, channels) for each row, for the report to show: whole numbers up to
        255 or fractions up to 1. Rows that were never seen are left out, and the column `row` counts the others.
        """
        known, rows = self.observer.known, np.sort(self.label_issues["row"].to_numpy())
        if images is not None:
            if hasattr(images, "__len__") and len(images) != len(known.given):
                raise ValueError(f"{len(images)} images for {len(known.given)} labels; give one for each row")
            thumbnail(np.asarray(images[rows[0]]))  # what cannot be shown is refused before anything is written
        seen = known.take(rows)
        audit_probabilities(
            self.probabilities,
            seen.given,
            self.class_names,
            out=folder,
            ids=seen.ids,
            verified=seen.verified,
            picked=["random" if random else "chosen" for random in seen.picked_random.tolist()],
            name=name,
            min_precision=self.observer.min_precision,
            seed=self.observer.seed,
            held=seen.held,
            picture=lambda row: None if images is None else thumbnail(np.asarray(images[rows[row]])),
            notes=_unseen(self.never_seen, len(known.given)),
        )


def _unseen(rows: Labels, total: int) -> list[str]:
    if not len(rows):
        return []
    first = ", ".join(map(str, rows[:SHOWN])) + (", …" if len(rows) > SHOWN else "")
    were = "was never seen and is" if len(rows) == 1 else "were never seen and are"
    return [f"{len(rows)} of {some(total, 'row')} {were} left out: {'row' if len(rows) == 1 else 'rows'} {first}"]
