# SPDX-License-Identifier: Apache-2.0
"""The tables and keys of a configuration file, the type of each value, and what goes together.

The tables make sure that every key is known and every value of its kind. Below them are the checks
of the tables that say how a plan is executed, and of the keys that go with every adaptive rule;
the other values are checked where they are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, Literal, Unpack, get_args, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, create_model

from dpcohort._validate import Bounds, choice, did_you_mean, number, whole_number
from dpcohort.accounting._charges import check_kept
from dpcohort.accounting._contract import (
    AccountantName,
    Guard,
    NoiseModel,
    Trust,
)
from dpcohort.accounting._sampler import Neighbours
from dpcohort.accounting._samplers import SamplerName
from dpcohort.accounting._unit import BlankPerson, PersonRows, UnitName
from dpcohort.clients import Budget, Population
from dpcohort.clients._columns import MAX_SIZE
from dpcohort.clients._distributions import (
    DISTRIBUTIONS,
    PAPER_BUDGETS,
    PAPER_SIZE_WEIGHTS,
    Distribution,
    fixed,
    share_out,
)
from dpcohort.clients._ids import numbered
from dpcohort.errors import InputError
from dpcohort.limits import MOST_CELLS, MOST_CLASSES, MOST_CLIENTS, MOST_PERSON_ROWS
from dpcohort.plugins import check_settings, find_rule, settings_of
from dpcohort.schedule import Draws
from dpcohort.tasks import Task, TaskKind
from dpcohort.text_files import is_table
from dpcohort.training import LARGEST_STEP, EngineName, Training

#: Of drawn clients that need no privacy: what training without any would give.
ALL_PUBLIC = "public"


class Section(BaseModel):
    """A table of a configuration: known keys only, and no silent change of type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _bounded(default: Any, **bounds: Unpack[Bounds]) -> Any:
    """A key whose number has bounds, where it is given; `check_bounds` holds it to them."""
    return Field(default, json_schema_extra=dict(bounds))  # type: ignore[arg-type]


class PublicClients(Section):
    """One table [[population.public]]: clients whose data needs no privacy."""

    size: int
    count: int = 1


class PopulationSection(Section):
    """The keys of [population]; either ``clients``, or ``count`` and what to draw."""

    clients: str | None = None
    count: int | None = None
    total_size: int | None = _bounded(None, at_least=1, at_most=MAX_SIZE)
    size: Any = None
    epsilon: Any = None
    delta: float = _bounded(1e-5, above=0, below=1)
    seed: int = _bounded(0, at_least=0)
    allow_large_delta: bool = False
    public: list[PublicClients] = Field(default_factory=list)


_TRAINING_KEYS: Any = {key: (kind | None, None) for key, kind in get_type_hints(Training).items()}
#: The keys of [training]: the fields of ``Training``, which has the defaults.
TrainingSection: Any = create_model("TrainingSection", __base__=Section, **_TRAINING_KEYS)


class RuleSection(Section):
    """The keys of [aggregation]; beside them, the settings of the rule, which it checks itself."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    rule: str = "mean"


class SelectionSection(RuleSection):
    """The keys of [selection]; beside them, the settings of the rule."""

    rule: str = "privacy-aware"
    noise_model: NoiseModel = "exact"


class PrivacySection(Section):
    """The keys of [privacy]."""

    accountant: AccountantName = "tight"
    sampler: SamplerName | None = None
    neighbours: Neighbours | None = None
    guard: Guard = "refuse"
    trust: Trust = "local"
    colluding: Any = 0  # a whole number or a share: `Contract` looks at both
    dropouts: int = 0
    unit: UnitName | None = None  # a person where [data] names them, else a record


class ScheduleSection(Section):
    """The keys of [schedule]."""

    draws: Draws = "systematic"
    seed: int | None = _bounded(None, at_least=0)


# How a plan is executed. Planning does not need these; ``dpcohort train`` and ``compare`` do.
class DataSection(Section):
    """The keys of [data]: which records, and who holds them."""

    name: str = "digits"
    dir: str | None = None
    public: bool | None = None  # None as the data set says of itself
    partition: Literal["paper", "dirichlet", "column", "client"] = "paper"
    similarity: float = _bounded(100.0, at_least=0, at_most=100)
    alpha: float | None = _bounded(None, above=0)
    column: str | None = None
    public_share: float = _bounded(0.0, at_least=0, below=1)
    seed: int | None = _bounded(None, at_least=0)
    # Of a table (.csv, .parquet): what its columns mean; ``TableColumns`` checks them.
    label: str | list[str] | None = None
    client: str | None = None
    # Whose each record is: a column of a table, or of arrays a file of them.
    person: str | None = None
    person_rows: PersonRows = "sum"
    rows_per_person: int = _bounded(5, at_least=1, at_most=MOST_PERSON_ROWS)
    blank_person: BlankPerson = "refuse"
    features: list[str] = Field(default_factory=list)
    categories: dict[str, Any] = Field(default_factory=dict)
    bounds: dict[str, Any] = Field(default_factory=dict)
    estimated_bounds: str | None = None
    missing: Any = "middle"
    labels: list[Any] = Field(default_factory=list)
    test_share: float = _bounded(0.2, above=0, below=1)
    test_public: bool = False
    # Of arrays, where the file does not say it; those of a table are its labels.
    classes: int | None = _bounded(None, at_least=2, at_most=MOST_CLASSES)


class TaskSection(Section):
    """The keys of [task]: what is predicted, where the data set leaves it open; all public."""

    kind: TaskKind | None = None
    loss: str | None = None
    class_weights: list[float] | None = None
    class_shares: list[float] | None = None
    bounds: list[float] | None = None
    delta: float | None = None
    quantile: float | None = None


class EvaluationSection(Section):
    """The keys of [evaluation]: what is told of test records that are not public, and its price."""

    ask: bool = True
    share: float = 0.05


class ModelSection(Section):
    """The keys of [model]."""

    name: str = "logistic"
    options: dict[str, Any] = Field(default_factory=dict)
    weights: str | None = None
    weights_source: str = ""
    frozen: list[str] = Field(default_factory=list)


class OptimiserSection(Section):
    """The keys of [optimiser]; ``step`` says which of the others give the local step size."""

    step: Literal["constant", "inverse-time", "inverse-root"] = "constant"
    learning_rate: float | None = _bounded(None, above=0, at_most=LARGEST_STEP)
    beta: float | None = _bounded(None, above=0, at_most=LARGEST_STEP)
    gamma: float | None = _bounded(None, above=0, at_most=LARGEST_STEP)
    gradient_bound: float | None = _bounded(None, above=0, at_most=LARGEST_STEP)
    server_learning_rate: float = _bounded(1.0, above=0, at_most=LARGEST_STEP)
    server_momentum: float = _bounded(0.0, at_least=0, below=1)
    server: str = ""
    server_settings: dict[str, Any] = Field(default_factory=dict)
    local: str = ""
    local_settings: dict[str, Any] = Field(default_factory=dict)
    average_decay: float | None = _bounded(None, at_least=0, below=1)


class RunSection(Section):
    """The keys of [run]."""

    seed: int = _bounded(0, at_least=0)
    simulate: int | None = _bounded(None, at_least=0)
    engine: EngineName = "batched"
    device: str = "auto"
    evaluate_every: int | None = _bounded(None, at_least=1)
    checkpoint_every: int | None = _bounded(None, at_least=1)
    merged_noise: bool = False


class TuningSection(Section):
    """The keys of [tuning], which ``dpcohort tune`` writes: where the settings came from."""

    source: Literal["none", "public", "charged"]
    records: str | None = None
    charge: str | None = None  # of source "charged": the id, which stands in [charges] too


class ConfigFile(Section):
    """The whole file."""

    population: PopulationSection
    training: TrainingSection = Field(default_factory=TrainingSection)
    selection: SelectionSection = Field(default_factory=SelectionSection)
    aggregation: RuleSection = Field(default_factory=RuleSection)
    privacy: PrivacySection = Field(default_factory=PrivacySection)
    schedule: ScheduleSection = Field(default_factory=ScheduleSection)
    data: DataSection | None = None
    task: TaskSection = Field(default_factory=TaskSection)
    evaluation: EvaluationSection | None = None
    model: ModelSection = Field(default_factory=ModelSection)
    optimiser: OptimiserSection = Field(default_factory=OptimiserSection)
    run: RunSection = Field(default_factory=RunSection)
    tuning: TuningSection | None = None
    charges: dict[str, str] = Field(default_factory=dict)  # the file of each, by its id
    grid: dict[str, Any] = Field(default_factory=dict)


def known_keys(table: type[BaseModel], name: str = "") -> dict[str, list[str]]:
    """The known keys of a table and of those inside it, by the name of each.

    Example:
        >>> known_keys(ConfigFile)["schedule"]
        ['draws', 'seed']
    """
    keys = {name: list(table.model_fields)}
    for key, field in table.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                keys |= known_keys(kind, f"{name}.{key}".lstrip("."))
    return keys


_WITH_A_FILE = {"clients", "allow_large_delta"}


def check_population(section: PopulationSection, *, has_data: bool) -> None:
    """Refuse what says of no clients, or of too many ways to have some.

    Args:
        section: the keys as they were written.
        has_data: there is a data set whose records can be shared out.
    """
    if section.clients is not None:
        for key in type(section).model_fields:
            if key in section.model_fields_set and key not in _WITH_A_FILE:
                raise InputError.about(
                    "clients",
                    f"and {key} are both given; keep one. The file of clients says everything "
                    "about them (public ones have true in its column public); without a file, "
                    "count, total_size and epsilon describe clients to be drawn.",
                )
        return
    for key in ("count", "epsilon"):
        if getattr(section, key) is None:
            words = 'is missing. Give clients = "FILE.csv", or count, total_size and epsilon.'
            raise InputError.about(key, words)
    if section.total_size is None and section.size is None and not has_data:
        words = "is missing; or give size, if each client draws its own."
        raise InputError.about("total_size", words)
    if isinstance(section.epsilon, int | float) and not isinstance(section.epsilon, bool):
        Budget(section.epsilon, 0.5)  # says what to do about a huge epsilon
    _size_distribution(section)
    check_bounds(section)
    for row, group in enumerate(section.public):
        whole_number(f"public[{row}].count", group.count, at_least=1, at_most=MOST_CLIENTS)
        whole_number(f"public[{row}].size", group.size, at_least=1, at_most=MAX_SIZE)
    count = whole_number("count", section.count, at_least=1, at_most=MOST_CLIENTS)
    everyone = count + sum(group.count for group in section.public)
    whole_number("count with public clients", everyone, at_most=MOST_CLIENTS)
    if isinstance(section.epsilon, str):
        choice("epsilon", section.epsilon, [*PAPER_BUDGETS, ALL_PUBLIC])
    else:
        distribution_from("epsilon", section.epsilon)


def draw_population(
    section: PopulationSection, records: int | None = None, *, has_data: bool = False
) -> Population:
    """Draw the clients that a checked section describes; the same seed draws the same ones.

    Args:
        section: the keys as they were written.
        records: how many the data set has, to be shared out where the section states no sizes.
        has_data: as in `check_population`.

    Example:
        >>> section = PopulationSection(
        ...     count=3, total_size=100, epsilon=1.0, public=[PublicClients(size=50)])
        >>> population = draw_population(section)
        >>> population.ids, int(population.sizes[:3].sum())
        (('client-0', 'client-1', 'client-2', 'public-0'), 100)
    """
    count = section.count or 0
    groups = [np.full(group.count, group.size, dtype=np.int64) for group in section.public]
    public_sizes = np.concatenate([np.empty(0, dtype=np.int64), *groups])
    total = section.total_size
    if has_data and total is None and section.size in (None, "paper"):
        total = _records_left(records, count, int(public_sizes.sum()))
    # Sizes and budgets have streams of their own, so that changing one leaves the other alone.
    sizes = _size_distribution(section)(count, np.random.default_rng([section.seed, 1]))
    if total is None and sizes.max() > MAX_SIZE:
        raise InputError("size", given=float(sizes.max()), allowed="at most 10^15")
    whole_sizes = np.rint(sizes).astype(np.int64) if total is None else share_out(total, sizes)
    nothing = np.full(len(public_sizes), np.nan)
    if section.epsilon == ALL_PUBLIC:
        epsilon = delta = np.full(count, np.nan)
    else:
        budgets = distribution_from("epsilon", section.epsilon)
        epsilon = budgets(count, np.random.default_rng([section.seed, 2]))
        delta = np.full(count, section.delta)
    everyone = np.concatenate([epsilon, nothing])
    return Population.from_arrays(
        ids=[*numbered("client", count), *numbered("public", len(public_sizes))],
        sizes=np.concatenate([whole_sizes, public_sizes]),
        epsilon=everyone,
        delta=np.concatenate([delta, nothing]),
        public=np.isnan(everyone),
        allow_large_delta=section.allow_large_delta,
    )


def _records_left(records: int | None, count: int, public: int) -> int:
    if records is None:
        words = "is missing; without the data it must be given (with it: dpcohort train)."
        raise InputError.about("total_size", words)
    left = records - public
    if left < count:
        words = f"must be at least one record a client; the data leaves {left} for {count}."
        raise InputError.about("total_size", words)
    return left


def _size_distribution(section: PopulationSection) -> Distribution:
    given = "paper" if section.size is None else section.size
    return distribution_from("size", given, {"paper": PAPER_SIZE_WEIGHTS})


def distribution_from(
    field: str, given: object, names: Mapping[str, Distribution] = PAPER_BUDGETS
) -> Distribution:
    """A distribution from what a configuration says: a number, a name, or a table.

    Args:
        field: what it is for, named in errors.
        given: a number (the same for all), one of ``names``, or a table with ``distribution`` (a
            name in ``DISTRIBUTIONS``) and that distribution's settings.
        names: distributions that have a name.

    Example:
        >>> draw = distribution_from("epsilon", {"distribution": "uniform", "low": 1, "high": 2})
        >>> draw(2, np.random.default_rng(0)).round(2)
        array([1.64, 1.27])
    """
    if isinstance(given, str):
        return names[choice(field, given, names)]
    if isinstance(given, Mapping):
        return _from_table(field, given)
    return fixed(number(field, given, above=0))


def _from_table(field: str, table: Mapping[str, Any]) -> Distribution:
    settings = dict(table)
    if "distribution" not in settings:
        words = f"is missing; it must be one of {', '.join(DISTRIBUTIONS)}."
        raise InputError.about(f"{field}.distribution", words)
    name = choice(f"{field}.distribution", settings.pop("distribution"), DISTRIBUTIONS)
    kind: Any = DISTRIBUTIONS[name]
    known = {
        key: setting.default is Parameter.empty
        for key, setting in signature(kind).parameters.items()
    }
    for key in settings:
        if key not in known:
            step = did_you_mean(key, known) or f"Known: {', '.join(known)}."
            raise InputError.about(f"{field}.{key}", f"is not a setting of {name}. {step}")
    missing = [key for key, is_needed in known.items() if is_needed and key not in settings]
    if missing:
        raise InputError.about(f"{field}.{missing[0]}", f"is missing; {name} needs it.")
    try:
        distribution: Distribution = kind(**settings)
    except InputError as error:
        if not error.field:
            raise InputError.about(field, f"cannot be used: {error}") from None
        words = str(error).removeprefix(error.field).lstrip()
        raise InputError.about(f"{field}.{error.field}", words) from None
    return distribution


_TABLE_KEYS = (
    *("label", "client", "features", "categories", "bounds", "missing", "labels"),
    *("test_share", "test_public", "estimated_bounds"),
)
#: Which keys of [optimiser] each kind of step takes.
_REMOVE = "Remove it (--set data.{}= does)."
_STEP_KEYS = {
    "constant": ("learning_rate",),
    "inverse-time": ("beta", "gamma"),
    "inverse-root": ("gradient_bound",),
}


def _goes_with(key: str, other: str, value: str, step: str = "") -> InputError:
    words = f'goes with {other} = "{value}", and only with it. {step}'
    return InputError.about(key, words.rstrip())


def check_bounds(section: Section) -> None:
    """Refuse a number that is outside of its bounds.

    Example:
        >>> check_bounds(RunSection(evaluate_every=1))
    """
    for key, field in type(section).model_fields.items():
        value, bounds = getattr(section, key), field.json_schema_extra
        if value is not None and isinstance(bounds, dict):
            check: Any = whole_number if isinstance(value, int) else number
            check(key, value, **bounds)


def check_data(section: DataSection) -> None:
    """Refuse values that do not go together.

    Example:
        >>> check_data(DataSection(partition="dirichlet", alpha=0.3))
    """
    check_bounds(section)
    for key, kind in (("alpha", "dirichlet"), ("column", "column")):
        given, wanted = getattr(section, key) is not None, section.partition == kind
        if wanted and not given:
            raise InputError.about(key, f'is missing: partition = "{kind}" needs it.')
        if given and not wanted:
            raise _goes_with(key, "partition", kind, _REMOVE.format(key))
    if section.estimated_bounds is not None and section.client is None:
        words = "needs client: the column that says whose record it is, and so who paid."
        raise InputError.about("estimated_bounds", words)
    if is_table(section.name) and section.label is None:
        raise InputError.about("label", "is missing: the column of the table to be predicted.")
    arrays = section.name.endswith((".npz", ".npy")) or "/" in section.name
    if section.classes is not None and (is_table(section.name) or not arrays):
        words = f"is for arrays (.npz, .npy), and {section.name!r} knows its own. "
        raise InputError.about("classes", words + _REMOVE.format("classes"))
    for key in _TABLE_KEYS:
        if key == "test_public" and arrays:
            continue
        if key in section.model_fields_set and not is_table(section.name):
            words = f"is for a table, and {section.name!r} is none (.csv, .parquet). "
            raise InputError.about(key, words + _REMOVE.format(key))
    if "similarity" in section.model_fields_set and section.partition != "paper":
        raise _goes_with("similarity", "partition", "paper", _REMOVE.format("similarity"))


def check_task(section: TaskSection) -> None:
    """Refuse values that do not go together, as far as that is known without the data.

    Example:
        >>> check_task(TaskSection(kind="regression", bounds=[0.0, 30.0]))
    """
    given = section.model_dump(exclude_none=True)
    bounds = given.get("bounds")
    if bounds is not None and len(bounds) != 2:
        allowed = "two numbers, the smallest and the largest to be predicted"
        raise InputError("bounds", given=bounds, allowed=allowed)
    if section.kind is not None:
        weights = given.get("class_weights", ()) or given.get("class_shares", ())
        number_of = section.kind in ("regression", "counts")
        Task.from_dict(given, outputs=1 if number_of else max(2, len(weights)))
    for key, loss in (("delta", "huber"), ("quantile", "quantile")):
        if key in given and section.loss not in (None, loss):
            raise _goes_with(key, "loss", loss, "Remove it.")


def check_tuning(section: TuningSection) -> None:
    """Refuse values that do not go together.

    Example:
        >>> check_tuning(TuningSection(source="charged", charge="5e0f"))
    """
    if section.charge is not None and section.source != "charged":
        raise _goes_with("charge", "source", "charged")
    if section.source == "charged" and section.charge is None:
        words = 'is missing: with source = "charged" it names what was paid, as in [charges].'
        raise InputError.about("charge", words)


def check_optimiser(section: OptimiserSection) -> None:
    """Refuse values that do not go together."""
    wanted = _STEP_KEYS[section.step]
    for keys in _STEP_KEYS.values():
        for key in keys:
            if key not in wanted and getattr(section, key) is not None:
                raise InputError.about(
                    key, f'is not for step = "{section.step}", which takes {", ".join(wanted)}.'
                )
    for key in wanted:
        if getattr(section, key) is None and section.step != "constant" and key != "gamma":
            raise InputError.about(key, f'is missing; step = "{section.step}" needs it.')
    for key in ("server_learning_rate", "server_momentum"):
        if section.server and key in section.model_fields_set:
            words = f'is of the plain step; server = "{section.server}" has its own: '
            raise InputError.about(key, words + "server_settings = { lr = ... }.")
    for key, example in (("server", "adam"), ("local", "fedprox")):
        if getattr(section, f"{key}_settings") and not getattr(section, key):
            words = f'goes with {key}, as in {key} = "{example}".'
            raise InputError.about(f"{key}_settings", words)
    check_bounds(section)


#: The checks of tables, by name; planning has its own for the others.
CHECKS: dict[str, Callable[[Any], object]] = {
    "schedule": check_bounds,
    "data": check_data,
    "task": check_task,
    "evaluation": lambda section: check_kept(section.share),
    "optimiser": check_optimiser,
    "run": check_bounds,
    "tuning": check_tuning,
}


def flat_grid(table: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The settings to be varied, ``section.key`` to its values.

    Example:
        >>> flat_grid({"selection": {"rule": ["unbiased", "privacy-aware"]}})
        {'selection.rule': ('unbiased', 'privacy-aware')}
    """
    found = dict(_leaves(table, ""))
    for key in found:
        if "." not in key or key.startswith("grid.") or key == "run.seed":
            raise InputError.about(key, "must name a setting, as in selection.rule = [...].")
    combinations = math.prod(len(values) for values in found.values())
    if combinations > MOST_CELLS:
        raise InputError.about(
            min(found, key=lambda key: -len(found[key])),
            f"and the other lists make {combinations:,} combinations; at most {MOST_CELLS:,} are "
            "allowed. Shorten a list.",
        )
    return found


def _leaves(table: Mapping[str, Any], around: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{around}{key}.")
        elif isinstance(value, list) and value and not any(isinstance(v, dict) for v in value):
            yield around + key, tuple(value)
        else:
            raise InputError.about(around + key, "must be a list of values to try, such as [1, 2].")


# The keys of [selection] that go with every rule that chooses cohorts during the training:
#
#     participation_cap = "auto"   draws of a client, at most
#     reports = "private"          noised and charged; "raw" stamps the run NOT PRIVATE
#     report_share = 0.1           of each budget
#     report_cap = "auto"          reports of a client, at most
#     loss_bound = 5.0             to which each record's loss is clipped in a report


def _cap(field: str, value: Any) -> None:
    if value != "auto":
        if isinstance(value, str):
            raise InputError(field, given=value, allowed="'auto' or a whole number of at least 1")
        whole_number(field, value, at_least=1)


#: Every key with its check.
_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "participation_cap": _cap,
    "reports": lambda field, value: choice(field, value, ["private", "raw"]),
    "report_share": lambda field, value: number(field, value, above=0, below=1),
    "report_cap": _cap,
    "loss_bound": lambda field, value: number(field, value, above=0),
}
REPORT_KEYS = tuple(_CHECKS)


def split_report_settings(
    rule: str, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rule's own settings, and those about caps and reports, checked.

    Raises:
        InputError: a value out of range, or a key about reports for a rule that asks for none.

    Example:
        >>> split_report_settings("power-of-choice", {"d": 6, "report_share": 0.2})
        ({'d': 6}, {'report_share': 0.2})
    """
    known = settings_of("adaptive", rule)
    own = {key: value for key, value in settings.items() if key not in _CHECKS or key in known}
    about = {key: value for key, value in settings.items() if key not in own}
    for key, value in about.items():
        _CHECKS[key](key, value)
    asks = getattr(find_rule("adaptive", rule), "statistic", None) is not None
    for key in about:
        if not asks and key != "participation_cap":
            words = f"says nothing: the rule {rule} asks for no reports. Remove it."
            raise InputError.about(key, words)
    takes = [*known, *(REPORT_KEYS if asks else ("participation_cap",))]
    _refuse_unknown(rule, own, takes, [*known, *REPORT_KEYS])
    return own, about


def check_rule(kind: str, section: RuleSection) -> None:
    """Refuse a rule that there is not, and settings that no plan can make good.

    Args:
        kind: ``selection`` or ``aggregation``; a plan fills in sizes, budgets and probabilities.
        section: the rule and its settings.
    """
    settings = section.model_extra or {}
    find_rule(kind, section.rule, field="rule")
    known = settings_of(kind, section.rule)
    _refuse_unknown(section.rule, settings, known, [*known, *type(section).model_fields])
    check_settings(kind, section.rule, settings)


def _refuse_unknown(
    rule: str, settings: Iterable[str], takes: Sequence[str], near: Sequence[str]
) -> None:
    for key in settings:
        if key not in takes:
            step = f"It takes {', '.join(takes)}." if takes else "It takes none; remove this one."
            words = f"is not a setting of the rule {rule}. {step}"
            hint = did_you_mean(key, near)
            raise InputError.about(key, f"{words} {hint}" if hint else words)
