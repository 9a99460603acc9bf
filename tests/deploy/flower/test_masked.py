# SPDX-License-Identifier: Apache-2.0
"""Rounds with distributed noise, with real guards in this process and a server that plays fair."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from dpcohort import Contract
from dpcohort.clients import Population
from dpcohort.data import load_dataset
from dpcohort.deploy._formats import replace
from dpcohort.deploy.flower import Federation, federate, write_kit
from dpcohort.deploy.flower._exchange import InProcess
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.flower._messages import open_message, read_frames
from dpcohort.deploy.flower._rounds import GuardTrainer
from dpcohort.deploy.flower._trial import demo_records, demo_settings, write_client_data
from dpcohort.deploy.flower.client_app import LocalGuards
from dpcohort.deploy.guard._protocol import (
    AgreeRequest,
    CardRequest,
    MaskedRequest,
    RevealRequest,
    Shares,
    decode,
    encode,
)
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.deploy.ledger import read_state, verify_ledger
from dpcohort.errors import InputError
from dpcohort.plan import make_plan
from dpcohort.runs import verify_run
from dpcohort.runs._folder import read_json, read_log
from dpcohort.training import Training

from .conftest import small_settings

NAMES = [f"ward-{i}" for i in range(5)]


def distributed_settings(*, rounds=2, **changes):
    """Five clients who are all in every round; two may vanish."""
    population = Population.from_arrays(
        ids=NAMES, sizes=[200, 300, 250, 350, 300], epsilon=[2.0, 4.0, 8.0, 4.0, 2.0], delta=1e-5
    )
    training = Training(rounds=rounds, cohort_size=5, batch_size=20, dimension=650)
    trust = Contract(trust="distributed", dropouts=2)
    plan = make_plan(population, training, seed=3, accountant=trust)
    return small_settings(plan=plan, test="", **changes)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    settings = distributed_settings()
    kit = write_kit(tmp_path_factory.mktemp("distributed") / "kit", **settings)
    write_client_data(kit, demo_records(settings["plan"], load_dataset("digits")))
    return kit


@pytest.fixture
def kit(template, tmp_path):
    shutil.copytree(template, tmp_path / "kit")
    return tmp_path / "kit"


class Carried:
    """Real guards; a test may say which requests do not reach them."""

    def __init__(self, kit):
        self.guards = LocalGuards(kit / "clients")
        self.federation = Federation.load(kit / "server/federation.toml")
        self.asked = []
        self.lost = lambda client, request: False

    def carry(self, body):
        opened = open_message(body)
        request = opened.requests[0]
        self.asked.append((opened.client, type(request).__name__, getattr(request, "round", None)))
        if self.lost(opened.client, request):
            raise ConnectionError("gone")
        return self.guards.carry(body)

    def run(self, out, **settings):
        keys = self.federation.fingerprints
        transport = InProcess({keys[client]: self.carry for client in self.federation.clients})
        with self.guards:
            return federate(self.federation, transport, out=out, poll=0.01, **settings)

    def counts(self, kit):
        found = {}
        for name in NAMES:
            path = client_folder(kit, name) / "client.ledger"
            assert verify_ledger(path).holds
            account = read_state(path).accounts[name]["spring"]
            found[name] = (len(account.draws), len(account.unmasked))
        return found


def told_counts(out):
    """Draws and unmaskings of each client, as the server was told last."""
    told = {name: one["spending"] for name, one in read_json(out / "client-ledgers.json").items()}
    return {name: (one["counted_draws"], one["pool"]["unmasked"]) for name, one in told.items()}


def test_a_run_in_which_nobody_vanishes(kit, tmp_path, monkeypatch):
    """Two exchanges a round; and each step is that of the members' integers in the clear."""
    parts, steps, real = [], [], LocalTraining.noisy_sum

    def watched(self, *given, **settings):
        parts.append(real(self, *given, **settings))
        return parts[-1]

    def updates(self, *given):
        steps.extend(trained(self, *given))
        return steps[-1:]

    trained = GuardTrainer.updates
    monkeypatch.setattr(LocalTraining, "noisy_sum", watched)
    monkeypatch.setattr(GuardTrainer, "updates", updates)
    carried = Carried(kit)
    carried.run(tmp_path / "run")
    for round in (0, 1):
        kinds = [kind for _, kind, t in carried.asked if t == round]
        assert sorted(kinds) == ["MaskedRequest"] * 5 + ["RevealRequest"] * 5
    plan, pool = carried.federation.plan, carried.federation.pool
    unit = plan.noise.pool.share * plan.training.clip / 2**pool.exponent
    for t, step in enumerate(steps):
        clear = sum(parts[5 * t : 5 * t + 5]) * unit / 5  # the step size is 1
        np.testing.assert_allclose(step.updates[0].numpy(), clear, rtol=1e-6)
    assert carried.counts(kit) == dict.fromkeys(NAMES, (2, 2))
    verified = verify_run(tmp_path / "run")
    assert verified.holds
    assert "5 cards of members checked" in verified.guards
    told = read_json(tmp_path / "run/client-ledgers.json")["ward-0"]["spending"]
    assert told["pool"]["honest"] == 3
    assert told_counts(tmp_path / "run") == carried.counts(kit)


@pytest.mark.parametrize("stage", [MaskedRequest, AgreeRequest, RevealRequest])
def test_one_that_vanishes_at_any_stage(kit, tmp_path, stage):
    carried = Carried(kit)

    def lost(client, request):
        if getattr(request, "round", None) != 0:
            return False
        gone = client == "ward-1" and isinstance(request, MaskedRequest)
        if stage is AgreeRequest:  # one before it masks, one when all must agree
            return gone or (client == "ward-2" and type(request) is AgreeRequest)
        return client == "ward-1" and isinstance(request, stage)

    carried.lost = lost
    carried.run(tmp_path / "run")
    assert verify_run(tmp_path / "run").holds
    counts = carried.counts(kit)
    first, second = read_log(tmp_path / "run/exchange.jsonl")
    assert not second["passed_over"]
    assert not first["passed_over"]
    if stage is RevealRequest:
        assert counts["ward-1"] == (2, 1)
        assert first["came"] == 5
    else:
        assert counts["ward-1"] == (1, 1)
        assert first["came"] == 4
        assert ("ward-0", "AgreeRequest", 0) in carried.asked
    assert all(count == (2, 2) for name, count in counts.items() if name not in ("ward-1",))
    assert told_counts(tmp_path / "run") == counts


def test_more_than_may_vanish_and_the_round_is_passed_over(kit, tmp_path):
    carried = Carried(kit)
    carried.lost = lambda client, request: (
        client in NAMES[1:4] and isinstance(request, MaskedRequest) and request.round == 0
    )
    carried.run(tmp_path / "run")
    first, second = read_log(tmp_path / "run/exchange.jsonl")
    assert (first["passed_over"], first["came"]) == (True, 0)
    assert not second["passed_over"]
    counts = carried.counts(kit)
    assert counts["ward-0"] == (2, 1)  # counted, and not unmasked
    assert counts["ward-1"] == (1, 1)
    assert verify_run(tmp_path / "run").holds


def test_a_sum_that_a_member_spoils_does_not_reach_the_model(kit, tmp_path):
    """One gives wrong shares: in one round only as many come as are needed, in the other all."""
    carried = Carried(kit)
    honest = carried.guards.carry

    def carry(body):
        opened = open_message(body)
        if opened.client != "ward-2" or not isinstance(opened.requests[0], RevealRequest):
            return honest(body)
        frames = [
            replace(frame, data=b"\xff" * len(frame.data)) if isinstance(frame, Shares) else frame
            for frame in read_frames(honest(body))
        ]
        return b"".join(map(encode, frames))

    carried.guards.carry = carry
    carried.lost = lambda client, request: (
        isinstance(request, RevealRequest) and request.round == 0 and client in ("ward-3", "ward-4")
    )
    carried.run(tmp_path / "run")
    long, unfit = read_log(tmp_path / "run/exchange.jsonl")
    assert "longer than any" in long["lost"]["all"]["0"]
    assert "do not fit together" in unfit["lost"]["all"]["0"]
    assert [one["passed_over"] for one in (long, unfit)] == [True, True]
    assert carried.counts(kit)["ward-0"] == (2, 2)
    assert verify_run(tmp_path / "run").holds


class Killed(BaseException):
    """The server, at the worst moment."""


@pytest.mark.parametrize("stage", ["masking", "agreeing", "revealing"])
def test_a_server_killed_at_any_stage_goes_on_with_what_guards_have_stored(kit, tmp_path, stage):
    """Asked again, guards send the same bytes and unmask the same set, once."""
    kind = {"masking": MaskedRequest, "agreeing": AgreeRequest, "revealing": RevealRequest}[stage]
    gone = "ward-1" if stage == "agreeing" else ""

    def vanished(client, request):
        return client == gone and isinstance(request, MaskedRequest) and request.round == 0

    def lost(client, request):
        if type(request) is kind and client == "ward-3":
            raise Killed
        return vanished(client, request)

    carried = Carried(kit)
    carried.lost = lost
    with pytest.raises(Killed):
        carried.run(tmp_path / "run")
    again = Carried(kit)
    again.lost = vanished
    again.run(tmp_path / "run", resume=True)
    expected = {name: (1, 1) if name == gone else (2, 2) for name in NAMES}
    assert again.counts(kit) == expected
    first = read_log(tmp_path / "run/exchange.jsonl")[0]
    assert first["resent"] == {"masking": 3, "agreeing": 4, "revealing": 5}[stage]
    assert not first["passed_over"]
    assert verify_run(tmp_path / "run").holds


def kill_in_round_1(kit, out):
    """A run whose server is killed when it asks for the second round."""

    def lost(client, request):
        if getattr(request, "round", None) == 1:
            raise Killed
        return False

    carried = Carried(kit)
    carried.lost = lost
    with pytest.raises(Killed):
        carried.run(out)


@pytest.mark.parametrize("harm", ["signed by nobody", "no card", "of another", "no file"])
def test_kept_keys_that_were_changed_are_asked_for_again(kit, tmp_path, harm):
    kill_in_round_1(kit, tmp_path / "run")
    path = tmp_path / "run/client-ledgers.json"
    told = read_json(path)
    if harm == "signed by nobody":
        told["ward-1"]["card"]["key"] = "00" * 32
    elif harm == "no card":
        told["ward-1"]["card"] = ["card"]
    else:
        told["ward-1"]["card"] = told["ward-2"]["card"]
    path.write_text("{" if harm == "no file" else json.dumps(told))
    late = []

    def away(client, request):  # not there when the server goes on, but in the round
        late.append((client, type(request)))
        tries = late.count((client, CardRequest))
        return client == "ward-1" and tries <= again.federation.attempts

    again = Carried(kit)
    again.lost = away
    again.run(tmp_path / "run", resume=True)
    assert [line["came"] for line in read_log(tmp_path / "run/exchange.jsonl")] == [5, 5]
    assert again.counts(kit) == dict.fromkeys(NAMES, (2, 2))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"member": "ward-1"}, "it must be ward-2"),
        ({"signature": "00" * 64}, "is not signed by the ward-2 of the terms"),
        ({"key": "nonsense"}, "is not signed by the ward-2 of the terms"),
    ],
)
def test_a_wrong_key_is_none_and_is_noted(kit, tmp_path, change, words):
    """The run goes on; rounds with that member are passed over, and nobody is asked for a draw."""
    carried = Carried(kit)
    real = carried.guards.carry

    def carry(body):
        opened, answer = open_message(body), real(body)
        if opened.client == "ward-2" and isinstance(opened.requests[0], CardRequest):
            return encode(replace(decode(answer), **change))
        return answer

    carried.guards.carry = carry
    carried.run(tmp_path / "run")
    for line in read_log(tmp_path / "run/exchange.jsonl"):
        assert line["passed_over"]
        assert list(line["lost"]) == ["ward-2"]
        assert words in line["lost"]["ward-2"]["0"]
    assert carried.counts(kit) == dict.fromkeys(NAMES, (0, 0))


def test_a_masked_vector_that_its_guard_has_not_signed_is_lost(kit, tmp_path):
    carried = Carried(kit)
    real = carried.guards.carry

    def carry(body):
        opened, answer = open_message(body), real(body)
        request = opened.requests[0]
        if opened.client == "ward-2" and isinstance(request, MaskedRequest) and request.round:
            update, *others = read_frames(answer)
            return b"".join(map(encode, [replace(update, signature="00" * 64), *others]))
        return answer

    carried.guards.carry = carry
    carried.run(tmp_path / "run")
    first, second = read_log(tmp_path / "run/exchange.jsonl")
    assert (first["came"], second["came"]) == (5, 4)
    assert list(second["lost"]) == ["ward-2"]
    signed = [(one["round"], one["client"]) for one in read_log(tmp_path / "run/signatures.jsonl")]
    assert [sorted(c for t, c in signed if t == round) for round in (0, 1)] == [
        list(NAMES),
        [name for name in NAMES if name != "ward-2"],
    ]


def test_answers_that_a_dead_courier_loses_come_again(kit, tmp_path):
    """The guard has answered and nobody heard it, once at every stage: nothing counts twice."""
    carried = Carried(kit)
    carried.federation = carried.federation.model_copy(update={"attempts": 3})
    dead, real = set(), carried.guards.carry

    def carry(body):
        answer = real(body)
        opened = open_message(body)
        name = (opened.client, type(opened.requests[0]).__name__)
        if name not in dead and opened.client in ("ward-0", "ward-4"):
            dead.add(name)
            raise ConnectionError("the courier is dead")
        return answer

    carried.guards.carry = carry
    carried.run(tmp_path / "run")
    assert len(dead) == 8  # terms, cards, masked vectors and shares, of two clients
    assert carried.counts(kit) == dict.fromkeys(NAMES, (2, 2))
    first = read_log(tmp_path / "run/exchange.jsonl")[0]
    assert (first["resent"], first["came"]) == (2, 5)


def test_owners_who_count_on_others_are_named_before_anything_is_spent(kit, tmp_path):
    path = client_folder(kit, "ward-4") / "terms.toml"
    text = path.read_text()
    assert "colluding = 0 " in text
    text = text.replace("colluding = 0 ", "colluding = 1 ")
    path.write_text(text.replace("dropouts = 2 ", "dropouts = 1 "))
    with pytest.raises(InputError, match="ward-4: colluding of its pool is not that of the plan"):
        Carried(kit).run(tmp_path / "run")
    path = client_folder(kit, "ward-0") / "client.ledger"
    assert not read_state(path).accounts["ward-0"]["spring"].draws


def page(folder):
    """The page of a kit's folder, in one line."""
    return " ".join((folder / "README.md").read_text().split())


def test_a_kit_whose_secrets_the_operator_would_make_is_refused(tmp_path):
    settings = distributed_settings(trial=False)
    with pytest.raises(InputError, match="let each owner make its own"):
        write_kit(tmp_path / "kit", **settings)
    keys = {name: f"{i + 1:064x}" for i, name in enumerate(NAMES)}
    kit = write_kit(tmp_path / "kit", **settings, members=keys)
    assert not list(kit.rglob("identity.key"))
    assert "Each owner has made its own with `dpcohort guard identity`" in page(kit)
    assert Federation.load(kit / "server/federation.toml").members == keys
    del keys["ward-3"]
    with pytest.raises(InputError, match="no key of 'ward-3'"):
        write_kit(tmp_path / "kit-2", **settings, members=keys)


def test_the_distributed_demo_has_clients_that_count_on_each_other():
    settings, records = demo_settings(rounds=2, distributed=10)
    plan = settings["plan"]
    assert (plan.noise.honest, len(records), plan.training.cohort_size) == (7, 10, 10)
    assert demo_settings(rounds=2, distributed=3)[0]["plan"].noise.honest == 3
