"""Commands that use a finished run: evaluate, predict, export, report."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fasten.commands.arguments import Data, Device, Download, Folder, Json, Labels, MaxBad, OwnRoot, place, switch, text
from fasten.constants import MAX_BAD
from fasten.sentences import some

CLASSES_SHOWN = 10  # by `predict`, the most frequent ones


def evaluate(
    dir: Folder,
    data: Data,
    max_bad: MaxBad = MAX_BAD,
    root: OwnRoot = None,
    device: Device = "auto",
    labels: Labels = None,
    download: Download = False,
    as_json: Json = False,
) -> None:
    """Test a run's classifier on rows whose labels are known.

    For a known data set, these are its test rows; if it is the run's own data
    set, they are those that the run held back, and the accuracy is the one in
    its record. For your own data, they are the rows of the split `test` if there
    are any, otherwise all rows with a label. Classes are matched by name.

    \b
    Examples:
      fasten evaluate runs/digits digits
      fasten evaluate runs/photos checked-photos/
    """
    from fasten.commands import console
    from fasten.datasets import check_labels
    from fasten.machine import choose_machine
    from fasten.runs.inference import evaluate_run
    from fasten.runs.testing import load_test_task

    _check_data(data)
    check_labels(data, labels)
    machine = choose_machine(device)
    task = load_test_task(dir, data, root, labels, download, max_bad)
    scores = evaluate_run(dir, task, machine)
    if as_json:
        print(json.dumps(scores))
        return
    console.show_table(["rows", "accuracy", "NLL"], [[scores["rows"], scores["test_accuracy"], scores["test_nll"]]])
    print()
    keys = ("class", "rows", "accuracy", "predicted", "precision")
    console.show_table(keys, [[line[key] for key in keys] for line in scores["classes"]])
    _say(scores["notes"])


def predict(
    dir: Folder,
    data: Data,
    out: Annotated[Path, place("--out", "The CSV file to write.")],
    probabilities: Annotated[
        bool, switch("--probabilities", "Also write the probability of every class, a column each.")
    ] = False,
    max_bad: MaxBad = MAX_BAD,
    root: OwnRoot = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Predict the classes of new rows, which need no labels.

    Your own data are a folder of images, in folders of classes or not, a CSV or
    Parquet file, or an .npz of arrays; images are scaled to the size that the
    run was trained on. The file has a line for each row: id, predicted, p (the
    probability of that class).

    \b
    Examples:
      fasten predict runs/photos new-photos/ --out predictions.csv
      fasten predict runs/items items.csv --probabilities --out items-p.csv
    """
    from fasten.commands import console
    from fasten.machine import choose_machine
    from fasten.runs.inference import check_predictions, load_new_task, predict_run, read_finished

    _check_data(data)
    _check_file(out, ".csv")
    check_predictions(out)
    machine = choose_machine(device)
    task = load_new_task(read_finished(dir), data, max_bad, root)
    summary = predict_run(dir, task, machine, out, probabilities)
    if as_json:
        print(json.dumps(summary))
        return
    most = sorted(summary["predicted"].items(), key=lambda item: -item[1])
    console.show_table(["predicted", "rows"], most[:CLASSES_SHOWN])
    _say(summary["notes"])
    print(f"{some(summary['rows'], 'row')}, mean probability {summary['mean_p']:.3f}: {summary['out']}")


def export(
    dir: Folder,
    out: Annotated[Path, place("--out", "The file to write, such as model.onnx or model.pt2.")],
    form: Annotated[str, text("--format", "FORMAT", "onnx, or torch for an exported program.")] = "onnx",
    data: Annotated[
        str | None, text("--data", "DATA", "Compare predictions on rows of these data, not on made-up ones.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a run's classifier as one file for other programs.

    It takes raw examples, images as uint8 (batch, height, width, channels) in
    RGB or grey, or features as float32 (batch, features), any number of them;
    normalisation is inside. It returns class probabilities. The file holds the
    names of the classes. Its predictions are compared with this program's
    first, and a file that differs is not written.

    \b
    Examples:
      fasten export runs/digits --out digits.onnx
      fasten export runs/digits --format torch --data digits --out digits.pt2
    """
    from fasten.runs.exporting import export_run, first_examples
    from fasten.runs.inference import check_shape, examples_of, load_new_task, read_finished

    _check_file(out)
    examples = None
    if data is not None:
        _check_data(data)
        record = read_finished(dir)
        task = load_new_task(record, data)
        check_shape(dir, examples_of(record)["shape"], task)
        examples = first_examples(task)
    found = export_run(dir, out, form, examples)
    if as_json:
        print(json.dumps(found))
        return
    wanted = "×".join(map(str, found["input"]))
    print(f"input: {found['input_type']} {wanted}; output: the probabilities of {len(found['classes'])} classes")
    what = "rows" if data is not None else "made-up rows"
    print(
        f"largest difference from our own predictions, over {found['rows_compared']} {what}: "
        f"{found['largest_difference']:.1e}"
    )
    print(f"{found['bytes']:,} bytes: {found['out']}")


def _check_data(data: str) -> None:
    from fasten.datasets import find_dataset, is_own

    if not is_own(data):
        find_dataset(data)


def _check_file(out: Path, ending: str = "") -> None:
    """Before any work, refuse a path at which there can be no file, or one with another ending."""
    if out.is_dir():
        raise ValueError(f"{out} is a folder; --out takes the name of the file to write")
    if not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} for {out.name}; make it first")
    if not out.name.lower().endswith(ending):
        raise ValueError(f"--out {out} must end in {ending}")


def _say(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"note: {note}")


def report(
    dir: Folder,
    out: Annotated[Path | None, place("--out", "The .html file to write; DIR/report.html if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Write a run's report again, as one HTML file.

    \b
    Example:
      fasten report runs/digits --out digits.html
    """
    from fasten.records import epochs_so_far, read_record
    from fasten.report import read_gallery, write_report

    path = out or dir / "report.html"
    _check_file(path, ".html")
    record = read_record(dir)
    write_report({**record, "epochs": record["epochs"] or epochs_so_far(dir)}, path, read_gallery(dir))
    print(json.dumps({"report": os.fspath(path)}) if as_json else path)
