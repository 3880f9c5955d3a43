"""Random streams: each purpose in a run has its own, derived from the run's seed and the purpose's name.

A stream depends only on its seed and key. So a resumed run gets the same streams without any saved state, and a new
use of randomness does not change the others. NumPy pads a seed and key of fewer than four words with zeros, so zeros at
the end of a short key do not count: no two keys may differ only in these.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Key = str | int


def _sequence(seed: int, key: tuple[Key, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, *(zlib.crc32(k.encode()) if isinstance(k, str) else k for k in key)])


def numpy_stream(seed: int, *key: Key) -> np.random.Generator:
    """A NumPy generator for one purpose: `numpy_stream(seed, "noise")`."""
    return np.random.default_rng(_sequence(seed, key))


def torch_seed(seed: int, *key: Key) -> int:
    """A 63-bit seed for one purpose.

    >>> torch_seed(0, "order", 1) == torch_seed(0, "order", 1) != torch_seed(0, "order", 2)
    True
    >>> torch_seed(0, "order", 0) == torch_seed(0, "order")
    True
    """
    return int(_sequence(seed, key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def torch_stream(device: torch.device, seed: int, *key: Key) -> torch.Generator:
    """A device generator for one purpose."""
    import torch

    return torch.Generator(device).manual_seed(torch_seed(seed, *key))
