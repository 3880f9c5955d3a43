"""docs/results.md and its figure, from the records in this folder alone: `python results/make_page.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
TOLERANCE = 0.5  # points of accuracy


def records(dataset: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((HERE / dataset).glob("*.json"))]


def status(mean: float, paper: float, interval: float) -> str:
    """`below`, `better` or `reproduced`; our own spread never enters."""
    if mean < paper - interval - TOLERANCE:
        return "below"
    return "better" if mean > paper + interval + TOLERANCE else "reproduced"


def cifar_table(found: list[dict[str, Any]], paper: dict[str, Any]) -> list[str]:
    lines = ["| method | noise | seeds | ours, % | paper, % | status |", "|---|---|---|---|---|---|"]
    cells: dict[tuple[str, str], list[float]] = {}
    for record in found:
        key = (record["run"]["method"], record["run"]["noise"])
        cells.setdefault(key, []).append(100 * record["result"]["test_accuracy"])
    for (method, noise), values in sorted(cells.items()):
        target = paper["accuracy"].get(method, {}).get(noise)
        mean = float(np.mean(values))
        said = f"{target['mean']:.2f}" if target else "–"
        said += f" ± {target['ci95']:.2f}" if target and target["ci95"] else ""
        word = status(mean, target["mean"], target["ci95"]) if target else "not in the paper"
        lines.append(f"| {method} | {noise} | {len(values)} | {mean:.2f} | {said} | {word} |")
    return lines


def relabel_table(record: dict[str, Any], paper: dict[str, Any]) -> list[str]:
    ours, found = record["evaluation"]["relabel"], record["evaluation"]["detection"]["minus_p_given"]
    theirs = paper["relabel"]
    rows = [
        ("relabel accuracy, all rows", ours["accuracy"], theirs["accuracy"]["overall"]),
        ("relabel accuracy, wrong rows", ours["accuracy_wrong"], theirs["accuracy"]["incorrect"]),
        ("relabel NLL, all rows", ours["nll"], theirs["nll"]["overall"]),
        ("relabel NLL, wrong rows", ours["nll_wrong"], theirs["nll"]["incorrect"]),
        ("detection AUROC", found["auroc"], paper["detection"]["auroc"]),
        ("detection AUPRC", found["auprc"], paper["detection"]["auprc"]),
    ]
    head = ["| symmetric 80%, seed 1 | ours | paper |", "|---|---|---|"]
    return head + [f"| {name} | {a:.4f} | {b:.4f} |" for name, a, b in rows]


def diagonal_table(found: dict[str, dict[str, Any]], paper: dict[str, Any]) -> list[str]:
    lines = [
        "| noise | epoch | true, ours | true, paper | estimated, ours | estimated, paper |",
        "|---|---|---|---|---|---|",
    ]
    for noise, theirs in paper["t_diagonal"].items():
        for epoch in (1, 10, 30, 50, 60, 70):
            row = found[noise]["epochs"][epoch - 1]
            ours = (row["t_diagonal_true"], row["t_diagonal"])
            them = (theirs["true"][epoch - 1], theirs["estimated"][epoch - 1])
            lines.append(f"| {noise} | {epoch} | {ours[0]:.3f} | {them[0]:.3f} | {ours[1]:.3f} | {them[1]:.3f} |")
    return lines


def digits_table(found: list[dict[str, Any]]) -> list[str]:
    head = (
        "| noise | seeds | FasTEN | clean rows only | noisy only, last epoch | noisy only, validation picks the epoch |"
    )
    lines = [head, "|---|---|---|---|---|---|"]
    for noise in sorted({record["run"]["noise"] for record in found}):
        some = [record for record in found if record["run"]["noise"] == noise]
        noisy = [record["references"]["noisy_only"] for record in some]
        columns = [
            [record["result"]["test_accuracy"] for record in some],
            [record["references"]["clean_only"]["test_accuracy"] for record in some],
            [value["test_accuracy_last"] for value in noisy],
            [value["test_accuracy"] for value in noisy],
        ]
        seeds = ", ".join(str(record["run"]["seed"]) for record in some)
        lines.append(f"| {noise} | {seeds} | " + " | ".join(f"{np.mean(c):.3f}" for c in columns) + " |")
    return lines


def page() -> str:
    paper, cifar = json.loads((HERE / "paper.json").read_text()), records("cifar10")
    ours = {record["run"]["noise"]: record for record in cifar if record["run"]["method"] == "fasten"}
    alone = next(record for record in cifar if not record["environment"]["shared_gpu"])["result"]
    epochs = len(ours["symmetric:0.8"]["epochs"])
    timing = (
        f"The run that had the GPU to itself ({ours['symmetric:0.8']['environment']['device'].split(' ', 1)[1]}): "
        f"{alone['train_seconds'] / epochs:.2f} s an epoch, {alone['train_seconds']:.0f} s of training, "
        f"{alone['examples_per_second']:,.0f} images/s, {alone['peak_memory_bytes'] / 1e9:.2f} GB."
    )
    text = (HERE / "page.md").read_text()
    parts = {
        "CIFAR": "\n".join(cifar_table(cifar, paper)),
        "TIMING": timing,
        "RELABEL": "\n".join(relabel_table(ours["symmetric:0.8"], paper)),
        "DIAGONAL": "\n".join(diagonal_table(ours, paper)),
        "DIGITS": "\n".join(digits_table(records("digits"))),
    }
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", part)
    return text


def draw(path: Path) -> None:
    """Mean diagonals per epoch, ours against the paper's."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fasten"
    from matplotlib import pyplot

    paper = json.loads((HERE / "paper.json").read_text())["t_diagonal"]
    ours = {r["run"]["noise"]: r["epochs"] for r in records("cifar10") if r["run"]["method"] == "fasten"}
    figure, axes = pyplot.subplots(1, len(paper), figsize=(10, 3.6), sharey=True)
    for axis, (noise, theirs) in zip(axes, paper.items(), strict=True):
        for key, word, colour in (("t_diagonal_true", "true", "#d55e00"), ("t_diagonal", "estimated", "#0072b2")):
            values = [row[key] for row in ours[noise]]
            axis.plot(range(1, len(values) + 1), values, color=colour, label=f"{word}, ours")
            axis.plot(range(1, len(values) + 1), theirs[word], "--", color=colour, alpha=0.6, label=f"{word}, paper")
        axis.set(title=f"CIFAR-10, {noise}", xlabel="epoch", ylim=(0, 1.02))
    axes[0].set_ylabel("mean diagonal of T")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    (DOCS / "results.md").write_text(page())
    draw(DOCS / "t_diagonal.svg")
