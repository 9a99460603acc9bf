# SPDX-License-Identifier: Apache-2.0
"""Signatures of guards over their own draws, checked by ``verify``."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest

from dpcohort.deploy.secure_aggregation import Identity
from dpcohort.runs import verify_run
from dpcohort.runs._seal import write_sealed
from dpcohort.signatures import DrawSignature


@pytest.fixture
def identities(plan):
    return {client: Identity(os.urandom(32)) for client in plan.population.ids}


def lines_of(plan, identities, sha256=None):
    """A signed line for every draw of the plan."""
    for round, cohort in enumerate(plan.schedule.cohorts):
        for place, k in enumerate(cohort):
            client = plan.population.ids[k]
            draw = int(np.count_nonzero(cohort[:place] == k))
            one = DrawSignature(round, draw, client, identities[client].public, "0" * 64, "")
            content = one.content("", sha256 or plan.sha256)
            yield one._replace(signature=identities[client].sign_bytes(content))._asdict()


def verified(folder, lines, members=None):
    """The verification of a run with these signatures, sealed with them."""
    if members is not None:
        settings = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**settings, "members": members}))
    if lines is not None:
        (folder / "signatures.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    result = json.loads((folder / "result.json").read_text())
    write_sealed(folder, {k: v for k, v in result.items() if k not in ("sha256", "seal")})
    found = verify_run(folder, method="pld")
    return found, [one.message for one in found.findings if one.subject == "signatures.jsonl"]


def test_signatures_of_all_draws_are_told(finished, plan, identities):
    found, wrong = verified(finished, lines_of(plan, identities))
    assert found.holds, found.findings
    assert not wrong
    drawn = int(plan.drawn.sum())
    assert found.guards.startswith(f"signed by {drawn} of {drawn} clients")
    assert "0 draws not signed" in found.guards
    assert found.to_dict()["guards"] == found.guards


def test_a_missing_signature_is_told_and_breaks_nothing(finished, plan, identities):
    lines = list(lines_of(plan, identities))[1:]
    found, wrong = verified(finished, lines)
    assert found.holds
    assert not wrong
    assert "1 draw not signed" in found.guards


def changed(plan, identities, change):
    """The lines, the first of them changed."""
    first, *others = lines_of(plan, identities)
    return [change(first), *others]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: {**line, "signature": "0" * 128}, "line 1: .* has not signed draw 0 of"),
        (lambda line: {**line, "signature": None}, "signature"),
        (lambda line: {**line, "released": "1" * 64}, "has not signed"),
        (lambda line: {**line, "steps": 9}, "exactly the keys"),
        (lambda line: {**line, "key": Identity(os.urandom(32)).public}, "not signed"),
        (lambda line: {**line, "draw": 99}, "the ledger counts no draw 99"),
        (lambda line: {**line, "draw": -1}, "the ledger counts no draw -1"),
        (lambda line: {**line, "round": 99}, "the ledger counts no draw"),
        (lambda line: {**line, "round": True}, "round"),
        (lambda line: {**line, "client": "nobody"}, "counts no draw 0 of 'nobody'"),
        (lambda line: {}, "exactly the keys"),
    ],
)
def test_a_wrong_signature_breaks_the_run(finished, plan, identities, change, words):
    found, wrong = verified(finished, changed(plan, identities, change))
    assert not found.holds
    assert any(re.search(words, message) for message in wrong)


def test_a_line_again_is_the_same_and_another_answer_is_not(finished, plan, identities):
    lines = list(lines_of(plan, identities))
    _, wrong = verified(finished, [*lines, lines[0]])
    assert not wrong
    one = DrawSignature(**lines[0])._replace(released="1" * 64)
    signer = identities[one.client]
    again = one._replace(signature=signer.sign_bytes(one.content("", plan.sha256)))
    _, wrong = verified(finished, [*lines, again._asdict()])
    assert ["released two different answers for draw 0" in message for message in wrong] == [True]


def test_a_signature_for_another_plan_is_none(finished, plan, identities):
    found, _ = verified(finished, lines_of(plan, identities, "f" * 64))
    assert not found.holds


def test_keys_are_those_that_the_run_began_with(finished, plan, identities):
    strangers = {client: Identity(os.urandom(32)).public for client in identities}
    found, wrong = verified(finished, lines_of(plan, identities), members=strangers)
    assert not found.holds
    assert all("another key than its own" in message for message in wrong)


def test_cards_of_members_are_checked(finished, plan, identities):
    """Keys of masked sums are those that the members signed for this very run and plan."""
    first, second = [plan.population.ids[k] for k in np.flatnonzero(plan.drawn)[:2]]

    def card(client, sha256=plan.sha256, by=None):
        said = ("card", "", sha256, client, "ab" * 32)
        signature = identities[by or client].sign(*said)
        return {"member": client, "key": "ab" * 32, "signature": signature}

    def wrong_with(**changed):
        stored = {plan.population.ids[k]: {"spending": {}} for k in np.flatnonzero(plan.drawn)}
        stored = {client: {**one, "card": card(client)} for client, one in stored.items()}
        stored[first] |= changed
        stored[first] = {key: value for key, value in stored[first].items() if value}
        (finished / "client-ledgers.json").write_text(json.dumps(stored))
        found, wrong = verified(finished, lines_of(plan, identities))
        assert found.holds is not bool(wrong), found.findings
        assert f"{int(plan.drawn.sum()) - (changed.get('card') == {})} cards" in found.guards
        return wrong

    assert not wrong_with()
    for bad, words in (
        (card(first, by=second), "is not signed by"),
        (card(first, "f" * 64), "is not signed by"),
        (card(second), "gave a card of"),
        ({"member": first}, "missing"),
        ("no card", "card of"),
        ({}, "no card of"),
    ):
        assert [words in message for message in wrong_with(card=bad)] == [True]


def test_what_is_no_log_breaks_the_run(finished):
    (finished / "signatures.jsonl").write_text("nonsense\n")
    assert not verify_run(finished, method="pld").holds
