"""Damaged and malicious files: each is read, or refused in one sentence, and nothing in it is run.

Pickles and torch files, the two official CIFAR formats, have their own in `data/test_pickles.py`.
"""

from __future__ import annotations

import io
import json
import pickle
import shlex
import shutil
import tarfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from data.fake_cifar import FakeCifar, write_release
from fasten.audit.stored import read_audit
from fasten.cli import main
from fasten.data.cifar import CIFAR100, LARGEST_MEMBER, read_cifar100
from fasten.data.decoding import Decoding, decode_images
from fasten.own import Own, read_rows
from fasten.records import epochs_so_far, read_record
from fasten.report import read_gallery, render
from fasten.runs.checkpoint import Checkpoints
from own_data import make_blobs

some = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """What a disk, a broken copy or an enemy does to a file, wherever in it."""
    where, length = draw(st.floats(0, 1)), draw(st.integers(1, 40))
    kind, new = draw(st.sampled_from(["cut", "change", "insert", "remove", "zero"])), draw(st.binary(max_size=40))

    def do(whole: bytes) -> bytes:
        at = int(where * len(whole))
        head, tail = whole[:at], whole[at:]
        if kind == "cut":
            return head
        if kind == "zero":
            return head + bytes(min(length, len(tail))) + tail[length:]
        return head + {"change": new + tail[len(new) :], "insert": new + tail, "remove": tail[length:]}[kind]

    return do


def in_a_sentence(read: Callable[[], Any]) -> None:
    """It is read, or refused as users are told: by an exception whose text is one line."""
    said = "it was read"
    try:
        read()
    except (ValueError, OSError) as error:
        said = str(error).strip()
    assert said
    assert "\n" not in said


def encoded(kind: str) -> bytes:
    x, given_labels, _ = make_blobs(30, 3)
    table, out = pd.DataFrame(x, columns=list("abcdef")), io.BytesIO()
    table["label"] = [f"kind {label}" for label in given_labels]
    table["verified_label"] = [text if row % 3 else "" for row, text in enumerate(table["label"])]
    if kind == "npz":
        np.savez_compressed(out, x=x, labels=given_labels)
    elif kind == "npz, stored":
        np.savez(out, x=x, labels=given_labels)
    elif kind == "csv":
        out.write(table.to_csv(index=False).encode())
    else:
        table.to_parquet(out)
    return out.getvalue()


WHOLE = {kind: encoded(kind) for kind in ("npz", "npz, stored", "csv", "parquet")}


@pytest.mark.parametrize("kind", WHOLE)
@given(hurt=damage())
@some
def test_damaged_tables_and_arrays(kind, hurt, tmp_path):
    path = tmp_path / f"data.{kind.partition(',')[0]}"
    path.write_bytes(hurt(WHOLE[kind]))
    in_a_sentence(lambda: read_rows(str(path), Own()))


def image_of(kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8)).save(out, kind)
    return out.getvalue()


IMAGES = {kind: image_of(kind) for kind in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")}


@pytest.mark.parametrize("kind", IMAGES)
@given(hurt=damage())
@some
def test_damaged_images(kind, hurt):
    """One that cannot be read is left out, and named."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = decode_images("pets", [IMAGES["PNG"], hurt(IMAGES[kind])], ["good", "bad"], Decoding(size=8))
    assert found.images[np.arange(len(found.kept))].shape == (len(found.kept), 8, 8, 3)
    assert 0 in found.kept
    assert len(found.notes) == 2 - len(found.kept)
    assert not any("\n" in note or "good" in note for note in found.notes)


@pytest.mark.parametrize(("width", "height"), [(9000, 9000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_an_image_bomb_is_refused(width, height):
    """A PNG of a few bytes whose header claims a size that would fill the memory."""
    header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
    checked = (13).to_bytes(4, "big") + header + zlib.crc32(header).to_bytes(4, "big")
    bomb = IMAGES["PNG"][:8] + checked + IMAGES["PNG"][33:]
    found = decode_images("pets", [IMAGES["PNG"], bomb], ["good", "bomb"], Decoding(size=8))
    assert found.kept.tolist() == [0]
    assert "bomb (it claims" in found.notes[0]
    with pytest.raises(ValueError, match=r"bomb .it claims"):
        decode_images("pets", [IMAGES["PNG"], bomb], ["good", "bomb"], Decoding(size=8, max_bad=0))


@given(hurt=damage())
@some
def test_a_damaged_checkpoint_is_refused_or_as_it_was(hurt, tmp_path):
    """What stands in it is what was written: a checksum says so."""
    tensors = {"a": torch.arange(12.0).view(3, 4), "b": torch.ones(5, dtype=torch.int32)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, tensors, {"at": 1})
    checkpoints.close()
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(hurt(path.read_bytes()))
    try:
        found, meta, _ = checkpoints.load()
    except ValueError:
        return
    assert meta == {"at": 1}
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


# A run's own folder.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run on a user's own table."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "data.csv").write_bytes(WHOLE["csv"])
    command = f"train {folder}/data.csv --device cpu --epochs 1 --no-references --json --out {folder}/run"
    assert main(shlex.split(command)) == 0
    return folder / "run"


@pytest.fixture
def copy(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "run"))


READERS = {
    "record.json": lambda folder: (read_record(folder), read_audit(folder)),
    "log.jsonl": epochs_so_far,
    "gallery.json": lambda folder: render(read_record(folder), read_gallery(folder)),
    "labels.csv": read_audit,
    "probabilities.npy": lambda folder: read_audit(folder).probabilities(),
}


@pytest.mark.parametrize("name", READERS)
@given(hurt=damage())
@some
def test_damaged_files_of_a_run(name, hurt, run, copy):
    (copy / name).write_bytes(hurt((run / name).read_bytes()))
    in_a_sentence(lambda: READERS[name](copy))


@given(hurt=damage())
@settings(some, max_examples=15)
def test_damaged_weights(hurt, run, copy, capsys):
    """Which a checksum in the record tells from whole ones."""
    (copy / "model.safetensors").write_bytes(hurt((run / "model.safetensors").read_bytes()))
    status = main(["predict", str(copy), str(run.parent / "data.csv"), "--out", str(copy / "p.csv"), "--json"])
    changed = (copy / "model.safetensors").read_bytes() != (run / "model.safetensors").read_bytes()
    assert status == (2 if changed else 0)
    assert capsys.readouterr().err.count("\n") == changed


anything = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text(max_size=5)
anything |= st.just([]) | st.just({}) | st.lists(st.integers(0, 2), max_size=2)


def places(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a record, down to the cells of its lists."""
    keys = values if isinstance(values, dict) else range(min(len(values), 2)) if isinstance(values, list) else ()
    return [place for key in keys for place in [(*path, key), *places(values[key], (*path, key))]]


@pytest.mark.parametrize("command", ["report DIR", "audit DIR", "resume DIR", "predict DIR DATA --out OUT"])
@given(data=st.data())
@settings(some, max_examples=60)
def test_a_record_with_anything_anywhere(command, data, run, copy, capsys):
    """A record is a text that anyone may edit."""
    record = json.loads((run / "record.json").read_text())
    inside = values = {"record": record}
    *path, last = data.draw(st.sampled_from([("record", *place) for place in places(record)]))
    for key in path:
        inside = inside[key]
    inside[last] = data.draw(anything)
    (copy / "record.json").write_text(json.dumps(values["record"]))
    words = {"DIR": str(copy), "DATA": str(run.parent / "data.csv"), "OUT": str(copy / "out.csv")}
    capsys.readouterr()
    status = main([*(words.get(word, word) for word in command.split()), "--json"])
    said = capsys.readouterr().err
    assert status in (0, 2)
    assert "Traceback" not in said
    assert said.count("\n") <= 1 if status else True


# Nothing that is loaded can run code.


class Evil:
    """What unpickling it does is what it says."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.sentinel, "code was run"))


def test_no_file_runs_code(run, copy, tmp_path):
    sentinel = tmp_path / "sentinel"
    pickled = pickle.dumps({"x": Evil(sentinel), "labels": [0, 1]})
    objects, array, saved = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(objects, x=np.array([Evil(sentinel)] * 4, object), labels=np.array(["a", "b"] * 2))
    np.save(array, np.array([Evil(sentinel)], object), allow_pickle=True)
    torch.save(Evil(sentinel), saved)
    for name in ("data.npz", "data.csv", "data.parquet"):
        for content in (pickled, objects.getvalue(), array.getvalue(), saved.getvalue()):
            (tmp_path / name).write_bytes(content)
            with pytest.raises((ValueError, OSError)):
                read_rows(str(tmp_path / name), Own())
    predict = ["predict", str(copy), str(run.parent / "data.csv"), "--out", str(copy / "p.csv")]
    for name, command in {
        "model.safetensors": predict,
        "record.json": predict,
        "probabilities.npy": ["audit", str(copy), "--min-precision", "0.9"],
        "labels.csv": ["audit", str(copy)],
        "gallery.json": ["report", str(copy)],
    }.items():
        for content in (pickled, array.getvalue(), saved.getvalue()):
            (copy / name).write_bytes(content)
            assert main(command) == 2, name
        shutil.copy(run / name, copy / name)
    checkpoints = Checkpoints(copy / "checkpoint")
    checkpoints.folder.mkdir()
    for content in (pickled, saved.getvalue()):
        (checkpoints.folder / "000000001.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match="start the run again"):
            checkpoints.load()
    assert not sentinel.exists()
    pickle.loads(pickled)  # the weapon is real
    assert sentinel.exists()


# Archives.


@pytest.fixture
def packed(tmp_path):
    """A tiny CIFAR-100 archive, and its release."""
    images = {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0, 1], b"coarse_labels": [0, 0]}
    meta = {b"fine_label_names": [b"ant", b"bee"], b"coarse_label_names": [b"insect"]}
    release = write_release(tmp_path / "files", CIFAR100, {"train": images, "test": images, "meta": meta})
    fake = FakeCifar(tmp_path / "files", release, np.zeros(0), np.zeros(0))
    fake.pack(tmp_path / "cifar-100-python.tar.gz")
    return tmp_path / "cifar-100-python.tar.gz", release


@given(hurt=damage())
@some
def test_damaged_archives(hurt, packed, tmp_path):
    path, release = packed
    (tmp_path / "hurt.tar.gz").write_bytes(hurt(path.read_bytes()))
    in_a_sentence(lambda: read_cifar100(tmp_path / "hurt.tar.gz", release=release))


def add(archive: tarfile.TarFile, name: str, data: bytes = b"", **what: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in what.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(data))


def test_an_archive_never_leaves_its_folder(packed, tmp_path):
    """Nothing in it is written anywhere: its members are read in memory, and links are not followed."""
    path, release = packed
    evil = tmp_path / "deep/er/evil.tar.gz"
    evil.parent.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    with tarfile.open(path) as whole, tarfile.open(evil, "w:gz") as archive:
        add(archive, "../../escaped", b"out")
        add(archive, str(tmp_path / "absolute"), b"out")
        add(archive, "cifar-100-python/link", type=tarfile.SYMTYPE, linkname=str(tmp_path / "secret"))
        add(archive, "cifar-100-python/device", type=tarfile.CHRTYPE)
        for member in whole:
            archive.addfile(member, whole.extractfile(member))
    before = sorted(tmp_path.rglob("*"))
    assert len(read_cifar100(evil, release=release).truth) == 4
    assert sorted(tmp_path.rglob("*")) == before
    with tarfile.open(evil, "w:gz") as archive:
        add(archive, "cifar-100-python/train", type=tarfile.SYMTYPE, linkname=str(tmp_path / "secret"))
    with pytest.raises(ValueError, match="holds no cifar-100-python/train"):
        read_cifar100(evil, release=release)


def test_an_archive_that_claims_a_huge_file_is_refused(packed, tmp_path):
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz") as archive:
        add(archive, "cifar-100-python/train", bytes(1000))
        archive.members[0].size = LARGEST_MEMBER + 1
        header = tarfile.TarInfo("cifar-100-python/train")
        header.size = LARGEST_MEMBER + 1
        archive.fileobj.write(header.tobuf())
    with pytest.raises(ValueError, match=r"cannot be read as the archive of CIFAR-100 .*claims"):
        read_cifar100(tmp_path / "bomb.tar.gz", release=packed[1])
