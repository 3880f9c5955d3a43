"""Images of all kinds, in files or in memory, as one array of uint8 that decodes the rows it is asked for.

Every image is decoded once before anything is trained on it, so that a damaged one is found in the first minutes.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from fasten.constants import MAX_BAD
from fasten.data.images import MAX_PIXELS, ImageFiles
from fasten.suggest import listed, one_line

Encoded = Path | bytes  # an image as it is stored
Shape = tuple[int, int, int]  # (height, width, channels) of every image
T = TypeVar("T")

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")  # whatever the name says
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".pnm"}
)
SMALL = 64  # pixels of a side: images of one size up to this are kept as they are
LARGEST_DEFAULT = 224  # pixels of a side, unless one asks for more
LARGEST = 4096
AT_ONCE = 1024  # images handed to the threads together

GREY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N"})
TRANSPARENT = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})


@dataclass(frozen=True)
class Decoding:
    """How images of any size and colours become arrays of one shape.

    `size` is the side of a square, or (height, width): the image is scaled until it covers that, and what stands out
    is cut off evenly. Without it, images of one size up to 64 × 64 are kept as they are, others become squares as
    large as the middle one of the shorter sides, at most 224. `channels`: 1 is grey, 3 colour; without it, grey where
    all images are.

    >>> Decoding(size=0)
    Traceback (most recent call last):
        ...
    ValueError: the size of images must be from 1 to 4096 pixels, got 0
    """

    size: int | tuple[int, int] | None = None
    channels: Literal[1, 3] | None = None
    max_bad: int = MAX_BAD  # images that may be unreadable: they are named and left out
    cache_bytes: int = 2**30  # decoded images stay in memory if all of them take no more

    def __post_init__(self) -> None:
        sides = self.size if isinstance(self.size, tuple) else (self.size,) * 2
        if self.size is not None and not all(side is not None and 1 <= side <= LARGEST for side in sides):
            raise ValueError(f"the size of images must be from 1 to {LARGEST} pixels, got {self.size}")
        if self.channels not in (None, 1, 3):
            raise ValueError(f"images have 1 channel (grey) or 3 (colour), got {self.channels}")
        if self.max_bad < 0:
            raise ValueError(f"max_bad must be 0 or more, got {self.max_bad}; with 0 every image must be readable")


class Stored(Sequence[Encoded]):
    """Images as they are stored, each fetched by its place when it is asked for.

    >>> Stored(3, lambda place: bytes(place))[1:]
    [b'\\x00', b'\\x00\\x00']
    """

    def __init__(self, count: int, fetch: Callable[[int], Encoded]) -> None:
        self._places, self._fetch = range(count), fetch

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> Encoded: ...
    @overload
    def __getitem__(self, place: slice) -> list[Encoded]: ...
    def __getitem__(self, place: int | slice) -> Encoded | list[Encoded]:
        if isinstance(place, slice):
            return [self._fetch(one) for one in self._places[place]]
        return self._fetch(self._places[place])


class Images(ImageFiles):
    """Stored images as if they were one array (n, height, width, channels) of uint8; `keys` are their names.

    It takes arrays of row numbers. Several threads may read at once.
    """

    def __init__(
        self, sources: Sequence[Encoded], keys: Sequence[str], shape: Shape, cache: NDArray[np.uint8] | None = None
    ) -> None:
        super().__init__(Path(), keys, side=shape[0])
        self.sources, self._shape, self._cache = sources, shape, cache

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sources), *self._shape)

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        if self._cache is not None:
            return np.asarray(self._cache[rows])
        out = np.empty((len(rows), *self._shape), np.uint8)
        for place, row in enumerate(rows.tolist()):
            got = _attempt(lambda source: decode(source, self._shape), self.sources[row])
            if isinstance(got, str):
                raise OSError(  # through no fault of the data: a mount that is gone, and may come back
                    f"the image {self.keys[row]} cannot be read any more ({got}); it could when the data were read: "
                    "put it back as it was"
                )
            out[place] = got
        return out

    def told(self, rows: NDArray[np.int64]) -> dict[str, Any] | None:
        wanted = [self.sources[row] for row in rows.tolist()]
        if self._cache is not None or not all(isinstance(source, Path) for source in wanted):
            return None
        return {"sources": [os.path.abspath(source) for source in wanted], "shape": list(self._shape)}

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[np.arange(len(self))] if self._cache is None else self._cache, dtype)


@dataclass(frozen=True, eq=False)
class Decoded:
    """The images that can be read, which ones of those asked for they are, and what there is to say of the others."""

    images: Images
    kept: NDArray[np.int64]
    notes: tuple[str, ...]


class _Header(NamedTuple):
    height: int
    width: int
    grey: bool


def decode_images(name: str, sources: Sequence[Encoded], keys: Sequence[str], how: Decoding) -> Decoded:
    """Decode every image once; leave out those that cannot be read, or refuse if they are more than `how.max_bad`."""
    bad: dict[int, str] = {}

    def keep(row: int, got: T | str) -> T | None:
        """What came out of an image, unless that is a reason why nothing did."""
        if not isinstance(got, str):
            return got
        source = sources[row]
        untold = isinstance(source, Path) and not source.as_posix().endswith(keys[row])  # where the file lies
        bad[row] = f"{got}: {source!s}" if untold else got
        if len(bad) > how.max_bad or len(bad) == len(sources):
            raise ValueError(_too_many(name, [(keys[r], why) for r, why in bad.items()], how.max_bad, len(sources)))
        return None

    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count() or 1, "fasten-decode") as pool:
        warnings.simplefilter("ignore")  # Pillow's, on odd but readable files
        headers = [keep(row, got) for row, got in _each(pool, _header, sources, range(len(sources)))]
        shape = _settle([header for header in headers if header is not None], how)
        rows = [row for row, header in enumerate(headers) if header is not None]
        fits = len(rows) * int(np.prod(shape)) <= how.cache_bytes
        cache = np.empty((len(rows) if fits else 0, *shape), np.uint8)
        kept: list[int] = []
        for row, got in _each(pool, lambda source: decode(source, shape), sources, rows):
            pixels = keep(row, got)
            if pixels is not None:
                cache[len(kept) : len(kept) + 1] = pixels  # an empty slice where nothing is kept
                kept.append(row)
    stored = sources if len(kept) == len(sources) else Stored(len(kept), lambda place: sources[kept[place]])
    images = Images(stored, [keys[row] for row in kept], shape, cache[: len(kept)] if fits else None)
    return Decoded(images, np.array(kept, np.int64), _left_out(name, [(keys[row], bad[row]) for row in sorted(bad)]))


def decode(source: Encoded, shape: Shape) -> NDArray[np.uint8]:
    """One image, turned as its EXIF data say, on white where it is transparent, 16 bits scaled to 8."""
    height, width, channels = shape
    with _opened(source) as stored:
        if stored.format == "JPEG":  # decode no more pixels than are of use
            stored.draft(None, (2 * max(height, width), 2 * max(height, width)))
        image = _plain(ImageOps.exif_transpose(stored))
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(image, np.uint8).reshape(shape)


def suffix_of(source: Encoded) -> str:
    """How the name of a stored image ends by what is in it, nothing where that cannot be read."""
    try:
        with _opened(source) as image:
            ending = f".{image.format}".lower()
    except Exception:  # damaged images fail in many ways
        return ""
    return ending if ending in SUFFIXES else ".jpeg"  # several pictures in one, which Pillow calls MPO


def same_bytes(sources: Sequence[Encoded], some: Sequence[int], others: Sequence[int]) -> list[tuple[int, int]]:
    """(one, other) wherever one of some rows is byte for byte one of the others; few files need to be read.

    >>> same_bytes([b"a", b"b", b"b", b"c", b"b"], [0, 1], [2, 3, 4])
    [(1, 2), (1, 4)]
    """
    if not some:
        return []
    lengths = {row: _length(sources[row]) for row in (*some, *others)}
    common = {lengths[row] for row in some} & {lengths[row] for row in others} - {None}
    digests = {row: _digest(sources[row]) for row, length in lengths.items() if length in common}
    alike: dict[bytes | None, list[int]] = defaultdict(list)
    for row in others:
        alike[digests.get(row)].append(row)
    alike[None] = []  # what was not read, or cannot be, is like nothing
    return [(row, other) for row in some for other in alike.get(digests.get(row), [])]


class Inside:
    """The real paths of names in one folder; ValueError for a name that leads out of it, by itself or by a link."""

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.realpath(folder)
        self._parents: dict[str, str] = {}  # many files, few folders

    def __call__(self, name: str) -> Path:
        parent, last = os.path.split(os.path.join(self.folder, name))
        if parent not in self._parents:
            self._parents[parent] = os.path.realpath(parent)
        real = os.path.join(self._parents[parent], last)
        if last in ("", ".", "..") or os.path.islink(real):
            real = os.path.realpath(real)
        if not real.startswith(os.path.join(self.folder, "")):
            raise ValueError(
                f"{name!r} leads out of the folder {self.folder}; copy the file into it, or give the folder of all"
            )
        return Path(real)


def _each(
    pool: ThreadPoolExecutor, function: Callable[[Encoded], T], sources: Sequence[Encoded], rows: Sequence[int]
) -> Iterator[tuple[int, T | str]]:
    """(row, what the function makes of its image or why it cannot), in order; a part of the rows at a time."""
    for start in range(0, len(rows), AT_ONCE):
        part = rows[start : start + AT_ONCE]
        yield from zip(part, pool.map(lambda row: _attempt(function, sources[row]), part), strict=True)


def _attempt(function: Callable[[Encoded], T], source: Encoded) -> T | str:
    """What the function makes of the image, or why it cannot: damaged images fail in many ways."""
    try:
        return function(source)
    except MemoryError:
        raise
    except FileNotFoundError:
        return "no such file"
    except PermissionError:
        return "no permission to read it"
    except UnidentifiedImageError:
        return "not an image of a known format"
    except Image.DecompressionBombError:
        return f"it claims more than {MAX_PIXELS:,} pixels"
    except Exception as error:
        return one_line(error, 100) or type(error).__name__


@contextmanager
def _opened(source: Encoded) -> Iterator[Image.Image]:
    if isinstance(source, Path) and not source.is_file():  # a pipe would be waited for
        raise FileNotFoundError
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"it claims {image.width} × {image.height} pixels, more than {MAX_PIXELS:,}")
        yield image


def _header(source: Encoded) -> _Header:
    with _opened(source) as image:
        # Turned as one sees them, which asks for the pixels. Of larger ones which side is which does not matter.
        seen = ImageOps.exif_transpose(image) if max(image.size) <= SMALL else image
        return _Header(seen.height, seen.width, image.mode in GREY)


def _settle(headers: Sequence[_Header], how: Decoding) -> Shape:
    """The one shape of all images."""
    channels = how.channels or (1 if all(header.grey for header in headers) else 3)
    if how.size is not None:
        height, width = how.size if isinstance(how.size, tuple) else (how.size, how.size)
        return height, width, channels
    sizes = {header[:2] for header in headers}
    if len(sizes) == 1 and max(headers[0][:2]) <= SMALL:
        return headers[0].height, headers[0].width, channels
    shorter = sorted(min(header[:2]) for header in headers)
    side = min(shorter[len(shorter) // 2], LARGEST_DEFAULT)
    return side, side, channels


def _plain(image: Image.Image) -> Image.Image:
    """The same in 8 bits, grey or RGB, without transparency."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        return _from_16_bits(image)
    mode = "L" if image.mode in GREY else "RGB"
    if image.mode in TRANSPARENT or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        return white.convert(mode)
    return image.convert(mode)


def _from_16_bits(image: Image.Image) -> Image.Image:
    wide = np.asarray(image).astype(np.int64)
    if wide.min(initial=0) < 0 or wide.max(initial=0) > 0xFFFF:
        raise ValueError("its pixels have more than 16 bits; save it with 8 or 16")
    return Image.fromarray(((wide + 128) // 257).astype(np.uint8))  # 65535 / 255 = 257


def _length(source: Encoded) -> int | None:
    if isinstance(source, bytes):
        return len(source)
    try:
        return source.stat().st_size
    except OSError:
        return None


def _digest(source: Encoded) -> bytes | None:
    try:
        content = source if isinstance(source, bytes) else source.read_bytes()
    except OSError:
        return None
    return hashlib.blake2b(content, digest_size=16).digest()


def _listed(bad: Sequence[tuple[str, str]]) -> str:
    """Each with its reason, or all with the one that they share."""
    reasons = {why for _, why in bad}
    if len(bad) > 1 and len(reasons) == 1:
        return f"{listed([key for key, _ in bad])} ({reasons.pop()})"
    return listed([f"{key} ({why})" for key, why in bad])


def _left_out(name: str, bad: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    if not bad:
        return ()
    images = "image that cannot be read is" if len(bad) == 1 else "images that cannot be read are"
    return (f"{name}: {len(bad)} {images} left out: {_listed(bad)}",)


def _too_many(name: str, bad: Sequence[tuple[str, str]], allowed: int, total: int) -> str:
    if len(bad) == total:
        return f"{name}: none of the {total} images can be read: {_listed(bad)}"
    # In Python there is no such option and none is allowed; who wrote --max-bad 0 knows it.
    cure = "mend or remove them, or allow more of them with --max-bad" if allowed else "mend or remove them"
    some = f"more than {allowed}" if allowed else "some"
    return f"{name}: {some} of the {total} images cannot be read: {_listed(bad)}; {cure}"
