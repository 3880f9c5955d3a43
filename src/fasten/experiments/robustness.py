"""Figure 3a: what happens to a method if corrected labels are perturbed."""

from __future__ import annotations

from fasten.experiments.measures import ACCURACY
from fasten.experiments.paper import pair, paper, repeated
from fasten.experiments.runs import ABLATION, HARSHEST, make_run
from fasten.experiments.spec import Cell, Experiment, Setting


def robustness(setting: Setting) -> Experiment:
    """Accuracy by the share of corrected labels that are replaced by random ones."""
    numbers = dict(paper("robustness"))
    shares = numbers.pop("x")
    cells: list[Cell] = []
    for row, found in numbers.items():
        if isinstance(found, list):
            known = dict(zip(shares, found, strict=True))
            cells += [_point(setting, row, share, known[share]) for share in setting.some(shares)]
        else:  # without correction there is nothing to perturb: a horizontal line
            cells += [_point(setting, row, share, found, perturb=False) for share in (shares[0], shares[-1])]
    return Experiment(
        "robustness",
        "Robustness to miscorrection on CIFAR-10, symmetric 80%",
        "figure",
        tuple(cells),
        about="A share of the corrected labels is replaced by classes drawn uniformly; for FasTEN, a share of those "
        "that differ from the given ones. `w/o LC` is the same method without label correction, a horizontal line (the "
        "paper has none for MLaC). FasTEN uses λ = 0.1 here: at 0% the paper plots the number of its table of λ, and "
        "for the other methods those of table 1; we use the intervals given there. Without correction it plots 71.25, "
        "where its tables have 74.19; we use λ = 0.1 there too.",
        x="corrected labels perturbed (%)",
        y="test accuracy (%)",
    )


def _point(setting: Setting, row: str, share: float, number: float, perturb: bool = True) -> Cell:
    settings = [ABLATION] if row.startswith("fasten") else []
    run = make_run(setting, "cifar10", row, settings=[*settings, f"perturbation={share}"] if perturb else settings)
    mean, ci95 = pair(repeated(number, "cifar10", HARSHEST, row) if share == 0 else number)
    return Cell(row, f"{share:.0%}", ACCURACY, mean, ci95, run, x=100 * share)
