# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from dpcohort.data import Normalisation, fetch_dataset
from dpcohort.data import _fetch as fetch_module
from dpcohort.data._load import SOURCES, DataFile, Source, find_set
from dpcohort.errors import DataMissingError, FileFormatError, InputError, VerificationError


class Server:
    """A web server on this machine whose misbehaviour the tests choose.

    Attributes:
        files: what it has, by path.
        cuts: how many bytes to send before the connection breaks, one entry a request; then all.
        ranges: the Range header of each request, None where there was none.
        ranges_known: whether it continues a file where it was asked to.
        wrong_start: how far off the byte is at which it claims to continue.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cuts: list[int] = []
        self.ranges: list[str | None] = []
        self.ranges_known = True
        self.wrong_start = 0
        self.url = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range")
        self.ranges.append(asked)
        content = self.files.get(request.path)
        if content is None:
            request.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges_known else 0
        if asked and self.ranges_known:
            if start >= len(content):
                request.send_error(416)
                return
            request.send_response(206)
            first = start + self.wrong_start
            request.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        else:
            request.send_response(200)
        body = content[start:]
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: self.cuts.pop(0)] if self.cuts else body)
        request.wfile.flush()


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.answer(self)

        def log_message(self, *args: object) -> None:
            """Stay quiet."""

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.daemon_threads = True
    thread = threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{web.server_address[1]}/"
    yield state
    web.shutdown()
    web.server_close()
    thread.join()


CONTENT = np.random.default_rng(0).bytes(300_000)


def one_file(**changes) -> Source:
    """A set of one file, with the checksums of CONTENT."""
    archive = DataFile(names=("x.gz",), size=len(CONTENT), md5=hashlib.md5(CONTENT).hexdigest())
    base = {
        "name": "one",
        "layout": "idx",
        "shape": (1, 2, 2),
        "classes": 2,
        "train_records": 1,
        "test_records": 1,
        "normalisation": Normalisation(),
        "folders": ("one",),
        "files": (),
        "archives": (archive,),
        "urls": (),
    }
    return Source(**{**base, **changes})


def fetch_source(source: Source, dest: Path, **options) -> Path:
    """Fetch a set that only this test knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SOURCES, source.name, source)
        return fetch_dataset(source.name, dest, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_set_is_downloaded_and_found(server, small_idx_source, tmp_path, no_data_elsewhere):
    source, packed = small_idx_source
    server.files = {f"/{name}": content for name, content in packed.items()}
    folder = fetch_source(source, tmp_path, mirror=server.url)
    assert names(folder) == sorted(packed)
    for name, content in packed.items():
        assert (folder / name).read_bytes() == content
    found = find_set(source, tmp_path)
    assert found is not None
    assert None not in found[1]


def test_what_is_there_is_not_downloaded_again(server, tmp_path):
    server.files["/x.gz"] = CONTENT
    fetch_source(one_file(), tmp_path, mirror=server.url)
    fetch_source(one_file(), tmp_path, mirror=server.url)
    assert len(server.ranges) == 1
    (tmp_path / "one" / "x.gz").write_bytes(CONTENT[:-1] + b"?")
    fetch_source(one_file(), tmp_path, mirror=server.url)
    assert (tmp_path / "one" / "x.gz").read_bytes() == CONTENT


def test_progress_counts_up_to_the_whole_file(server, tmp_path):
    server.files["/x.gz"] = CONTENT
    seen: list[tuple[str, int, int]] = []
    report = lambda *step: seen.append(step)  # noqa: E731
    fetch_source(one_file(), tmp_path, mirror=server.url, progress=report)
    names, received, totals = zip(*seen, strict=True)
    assert list(received) == sorted(received)
    assert received[-1] == len(CONTENT)
    assert (set(names), set(totals)) == ({"x.gz"}, {len(CONTENT)})


def test_a_broken_connection_is_taken_up_where_it_broke(server, tmp_path):
    server.files["/x.gz"] = CONTENT
    server.cuts = [100_000, 50_000]
    folder = fetch_source(one_file(), tmp_path, mirror=server.url)
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]
    assert (folder / "x.gz").read_bytes() == CONTENT
    assert names(folder) == ["x.gz"]


def test_the_next_call_takes_up_what_the_last_one_kept(server, tmp_path):
    server.files["/x.gz"] = CONTENT
    server.cuts = [70_000, 0]
    with pytest.raises(DataMissingError, match="70,000 of 300,000 bytes arrived and are kept"):
        fetch_source(one_file(), tmp_path, mirror=server.url)
    assert names(tmp_path / "one") == ["x.gz.part"]
    server.ranges.clear()
    fetch_source(one_file(), tmp_path, mirror=server.url)
    assert server.ranges == ["bytes=70000-"]
    assert (tmp_path / "one" / "x.gz").read_bytes() == CONTENT


def test_a_server_that_cannot_continue_sends_it_all(server, tmp_path):
    server.files["/x.gz"] = CONTENT
    server.cuts = [100_000]
    server.ranges_known = False
    folder = fetch_source(one_file(), tmp_path, mirror=server.url)
    assert (folder / "x.gz").read_bytes() == CONTENT


def test_a_server_that_continues_elsewhere_is_not_believed(server, tmp_path):
    server.files["/x.gz"] = CONTENT
    server.cuts = [100_000]
    server.wrong_start = 10
    with pytest.raises(DataMissingError, match="continued at another byte"):
        fetch_source(one_file(), tmp_path, mirror=server.url)
    assert (tmp_path / "one" / "x.gz.part").read_bytes() == CONTENT[:100_000]


@pytest.mark.parametrize("wrong", [CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]), CONTENT + b"x"])
def test_another_file_is_refused_and_nothing_of_it_kept(server, tmp_path, wrong):
    server.files["/x.gz"] = wrong
    with pytest.raises(VerificationError, match="nothing of it was kept") as caught:
        fetch_source(one_file(), tmp_path, mirror=server.url)
    assert caught.value.exit_code == 1
    assert names(tmp_path / "one") == []


def test_a_wrong_file_does_not_replace_a_good_one(server, small_idx_source, tmp_path):
    source, packed = small_idx_source
    server.files = {f"/{name}": content for name, content in packed.items()}
    folder = fetch_source(source, tmp_path, mirror=server.url)
    first, last = source.archives[0].name, source.archives[-1].name
    (folder / last).unlink()
    server.files[f"/{last}"] = b"x" * len(packed[last])
    with pytest.raises(VerificationError):
        fetch_source(source, tmp_path, mirror=server.url)
    assert (folder / first).read_bytes() == packed[first]
    assert last not in names(folder)


def test_the_next_address_is_tried(server, tmp_path):
    server.files["/good/x.gz"] = CONTENT
    server.files["/bad/x.gz"] = bytes(len(CONTENT))
    urls = tuple(f"{server.url}{folder}/" for folder in ("absent", "bad", "good"))
    folder = fetch_source(one_file(urls=urls), tmp_path)
    assert (folder / "x.gz").read_bytes() == CONTENT


def test_a_part_that_is_too_long_or_just_complete(server, tmp_path):
    server.files["/x.gz"] = CONTENT
    part = tmp_path / "one" / "x.gz.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT)
    fetch_source(one_file(), tmp_path, mirror=server.url)
    assert server.ranges == []
    (tmp_path / "one" / "x.gz").unlink()
    part.write_bytes(CONTENT + b"x")
    fetch_source(one_file(), tmp_path, mirror=server.url)
    assert server.ranges == [None]


def test_no_network_is_missing_data(tmp_path):
    with pytest.raises(DataMissingError, match="0 of 300,000 bytes") as caught:
        fetch_source(one_file(urls=("http://127.0.0.1:1/",)), tmp_path)
    assert caught.value.exit_code == 3


def test_a_full_disk_is_reported(server, tmp_path, monkeypatch):
    server.files["/x.gz"] = CONTENT

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetch_module, "_accept", full)
    with pytest.raises(DataMissingError, match="No space left on device"):
        fetch_source(one_file(), tmp_path, mirror=server.url)


@pytest.mark.parametrize("mirror", ["file:///etc/", "ftp://x/", "x"])
def test_a_mirror_is_on_the_web(mirror, tmp_path):
    with pytest.raises(InputError, match="mirror = "):
        fetch_source(one_file(), tmp_path, mirror=mirror)


PARTS = {"a.bin": b"first part" * 99, "b.bin": b"second part" * 77}


def tar_of(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in entries.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def tar_source(content: bytes) -> Source:
    archive = DataFile(names=("x.tar.gz",), size=len(content), md5=hashlib.md5(content).hexdigest())
    files = tuple(
        DataFile(names=(name,), sha256=hashlib.sha256(part).hexdigest(), size=len(part))
        for name, part in PARTS.items()
    )
    return one_file(files=files, archives=(archive,))


def test_an_archive_is_laid_out_and_removed(server, tmp_path):
    members = {f"one/{name}": content for name, content in PARTS.items()}
    content = tar_of({**members, "one/readme.html": b"hello", "../../escape": b"evil"})
    server.files["/x.tar.gz"] = content
    folder = fetch_source(tar_source(content), tmp_path / "data", mirror=server.url)
    assert {name: (folder / name).read_bytes() for name in names(folder)} == PARTS
    assert names(tmp_path) == ["data"]
    fetch_source(tar_source(content), tmp_path / "data", mirror=server.url)
    assert len(server.ranges) == 1


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (tar_of({"one/a.bin": PARTS["a.bin"]}), FileFormatError, "no file one/b.bin"),
        (tar_of({"one/a.bin": b"other"}), VerificationError, "one/a.bin: SHA-256"),
        (b"no archive at all", FileFormatError, "cannot be read"),
        (tar_of({"one/a.bin": PARTS["a.bin"]})[:-20], FileFormatError, "cannot be read|no file"),
    ],
    ids=["a file short", "another file", "no archive", "cut short"],
)
def test_an_archive_of_other_things_is_refused(server, tmp_path, content, error, message):
    server.files["/x.tar.gz"] = content
    with pytest.raises(error, match=message):
        fetch_source(tar_source(content), tmp_path, mirror=server.url)
    assert "b.bin" not in names(tmp_path / "one")


def test_by_name_it_goes_to_the_variable_or_the_cache(
    server, small_idx_source, no_data_elsewhere, monkeypatch, tmp_path
):
    source, packed = small_idx_source
    server.files = {f"/{name}": content for name, content in packed.items()}
    monkeypatch.setitem(SOURCES, "small", source)
    assert fetch_dataset("small", mirror=server.url) == no_data_elsewhere / "small"
    monkeypatch.setenv("DPCOHORT_DATA", str(tmp_path / "variable"))
    assert fetch_dataset("small", mirror=server.url) == tmp_path / "variable" / "small"
    given = fetch_dataset("small", tmp_path / "given", mirror=server.url)
    assert given == tmp_path / "given" / "small"
