"""Images that stay in their files: an array that decodes rows on request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")  # whatever the file is called; other formats are refused
MAX_PIXELS = 64_000_000  # of one image: a file of a few bytes may claim a size that fills the memory
CHANNELS = 3


class ImageFiles:
    """Files under `root` as if they were one array (n, side, side, 3) of uint8. Decoded images are not kept.

    Each image, whatever its size and colours, becomes its middle square, scaled to `side`: this is the same as scaling
    its shorter side to `side` and cutting off the excess at both ends. Several threads may read at once.

    >>> ImageFiles(Path("shop"), ["a.jpg", "b.jpg"], side=256).shape
    (2, 256, 256, 3)
    """

    dtype = np.dtype(np.uint8)
    ndim = 4

    def __init__(self, root: Path, keys: Sequence[str], side: int) -> None:
        self.root, self.keys, self.side = root, keys, side

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.keys), self.side, self.side, CHANNELS)

    @property
    def nbytes(self) -> int:
        """The size in bytes if all images were decoded."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        out = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for place, row in enumerate(rows.tolist()):
            out[place] = self._read(self.keys[row])
        return out

    def told(self, rows: NDArray[np.int64]) -> dict[str, Any] | None:
        """Return what another process needs to read these rows, as JSON values; None if they are not in files."""
        keys = [self.keys[row] for row in rows.tolist()]
        return {"root": str(self.root.absolute()), "keys": keys, "side": self.side}

    def _read(self, key: str) -> NDArray[np.uint8]:
        """Decode one image, (side, side, 3)."""
        try:
            with Image.open(self.root / key, formats=FORMATS) as image:
                return _middle_square(image, self.side)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"the image {key} is not in {self.root}; unpack all of the data set's images there"
            ) from None
        except (PermissionError, MemoryError):
            raise
        except Exception as error:  # a damaged image fails in many ways
            raise ValueError(
                f"the image {key} in {self.root} cannot be read ({type(error).__name__}: {error}); fetch it again"
            ) from error


def shape_of(x: NDArray[Any] | ImageFiles) -> tuple[int, ...]:
    """Return the shape of one example as a network sees it: (channels, height, width) or (features,)."""
    return (x.shape[3], *x.shape[1:3]) if x.ndim == 4 else x.shape[1:]


def in_words(shape: Sequence[int]) -> str:
    """Return the shape of one example in words.

    >>> in_words((64,)), in_words((3, 32, 24))
    ('64 features', '32×24 pixels in colour')
    """
    if len(shape) == 1:
        return f"{shape[0]:,} feature{'s' if shape[0] != 1 else ''}"
    channels, *size = shape
    return f"{'×'.join(map(str, size))} pixels in {'grey' if channels == 1 else 'colour'}"


def check_examples(name: str, x: NDArray[Any] | ImageFiles) -> None:
    """Raise if the examples are neither images nor features."""
    if (x.ndim, x.dtype.name) not in ((4, "uint8"), (2, "float32")):
        raise ValueError(
            f"{name}: x is {x.dtype} of shape {x.shape}; give images as uint8 (n, H, W, C) or features as float32 "
            "(n, D)"
        )


def _middle_square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ValueError(f"it claims {width}×{height} pixels, more than {MAX_PIXELS:,}")
    if image.format == "JPEG":  # decode no more pixels than are needed
        image.draft(None, (2 * side, 2 * side))
        width, height = image.size
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns if this step is left out
    short = min(width, height)
    left, top = (width - short) / 2, (height - short) / 2
    square = image.convert("RGB").resize(
        (side, side), Image.Resampling.BILINEAR, box=(left, top, left + short, top + short)
    )
    return np.asarray(square, np.uint8)
