"""Commands that look at a run: evaluate, report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

from fasten import console
from fasten.arguments import Data, Device, Download, Folder, Json, Labels, OwnRoot, place
from fasten.datasets import find_dataset
from fasten.inference import evaluate_run, load_test_task, read_finished
from fasten.machine import choose_machine
from fasten.records import epochs_so_far, read_record
from fasten.report import write_report


def evaluate(
    dir: Folder,
    data: Data,
    root: OwnRoot = None,
    device: Device = "auto",
    labels: Labels = None,
    download: Download = False,
    as_json: Json = False,
) -> None:
    """Test a run's classifier on the test rows of a data set.

    Where it is the run's own data set, these are the rows that the run held
    back, and the accuracy is that of its record.

    \b
    Example:
      fasten evaluate runs/digits digits
    """
    find_dataset(data)
    machine = choose_machine(device)
    task = load_test_task(read_finished(dir), data, root, labels, download)
    scores = evaluate_run(dir, task, machine)
    if as_json:
        print(json.dumps(scores))
    else:
        console.show_table(["rows", "accuracy", "NLL"], [[scores["rows"], scores["test_accuracy"], scores["test_nll"]]])


def report(
    dir: Folder,
    out: Annotated[Path | None, place("--out", "The file to write; DIR/report.html if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Write a run's report again, as one HTML file.

    \b
    Example:
      fasten report runs/digits --out digits.html
    """
    path = out or dir / "report.html"
    if path.is_dir():
        raise ValueError(f"{path} is a folder; --out takes the name of the file to write")
    record = read_record(dir)
    write_report({**record, "epochs": record["epochs"] or epochs_so_far(dir)}, path)
    print(json.dumps({"report": os.fspath(path)}) if as_json else path)
