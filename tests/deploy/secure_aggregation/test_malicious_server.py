# SPDX-License-Identifier: Apache-2.0
"""What a server that lies may ask of a member: refused, with nothing said and nothing committed.

Seven members, of whom two may help the server and one may vanish: five must agree. The asked member
is ward-0; ward-5 and ward-6 are the server's.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from dpcohort.deploy._formats import replace
from dpcohort.deploy.ledger._terms import AcceptedGroup
from dpcohort.deploy.secure_aggregation import Identity, Member, cohort_sha256
from dpcohort.errors import InputError
from dpcohort.signatures import Card

ME = "ward-0"
GONE = "ward-3"


@pytest.fixture
def cohort(make_cohort):
    return make_cohort(7, colluding=2, dropouts=1, coordinates=8)


def _changed(cohort, name, **changes):
    """The cards with one changed, signed by who signs for it."""
    cards = {card.member: card for card in cohort.cards}
    cards[name] = cards[name]._replace(**changes)
    return list(cards.values())


def _signed_card(cohort, name, key, *, by=None, run="spring", plan="a" * 64):
    by = by or name
    return {"key": key, "signature": cohort.who[by].sign("card", run, plan, name, key)}


ASKED = {
    "a stranger in the place of a member": lambda c: c.ask(
        cards=[
            *c.cards[:-1],
            Card(
                member="stranger",
                key=c.cards[0].key,
                signature=c.who["stranger"].sign(
                    "card", "spring", "a" * 64, "stranger", c.cards[0].key
                ),
            ),
        ]
    ),
    "too few members": lambda c: c.ask(cards=c.cards[:-1]),
    "nobody but me": lambda c: c.ask(cards=c.cards[:1]),
    "one more member": lambda c: c.ask(cards=[*c.cards, c.cards[0]]),
    "a member twice": lambda c: c.ask(cards=[*c.cards[:-1], c.cards[1]]),
    "a key of the server for a member": lambda c: c.ask(
        cards=_changed(c, "ward-1", **_signed_card(c, "ward-1", "ab" * 32, by="stranger"))
    ),
    "a key of a colluding member for another": lambda c: c.ask(
        cards=_changed(c, "ward-1", **_signed_card(c, "ward-1", "ab" * 32, by="ward-6"))
    ),
    "a key for another run": lambda c: c.ask(
        cards=_changed(c, "ward-1", **_signed_card(c, "ward-1", "ab" * 32, run="winter"))
    ),
    "a key for another plan": lambda c: c.ask(
        cards=_changed(c, "ward-1", **_signed_card(c, "ward-1", "ab" * 32, plan="b" * 64))
    ),
    "a key that was not signed": lambda c: c.ask(cards=_changed(c, "ward-1", key="ab" * 32)),
    "a signature that is none": lambda c: c.ask(cards=_changed(c, "ward-1", signature="no")),
    "a coarser lattice": lambda c: c.ask(exponent=2),
    "a finer lattice": lambda c: c.ask(exponent=30),
    "another modulus": lambda c: c.ask(modulus_bits=62),
    "a smaller modulus": lambda c: c.ask(modulus_bits=8),
    "a truth value for a number": lambda c: c.ask(modulus_bits=True),
    "a round that was not accepted": lambda c: c.ask(round=3),
    "a round below 0": lambda c: c.ask(round=-1),
}


@pytest.mark.parametrize("attack", ASKED)
def test_a_round_that_was_not_accepted(cohort, attack):
    with pytest.raises(InputError):
        ASKED[attack](cohort)


def test_another_cohort_than_that_of_the_round(make_cohort):
    """All are known by the terms, but not for this round."""
    cohort = make_cohort(4)
    five = {**cohort.pool.members, "ward-9": Identity(bytes(32)).public}
    pool = replace(cohort.pool, members=five)
    newcomer = Member("ward-9", Identity(bytes(32)), pool, run="spring", plan="a" * 64, ledger="9")
    with pytest.raises(InputError, match="not the cohort that was accepted for round 1"):
        cohort.ask(round=1, pool=pool, cards=[*cohort.cards[:-1], newcomer.card])


MASKING = {
    "a cohort without me": lambda c, m: m["ward-1"].mask(_without_me(c), c.values()[ME]),
    "my key of another ledger": lambda c, m: m[ME].mask(
        c.ask(cards=[c.member(ME, ledger="other").card, *c.cards[1:]]), c.values()[ME]
    ),
    "a round of another run": lambda c, m: c.member(ME, run="winter").mask(c.ask(), c.values()[ME]),
    "a round of another plan": lambda c, m: c.member(ME, plan="b" * 64).mask(
        c.ask(), c.values()[ME]
    ),
    "a key with which every agreement is the same": lambda c, m: m[ME].mask(
        c.ask(cards=_changed(c, "ward-6", **_signed_card(c, "ward-6", "00" * 32))), c.values()[ME]
    ),
    "a key that is no key": lambda c, m: m[ME].mask(
        c.ask(cards=_changed(c, "ward-6", **_signed_card(c, "ward-6", "no key"))), c.values()[ME]
    ),
    "a key that is too short": lambda c, m: m[ME].mask(
        c.ask(cards=_changed(c, "ward-6", **_signed_card(c, "ward-6", "ab"))), c.values()[ME]
    ),
    "more numbers than there are": lambda c, m: m[ME].mask(c.ask(coordinates=9), c.values()[ME]),
    "terms in which more may vanish": lambda c, m: m[ME].mask(
        c.ask(pool=replace(c.pool, colluding=0, dropouts=3)), c.values()[ME]
    ),
}


def _without_me(cohort):
    names = cohort.names[2:]
    pool = replace(cohort.pool, cohort_size=5, cohorts={"0": cohort_sha256(names)})
    cohort.members["ward-1"] = cohort.member("ward-1", pool=pool)
    return cohort.ask(pool=pool, cards=cohort.cards[2:])


@pytest.mark.parametrize("attack", MASKING)
def test_masking_for_something_else(cohort, attack):
    with pytest.raises(InputError):
        MASKING[attack](cohort, cohort.members)


def _names(cohort, *without):
    return [name for name in cohort.names if name not in without]


def _some(signed, *names):
    return {name: signed[name] for name in names}


def _signed(who, context, said="masked"):
    """The hash of some vector, and a signature of it in a context."""
    digest = "0" * 64
    return digest + who.sign(said, context, digest)


#: Of a member and a server whose round lost ward-3: who is left, and their signatures.
SETS = {
    "one less than allowed": lambda c, s: (
        _names(c, GONE, "ward-1"),
        _some(s.signed, *_names(c, GONE, "ward-1")),
    ),
    "only me": lambda c, s: ([ME], _some(s.signed, ME)),
    "nobody": lambda c, s: ([], {}),
    "somebody twice": lambda c, s: (sorted([*_names(c, GONE), ME]), s.signed),
    "in another order": lambda c, s: (_names(c, GONE)[::-1], s.signed),
    "without me": lambda c, s: (
        _names(c, ME),
        {**_some(s.signed, *_names(c, ME, GONE)), GONE: _signed(c.who[GONE], s.asked.context)},
    ),
    "with one who did not mask": lambda c, s: (c.names, s.signed),
    "with a stranger": lambda c, s: (
        sorted([*_names(c, GONE), "stranger"]),
        {**s.signed, "stranger": _signed(c.who["stranger"], s.asked.context)},
    ),
    "with a signature of somebody else": lambda c, s: (
        c.names,
        {**s.signed, GONE: s.signed["ward-6"]},
    ),
    "with a signature by the server": lambda c, s: (
        c.names,
        {**s.signed, GONE: _signed(c.who["stranger"], s.asked.context)},
    ),
    "with a signature of another round": lambda c, s: (
        c.names,
        {**s.signed, GONE: _signed(c.who[GONE], c.ask(1).context)},
    ),
    "with a signature of something else": lambda c, s: (
        c.names,
        {**s.signed, GONE: _signed(c.who[GONE], s.asked.context, "left")},
    ),
    "with one signature less": lambda c, s: (
        _names(c, GONE),
        _some(s.signed, *_names(c, GONE, "ward-1")),
    ),
    "with one signature more": lambda c, s: (
        _names(c, GONE),
        {**s.signed, GONE: _signed(c.who[GONE], s.asked.context)},
    ),
}


@pytest.mark.parametrize("attack", SETS)
def test_a_set_that_may_not_be_unmasked(cohort, attack):
    server = cohort.collected(cohort.values(), absent=[GONE])
    left, signed = SETS[attack](cohort, server)
    member = cohort.members[ME]
    with pytest.raises(InputError):
        member.agree(server.asked, left, signed, cohort.commit(ME))
    sealed = server.sealed_for(ME)
    with pytest.raises(InputError):
        member.reveal(server.asked, left, signed, {}, sealed, cohort.commit(ME))
    assert cohort.committed[ME] == {}


def test_members_that_were_told_different_cohorts_do_not_unmask(cohort):
    """A colluding member has two keys; half of the others masked for one, half for the other."""
    other = cohort.ask(cards=[*cohort.cards[:-1], cohort.member("ward-6", ledger="second").card])
    values = cohort.values()
    signed = {
        name: cohort.members[name].mask(cohort.ask() if i < 3 else other, values[name]).signature
        for i, name in enumerate(cohort.names[:-1])
    }
    for asked in (cohort.ask(), other):
        everybody = {**signed, "ward-6": _signed(cohort.who["ward-6"], asked.context)}
        with pytest.raises(InputError, match="has not signed that it masked for this cohort"):
            cohort.members[ME].agree(asked, cohort.names, everybody, cohort.commit(ME))
    assert cohort.committed[ME] == {}


def _certified(cohort, server, *names):
    return {name: cohort.agree(server, name) for name in names}


#: What is presented in the place of five signatures of those who agree.
CERTIFICATES = {
    "none": lambda c, s: {},
    "too few": lambda c, s: _certified(c, s, "ward-1", "ward-2", "ward-5", "ward-6"),
    "a signature of one who is gone": lambda c, s: {
        **_certified(c, s, "ward-1", "ward-2", "ward-5", "ward-6"),
        GONE: c.who[GONE].sign("left", s.asked.context, s._hash),
    },
    "a signature of a stranger": lambda c, s: {
        **_certified(c, s, "ward-1", "ward-2", "ward-5", "ward-6"),
        "stranger": c.who["stranger"].sign("left", s.asked.context, s._hash),
    },
    "a signature under another name": lambda c, s: {
        **_certified(c, s, "ward-1", "ward-2", "ward-5", "ward-6"),
        "ward-4": c.who["ward-6"].sign("left", s.asked.context, s._hash),
    },
    "signatures that they masked": lambda c, s: s.signed,
    "signatures of another set": lambda c, s: {
        name: c.who[name].sign("left", s.asked.context, "0" * 64) for name in _names(c, GONE)
    },
    "signatures of another round": lambda c, s: {
        name: c.who[name].sign("left", c.ask(1).context, s._hash) for name in _names(c, GONE)
    },
}


@pytest.mark.parametrize("attack", CERTIFICATES)
def test_too_few_agree_on_who_is_left(cohort, attack):
    server = cohort.collected(cohort.values(), absent=[GONE])
    certificate = CERTIFICATES[attack](cohort, server)
    with pytest.raises(InputError):
        cohort.reveal(server, ME, certificate=certificate)
    assert cohort.committed[ME] == {}


#: What is presented as sealed for ward-0.
SEALED = {
    "for another": lambda c, s: s.sealed_for("ward-1"),
    "in another order": lambda c, s: (
        s.sealed_for(ME)[61:122] + s.sealed_for(ME)[:61] + s.sealed_for(ME)[122:]
    ),
    "one bit changed": lambda c, s: bytes([s.sealed_for(ME)[0] ^ 1]) + s.sealed_for(ME)[1:],
    "the last bit changed": lambda c, s: s.sealed_for(ME)[:-1] + bytes([s.sealed_for(ME)[-1] ^ 1]),
    "too short": lambda c, s: s.sealed_for(ME)[:-1],
    "too long": lambda c, s: s.sealed_for(ME) + bytes(61),
    "nothing": lambda c, s: b"",
    "of another round": lambda c, s: c.collected(c.values(), absent=[GONE], round=1).sealed_for(ME),
}


@pytest.mark.parametrize("attack", SEALED)
def test_shares_that_were_not_sealed_for_this(cohort, attack):
    server = cohort.collected(cohort.values(), absent=[GONE])
    for name in server.signed:
        server.agreed(name, cohort.agree(server, name))
    with pytest.raises(InputError):
        cohort.reveal(server, ME, sealed=SEALED[attack](cohort, server))
    assert len(cohort.reveal(server, ME)) == 33 * 6 * 2  # of those who are left, and of ward-3's


class TestOnce:
    """One set a round, whatever comes later; the same request again says the same again."""

    @pytest.fixture
    def server(self, cohort):
        return cohort.collected(cohort.values())

    def _without(self, cohort, server, name):
        left = _names(cohort, name)
        return left, _some(server.signed, *left)

    def test_both_secrets_of_a_member(self, cohort, server):
        """Its own mask was unmasked, and now it is said to have vanished."""
        cohort.reveal(server, ME)
        before = dict(cohort.committed[ME])
        left, signed = self._without(cohort, server, "ward-4")
        with pytest.raises(InputError, match="no second unmasking"):
            cohort.members[ME].agree(server.asked, left, signed, cohort.commit(ME))
        assert cohort.committed[ME] == before

    def test_both_secrets_the_other_way_round(self, cohort, server):
        """It was agreed that a member vanished, and now its own mask is asked for."""
        left, signed = self._without(cohort, server, "ward-4")
        cohort.members[ME].agree(server.asked, left, signed, cohort.commit(ME))
        with pytest.raises(InputError, match="no second unmasking"):
            cohort.reveal(server, ME)

    def test_a_member_whose_disk_was_put_back_and_that_masks_again(self, cohort, server):
        """Its masks in common are the same; the others do not take its new own one off."""
        cohort.reveal(server, ME)
        again = cohort.collected(cohort.values(seed=1))
        mixed = {**server.signed, "ward-4": again.signed["ward-4"]}
        with pytest.raises(InputError, match="no second unmasking"):
            cohort.reveal(again, ME, signed=mixed)
        size, place = server.asked.sealed_bytes[0], server.asked.names.index("ward-4")
        sealed = bytearray(server.sealed_for(ME))
        newer = again.sealed_for(ME)[place * size : (place + 1) * size]
        sealed[place * size : (place + 1) * size] = newer
        with pytest.raises(InputError, match="sealed by ward-4"):
            cohort.reveal(server, ME, sealed=bytes(sealed))

    def test_what_is_refused_is_not_committed_to(self, cohort, server):
        with pytest.raises(InputError):
            cohort.reveal(server, ME, sealed=b"")
        assert cohort.committed[ME] == {}


def test_no_split_of_the_members_gives_both_secrets_of_one(make_cohort):
    """The server asks some of the honest for the sum of all, the others to agree that ward-4 is
    gone, in every possible way, and its own two members help wherever they can."""
    for split in itertools.product([False, True], repeat=4):
        cohort = make_cohort(7, colluding=2, dropouts=1, coordinates=3)
        server = cohort.collected(cohort.values())
        left = _names(cohort, "ward-4")
        signed = _some(server.signed, *left)
        # ward-4 is honest and thinks that all are there.
        own = {"ward-4": cohort.reveal(server, "ward-4")}
        asked, hash = server.asked, server.asked.check_survivors(left, signed)
        certificate = {
            name: cohort.who[name].sign("left", asked.context, hash)
            for name in ("ward-5", "ward-6")
        }
        for name, is_told_all in zip(cohort.names[:4], split, strict=True):
            if is_told_all:
                own[name] = cohort.reveal(server, name)
            else:
                certificate[name] = cohort.members[name].agree(
                    asked, left, signed, cohort.commit(name)
                )
        helped = 2 + len(own)  # shares of the own mask of ward-4
        common = 0  # shares of its masks in common with others
        if len(certificate) >= cohort.pool.threshold:
            common = len(certificate)
        assert not (helped >= cohort.pool.threshold and common >= cohort.pool.threshold)


def test_terms_whose_threshold_would_allow_two_sets_cannot_be_written(make_cohort):
    """2 t > K + c, so that two sets cannot both have t members of which c lie to both."""
    for size, colluding, dropouts in itertools.product(range(2, 12), range(11), range(11)):
        try:
            pool = make_cohort(size, colluding=colluding, dropouts=dropouts).pool
        except InputError:
            continue
        assert 2 * pool.threshold > size + colluding
        assert pool.threshold <= size - dropouts
        assert pool.honest >= 2


BAD_TERMS = {
    "nobody to count on": ({"colluding": 3, "dropouts": 0}, "trust = 'local'"),
    "more vanish than may": ({"colluding": 0, "dropouts": 2}, "dropouts = 2 is not allowed"),
    "too few members": ({"members": {"a": "0" * 64}}, "members = 1 is not allowed"),
    "one key for two": ({"members": dict.fromkeys("abcd", "0" * 64)}, "the same key"),
    "no key": ({"members": dict.fromkeys("abcd", "key")}, "64 hexadecimal digits"),
    "no members": ({"members": {}}, "at least the 4 of a cohort"),
    "a round that is none": ({"cohorts": {"first": "0" * 64}}, "a whole number"),
    "a cohort that is none": ({"cohorts": {"0": "all"}}, "64 hexadecimal digits"),
    "no rounds": ({"cohorts": {}}, "a table of rounds"),
    "more bits than there are": ({"modulus_bits": 63}, "62"),
}


@pytest.mark.parametrize("case", BAD_TERMS)
def test_terms_that_cannot_be_kept(make_cohort, case):
    changes, words = BAD_TERMS[case]
    given = {**make_cohort(4).pool.to_dict(), **changes}
    with pytest.raises(InputError, match=words):
        AcceptedGroup(**given)


def test_an_identity_that_the_terms_do_not_have(cohort):
    with pytest.raises(InputError, match="do not have the key of this identity"):
        Member(ME, Identity(bytes(32)), cohort.pool, run="spring", plan="", ledger="")
    with pytest.raises(InputError, match="31 bytes"):
        Identity(bytes(31))


class TestServer:
    """A server that keeps to the protocol takes nothing that would spoil a sum."""

    def test_a_vector_of_a_stranger_twice_or_late(self, cohort):
        values = cohort.values()
        server = cohort.collected(values, absent=[GONE])
        late = cohort.members[GONE].mask(server.asked, values[GONE])
        with pytest.raises(InputError, match="in time"):
            server.take(late)
        for changes in ({"member": "stranger"}, {"member": "ward-1"}):
            with pytest.raises(InputError):
                server.take(dataclasses.replace(late, **changes))

    def test_a_vector_that_was_masked_for_something_else(self, cohort, make_cohort):
        from dpcohort.deploy.secure_aggregation import MaskedSum

        server, values = MaskedSum(cohort.ask()), cohort.values()
        masked = cohort.members[ME].mask(cohort.ask(1), values[ME])
        with pytest.raises(InputError, match="has not signed that it masked for this cohort"):
            server.take(masked)
        right = cohort.members[ME].mask(cohort.ask(), values[ME])
        with pytest.raises(InputError, match="is not the one it signed"):
            server.take(dataclasses.replace(right, vector=right.vector + np.uint64(1)))
        for changes in ({"vector": right.vector[:-1]}, {"sealed": right.sealed[1:]}):
            with pytest.raises(InputError, match="another length"):
                server.take(dataclasses.replace(right, **changes))
        server.take(right)
        with pytest.raises(InputError, match="once"):
            server.take(right)

    @pytest.mark.parametrize("liar", ["ward-0", "ward-3", "ward-5"])
    def test_wrong_shares_are_found_where_more_came_than_are_needed(self, cohort, liar):
        server = cohort.collected(cohort.values())
        for name in cohort.names:
            shares = cohort.reveal(server, name)
            server.take_shares(name, b"\xff" * len(shares) if name == liar else shares)
        with pytest.raises(InputError, match="do not fit together"):
            server.total()

    def test_agreements_and_shares_of_others(self, cohort):
        server = cohort.collected(cohort.values(), absent=[GONE])
        with pytest.raises(InputError, match="has not agreed"):
            server.agreed("ward-1", cohort.agree(server, ME))
        with pytest.raises(InputError, match="has not agreed"):
            server.agreed(GONE, cohort.who[GONE].sign("left", server.asked.context, server._hash))
        with pytest.raises(InputError, match="shares"):
            server.take_shares(ME, b"short")
        with pytest.raises(InputError, match="shares"):
            server.take_shares(GONE, bytes(33 * 6 * 2))
        with pytest.raises(InputError, match="at least 5 members"):
            server.total()
