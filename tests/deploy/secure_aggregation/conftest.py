# SPDX-License-Identifier: Apache-2.0
"""Cohorts of members in one process, with what each of them has committed to."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from dpcohort.deploy.ledger._terms import AcceptedGroup
from dpcohort.deploy.secure_aggregation import (
    Identity,
    MaskedRound,
    MaskedSum,
    Member,
    cohort_sha256,
)

RUN, PLAN = "spring", "a" * 64


class Cohort:
    """Some members of a run; ``ask`` is the server's request of a round."""

    def __init__(self, size, *, colluding=0, dropouts=0, coordinates=50, bits=40, rounds=3):
        self.names = [f"ward-{i}" for i in range(size)]
        self.who = {
            name: Identity(hashlib.sha256(name.encode()).digest())
            for name in [*self.names, "stranger"]
        }
        self.pool = AcceptedGroup(
            cohort_size=size,
            colluding=colluding,
            dropouts=dropouts,
            exponent=22,
            modulus_bits=bits,
            members={name: self.who[name].public for name in self.names},
            cohorts={str(t): cohort_sha256(self.names) for t in range(rounds)},
        )
        self.coordinates = coordinates
        self.members = {name: self.member(name) for name in self.names}
        #: Of each member, the set it committed to in each round.
        self.committed = {name: {} for name in self.names}

    def member(self, name, **changes):
        given = {"run": RUN, "plan": PLAN, "ledger": name, "pool": self.pool, **changes}
        return Member(name, self.who[name], given.pop("pool"), **given)

    @property
    def cards(self):
        return [one.card for one in self.members.values()]

    def ask(self, round=0, **changes):
        given = {
            "run": RUN,
            "plan": PLAN,
            "round": round,
            "coordinates": self.coordinates,
            "exponent": self.pool.exponent,
            "modulus_bits": self.pool.modulus_bits,
            "pool": self.pool,
            "cards": self.cards,
            **changes,
        }
        return MaskedRound(given.pop("pool"), given.pop("cards"), **given)

    def commit(self, name):
        return lambda round, left: self.committed[name].setdefault(round, left)

    def values(self, seed=0):
        dice = np.random.default_rng(seed)
        largest = 2 ** (self.pool.modulus_bits - 1) // len(self.names) - 1
        return {name: dice.integers(-largest, largest + 1, self.coordinates) for name in self.names}

    def collected(self, values, *, absent=(), round=0):
        """A server with the masked vectors of all but some, closed."""
        asked = self.ask(round)
        server = MaskedSum(asked)
        for name in self.names:
            if name not in absent:
                server.take(self.members[name].mask(asked, values[name]))
        server.close()
        return server

    def agree(self, server, name):
        asked, left = server.asked, list(server.signed)
        return self.members[name].agree(asked, left, server.signed, self.commit(name))

    def reveal(self, server, name, **changes):
        given = {
            "survivors": list(server.signed),
            "signed": server.signed,
            "certificate": server.certificate,
            "sealed": server.sealed_for(name),
            "asked": server.asked,
            **changes,
        }
        return self.members[name].reveal(
            given.pop("asked"), *given.values(), commit=self.commit(name)
        )

    def unmask(self, server, *, silent_then=(), silent_last=()):
        """The sum, with some members silent when they are asked to agree, some at the end."""
        if server.needs_agreement:
            for name in server.signed:
                if name not in silent_then:
                    server.agreed(name, self.agree(server, name))
        for name in server.signed:
            if name not in {*silent_then, *silent_last}:
                server.take_shares(name, self.reveal(server, name))
        return server.total()


@pytest.fixture
def make_cohort():
    return Cohort
