"""Folders of finished runs on users' own data, made without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fasten.audit.stored import audit_probabilities


def sure_probabilities(
    codes: Sequence[int] | np.ndarray, num_classes: int, p: float = 0.9, seed: int = 0
) -> np.ndarray:
    """A model's that says about p for these classes."""
    rng = np.random.default_rng(seed)
    rest = rng.dirichlet(np.ones(num_classes), len(codes)) * (1 - p)
    rest[np.arange(len(codes)), np.asarray(codes)] += p
    return rest.astype(np.float32)


def make_run(
    out: Path,
    data: str | Path,
    ids: Sequence[str],
    given: Sequence[str],
    believed: Sequence[str],
    class_names: Sequence[str],
    own: dict[str, Any] | None = None,
    **more: Any,
) -> Path:
    """A run on `data` whose model believes these labels; `more` goes to `audit_probabilities`."""
    codes = [list(class_names).index(label) for label in believed]
    audit_probabilities(
        sure_probabilities(codes, len(class_names), 0.999), given, class_names, out=out, ids=ids, name=str(data), **more
    )
    record = json.loads((out / "record.json").read_text())
    record["run"] |= {"own": own or {}, "method": "fasten"}
    (out / "record.json").write_text(json.dumps(record))
    return out
