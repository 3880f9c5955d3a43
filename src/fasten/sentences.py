"""What went wrong, in a sentence; how many of something, in words."""

from __future__ import annotations

import errno
import shlex

from fasten.suggest import one_line

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM)


def sentence(error: Exception) -> str:
    """One line for what went wrong."""
    if is_out_of_memory(error):
        return "not enough memory; try a smaller batch (batch_size), a smaller network (net) or smaller images (--size)"
    if isinstance(error, OSError) and error.errno is not None:
        where = f": {error.filename}" if error.filename else ""
        if error.errno in FULL_DISK:
            return f"no space left on the disk{where}; free some and run it again"
        cure = "; change its permissions, or choose another place" if error.errno in FORBIDDEN else ""
        return f"{error.strerror}{where}{cure}"
    return one_line(error) or type(error).__name__


def typed(*words: object) -> str:
    """A `fasten` command, quoted so that it can be typed as it is.

    >>> typed("resume", "my run")
    "`fasten resume 'my run'`"
    """
    return f"`{shlex.join(['fasten', *map(str, words)])}`"


def some(number: int, thing: str) -> str:
    """A number of things, with the noun in the singular or plural.

    >>> some(1, "row"), some(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def are(number: int) -> str:
    """The verb after a number of things."""
    return "is" if number == 1 else "are"


def is_out_of_memory(error: Exception) -> bool:
    """Whether a GPU or the host ran out of memory, by names and texts alone: torch need not be imported yet."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "DefaultCPUAllocator" in str(error)
    )
