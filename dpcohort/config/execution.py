# SPDX-License-Identifier: Apache-2.0
"""The tables of a configuration that say how a plan is executed: data, model, optimiser, run.

Planning does not need them; ``dpcohort train`` and ``dpcohort compare`` do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpcohort._validate import number, whole_number
from dpcohort.errors import InputError
from dpcohort.limits import MOST_CELLS
from dpcohort.training import LARGEST_STEP

__all__ = [
    "DataSection",
    "ModelSection",
    "OptimiserSection",
    "RunSection",
    "check_data",
    "check_optimiser",
    "check_run",
    "flat_grid",
]


class _Section(BaseModel):
    """Known keys only, and no silent change of type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DataSection(_Section):
    """The keys of [data]: which records, and who holds them."""

    name: str = "digits"
    dir: str | None = None
    partition: Literal["paper", "dirichlet", "column"] = "paper"
    similarity: float = 100.0
    alpha: float | None = None
    column: str | None = None
    public_share: float = 0.0
    seed: int | None = None


class ModelSection(_Section):
    """The keys of [model]."""

    name: str = "logistic"
    options: dict[str, Any] = Field(default_factory=dict)


class OptimiserSection(_Section):
    """The keys of [optimiser]; ``step`` says which of the others give the local step size."""

    step: Literal["constant", "inverse-time", "inverse-root"] = "constant"
    learning_rate: float | None = None
    beta: float | None = None
    gamma: float | None = None
    gradient_bound: float | None = None
    server_learning_rate: float = 1.0
    server_momentum: float = 0.0
    average_decay: float | None = None


class RunSection(_Section):
    """The keys of [run]."""

    seed: int = 0
    engine: Literal["batched", "reference"] = "batched"
    device: str = "auto"
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    merged_noise: bool = False


#: Which keys of [optimiser] each kind of step takes.
_REMOVE = "Remove it (--set data.{}= does)."
_STEP_KEYS = {
    "constant": ("learning_rate",),
    "inverse-time": ("beta", "gamma"),
    "inverse-root": ("gradient_bound",),
}


def check_data(section: DataSection | None) -> DataSection | None:
    """The section, if its values go together.

    Example:
        >>> check_data(DataSection(partition="dirichlet", alpha=0.3)).alpha
        0.3
    """
    if section is None:
        return None
    number("similarity", section.similarity, at_least=0, at_most=100)
    number("public_share", section.public_share, at_least=0, below=1)
    if section.seed is not None:
        whole_number("seed", section.seed, at_least=0)
    for key, kind in (("alpha", "dirichlet"), ("column", "column")):
        given, wanted = getattr(section, key) is not None, section.partition == kind
        if wanted and not given:
            raise _about(key, f'is missing: partition = "{kind}" needs it.')
        if given and not wanted:
            words = f'goes with partition = "{kind}", and only with it. '
            raise _about(key, words + _REMOVE.format(key))
    if section.alpha is not None:
        number("alpha", section.alpha, above=0)
    if "similarity" in section.model_fields_set and section.partition != "paper":
        words = 'goes with partition = "paper", and only with it. '
        raise _about("similarity", words + _REMOVE.format("similarity"))
    return section


def check_optimiser(section: OptimiserSection) -> OptimiserSection:
    """The section, if its values go together."""
    wanted = _STEP_KEYS[section.step]
    for keys in _STEP_KEYS.values():
        for key in keys:
            if key not in wanted and getattr(section, key) is not None:
                raise _about(
                    key, f'is not for step = "{section.step}", which takes {", ".join(wanted)}.'
                )
    for key in wanted:
        value = getattr(section, key)
        if value is not None:
            number(key, value, above=0, at_most=LARGEST_STEP)
        elif section.step != "constant" and key != "gamma":
            raise _about(key, f'is missing; step = "{section.step}" needs it.')
    number("server_learning_rate", section.server_learning_rate, above=0, at_most=LARGEST_STEP)
    number("server_momentum", section.server_momentum, at_least=0, below=1)
    if section.average_decay is not None:
        number("average_decay", section.average_decay, at_least=0, below=1)
    return section


def check_run(section: RunSection) -> RunSection:
    """The section, if its numbers can be used."""
    whole_number("seed", section.seed, at_least=0)
    for key in ("evaluate_every", "checkpoint_every"):
        value = getattr(section, key)
        if value is not None:
            whole_number(key, value, at_least=1)
    return section


def flat_grid(table: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The settings to be varied, ``section.key`` to its values.

    Example:
        >>> flat_grid({"selection": {"rule": ["unbiased", "privacy-aware"]}})
        {'selection.rule': ('unbiased', 'privacy-aware')}
    """
    found = dict(_leaves(table, ""))
    for key in found:
        if "." not in key or key.startswith("grid.") or key == "run.seed":
            raise _about(key, "must name a setting, as in selection.rule = [...].")
    combinations = math.prod(len(values) for values in found.values())
    if combinations > MOST_CELLS:
        raise _about(
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
            raise _about(around + key, "must be a list of values to try, such as [1, 2].")


def _about(field: str, words: str) -> InputError:
    error = InputError.because(f"{field} {words}")
    error.field = field
    return error
