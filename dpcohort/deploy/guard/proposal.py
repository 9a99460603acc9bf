# SPDX-License-Identifier: Apache-2.0
"""A terms file for the owner to read and change: a commented one, or one that fits a plan.

What a plan asks for is a proposal. It binds nobody until the owner starts a guard with it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpcohort.data.dataset import Normalisation
from dpcohort.deploy.guard.terms import ModelTerms
from dpcohort.errors import InputError
from dpcohort.plan import Plan

__all__ = ["commented_terms", "terms_from_plan", "with_ledger_id"]

_TEMPLATE = """\
# Terms of one client, written by the owner of its data. A server cannot change them.
# Look at them with: dpcohort guard check --terms FILE --data DATA.npz

dataset = {dataset}            # the data's name in the ledger, for ever
lifetime_epsilon = {lifetime_epsilon}
lifetime_delta = {lifetime_delta}
across_runs = "summed"         # each begun run counts in full: holds whatever the server does
neighbours = {cap_neighbours}
# ledger_id = "..."            # pinned when the ledger is made: no other ledger is served from

allowed_users = {allowed_users}   # users, by name or number, that may ask: the courier's
{group_line}
same_user = {same_user}              # true only for a trial: the guard then protects nothing
answer_seconds = {answer_seconds}  # answers leave at multiples of this: their time tells little

[model]                        # the only model that is trained; code of a server is never run
name = {name}
input_shape = {input_shape}
classes = {classes}
options = {options}

[normalisation]                # public constants: an input x becomes (x / scale - mean) / std
scale = {scale}
mean = {mean}
std = {std}

[[runs]]                       # a run that is accepted beforehand; repeat for more
run = {run}
{plan_line}
epsilon = {epsilon}            # all draws of the run together
delta = {delta}
clip = {clip}                  # at most
batch_size = {batch_size}      # exactly; the rate is this divided by the number of records
local_steps = {local_steps}    # exactly, in each draw
rounds = {rounds}
draws = {draws}                # at most, in the whole run
{noise_line}
sampler = {sampler}
neighbours = {neighbours}
"""

_NO_GROUP = '# socket_group = "..."         # group of the courier, which may use the socket'


def commented_terms() -> str:
    """A terms file to start from.

    Example:
        >>> import tomllib
        >>> tomllib.loads(commented_terms())["across_runs"]
        'summed'
    """
    return _filled(
        {
            "dataset": "ward-7",
            "lifetime_epsilon": 4.0,
            "lifetime_delta": 4e-5,
            "cap_neighbours": "zero-out",
            "allowed_users": ["nobody"],
            "same_user": False,
            "answer_seconds": 1.0,
            "name": "logistic",
            "input_shape": [64],
            "classes": 10,
            "options": {},
            "scale": 1.0,
            "mean": [0.0],
            "std": [1.0],
            "run": "spring",
            "epsilon": 2.0,
            "delta": 1e-5,
            "clip": 1.0,
            "batch_size": 60,
            "local_steps": 1,
            "rounds": 100,
            "draws": 20,
            "sampler": "poisson",
            "neighbours": "zero-out",
        },
        group_line=_NO_GROUP,
        plan_line='# plan = "..."                 # SHA-256 of the plan, to accept no other',
        noise_line="# least_noise_multiplier = 2.5 # left out: the smallest that keeps the above",
    )


def terms_from_plan(
    plan: Plan,
    client: str,
    *,
    run: str,
    model: ModelTerms,
    normalisation: Normalisation | None = None,
    lifetime_epsilon: float | None = None,
    lifetime_delta: float | None = None,
    allowed_users: Sequence[str | int] = (),
    socket_group: str | None = None,
    same_user: bool = False,
    answer_seconds: float = 1.0,
) -> str:
    """The terms under which a client can do its part of a plan, and no more.

    Args:
        plan: the plan.
        client: id of the client in its population; also the data's name.
        run: name of the run.
        model: the model trained.
        normalisation: public constants of the inputs.
        lifetime_epsilon: the data's lifetime ε; the plan's budget of this client if not given.
        lifetime_delta: the data's lifetime δ; likewise.
        allowed_users: users that may ask.
        socket_group: group the socket is given to.
        same_user: the guard's own user may ask, for a trial.
        answer_seconds: when answers leave.

    Raises:
        InputError: no such client, one without a budget, or one never drawn.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[600] * 4, epsilon=[1, 1, 4, 8], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=8, cohort_size=2, batch_size=60), seed=0)
        >>> model = ModelTerms(name="logistic", input_shape=(64,), classes=10)
        >>> text = terms_from_plan(plan, clients.ids[3], run="spring", model=model)
        >>> "batch_size = 60" in text
        True
    """
    if client not in plan.population.ids:
        raise InputError("client", given=client, allowed="the id of a client of the plan")
    k = list(plan.population.ids).index(client)
    noise = float(plan.noise_multipliers[k])
    if not noise > 0 or not np.isfinite(noise):
        raise InputError.because(
            f"client {client!r} has no budget or is never drawn in this plan: it needs no guard."
        )
    epsilon, delta = float(plan.population.epsilon[k]), float(plan.population.delta[k])
    scaling = normalisation or Normalisation()
    return _filled(
        {
            "dataset": client,
            "lifetime_epsilon": epsilon if lifetime_epsilon is None else float(lifetime_epsilon),
            "lifetime_delta": delta if lifetime_delta is None else float(lifetime_delta),
            "cap_neighbours": plan.contract.neighbours,
            "allowed_users": list(allowed_users),
            "same_user": same_user,
            "answer_seconds": float(answer_seconds),
            "name": model.name,
            "input_shape": list(model.input_shape),
            "classes": model.classes,
            "options": dict(model.options),
            "scale": float(scaling.scale),
            "mean": [float(one) for one in scaling.mean],
            "std": [float(one) for one in scaling.std],
            "run": run,
            "epsilon": epsilon,
            "delta": delta,
            "clip": float(plan.training.clip),
            "batch_size": int(plan.batch_sizes[k]),
            "local_steps": plan.training.local_steps,
            "rounds": plan.training.rounds,
            "draws": int(plan.schedule.counts[k]),
            "sampler": plan.contract.sampler,
            "neighbours": plan.contract.neighbours,
        },
        group_line=(
            _NO_GROUP
            if socket_group is None
            else f"socket_group = {_toml(socket_group)}  # may use the socket"
        ),
        plan_line=f'plan = "{plan.sha256}"',
        noise_line=f"least_noise_multiplier = {noise!r}   # at least",
    )


def with_ledger_id(text: str, identity: str) -> str:
    """A terms file with the id of the ledger that counts for its data; all else stays as it is.

    Args:
        text: the file.
        identity: the ledger's id.

    Raises:
        InputError: another id is pinned in it.

    Example:
        >>> print(with_ledger_id('dataset = "ward-7"', "0" * 32))
        ledger_id = "00000000000000000000000000000000"  # no other ledger is served from
        dataset = "ward-7"
    """
    before = tomllib.loads(text)
    if "ledger_id" in before:
        if before["ledger_id"] != identity:
            raise InputError(
                "ledger_id",
                given=identity,
                allowed=f"the one that the terms pin, {before['ledger_id']}",
            )
        return text
    line = f"ledger_id = {_toml(identity)}  # no other ledger is served from"
    lines = text.split("\n")
    places = [place for place, one in enumerate(lines) if one.startswith("# ledger_id = ")]
    if places:
        lines[places[0]] = line
        found = "\n".join(lines)
        if tomllib.loads(found) == {**before, "ledger_id": identity}:
            return found
    return f"{line}\n{text}"


def _filled(values: Mapping[str, Any], **lines: str) -> str:
    written = {key: _toml(value) for key, value in values.items()}
    text = _TEMPLATE.format(**written, **lines)
    return "\n".join(_aligned(line) for line in text.splitlines()) + "\n"


def _aligned(line: str) -> str:
    """The comment of a line at the same place as in every other."""
    key, mark, comment = line.partition("  #")
    if not mark or line.startswith("#"):
        return line
    return f"{key.rstrip():<30} # {comment.strip()}"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, Mapping):
        parts = (f"{json.dumps(str(key))} = {_toml(one)}" for key, one in value.items())
        return "{ " + ", ".join(parts) + " }" if value else "{}"
    return repr(value)
