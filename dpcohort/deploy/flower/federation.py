# SPDX-License-Identifier: Apache-2.0
"""The server's side of a federation, in one file: plan, model, step sizes, clients and their keys.

``federation.toml`` lies on the operator's machine and holds no secret and no data. The plan lies
beside it; neither is part of the Flower app, because Flower sends the app to every client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort._validate import nearest, number, whole_number
from dpcohort.config.schema import OptimiserSection, check_optimiser
from dpcohort.deploy.flower.certificates import key_fingerprint
from dpcohort.deploy.guard.terms import ModelTerms
from dpcohort.deploy.ledger.keys import name as checked_name
from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import LARGEST_FEDERATION
from dpcohort.plan import Plan
from dpcohort.text_files import parse_toml, read_utf8, toml_text

__all__ = ["Federation"]

_KEYS = ("run", "plan", "out", "timeout", "attempts", "quorum", "seed", "test")
_TABLES = ("model", "optimiser", "aggregation", "clients")


@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """Everything a server needs to execute a plan with clients it never sees the data of.

    Attributes:
        run: our name for the run, which every client's owner has accepted. It stays the same when
            a failed Flower run is gone on with, so that a draw is the same draw.
        plan: cohorts, noise, clip.
        model: what is trained; the guards must have the same.
        clients: public key of each client, as in ``node.pub``.
        optimiser: step sizes, as in a configuration's [optimiser].
        seed: of the initial weights; public.
        timeout: seconds for a round.
        attempts: how often a client is asked in a round, if nothing came.
        quorum: share of a round's draws below which the round is passed over.
        aggregation: ``rule`` and its settings, as in a configuration's [aggregation].
        test: public test data, a name or a path; empty for none.
        out: the run folder; empty if it is said elsewhere.
    """

    run: str
    plan: Plan
    model: ModelTerms
    clients: Mapping[str, str]
    optimiser: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    timeout: float = 600.0
    attempts: int = 3
    quorum: float = 0.5
    aggregation: Mapping[str, Any] = field(default_factory=lambda: {"rule": "mean"})
    test: str = ""
    out: str = ""

    def __post_init__(self) -> None:
        checked_name("run", self.run)
        number("timeout", self.timeout, above=0, at_most=7 * 86400)
        whole_number("attempts", self.attempts, at_least=1, at_most=100)
        number("quorum", self.quorum, above=0, at_most=1)
        whole_number("seed", self.seed, at_least=0)
        self._check_public()
        self._check_keys()

    def _check_public(self) -> None:
        public = np.flatnonzero(self.plan.drawn & self.plan.population.public)
        if public.size:
            name = self.plan.population.ids[int(public[0])]
            raise InputError.because(
                f"the plan draws the public client {name!r}, whose updates carry no noise; a guard "
                "releases none without. Plan without public clients."
            )

    def _check_keys(self) -> None:
        known = set(self.plan.population.ids)
        strangers = sorted(set(self.clients) - known)
        if strangers:
            raise InputError.because(
                f"[clients] has a key for {strangers[0]!r}, whom the plan does not know."
            )
        missing = [client for client in self.drawn if not self.clients.get(client)]
        if missing:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise InputError.because(
                f"[clients] has no public key of {', '.join(missing[:5])}{more}, whom the plan "
                "draws. Ask their owners for node.pub."
            )
        owners: dict[str, str] = {}
        for client, key in self.fingerprints.items():
            if key in owners:
                raise InputError.because(
                    f"{owners[key]!r} and {client!r} have the same public key. Each client needs "
                    "its own."
                )
            owners[key] = client

    @property
    def drawn(self) -> tuple[str, ...]:
        """The clients that the plan draws at least once."""
        ids = self.plan.population.ids
        return tuple(ids[k] for k in np.flatnonzero(self.plan.drawn).tolist())

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprint of each client's key."""
        found = {}
        for client, key in self.clients.items():
            try:
                found[client] = key_fingerprint(key)
            except InputError as error:
                raise InputError.because(f"[clients] {client!r}: {error}") from None
        return found

    @property
    def optimiser_section(self) -> OptimiserSection:
        """The step sizes, checked."""
        known = list(OptimiserSection.model_fields)
        _known_keys("[optimiser] ", self.optimiser, known)
        try:
            section = OptimiserSection(**self.optimiser)
        except ValueError:  # pydantic's own words are not for people
            raise InputError(
                "[optimiser]", given=dict(self.optimiser), allowed="as in a configuration"
            ) from None
        return check_optimiser(section)

    def to_toml(self, *, plan: str) -> str:
        """The file that :meth:`load` reads.

        Args:
            plan: where the plan will lie, from the file's own folder.
        """
        values: dict[str, Any] = {
            "run": self.run,
            "plan": plan,
            "timeout": float(self.timeout),
            "attempts": self.attempts,
            "quorum": float(self.quorum),
            "seed": self.seed,
            "test": self.test,
            "out": self.out,
            "model": {
                "name": self.model.name,
                "input_shape": list(self.model.input_shape),
                "classes": self.model.classes,
                "options": dict(self.model.options),
            },
            "optimiser": dict(self.optimiser),
            "aggregation": dict(self.aggregation),
            "clients": dict(self.clients),
        }
        return toml_text(values)

    @classmethod
    def load(cls, path: str | Path) -> Federation:
        """Read ``federation.toml`` and the plan it names.

        Raises:
            FileFormatError: something in it cannot be used, with its key.
            VerificationError: the plan was changed.
        """
        text = read_utf8(path, at_most_bytes=LARGEST_FEDERATION).decode("utf-8")
        try:
            values = parse_toml(text)
        except ValueError as error:
            raise FileFormatError(path, f"not valid TOML: {error}.") from None
        try:
            return cls._from_values(values, Path(path).parent)
        except FileFormatError:
            raise
        except InputError as error:
            raise FileFormatError(path, str(error)) from None

    @classmethod
    def _from_values(cls, values: Mapping[str, Any], folder: Path) -> Federation:
        _known_keys("", values, [*_KEYS, *_TABLES])
        for key in ("run", "plan", "model", "clients"):
            if key not in values:
                raise InputError.because(f"the key {key!r} is missing.")
        for key in _TABLES:
            if not isinstance(values.get(key, {}), Mapping):
                raise InputError(key, given=values[key], allowed=f"a table [{key}]")
        for key in ("plan", "test", "out"):
            if not isinstance(values.get(key, ""), str):
                raise InputError(key, given=values[key], allowed="text in quotes")
        for client, public in values["clients"].items():
            if not isinstance(public, str):
                raise InputError(
                    f"clients.{client}", given=public, allowed="a public key in quotes"
                )
        _known_keys("[model] ", values["model"], ["name", "input_shape", "classes", "options"])
        rest = {key: values[key] for key in _KEYS if key in values and key != "plan"}
        plan = Plan.load(folder / values["plan"])
        plan.verify_unless_made_here()
        try:
            model = ModelTerms(**values["model"])
        except TypeError:
            raise InputError.because("[model] needs name, input_shape and classes.") from None
        found = cls(
            plan=plan,
            model=model,
            clients=dict(values["clients"]),
            optimiser=dict(values.get("optimiser", {})),
            aggregation={"rule": "mean", **values.get("aggregation", {})},
            **rest,
        )
        found.optimiser_section  # noqa: B018  # checked now, not at the first round
        return found


def _known_keys(where: str, values: Mapping[str, Any], known: list[str]) -> None:
    for key in values:
        if key not in known:
            hint = nearest(str(key), known)
            raise InputError(
                f"{where}key",
                given=key,
                allowed="one of " + ", ".join(known),
                next_step=f"Did you mean {hint!r}?" if hint else None,
            )
