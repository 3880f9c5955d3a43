"""Download one file: it is written under a temporary name, checked, and only then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from fasten.files import replaced

Progress = Callable[[int, int | None], None]  # bytes so far, and the total if the server says so

CHUNK = 1 << 20
PATIENCE = 60.0  # seconds without a byte


def download(url: str, target: Path, md5: str) -> None:
    """Fetch `url` to `target`, which appears only when it is complete and correct; a terminal shows a progress bar."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.md5(usedforsecurity=False)
    with _shown(target.name) as report, replaced(target) as file:
        for chunk in _chunks(url, target, report):
            file.write(chunk)
            digest.update(chunk)
        if digest.hexdigest() != md5:
            raise ValueError(
                f"{url} gave a file with md5 {digest.hexdigest()}, expected {md5}: it was damaged or changed on the "
                f"way; try again, or put the right file at {target} by hand"
            )


def _chunks(url: str, target: Path, report: Progress) -> Iterator[bytes]:
    """Yield what `url` answers, a part at a time."""
    received = 0
    with _one_sentence(url, target), contextlib.closing(urllib.request.urlopen(url, timeout=PATIENCE)) as answer:
        length = answer.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        report(0, total)
        while chunk := answer.read(CHUNK):
            yield chunk
            received += len(chunk)
            report(received, total)
        if total is not None and received < total:
            raise ConnectionError(f"the connection closed after {received} of {total} bytes")


@contextlib.contextmanager
def _one_sentence(url: str, target: Path) -> Iterator[None]:
    """Turn whatever goes wrong on the network into an OSError that says what to do."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(error, urllib.error.HTTPError):
            reason = f"the server answers {error.code} {error.reason}"
            error.close()  # an HTTPError is also the open answer
        raise OSError(
            f"cannot download {url}: {reason}; check the connection, or fetch the file by hand and put it at {target}"
        ) from error


@contextlib.contextmanager
def _shown(name: str) -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield lambda received, total: None
        return
    from rich.console import Console  # here: only a terminal needs it
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda received, total: bar.update(task, completed=received, total=total)
