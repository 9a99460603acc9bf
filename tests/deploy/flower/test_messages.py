# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.deploy.flower._messages import draw_message, open_message
from dpcohort.deploy.guard import DrawRequest
from dpcohort.deploy.guard._protocol import ReceiptRequest, encode
from dpcohort.errors import InputError


def request(**changes):
    values = {
        "run": "spring", "plan": "p", "round": 2, "draw": 0, "clip": 1.0, "noise_multiplier": 1.5,
        "sampling_rate": 0.1, "batch_size": 10, "local_steps": 1, "sampler": "poisson",
        "neighbours": "zero-out", "step_sizes": [0.5], "model": "m", "layout": "l",
        "vector": np.arange(4, dtype=np.float32),
    }  # fmt: skip
    return DrawRequest(**{**values, **changes})


def test_a_letter_holds_all_draws_of_a_client_and_the_model_once():
    body = draw_message("ward 7", request(), draws=[0, 3, 1])
    opened = open_message(body)
    assert (opened.client, opened.asks) == ("ward 7", "draws")
    assert [one.draw for one in opened.requests] == [0, 3, 1]
    assert all(np.array_equal(one.vector, np.arange(4)) for one in opened.requests)
    assert len(body) < len(draw_message("ward 7", request(), draws=[0])) + 20


@pytest.mark.parametrize("draws", [[], [0, 0]], ids=["none", "twice"])
def test_a_letter_asks_for_different_draws(draws):
    with pytest.raises(InputError, match="draws"):
        draw_message("a", request(), draws=draws)


GOOD = draw_message("a", request(), draws=[0])
FRAME = GOOD.partition(b"\n")[2]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no line",
        b"{}\n" + FRAME,
        b"[1]\n" + FRAME,
        b"not json\n" + FRAME,
        GOOD[:-1],
        GOOD + b"x",
        GOOD.replace(b'"asks": "draws"', b'"asks": "receipt"'),
        GOOD.replace(b'"client": "a"', b'"client": 7'),
        GOOD.replace(b'"draws": [0]', b'"draws": [true]'),
        GOOD.replace(b'"draws": [0]', b'"draws": []'),
        GOOD.replace(b'"draws": [0]', b'"draws": "0"'),
        GOOD.partition(b"\n")[0] + b"\n" + encode(ReceiptRequest(run="spring")),
        b"\xff\xfe" * 600_000 + b"\n",
    ],
    ids=range(14),
)
def test_what_is_no_letter_is_refused(body):
    with pytest.raises(InputError):
        open_message(body)
