"""Table 8 (appendix): GLC and FasTEN with the true T."""

from __future__ import annotations

from fasten.experiments.paper import paper
from fasten.experiments.runs import LAMBDA_SEARCHED, method_table
from fasten.experiments.spec import Experiment, Setting


def glc_oracle(setting: Setting) -> Experiment:
    """What two heads gain, with the true T and with an estimated one."""
    return Experiment(
        "glc-oracle",
        "Test accuracy (%) of GLC and FasTEN without label correction, with the true T and without",
        "table",
        method_table(setting, paper("glc-oracle")),
        about="The paper uses the true T for CIFAR-10 only. Its GLC rows are those of table 1, with its intervals; "
        f"its rows of FasTEN without correction are those of the table of oversampling. {LAMBDA_SEARCHED}",
    )
