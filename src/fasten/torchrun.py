"""What torchrun says, in their environment, to the processes that it starts."""

from __future__ import annotations

import os


def told(name: str, least: int) -> int:
    """A number of its: `WORLD_SIZE` and the like, from `least` on, which is also what holds without torchrun."""
    text = os.environ.get(name) or str(least)
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ValueError(
            f"the environment has {name}={text}, and torchrun sets a whole number from {least} on; unset {name}, or "
            "start this with torchrun"
        )
    return value


def is_one_of_several() -> bool:
    """Whether this process is one of several ranks."""
    return told("WORLD_SIZE", 1) > 1
