"""One run = one JSON file: what was run, on what, each epoch's numbers, the result."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fasten.constants import VERSION
from fasten.contract import Recipe
from fasten.files import replaced, write_text

SCHEMA = 1
MATRICES = "matrices.npz"  # beside the record of a run with many classes: its matrices, by their place there
LATER = ("average", "weights", "frozen", "sync_norm")  # later fields of a recipe; left out at their default
LARGE = 100  # the most rows of a matrix that is kept in the record itself

# A list of numbers as `json.dumps` breaks it into lines; no string in JSON contains a line break.
NUMBERS = re.compile(r"\[\n[-+.0-9eE,\s]+\]")
SHARED_GPU = "FASTEN_SHARED_GPU"  # an environment variable, set if several runs share a GPU: their times say little
PARTS = ("run", "environment", "data", "epochs", "evaluation", "references", "result", "notes")

# What must be a mapping, a list, a text or a number if it is there; * is any key or index.
FORMS: dict[type, tuple[str, ...]] = {
    dict: (
        *("run", "run.options", "run.recipe", "run.own", "environment", "environment.how", "data", "epochs.*"),
        *("evaluation", "evaluation.relabel", "evaluation.relabel_corrected", "evaluation.detection"),
        *("evaluation.detection.*", "evaluation.transition", "references", "references.*", "result"),
        *("evaluation.evidence", "evaluation.evidence.corrections.precision", "evaluation.evidence.calibration"),
        *("evaluation.evidence.calibration.before", "evaluation.evidence.calibration.after"),
        *("evaluation.evidence.corrections", "evaluation.evidence.threshold", "evaluation.evidence.dependence"),
        *("evaluation.evidence.wrong", "evaluation.evidence.sample", "data.columns.*", "rewinds.*"),
    ),
    list: (
        *("run.recipe.milestones", "data.class_names", "data.shape", "data.mean", "data.std", "data.feature_names"),
        *("data.columns", "data.columns.*.categories"),
        *("epochs", "epochs.*.chi2", "evaluation.transition.given", "evaluation.transition.given.*", "notes"),
        *("evaluation.evidence.calibration.before.bins", "evaluation.evidence.calibration.after.bins", "rewinds"),
    ),
    str: (
        *("run.dataset", "run.noise", "run.method", "run.recipe.net", "data.class_names.*", "result.selected_by"),
        *("notes.*", "data.feature_names.*", "data.columns.*.name", "data.columns.*.categories.*"),
    ),
    float: (
        *("evaluation.transition.given.*.*", "data.mean.*", "data.std.*", "run.recipe.rate", "run.recipe.momentum"),
        *("run.recipe.weight_decay", "result.test_accuracy", "result.valid_accuracy", "epochs.*.corrected_fraction"),
        *("epochs.*.t_diagonal", "epochs.*.t_diagonal_true", "epochs.*.chi2.*", "evaluation.relabel.*"),
        *("evaluation.relabel_corrected.*", "evaluation.detection.*.*", "data.columns.*.fill", "rewinds.*.rate_factor"),
    ),
    int: (
        *("data.shape.*", "run.seed", "run.recipe.epochs", "run.recipe.batch_size", "run.recipe.milestones.*"),
        *("result.best_epoch", "epochs.*.epoch"),
    ),
}
KINDS = {dict: "mapping", list: "list", str: "text", float: "number", int: "whole number"}
# An audit has no noise, and a record in results/ cannot be resumed.
MAY_BE_NULL = ("evaluation", "result", "references.", "epochs.", "run.own", "run.noise", "environment.how")

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """All that is needed to repeat a run; it can be written to JSON and read back.

    >>> run = Run("digits", "symmetric:0.4", options={"threshold": 0.9})
    >>> Run.from_json(json.loads(json.dumps(run.to_json()))) == run
    True
    """

    dataset: str
    noise: str = "none"
    method: str = "fasten"
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0
    clean: int | None = None  # verified rows to split off; None: as many as the data set says
    own: Mapping[str, Any] | None = None  # how a user's own data are read; None: a known data set

    def to_json(self) -> dict[str, Any]:
        """As plain values, equal to those that are read back from a file."""
        recipe = {**vars(self.recipe), "milestones": list(self.recipe.milestones)}
        for name in LATER:
            if recipe[name] == getattr(Recipe, name):
                del recipe[name]
        values = {**vars(self), "options": dict(self.options), "recipe": recipe}
        own = values.pop("own")
        return values if own is None else {**values, "own": dict(own)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Run:
        try:
            recipe = {**values["recipe"], "milestones": tuple(values["recipe"]["milestones"])}
            return Run(**{**values, "recipe": Recipe(**recipe)})
        except (KeyError, TypeError) as error:
            raise ValueError(f"the record's `run` is damaged or from another version ({error}); run it again") from None


def environment() -> dict[str, Any]:
    """The versions that a number depends on."""
    import torch

    return {
        "fasten": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "commit": _commit(),
    } | shared_gpu()


def shared_gpu() -> dict[str, bool]:
    """What the record's environment says if the run shared a GPU with others."""
    return {"shared_gpu": True} if os.environ.get(SHARED_GPU) else {}


def _commit() -> str | None:
    """The commit of the source tree this runs from; `FASTEN_COMMIT` overrides it if a copy's history cannot be trusted.

    An installed copy may be in a repository of the user's own, whose commit says nothing about it, so this file must be
    in that commit.
    """
    if os.environ.get("FASTEN_COMMIT"):
        return os.environ["FASTEN_COMMIT"]
    here = Path(__file__).resolve()
    command = ["git", "-C", os.fspath(here.parent), "rev-parse", "HEAD", f"HEAD:./{here.name}"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.split()[0] if found.returncode == 0 else None


def write_record(folder: Path, record: Record) -> None:
    """Write `record.json` into a run's folder, whole or not at all; the numbers of a list are on one line.

    Large matrices are written first, to a file of their own, which the record names in their place.
    """
    matrices: dict[str, NDArray[Any]] = {}
    record = {key: without_matrices(part, key, matrices) for key, part in record.items()}
    if matrices:
        with replaced(folder / MATRICES) as file:
            np.savez_compressed(file, **matrices)  # type: ignore[arg-type]  # they are no other argument
    text = json.dumps(record, indent=1, allow_nan=False)
    write_text(folder / "record.json", NUMBERS.sub(lambda found: " ".join(found[0].split()), text) + "\n")


def without_matrices(values: Any, place: str, matrices: dict[str, NDArray[Any]]) -> Any:
    """Plain values without their large matrices, which are added to `matrices`, each under its place."""
    if isinstance(values, dict):
        return {key: without_matrices(part, f"{place}.{key}", matrices) for key, part in values.items()}
    if not isinstance(values, list) or len(values) <= LARGE or not isinstance(values[0], list):
        return values
    matrices[place] = np.array(values)
    assert np.isfinite(matrices[place]).all(), place  # as for the numbers in JSON
    return MATRICES


def with_matrices(values: Any, place: str, matrices: Mapping[str, NDArray[Any]]) -> Any:
    """The values with their large matrices again; null for one that is lost or damaged, since nothing depends on it."""
    if isinstance(values, dict):
        return {key: with_matrices(part, f"{place}.{key}", matrices) for key, part in values.items()}
    if values != MATRICES:
        return values
    return matrices[place].tolist() if place in matrices else None


def read_matrices(source: Path | BinaryIO) -> dict[str, NDArray[Any]]:
    """Read what `np.savez_compressed` wrote; nothing if that is lost or damaged."""
    try:
        with open(source, "rb") if isinstance(source, Path) else source as file:
            return dict(np.load(file, allow_pickle=False))
    except Exception:  # a damaged file fails in many ways
        return {}


def _cure(folder: Path) -> str:
    """What to do about a folder without a record; if it holds several runs, how to continue them all."""
    for command in ("compare", "reproduce"):
        if (folder / f"{command}.json").is_file():
            return f"give the folder of one of its runs, or continue all with the same `fasten {command}` as before"
    return "give the folder that --out named"


def read_record(folder: Path) -> Record:
    """Read the record in a run's folder, or in the file given."""
    path = folder / "record.json" if folder.is_dir() else folder
    try:
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        missing = "there is no record.json in it" if folder.is_dir() else "it is not there"
        raise ValueError(f"{folder} holds no run: {missing}; {_cure(folder)}") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); run it again in another folder") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise ValueError(f"{path} is not a run's record of schema {SCHEMA}; give the folder that --out named")
    lacking = [n for n in PARTS if n not in record or (record[n] is None and n not in ("evaluation", "result"))]
    if lacking:
        raise ValueError(f"{path} is damaged (it lacks {', '.join(lacking)}); run it again in another folder")
    record["evaluation"] = with_matrices(record["evaluation"], "evaluation", read_matrices(path.with_name(MATRICES)))
    unlike = (
        (at, form) for form, keys in FORMS.items() for key in keys for at in _unlike(record, key.split("."), form)
    )
    wrong = next(unlike, None)
    if wrong is not None:
        raise ValueError(f"{path} is damaged ({wrong[0]} is not a {KINDS[wrong[1]]}); run it again in another folder")
    return record


def taken_back(record: Record) -> str | None:
    """How a run went on after it had diverged; None if it never did.

    >>> taken_back({"rewinds": [{"rate_factor": 0.1}, {"rate_factor": 0.01}]})
    'diverged and continued with 0.01 of its learning rate'
    """
    rewinds = record.get("rewinds")
    return f"diverged and continued with {rewinds[-1]['rate_factor']:g} of its learning rate" if rewinds else None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _unlike(values: Any, path: Sequence[str], form: type, place: str = "") -> Iterator[str]:
    """The places in a record at which something is of another form than it must be."""
    if not path:
        null = values is None and place.startswith(MAY_BE_NULL)
        if not (null or isinstance(values, (int, float) if form is float else form)):
            yield place
        return
    inside = values if isinstance(values, dict) else dict(enumerate(values)) if isinstance(values, list) else {}
    for key in [key for key in inside if path[0] in ("*", key)]:
        yield from _unlike(inside[key], path[1:], form, f"{place}.{key}".lstrip("."))


def epochs_so_far(folder: Path) -> list[dict[str, Any]]:
    """The rows of an unfinished run's epochs, from its log; a line that was cut off or is damaged is skipped."""
    path, rows = folder / "log.jsonl", []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(event, dict) and event.pop("event", None) == "epoch":
            rows.append(event)
    return rows


class Log:
    """`log.jsonl`: a line for each epoch and event, in order."""

    def __init__(self, path: Path, lines: Sequence[str] = ()) -> None:
        """Continue after these lines, which are a checkpoint's: those of the file may be incomplete, or ahead of it."""
        self.path, self.lines = path, list(lines)
        write_text(path, "".join(self.lines))

    def add(self, **values: Any) -> None:
        self._append(json.dumps(values) + "\n")

    def keep(self, before: Log, *events: str) -> None:
        """Add these events of a log that began with the same lines, as far as they came after them."""
        for line in before.lines[len(self.lines) :]:
            if json.loads(line)["event"] in events:
                self._append(line)

    def _append(self, line: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line)
        self.lines.append(line)
