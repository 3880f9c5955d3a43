from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.fake_cifar import FakeCifar, py2_pickle, write_release
from fasten.data.cifar import CIFAR10, CIFAR100, read_cifar10, read_cifar100, superclass_flips


def test_cifar10_is_read_as_images_with_the_training_rows_first(fake_cifar10: FakeCifar) -> None:
    source = read_cifar10(fake_cifar10.root, release=fake_cifar10.release)
    np.testing.assert_array_equal(source.x, fake_cifar10.pixels.transpose(0, 2, 3, 1))
    assert source.x.flags.c_contiguous
    np.testing.assert_array_equal(source.truth, fake_cifar10.labels)
    assert source.test.tolist() == [False] * 10 + [True] * 2
    assert source.class_names[3] == "class 3"
    assert source.flips == {9: (1,), 2: (0,), 4: (7,), 3: (5,), 5: (3,)}
    assert source.given is None


def test_cifar100_is_read_by_its_fine_labels_with_flips_inside_the_superclass(fake_cifar100: FakeCifar) -> None:
    source = read_cifar100(fake_cifar100.root, release=fake_cifar100.release)
    np.testing.assert_array_equal(source.x, fake_cifar100.pixels.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(source.truth, fake_cifar100.labels)
    assert source.test.tolist() == [False] * 8 + [True] * 4
    assert source.class_names == ("ant", "bee", "cow", "dog")
    assert source.flips == {0: (2,), 1: (3,), 2: (0,), 3: (1,)}


def test_superclasses_of_five_give_each_class_its_four_siblings() -> None:
    fine = np.arange(1000) % 100
    flips = superclass_flips(fine, fine % 20)
    assert len(flips) == 100
    for c, others in flips.items():
        assert len(others) == 4
        assert c not in others
        assert {other % 20 for other in others} == {c % 20}


def test_a_folder_the_archive_and_what_holds_them_give_the_same(fake_cifar10: FakeCifar, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    release = fake_cifar10.pack(packed / "cifar-10-python.tar.gz")
    places = [fake_cifar10.root / release.folder, packed, packed / "cifar-10-python.tar.gz"]
    for place in places:
        source = read_cifar10(place, release=release)
        np.testing.assert_array_equal(source.x, fake_cifar10.pixels.transpose(0, 2, 3, 1))
    assert [file.name for file in packed.iterdir()] == ["cifar-10-python.tar.gz"]


def test_a_file_with_another_md5_is_refused(fake_cifar10: FakeCifar) -> None:
    path = fake_cifar10.root / fake_cifar10.release.folder / "data_batch_3"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"data_batch_3 in .* has md5 .*, the official file .*--download"):
        read_cifar10(fake_cifar10.root, release=fake_cifar10.release)


def test_only_the_official_files_pass_by_default(fake_cifar10: FakeCifar) -> None:
    with pytest.raises(ValueError, match="the official file c99cafc152244af753f735de768cd75f"):
        read_cifar10(fake_cifar10.root)


def test_a_missing_file_is_named_with_the_ways_to_get_it(fake_cifar10: FakeCifar) -> None:
    (fake_cifar10.root / fake_cifar10.release.folder / "test_batch").unlink()
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-py lacks test_batch; .*--root.*--download"):
        read_cifar10(fake_cifar10.root, release=fake_cifar10.release)


def test_missing_data_are_named_with_the_ways_to_get_them(tmp_path: Path) -> None:
    expected = "CIFAR-100 is not in .*nowhere: neither .*cifar-100-python nor cifar-100-python.tar.gz; .*--root"
    with pytest.raises(FileNotFoundError, match=expected):
        read_cifar100(tmp_path / "nowhere")


def test_an_image_folder_called_train_is_not_taken_for_cifar100(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match="CIFAR-100 is not in"):
        read_cifar100(tmp_path)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"no archive", lambda data: b""])
def test_a_damaged_archive_is_refused(fake_cifar100: FakeCifar, tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "cifar-100-python.tar.gz"
    fake_cifar100.pack(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="cannot be read as the archive of CIFAR-100"):
        read_cifar100(path, release=fake_cifar100.release)


def test_the_archive_of_another_data_set_is_refused(fake_cifar100: FakeCifar, tmp_path: Path) -> None:
    fake_cifar100.pack(tmp_path / "a.tar.gz")
    with pytest.raises(ValueError, match="holds no cifar-10-batches-py/data_batch_1"):
        read_cifar10(tmp_path / "a.tar.gz")


PIXELS = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([1, 2], "train in .* holds a list"),
        ({b"fine_labels": [0, 1], b"coarse_labels": [0, 0]}, "train holds no data"),
        ({b"data": PIXELS, b"fine_labels": [0, 1]}, "train holds no coarse_labels"),
        ({b"data": PIXELS[:, :5], b"fine_labels": [0, 1], b"coarse_labels": [0, 0]}, "images in another form"),
        ({b"data": PIXELS, b"fine_labels": [0, b"a"], b"coarse_labels": [0, 0]}, "not a list of whole numbers"),
        ({b"data": PIXELS, b"fine_labels": [0, 7], b"coarse_labels": [0, 0]}, "truth label 7 in row 1 is outside"),
    ],
)
def test_files_of_another_form_are_refused(tmp_path: Path, train: object, message: str) -> None:
    test = {b"data": PIXELS, b"fine_labels": [0, 1], b"coarse_labels": [0, 0]}
    files = {"train": train, "test": test, "meta": {b"fine_label_names": [b"a", b"b"]}}
    with pytest.raises(ValueError, match=message):
        read_cifar100(tmp_path, release=write_release(tmp_path, CIFAR100, files))


def test_a_file_that_asks_for_code_is_refused_even_with_the_right_md5(tmp_path: Path) -> None:
    files = {name: {b"data": PIXELS, b"labels": [0, 1]} for name in CIFAR10.files}
    release = write_release(tmp_path, CIFAR10, files)
    path = tmp_path / release.folder / "data_batch_1"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    release = replace(release, files=dict(release.files) | {"data_batch_1": hashlib.md5(path.read_bytes()).hexdigest()})
    with pytest.raises(ValueError, match=r"the file asks for (os|posix|nt)\.system"):
        read_cifar10(tmp_path, release=release)


def test_the_fakes_are_pickles_as_python_2_wrote_them() -> None:
    assert py2_pickle({b"a": 1}) == b"\x80\x02}(T\x01\x00\x00\x00aJ\x01\x00\x00\x00u."


@pytest.mark.skipif("FASTEN_CIFAR10" not in os.environ, reason="FASTEN_CIFAR10 does not say where CIFAR-10 lies")
def test_the_real_cifar10_has_50000_training_and_10000_test_images() -> None:
    source = read_cifar10(Path(os.environ["FASTEN_CIFAR10"]))
    assert source.x.shape == (60_000, 32, 32, 3)
    assert source.test.sum() == 10_000
    assert not source.test[:50_000].any()
    assert np.bincount(source.truth[:50_000]).tolist() == [5000] * 10
    assert source.truth[:5].tolist() == [6, 9, 9, 4, 1]
    assert source.class_names[6] == "frog"
    assert source.x[0, 0, 0].tolist() == [59, 62, 63]
