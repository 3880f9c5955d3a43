"""Commands that carry out runs: train, resume, compare, reproduce."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasten.commands.arguments import (
    CheckpointEvery,
    Clean,
    CleanFolder,
    Data,
    Device,
    Download,
    Epochs,
    Folder,
    GpusPerRun,
    Json,
    Labels,
    MaxBad,
    Methods,
    MinPrecision,
    Noise,
    OnNan,
    OwnRoot,
    Ray,
    Root,
    Seeds,
    Set,
    SetOfSeveral,
    Size,
    TestFolder,
    ValidFolder,
    Verified,
    name,
    number,
    own_data,
    place,
    switch,
    text,
)
from fasten.commands.stopping import resumable
from fasten.constants import COMPARED, MAX_BAD
from fasten.sentences import typed

if TYPE_CHECKING:
    from fasten.commands.console import Display
    from fasten.records import Record

OwnDevice = Annotated[str | None, name("--device", "auto, cpu, cuda, cuda:N or mps; by default the run's.")]
Only = Annotated[
    list[str] | None,
    text("--only", "KEY=VALUE", "Only cells with this method, noise, dataset, row or column; may be repeated."),
]


def train(
    data: Data,
    out: Annotated[Path, place("--out", "A new folder for the run.")],
    method: Annotated[str, name("--method", "The training method; `fasten methods` lists them.")] = "fasten",
    noise: Noise = "none",
    seed: Annotated[
        int, number("--seed", 0, "Seed of the split, the noise, the initial weights and the order of rows.")
    ] = 0,
    epochs: Epochs = None,
    clean: Clean = None,
    verified: Verified = None,
    clean_folder: CleanFolder = None,
    valid: ValidFolder = None,
    test: TestFolder = None,
    size: Size = None,
    max_bad: MaxBad = MAX_BAD,
    min_precision: MinPrecision = None,
    device: Device = "auto",
    settings: Set = None,
    root: Root = Path("data"),
    download: Download = False,
    labels: Labels = None,
    references: Annotated[
        bool, switch("--references/--no-references", "Also train on the clean rows alone, for comparison.")
    ] = True,
    noisy_reference: Annotated[
        bool, switch("--noisy-reference", "Also train with cross-entropy on the noisy rows, for comparison.")
    ] = False,
    deterministic: Annotated[
        bool, switch("--deterministic", "The same numbers on every run on a GPU, at some cost in speed.")
    ] = False,
    checkpoint_every: CheckpointEvery = None,
    on_nan: OnNan = None,
    as_json: Json = False,
) -> None:
    """Train a classifier and write its folder.

    The folder holds record.json (what was run, each epoch's numbers, the
    result), model.safetensors, labels.csv (which labels are wrong, and what
    they should be), transition.csv (T), report.html and log.jsonl.

    Your own data are a folder of images (class/name.jpg), a CSV or Parquet file
    (path or feature columns, label, verified_label, picked, split), an .npz of
    arrays (x, labels, verified) or a folder that Hugging Face's `datasets`
    saved; see docs/my-images.md and docs/my-table.md.

    \b
    Examples:
      fasten train digits --noise symmetric:0.4 --out runs/digits
      fasten train photos/ --verified checked.txt --out runs/photos
      fasten train items.csv --min-precision 0.8 --out runs/items
      fasten train digits --set threshold=0.9 --epochs 30 --out runs/mine
      fasten train cifar10 --root data --noise symmetric:0.8 --out runs/sym80
    """
    from fasten import ranks
    from fasten.datasets import Place, check_labels, check_noise, is_own, prepare_data
    from fasten.machine import choose_machine
    from fasten.options import apply_settings
    from fasten.own import check_beside
    from fasten.records import Run
    from fasten.runs.folders import check_folder
    from fasten.runs.training import Settings, train

    check_noise(data, noise)
    check_labels(data, labels)
    if not ranks.restarted():
        check_folder(out)
    if is_own(data):
        check_beside(data, out)
    own = own_data(verified, clean_folder, valid, test, size, max_bad, min_precision)
    where = Place(root, download, labels or Place.label_set)
    display = _display(as_json)
    with display.reading(data):
        ready = prepare_data(data, own, where, clean, choose_machine(device).device.type)
    options, recipe = apply_settings(method, ready.recipe, settings or [], epochs)
    run = Run(
        data,
        noise=noise,
        method=method,
        options=options,
        recipe=recipe,
        seed=seed,
        clean=clean,
        own=ready.own,
    )
    with resumable(out / "record.json", _resume(out)), display:
        record = train(
            run,
            out,
            Settings(
                place=ready.place,
                device=device,
                clean_reference=references,
                noisy_reference=noisy_reference,
                deterministic=deterministic,
                checkpoint_every=checkpoint_every,
                on_nan=on_nan,
                **_hooks(display),
            ),
        )
    _finish(record, out, as_json, display)


def resume(
    dir: Folder,
    device: OwnDevice = None,
    root: OwnRoot = None,
    checkpoint_every: CheckpointEvery = None,
    on_nan: OnNan = None,
    as_json: Json = False,
) -> None:
    """Continue a run that was interrupted.

    The result is the same as without the interruption; a finished run is left
    as it is.

    \b
    Example:
      fasten resume runs/digits
    """
    from fasten.datasets import Place
    from fasten.runs.training import Settings, resume

    place = None if root is None else Place(root)
    with resumable(dir / "record.json", _resume(dir)), _display(as_json) as display:
        record = resume(
            dir,
            Settings(place=place, device=device, checkpoint_every=checkpoint_every, on_nan=on_nan, **_hooks(display)),
        )
    _finish(record, dir, as_json, display)


def _hooks(display: Display) -> dict[str, Any]:
    return {"on_start": display.start, "on_update": display.update, "on_epoch": display.epoch, "say": display.say}


def _resume(out: Path) -> str:
    return f"{typed('resume', out)} continues from the last checkpoint"


def _display(as_json: bool) -> Display:
    from fasten import ranks
    from fasten.commands import console

    return console.Display(quiet=as_json or ranks.rank() > 0)


def _finish(record: Record, out: Path, as_json: bool, display: Display) -> None:
    from fasten import ranks
    from fasten.commands import console

    if ranks.rank() > 0:
        return
    if as_json:
        print(json.dumps({key: record[key] for key in ("run", "data", "result", "references", "notes")}))
    else:
        console.show_result(record, out, display.shown)


def compare(
    data: Data,
    out: Annotated[Path, place("--out", "The folder for the runs and tables; an existing comparison is continued.")],
    methods: Methods = COMPARED,
    seeds: Seeds = "3",
    noise: Noise = "none",
    epochs: Epochs = None,
    verified: Verified = None,
    clean_folder: CleanFolder = None,
    valid: ValidFolder = None,
    test: TestFolder = None,
    size: Size = None,
    max_bad: MaxBad = MAX_BAD,
    device: Device = "auto",
    settings: SetOfSeveral = None,
    root: Root = Path("data"),
    download: Download = False,
    labels: Labels = None,
    ray: Ray = None,
    gpus_per_run: GpusPerRun = None,
    as_json: Json = False,
) -> None:
    """Train several methods with several seeds, and compare.

    The folder --out gets a folder for each run, as `train` writes it, and the
    tables: compare.html, compare.md, compare.csv and compare.json. If it is
    interrupted, the same command continues; more methods or seeds are added to
    what is there. A run that fails is noted, and the others go on.

    \b
    Examples:
      fasten compare digits --noise symmetric:0.4 --seeds 5 --out runs/five
      fasten compare digits --methods fasten,l2rw --set rate=0.1 --out runs/two
      fasten compare digits --set fasten.threshold=0.9 --out runs/strict
      fasten compare items.csv --methods fasten,cross-entropy --out runs/items
      fasten compare cifar10 --ray auto --gpus-per-run 0.33 --out runs/grid
    """
    from fasten.commands import console
    from fasten.datasets import Place, check_labels, is_own
    from fasten.grid.cluster import read_cluster
    from fasten.grid.compare import Request, compare, prepare
    from fasten.own import check_beside
    from fasten.runs.training import Settings

    cluster = read_cluster(ray, gpus_per_run)
    check_labels(data, labels)
    if is_own(data):
        check_beside(data, out)
    own = own_data(verified, clean_folder, valid, test, size, max_bad, None)
    request = Request(data, noise, methods, seeds, epochs, settings or (), own)
    where = Place(root, download, labels or Place.label_set)
    display = console.Runs(quiet=as_json)
    how = here = Settings(where, device, clean_reference=False, on_start=display.start, on_update=display.update)
    if cluster is not None:  # it has other devices than this machine, and reports lost workers
        how, here = replace(how, say=display.say), replace(how, device="auto")
    with resumable(out / "compare.json", "the same command continues where it stopped"), display:
        summary = compare(prepare(request, out, here), out, how, display.finished, cluster)
    if as_json:
        print(json.dumps(summary))
    else:
        console.show_comparison(summary, out)


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Names of tables and figures, or `all`.")
    ] = None,
    out: Annotated[
        Path | None, place("--out", "The folder for runs, tables and figures; by default runs/SETTING.")
    ] = None,
    list_names: Annotated[bool, switch("--list", "List the tables and figures; nothing is run.")] = False,
    dry_run: Annotated[
        bool, switch("--dry-run", "Show the runs and how long they would take; nothing is run.")
    ] = False,
    seeds: Seeds = "5",
    only: Only = None,
    jobs: Annotated[
        int | None,
        number("--jobs", 1, "Runs at the same time on each GPU; by default 1, or 3 on a GPU with NVIDIA MPS."),
    ] = None,
    device: Annotated[str, text("--device", "NAMES", "auto, cpu, cuda, or several: cuda:0,cuda:1.")] = "auto",
    root: Root = Path("data"),
    download: Download = False,
    records: Annotated[
        list[Path] | None, place("--records", "A folder with records of earlier runs; may be repeated.")
    ] = None,
    setting: Annotated[str, name("--setting", "paper, or miniature: everything on digits, with short runs.")] = "paper",
    ray: Ray = None,
    gpus_per_run: GpusPerRun = None,
    as_json: Json = False,
) -> None:
    """Make the tables and figures of the paper, from runs.

    Each run gets a folder in OUT/runs, as `train` writes it; a run that is
    recorded already is not run again. Every table is written as .txt, .md, .csv
    and .tex, every figure as .svg and .png too, with our numbers beside the
    paper's; reproduce.json has them all. They are rewritten as runs finish. If
    it is interrupted, the same command continues. --only and --seeds limit what
    is run; a table that is in OUT already keeps its other cells and seeds. A
    run that fails is noted, the others go on, and the exit status is 1. Ratios
    of times come with the package, or from OUT/bench.json if you put there what
    `fasten bench --json` prints on your machine.

    \b
    Examples:
      fasten reproduce --list
      fasten reproduce table1 --only method=fasten --seeds 3 --dry-run
      fasten reproduce relabel detection --root data --out runs/paper
      fasten reproduce all --setting miniature --seeds 1
      fasten reproduce all --ray auto --gpus-per-run 0.33
    """
    from fasten.commands import console
    from fasten.datasets import Place
    from fasten.grid.cluster import read_cluster
    from fasten.grid.compare import read_seeds
    from fasten.grid.reproduce import How, reproduce
    from fasten.grid.wanted import SUMMARY, Wish, estimate, experiments_of, list_all, make_plan
    from fasten.machine import named_device
    from fasten.runs.training import Settings

    wish = Wish(names or (), setting, seeds, only or (), records or ())
    if list_names:
        _show(list_all(experiments_of(wish), read_seeds(seeds)), as_json, console.show_experiments)
        return
    if not names and not dry_run:
        raise ValueError("name a table or figure, or `all`; `fasten reproduce --list` lists them")
    cluster = read_cluster(ray, gpus_per_run, jobs)
    folder = Path("runs") / setting if out is None else out
    plan = make_plan(wish, folder)
    if dry_run:
        for part in device.split(","):  # GPUs may be elsewhere
            if part.strip() != "auto":
                named_device(part.strip())
        _show(estimate(plan, folder), as_json, console.show_estimate)
        return
    display = console.Reproduction(quiet=as_json)
    hooks = Settings(
        Place(root), clean_reference=False, on_start=display.start, on_update=display.update, say=display.say
    )
    with resumable(folder / SUMMARY, "the same command continues where it stopped"), display:
        how = How(Place(root, download), device, jobs, cluster)
        summary, outcomes = reproduce(plan, folder, how, hooks, display.begin, display.made, display.going)
    if as_json:
        print(json.dumps(summary))
    else:
        console.show_outcomes(outcomes, summary["failed"], folder)
    if summary["failed"]:
        raise typer.Exit(1)


def _show(values: Any, as_json: bool, show: Callable[[Any], None]) -> None:
    if as_json:
        print(json.dumps(values))
    else:
        show(values)
