"""The command line: arguments -> Run -> train -> record; no logic of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasten.arguments import (
    CheckpointEvery,
    Clean,
    CleanFolder,
    Command,
    Data,
    Device,
    Download,
    Epochs,
    Folder,
    Json,
    Labels,
    MaxBad,
    MinPrecision,
    Noise,
    OnNan,
    OwnRoot,
    Root,
    Set,
    Size,
    TestFolder,
    ValidFolder,
    Verified,
    name,
    number,
    own_data,
    place,
    switch,
)
from fasten.commands import about, auditing, finished, runs
from fasten.commands.stopping import Stopped, resumable
from fasten.constants import MAX_BAD, VERSION
from fasten.sentences import is_out_of_memory, sentence, typed
from fasten.suggest import one_line
from fasten.torchrun import is_one_of_several

if TYPE_CHECKING:
    from fasten.console import Display
    from fasten.records import Record

OwnDevice = Annotated[str | None, name("--device", "auto, cpu, cuda, cuda:N or mps, if not that of the run.")]

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
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if is_one_of_several() and context.invoked_subcommand not in ("train", "resume"):
        raise ValueError(f"only train and resume run under torchrun; start `fasten {context.invoked_subcommand}` alone")


@app.command("train")
def train_command(
    data: Data,
    out: Annotated[Path, place("--out", "A new folder for the run.")],
    method: Annotated[str, name("--method", "How to train; `fasten methods` lists them.")] = "fasten",
    noise: Noise = "none",
    seed: Annotated[int, number("--seed", 0, "Seed of the split, the noise, the weights and the order.")] = 0,
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
        bool, switch("--references/--no-references", "Also train on the clean rows alone, to compare.")
    ] = True,
    noisy_reference: Annotated[
        bool, switch("--noisy-reference", "Also train by cross-entropy on the noisy rows.")
    ] = False,
    deterministic: Annotated[
        bool, switch("--deterministic", "Same numbers on every run on a GPU, at some cost in speed.")
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
    saved; docs/my-images.md and docs/my-table.md tell more.

    \b
    Examples:
      fasten train digits --noise symmetric:0.4 --out runs/digits
      fasten train photos/ --verified checked.txt --out runs/photos
      fasten train items.csv --min-precision 0.95 --out runs/items
      fasten train digits --set threshold=0.9 --epochs 30 --out runs/mine
      fasten train cifar10 --root data --noise symmetric:0.8 --out runs/sym80
    """
    from fasten import ranks
    from fasten.datasets import Place, check_noise, is_own, prepare_data
    from fasten.folders import check_folder
    from fasten.machine import choose_machine
    from fasten.options import apply_settings
    from fasten.own import check_beside
    from fasten.records import Run
    from fasten.training import Settings, train

    check_noise(data, noise)
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
    _finish(record, out, as_json)


@app.command("resume")
def resume_command(
    dir: Folder,
    device: OwnDevice = None,
    root: OwnRoot = None,
    checkpoint_every: CheckpointEvery = None,
    on_nan: OnNan = None,
    as_json: Json = False,
) -> None:
    """Go on with a run that was interrupted.

    It ends as if it had never stopped; a finished run is left as it is.

    \b
    Example:
      fasten resume runs/digits
    """
    from fasten.datasets import Place
    from fasten.training import Settings, resume

    place = None if root is None else Place(root)
    with resumable(dir / "record.json", _resume(dir)), _display(as_json) as display:
        record = resume(
            dir,
            Settings(place=place, device=device, checkpoint_every=checkpoint_every, on_nan=on_nan, **_hooks(display)),
        )
    _finish(record, dir, as_json)


def _hooks(display: Display) -> dict[str, Any]:
    return {"on_start": display.start, "on_update": display.update, "on_epoch": display.epoch, "say": display.say}


def _resume(out: Path) -> str:
    return f"{typed('resume', out)} goes on from the last checkpoint"


def _display(as_json: bool) -> Display:
    from fasten import console, ranks

    return console.Display(quiet=as_json or ranks.rank() > 0)


def _finish(record: Record, out: Path, as_json: bool) -> None:
    from fasten import console, ranks

    if ranks.rank() > 0:
        return
    if as_json:
        print(json.dumps({key: record[key] for key in ("run", "data", "result", "references", "notes")}))
    else:
        console.show_result(record, out)


app.command("compare")(runs.compare_command)
app.command("reproduce")(runs.reproduce_command)
app.command()(auditing.audit)
for command in (
    finished.evaluate,
    finished.predict,
    finished.export,
    finished.report,
    about.methods,
    about.datasets,
    about.bench,
):
    app.command()(command)
for registered in app.registered_commands:
    registered.cls = Command

# Both copies of click that typer may come with have this ancestor of every usage error.
_ClickError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 and one sentence on bad input. `FASTEN_DEBUG=1` shows where it came from."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - None where it was closed, to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no χ or – shows a question mark
    status = 2
    try:
        with _joined():
            return int(app(args=given or ["--help"], prog_name="fasten", standalone_mode=False) or 0)
    except _ClickError as error:
        message = _usage(error)
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        ours = isinstance(error, RuntimeError) and not is_out_of_memory(error)
        if ours or os.environ.get("FASTEN_DEBUG"):
            raise
        message = sentence(error)
    except Stopped as error:
        message, status = str(error), error.status
    except (KeyboardInterrupt, typer.Abort):
        message, status = "interrupted", 130
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"fasten: {message}", file=sys.stderr)
    return status


def _joined() -> contextlib.AbstractContextManager[None]:
    if not is_one_of_several():
        return contextlib.nullcontext()
    from fasten import ranks

    return ranks.joined()


def _usage(error: Any) -> str:
    message = one_line(error.format_message())
    path = error.ctx.command_path if getattr(error, "ctx", None) else "fasten"
    return message if message.endswith("?") else f"{message.rstrip('.')}; see `{path} --help`"
