"""fasten: train classifiers on labels you don't trust, with the help of a few that you do."""

import importlib
import os
from typing import TYPE_CHECKING, Any

# torch's threads spin while they wait for each other; on a machine that others use too, a short spin is many times
# faster. This has no effect if torch was imported before.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from fasten.constants import VERSION as __version__

if TYPE_CHECKING:
    from fasten.estimator import FasTENClassifier
    from fasten.loader import BalancedDraw
    from fasten.nets import TwoHead
    from fasten.observing import observe
    from fasten.ops.transition import correct_labels, corrected_nll, estimate_transition

__all__ = [
    "BalancedDraw",
    "FasTENClassifier",
    "TwoHead",
    "__version__",
    "correct_labels",
    "corrected_nll",
    "estimate_transition",
    "observe",
]

# Imported on first use: they all import torch, which takes a second, and some scikit-learn and pandas as well.
LATE = {
    "FasTENClassifier": "fasten.estimator",
    "observe": "fasten.observing",
    "BalancedDraw": "fasten.loader",
    "TwoHead": "fasten.nets",
    "correct_labels": "fasten.ops.transition",
    "corrected_nll": "fasten.ops.transition",
    "estimate_transition": "fasten.ops.transition",
}


def __getattr__(name: str) -> Any:
    if name not in LATE:
        raise AttributeError(f"module 'fasten' has no attribute {name!r}")
    found = getattr(importlib.import_module(LATE[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *LATE})
