"""fasten: train classifiers on labels you don't trust, with the help of a few that you do."""

import os

# torch's threads spin while they wait for each other; on a machine that others use too, a short spin is many times
# faster. Without effect where torch was imported before.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from fasten.loader import BalancedDraw
from fasten.nets import TwoHead
from fasten.ops.transition import correct_labels, corrected_nll, estimate_transition
from fasten.records import VERSION as __version__

__all__ = ["BalancedDraw", "TwoHead", "__version__", "correct_labels", "corrected_nll", "estimate_transition"]
