# SPDX-License-Identifier: Apache-2.0
"""A server that asks for more than was accepted, and a plain model of what must be granted."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpcohort.accounting import Event, History
from dpcohort.deploy._formats import replace
from dpcohort.deploy.ledger import ClientLedger, DrawKey, LifetimeCap, read_state, verify_ledger
from dpcohort.errors import BudgetExceededError, InputError

ODD = [float("nan"), float("inf"), -1.0, 0.0, 1e308, "2", None, b"", [], True]

#: One part of a good request made greedy; everything else stays as accepted.
GREEDY = st.one_of(
    st.tuples(st.just("noise_multiplier"), st.floats(1e-6, 1.999)),
    st.tuples(st.just("sampling_rate"), st.floats(1e-6, 1.0).filter(lambda r: r != 0.1)),
    st.tuples(st.just("steps"), st.integers(0, 10**9).filter(lambda n: n != 1)),
    st.tuples(st.just("clip"), st.floats(1.0, 1e300, exclude_min=True)),
    st.tuples(st.just("round"), st.integers(60, 10**9)),
    st.tuples(st.just("run"), st.text(max_size=30).filter(lambda name: name != "spring")),
    st.tuples(st.just("dataset"), st.text(max_size=30).filter(lambda name: name != "ward")),
    st.tuples(st.just("neighbours"), st.sampled_from(["replace-one", "add-remove", "", 3])),
    st.tuples(st.just("sampler"), st.sampled_from(["fixed", "shuffle", "", 3])),
    st.tuples(
        st.sampled_from(["noise_multiplier", "sampling_rate", "steps", "clip", "round", "draw"]),
        st.sampled_from(ODD),
    ).filter(lambda pair: pair not in [("noise_multiplier", 1e308), ("round", 0.0), ("draw", 0.0)]),
)
GOOD = {
    "dataset": "ward",
    "run": "spring",
    "round": 0,
    "draw": 0,
    "clip": 1.0,
    "noise_multiplier": 2.0,
    "sampling_rate": 0.1,
    "steps": 1,
    "sampler": "poisson",
    "neighbours": None,
}


def ask(ledger, request):
    """Reserve from plain values, as a message from a server would be."""
    values = dict(request)
    clip = values.pop("clip")
    where = {name: values.pop(name) for name in ("dataset", "run", "round", "draw")}
    ledger.reserve(DrawKey(**where), Event.of(**values), clip=clip)


@settings(
    max_examples=1000,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(greedy=GREEDY)
def test_a_thousand_greedy_requests_are_refused(ledger, greedy):
    field, value = greedy
    with pytest.raises(InputError):
        ask(ledger, {**GOOD, field: value})
    assert ledger.head[0] == 3  # nothing was written


@pytest.mark.parametrize("seed", [0, 1])
def test_any_order_of_requests_agrees_with_a_plain_model(path, terms, seed):
    """Grants, refusals and stored bytes against a dictionary and one composition a draw."""
    dice = random.Random(seed)
    cap = LifetimeCap(epsilon=1.2, delta=1e-5)
    runs = {"a": replace(terms, draws=12), "b": replace(terms, least_noise_multiplier=1.5, draws=9)}
    runs["b"] = replace(runs["b"], epsilon=4.0)
    model: dict[DrawKey, bytes | None] = {}
    ledger = ClientLedger.create(path)
    ledger.register("ward", cap)
    for run, accepted in runs.items():
        ledger.accept("ward", run, accepted)
    in_hand: set[DrawKey] = set()

    def charge(keys):
        counts = {run: sum(key.run == run for key in keys) for run in runs}
        return History(tuple(runs[run].charge(n) for run, n in counts.items() if n))

    def may_reserve(key):
        mine = sum(other.run == key.run for other in model)
        return (
            key not in model
            and mine < runs[key.run].draws
            and charge([*model, key]).delta(cap.epsilon) <= cap.delta
        )

    for _ in range(250):
        run = dice.choice("ab")
        key = DrawKey(dataset="ward", run=run, round=dice.randrange(8), draw=dice.randrange(3))
        action = dice.choice(["reserve", "reserve", "release", "output", "restart"])
        if action == "restart" and dice.random() < 0.3:
            ledger.close()
            ledger, in_hand = ClientLedger(path), set()
        elif action == "reserve":
            expected = may_reserve(key)
            assert granted(ledger.reserve, key, runs[run].charge(1), clip=1.0) == expected
            if expected:
                model[key] = None
                in_hand.add(key)
        elif action == "release":
            update = dice.choice([b"one", b"two"])
            fresh = key in in_hand and model[key] is None
            expected = fresh or model.get(key) == update
            assert granted(ledger.release, key, update) == expected
            if expected:
                model[key] = update
        elif action == "output":
            found = granted(ledger.output, key)
            assert found == (model.get(key) is not None)
            if found:
                assert ledger.output(key) == model[key]
    ledger.close()
    state = read_state(path)
    assert sum(len(account.draws) for account in state.accounts["ward"].values()) == len(model)
    assert verify_ledger(path).findings == ()
    refused_by_cap = [
        DrawKey(dataset="ward", run="b", round=50, draw=0),
        DrawKey(dataset="ward", run="a", round=50, draw=0),
    ]
    assert not all(may_reserve(key) for key in refused_by_cap)  # the limits were reached


def granted(action, *arguments, **options):
    try:
        action(*arguments, **options)
    except (BudgetExceededError, InputError):
        return False
    return True
