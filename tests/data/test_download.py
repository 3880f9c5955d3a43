from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from data.fake_cifar import FakeCifar
from fasten.data.cifar import read_cifar10
from fasten.data.download import download

BODY = bytes(range(256)) * 8192  # two chunks
MD5 = hashlib.md5(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves the files of a folder; /cut promises more than it sends, /plain does not say how much it sends."""

    folder: Path

    def do_GET(self) -> None:
        name = self.path.strip("/")
        body = BODY if name in ("cut", "plain") else b""
        if (self.folder / name).is_file():
            body = (self.folder / name).read_bytes()
        self.send_response(200 if body else 404)
        if name != "plain":
            self.send_header("Content-Length", str(len(body) * (2 if name == "cut" else 1)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    handler = type("FolderHandler", (Handler,), {"folder": tmp_path / "served"})
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file.bin").write_bytes(BODY)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_a_download_arrives_whole(server: str, tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "file.bin"
    download(f"{server}/file.bin", target, MD5)
    assert target.read_bytes() == BODY
    assert [file.name for file in target.parent.iterdir()] == ["file.bin"]


def test_a_download_of_unknown_length_arrives_too(server: str, tmp_path: Path) -> None:
    download(f"{server}/plain", tmp_path / "file.bin", MD5)
    assert (tmp_path / "file.bin").read_bytes() == BODY


def test_a_wrong_checksum_leaves_the_old_file_and_nothing_else(server: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "file.bin").write_bytes(b"old")
    with pytest.raises(ValueError, match=f"gave a file with md5 {MD5}, expected 0123"):
        download(f"{server}/file.bin", folder / "file.bin", "0123")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"file.bin": b"old"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing", "the server answers 404 Not Found"), ("cut", "2097152 of 4194304|IncompleteRead|more expected")],
)
def test_a_failed_download_is_one_sentence_and_leaves_nothing(
    server: str, tmp_path: Path, name: str, reason: str
) -> None:
    with pytest.raises(OSError, match=f"cannot download {server}/{name}: .*({reason}).*put it at") as caught:
        download(f"{server}/{name}", tmp_path / "mine" / "file.bin", MD5)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "mine").iterdir())


def test_a_full_disk_is_not_taken_for_a_bad_connection(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fasten.data.download.replaced", lambda path: Full())
    with pytest.raises(OSError, match="No space left") as caught:
        download(f"{server}/file.bin", tmp_path / "file.bin", MD5)
    assert caught.value.errno == errno.ENOSPC


def test_a_server_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match=r"cannot download .* check the connection"):
            download(f"http://127.0.0.1:{taken.getsockname()[1]}/x", tmp_path / "x", MD5)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_shown_on_a_terminal_only(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    screen = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    download(f"{server}/file.bin", tmp_path / "file.bin", MD5)
    assert ("file.bin" in screen.getvalue()) == terminal
    assert ("2.1/2.1 MB" in screen.getvalue()) == terminal  # how far it is


def test_cifar_is_fetched_once_where_it_is_missing(server: str, tmp_path: Path, fake_cifar10: FakeCifar) -> None:
    release = replace(fake_cifar10.pack(tmp_path / "served" / "ten.tar.gz"), url=f"{server}/ten.tar.gz")
    for _ in range(2):
        source = read_cifar10(tmp_path / "mine", download=True, release=release)
        assert source.truth.tolist() == fake_cifar10.labels.tolist()
        (tmp_path / "served" / "ten.tar.gz").unlink(missing_ok=True)
