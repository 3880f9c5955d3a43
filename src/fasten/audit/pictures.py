"""Thumbnails of a finished run's rows, read again from its data where these still are."""

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
    """What shows a row of labels.csv; it reads nothing until it is asked, unless `data` says where the data lie.

    Data that the user names are refused at once if they are not the run's; of others there are then no pictures.
    """
    if len(found.record["data"].get("shape", ())) != 3 or found.record["run"].get("method") == AUDIT:
        return lambda row: None

    @cache  # a failure, too, is found once
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
    # Labels with injected noise are not those of the data: no row is held against these, and names alone must do.
    record, no_rows = {**found.record, "run": {**run, "noise": None}}, np.empty(0, np.int64)
    return find_originals(replace(found, record=record, known=found.known.take(no_rows)), data)


def _images(found: Audit, data: Originals) -> NDArray[np.uint8] | ImageFiles:
    """Of all rows, as the network saw them; files are not opened yet."""
    if data.files is not None:
        channels, height, width = found.record["data"]["shape"]
        return Images(data.files, data.columns.ids, (height, width, channels))
    if data.rows is None or data.rows.x.ndim != 4:
        raise ValueError(f"{data.path} holds no images, and {found.folder} had some; say with --data where they lie")
    return data.rows.x
