from __future__ import annotations

import csv
import io
import json
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from builders import CPU32, make_tiny_task
from data.fake_clothing1m import NAMES, FakeClothing, image_bytes, make_tree, write_lines
from fasten.cli import main
from fasten.contract import Draw
from fasten.data import clothing1m
from fasten.data.clothing1m import read_clothing1m
from fasten.data.images import ImageFiles
from fasten.data.source import Source
from fasten.data.splits import Split
from fasten.datasets import DATASETS, Place, load_task, make_task
from fasten.evaluate import Watch
from fasten.nets import build_backbone
from fasten.records import Run
from fasten.runs.building import build_method, make_loader, plan_of
from fasten.stream import StreamLoader

PARTS = ("noisy_train_key_list.txt", "clean_train_key_list.txt", "clean_val_key_list.txt", "clean_test_key_list.txt")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeClothing:
    """With images of 24 pixels, of which the network sees 20."""
    monkeypatch.setattr(clothing1m, "SIDE", 24)
    monkeypatch.setitem(DATASETS, "clothing1m", replace(DATASETS["clothing1m"], crop=20))
    return make_tree(tmp_path / "data")


def test_rows_are_the_official_lists_in_their_order(tree):
    source = read_clothing1m(tree.root)
    keys = [tree.keys[name] for name in PARTS]
    assert list(source.x.keys) == [key for part in keys for key in part]
    assert [len(rows) for rows in vars(source.split).values()] == [28, 28, 14, 14]
    for part, rows in zip(keys, vars(source.split).values(), strict=True):
        assert [source.x.keys[row] for row in rows] == part
    assert source.class_names == NAMES
    assert source.test.tolist() == [False] * 70 + [True] * 14


def test_labels_are_the_official_ones_and_the_truth_of_noisy_rows_is_not_known(tree):
    source = read_clothing1m(tree.root)
    noisy, clean, valid, test = vars(source.split).values()
    assert source.given[noisy].tolist() == [tree.noisy[key] for key in tree.keys[PARTS[0]]]
    assert (source.truth[noisy] == -1).all()
    assert source.given[clean].tolist() == [tree.noisy.get(key, -1) for key in tree.keys[PARTS[1]]]
    assert (source.given[np.concatenate([valid, test])] == -1).all()
    for rows, name in zip((clean, valid, test), PARTS[1:], strict=True):
        assert source.truth[rows].tolist() == [tree.clean[key] for key in tree.keys[name]]


def test_a_noisy_row_that_people_labelled_too_has_its_truth(tree):
    tree.clean[tree.keys[PARTS[0]][3]] = 9
    tree.write()
    task = load_task("clothing1m", place=Place(tree.root))
    assert task.truth.tolist() == [-1] * 3 + [9] + [-1] * 24
    assert task.noise_rate == 1.0  # of the one row that is known


@pytest.mark.parametrize("form", ["flat", "annotations", "inside", "windows"])
def test_the_usual_places_are_found(tree, form):
    expected, root = read_clothing1m(tree.root), tree.root
    pixels = expected.x[np.array([0, 83])].tolist()
    if form in ("annotations", "inside"):
        for path in root.glob("*.txt"):
            path.unlink()
        tree.write(root / "annotations")
    if form == "inside":
        root = tree.root.rename(tree.root.parent / "clothing1M").parent
    if form == "windows":
        tree.write(end="\r\n\r\n")
    found = read_clothing1m(root)
    assert found.x.keys == expected.x.keys
    assert found.given.tolist() == expected.given.tolist()
    assert found.x[np.array([0, 83])].tolist() == pixels


@pytest.mark.parametrize(
    ("name", "lines", "words"),
    [
        (
            "noisy_label_kv.txt",
            ["images/a.jpg 3", "images/b.jpg 14"],
            "line 2 is 'images/b.jpg 14'; expected .* 0 to 13",
        ),
        ("clean_label_kv.txt", ["images/a.jpg"], "line 1 is 'images/a.jpg'; expected an image and its class"),
        ("clean_label_kv.txt", ["images/a.jpg -1"], "line 1"),
        ("noisy_label_kv.txt", ["images/a.jpg 3"], "has no label for images/0/0/1000,0.jpg"),
        ("clean_label_kv.txt", ["images/a.jpg 3"], "has no label for images/"),
        ("category_names_eng.txt", NAMES[:13], "names 13 classes, one per line; Clothing1M has 14"),
        ("clean_val_key_list.txt", [""], "clean_val_key_list.txt names no image"),
    ],
)
def test_damaged_lists_and_labels_are_refused_with_their_place(tree, name, lines, words):
    write_lines(tree.root / name, lines)
    with pytest.raises(ValueError, match=words):
        read_clothing1m(tree.root)


def test_a_list_that_is_no_text_is_refused(tree):
    (tree.root / PARTS[0]).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"noisy_train_key_list.txt is not a text file"):
        read_clothing1m(tree.root)


def test_an_image_of_two_lists_is_refused(tree):
    tree.keys[PARTS[0]].append(tree.keys[PARTS[3]][2])
    tree.noisy[tree.keys[PARTS[3]][2]] = 0
    tree.write()
    words = f"{tree.keys[PARTS[3]][2]} is in noisy_train_key_list.txt and clean_test_key_list.txt, and 1 image is in"
    with pytest.raises(ValueError, match=words):
        read_clothing1m(tree.root)


def test_missing_files_are_named(tree, tmp_path):
    (tree.root / "clean_label_kv.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks clean_label_kv.txt; get all files"):
        read_clothing1m(tree.root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"Clothing1M is not in .*empty.*--root"):
        read_clothing1m(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="cannot be downloaded: ask its authors"):
        read_clothing1m(tmp_path / "empty", download=True)


def test_a_release_without_its_images_is_refused_at_once(tree):
    key = tree.keys[PARTS[2]][0]
    (tree.root / key).unlink()
    with pytest.raises(FileNotFoundError, match=f"the image {key} is not in {tree.root}"):
        read_clothing1m(tree.root)


def png(size: tuple[int, int]) -> bytes:
    """A few bytes that claim to be a large image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def one_image(folder: Path, data: bytes, side: int = 20) -> np.ndarray:
    (folder / "one.jpg").write_bytes(data)
    (found,) = ImageFiles(folder, ["one.jpg"], side)[np.array([0])]
    return found


@pytest.mark.parametrize("size", [(60, 40), (40, 60), (40, 40), (80, 40), (10, 14)])
def test_an_image_is_scaled_by_its_shorter_side_and_cut_in_the_middle(tmp_path, size):
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    scaled = np.asarray(Image.fromarray(pixels).resize([n * 20 // min(size) for n in size], Image.Resampling.BILINEAR))
    top, left = ((n - 20) // 2 for n in scaled.shape[:2])
    np.testing.assert_array_equal(one_image(tmp_path, file.getvalue()), scaled[top : top + 20, left : left + 20])


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "P", "RGBA", "1"])
def test_any_colours_become_three_channels(tmp_path, mode):
    expected = Image.open(io.BytesIO(image_bytes(1, (20, 20), mode))).convert("RGBA").convert("RGB")
    found = one_image(tmp_path, image_bytes(1, (20, 20), mode))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, np.asarray(expected))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"not an image", "UnidentifiedImageError"),
        (b"", "UnidentifiedImageError"),
        (image_bytes(0, (90, 90), "RGB")[:700], "OSError"),
        (png((9000, 9000)), "9000×9000 pixels, more than 64,000,000"),
        (png((10_000, 10_000)), "DecompressionBombWarning"),
        (png((50_000, 50_000)), "DecompressionBombError"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "UnidentifiedImageError"),
    ],
)
def test_a_damaged_or_malicious_image_is_one_sentence(tmp_path, data, words):
    with pytest.raises(ValueError, match=rf"the image one.jpg in {tmp_path} cannot be read \(.*{words}"):
        one_image(tmp_path, data)


def test_an_image_that_is_gone_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"the image images/7.jpg is not in {tmp_path}; unpack all"):
        ImageFiles(tmp_path, ["images/7.jpg"], 8)[np.array([0])]


def test_it_looks_like_an_array_and_threads_agree(tree):
    x = read_clothing1m(tree.root).x
    assert (x.shape, x.ndim, x.dtype, len(x), x.nbytes) == ((84, 24, 24, 3), 4, np.uint8, 84, 84 * 24 * 24 * 3)
    rows = np.array([7, 0, 83, 7])
    whole = x[np.arange(84)]
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: x[rows], range(8)):
            np.testing.assert_array_equal(found, whole[rows])


def test_t_is_counted_from_the_clean_rows_that_have_a_given_label(tree):
    task = load_task("clothing1m", place=Place(tree.root))
    counts = np.zeros((14, 14))
    for key in tree.keys[PARTS[1]]:
        if key in tree.noisy:
            counts[tree.clean[key], tree.noisy[key]] += 1
    assert (counts.sum(1) == 1).all()
    assert (np.diag(counts) == 0).sum() == 7
    np.testing.assert_array_equal(task.transition, counts)
    assert task.truth is None
    assert task.noise_rate is None


def test_t_is_not_known_where_a_class_has_no_row_with_both_labels(tree):
    key = next(key for key in tree.keys[PARTS[1]] if key in tree.noisy)
    del tree.noisy[key]
    tree.write()
    task = load_task("clothing1m", place=Place(tree.root))
    assert task.transition is None
    with pytest.raises(ValueError, match="which is not known for clothing1m"):
        build_method(Run("clothing1m", method="fasten-oracle"), task)


def test_the_split_does_not_depend_on_the_seed(tree):
    a, b = (load_task("clothing1m", seed=seed, place=Place(tree.root)) for seed in (0, 1))
    assert all(np.array_equal(getattr(a.split, n), getattr(b.split, n)) for n in ("noisy", "clean", "valid", "test"))
    assert a.given.tolist() == b.given.tolist()


def test_training_sees_crops_and_evaluation_the_middle(tree):
    task = load_task("clothing1m", place=Place(tree.root))
    loader = make_loader(task, CPU32, seed=0)
    assert isinstance(loader, StreamLoader)
    assert task.shape == (3, 20, 20)
    whole = task.x[task.split.valid][:, 2:22, 2:22] / 255
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    found = torch.cat(list(loader.chunks("valid", 5))).numpy()
    np.testing.assert_allclose(found.transpose(0, 2, 3, 1), (whole - mean) / std, atol=1e-5)


def test_the_recipe_is_the_papers(tree):
    task = load_task("clothing1m", place=Place(tree.root))
    recipe = DATASETS["clothing1m"].recipe
    assert (recipe.net, recipe.epochs) == ("imagenet-resnet50", 2)
    small = replace(recipe, net="imagenet-resnet18")
    (stage,) = plan_of(build_method(Run("clothing1m", recipe=small), task), small)
    assert stage.draws == {"noisy": Draw("noisy", 42), "clean": Draw("clean", 3 * 14, "balanced")}
    (optim,) = stage.optim.values()
    assert [optim.rate_at(epoch) for epoch in (1, 2)] == [0.01, 0.001]
    assert recipe.scaled(1).sgd().rate_at(1) == 0.01


def partly_known() -> Source:
    """Six noisy rows of two classes, of which three are known."""
    split = Split(*(np.array(rows) for rows in ([0, 1, 2, 3, 4, 5], [6, 7], [8], [9])))
    truth, given = np.array([0, -1, 1, 1, -1, -1, 0, 1, 0, 1]), np.array([0, 1, 0, 1, 0, 1, -1, 1, -1, -1])
    x = np.zeros((10, 4, 4, 3), np.uint8)
    return Source("half", x, truth, np.arange(10) == 9, ("a", "b"), given=given, split=split)


def test_rows_of_unknown_truth_are_left_out_of_every_number():
    task = make_task(replace(DATASETS["clothing1m"], crop=None), partly_known(), "none", 0)
    assert task.noise_rate == pytest.approx(1 / 3)
    np.testing.assert_array_equal(task.transition, [[1, 0], [0.5, 0.5]])
    method = torch.nn.Module()
    method.labels = torch.tensor([0, 0, 1, 1, 0, 1])
    method.forward = lambda x: x.new_ones(len(x), 2)
    row = Watch(task, make_loader(task, CPU32, 0))(method, {"transition": torch.eye(2).expand(3, 2, 2)})
    assert row["label_accuracy"] == 1.0
    assert row["t_diagonal_true"] == 1.0
    assert row["corrected_fraction"] == pytest.approx(2 / 6)
    assert row["chi2"] == [0.0, 0.0, 0.0]


def test_without_any_truth_corrected_labels_are_compared_with_nothing():
    """The T that was counted elsewhere is that of the labels as given."""
    task = replace(make_tiny_task(), truth=None)
    method = torch.nn.Module()
    method.forward = lambda x: x.new_ones(len(x), 3)
    history = {"transition": torch.eye(3).expand(2, 3, 3)}
    watch = Watch(task, make_loader(task, CPU32, 0))
    assert watch(method, history)["chi2"] is not None
    method.labels = torch.from_numpy((task.given + 1) % 3)
    assert {watch(method, history)[key] for key in ("chi2", "label_accuracy", "t_diagonal_true")} == {None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"truth": np.array([0, -1, 1, 1, -1, -1, -1, 1, 0, 1])}, "truth label -1 in row 6"),
        ({"truth": np.array([0, -2, 1, 1, -1, -1, 0, 1, 0, 1])}, "truth label -2 in row 1"),
        ({"given": np.array([0, -1, 0, 1, 0, 1, -1, 1, -1, -1])}, "given label -1 in row 1"),
        ({"given": None}, "truth label -1 in row 1"),
        ({"test": np.arange(10) == 8}, "`test` marks other rows"),
        ({"split": Split(*(np.array([row]) for row in (0, 1, 2, 10)))}, "the split has row 10 of 10"),
    ],
)
def test_an_inconsistent_official_split_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        replace(partly_known(), **changes)


def answer(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(command.split())
    return status, *capsys.readouterr()


def test_a_run_from_beginning_to_end(tree, tmp_path, capsys):
    """From weights of a file; the run's folder is enough to predict again."""
    weights, out = tmp_path / "start.safetensors", tmp_path / "run"
    save_file({**build_backbone("imagenet-resnet18", (3, 20, 20)).state_dict(), "fc.bias": torch.zeros(9)}, weights)
    options = f"--root {tree.root} --epochs 1 --set net=imagenet-resnet18 --set batch_size=14 --device cpu"
    status, text, _ = answer(f"train clothing1m {options} --set weights={weights} --out {out} --json", capsys)
    assert status == 0
    found = json.loads(text)
    assert found["data"]["noise_rate"] is None
    assert [found["data"][f"rows_{part}"] for part in ("noisy", "clean", "valid", "test")] == [28, 28, 14, 14]
    assert found["run"]["recipe"]["weights"] == str(weights)
    assert not any("random weights" in note for note in found["notes"])
    rows = list(csv.DictReader((out / "labels.csv").read_text().splitlines()))
    assert {row["id"]: NAMES.index(row["given"]) for row in rows} == {k: tree.noisy[k] for k in tree.keys[PARTS[0]]}
    weights.unlink()
    status, text, _ = answer(f"evaluate {out} clothing1m --device cpu --json", capsys)
    assert status == 0
    assert json.loads(text)["test_accuracy"] == pytest.approx(found["result"]["test_accuracy"])


def test_a_network_starts_from_the_file_and_says_so_where_it_does_not(tree, tmp_path, capsys):
    task = load_task("clothing1m", place=Place(tree.root))
    backbone = build_backbone("imagenet-resnet18", task.shape)
    save_file(backbone.state_dict(), tmp_path / "a.safetensors")
    recipe = replace(DATASETS["clothing1m"].recipe, net="imagenet-resnet18", weights=str(tmp_path / "a.safetensors"))
    method = build_method(Run("clothing1m", recipe=recipe, seed=3), task)
    assert method.net.backbone.conv1.weight.equal(backbone.conv1.weight)
    plain = build_method(Run("clothing1m", recipe=replace(recipe, weights=None), seed=3), task)
    assert not plain.net.backbone.conv1.weight.equal(backbone.conv1.weight)
    assert plain.net.clean.weight.equal(method.net.clean.weight)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--noise symmetric:0.4", ["noisy labels of its own", "leave --noise out"]),
        ("--clean 100", ["split officially", "leave --clean out"]),
        ("--labels aggregate", ["clothing1m has no label set 'aggregate'", "cifar10n, cifar100n"]),
        ("--set weights=nowhere.safetensors", ["nowhere.safetensors", "not there"]),
        ("--set weights=resnet50.pth", [".safetensors", "docs/clothing1m.md"]),
    ],
)
def test_what_it_cannot_do_is_said_before_anything_is_written(tree, tmp_path, capsys, more, words):
    command = f"train clothing1m --root {tree.root} --set net=imagenet-resnet18 --device cpu --out {tmp_path / 'no'}"
    status, _, error = answer(f"{command} {more}", capsys)
    assert status == 2
    assert all(word in error for word in words)
    assert not (tmp_path / "no").exists()


def test_an_image_that_goes_missing_stops_the_run_with_its_name(tree, tmp_path, capsys):
    key = tree.keys[PARTS[0]][9]
    (tree.root / key).write_bytes(b"gone")
    command = f"train clothing1m --root {tree.root} --set net=imagenet-resnet18 --device cpu --out {tmp_path / 'no'}"
    status, _, error = answer(f"{command} --epochs 1", capsys)
    assert status == 2
    assert f"the image {key} in {tree.root} cannot be read" in error
    assert "starts from random weights" in error
