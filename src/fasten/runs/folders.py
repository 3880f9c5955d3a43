"""The folder of a run: what it may hold, and whether a new run may use it."""

from __future__ import annotations

from pathlib import Path

from fasten.records import MATRICES, Record, read_record
from fasten.sentences import typed

LOG, EVENT = "log.jsonl", '{"event": "'  # and how its lines begin
FILES = (
    *("record.json", "model.safetensors", "tables.safetensors", "labels.csv", "transition.csv", "report.html"),
    *("probabilities.npy", "gallery.json", LOG, "checkpoint", MATRICES),
)


def check_no_file(out: Path, wanted: str = "a new folder") -> None:
    """Refuse a path at which there can be no folder."""
    for folder in (out, *out.parents):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; --out takes {wanted}")
        if folder.is_symlink() and not folder.exists():
            raise ValueError(f"{folder} is a link that leads nowhere; --out takes {wanted}")


def check_folder(out: Path) -> None:
    """Refuse a folder that holds a run, a file that the run would replace, or something that is not a folder."""
    check_no_file(out)
    if _is_finished(out):
        raise ValueError(f"{out} already holds a finished run; choose another --out")
    if (out / "record.json").exists():
        raise ValueError(f"{out} already holds a run; {typed('resume', out)} continues it, or choose another --out")
    if not log_alone(out):
        check_unused(out, "move it away, or choose another --out")


def _is_finished(out: Path) -> bool:
    """Whether the folder holds a finished run; a damaged record is none, since `resume` may restore it."""
    try:
        return read_record(out)["result"] is not None
    except (OSError, ValueError):
        return False


def log_alone(out: Path) -> bool:
    """Whether a log, even an empty or incomplete one, is all that is left of a run: it may then be replaced.

    A file of that name that somebody else wrote does not count.
    """
    path = out / LOG
    if not path.is_file() or any((out / name).exists() for name in FILES if name != LOG):
        return False
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return all(EVENT.startswith(line[: len(EVENT)]) for line in lines)


def check_unused(out: Path, cure: str = "choose another folder") -> None:
    """Refuse a folder that holds any file of a run."""
    for name in FILES:
        if (out / name).exists():
            what = "a run" if name == "record.json" else f"{name}, which would be replaced"
            raise ValueError(f"{out} already holds {what}; {cure}")


def finished_record(folder: Path) -> Record:
    """The record of a finished run; any other is refused."""
    record = read_record(folder)
    if record["result"] is None:
        raise ValueError(f"{folder} is not finished; {typed('resume', folder)} continues it")
    return record
