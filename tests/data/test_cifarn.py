from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from data.fake_cifar import FakeCifar
from fasten.data.cifarn import read_cifar10n, read_cifar100n

SETS10 = ["worse_label", "aggre_label", "random_label1", "random_label2", "random_label3"]


def human10(fake: FakeCifar) -> dict[str, np.ndarray]:
    clean = fake.labels[:10]
    return {"clean_label": clean, **{key: (clean + i + 1) % 10 for i, key in enumerate(SETS10)}}


def write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    if path.suffix == ".pt":
        torch.save(arrays, path)
    else:
        np.savez(path, **arrays)


@pytest.mark.parametrize("suffix", [".pt", ".npz"])
@pytest.mark.parametrize(
    ("label_set", "shift"), [("worst", 1), ("aggregate", 2), ("random1", 3), ("random2", 4), ("random3", 5)]
)
def test_each_label_set_of_cifar10n_is_read(fake_cifar10: FakeCifar, suffix: str, label_set: str, shift: int) -> None:
    write(fake_cifar10.root / f"CIFAR-10_human{suffix}", human10(fake_cifar10))
    source = read_cifar10n(fake_cifar10.root, label_set, release=fake_cifar10.release)
    assert source.name == "cifar10n"
    assert source.given is not None
    assert source.given.tolist() == [*((fake_cifar10.labels[:10] + shift) % 10), -1, -1]
    np.testing.assert_array_equal(source.truth, fake_cifar10.labels)


@pytest.mark.parametrize("label_set", ["noisy", "worst"])
def test_the_one_label_set_of_cifar100n_goes_by_two_names(fake_cifar100: FakeCifar, label_set: str) -> None:
    clean = fake_cifar100.labels[:8]
    coarse = {"clean_coarse_label": clean % 2, "noisy_coarse_label": clean % 2}
    write(fake_cifar100.root / "CIFAR-100_human.pt", {"clean_label": clean, "noisy_label": 3 - clean, **coarse})
    source = read_cifar100n(fake_cifar100.root, label_set, release=fake_cifar100.release)
    assert source.name == "cifar100n"
    assert source.given is not None
    assert source.given.tolist() == [*(3 - clean), -1, -1, -1, -1]


def test_tensors_are_read_as_well_as_arrays(fake_cifar10: FakeCifar) -> None:
    tensors = {key: torch.from_numpy(labels) for key, labels in human10(fake_cifar10).items()}
    torch.save(tensors, fake_cifar10.root / "CIFAR-10_human.pt")
    assert read_cifar10n(fake_cifar10.root, release=fake_cifar10.release).given is not None


def test_labels_beside_the_folder_of_the_images_are_found(fake_cifar10: FakeCifar) -> None:
    write(fake_cifar10.root / "CIFAR-10_human.pt", human10(fake_cifar10))
    inside = fake_cifar10.root / fake_cifar10.release.folder
    assert read_cifar10n(inside, release=fake_cifar10.release).given is not None


def test_labels_in_another_order_are_refused_with_the_first_row_and_the_count(fake_cifar10: FakeCifar) -> None:
    arrays = human10(fake_cifar10)
    arrays["clean_label"] = arrays["clean_label"].copy()
    arrays["clean_label"][[4, 7]] = arrays["clean_label"][[7, 4]]
    write(fake_cifar10.root / "CIFAR-10_human.pt", arrays)
    expected = r"differs from the images' labels in 2 of 10 rows, first in row 4 \(7, the image is a 4\).*another order"
    with pytest.raises(ValueError, match=expected):
        read_cifar10n(fake_cifar10.root, release=fake_cifar10.release)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clean_label": np.arange(9)}, "9 clean and 10 given labels for 10 training images"),
        ({"worse_label": np.arange(11)}, "10 clean and 11 given labels for 10 training images"),
        ({"worse_label": np.arange(10.0)}, "no list of whole numbers called worse_label"),
        ({"worse_label": np.zeros((10, 1), int)}, "no list of whole numbers called worse_label"),
        ({"worse_label": np.full(10, 10)}, "given label 10 in row 0 is outside the 10 classes"),
    ],
)
@pytest.mark.parametrize("suffix", [".pt", ".npz"])
def test_labels_that_do_not_fit_are_refused(
    fake_cifar10: FakeCifar, changes: dict[str, np.ndarray], message: str, suffix: str
) -> None:
    write(fake_cifar10.root / f"CIFAR-10_human{suffix}", human10(fake_cifar10) | changes)
    with pytest.raises(ValueError, match=message):
        read_cifar10n(fake_cifar10.root, release=fake_cifar10.release)


@pytest.mark.parametrize("suffix", [".pt", ".npz"])
def test_a_file_without_the_label_set_is_refused(fake_cifar10: FakeCifar, suffix: str) -> None:
    write(fake_cifar10.root / f"CIFAR-10_human{suffix}", {"clean_label": fake_cifar10.labels[:10]})
    with pytest.raises(ValueError, match="no list of whole numbers called aggre_label"):
        read_cifar10n(fake_cifar10.root, "aggregate", release=fake_cifar10.release)


@pytest.mark.parametrize("suffix", [".pt", ".npz"])
def test_a_damaged_file_is_refused(fake_cifar10: FakeCifar, suffix: str) -> None:
    path = fake_cifar10.root / f"CIFAR-10_human{suffix}"
    write(path, human10(fake_cifar10))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"CIFAR-10_human\.\w+: the file cannot be read"):
        read_cifar10n(fake_cifar10.root, release=fake_cifar10.release)


def test_missing_labels_are_named_with_the_way_to_get_them(fake_cifar10: FakeCifar) -> None:
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10_human.pt is not in .* fetch it from https://.*--root"):
        read_cifar10n(fake_cifar10.root, release=fake_cifar10.release)


@pytest.mark.parametrize(
    ("read", "label_set", "message"),
    [
        (read_cifar10n, "worse", "unknown label set 'worse' of CIFAR-10N; did you mean 'worst'"),
        (read_cifar10n, "noisy", "unknown label set 'noisy' of CIFAR-10N; known: worst, aggregate"),
        (read_cifar100n, "random1", "unknown label set 'random1' of CIFAR-100N; known: noisy, worst"),
    ],
)
def test_an_unknown_label_set_is_answered_with_the_nearest(read, label_set: str, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        read(Path("nowhere"), label_set)
