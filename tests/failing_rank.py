"""A rank that meets an error, and the one that loses it by that; each says so, and ends in peace."""

from __future__ import annotations

import atexit
import sys

from fasten import ranks
from rank_cases import check_threads


def fail() -> None:
    with ranks.joined():
        if ranks.rank() == 1:
            raise OSError("the disk is full")
        ranks.wait()


if __name__ == "__main__":
    atexit.register(check_threads)
    try:
        fail()
    except OSError as error:
        print(error, file=sys.stderr)
