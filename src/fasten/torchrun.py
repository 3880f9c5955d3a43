"""What torchrun tells the processes that it starts, in their environment."""

from __future__ import annotations

import os


def told(name: str, least: int) -> int:
    """A number that torchrun sets, such as `WORLD_SIZE`: `least` or more, and `least` without torchrun."""
    text = os.environ.get(name) or str(least)
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ValueError(
            f"the environment has {name}={text}, and torchrun sets a whole number of {least} or more; unset {name}, or "
            "start this with torchrun"
        )
    return value


def is_one_of_several() -> bool:
    """Whether this process is one of several ranks."""
    return told("WORLD_SIZE", 1) > 1
