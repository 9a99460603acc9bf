# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.errors import InputError, VerificationError
from dpcohort.runs._folder import (
    checkpoint_files,
    latest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)


def arrays(value: float) -> dict[str, np.ndarray]:
    return {"parameters": np.full(5, value, np.float32), "next_round": np.asarray(3)}


def test_the_last_two_are_kept_and_the_newest_is_used(tmp_path):
    for t in (1, 2, 3):
        write_checkpoint(tmp_path, arrays(t), next_round=t, owner="me")
    assert [p.name for p in sorted(tmp_path.iterdir())] == [
        "round-0000002.safetensors",
        "round-0000003.safetensors",
    ]
    next_round, found, problems = latest_checkpoint(tmp_path, owner="me")
    assert (next_round, problems) == (3, [])
    assert np.array_equal(found["parameters"], np.full(5, 3.0, np.float32))
    assert found["next_round"].shape == ()


def test_every_flipped_byte_is_noticed(tmp_path):
    path = write_checkpoint(tmp_path, arrays(1.0), next_round=1, owner="me")
    whole = path.read_bytes()
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 0x10
        path.write_bytes(broken)
        # A byte of the free text around the content may change without changing the content.
        try:
            next_round, found = read_checkpoint(path, owner="me")
        except (VerificationError, InputError):
            continue
        assert next_round == 1
        assert all(np.array_equal(found[name], value) for name, value in arrays(1.0).items())


def test_a_damaged_newest_gives_way_to_the_one_before(tmp_path):
    write_checkpoint(tmp_path, arrays(1.0), next_round=1, owner="me")
    newest = write_checkpoint(tmp_path, arrays(2.0), next_round=2, owner="me")
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    next_round, _, problems = latest_checkpoint(tmp_path, owner="me")
    assert next_round == 1
    assert "damaged" in problems[0]
    assert checkpoint_files(tmp_path)[0] == newest


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    write_checkpoint(tmp_path, arrays(1.0), next_round=1, owner="me")
    with pytest.raises(InputError, match="another run"):
        latest_checkpoint(tmp_path, owner="you")
