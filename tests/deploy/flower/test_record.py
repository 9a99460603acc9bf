# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math

import pytest

from dpcohort import make_plan
from dpcohort.accounting import Charge
from dpcohort.deploy._formats import replace
from dpcohort.deploy.flower import Federation, write_kit
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.flower._record import FederatedJob, write_exchange
from dpcohort.deploy.guard import GuardTerms
from dpcohort.engine import EngineState
from dpcohort.engine._experiment import cohort_of
from dpcohort.errors import InputError
from dpcohort.plan import Plan
from dpcohort.round_record import RoundRecord
from dpcohort.runs import Run
from dpcohort.runs._folder import read_log
from dpcohort.runs._recorder import Recorder

EXCHANGE = {
    "round": 0, "asked": 3, "came": 2, "resent": 1, "passed_over": False,
    "lost": {"lab": {1: "lost: gone"}}, "errors": {"lab": ["error 5: unavailable"]},
}  # fmt: skip


@pytest.fixture
def job(small):
    return FederatedJob.of(small.federation)


def test_the_server_knows_sizes_and_no_records(job):
    partition = job.partition
    assert partition.sizes.tolist() == [300, 400]
    assert partition.indices.tolist() == list(range(700))
    assert partition.names == ("ward 7", "lab")
    assert job.settings()["data"]["name"] == "held by the clients"


def test_a_plan_for_another_model_is_refused(small):
    federation = replace(
        small.federation, model=replace(small.federation.model, input_shape=(1, 4, 4))
    )
    with pytest.raises(InputError, match=r"plan was made for a model of 650 parameters.*170"):
        FederatedJob.of(federation)


def test_a_local_rule_is_refused_by_name(small):
    steps = {"local": "fedprox", "local_settings": {"mu": 0.1}}
    with pytest.raises(InputError, match=r"guards take plain local steps.*fedprox"):
        FederatedJob.of(replace(small.federation, optimiser=steps))


def test_what_was_lost_is_written_and_told(job, tmp_path):
    recorder = Recorder(job, tmp_path / "run")
    write_exchange(recorder.run, EXCHANGE, {})
    recorder.close()
    (line,) = read_log(tmp_path / "run" / "exchange.jsonl")
    assert line["lost"] == {"lab": {"1": "lost: gone"}}
    assert (line["asked"], line["came"], line["resent"]) == (3, 2, 1)
    assert "1 of 3 draws are lost (lab)" in recorder.run.warnings[0]


def test_a_round_passed_over_is_kept_as_lost(job, tmp_path):
    recorder = Recorder(job, tmp_path / "run")
    recorder.begin(EngineState(job.initial()))
    cohort = cohort_of(job.plan, 0)
    recorder.count(0, cohort.clients)
    state = EngineState(job.initial(), next_round=1)
    record = RoundRecord(
        round=0,
        clients=tuple(cohort.clients.tolist()),
        noise_stds=tuple(cohort.noise_stds.tolist()),
        seconds=0.1,
        lost=True,
    )
    line = recorder.after_round(record, state)
    recorder.close()
    assert line.lost
    assert math.isnan(line.seconds)
    again = Recorder(job, tmp_path / "run", resume=True)
    assert again.start(EngineState(job.initial())).next_round == 1
    again.close()


def test_a_finished_folder_says_what_the_clients_counted(job, tmp_path, fakes):
    recorder = Recorder(job, tmp_path / "run")
    write_exchange(recorder.run, EXCHANGE, {"lab": fakes["lab"].receipt("spring")})
    fakes["lab"].done[(0, 0)] = "x"
    write_exchange(recorder.run, EXCHANGE, {"ward 7": fakes["ward 7"].receipt("spring")})
    write_exchange(recorder.run, EXCHANGE, {"lab": fakes["lab"].receipt("spring")})
    recorder.close()
    told = json.loads((tmp_path / "run" / "client-ledgers.json").read_text())
    assert {client: one["spending"]["counted_draws"] for client, one in told.items()} == {
        "lab": 1,
        "ward 7": 0,
    }


def charged(settings: dict, private: bool) -> Plan:
    """The plan of clients one of whom paid epsilon 0.5 for an estimate."""
    people, lab = settings["plan"].population, {"lab": (0.5, 0.0)}
    charge = Charge(what="estimate", private=private, promised={"lab": (8.0, 1e-5)}, spent=lab)
    return make_plan(people, settings["plan"].training, charges=[charge], seed=0)


def test_what_was_spent_before_a_federation_is_in_its_record_and_its_terms(settings, tmp_path):
    more = {"plan": charged(settings, True), "tuning": {"source": "none"}}
    kit = write_kit(tmp_path / "kit", **{**settings, **more})
    job = FederatedJob.of(Federation.load(kit / "server/federation.toml"))
    assert job.settings()["tuning"] == {"source": "none"}
    terms = (client_folder(kit, "lab") / "terms.toml").read_text()
    assert "# Promised: epsilon 8 at delta 1e-05. Of it 0.5 at 0 was paid beside" in terms
    assert GuardTerms.from_toml(client_folder(kit, "lab") / "terms.toml").lifetime_epsilon == 7.5
    assert "Promised" not in (client_folder(kit, "ward 7") / "terms.toml").read_text()
    Recorder(job, tmp_path / "run").close()
    receipt = Run.load(tmp_path / "run").receipt("lab")
    assert receipt.charged["promised_epsilon"] == 8.0
    assert [one["epsilon"] for one in receipt.charged["paid"]] == [0.5]


def test_a_federation_does_not_rest_on_a_simulated_estimate(settings, tmp_path):
    with pytest.raises(InputError, match="was a simulation"):
        write_kit(tmp_path / "kit", **{**settings, "plan": charged(settings, False)})
    assert not (tmp_path / "kit").exists()
