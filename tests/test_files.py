"""A file is replaced whole or not at all."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from fasten import files
from fasten.files import alone_in, is_empty, sweep, write_bytes, write_text


def disk_full(*_args, **_kwargs):
    raise OSError(28, "No space left on device")


def interrupted(*_args, **_kwargs):
    raise KeyboardInterrupt


@pytest.mark.parametrize("data", [b"", b"\x00\xff\r\n", b"x" * 100_000])
def test_what_is_written_is_read_back(tmp_path, data):
    write_bytes(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == data


def test_text_is_utf8_with_its_own_line_ends(tmp_path):
    write_text(tmp_path / "file", "χ²\n–\r\n")
    assert (tmp_path / "file").read_bytes() == "χ²\n–\r\n".encode()


def test_an_error_names_the_file_that_was_meant_and_no_other(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '[^']*nowhere/file'$"):
        write_text(tmp_path / "nowhere/file", "x")


def test_a_path_may_be_a_string_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text("file", "here")
    assert (tmp_path / "file").read_text() == "here"


def test_a_second_write_replaces_the_first_and_leaves_one_file(tmp_path):
    for text in ("a long first text", "short"):
        write_text(tmp_path / "file", text)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "short")]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(("fail", "error"), [(disk_full, OSError), (interrupted, KeyboardInterrupt)])
def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call, fail, error):
    write_text(tmp_path / "file", "old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(error):
        write_text(tmp_path / "file", "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "old")]


@pytest.mark.parametrize("name", ["r\udcff", "caf\udce9/é.csv"])
def test_a_name_that_is_not_utf8_is_written_as_json_reads_it(tmp_path, name):
    write_text(tmp_path / "file", f'"{name}"')
    assert json.loads((tmp_path / "file").read_text(encoding="utf-8")) == name


def test_a_missing_folder_is_an_error_and_is_not_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "missing" / "file", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_synced_does_not_fail_the_write(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "open", disk_full)
    write_text(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
def test_the_file_gets_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_text("text")
    write_text(tmp_path / "file", "text")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "file")}
    assert len(modes) == 1


@pytest.mark.parametrize(
    ("point", "content", "aside"),
    [
        ("before-write", "old", []),
        ("mid-write", "old", ["secon"]),
        ("before-rename", "old", ["second file"]),
        ("after-rename", "second file", []),
    ],
)
def test_a_process_that_is_killed_leaves_the_old_file_or_the_new(tmp_path, point, content, aside):
    """At its second write; what it leaves beside them is swept."""
    (tmp_path / "file").write_text("old")
    program = "import files; files.write_text('first', 'first'); files.write_text('file', 'second file')"
    program = f"import sys; sys.path.insert(0, {os.path.dirname(files.__file__)!r}); {program}"
    environment = {**os.environ, "FASTEN_FAULT": f"{point}:2"}
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=tmp_path, env=environment, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert ((tmp_path / "first").read_text(), (tmp_path / "file").read_text()) == ("first", content)
    assert [path.read_text() for path in tmp_path.glob(".*.tmp")] == aside
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"first", "file"}


def test_one_at_a_time_works_in_a_folder(tmp_path):
    (tmp_path / "other").mkdir()
    with alone_in(tmp_path), alone_in(tmp_path / "other"):
        with pytest.raises(ValueError, match=r"another process is at work in .*stop it"), alone_in(tmp_path):
            pass
        with alone_in(tmp_path / "missing"):
            pass
    with alone_in(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["other"], "nothing is left behind"


def test_where_a_folder_cannot_be_locked_nobody_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", disk_full)
    with alone_in(tmp_path), alone_in(tmp_path):
        pass


def test_a_folder_with_nothing_but_litter_is_empty(tmp_path):
    assert is_empty(tmp_path / "missing")
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", f".{'0a' * 16}.tmp"):
        assert is_empty(tmp_path)
        (tmp_path / name).touch()
    (tmp_path / "thesis.txt").touch()
    assert not is_empty(tmp_path)
    assert is_empty(tmp_path, besides=["thesis.txt"])
