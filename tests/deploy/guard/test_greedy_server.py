# SPDX-License-Identifier: Apache-2.0
"""A server that asks for more than was accepted, in a thousand ways and under a hundred names."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard import DrawUpdate, Refusal
from dpcohort.deploy.guard._protocol import decode
from dpcohort.deploy.ledger import lifetime_receipt, read_state, verify_ledger
from dpcohort.errors import InputError

#: What the trainer would give out, and what is in the records; neither may get into a refusal.
SECRET = 0.47110815


class Forbidden:
    """A trainer that must not be reached."""

    dimension = 18
    calls = 0

    def __init__(self, layout):
        self.layout = layout

    def update(self, *_, **__):
        self.calls += 1
        return np.full(18, SECRET, np.float32)


def frame(header, payload):
    text = json.dumps(header).encode()
    return b"DPG1" + struct.pack("<IQ", len(text), len(payload)) + text + payload


def ask(handler, header, payload):
    """As the socket does it: what is no message is refused as malformed."""
    try:
        message = decode(frame(header, payload))
    except InputError as error:
        return Refusal(code="malformed", message=str(error))
    return handler.answer(message)


ODD = st.sampled_from([None, True, "1", "", [], {}, [1], -1, -0.5, 0, 1e308, 10**30, "NaN"])
NAN = st.sampled_from([float("nan"), float("inf"), float("-inf")])
FIELDS = [
    "run", "plan", "round", "draw", "clip", "noise_multiplier", "sampling_rate", "batch_size",
    "local_steps", "sampler", "neighbours", "step_sizes", "model", "layout",
]  # fmt: skip


def apart(field, values):
    return st.tuples(st.just(field), values)


GREEDY = st.one_of(
    apart("noise_multiplier", st.floats(0, 1.9999)),
    apart("noise_multiplier", st.floats(1e8, 1e300)),
    apart("clip", st.floats(1.0, 1e300, exclude_min=True)),
    apart("sampling_rate", st.floats(0, 1).filter(lambda r: r != 0.25)),
    apart("batch_size", st.integers(-5, 100).filter(lambda n: n != 10)),
    apart("local_steps", st.integers(-5, 10**9).filter(lambda n: n != 2)),
    apart("round", st.one_of(st.integers(8, 10**12), st.integers(-(10**6), -1))),
    apart("draw", st.integers(-(10**6), -1)),
    apart("run", st.text(max_size=30).filter(lambda run: run != "spring")),
    apart("plan", st.text("0123456789abcdef", min_size=64, max_size=64)),
    apart("model", st.text("0123456789abcdef", min_size=64, max_size=64)),
    apart("layout", st.text(max_size=64)),
    apart("sampler", st.sampled_from(["fixed", "shuffle", "", "POISSON"])),
    apart("neighbours", st.sampled_from(["replace-one", "add-remove", ""])),
    apart("step_sizes", st.lists(st.floats(-1, 1), max_size=9).filter(lambda a: len(a) != 2)),
    apart("step_sizes", st.lists(st.floats(1e7, 1e300), min_size=2, max_size=2)),
    apart("step_sizes", st.lists(NAN, min_size=2, max_size=2)),
    st.tuples(st.sampled_from(FIELDS), NAN),
    st.tuples(st.sampled_from(FIELDS), ODD).filter(
        # Zero is a round and a draw; -1 and the like are none. 1e308 is noise, and refused.
        lambda pair: pair not in [("round", 0), ("draw", 0), ("draw", 10**30)]
    ),
    apart("payload", st.binary(max_size=80).filter(lambda raw: len(raw) != 72)),
    apart("payload", st.tuples(st.integers(0, 17), NAN)),
    apart("more", st.sampled_from(["seed", "noise", "kind ", "sigma"])),
    apart("less", st.sampled_from(FIELDS)),
)


@pytest.fixture
def handler(open_handler, good):
    return open_handler(trainer=Forbidden(good().layout))


@settings(
    max_examples=1000,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(greedy=GREEDY)
def test_a_thousand_greedy_requests_are_refused(handler, good, data_file, greedy):
    field, value = greedy
    request = good()
    header = {"kind": "draw?", **request.header()}
    payload = request.vector.tobytes()
    if field == "payload" and isinstance(value, tuple):
        vector = request.vector.copy()
        vector[value[0]] = value[1]
        payload = vector.tobytes()
    elif field == "payload":
        payload = value
    elif field == "more":
        header[value] = 1
    elif field == "less":
        del header[value]
    else:
        header[field] = value
    answer = ask(handler, header, payload)
    assert isinstance(answer, Refusal)
    assert not answer.counted
    assert handler._trainer.calls == 0
    assert handler.ledger.head[0] == 3  # opened, registered, accepted: nothing was spent
    assert "0.4711" not in answer.message
    assert len(answer.message) < 600


@pytest.mark.parametrize("across_runs", ["summed", "composed"])
def test_a_hundred_runs_under_new_names_never_pass_the_lifetime_cap(
    open_handler, good, terms, folder, across_runs
):
    """Even an owner who accepts every run is protected by the cap."""
    small = replace(
        terms.runs[0], epsilon=1.0, draws=2, least_noise_multiplier=None, plan=None, delta=1e-7
    )
    runs = tuple(replace(small, run=f"run-{i}") for i in range(100))
    handler = open_handler(
        replace(terms, runs=runs, across_runs=across_runs, lifetime_epsilon=3.0),
        trainer=Forbidden(good().layout),
    )
    noise = handler.ledger.terms("ward", "run-0").least_noise_multiplier
    granted = refused = 0
    for run in runs:
        for round in range(2):
            answer = handler.answer(good(run=run.run, round=round, noise_multiplier=noise))
            granted += isinstance(answer, DrawUpdate)
            refused += isinstance(answer, Refusal) and answer.code == "exhausted"
    assert granted + refused == 200
    assert granted == handler._trainer.calls
    if across_runs == "summed":
        assert granted == 6  # three runs of epsilon 1
    assert 6 <= granted < 200
    handler.ledger.close()
    state = read_state(folder / "ward.ledger")
    receipt = lifetime_receipt(state, "ward")
    assert receipt.holds
    assert receipt.certified_epsilon <= 3.0
    assert verify_ledger(folder / "ward.ledger").findings == ()
