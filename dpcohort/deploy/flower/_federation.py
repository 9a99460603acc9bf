# SPDX-License-Identifier: Apache-2.0
"""The server's side of a federation, in one file: plan, model, step sizes, clients and their keys.

``federation.toml`` lies on the operator's machine and holds no secret and no data. The plan lies
beside it; neither is part of the Flower app, because Flower sends the app to every client.

Whether what a client's owner accepted covers what the plan will ask is checked before anything is
asked. The guard checks every draw anyway; asked beforehand, a federation whose terms do not fit its
plan ends with a message and without a draw spent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import (
    AfterValidator,
    Field,
    InstanceOf,
    PlainValidator,
    ValidationError,
    model_validator,
)

from dpcohort.accounting._charges import refuse_simulated
from dpcohort.accounting._unit import UNITS
from dpcohort.config._schema import OptimiserSection, check_optimiser
from dpcohort.data import PersonTerms
from dpcohort.deploy._formats import Format, Name, bounded, in_words, read_toml, whole
from dpcohort.deploy.flower._certificates import key_fingerprint
from dpcohort.deploy.guard._protocol import PROTOCOL, Hello
from dpcohort.deploy.guard._terms import (
    ModelTerms,
    evaluation_group,
    persons_of_file,
    pool_from_plan,
)
from dpcohort.deploy.ledger._terms import (
    AcceptedGroup,
    Members,
    asked_of,
    evaluation_asked_of,
    reports_asked_of,
)
from dpcohort.errors import InputError, WaitingError
from dpcohort.limits import LARGEST_FEDERATION
from dpcohort.plain_text import one_line, some
from dpcohort.plan import Plan
from dpcohort.runs._noised_metrics import questions_of
from dpcohort.text_files import of_file, toml_text

if TYPE_CHECKING:
    from dpcohort.deploy.flower._record import FederatedJob

_MOST_SHOWN = 12  # lines


def drawn_clients(plan: Plan) -> tuple[str, ...]:
    """The ids of the clients that a plan draws at least once."""
    return tuple(plan.population.ids[k] for k in np.flatnonzero(plan.drawn).tolist())


def check_no_public_client(plan: Plan, who: str) -> None:
    """Refuse a plan that draws a client without a budget.

    Args:
        plan: the plan.
        who: would have to send its updates, in words.
    """
    public = np.flatnonzero(plan.drawn & plan.population.public)
    if public.size:
        raise InputError.because(
            f"the plan draws the public client {plan.population.ids[int(public[0])]!r}, whose "
            f"updates carry no noise; {who} none without. Plan without public clients."
        )


def unit_of(plan: Plan) -> str:
    """What an app's plan protects: a whole ``client``, or a ``record``."""
    return "client" if int(plan.population.sizes.max()) == 1 else "record"


class Federation(Format):
    """Everything a server needs to execute a plan with clients it never sees the data of.

    Attributes:
        run: our name for the run, which every client's owner has accepted. It stays the same when
            a failed Flower run is gone on with, so that a draw is the same draw.
        plan: cohorts, noise, clip.
        timeout: seconds for a round.
        attempts: how often a client is asked in a round, if nothing came.
        quorum: share of a round's draws for which a round waits; it is passed over if their guards
            refuse for good.
        seed: of the initial weights; public.
        test: public test data, a name or a path; empty for none.
        out: the run folder; empty if it is said elsewhere.
        model: what is trained; the guards must have the same.
        optimiser: step sizes, as in a configuration's [optimiser].
        aggregation: ``rule`` and its settings, as in a configuration's [aggregation].
        clients: public key of each client, as in ``node.pub``; None for an app whose nodes are
            known by the names they give, not by keys they proved.
        revoked: clients that are asked nothing any more, from when the run is gone on with; their
            draws are lost. The service lets their keys in no more.
        members: the public key of each client's identity, by which its guard signs what it
            releases. Where noise is distributed all are needed, as its owner and all others have
            them in their terms; otherwise the first key of a client is the one that counts.
        persons: how the rows of a person are used, of a plan for persons; all guards do the same.
        tuning: where the settings came from, as in a configuration's [tuning]; empty for nowhere.
    """

    run: Name
    plan: InstanceOf[Plan]
    timeout: Annotated[float, bounded(above=0, at_most=7 * 86400)] = 600.0
    attempts: Annotated[int, whole(at_least=1, at_most=100)] = 3
    quorum: Annotated[float, bounded(above=0, at_most=1)] = 0.5
    seed: Annotated[int, whole(at_least=0)] = 0
    test: str = ""
    out: str = ""
    model: ModelTerms
    optimiser: Mapping[str, Any] = Field(default_factory=dict)
    aggregation: Annotated[
        Mapping[str, Any], AfterValidator(lambda given: {"rule": "mean", **given})
    ] = Field(default_factory=lambda: {"rule": "mean"})
    clients: Mapping[str, str] | None
    revoked: Annotated[tuple[str, ...], Field(strict=False)] = ()
    members: Members = Field(default_factory=dict)
    persons: Annotated[PersonTerms | None, PlainValidator(persons_of_file)] = None
    tuning: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Federation:
        if self.clients is not None:
            check_no_public_client(self.plan, "a guard releases")
            self._check_keys(self.clients)
        _ = self.optimiser_section  # checked now, not at the first round
        _ = self.pool
        refuse_simulated(self.plan.past.paid.charges)
        if self.plan.past.paid.kept:
            self._check_evaluation()
        return self

    def _check_evaluation(self) -> None:
        """Refuse a share that is kept for an evaluation which nobody could make."""
        questions_of(self.model.predicts)
        if self.clients is None:
            raise InputError.because(
                f"the plan keeps {self.plan.past.paid.kept:g} of each budget for an evaluation, "
                "which guards make and mods of an app do not. Nothing was spent: make the plan "
                "without [evaluation], so that all of each budget is for the training."
            )

    def _check_keys(self, keys: Mapping[str, str]) -> None:
        strangers = sorted(set(keys) - set(self.plan.population.ids))
        if strangers:
            raise InputError.because(
                f"[clients] has a key for {strangers[0]!r}, whom the plan does not know."
            )
        for client in self.revoked:
            if client not in keys:
                raise InputError("revoked", given=client, allowed="clients of [clients]")
        missing = [client for client in self.drawn if not keys.get(client)]
        if missing:
            raise InputError.because(
                f"[clients] has no public key of {some(missing)}, whom the plan draws. Ask their "
                "owners for node.pub."
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
    def pool(self) -> AcceptedGroup | None:
        """What members of distributed noise count on, for all rounds; None where it is local."""
        return pool_from_plan(self.plan, self.members) if self.plan.noise.only_sums else None

    @property
    def drawn(self) -> tuple[str, ...]:
        """The clients that the plan draws at least once."""
        return drawn_clients(self.plan)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprint of each client's key."""
        found = {}
        for client, key in (self.clients or {}).items():
            try:
                found[client] = key_fingerprint(key)
            except InputError as error:
                raise InputError.because(f"[clients] {client!r}: {error}") from None
        return found

    @property
    def optimiser_section(self) -> OptimiserSection:
        """The step sizes, checked."""
        try:
            section = OptimiserSection(**self.optimiser)
        except ValidationError as error:
            words = in_words(OptimiserSection, error)
            raise InputError.because(f"[optimiser] {words}") from None
        check_optimiser(section)
        return section

    def to_toml(self, *, plan: str) -> str:
        """The file that :meth:`load` reads.

        Args:
            plan: where the plan will lie, from the file's own folder.
        """
        said = {**dict(self), "plan": plan, "model": self.model.said}
        said["persons"] = None if self.persons is None else asdict(self.persons)
        for key in ("members", "persons", "revoked", "tuning"):
            if not said[key]:
                del said[key]
        return toml_text(said)

    @classmethod
    def load(cls, path: str | Path) -> Federation:
        """Read ``federation.toml`` and the plan it names.

        Raises:
            FileFormatError: something in it cannot be used, with its key.
            VerificationError: the plan was changed.
        """
        values = read_toml(path, at_most_bytes=LARGEST_FEDERATION)
        with of_file(path):
            if not isinstance(values.get("plan", ""), str):
                raise InputError("plan", given=values["plan"], allowed="text in quotes")
            if "plan" in values:
                values["plan"] = Plan.load(Path(path).parent / values["plan"])
                values["plan"].verify_unless_made_here()
            found = cls(**values)
        return found.model_copy(update={"model": found.model.found_beside(path)})


def disagreements(job: FederatedJob, client: str, hello: Hello | str, *, resume: bool) -> list[str]:
    """What in a client's terms does not cover its part of the plan; empty if all does.

    Args:
        job: plan, model and run.
        client: which client.
        hello: what its guard says, or why that is not known.
        resume: the run goes on, so draws may be counted already.
    """
    if isinstance(hello, str):
        return [hello]
    federation, plan = job.federation, job.plan
    k = plan.population.index_of(client)
    if hello.protocol != PROTOCOL:
        return [f"its guard speaks protocol {hello.protocol}, this server {PROTOCOL}"]
    found = []
    size = int(plan.population.sizes[k])
    if hello.dataset != client:
        found.append(f"its guard signs for {hello.dataset!r}: the name of its data must be its id")
    if hello.key != federation.members.get(client, hello.key):
        found.append(f"its guard signs with the key {hello.key}, and [members] has another")
    unit = UNITS["record" if hello.persons is None else "person"]
    if unit != plan.contract.unit:
        found.append(
            f"a {unit.name} is the unit of its terms, and a {plan.contract.unit.name} that of the "
            "plan: its owner says so by [persons]"
        )
    elif federation.persons is not None and hello.persons is not None:
        found += [
            f"{key} of its [persons] is {hello.persons.get(key)!r}, and {wanted!r} of the server's"
            for key, wanted in asdict(federation.persons).items()
            if key != "blank_person" and hello.persons.get(key) != wanted
        ]
    if hello.records != size:
        found.append(
            f"its data has {hello.records} {unit.several}, the plan is for {size}: other data"
        )
    if hello.model != federation.model.sha256():
        loss = federation.model.predicts.loss
        found.append(
            f"its owner allows another model than {federation.model.name} with the loss {loss}"
        )
    elif hello.dimension != job.dimension or hello.layout != job.layout:
        found.append("its model has other parameters than the server's: other versions")
    if hello.accepted is None and hello.refused is not None:
        why = f": {hello.refused}" if hello.refused else ""
        return [*found, f"its owner has refused the run {federation.run!r}{why}"]
    if hello.accepted is None:
        return [*found, f"its owner has not accepted the run {federation.run!r}"]
    if hello.plan is not None and hello.plan != plan.sha256:
        found.append(
            f"its owner accepted the plan {hello.plan[:16]}..., this is {plan.sha256[:16]}..."
        )
    if not resume and hello.counted:
        found.append(
            f"{hello.counted} draws of a run of this name are counted: go on with that run "
            "(resume), or give this one another name"
        )
    together = evaluation_group(plan, federation.members, k)
    asked = evaluation_asked_of(plan, k) if hello.tested or together is not None else {}
    if asked:
        evaluation = hello.accepted.get("evaluation")
        if isinstance(evaluation, Mapping):
            short = _shortfalls(evaluation, asked, (), ())
            short += [] if together is None else _other_group(evaluation, together)
            found += [f"of the evaluation: {words}" for words in short]
        else:
            found.append("its terms allow no evaluation, for which the plan keeps a share")
    return found + _short_terms(federation, k, hello.accepted)


def _short_terms(federation: Federation, k: int, accepted: Mapping[str, object]) -> list[str]:
    plan = federation.plan
    rate, batch_size = float(plan.sampling_rates[k]), int(plan.batch_sizes[k])
    asked = {**asked_of(plan, k), "sampling_rate": rate, "batch_size": batch_size}
    exactly = ("sampling_rate", "batch_size", "local_steps", "sampler", "neighbours")
    found = _shortfalls(accepted, asked, exactly, ("draws", "rounds", "clip"))
    if plan.noise.only_sums:
        client = plan.population.ids[k]
        found += _other_group(accepted, pool_from_plan(plan, federation.members, client=client))
    wanted = reports_asked_of(plan, k)
    if not wanted:
        return found
    reports = accepted.get("reports")
    if not isinstance(reports, Mapping):
        rule = plan.rule
        return [*found, f"its terms allow no reports, from which the rule {rule} chooses"]
    short = _shortfalls(reports, wanted, ("statistic", "loss_bound", "mini_batch"), ("count",))
    return found + [f"of reports: {words}" for words in short]


def _other_group(accepted: Mapping[str, object], group: AcceptedGroup) -> list[str]:
    """What of the noise that accepted terms count on is not that of the plan."""
    pool = accepted.get("pool")
    if not isinstance(pool, Mapping):
        return ["its terms do not pool noise, and the plan does"]
    return [
        f"{key} of its pool is not that of the plan and the members' keys"
        for key, value in group.outline().items()
        if pool.get(key) != value
    ]


def _shortfalls(
    accepted: Mapping[str, object],
    asked: Mapping[str, Any],
    exactly: Sequence[str],
    at_least: Sequence[str],
) -> list[str]:
    """What of the values that are asked for does not fit the accepted ones of the same names."""
    found = [
        f"{key} is {accepted.get(key)!r} in its terms and {asked[key]!r} in the plan"
        for key in exactly
        if accepted.get(key) != asked[key]
    ]
    for key in at_least:
        allowed = accepted.get(key)
        if not isinstance(allowed, int | float) or allowed < asked[key]:
            found.append(f"its terms allow {key} {allowed!r}, the plan needs {asked[key]!r}")
    least, noise = accepted.get("least_noise_multiplier"), asked["least_noise_multiplier"]
    if not isinstance(least, int | float) or least > noise:
        found.append(f"its terms ask for noise multiplier {least!r}, the plan has {noise!r}")
    return found


def check_agreements(problems: Mapping[str, list[str]]) -> None:
    """Stop if any client's terms do not fit, and say all of it at once.

    Raises:
        InputError: naming the clients and what does not fit.
    """
    # A line each, whatever the clients' words are: they may not write lines of their own.
    lines = [
        f"{one_line(client)}: {one_line(words)}"
        for client in sorted(problems)
        for words in problems[client]
    ]
    if not lines:
        return
    shown = lines[:_MOST_SHOWN]
    if len(lines) > len(shown):
        shown.append(f"... and {len(lines) - len(shown)} more")
    raise WaitingError.because(
        "not every client's terms cover the plan; nothing was asked and nothing spent.\n  "
        + "\n  ".join(shown)
    )
