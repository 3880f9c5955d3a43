"""The arguments of the commands: parsers that refuse a wrong value in a sentence, and arguments that commands share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from fasten.own import Own

T = TypeVar("T")


def _parsed(kind: Callable[[str], T], text: str, what: str) -> T:
    try:
        return kind(text)
    except ValueError:
        raise typer.BadParameter(f"takes {what}, got {text!r}") from None


class Command(TyperCommand):
    """A command whose help shows its arguments by name only: DATA, not typer's {DATA} and DATA <str>."""

    def get_help(self, ctx: Any) -> str:
        """The text that --help prints."""
        plain = re.sub(r"\{([A-Z]+)\}", r"\1", super().get_help(ctx))
        return re.sub(r"^(  [A-Z]+)( <\S+>)", lambda found: found[1] + " " * len(found[2]), plain, flags=re.MULTILINE)


def whole_from(least: int) -> Callable[[str], int]:
    """A parser of whole numbers that are `least` or more."""

    def read(text: str) -> int:
        value = _parsed(int, text, "a whole number")
        if value < least:
            raise typer.BadParameter(f"takes a whole number of {least} or more, got {value}")
        return value

    return read


def read_path(text: str) -> Path:
    """Any path but an empty one, which would be the current folder; an unset variable does not mean that."""
    if not text:
        raise typer.BadParameter("takes a path, got nothing")
    return Path(text)


def read_data(text: str) -> str:
    """Any name or path but an empty one; see `read_path`."""
    if not text:
        raise typer.BadParameter("takes the name of a data set or a path, got nothing")
    return text


def read_share(text: str) -> float:
    """A number from 0 to 1, but not 1 itself."""
    value = _parsed(float, text, "a number between 0 and 1")
    if not 0 <= value < 1:
        raise typer.BadParameter(f"takes a number between 0 and 1, got {text}; write 95% as 0.95")
    return value


def read_seconds(text: str) -> float:
    """A time of 0 or more."""
    value = _parsed(float, text, "a number of seconds")
    if not 0 <= value < math.inf:
        raise typer.BadParameter(f"takes a number of seconds, 0 or more, got {text}")
    return value


def read_on_nan(text: str) -> str:
    """`stop` or `rewind`."""
    if text not in ("stop", "rewind"):
        raise typer.BadParameter(f"takes stop or rewind, got {text!r}")
    return text


def read_gpus(text: str) -> float:
    """A part of a GPU, or a whole number of them: what Ray can give."""
    what = "a part of a GPU, such as 0.33, or a whole number of them"
    value = _parsed(float, text, what)
    if not (0 < value < 1 or (value >= 1 and value.is_integer())):
        raise typer.BadParameter(f"takes {what}, got {text!r}")
    return value


def read_folder(text: str) -> Path:
    """A folder that exists."""
    path = read_path(text)
    if not path.is_dir():
        raise typer.BadParameter(
            f"takes the folder of a run, and {path} is {'a file' if path.exists() else 'not there'}"
        )
    return path


def number(flag: str, least: int, about: str) -> Any:
    """An option that takes a whole number."""
    return typer.Option(flag, parser=whole_from(least), metavar="N", help=about)


def name(flag: str, about: str) -> Any:
    """An option that takes a name."""
    return typer.Option(flag, metavar="NAME", help=about)


def place(flag: str, about: str, **more: Any) -> Any:
    """An option that takes a path."""
    return typer.Option(flag, parser=read_path, metavar="PATH", help=about, **more)


def switch(flag: str, about: str) -> Any:
    """An option without a value."""
    return typer.Option(flag, help=about)


def text(flag: str, metavar: str, about: str) -> Any:
    """An option that takes a text of some form."""
    return typer.Option(flag, metavar=metavar, help=about)


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        parser=read_data,
        help="A known data set (`fasten datasets` lists them), or your own: a folder of images, a .csv, .parquet or "
        ".npz file.",
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.", parser=read_folder)]
Noise = Annotated[
    str,
    text(
        "--noise",
        "KIND",
        "Noise to inject: none, symmetric:R, symmetric-exclusive:R, asymmetric:R, pair:R or matrix:FILE; the rate R is "
        "in [0, 1).",
    ),
]
Epochs = Annotated[
    int | None,
    number(
        "--epochs",
        1,
        "Epochs of all stages together, at least one each; the schedule is stretched or shortened to fit.",
    ),
]
Clean = Annotated[
    int | None,
    number("--clean", 1, "How many verified rows of a known data set to use; by default as many as its recipe says."),
]
Verified = Annotated[
    Path | None,
    place("--verified", "Your own data: a list of the rows that somebody checked, a line `name,label` for each."),
]
CleanFolder = Annotated[
    Path | None, place("--clean-folder", "Your own images: a second folder, of images whose labels are right.")
]
ValidFolder = Annotated[
    Path | None, place("--valid", "Your own images: a folder of validation images, which select the epoch.")
]
TestFolder = Annotated[
    Path | None, place("--test", "Your own images: a folder of test images, which are only reported.")
]
Size = Annotated[int | None, number("--size", 1, "Your own images: scale them to squares of N × N pixels.")]
MaxBad = Annotated[
    int, number("--max-bad", 0, "Your own images: leave out up to N that cannot be read; more are an error.")
]
MinPrecision = Annotated[
    float | None,
    typer.Option(
        "--min-precision",
        parser=read_share,
        metavar="P",
        help="Your own data: correct only as many labels as keep a share P of corrections right; 0 lifts the limit.",
    ),
]
Set = Annotated[
    list[str] | None,
    text("--set", "KEY=VALUE", "An option of the method or the recipe (`fasten methods` lists them); may be repeated."),
]
SetOfSeveral = Annotated[
    list[str] | None,
    text("--set", "KEY=VALUE", "A field of the recipe, or METHOD.KEY=VALUE for one method; may be repeated."),
]
Methods = Annotated[
    str,
    text(
        "--methods",
        "NAMES",
        "Method names, separated by commas, or `all`; the first is compared with each of the others.",
    ),
]
Seeds = Annotated[str, text("--seeds", "SEEDS", "How many seeds, counted from 0, or a list of seeds: 5,6,7.")]
Ray = Annotated[
    str | None,
    text(
        "--ray", "ADDRESS", "Run on the Ray cluster at this address; `local` starts one on this machine, and ends it."
    ),
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-run", parser=read_gpus, metavar="F", help="With --ray: GPUs per run, such as 0.33; by default 1."
    ),
]
Json = Annotated[bool, switch("--json", "Print the result as JSON.")]
Root = Annotated[Path, place("--root", "The folder with the data set's files.", envvar="FASTEN_DATA")]
OwnRoot = Annotated[
    Path | None, place("--root", "The folder with the data set's files, if they have moved since the run.")
]
Device = Annotated[str, name("--device", "auto, cpu, cuda, cuda:N or mps.")]
Labels = Annotated[
    str | None, name("--labels", "For cifar10n: worst (the default), aggregate, random1, random2 or random3.")
]
Download = Annotated[bool, switch("--download", "Fetch the files if they are not there.")]


CheckpointEvery = Annotated[
    float | None,
    typer.Option(
        "--checkpoint-every",
        parser=read_seconds,
        metavar="SECONDS",
        help="Save a checkpoint at least this often; by default at an epoch's end after 20 s, else after 300 s.",
    ),
]
OnNan = Annotated[
    str | None,
    typer.Option(
        "--on-nan",
        parser=read_on_nan,
        metavar="WHAT",
        help="If training diverges: stop, or rewind to the last checkpoint and go on with a tenth of the rate.",
    ),
]


def own_data(
    verified: Path | None,
    clean_folder: Path | None,
    valid: Path | None,
    test: Path | None,
    size: int | None,
    max_bad: int,
    min_precision: float | None,
) -> Own:
    """How a user's own data are to be read, as these options say."""
    from fasten.own import Own

    paths = {"verified": verified, "clean": clean_folder, "valid": valid, "test": test}
    texts = {key: None if path is None else str(path) for key, path in paths.items()}
    return Own(size=size, max_bad=max_bad, min_precision=min_precision or None, **texts)
