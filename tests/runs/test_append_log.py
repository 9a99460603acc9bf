# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

import pytest

from dpcohort.errors import FileFormatError, InputError
from dpcohort.runs._folder import append_line, open_log, read_log


def test_a_torn_last_line_is_left_out_and_taken_off(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"round": 0}\n{"round": 1')
    assert read_log(path) == [{"round": 0}]
    log = open_log(path)
    append_line(log, {"round": 1, "x": float("nan")})
    log.close()
    log.close()
    assert path.read_bytes() == b'{"round": 0}\n{"round": 1, "x": null}\n'


@pytest.mark.parametrize("line", [b"{", b"[1]", b"\xff"])
def test_a_broken_whole_line_is_named(tmp_path, line):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"round": 0}\n' + line + b"\n")
    with pytest.raises(FileFormatError, match="line 2"):
        read_log(path)


def test_a_line_is_synced_before_append_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    log = open_log(tmp_path / "log.jsonl")
    append_line(log, {"round": 0})
    append_line(log, {"round": 1}, durable=False)
    log.close()
    assert synced == [len(b'{"round": 0}\n')]


def test_a_full_disk_takes_the_half_line_back(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    log = open_log(path)
    append_line(log, {"round": 0})
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    with pytest.raises(InputError, match="--resume"):
        append_line(log, {"round": 1})
    monkeypatch.undo()
    log.close()
    assert read_log(path) == [{"round": 0}]


def test_a_line_is_bounded_in_length_and_depth(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a":' * 100 + b"1" + b"}" * 100 + b"\n")
    with pytest.raises(FileFormatError, match="line 1: not valid JSON"):
        read_log(path)
    path.write_bytes(b'{}\n{"a": "' + b"x" * 100 + b'"}\n')
    monkeypatch.setattr("dpcohort.runs._folder.LARGEST_LINE", 50)
    with pytest.raises(FileFormatError, match="line 2: a line of 109 bytes; at most 50"):
        read_log(path)
