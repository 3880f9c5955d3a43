"""Pickled data files, read without executing what they say.

A pickle is a program: it names functions and has them called. Here every name stands for an object of ours that only
notes its arguments, and the arrays are built from the notes after the whole file has been read. So NumPy's own
unpickling code, which trusts its input, never sees the file; no array is larger than the bytes that the file holds for
it; and a name that is not in the list below is an error.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Encoding = Literal["bytes", "utf-8"]  # of Python 2's strings
Persistent = Callable[[Any], Any]

TORCH_MAGIC = 0x1950A86A20F9469CFC6C  # opens the files that torch.save wrote before version 1.6

_PLAIN = (str, bytes, int, float, bool, type(None))
_DTYPE = re.compile(r"[<>|=]?(b1|\?|[iu][1248]|f[248]|c8|c16|[SU][1-9]\d{0,6})")
_STORAGES = {
    "FloatStorage": "f4", "DoubleStorage": "f8", "HalfStorage": "f2", "LongStorage": "i8", "IntStorage": "i4",
    "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "b1",
}  # fmt: skip


def load_plain(data: bytes) -> Any:
    """Load a pickle of arrays, strings, numbers, lists, tuples and dictionaries; anything else raises ValueError.

    Arrays are read-only views of the file's bytes; strings of Python 2 become bytes.

    >>> load_plain(pickle.dumps({"labels": np.arange(3)}))
    {'labels': array([0, 1, 2])}
    """
    with _only_value_errors():
        value, _ = _unpickle(data, 0, _NUMPY_NAMES, None, "bytes")
        return _build(value, {})


def load_torch_file(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Load a dictionary of NumPy arrays or tensors that torch.save wrote; torch is not needed."""
    data = Path(path).read_bytes()
    with _only_value_errors(path):
        content = _read_torch_zip(data) if data.startswith(b"PK") else _read_torch_legacy(data)
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; expected a dictionary of arrays")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, np.ndarray):
            where = _shown(key) if isinstance(key, str) else f"a {type(key).__name__}"
            raise ValueError(f"{path} holds a {type(value).__name__} under {where}; expected arrays under names")
    return content


class _Refused(ValueError):
    """Raised if a file asks for something that no data file needs; unlike other errors, it is passed on as it is."""


@contextlib.contextmanager
def _only_value_errors(path: str | os.PathLike[str] | None = None) -> Iterator[None]:
    where = f"{path}: " if path else ""
    try:
        yield
    except _Refused as error:
        raise ValueError(f"{where}{error}") from error
    except Exception as error:  # a damaged file can make the readers below raise anything
        reason = _shown(f"{type(error).__name__}: {error}")
        raise ValueError(
            f"{where}the file cannot be read ({reason}); it is damaged or cut short, fetch it again"
        ) from error


def _shown(text: str) -> str:
    """Return text from a file, made safe for a terminal."""
    return text[:200].encode("unicode_escape").decode("ascii")


class _Name:
    """A function or class that files may name; calling it notes the arguments or builds a harmless value."""

    __slots__ = ("_make", "name")

    def __init__(self, name: str, make: Callable[..., object] | None = None) -> None:
        self.name, self._make = name, make

    def __call__(self, *args: object) -> object:
        if self._make is None:
            raise _Refused(f"the file calls {self.name}, which a data file never needs; it may be malicious")
        return self._make(*args)

    def __setstate__(self, state: object) -> None:  # otherwise a pickle could change our attributes
        raise _Refused(f"the file changes {self.name}, which a data file never needs; it may be malicious")


class _Note:
    """What a file says about an object that is built later."""

    __slots__ = ()

    def build(self) -> object:
        raise NotImplementedError

    def __setstate__(self, state: object) -> None:
        raise _Refused(f"the file gives {type(self).__name__.strip('_').lower()} a state that it cannot have")


class _Dtype(_Note):
    __slots__ = ("code", "order")

    def __init__(self, code: object, *_: object) -> None:
        self.code, self.order = _text(code), "="

    def __setstate__(self, state: Any) -> None:
        _version, order, *described = state[:5]
        if any(part is not None for part in described):
            raise _Refused("the file holds records; expected arrays of numbers or strings")
        self.order = _text(order)

    def build(self) -> np.dtype[Any]:
        if not _DTYPE.fullmatch(self.code):
            objects = "Python objects" if "O" in self.code else f"dtype {_shown(self.code)!r}"
            raise _Refused(f"the file holds an array of {objects}; expected numbers or strings")
        return np.dtype(self.code).newbyteorder(self.order)  # type: ignore[arg-type]  # a wrong order raises


class _Array(_Note):
    __slots__ = ("dtype", "fortran", "raw", "shape")

    def __init__(self, cls: object, *_: object) -> None:
        if cls is not _NDARRAY:
            raise _Refused("the file asks for an array of an unknown class")

    def __setstate__(self, state: Any) -> None:
        _version, self.shape, self.dtype, self.fortran, self.raw = state

    @classmethod
    def from_buffer(cls, raw: object, dtype: object, shape: object, order: object, axes: Any = None) -> _Note:
        array = cls(_NDARRAY)
        array.__setstate__((1, shape, dtype, order == "F", raw))
        return array if axes is None else _Transposed(array, axes)

    def build(self) -> NDArray[Any]:
        return _array(self.raw, self.dtype, self.shape, "F" if self.fortran else "C")


class _Transposed(_Note):
    __slots__ = ("array", "axes")

    def __init__(self, array: _Array, axes: Any) -> None:
        self.array, self.axes = array, axes

    def build(self) -> NDArray[Any]:
        return self.array.build().transpose(self.axes)


class _Scalar(_Note):
    __slots__ = ("dtype", "raw")

    def __init__(self, dtype: object, raw: object) -> None:
        self.dtype, self.raw = dtype, raw

    def build(self) -> object:
        return _array(self.raw, self.dtype, (), "C")[()]


@dataclass
class _Storage(_Note):
    dtype: np.dtype[Any]
    numel: int
    raw: bytes = b""  # in the legacy format it comes after the pickle


class _Tensor(_Note):
    __slots__ = ("offset", "size", "storage", "stride")

    def __init__(self, storage: Any, offset: Any, size: Any, stride: Any, *_: object) -> None:
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride

    def build(self) -> NDArray[Any]:
        if not isinstance(self.storage, _Storage):
            raise _Refused("the file holds a tensor without data")
        size, stride, offset = _sizes(self.size), _sizes(self.stride), _sizes((self.offset,))[0]
        flat = _array(self.storage.raw, self.storage.dtype, (self.storage.numel,), "C")
        if math.prod(size) == 0:
            return flat[:0].reshape(size)
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        # Steps of 0 would make a tensor of any size from a single number.
        if last >= flat.size or math.prod(size) > flat.size:
            raise _Refused("the file holds a tensor that is larger than its data")
        steps = tuple(step * flat.itemsize for step in stride)
        return np.lib.stride_tricks.as_strided(flat[offset:], size, steps, writeable=False)


def _array(raw: object, dtype: object, shape: object, order: Literal["C", "F"]) -> NDArray[Any]:
    """Return an array over `raw`, which must have exactly as many bytes as the array needs."""
    if isinstance(raw, str):
        raw = raw.encode("latin1")
    if not isinstance(raw, bytes | bytearray):
        raise _Refused("the file holds an array of Python objects; expected numbers or strings")
    if isinstance(dtype, _Dtype):
        dtype = dtype.build()
    if not isinstance(dtype, np.dtype):
        raise _Refused("the file holds an array without a dtype")
    sizes = _sizes(shape)
    if math.prod(sizes) * dtype.itemsize != len(raw):
        raise _Refused(f"the file promises an array of shape {_shown(str(shape))} but holds {len(raw)} bytes of it")
    return np.frombuffer(bytes(raw), dtype).reshape(sizes, order=order)


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(type(n) is int and n >= 0 for n in value):
        raise _Refused("the file gives an array a shape that is not a list of sizes")
    return value


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin1")
    if not isinstance(value, str):
        raise _Refused(f"the file holds a {type(value).__name__} where a name belongs")
    return value


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Return bytes as Python 3 writes them into pickles that Python 2 can read."""
    if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
        raise _Refused("the file encodes text in an unknown way")
    return text.encode("latin1")


_NDARRAY = _Name("numpy.ndarray")
_NUMPY_NAMES: dict[str, _Name] = {
    "numpy.ndarray": _NDARRAY,
    "numpy.dtype": _Name("numpy.dtype", _Dtype),
    "_codecs.encode": _Name("_codecs.encode", _encode),
    "__builtin__.bytes": _Name("builtins.bytes", lambda: b""),  # Python 3's b"" in a pickle for Python 2
}
for _core in ("numpy.core", "numpy._core"):  # before and since NumPy 2
    _NUMPY_NAMES |= {
        f"{_core}.multiarray._reconstruct": _Name("numpy.core.multiarray._reconstruct", _Array),
        f"{_core}.multiarray.scalar": _Name("numpy.core.multiarray.scalar", _Scalar),
        f"{_core}.numeric._frombuffer": _Name("numpy.core.numeric._frombuffer", _Array.from_buffer),
    }
_TORCH_NAMES = _NUMPY_NAMES | {f"torch.{kind}": _Name(f"torch.{kind}") for kind in _STORAGES}
_TORCH_NAMES |= {
    "torch._utils._rebuild_tensor_v2": _Name("torch._utils._rebuild_tensor_v2", _Tensor),
    "collections.OrderedDict": _Name("collections.OrderedDict", lambda: {}),  # a tensor's hooks: none
}


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, data: bytes, names: Mapping[str, _Name], persistent: Persistent | None, encoding: Encoding
    ) -> None:
        super().__init__(io.BytesIO(data), encoding=encoding)
        self._names, self._persistent = names, persistent

    def find_class(self, module: str, name: str) -> _Name:
        full = f"{module}.{name}"
        if full not in self._names:
            raise _Refused(f"the file asks for {_shown(full)}, which a data file never needs; it may be malicious")
        return self._names[full]

    def persistent_load(self, pid: Any) -> Any:
        if self._persistent is None:
            raise _Refused("the file refers to data outside itself; expected all in one file")
        return self._persistent(pid)


def _unpickle(
    data: bytes, start: int, names: Mapping[str, _Name], persistent: Persistent | None, encoding: Encoding
) -> tuple[Any, int]:
    """Load the pickle that begins at `start`, with notes in place of arrays; return it and its end."""
    end = _end_of_pickle(data, start)
    return _Unpickler(data[start:end], names, persistent, encoding).load(), end


def _end_of_pickle(data: bytes, start: int) -> int:
    stream = io.BytesIO(data)
    stream.seek(start)
    for opcode, argument, _ in pickletools.genops(stream):
        # The unpickler makes its memo as long as the largest index, so a few bytes could allocate gigabytes.
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and (argument or 0) > len(data):
            raise _Refused("the file numbers its parts beyond their count; it may be malicious")
        if opcode.name.startswith("EXT"):  # these may load a class without calling find_class
            raise _Refused("the file uses pickle extensions, which a data file never needs; it may be malicious")
    return stream.tell()


def _build(value: Any, done: dict[int, Any]) -> Any:
    """Return `value` with arrays in place of notes. `done` keeps shared objects shared, and detects cycles."""
    if type(value) in _PLAIN:
        return value
    if id(value) not in done:
        done[id(value)] = _Refused  # marks it as begun
        done[id(value)] = _build_once(value, done)
    if done[id(value)] is _Refused:
        raise _Refused("the file holds a list that contains itself")
    return done[id(value)]


def _build_once(value: Any, done: dict[int, Any]) -> Any:
    if isinstance(value, _Note):
        return value.build()
    if type(value) in (list, tuple):
        return type(value)(_build(item, done) for item in value)
    if type(value) is dict:
        return {_build(key, done): _build(item, done) for key, item in value.items()}
    raise _Refused(f"the file holds a {type(value).__name__}; expected arrays, text, numbers and lists of them")


def _storage_of(pid: Any, byteorder: str) -> tuple[str, _Storage]:
    """Return the key and the note of a storage, from its persistent id."""
    tag, kind, key, _location, numel, *view = pid
    name = kind.name.removeprefix("torch.") if isinstance(kind, _Name) else ""
    if _text(tag) != "storage" or name not in _STORAGES or any(part is not None for part in view):
        raise _Refused("the file holds a tensor of an unknown kind; save it as a NumPy array")
    return _text(key), _Storage(np.dtype(_STORAGES[name]).newbyteorder(byteorder), _sizes((numel,))[0])  # type: ignore[arg-type]


def _read_torch_zip(data: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise _Refused("the file is compressed, which torch.save never does; it may be malicious")
        if sum(entry.file_size for entry in entries) > len(data):
            raise _Refused("the file promises more data than it holds; it is damaged or malicious")
        names = [entry.filename for entry in entries]
        pickles = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise _Refused("the file is a zip archive, but torch.save did not write it")
        folder = pickles[0].removesuffix("data.pkl")
        big = f"{folder}byteorder" in names and archive.read(f"{folder}byteorder") == b"big"

        storages: dict[str, _Storage] = {}

        def storage(pid: Any) -> _Storage:
            key, note = _storage_of(pid, ">" if big else "<")
            if key not in storages:
                note.raw = archive.read(f"{folder}data/{key}")
            return storages.setdefault(key, note)

        value, _ = _unpickle(archive.read(pickles[0]), 0, _TORCH_NAMES, storage, "utf-8")
        return _build(value, {})


def _read_torch_legacy(data: bytes) -> Any:
    """Read pickles about the file, the object and the keys of its storages, then each storage's length and bytes."""
    magic, end = _unpickle(data, 0, _NUMPY_NAMES, None, "utf-8")
    if magic != TORCH_MAGIC:
        raise _Refused("torch.save did not write this file")
    _version, end = _unpickle(data, end, {}, None, "utf-8")
    system, end = _unpickle(data, end, {}, None, "utf-8")
    storages: dict[str, _Storage] = {}

    def storage(pid: Any) -> _Storage:
        key, note = _storage_of(pid, "<" if system["little_endian"] else ">")
        return storages.setdefault(key, note)

    value, end = _unpickle(data, end, _TORCH_NAMES, storage, "utf-8")
    keys, end = _unpickle(data, end, {}, None, "utf-8")
    for key in keys:
        note = storages[_text(key)]
        length = note.numel * note.dtype.itemsize
        note.raw = data[end + 8 : end + 8 + length]  # the first eight bytes repeat the number of elements
        end += 8 + length
    return _build(value, {})
