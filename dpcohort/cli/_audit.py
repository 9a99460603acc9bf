# SPDX-License-Identifier: Apache-2.0
"""``dpcohort audit``: a training of ours or a step of a user's own, tested from outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, Any

import torch
import typer
from rich.console import RenderableType
from rich.text import Text
from typer import Option

from dpcohort._validate import choice, number
from dpcohort.accounting._samplers import SAMPLERS
from dpcohort.audit import (
    Claim,
    EngineUnderTest,
    Finding,
    GuardUnderTest,
    Isolation,
    ModelsUnderTest,
    PrivateTraining,
    isolation,
    step_by_name,
)
from dpcohort.audit import _suite as suite
from dpcohort.audit._adversarial_losses import LOSSES
from dpcohort.audit._adversarial_models import MODELS
from dpcohort.audit._under_test import MODEL_PLACES
from dpcohort.cli._terminal import JsonOption, console, new_table, print_json, say
from dpcohort.errors import InputError

#: Of each test; all of them on all trainings stay below 1e-5 together.
_FALSE_ALARMS = 1e-7
#: Rows of a person whom an audit makes up; of one whom models meet one by one.
_PERSON_ROWS, _FEW_ROWS = 40, 3
_PRIVATE = "claims to be private"
_SIMULATION = "a simulation: G, H and I, whether its noise can be predicted, are not asked"
_LIMIT = (
    "Tests can refute a claim and never prove one: reference/audit.md in docs says what they miss."
)


#: Trainings to audit, by name: how to make one, whether it claims to be private, and how many
#: numbers of its noise the full form draws.
_Subjects = dict[str, tuple["Callable[[], PrivateTraining]", bool, int]]


def audit(
    step: Annotated[
        str | None,
        Option(
            metavar="MODULE:FUNCTION",
            help="Audit this step instead of dpcohort's own trainings (docs/reference/audit.md).",
        ),
    ] = None,
    full: Annotated[
        bool, Option("--full/--quick", help="Minutes on a GPU, or seconds for CI.")
    ] = False,
    device: Annotated[str, Option(help="Where our engines train: cpu or cuda.")] = "cpu",
    sampler: Annotated[
        str,
        Option(
            help="The claimed sampler: poisson, fixed or balls-in-bins; none for a --step that is "
            "given batches."
        ),
    ] = "poisson",
    unit: Annotated[
        str,
        Option(
            help="What is protected: record or person. Canaries are then persons with 40 rows, "
            "and a --step is told whose each row is."
        ),
    ] = "record",
    clip: Annotated[float, Option(help="The clip C to test at.")] = 1.0,
    noise_multiplier: Annotated[float, Option(help="The noise z to test at.")] = 1.0,
    returns: Annotated[
        str, Option(help="What a plain --step returns: mean (over the public B) or sum.")
    ] = "mean",
    simulation: Annotated[
        bool,
        Option("--simulation", help="The --step is for simulation only: do not test G, H and I."),
    ] = False,
    only: Annotated[
        str | None,
        Option(
            metavar="A,B",
            help="Of our trainings only these: batched, reference, distributed, guard, simulation. "
            "By default all, without --full all but the slow reference. With --adversarial: "
            "batched, reference, reports, frozen, guard, guard-reports; by default all.",
        ),
    ] = None,
    adversarial: Annotated[
        bool,
        Option(
            "--adversarial",
            help="Train hostile and careless models and losses instead: does a record reach "
            "others through them?",
        ),
    ] = False,
    normals: Annotated[
        int | None, Option(metavar="N", help="Numbers whose tail --full counts.", min=1)
    ] = None,
    seed: Annotated[int, Option(min=0, help="Of the tests and of simulations.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Test from outside what a training claims; exit code 1 if a claim is refuted."""
    choice("--device", device, ["cpu", "cuda"])
    choice("--returns", returns, ["mean", "sum"])
    choice("--unit", unit, ["record", "person"])
    rows = 1 if unit == "record" else _PERSON_ROWS
    choice("--sampler", sampler, [*SAMPLERS, *(["none"] if step else [])])
    number("--clip", clip, above=0)
    number("--noise-multiplier", noise_multiplier, above=0)
    if step is None and (simulation or returns != "mean"):
        raise InputError.because("--simulation and --returns are for a --step: give one.")
    if step is not None and (only is not None or device != "cpu"):
        raise InputError.because("--only and --device are for dpcohort's own trainings.")
    if adversarial:
        if step is not None:
            raise InputError.because("--adversarial is for dpcohort's own trainings: no --step.")
        _audit_adversarial(device, only, rows=min(rows, _FEW_ROWS), full=full, as_json=as_json)
        return

    if step is None:
        subjects = _own_trainings(device, only, full=full)
    else:
        training = step_by_name(
            step,
            returns="sum" if returns == "sum" else "mean",
            draws_batches=sampler != "none",
            persons=rows > 1,
        )
        subjects = {step: (lambda: training, not simulation, suite.FULL_NORMALS // 4)}
    audited: dict[str, list[Finding]] = {}
    for name, (make, private, many) in subjects.items():
        claim = Claim(
            sampler=SAMPLERS["poisson" if sampler == "none" else sampler],
            clip=clip,
            noise_multiplier=noise_multiplier,
            private=private,
            rows=rows,
        )
        audited[name] = _tested(name, make(), claim, seed, full=full, normals=normals or many)
        if not as_json:
            console.print(name, style="bold", end="")
            console.print(f"  {_PRIVATE if private else _SIMULATION}")
            console.print(_findings_table(audited[name]))
    every = [(name, finding) for name, findings in audited.items() for finding in findings]
    total = math.fsum(finding.false_alarm_rate for _, finding in every)
    refuted = [f"{name}: {found.test}" for name, found in every if not found.passed]
    if as_json:
        trainings = [
            {"name": name, "private": subjects[name][1], "findings": [asdict(f) for f in findings]}
            for name, findings in audited.items()
        ]
        print_json(
            passed=not refuted,
            refuted=refuted,
            form="full" if full else "quick",
            unit=unit,
            device=device,
            false_alarm_rate=total,
            trainings=trainings,
        )
    else:
        word, style = ("REFUTED", "bold red") if refuted else ("no claim refuted", "bold green")
        console.print(word, style=style, end="")
        say(f": {'; '.join(refuted)}" if refuted else "")
        chance = f"A correct training fails this audit with probability at most {total:.1e}."
        say(f"{chance} {_LIMIT}")
    if refuted:
        raise typer.Exit(1)


def _audit_adversarial(
    device: str, only: str | None, *, rows: int, full: bool, as_json: bool
) -> None:
    """Wherever records meet a model or loss of others, all of the adversarial ones."""
    _check_device(device)
    # The guard computes on a CPU whatever the device.
    left_out = () if device == "cpu" else ("guard", "guard-reports")
    places = [name for name in MODEL_PLACES if name not in left_out]
    audited: dict[str, list[Isolation]] = {}
    for place in _wanted(only, places):
        subject = ModelsUnderTest(place, device)
        status = console.status(f"{place} ...")
        with status if console.is_terminal else nullcontext():
            audited[place] = isolation(
                subject,
                [*MODELS.values(), *(LOSSES.values() if subject.takes_losses else ())],
                rows=rows,
                full=full,
                on_case=lambda one, place=place, status=status: status.update(  # type: ignore[misc]
                    f"{place}: {one.name} {one} ..."
                ),
            )
        if not as_json:
            console.print(place, style="bold")
            console.print(_isolation_table(audited[place]))
    broken = [
        f"{place}: {one.name} ({one.moved:.2g} C)"
        for place, found in audited.items()
        for one in found
        if one.verdict == "BROKEN"
    ]
    if as_json:
        print_json(
            passed=not broken,
            broken=broken,
            form="full" if full else "quick",
            rows=rows,
            device=device,
            places={place: [asdict(one) for one in found] for place, found in audited.items()},
        )
    else:
        word, style = ("BROKEN", "bold red") if broken else ("no bound broken", "bold green")
        console.print(word, style=style, end="")
        say(f": {'; '.join(broken)}" if broken else "")
        unit = "record" if rows == 1 else f"person with {rows} rows"
        say(f"A batch may move by C for one {unit}. {_LIMIT}")
    if broken:
        raise typer.Exit(1)


def _isolation_table(found: Sequence[Isolation]) -> RenderableType:
    """Those that did not hold one by one; the others by their names."""
    table = new_table("", "model or loss", "what was seen", close=True, overflow="fold")
    for verdict, style in (("BROKEN", "bold red"), ("out of reach", "yellow")):
        for one in (one for one in found if one.verdict == verdict):
            moved = f"moved by {one.moved:.3g} C" if math.isfinite(one.moved) else "all or nothing"
            table.add_row(Text(verdict, style), one.name, Text(f"{moved}: {one.detail}"))
    reasons: dict[str, list[str]] = {}
    for one in (one for one in found if one.verdict == "refused"):
        reasons.setdefault(one.detail.replace(one.name, "..."), []).append(one.name)
    for reason, names in reasons.items():
        table.add_row(
            "refused", f"{len(names)} of {len(found)}", Text(f"{', '.join(names)}: {reason}")
        )
    held = [one for one in found if one.verdict == "held"]
    if held:
        seen = f"by {max(one.moved for one in held):.6f} C at most: "
        seen += ", ".join(one.name for one in held)
        table.add_row(Text("held", "green"), f"{len(held)} of {len(found)}", Text(seen))
    return table


def _check_device(device: str) -> None:

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device", given=device, allowed="cpu here: torch finds no CUDA device")


def _wanted(only: str | None, names: Sequence[str]) -> list[str]:
    """Those that --only picks, in their order; all without it."""
    wanted = list(names) if only is None else [one.strip() for one in only.split(",")]
    for name in filter(None, wanted):
        choice("--only", name, list(names))
    return [name for name in names if name in wanted]


def _own_trainings(device: str, only: str | None, *, full: bool) -> _Subjects:
    """Our own trainings, as they are deployed, and the simulation."""
    _check_device(device)
    many = suite.FULL_NORMALS if device == "cuda" else suite.FULL_NORMALS // 4
    deployed: Any = {"device": device, "private": True, "dtype": torch.float32}
    subjects: _Subjects = {
        "batched": (lambda: EngineUnderTest("batched", **deployed), True, many),
        "reference": (lambda: EngineUnderTest("reference", **deployed), True, many),
        "distributed": (
            lambda: EngineUnderTest("batched", distributed=True, **deployed),
            True,
            many,
        ),
        "guard": (GuardUnderTest, True, suite.FULL_NORMALS // 200),
        "simulation": (lambda: EngineUnderTest("batched", device=device), False, many),
    }
    # The reference takes its records one by one; the guard computes on a CPU whatever the device.
    left_out = {"reference": not full, "guard": device != "cpu"}
    usual = [name for name in subjects if not left_out.get(name, False)]
    wanted = usual if only is None else _wanted(only, list(subjects))
    return {name: subjects[name] for name in wanted}


def _tested(
    name: str, training: PrivateTraining, claim: Claim, seed: int, *, full: bool, normals: int
) -> list[Finding]:

    status = console.status(f"{name} ...")
    with status if console.is_terminal else nullcontext():
        return suite.audit_training(
            training,
            claim,
            seed=seed,
            false_alarm_rate=_FALSE_ALARMS,
            full=full,
            normals=normals,
            on_finding=lambda one: status.update(f"{name}: {one.test} done ..."),
        )


def _findings_table(findings: Sequence[Finding]) -> RenderableType:

    table = new_table("", "test", "what was seen", close=True, overflow="fold")
    table.add_column("false alarms", justify="right")
    for finding in findings:
        mark = Text("ok", "green") if finding.passed else Text("REFUTED", "bold red")
        rate = f"{finding.false_alarm_rate:g}" if finding.false_alarm_rate else "none"
        table.add_row(mark, finding.test, Text(finding.detail), rate)
    return table
