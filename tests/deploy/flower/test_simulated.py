# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.deploy.flower.client_app import carry_in_simulation
from dpcohort.deploy.flower.messages import hello_letter
from dpcohort.deploy.flower.rounds import federate
from dpcohort.deploy.formats import replace
from dpcohort.errors import DpcohortError, InputError
from dpcohort.runs import verify_run
from dpcohort.runs.append_log import read_log


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
        assert len(draws) == plan.schedule.counts[k]
        assert all(draw.released is not None for draw in draws.values())
    assert verify_run(tmp_path / "run").holds
    assert run.is_private

    # The same name again, in another folder: the guards have counted all of it and answer nothing.
    with small.guards() as guards, pytest.raises(InputError, match="run of this name are counted"):
        federate(federation, guards.transport(federation), out=tmp_path / "more", poll=0.0)
    assert not (tmp_path / "more").exists()


def test_a_clients_ledger_is_made_once(small, tmp_path):
    """The first time it is asked; one that is gone later is missed."""
    federation = small.federation
    with small.guards() as guards:
        federate(federation, guards.transport(federation), out=tmp_path / "run", poll=0.0)
    for name in ("client.ledger", "client.ledger.counter"):
        (small.kit.client("lab") / name).unlink()
    with small.guards() as guards, pytest.raises(DpcohortError, match="no ledger at"):
        federate(federation, guards.transport(federation), out=tmp_path / "more", poll=0.0)


def test_terms_weaker_than_the_plan_spend_nothing(small, tmp_path):
    terms = small.kit.client("lab") / "terms.toml"
    text = terms.read_text()
    planned = int(small.federation.plan.schedule.counts[1])
    assert f"draws = {planned} " in text
    terms.write_text(text.replace(f"draws = {planned} ", f"draws = {planned - 1} "))
    terms.chmod(0o600)
    with small.guards() as guards, pytest.raises(InputError, match="lab: its terms allow draws"):
        federate(
            small.federation, guards.transport(small.federation), out=tmp_path / "run", poll=0.0
        )
    assert not (tmp_path / "run").exists()
    assert small.counted("lab") == small.counted("ward 7") == {}


def test_a_plan_for_other_data_spends_nothing(small, tmp_path):
    plan = small.federation.plan
    path = small.kit.client("lab") / "data.npz"
    with np.load(path) as data:
        more = {name: np.concatenate([data[name], data[name][:1]]) for name in data}
    np.savez(path, **more)
    path.chmod(0o600)
    with small.guards() as guards:
        transport = guards.transport(small.federation)
        with pytest.raises(InputError, match="401 records, the plan is for 400"):
            federate(small.federation, transport, out=tmp_path / "run", poll=0.0)
    assert not (tmp_path / "run").exists()
    assert int(plan.schedule.counts[1]) > 0


def test_a_guard_that_cannot_start_is_an_error_of_its_client_alone(small, tmp_path):
    (small.kit.client("lab") / "data.npz").unlink()
    federation = replace(small.federation, attempts=1)
    with small.guards() as guards, pytest.raises(InputError, match="lab: no answer"):
        federate(federation, guards.transport(federation), out=tmp_path / "run", poll=0.0)


def test_a_ledger_that_cannot_be_written_spends_nothing(small, tmp_path, monkeypatch):
    from dpcohort.deploy.ledger.store import LedgerStore

    with small.guards() as guards:
        transport = guards.transport(small.federation)
        for client in small.federation.clients:
            guards.carry(hello_letter(client, run="spring"))  # opened while all was well

        def full(self, *row):
            raise InputError.because("the disk is full")

        monkeypatch.setattr(LedgerStore, "append", full)
        run = federate(small.federation, transport, out=tmp_path / "run", poll=0.0)
        monkeypatch.undo()
    assert all(line.lost for line in run.history)
    assert small.counted("lab") == {}
    lost = read_log(tmp_path / "run" / "exchange.jsonl")[0]["lost"]
    assert "ledger" in str(lost)


def test_a_simulation_needs_the_guards_folder():
    with pytest.raises(DpcohortError, match='guards="FOLDER"'):
        carry_in_simulation(b"", {"partition-id": 1}, {})
