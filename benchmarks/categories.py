"""What columns of texts and missing numbers are worth on users' own tables, and how rare categories should be scaled.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/categories.py

A row has four columns of texts, with 5, 12, 30 and 60 categories whose frequencies fall as 1/rank, and six numbers, of
which a tenth is missing. All of them decide which of four classes it has; `symmetric:0.4` noise is added, and 1 row in
15 is verified at random. `fasten train` gets the numbers alone; all columns; and all columns, with the texts as 0 and
2, which makes each a number that is scaled by its own deviation. The record has means over the seeds. The scale of
columns of 0 and 1 was chosen on seeds 0 to 2.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
from embeddings import command
from numpy.typing import NDArray

from fasten.data.noise import corrupt, parse_noise
from fasten.files import write_text
from fasten.records import environment, read_record

CATEGORIES, NUMBERS, CLASSES, TEST = (5, 12, 30, 60), 6, 4, 2000
SEEDS = range(10, 15)


def make_table(rows: int, seed: int) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """Make a table with test rows at its end; return it, and all true labels."""
    rng, total = np.random.default_rng(seed), rows + TEST
    scores, columns = np.zeros((total, CLASSES)), {}
    for number, count in enumerate(CATEGORIES):
        shares = 1 / np.arange(1, count + 1)
        codes = rng.choice(count, total, p=shares / shares.sum())
        scores += 1.6 * rng.normal(size=(count, CLASSES))[codes]
        columns[f"text {number}"] = np.array([f"v{code}" for code in range(count)])[codes]
    x = rng.normal(size=(total, NUMBERS))
    truth = (scores + 0.8 * x @ rng.normal(size=(NUMBERS, CLASSES))).argmax(1)
    x[rng.random(x.shape) < 0.1] = np.nan
    table = pd.DataFrame(columns | {f"number {place}": x[:, place] for place in range(NUMBERS)})
    train = np.arange(total) < rows
    given = np.where(train, corrupt(truth, parse_noise("symmetric:0.4"), CLASSES, rng).labels, truth)
    verified = np.isin(np.arange(total), rng.choice(rows, rows // 15, replace=False))
    table["label"], table["verified_label"] = given, np.where(verified, truth.astype(str), "")
    table["split"] = np.where(train, "", "test")
    return table, truth


def ways(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    texts = [name for name in table if name.startswith("text")]
    dummies = pd.get_dummies(table[texts]) * 2
    return {
        "numbers alone": table.drop(columns=texts),
        "texts as 0 and 2": pd.concat([table.drop(columns=texts), dummies], axis=1),
        "all columns": table,
    }


def measure(table: pd.DataFrame, truth: NDArray[np.int64], seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table.to_csv(folder / "table.csv", index=False)
        options = ("--seed", str(seed), "--no-references", "--device", "cpu", "--json")
        command(folder, "train", "table.csv", *options, "--out", "run")
        found = pd.read_csv(folder / "run" / "labels.csv").sort_values("row")
        right = float((found["corrected"].to_numpy() == truth[: len(found)]).mean())
        return {"accuracy": read_record(folder / "run")["result"]["test_accuracy"], "corrected_labels_right": right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/categories.json"))
    asked, found = parser.parse_args(), {}
    for rows in (800, 4000):
        runs: dict[str, list[dict[str, float]]] = {}
        for seed in SEEDS:
            table, truth = make_table(rows, seed)
            for way, part in ways(table).items():
                runs.setdefault(way, []).append(measure(part, truth, seed))
                print(rows, seed, way, runs[way][-1], flush=True)
        found[f"{rows:,} rows"] = {
            way: {key: fmean(run[key] for run in mine) for key in mine[0]} for way, mine in runs.items()
        }
    result = {"environment": environment(), "seeds": list(SEEDS), "problems": found}
    write_text(asked.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
