"""Write files so that each is either the old one or the new one, whole, whatever happens in between."""

import contextlib
import itertools
import os
import re
import signal
import sys
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

# What file managers leave in a folder that somebody looked at, in lower case.
LITTER = (".ds_store", "thumbs.db", "desktop.ini", ".directory")

# Only for tests of crash safety: `FASTEN_FAULT=mid-write:3` kills the process in the middle of the third write.
_FAULT, _, _NUMBER = os.environ.get("FASTEN_FAULT", "").partition(":")
_passed = itertools.count(1)


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which replaces the one at `path` in one step once everything is written.

    On failure the old file stays and nothing else is left.
    """
    path = Path(path)
    aside = path.parent / f".{uuid.uuid4().hex}.tmp"  # the same folder: a rename across file systems is a copy
    _fault("before-write")
    try:
        with open(aside, "xb") as file:  # not mkstemp, whose files only the owner may read
            yield file
            _fault("mid-write", file)
            file.flush()
            os.fsync(file.fileno())
        _fault("before-rename")
        os.replace(aside, path)
        _fault("after-rename")
    except BaseException as error:  # an interrupt, too, must leave nothing behind
        with contextlib.suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in (None, os.fspath(aside)):
            error.filename = os.fspath(path)  # the name that the caller knows
            del error.filename2  # None would be shown as a second name
        raise
    _sync_folder(path.parent)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file at `path` by `data` in one step; on failure the old file stays and nothing else is left.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder) / "a.bin", b"new")
    ...     [(file.name, file.read_bytes()) for file in Path(folder).iterdir()]
    [('a.bin', b'new')]
    """
    with replaced(path) as file:
        file.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace the file at `path` by `text` in UTF-8, its line ends as they are; see `write_bytes`.

    File names that are not UTF-8, as Python reads them, are written with escapes, which JSON reads back.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(Path(folder) / "a.txt", "naïve")
    ...     (Path(folder) / "a.txt").read_text(encoding="utf-8")
    'naïve'
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuse to work in a folder in which another process is at work; one that has died does not count.

    If folders cannot be locked, as on Windows and some network disks, no process is refused.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a missing folder is reported elsewhere
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            try:
                if sys.platform != "win32":
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"another process is at work in {folder}; wait until it ends, or stop it") from None
        yield


def half_written(path: Path) -> bool:
    """Whether it is a file that a killed process left half-written."""
    return re.fullmatch(r"\.[0-9a-f]{32}\.tmp", path.name) is not None


def is_empty(folder: Path, besides: Collection[str] = ()) -> bool:
    """Whether a folder does not exist, or holds nothing that anybody put there, apart from files of these names."""
    if not folder.exists():
        return True
    return all(path.name in besides or path.name.lower() in LITTER or half_written(path) for path in folder.iterdir())


def sweep(folder: Path) -> None:
    """Remove what a killed process left half-written in a folder; no other process may be writing there."""
    for path in filter(half_written, folder.glob(".*.tmp")):
        path.unlink(missing_ok=True)


def _fault(point: str, file: BinaryIO | None = None) -> None:
    if point == _FAULT and next(_passed) == int(_NUMBER or 1):
        if file is not None:
            file.truncate(file.tell() // 2)
        os.kill(os.getpid(), signal.SIGKILL)


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a crash. Some systems cannot open or sync a folder; the file is whole even then."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
