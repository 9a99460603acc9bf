# SPDX-License-Identifier: Apache-2.0
"""``dpcohort verify`` and ``receipt``: promises of a run checked; exit code 1 if one is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from dpcohort.accounting import attack_risk
from dpcohort.atomic_file import write_text
from dpcohort.cli._terminal import (
    LONGEST_MESSAGE,
    DraftOption,
    JsonOption,
    LetterOption,
    console,
    print_json,
    say,
)
from dpcohort.errors import InputError, VerificationError
from dpcohort.plain_text import counted, one_line
from dpcohort.runs import Receipt, Run, Verification, verify_run
from dpcohort.runs._folder import find_runs
from dpcohort.runs._receipts import file_name

_SHOWN = 20


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
        message = one_line(finding.message, LONGEST_MESSAGE)
        say(f"  {finding.kind}: {one_line(finding.subject)}: {message}")
    if len(verification.findings) > _SHOWN:
        console.print(f"  ... and {len(verification.findings) - _SHOWN} more (--json has all)")


def receipt(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder.")],
    client: Annotated[str | None, Argument(help="Id of the client.")] = None,
    letter: LetterOption = None,
    letters: Annotated[
        Path | None, Option(metavar="FOLDER", help="Write one for each client into a new folder.")
    ] = None,
    draft: DraftOption = False,
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
    loaded = Run.load(run)
    if client is None:
        if letters is None or letter is not None or registry is not None or as_json:
            raise InputError.because("name a client; or all of them by --letters FOLDER alone.")
        _write_letters(letters, loaded, run, draft=draft)
        return
    if letters is not None:
        raise InputError.because("--letters is for all clients; --letter FILE.html is for one.")
    found = loaded.receipt(client)

    verified = verify_run(run, method="pld")
    if letter is not None:
        _write_letter(letter, loaded, found, verified, shown=run, draft=draft)
    if registry is not None:
        _write_registry(registry, loaded, found, verified)
        if str(registry) == "-":
            return
    if as_json:
        print_json({**found.kind, **found.to_dict()})
    else:
        say(found.text())
        if not verified.holds:
            _print_verification(verified)
    if not (found.holds and verified.holds):
        raise typer.Exit(1)


def _write_letters(folder: Path, run: Run, shown: Path, *, draft: bool) -> None:
    """A letter for each client that was promised something."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError("--letters", given=str(folder), allowed="a new or empty folder")
    receipts = [one for one in run.receipts() if not one.public]
    verified = verify_run(shown, method="pld")
    for receipt in receipts:
        name = file_name(run.plan.population.index_of(receipt.client), receipt.client)
        page = folder / f"{name}.html"
        if receipt is receipts[0] and (draft or not receipt.unprotected):
            folder.mkdir(parents=True, exist_ok=True)
        _write_letter(page, run, receipt, verified, shown=shown, draft=draft)
    say(f"Wrote {counted(len(receipts), 'letter')} into {folder}.")
    if not (verified.holds and all(one.holds for one in receipts)):
        _print_verification(verified)
        raise typer.Exit(1)


def _write_letter(
    path: Path, run: Run, receipt: Receipt, verified: Verification, *, shown: Path, draft: bool
) -> None:
    from dpcohort.report._statement import RunStatement
    from dpcohort.report.html._letter import another_client, write_letter

    if receipt.unprotected and not draft:
        raise InputError.because(
            f"{shown} is {receipt.unprotected}, and a letter is for those who rely on a promise: "
            "nothing was written. Train privately, or write a draft that says so on every page: "
            "--draft."
        )
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
        answers=RunStatement.of(run, receipt),
        beside=another_client(run, k) if receipt.protects.name == "person" else None,
        verification=verified,
        draft=draft,
    )


def _write_registry(path: Path, run: Run, receipt: Receipt, verified: Verification) -> None:
    from dpcohort.report._registry import registry_entry
    from dpcohort.report._statement import RunStatement

    if verified.kind != "private" or not verified.finished:
        state = verified.kind.replace("sim", "a sim") if verified.finished else "not finished"
        raise InputError.because(
            f"the registry is for deployments, and this run is {state}: nothing was written."
        )
    if not verified.holds:
        raise VerificationError(f"{verified.path} does not verify: nothing was written.")
    entry = registry_entry(run, RunStatement.of(run, receipt), seal=verified.seal)
    if str(path) == "-":
        print_json(entry)
        return
    write_text(path, json.dumps(entry, indent=2, ensure_ascii=False) + "\n")
    say(f"Wrote {path}. Fill in what begins with TO BE FILLED IN; it is valid YAML as well.")
