"""fasten: train classifiers on labels you don't trust, with the help of a few that you do."""

import importlib
import os
from typing import TYPE_CHECKING, Any

# torch's threads spin while they wait for each other; on a machine that others use too, a short spin is many times
# faster. Without effect where torch was imported before.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from fasten.loader import BalancedDraw
from fasten.nets import TwoHead
from fasten.ops.transition import correct_labels, corrected_nll, estimate_transition
from fasten.records import VERSION as __version__

if TYPE_CHECKING:
    from fasten.estimator import FasTENClassifier
    from fasten.observing import observe

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

# These bring scikit-learn and pandas with them, a second that the pieces above need not wait for.
LATE = {"FasTENClassifier": "fasten.estimator", "observe": "fasten.observing"}


def __getattr__(name: str) -> Any:
    if name not in LATE:
        raise AttributeError(f"module 'fasten' has no attribute {name!r}")
    found = getattr(importlib.import_module(LATE[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *LATE})
