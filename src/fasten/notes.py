"""What a run says of itself in sentences: how it starts, what it lacks, and what it came to."""

from __future__ import annotations

import math

import numpy as np

from fasten.contract import Recipe, Stage
from fasten.data.task import Task
from fasten.nets import has_weights
from fasten.records import Record


def start_notes(recipe: Recipe) -> list[str]:
    """A network made to be trained by others, or one that is frozen, is rarely meant to start from nothing."""
    made_for_weights = recipe.frozen or recipe.net.startswith(("imagenet-", "timm:", "torchvision:", "hf:"))
    if recipe.weights is not None or not made_for_weights or has_weights(recipe.net):
        return []
    stays = ", and is frozen so" if recipe.frozen else ""
    return [f"{recipe.net} starts from random weights{stays}; --set weights=FILE starts it from trained ones"]


def coverage_notes(task: Task, plan: list[Stage]) -> list[str]:
    """What the run does where a class has few clean rows, or none."""
    balanced = [draw for stage in plan for draw in stage.draws.values() if draw.how == "balanced"]
    if not balanced:
        return []
    per_class = max(draw.size for draw in balanced) // task.num_classes
    count = np.bincount(task.clean, minlength=task.num_classes)
    few = [name for name, n in zip(task.class_names, count, strict=True) if 0 < n < per_class]
    none = [name for name, n in zip(task.class_names, count, strict=True) if n == 0]
    notes = []
    if few:
        notes.append(f"fewer than {per_class} clean rows in {', '.join(few)}: drawn with replacement")
    if none:
        notes.append(f"no clean rows in {', '.join(none)}: the row of T is the identity's, and labels are kept")
    return notes


def clean_rows_do_better(record: Record) -> str | None:
    """A sentence where clean-only wins by more than the standard error of its accuracy, on validation or test rows."""
    reference, result = record["references"].get("clean_only"), record["result"]
    for part, key in (("validation", "valid"), ("test", "test")):
        rows, name = record["data"][f"rows_{key}"], f"{key}_accuracy"
        if not reference or reference[name] is None or result[name] is None:
            continue
        alone, here = reference[name], result[name]
        if alone - here > math.sqrt(alone * (1 - alone) / rows):
            return (
                f"the clean rows alone do better: {alone:.1%} of the {part} rows against {here:.1%} with the noisy "
                "ones; use --method clean-only, or have more labels checked"
            )
    return None
