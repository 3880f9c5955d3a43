"""Read the gallery of a run's folder, the most suspect rows by pair of labels, and check it before it is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fasten.report.values import Record, finite, number

IMAGE = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]+=*")
LONGEST = 100_000  # characters of one picture


def read_gallery(folder: Path) -> Record:
    """The content of a run's gallery.json; empty if there is none."""
    path = folder / "gallery.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it, or repeat the run in another folder") from None
    return found if isinstance(found, dict) else {}


def shown_gallery(gallery: Record) -> Record:
    """What can be shown of a gallery: text, finite numbers, and images that are valid data URIs of PNG or JPEG."""
    pairs = [_pair(pair) for pair in _maps(gallery.get("pairs"))]
    pairs = [pair for pair in pairs if pair["items"]]
    numbers = {
        key: number(gallery, key) or 0.0 for key in ("rows", "issues", "corrected", "expected_wrong", "num_pairs")
    }
    has_images = any(item["image"] for pair in pairs for item in pair["items"])
    return {**numbers, "pairs": pairs, "has_images": has_images} if numbers["rows"] else {}


def _pair(pair: Record) -> dict[str, Any]:
    names = {key: str(pair.get(key)) for key in ("given", "suggested")}
    numbers = {key: finite(pair.get(key)) for key in ("rows", "corrected", "share")}
    return {**names, **numbers, "items": [_item(item) for item in _maps(pair.get("items"))]}


def _item(item: Record) -> dict[str, Any]:
    image = item.get("image")
    is_image = isinstance(image, str) and len(image) <= LONGEST and IMAGE.fullmatch(image)
    numbers = {key: finite(item.get(key)) for key in ("p_wrong", "p_suggested")}
    is_issue = item.get("is_issue") is True
    return {"id": str(item.get("id")), **numbers, "is_issue": is_issue, "image": image if is_image else None}


def _maps(value: Any) -> list[Record]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return [item for item in value if isinstance(item, Mapping)] if is_list else []
