# SPDX-License-Identifier: Apache-2.0
"""The evaluation that clients pay for, over guards: charged by each ledger, released once."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import contextmanager

import numpy as np
import pytest

from dpcohort.accounting import Contract, gaussian_delta
from dpcohort.accounting._charges import read_charge, write_charge
from dpcohort.clients import Population
from dpcohort.data import Normalisation, PersonTerms
from dpcohort.deploy.flower import Federation, federate, write_kit
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.flower._record import FederatedJob
from dpcohort.deploy.flower.client_app import LocalGuards
from dpcohort.deploy.guard import GuardTerms, ModelTerms
from dpcohort.deploy.guard._client import GuardClient, GuardRefusedError
from dpcohort.deploy.guard._files import guarded_data
from dpcohort.deploy.guard._protocol import DrawRequest, EvaluationRequest
from dpcohort.deploy.guard._start import open_guard
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.deploy.ledger import read_state
from dpcohort.deploy.ledger._terms import evaluation_asked_of
from dpcohort.engine import Lattice
from dpcohort.errors import InputError
from dpcohort.plan import make_plan
from dpcohort.runs import Run, verify_run
from dpcohort.runs._paid_evaluation import EvaluationTerms, results_again
from dpcohort.runs._seal import write_sealed
from dpcohort.training import Training

SHARE, BUDGETS, NAMES = 0.2, [20.0, 30.0], ["ward 7", "lab"]


def records(client, *, persons, tested=150):
    """Two columns, of which the first says nearly all; two rows of each person."""
    rng = np.random.default_rng(len(client))
    found = {}
    for part, count in (("", 400), ("test_", tested)):
        x = rng.normal(size=(count, 2)).astype(np.float32)
        found |= {f"{part}inputs": x, f"{part}labels": (x[:, 0] > 0).astype(np.int64)}
        if persons:
            found[f"{part}persons"] = np.array([f"{part}{i // 2}" for i in range(count)])
    return found


def make_kit(folder, *, unit="record", tested=150, names=NAMES, **contract):
    persons = unit == "person"
    population = Population.from_arrays(
        ids=names,
        sizes=[200 if persons else 400] * len(names),
        epsilon=(2 * BUDGETS)[: len(names)],
        delta=1e-5,
    )
    size = 3 if "dropouts" in contract else 2
    settings = Training(rounds=3, cohort_size=size, sampling_rate=0.5, dimension=6, clip=2.0)
    agreed = Contract(unit=unit, **contract)
    plan = make_plan(population, settings, seed=3, evaluation=SHARE, accountant=agreed)
    kit = write_kit(
        folder,
        plan=plan,
        model=ModelTerms(name="logistic", input_shape=(2,), classes=2),
        run="spring",
        normalisation=Normalisation(),
        persons=PersonTerms() if persons else None,
        optimiser={"learning_rate": 1.0},
        trial=True,
        timeout=5.0,
    )
    for client in names:
        path = client_folder(kit, client) / "data.npz"
        np.savez(path, **records(client, persons=persons, tested=tested))
        path.chmod(0o600)
    return kit


def federated(kit, out, **options):
    federation = Federation.load(kit / "server/federation.toml")
    with LocalGuards(kit / "clients") as guards:
        return federate(federation, guards.transport(federation), out=out, poll=0.01, **options)


@pytest.fixture(scope="module", params=["record", "person"])
def done(request, tmp_path_factory):
    """A finished federation for each unit, with the folder of its run."""
    folder = tmp_path_factory.mktemp(request.param)
    kit = make_kit(folder / "kit", unit=request.param)
    federated(kit, folder / "run")
    return kit, folder / "run"


def test_guards_pay_release_once_and_all_books_agree(done):
    kit, out = done
    run, plan = Run.load(out), Federation.load(kit / "server/federation.toml").plan
    told = run.evaluation
    unit = plan.contract.unit.name
    assert (told["unit"], told["records"]) == (unit, 150 if unit == "person" else 300)
    assert told["in_all"]["accuracy"]["low"] > 0.6
    page = (client_folder(kit, "lab") / "README.md").read_text()
    assert "`test_inputs`" in page
    assert ("`test_persons`" in page) == (unit == "person")
    assert set(told["clients"]) == set(NAMES)
    for receipt, whole in zip(run.receipts(), BUDGETS, strict=True):
        assert receipt.in_all().promised_epsilon == whole
        assert receipt.charged_epsilon == SHARE * whole
        assert receipt.holds
        noise = told["clients"][receipt.client]["noise"]
        assert gaussian_delta(epsilon=SHARE * whole, mu=1 / noise) <= SHARE * 1e-5
        state = read_state(client_folder(kit, receipt.client) / "client.ledger")
        book = state.accounts[receipt.client]
        assert state.cap(receipt.client).epsilon == pytest.approx(whole, rel=1e-12)
        assert len(book["spring (evaluation)"].draws) == 1
        assert book["spring (evaluation)"].terms.epsilon == pytest.approx(SHARE * whole)
    said = json.loads((out / "client-ledgers.json").read_text())
    assert said["lab"]["spending"]["evaluation"]["counted_draws"] == 1
    found = verify_run(out, require="private")
    assert found.findings == ()
    assert "signed by 2 of 2 clients" in found.guards


def test_what_a_server_changes_of_it_is_found(done, tmp_path):
    """The sums in the file of the charge are those that the guards have signed."""
    shutil.copytree(done[1], tmp_path / "run")
    run, (path,) = Run.load(tmp_path / "run"), (tmp_path / "run" / "charges").iterdir()
    charge, released = read_charge(path)
    released["sums"][0][0] += 5.0
    write_charge(path, charge, **released)
    result = json.loads((run.path / "result.json").read_text())
    result["evaluation"] = results_again(run.plan, run.task, charge, released)
    (run.path / "result.json").unlink()
    write_sealed(run.path, {key: value for key, value in result.items() if key != "seal"})
    (finding,) = verify_run(run.path).findings
    assert "is not what its guard has signed" in finding.message


def changed(request, kind=EvaluationRequest, **changes):
    """A request with other values, or those of them that one of another kind has."""
    said = {**dict(request), **changes}
    return kind(**{key: said[key] for key in kind.model_fields})


@contextmanager
def asking(kit, client, socket):
    """Asks a client's guard for the evaluation of a plan, or something like it."""
    federation = Federation.load(kit / "server/federation.toml")
    plan, folder = federation.plan, client_folder(kit, client)
    k = plan.population.index_of(client)
    request = EvaluationRequest(
        run="spring", plan=plan.sha256, round=3, draw=0, clip=1.0, sampling_rate=1.0,
        noise_multiplier=evaluation_asked_of(plan, k)["least_noise_multiplier"], batch_size=1,
        local_steps=1, sampler="poisson", neighbours="zero-out", step_sizes=[1.0],
        model=federation.model.sha256(), layout=FederatedJob.of(federation).layout,
        vector=np.zeros(6, np.float32), tested=150, answers=67,
    )  # fmt: skip
    service = open_guard(
        folder / "terms.toml", data=folder / "data.npz", ledger=folder / "client.ledger",
        socket=socket, new_ledger=not (folder / "client.ledger").exists(),
    )  # fmt: skip
    with service as guard:
        guard.start()
        with GuardClient(socket) as connected:
            yield lambda **changes: connected.draw(changed(request, **changes))


GREEDY = {
    "less noise": ({"noise_multiplier": 0.1}, "terms"),
    "longer rows": ({"clip": 2.0}, "terms"),
    "a batch of them": ({"sampling_rate": 0.5}, "terms"),
    "before the end": ({"round": 0}, "terms"),
    "as another draw": ({"draw": 1}, "terms"),
    "by the name in the ledger": ({"run": "spring (evaluation)"}, "not-accepted"),
    "a draw by that name": (
        {
            "kind": DrawRequest,
            "run": "spring (evaluation)",
            "round": 0,
            "draw": 0,
            "batch_size": 400,
        },
        "not-accepted",
    ),
    "a draw in its place": (
        {"kind": DrawRequest, "batch_size": 1},
        "terms",
    ),
    "of another number of records": ({"tested": 10}, "terms"),
    "another number of answers": ({"answers": 3}, "terms"),
    "of another plan": ({"plan": "0" * 64}, "terms"),
}


def test_a_server_gets_one_answer_and_nothing_else(tmp_path):
    kit = make_kit(tmp_path / "kit")
    ledger, socket = client_folder(kit, "lab") / "client.ledger", tmp_path / "s"
    with asking(kit, "lab", socket) as ask:
        for case, (changes, code) in GREEDY.items():
            with pytest.raises(GuardRefusedError) as refused:
                ask(**changes)
            assert (case, refused.value.code, refused.value.counted) == (case, code, False)
        assert read_state(ledger).accounts["lab"]["spring (evaluation)"].draws == {}
        first = ask()
    with asking(kit, "lab", socket) as ask:  # the guard was started anew
        again = ask()
        assert (first.resent, again.resent) == (False, True)
        assert np.array_equal(first.vector, again.vector)
        with pytest.raises(GuardRefusedError) as refused:
            ask(vector=np.ones(6, np.float32))
        assert refused.value.code == "other-request"
    assert len(read_state(ledger).accounts["lab"]["spring (evaluation)"].draws) == 1


@pytest.mark.parametrize("unit", ["record", "person"])
def test_one_unit_of_the_test_records_moves_the_released_sum_by_its_length(unit, tmp_path):
    """Noise of a fixed key cancels: what is left is one record, or all rows of one person."""
    kit = make_kit(tmp_path / "kit", unit=unit)
    folder = client_folder(kit, "lab")
    terms, arrays = GuardTerms.from_toml(folder / "terms.toml"), dict(np.load(folder / "data.npz"))
    weights = np.float32([9, -9, 3, 9, -9, 3])

    def released(**changed):
        (folder / "data.npz").unlink()
        np.savez(folder / "data.npz", **(arrays | changed))
        (folder / "data.npz").chmod(0o600)
        data = guarded_data(folder / "data.npz", terms)
        trained = LocalTraining(terms.model, data, lambda size: bytes(size))
        lattice = Lattice(2.0, 1.0)
        return trained.evaluation(weights, lattice) * lattice.unit

    before, rows = released(), slice(0, 2 if unit == "person" else 1)
    inputs, labels = arrays["test_inputs"].copy(), arrays["test_labels"].copy()
    inputs[rows], labels[rows] = -50.0, 1 - labels[rows]
    moved = np.linalg.norm(released(test_inputs=inputs, test_labels=labels) - before)
    assert 0.3 < moved <= 2
    if unit == "person":  # all rows of one person, whose mean is one row
        alone = {"test_persons": np.array(["ann"] * 150)}
        moved = released(test_labels=1 - arrays["test_labels"], **alone) - released(**alone)
        assert 0.3 < np.linalg.norm(moved) <= 2
    other = arrays["inputs"] + 1.0
    assert np.array_equal(released(inputs=other), before)


def test_a_crash_after_the_answers_asks_again_and_spends_nothing_more(tmp_path, monkeypatch):
    kit, out = make_kit(tmp_path / "kit"), tmp_path / "run"

    def killed(self, sums):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EvaluationTerms, "of_those", killed)
        with pytest.raises(KeyboardInterrupt):
            federated(kit, out)
    run = federated(kit, out, resume=True)
    assert run.evaluation["in_all"]["accuracy"]["value"] is not None
    assert len(list((out / "charges").iterdir())) == 1
    for name in NAMES:
        state = read_state(client_folder(kit, name) / "client.ledger")
        assert len(state.accounts[name]["spring (evaluation)"].draws) == 1
    assert verify_run(out).findings == ()


def test_a_client_that_does_not_answer_is_left_out_and_stays_charged(tmp_path):
    kit, out = make_kit(tmp_path / "kit"), tmp_path / "run"
    federation = Federation.load(kit / "server/federation.toml")
    with LocalGuards(kit / "clients") as guards:
        real = guards.carry

        def carry(body):
            if b'"evaluate?"' in body and b'"lab"' in body:
                raise InputError.because("its node was stolen")
            return real(body)

        guards.carry = carry
        run = federate(federation, guards.transport(federation), out=out, poll=0.01)
    assert set(run.evaluation["clients"]) == {"ward 7"}
    assert [receipt.charged_epsilon for receipt in run.receipts()] == [4.0, 6.0]
    assert any("lab" in words for words in run.warnings)
    assert verify_run(out).findings == ()


def test_terms_without_it_and_guards_without_test_records_are_said_before_anything_is_spent(
    tmp_path,
):
    kit = make_kit(tmp_path / "kit")
    path = client_folder(kit, "lab") / "terms.toml"
    text = re.sub(r"\n\[runs.evaluation\][^\[]*", "\n", path.read_text())
    path.write_text(text)
    with pytest.raises(InputError, match="lab: its terms allow no evaluation, for which the plan"):
        federated(kit, tmp_path / "run")
    empty = make_kit(tmp_path / "empty", tested=0)
    with pytest.raises(InputError, match="no client's guard has test records"):
        federated(empty, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_where_noise_is_distributed_only_a_masked_sum_leaves_and_the_price_if_all_collude_is_told(
    tmp_path,
):
    """Four clients in cohorts of three, of whom one may vanish: the fourth is heard alone."""
    names = [*NAMES, "clinic", "practice"]
    kit = make_kit(tmp_path / "kit", names=names, trust="distributed", dropouts=1)
    path = client_folder(kit, "ward 7") / "data.npz"  # it has no test records, and lends its noise
    np.savez(path, **{k: v for k, v in np.load(path).items() if not k.startswith("test_")})
    federation, out = Federation.load(kit / "server/federation.toml"), tmp_path / "run"
    seen = []
    with LocalGuards(kit / "clients") as guards:
        real = guards.carry

        def carry(body):
            if b'"evaluate' in body and b'"client": "lab"' in body:
                raise InputError.because("its node was stolen")
            answer = real(body)
            seen.append((body, answer))
            return answer

        guards.carry = carry
        run = federate(federation, guards.transport(federation), out=out, poll=0.01)
    told = run.evaluation
    assert told["together"][0]["clients"] == ["ward 7", "clinic"]
    assert told["together"][0]["records"] == 150
    assert set(told["clients"]) == {"practice"}
    assert told["in_all"]["accuracy"]["value"] > 0.6
    plain = [body for body, _ in seen if b'"evaluate?"' in body]
    assert len(plain) == 1
    assert b'"practice"' in plain[0]
    assert verify_run(out, require="private").findings == ()
    paid = {one.client: one.charged["paid"][0] for one in run.receipts()}
    assert "alone_epsilon" not in paid["practice"]
    for name in ("ward 7", "lab", "clinic"):
        assert paid[name]["alone_epsilon"] > 1.2 * paid[name]["epsilon"]  # one share of two
        state = read_state(client_folder(kit, name) / "client.ledger").accounts[name]
        terms = state["spring (evaluation)"].terms
        assert terms.alone_epsilon() == pytest.approx(paid[name]["alone_epsilon"], rel=1e-6)
    for one in run.receipts():
        alone = paid[one.client].get("alone_epsilon", paid[one.client]["epsilon"])
        assert one.total_alone_epsilon >= one.trust["alone_epsilon"] + alone
    with (  # a plain sum would have a share of noise alone
        asking(kit, "clinic", tmp_path / "s") as ask,
        pytest.raises(GuardRefusedError, match="only masked sums leave"),
    ):
        ask()
