# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dpcohort.deploy.flower.kit import file_name

IDS = st.text(min_size=1, max_size=300)


@given(IDS)
def test_a_name_is_one_part_of_a_path(client):
    name = file_name(client)
    assert 0 < len(name.encode()) <= 200
    assert (Path("base") / name).resolve().parent == Path("base").resolve()


@given(IDS, IDS)
def test_different_clients_have_different_names(one, other):
    assert (file_name(one) == file_name(other)) == (one == other)


def test_plain_ids_stay_as_they_are():
    assert file_name("client-0.b_c") == "client-0.b_c"
    assert file_name("é" * 100) != file_name("é" * 101)
