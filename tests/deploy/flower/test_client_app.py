# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dpcohort.deploy.flower.client_app import carry, carry_to, guard_socket
from dpcohort.deploy.flower.messages import NO_GUARD, draw_letter, hello_letter, read_frames
from dpcohort.deploy.guard.client import GuardRefusedError
from dpcohort.deploy.guard.protocol import DrawRequest, DrawUpdate, Hello, Refusal, RunReceipt
from dpcohort.errors import InputError


def _letter(draws, run="spring"):
    request = DrawRequest(
        run=run, plan="p", round=0, draw=0, clip=1.0, noise_multiplier=1.5, sampling_rate=0.1,
        batch_size=10, local_steps=1, sampler="poisson", neighbours="zero-out", step_sizes=[0.5],
        model="m", layout="l", vector=np.zeros(4, dtype=np.float32),
    )  # fmt: skip
    return draw_letter("lab", request, draws=draws)


class _Guard:
    """Refuses draw 1 and dies at draw 2."""

    def __enter__(self):
        return self

    def __exit__(self, *how):
        pass

    def hello(self, run):
        return Hello(
            dpcohort="0", dataset="lab", records=3, dimension=4, model="m", layout="l",
            accepted=None, plan=None, counted=0,
        )  # fmt: skip

    def draw(self, request):
        if request.draw == 1:
            raise GuardRefusedError(Refusal(code="terms", message="too much", counted=False))
        if request.draw == 2:
            raise InputError.because("the guard gave no answer")
        vector = np.full(4, request.draw, dtype=np.float32)
        return DrawUpdate(run=request.run, round=0, draw=request.draw, resent=False, vector=vector)

    def receipt(self, run):
        if run == "strange":
            raise GuardRefusedError(Refusal(code="not-accepted", message="", counted=False))
        return RunReceipt(dataset="lab", spending={}, entries=1, head="h", ledger="l")


def test_draws_are_answered_in_their_order_and_the_receipt_follows():
    frames = list(read_frames(carry_to(_Guard, _letter([3, 1, 0]))))
    assert [type(frame).__name__ for frame in frames] == [
        "DrawUpdate",
        "Refusal",
        "DrawUpdate",
        "RunReceipt",
    ]
    assert (frames[0].draw, frames[1].code, frames[2].draw) == (3, "terms", 0)


def test_a_hello_is_answered_with_a_hello():
    (frame,) = read_frames(carry_to(_Guard, hello_letter("lab", run="spring")))
    assert frame.dataset == "lab"


def test_a_guard_that_dies_in_between_is_said_for_the_rest():
    frames = list(read_frames(carry_to(_Guard, _letter([0, 2, 3]))))
    assert frames[0].draw == 0
    assert [(frame.code, frame.counted) for frame in frames[1:]] == [(NO_GUARD, False)] * 2


def test_a_run_without_receipt_still_brings_the_refusals():
    frames = list(read_frames(carry_to(_Guard, _letter([1], run="strange"))))
    assert [frame.code for frame in frames] == ["terms"]


def test_a_guard_that_is_not_running_is_said(tmp_path):
    config = {"guard": str(tmp_path / "no.sock")}
    (frame,) = read_frames(carry(_letter([0]), config))
    assert frame.code == NO_GUARD
    assert "no guard answers" in frame.message


@pytest.mark.parametrize("config", [{}, {"partition-id": 1}, {"guard": ""}, {"guard": 7}])
def test_a_node_without_guard_says_what_it_needs(config):
    with pytest.raises(InputError, match='guard="SOCKET"'):
        guard_socket(config)


def test_the_courier_needs_no_torch():
    code = (
        "import sys; import dpcohort.deploy.flower.client_app; "
        "assert not {'torch', 'flwr', 'sklearn'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
