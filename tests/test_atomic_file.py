# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

import pytest

from dpcohort.atomic_file import atomic_writer, owner_only, write_text
from dpcohort.errors import InputError


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail() -> None:
        with atomic_writer(path) as file:
            file.write("new")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_permissions_are_those_of_an_ordinary_file(tmp_path):
    (tmp_path / "ordinary").touch()
    write_text(tmp_path / "atomic", "x")
    modes = {(tmp_path / name).stat().st_mode for name in ("ordinary", "atomic")}
    assert len(modes) == 1


def test_files_of_the_owner_only_are_closed_within_the_block_and_no_longer(tmp_path):
    with owner_only(), owner_only(False):  # an inner block does not open them
        write_text(tmp_path / "closed", "x")
    assert (tmp_path / "closed").stat().st_mode & 0o777 == 0o600
    test_permissions_are_those_of_an_ordinary_file(tmp_path)


def test_a_folder_that_is_not_there_is_said_plainly(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "no" / "a.txt", "x")


@pytest.mark.parametrize("name", ["a\0b", "", "folder"])
def test_what_is_not_a_file_is_said_plainly(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_text(f"{tmp_path}/{name}", "x")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_device_is_not_replaced():
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with pytest.raises(InputError, match="not an ordinary file"):
        write_text("/dev/full", "x")


def test_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]
