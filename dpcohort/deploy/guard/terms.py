# SPDX-License-Identifier: Apache-2.0
"""What a client's owner writes down for the guard: one TOML file, checked key by key.

The server's word appears nowhere in it. Which model may be trained, which runs are accepted and on
which terms, who may ask, and what the data may spend in their lifetime are the owner's to say.
"""

from __future__ import annotations

import grp
import hashlib
import math
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from dpcohort._validate import nearest, number, whole_number
from dpcohort.accounting.contract import Neighbours, Sampler, resolve_neighbours
from dpcohort.data.dataset import Normalisation
from dpcohort.deploy.ledger.cap import AcrossRuns, LifetimeCap
from dpcohort.deploy.ledger.chain import canonical_json
from dpcohort.deploy.ledger.keys import name as checked_name
from dpcohort.deploy.ledger.terms import RunTerms
from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import LARGEST_TERMS, MOST_CLASSES, MOST_INPUT_VALUES
from dpcohort.text_files import parse_toml, read_utf8

__all__ = ["AcceptedRun", "GuardTerms", "ModelTerms", "layout_sha256"]


@dataclass(frozen=True, kw_only=True)
class ModelTerms:
    """The one model the owner allows, by a name that this machine knows.

    Attributes:
        name: of :data:`dpcohort.models.MODEL_NAMES`, or ``module:function`` of a module installed
            here by the owner.
        input_shape: shape of one record.
        classes: number of classes.
        options: options of the model.

    Example:
        >>> ModelTerms(name="logistic", input_shape=(64,), classes=10).sha256()[:8]
        'e6edb7c2'
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked_name("name", self.name)
        given: object = self.input_shape
        if not isinstance(given, list | tuple) or not given:
            raise InputError("input_shape", given=given, allowed="a list of lengths")
        shape = tuple(whole_number("input_shape", one, at_least=1) for one in self.input_shape)
        object.__setattr__(self, "input_shape", shape)
        values = math.prod(self.input_shape)
        whole_number("numbers of a record", values, at_most=MOST_INPUT_VALUES)
        classes = whole_number("classes", self.classes, at_least=2, at_most=MOST_CLASSES)
        object.__setattr__(self, "classes", classes)
        if not isinstance(self.options, Mapping):
            raise InputError("options", given=self.options, allowed="a table of options")
        object.__setattr__(self, "options", dict(self.options))
        try:
            self.sha256()
        except (TypeError, ValueError):  # a date, a NaN
            allowed = "a table of plain finite values"
            raise InputError("options", given=self.options, allowed=allowed) from None

    def sha256(self) -> str:
        """What a request must name: the hash of all of the above."""
        shape = list(self.input_shape)
        said = [self.name, shape, self.classes, self.options]
        return hashlib.sha256(canonical_json(said).encode()).hexdigest()


def layout_sha256(parameters: Sequence[tuple[str, Sequence[int]]]) -> str:
    """The hash of a model's flat layout: name and shape of each parameter, in order.

    Both sides take it from ``FlatLayout(model)``:
    ``[(name, span.shape) for name, span in layout.spans.items()]``.

    Example:
        >>> layout_sha256([("weight", (2, 3)), ("bias", (2,))])[:8]
        'db39a853'
    """
    said = [[name, [int(length) for length in shape]] for name, shape in parameters]
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class AcceptedRun:
    """A run the owner accepts beforehand; the numbers are those of ``RunTerms``.

    Attributes:
        run: its name.
        plan: SHA-256 of its plan; with it, a request that names another plan is refused.
        epsilon: ε of all draws of the run together.
        delta: δ of the run.
        clip: largest clip C.
        batch_size: B; the rate is B divided by the number of records.
        local_steps: noisy steps of one draw.
        rounds: rounds are numbered 0 to ``rounds`` - 1.
        draws: most draws of this client in the whole run.
        least_noise_multiplier: smallest z; None for the smallest that keeps (ε, δ).
        sampler: ``poisson`` or ``fixed``.
        neighbours: ``zero-out`` or ``replace-one``.
    """

    run: str
    plan: str | None = None
    epsilon: float
    delta: float
    clip: float
    batch_size: int
    local_steps: int
    rounds: int
    draws: int
    least_noise_multiplier: float | None = None
    sampler: Sampler = "poisson"
    neighbours: Neighbours | None = None

    def __post_init__(self) -> None:
        checked_name("run", self.run)
        if self.plan is not None and not _is_hex(self.plan, 64):
            allowed = "the 64 hexadecimal digits of a plan's SHA-256, or left out"
            raise InputError("plan", given=self.plan, allowed=allowed)
        size = whole_number("batch_size", self.batch_size, at_least=1)
        object.__setattr__(self, "batch_size", size)
        relation = resolve_neighbours(self.sampler, self.neighbours)
        object.__setattr__(self, "neighbours", relation)
        if self.least_noise_multiplier is None:
            self._with_noise(size, 1.0)  # the other numbers are checked now, not at the first run

    def run_terms(self, records: int) -> RunTerms:
        """The run's terms on so many records, closed: all its draws fit its (ε, δ).

        Raises:
            InputError: a batch larger than the data, or a number out of bounds.
            BudgetExceededError: the draws at the least noise would spend more.
        """
        if self.batch_size > records:
            allowed = f"at most the {records} records of the data"
            raise InputError("batch_size", given=self.batch_size, allowed=allowed)
        noise = self.least_noise_multiplier
        terms = self._with_noise(records, self._noise(records) if noise is None else noise)
        terms.check_closed()
        return terms

    def _noise(self, records: int) -> float:
        from dpcohort.accounting.events import History, calibrate_remaining

        return calibrate_remaining(
            History(),
            epsilon=self.epsilon,
            delta=self.delta,
            sampling_rate=self.batch_size / records,
            steps=self.draws * self.local_steps,
            sampler=self.sampler,
            neighbours=self.neighbours,
        )

    def _with_noise(self, records: int, noise: float) -> RunTerms:
        return RunTerms(
            epsilon=self.epsilon,
            delta=self.delta,
            clip=self.clip,
            sampling_rate=self.batch_size / records,
            local_steps=self.local_steps,
            rounds=self.rounds,
            draws=self.draws,
            least_noise_multiplier=noise,
            sampler=self.sampler,
            neighbours=self.neighbours,
        )


@dataclass(frozen=True, kw_only=True)
class GuardTerms:
    """Everything the owner of a client's data says to the guard.

    Attributes:
        dataset: name of the data in the ledger.
        lifetime_epsilon: ε the data may spend in all runs together, ever.
        lifetime_delta: δ the data may spend in all runs together, ever.
        across_runs: ``summed`` (each begun run counts in full; holds against a server that picks
            its next step from what it has seen) or ``composed``; see
            :class:`~dpcohort.deploy.ledger.cap.LifetimeCap`.
        neighbours: the relation the lifetime cap speaks of.
        model: the model that may be trained.
        normalisation: public constants that scale the stored inputs.
        runs: runs accepted beforehand; others need ``dpcohort ledger accept``.
        closed_runs: runs that are answered no longer, though the ledger knows them as accepted.
        allowed_users: user ids that may ask; names are looked up when the file is read.
        same_user: let the guard's own user ask too. For a trial: such a user could as well open
            the data.
        socket_group: group the socket is given to, so that a courier in it can connect; None for
            the guard's own.
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

    dataset: str
    lifetime_epsilon: float
    lifetime_delta: float
    across_runs: AcrossRuns = "summed"
    neighbours: Neighbours = "zero-out"
    model: ModelTerms
    normalisation: Normalisation = field(default_factory=Normalisation)
    runs: tuple[AcceptedRun, ...] = ()
    closed_runs: tuple[str, ...] = ()
    allowed_users: tuple[int, ...] = ()
    same_user: bool = False
    socket_group: str | None = None
    ledger_id: str | None = None
    answer_seconds: float = 1.0

    def __post_init__(self) -> None:
        checked_name("dataset", self.dataset)
        self.cap()
        number("answer_seconds", self.answer_seconds, at_least=0, at_most=3600)
        if not isinstance(self.same_user, bool):
            raise InputError("same_user", given=self.same_user, allowed="true or false")
        if self.socket_group is not None:
            _group_id(self.socket_group)
        if self.ledger_id is not None and not _is_hex(self.ledger_id, 32):
            allowed = "the 32 digits that dpcohort guard pin writes"
            raise InputError("ledger_id", given=self.ledger_id, allowed=allowed)
        closed: object = self.closed_runs
        if not isinstance(closed, list | tuple) or not all(isinstance(r, str) for r in closed):
            raise InputError("closed_runs", given=closed, allowed="a list of names of runs")
        names = [one.run for one in self.runs]
        for run in names:
            if names.count(run) > 1:
                raise InputError("run", given=run, allowed="the name of one run only")
        object.__setattr__(self, "allowed_users", _user_ids(self.allowed_users))

    @property
    def socket_gid(self) -> int | None:
        """The number of the socket's group, None for the guard's own."""
        return None if self.socket_group is None else _group_id(self.socket_group)

    def cap(self, fingerprint: str | None = None) -> LifetimeCap:
        """The lifetime cap these terms speak of."""
        return LifetimeCap(
            epsilon=self.lifetime_epsilon,
            delta=self.lifetime_delta,
            neighbours=self.neighbours,
            across_runs=self.across_runs,
            fingerprint=fingerprint,
        )

    @classmethod
    def from_toml(cls, path: str | Path) -> GuardTerms:
        """Terms from a file; see ``dpcohort guard new`` for a commented one.

        Raises:
            InputError: the file is not there, not TOML, or not terms.
        """
        text = read_utf8(path, at_most_bytes=LARGEST_TERMS).decode("utf-8")
        try:
            return cls.from_dict(parse_toml(text))
        except ValueError as error:  # not TOML, or not terms
            raise FileFormatError(path, str(error)) from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GuardTerms:
        """Terms from plain values, unknown and missing keys refused."""
        known = dict(values)
        found = {
            "model": _table(ModelTerms, "model", known.pop("model", {})),
            "normalisation": _table(Normalisation, "normalisation", known.pop("normalisation", {})),
        }
        runs = known.pop("runs", [])
        if not isinstance(runs, list | tuple):
            raise InputError("runs", given=runs, allowed="tables [[runs]]")
        found["runs"] = tuple(
            _table(AcceptedRun, f"runs[{position}]", one) for position, one in enumerate(runs)
        )
        rest = _checked_keys(cls, "", {**known, **found})
        return cls(**rest)


def _table(cls: type[Any], where: str, values: Any) -> Any:
    if not isinstance(values, Mapping):
        raise InputError(where, given=values, allowed=f"a table [{where}]")
    known = _checked_keys(cls, f"{where}.", values)
    for key in ("mean", "std", "input_shape"):
        if isinstance(known.get(key), list):
            known[key] = tuple(known[key])
    try:
        return cls(**known)
    except InputError as error:
        raise InputError.because(f"[{where}] {error}") from None
    except TypeError:
        raise InputError.because(f"[{where}] has a value of the wrong type.") from None


def _checked_keys(cls: type[Any], where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    names = [one.name for one in fields(cls)]
    for key in values:
        if key not in names:
            hint = nearest(str(key), names)
            raise InputError(
                f"key {where}",
                given=key,
                allowed="one of " + ", ".join(names),
                next_step=f"Did you mean {hint!r}?" if hint else None,
            )
    for one in fields(cls):
        needed = one.default is MISSING and one.default_factory is MISSING
        if needed and one.name not in values:
            raise InputError.because(f"the key {where + one.name!r} is missing.")
    return dict(values)


def _user_ids(users: Any) -> tuple[int, ...]:
    if not isinstance(users, list | tuple):
        raise InputError("allowed_users", given=users, allowed="a list of users")
    found = []
    for user in users:
        if isinstance(user, str):
            try:
                found.append(pwd.getpwnam(user).pw_uid)
            except KeyError:
                allowed = "the name or number of a user of this machine"
                raise InputError("allowed_users", given=user, allowed=allowed) from None
        else:
            found.append(whole_number("allowed_users", user, at_least=0, at_most=2**32 - 2))
    return tuple(found)


def _group_id(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, TypeError):
        allowed = "the name of a group of this machine"
        raise InputError("socket_group", given=group, allowed=allowed) from None


def _is_hex(value: object, digits: int) -> bool:
    return isinstance(value, str) and len(value) == digits and set(value) <= set("0123456789abcdef")
