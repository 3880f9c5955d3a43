"""Table 13 (appendix): λ, the weight of the noisy head's loss."""

from __future__ import annotations

from fasten.experiments.paper import paper
from fasten.experiments.runs import ends, make_run, noise_table
from fasten.experiments.spec import Experiment, Setting
from fasten.records import Run


def lambda_study(setting: Setting) -> Experiment:
    """FasTEN with six values of λ."""
    numbers = {data: ends(setting, rows) for data, rows in paper("lambda").items()}

    def run(data: str, row: str, noise: str) -> Run:
        return make_run(setting, data, noise=noise, settings=[f"noisy_weight={row}"])

    return Experiment(
        "lambda",
        "Test accuracy (%) of FasTEN by λ, the weight of the noisy head's loss",
        "table",
        noise_table(setting, numbers, run, "λ = {}".format),
        about="λ is `noisy_weight` as in the authors' code, which averages the clean loss over 200 rows and the noisy "
        "one over 100: its 0.5 is λ = 1 in the paper's formula, which sums. λ = 0.5 is FasTEN of table 1.",
    )
