"""gallery.json: a summary of labels.csv, and its most suspect rows by pair of labels, images with a thumbnail."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from fasten.data.task import Task
from fasten.files import write_text
from fasten.report.gallery import shown_gallery

Gallery = dict[str, Any]
Picture = Callable[[int], str | None]  # from a row of labels.csv to a data URI; None if there is nothing to show

MAX_PAIRS = 24
MAX_ROWS = 288  # of all pairs together
MAX_OF_PAIR = 48
SIDE = 96  # pixels of a thumbnail's longer side, at most
TINY = 16  # up to this size JPEG's own tables are larger than the image
MAX_BYTES = 3_000_000  # of all thumbnails


def write_gallery(task: Task, table: pd.DataFrame, path: str | os.PathLike[str]) -> Gallery:
    """Make the gallery of a run from its data and its table of labels, and write it atomically."""
    is_image = task.x.ndim == 4
    places = task.audited

    def picture(row: int) -> str | None:
        return thumbnail(task.x[places[[row]]][0]) if is_image else None

    gallery = make_gallery(table, picture)
    save_gallery(gallery, path)
    return gallery


def save_gallery(gallery: Gallery, path: str | os.PathLike[str]) -> None:
    """Write gallery.json atomically."""
    write_text(path, json.dumps(gallery, indent=0, allow_nan=False, ensure_ascii=False) + "\n")


def make_gallery(table: pd.DataFrame, picture: Picture) -> Gallery:
    """Count a table of labels, and take the most suspect unverified rows of each pair (given → suggested).

    >>> table = pd.DataFrame({"row": [1, 0], "id": ["b", "a"], "given": ["cat", "cat"], "suggested": ["dog", "cat"]})
    >>> table = table.assign(p_wrong=[0.75, 0.25], p_suggested=[0.75, 0.75], is_issue=[True, False])
    >>> made = make_gallery(table, lambda row: None)
    >>> made["issues"], made["expected_wrong"], made["pairs"][0]["given"], made["pairs"][0]["items"][0]["id"]
    (1, 1.0, 'cat', 'b')
    """
    pictures = _Limited(picture)
    pairs, num_pairs = suspect_pairs(table, MAX_PAIRS)
    room = min(MAX_OF_PAIR, MAX_ROWS // max(len(pairs), 1))
    return {
        "rows": len(table),
        "issues": int(table["is_issue"].sum()),
        "corrected": int((table["is_issue"] & _differ(table)).sum()),
        "expected_wrong": round(float(table["p_wrong"].sum()), 3),
        "num_pairs": num_pairs,
        "pairs": [{**pair, "items": [_item(row, pictures) for row in rows[:room]]} for pair, rows in pairs],
    }


def suspect_pairs(table: pd.DataFrame, most: int) -> tuple[list[tuple[Gallery, list[Mapping[str, Any]]]], int]:
    """The pairs (given → suggested) with most rows, each with its rows in the table's order; the number of all pairs.

    `share` is the pair's share of the rows with its given label.
    """
    given, suggested = table["given"].to_numpy(object), table["suggested"].to_numpy(object)
    open_rows = np.flatnonzero(_differ(table) & ~is_verified(table))
    if len(open_rows) == 0:
        return [], 0  # pandas before 3 cannot factorise an empty list of pairs
    names = pd.MultiIndex.from_arrays([given[open_rows], suggested[open_rows]])
    codes, labels = names.factorize()
    found: list[tuple[Any, Any]] = list(labels)
    counts = np.bincount(codes, minlength=len(found))
    order = sorted(range(len(found)), key=lambda pair: (-counts[pair], str(found[pair][0]), str(found[pair][1])))
    num_given = table["given"].astype(object).value_counts()
    issue = table["is_issue"].to_numpy(bool)
    pairs = []
    for pair in order[:most]:
        rows = open_rows[codes == pair]
        name, other = found[pair]
        about = {"given": str(name), "suggested": str(other), "rows": len(rows), "corrected": int(issue[rows].sum())}
        about["share"] = round(len(rows) / int(num_given[name]), 6)
        pairs.append((about, table.iloc[rows[:MAX_OF_PAIR]].to_dict("records")))
    return pairs, len(found)


def is_verified(table: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows of a table of labels have a verdict."""
    if "verified" not in table:
        return np.zeros(len(table), bool)
    verdicts = table["verified"].astype(object)
    return np.asarray(verdicts.notna() & (verdicts != ""), bool)


def thumbnail(image: NDArray[Any]) -> str:
    """An image, (H, W) or (H, W, C), as a data URI no larger than `SIDE` pixels; see `_pixels` for what it may hold.

    >>> thumbnail(np.zeros((8, 8, 1), np.uint8))[:22]
    'data:image/png;base64,'
    """
    small = Image.fromarray(_pixels(image))
    if max(small.size) > SIDE:
        small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    out, kind = io.BytesIO(), "png" if max(small.size) <= TINY else "jpeg"
    if kind == "png":
        small.save(out, "PNG", optimize=True)
    else:
        small.save(out, "JPEG", quality=80, subsampling=0, optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}"


def _pixels(image: NDArray[Any]) -> NDArray[np.uint8]:
    """A grey (H, W) or colour (H, W, 3) image as uint8, from whole numbers up to 255 or fractions up to 1."""
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3, 4)):
        raise ValueError(f"an image has the shape {image.shape}; give (height, width) or (height, width, channels)")
    most = 1 if image.dtype.kind in "fb" else 255
    if image.dtype.kind not in "fbiu" or not (image.size and 0 <= image.min() <= image.max() <= most):
        raise ValueError(
            "an image is empty, not of numbers, or out of range; give whole numbers from 0 to 255, or fractions from 0 "
            "to 1"
        )
    flat = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image[..., :3] if image.ndim == 3 else image
    return np.ascontiguousarray(flat if flat.dtype == np.uint8 else np.round(flat * (255 / most)), np.uint8)


class _Limited:
    """Gives pictures until they exceed `MAX_BYTES`. An image that can no longer be read must not end a run."""

    def __init__(self, picture: Picture) -> None:
        self.picture, self.left = picture, MAX_BYTES

    def __call__(self, row: int) -> str | None:
        if self.left <= 0:
            return None
        try:
            found = self.picture(row)
        except (ValueError, OSError):
            return None
        self.left -= len(found or "")
        return found


def _item(row: Mapping[str, Any], picture: Picture) -> Gallery:
    numbers = {key: round(float(row[key]), 4) for key in ("p_wrong", "p_suggested")}
    place = int(row["row"])
    return {"row": place, "id": str(row["id"]), **numbers, "is_issue": bool(row["is_issue"]), "image": picture(place)}


def _differ(table: pd.DataFrame) -> NDArray[np.bool_]:
    return np.asarray(table["given"].to_numpy(object) != table["suggested"].to_numpy(object), bool)


def pictures_of(gallery: Mapping[str, Any]) -> dict[str, str | None]:
    """The thumbnails of a gallery by id, for making it again from a changed table."""
    pairs = shown_gallery(gallery).get("pairs", ())
    return {item["id"]: item["image"] for pair in pairs for item in pair["items"]}
