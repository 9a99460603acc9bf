# SPDX-License-Identifier: Apache-2.0
"""The client app asks the guard its owner names, and no other."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dpcohort.deploy._formats import replace
from dpcohort.deploy.flower import federate
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.flower._messages import NO_GUARD, draw_message, hello_message, read_frames
from dpcohort.deploy.flower.client_app import carry, carry_to
from dpcohort.deploy.guard import (
    DrawRequest,
    DrawUpdate,
    GuardRefusedError,
    Hello,
    Refusal,
    RunReceipt,
)
from dpcohort.deploy.guard._protocol import HelloRequest
from dpcohort.errors import InputError
from dpcohort.runs import verify_run
from dpcohort.runs._folder import read_log


def _letter(draws, run="spring"):
    request = DrawRequest(
        run=run, plan="p", round=0, draw=0, clip=1.0, noise_multiplier=1.5, sampling_rate=0.1,
        batch_size=10, local_steps=1, sampler="poisson", neighbours="zero-out", step_sizes=[0.5],
        model="m", layout="l", vector=np.zeros(4, dtype=np.float32),
    )  # fmt: skip
    return draw_message("lab", request, draws=draws)


class _Guard:
    """Refuses draw 1 and dies at draw 2."""

    def __enter__(self):
        return self

    def __exit__(self, *how):
        pass

    def ask(self, request):
        return self._hello() if isinstance(request, HelloRequest) else self._draw(request)

    def _hello(self):
        return Hello(
            dpcohort="0", dataset="lab", records=3, dimension=4, model="m", layout="l",
            accepted=None, plan=None, counted=0, key="",
        )  # fmt: skip

    def _draw(self, request):
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
    with pytest.raises(InputError, match=r'guard="SOCKET"; in a simulation.* guards="FOLDER"'):
        carry(b"", config, {})


def test_the_client_app_needs_no_torch():
    code = (
        "import sys; import dpcohort.deploy.flower.client_app; "
        "assert not {'torch', 'flwr', 'sklearn'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# SPDX-License-Identifier: Apache-2.0


def test_real_guards_give_the_plans_cohorts_counts_and_noise(small, tmp_path):
    federation = small.federation
    with small.guards() as guards:
        run = federate(federation, guards.transport(federation), out=tmp_path / "run", poll=0.0)
    plan = federation.plan
    stds = plan.noise_multipliers * plan.training.clip / plan.batch_sizes
    for line in run.history:
        assert list(line.clients) == plan.schedule.cohorts[line.round].tolist()
        assert np.allclose(line.noise_stds, stds[list(line.clients)], rtol=1e-12)
    for k, client in enumerate(plan.population.ids):
        draws = small.counted(client)
        assert len(draws) == plan.counts[k]
        assert all(draw is not None for draw in draws.values())
    assert verify_run(tmp_path / "run").holds
    assert run.is_private

    # The same name again, in another folder: the guards have counted all of it and answer nothing.
    with small.guards() as guards, pytest.raises(InputError, match="run of this name are counted"):
        federate(federation, guards.transport(federation), out=tmp_path / "more", poll=0.0)
    assert not (tmp_path / "more").exists()


def test_a_guard_that_cannot_start_is_an_error_of_its_client_alone(small, tmp_path):
    (client_folder(small.kit, "lab") / "data.npz").unlink()
    federation = replace(small.federation, attempts=1)
    with small.guards() as guards, pytest.raises(InputError, match="lab: no answer"):
        federate(federation, guards.transport(federation), out=tmp_path / "run", poll=0.0)


def test_a_ledger_that_cannot_be_written_spends_nothing(small, tmp_path, monkeypatch):
    from dpcohort.deploy.ledger._store import LedgerStore

    with small.guards() as guards:
        transport = guards.transport(small.federation)
        for client in small.federation.clients:
            guards.carry(hello_message(client, run="spring"))  # opened while all was well

        def full(self, *row):
            raise InputError.because("the disk is full")

        monkeypatch.setattr(LedgerStore, "append", full)
        run = federate(small.federation, transport, out=tmp_path / "run", poll=0.0)
        monkeypatch.undo()
    assert all(line.lost for line in run.history)
    assert small.counted("lab") == {}
    lost = read_log(tmp_path / "run" / "exchange.jsonl")[0]["lost"]
    assert "ledger" in str(lost)
