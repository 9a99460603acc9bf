# SPDX-License-Identifier: Apache-2.0
"""``plan.json`` of an adaptive plan: columns of plain JSON, with the hash of their content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort._validate import IntArray
from dpcohort._version import __version__
from dpcohort.accounting.contract import Contract
from dpcohort.adaptive.capped_noise import CappedNoise
from dpcohort.adaptive.caps import Caps
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.adaptive.report_terms import ReportTerms, Statistic
from dpcohort.adaptive.rule import AdaptiveRule
from dpcohort.adaptive.view import RoundView
from dpcohort.atomic_file import write_text
from dpcohort.clients import Population
from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import LARGEST_PLAN, read_bounded
from dpcohort.plan import Plan
from dpcohort.plan_file import rebuilt_plan
from dpcohort.plugins import REGISTRIES
from dpcohort.text_files import parse_json
from dpcohort.training import Training

__all__ = [
    "AnyPlan",
    "RecordedRule",
    "load_adaptive_plan",
    "load_any_plan",
    "save_adaptive_plan",
]

#: A plan with fixed cohorts, or one that chooses them on the way.
AnyPlan = Plan | AdaptivePlan

_FORMAT = "dpcohort adaptive plan"
_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class RecordedRule:
    """The name and settings of a rule of somebody else, read from a file; it cannot choose.

    Reading and verifying a run must not run code that a file names.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
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


def save_adaptive_plan(plan: AdaptivePlan, path: str | Path) -> None:
    """Write the plan to ``path``; the file appears whole or not at all."""
    people, noise = plan.population, plan.noise
    content = {
        "format": _FORMAT,
        "schema": _SCHEMA,
        "dpcohort": __version__,
        "sha256": plan.sha256,
        **plan.plain_settings(),
        "watches_updates": plan.rule.watches_updates,
        "clients": {
            "id": list(people.ids),
            "size": people.sizes.tolist(),
            "epsilon": _plain(people.epsilon),
            "delta": _plain(people.delta),
            "batch_size": people.batch_sizes.tolist(),
            "public": people.public.tolist(),
        },
        "caps": {"draws": plan.caps.draws.tolist(), "reports": plan.caps.reports.tolist()},
        "noise": {
            "noise_multiplier": noise.noise_multiplier.tolist(),
            "report_multiplier": noise.report_multiplier.tolist(),
            "certified_epsilon": _plain(noise.certified_epsilon),
            "lifted": noise.lifted.tolist(),
        },
    }
    parts = [f'"{key}": {json.dumps(value, allow_nan=False)}' for key, value in content.items()]
    write_text(Path(path), "{\n" + ",\n".join(parts) + "\n}\n")


def load_any_plan(path: str | Path) -> AnyPlan:
    """A plan with fixed cohorts or an adaptive one, whichever the file holds."""
    try:
        with open(path, "rb") as file:
            head = file.read(200)
    except OSError:
        head = b""
    return load_adaptive_plan(path) if f'"{_FORMAT}"'.encode() in head else Plan.load(path)


def load_adaptive_plan(path: str | Path) -> AdaptivePlan:
    """Read a plan; its hash is computed anew.

    Raises:
        FileFormatError: the file is not an adaptive plan, or was cut short.
        VerificationError: the file was changed after it was written.
    """
    try:
        content = parse_json(read_bounded(path, LARGEST_PLAN))
    except OSError as error:
        raise InputError.because(f"{path} cannot be read: {error.strerror or error}.") from None
    except FileFormatError:
        raise
    except ValueError as error:
        raise FileFormatError(path, f"not valid JSON ({error}); was it cut short?") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise FileFormatError(path, "not an adaptive plan of dpcohort.")
    if content.get("schema") != _SCHEMA:
        raise FileFormatError(path, f"written in schema {content.get('schema')!r}; make it again.")
    return rebuilt_plan(path, content, _rebuilt, next_step="Make the plan again.")


def _rebuilt(content: Mapping[str, Any]) -> AdaptivePlan:
    people, caps, noise = content["clients"], content["caps"], content["noise"]
    terms = None if content["reports"] is None else ReportTerms(**content["reports"])
    return AdaptivePlan(
        population=Population.from_arrays(
            ids=people["id"],
            sizes=np.array(people["size"], dtype=np.int64),
            epsilon=np.array(people["epsilon"], dtype=np.float64),
            delta=np.array(people["delta"], dtype=np.float64),
            batch_sizes=np.array(people["batch_size"], dtype=np.int64),
            public=np.array(people["public"], dtype=np.bool_),
            allow_large_delta=True,
        ),
        training=Training(**content["training"]),
        contract=Contract(**content["contract"]),
        rule=_rule(content, terms),
        terms=terms,
        caps=Caps(
            draws=np.array(caps["draws"], dtype=np.int64),
            reports=np.array(caps["reports"], dtype=np.int64),
        ),
        noise=CappedNoise(
            noise_multiplier=np.array(noise["noise_multiplier"], dtype=np.float64),
            report_multiplier=np.array(noise["report_multiplier"], dtype=np.float64),
            certified_epsilon=np.array(noise["certified_epsilon"], dtype=np.float64),
            lifted=np.array(noise["lifted"], dtype=np.bool_),
        ),
        seed=content["seed"],
    )


def _rule(content: Mapping[str, Any], terms: ReportTerms | None) -> AdaptiveRule:
    registry, name = REGISTRIES["adaptive"], content["rule"]
    if name in registry.built_in:
        made: AdaptiveRule = registry.make(name, content["rule_settings"])
        return made
    return RecordedRule(
        name=name,
        settings=content["rule_settings"],
        statistic=None if terms is None else terms.statistic,
        mini_batch=terms is not None and terms.mini_batch,
        watches_updates=bool(content["watches_updates"]),
    )


def _plain(column: Any) -> list[float | None]:
    return [None if value != value else value for value in column.tolist()]
