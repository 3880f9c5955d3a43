"""Folders of the library `datasets`; most of this needs it installed."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from fasten.data import hub
from fasten.data.decoding import Decoding
from fasten.data.hub import is_hub_folder, read_hub

needs_library = pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs datasets")


def png(value: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (4, 3), value).save(out, "PNG")
    return out.getvalue()


def images(*stored: dict[str, Any], **columns: Any) -> Any:
    import datasets

    features = {"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=["cat", "dog"])}
    features |= {name: datasets.Value("string") for name in columns}
    labels = [row % 2 for row in range(len(stored))]
    made = datasets.Dataset.from_dict(
        {"image": list(stored), "label": labels, **columns}, features=datasets.Features(features)
    )
    return made.cast_column("image", datasets.Image())


def test_other_folders_are_told_apart(tmp_path):
    assert not is_hub_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match="was not written by `datasets`"):
        read_hub(tmp_path)
    (tmp_path / "dataset_dict.json").write_text("{}")
    assert is_hub_folder(tmp_path)


def test_without_the_library_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "dataset_dict.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"needs the library `datasets`; install it \(pip install datasets\)"):
        read_hub(tmp_path)


@needs_library
@pytest.mark.parametrize("cache_bytes", [0, 10**6])
def test_images_of_a_split_data_set_are_read(tmp_path, cache_bytes):
    import datasets

    train = images(
        *({"bytes": png(value), "path": None} for value in range(4)), verified_label=["dog", None, None, None]
    )
    test = images(*({"bytes": png(value), "path": "x.png"} for value in (8, 9)), verified_label=[None, None])
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "pets")
    rows = read_hub(tmp_path / "pets", how=Decoding(cache_bytes=cache_bytes))
    assert rows.class_names == ("cat", "dog")
    assert rows.given == ("cat", "dog") * 3
    assert rows.verified == ("dog", *[None] * 5)
    assert rows.split == (*["train"] * 4, "test", "test")
    assert np.asarray(rows.x)[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 8, 9]
    assert rows.x.shape == (6, 3, 4, 1)


def test_a_class_label_below_zero_is_none(tmp_path, monkeypatch):
    """As the library writes that a label is not known; its own `int2str` refuses it."""

    class ClassLabel:
        def int2str(self, code):
            return {0: "cat", 1: "dog"}[code]

    class Dataset:
        features: ClassVar = {"label": ClassLabel(), "verified_label": ClassLabel()}

        def with_format(self, kind):
            return pa.table({"a": [1.0, 2.0, 3.0], "label": [0, 1, None], "verified_label": [-1, -1, 0]})

    library = SimpleNamespace(ClassLabel=ClassLabel, DatasetDict=dict, load_from_disk=lambda path: Dataset())
    monkeypatch.setitem(sys.modules, "datasets", library)
    (tmp_path / "dataset_dict.json").write_text("{}")
    rows = read_hub(tmp_path)
    assert (rows.given, rows.verified) == (("cat", "dog", None), (None, None, "cat"))


@needs_library
def test_features_are_read(tmp_path):
    import datasets

    made = datasets.Dataset.from_dict({"e": [[1.0, 2.0], [3.0, 4.0]], "a": [5, 6], "label": ["cat", "dog"]})
    made.save_to_disk(tmp_path / "pets")
    rows = read_hub(tmp_path / "pets")
    assert rows.x.tolist() == [[1, 2, 5], [3, 4, 6]]
    assert (rows.given, rows.split) == (("cat", "dog"), (None, None))


@needs_library
def test_an_image_outside_the_folder_is_refused(tmp_path):
    import datasets

    (tmp_path / "secret.png").write_bytes(png(1))
    stored = [{"bytes": png(0), "path": None}, {"bytes": None, "path": str(tmp_path / "secret.png")}]
    pair = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}  # an Image's file would be copied
    features = datasets.Features({"image": pair, "label": datasets.Value("string")})
    made = datasets.Dataset.from_dict({"image": stored, "label": ["cat", "dog"]}, features=features)
    made.save_to_disk(tmp_path / "pets")
    with pytest.raises(ValueError, match=r"secret.png' leads out of the folder"):
        read_hub(tmp_path / "pets")


@needs_library
def test_a_damaged_folder_is_refused_in_one_sentence(tmp_path):
    images({"bytes": png(0), "path": None}, {"bytes": png(1), "path": None}).save_to_disk(tmp_path / "pets")
    for path in Path(tmp_path / "pets").glob("*.arrow"):
        path.write_bytes(b"broken")
    with pytest.raises(ValueError, match="cannot be read by `datasets`") as caught:
        read_hub(tmp_path / "pets")
    assert "\n" not in str(caught.value)


def test_an_index_of_pandas_is_no_feature(tmp_path, monkeypatch):
    """`from_pandas` keeps the index of a frame that was filtered or sorted."""
    columns = {"a": [5.0, 6.0], "label": ["cat", "dog"], "__index_level_0__": [3, 9], "Unnamed: 0": [0, 1]}
    monkeypatch.setattr(hub, "_load", lambda folder: pa.table(columns))
    rows = read_hub(tmp_path)
    assert rows.feature_names == ("a",)
    assert rows.notes == (f"{tmp_path.name}: not used: the columns Unnamed: 0",)
