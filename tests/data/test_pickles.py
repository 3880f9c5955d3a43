from __future__ import annotations

import builtins
import collections
import contextlib
import datetime
import functools
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.fake_cifar import py2_pickle
from fasten.data.pickles import load_plain, load_torch_file

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
DTYPES = ["?", "u1", "i1", "i2", "<i4", ">i4", "i8", "f2", "<f4", ">f8", "c8", "c16", "S3", "U4"]
VALUES = {"a": [1, 2.5, None, True, (b"raw", "text")], "b": {"c": np.arange(6).reshape(2, 3)}, "d": np.float32(3)}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(plain_values, st.sampled_from(PROTOCOLS))
def test_plain_data_survive_every_protocol(value: object, protocol: int) -> None:
    assert same(load_plain(pickle.dumps(value, protocol)), value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [lambda a: a, lambda a: a.T, lambda a: a[:0], lambda a: a[1, 2], lambda a: a.transpose(1, 0, 2), np.copy]
)
def test_arrays_survive_every_protocol(protocol: int, dtype: str, shape: Callable[[np.ndarray], Any]) -> None:
    value = shape(np.arange(24).reshape(2, 3, 4).astype(dtype))
    assert same(load_plain(pickle.dumps(value, protocol)), value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nested_data_and_scalars_survive_every_protocol(protocol: int) -> None:
    assert same(load_plain(pickle.dumps(VALUES, protocol)), VALUES)


def test_strings_of_python_2_are_bytes() -> None:
    content = load_plain(py2_pickle({b"labels": [1, 2], b"data": np.arange(200, dtype=np.uint8)}))
    assert list(content) == [b"labels", b"data"]
    assert content[b"labels"] == [1, 2]
    np.testing.assert_array_equal(content[b"data"], np.arange(200))


def test_arrays_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        load_plain(pickle.dumps(np.arange(3), 5))[0] = 1


def test_what_is_shared_stays_shared() -> None:
    part = [1]
    first, second = load_plain(pickle.dumps([part, part]))
    assert first is second


def test_data_outside_the_file_are_refused() -> None:
    with pytest.raises(ValueError, match="data outside itself"):
        load_plain(b"(dS'a'\nPkey\ns.")


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self.reduced = function, args

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.reduced


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Calls(os.system, "touch PWNED"), rf"{os.name}\.system"),
        (Calls(builtins.eval, "open('PWNED', 'w')"), r"(builtins|__builtin__)\.eval"),
        (Calls(builtins.getattr, "", "format"), r"(builtins|__builtin__)\.getattr"),
        (Calls(functools.partial, os.system, "touch PWNED"), r"functools\.partial"),
        (Calls(np.load, "PWNED"), r"numpy\.load"),
        (Calls(np.zeros, 10**12), r"numpy\.zeros"),
        (datetime.date(2020, 1, 1), r"datetime\.date"),
        (collections.OrderedDict(a=1), r"collections\.OrderedDict"),
        (np.ma.masked_array([1]), r"numpy\.ma"),
    ],
)
def test_a_pickle_that_names_anything_else_is_refused_by_name(
    value: object, name: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps({"labels": [1, value]}, protocol)
    with pytest.raises(ValueError, match=f"the file asks for {name}.*, which a data file never needs; .*malicious"):
        load_plain(data)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"cnumpy\nndarray\n(I9\ntR.", "calls numpy.ndarray"),
        (b"cnumpy\nndarray\n)\x81.", "cannot be read"),
        (b"cnumpy\ndtype\n}S'name'\nS'x'\nsb.", "changes numpy.dtype"),
        (b"c_codecs\nencode\n(N}S'__defaults__'\nNstb.", "changes _codecs.encode"),
        (b"c_codecs\nencode\n(Vx\nVrot13\ntR.", "encodes text in an unknown way"),
        (b"c__builtin__\nbytes\n(I1000000000000\ntR.", "cannot be read"),
        (b"cnumpy\ndtype.newbyteorder\n(tR.", "asks for numpy.dtype.newbyteorder"),
        (b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I0\ntS'b'\ntR.", "unknown class"),
        (b"cnumpy\nndarray\n.", "holds a _Name"),
        (b"\x80\x02\x82\x01.", "pickle extensions"),
        (b"\x80\x02Nr\xf0\xff\xff\xff.", "numbers its parts beyond their count"),
        (b"Np4000000000\n.", "numbers its parts beyond their count"),
        (b"\x80\x04\x8f.", "holds a set"),
        (b"(lp0\ng0\na.", "contains itself"),
        (b"N" * 9, "damaged or cut short"),
        (b"", "damaged or cut short"),
        (b"\x80\xff.", "damaged or cut short"),
        (b"(" * 100_000 + b"t" * 100_000 + b".", "damaged or cut short"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.", "damaged or cut short"),
    ],
)
def test_a_pickle_that_plays_tricks_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_plain(data)


def test_names_that_would_spoil_a_terminal_are_escaped() -> None:
    with pytest.raises(ValueError, match=r"asks for a\\x1b\[2J\.b"):
        load_plain(b"ca\x1b[2J\nb\n.")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([{}, 1], object), "an array of Python objects"),
        (np.zeros(2, [("a", "i4"), ("b", "O")]), "records|objects"),
        (np.zeros(2, [("a", "i4")]), "records"),
        (np.zeros(2, "M8[s]"), "dtype 'M8'|records"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_arrays_of_objects_and_records_are_refused(array: np.ndarray, message: str, protocol: int) -> None:
    with pytest.raises(ValueError, match=f"the file holds .*({message})"):
        load_plain(pickle.dumps(array, protocol))


@pytest.mark.parametrize("shape", [(10**6, 10**6), (2,), (-1,), (2**63, 2**63), (True,), (3.0,), 3])
def test_a_small_file_that_promises_another_array_is_refused(shape: Any) -> None:
    dtype = b"cnumpy\ndtype\n(Vu1\nI0\nI1\ntR"
    state = b"(I1\n" + pickle.dumps(shape, 2)[2:-1] + dtype + b"I00\nVabc\ntb"
    data = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR" + state + b"."
    with pytest.raises(ValueError, match=r"the file (promises an array of shape|gives an array a shape)"):
        load_plain(data)


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_give_plain_data_or_a_value_error(data: bytes) -> None:
    only_value_errors(load_plain, data)


WHOLE = [pickle.dumps(VALUES, protocol) for protocol in PROTOCOLS] + [py2_pickle({b"a": np.arange(5), b"b": [1, b"c"]})]


@settings(max_examples=300)
@given(st.sampled_from(WHOLE), st.data())
def test_a_damaged_pickle_gives_plain_data_or_a_value_error(whole: bytes, data: st.DataObject) -> None:
    only_value_errors(load_plain, damaged(whole, data))


@given(st.sampled_from(WHOLE), st.floats(0, 1, exclude_max=True))
def test_a_truncated_pickle_is_always_refused(whole: bytes, share: float) -> None:
    with pytest.raises(ValueError, match="damaged or cut short"):
        load_plain(whole[: int(share * len(whole))])


def damaged(whole: bytes, data: st.DataObject) -> bytes:
    changed = bytearray(whole)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        changed[place] = data.draw(st.integers(0, 255))
    return bytes(changed)


def only_value_errors(read: Callable[[Any], object], source: object) -> None:
    with contextlib.suppress(ValueError):
        read(source)


TENSORS = {
    "float": torch.arange(6.0).reshape(2, 3),
    "long": torch.arange(4),
    "int": torch.arange(4, dtype=torch.int32),
    "byte": torch.tensor([0, 255], dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "half": torch.tensor([0.5], dtype=torch.float16),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "part": torch.arange(10)[3:9:2],
    "scalar": torch.tensor(7),
    "empty": torch.zeros(0, 3),
}
SHARED = torch.arange(6)
FORMATS = pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])


def save(value: object, new: bool = True) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=new)
    return stream.getvalue()


def load_bytes(data: bytes, folder: Path) -> dict[str, np.ndarray]:
    (folder / "file.pt").write_bytes(data)
    return load_torch_file(folder / "file.pt")


@FORMATS
def test_tensors_come_back_as_arrays(new: bool, tmp_path: Path) -> None:
    arrays = load_bytes(save(TENSORS, new), tmp_path)
    assert same(arrays, {name: tensor.numpy() for name, tensor in TENSORS.items()})


@FORMATS
def test_tensors_that_share_their_data_come_back_both(new: bool, tmp_path: Path) -> None:
    arrays = load_bytes(save({"all": SHARED, "tail": SHARED[4:]}, new), tmp_path)
    assert arrays["all"].tolist() == [0, 1, 2, 3, 4, 5]
    assert arrays["tail"].tolist() == [4, 5]


@FORMATS
def test_numpy_arrays_in_a_torch_file_come_back(new: bool, tmp_path: Path) -> None:
    labels = {"clean_label": np.arange(5), "worse_label": np.array([4, 3, 2, 1, 0])}
    assert same(load_bytes(save(labels, new), tmp_path), labels)


@FORMATS
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": Calls(os.system, "touch PWNED")}, rf"file.pt: the file asks for {os.name}\.system"),
        ({"a": np.array([None])}, "an array of Python objects"),
        ({"a": torch.nn.Parameter(torch.zeros(2))}, "asks for torch._utils._rebuild_parameter"),
        ({"a": torch.zeros(1).expand(1000)}, "larger than its data"),
        ({"a": 1}, "holds a int under a"),
        ({3: np.zeros(2)}, "holds a ndarray under a int"),
        ([np.zeros(2)], "holds a list; expected a dictionary of arrays"),
    ],
)
def test_a_torch_file_of_anything_else_is_refused(new: bool, value: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_bytes(save(value, new), tmp_path)
    assert not Path("PWNED").exists()


def rezip(data: bytes, change: Callable[[str, bytes], bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return stream.getvalue()


def test_a_torch_file_of_a_big_endian_machine_is_read(tmp_path: Path) -> None:
    def swap(name: str, data: bytes) -> bytes:
        if name.endswith("/byteorder"):
            return b"big"
        return np.frombuffer(data, "<i8").astype(">i8").tobytes() if "/data/" in name else data

    data = rezip(save({"a": torch.arange(3)}), swap)
    assert load_bytes(data, tmp_path)["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (rezip(save({"a": torch.arange(3)}), lambda _, data: data, zipfile.ZIP_DEFLATED), "compressed"),
        (rezip(save({"a": torch.arange(3)}), lambda n, data: data[:-8] if "/data/" in n else data), "holds 16 bytes"),
        (rezip(save({}), lambda name, _: name.encode()), r"file\.pt: the file"),
        (rezip(b"PK\x05\x06" + bytes(18), lambda _, data: data), "torch.save did not write it"),
        (pickle.dumps({"a": np.arange(3)}), "torch.save did not write this file"),
        (b"", "cannot be read"),
    ],
)
def test_a_torch_file_that_is_none_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_bytes(data, tmp_path)


SAVED = [save({"a": torch.arange(3), "b": np.arange(3)}, new) for new in (True, False)]


@given(st.sampled_from(SAVED), st.data())
def test_a_damaged_torch_file_gives_arrays_or_a_value_error(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    path.write_bytes(damaged(whole, data))
    only_value_errors(load_torch_file, path)


@given(st.sampled_from(SAVED), st.floats(0, 1, exclude_max=True))
def test_a_truncated_torch_file_is_always_refused(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, share: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "truncated.pt"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"truncated.pt"):
        load_torch_file(path)


def test_a_missing_torch_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_torch_file(tmp_path / "none.pt")
