"""Images of all kinds are decoded as they look; those that cannot be are named, left out and counted."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fasten.data.decoding import Decoded, Decoding, Inside, Stored, decode, decode_images, same_bytes

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 9), np.uint8)
COLOUR = RNG.integers(0, 256, (6, 9, 3), np.uint8)
ALPHA = RNG.integers(0, 256, (6, 9), np.uint8)


def stored(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def grey(height: int, width: int, value: int = 7) -> bytes:
    return stored(Image.new("L", (width, height), value))


def colour(height: int, width: int) -> bytes:
    return stored(Image.new("RGB", (width, height), (1, 2, 3)))


def read(*sources: Path | bytes, **how: Any) -> Decoded:
    return decode_images("pets", sources, [f"image {row}" for row in range(len(sources))], Decoding(**how))


def on_white(pixels: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha / 255.0
    return pixels * share + 255 * (1 - share)


def claiming(width: int, height: int) -> bytes:
    """A few bytes that say they are a large PNG."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 100)
    chunks = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (head, data, b"IEND")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    "options", [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("GIF", {}), ("PPM", {}), ("WEBP", {"lossless": True})]
)
def test_grey_images_of_every_lossless_format_keep_their_pixels(options):
    kind, extra = options
    got = decode(stored(Image.fromarray(GREY), kind, **extra), (6, 9, 1))
    np.testing.assert_array_equal(got[..., 0], GREY)


def test_colours_are_kept_and_one_channel_becomes_three():
    np.testing.assert_array_equal(decode(stored(Image.fromarray(COLOUR)), (6, 9, 3)), COLOUR)
    np.testing.assert_array_equal(decode(stored(Image.fromarray(GREY)), (6, 9, 3)), np.stack([GREY] * 3, 2))


def test_colour_becomes_grey_where_a_model_wants_it():
    luma = COLOUR @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(decode(stored(Image.fromarray(COLOUR)), (6, 9, 1))[..., 0], luma, atol=1)


def test_a_palette_is_looked_up():
    palette = RNG.integers(0, 256, (256, 3), np.uint8)
    image = Image.fromarray(GREY).convert("P")
    image.putpalette(palette.tobytes())
    np.testing.assert_array_equal(decode(stored(image), (6, 9, 3)), palette[GREY])


def test_a_transparent_colour_of_a_palette_is_white():
    image = Image.fromarray(np.zeros((2, 2), np.uint8)).convert("P")
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((0, 0), 1)
    got = decode(stored(image, transparency=1), (2, 2, 3))
    assert got[0, 0].tolist() == [255, 255, 255]
    assert got[1, 1].tolist() == [10, 20, 30]


def test_transparency_lies_on_white():
    rgba = np.dstack([COLOUR, ALPHA])
    np.testing.assert_allclose(
        decode(stored(Image.fromarray(rgba)), (6, 9, 3)), on_white(COLOUR, ALPHA[..., None]), atol=1
    )
    la = Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)])
    np.testing.assert_allclose(decode(stored(la), (6, 9, 1))[..., 0], on_white(GREY, ALPHA), atol=1)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits_are_scaled_to_8(kind):
    wide = RNG.integers(0, 65536, (6, 9), np.uint16)
    wide[0, :2] = 0, 65535
    got = decode(stored(Image.fromarray(wide), kind), (6, 9, 1))[..., 0]
    np.testing.assert_array_equal(got, np.rint(wide * (255 / 65535)))


def test_black_and_white_and_cmyk_are_decoded():
    bits = GREY > 127
    got = decode(stored(Image.fromarray(bits)), (6, 9, 1))[..., 0]
    np.testing.assert_array_equal(got, np.where(bits, 255, 0))
    flat = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # red
    np.testing.assert_allclose(decode(stored(flat, "JPEG", quality=95), (16, 16, 3))[8, 8], [255, 0, 0], atol=8)


TURNS = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.T,
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].T,
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})])
def test_images_are_turned_as_their_exif_data_say(orientation, kind, options):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(COLOUR)
    want = np.stack([TURNS[orientation](COLOUR[..., c]) for c in range(3)], 2)
    got = decode(stored(image, kind, exif=exif, **options), want.shape)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_a_turned_photo_has_the_size_that_one_sees(kind):
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = stored(Image.new("RGB", (30, 20), "red"), kind, exif=exif)
    assert read(photo, photo).images.shape == (2, 30, 20, 3)


def test_only_grey_images_keep_one_channel():
    assert read(grey(5, 5), grey(5, 5)).images.shape == (2, 5, 5, 1)
    assert read(grey(5, 5), colour(5, 5)).images.shape == (2, 5, 5, 3)
    assert read(grey(5, 5), channels=3).images.shape == (1, 5, 5, 3)


@pytest.mark.parametrize(
    ("sizes", "size", "want"),
    [
        ([(20, 30), (20, 30)], None, (20, 30)),
        ([(64, 64)], None, (64, 64)),
        ([(20, 30), (30, 20)], None, (20, 20)),
        ([(65, 70)], None, (65, 65)),
        ([(20, 30), (50, 40), (60, 90)], None, (40, 40)),
        ([(300, 400)], None, (224, 224)),
        ([(300, 400)], 256, (256, 256)),
        ([(20, 20)], 32, (32, 32)),
        ([(20, 20)], (10, 40), (10, 40)),
    ],
)
def test_all_images_get_one_size(sizes, size, want):
    assert read(*(grey(*s) for s in sizes), size=size).images.shape == (len(sizes), *want, 1)


def test_what_stands_out_is_cut_off_evenly():
    wide = np.zeros((20, 60), np.uint8)
    wide[:, 20:40] = RNG.integers(0, 256, (20, 20))
    got = decode(stored(Image.fromarray(wide)), (20, 20, 1))
    np.testing.assert_array_equal(got[..., 0], wide[:, 20:40])


def test_images_are_scaled_before_they_are_cut():
    steps = np.repeat(np.repeat(np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6), 10, 0), 10, 1)  # 40 × 60
    got = decode(stored(Image.fromarray(steps)), (4, 4, 1))[..., 0].astype(int)
    np.testing.assert_allclose(got, np.arange(0, 240, 10).reshape(4, 6)[:, 1:5], atol=25)
    assert decode(stored(Image.new("L", (40_000, 2), 5)), (8, 8, 1)).tolist() == np.full((8, 8, 1), 5).tolist()


def test_large_photos_look_the_same_though_fewer_pixels_are_decoded():
    y, x = np.mgrid[0:1200, 0:1600]
    photo = Image.fromarray(np.uint8(127 + 120 * np.sin(x / 150) * np.cos(y / 110)))
    jpeg, png = (decode(stored(photo, kind), (64, 64, 1)).astype(int) for kind in ("JPEG", "PNG"))
    assert np.abs(jpeg - png).max() <= 3


def test_rows_come_in_the_order_asked_for_whether_kept_in_memory_or_not():
    sources = [stored(Image.fromarray(RNG.integers(0, 256, (5, 4), np.uint8))) for _ in range(6)]
    rows = np.array([4, 0, 4])
    kept, lazy = (read(*sources, cache_bytes=size).images for size in (10**6, 0))
    assert (kept.dtype, kept.ndim, kept.nbytes, len(kept)) == (np.uint8, 4, 6 * 20, 6)
    want = np.stack([np.asarray(Image.open(io.BytesIO(sources[row])))[..., None] for row in rows])
    np.testing.assert_array_equal(kept[rows], want)
    np.testing.assert_array_equal(lazy[rows], want)
    np.testing.assert_array_equal(np.asarray(lazy), np.asarray(kept))


def test_a_file_that_is_damaged_later_is_named(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(grey(4, 4))
    images = read(path, cache_bytes=0).images
    path.write_bytes(b"gone")
    with pytest.raises(OSError, match=r"the image image 0 cannot be read any more .not an image of a known format"):
        images[np.array([0])]


CUT = stored(Image.fromarray(RNG.integers(0, 256, (50, 50), np.uint8)))[:-400]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"not an image", "not an image of a known format"),
        (b"", "the file is empty"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image of a known format"),
        (CUT, "truncated|broken|Truncated"),
        (stored(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"), "floating-point numbers"),
        (stored(Image.fromarray(np.full((4, 4), 70_000, np.int32)), "TIFF"), "more than 16 bits"),
        (claiming(9_000, 9_000), "claims 9000 × 9000 pixels, more than 64,000,000"),
        (claiming(10_000, 9_500), "claims 10000 × 9500 pixels"),
        (claiming(60_000, 60_000), "claims more than 64,000,000 pixels"),
        (Path("no such.png"), "no such file"),
    ],
)
def test_an_image_that_cannot_be_read_is_named_and_left_out(source, reason):
    got = read(grey(4, 4, 1), source, grey(4, 4, 3))
    assert got.kept.tolist() == [0, 2]
    assert np.asarray(got.images)[:, 0, 0, 0].tolist() == [1, 3]
    (note,) = got.notes
    assert note.startswith("pets: 1 image that cannot be read is left out: image 1 (")
    assert any(words in note for words in reason.split("|")), note


def test_the_others_are_fetched_when_they_are_asked_for():
    """A large data set does not come into memory because one of its images is damaged."""
    fetched = []

    def fetch(place):
        fetched.append(place)
        return b"broken" if place == 2 else grey(5, 5)

    images = decode_images("pets", Stored(6, fetch), list("abcdef"), Decoding(cache_bytes=0)).images
    before = len(fetched)
    assert len(images.sources) == 5
    assert len(fetched) == before
    assert images[np.array([2])].shape == (1, 5, 5, 1)
    assert fetched[before:] == [3]


def test_more_bad_images_than_allowed_are_refused():
    sources = [grey(4, 4), b"x", CUT, b"y"]
    assert read(*sources, max_bad=3).kept.tolist() == [0]
    with pytest.raises(ValueError, match=r"pets: more than 2 of the 4 images cannot be read: image 1 \(not an image"):
        read(*sources, max_bad=2)
    with pytest.raises(ValueError, match=r"more than 1 of the 4 .* allow more of them with --max-bad"):
        read(*sources, max_bad=1)
    with pytest.raises(ValueError, match=r"some of the 4 .*; repair or remove them$"):
        read(*sources, max_bad=0)


def test_nothing_but_bad_images_is_refused():
    with pytest.raises(ValueError, match="none of the 2 images can be read: image 0"):
        read(b"x", b"y")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    assert "no such file" in read(grey(4, 4), tmp_path / "a.png").notes[0]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"size": 0}, "from 1 to 4096 pixels, got 0"),
        ({"size": (8, 5000)}, "from 1 to 4096"),
        ({"channels": 4}, "1 channel .grey. or 3 .colour., got 4"),
        ({"max_bad": -1}, "max_bad must be 0 or more"),
    ],
)
def test_impossible_wishes_are_refused(how, message):
    with pytest.raises(ValueError, match=message):
        Decoding(**how)


def test_the_same_bytes_are_found_in_files_and_memory(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"one")
    assert same_bytes([path, b"two", b"one", b"three", tmp_path / "none"], [0, 1, 4], [2, 3, 4]) == [(0, 2)]


def test_of_many_copies_each_is_found_but_not_each_pair_of_them():
    many = range(1000)
    pairs = same_bytes([b"no longer available"] * 2000, many, range(1000, 2000))
    assert {one for one, _ in pairs} == set(many)
    assert {other for _, other in pairs} == set(range(1000, 2000))
    assert len(pairs) < 2000


def test_a_name_may_not_lead_out_of_its_folder(tmp_path):
    inner = tmp_path / "data"
    (inner / "cat").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(b"")
    (tmp_path / "data2").mkdir()
    (inner / "link.png").symlink_to(tmp_path / "secret.png")
    (inner / "away").symlink_to(tmp_path / "data2")
    (inner / "alias.png").symlink_to(inner / "cat" / "1.png")
    inside = Inside(inner)
    assert inside("cat/1.png") == inner.resolve() / "cat" / "1.png"
    assert inside("alias.png") == inside("./cat/../cat/1.png") == inside(str(inner / "cat" / "1.png"))
    for name in ("../secret.png", "link.png", "away/x.png", str(tmp_path / "secret.png"), "cat/../..", "..", ""):
        with pytest.raises(ValueError, match="leads out of the folder"):
            inside(name)
