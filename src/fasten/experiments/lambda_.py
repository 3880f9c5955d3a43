"""Table 13 (appendix): λ, the weight of the noisy head's loss."""

from __future__ import annotations

from fasten.experiments.measures import ACCURACY
from fasten.experiments.paper import paper
from fasten.experiments.runs import DATA_NAMES, HARSHEST, SEARCHED, ends, make_run, noise_name, noise_table
from fasten.experiments.spec import Cell, Experiment, Setting
from fasten.records import Run


def lambda_study(setting: Setting) -> Experiment:
    """FasTEN with six values of λ; under the heaviest noise also its variants, whose λ the paper searched for."""
    numbers = {data: ends(setting, rows) for data, rows in paper("lambda").items()}

    def runs(data: str, row: str, noise: str) -> list[Run]:
        return [make_run(setting, data, noise=noise, settings=[f"noisy_weight={row}"])]

    def variant(row: str, method: str) -> Cell:
        run = make_run(setting, "cifar10", method, settings=[f"noisy_weight={row}"])
        return Cell(f"λ = {row}", method, ACCURACY, run=run, panel=f"{DATA_NAMES['cifar10']}, {noise_name(HARSHEST)}")

    return Experiment(
        "lambda",
        "Test accuracy (%) of FasTEN by λ, the weight of the noisy head's loss",
        "table",
        (
            *noise_table(setting, numbers, runs, "λ = {}".format),
            *(variant(row, method) for row in numbers["cifar10"] for method in SEARCHED),
        ),
        about="λ is `noisy_weight` as in the authors' code, which averages the clean loss over 200 rows and the noisy "
        "one over 100: its 0.5 is λ = 1 in the paper's formula, which sums. λ = 0.5 is the FasTEN of table 1. The last "
        "block shows its variants: for each seed, other tables use the λ that is best on the validation rows.",
    )
