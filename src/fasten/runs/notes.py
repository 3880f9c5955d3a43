"""The notes of a run, in sentences: how it starts, what it lacks, and what looks wrong in its result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasten.contract import Recipe, Stage
from fasten.data.task import Task
from fasten.metrics import smallest_singular
from fasten.nets import has_weights
from fasten.own import MIDDLE_IMAGE
from fasten.records import Record, Run
from fasten.report.verdict import gain
from fasten.sentences import are
from fasten.statistics import LEVEL
from fasten.suggest import listed

NEARLY_SINGULAR = 0.02  # the smallest singular value; symmetric noise of 98% has this one
MOST = 0.5  # of the labels
SLOW = 128  # pixels of a side, without a GPU


def first_notes(task: Task, run: Run, plan: list[Stage], device_type: str) -> list[str]:
    """All notes that can be made before the first update."""
    notes = [*task.notes, *start_notes(run.recipe)]
    if run.own is not None and device_type == "cpu" and len(task.shape) == 3 and min(task.shape[1:]) > SLOW:
        pixels = "×".join(map(str, task.shape[1:]))
        notes.append(
            f"images of {pixels} pixels take long without a GPU; --size {MIDDLE_IMAGE} is several times faster"
        )
    return [*notes, *length_notes(run.recipe, plan), *coverage_notes(task, plan)]


def start_notes(recipe: Recipe) -> list[str]:
    """A note if a network that is frozen, or usually comes with trained weights, starts from random ones."""
    made_for_weights = recipe.frozen or recipe.net.startswith(("imagenet-", "timm:", "torchvision:", "hf:"))
    if recipe.weights is not None or not made_for_weights or has_weights(recipe.net):
        return []
    stays = ", and is frozen in that state" if recipe.frozen else ""
    return [f"{recipe.net} starts from random weights{stays}; --set weights=FILE starts it from trained ones"]


def stages_in_words(plan: list[Stage]) -> str:
    """How many epochs each stage has; empty if there is only one."""
    parts = [f"{stage.name} {stage.epochs}" for stage in plan]
    return f"epochs of each stage: {', '.join(parts)}" if len(parts) > 1 else ""


def length_notes(recipe: Recipe, plan: list[Stage]) -> list[str]:
    """A note if a method has more stages than it was given epochs."""
    total = sum(stage.epochs for stage in plan)
    if total == recipe.epochs:
        return []
    return [f"{total} epochs are trained, not {recipe.epochs}: each of the {len(plan)} stages has at least one"]


def out_of_reach(task: Task, min_precision: float | None) -> str:
    """A sentence if the held-back rows cannot show the precision, even if all their wrong labels are corrected."""
    if task.known is None or min_precision is None:
        return ""
    known, needed = task.known, math.ceil(math.log(LEVEL) / math.log(min_precision))  # p^n is at most LEVEL
    wrong = int((known.held & (known.given >= 0) & (known.given != known.verified)).sum())
    if wrong >= needed:
        return ""
    return (
        f"nothing will be corrected: a precision of {min_precision:.4g} takes at least {needed} held-back labels that "
        f"are wrong, and there {are(wrong)} {wrong}; verify more rows at random, or ask for a lower precision"
    )


def coverage_notes(task: Task, plan: list[Stage]) -> list[str]:
    """Notes on what the run does about classes with few clean rows, or none."""
    none = listed([task.class_names[c] for c in task.unseen_classes])
    kept = (
        [f"no clean rows in {none}: rows with such a label keep it, as no row shows what belongs there"] if none else []
    )
    return [*_few(task, plan), *kept]


def _few(task: Task, plan: list[Stage]) -> list[str]:
    balanced = [draw for stage in plan for draw in stage.draws.values() if draw.how == "balanced"]
    if not balanced:
        return []
    per_class = max(draw.size for draw in balanced) // task.num_classes
    count = np.bincount(task.clean, minlength=task.num_classes)
    few = [name for name, n in zip(task.class_names, count, strict=True) if 0 < n < per_class]
    where = "every class" if len(few) == task.num_classes else listed(few)
    return [f"fewer than {per_class} clean rows in {where}: a batch takes some of them several times"] if few else []


def epoch_warnings(row: Mapping[str, Any]) -> list[str]:
    """What looks wrong at the end of an epoch."""
    collapsed = ["the classifier has collapsed: it predicts one class for all rows"]
    found = collapsed if row.get("predicted_classes") == 1 else []
    return [*found, *_singular("T as training estimates it", row.get("t_smallest_singular"))]


def final_warnings(best: Mapping[str, Any], probs: NDArray[Any], T: NDArray[np.float64]) -> list[str]:
    """What looks wrong at the selected epoch, from its row, p(y | x) of the rows, and the T of the given labels."""
    row = {**best, "predicted_classes": len(np.unique(probs.argmax(1)))}  # of all rows, not of a few that validate
    found = [f"at the selected epoch {text}" for text in epoch_warnings(row)]
    return [*found, *_singular("T of the given labels", smallest_singular(T))]


def _singular(name: str, smallest: float | None) -> list[str]:
    if smallest is None or smallest >= NEARLY_SINGULAR:
        return []
    return [
        f"{name} is close to singular (its smallest singular value is {smallest:.2g}): the noisy labels barely "
        "distinguish some classes, so corrections between these are guesses"
    ]


def clean_rows_do_better(record: Record) -> str | None:
    """A sentence if clean-only wins by more than the standard error of its accuracy, on validation or test rows."""
    reference, result = record["references"].get("clean_only"), record["result"]
    for part, key in (("validation", "valid"), ("test", "test")):
        rows, name = record["data"][f"rows_{key}"], f"{key}_accuracy"
        if not reference or reference[name] is None or result[name] is None:
            continue
        alone, here = reference[name], result[name]
        if gain(here, alone, rows) < 0:
            another = "" if record["run"]["method"] == "dividemix-clean" else "try --method dividemix-clean, "
            return (
                f"training on the clean rows alone does better: {alone:.1%} of the {part} rows are right, against "
                f"{here:.1%} with the noisy rows; use --method clean-only, {another}or have more labels checked"
            )
    return None


def most_labels_wrong(method: str, share: float) -> str | None:
    """A hint if FasTEN was trained on labels of which more than half look wrong."""
    if method != "fasten" or share <= MOST:
        return None
    return (
        f"{share:.0%} of the labels look wrong: when most were wrong, --method dividemix-clean did better on all data "
        "that we tried, in several times the time"
    )
