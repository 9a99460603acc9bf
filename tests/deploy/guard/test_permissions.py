# SPDX-License-Identifier: Apache-2.0
"""Files that others could open or exchange stop a guard."""

from __future__ import annotations

import os

import pytest

from dpcohort.deploy.guard.files import check_closed_folder, check_private, check_unwritable
from dpcohort.errors import InputError


@pytest.fixture
def file(folder):
    path = folder / "inner" / "data"
    path.parent.mkdir(mode=0o700)
    path.write_text("secret 4711")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_closed_files_pass(file, mode):
    file.chmod(mode)
    check_private(file, "data")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o602, 0o601])
def test_open_files_are_refused_with_the_way_out(file, mode):
    file.chmod(mode)
    with pytest.raises(InputError, match=f"mode {mode:04o}.*chmod 600") as caught:
        check_private(file, "data")
    assert "4711" not in str(caught.value)


def test_terms_may_be_read_but_not_written_by_others(file):
    file.chmod(0o644)
    check_unwritable(file, "terms")
    file.chmod(0o664)
    with pytest.raises(InputError, match="chmod go-w"):
        check_unwritable(file, "terms")


def test_a_folder_in_which_others_write_is_refused(file):
    file.parent.chmod(0o777)
    with pytest.raises(InputError, match="exchange"):
        check_private(file, "data")
    file.parent.chmod(0o1777)  # with the sticky bit others cannot exchange the file
    check_private(file, "data")


def test_a_folder_above_counts_too(file, folder):
    folder.chmod(0o777)
    with pytest.raises(InputError, match="exchange"):
        check_closed_folder(file.parent, "data")


def test_a_sticky_folder_is_not_enough_where_files_beside_ours_are_opened(file):
    file.parent.chmod(0o1777)
    check_closed_folder(file.parent, "ledger")
    with pytest.raises(InputError, match="exchange"):
        check_closed_folder(file.parent, "ledger", shared=False)
    file.parent.chmod(0o700)
    check_closed_folder(file.parent, "ledger", shared=False)  # /dev/shm or /tmp above is sticky


def test_a_link_is_followed_to_the_folder_that_holds_the_file(file, folder):
    """The link is in a closed folder, what it points to is not."""
    place = folder / "linked"
    place.mkdir(mode=0o700)
    (place / "data").symlink_to(file)
    check_private(place / "data", "data")
    file.parent.chmod(0o777)
    with pytest.raises(InputError, match="exchange"):
        check_private(place / "data", "data")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777], ids=oct)
def test_a_folder_of_another_user_is_refused(file, mode):
    """Whoever owns a folder can exchange what is in it, whatever its mode says."""
    file.parent.chmod(mode)
    os.chown(file.parent, 12345, -1)
    with pytest.raises(InputError, match="belongs to user 12345"):
        check_private(file, "data")


def test_what_is_not_there_is_said(folder):
    with pytest.raises(InputError, match="No such file"):
        check_private(folder / "none", "data")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_owner_is_refused(file):
    os.chown(file, 12345, -1)
    with pytest.raises(InputError, match="belongs to user 12345"):
        check_private(file, "data")
