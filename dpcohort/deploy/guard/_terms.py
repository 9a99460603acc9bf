# SPDX-License-Identifier: Apache-2.0
"""What a client's owner writes down for the guard: one TOML file, checked key by key.

The server's word appears nowhere in it. Which model may be trained, which runs are accepted and on
which terms, who may ask, and what the data may spend in their lifetime are the owner's to say. What
a plan asks for (:func:`terms_from_plan`) is a proposal: it binds nobody until the owner starts a
guard with it.
"""

from __future__ import annotations

import bisect
import grp
import hashlib
import math
import pwd
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, PlainValidator, ValidationInfo, model_validator

from dpcohort._validate import choice, whole_number
from dpcohort.accounting import calibrate_remaining
from dpcohort.accounting._charges import total
from dpcohort.accounting._distributed import LEAST_BITS, MOST_MODULUS_BITS
from dpcohort.accounting._sampler import Neighbours
from dpcohort.accounting._unit import UNITS, Unit
from dpcohort.data import Normalisation, PersonTerms, TableColumns
from dpcohort.data._dataset import affine_map
from dpcohort.deploy._formats import Format, Name, bounded, replace, whole
from dpcohort.deploy.guard._protocol import RevealRequest, encode
from dpcohort.deploy.ledger._store import canonical_json
from dpcohort.deploy.ledger._terms import (
    AcceptedEvaluation,
    AcceptedGroup,
    AcrossRuns,
    CapPeriod,
    Delta,
    DrawTerms,
    LifetimeCap,
    Period,
    Positive,
    RunTerms,
    asked_of,
    evaluation_asked_of,
    evaluation_of,
    hex_digits,
    reports_asked_of,
)
from dpcohort.deploy.secure_aggregation import cohort_sha256
from dpcohort.errors import InputError
from dpcohort.limits import (
    LARGEST_HEADER,
    LARGEST_TERMS,
    MOST_CLASSES,
    MOST_INPUT_VALUES,
)
from dpcohort.plan import Plan
from dpcohort.runs._paid_evaluation import evaluation_cohorts
from dpcohort.tasks import Task
from dpcohort.text_files import toml_value

#: Comments of lines that the commented terms leave out and a plan's say.
_COMMENTS = {
    "least_noise_multiplier": "at least",
    "identity": "your secret, by which other members know you",
    "persons.rows_per_person": "of more, some are chosen at random",
    "persons.person_rows": "their gradients are added (sum) or averaged (mean)",
    "persons.blank_person": "a row without a person: refuse, or own (a person of its own)",
    "runs.evaluation.epsilon": "beside the epsilon of the run",
    "runs.evaluation.least_noise_multiplier": "at least, where a record adds 1 at most",
    "runs.reports.count": "at most, in the whole run; one a round",
    "runs.reports.statistic": "of each record, of which a report is the mean",
    "runs.reports.loss_bound": "exactly: each record's loss is clipped to it",
    "runs.reports.least_noise_multiplier": "at least",
    "runs.reports.mini_batch": "true: of a batch, not of all records",
    "runs.pool.cohort_size": "members of every cohort",
    "runs.pool.colluding": "of the others, so many may help the server",
    "runs.pool.dropouts": "so many may vanish in a round",
    "runs.pool.exponent": "of the lattice: a share of noise is 2^this",
    "runs.pool.modulus_bits": "sums are taken modulo 2^this",
}
#: A client's secret, beside its terms.
IDENTITY_FILE = "identity.key"


def _shape(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list | tuple) or not given:
        raise InputError("input_shape", given=given, allowed="a list of lengths")
    shape = tuple(whole_number("input_shape", one, at_least=1) for one in given)
    whole_number("numbers of a record", math.prod(shape), at_most=MOST_INPUT_VALUES)
    return shape


def _options(given: Any) -> dict[str, Any]:
    try:
        options = dict(given) if isinstance(given, Mapping) else None
        canonical_json(options)
    except (TypeError, ValueError):  # a date, a NaN
        options = None
    if options is None:
        raise InputError("options", given=given, allowed="a table of plain finite values")
    return options


def _names(allowed: str) -> PlainValidator:
    """A list of names; ``allowed`` says it in words."""

    def check(given: Any, info: ValidationInfo) -> tuple[str, ...]:
        if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
            raise InputError(str(info.field_name), given=given, allowed=allowed)
        return tuple(given)

    return PlainValidator(check)


class ModelTerms(Format):
    """The one model the owner allows, by a name that this machine knows.

    Attributes:
        name: of :data:`dpcohort.models.MODEL_NAMES`, or ``module:function`` of a module installed
            here by the owner.
        input_shape: shape of one record.
        classes: number of classes, or of what else a model puts out.
        options: options of the model.
        task: what is predicted and the one loss that is trained with, where that is not plain
            classification: keys of :class:`~dpcohort.tasks.Task`.
        weights: safetensors file that training starts from, beside the terms; empty for none.
        weights_sha256: its hash; another file is refused.
        weights_source: whose weights they are, for receipts.
        frozen: names of parameters, or of parts of the model, that are not trained.

    Example:
        >>> ModelTerms(name="logistic", input_shape=(64,), classes=10).sha256()[:8]
        'e6edb7c2'
    """

    name: Name
    input_shape: Annotated[tuple[int, ...], PlainValidator(_shape)]
    classes: Annotated[int, whole(at_least=1, at_most=MOST_CLASSES)]
    options: Annotated[Mapping[str, Any], PlainValidator(_options)] = Field(default_factory=dict)
    task: Annotated[Mapping[str, Any], PlainValidator(_options)] = Field(default_factory=dict)
    weights: str = ""
    weights_sha256: Annotated[
        str | None, hex_digits(64, "the 64 hexadecimal digits of the file's SHA-256")
    ] = None
    weights_source: str = ""
    frozen: Annotated[tuple[str, ...], _names("a list of names")] = ()

    @model_validator(mode="after")
    def _check(self) -> ModelTerms:
        if not self.task:
            whole_number("classes", self.classes, at_least=2)
        _ = self.predicts
        if bool(self.weights) != (self.weights_sha256 is not None):
            raise InputError.because("weights and weights_sha256 go together: give both or none.")
        if self.frozen and not self.weights:
            raise InputError.because(
                "frozen parameters must be the same everywhere, and only trained ones are sent: "
                "give them in a weights file."
            )
        return self

    @property
    def predicts(self) -> Task:
        """What is predicted, and by which loss."""
        return Task.from_dict(self.task, outputs=self.classes)

    @property
    def said(self) -> dict[str, Any]:
        """What is written into a file: everything but what is left at its default."""
        always = {"name", "input_shape", "classes", "options"}
        return {**self.model_dump(include=always), **self.model_dump(exclude_defaults=True)}

    def found_beside(self, path: str | Path) -> ModelTerms:
        """The same with the place of the weights taken from the folder of a file."""
        if not self.weights:
            return self
        return self.model_copy(update={"weights": str(Path(path).resolve().parent / self.weights)})

    def sha256(self) -> str:
        """What a request must name: the hash of all of the above but names of files and owners."""
        said = [self.name, list(self.input_shape), self.classes, self.options]
        # Names of classes change no gradient; without a task the hash is what it always was.
        loss = {key: value for key, value in self.predicts.to_dict().items() if key != "names"}
        said += [loss] if loss else []
        if self.weights_sha256 is not None:
            said += [self.weights_sha256, list(self.frozen)]
        return hashlib.sha256(canonical_json(said).encode()).hexdigest()


def layout_sha256(
    parameters: Sequence[tuple[str, Sequence[int]]], *, frozen: str | None = None
) -> str:
    """The hash of a model's flat layout: name and shape of each parameter, in order.

    Frozen parameters are never sent, so the hash of their values is part of it where there are any.

    Both sides take it from ``FlatLayout(model)``:
    ``[(name, shape) for name, (_, shape) in layout.places.items()]``.

    Example:
        >>> layout_sha256([("weight", (2, 3)), ("bias", (2,))])[:8]
        'db39a853'
    """
    said: list[Any] = [[name, [int(length) for length in shape]] for name, shape in parameters]
    if frozen is not None:
        said.append(["frozen", frozen])
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()


def _check_messages(pool: AcceptedGroup) -> None:
    """Refuse a cohort whose messages would be too long: its draws would be counted for nothing.

    The longest is the request for shares of masks: a card of everybody, and signatures of those who
    are left. Names are taken to be the longest of the members'.

    Raises:
        InputError: says how many members fit.
    """
    names = sorted(pool.members, key=lambda name: -len(canonical_json(name)))

    def is_too_long(members: int) -> bool:
        cohort = names[:members]
        left = cohort[:-1] if pool.dropouts else cohort
        request = RevealRequest(
            run="\U00020000" * 200,  # JSON writes no longer name
            plan="0" * 64,
            round=10**9,
            exponent=pool.exponent,
            modulus_bits=pool.modulus_bits,
            cards=[[name, "0" * 64, "0" * 128] for name in cohort],
            survivors=left,
            signed=dict.fromkeys(left, "0" * 192),  # a digest and a signature
            certificate=dict.fromkeys(left if pool.dropouts else (), "0" * 128),
            data=b"",
        )
        return len(encode(request)) > LARGEST_HEADER

    if is_too_long(pool.cohort_size):
        fit = bisect.bisect_left(range(pool.cohort_size), True, key=is_too_long) - 1
        raise InputError(
            "cohort_size",
            given=pool.cohort_size,
            allowed=f"at most {fit} with members of such names: the messages of more are too long",
            next_step="Make a plan with smaller cohorts, or give the clients shorter names.",
        )


class AcceptedRun(DrawTerms):
    """A run the owner accepts beforehand.

    Attributes:
        run: its name.
        plan: SHA-256 of its plan; with it, a request that names another plan is refused.
        batch_size: B; the rate is B divided by the number of records.
        least_noise_multiplier: smallest z; None for the smallest that keeps (ε, δ). With a ``pool``
            it is needed, as ``plan`` is, and is that of h honest shares.
        evaluation: of the run's model on the records held out for tests; None for none.
    """

    run: Name
    plan: Annotated[
        str | None, hex_digits(64, "the 64 hexadecimal digits of a plan's SHA-256, or left out")
    ] = None
    batch_size: Annotated[int, whole(at_least=1)]
    least_noise_multiplier: Positive | None = None
    evaluation: AcceptedEvaluation | None = None

    @model_validator(mode="after")
    def _check_pool(self) -> AcceptedRun:
        for group in self.trust.groups:
            if self.plan is None or self.least_noise_multiplier is None:
                raise InputError.because(
                    "a run with distributed noise needs plan and least_noise_multiplier: its "
                    "weight is that of the plan and no other."
                )
            _check_messages(group)
            last = max(group.cohorts, key=int)
            if int(last) >= self.rounds:
                allowed = f"below the {self.rounds} rounds of the run, which are counted from 0"
                raise InputError("round of a cohort", given=int(last), allowed=allowed)
        return self

    def accepted(self, records: int) -> dict[str, RunTerms]:
        """What a ledger accepts for it, by name: the run, and the evaluation of its model.

        Raises:
            InputError, BudgetExceededError: as `run_terms`.
        """
        found = {self.run: self.run_terms(records)}
        if self.evaluation is not None:
            found[evaluation_of(self.run)] = self.evaluation.terms(found[self.run])
            found[evaluation_of(self.run)].check_closed()
        return found

    def run_terms(self, records: int) -> RunTerms:
        """The run's terms on so many records, closed: all it allows fits its (ε, δ).

        Raises:
            InputError: a batch larger than the data, or a number out of bounds.
            BudgetExceededError: the draws at the least noise would spend more.
        """
        if self.batch_size > records:
            allowed = f"at most the {records} records of the data"
            raise InputError("batch_size", given=self.batch_size, allowed=allowed)
        said = self.model_dump(exclude={"run", "plan", "batch_size", "evaluation"})
        said["sampling_rate"] = self.batch_size / records
        if self.least_noise_multiplier is None:
            said["least_noise_multiplier"] = 1.0  # of no use to reports
            past = self.reporting.history(RunTerms(**said))
            said["least_noise_multiplier"] = calibrate_remaining(
                past,
                epsilon=self.epsilon,
                delta=self.delta,
                sampling_rate=said["sampling_rate"],
                steps=self.draws * self.local_steps,
                sampler=self.sampler,
                neighbours=self.neighbours,
            )
        terms = RunTerms(**said)
        terms.check_closed()
        return terms


def _check_table(name: str, given: Any, keys: Sequence[str]) -> None:
    if not isinstance(given, Mapping):
        raise InputError(name.rpartition(".")[2], given=given, allowed=f"a table [{name}]")
    for key in given:
        choice("key", key, keys)


def _columns(given: Any) -> TableColumns:
    if isinstance(given, TableColumns):
        return given
    known = [field.name for field in fields(TableColumns) if field.name != "client"]
    _check_table("table.columns", given, known)
    if not given.get("features"):
        raise InputError.about("features", "is missing: the columns that the model sees.")
    try:
        return TableColumns(**given)
    except TypeError:
        raise InputError.because("has a key that is missing or of the wrong type.") from None


class TableTerms(Format):
    """How the owner's table (CSV, Parquet) becomes records: the public constants of the run.

    Attributes:
        columns: what the columns mean.
        client: the client's name in the run, which says with the seed which records are held out.
        test_share: share of the records that are held out for tests, and never trained on.
        seed: which ones.

    Example:
        >>> TableTerms(client="north", columns={"label": "sick", "labels": ["no", "yes"],
        ...     "features": ["age"], "bounds": {"age": [0, 110]}}).columns.targets
        ('sick',)
    """

    client: Name
    columns: Annotated[TableColumns, PlainValidator(_columns)]
    test_share: Annotated[float, bounded(at_least=0, at_most=0.99)] = 0.0
    seed: Annotated[int, whole(at_least=0)] = 0

    def to_toml(self) -> str:
        """Both tables, as the terms hold them."""
        said = {"client": self.client, "test_share": self.test_share, "seed": self.seed}
        columns = {
            key: value
            for key, value in asdict(self.columns).items()
            if key != "client" and value not in ((), {}, None)
        }
        lines = [
            *_table("table", "how your table (.csv, .parquet) is read", said),
            *_table("table.columns", "public: bounds of numbers, lists of values", columns),
        ]
        return "\n".join(lines[1:])


def _normalisation(given: Any) -> Normalisation:
    if isinstance(given, Normalisation):
        return given
    _check_table("normalisation", given, [field.name for field in fields(Normalisation)])
    values: Any = {key: tuple(one) if isinstance(one, list) else one for key, one in given.items()}
    try:
        constants = Normalisation(**values)
        affine_map(constants)
    except TypeError:
        raise InputError.because("has a value of the wrong type.") from None
    return constants


def persons_of_file(given: Any) -> PersonTerms | None:
    """How the rows of a person are used, from a table [persons]; None without one."""
    if given is None or isinstance(given, PersonTerms):
        return given
    _check_table("persons", given, [field.name for field in fields(PersonTerms)])
    return PersonTerms(**given)


def _user_ids(users: Any) -> tuple[int, ...]:
    if not isinstance(users, list | tuple):
        raise InputError("allowed_users", given=users, allowed="a list of users")
    return tuple(map(_user_id, users))


def _user_id(user: Any) -> int:
    if not isinstance(user, str):
        return whole_number("allowed_users", user, at_least=0, at_most=2**32 - 2)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        allowed = "the name or number of a user of this machine"
        raise InputError("allowed_users", given=user, allowed=allowed) from None


def _group(group: Any) -> Any:
    try:
        return group if group is None else grp.getgrnam(group).gr_name
    except (KeyError, TypeError):
        allowed = "the name of a group of this machine"
        raise InputError("socket_group", given=group, allowed=allowed) from None


class GuardTerms(Format):
    """Everything the owner of a client's data says to the guard; ``guard new`` writes a file of it.

    Attributes:
        dataset: name of the data in the ledger.
        lifetime_epsilon: ε the data may spend in all runs together, ever, or as ``per`` says.
        lifetime_delta: δ the same way.
        per: ``lifetime``, or a length of time such as ``365 days``, in any window of which no more
            is spent.
        across_runs: ``summed`` (each begun run counts in full; holds against a server that picks
            its next step from what it has seen) or ``composed``; see
            :class:`~dpcohort.deploy.ledger._terms.LifetimeCap`.
        neighbours: the relation the lifetime cap speaks of.
        model: the model that may be trained.
        normalisation: public constants that scale the stored inputs.
        table: how a table is read, for data that are one.
        persons: how the rows of a person are used, where a person is the unit of all promises; None
            where it is a record. The table must have a column ``person``, the arrays ``persons``.
        runs: runs accepted beforehand; others need ``dpcohort ledger accept``.
        identity: file with the client's secret for distributed noise, beside the terms; empty for
            none. ``dpcohort guard identity`` makes one.
        closed_runs: runs that are answered no longer, though the ledger knows them as accepted.
        allowed_users: user ids that may ask; names are looked up when the file is read.
        ask_owner: the runs here are proposals: of each nothing is answered before the owner has
            accepted it with ``dpcohort guard decide``.
        same_user: let the guard's own user ask too. For a trial: such a user could as well open
            the data.
        socket_group: group the socket is given to, so that a client app in it can connect; None
            for the guard's own.
        ledger_id: id of the one ledger that counts for these data; None serves from any ledger
            that is given, with a warning. ``dpcohort guard pin`` writes it.
        answer_seconds: a fresh draw is answered at the next whole multiple of this many seconds
            after it was asked for, so that the time tells little of the batch; 0 answers at once.

    Example:
        >>> terms = GuardTerms(dataset="ward-7", lifetime_epsilon=4.0, lifetime_delta=1e-5,
        ...     model=ModelTerms(name="logistic", input_shape=(64,), classes=10))
        >>> terms.across_runs
        'summed'
    """

    dataset: Name
    lifetime_epsilon: Positive
    lifetime_delta: Delta
    per: CapPeriod = Period()
    across_runs: AcrossRuns = "summed"
    neighbours: Neighbours = "zero-out"
    model: ModelTerms
    normalisation: Annotated[Normalisation, PlainValidator(_normalisation)] = Normalisation()
    table: TableTerms | None = None
    persons: Annotated[PersonTerms | None, PlainValidator(persons_of_file)] = None
    runs: Annotated[tuple[AcceptedRun, ...], Field(strict=False)] = ()
    identity: str = ""
    closed_runs: Annotated[tuple[str, ...], _names("a list of names of runs")] = ()
    allowed_users: Annotated[tuple[int, ...], PlainValidator(_user_ids)] = ()
    ask_owner: bool = False
    same_user: bool = False
    socket_group: Annotated[str | None, PlainValidator(_group)] = None
    ledger_id: Annotated[
        str | None, hex_digits(32, "the 32 digits that dpcohort guard pin writes")
    ] = None
    answer_seconds: Annotated[float, bounded(at_least=0, at_most=3600)] = 1.0

    @model_validator(mode="after")
    def _check_names_of_runs(self) -> GuardTerms:
        names = [one.run for one in self.runs]
        for run in names:
            if names.count(run) > 1:
                raise InputError("run", given=run, allowed="the name of one run only")
        if self.persons is not None and self.table is not None and not self.table.columns.person:
            words = "is missing, and [persons] says that a person is the unit: the column that "
            words += "says whose a row is."
            raise InputError.about("table.columns.person", words)
        return self

    @property
    def unit(self) -> Unit:
        """What one promise covers."""
        return UNITS["record" if self.persons is None else "person"]

    @property
    def socket_gid(self) -> int | None:
        """The number of the socket's group, None for the guard's own."""
        return None if self.socket_group is None else grp.getgrnam(self.socket_group).gr_gid

    @classmethod
    def from_toml(cls, path: str | Path) -> GuardTerms:
        """Read the owner's file; a file of weights lies beside it."""
        found = super().from_toml(path)
        beside: dict[str, Any] = {"model": found.model.found_beside(path)}
        if found.identity:
            beside["identity"] = str(Path(path).resolve().parent / found.identity)
        return found.model_copy(update=beside)

    def cap(self, fingerprint: str | None = None) -> LifetimeCap:
        """The lifetime cap these terms speak of."""
        return LifetimeCap(
            epsilon=self.lifetime_epsilon,
            delta=self.lifetime_delta,
            per=self.per,
            neighbours=self.neighbours,
            across_runs=self.across_runs,
            unit=self.unit.name,
            fingerprint=fingerprint,
        )


def commented_terms() -> str:
    """A terms file to start from.

    Example:
        >>> import tomllib
        >>> tomllib.loads(commented_terms())["across_runs"]
        'summed'
    """
    file = resources.files("dpcohort.deploy.guard") / "terms.example"
    return file.read_text(encoding="utf-8")


def pool_from_plan(
    plan: Plan, members: Mapping[str, str], *, client: str | None = None
) -> AcceptedGroup:
    """What a plan whose noise is distributed asks a client's owner to count on.

    Args:
        plan: the plan.
        members: Ed25519 public key of every drawn client, by its id.
        client: whose rounds; all rounds if not given, as the server knows them.

    Raises:
        InputError: noise is not distributed in it, a key is missing, cohorts are too large for the
            messages, or no masked sums are possible.

    Example:
        >>> from dpcohort import Contract, Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[600] * 4, epsilon=[1, 1, 4, 8], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=8, cohort_size=3, batch_size=60), seed=0,
        ...                  accountant=Contract(trust="distributed"))
        >>> keys = {name: f"{i:064x}" for i, name in enumerate(clients.ids)}
        >>> pool = pool_from_plan(plan, keys, client=clients.ids[3])
        >>> pool.honest, len(pool.cohorts) == int(plan.counts[3])
        (3, True)
    """
    shares = plan.noise.pool
    if shares.honest == 1:  # nothing is masked, so the plan has no lattice for sums
        raise InputError.because(
            "a client of this plan counts on nobody but itself: adding masks buys nothing then. "
            "Use trust = 'local'."
        )
    ids, size = plan.population.ids, plan.training.cohort_size
    drawn = [ids[k] for k in np.flatnonzero(plan.counts).tolist()]
    for name in drawn:
        if name not in members:
            raise InputError.because(
                f"there is no key of {name!r}, on whose noise others count. Its owner makes one "
                "with: dpcohort guard identity. Give everybody's with --members FILE.toml."
            )
        if plan.population.public[plan.population.index_of(name)]:
            raise InputError.because(
                f"{name!r} is public and has no guard, but the others count on its noise. Leave it "
                "out of the plan, or give it a budget."
            )
    cohorts, met = {}, set[str]()
    for round, cohort in enumerate(plan.schedule.cohorts):
        names = [ids[k] for k in cohort]
        if client is None or client in names:
            cohorts[str(round)] = cohort_sha256(names)
            met.update(names)
    dropouts = plan.contract.dropouts
    pool = AcceptedGroup(
        cohort_size=size,
        colluding=size - shares.honest - dropouts,
        dropouts=dropouts,
        exponent=shares.exponent,
        modulus_bits=shares.modulus_bits,
        members={name: members[name] for name in drawn if name in met},
        cohorts=cohorts,
    )
    _check_messages(pool)
    return pool


def evaluation_group(plan: Plan, members: Mapping[str, str], k: int) -> AcceptedGroup | None:
    """With whom the client at a position sums up its test records, where noise is shared.

    None where its sum has all of its own noise.

    Args:
        plan: that keeps a share for an evaluation.
        members: public key of every drawn client, by its id.
        k: the position.
    """
    cohort = next((one for one in evaluation_cohorts(plan) if k in one), None)
    if cohort is None or not plan.past.paid.kept:
        return None
    names = [plan.population.ids[one] for one in cohort]
    honest, dropouts = plan.noise.honest, plan.contract.dropouts
    loudest = max(evaluation_asked_of(plan, one)["least_noise_multiplier"] for one in cohort)
    return AcceptedGroup(
        cohort_size=len(cohort),
        colluding=len(cohort) - honest - dropouts,
        dropouts=dropouts,
        exponent=LEAST_BITS + max(0, math.ceil(math.log2(loudest / math.sqrt(honest)))),
        modulus_bits=MOST_MODULUS_BITS,  # how many test records there are is not known here
        members={name: members[name] for name in names},
        cohorts={str(plan.training.rounds): cohort_sha256(names)},
    )


def terms_from_plan(
    plan: Plan,
    client: str,
    *,
    run: str,
    model: ModelTerms,
    normalisation: Normalisation | None = None,
    table: TableTerms | None = None,
    persons: PersonTerms | None = None,
    allowed_users: Sequence[str | int] = (),
    same_user: bool = False,
    answer_seconds: float = 1.0,
    members: Mapping[str, str] | None = None,
) -> str:
    """The terms under which a client can do its part of a plan, and no more.

    Args:
        plan: the plan.
        client: id of the client in its population; also the data's name.
        run: name of the run.
        model: the model trained.
        normalisation: public constants of the inputs.
        table: how the client's table is read.
        persons: how the rows of a person are used, of a plan for persons.
        allowed_users: users that may ask.
        same_user: the guard's own user may ask, for a trial; else its owner decides of the run.
        answer_seconds: when answers leave.
        members: where noise is distributed, the public key of every drawn client, by its id.

    Raises:
        InputError: no such client, one without a budget, one never drawn, or one that is in so many
            rounds that its terms would be too long to be read.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[600] * 4, epsilon=[1, 1, 4, 8], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=8, cohort_size=2, batch_size=60), seed=0)
        >>> model = ModelTerms(name="logistic", input_shape=(64,), classes=10)
        >>> text = terms_from_plan(plan, clients.ids[3], run="spring", model=model)
        >>> "batch_size = 60" in text
        True
    """
    if client not in plan.population.ids:
        raise InputError("client", given=client, allowed="the id of a client of the plan")
    k = list(plan.population.ids).index(client)
    noise = float(plan.noise_multipliers[k])
    if not noise > 0 or not np.isfinite(noise):
        raise InputError.because(
            f"client {client!r} has no budget or is never drawn in this plan: it needs no guard."
        )
    epsilon, delta = float(plan.population.epsilon[k]), float(plan.population.delta[k])
    evaluation = evaluation_asked_of(plan, k)
    if evaluation:
        rounds, kept = (epsilon, delta), (evaluation["epsilon"], evaluation["delta"])
        epsilon, delta = map(total, rounds, kept)
        # As decimals, as ledgers add them up, the two come to no more than the cap.
        evaluation |= zip(("epsilon", "delta"), map(_rest, (epsilon, delta), rounds), strict=True)
    # Whole numbers among the constants are written as what they are used as.
    constants = asdict(normalisation or Normalisation())
    values = {
        "dataset": client,
        "lifetime_epsilon": epsilon,
        "lifetime_delta": delta,
        "allowed_users": list(allowed_users),
        "ask_owner": not same_user,
        "same_user": same_user,
        "answer_seconds": float(answer_seconds),
        **model.said,
        **{key: np.asarray(one, float).tolist() for key, one in constants.items()},
        "run": run,
        "plan": plan.sha256,
        **asked_of(plan, k),
        "batch_size": int(plan.batch_sizes[k]),
    }
    if plan.noise.only_sums:
        values["identity"] = IDENTITY_FILE
    lines = _lines_of_charges(plan, k)
    for line in commented_terms().splitlines():
        key, _, rest = line.removeprefix("# ").partition(" = ")
        if key in values:
            comment = _COMMENTS.get(key, "") if line[0] == "#" else rest.partition(" # ")[2]
            line = _line(key, values[key], comment)
        lines.append(line)
        if key == "options" and model.task:
            lines += _table("model.task", "what is predicted, and the only loss", model.task)
    if evaluation:
        about = "of the model, on your test records, once"
        lines += _table("runs.evaluation", about, evaluation)
    if asked := reports_asked_of(plan, k):
        lines += _table("runs.reports", "what the plan's rule asks for beside draws", asked)
    if plan.noise.only_sums:
        lines += _lines_of_group("runs.pool", pool_from_plan(plan, members or {}, client=client))
        if (together := evaluation_group(plan, members or {}, k)) is not None:
            lines += _lines_of_group("runs.evaluation.pool", together)
    if plan.contract.unit.name == "person":
        about = "a person is the unit: what is done with its rows"
        lines += _table("persons", about, asdict(persons or PersonTerms()))
    if table is not None:
        lines += ["", replace(table, client=client).to_toml()]
    text = "\n".join(lines) + "\n"
    size = len(text.encode())
    if size > LARGEST_TERMS:
        raise InputError.because(
            f"the terms of {client!r} have {size:,} bytes, and at most {LARGEST_TERMS:,} are read: "
            "they name everybody it meets and every round it is in. Make a plan with fewer rounds."
        )
    return text


def _lines_of_group(name: str, group: AcceptedGroup) -> list[str]:
    """The tables of whom an owner counts on."""
    said = group.model_dump(exclude={"members", "cohorts"})
    keys = {toml_value(member): key for member, key in group.members.items()}
    return [
        *_table(name, "whose noise your promise counts on beside yours", said),
        *_table(f"{name}.members", "everybody who may be in a cohort: ask them", keys),
        *_table(f"{name}.cohorts", "your rounds, and the hash of who is in each", group.cohorts),
    ]


def _rest(whole: float, part: float) -> float:
    """What a part leaves of a number, both as they are written in decimals; never more."""
    rest = Decimal(repr(whole)) - Decimal(repr(part))
    found = float(rest)
    return found if Decimal(repr(found)) <= rest else math.nextafter(found, 0.0)


def _lines_of_charges(plan: Plan, k: int) -> list[str]:
    """What the owner must know of charges: the cap of these terms has what they left."""
    paid = plan.past.paid.to(plan.population.ids[k])
    if not any(paid):
        return []
    whole = plan.past.paid.whole(plan.population, k)
    took = ", ".join(charge.title for charge in plan.past.paid.charges)
    return [
        f"# Promised: epsilon {whole[0]:.6g} at delta {whole[1]:.6g}. Of it {paid[0]:.6g} at "
        f"{paid[1]:.6g} was paid beside",
        f"# the rounds ({took}).",
        "# Your ledger did not see that and cannot count it, so it is taken off the lifetime cap",
        "# below: keep it off if you register these data under a cap of your own.",
        "",
    ]


def with_ledger_id(text: str, identity: str) -> str:
    """A terms file with the id of the ledger that counts for its data; all else stays as it is.

    Args:
        text: the file.
        identity: the ledger's id.

    Raises:
        InputError: another id is pinned in it.

    Example:
        >>> print(with_ledger_id('dataset = "ward-7"', "0" * 32))
        ledger_id = "00000000000000000000000000000000"  # no other ledger is served from
        dataset = "ward-7"
    """
    before = tomllib.loads(text)
    pinned = before.get("ledger_id", identity)
    if pinned != identity:
        allowed = f"the one that the terms pin, {pinned}"
        raise InputError("ledger_id", given=identity, allowed=allowed)
    if "ledger_id" in before:
        return text
    line = f"ledger_id = {toml_value(identity)}  # no other ledger is served from"
    lines = text.split("\n")
    places = [place for place, one in enumerate(lines) if one.startswith("# ledger_id = ")]
    if places:
        lines[places[0]] = line
        found = "\n".join(lines)
        if tomllib.loads(found) == {**before, "ledger_id": identity}:
            return found
    return f"{line}\n{text}"


def _table(name: str, about: str, values: Mapping[str, Any]) -> list[str]:
    """The lines of a table, after an empty one."""
    lines = [_line(key, value, _COMMENTS.get(f"{name}.{key}", "")) for key, value in values.items()]
    return ["", f"{f'[{name}]':<30} # {about}", *lines]


def _line(key: str, value: Any, comment: str) -> str:
    said = f"{key} = {toml_value(value)}"
    return f"{said:<30} # {comment}" if comment else said
