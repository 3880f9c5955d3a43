"""Data to test a run on, and which of their rows it was trained on, even if these have moved since."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fasten.audit.stored import Audit, read_audit
from fasten.data.labels import encode_labels
from fasten.data.rows import Rows, add_verdicts
from fasten.data.task import Labels, Task
from fasten.datasets import is_own
from fasten.own import Own, as_given, make_own_task, make_test_task
from fasten.records import Record, Run
from fasten.runs.inference import examples_of, is_same, known_test_task, read_finished, read_new_rows
from fasten.sentences import are, some

TRAINED_ON = "the run was trained on these rows, so this is not its accuracy on new ones"
ALIKE = (
    "{alike} of the {rows} {have} the id and the label of rows that the run was trained on: if they are the same rows, "
    "this is not the accuracy on new ones"
)
SUGGESTED = (
    ", and {labels} {are} the run's suggestion, not the given one: if taken from it, the run is tested on itself"
)
OF_THIS_NAME = "the run was trained on data of this name: if rows are the same, this is not the accuracy on new ones"
UNKNOWN = "it is not known which of these rows the run was trained on: {why}"


def load_test_task(
    folder: Path,
    data: str,
    root: Path | None = None,
    labels: str | None = None,
    download: bool = False,
    max_bad: int = Own.max_bad,
) -> Task:
    """Data to test a run on: a task of which only the test rows are used, which all have a label.

    For a known data set, they are split by the run's seed; if it is the one that the run was trained on, they are the
    rows that the run held back. The files are looked for where the run found them, unless `root` says otherwise. For a
    user's own data, they are the rows of the test split if there are any, otherwise all rows with a label.
    """
    record = read_finished(folder)
    if not is_own(data):
        return known_test_task(record, data, root, labels, download)
    rows, run = read_new_rows(record, data, max_bad), Run.from_json(record["run"])
    found, doubt = _audited(folder, record)
    there = seen = is_same(data, run.dataset)
    if found is not None and run.noise == "none":  # with injected noise, the run's labels are not those of its data
        seen = _is_runs(rows, found)
        if seen and not there:
            then = _as_then(rows, record, data, max_bad, found)
            seen = _has_examples(then, record)
            rows = then if seen else rows
    task = _labelled_task(rows, record)
    note = doubt if found is None else _alike(rows, task.split.test, found, made=run.noise == "none")
    if not len(rows.rows_of("test")):
        note = TRAINED_ON if seen else note or (OF_THIS_NAME if there else None)
    return replace(task, notes=(*task.notes, note)) if note else task


def _audited(folder: Path, record: Record) -> tuple[Audit | None, str | None]:
    """The rows of a user's own data that the run was trained on, or why they are no longer known."""
    if record["run"].get("own") is None or not (folder / "labels.csv").is_file():
        return None, None
    try:
        return read_audit(folder, made_anew=True), None
    except ValueError as error:
        return None, UNKNOWN.format(why=error)


def _is_runs(rows: Rows, found: Audit) -> bool:
    """Whether the rows to train on are those that the run had, with the same labels."""
    labels = zip(rows.ids, rows.given_codes().tolist(), rows.split, strict=True)
    here = {name: label for name, label, part in labels if label >= 0 and part in (None, "train")}
    return here == dict(zip(found.known.ids, found.known.given.tolist(), strict=True))


def _has_examples(rows: Rows, record: Record) -> bool:
    """Whether these rows have the run's mean and standard deviation: ids may be mere numbers, and labels sorted."""
    task = make_own_task(rows, Run.from_json(record["run"]).seed)
    told = examples_of(record)
    return all(np.allclose(getattr(task, key), told[key], rtol=1e-6, atol=1e-9) for key in ("mean", "std"))


def _as_then(rows: Rows, record: Record, data: str, max_bad: int, found: Audit) -> Rows:
    """The run's data, found at another path, with the folders given beside them and the verdicts that the run knew."""
    beside = _beside(record["run"], data)
    if beside != Own():
        rows = read_new_rows(record, data, max_bad, own=beside)
    known, place = found.known, {name: row for row, name in enumerate(rows.ids)}
    verified = [(row, code) for row, code in enumerate(known.verified.tolist()) if code >= 0]
    ways = np.where(known.picked_random, "random", "chosen").tolist()
    said = [(known.ids[row], found.class_names[code], ways[row]) for row, code in verified] + found.measured_by
    new = [(place[name], label, way) for name, label, way in said if name in place]
    columns = add_verdicts(rows.name, rows.columns, [verdict for verdict in new if rows.verified[verdict[0]] is None])
    return replace(rows, **vars(columns))


def _beside(run: Mapping[str, Any], data: str) -> Own:
    """The folders that the run had beside its data, if they are at the same place relative to these data."""
    own, found = Own.from_json(run["own"]), dict[str, Any]()
    for key in ("clean", "valid", "test"):
        if (folder := getattr(own, key)) is not None:
            there = os.path.normpath(os.path.join(data, os.path.relpath(folder, run["dataset"])))
            found |= {key: there} if os.path.isdir(there) and not is_same(there, data) else {}
    return Own(**found)


def _labelled_task(rows: Rows, record: Record) -> Task:
    task = make_test_task(rows, examples_of(record))
    kept = task.split.test[rows.judged_codes()[task.split.test] >= 0]
    if not len(kept):
        raise ValueError(f"{rows.name} has no row with a label that the model knows; `fasten predict` needs none")
    notes = list(rows.notes)
    if len(kept) < len(task.split.test):
        lost = len(task.split.test) - len(kept)
        notes.append(f"{some(lost, 'row')} without a label that the model knows {are(lost)} left out")
    if note := as_given(rows, kept, "rows"):
        notes.append(note)
    split, labels = replace(task.split, test=kept), rows.judged_codes()[kept]
    return replace(task, split=split, test=labels, notes=tuple(notes))


def _alike(rows: Rows, tested: Labels, found: Audit, made: bool) -> str | None:
    """A sentence if some of the rows seem to be ones that the run was trained on; `made`: or on labels that it made."""
    place = {name: row for row, name in enumerate(found.known.ids)}
    at = np.array([place.get(rows.ids[row], -1) for row in tested.tolist()], np.int64)
    here, at = tested[at >= 0], at[at >= 0]
    given, label = found.known.given, rows.given_codes()[here]
    repaired = encode_labels("labels.csv", found.class_names, found.in_order("corrected").tolist())
    alike = (label == given[at]) | (label == repaired[at])
    # Rows without ids are numbered, and so may those of other data be: labels then agree by chance alone.
    share = np.bincount(given, minlength=len(found.class_names)) / len(given)
    chance = share[given[at]] + np.where(repaired[at] != given[at], share[repaired[at]], 0.0)
    if not len(at) or alike.mean() <= (1 + chance.mean()) / 2:
        return None
    changed = made & alike & (label != given[at]) & (found.known.verified[at] < 0) & (rows.verified_codes()[here] < 0)
    return _said(len(tested), int(alike.sum()), int(changed.sum()))


def _said(rows: int, alike: int, changed: int) -> str:
    said = ALIKE.format(alike=f"{alike:,}", rows=some(rows, "row"), have="has" if alike == 1 else "have")
    return said + (SUGGESTED.format(labels=some(changed, "label"), are=are(changed)) if changed else "")
