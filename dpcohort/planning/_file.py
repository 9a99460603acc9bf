# SPDX-License-Identifier: Apache-2.0
"""``plan.json``: a plan as columns of plain JSON, with the hash of its content.

A column is a list, or one value where all clients share it; noise and certificate name the clients
they are for. Numbers are written so that they read back to the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray, IntArray, whole_number
from dpcohort._version import __version__
from dpcohort.accounting import Contract
from dpcohort.adaptive import ReportTerms
from dpcohort.adaptive._rule import rule_of_file
from dpcohort.atomic_file import atomic_writer
from dpcohort.clients import Population
from dpcohort.clients._columns import COLUMN_NAMES
from dpcohort.errors import DpcohortError, FileFormatError, InputError, VerificationError
from dpcohort.limits import LARGEST_PLAN, MOST_CLIENTS, read_bounded
from dpcohort.plan import Plan
from dpcohort.planning._certificate import certificate_from_dict
from dpcohort.planning._noise import noise_from_dict
from dpcohort.planning._participation import CappedRule, FixedCohorts, Participation
from dpcohort.planning._past import Past
from dpcohort.planning._reports import Reports
from dpcohort.text_files import parse_json
from dpcohort.training import Training

_FORMAT, _SCHEMA = "dpcohort plan", 2
#: Columns that a file has once where all clients have the same.
_SHARED = {"size", "epsilon", "delta", "batch_size", "shares"}
#: What comes of building a plan from values that are none.
_UNUSABLE = (DpcohortError, TypeError, ValueError, IndexError, OverflowError, AttributeError)


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan; the file appears whole or not at all.

    Args:
        plan: the plan.
        path: of the file.
    """
    with atomic_writer(path) as file:
        file.writelines(_pieces(plan))


def read_plan(path: Path) -> Plan:
    """Read a plan; its shapes are checked and its hash computed anew.

    Raises:
        FileFormatError: the file is not a plan, or was cut short.
        VerificationError: the file was changed after it was written.
    """
    content = _parsed(path)
    try:
        plan = _rebuilt(content)
        found = plan.sha256
    except KeyError as error:
        raise FileFormatError(
            path, f"the key {error} is missing. Make the plan again with `dpcohort plan`."
        ) from None
    except _UNUSABLE as error:
        raise FileFormatError(path, f"not a usable plan: {error}") from None
    if found != content.get("sha256"):
        raise VerificationError(
            f"{path} was changed after it was written: its content hashes to {found[:16]}... "
            f"and it says {str(content.get('sha256'))[:16]}.... Make the plan again."
        )
    return plan


def _pieces(plan: Plan) -> Iterator[str]:
    """The file in pieces, so that a million clients are never one string."""
    head = {"format": _FORMAT, "schema": _SCHEMA, "dpcohort": __version__, "sha256": plan.sha256}
    yield "{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in head.items())
    for name, section in _sections(plan).items():
        if not isinstance(section, Mapping):
            yield f',\n"{name}": {json.dumps(section, allow_nan=False)}'
            continue
        yield f',\n"{name}": {{\n'
        for position, (key, value) in enumerate(section.items()):
            yield ("" if position == 0 else ",\n") + f'  "{key}": {_encoded(key, value)}'
        yield "\n}"
    yield "\n}\n"


def _sections(plan: Plan) -> dict[str, Any]:
    people, noise = plan.population, plan.noise
    held = _held(plan.drawn, plan.has_past, people.public)
    settings = plan.plain_settings()
    return {
        "training": settings["training"],
        "contract": settings["contract"],
        "seed": settings["seed"],
        "clients": {
            "count": len(people),
            "id": list(people.ids),
            **{key: getattr(people, name) for key, name in COLUMN_NAMES.items()},
            "public": np.flatnonzero(people.public),
        },
        "participation": {**settings["participation"], **plan.participation.columns()},
        "noise": {
            **settings["noise"],
            "client": held,
            "multiplier": noise.multipliers[held],
            "lifted": np.flatnonzero(noise.lifted),
            **noise.columns(),
        },
        "certificate": {key: col[held] for key, col in plan.certificate.columns().items()},
        "past": settings["past"],
    }


def _held(drawn: BoolArray, has_past: BoolArray, public: BoolArray) -> IntArray:
    return np.flatnonzero((drawn | has_past) & ~public)


def _encoded(key: str, value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return json.dumps(value, allow_nan=False)
    if key in _SHARED and value.size and (value == value[0]).all():
        return json.dumps(value[0].item())
    if value.ndim == 2:
        return "[\n" + ",\n".join("    " + json.dumps(row) for row in value.tolist()) + "\n  ]"
    return json.dumps(_plain(value) if value.dtype.kind == "f" else value.tolist())


def _plain(column: NDArray[Any]) -> list[float | None]:
    return [None if value != value else value for value in column.tolist()]


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = read_bounded(path, LARGEST_PLAN).decode("utf-8")
    except OSError as error:
        raise InputError.because(
            f"{path} cannot be read: {error.strerror or error}. Make a plan with "
            f"`dpcohort plan CONFIG --out {path}`."
        ) from None
    except UnicodeDecodeError:
        raise FileFormatError(path, "not a text file, so not a plan.") from None
    try:
        content = parse_json(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise FileFormatError(
            path, f"not valid JSON ({error.msg}); was it cut short?", line=error.lineno
        ) from None
    except ValueError as error:
        raise FileFormatError(path, f"not valid JSON ({error}).") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise FileFormatError(path, "not a dpcohort plan. Make one with `dpcohort plan`.")
    if content.get("schema") != _SCHEMA:
        raise FileFormatError(
            path,
            f"written in schema {content.get('schema')!r}; this dpcohort {__version__} reads "
            f"schema {_SCHEMA}. Make the plan again.",
        )
    return content


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _rebuilt(content: Mapping[str, Any]) -> Plan:
    population = _population(content["clients"])
    participation = _participation(content["participation"], population)
    past = Past.from_dict(content["past"])
    public, noise, certificate = population.public, content["noise"], content["certificate"]
    held = _held(participation.spending, past.spent_by(population), public)
    if noise["client"] != held.tolist():
        raise InputError.because("the noise is not that of the clients that take part.")

    def column(values: Any, others: float) -> FloatArray:
        """A column of all clients from that of the clients with noise."""
        found = np.where(public, others, 0.0)
        found[held] = np.array(values, dtype=np.float64)
        return found

    multipliers = np.where(public, 0.0, np.nan)
    multipliers[held] = np.array(noise["multiplier"], dtype=np.float64)
    return Plan(
        population=population,
        training=Training(**content["training"]),
        contract=Contract(**content["contract"]),
        participation=participation,
        noise=noise_from_dict(noise, multipliers, _marked(noise["lifted"], len(population))),
        certificate=certificate_from_dict(
            {key: column(values, np.nan) for key, values in certificate.items()}
        ),
        seed=content["seed"],
        past=past,
    )


def _marked(positions: Any, count: int) -> BoolArray:
    marked = np.zeros(count, dtype=np.bool_)
    marked[np.array(positions, dtype=np.int64)] = True
    return marked


def _population(columns: Mapping[str, Any]) -> Population:
    """Clients of a file; where one number stands for all, it does for public ones as well."""
    ids, count = columns["id"], columns["count"]
    # Before anything of that length is made: a number costs nothing to write.
    if not isinstance(ids, list) or count != len(ids):
        raise InputError("clients.count", given=count, allowed="the number of ids")
    whole_number("clients.count", count, at_least=1, at_most=MOST_CLIENTS)
    found: dict[str, Any] = {"public": _marked(columns["public"], count)}
    kinds = (np.int64, np.float64, np.float64, np.int64)
    for (key, name), kind in zip(COLUMN_NAMES.items(), kinds, strict=False):
        given = np.array(columns[key], dtype=kind)
        found[name] = np.full(count, given) if given.ndim == 0 else given
    return Population.from_arrays(ids=ids, **found, allow_large_delta=True)


def _participation(values: Mapping[str, Any], population: Population) -> Participation:
    kind = values["kind"]
    if kind == FixedCohorts.kind:
        fixed = FixedCohorts.from_dict(values, population)
        if fixed.schedule.sha256 != values["schedule_sha256"]:
            raise VerificationError("the schedule does not have the hash it is filed under.")
        return fixed
    if kind != CappedRule.kind:
        raise InputError("participation.kind", given=kind, allowed="of this version of dpcohort")
    terms = None if values["reports"] is None else ReportTerms(**values["reports"])
    reports = Reports.of(
        terms,
        np.array(values["report_caps"], dtype=np.int64),
        np.array(values["report_multipliers"], dtype=np.float64),
    )
    return CappedRule(
        rule=rule_of_file(values, terms),
        settings=values["settings"],
        counts=np.array(values["draw_caps"], dtype=np.int64),
        reports=reports,
    )
