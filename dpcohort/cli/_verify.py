# SPDX-License-Identifier: Apache-2.0
"""``dpcohort verify``, ``receipt``, ``sign`` and ``audit``: promises checked, and vouched for.

``verify`` and ``receipt`` look at a run, ``sign`` puts a name to one; ``audit`` tests from outside
a training of ours or a step of a user's own. Exit code 1 if a promise is broken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from dpcohort._validate import choice, number
from dpcohort.accounting._samplers import SAMPLERS
from dpcohort.atomic_file import write_text
from dpcohort.cli._terminal import JsonOption, LetterOption, console, new_table, print_json, say
from dpcohort.errors import InputError
from dpcohort.plain_text import counted, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dpcohort.audit import Claim, Finding, Isolation, PrivateTraining
    from dpcohort.runs import Receipt, Run, Verification

_SHOWN = 20
#: Characters of one message; a broken receipt may quote anything.
_LONGEST = 2000


def verify(
    runs: Annotated[
        list[Path], Argument(metavar="RUN...", help="Run folders, or folders of seeds.")
    ],
    method: Annotated[str, Option(help="The second opinion: auto, pld or dp-accounting.")] = "auto",
    require: Annotated[
        str, Option(metavar="private", help="Exit code 1 for a run that is not private.")
    ] = "",
    key: Annotated[
        str,
        Option(metavar="PUBLIC", help="Exit code 1 for a run that is not signed by this key."),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Replay every receipt from the ledger with the independent accountant."""
    from dpcohort.runs import verify_run
    from dpcohort.runs._folder import find_runs

    folders = [folder for run in runs for folder in find_runs(run)]
    found = [verify_run(folder, method=method, require=require, key=key) for folder in folders]
    if as_json:
        print_json([verification.to_dict() for verification in found])
    else:
        for verification in found:
            _print_verification(verification)
        for kind in dict.fromkeys(one.kind for one in found if one.kind):
            say(f"Whose word is taken for what, in a run that is {kind.replace('sim', 'a sim')}:")
            lines = [one.whose_word.items() for one in found if one.kind == kind]
            for words in dict.fromkeys(f"  {who}: {what}" for line in lines for who, what in line):
                say(words)
    if not all(verification.holds for verification in found):
        raise typer.Exit(1)


#: What a run is; of a private one nobody can prove it.
_KINDS = {
    "private": ("PRIVATE, by the word of those below", "bold"),
    "simulation": ("SIMULATION with noise of a seed, NOT PRIVATE", "bold yellow"),
    "not private": ("NOT PRIVATE", "bold red"),
    "": ("of unknown kind", "bold red"),
}


def _print_verification(verification: Verification) -> None:
    word, style = "BROKEN", "bold red"
    if all(finding.kind in ("note", "required") for finding in verification.findings):
        word = "NOT AS REQUIRED"
    if verification.holds:
        word = "holds" if verification.finished else "UNFINISHED, holds so far"
        style = "bold green"
    console.print(f"{verification.path}: ", end="")
    console.print(word, style=style, end="")
    console.print("; ", end="")
    kind, style = _KINDS[verification.kind]
    console.print(kind, style=style, end="")
    seal = f", seal {verification.seal[:12]}" if verification.seal else ""
    console.print(
        f"; {verification.clients} promises and {verification.rounds} rounds checked, at most "
        f"{verification.tightest:.1%} of a budget spent; plan {verification.plan[:12]}{seal}"
    )
    if verification.signed_by:
        say(f"  signed by the key {verification.signed_by}")
    if verification.guards:
        say(f"  draws: {verification.guards}")
    if verification.alone_epsilon is not None:
        honest = counted(verification.honest, "honest member")
        console.print(
            f"  distributed: that counts on {honest} of each cohort; if all others collude, a "
            f"client has spent epsilon {verification.alone_epsilon:.4g} at most"
        )
    for finding in verification.findings[:_SHOWN]:
        say(f"  {finding.kind}: {one_line(finding.subject)}: {one_line(finding.message, _LONGEST)}")
    if len(verification.findings) > _SHOWN:
        console.print(f"  ... and {len(verification.findings) - _SHOWN} more (--json has all)")


def receipt(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder.")],
    client: Annotated[str, Argument(help="Id of the client.")],
    letter: LetterOption = None,
    registry: Annotated[
        Path | None,
        Option(
            metavar="FILE.json",
            help="Write a draft for the public registry of DP deployments; - for the terminal.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a client's receipt, counted from the ledger and certified anew."""
    from dpcohort.runs import Run

    loaded = Run.load(run)
    found = loaded.receipt(client)
    from dpcohort.runs import verify_run

    verified = verify_run(run, method="pld")
    if letter is not None:
        _write_letter(letter, loaded, found, verified, shown=run)
    if registry is not None:
        _write_registry(registry, loaded, found, verified)
        if str(registry) == "-":
            return
    if as_json:
        print_json(found.to_dict())
    else:
        say(found.text())
        if not verified.holds:
            _print_verification(verified)
    if not (found.holds and verified.holds):
        raise typer.Exit(1)


def sign(
    run: Annotated[Path, Argument(metavar="RUN", help="The folder of a finished run.")],
    key: Annotated[
        Path,
        Option(metavar="FILE", help="The operator's secret; dpcohort guard identity makes one."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Sign a finished run that verifies: who changes a file of it from then on needs the key."""
    from dpcohort.atomic_file import owner_only
    from dpcohort.deploy.guard._files import load_identity
    from dpcohort.errors import VerificationError
    from dpcohort.runs import verify_run
    from dpcohort.runs._folder import SIGNATURE, find_run
    from dpcohort.runs._seal import sign_seal

    identity, found = load_identity(key), verify_run(run)
    wrong = [finding for finding in found.findings if finding.kind != "note"]
    if wrong:
        raise VerificationError(
            f"{run} does not verify, so it is not signed: {one_line(wrong[0].subject)}: "
            f"{one_line(wrong[0].message, _LONGEST)} See: dpcohort verify {run}"
        )
    if not found.finished:
        raise InputError.because(
            f"{run} is not finished, and what follows would not be signed. Let it go on with "
            "--resume, and sign it then."
        )
    if found.signed_by not in ("", identity.public):
        raise InputError.because(
            f"{run} is signed by {found.signed_by} already. To sign it instead, delete "
            f"{run / SIGNATURE} first."
        )
    with owner_only(found.kind == "private"):
        seal = sign_seal(find_run(run), identity.public, identity.sign_bytes)
    if as_json:
        print_json(run=str(run), kind=found.kind, seal=seal, key=identity.public)
        return
    say(f"Signed {run} ({found.kind}), seal {seal}.")
    say(f"Whoever has the folder checks it: dpcohort verify {run} --key {identity.public}")


def _write_letter(
    path: Path, run: Run, receipt: Receipt, verified: Verification, *, shown: Path
) -> None:
    from dpcohort.accounting import attack_risk
    from dpcohort.report.html._letter import another_client, write_letter

    k = run.plan.population.index_of(receipt.client)
    made = int(run.reports[k])
    draws = int(run.ledger.draws[k])
    history = run.plan.charged_history(k, draws=draws, reports=made)
    risk, alone = None, None
    if history is not None and receipt.delta is not None:
        risk = attack_risk(history, delta=receipt.delta)
        own = run.plan.if_alone.charged_history(k, draws=draws, reports=made)
        if own is not None and own != history:
            alone = attack_risk(own, delta=receipt.delta)
    write_letter(
        path,
        receipt,
        risk=risk,
        alone=alone,
        history=history,
        commands=[
            ["dpcohort", "verify", str(shown)],
            ["dpcohort", "receipt", str(shown), receipt.client],
        ],
        clip=run.plan.training.clip,
        over_a_network=run.settings.get("engine") == "flower",
        beside=another_client(run, k) if receipt.protects.name == "person" else None,
        judged="" if run.check is None else run.check.sentence,
        verification=verified,
    )


def _write_registry(path: Path, run: Run, receipt: Receipt, verified: Verification) -> None:
    from dpcohort.errors import VerificationError
    from dpcohort.report._registry import registry_entry
    from dpcohort.report._statement import RunStatement

    if verified.kind != "private" or not verified.finished:
        state = verified.kind.replace("sim", "a sim") if verified.finished else "not finished"
        raise InputError.because(
            f"the registry is for deployments, and this run is {state}: nothing was written."
        )
    if not verified.holds:
        raise VerificationError(f"{verified.path} does not verify: nothing was written.")
    answers = RunStatement(
        receipt,
        run.plan.training.clip,
        run.settings.get("engine") == "flower",
        "" if run.check is None else run.check.sentence,
    )
    entry = registry_entry(run, answers, seal=verified.seal)
    if str(path) == "-":
        print_json(entry)
        return
    write_text(path, json.dumps(entry, indent=2, ensure_ascii=False) + "\n")
    say(f"Wrote {path}. Fill in what begins with TO BE FILLED IN; it is valid YAML as well.")


#: Of each test; all of them on all trainings stay below 1e-5 together.
_FALSE_ALARMS = 1e-7
_PERSON_ROWS = 40
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
        _audit_adversarial(device, only, rows=min(rows, 3), full=full, as_json=as_json)
        return
    from dpcohort.audit import Claim, step_by_name
    from dpcohort.audit._suite import FULL_NORMALS

    if step is None:
        subjects = _own_trainings(device, only, persons=rows > 1, full=full)
    else:
        training = step_by_name(
            step, returns="sum" if returns == "sum" else "mean", draws_batches=sampler != "none"
        )
        subjects = {step: (lambda: training, not simulation, FULL_NORMALS // 4)}
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
    from dpcohort.audit import ModelsUnderTest, isolation
    from dpcohort.audit._adversarial_losses import LOSSES
    from dpcohort.audit._adversarial_models import MODELS
    from dpcohort.audit._under_test import MODEL_PLACES, PERSON_PLACES

    _check_device(device)
    # The guard computes on a CPU whatever the device; it and a frozen encoder know records only.
    left_out = () if device == "cpu" else ("guard", "guard-reports")
    places = [
        name for name in (PERSON_PLACES if rows > 1 else MODEL_PLACES) if name not in left_out
    ]
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
    from rich.text import Text

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
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device", given=device, allowed="cpu here: torch finds no CUDA device")


def _wanted(only: str | None, names: Sequence[str]) -> list[str]:
    """Those that --only picks, in their order; all without it."""
    wanted = list(names) if only is None else [one.strip() for one in only.split(",")]
    for name in filter(None, wanted):
        choice("--only", name, list(names))
    return [name for name in names if name in wanted]


def _own_trainings(device: str, only: str | None, *, persons: bool, full: bool) -> _Subjects:
    """Our own trainings, as they are deployed, and the simulation."""
    import torch

    from dpcohort.audit import EngineUnderTest, GuardUnderTest
    from dpcohort.audit._suite import FULL_NORMALS

    _check_device(device)
    many = FULL_NORMALS if device == "cuda" else FULL_NORMALS // 4
    deployed: Any = {"device": device, "private": True, "dtype": torch.float32}
    subjects: _Subjects = {
        "batched": (lambda: EngineUnderTest("batched", **deployed), True, many),
        "reference": (lambda: EngineUnderTest("reference", **deployed), True, many),
        "distributed": (
            lambda: EngineUnderTest("batched", distributed=True, **deployed),
            True,
            many,
        ),
        "guard": (GuardUnderTest, True, FULL_NORMALS // 200),
        "simulation": (lambda: EngineUnderTest("batched", device=device), False, many),
    }
    if persons:  # a guard's promise is about records
        del subjects["guard"]
    # The reference takes its records one by one; the guard computes on a CPU whatever the device.
    left_out = {"reference": not full, "guard": device != "cpu"}
    usual = [name for name in subjects if not left_out.get(name, False)]
    wanted = usual if only is None else _wanted(only, list(subjects))
    return {name: subjects[name] for name in wanted}


def _tested(
    name: str, training: PrivateTraining, claim: Claim, seed: int, *, full: bool, normals: int
) -> list[Finding]:
    from dpcohort.audit import _suite as suite

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
    from rich.text import Text

    table = new_table("", "test", "what was seen", close=True, overflow="fold")
    table.add_column("false alarms", justify="right")
    for finding in findings:
        mark = Text("ok", "green") if finding.passed else Text("REFUTED", "bold red")
        rate = f"{finding.false_alarm_rate:g}" if finding.false_alarm_rate else "none"
        table.add_row(mark, finding.test, Text(finding.detail), rate)
    return table
