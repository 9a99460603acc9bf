# SPDX-License-Identifier: Apache-2.0
"""A guard with distributed noise: masked sums within the terms, counted before, unmasked once."""

from __future__ import annotations

import hashlib
import os
import shutil

import numpy as np
import pytest

from dpcohort import Contract, Population, Training, make_plan
from dpcohort.accounting._samplers import SAMPLERS
from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard import (
    AcceptedRun,
    DrawRequest,
    GuardClient,
    GuardRefusedError,
    GuardTerms,
    Refusal,
    check_with_sampling,
)
from dpcohort.deploy.guard._files import load_data, load_identity, make_identity
from dpcohort.deploy.guard._handler import GuardHandler
from dpcohort.deploy.guard._protocol import (
    Agreement,
    AgreeRequest,
    CardRequest,
    HelloRequest,
    MaskedRequest,
    MaskedUpdate,
    RevealRequest,
    Shares,
    decode,
    encode,
)
from dpcohort.deploy.guard._start import (
    check_answer_time,
    check_identity,
    check_terms,
    open_guard,
    open_ledger,
)
from dpcohort.deploy.guard._terms import pool_from_plan, terms_from_plan
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.deploy.ledger import ClientLedger, DrawKey, read_state, verify_ledger
from dpcohort.deploy.ledger._terms import AcceptedGroup
from dpcohort.deploy.secure_aggregation import (
    Identity,
    MaskedRound,
    MaskedSum,
    Member,
    cohort_sha256,
)
from dpcohort.engine import Lattice
from dpcohort.errors import BudgetExceededError, DataMissingError, InputError
from dpcohort.signatures import Card

from .conftest import LAYOUT, RUN, TERMS

PLAN = "a" * 64
NAMES = ["a", "b", "c", "ward"]
OTHERS = {name: Identity(hashlib.sha256(name.encode()).digest()) for name in NAMES[:-1]}
E, BITS, Z = 25, 50, 2.0


class Pool:
    """Three members beside the guard of ``ward``, and the server."""

    def __init__(self, folder):
        self.folder = folder
        path = folder / "identity.key"
        mine = load_identity(path) if path.exists() else make_identity(path)
        keys = {**{name: one.public for name, one in OTHERS.items()}, "ward": mine.public}
        self.accepted = AcceptedGroup(
            cohort_size=4,
            colluding=0,
            dropouts=1,
            exponent=E,
            modulus_bits=BITS,
            members=keys,
            cohorts={str(t): cohort_sha256(NAMES) for t in range(3)},
        )
        run = AcceptedRun(
            **{
                **dict(RUN),
                "local_steps": 1,
                "draws": 3,
                "least_noise_multiplier": Z,
                "pool": self.accepted,
            }
        )
        self.terms = replace(TERMS, runs=(run,), identity=str(path))
        self.others = {
            name: Member(name, one, self.accepted, run="spring", plan=PLAN, ledger=name)
            for name, one in OTHERS.items()
        }
        #: What the others masked, which they send again as a guard does.
        self.sent = {}

    def cards(self, handler):
        mine = handler.answer(CardRequest(run="spring"))
        return [*(one.card for one in self.others.values()),
                Card(member=mine.member, key=mine.key, signature=mine.signature)]  # fmt: skip

    def asked(self, handler, round=0, **changes):
        values = {
            "run": "spring",
            "plan": PLAN,
            "round": round,
            "draw": 0,
            "clip": 1.0,
            "noise_multiplier": Z,
            "sampling_rate": 0.25,
            "batch_size": 10,
            "local_steps": 1,
            "sampler": "poisson",
            "neighbours": "zero-out",
            "step_sizes": [0.1],
            "model": self.terms.model.sha256(),
            "layout": LAYOUT,
            "vector": np.zeros(18, np.float32),
            "exponent": E,
            "modulus_bits": BITS,
            "cards": [[c.member, c.key, c.signature] for c in self.cards(handler)],
            **changes,
        }
        return MaskedRequest(**values)

    def server(self, handler, round=0, *, absent=()):
        """A server with masked vectors of the others, and of the guard, closed."""
        asked = MaskedRound(
            self.accepted,
            self.cards(handler),
            run="spring",
            plan=PLAN,
            round=round,
            coordinates=18,
            exponent=E,
            modulus_bits=BITS,
        )
        server = MaskedSum(asked)
        for name, one in self.others.items():
            if name not in absent:
                key = asked.context, name
                if key not in self.sent:
                    self.sent[key] = one.mask(asked, np.full(18, 7))
                server.take(self.sent[key])
        answer = handler.answer(self.asked(handler, round))
        assert isinstance(answer, MaskedUpdate), answer
        server.take(asked.unpacked("ward", answer.masked, answer.data))
        server.close()
        return server

    def unmasking(self, server, kind=RevealRequest, **changes):
        asked = server.asked
        values = {
            "run": "spring",
            "plan": PLAN,
            "round": asked.round,
            "exponent": E,
            "modulus_bits": BITS,
            "cards": [
                [card.member, card.key, card.signature] for card in map(self.card_of, asked.names)
            ],
            "survivors": list(server.signed),
            "signed": server.signed,
        }
        if kind is RevealRequest:
            values |= {"certificate": server.certificate, "data": server.sealed_for("ward")}
        return kind(**{**values, **changes})

    def card_of(self, name):
        return self.others[name].card if name in self.others else self.mine

    def remember(self, handler):
        if handler.terms == self.terms:
            self.mine = self.cards(handler)[-1]
        return handler


class Noiseless:
    """Trains nothing: the integers are known, and every time it is asked is written down."""

    dimension, layout = 18, LAYOUT

    def __init__(self, log):
        self.log = log

    def noisy_sum(self, parameters, lattice, batches):
        with open(self.log, "a") as file:
            file.write("computed\n")
        return np.arange(-9, 9)


@pytest.fixture
def pool(folder):
    return Pool(folder)


@pytest.fixture
def opened(folder, data_file, pool):
    """Open a handler of the pool's terms on a ledger; closed at the end."""
    books: list[ClientLedger] = []

    def open_with(ledger=None, trainer=None, terms=None):
        terms = terms or pool.terms
        data = load_data(data_file, terms.model, terms.normalisation)
        path = ledger or folder / "ward.ledger"
        book = open_ledger(path, data, terms, check_terms(terms, len(data)), new=not path.exists())
        books.append(book)
        handler = GuardHandler(
            terms,
            records=len(data),
            ledger=book,
            trainer=trainer or Noiseless(folder / "log"),
            identity=check_identity(terms) or Identity(bytes(32)),
        )
        handler.ledger = book
        return pool.remember(handler)

    yield open_with
    for book in books:
        book.close()


def rows(handler, run="spring"):
    state = read_state(handler.ledger.path)
    account = state.account("ward", run)
    return len(account.draws), len(account.unmasked)


def test_the_sum_is_that_in_the_clear(pool, opened):
    handler = opened()
    server = pool.server(handler)
    for name, member in pool.others.items():
        shares = member.reveal(
            server.asked, list(server.signed), server.signed, {}, server.sealed_for(name),
            lambda round, left: left,
        )  # fmt: skip
        server.take_shares(name, shares)
    answer = handler.answer(pool.unmasking(server))
    assert isinstance(answer, Shares), answer
    server.take_shares("ward", answer.data)
    np.testing.assert_array_equal(server.total(), np.arange(-9, 9) + 21)
    assert rows(handler) == (1, 1)


def test_the_sum_is_that_in_the_clear_when_one_vanishes(pool, opened):
    handler = opened()
    server = pool.server(handler, absent=["b"])
    agreement = handler.answer(pool.unmasking(server, AgreeRequest))
    assert isinstance(agreement, Agreement), agreement
    server.agreed("ward", agreement.signature)
    said = (server.asked, list(server.signed), server.signed)
    for name in ("a", "c"):
        server.agreed(name, pool.others[name].agree(*said, lambda round, left: left))
    for name in ("a", "c"):
        sealed = (server.certificate, server.sealed_for(name))
        shares = pool.others[name].reveal(*said, *sealed, lambda round, left: left)
        server.take_shares(name, shares)
    server.take_shares("ward", handler.answer(pool.unmasking(server)).data)
    np.testing.assert_array_equal(server.total(), np.arange(-9, 9) + 14)
    assert rows(handler) == (1, 1)


def test_the_guard_adds_its_share_on_the_lattice_of_the_cohort(pool, opened, data_file):
    """Over the real training: noise of 2^e in every coordinate, records of at most 2^e / m."""
    data = load_data(data_file, TERMS.model, TERMS.normalisation)
    training = LocalTraining(TERMS.model, data, np.random.default_rng(5).bytes)  # repeats
    seen = []

    class Watched(Noiseless):
        def noisy_sum(self, parameters, lattice, batches):
            seen.append((lattice, batches))
            return training.noisy_sum(parameters, lattice, batches)

    handler = opened(trainer=Watched(pool.folder / "log"))
    assert isinstance(handler.answer(pool.asked(handler)), MaskedUpdate)
    lattice, batches = seen[0]
    assert lattice == Lattice(Z / 3**0.5, 1.0, E)
    assert lattice.exponent == E
    assert batches == (SAMPLERS["poisson"], 0.25, 10)
    weights = np.zeros(18, np.float32)
    clear = training._clipped_sum(weights, lattice, np.arange(40), 40).numpy()
    noise = [
        training.noisy_sum(weights, lattice, (SAMPLERS["poisson"], 1.0, 40)) - clear
        for _ in range(60)
    ]
    assert 0.93 < np.std(noise) / 2**E < 1.07
    assert np.abs(clear).max() < 40 * lattice.bound


def test_each_member_draws_its_noise_with_the_error_that_is_paid_for(pool):
    """The tiny delta of drawing noise is that of all members together."""
    terms = check_terms(pool.terms, 40)["spring"]
    check_with_sampling(terms, 18)
    # A model so large that its own draws just fit and those of four members do not.
    spare = terms.delta - terms.history(*terms.most).delta(terms.epsilon)
    most = int(spare / (2.0**-130 * (1 + np.exp(terms.epsilon)) * terms.draws))
    check_with_sampling(replace(terms, pool=None), most // 2)
    with pytest.raises(BudgetExceededError):
        check_with_sampling(terms, most // 2)


#: Requests for masked vectors, changed; each is refused before anything is counted.
MASKED = {
    "another weight": {"noise_multiplier": 3.0},
    "less noise": {"noise_multiplier": 1.9},
    "another clip": {"clip": 0.5},
    "another plan": {"plan": "b" * 64},
    "no plan": {"plan": ""},
    "another run": {"run": "winter"},
    "a coarser lattice": {"exponent": 10},
    "a finer lattice": {"exponent": 30},
    "another modulus": {"modulus_bits": 62},
    "a second draw in the round": {"draw": 1},
    "a round of others": {"round": 3},
    "a round below 0": {"round": -1},
    "another batch": {"batch_size": 20, "sampling_rate": 0.5},
    "another rate": {"sampling_rate": 0.5},
    "more steps": {"local_steps": 2, "step_sizes": [0.1, 0.1]},
    "another sampler": {"sampler": "fixed", "neighbours": "replace-one"},
    "another model": {"model": "0" * 64},
    "another layout": {"layout": "0" * 64},
    "weights that are no numbers": {"vector": np.full(18, np.nan, np.float32)},
    "too few weights": {"vector": np.zeros(17, np.float32)},
    "nobody": {"cards": []},
    "cards that are none": {"cards": [["a"], ["b"], ["c"], ["ward"]]},
}


@pytest.mark.parametrize("attack", MASKED)
def test_a_request_outside_the_terms_costs_nothing(pool, opened, attack):
    handler = opened()
    answer = handler.answer(pool.asked(handler, **MASKED[attack]))
    assert isinstance(answer, Refusal), attack
    assert not answer.counted
    assert rows(handler) == (0, 0)
    assert not (pool.folder / "log").exists()


def test_strangers_and_small_cohorts_cost_nothing(pool, opened):
    handler = opened()
    cards = pool.asked(handler).cards
    stranger = Identity(bytes(32))
    key = cards[0][1]
    for wrong in (
        cards[1:],
        [*cards[1:], cards[1]],
        [*cards[1:], ["x", key, stranger.sign("card", "spring", PLAN, "x", key)]],
        [*cards[1:], ["a", key, stranger.sign("card", "spring", PLAN, "a", key)]],
        [["a", "00" * 32, OTHERS["a"].sign("card", "spring", PLAN, "a", "00" * 32)], *cards[1:]],
    ):
        answer = handler.answer(pool.asked(handler, cards=wrong))
        assert isinstance(answer, Refusal)
        assert answer.code == "terms"
    assert rows(handler) == (0, 0)


def test_a_plain_update_of_a_distributed_run_is_refused(pool, opened):
    handler = opened()
    plain = {k: v for k, v in pool.asked(handler) if k in DrawRequest.model_fields}
    answer = handler.answer(DrawRequest(**plain))
    assert (answer.code, answer.counted) == ("terms", False)
    assert "only masked sums leave" in answer.message


def test_a_masked_sum_of_a_run_that_is_not_distributed_is_refused(pool, opened, folder):
    run = replace(pool.terms.runs[0], pool=None)
    handler = opened(ledger=folder / "other.ledger", terms=replace(pool.terms, runs=(run,)))
    request = CardRequest(run="spring")
    assert handler.answer(request).message == "the client's owner pools no noise in this run"


#: Requests that want an unmasking, changed; the draw is counted, and nothing is unmasked.
UNMASKING = {
    "another plan": {"plan": "b" * 64},
    "another lattice": {"exponent": 10},
    "another modulus": {"modulus_bits": 62},
    "another round": {"round": 1},
    "a round of others": {"round": 5},
    "another run": {"run": "winter"},
    "too few": {"survivors": ["a", "ward"]},
    "without me": {"survivors": ["a", "b", "c"]},
    "nobody": {"survivors": [], "signed": {}},
    "no signatures": {"signed": {}},
    "signatures that are none": {"signed": dict.fromkeys(NAMES, "00" * 64)},
    "no cards": {"cards": []},
    "cards that are none": {"cards": [[]] * 4},
}
REVEALING = {
    "nothing sealed": {"data": b""},
    "other sealed bytes": {"data": bytes(4 * 61)},
    "one vanished and nobody agreed": {"survivors": ["a", "c", "ward"]},
}


@pytest.mark.parametrize("attack", [*UNMASKING, *REVEALING])
def test_an_unmasking_that_may_not_be_unmasks_nothing(pool, opened, attack):
    handler = opened()
    server = pool.server(handler)
    kinds = (AgreeRequest, RevealRequest) if attack in UNMASKING else (RevealRequest,)
    for kind in kinds:
        changes = dict(UNMASKING.get(attack) or REVEALING[attack])
        if "survivors" in changes and "signed" not in changes:
            left = changes["survivors"]
            changes["signed"] = {n: s for n, s in server.signed.items() if n in left}
        answer = handler.answer(pool.unmasking(server, kind, **changes))
        assert isinstance(answer, Refusal), kind
    committed = 1 if attack == "other sealed bytes" else 0  # it was the right set
    assert rows(handler) == (1, committed)


class TestOnce:
    def _others(self, pool, server, gone):
        left = [name for name in NAMES if name != gone]
        signed = {name: server.signed[name] for name in left}
        return {"survivors": left, "signed": signed}

    @pytest.mark.parametrize("restart", [False, True])
    def test_a_second_unmasking_is_refused_also_after_a_restart(self, pool, opened, restart):
        handler = opened()
        server = pool.server(handler)
        first = handler.answer(pool.unmasking(server))
        assert isinstance(first, Shares)
        if restart:
            handler.ledger.close()
            handler = opened()
        for gone in ("a", "b"):
            changes = self._others(pool, server, gone)
            answer = handler.answer(pool.unmasking(server, AgreeRequest, **changes))
            assert answer.code == "terms"
            assert "no second unmasking" in answer.message
        assert handler.answer(pool.unmasking(server)).data == first.data
        assert rows(handler) == (1, 1)

    @pytest.mark.parametrize("restart", [False, True])
    def test_who_agreed_that_one_vanished_does_not_unmask_for_all(self, pool, opened, restart):
        handler = opened()
        server = pool.server(handler)
        changes = self._others(pool, server, "a")
        assert isinstance(
            handler.answer(pool.unmasking(server, AgreeRequest, **changes)), Agreement
        )
        if restart:
            handler.ledger.close()
            handler = opened()
        assert "no second unmasking" in handler.answer(pool.unmasking(server)).message
        assert rows(handler) == (1, 1)

    def test_a_round_is_masked_once(self, pool, opened):
        handler = opened()
        first = handler.answer(pool.asked(handler))
        again = handler.answer(pool.asked(handler))
        assert (first.resent, again.resent) == (False, True)
        assert (first.data, first.signature) == (again.data, again.signature)
        other = handler.answer(pool.asked(handler, vector=np.ones(18, np.float32)))
        assert other.code == "other-request"
        assert (pool.folder / "log").read_text() == "computed\n"
        assert rows(handler) == (1, 0)

    def test_the_ledger_itself_keeps_to_one(self, pool, opened):
        """Even if the code above it were wrong."""
        handler = opened()
        key = DrawKey(dataset="ward", run="spring", round=0, draw=0)
        with pytest.raises(BudgetExceededError, match="nothing to unmask"):
            handler.ledger.unmask(key, "0" * 64)
        pool.server(handler)
        assert handler.ledger.unmask(key, "0" * 64) == "0" * 64
        assert handler.ledger.unmask(key, "1" * 64) == "0" * 64
        second = DrawKey(dataset="ward", run="spring", round=1, draw=1)
        event = read_state(handler.ledger.path).account("ward", "spring").terms.charge(1)
        with pytest.raises(InputError, match="where distributed"):
            handler.ledger.reserve(second, event, clip=1.0)
        assert verify_ledger(handler.ledger.path).holds


def test_another_ledger_means_another_key(pool, opened, folder):
    """A ledger that is lost and made anew cannot make a client mask twice with the same masks."""
    first = opened().answer(CardRequest(run="spring"))
    second = opened(ledger=folder / "second.ledger").answer(CardRequest(run="spring"))
    assert first.key != second.key


def _killed_at(point, handler, pool, answers):
    """A child does its part of a round and is gone before its ``point``-th statement of SQL."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        reached = 0

        def trace(statement):
            nonlocal reached
            reached += 1
            if reached == point:
                os.kill(os.getpid(), 9)

        handler.ledger._store._connection.set_trace_callback(trace)
        server = pool.server(handler)
        (answers / "masked").write_bytes(server.signed["ward"].encode())
        (answers / "shares").write_bytes(handler.answer(pool.unmasking(server)).data)
        os._exit(0)
    except BaseException:
        os._exit(1)


def test_killed_at_every_statement_it_counts_once_and_unmasks_once(pool, opened, folder):
    opened().ledger.close()
    original = {path: path.read_bytes() for path in folder.glob("ward.ledger*")}
    handler = opened()
    pool.server(handler)  # what the others send is the same to whoever asks
    handler.ledger.close()
    point, outcomes = 0, set()
    while True:
        point += 1
        for path in folder.glob("ward.ledger*"):
            path.unlink()
        for path, content in original.items():
            path.write_bytes(content)
            path.chmod(0o600)
        answers = folder / "answers"
        shutil.rmtree(answers, ignore_errors=True)
        answers.mkdir()
        (folder / "log").unlink(missing_ok=True)
        victim = opened()
        code = _killed_at(point, victim, pool, answers)
        assert code in (-9, 0)
        victim.ledger.close()

        handler = opened()
        before = rows(handler)
        again = handler.answer(pool.asked(handler))
        computed = (
            (folder / "log").read_text().count("computed") if (folder / "log").exists() else 0
        )
        assert computed <= 1
        assert rows(handler)[0] == 1
        had_left = (answers / "masked").exists() and (answers / "masked").read_text()
        if had_left:
            assert again.masked == had_left
            assert again.resent
        elif isinstance(again, Refusal):
            assert (again.code, again.counted) == ("lost", True)
        if isinstance(again, MaskedUpdate):
            server = pool.server(handler)
            left = ["b", "c", "ward"]
            signed = {name: server.signed[name] for name in left}
            other = pool.unmasking(server, AgreeRequest, survivors=left, signed=signed)
            if before[1]:
                assert isinstance(handler.answer(other), Refusal)
                assert isinstance(handler.answer(pool.unmasking(server)), Shares)
            else:
                assert not (answers / "shares").exists()
                assert isinstance(handler.answer(other), Agreement)
                assert isinstance(handler.answer(pool.unmasking(server)), Refusal)
        outcomes.add((before, type(again).__name__, bool(had_left)))
        assert verify_ledger(folder / "ward.ledger").holds
        handler.ledger.close()
        if code == 0:
            break
    assert point > 10
    assert {before for before, *_ in outcomes} == {(0, 0), (1, 0), (1, 1)}


class TestStart:
    def test_over_the_socket(self, pool, folder, data_file):
        with open_guard(
            pool.terms, data=data_file, ledger=folder / "w.ledger", socket=folder / "g.sock",
            new_ledger=True,
        ) as guard:  # fmt: skip
            guard.start()
            with GuardClient(folder / "g.sock") as client:
                handler = guard.handler
                pool.mine = pool.cards(handler)[-1]
                assert client.ask(CardRequest(run="spring")).member == "ward"
                server = pool.server(handler)
                assert client.ask(pool.asked(handler)).resent
                data = client.ask(pool.unmasking(server)).data
                assert len(data) == 4 * 33
                with pytest.raises(GuardRefusedError, match="members left = 0"):
                    client.ask(pool.unmasking(server, AgreeRequest, survivors=[]))
                spending = client.receipt("spring").spending
                assert spending["pool"]["honest"] == 3
                assert spending["pool"]["unmasked"] == 1
                assert spending["pool"]["alone_epsilon"] > spending["certified_epsilon"]

    def test_an_identity_that_is_missing_open_or_another(self, pool, folder):
        with pytest.raises(InputError, match="identity is missing"):
            check_identity(replace(pool.terms, identity=""))
        with pytest.raises(DataMissingError, match="dpcohort guard identity"):
            check_identity(replace(pool.terms, identity=str(folder / "none.key")))
        make_identity(folder / "second.key")
        with pytest.raises(InputError, match="do not have 'ward' with the key"):
            check_identity(replace(pool.terms, identity=str(folder / "second.key")))
        (folder / "second.key").chmod(0o644)
        with pytest.raises(InputError, match="can be opened by others"):
            load_identity(folder / "second.key")
        (folder / "third.key").write_text("no")
        (folder / "third.key").chmod(0o600)
        with pytest.raises(InputError, match="not an identity"):
            load_identity(folder / "third.key")
        with pytest.raises(InputError, match="cannot be made"):
            make_identity(folder / "third.key")

    def test_terms_need_the_plan_and_the_noise(self, pool):
        run = dict(pool.terms.runs[0])
        for missing in ("plan", "least_noise_multiplier"):
            with pytest.raises(InputError, match="needs plan and least_noise_multiplier"):
                AcceptedRun(**{**run, missing: None})
        with pytest.raises(InputError, match="one local step"):
            AcceptedRun(**{**run, "local_steps": 2}).run_terms(40)

    def test_the_time_of_an_answer_covers_masking_for_the_largest_cohort(self, pool):
        """Sharing and sealing masks takes as long as the cube of a cohort's size."""
        large = run_of(pool, [f"m{i}" for i in range(200)], dropouts=20)
        terms = replace(pool.terms, runs=(large,), answer_seconds=0.1)
        with pytest.raises(InputError, match=r"masked for a cohort of 200, takes .* Set answer_se"):
            check_answer_time(terms, 40, Still())
        check_answer_time(replace(terms, answer_seconds=600.0), 40, Still())
        check_answer_time(replace(pool.terms, answer_seconds=0.1), 40, Still())

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"exponent": 0}, "exponent = 0 is not allowed: it must be at least 23"),
            ({"exponent": 22}, "exponent = 22 is not allowed: it must be at least 23"),
            ({"modulus_bits": 2}, "modulus_bits = 2 is not allowed: it must be at least 34"),
            ({"modulus_bits": 33}, "modulus_bits = 33 is not allowed: it must be at least 34"),
        ],
        ids=str,
    )
    def test_a_lattice_with_which_no_draw_works_or_sums_wrap(
        self, pool, folder, data_file, change, said
    ):
        wrong = replace(pool.terms.runs[0], pool=replace(pool.accepted, **change))
        with pytest.raises(InputError, match=said):
            open_guard(
                replace(pool.terms, runs=(wrong,)), data=data_file, ledger=folder / "w.ledger",
                socket=folder / "g.sock", new_ledger=True,
            )  # fmt: skip
        assert not (folder / "w.ledger").exists()

    @pytest.mark.parametrize("change", [{"exponent": 23}, {"modulus_bits": 34}], ids=str)
    def test_the_smallest_lattice_that_is_accepted_works(self, pool, opened, change):
        """On it a share of noise is drawn, and what all members can send fits half the modulus."""
        pool.accepted = replace(pool.accepted, **change)
        run = replace(pool.terms.runs[0], pool=pool.accepted)
        pool.terms = replace(pool.terms, runs=(run,))
        pool.others = {
            name: Member(name, one, pool.accepted, run="spring", plan=PLAN, ledger=name)
            for name, one in OTHERS.items()
        }
        assert isinstance(opened().answer(pool.asked(opened(), **change)), MaskedUpdate)
        bound = Lattice(Z / 3**0.5, 1.0, pool.accepted.exponent).bound
        most = 4 * (40 * bound + 16.5 * 2**pool.accepted.exponent)
        assert most < 2 ** (pool.accepted.modulus_bits - 1)

    def test_a_cohort_of_a_round_that_the_run_does_not_have(self, pool):
        run, cohorts = pool.terms.runs[0], pool.accepted.cohorts
        last = {**cohorts, str(run.rounds - 1): "0" * 64}
        replace(run, pool=replace(pool.accepted, cohorts=last))
        beyond = replace(pool.accepted, cohorts={**cohorts, str(run.rounds): "0" * 64})
        with pytest.raises(InputError, match=f"cohort = {run.rounds} is not .* below the"):
            replace(run, pool=beyond)


class Still:
    """A trainer that takes no time."""

    dimension, layout = 3, ""

    def update(self, parameters, lattice, batches, step_sizes):
        return parameters


def run_of(pool, names, dropouts):
    """The pool's run with a cohort of these members."""
    keys = {name: f"{i:064x}" for i, name in enumerate(names)}
    size = {"cohort_size": len(names), "dropouts": dropouts, "members": keys}
    return replace(pool.terms.runs[0], pool=replace(pool.accepted, **size))


class TestLength:
    @pytest.mark.parametrize(
        ("name", "members", "dropouts"),
        [("client-{:05}", 5000, 0), ("\u9662" * 150 + "{:04}", 300, 1)],
        ids=["many", "long names"],
    )
    def test_a_cohort_whose_messages_are_too_long_is_refused_before_it_counts(
        self, pool, name, members, dropouts
    ):
        names = [name.format(i) for i in range(members)]
        with pytest.raises(InputError, match=r"at most [0-9]+ with members") as caught:
            run_of(pool, names, dropouts)
        fit = int(str(caught.value).split("at most ")[1].split()[0])
        run_of(pool, names[:fit], dropouts)
        with pytest.raises(InputError, match=f"at most {fit} "):
            run_of(pool, names[: fit + 1], dropouts)
        # What fits can be asked for, with signatures of 96 bytes.
        left = names[: fit - dropouts]
        request = RevealRequest(
            run="r" * 200, plan=PLAN, round=7, exponent=E, modulus_bits=BITS,
            cards=[[one, "0" * 64, "0" * 128] for one in names[:fit]], survivors=left,
            signed=dict.fromkeys(left, "0" * 192), data=b"",
            certificate=dict.fromkeys(left if dropouts else (), "0" * 128),
        )  # fmt: skip
        assert decode(encode(request)).survivors == left

    @pytest.fixture
    def long_run(self, pool):
        names = {name: one.public for name, one in OTHERS.items()}
        keys = {**names, "ward": pool.accepted.members["ward"]}
        people = Population.from_arrays(
            sizes=[40] * 4, epsilon=[4.0] * 4, delta=1e-5, ids=list(keys)
        )
        training = Training(rounds=20_000, cohort_size=4, batch_size=10, dimension=18)
        plan = make_plan(people, training, seed=0, accountant=Contract(trust="distributed"))
        return lambda: terms_from_plan(
            plan, "ward", run="spring", model=TERMS.model, same_user=True, members=keys
        )

    def test_a_run_of_many_rounds_is_read_and_told_in_few_bytes(self, pool, opened, long_run):
        path = pool.folder / "terms.toml"
        path.write_text(long_run())
        assert path.stat().st_size > 1 << 20
        handler = opened(terms=GuardTerms.from_toml(path))
        hello = handler.answer(HelloRequest(run="spring"))
        accepted = handler.terms.runs[0].pool
        assert len(accepted.cohorts) == 20_000
        assert len(encode(hello)) < 5000
        assert decode(encode(hello)).accepted["pool"] == accepted.outline()


def test_the_outline_of_a_pool_differs_where_the_pool_does(pool):
    accepted = pool.accepted
    told = accepted.outline()
    again = dict(reversed(accepted.members.items()))
    assert replace(accepted, members=again).outline() == told
    for change in (
        {"members": {**accepted.members, "a": "0" * 64}},
        {"cohorts": {**accepted.cohorts, "1": "0" * 64}},
        {"colluding": 1, "dropouts": 0},
    ):
        other = replace(accepted, **change).outline()
        assert {key for key in told if other[key] != told[key]} == set(change)


def test_messages_survive_the_wire(pool, opened):
    handler = opened()
    server = pool.server(handler)
    for message in (
        pool.asked(handler),
        handler.answer(pool.asked(handler)),
        pool.unmasking(server, AgreeRequest),
        pool.unmasking(server),
        handler.answer(pool.unmasking(server)),
    ):
        found = decode(encode(message))
        assert type(found) is type(message)
        assert found.header() == message.header()
        assert found.payload() == message.payload()


@pytest.fixture(scope="module")
def plan():
    clients = Population.from_arrays(
        sizes=[300, 200, 400, 300, 250], epsilon=[1.0, 2.0, 3.0, 1.5, 4.0], delta=1e-5
    )
    return make_plan(
        clients,
        Training(rounds=6, cohort_size=3, batch_size=20),
        seed=0,
        accountant=Contract(trust="distributed"),
    )


class TestPlan:
    @pytest.fixture
    def keys(self, plan):
        return {name: f"{i + 1:064x}" for i, name in enumerate(plan.population.ids)}

    def test_terms_of_a_plan_are_what_its_rounds_ask_for(self, plan, keys, tmp_path):
        client = plan.population.ids[2]
        text = terms_from_plan(plan, client, run="spring", model=TERMS.model, same_user=True,
                               members=keys)  # fmt: skip
        (tmp_path / "terms.toml").write_text(text)
        terms = GuardTerms.from_toml(tmp_path / "terms.toml")
        assert terms.identity == str(tmp_path / "identity.key")
        pool = terms.runs[0].pool
        assert pool == pool_from_plan(plan, keys, client=client)
        everything = pool_from_plan(plan, keys)
        assert pool.cohorts.items() <= everything.cohorts.items()
        assert len(pool.cohorts) == plan.counts[2]
        check_terms(terms, 400)

    def test_a_plan_in_which_nobody_counts_on_others_is_not_masked(self, plan, keys):
        trust = Contract(trust="distributed", colluding=plan.training.cohort_size - 1)
        alone = make_plan(plan.population, plan.training, accountant=trust, seed=0)
        with pytest.raises(InputError, match="trust = 'local'"):
            pool_from_plan(alone, keys)

    def test_a_key_that_is_missing(self, plan, keys):
        del keys[plan.population.ids[1]]
        with pytest.raises(InputError, match="dpcohort guard identity"):
            pool_from_plan(plan, keys)
