import json
from pathlib import Path

import pytest
import torch

from fasten.runs.checkpoint import Checkpoints

TENSORS = {
    "weights": torch.randn(3, 4, 5, 5).to(memory_format=torch.channels_last),
    "labels": torch.arange(7, dtype=torch.int32),
    "number": torch.tensor(3.5, dtype=torch.float64),
    "mask": torch.tensor([True, False]),
    "half": torch.randn(4).bfloat16(),
    "empty": torch.zeros(0, 3),
}


def saved(folder, *numbers):
    checkpoints = Checkpoints(folder / "checkpoint")
    for number in numbers:
        checkpoints.save(number, TENSORS, {"at": number})
    checkpoints.close()
    return checkpoints


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    tensors, meta, damaged = saved(tmp_path, 12).load()
    assert meta == {"at": 12}
    assert not damaged
    assert tensors.keys() == TENSORS.keys()
    assert all(t.dtype == TENSORS[n].dtype and torch.equal(t, TENSORS[n]) for n, t in tensors.items())


def test_the_last_two_are_kept(tmp_path):
    checkpoints = saved(tmp_path, 1, 2, 3, 10)
    assert [p.name for p in sorted(checkpoints.folder.iterdir())] == ["000000003.safetensors", "000000010.safetensors"]


def test_a_damaged_one_takes_no_place_of_those_that_are_kept(tmp_path):
    checkpoints = saved(tmp_path, 1, 2, 3)
    (checkpoints.folder / "000000009.safetensors").write_bytes(b"")
    saved(tmp_path, 4)
    assert [p.name for p in sorted(checkpoints.folder.iterdir())] == ["000000003.safetensors", "000000004.safetensors"]
    assert checkpoints.newest == "000000004.safetensors"


def test_later_changes_of_a_tensor_do_not_reach_the_file(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    tensor, meta = torch.zeros(1000), {"list": [1]}
    checkpoints.save(1, {"t": tensor}, meta)
    tensor.fill_(9)
    meta["list"].append(2)
    checkpoints.close()
    tensors, kept, _ = checkpoints.load()
    assert not tensors["t"].any()
    assert kept == {"list": [1]}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux says which files are in use")
def test_what_is_read_does_not_keep_a_deleted_file_on_the_disk(tmp_path):
    tensors, _, _ = saved(tmp_path, 1).load()
    assert tensors
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_no_checkpoint_is_no_error(tmp_path):
    assert Checkpoints(tmp_path / "none").load() is None


@pytest.mark.parametrize("damage", ["empty", "cut", "flip", "text"])
def test_a_damaged_one_is_named_and_the_one_before_is_used(tmp_path, damage):
    checkpoints = saved(tmp_path, 1, 2)
    path = checkpoints.folder / "000000002.safetensors"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-40] ^= 1
    path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "flip": bytes(flipped), "text": b"{}"}[damage])
    _, meta, damaged = checkpoints.load()
    assert meta == {"at": 1}
    assert len(damaged) == 1
    assert "000000002" in damaged[0]


def test_when_none_is_whole_it_says_so(tmp_path):
    checkpoints = saved(tmp_path, 1)
    (checkpoints.folder / "000000001.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="start the run again"):
        checkpoints.load()


def test_a_failed_write_is_told_at_the_next_save(tmp_path):
    (tmp_path / "checkpoint").write_text("in the way")
    checkpoints = Checkpoints(tmp_path / "checkpoint")
    checkpoints.save(1, TENSORS, {})
    with pytest.raises(OSError, match="checkpoint"):
        checkpoints.save(2, TENSORS, {})
    checkpoints.close()


def test_the_file_is_plain_safetensors_with_json_inside(tmp_path):
    from safetensors import safe_open

    path = next(saved(tmp_path, 5).folder.iterdir())
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["meta"]) == {"at": 5}
