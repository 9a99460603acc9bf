# SPDX-License-Identifier: Apache-2.0
"""A federation goes on with other budgets: to a guard it is a new run, and its ledger decides."""

from __future__ import annotations

import hashlib

import pytest

from dpcohort.clients import Population
from dpcohort.deploy.flower import Federation, federate, write_kit
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.guard._terms import terms_from_plan
from dpcohort.runs import replan, verify_run
from dpcohort.runs._folder import checkpoint_files, read_checkpoint


class StopError(Exception):
    pass


class Stop:
    def on_round(self, record, run) -> None:
        raise StopError


def _set_terms(small, client: str, change) -> None:
    path = client_folder(small.kit, client) / "terms.toml"
    path.write_text(change(path.read_text()))
    path.chmod(0o600)


def _stopped(small, out, across: str) -> None:
    """A run that stopped after its first round, under caps that count so across runs."""
    for client in small.federation.clients:
        _set_terms(small, client, lambda text: text.replace('"summed"', f'"{across}"'))
    with small.guards() as guards, pytest.raises(StopError):
        federate(
            small.federation,
            guards.transport(small.federation),
            out=out,
            poll=0.0,
            callbacks=[Stop()],
        )


def _second(small, plan, folder) -> Federation:
    """The operator writes a kit for the new plan; owners accept its run beside the old one."""
    kit = write_kit(folder, **{**small.settings, "plan": plan, "run": "summer"})
    for client in plan.population.ids:
        asked = terms_from_plan(plan, client, run="summer", model=small.settings["model"])
        run = asked[asked.index("[[runs]]") :]
        _set_terms(small, client, lambda text, run=run: f"{text}\n{run}")
    return Federation.load(kit / "server/federation.toml")


def _people(ward: float, lab: float) -> Population:
    return Population.from_arrays(
        ids=["ward 7", "lab"], sizes=[300, 400], epsilon=[ward, lab], delta=1e-5
    )


def test_guards_accept_a_plan_of_what_is_left_and_count_it_with_the_rest(small, tmp_path):
    first, second = tmp_path / "A", tmp_path / "B"
    _stopped(small, first, "composed")
    plan = replan(first, _people(4.0, 8.0), seed=1)
    federation = _second(small, plan, tmp_path / "kit 2")
    with small.guards() as guards:
        run = federate(federation, guards.transport(federation), out=second, poll=0.0, after=first)
    assert run.rounds_done == 2
    assert run.is_private
    assert verify_run(second).holds
    _, state = read_checkpoint(checkpoint_files(first / "checkpoints")[0])
    start = hashlib.sha256(state["parameters"].tobytes()).hexdigest()
    assert run.settings["model"]["initial_sha256"] == start

    from dpcohort.deploy.ledger import read_state
    from dpcohort.deploy.ledger._spending import spent_epsilon

    for k, client in enumerate(plan.population.ids):
        state = read_state(client_folder(small.kit, client) / "client.ledger")
        total = spent_epsilon(state.caps[client], state.counted(client).values())
        assert total == pytest.approx(run.receipt(client).certified_epsilon, rel=1e-3)
        assert total <= plan.population.epsilon[k]


def test_a_guard_has_the_last_word(small, tmp_path):
    """Its cap counts begun runs in full: what the server plans of what is left is not given."""
    first, second = tmp_path / "A", tmp_path / "B"
    _stopped(small, first, "summed")
    plan = replan(first, _people(4.0, 8.0), seed=1)
    federation = _second(small, plan, tmp_path / "kit 2")
    before = {client: small.counted(client) for client in federation.clients}
    with small.guards() as guards:
        run = federate(federation, guards.transport(federation), out=second, poll=0.0, after=first)
    assert any("draws are lost" in words for words in run.warnings)
    assert {client: small.counted(client) for client in federation.clients} == before
    from dpcohort.deploy.ledger import read_state

    for client in federation.clients:
        state = read_state(client_folder(small.kit, client) / "client.ledger")
        assert not state.accounts[client]["summer"].draws
