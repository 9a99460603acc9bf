# SPDX-License-Identifier: Apache-2.0
"""``plan.json``: a plan as columns of plain JSON, with the hash of its content.

A fixed plan and an adaptive one have a format each. A column is a list, or one value where all
clients of a fixed plan share it. Numbers are written so that they read back to the same bits. The
hash covers the content, not the spelling of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import IntArray, whole_number
from dpcohort._version import __version__
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.deployed_noise import DeployedNoise
from dpcohort.adaptive.rule import AdaptiveRule, ReportTerms, RoundView, Statistic
from dpcohort.atomic_file import atomic_writer
from dpcohort.clients import Population
from dpcohort.errors import DpcohortError, FileFormatError, InputError, VerificationError
from dpcohort.limits import LARGEST_PLAN, MOST_CLIENTS, read_bounded
from dpcohort.plan import Adaptive, Plan
from dpcohort.plugins import REGISTRIES
from dpcohort.schedule import Schedule
from dpcohort.selection.problem import Selection
from dpcohort.text_files import parse_json
from dpcohort.training import Training

__all__ = ["RecordedRule", "load_plan", "save_plan"]

_FIXED, _ADAPTIVE = "dpcohort plan", "dpcohort adaptive plan"
_SCHEMA = 1


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write the plan to ``path``; the file appears whole or not at all."""
    with atomic_writer(path) as file:
        for piece in _fixed(plan) if plan.adaptive is None else _adaptive(plan, plan.adaptive):
            file.write(piece)


def _head(plan: Plan, format: str) -> str:
    head = {"format": format, "schema": _SCHEMA, "dpcohort": __version__, "sha256": plan.sha256}
    return "{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in head.items())


def _adaptive(plan: Plan, adaptive: Adaptive) -> Iterator[str]:
    people, noise = plan.population, plan.noise
    content = {
        **plan.plain_settings(),
        "watches_updates": adaptive.rule.watches_updates,
        "clients": {
            "id": list(people.ids),
            "size": people.sizes.tolist(),
            "epsilon": _plain(people.epsilon),
            "delta": _plain(people.delta),
            "batch_size": people.batch_sizes.tolist(),
            "public": people.public.tolist(),
        },
        "caps": {
            "draws": plan.schedule.counts.tolist(),
            "reports": adaptive.report_caps.tolist(),
        },
        "noise": {
            "noise_multiplier": noise.noise_multiplier.tolist(),
            "report_multiplier": adaptive.report_multipliers.tolist(),
            "certified_epsilon": _plain(noise.certified_epsilon),
            "lifted": noise.lifted.tolist(),
        },
    }
    yield _head(plan, _ADAPTIVE)
    for key, value in content.items():
        yield f',\n"{key}": {json.dumps(value, allow_nan=False)}'
    yield "\n}\n"


def _plain(column: NDArray[Any]) -> list[float | None]:
    return [None if value != value else value for value in column.tolist()]


def _fixed(plan: Plan) -> Iterator[str]:
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
    yield _head(plan, _FIXED)
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
        return json.dumps(_plain(value))
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
    rebuild = _rebuilt_fixed if content["format"] == _FIXED else _rebuilt_adaptive
    try:
        plan = rebuild(content)
        found = plan.sha256
    except KeyError as error:
        raise FileFormatError(
            path, f"the key {error} is missing. Make the plan again with `dpcohort plan`."
        ) from None
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
    if content["format"] == _FIXED and plan.schedule.sha256 != content["schedule"].get("sha256"):
        raise VerificationError(f"{path}: the schedule does not have the hash it is filed under.")
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
    if not isinstance(content, dict) or content.get("format") not in (_FIXED, _ADAPTIVE):
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


def _rebuilt_fixed(content: Mapping[str, Any]) -> Plan:
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


def _rebuilt_adaptive(content: Mapping[str, Any]) -> Plan:
    people, caps, noise = content["clients"], content["caps"], content["noise"]
    terms = None if content["reports"] is None else ReportTerms(**content["reports"])
    population = Population.from_arrays(
        ids=people["id"],
        sizes=np.array(people["size"], dtype=np.int64),
        epsilon=np.array(people["epsilon"], dtype=np.float64),
        delta=np.array(people["delta"], dtype=np.float64),
        batch_sizes=np.array(people["batch_size"], dtype=np.int64),
        public=np.array(people["public"], dtype=np.bool_),
        allow_large_delta=True,
    )
    training = Training(**content["training"])
    return Plan(
        population=population,
        training=training,
        contract=Contract(**content["contract"]),
        selection=Selection.during_training(
            content["rule"], content["rule_settings"], population.unbiased
        ),
        schedule=Schedule.within(
            np.array(caps["draws"], dtype=np.int64), cohort_size=training.cohort_size
        ),
        noise=DeployedNoise(
            noise_multiplier=np.array(noise["noise_multiplier"], dtype=np.float64),
            certified_epsilon=np.array(noise["certified_epsilon"], dtype=np.float64),
            lifted=np.array(noise["lifted"], dtype=np.bool_),
        ),
        seed=content["seed"],
        adaptive=Adaptive(
            rule=_rule(content, terms),
            terms=terms,
            report_caps=np.array(caps["reports"], dtype=np.int64),
            report_multipliers=np.array(noise["report_multiplier"], dtype=np.float64),
        ),
    )


def _rule(content: Mapping[str, Any], terms: ReportTerms | None) -> AdaptiveRule:
    registry, name = REGISTRIES["adaptive"], content["rule"]
    if name in registry.built_in:
        made: AdaptiveRule = registry.make(name, content["rule_settings"])
        return made
    return RecordedRule(
        name=name,
        statistic=None if terms is None else terms.statistic,
        mini_batch=terms is not None and terms.mini_batch,
        watches_updates=bool(content["watches_updates"]),
    )


@dataclass(frozen=True, kw_only=True)
class RecordedRule:
    """The name of a rule of somebody else, read from a file; it cannot choose.

    Reading and verifying a run must not run code that a file names.
    """

    name: str
    statistic: Statistic | None = None
    mini_batch: bool = False
    watches_updates: bool = False

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """Nothing is known about it."""

    def expected_reports(self, clients: int, rounds: int, draw_cap: int) -> int:
        """Not asked: the caps are in the plan."""
        return 0

    def ask(self, view: RoundView) -> IntArray:
        """Refused."""
        raise InputError.because(
            f"the rule {self.name!r} is not part of dpcohort: make the plan again with the rule."
        )

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Refused."""
        return self.ask(view)
