"""fasten: train classifiers on labels you don't trust, with the help of a few that you do."""

from fasten.loader import BalancedDraw
from fasten.nets import TwoHead
from fasten.ops.transition import correct_labels, corrected_nll, estimate_transition
from fasten.records import VERSION as __version__

__all__ = ["BalancedDraw", "TwoHead", "__version__", "correct_labels", "corrected_nll", "estimate_transition"]
