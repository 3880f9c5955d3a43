"""The audit of a finished run: read from its folder, or made again; and audits of probabilities from any model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fasten import audit
from fasten.audit.evidence import hold_back
from fasten.audit.findings import Findings, find
from fasten.audit.gallery import Picture, make_gallery, pictures_of, save_gallery, suspect_pairs
from fasten.cells import unescaped
from fasten.data.labels import Picked, check_letters, codes_of, encode_labels, label_texts, picked_of
from fasten.data.task import Known, Labels
from fasten.metrics import Floats
from fasten.npy import read_npy, write_npy
from fasten.records import SCHEMA, Record, environment, write_record
from fasten.report import read_gallery, write_report
from fasten.report.verdict import AUDIT
from fasten.runs.folders import check_no_file, check_unused, finished_record
from fasten.sentences import typed
from fasten.suggest import one_line

CHUNK = 65_536  # rows checked at a time
TOLERANCE = 1e-3  # of the sum of a row of probabilities
TOP_PAIRS = 10
COLUMNS = ("row", "id", "given", "suggested", "p_wrong", "p_suggested", "is_issue", "corrected")
CHANGING = "changing_corrections"  # in the record while labels.csv may have corrections that it does not describe
LABELS = ("given", "suggested", "corrected", "verified", "picked")  # few different texts, each many times


@dataclass(frozen=True, eq=False)
class Audit:
    """A run's record and its labels.csv, most suspect row first; `known` is in the order of its column `row`."""

    folder: Path
    record: Record
    table: pd.DataFrame
    known: Known
    class_names: tuple[str, ...]

    @property
    def measured_by(self) -> list[tuple[str, str, Picked]]:
        """Verdicts that a list gave on rows set apart for validation and test: id, label, how the row was picked."""
        return [(name, label, way) for name, label, way in self.record["data"].get("measured_by", ())]

    def probabilities(self) -> NDArray[np.float32]:
        """p(y | x) of each row, read as they are needed."""
        path, shape = self.folder / "probabilities.npy", (len(self.table), len(self.class_names))
        try:
            probs = read_npy(path)
        except FileNotFoundError:
            raise ValueError(f"{path} is missing, so this cannot be done; train again in another folder") from None
        except Exception as error:  # a damaged file fails in many ways, none of which the user has to know
            reason = one_line(error)
            raise ValueError(f"{path} is damaged ({reason}); train again in another folder") from None
        if not isinstance(probs, np.ndarray):
            raise ValueError(f"{path} is an archive, not an array; train again in another folder")
        if probs.shape != shape or probs.dtype.kind != "f":
            raise ValueError(
                f"{path} holds {probs.dtype} of shape {probs.shape}, but labels.csv needs floating-point numbers of "
                f"shape {shape}; train again in another folder"
            )
        return np.asarray(probs)

    def in_order(self, column: str) -> NDArray[Any]:
        """A column of the table in the order of the data."""
        out = np.empty(len(self.table), object)
        out[self.table["row"].to_numpy()] = self.table[column].to_numpy(object)
        return out


def read_audit(folder: Path, made_anew: bool = False) -> Audit:
    """Read the audit of a finished run; corrections that were only half written must be `made_anew`, else it raises."""
    record = finished_record(folder)
    if record.get(CHANGING) and not made_anew:
        again = typed("audit", folder, "--min-precision", 0.9)
        raise ValueError(
            f"a change of the corrections in {folder} was interrupted; {again} makes them again (with 0: all of them)"
        )
    class_names = record["data"].get("class_names")
    if not isinstance(class_names, list):
        raise ValueError(f"{folder / 'record.json'} does not name its classes; train again in another folder")
    names = tuple(map(str, class_names))
    table = read_labels(folder / "labels.csv")
    return Audit(folder, record, table, _known(folder / "labels.csv", table, names), names)


def read_labels(path: Path) -> pd.DataFrame:
    """Read labels.csv, with its cells unescaped; blank cells are empty texts."""
    types: dict[str, Any] = {"id": str, "is_issue": str, "row": np.int64, "p_wrong": float, "p_suggested": float}
    types |= dict.fromkeys(LABELS, str)  # not as categories: pandas would turn them into numbers
    try:
        table = pd.read_csv(path, dtype=types, na_filter=False, encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; train again in another folder") from None
    except (ValueError, OverflowError) as error:
        reason = one_line(error, 200)
        raise ValueError(f"{path} is damaged or was changed ({reason}); train again in another folder") from None
    lacking = [column for column in COLUMNS if column not in table]
    if lacking or not np.array_equal(np.sort(table["row"].to_numpy()), np.arange(len(table))):
        what = f"the column {lacking[0]!r}" if lacking else "rows that are numbered from 0 on, each once"
        raise ValueError(f"{path} lacks {what}: it was changed; train again in another folder")
    escaped = table["id"].str.startswith("'")
    table.loc[escaped, "id"] = table.loc[escaped, "id"].map(unescaped)
    for name in [name for name in LABELS if name in table]:
        table[name] = table[name].astype("category").cat.rename_categories(unescaped)
    return table.assign(is_issue=table["is_issue"] == "true")


def _known(path: Path, table: pd.DataFrame, class_names: Sequence[str]) -> Known:
    """What labels.csv says about each row, in the order of its column `row`."""
    order = np.argsort(table["row"].to_numpy())
    codes = [_codes(path, table[name], class_names)[order] for name in ("given", "suggested", "corrected")]
    if min(column.min(initial=0) for column in codes) < 0:
        raise ValueError(f"{path} has a row without a label: it was changed; train again in another folder")
    given = codes[0]
    ids = tuple(table["id"].to_numpy(object)[order].tolist())
    verified, picked = np.full(len(table), -1), np.full(len(table), "", object)
    if "verified" in table and "picked" in table:
        verified = _codes(path, table["verified"], class_names)[order]
        picked = table["picked"].to_numpy(object)[order]
    held = np.asarray(picked == "held", bool)
    return Known(ids, given, verified, held | np.asarray(picked == "random", bool), held, tuple(class_names))


def _codes(path: Path, column: pd.Series[Any], class_names: Sequence[str]) -> Labels:
    used = encode_labels(str(path), class_names, [str(name) or None for name in column.cat.categories])
    return used[column.cat.codes.to_numpy()]


def summarise(found: Audit) -> dict[str, Any]:
    """A summary of a run's audit, in plain values."""
    table, evaluation = found.table, found.record["evaluation"] or {}
    T = np.array((evaluation.get("transition") or {}).get("given") or np.eye(len(found.class_names)), np.float64)
    np.fill_diagonal(T, 0)
    largest = np.argsort(-T, axis=None, kind="stable")[:TOP_PAIRS]
    confused = [(i, j) for i, j in zip(*np.unravel_index(largest, T.shape), strict=True) if T[i, j] > 0]
    pairs = suspect_pairs(table, TOP_PAIRS)[0]
    return {
        "rows": len(table),
        "issues": int(table["is_issue"].sum()),
        "corrected": int((table["corrected"].to_numpy(object) != table["given"].to_numpy(object)).sum()),
        "expected_wrong": round(float(table["p_wrong"].sum()), 3),
        "confused": [
            {"true": found.class_names[i], "given": found.class_names[j], "share": round(float(T[i, j]), 6)}
            for i, j in confused
        ],
        "pairs": [pair for pair, _ in pairs],
        "verified": int((found.known.verified >= 0).sum()),
        "verified_wrong": int(((found.known.verified >= 0) & (found.known.verified != found.known.given)).sum()),
        "evidence": _brief(found.folder, evaluation.get("evidence")),
    }


def _brief(folder: Path, evidence: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The evidence without its matrices; None if no row was verified at random."""
    if not evidence or not evidence.get("num_random"):
        return None
    try:
        uncalibrated = evidence["calibration"]["uncalibrated"]
        counts = {key: evidence[key] for key in ("num_random", "num_held")} | evidence["corrections"]
        shares = [counts["precision"], *([evidence["wrong"]] if evidence.get("wrong") else [])]
        sound = all({"k", "n", "low", "high"} <= share.keys() for share in shares)
    except (KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise ValueError(f"{folder / 'record.json'} is damaged: its evidence lacks a part; train again")
    return {
        **counts,
        "calibrated": uncalibrated is None,
        "uncalibrated": uncalibrated,
        "wrong": evidence.get("wrong"),
        "doubt": evidence.get("doubt"),
        "threshold": (evidence.get("threshold") or {}).get("sentence"),
        "warning": (evidence.get("dependence") or {}).get("warning"),
        "sample": (evidence.get("sample") or {}).get("warning"),
    }


def choose_threshold(found: Audit, min_precision: float | None, picture: Picture = lambda row: None) -> Audit:
    """Make the corrections again so that they keep `min_precision`, if any; replaces labels.csv, record and report.

    `picture` gives thumbnails that the gallery does not have: with other corrections it shows other rows.
    The record's `run` stays as it is, since it says which run this is; the precision is recorded in the evidence.
    """
    record = found.record
    if not found.known.picked_random.any():
        if record["run"].get("own") is None and record["run"].get("method") != AUDIT:
            raise ValueError(
                f"{found.folder} was not trained on data of your own, but on {record['run'].get('dataset')}: rows of "
                "these cannot be verified, and without verified rows no precision can be shown"
            )
        raise ValueError(
            f"{found.folder} has no rows that were verified at random, and without them no precision can be shown; "
            f"{typed('audit', found.folder, '--next', 100)} names rows to verify"
        )
    seed = int(record["run"].get("seed") or 0)
    kept = [number for number, name in enumerate(found.class_names) if name in record["data"].get("kept_classes", ())]
    now = find(found.probabilities(), found.known, min_precision, seed, kept)
    assert now.evidence is not None
    pictures, changing = pictures_of(read_gallery(found.folder)), {**record, CHANGING: True}
    before = record["evaluation"].get("evidence") or {}
    gone = (before.get("doubt"), (before.get("threshold") or {}).get("sentence"))
    notes = [note for note in record["notes"] if note not in gone]
    said = now.evidence.threshold.sentence if now.evidence.threshold else now.evidence.doubt
    evaluation = {**record["evaluation"], "evidence": now.evidence.to_json()}
    record |= {"evaluation": evaluation, "notes": [*notes, *([said] if said else [])]}
    record.pop(CHANGING, None)
    table = now.table(found.known, found.class_names)
    write_record(found.folder, changing)
    _write(found.folder, record, table, lambda row: pictures.get(found.known.ids[row]) or picture(row))
    return read_audit(found.folder)


def audit_probabilities(
    probs: Floats,
    given: Any,
    class_names: Sequence[str],
    *,
    out: str | os.PathLike[str],
    ids: Sequence[Any] | None = None,
    verified: Any = None,
    picked: Sequence[Any] | None = None,
    name: str = "data",
    min_precision: float | None = None,
    seed: int = 0,
    held: NDArray[np.bool_] | None = None,
    picture: Picture = lambda row: None,
    notes: Sequence[str] = (),
) -> tuple[Findings, pd.DataFrame]:
    """Audit labels by any model's p(y | x), (n, N), and write a folder that `fasten audit` and `fasten report` read.

    `given` and `verified` are class numbers or names; `verified` is -1 or None if nobody checked. `picked` is random or
    chosen for verified rows. The model must not have seen the verdicts of the rows in `held`, by default a third of
    those picked at random. `picture` gives a row's thumbnail as a data URI.
    """
    out, names = Path(out), tuple(map(str, class_names))
    _check_probabilities(probs, names)
    check_no_file(out)
    check_unused(out)
    known = make_known(given, names, ids=ids, verified=verified, picked=picked, held=held, seed=seed)
    if len(known.given) != len(probs):
        raise ValueError(
            f"there are {len(known.given)} labels for {len(probs)} rows of probabilities; give one for each row"
        )
    found = find(probs, known, min_precision, seed)
    table = found.table(known, names)
    record = _record(name, names, known, found, seed)
    record["notes"] += [*notes, *found.notes]
    out.mkdir(parents=True, exist_ok=True)
    audit.write_transition(found.transition, names, out / "transition.csv")
    write_npy(out / "probabilities.npy", _chunks(probs), (len(probs), len(names)))
    _write(out, record, table, picture)
    return found, table


def _write(folder: Path, record: Record, table: pd.DataFrame, picture: Picture) -> None:
    """Write the files of an audit, the record last: it says that everything else is there."""
    audit.write_labels(table, folder / "labels.csv")
    gallery = make_gallery(table, picture)
    save_gallery(gallery, folder / "gallery.json")
    write_report(record, folder / "report.html", gallery)
    write_record(folder, record)


def _check_probabilities(probs: Floats, class_names: Sequence[str]) -> None:
    if probs.ndim != 2 or probs.shape[1] != len(class_names) or probs.dtype.kind != "f":
        raise ValueError(
            f"the probabilities are {probs.dtype} of shape {probs.shape}; give a row of {len(class_names)} floating-"
            "point numbers for each example, one for each class"
        )
    if not len(probs):
        raise ValueError("there are no rows to audit; give probabilities of at least one")
    for number, chunk in enumerate(_chunks(probs)):
        start, part = number * CHUNK, np.asarray(chunk, np.float64)
        bad = ~((part >= 0).all(1) & (np.abs(part.sum(1) - 1) <= TOLERANCE))
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"row {start + row} of the probabilities sums to {part[row].sum():.4g} or has a negative number; give "
                "probabilities, not scores (softmax converts them)"
            )


def _chunks(probs: Floats) -> Iterator[Floats]:
    return (probs[start : start + CHUNK] for start in range(0, len(probs), CHUNK))


def make_known(
    given: Any,
    class_names: Sequence[str] | None,
    *,
    ids: Any = None,
    verified: Any = None,
    picked: Sequence[Any] | None = None,
    held: NDArray[np.bool_] | None = None,
    seed: int = 0,
    what: str = "given",
) -> Known:
    """Check what a user says about each row, and return class numbers; `what` is the user's name for the given labels.

    >>> make_known([0, 1], None, verified=[1, None]).verified.tolist()
    [1, -1]
    """
    labels = codes_of(given, class_names, what)
    total = len(labels)
    checked = np.full(total, -1) if verified is None else codes_of(verified, class_names, "verified")
    names = tuple(map(str, range(total) if ids is None else label_texts(ids, "ids")))
    ways = [None] * total if picked is None else [picked_of(way, "picked") for way in label_texts(picked, "picked")]
    for key, column in (("verified", checked), ("ids", names), ("picked", ways)):
        if len(column) != total:
            raise ValueError(f"{key} has {len(column)} entries for {total} labels; give one for each row")
    check_letters("the id", names)
    if len(set(names)) < total:
        raise ValueError("two rows have the same id; give each its own")
    if not total or labels.min() < 0:
        lacking = f"row {labels.argmin()} has" if total else "there is"
        raise ValueError(f"{what}: {lacking} no label; give one for each row, or leave out rows that have none")
    random = np.array([way != "chosen" for way in ways], bool) & (checked >= 0)
    held = hold_back(labels, checked, random, seed) if held is None else held & random
    return Known(names, labels, checked, random, held, tuple(map(str, class_names or ())))


def _record(name: str, class_names: Sequence[str], known: Known, found: Findings, seed: int) -> Record:
    """A record without a training run."""
    sizes = {"rows_noisy": len(known.ids), "rows_clean": 0, "rows_valid": 0, "rows_test": 0}
    nothing = dict.fromkeys(("test_accuracy", "test_accuracy_last", "valid_accuracy", "best_epoch", "selected_by"))
    nothing |= dict.fromkeys(("train_seconds", "setup_seconds", "examples_per_second", "peak_memory_bytes"))
    return {
        "schema": SCHEMA,
        "run": {"dataset": name, "noise": None, "method": AUDIT, "options": {}, "recipe": {}, "seed": seed},
        "environment": environment(),
        "data": sizes | {"num_classes": len(class_names), "noise_rate": None, "class_names": list(class_names)},
        "epochs": [],
        "evaluation": {
            "transition": {"given": found.transition.tolist(), "true": None},
            "evidence": found.evidence.to_json() if found.evidence else None,
        },
        "references": {},
        "result": nothing,
        "notes": [],
    }
