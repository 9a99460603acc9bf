# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpcohort.errors import FileFormatError
from dpcohort.limits import check_unpacking, read_bounded


def test_a_file_is_read_up_to_its_limit_and_no_further(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(FileFormatError, match="has 5 bytes; at most 4 are allowed"):
        read_bounded(path, 4)
    os.truncate(path, 10**12)  # sparse: takes no room
    with pytest.raises(FileFormatError, match="has 1,000,000,000,000 bytes"):
        read_bounded(path, 10**9)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_a_device_without_end_is_read_no_further(tmp_path):
    (tmp_path / "rounds.jsonl").symlink_to("/dev/zero")
    with pytest.raises(FileFormatError, match="has more bytes; at most 1,000"):
        read_bounded(tmp_path / "rounds.jsonl", 1000)


def test_what_a_file_unpacks_to_is_in_proportion_to_it(tmp_path):
    path = tmp_path / "packed"
    path.write_bytes(b"x")
    check_unpacking(path, 1 << 30, "")
    with pytest.raises(FileFormatError, match=r"its 1 bytes would unpack to .* Save it plain\."):
        check_unpacking(path, (1 << 30) + 1, "Save it plain.")
    os.truncate(path, 1 << 30)  # what is large itself may unpack to more
    check_unpacking(path, 20 << 30, "")
