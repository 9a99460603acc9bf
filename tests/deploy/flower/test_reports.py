# SPDX-License-Identifier: Apache-2.0
"""Adaptive rules over Flower: guards report, the server counts before it asks, both add up."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dpcohort.adaptive import make_adaptive_plan
from dpcohort.adaptive._rule import REPORT_DRAW
from dpcohort.clients import Population
from dpcohort.data import load_dataset
from dpcohort.deploy._formats import replace
from dpcohort.deploy.flower import _rounds as rounds
from dpcohort.deploy.flower import federate
from dpcohort.deploy.flower._federation import disagreements
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.flower._record import FederatedJob
from dpcohort.deploy.flower._trial import demo_records, free_ports, start_all, trial
from dpcohort.deploy.guard import Hello
from dpcohort.deploy.ledger import read_state, verify_ledger
from dpcohort.errors import InputError
from dpcohort.runs import verify_run
from dpcohort.runs._folder import read_json, read_log
from dpcohort.runs._recorder import Recorder
from dpcohort.training import Training

from .conftest import Fakes, Small, _make, small_settings

IDS = ["ward 7", "lab", "ward 9", "clinic"]


def _plan(rule="power-of-choice", clients=4, rounds=4):
    sizes, epsilon = [200, 250, 150, 180][:clients], [4.0, 8.0, 2.0, 6.0][:clients]
    population = Population.from_arrays(ids=IDS[:clients], sizes=sizes, epsilon=epsilon, delta=1e-5)
    cohort = max(1, clients // 2)
    training = Training(rounds=rounds, cohort_size=cohort, batch_size=30, dimension=650)
    return make_adaptive_plan(population, training, rule=rule, seed=3)


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """A federation whose rule asks for losses, which nobody changes."""
    return _make(tmp_path_factory.mktemp("asking") / "kit", small_settings(plan=_plan()))


@pytest.fixture
def asking(kit, tmp_path):
    """The same, of the test's own."""
    shutil.copytree(kit.kit, tmp_path / "kit")
    return Small(tmp_path / "kit", kit.settings)


def _accounts(small, client):
    return read_state(client_folder(small.kit, client) / "client.ledger").accounts[client]["spring"]


def _adds_up(small, out):
    """Both sides have counted the same, once each, and all of it verifies."""
    found = verify_run(out)
    assert found.holds, found.findings
    told, plan = read_json(out / "client-ledgers.json"), small.federation.plan
    lines = read_log(out / "ledger.jsonl")[1:]
    for k, client in enumerate(plan.population.ids):
        counted = [line["round"] for line in lines if client in line.get("reports", ())]
        account = _accounts(small, client)
        assert sorted(key.round for key in account.reports) == counted
        assert 0 < len(counted) <= plan.reports.caps[k]
        assert told[client]["spending"]["reports"]["counted"] == len(counted)
        assert len(account.draws) == sum(line.get("cohort", []).count(client) for line in lines)
        terms = account.terms
        assert terms.certified_epsilon() <= plan.population.epsilon[k]
        # The guard's certificate of all that was accepted is the plan's own.
        assert terms.certified_epsilon() == pytest.approx(plan.certified_epsilon[k], rel=1e-6)
        assert verify_ledger(client_folder(small.kit, client) / "client.ledger").findings == ()


def test_guards_report_and_the_rule_chooses_from_it(asking, tmp_path):
    with asking.guards() as guards:
        transport = guards.transport(asking.federation)
        run = federate(asking.federation, transport, out=tmp_path / "run", poll=0.0)
    assert run.warnings == []
    _adds_up(asking, tmp_path / "run")
    lines = read_log(tmp_path / "run" / "ledger.jsonl")
    for line in lines:
        if "answers" in line:
            chosen = next(
                e["cohort"] for e in lines if "cohort" in e and e["round"] == line["round"]
            )
            loudest = sorted(line["answers"], key=line["answers"].get)[-2:]
            assert sorted(chosen) == sorted(loudest)
            # Losses of a fresh logistic model are ln 10; the noise on them is below 0.2.
            assert all(1.0 < value < 3.5 for value in line["answers"].values())


def test_over_superlink_supernodes_and_guards(tmp_path):
    """Processes of their own, TLS, keys: the transport that a deployment has.

    With one client, for every process takes seconds to start; several are told apart by
    ``test_adapter.py`` and in ``benchmarks/storm.py``.
    """
    pytest.importorskip("flwr.app")
    (port,) = free_ports(1)
    settings = small_settings(plan=_plan(clients=1, rounds=2), timeout=240.0, superlink_port=port)
    records = demo_records(settings["plan"], load_dataset("digits"))
    # A socket's path may have about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="dpc-") as folder:
        with trial(settings, records, Path(folder)) as federation:
            start_all(federation, lambda words: None)
            federation.start_run(tmp_path / "run")
            federation.await_run(tmp_path / "run", seconds=420)
        _adds_up(Small(federation.kit, settings), tmp_path / "run")


def _go(small, fakes, out, **how):
    return federate(small.federation, fakes.transport(), out=out, poll=0.0, **how)


def test_the_server_counts_before_it_asks(asking, tmp_path):
    fakes, out = Fakes(asking.federation), tmp_path / "run"
    for client, guard in fakes.items():
        draw = guard.draw

        def counted_draw(request, client=client, draw=draw):
            if request.draw == REPORT_DRAW:
                lines = read_log(out / "ledger.jsonl")[1:]
                asked = [line["reports"] for line in lines if "reports" in line]
                assert client in asked[request.round]
            return draw(request)

        guard.draw = counted_draw
    assert _go(asking, fakes, out).warnings == []  # a failed assertion would lose the report


@pytest.mark.parametrize("lost", [["lab"], IDS], ids=["one", "all"])
def test_who_does_not_report_is_counted_and_missing(asking, tmp_path, lost):
    fakes = Fakes(asking.federation)
    for client in lost:
        fakes[client].fails = {(1, REPORT_DRAW)}
    run = _go(asking, fakes, tmp_path / "run")
    assert f"round 1: {len(lost)} of 4 reports are lost" in run.warnings[0]
    lines = read_log(tmp_path / "run" / "ledger.jsonl")
    answers = [line["answers"] for line in lines if "answers" in line and line["round"] == 1]
    assert sorted(answers[0] if answers else []) == sorted(set(IDS) - set(lost))
    assert run.ledger.reports.tolist() == [4, 4, 4, 4]
    found = verify_run(tmp_path / "run")
    assert found.holds, found.findings
    told = read_log(tmp_path / "run" / "exchange.jsonl")[2]
    assert (told["of_reports"], told["asked"], told["came"]) == (True, 4, 4 - len(lost))


@pytest.mark.parametrize("moment", ["after the count", "after the answers"])
def test_a_run_stopped_among_reports_goes_on_and_counts_none_twice(asking, tmp_path, moment):
    fakes = Fakes(asking.federation)
    straight = _go(asking, Fakes(asking.federation), tmp_path / "straight")

    def stop(self, exchange, receipts):
        if exchange.get("of_reports") and exchange["round"] == 2:
            raise KeyboardInterrupt

    def count(self, round, cohort):
        if round == 2:
            raise KeyboardInterrupt

    place, name, act = rounds, "write_exchange", stop
    if moment != "after the count":
        place, name, act = Recorder, "count", count
    with pytest.MonkeyPatch.context() as context:
        own = getattr(place, name)

        def first(*what):
            act(*what)
            return own(*what)

        context.setattr(place, name, first)
        with pytest.raises(KeyboardInterrupt):
            _go(asking, fakes, tmp_path / "run")
    run = _go(asking, fakes, tmp_path / "run", resume=True)
    assert [line.clients for line in run.history] == [line.clients for line in straight.history]
    assert run.ledger.reports.tolist() == straight.ledger.reports.tolist()
    for guard in fakes.values():
        reports = [key for key in guard.done if key[1] == REPORT_DRAW]
        assert len(reports) == len(set(reports)) == 4
    for name, weights in straight.model.items():
        assert np.array_equal(run.model[name], weights)
    found = verify_run(tmp_path / "run")
    assert found.holds, found.findings


@pytest.mark.parametrize(
    "poison",
    [
        {"vector": np.array([np.nan], np.float32)},
        {"vector": np.array([1e6], np.float32)},
        {"vector": np.zeros(2, np.float32)},
        {"run": "other"},
        {"round": 99},
        {"draw": 0},
    ],
    ids=["nan", "huge", "two", "run", "round", "draw"],
)
def test_a_poisoned_report_is_not_taken(asking, tmp_path, poison):
    fakes = Fakes(asking.federation)
    fakes["lab"].odd = lambda update: (
        replace(update, **poison) if update.draw == REPORT_DRAW else update
    )
    _go(asking, fakes, tmp_path / "run")
    lines = read_log(tmp_path / "run" / "ledger.jsonl")
    assert not any("lab" in line.get("answers", {}) for line in lines)
    assert verify_run(tmp_path / "run").holds


def test_terms_without_reports_end_before_anything_is_asked(asking, tmp_path):
    fakes = Fakes(asking.federation)
    del fakes["lab"].says["accepted"]["reports"]
    with pytest.raises(InputError, match="lab: its terms allow no reports, from which the rule"):
        _go(asking, fakes, tmp_path / "run")
    assert all(guard.asked == [] for guard in fakes.values())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("count", 3, "of reports: its terms allow count 3, the plan needs 4"),
        ("count", None, "of reports: its terms allow count None"),
        ("statistic", "squared-loss", "of reports: statistic is 'squared-loss' in its terms"),
        ("loss_bound", 4.0, "of reports: loss_bound is 4.0 in its terms and 5.0 in the plan"),
        ("mini_batch", True, "of reports: mini_batch is True"),
        (
            "least_noise_multiplier",
            1e5,
            "of reports: its terms ask for noise multiplier 100000.0, the plan",
        ),
    ],
)
def test_terms_of_reports_weaker_than_the_plan_are_named(asking, key, value, words):
    says = Fakes(asking.federation)["lab"].says
    says["accepted"]["reports"][key] = value
    job = FederatedJob.of(asking.federation)
    found = disagreements(job, "lab", Hello(**says), resume=False)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize("change", ["uncounted", "other", "invented"])
def test_a_ledger_with_other_reports_does_not_verify(asking, tmp_path, change):
    _go(asking, Fakes(asking.federation), tmp_path / "run")
    path = tmp_path / "run" / "ledger.jsonl"
    lines = read_log(path)
    place = next(i for i, line in enumerate(lines) if "answers" in line)
    if change == "uncounted":
        lines[place - 1]["reports"].remove("lab")
    elif change == "other":
        lines[place]["answers"]["lab"] = 99.0
    else:
        del lines[place - 1]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert not verify_run(tmp_path / "run").holds
