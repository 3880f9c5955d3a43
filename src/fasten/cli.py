"""The command line: arguments -> Run -> train -> record; no logic of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fasten import console
from fasten.contract import Recipe
from fasten.datasets import DATASETS, Place, check_noise, find_dataset, load_task
from fasten.machine import choose_machine
from fasten.methods import METHODS
from fasten.options import apply_settings, find_method, option_types
from fasten.records import VERSION, Record, Run, read_record
from fasten.report import write_report
from fasten.training import Settings, check_folder, resume, train

app = typer.Typer(
    name="fasten",
    help="Train classifiers on labels you don't trust, with the help of a few that you do.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Data = Annotated[str, typer.Argument(metavar="DATA", help="A known data set; `fasten datasets` lists them.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Root = Annotated[Path, typer.Option("--root", help="Where the data set's files lie.", envvar="FASTEN_DATA")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
Labels = Annotated[str, typer.Option("--labels", help="CIFAR-N: worst, aggregate, random1, random2 or random3.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch the files if they are not there.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(VERSION)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@app.command("train")
def train_command(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="A new folder for the run.")],
    method: Annotated[str, typer.Option("--method", help="`fasten methods` lists them.")] = "fasten",
    noise: Annotated[
        str,
        typer.Option("--noise", help="none, symmetric:R, symmetric-exclusive:R, asymmetric:R, pair:R, matrix:FILE."),
    ] = "none",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of split, noise, weights and order.")] = 0,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Shrinks or stretches the schedule.")] = None,
    device: Device = "auto",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the method or the recipe.")
    ] = None,
    root: Root = Path("data"),
    download: Download = False,
    labels: Labels = "worst",
    references: Annotated[
        bool, typer.Option("--references/--no-references", help="Also train on clean rows only.")
    ] = True,
    noisy_reference: Annotated[bool, typer.Option("--noisy-reference", help="Also train by cross-entropy.")] = False,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="On a GPU, at some cost in speed.")] = False,
    as_json: Json = False,
) -> None:
    """Train a classifier and write its folder: record, weights, labels, T, report.

    Examples:

      fasten train digits --noise symmetric:0.4 --out runs/digits

      fasten train cifar10 --root data --noise symmetric:0.8 --seed 1 --out runs/sym80

      fasten train digits --method fasten --set threshold=0.9 --set rate=0.02 --epochs 30 --out runs/mine
    """
    check_noise(data, noise)
    options, recipe = apply_settings(method, find_dataset(data).recipe, settings or [], epochs)
    check_folder(out)
    run = Run(data, noise, method, options, recipe, seed)
    with console.Display(quiet=as_json) as display:
        record = train(
            run,
            out,
            Settings(
                Place(root, download, labels),
                device,
                references,
                noisy_reference,
                deterministic,
                display.start,
                display.update,
                display.epoch,
                display.say,
            ),
        )
    _finish(record, out, as_json)


@app.command("resume")
def resume_command(dir: Folder, device: Device = "auto", as_json: Json = False) -> None:
    """Go on with a run that was interrupted, as if it had never stopped.

    Example:

      fasten resume runs/digits
    """
    with console.Display(quiet=as_json) as display:
        hooks = {"on_start": display.start, "on_update": display.update, "on_epoch": display.epoch, "say": display.say}
        record = resume(dir, Settings(device=device, **hooks))  # type: ignore[arg-type]
    _finish(record, dir, as_json)


def _finish(record: Record, out: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps({key: record[key] for key in ("run", "data", "result", "references", "notes")}))
    else:
        console.show_result(record, out)


@app.command()
def evaluate(
    dir: Folder,
    data: Data,
    root: Root = Path("data"),
    device: Device = "auto",
    labels: Labels = "worst",
    download: Download = False,
    as_json: Json = False,
) -> None:
    """Test a run's classifier on the test rows of a data set.

    Example:

      fasten evaluate runs/digits digits
    """
    from fasten.inference import evaluate_run

    scores = evaluate_run(dir, load_task(data, "none", place=Place(root, download, labels)), choose_machine(device))
    if as_json:
        print(json.dumps(scores))
    else:
        console.show_table(["rows", "accuracy", "NLL"], [[scores["rows"], scores["test_accuracy"], scores["test_nll"]]])


@app.command()
def report(
    dir: Folder,
    out: Annotated[Path | None, typer.Option("--out", help="Where to write it; DIR/report.html if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Write a run's report again, as one HTML file.

    Example:

      fasten report runs/digits
    """
    path = out or (dir / "report.html" if dir.is_dir() else dir.with_suffix(".html"))
    write_report(read_record(dir), path)
    print(json.dumps({"report": os.fspath(path)}) if as_json else path)


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods, what each needs, and what can be set.

    Example:

      fasten methods --json
    """
    rows = [_describe(name) for name in METHODS]
    if as_json:
        print(json.dumps(rows))
        return
    table = [[r["name"], r["family"], r["about"], ", ".join(r["options"]) or "–"] for r in rows]
    console.show_table(["method", "family", "what it does", "options for --set"], table)
    console.show_recipe_fields([*asdict(Recipe())])


def _describe(name: str) -> dict[str, Any]:
    entry = find_method(name)
    needs = ("clean_set", "true_transition", "stages", "networks", "backprops")
    values = {"name": name, "family": entry.family, "about": entry.about}
    return values | {key: getattr(entry, key) for key in needs} | {"options": [*option_types(entry)]}


@app.command()
def datasets(as_json: Json = False) -> None:
    """List the known data sets.

    Example:

      fasten datasets
    """
    rows = []
    for name, dataset in DATASETS.items():
        sizes = {"clean": dataset.num_clean, "valid": dataset.num_valid}
        own = "as given by people" if dataset.given else "injected by --noise"
        rows.append({"name": name, "about": dataset.about, **sizes, "labels": own, "recipe": asdict(dataset.recipe)})
    if as_json:
        print(json.dumps(rows))
    else:
        shown = [[r[key] for key in ("name", "about", "clean", "valid", "labels")] for r in rows]
        console.show_table(["data set", "what it holds", "clean rows", "validation rows", "noisy labels"], shown)


@app.command()
def bench(
    names: Annotated[str, typer.Option("--methods", help="With commas, or `all`.")] = "fasten,cross-entropy",
    device: Device = "auto",
    net: Annotated[str | None, typer.Option("--net", help="small-cnn on a CPU, resnet34 on a GPU.")] = None,
    size: Annotated[int | None, typer.Option("--size", help="Image size; 8 on a CPU, 32 on a GPU.")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Noisy rows an update; as many clean ones.")] = 100,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Each method is timed so often, in turns.")] = 15,
    updates: Annotated[int, typer.Option("--updates", min=1, help="In a round.")] = 20,
    kernels: Annotated[str, typer.Option("--kernels", help="On a GPU: auto, plain, fused or compiled.")] = "auto",
    norm: Annotated[str, typer.Option("--norm", help="split, two-pass or joint, where a method has it.")] = "split",
    as_json: Json = False,
) -> None:
    """Time an update of each method, in turns, against plain cross-entropy on the same images.

    Examples:

      fasten bench

      fasten bench --methods all --device cuda --kernels compiled
    """
    from fasten.bench import bench as time_methods
    from fasten.bench import image_task, known_methods, with_kernels

    machine = with_kernels(choose_machine(device), kernels)
    on_gpu = machine.device.type == "cuda"
    recipe = Recipe(net or ("resnet34" if on_gpu else "small-cnn"), batch_size=batch)
    wanted = known_methods(names)
    for name in wanted:
        find_method(name)
    task = image_task(size or (32 if on_gpu else 8))
    lines = time_methods(Run("bench", recipe=recipe), task, machine, wanted, rounds, updates, norm)
    if as_json:
        print(
            json.dumps(
                {"device": machine.name, "kernels": machine.kernels, "methods": [asdict(line) for line in lines]}
            )
        )
    else:
        console.show_bench(lines, machine.name, recipe.net)


# Both copies of click that typer may come with have this ancestor of every usage error.
_ClickError: Any = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 and one sentence on bad input. `FASTEN_DEBUG=1` shows where it came from."""
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="fasten", standalone_mode=False)
        return int(code or 0)
    except _ClickError as error:
        message = error.format_message()
    except (ValueError, OSError) as error:
        if os.environ.get("FASTEN_DEBUG"):
            raise
        message = console.sentence(error)
    except (KeyboardInterrupt, typer.Abort):
        print("fasten: interrupted; `fasten resume DIR` goes on from the last checkpoint", file=sys.stderr)
        return 130
    print(f"fasten: {message}", file=sys.stderr)
    return 2
