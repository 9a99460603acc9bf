# SPDX-License-Identifier: Apache-2.0
"""What was paid for records beside the rounds of runs, and what it leaves of the promises.

A *charge* says what an estimate of bounds, charged tuning or an evaluation spent of each client: an
(ε, δ) in numbers, never a share of something that is to be looked up later. Its id is the hash of
its content, and it names the charges that were paid before it, so their order is a chain that
anybody can check. Charges add up by simple composition, which needs no more than that each keeps
its (ε, δ), in exact fractions; a sum is rounded up and what it leaves is rounded down. Two charges
of which neither names the other are refused: both were paid, and each may have been told that the
whole budget was there for it.

:class:`Paid` is what a plan knows of this: what each client promised in all, and every charge since
its first run.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from dpcohort._validate import choice, number
from dpcohort.accounting._contract import Contract
from dpcohort.accounting._sampler import Neighbours
from dpcohort.accounting._unit import unit_of
from dpcohort.atomic_file import write_text
from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.limits import LARGEST_JSON
from dpcohort.plain_text import one_line
from dpcohort.text_files import of_file, parse_json, read_utf8

FORMAT = "dpcohort charge"
#: What a charge can be for.
Purpose = Literal["estimate", "tuning", "evaluation"]
#: The same in words, as receipts, letters and messages have it.
IN_WORDS: Mapping[str, str] = {
    "estimate": "on an estimate of bounds",
    "tuning": "on tuning",
    "evaluation": "on an evaluation",
}
#: Less than this share of a budget left is none: the noise would be twenty times as large.
LEAST_LEFT = 0.05
_MOST_NAMED = 5

#: Epsilon and delta.
Spent = tuple[float, float]


def _both(name: str, what: str, values: Any, least: float) -> Spent:
    epsilon, delta = values
    number(f"epsilon that {name!r} {what}", epsilon, at_least=least)
    number(f"delta that {name!r} {what}", delta, at_least=0, below=1)
    return float(epsilon), float(delta)


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What was spent on clients' records beside the rounds of a run.

    Attributes:
        what: an estimate of bounds, tuning, or an evaluation.
        private: its noise came from the operating system's entropy.
        neighbours: which two data sets its epsilons are about.
        unit: of privacy, what they differ in.
        promised: whole promise of each client that paid, by id: epsilon and delta.
        spent: what each of them paid of it.
        public: ids of clients whose records were looked at without noise.
        after: ids of all charges that were paid before it.
        alone: epsilon that clients have spent at that delta if all others collude, by id, where
            their noise was distributed; of all others it is what they spent.
        nonce: a random number, so that no two charges are the same.

    Example:
        >>> paid = Charge(what="tuning", private=False, promised={"north": (1.0, 1e-5)},
        ...               spent={"north": (0.5, 5e-6)})
        >>> Charge.from_dict(paid.to_dict()) == paid
        True
    """

    what: Purpose
    private: bool
    neighbours: Neighbours = "zero-out"
    unit: str = "record"
    promised: Mapping[str, Spent]
    spent: Mapping[str, Spent]
    public: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    alone: Mapping[str, float] = field(default_factory=dict)
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        choice("charge.what", self.what, get_args(Purpose))
        choice("charge.neighbours", self.neighbours, get_args(Neighbours))
        if set(self.promised) != set(self.spent):
            raise InputError.because("a charge must say of each client what it promised and paid.")
        for name, both in self.spent.items():
            _both(name, "was charged", both, 0)
            whole = _both(name, "promised", self.promised[name], 0)
            if any(paid > most for paid, most in zip(both, whole, strict=True)):
                raise InputError.because(
                    f"{one_line(name)!r} was charged epsilon {both[0]:g} at delta {both[1]:g} of a "
                    f"promise of {whole[0]:g} at {whole[1]:g}."
                )
        for name, epsilon in self.alone.items():
            if name not in self.spent or not epsilon >= self.spent[name][0]:
                raise InputError.because(
                    f"{one_line(name)!r} cannot have spent less if all others collude."
                )

    @cached_property
    def id(self) -> str:
        """Hash of all that the charge says."""
        content = json.dumps(self._plain(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(content.encode()).hexdigest()

    def _plain(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "private": self.private,
            "neighbours": self.neighbours,
            **({} if self.unit == "record" else {"unit": self.unit}),
            "promised": {name: [float(x) for x in both] for name, both in self.promised.items()},
            "spent": {name: [float(x) for x in both] for name, both in self.spent.items()},
            "public": list(self.public),
            "after": list(self.after),
            **({"alone": {n: float(e) for n, e in self.alone.items()}} if self.alone else {}),
            "nonce": self.nonce,
        }

    def to_dict(self) -> dict[str, Any]:
        """The charge as plain JSON values, with its id."""
        return {"id": self.id, **self._plain()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Charge:
        """The charge from :meth:`to_dict`.

        Raises:
            InputError: it was changed after it was written.
        """
        found = cls(
            what=values["what"],
            private=values["private"] is True,
            neighbours=values["neighbours"],
            unit=unit_of(values.get("unit", "record")).name,
            promised={n: _both(n, "promised", v, 0) for n, v in values["promised"].items()},
            spent={n: _both(n, "was charged", v, 0) for n, v in values["spent"].items()},
            public=tuple(map(str, values["public"])),
            after=tuple(map(str, values["after"])),
            alone=dict(values.get("alone", {})),
            nonce=str(values["nonce"]),
        )
        if found.to_dict() != dict(values):
            raise InputError.because(
                f"the charge {str(values['id'])[:12]}... was changed after it was written: what it "
                f"says hashes to {found.id[:12]}.... What was paid stays paid; put the charge back "
                "as it was."
            )
        return found

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def title(self) -> str:
        """What it was for, and the beginning of its id.

        Example:
            >>> Charge(what="tuning", private=True, promised={}, spent={}, nonce="").title
            'tuning 8d7928fd'
        """
        return f"{self.what} {self.id[:8]}"


def in_order(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """Charges by the order in which they were paid, each of them once.

    Raises:
        InputError: the order of two of them is not proved, or one knows of another that is missing.

    Example:
        >>> first = Charge(what="estimate", private=True, promised={}, spent={})
        >>> second = Charge(what="tuning", private=True, promised={}, spent={}, after=(first.id,))
        >>> in_order([second, first, second]) == (first, second)
        True
    """
    found = sorted({charge.id: charge for charge in charges}.values(), key=lambda c: len(c.after))
    known = {charge.id for charge in found}
    for place, charge in enumerate(found):
        missing = sorted(set(charge.after) - known)
        if missing:
            raise InputError.because(
                f"the charge {charge.title} was paid after the charge {missing[0][:8]}, which is "
                "not named here: what that one took would be promised again. Name its file under "
                "[charges] as well."
            )
        for earlier in found[:place]:
            if earlier.id not in charge.after:
                raise InputError.because(
                    f"the charges {earlier.title} and {charge.title} were each paid without "
                    "knowing of the other, so the order in which they were paid is not proved. "
                    "Both stay spent. Make one of the two again, on a config that names the other, "
                    "and lower the promises by what the one that you give up has taken."
                )
    return tuple(found)


def _sums(charges: Sequence[Charge], client: str) -> tuple[Fraction, Fraction]:
    paid = [charge.spent[client] for charge in charges if client in charge.spent]
    epsilon, delta = (sum((Fraction(one[place]) for one in paid), Fraction()) for place in (0, 1))
    return epsilon, delta


def charged_to(charges: Sequence[Charge], client: str) -> Spent:
    """Epsilon and delta that charges took of a client, never rounded down.

    Args:
        charges: what was spent.
        client: its id.

    Example:
        >>> paid = Charge(what="tuning", private=False, promised={"north": (1.0, 1e-5)},
        ...               spent={"north": (0.5, 5e-6)})
        >>> charged_to([paid, paid], "north"), charged_to([paid], "south")
        ((1.0, 1e-05), (0.0, 0.0))
    """
    epsilon, delta = _sums(charges, client)
    return total(epsilon), total(delta)


def total(*amounts: float | Fraction) -> float:
    """A sum, never rounded down.

    Example:
        >>> total(0.1, 0.2) > Fraction(0.1) + Fraction(0.2), total(0.25, math.inf)
        (True, inf)
    """
    if any(isinstance(one, float) and not math.isfinite(one) for one in amounts):
        return float(sum(amounts))
    exact = sum((Fraction(one) for one in amounts), Fraction())
    near = float(exact)
    return near if Fraction(near) >= exact else float(np.nextafter(near, np.inf))


def left(promised: float, charged: float | Fraction) -> float:
    """What is left of a budget, never rounded up.

    Example:
        >>> left(1.0, 0.25)
        0.75
    """
    return 0.0 - total(Fraction(charged) - Fraction(promised))


def private_clients(population: Population) -> Iterator[tuple[int, str, float, float]]:
    """Position, id and promised epsilon and delta of each client that has a budget.

    Example:
        >>> people = Population.from_arrays(ids=["north"], sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> list(private_clients(people))
        [(0, 'north', 1.0, 1e-05)]
    """
    for k in np.flatnonzero(~population.public).tolist():
        yield k, population.ids[k], float(population.epsilon[k]), float(population.delta[k])


def charged_out(population: Population, charges: Sequence[Charge]) -> dict[str, str]:
    """Clients of whose promise charges alone left nothing, by id, with the reason in words.

    Example:
        >>> people = Population.from_arrays(ids=["north"], sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> paid = Charge(what="tuning", private=False, promised={"north": (1.25, 1e-5)},
        ...               spent={"north": (1.25, 5e-6)})
        >>> charged_out(people, [paid])["north"]
        'north: promised epsilon 1 at delta 1e-05, has spent 1.25 at 5e-06 beside the rounds: ...'
    """
    found = {}
    bare = {name for charge in charges for name in charge.public}
    for _, name, *promised in private_clients(population):
        paid = _sums(charges, name)
        if name in bare:
            found[name] = (
                f"{one_line(name)}: its records were looked at without noise, as those of a public "
                "client; no epsilon can be promised for them now"
            )
        elif any(left(*pair) < LEAST_LEFT * pair[0] for pair in zip(promised, paid, strict=True)):
            took = ", ".join(charge.title for charge in charges if name in charge.spent)
            found[name] = (
                f"{one_line(name)}: promised epsilon {promised[0]:.4g} at delta {promised[1]:g}, "
                f"has spent {float(paid[0]):.4g} at {float(paid[1]):g} beside the rounds: {took}"
            )
    return found


def nothing_left(exhausted: Mapping[str, str]) -> str:
    r"""Clients that cannot go on in a sentence, and a line for each of the first.

    Example:
        >>> nothing_left({"north": "north: has spent all"})
        '1 client has nothing left to go on with:\n  north: has spent all'
    """
    count, shown = len(exhausted), list(exhausted.values())[:_MOST_NAMED]
    more = [f"... and {count - _MOST_NAMED} more"] if count > _MOST_NAMED else []
    return (
        f"{count} {'client has' if count == 1 else 'clients have'} nothing left to go on "
        "with:\n" + "\n".join(f"  {words}" for words in (*shown, *more))
    )


def after_charges(
    population: Population, charges: Sequence[Charge], *, kept: float = 0.0
) -> Population:
    """The clients with what charges left of their promises.

    Args:
        population: clients with their whole promises.
        charges: what was paid.
        kept: share of what they left that is kept for an evaluation.

    Raises:
        BudgetExceededError: of a client nothing is left.
        InputError: the order of the charges is not proved.

    Example:
        >>> people = Population.from_arrays(ids=["north"], sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> paid = Charge(what="tuning", private=False, promised={"north": (1.0, 1e-5)},
        ...               spent={"north": (0.25, 5e-6)})
        >>> after_charges(people, [paid]).epsilon.tolist()
        [0.75]
    """
    if not charges and not kept:
        return population
    gone = charged_out(population, charges)
    if gone:
        raise BudgetExceededError(nothing_left(gone))
    paid_in_order = in_order(charges)
    epsilon, delta = population.epsilon.copy(), population.delta.copy()
    for k, name, *promised in private_clients(population):
        paid = _sums(paid_in_order, name)
        rest = [left(*pair) for pair in zip(promised, paid, strict=True)]
        epsilon[k], delta[k] = (left(one, kept * one) for one in rest)
    return replace(population, epsilon=epsilon, delta=delta)


def check_kept(share: float) -> float:
    """The share of each budget that is kept for an evaluation, if it leaves enough to train with.

    Raises:
        InputError: it is no share, or leaves less than a training could use.

    Example:
        >>> check_kept(0.05)
        0.05
    """
    number("share", share, above=0, below=1)
    if 1.0 - share < LEAST_LEFT:
        raise InputError(
            "share",
            given=share,
            allowed=f"at most {1 - LEAST_LEFT:g}, as it leaves nothing to train with",
            next_step="0.05 is enough for most: what a share buys is said before it is spent.",
        )
    return float(share)


def check_relation(charges: Sequence[Charge], contract: Contract) -> None:
    """Refuse charges that have no total under a contract, for other neighbours or another unit.

    Args:
        charges: what was paid.
        contract: of the training.

    Example:
        >>> check_relation((), Contract())
    """
    relation, unit = contract.neighbours, contract.unit.name
    for charge in charges:
        if (charge.neighbours, charge.unit) != (relation, unit):
            raise InputError.because(
                f"the charge {charge.title} was paid for {charge.neighbours} neighbours that "
                f"differ in a {charge.unit}, and the training is for {relation} and a {unit}: "
                "they have no common total. Make it again, or change privacy.neighbours and "
                "privacy.unit."
            )


def refuse_simulated(charges: Sequence[Charge]) -> None:
    """Refuse charges with noise of a seed: nothing that rests on one can be private.

    Args:
        charges: what was paid.

    Example:
        >>> refuse_simulated(())
    """
    for charge in charges:
        if not charge.private:
            raise InputError.because(
                f"the charge {charge.title} was a simulation: its noise came from a seed, so no "
                "budget covers it, and nothing that rests on it can be private. Make it again "
                "without simulate, from a config that does not name it."
            )


@dataclass(frozen=True, kw_only=True)
class Paid:
    """Promises in all, and the charges that were paid of them beside the rounds of runs.

    Attributes:
        promised: epsilon and delta of each client with a budget, by id; empty where nothing was
            paid and nothing is kept.
        charges: all of them, oldest first, those of earlier runs among them.
        kept: share of what they left of each promise that is kept for the evaluation of the model.

    Example:
        >>> bool(Paid()), Paid().to("north")
        (False, (0.0, 0.0))
    """

    promised: Mapping[str, Spent] = field(default_factory=dict)
    charges: tuple[Charge, ...] = ()
    kept: float = 0.0

    def __post_init__(self) -> None:
        in_order(self.charges)
        number("kept", self.kept, at_least=0, at_most=1 - LEAST_LEFT)

    def __bool__(self) -> bool:
        return bool(self.charges)

    @classmethod
    def of(cls, population: Population, charges: Sequence[Charge], kept: float = 0.0) -> Paid:
        """What was paid of the whole promises of a population, and is kept of them.

        Example:
            >>> people = Population.from_arrays(ids=["a"], sizes=[90], epsilon=[1.0], delta=1e-5)
            >>> Paid.of(people, ()) == Paid()
            True
        """
        if not charges and not kept:
            return cls()
        promised = {name: (e, d) for _, name, e, d in private_clients(population)}
        return cls(promised=promised, charges=in_order(charges), kept=kept)

    def to(self, client: str) -> Spent:
        """What all charges took of a client, never rounded down."""
        return charged_to(self.charges, client)

    def kept_of(self, client: str) -> Spent:
        """Epsilon and delta of a client's promise that are kept for the evaluation.

        Example:
            >>> Paid(promised={"north": (1.0, 1e-5)}, kept=0.25).kept_of("north")
            (0.25, 2.5e-06)
        """
        if not self.kept or client not in self.promised:
            return 0.0, 0.0
        pairs = zip(self.promised[client], _sums(self.charges, client), strict=True)
        epsilon, delta = (self.kept * left(*pair) for pair in pairs)
        return epsilon, delta

    def whole(self, population: Population, k: int) -> Spent:
        """The promise of the client at a position of a plan's population, charges included."""
        own = float(population.epsilon[k]), float(population.delta[k])
        return self.promised.get(population.ids[k], own)

    def check(self, population: Population) -> None:
        """Refuse a population that has more than charges and what is kept left of its promises.

        Raises:
            BudgetExceededError: with the client and the charges.
            InputError: a client is missing, or was looked at without noise.
        """
        if not self.charges and not self.kept:
            return
        bare = {name for charge in self.charges for name in charge.public}
        for _, name, *has in private_clients(population):
            if name in bare or name not in self.promised:
                raise InputError.because(
                    f"{one_line(name)!r} has a budget, and what it promised in all and paid is not "
                    "known; make the plan again."
                )
            parts = zip(has, _sums(self.charges, name), self.kept_of(name), strict=True)
            sums = [Fraction(one) + paid + Fraction(kept) for one, paid, kept in parts]
            whole = self.promised[name]
            if any(one > Fraction(most) for one, most in zip(sums, whole, strict=True)):
                took = ", ".join(charge.title for charge in self.charges)
                raise BudgetExceededError(
                    f"{one_line(name)!r} promised epsilon {whole[0]:g} at delta {whole[1]:g} in "
                    f"all; what was paid ({took}) and what the plan may spend come to "
                    f"{total(sums[0]):.6g} at {total(sums[1]):g}. Make the plan again."
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "promised": {name: list(both) for name, both in self.promised.items()},
            "charges": [charge.to_dict() for charge in self.charges],
            **({"kept": self.kept} if self.kept else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Paid:
        """What :meth:`to_dict` gave."""
        return cls(
            promised={n: _both(n, "promised", v, 0) for n, v in values["promised"].items()},
            charges=tuple(Charge.from_dict(charge) for charge in values["charges"]),
            kept=values.get("kept", 0.0),
        )


def charge_of(
    population: Population,
    known: Sequence[Charge],
    spent: Callable[[float, float], Spent],
    *,
    what: Purpose,
    private: bool,
    contract: Contract,
) -> Charge:
    """A new charge of every client with a budget, paid from what earlier ones left.

    Args:
        population: clients with their whole promises.
        known: all charges that were paid before.
        spent: what a client pays, from the epsilon and delta that it has left.
        what: the purpose.
        private: its noise will come from the operating system's entropy.
        contract: of the training, for its neighbours and unit.

    Raises:
        BudgetExceededError: nothing is left of a client.
        InputError: the order of the charges before is not proved, or one of them was a simulation
            and this one is private.

    Example:
        >>> people = Population.from_arrays(ids=["a"], sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> half = lambda epsilon, delta: (epsilon / 2, 0.0)
        >>> given = {"what": "estimate", "private": True, "contract": Contract()}
        >>> first = charge_of(people, (), half, **given)
        >>> charge_of(people, [first], half, **given).spent
        {'a': (0.25, 0.0)}
    """
    check_relation(known, contract)
    if private:
        refuse_simulated(known)
    has = {name: both for _, name, *both in private_clients(after_charges(population, known))}
    return Charge(
        what=what,
        private=private,
        neighbours=contract.neighbours,
        unit=contract.unit.name,
        promised={name: (e, d) for _, name, e, d in private_clients(population)},
        spent={name: spent(*both) for name, both in has.items()},
        public=tuple(population.ids[k] for k in np.flatnonzero(population.public).tolist()),
        after=tuple(charge.id for charge in in_order(known)),
    )


def write_charge(path: str | Path, charge: Charge, **result: Any) -> None:
    """A charge as a file, with what was bought by it.

    Args:
        path: where; the file appears whole or not at all.
        charge: what was paid.
        result: what came of it, once it is known.
    """
    content = {"format": FORMAT, "schema": 1, "charge": charge.to_dict(), "result": result}
    said = {**content, "sha256": _hashed(content)}
    write_text(path, json.dumps(said, indent=2, ensure_ascii=False) + "\n")


def read_charge(path: str | Path) -> tuple[Charge, dict[str, Any]]:
    """The charge in a file, and what was bought by it; empty if its maker died before.

    Raises:
        FileFormatError: it is not there, not a charge, or was changed.
    """
    content = read_utf8(path, at_most_bytes=LARGEST_JSON)
    words = "not a charge as dpcohort writes it ({})"
    with of_file(path, words, (ValueError, KeyError, TypeError, AttributeError)):
        found = parse_json(content)
        if found["format"] != FORMAT or found["schema"] != 1:
            raise ValueError(f"{FORMAT!r} expected")
        charge, result = Charge.from_dict(found["charge"]), dict(found["result"])
        rest = {key: value for key, value in found.items() if key != "sha256"}
        if _hashed(rest) != found["sha256"]:
            raise ValueError("it was changed after it was written: put it back as it was")
        return charge, result


def _hashed(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
