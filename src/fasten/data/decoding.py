"""Images of all kinds, in files or in memory, as one array of uint8 that decodes rows on request.

Every image is decoded once before training, so that a damaged one is found in the first minutes.
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
Shape = tuple[int, int, int]  # (height, width, channels) of each image
T = TypeVar("T")

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")  # whatever the file is called
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".pnm"}
)
SMALL = 64  # pixels of a side: up to this, images that all have one size are kept as they are
LARGEST_DEFAULT = 224  # pixels of a side, unless the user asks for more
LARGEST = 4096
AT_ONCE = 1024  # images handed to the threads at a time

GREY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N"})
TRANSPARENT = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})


@dataclass(frozen=True)
class Decoding:
    """How images of any size and colours become arrays of one shape.

    `size` is the side of a square, or (height, width): an image is scaled until it covers that, and the excess is cut
    off evenly. By default, images that all have one size, up to 64 × 64, are kept as they are; others become squares
    whose side is the median of their shorter sides, at most 224. `channels` is 1 for grey and 3 for colour; by default,
    it is 1 if all images are grey.

    >>> Decoding(size=0)
    Traceback (most recent call last):
        ...
    ValueError: the size of images must be from 1 to 4096 pixels, got 0
    """

    size: int | tuple[int, int] | None = None
    channels: Literal[1, 3] | None = None
    max_bad: int = MAX_BAD  # how many images may be unreadable: they are named and left out
    cache_bytes: int = 2**30  # decoded images stay in memory if all of them fit into this

    def __post_init__(self) -> None:
        sides = self.size if isinstance(self.size, tuple) else (self.size,) * 2
        if self.size is not None and not all(side is not None and 1 <= side <= LARGEST for side in sides):
            raise ValueError(f"the size of images must be from 1 to {LARGEST} pixels, got {self.size}")
        if self.channels not in (None, 1, 3):
            raise ValueError(f"images have 1 channel (grey) or 3 (colour), got {self.channels}")
        if self.max_bad < 0:
            raise ValueError(f"max_bad must be 0 or more, got {self.max_bad}; with 0 every image must be readable")


class Stored(Sequence[Encoded]):
    """Images as they are stored, each fetched by its place on request.

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

    Index it with arrays of row numbers. Several threads may read at once.
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
                raise OSError(  # not the fault of the data: a mount may be gone, and may come back
                    f"the image {self.keys[row]} cannot be read any more ({got}); it could be read at the start: "
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
    """The images that can be read, their rows among those requested, and notes about the others."""

    images: Images
    kept: NDArray[np.int64]
    notes: tuple[str, ...]


class _Header(NamedTuple):
    height: int
    width: int
    grey: bool


def decode_images(name: str, sources: Sequence[Encoded], keys: Sequence[str], how: Decoding) -> Decoded:
    """Decode every image once and leave out unreadable ones; raise if there are more than `how.max_bad`."""
    bad: dict[int, str] = {}

    def keep(row: int, got: T | str) -> T | None:
        """Return the result for an image, or note the reason why there is none."""
        if not isinstance(got, str):
            return got
        source = sources[row]
        untold = isinstance(source, Path) and not source.as_posix().endswith(keys[row])  # the key hides the path
        bad[row] = f"{got}: {source!s}" if untold else got
        if len(bad) > how.max_bad or len(bad) == len(sources):
            raise ValueError(_too_many(name, [(keys[r], why) for r, why in bad.items()], how.max_bad, len(sources)))
        return None

    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count() or 1, "fasten-decode") as pool:
        warnings.simplefilter("ignore")  # from Pillow, about odd but readable files
        headers = [keep(row, got) for row, got in _each(pool, _header, sources, range(len(sources)))]
        shape = _settle([header for header in headers if header is not None], how)
        rows = [row for row, header in enumerate(headers) if header is not None]
        fits = len(rows) * int(np.prod(shape)) <= how.cache_bytes
        cache = np.empty((len(rows) if fits else 0, *shape), np.uint8)
        kept: list[int] = []
        for row, got in _each(pool, lambda source: decode(source, shape), sources, rows):
            pixels = keep(row, got)
            if pixels is not None:
                cache[len(kept) : len(kept) + 1] = pixels  # an empty slice if nothing is cached
                kept.append(row)
    stored = sources if len(kept) == len(sources) else Stored(len(kept), lambda place: sources[kept[place]])
    images = Images(stored, [keys[row] for row in kept], shape, cache[: len(kept)] if fits else None)
    return Decoded(images, np.array(kept, np.int64), _left_out(name, [(keys[row], bad[row]) for row in sorted(bad)]))


def decode(source: Encoded, shape: Shape) -> NDArray[np.uint8]:
    """Decode one image: rotated as its EXIF data say, transparency on white, 16 bits scaled to 8."""
    height, width, channels = shape
    with _opened(source) as stored:
        if stored.format == "JPEG":  # decode no more pixels than are needed
            stored.draft(None, (2 * max(height, width), 2 * max(height, width)))
        image = _plain(ImageOps.exif_transpose(stored))
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(image, np.uint8).reshape(shape)


def suffix_of(source: Encoded) -> str:
    """Return the suffix that fits the content of a stored image, or nothing if it cannot be read."""
    try:
        with _opened(source) as image:
            ending = f".{image.format}".lower()
    except Exception:  # damaged images fail in many ways
        return ""
    return ending if ending in SUFFIXES else ".jpeg"  # several pictures in one, which Pillow calls MPO


def same_bytes(sources: Sequence[Encoded], some: Sequence[int], others: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of a row of `some` and a row of `others` with equal bytes; few files need to be read.

    Every row that has a copy is in a pair; not all pairs are there, since of a thousand copies there are a million.

    >>> same_bytes([b"a", b"b", b"b", b"c", b"b"], [0, 1], [2, 3, 4])
    [(1, 2), (1, 4)]
    """
    if not some:
        return []
    lengths = {row: _length(sources[row]) for row in (*some, *others)}
    common = {lengths[row] for row in some} & {lengths[row] for row in others} - {None}
    digests = {row: _digest(sources[row]) for row, length in lengths.items() if length in common}
    alike: dict[bytes | None, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for place, rows in enumerate((some, others)):
        for row in rows:
            alike[digests.get(row)][place].append(row)
    alike.pop(None, None)  # what was not read, or cannot be, equals nothing
    pairs = [(ones[0], other) for ones, found in alike.values() if ones for other in found]
    return pairs + [(one, found[0]) for ones, found in alike.values() if found for one in ones[1:]]


class Inside:
    """Real paths of names in one folder; a name that leads out of it, directly or by a link, raises ValueError."""

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
                f"{name!r} leads out of the folder {self.folder}; copy the file into it, or give a folder that "
                "holds all files"
            )
        return Path(real)


def _each(
    pool: ThreadPoolExecutor, function: Callable[[Encoded], T], sources: Sequence[Encoded], rows: Sequence[int]
) -> Iterator[tuple[int, T | str]]:
    """Yield (row, what the function makes of its image, or why it cannot) in order, a part of the rows at a time."""
    for start in range(0, len(rows), AT_ONCE):
        part = rows[start : start + AT_ONCE]
        yield from zip(part, pool.map(lambda row: _attempt(function, sources[row]), part), strict=True)


def _attempt(function: Callable[[Encoded], T], source: Encoded) -> T | str:
    """Return what the function makes of the image, or why it cannot: damaged images fail in many ways."""
    try:
        return function(source)
    except MemoryError:
        raise
    except FileNotFoundError:
        return "no such file"
    except PermissionError:
        return "no permission to read it"
    except UnidentifiedImageError:
        return "not an image of a known format" if _length(source) else "the file is empty"
    except Image.DecompressionBombError:
        return f"it claims more than {MAX_PIXELS:,} pixels"
    except Exception as error:
        return one_line(error, 100) or type(error).__name__


@contextmanager
def _opened(source: Encoded) -> Iterator[Image.Image]:
    if isinstance(source, Path) and not source.is_file():  # opening a pipe would wait forever
        raise FileNotFoundError
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"it claims {image.width} × {image.height} pixels, more than {MAX_PIXELS:,}")
        yield image


def _header(source: Encoded) -> _Header:
    with _opened(source) as image:
        # Small images are rotated as EXIF says, which decodes the pixels. For larger ones, which side is which does
        # not matter.
        seen = ImageOps.exif_transpose(image) if max(image.size) <= SMALL else image
        return _Header(seen.height, seen.width, image.mode in GREY)


def _settle(headers: Sequence[_Header], how: Decoding) -> Shape:
    """Choose the one shape of all images."""
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
    """Return the same image with 8 bits, grey or RGB, without transparency."""
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
    """List each image with its reason, or all with the one reason that they share."""
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
    # Python has no such option and allows no unreadable image; whoever wrote --max-bad 0 knows it.
    cure = "repair or remove them, or allow more of them with --max-bad" if allowed else "repair or remove them"
    some = f"more than {allowed}" if allowed else "some"
    return f"{name}: {some} of the {total} images cannot be read: {_listed(bad)}; {cure}"
