"""Thumbnails of a finished run's rows, read again from its data if these are still there."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fasten.audit.gallery import Picture, thumbnail
from fasten.audit.repair import Originals, find_originals
from fasten.audit.stored import Audit
from fasten.data.decoding import Images
from fasten.data.images import ImageFiles
from fasten.report.verdict import AUDIT


def stored_pictures(found: Audit, data: str | None = None) -> Picture:
    """Return a function that gives the thumbnail of a row of labels.csv; it reads data when first called.

    If the user names `data`, they are read at once, and refused if they are not the run's. Otherwise, data that are
    gone or were changed just give no pictures.
    """
    if len(found.record["data"].get("shape", ())) != 3 or found.record["run"].get("method") == AUDIT:
        return lambda row: None

    @cache  # a failure, too, happens only once
    def images() -> tuple[dict[str, int], NDArray[np.uint8] | ImageFiles]:
        try:
            originals = _find(found, data)
            return {name: place for place, name in enumerate(originals.columns.ids)}, _images(found, originals)
        except (ValueError, OSError):
            if data is not None:
                raise
            return {}, np.empty(0, np.uint8)

    def picture(row: int) -> str | None:
        places, x = images()
        place = places.get(found.known.ids[row])
        return None if place is None else thumbnail(x[np.array([place])][0])

    if data is not None:
        images()
    return picture


def _find(found: Audit, data: str | None) -> Originals:
    run = found.record["run"]
    if run.get("noise") in (None, "none"):
        return find_originals(found, data)
    # Labels with injected noise are not those of the data, so rows are not checked against them: names have to do.
    record, no_rows = {**found.record, "run": {**run, "noise": None}}, np.empty(0, np.int64)
    return find_originals(replace(found, record=record, known=found.known.take(no_rows)), data)


def _images(found: Audit, data: Originals) -> NDArray[np.uint8] | ImageFiles:
    """The images of all rows, in the size that the network saw; files are not opened yet."""
    if data.files is not None:
        channels, height, width = found.record["data"]["shape"]
        return Images(data.files, data.columns.ids, (height, width, channels))
    if data.rows is None or data.rows.x.ndim != 4:
        raise ValueError(f"{data.path} holds no images, but {found.folder} had some; say with --data where they are")
    return data.rows.x
