# SPDX-License-Identifier: Apache-2.0
"""A configuration file (TOML): everything a plan needs, in the words of the package.

::

    [population]   who takes part            -> Population
    [training]     how long, how large       -> Training
    [selection]    who is drawn how often    -> a rule and its settings
    [aggregation]  how updates are combined  -> a rule and its settings
    [privacy]      what the promise means    -> Contract
    [schedule]     how cohorts are drawn
    [data] [task] [model] [optimiser] [run] [grid]    how the plan is executed
    [evaluation]   what is told of test records that are not public
    [charges]      what was paid beside it   -> files of `Charge`, by their ids

``dpcohort new`` writes one with comments. Unknown keys are refused, never ignored.
"""

from __future__ import annotations

import copy
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from dpcohort import consent
from dpcohort._validate import choice, did_you_mean
from dpcohort.accounting import Contract
from dpcohort.accounting._contract import Guard, NoiseModel
from dpcohort.accounting._distributed import (
    adaptive_under_distributed_trust,
    refuse_undistributable,
    sum_only,
)
from dpcohort.clients import Population
from dpcohort.config import _schema as schema
from dpcohort.config._schema import (
    ConfigFile,
    DataSection,
    EvaluationSection,
    ModelSection,
    OptimiserSection,
    RuleSection,
    RunSection,
    SelectionSection,
    TaskSection,
    check_rule,
    draw_population,
    split_report_settings,
)
from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import LARGEST_CONFIG
from dpcohort.plain_text import one_line
from dpcohort.plugins import (
    RULES,
    check_settings,
    is_named_function,
    is_rule,
    kind_of_rule,
    require_consent,
)
from dpcohort.schedule import Draws
from dpcohort.text_files import parse_toml, read_utf8, toml_text, toml_value
from dpcohort.training import Training

#: Where a key stands: names of tables and keys, and positions in lists of tables.
Where = tuple[str | int, ...]
#: The line of each place; None for what does not stand in the file.
Lines = dict[Where, int | None]

_MOST_SHOWN = 5
#: Expressions here are compiled at their first use: few processes read a file's lines.
_TABLE = r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$"
_KEY = r"\s*([A-Za-z0-9_\-\"'. ]+?)\s*="
_KINDS = {
    "int_type": "a whole number, written without a decimal point",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "list_type": "a list of tables, each under its own line [[{name}]]",
    "model_type": "a table, under its own line [{name}]",
    "model_attributes_type": "a table, under its own line [{name}]",
    "dict_type": "a table, under its own line [{name}]",
}


#: One problem: where in the tables it is, and what it is.
ConfigProblem = tuple[Where, str]


def dotted(where: Where) -> str:
    """A place as a person writes it.

    Example:
        >>> dotted(("population", "public", 0, "size"))
        'population.public[0].size'
    """
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def within(section: str, error: InputError) -> ConfigProblem:
    """An error about a field, as a problem of the section the field is in.

    Example:
        >>> within("training", InputError("clip", given=0, allowed="above 0"))[1]
        'training.clip = 0 is not allowed: it must be above 0.'
    """
    parts = [int(p) if p.isdigit() else p for p in re.findall(r"[^.\[\] ]+", error.field)]
    if error.field.startswith(f"{section}."):  # it names its section already
        return (tuple(parts), str(error))
    joint = "." if error.field else ": "
    return ((*section.split("."), *parts), f"{section}{joint}{error}")


def words_of(details: Mapping[str, Any], keys: Mapping[str, Sequence[str]]) -> ConfigProblem:
    """One finding of the schema check, in plain words.

    Args:
        details: an entry of pydantic's ``errors()``.
        keys: the known keys of each section; the sections themselves under "".

    Example:
        >>> found = {"type": "extra_forbidden", "loc": ("training", "rouns"), "input": 3}
        >>> words_of(found, {"": ["training"], "training": ["rounds", "clip"]})[1]
        "training.rouns is not a known key. Did you mean 'rounds'?"
    """
    where: Where = tuple(details["loc"])
    name, kind, given = dotted(where), str(details["type"]), details.get("input")
    if kind == "extra_forbidden":
        return (where, _unknown_key(where, keys))
    if kind == "missing":
        what = f"the table [{name}]" if len(where) == 1 else name
        return (where, f"{what} is missing; it must be given.")
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(details["ctx"]["expected"]))
        try:
            choice(name, given, allowed)
        except InputError as error:
            return (where, str(error))
    if kind in _KINDS:
        table = ".".join(part for part in where if isinstance(part, str))
        allowed_words = _KINDS[kind].format(name=table)
        if kind == "list_type" and table not in keys and not isinstance(given, Mapping):
            allowed_words = "a list in brackets, as in [1, 2]"
        return (where, str(InputError(name, given=given, allowed=allowed_words)))
    return (where, f"{name} cannot be used: {str(details['msg']).lower()}.")


def error_of(path: str | Path, problems: Sequence[ConfigProblem], lines: Lines) -> FileFormatError:
    """All problems as one error; one alone on one line, several as a list of the first ones.

    Example:
        >>> problem = (("training", "clip"), "training.clip = 0 is not allowed.")
        >>> str(error_of("a.toml", [problem], {("training",): 1, ("training", "clip"): 3}))
        'a.toml, line 3: training.clip = 0 is not allowed.'
    """
    found = sorted(
        ((_line_of(where, lines), words) for where, words in problems),
        key=lambda pair: pair[0] or 0,
    )
    if len(found) == 1:
        line, words = found[0]
        return FileFormatError(path, words, line=line)
    shown = [f"  line {line}: {words}" if line else f"  {words}" for line, words in found]
    if len(found) > _MOST_SHOWN:
        shown[_MOST_SHOWN:] = [f"  and {len(found) - _MOST_SHOWN} more"]
    return FileFormatError(path, "\n".join([f"{len(found)} problems", *shown]))


def key_lines(text: str) -> Lines:
    r"""The line of each table and key, as far as a look at the beginning of lines can tell.

    Example:
        >>> key_lines("[training]\nrounds = 3\n[[population.public]]\nsize = 5\n")
        {('training',): 1, ('training', 'rounds'): 2, ('population', 'public', 0): 3,
         ('population', 'public', 0, 'size'): 4}
    """
    lines: Lines = {}
    tables: Counter[Where] = Counter()
    table: Where = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if found := re.match(_TABLE, line):
            table = name = _parts(found[2])
            if found[1] == "[[":  # one of a list of tables
                table = (*name, tables[name])
                tables[name] += 1
            lines.setdefault(table, number)
        elif found := re.match(_KEY, line):
            lines.setdefault((*table, *_parts(found[1])), number)
    return lines


def _parts(name: str) -> Where:
    return tuple(part.strip().strip("\"'") for part in name.split("."))


def _line_of(where: Where, lines: Lines) -> int | None:
    """The line of the key, or else of the nearest table around it."""
    for end in range(len(where), 0, -1):
        if where[:end] in lines:
            return lines[where[:end]]
    return None


def _unknown_key(where: Where, keys: Mapping[str, Sequence[str]]) -> str:
    *around, key = where
    known = keys.get(".".join(part for part in around if isinstance(part, str)), ())
    text = f"{dotted(where)} is not a known key."
    for home, words in keys.items():
        if home and key in words:
            return f"{text} It belongs under [{home}]."
    if hint := did_you_mean(key, known):
        return f"{text} {hint}"
    return f"{text} Known here: {', '.join(known)}." if known else text


Made = TypeVar("Made")

_SYNTAX_PLACE = r" \(at (?:line (\d+), column \d+|end of document)\)$"


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a plan, checked; ``population()`` reads or draws the clients.

    Attributes:
        path: the file it was read from; None if there is none.
        clients: the file the clients are in; None if they are drawn.
        training: rounds, cohort, batches, clip.
        rule: name of the selection rule.
        rule_settings: its settings, as far as they are given.
        report_settings: caps and reports of a rule that chooses during the training.
        aggregation: name of the aggregation and its settings, as far as they are given.
        contract: accountant, sampler and neighbours.
        noise_model: ``exact`` or ``paper``.
        guard: ``refuse`` or ``lift``.
        draws: ``systematic`` or ``independent``.
        seed: of the schedule; None draws one.
        data: which records train the model; None if the file only plans.
        grid: settings to be varied by ``dpcohort compare``.
        values: the tables as they were written.
        folder: what relative paths in the file start from.
    """

    clients: Path | None
    path: Path | None = None
    training: Training = field(default_factory=Training)
    rule: str = "privacy-aware"
    rule_settings: Mapping[str, Any] = field(default_factory=dict)
    report_settings: Mapping[str, Any] = field(default_factory=dict)
    aggregation: tuple[str, Mapping[str, Any]] = field(default_factory=lambda: ("mean", {}))
    contract: Contract = field(default_factory=lambda: Contract.of("tight"))
    noise_model: NoiseModel = "exact"
    guard: Guard = "refuse"
    draws: Draws = "systematic"
    seed: int | None = None
    data: DataSection | None = None
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(repr=False)
    folder: Path = field(repr=False)
    _lines: Lines = field(repr=False, compare=False)
    _loads: bool = field(default=True, repr=False, compare=False)

    @cached_property
    def _file(self) -> ConfigFile:
        """The tables with every key; read once more, since planning needs few of them."""
        return ConfigFile.model_validate(dict(self.values))

    @property
    def task(self) -> TaskSection:
        """What is predicted, where the data set leaves it open."""
        return self._file.task

    @property
    def evaluation(self) -> EvaluationSection | None:
        """What is told of test records that are not public; None where the file does not say."""
        return self._file.evaluation

    @property
    def model(self) -> ModelSection:
        """Which model."""
        return self._file.model

    @property
    def optimiser(self) -> OptimiserSection:
        """Step sizes, momentum, average."""
        return self._file.optimiser

    @property
    def run(self) -> RunSection:
        """Seed, engine, device."""
        return self._file.run

    @property
    def tuning(self) -> dict[str, Any] | None:
        """Where the settings came from, as ``dpcohort tune`` wrote it; None if it did not."""
        written = self.values.get("tuning")
        return dict(written) if isinstance(written, dict) else None

    @property
    def charges(self) -> dict[str, Path]:
        """The file of each charge that the configuration names, by its id."""
        named = self.values.get("charges", {})
        return {name: self.folder / str(place) for name, place in named.items()}

    @property
    def is_adaptive(self) -> bool:
        """Whether the rule chooses cohorts during the training, from what clients report."""
        return kind_of_rule(self.rule) == "adaptive"

    def population(
        self, records: int | None = None, sizes: Mapping[str, int] | None = None
    ) -> Population:
        """Read or draw the clients, with all that they promised, whatever was paid of it.

        Args:
            records: how many the data set has; used where the file leaves ``total_size`` to it.
            sizes: of each client, where the data know them; a file of clients may leave them out.

        Raises:
            FileFormatError: with the file of clients and its line, or with this file.
        """
        try:
            if self.clients is not None:
                allowed = bool(self.values["population"].get("allow_large_delta"))
                return Population.from_csv(self.clients, sizes=sizes, allow_large_delta=allowed)

            has_data = self.data is not None
            return draw_population(self._file.population, records, has_data=has_data)
        except FileFormatError:
            raise
        except InputError as error:
            raise self.problem("population", error) from None

    def problem(self, section: str, error: InputError) -> FileFormatError:
        """An error about a value of a section, with the file and the line it stands on."""
        return error_of(_label(self.path), [within(section, error)], self._lines)

    def with_overrides(self, overrides: Iterable[str]) -> Config:
        """The same configuration with some keys changed, each given as ``section.key=value``.

        Values are TOML; a single word needs no quotes; nothing after ``=`` takes the key out.

        Example:
            >>> config = config_for_clients("clients.csv")
            >>> config.with_overrides(["training.rounds=200"]).training.rounds
            200

        Raises:
            InputError: a change is none, or would drop what was paid of the budgets.
        """
        changes = list(overrides)
        values, places = apply_overrides(self.values, changes)
        dropped = _paid_files(self.values) - _paid_files(values)
        if dropped:
            raise InputError.because(
                f"{_label(self.path)} with {', '.join(changes)} would forget what was paid by the "
                f"clients, as {one_line(min(dropped))} says; that stays spent whatever is trained. "
                "Keep it: under [charges], with its id and file, where the estimate itself is not "
                "wanted any more."
            )
        # What was changed here does not stand in the file any more.
        lines = {
            where: None if any(where[: len(place)] == place for place in places) else line
            for where, line in (self._lines | dict.fromkeys(places)).items()
        }
        return _build(values, self.path, lines, changes, loads=self._loads)

    def with_clients(self, path: str | Path) -> Config:
        """The same configuration for the clients of a CSV file.

        A relative path starts from the current folder, those in the file from the file's own.

        Example:
            >>> config_for_clients("old.csv").with_clients("new.csv").clients.name
            'new.csv'
        """
        section = self.values.get("population", {})
        kept = {key: section[key] for key in ("allow_large_delta",) if key in section}
        clients = str(Path(path).absolute())
        values = {**self.values, "population": {**kept, "clients": clients}}
        return _build(values, self.path, self._lines, loads=self._loads)


def _paid_files(values: Mapping[str, Any]) -> set[str]:
    """The files of charges that tables name."""
    data, named = values.get("data"), values.get("charges")
    estimate = data.get("estimated_bounds") if isinstance(data, dict) else None
    files = list(named.values()) if isinstance(named, dict) else []
    return {str(place) for place in [*files, estimate] if place}


def load_config(path: str | Path, *, allow_code: Iterable[str] | None = ()) -> Config:
    """Read and check a configuration file; the clients themselves are read by ``population()``.

    Args:
        path: the file.
        allow_code: modules whose code the file may name, in this process. What the user allowed
            on the command line, and what the program has imported and marked, needs none. None
            reads the file without any code: third-party names stay names, unchecked.

    Raises:
        FileFormatError: with the file, the line where it can be found, and every problem; code
            that is not allowed is one.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "plan.toml"
        >>> _ = path.write_text("population = { count = 3, total_size = 900, epsilon = 1.0 }")
        >>> load_config(path).population()
        Population(3 clients, 900 records, 0 public)
    """
    content = read_utf8(path, at_most_bytes=LARGEST_CONFIG).decode("utf-8")
    if allow_code:
        consent.allow_code(*allow_code)
    return _parsed(content, Path(path), loads=allow_code is not None)


def loads_config(text: str) -> Config:
    """The configuration a TOML text describes; a relative path of clients starts from here.

    Third-party code that it names must be allowed, as in ``load_config``.

    Example:
        >>> loads_config("population = { count = 3, size = 50, epsilon = 1 }").population()
        Population(3 clients, 150 records, 0 public)
    """
    return _parsed(text, None)


def config_for_folder(text: str, source: Path | None, target: Path) -> str:
    r"""The text of a configuration with the files that it names as seen from another folder.

    Args:
        text: the configuration.
        source: the folder that its relative paths start from; None leaves them alone.
        target: the folder in which the text will lie.

    Example:
        >>> config_for_folder('[data]\nname = "digits"', Path("."), Path("runs/first"))
        '[data]\nname = "digits"'
    """
    if source is None:
        return text
    start, end = source.resolve(), target.resolve()

    def moved(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: moved(name, inner) for name, inner in value.items()}
        if not isinstance(value, str) or not value or Path(value).is_absolute():
            return value
        place = start / value
        folder = place.is_dir() and ("/" in value or key == "dir")
        if not (folder or place.is_file()):
            return value
        return Path(os.path.relpath(place, end)).as_posix()

    values = parse_toml(text)
    named = {
        section: moved(section, table)
        for section, table in values.items()
        if section in ("population", "data", "model", "charges")
    }
    return text if all(named[s] == values[s] for s in named) else toml_text({**values, **named})


def config_for_clients(path: str | Path) -> Config:
    """The default settings for the clients of a CSV file.

    Example:
        >>> config_for_clients("clients.csv").rule
        'privacy-aware'
    """
    try:
        clients = _clients_file(str(path), Path())
    except InputError as error:
        raise error_of(_label(None), [within("population", error)], {}) from None
    values = {"population": {"clients": str(path)}}
    return Config(clients=clients, values=values, folder=Path(), _lines={})


def _parsed(content: str, path: Path | None, *, loads: bool = True) -> Config:
    try:
        values = parse_toml(content)
    except ValueError as error:
        raise _syntax_error(_label(path), content, error) from None
    return _build(values, path, key_lines(content), loads=loads)


def _label(path: Path | None) -> str:
    return "settings" if path is None else str(path)


def _syntax_error(path: str, content: str, error: Exception) -> FileFormatError:
    words = str(error)
    if "nested too deeply" in words:
        return FileFormatError(path, words)
    if "digits" in words:  # Python's own limit, which tomllib does not put into its words
        return FileFormatError(path, "a whole number has too many digits")
    line: int | None = None
    if found := re.search(_SYNTAX_PLACE, words):
        line = int(found[1]) if found[1] else len(content.splitlines())
        words = words[: found.start()]
    return FileFormatError(path, f"this is not valid TOML: {words}", line=line)


def _build(
    values: Mapping[str, Any],
    path: Path | None,
    lines: Lines,
    changes: Sequence[str] = (),
    *,
    loads: bool = True,
) -> Config:
    # The library that checks types takes longer to load than a small plan to make.

    folder = Path() if path is None else path.parent
    label = f"{_label(path)} with {', '.join(changes)}" if changes else _label(path)
    try:
        file = schema.ConfigFile.model_validate(dict(values))
    except ValidationError as error:
        keys = schema.known_keys(schema.ConfigFile)
        found = [words_of(dict(details), keys) for details in error.errors(include_url=False)]
        raise error_of(label, found, lines) from None
    problems: list[ConfigProblem] = []

    def made(section: str, make: Callable[..., Made], *given: Any) -> Made | None:
        try:
            return make(*given)
        except InputError as error:
            problems.append(within(section, error))
            return None

    def clients_file() -> Path | None:
        schema.check_population(file.population, has_data=file.data is not None)
        listed = file.population.clients
        return None if listed is None else _clients_file(listed, folder)

    privacy = file.privacy
    clients = made("population", clients_file)
    training = made("training", lambda: Training(**file.training.model_dump(exclude_unset=True)))
    checked = {
        section: made(section, _may_be_loaded, key, getattr(getattr(file, section), key, None))
        if loads
        else key != "rule" or _is_own_rule(section, getattr(file, section).rule)
        for section, key in _THIRD_PARTY
    }
    settings: tuple[dict[str, Any], dict[str, Any]] | None
    settings = dict(file.selection.model_extra or {}), {}
    if checked["selection"]:
        settings = made("selection", _selection_settings, file.selection)
    if checked["aggregation"]:
        made("aggregation", schema.check_rule, "aggregation", file.aggregation)
    contract = made("privacy", lambda: _contract(file))
    for name, check in schema.CHECKS.items():
        if (section := getattr(file, name)) is not None:
            made(name, check, section)
    if file.tuning is not None and file.tuning.charge not in (None, *file.charges):
        words = "tuning.charge is not under [charges]: what the tuning paid would be forgotten."
        problems.append((("tuning", "charge"), words))
    if contract is not None and training is not None and settings is not None:
        told = {where for where, _ in problems}
        adaptive = checked["selection"] and kind_of_rule(file.selection.rule) == "adaptive"
        distributed = _distributed_problems(file, contract, training, adaptive=adaptive)
        problems += [problem for problem in distributed if problem[0] not in told]
    grid = made("grid", schema.flat_grid, file.grid) or {}
    if training is None or settings is None or contract is None or problems:
        raise error_of(label, problems, lines)
    return Config(
        path=path,
        clients=clients,
        training=training,
        rule=file.selection.rule,
        rule_settings=settings[0],
        report_settings=settings[1],
        aggregation=(file.aggregation.rule, dict(file.aggregation.model_extra or {})),
        contract=contract,
        noise_model=file.selection.noise_model,
        guard=privacy.guard,
        draws=file.schedule.draws,
        seed=file.schedule.seed,
        data=file.data,
        grid=grid,
        values=values,
        folder=folder,
        _lines=lines,
        _loads=loads,
    )


def _contract(file: ConfigFile) -> Contract:
    """The contract of [privacy]; where [data] says whose each record is, the unit is the person."""
    stated = file.privacy.model_dump(exclude={"guard", "unit"})
    named = file.data is not None and file.data.person is not None
    return Contract.of(**stated, unit=file.privacy.unit or ("person" if named else "record"))


#: Where a configuration may name code.
_THIRD_PARTY = (
    *(("selection", "rule"), ("aggregation", "rule"), ("data", "name"), ("model", "name")),
    *(("task", "loss"), ("optimiser", "server"), ("optimiser", "local")),
)


def _may_be_loaded(key: str, name: object) -> bool:
    if isinstance(name, str) and is_named_function(name):
        require_consent(key, name)
    return True


def _is_own_rule(kind: str, name: str) -> bool:
    """Whether a rule is checked where nothing may be loaded; what there is not is refused too."""
    kinds = ("selection", "adaptive") if kind == "selection" else (kind,)
    return any(name in RULES[one] for one in kinds) or not any(is_rule(one, name) for one in kinds)


def _distributed_problems(
    file: ConfigFile, contract: Contract, training: Training, *, adaptive: bool | None
) -> list[ConfigProblem]:
    """What does not go with trust = "distributed"."""
    found: list[ConfigProblem] = []
    if not contract.is_distributed:
        return found
    try:
        refuse_undistributable(contract, training, file.schedule.draws)
    except InputError as error:
        field = error.field or "privacy.trust"
        where: Where = ("schedule", "draws") if field == "draws" else tuple(field.split("."))
        found.append((where, str(error)))
    if file.aggregation.rule != "mean":
        told = sum_only(
            f"aggregation.rule: {file.aggregation.rule} needs single updates", "the mean"
        )
        found.append((("aggregation", "rule"), str(told)))
    if adaptive:
        told = adaptive_under_distributed_trust(file.selection.rule)
        found.append((("selection", "rule"), f"selection.rule: {told}"))
    return found


def _clients_file(clients: str, folder: Path) -> Path:
    if not clients or "\0" in clients:
        raise InputError("clients", given=clients, allowed="the path of a CSV file")
    return folder / clients


def _selection_settings(section: SelectionSection) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rule's own settings, and those about caps and reports, once the rule accepted them."""
    settings = dict(section.model_extra or {})
    if kind_of_rule(section.rule) == "selection":
        check_rule("selection", section)
        return settings, {}
    own, about = split_report_settings(section.rule, settings)
    check_settings("adaptive", section.rule, own)
    return own, about


_BARE_WORD = r"[A-Za-z_./~\\][A-Za-z0-9_./~\\:\- ]*"
_FORM = "a key and a value, as in training.rounds=200"
_EMPTY = object()

# Setting one of a pair takes the other out: they cannot stand beside each other.
_PAIRS: tuple[tuple[Where, Where], ...] = (
    (("training", "batch_size"), ("training", "sampling_rate")),
    (("selection", "eta"), ("selection", "bias_cap")),
)


def apply_overrides(
    values: Mapping[str, Any], overrides: Iterable[str]
) -> tuple[dict[str, Any], list[Where]]:
    """A changed copy of the tables, and the places that were changed.

    A value is TOML; a single word needs no quotes. An empty value takes the key out. Setting one
    of two keys that exclude each other takes the other out, and another rule takes the settings of
    the old one out.

    Args:
        values: the tables of the file.
        overrides: ``section.key=value``, later ones on top of earlier ones.

    Raises:
        InputError: if one is not of this form, or does not lead to a key.

    Example:
        >>> apply_overrides({"training": {"batch_size": 64}}, ["training.sampling_rate=0.1"])
        ({'training': {'sampling_rate': 0.1}}, [('training', 'sampling_rate')])
    """
    changed: dict[str, Any] = copy.deepcopy(dict(values))
    places: list[Where] = []
    for override in overrides:
        place, value = _parse(override)
        if value is not _EMPTY and value != _at(changed, place):
            for other in _taken_out(changed, place, value):
                if other not in places:
                    _put(changed, override, other, _EMPTY)
        _put(changed, override, place, value)
        places.append(place)
    return changed, places


def _taken_out(tables: dict[str, Any], place: Where, value: Any) -> tuple[Where, ...]:

    if place == ("privacy", "trust") and value == "local":  # where nobody is counted on
        return ("privacy", "colluding"), ("privacy", "dropouts")
    # Another rule takes all settings out but these, which go with every rule.
    kept: dict[Where, Iterable[str]] = {
        ("selection", "rule"): SelectionSection.model_fields,
        ("aggregation", "rule"): RuleSection.model_fields,
    }
    if place not in kept:
        return tuple(other for pair in _PAIRS if place in pair for other in pair if other != place)
    table = tables.get(str(place[0]))
    old = table if isinstance(table, dict) else {}
    return tuple((place[0], name) for name in old if name not in kept[place])


def _parse(override: str) -> tuple[Where, Any]:
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise InputError("--set", given=override, allowed=_FORM)
    place = tuple(int(part) if part.isdecimal() else part for part in parts)
    return place, _value(override, text.strip())


def _value(override: str, text: str) -> Any:
    if not text:
        return _EMPTY
    try:
        table = parse_toml(f"value = {text}")
        if list(table) == ["value"]:
            return table["value"]
    except ValueError:
        if re.fullmatch(_BARE_WORD, text):
            return text
    raise InputError(
        "--set",
        given=override,
        allowed=_FORM,
        next_step=f"What stands after = is not a TOML value: {text[:60]}",
    )


def _put(tables: dict[str, Any], override: str, place: Where, value: Any) -> None:
    *around, key = place
    table: Any = tables
    for part in around:
        if isinstance(table, dict) and isinstance(part, str):
            table = table.setdefault(part, {})
        elif isinstance(table, list) and isinstance(part, int) and part < len(table):
            table = table[part]
        else:
            table = None
    if not isinstance(table, dict) or not isinstance(key, str):
        raise InputError("--set", given=override, allowed="a key inside an existing table")
    if value is _EMPTY:
        table.pop(key, None)
    else:
        table[key] = value


_LINE = (
    r"(?P<head>\s*[^=#]+?\s*=\s*)"
    r"""(?P<value>"[^"]*"|'[^']*'|[^#"']*?)(?P<gap>\s*)(?P<note>\#.*)?$"""
)
#: Where the comment of a new line begins.
_COLUMN = 28


def rewritten(
    text: str,
    changes: Sequence[str],
    *,
    notes: Mapping[str, str] | None = None,
    tell_old: bool = True,
) -> str:
    r"""The text with some keys changed; comments, order and every other value stay.

    A changed line says what it was, a key that cannot stand beside a new one is commented out, and
    a new key stands at the end of its table.

    Args:
        text: a configuration that reads.
        changes: ``section.key=value`` each, as ``--set`` takes them.
        notes: a comment for some of the keys.
        tell_old: whether a changed line says what it was.

    Raises:
        InputError: the file is written in a way in which a key cannot be changed by itself.

    Example:
        >>> print(rewritten("[training]\nrounds = 40  # ours\n", ["training.rounds=100"]), end="")
        [training]
        rounds = 100  # ours (was 40)
    """
    before = parse_toml(text)
    wanted, places = apply_overrides(before, changes)
    lines, rows = text.splitlines(), key_lines(text)
    for name, table in before.items():
        for key in table if isinstance(table, dict) else ():
            row = rows.get((name, key))
            if row is not None and _at(wanted, (name, key)) is None:
                lines[row - 1] = f"# {lines[row - 1].lstrip()}"
    for place in dict.fromkeys(places):
        new, old = _at(wanted, place), _at(before, place)
        if new is None or (new == old and type(new) is type(old)):
            continue
        note = (notes or {}).get(".".join(map(str, place)), "")
        if old is None:
            _insert(lines, place, new, note)
            continue
        row = key_lines("\n".join(lines)).get(place)
        if row is not None:  # otherwise the check at the end says so
            lines[row - 1] = _replaced(lines[row - 1], new, old if tell_old else None, note)
    result = "\n".join(lines) + "\n"
    if _toml_in(result) != wanted:
        tables = ", ".join(f"[{place[0]}]" for place in dict.fromkeys(places))
        raise InputError.because(
            f"a value of the file cannot be changed by itself. Write {tables} as tables of their "
            "own, one key a line, as dpcohort new does."
        )
    return result


def _toml_in(text: str) -> Any:
    with suppress(ValueError):
        return parse_toml(text)
    return None


def _at(values: Mapping[str, Any], place: Where) -> Any:
    found: Any = values
    for part in place:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _replaced(line: str, new: Any, old: Any, note: str) -> str:
    found = re.match(_LINE, line)
    if found is None:
        return line
    comment = (found["note"] or "#").rstrip()
    was = "" if old is None else f"was {toml_value(old)}"
    said = "; ".join(words for words in (note, was) if words)
    if said:
        comment = f"# {said}" if comment == "#" else f"{comment} ({said})"
    start = f"{found['head']}{toml_value(new)}"
    width = max(len(start) + 2, len(found["head"] + found["value"] + found["gap"]))
    return f"{start:<{width}}{comment}" if comment != "#" else start


def _insert(lines: list[str], place: Where, new: Any, note: str) -> None:
    """A new key after the last one of its table; a new table after everything."""
    known = key_lines("\n".join(lines))
    header = known.get(place[:-1])
    inside = [line for where, line in known.items() if where[: len(place) - 1] == place[:-1]]
    key = str(place[-1])
    if header is None and inside:  # training.rounds = 3, without a table of its own
        key = ".".join(map(str, place))
    if header is None and not inside:
        lines += ["", f"[{'.'.join(map(str, place[:-1]))}]"]
        end = len(lines)
    else:
        keys = [
            line
            for where, line in known.items()
            if where[:-1] == place[:-1] and line and not lines[line - 1].lstrip().startswith("[")
        ]
        end = _value_end(lines, max([*keys, header or 0]))
    made = f"{key} = {toml_value(new)}"
    lines.insert(end, f"{made + '  ':<{_COLUMN}}# {note}" if note else made)


def _value_end(lines: list[str], row: int) -> int:
    """The row after a key's value, which may go over several lines."""
    for end in range(row, len(lines) + 1):
        if _toml_in("\n".join(lines[:end])) is not None:
            return end
    return row
