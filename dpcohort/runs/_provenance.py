# SPDX-License-Identifier: Apache-2.0
"""Provenance of a run: origin of its noise, settings and initial weights, and whose word it is.

Read from ``run.json``, the plan and the charges; from these follows whether a run is private, and
the stamp on its receipts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dpcohort.accounting import Charge
from dpcohort.accounting._segments import Source
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan
from dpcohort.planning._reports import Origin

NOT_PRIVATE = (
    "NOT PRIVATE (simulation): batches and noise come from a seed, so whoever knows it can take "
    "the noise off again."
)
FLOATING_POINT = (
    "NOT PRIVATE (floating-point noise): batches came from the operating system's entropy, but the "
    "noise came from a generator whose state can be computed from its output, so whoever sees the "
    "models can take the noise off again."
)
_PRIVATE = (
    "batches and noise came from the operating system's entropy; the noise is a "
    "rounded Gaussian on a lattice, drawn exactly from a cryptographic stream."
)
RAW_REPORTS = (
    "NOT PRIVATE (raw reports): cohorts were chosen from losses that clients reported without "
    "noise, so no epsilon holds, whatever noise the updates carried."
)
#: What to do where only a simulation will do.
HOW_TO_SIMULATE = (
    "To simulate, which protects nobody: --simulate SEED, run.simulate = SEED or simulate=SEED; "
    "where all records are public, data.public = true."
)
#: Stamp by the least private source of noise.
_STAMPS: dict[Origin, str] = {
    "raw reports": RAW_REPORTS,
    "seed": NOT_PRIVATE,
    "floating point": FLOATING_POINT,
    "private": _PRIVATE,
}
#: What ``run.json`` says of the noise of a private run on one machine.
PRIVATE_NOISE = "rounded Gaussian on a lattice, ChaCha20 keyed by the operating system"
DROP_IN = (
    " A mod in the Flower app clipped, counted and added the noise: code that the server ships, "
    "without the wall of a guard. The promise holds if that code was the one that ran."
)
#: Where settings may come from, by the key ``tuning.source`` of a configuration.
TUNING_SOURCES = {
    "none": "generated stand-in data of the same shape: no record was looked at, nothing was spent",
    "public": "public records: no client's record was looked at, nothing was spent",
    "charged": "the clients' records, paid for: random search with a random number of trials",
}
SIMULATED_TUNING = (
    "NOT PRIVATE (simulated tuning): the settings were chosen on the clients' records with noise "
    "of a seed."
)
#: What ``verify`` calls a run: private, from a seed, or with noise that protects nobody.
RunKind = Literal["private", "simulation", "not private"]
_KINDS: dict[Origin, RunKind] = {
    "raw reports": "not private",
    "floating point": "not private",
    "seed": "simulation",
    "private": "private",
}


def source_of(settings: Mapping[str, Any]) -> Source:
    """Where a run's noise came from, by its ``run.json``.

    Guards have always put their noise on a lattice; a run on one machine says that it did.

    Example:
        >>> source_of({"randomness": "seeded"}), source_of({"randomness": "entropy"})
        ('seed', 'floating point')
        >>> source_of({"randomness": "entropy", "engine": "flower"})
        'private'
    """
    if settings.get("randomness") != "entropy":
        return "seed"
    lattice = settings.get("engine") == "flower" or settings.get("noise") == PRIVATE_NOISE
    return "private" if lattice else "floating point"


def kind_of(plan: Plan, settings: Mapping[str, Any]) -> RunKind:
    """Whether a run was private, by its ``run.json`` and those of the runs before it.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> people = Population.from_arrays(sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> plan = make_plan(people, Training(rounds=2, cohort_size=1, batch_size=9), seed=0)
        >>> kind_of(plan, {"randomness": "seeded"})
        'simulation'
    """
    return _KINDS[plan.source(source_of(settings))]


def whose_word(kind: RunKind, settings: Mapping[str, Any]) -> dict[str, str]:
    """What a verification computes again, and whose word it takes for all else.

    Args:
        kind: of the run.
        settings: its ``run.json``: who added the noise.

    Example:
        >>> list(whose_word("private", {"engine": "flower"}))
        ['computed again', "each client's guard", 'the operator']
    """
    operator = "that nothing was computed but what the ledger counts, and that it lost no round"
    noise = "that batches and noise were drawn afresh, as the plan says, and kept by nobody"
    found = {
        "computed again": "every epsilon and delta from the counted draws, all counts and cohorts "
        "against the plan, the hashes of all files"
    }
    if kind != "private":
        noise = "that batches and noise are those of the plan"
    if settings.get("drop_in"):
        found["the server's mod in each client"] = f"{noise}, on which records"
    elif settings.get("engine") == "flower":
        found["each client's guard"] = f"{noise}, on which records"
    else:
        operator = f"{noise}, on which records; {operator}"
    operator += "; test results, warnings and what else is told of the training"
    return {**found, "the operator": operator}


def weights_of(settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a run started from, by its ``run.json``; None for a seed's or a formula's weights.

    Example:
        >>> weights_of({"model": {"name": "logistic"}}) is None
        True
    """
    model = settings.get("model")
    found = model.get("weights") if isinstance(model, Mapping) else None
    return found if isinstance(found, Mapping) else None


def stamp_of(plan: Plan, source: Source, later: Sequence[Charge]) -> str:
    """Stamp of a receipt: whether batches and noise were private.

    Args:
        plan: of the run.
        source: where the run's noise came from.
        later: what was paid after the plan was made.
    """
    return _STAMPS[plan.source(source, later)]


def weights_in_words(weights: Mapping[str, Any]) -> str:
    """Whose weights training started from, and which of them stayed as they were.

    Args:
        weights: as ``run.json`` has them under ``model``.

    Example:
        >>> print(weights_in_words({"file": "a.safetensors", "sha256": "0" * 64, "tensors": 4,
        ...                         "source": "", "frozen": ["0"], "frozen_parameters": 1200}))
        start from 4 tensors of a.safetensors (sha256 000000000000); 1,200 parameters stay as they
        are; nobody said what they were trained on, and the promise does not cover that
    """
    parts = []
    if weights.get("file"):
        parts.append(
            f"start from {weights['tensors']} tensors of {one_line(weights['file'])} (sha256 "
            f"{str(weights['sha256'])[:12]})"
        )
    if weights.get("frozen_parameters"):
        parts.append(f"{weights['frozen_parameters']:,} parameters stay as they are")
    whose = one_line(weights["source"]) if weights.get("source") else ""
    said = f"said to be from: {whose}" if whose else "nobody said what they were trained on"
    return "; ".join([*parts, f"{said}, and the promise does not cover that"])
