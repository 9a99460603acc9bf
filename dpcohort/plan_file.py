# SPDX-License-Identifier: Apache-2.0
"""``plan.json``: a plan as columns of plain JSON, with the hash of its content.

A column is a list, or one value where all clients share it. Numbers are written so that they read
back to the same bits. The hash covers the content, not the spelling of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import whole_number
from dpcohort._version import __version__
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.deployed_noise import DeployedNoise
from dpcohort.atomic_file import atomic_writer
from dpcohort.certified_plan import CertifiedPlan
from dpcohort.clients import Population
from dpcohort.errors import DpcohortError, FileFormatError, InputError, VerificationError
from dpcohort.limits import LARGEST_PLAN, MOST_CLIENTS, read_bounded
from dpcohort.plan import Plan
from dpcohort.schedule import Schedule
from dpcohort.selection.problem import Selection
from dpcohort.text_files import parse_json
from dpcohort.training import Training

__all__ = ["load_plan", "rebuilt_plan", "save_plan"]

PlanOfKind = TypeVar("PlanOfKind", bound=CertifiedPlan)

_FORMAT = "dpcohort plan"
_SCHEMA = 1


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write the plan to ``path``; the file appears whole or not at all."""
    with atomic_writer(path) as file:
        for piece in _pieces(plan):
            file.write(piece)


def _pieces(plan: Plan) -> Iterator[str]:
    """The file in pieces, so that a million clients are never one string."""
    population, selection = plan.population, plan.selection
    held = np.flatnonzero(plan.drawn & ~population.public)
    sections: dict[str, Mapping[str, Any]] = {
        "training": asdict(plan.training),
        "contract": asdict(plan.contract),
        "selection": {
            "rule": selection.rule,
            "settings": dict(selection.settings),
            "noise_model": plan.noise_model,
            "eta": selection.eta,
            "objective": selection.objective,
            "lower_bound": selection.lower_bound,
            "gap": selection.gap,
            "probabilities": selection.probabilities,
        },
        "schedule": {
            "draws": plan.schedule.draws,
            "seed": plan.seed,
            "sha256": plan.schedule.sha256,
            "cohorts": plan.schedule.cohorts,
        },
        "clients": {
            "count": len(population),
            "id": list(population.ids),
            "size": population.sizes,
            "epsilon": population.epsilon,
            "delta": population.delta,
            "batch_size": population.batch_sizes,
            "public": np.flatnonzero(population.public),
        },
        "noise": {
            "client": held,
            "noise_multiplier": plan.noise_multipliers[held],
            "certified_epsilon": plan.certified_epsilon[held],
            "lifted": np.flatnonzero(plan.noise.lifted),
        },
    }
    head = {"format": _FORMAT, "schema": _SCHEMA, "dpcohort": __version__, "sha256": plan.sha256}
    yield "{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in head.items())
    for name, section in sections.items():
        yield f',\n"{name}": {{\n'
        for position, (key, value) in enumerate(section.items()):
            yield ("" if position == 0 else ",\n") + f'  "{key}": {_encoded(key, value)}'
        yield "\n}"
    yield "\n}\n"


#: Columns that hold one value per client and may be shared by all of them.
_SHARED = {"size", "epsilon", "delta", "batch_size"}


def _encoded(key: str, value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return json.dumps(value, allow_nan=False)
    if key in _SHARED and value.size and (value == value[0]).all():
        return json.dumps(value[0].item())
    if value.dtype.kind == "f" and np.isnan(value).any():
        return json.dumps([None if x != x else x for x in value.tolist()])
    if value.ndim == 2:
        return "[\n" + ",\n".join("    " + json.dumps(row) for row in value.tolist()) + "\n  ]"
    return json.dumps(value.tolist())


def load_plan(path: str | Path) -> Plan:
    """Read a plan; its shapes are checked and its hash computed anew.

    Raises:
        FileFormatError: the file is not a plan, or was cut short.
        VerificationError: the file was changed after it was written.
    """
    content = _parsed(Path(path))
    plan = rebuilt_plan(
        path, content, _rebuilt, next_step="Make the plan again with `dpcohort plan`."
    )
    if plan.schedule.sha256 != content["schedule"].get("sha256"):
        raise VerificationError(f"{path}: the schedule does not have the hash it is filed under.")
    return plan


def rebuilt_plan(
    path: str | Path,
    content: Mapping[str, Any],
    rebuild: Callable[[Mapping[str, Any]], PlanOfKind],
    *,
    next_step: str,
) -> PlanOfKind:
    """The plan that the content of a file makes, if that is the plan the file says it is.

    Args:
        path: of the file, for errors.
        content: what was read from it.
        rebuild: makes the plan.
        next_step: what to do when a key is missing.

    Raises:
        FileFormatError: the content makes no plan.
        VerificationError: it makes another plan than the one that was written.
    """
    try:
        plan = rebuild(content)
        found = plan.sha256
    except KeyError as error:
        raise FileFormatError(path, f"the key {error} is missing. {next_step}") from None
    except (
        DpcohortError,
        TypeError,
        ValueError,
        IndexError,
        OverflowError,
        AttributeError,
    ) as error:
        raise FileFormatError(path, f"not a usable plan: {error}") from None
    if found != content.get("sha256"):
        raise VerificationError(
            f"{path} was changed after it was written: its content hashes to {found[:16]}... "
            f"and it says {str(content.get('sha256'))[:16]}.... Make the plan again."
        )
    return plan


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
            f"schema {_SCHEMA}. Upgrade dpcohort, or make the plan again.",
        )
    return content


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _rebuilt(content: Mapping[str, Any]) -> Plan:
    population = _population(content["clients"])
    count = len(population)
    selection, schedule = content["selection"], content["schedule"]
    return Plan(
        population=population,
        training=Training(**content["training"]),
        contract=Contract(**content["contract"]),
        noise_model=selection["noise_model"],
        selection=Selection(
            rule=selection["rule"],
            probabilities=np.array(selection["probabilities"], dtype=np.float64),
            unbiased=population.unbiased,
            eta=selection["eta"],
            objective=selection["objective"],
            lower_bound=selection["lower_bound"],
            gap=selection["gap"],
            settings=selection["settings"],
        ),
        schedule=Schedule(
            cohorts=np.array(schedule["cohorts"], dtype=np.int64),
            clients=count,
            draws=schedule["draws"],
        ),
        noise=_noise(content["noise"], population),
        seed=schedule["seed"],
    )


def _population(columns: dict[str, Any]) -> Population:
    count, ids = columns["count"], columns["id"]
    # Before anything of that length is made: a number costs nothing to write.
    if count != len(ids) or not isinstance(ids, list):
        raise InputError("clients.count", given=count, allowed=f"{len(ids)}, as there are ids")
    whole_number("clients.count", count, at_least=1, at_most=MOST_CLIENTS)
    public = np.zeros(count, dtype=np.bool_)
    public[np.array(columns["public"], dtype=np.int64)] = True
    return Population.from_arrays(
        ids=ids,
        sizes=_column(columns["size"], count, np.int64),
        epsilon=_column(columns["epsilon"], count, np.float64),
        delta=_column(columns["delta"], count, np.float64),
        batch_sizes=_column(columns["batch_size"], count, np.int64),
        public=public,
        allow_large_delta=True,
    )


def _noise(columns: dict[str, Any], population: Population) -> DeployedNoise:
    held = np.array(columns["client"], dtype=np.int64)
    noise_multiplier = np.where(population.public, 0.0, np.nan)
    certified = np.where(population.public, np.nan, 0.0)
    lifted = np.zeros(len(population), dtype=np.bool_)
    noise_multiplier[held] = np.array(columns["noise_multiplier"], dtype=np.float64)
    certified[held] = np.array(columns["certified_epsilon"], dtype=np.float64)
    lifted[np.array(columns["lifted"], dtype=np.int64)] = True
    return DeployedNoise(
        noise_multiplier=noise_multiplier, certified_epsilon=certified, lifted=lifted
    )


def _column(value: Any, count: int, dtype: type) -> NDArray[Any]:
    column: NDArray[Any] = np.array(value, dtype=dtype)
    return np.full(count, column) if column.ndim == 0 else column
