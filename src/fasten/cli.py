"""The command line: arguments -> Run -> train -> record; no logic of its own."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fasten import console
from fasten.arguments import (
    Clean,
    Data,
    Device,
    Download,
    Epochs,
    Folder,
    Json,
    Labels,
    Methods,
    Noise,
    OwnRoot,
    Root,
    Seeds,
    Set,
    SetOfSeveral,
    name,
    number,
    place,
    switch,
    text,
)
from fasten.bench import bench as time_methods
from fasten.bench import image_task, known_methods, run_ratios, with_kernels
from fasten.compare import DEFAULT_METHODS, Request, compare, prepare
from fasten.contract import Recipe
from fasten.datasets import DATASETS, Place, check_noise, find_dataset
from fasten.inference import evaluate_run, load_test_task, read_finished
from fasten.machine import choose_machine
from fasten.methods import METHODS
from fasten.options import apply_settings, find_method, option_defaults
from fasten.records import VERSION, Record, Run, epochs_so_far, read_record
from fasten.report import write_report
from fasten.training import Settings, resume, train

app = typer.Typer(
    name="fasten",
    help="Train classifiers on labels you don't trust, with the help of a few that you do.",
    epilog="Begin with: fasten train digits --noise symmetric:0.4 --out runs/digits",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(VERSION)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command("train")
def train_command(
    data: Data,
    out: Annotated[Path, place("--out", "A new folder for the run.")],
    method: Annotated[str, name("--method", "How to train; `fasten methods` lists them.")] = "fasten",
    noise: Noise = "none",
    seed: Annotated[int, number("--seed", 0, "Of split, noise, weights and order.")] = 0,
    epochs: Epochs = None,
    clean: Clean = None,
    device: Device = "auto",
    settings: Set = None,
    root: Root = Path("data"),
    download: Download = False,
    labels: Labels = None,
    references: Annotated[
        bool, switch("--references/--no-references", "Also train on the clean rows alone, to compare.")
    ] = True,
    noisy_reference: Annotated[
        bool, switch("--noisy-reference", "Also train by cross-entropy on the noisy rows.")
    ] = False,
    deterministic: Annotated[
        bool, switch("--deterministic", "Same numbers on every run on a GPU, at some cost in speed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a classifier and write its folder.

    The folder holds record.json (what was run, each epoch's numbers, the
    result), model.safetensors, labels.csv (which labels are wrong, and what
    they should be), transition.csv (T), report.html and log.jsonl.

    \b
    Examples:
      fasten train digits --noise symmetric:0.4 --out runs/digits
      fasten train digits --set threshold=0.9 --epochs 30 --out runs/mine
      fasten train cifar10 --root data --noise symmetric:0.8 --out runs/sym80
    """
    check_noise(data, noise)
    options, recipe = apply_settings(method, find_dataset(data).recipe, settings or [], epochs)
    run = Run(data, noise, method, options, recipe, seed, clean)
    with _resumable(out / "record.json", _resume(out)), console.Display(quiet=as_json) as display:
        record = train(
            run,
            out,
            Settings(
                Place(root, download, labels or Place.label_set),
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
def resume_command(dir: Folder, device: Device = "auto", root: OwnRoot = None, as_json: Json = False) -> None:
    """Go on with a run that was interrupted.

    It ends as if it had never stopped; a finished run is left as it is.

    \b
    Example:
      fasten resume runs/digits
    """
    place = Place() if root is None else Place(root)
    with _resumable(dir / "record.json", _resume(dir)), console.Display(quiet=as_json) as display:
        hooks = {"on_start": display.start, "on_update": display.update, "on_epoch": display.epoch, "say": display.say}
        record = resume(dir, Settings(place, device, **hooks))  # type: ignore[arg-type]
    _finish(record, dir, as_json)


class _Stopped(Exception):
    """A run that ends before its end, and the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def _resumable(begun: Path, cure: str) -> Iterator[None]:
    """Where something stops through no fault of its own, say how to go on; `begun` is there once that is so."""
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        if not begun.exists():
            raise
        if isinstance(error, KeyboardInterrupt):
            raise _Stopped(f"interrupted; {cure}", 130) from None
        if error.errno in console.FULL_DISK:
            raise _Stopped(f"no space left on the disk; free some, and {cure}", 2) from error
        raise


def _resume(out: Path) -> str:
    return f"`fasten resume {out}` goes on from the last checkpoint"


def _finish(record: Record, out: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps({key: record[key] for key in ("run", "data", "result", "references", "notes")}))
    else:
        console.show_result(record, out)


@app.command("compare")
def compare_command(
    data: Data,
    out: Annotated[Path, place("--out", "A folder for the runs and tables; a comparison's own goes on.")],
    methods: Methods = DEFAULT_METHODS,
    seeds: Seeds = "3",
    noise: Noise = "none",
    epochs: Epochs = None,
    device: Device = "auto",
    settings: SetOfSeveral = None,
    root: Root = Path("data"),
    download: Download = False,
    labels: Labels = None,
    as_json: Json = False,
) -> None:
    """Train several methods with several seeds, and compare.

    Each run has its folder in that of --out, as `train` makes it. Beside them
    lie the tables: compare.html, compare.md, compare.csv, compare.json. The
    same command goes on where it stopped; more methods or seeds are added to
    what is there. A run that fails is noted, and the others go on.

    \b
    Examples:
      fasten compare digits --noise symmetric:0.4 --seeds 5 --out runs/five
      fasten compare digits --methods fasten,l2rw --set rate=0.1 --out runs/two
      fasten compare digits --set fasten.threshold=0.9 --out runs/strict
    """
    request = Request(data, noise, methods, seeds, epochs, settings or ())
    where = Place(root, download, labels or Place.label_set)
    display = console.Runs(quiet=as_json)
    how = Settings(where, device, clean_reference=False, on_start=display.start, on_update=display.update)
    with _resumable(out / "compare.json", "the same command goes on where it stopped"), display:
        summary = compare(prepare(request, out, how), out, how, display.finished)
    if as_json:
        print(json.dumps(summary))
    else:
        console.show_comparison(summary, out)


@app.command()
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


@app.command()
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


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods, what each needs, and what can be set.

    \b
    Example:
      fasten methods --json
    """
    rows = [_describe(method) for method in METHODS]
    if as_json:
        print(json.dumps(rows))
    else:
        console.show_methods(rows, [*asdict(Recipe())])


def _describe(method: str) -> dict[str, Any]:
    entry = find_method(method)
    needs = ("clean_set", "true_transition", "stages", "networks", "backprops")
    values = {"name": method, "family": entry.family, "about": entry.about}
    defaults = option_defaults(entry)
    return values | {key: getattr(entry, key) for key in needs} | {"options": [*defaults], "defaults": defaults}


@app.command()
def datasets(as_json: Json = False) -> None:
    """List the known data sets.

    \b
    Example:
      fasten datasets
    """
    rows = []
    for key, dataset in DATASETS.items():
        sizes = {"clean": dataset.num_clean, "valid": dataset.num_valid}
        own = "as given by people" if dataset.given else "injected by --noise"
        rows.append({"name": key, "about": dataset.about, **sizes, "labels": own, "recipe": asdict(dataset.recipe)})
    if as_json:
        print(json.dumps(rows))
    else:
        shown = [[r[key] for key in ("name", "about", "clean", "valid", "labels")] for r in rows]
        console.show_table(["data set", "what it holds", "clean", "valid", "noisy labels"], shown)


@app.command()
def bench(
    names: Annotated[str, name("--methods", "Names with commas between them, or `all`.")] = "fasten,cross-entropy",
    device: Device = "auto",
    net: Annotated[str | None, name("--net", "By default small-cnn on a CPU, resnet34 on a GPU.")] = None,
    size: Annotated[int | None, number("--size", 2, "Of the images; by default 8 on a CPU, 32 on a GPU.")] = None,
    batch: Annotated[int, number("--batch", 2, "Noisy rows in an update; as many clean ones.")] = 100,
    rounds: Annotated[int, number("--rounds", 1, "Each method is timed so often, in turns.")] = 15,
    updates: Annotated[int, number("--updates", 1, "In a round.")] = 20,
    kernels: Annotated[str, name("--kernels", "On a GPU: auto, plain, fused or compiled.")] = "auto",
    settings: Annotated[list[str] | None, text("--set", "KEY=VALUE", "For those that know the option.")] = None,
    as_json: Json = False,
) -> None:
    """Time an update of each method against cross-entropy.

    Each stage is timed, in turns, in one process, on the same images. From that
    follows how long a run of the paper's length takes, against FasTEN's.

    \b
    Examples:
      fasten bench
      fasten bench --methods all --device cuda --kernels compiled
      fasten bench --methods mw-net --set route=graph
    """
    machine = with_kernels(choose_machine(device), kernels)
    on_gpu = machine.device.type == "cuda"
    recipe = Recipe(net or ("resnet34" if on_gpu else "small-cnn"), batch_size=batch)
    wanted = known_methods(names)
    if not wanted:
        raise ValueError(f"--methods takes names with commas between them, got {names!r}; `fasten methods` lists them")
    for known in wanted:
        find_method(known)
    task = image_task(size or (32 if on_gpu else 8))
    lines = time_methods(Run("bench", recipe=recipe), task, machine, wanted, rounds, updates, settings or ())
    if as_json:
        values = {"device": machine.name, "kernels": machine.kernels, "settings": settings or []}
        timings = {"methods": [asdict(line) for line in lines], "run_ratios": run_ratios(lines)}
        print(json.dumps({**values, **timings}))
    else:
        console.show_bench(lines, machine.name, recipe.net)


# Both copies of click that typer may come with have this ancestor of every usage error.
_ClickError: Any = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 and one sentence on bad input. `FASTEN_DEBUG=1` shows where it came from."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no χ or – shows a question mark
    status = 2
    try:
        return int(app(args=given or ["--help"], prog_name="fasten", standalone_mode=False) or 0)
    except _ClickError as error:
        message = _usage(error)
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        ours = isinstance(error, RuntimeError) and not console.is_out_of_memory(error)
        if ours or os.environ.get("FASTEN_DEBUG"):
            raise
        message = console.sentence(error)
    except _Stopped as error:
        message, status = str(error), error.status
    except (KeyboardInterrupt, typer.Abort):
        message, status = "interrupted", 130
    print(f"fasten: {message}", file=sys.stderr)
    return status


def _usage(error: Any) -> str:
    message = console.one_line(error.format_message())
    path = error.ctx.command_path if getattr(error, "ctx", None) else "fasten"
    return message if message.endswith("?") else f"{message.rstrip('.')}; see `{path} --help`"
