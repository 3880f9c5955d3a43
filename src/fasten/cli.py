"""The command line: the app of all commands, and their exit status."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from fasten.commands import about, audit, finished, runs
from fasten.commands.arguments import Command
from fasten.commands.output import output
from fasten.commands.stopping import Stopped
from fasten.constants import SETTINGS, VERSION
from fasten.sentences import is_out_of_memory, sentence
from fasten.suggest import one_line
from fasten.torchrun import is_one_of_several

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
        raise ValueError(
            f"only train and resume run under torchrun; start `fasten {context.invoked_subcommand}` without it"
        )


for command in (
    runs.train,
    runs.resume,
    runs.compare,
    runs.reproduce,
    audit.audit,
    finished.evaluate,
    finished.predict,
    finished.export,
    finished.report,
    about.methods,
    about.datasets,
    about.bench,
):
    app.command(cls=Command)(command)

# Both copies of click that typer may come with have this ancestor of every usage error.
_ClickError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0, or 2 and one sentence on bad input. `FASTEN_DEBUG=1` shows the traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - None if it was closed; stays open to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no χ or – shows a question mark
    status = 2
    try:
        with _joined(), output():
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
    setting = SETTINGS.get(str(getattr(error, "option_name", "")).strip("-").replace("-", "_"))
    if setting is not None and error.ctx.command.name in ("train", "compare"):
        return f"no such option: {error.option_name}; write --set {setting}=VALUE"
    path = error.ctx.command_path if getattr(error, "ctx", None) else "fasten"
    return message if message.endswith("?") else f"{message.rstrip('.')}; see `{path} --help`"
