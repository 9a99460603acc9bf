# SPDX-License-Identifier: Apache-2.0
"""Whether what a client's owner accepted covers what the plan will ask, before anything is asked.

The guard checks every draw anyway. Asked beforehand, a federation whose terms do not fit its plan
ends with a message and without a draw spent.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpcohort.deploy.flower.federation import Federation
from dpcohort.deploy.guard.protocol import PROTOCOL, Hello
from dpcohort.errors import InputError
from dpcohort.plain_text import one_line

__all__ = ["check_agreements", "disagreements"]

_MOST_SHOWN = 12


def disagreements(
    federation: Federation, client: str, hello: Hello, *, dimension: int, layout: str, resume: bool
) -> list[str]:
    """What in a client's terms does not cover its part of the plan; empty if all does.

    Args:
        federation: plan, model and run.
        client: which client.
        hello: what its guard says.
        dimension: number of trained parameters.
        layout: hash of their order.
        resume: the run goes on, so draws may be counted already.
    """
    plan = federation.plan
    k = plan.population.index_of(client)
    if hello.protocol != PROTOCOL:
        return [f"its guard speaks protocol {hello.protocol}, this server {PROTOCOL}"]
    found = []
    size = int(plan.population.sizes[k])
    if hello.records != size:
        found.append(f"its data has {hello.records} records, the plan is for {size}: other data")
    if hello.model != federation.model.sha256():
        found.append(f"its owner allows another model than {federation.model.name}")
    elif hello.dimension != dimension or hello.layout != layout:
        found.append("its model has other parameters than the server's: other versions")
    if hello.accepted is None:
        return [*found, f"its owner has not accepted the run {federation.run!r}"]
    if hello.plan is not None and hello.plan != plan.sha256:
        found.append(
            f"its owner accepted the plan {hello.plan[:16]}..., this is {plan.sha256[:16]}..."
        )
    if not resume and hello.counted:
        found.append(
            f"{hello.counted} draws of a run of this name are counted: go on with that run "
            "(resume), or give this one another name"
        )
    return found + _short_terms(federation, k, hello.accepted)


def _short_terms(federation: Federation, k: int, accepted: Mapping[str, object]) -> list[str]:
    plan = federation.plan
    exactly = {
        "sampling_rate": float(plan.sampling_rates[k]),
        "batch_size": int(plan.batch_sizes[k]),
        "local_steps": plan.training.local_steps,
        "sampler": plan.contract.sampler,
        "neighbours": plan.contract.neighbours,
    }
    at_least = {
        "draws": int(plan.schedule.counts[k]),
        "rounds": plan.training.rounds,
        "clip": plan.training.clip,
    }
    found = [
        f"{key} is {accepted.get(key)!r} in its terms and {asked!r} in the plan"
        for key, asked in exactly.items()
        if accepted.get(key) != asked
    ]
    for key, needed in at_least.items():
        allowed = accepted.get(key)
        if not isinstance(allowed, int | float) or allowed < needed:
            found.append(f"its terms allow {key} {allowed!r}, the plan needs {needed!r}")
    least = accepted.get("least_noise_multiplier")
    noise = float(plan.noise_multipliers[k])
    if not isinstance(least, int | float) or least > noise:
        found.append(f"its terms ask for noise multiplier {least!r}, the plan has {noise!r}")
    return found


def check_agreements(problems: Mapping[str, list[str]]) -> None:
    """Stop if any client's terms do not fit, and say all of it at once.

    Raises:
        InputError: naming the clients and what does not fit.
    """
    # A line each, whatever the clients' words are: they may not write lines of their own.
    lines = [
        f"{one_line(client)}: {one_line(words)}"
        for client in sorted(problems)
        for words in problems[client]
    ]
    if not lines:
        return
    shown = lines[:_MOST_SHOWN]
    if len(lines) > len(shown):
        shown.append(f"... and {len(lines) - len(shown)} more")
    raise InputError.because(
        "not every client's terms cover the plan; nothing was asked and nothing spent.\n  "
        + "\n  ".join(shown)
    )
