"""Table 2: accuracy on Clothing1M; three methods were run by the authors, the others are quoted."""

from __future__ import annotations

from fasten.datasets import find_dataset
from fasten.experiments.measures import ACCURACY
from fasten.experiments.paper import paper
from fasten.experiments.runs import make_run
from fasten.experiments.spec import Cell, Experiment, Setting

# For the methods that the authors ran. L2RW's learning rate falls after five epochs.
SCHEDULES: dict[str, tuple[str, ...]] = {"l2rw": ("epochs=10", "milestones=6"), "fasten-no-lc": (), "fasten": ()}
WEIGHTS = "imagenet-resnet50.safetensors"  # what the network starts from; under --root


def clothing1m(setting: Setting) -> Experiment:
    """Real noise, a million images."""
    net = find_dataset(setting.data["clothing1m"]).recipe.net
    start = [f"weights={WEIGHTS}"] if net.startswith("imagenet-") else []
    cells = []
    for row, found in paper("clothing1m").items():
        run = make_run(setting, "clothing1m", row, settings=[*start, *SCHEDULES[row]]) if row in SCHEDULES else None
        source = "" if run else found["source"]
        cells.append(Cell(row, "accuracy", ACCURACY, found["mean"], found["ci95"], run, found["group"], source))
    return Experiment(
        "clothing1m",
        "Test accuracy (%) on Clothing1M, labels from the web",
        "table",
        tuple(cells),
        about="The authors ran L2RW, and FasTEN with and without correction; they quote the other numbers, and so do "
        f"we. The network starts from ImageNet weights, {WEIGHTS} under `--root`. The paper does not state λ, ρ and "
        "the weight decay; we use those of CIFAR. L2RW runs without momentum, as in its recipe.",
    )
