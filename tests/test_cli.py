"""The command line as a user meets it: what it writes, what it says, and how it refuses."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fasten.runs.training as training
from command_line import answer, fill_disk, refuse, tree
from data.fake_cifar import write_release
from fasten.cli import main
from fasten.commands.console import Display
from fasten.constants import SETTINGS, VERSION
from fasten.contract import Recipe
from fasten.data.cifar import CIFAR10, read_cifar10
from fasten.data.cifarn import read_cifar10n
from fasten.data.digits import read_digits
from fasten.data.synthetic import make_blobs
from fasten.datasets import DATASETS, Dataset
from fasten.machine import choose_machine
from fasten.records import read_record

ARGS = "--device cpu --epochs 2 --set batch_size=400"
FILES = ["gallery.json", "labels.csv", "log.jsonl", "model.safetensors", "probabilities.npy"]
FILES += ["record.json", "report.html", "tables.safetensors", "transition.csv"]
COMMANDS = ["train", "resume", "evaluate", "predict", "export", "report", "methods", "datasets", "bench", "compare"]
COMMANDS += ["reproduce", "audit"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of seed 3, which no command takes by default."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert main(shlex.split(f"train digits --noise symmetric:0.4 --seed 3 {ARGS} --json --out {out}")) == 0
    return out


@pytest.fixture
def copy(finished, folder):
    """The finished run as `run` in the current folder, for tests that damage it."""
    (folder / "run").mkdir()
    for name in FILES:
        (folder / "run" / name).write_bytes((finished / name).read_bytes())
    return folder / "run"


# What a user gets wrong: each is refused before anything is written.

TRAIN = "train digits --device cpu --epochs 1 --out run"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("trian", ["trian", "train"]),
        ("--bogus", ["--bogus", "fasten --help"]),
        ("train", ["DATA", "fasten train --help"]),
        ("train --out run", ["DATA"]),
        ("train digits", ["--out", "fasten train --help"]),
        ("train digits --out ''", ["--out", "path"]),
        ("train '' --out run", ["'DATA': takes the name of a data set or a path, got nothing"]),
        ("train digits extra --out run", ["extra"]),
        (f"{TRAIN} --jsn", ["--jsn", "--json"]),
        ("train digit --out run", ["unknown data set 'digit'", "did you mean 'digits'?"]),
        (
            "train zzz --out run",
            ["unknown data set 'zzz', and no file or folder has that name; known: digits", "cifar10n"],
        ),
        ("train digits --epochs 0 --out run", ["--epochs", "1 or more", "got 0"]),
        ("train digits --epochs many --out run", ["--epochs", "whole number", "'many'"]),
        ("train digits --epochs 1.5 --out run", ["--epochs", "whole number", "'1.5'"]),
        ("train digits --seed -1 --out run", ["--seed", "0 or more", "got -1"]),
        (f"{TRAIN} --on-nan hope", ["--on-nan", "stop or rewind", "'hope'"]),
        (f"{TRAIN} --checkpoint-every often", ["--checkpoint-every", "seconds", "'often'"]),
        (f"{TRAIN} --checkpoint-every -1", ["--checkpoint-every", "0 or more", "-1"]),
        (f"{TRAIN} --checkpoint-every nan", ["--checkpoint-every", "0 or more", "nan"]),
        (f"{TRAIN} --method fastn", ["unknown method 'fastn'", "did you mean 'fasten'?"]),
        (f"{TRAIN} --method zzz", ["unknown method 'zzz'", "cross-entropy"]),
    ],
)
def test_a_mistyped_command_is_refused(folder, capsys, command, words):
    refuse(command, capsys, *words)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ("symetric:0.4", ["unknown noise 'symetric'", "did you mean 'symmetric'"]),
        ("zzz", ["unknown noise 'zzz'", "pair"]),
        ("symmetric", ["needs a rate", "symmetric:0.4"]),
        ("symmetric:1", ["[0, 1)", "got 1.0", "write 40% as 0.4"]),
        ("symmetric:-0.1", ["[0, 1)", "got -0.1"]),
        ("pair:nan", ["[0, 1)", "got nan"]),
        ("pair:40%", ["[0, 1)", "got '40%'"]),
        ("none:0.2", ["takes no rate"]),
        ("matrix", ["matrix:FILE"]),
        ("matrix:missing.csv", ["no noise matrix at missing.csv"]),
        ("matrix:three.csv", ["three.csv", "(3, 3)", "10 rows"]),
        ("matrix:low.csv", ["low.csv", "row 0 sums to 0.9", "expected 1"]),
        ("matrix:words.csv", ["words.csv", "not a table of numbers"]),
        ("matrix:cut.npy", ["cut.npy", "cannot be read"]),
        ("matrix:negative.npy", ["negative.npy", "row 0 has a negative"]),
        ("matrix:a.txt", ["a.txt", ".csv, .npy or .npz"]),
    ],
)
def test_noise_that_cannot_be_is_refused(folder, capsys, noise, words):
    np.savetxt("three.csv", np.eye(3), delimiter=",")
    np.savetxt("low.csv", 0.9 * np.eye(10), delimiter=",")
    np.save("negative.npy", np.full((10, 10), -0.1))
    Path("words.csv").write_text("cat,dog\n")
    Path("cut.npy").write_bytes(Path("negative.npy").read_bytes()[:100])
    Path("a.txt").write_text("1")
    refuse(f"{TRAIN} --noise {noise}", capsys, *words)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_is_written_as_an_option_is_refused_with_its_name(capsys, name):
    assert SETTINGS[name] in get_type_hints(Recipe)
    for command in ("train", "compare"):
        flag = f"--{name.replace('_', '-')}"
        refuse(f"{command} digits --out out {flag} 3", capsys, f"no such option: {flag}; write --set {SETTINGS[name]}=")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("threshold", ["key=value", "'threshold'"]),
        ("threshhold=0.9", ["unknown option 'threshhold' of fasten", "did you mean 'threshold'?"]),
        ("zzz=1", ["unknown option 'zzz'", "noisy_weight", "milestones"]),
        ("num_classes=3", ["unknown option 'num_classes'"]),
        ("lr=0.1", ["unknown option 'lr' of fasten", "did you mean 'rate'?"]),
        ("threshold=abc", ["threshold takes a number", "'abc'"]),
        ("threshold=nan", ["threshold", "finite", "'nan'"]),
        ("threshold=80", ["threshold", "[0, 1]", "80"]),
        ("noisy_weight=-1", ["noisy_weight", "-1"]),
        ("perturbation=2", ["perturbation", "[0, 1]", "2"]),
        ("per_class=0", ["per_class", "0"]),
        ("per_class=few", ["per_class takes a whole number", "'few'"]),
        ("correct=maybe", ["correct takes true or false", "'maybe'"]),
        ("oracle=T.csv", ["oracle takes true or false"]),
        ("norm=foo", ["norm must be one of split, two-pass, joint", "'foo'"]),
        ("batch_size=0", ["batch_size must be at least 1", "got 0"]),
        ("batch_size=99999999999999999999", ["batch_size takes a whole number up to 2,147,483,647", "'99999999"]),
        ("batch_size=1.5", ["batch_size takes a whole number", "'1.5'"]),
        ("epochs=2", ["epochs is set twice"]),
        ("milestones=abc", ["milestones takes", "separated by commas", "'abc'"]),
        ("milestones=0", ["milestones must be at least 1", "got 0"]),
        ("rate=nan", ["rate", "finite", "'nan'"]),
        ("rate=-1", ["rate must be above 0", "got -1"]),
        ("momentum=1", ["momentum must be in [0, 1)", "got 1"]),
        ("weight_decay=x", ["weight_decay takes a number", "'x'"]),
        ("net=resnet43", ["unknown network 'resnet43'", "did you mean 'resnet34'"]),
        ("net=mlp", ["'mlp' does not take images"]),
        ("rate=0.1 --set rate=0.2", ["rate is set twice"]),
    ],
)
def test_a_setting_that_cannot_be_is_refused(folder, capsys, setting, words):
    refuse(f"{TRAIN} --set {setting}", capsys, *words)


@pytest.mark.parametrize(
    ("method", "setting", "words"),
    [
        ("cross-entropy", "rate=0", ["rate must be above 0, got 0"]),
        ("naive-oversampling", "per_class=-1", ["per_class must be at least 1, got -1"]),
        ("l2rw", "clean_batch=0", ["clean_batch must be at least 1, got 0"]),
        ("mw-net", "meta_rate=0", ["meta_rate must be above 0, got 0"]),
    ],
)
def test_a_setting_of_another_method_that_cannot_be_is_refused(folder, capsys, method, setting, words):
    refuse(f"{TRAIN} --method {method} --set {setting}", capsys, *words)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("banana", ["unknown device 'banana'", "known: auto, cpu"]),
        ("cpu:3", ["unknown device 'cpu:3'"]),
        ("cuda:64", ["device 'cuda:64' does not exist", "try auto"]),
        pytest.param(
            "cuda",
            ["device 'cuda' does not exist", "0 CUDA devices"],
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)
@pytest.mark.parametrize("command", ["train digits --out run", "bench", "evaluate {run} digits"])
def test_a_device_that_is_not_there_is_refused(folder, finished, capsys, command, device, words):
    refuse(f"{command.format(run=finished)} --device {device}", capsys, *words)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("bench --methods fasten,foo", ["unknown method 'foo'"]),
        ("bench --methods ,", ["--methods", "`fasten methods`"]),
        ("bench --rounds 0", ["--rounds", "1 or more"]),
        ("bench --updates 0", ["--updates", "1 or more"]),
        ("bench --batch 1", ["--batch", "2 or more"]),
        ("bench --size 0", ["--size", "2 or more"]),
        ("bench --net foo", ["unknown network 'foo'"]),
        ("bench --net mlp", ["'mlp' does not take images"]),
        ("bench --set norm=foo", ["norm must be one of", "'foo'"]),
        ("bench --set foo=1", ["none of the methods", "foo"]),
        ("bench --kernels foo", ["kernels must be one of", "'foo'"]),
        *(
            (
                f"bench --device cpu --kernels {name}",
                ["cpu has plain kernels only", f"--kernels {name}", "leave it out"],
            )
            for name in ("fused", "overlapped", "compiled")
        ),
        ("methods extra", ["extra"]),
        ("datasets --jsno", ["--jsno", "--json"]),
    ],
)
def test_other_commands_refuse_too(folder, capsys, command, words):
    refuse(command, capsys, *words)


def pretend_gpu(monkeypatch, capability=(9, 0)):
    for question, reply in {"is_available": True, "device_count": 1, "current_device": 0}.items():
        monkeypatch.setattr(torch.cuda, question, lambda reply=reply: reply)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


@pytest.mark.parametrize(
    ("capability", "precision", "kernels"),
    [((7, 5), "float32", "plain"), ((8, 0), "bf16", "overlapped"), ((12, 0), "bf16", "overlapped")],
)
def test_a_gpu_without_bf16_takes_float32(monkeypatch, capability, precision, kernels):
    monkeypatch.setattr("fasten.machine.AVAILABLE", True)
    pretend_gpu(monkeypatch, capability)
    machine = choose_machine("cuda")
    assert (machine.precision, machine.kernels, machine.capture) == (precision, kernels, True)


@pytest.mark.parametrize("name", ["fused", "overlapped", "compiled"])
def test_a_gpu_without_triton_has_plain_kernels_only(monkeypatch, capsys, name):
    for place in ("bench", "machine"):
        monkeypatch.setattr(f"fasten.{place}.AVAILABLE", False)
    pretend_gpu(monkeypatch)
    assert choose_machine("cuda").kernels == "plain"
    refuse(f"bench --device cuda --kernels {name}", capsys, f"--kernels {name} needs Triton", "`pip install triton`")


# Files: data sets that are missing, damaged or wrong.


def write_cifar10(root: Path, label: int = 3):
    """Two images in each file, all of one label; the release with its checksums."""
    content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [label, label]}
    files: dict[str, object] = dict.fromkeys([name for name in CIFAR10.files if name != "batches.meta"], content)
    files["batches.meta"] = {b"label_names": [f"class {c}".encode() for c in range(10)]}
    return write_release(root, CIFAR10, files)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("cifar10", ["CIFAR-10 is not in data", "--root", "--download"]),
        ("cifar100 --root nowhere", ["CIFAR-100 is not in nowhere", "--root"]),
        ("cifar10n", ["CIFAR-10_human.pt is not in data", "--root"]),
        ("cifar10n --noise pair:0.2", ["cifar10n", "leave --noise out", "'pair:0.2'"]),
        ("cifar10n --labels wrst", ["unknown label set 'wrst'", "did you mean 'worst'?"]),
        ("cifar100n --labels aggregate", ["unknown label set 'aggregate'", "noisy"]),
        ("cifar10 --labels aggregate", ["cifar10", "'aggregate'", "leave --labels out"]),
        ("digits --labels worse", ["digits", "'worse'", "leave --labels out"]),
        ("digits --labels worst", ["digits", "'worst'", "leave --labels out"]),
        ("digits --clean 1297", ["digits has no noisy row left", "1297", "--clean"]),
    ],
)
def test_data_that_are_not_there_are_refused(folder, capsys, command, words):
    refuse(f"train {command} --out run", capsys, *words)


def test_a_damaged_data_file_is_refused(folder, capsys):
    write_cifar10(folder / "data")
    refuse("train cifar10 --out run", capsys, "data_batch_1", "md5", "damaged", "--download")
    (folder / "data/cifar-10-batches-py/data_batch_1").unlink()
    refuse("train cifar10 --out run", capsys, "lacks data_batch_1")
    (folder / "archive.tar.gz").write_bytes(b"\x1f\x8b cut short")
    refuse("train cifar10 --root archive.tar.gz --out run", capsys, "archive.tar.gz", "damaged or cut short")


def test_a_label_outside_the_classes_is_refused(folder, capsys, monkeypatch):
    release = write_cifar10(folder / "data", label=10)
    monkeypatch.setattr("fasten.datasets.read_cifar10", partial(read_cifar10, release=release))
    refuse("train cifar10 --out run", capsys, "label 10 in row 0", "outside the 10 classes")


def test_a_given_label_outside_the_classes_is_refused(folder, capsys, monkeypatch):
    release = write_cifar10(folder / "data")
    monkeypatch.setattr("fasten.datasets.read_cifar10n", partial(read_cifar10n, release=release))
    labels = {"clean_label": np.full(10, 3), "worse_label": np.array([3] * 9 + [-7])}
    np.savez(folder / "data/CIFAR-10_human.npz", **labels)
    refuse("train cifar10n --out run", capsys, "given label -7 in row 9", "outside the 10 classes")
    np.savez(folder / "data/CIFAR-10_human.npz", **{**labels, "clean_label": np.full(10, 4)})
    refuse("train cifar10n --out run", capsys, "clean_label differs", "another order")
    (folder / "data/CIFAR-10_human.npz").write_bytes(b"PK cut")
    refuse("train cifar10n --out run", capsys, "CIFAR-10_human.npz", "cannot be read")


# Folders: where a run may be written.


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("run", ["run already holds a finished run; choose another --out"]),
        ("open", ["open already holds a run", "`fasten resume open`", "another --out"]),
        ("run/record.json", ["record.json is a file", "--out takes a new folder"]),
        ("run/record.json/deeper/still", ["record.json is a file"]),
        ("left", ["left already holds labels.csv", "move it away, or choose another --out"]),
        ("theirs", ["theirs already holds log.jsonl"]),
        ("astray/run", ["astray is a link that leads nowhere; --out takes a new folder"]),
        ("lost", ["lost already holds model.safetensors"]),
        ("stale", ["stale already holds checkpoint"]),
        ("'my run'", ["my run already holds a run", "`fasten resume 'my run'`"]),
    ],
)
def test_a_folder_that_is_taken_is_refused(copy, folder, capsys, out, words):
    (folder / "left").mkdir()
    (folder / "left/labels.csv").write_text("somebody's work")
    (folder / "stale/checkpoint").mkdir(parents=True)
    (folder / "astray").symlink_to("nowhere")
    (folder / "theirs").mkdir()
    (folder / "theirs/log.jsonl").write_text('{"time": 3}\n')
    shutil.copytree(folder / "run", folder / "lost")
    (folder / "lost/record.json").unlink()
    begun = json.loads((copy / "record.json").read_text()) | {"result": None}
    for name in ("open", "my run"):
        (folder / name).mkdir()
        (folder / name / "record.json").write_text(json.dumps(begun))
    refuse(f"train digits --device cpu --out {out}", capsys, *words)


def test_a_folder_that_cannot_be_made_is_refused(folder, capsys, monkeypatch):
    def deny(path, *args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", deny)
    refuse(f"{TRAIN} --json", capsys, "Permission denied: run; change its permissions, or choose another place")


def test_an_empty_folder_may_be_used(folder, capsys):
    (folder / "run").mkdir()
    answer(f"train digits {ARGS} --no-references --out run", capsys)
    assert sorted(path.name for path in (folder / "run").iterdir()) == FILES


# Runs that are missing, damaged or do not fit.


@pytest.mark.parametrize("command", ["resume {}", "evaluate {} digits", "report {}"])
@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("nowhere", ["nowhere is not there", "folder of a run"]),
        ("run/record.json", ["record.json is a file", "folder of a run"]),
        (".", ["holds no run", "no record.json"]),
    ],
)
def test_a_folder_without_a_run_is_refused(copy, capsys, command, which, words):
    refuse(command.format(which), capsys, *words)


@pytest.mark.parametrize("command", ["resume run", "evaluate run digits", "report run --out page.html"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["record.json is damaged"]),
        ('{"schema": 1, "run": {"data', ["record.json is damaged"]),
        ("[1, 2]", ["record.json is not a run's record"]),
        ('{"schema": 2}', ["not a run's record of schema 1"]),
        ('{"schema": 1, "run": {}}', ["record.json is damaged", "lacks environment, data"]),
    ],
)
def test_a_damaged_record_is_refused(copy, capsys, command, text, words):
    (copy / "record.json").write_text(text)
    refuse(command, capsys, *words)


def change_record(copy: Path, part: str, **changes: object) -> None:
    record = read_record(copy)
    record[part] = None if changes == {"null": True} else {**record[part], **changes}
    (copy / "record.json").write_text(json.dumps(record))


def test_a_record_of_another_version_is_refused(copy, capsys):
    change_record(copy, "result", null=True)
    change_record(copy, "run", recipe={"milestones": [], "warmth": 3})
    refuse("resume run", capsys, "damaged or from another version", "warmth")


def test_a_record_that_does_not_say_how_it_was_run_cannot_be_resumed(copy, capsys):
    change_record(copy, "result", null=True)
    for how in (None, {"device": "cpu"}):
        change_record(copy, "environment", how=how)
        refuse("resume run", capsys, "record.json does not say how")


def test_a_record_that_does_not_say_how_it_was_run_can_be_evaluated(copy, capsys):
    change_record(copy, "environment", how=None)
    answer("evaluate run digits", capsys)


def test_weights_that_are_missing_or_damaged_are_refused(copy, capsys):
    path, whole = copy / "model.safetensors", (copy / "model.safetensors").read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    for data, word in ((whole[:100], "damaged"), (b"", "damaged"), (flipped, "checksum"), (whole[:-40], "damaged")):
        path.write_bytes(data)
        refuse("evaluate run digits", capsys, "model.safetensors is damaged", word)
    path.unlink()
    refuse("evaluate run digits", capsys, "model.safetensors is missing")


def test_weights_of_something_else_are_refused(copy, capsys):
    save_file({"other": torch.zeros(3)}, copy / "model.safetensors")
    change_record(copy, "result", model_sha256=None)
    refuse("evaluate run digits", capsys, "does not hold the weights of fasten")


def test_a_run_that_is_not_finished_is_not_evaluated(copy, capsys):
    change_record(copy, "result", null=True)
    refuse("evaluate run digits", capsys, "run is not finished", "`fasten resume run`")


def test_data_of_another_kind_are_refused(copy, capsys, monkeypatch):
    def known_as(name, source):
        sizes = {"num_clean": 10, "num_valid": 10, "num_test": 20}
        monkeypatch.setitem(
            DATASETS, name, Dataset(lambda place: source, "", recipe=DATASETS["digits"].recipe, **sizes)
        )

    names = tuple("0123456789")
    known_as("three", make_blobs(3, 40))
    known_as("ten", make_blobs(10, 40))
    known_as("colours", replace(make_blobs(10, 40), class_names=names))
    refuse("evaluate run three", capsys, "10 classes", "has 3")
    refuse("evaluate run ten", capsys, "class '0'", "'blob 0'")
    refuse("evaluate run colours", capsys, "trained on digits", "8×8 pixels in colour")
    refuse("evaluate run digit", capsys, "unknown data set 'digit'")


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("nowhere/page.html", ["there is no folder nowhere for page.html", "make it first"]),
        (".", ["folder", "--out"]),
        ("run/log.jsonl/page.html", ["log.jsonl"]),
    ],
)
def test_a_report_that_cannot_be_written_is_refused(copy, capsys, out, words):
    assert ".tmp" not in refuse(f"report run --out {out}", capsys, *words)


# What goes wrong on the way: whatever is written can be read, and the run goes on.


def without_times(record):
    result = {k: v for k, v in record["result"].items() if "second" not in k}
    return record["data"], record["evaluation"], result, record["notes"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What a run without references comes to."""
    out = tmp_path_factory.mktemp("plain") / "run"
    assert main(shlex.split(f"train digits {ARGS} --no-references --json --out {out}")) == 0
    return without_times(read_record(out))


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        ("log.jsonl", 1),
        ("checkpoint/*.safetensors", 1),
        ("checkpoint/*.safetensors", 2),
        ("labels.csv", 1),
        ("model.safetensors", 1),
        ("report.html", 1),
        ("record.json", 2),
    ],
)
def test_a_full_disk_stops_a_run_that_resume_finishes(folder, plain, capsys, monkeypatch, pattern, number):
    with monkeypatch.context() as patch:
        patch.setattr(training, "EPOCH_CHECKPOINT_SECONDS", 0.0)
        fill_disk(patch, pattern, number)
        assert main(shlex.split(f"train digits {ARGS} --no-references --json --out run")) == 2
    said = capsys.readouterr()
    assert said.out == ""
    expected = (
        "fasten: no space left on the disk; free some, and `fasten resume run` continues from the last checkpoint\n"
    )
    assert said.err == expected
    assert read_record(Path("run"))["result"] is None
    assert not list(Path("run").rglob("*.tmp"))
    answer("resume run --json", capsys)
    assert without_times(read_record(Path("run"))) == plain


def test_a_disk_that_was_full_from_the_start_leaves_an_empty_folder(folder, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        fill_disk(patch, "record.json", 1)
        assert main(shlex.split(f"train digits {ARGS} --json --out run")) == 2
    assert capsys.readouterr().err == "fasten: no space left on the disk: run/record.json; free some and run it again\n"
    assert list(tree(folder)) == ["run"]
    answer(f"train digits {ARGS} --no-references --out run", capsys)


def test_a_full_disk_leaves_the_old_report(copy, capsys, monkeypatch):
    fill_disk(monkeypatch, "report.html", 1)
    refuse("report run", capsys, "no space left on the disk: run/report.html")


def test_an_interrupted_run_says_how_to_go_on(folder, plain, capsys, monkeypatch):
    def interrupt(display, done):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Display, "update", interrupt)
        assert main(shlex.split(f"train digits {ARGS} --no-references --json --out run")) == 130
    assert capsys.readouterr().err == "fasten: interrupted; `fasten resume run` continues from the last checkpoint\n"
    answer("resume run", capsys)
    assert without_times(read_record(Path("run"))) == plain


def test_data_that_moved_are_found_again(folder, capsys, monkeypatch):
    def read(place):
        if not (place.root / "rows").is_file():
            raise FileNotFoundError(f"no rows in {place.root}; say where they lie with --root")
        return read_digits()

    def interrupt(display, done):
        raise KeyboardInterrupt

    monkeypatch.setitem(DATASETS, "moved", replace(DATASETS["digits"], read=read))
    Path("old").mkdir()
    Path("old/rows").touch()
    with monkeypatch.context() as patch:
        patch.setattr(Display, "update", interrupt)
        assert main(shlex.split(f"train moved --root old {ARGS} --no-references --json --out run")) == 130
    Path("old").rename("new")
    refuse("resume run --json", capsys, "no rows in old", "--root")
    Path("new").rename("data")
    answer("resume run --root data", capsys)  # where data lie by default
    answer("evaluate run moved", capsys)
    Path("data").rename("new")
    refuse("evaluate run moved", capsys, "no rows in data;")
    Path("new").rename("newer")
    answer("evaluate run moved --root newer", capsys)


def test_a_run_goes_on_with_the_device_that_is_said_now_and_else_with_its_own(folder, capsys, monkeypatch):
    chosen, real = [], training.choose_machine

    def choose(device=None, **options):
        chosen.append(device)
        return real("cpu", **options)

    def interrupt(display, done):
        raise KeyboardInterrupt

    monkeypatch.setattr(Display, "update", interrupt)
    assert main(shlex.split(f"train digits {ARGS} --no-references --json --out run")) == 130
    monkeypatch.setattr(training, "choose_machine", choose)
    for said in ("--device auto", "", "--device cpu", ""):
        assert main(shlex.split(f"resume run --json {said}")) == 130
    assert chosen == ["auto", "auto", "cpu", "cpu"]


def test_a_run_that_diverges_says_so(folder, capsys):
    assert main(shlex.split(f"{TRAIN} --set rate=1e30 --json")) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("fasten: training diverged in epoch 1")
    assert "--set rate=" in said
    assert read_record(Path("run"))["result"] is None


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB.\nSee the manual"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_too_little_memory_is_said_in_a_sentence(folder, capsys, monkeypatch, error):
    def fail(*args):
        raise error

    monkeypatch.setattr("fasten.runs.training.train", fail)
    refuse(TRAIN, capsys, "not enough memory", "smaller batch")


def test_our_own_faults_are_not_hidden(folder, monkeypatch):
    def fail(*args):
        raise RuntimeError("a bug")

    monkeypatch.setattr("fasten.runs.training.train", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(shlex.split(TRAIN))


def test_debugging_shows_where_a_sentence_came_from(folder, monkeypatch):
    monkeypatch.setenv("FASTEN_DEBUG", "1")
    with pytest.raises(ValueError, match="unknown method"):
        main(shlex.split(f"{TRAIN} --method zzz"))


# What works.


def test_train_writes_its_folder_and_nothing_else(finished):
    assert sorted(path.name for path in finished.iterdir()) == FILES


def test_the_record_has_every_field_with_a_sane_value(finished):
    record = read_record(finished)
    assert record["schema"] == 1
    run = record["run"]
    assert {**run, "recipe": None} == {
        **{"dataset": "digits", "noise": "symmetric:0.4", "method": "fasten"},
        **{"options": {}, "recipe": None, "seed": 3, "clean": None},
    }
    assert run["recipe"]["epochs"] == 2
    assert {"fasten", "python", "torch", "numpy", "device", "precision", "commit"} <= set(record["environment"])
    assert record["environment"]["fasten"] == VERSION
    sizes = [record["data"][f"rows_{name}"] for name in ("noisy", "clean", "valid", "test")]
    assert sizes == [1197, 100, 100, 400]
    assert record["data"]["num_classes"] == 10
    assert 0.3 < record["data"]["noise_rate"] < 0.4


def test_the_record_has_every_number_of_its_epochs(finished):
    record = read_record(finished)
    assert [row["epoch"] for row in record["epochs"]] == [1, 2]
    shares = {
        "valid_accuracy",
        "test_accuracy",
        "corrected_fraction",
        "label_accuracy",
        "t_diagonal",
        "t_diagonal_true",
    }
    for row in record["epochs"]:
        assert {"loss", "learning_rate", "seconds"} | shares <= set(row)
        assert all(0 <= row[name] <= 1 for name in shares)
        assert row["loss"] > 0
        assert row["seconds"] > 0
        assert row["learning_rate"] > 0


def test_the_record_has_a_result_an_evaluation_and_references(finished):
    record = read_record(finished)
    result, evaluation = record["result"], record["evaluation"]
    best = record["epochs"][result["best_epoch"] - 1]
    assert result["selected_by"] == "valid"
    assert result["test_accuracy"] == pytest.approx(best["test_accuracy"])
    assert result["test_accuracy_last"] == record["epochs"][-1]["test_accuracy"]
    assert min(result[name] for name in ("train_seconds", "setup_seconds", "examples_per_second")) > 0
    assert result["peak_memory_bytes"] is None
    assert set(evaluation["relabel"]) == {"accuracy", "nll", "accuracy_wrong", "nll_wrong"}
    assert set(evaluation["detection"]) == {"minus_p_given", "posterior"}
    assert all(0 <= value <= 1 for scores in evaluation["detection"].values() for value in scores.values())
    assert np.sum(evaluation["transition"]["given"], axis=1) == pytest.approx(np.ones(10))
    assert set(record["references"]) == {"clean_only"}
    assert 0 < record["references"]["clean_only"]["test_accuracy"] <= 1


def test_train_prints_lines_for_people(folder, capsys):
    assert main(shlex.split(f"train digits {ARGS} --no-references --noise pair:0.2 --out run")) == 0
    said = capsys.readouterr()
    assert "fasten on digits, noise pair:0.2" in said.err
    assert "epoch 2: loss" in said.err
    assert "test accuracy" in said.out
    assert said.out.endswith("report: run/report.html\n")


def test_a_method_in_stages_says_how_it_shares_the_epochs_out(folder, capsys):
    command = "train digits --method deep-knn --device cpu --set batch_size=400 --no-references"
    assert main(shlex.split(f"{command} --epochs 4 --out long")) == 0
    said, note = capsys.readouterr().err, "3 epochs are trained, not 1: each of the 3 stages has at least one"
    assert "epochs of each stage: clean 1, union 1, filtered 2" in said
    assert "epoch 3 (filtered): loss" in said
    assert "are trained, not" not in said
    assert main(shlex.split(f"{command} --epochs 1 --out short")) == 0
    assert note in capsys.readouterr().err
    record = read_record(Path("short"))
    assert note in record["notes"]
    assert [row["stage"] for row in record["epochs"]] == ["clean", "union", "filtered"]


def test_train_prints_one_json_object_for_machines(folder, capsys):
    assert main(shlex.split(f"train digits {ARGS} --no-references --json --set threshold=0.9 --out run")) == 0
    said = capsys.readouterr()
    assert said.err == ""
    shown, record = json.loads(said.out), read_record(Path("run"))
    assert shown["run"]["options"] == {"threshold": 0.9}
    assert shown["result"] == record["result"]


def test_a_finished_run_is_left_as_it_is(copy, capsys):
    before = tree(copy)
    assert main(["resume", "run"]) == 0
    said = capsys.readouterr()
    assert "run is a finished run" in said.err
    assert "test accuracy" in said.out
    assert json.loads(answer("resume run --json", capsys))["result"] == read_record(copy)["result"]
    assert tree(copy) == before


def test_a_run_is_evaluated_on_the_rows_that_it_held_back(finished, capsys):
    scores = json.loads(answer(f"evaluate {finished} digits --device cpu --json", capsys))
    record = read_record(finished)
    assert scores["rows"] == record["data"]["rows_test"]
    assert scores["test_accuracy"] == pytest.approx(record["result"]["test_accuracy"])
    assert scores["test_nll"] == pytest.approx(record["evaluation"]["test_nll"])
    assert f"{scores['test_accuracy']:.4f}" in answer(f"evaluate {finished} digits --device cpu", capsys)


def test_a_report_is_the_same_page_again(copy, capsys):
    before = tree(copy)
    assert answer("report run", capsys) == "run/report.html\n"
    assert tree(copy) == before
    assert json.loads(answer("report run --out page.html --json", capsys)) == {"report": "page.html"}
    assert Path("page.html").read_bytes() == (copy / "report.html").read_bytes()


def test_methods_are_listed_with_what_can_be_set(capsys):
    listed = {row["name"]: row for row in json.loads(answer("methods --json", capsys))}
    assert listed["fasten"]["defaults"]["threshold"] == 0.8
    assert listed["fasten-no-lc"]["defaults"]["correct"] is False
    assert listed["fasten"]["clean_set"]
    assert not listed["cross-entropy"]["clean_set"]
    assert [name for name, row in listed.items() if row["images"]] == ["augdesc"]
    text = answer("methods", capsys)
    assert all(name in text for name in listed)
    assert "threshold=0.8" in text
    assert "…" not in text  # nothing is cut off
    assert "milestones" in text


def test_data_sets_are_listed(capsys):
    listed = {row["name"]: row for row in json.loads(answer("datasets --json", capsys))}
    assert set(listed) == set(DATASETS)
    assert listed["digits"]["recipe"]["net"] == "small-cnn"
    text = answer("datasets", capsys)
    assert all(name in text for name in listed)


def test_bench_times_methods_against_cross_entropy(capsys):
    options = "--rounds 1 --updates 1 --size 4 --batch 20 --device cpu"
    shown = json.loads(answer(f"bench {options} --methods fasten --json", capsys))
    assert [line["method"] for line in shown["methods"]] == ["naive-oversampling", "fasten"]
    assert [line["updates"] for line in shown["methods"]] == [70 * 2200, 70 * 2200]  # the paper's rows, 20 at a time
    assert shown["run_ratios"]["fasten"] == 1
    assert [shown[name] for name in ("net", "size", "batch", "rounds")] == ["small-cnn", 4, 20, 1]
    assert all(line["milliseconds"] > 0 for line in shown["methods"])
    text = answer(f"bench {options}", capsys)
    assert "images / s" in text
    assert "as if they dropped no row" not in text


def test_bench_names_the_methods_whose_runs_are_shorter_than_it_counts(capsys):
    text = answer("bench --methods glc,deep-knn,dividemix --rounds 1 --updates 1 --size 4 --batch 20", capsys)
    assert "\ndeep-knn, dividemix: timed as if they dropped no row" in text


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_terminal_and_shows_an_example(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    text = answer(f"{command} --help", capsys)
    assert max(map(len, text.splitlines())) <= 80
    assert f"  fasten {command}" in text or "Begin with: fasten train" in text
    assert "..." not in text.replace("[ARGS]...", "").replace("[NAME]...", "")
    assert not set("{}<>") & set(text)  # an argument is called DATA, not {DATA} or DATA <str>


def test_no_command_shows_the_help(capsys):
    text = answer("", capsys)
    assert all(command in text for command in COMMANDS)


@pytest.mark.parametrize("command", ["methods", "datasets"])
def test_tables_fit_a_terminal(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text = re.sub(r"\x1b\[\d*m|\u0302", "", answer(command, capsys))  # bold letters, and the hat of T̂, take no room
    assert max(map(len, text.splitlines())) <= 80


def test_it_runs_as_a_module_on_a_terminal_without_unicode_and_with_no_output_at_all():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "fasten"]
    found = subprocess.run([*command, "--version"], capture_output=True, text=True, env=environment, timeout=120)
    assert (found.returncode, found.stdout.strip()) == (0, VERSION)
    found = subprocess.run([*command, "methods"], capture_output=True, text=True, env=environment, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")
    closed = ["sh", "-c", f"{shlex.join(command)} methods >&-"]
    found = subprocess.run(closed, capture_output=True, text=True, env=environment, timeout=120)
    assert (found.returncode, found.stderr) == (0, "")
    found = subprocess.run([*command, "trian"], capture_output=True, text=True, env=environment, timeout=120)
    assert (found.returncode, found.stdout) == (2, "")


def printing(words: str, out: int, **environment: str) -> tuple[int, str]:
    """The exit status of a command whose output goes to this file, and what it says on standard error."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-m", "fasten", *shlex.split(words)]
    found = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, env=environment, timeout=120)
    return found.returncode, found.stderr


@pytest.mark.parametrize(
    ("words", "unbuffered", "expected"),
    [
        ("--version", "", (0, "")),
        ("--help", "1", (0, "")),
        ("datasets", "", (0, "")),
        ("datasets", "1", (0, "")),
        (f"train digits {ARGS} --no-references --json --out run", "", (0, "")),
        (
            "evaluate run digit",
            "",
            (2, "fasten: Invalid value for 'DIR': takes the folder of a run, and run is not there"),
        ),
    ],
)
def test_a_command_whose_reader_has_left_ends_as_if_it_had_not(folder, words, unbuffered, expected):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        status, said = printing(words, writer, PYTHONUNBUFFERED=unbuffered)
    finally:
        os.close(writer)
    assert (status, said.partition(";")[0]) == expected
    assert not words.startswith("train d") or read_record(folder / "run")["result"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk that is always full")
@pytest.mark.parametrize(("words", "unbuffered"), [("--version", ""), ("datasets", ""), ("datasets", "1")])
def test_output_that_finds_no_place_is_an_error(words, unbuffered):
    with open("/dev/full", "wb") as full:
        found = printing(words, full.fileno(), PYTHONUNBUFFERED=unbuffered)
    assert found == (2, "fasten: no space left on the disk; free some and run it again\n")


HEAVY = {"torch", "numpy", "pandas", "pyarrow", "sklearn", "scipy", "matplotlib", "jinja2", "PIL"}


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("--help", set()),
        ("--version", set()),
        ("train --help", set()),
        ("audit --help", set()),
        ("trian", set()),
        ("train --ot x", set()),
        ("methods", {"torch", "numpy", "jinja2"}),
        ("datasets", HEAVY - {"torch", "sklearn", "scipy", "matplotlib"}),
        ("report RUN --out RUN.html", {"numpy", "jinja2"}),
        ("audit RUN", HEAVY - {"torch", "sklearn", "scipy", "matplotlib"}),
    ],
)
def test_nothing_heavy_is_imported_where_it_is_not_needed(finished, line, needed):
    words = [word.replace("RUN", str(finished)) for word in line.split()]
    code = f"import sys; from fasten.cli import main; main({words!r}); print(*{HEAVY!r} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert set(found.stdout.splitlines()[-1].split()) <= needed
