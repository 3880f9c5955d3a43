"""Reviews of labels: which rows to verify next, as CSV or Label Studio tasks, and the verdicts that come back."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np
import pandas as pd

from fasten import audit
from fasten.audit.evidence import counted_posterior, verify_next
from fasten.audit.findings import transition_of
from fasten.audit.gallery import is_verified
from fasten.audit.repair import Originals
from fasten.audit.stored import Audit
from fasten.cells import escaped, unescaped
from fasten.data.labels import Picked, check_classes, composed, label_reader, label_texts, picked_of
from fasten.data.table import KNOWN
from fasten.data.texts import lines_below, read_text, split_header
from fasten.files import write_text
from fasten.seeds import numpy_stream
from fasten.suggest import nearest

LOCAL_FILES = "/data/local-files/?d="  # where Label Studio serves files of its own machine
NAME, ROW = "verdict", "row_id"  # names of the choice and of a task's row: Label Studio has its own `id`
NAME_COLUMNS = (ROW, "id", "path", "file_name", "name")
LABEL_COLUMNS = (NAME, "verified_label", "label")
REVIEWED = ["id", "given", "suggested", "p_wrong", "picked"]  # what a reviewer is told about a row
SHOWN_FEATURES = 40


@dataclass(frozen=True)
class Verdict:
    """What a reviewer says about a row."""

    id: str
    label: str
    picked: Picked


def next_rows(found: Audit, n: int) -> pd.DataFrame:
    """The n rows whose verdicts would help most and as many random ones, in random order, which mixes the two kinds.

    The column `picked` tells them apart: verdicts on random rows are used for T, calibration and precision, verdicts on
    chosen rows are not.
    """
    known, seed = found.known, int(found.record["run"].get("seed") or 0)
    probs, random = found.probabilities(), known.picked_random
    counted = counted_posterior(known.verified[random], known.given[random], probs.shape[1]) if random.any() else None
    post = audit.posterior(probs, transition_of(probs, known), known.given)
    rows = verify_next(post, known, counted, n, seed)
    picked = pd.Series(
        {**dict.fromkeys(rows.chosen.tolist(), "chosen"), **dict.fromkeys(rows.random.tolist(), "random")}
    )
    table = found.table.set_index("row", drop=False).loc[picked.index]
    shuffled = numpy_stream(seed, "review", int((known.verified >= 0).sum())).permutation(len(table))
    return table.assign(picked=picked).iloc[shuffled].reset_index(drop=True)


def issue_rows(found: Audit, top: int | None) -> pd.DataFrame:
    """The rows that look wrong and that nobody verified, most suspect first; all of them count as chosen."""
    table = found.table[found.table["is_issue"] & ~is_verified(found.table)]
    return table.head(len(table) if top is None else top).assign(picked="chosen").reset_index(drop=True)


def write_review(table: pd.DataFrame, path: Path) -> None:
    """Write rows to verify as CSV, with an empty column for the verdicts, atomically."""
    texts = {name: table[name].astype(object).map(escaped) for name in ("id", "given", "suggested")}
    out = table.assign(**texts)[REVIEWED].assign(**{NAME: ""})
    write_text(path, out.to_csv(index=False, float_format="%.6g", lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC))


def tasks(table: pd.DataFrame, kind: str, shown: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows as Label Studio tasks, with the suggested label as a prediction; `shown` maps ids to addresses or texts.

    >>> table = pd.DataFrame({"id": ["cat/1.png"], "given": ["cat"], "suggested": ["dog"], "picked": ["chosen"]})
    >>> made = tasks(table.assign(p_wrong=0.9, p_suggested=0.8), "image", {"cat/1.png": "http://host/cat/1.png"})[0]
    >>> made["data"]["image"], made["predictions"][0]["result"][0]["value"]
    ('http://host/cat/1.png', {'choices': ['dog']})
    """
    made = []
    for row in table.to_dict("records"):
        about = {key: row[key] for key in ("given", "suggested", "picked")}
        name = str(row["id"])
        data = {kind: shown.get(name, name), ROW: name, **about, "p_wrong": round(float(row["p_wrong"]), 6)}
        choice = {"from_name": NAME, "to_name": kind, "type": "choices", "value": {"choices": [row["suggested"]]}}
        score = round(float(row["p_suggested"]), 6)
        made.append({"data": data, "predictions": [{"model_version": "fasten", "score": score, "result": [choice]}]})
    return made


def image_addresses(data: Originals, prefix: str | None = None) -> dict[str, str]:
    """Where Label Studio finds each image: `prefix`, and the path relative to the data folder or to the table's folder.

    Without a prefix Label Studio serves the images itself: its document root must then be the folder that holds the
    folder of images, or the one that holds the table.
    """
    assert data.files is not None
    home = os.path.realpath(data.path if data.is_folder else data.path.parent)
    if prefix is None:
        prefix = LOCAL_FILES + (f"{quote(os.path.basename(home))}/" if data.is_folder else "")
    paths = [os.path.relpath(path, home).replace(os.sep, "/") for path in data.files]
    return {name: prefix + quote(path) for name, path in zip(data.columns.ids, paths, strict=True)}


def feature_texts(data: Originals, wanted: Sequence[str]) -> dict[str, str]:
    """The features of the rows `wanted` as texts, one feature per line; if there are many, only the first."""
    rows = {name: row for row, name in enumerate(data.columns.ids)}
    lines = {name: [f"{key} = {value}" for key, value in _first_features(data, rows[name])] for name in wanted}
    return {name: "\n".join([f"row {name}", *features]) for name, features in lines.items()}


def _first_features(data: Originals, row: int) -> list[tuple[str, Any]]:
    if data.table is not None:
        names = [column for column in data.table.column_names if column not in KNOWN][:SHOWN_FEATURES]
        return [(name, data.table[name][row].as_py()) for name in names]
    assert data.rows is not None
    x = np.asarray(data.rows.x[np.array([row])][0]).ravel()[:SHOWN_FEATURES].tolist()
    return list(zip(data.rows.feature_names or [f"x{place}" for place in range(len(x))], x, strict=False))


def write_tasks(made: Sequence[Mapping[str, Any]], kind: str, class_names: Sequence[str], path: Path) -> Path:
    """Write tasks as JSON, and beside them the labelling interface for Label Studio; returns the latter's path."""
    interface = path.with_suffix(".xml")
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in class_names)
    tag = "Image" if kind == "image" else "Text"
    write_text(
        interface,
        f'<View>\n  <{tag} name="{kind}" value="${kind}"/>\n  <Choices name="{NAME}" toName="{kind}" choice="single" '
        f'showInline="true">\n{choices}\n  </Choices>\n</View>\n',
    )
    write_text(path, json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    return interface


def read_review(path: Path, found: Audit) -> list[Verdict]:
    """Read the verdicts of a review: a CSV, or Label Studio's export (JSON, JSON-MIN or CSV).

    Rows without a verdict are left out. A row counts as chosen if nothing says that it was picked at random.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give the file that holds the verdicts")
    entries = _from_json(path) if path.suffix.lower() == ".json" else _from_csv(path)
    rows, meant = _by_form(found.known.ids), label_reader(found.class_names)
    verdicts: dict[str, Verdict] = {}
    for where, name, label, picked in entries:
        if label is None:
            continue
        verdict = Verdict(_find(name, rows, where), meant(label), picked_of(picked, where) or "chosen")
        check_classes(where, found.class_names, [verdict.label])
        _add(where, verdicts, verdict)
    if not verdicts:
        raise ValueError(f"{path} holds no verdicts; fill in the column {NAME!r}, or export the tasks that are done")
    return list(verdicts.values())


def merge_verdicts(found: Audit, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts that the run already had and the new ones, in the order of the data; raises if two disagree."""
    known = found.known
    ways: list[Picked] = ["random" if random else "chosen" for random in known.picked_random]
    rows = np.flatnonzero(known.verified >= 0).tolist()
    merged = {known.ids[r]: Verdict(known.ids[r], found.class_names[known.verified[r]], ways[r]) for r in rows}
    merged |= {name: Verdict(name, label, way) for name, label, way in found.measured_by}
    for verdict in verdicts:
        _add("the review", merged, verdict)
    place = {name: row for row, name in enumerate((*known.ids, *(name for name, _, _ in found.measured_by)))}
    return sorted(merged.values(), key=lambda verdict: place[verdict.id])


def write_verified(verdicts: Sequence[Verdict], path: Path) -> None:
    """Write verdicts as the list that `fasten train --verified` takes, atomically."""
    out = io.StringIO(newline="")
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(["id", "label", "picked"])
    lines.writerows([escaped(verdict.id), escaped(verdict.label), verdict.picked] for verdict in verdicts)
    write_text(path, out.getvalue())


def _add(where: str, verdicts: dict[str, Verdict], verdict: Verdict) -> None:
    """Add a verdict; a row that was ever picked at random counts as random, even if it was also chosen."""
    before = verdicts.get(verdict.id, verdict)
    if before.label != verdict.label:
        raise ValueError(
            f"{where}: {verdict.id!r} is verified as {verdict.label!r}, but before as {before.label!r}; keep only the "
            "one that is right"
        )
    verdicts[verdict.id] = before if before.picked == "random" else verdict


def _by_form(ids: Iterable[str]) -> dict[str, str]:
    """Rows by their ids, and by the composed Unicode form of their ids if no other row has the same."""
    names = list(ids)
    forms = Counter(map(composed, names))
    return {composed(name): name for name in names if forms[composed(name)] == 1} | {name: name for name in names}


def _find(name: str, rows: Mapping[str, str], where: str) -> str:
    plain = unescaped(name)
    for known in (name, plain, composed(name), composed(plain)):
        if known in rows:
            return rows[known]
    cure = nearest(name, rows, "give ids as in labels.csv")
    raise ValueError(f"{where}: the run has no row {name!r}; {cure}")


Entry = tuple[str, str, str | None, str | None]  # where it was read, the row's id, the label, how it was picked


def _from_csv(path: Path) -> Iterator[Entry]:
    first = read_text(path).split("\n", 1)[0]
    names, mark = split_header(first, {*NAME_COLUMNS, *LABEL_COLUMNS})
    columns = _columns(path, names)
    for number, cells in lines_below(path, mark):
        if cells:
            yield _entry(f"{path.name}, line {number}", dict(zip(names, cells, strict=False)), columns)


def _columns(path: Path, names: Sequence[str]) -> tuple[str, str]:
    """Which columns hold the id and the verdict."""
    found = [next((c for c in known if c in names), None) for known in (NAME_COLUMNS, LABEL_COLUMNS)]
    if found[0] is None or found[1] is None:
        shown = ", ".join(map(repr, names[:10])) or "nothing"
        raise ValueError(
            f"{path} is not a review: it has {shown}, but needs a column 'id' (or 'path') and a column of verdicts, "
            f"{NAME!r}; `fasten audit --next` writes such a file"
        )
    return found[0], found[1]


def _entry(where: str, line: Mapping[str, Any], columns: tuple[str, str]) -> Entry:
    name, label = line.get(columns[0]), line.get(columns[1])
    if isinstance(label, Mapping):  # JSON-MIN writes a choice among several like this
        label = _choice(label, where)
    if name is None or str(name) == "":
        raise ValueError(f"{where} names no row; give its id")
    text = label_texts([None if label == [] else label], where)[0]
    picked = line.get("picked")
    return where, str(name), text, None if picked is None else str(picked)


def _from_json(path: Path) -> Iterator[Entry]:
    try:
        found = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); export the project from Label Studio again") from None
    if not isinstance(found, list) or not all(isinstance(task, Mapping) for task in found):
        raise ValueError(f"{path} is not a review: it is not a list of tasks; export the project as JSON")
    for number, task in enumerate(found):
        where = f"{path.name}, task {task.get('id', number)}"
        data = task.get("data")
        if not isinstance(data, Mapping):  # JSON-MIN has everything on one level
            yield _entry(where, task, _columns(path, list(task)) if NAME in task else (ROW, NAME))
            continue
        if ROW not in data:
            raise ValueError(f"{where} has no {ROW!r} in its data; import tasks that `fasten audit` exported")
        labels: list[str | None] = [_choice(result, where) for result in _results(task, where)]
        for label in labels or [None]:
            yield where, str(data[ROW]), label, None if data.get("picked") is None else str(data["picked"])


def _results(task: Mapping[str, Any], where: str) -> Iterator[Mapping[str, Any]]:
    """The choices in a task's annotations that were not cancelled; predictions of models are ignored."""
    for annotation in _list(task, "annotations", where):
        if isinstance(annotation, Mapping) and not annotation.get("was_cancelled"):
            for result in _list(annotation, "result", where):
                value = result.get("value") if isinstance(result, Mapping) else None
                if isinstance(value, Mapping) and "choices" in value:
                    yield value


def _list(holder: Mapping[str, Any], key: str, where: str) -> list[Any]:
    found = holder.get(key) or []
    if not isinstance(found, list):
        raise ValueError(f"{where}: {key} is not a list; export the project from Label Studio again")
    return found


def _choice(value: Mapping[str, Any], where: str) -> str:
    choices = value.get("choices")
    if not isinstance(choices, Sequence) or isinstance(choices, str) or len(choices) != 1:
        raise ValueError(f"{where} has the choices {choices!r}; give exactly one label to a row")
    return str(choices[0])
