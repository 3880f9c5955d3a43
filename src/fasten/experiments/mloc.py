"""Table 9 (appendix): MLoC and FasTEN without label correction."""

from __future__ import annotations

from fasten.experiments.paper import paper
from fasten.experiments.runs import LAMBDA_SEARCHED, NOISES, method_table
from fasten.experiments.spec import Experiment, Setting


def mloc(setting: Setting) -> Experiment:
    """A learned T compared with an estimated one."""
    numbers = dict(paper("mloc"))
    printed = numbers["cifar10"]
    numbers["cifar10"] = {
        "mloc": printed["mloc"],
        "fasten-oracle": printed["fasten-no-lc"],  # the paper prints this row of another table
        "fasten-no-lc": dict.fromkeys(NOISES),
    }
    return Experiment(
        "mloc",
        "Test accuracy (%) of MLoC and FasTEN without label correction",
        "table",
        method_table(setting, numbers),
        about="For CIFAR-10 the paper's row `FasTEN w/o LC` repeats, number for number, the row with the true T of its "
        "GLC table. We compare these numbers with runs that have the true T, `FasTEN w/ oracle w/o LC`. Our row "
        "`FasTEN w/o LC` is what the table should have shown; the paper's numbers for it are in the table of "
        "oversampling. MLoC's numbers are those of table 1, with the intervals that they have there. "
        f"{LAMBDA_SEARCHED}",
    )
