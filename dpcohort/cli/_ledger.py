# SPDX-License-Identifier: Apache-2.0
"""``dpcohort ledger``: a client's own lifetime ledger, for the client's owner."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from dpcohort.atomic_file import write_text
from dpcohort.cli._terminal import JsonOption, LetterOption, print_json, print_text, say
from dpcohort.deploy._formats import checked_name, replace
from dpcohort.deploy.ledger import (
    ClientLedger,
    LifetimeCap,
    RunTerms,
    lifetime_receipt,
    lifetime_risk,
    read_state,
    verify_ledger,
)
from dpcohort.deploy.ledger._reading import back_up, exported_lines
from dpcohort.errors import InputError
from dpcohort.plain_text import json_visible
from dpcohort.plan import Plan
from dpcohort.report.html._letter import write_letter

ledger = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A client's own ledger over all runs: caps, accepted terms, what was spent.",
)

PathArgument = Annotated[Path, Argument(metavar="PATH", help="The ledger file.")]
CounterOption = Annotated[
    Path | None, Option("--counter", help="Its counter, if not PATH.counter.")
]
DatasetOption = Annotated[str, Option("--dataset", help="Name of the data set.")]


@ledger.command("init")
def init(
    path: PathArgument,
    dataset: DatasetOption,
    epsilon: Annotated[float, Option(help="Epsilon of all runs together.")],
    delta: Annotated[float, Option(help="Delta of all runs together.")],
    per: Annotated[
        str, Option(help="Over the lifetime of the data, or in any window of '365 days'.")
    ] = "lifetime",
    unit: Annotated[
        str, Option(help="What the cap covers: record, or person (all rows of one).")
    ] = "record",
    neighbours: Annotated[str, Option(help="zero-out or replace-one.")] = "zero-out",
    across_runs: Annotated[
        str,
        Option(help="composed, or summed: also holds when terms are chosen from earlier outputs."),
    ] = "composed",
    data: Annotated[
        Path | None, Option(help="The data file: the same bytes under a second name are refused.")
    ] = None,
    counter: CounterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a ledger, or open one that is there, and register a data set with its cap."""
    checked_name("dataset", dataset)  # before a ledger is made for it
    cap = LifetimeCap(
        epsilon=epsilon,
        delta=delta,
        per=per,  # type: ignore[arg-type]  # its words
        unit=unit,
        neighbours=neighbours,  # type: ignore[arg-type]  # checked by the class
        across_runs=across_runs,  # type: ignore[arg-type]
        fingerprint=None if data is None else _fingerprint(data),
    )
    is_new = not path.exists()
    make = ClientLedger.create if is_new else ClientLedger
    with make(path, counter=counter) as ledger:
        ledger.register(dataset, cap)
        entries, head = ledger.head
        identity = ledger.id
    if as_json:
        found = {"dataset": dataset, "cap": cap.to_dict(), "entries": entries, "head": head}
        print_json({**found, "ledger": identity, "new": is_new})
    else:
        what = "a new ledger" if is_new else "ledger"
        say(
            f"{path}: {dataset} may spend epsilon {epsilon:g} at delta {delta:g} {cap.per.scope}, "
            f"for each {unit} "
            f"({what}, {identity}). "
            "Next: dpcohort ledger accept"
        )


@ledger.command("accept")
def accept(
    path: PathArgument,
    dataset: DatasetOption,
    run: Annotated[str, Option(help="Name of the run.")],
    terms: Annotated[
        Path,
        Option(
            metavar="FILE",
            help="epsilon, delta, clip, sampling_rate, local_steps, rounds, draws, "
            "least_noise_multiplier[, sampler, neighbours, until] (.toml); or a plan (.json): what "
            "it asks of the client of that name.",
        ),
    ],
    until: Annotated[
        str | None, Option(metavar="DATE", help="Last day (UTC) on which anything is spent.")
    ] = None,
    counter: CounterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Accept a run's terms; without this nothing can be spent on the run."""
    if terms.suffix == ".json":
        plan = Plan.load(terms)
        plan.verify_unless_made_here()
        accepted = RunTerms.of_plan(plan, dataset)
    else:
        accepted = RunTerms.from_toml(terms)
    if until is not None:
        accepted = replace(accepted, until=until)
    with ClientLedger(path, counter=counter) as ledger:
        ledger.accept(dataset, run, accepted)
        fit = ledger.affordable_draws(dataset, run)
        later = "" if fit else ledger.possible_again(dataset, run)
    certified = accepted.certified_epsilon()
    if as_json:
        found: dict[str, Any] = {"dataset": dataset, "run": run, "terms": accepted.to_dict()}
        found |= {"certified_epsilon": certified, "affordable_draws": fit}
        print_json(found | ({"possible_again": later} if later else {}))
        return
    ends = f", until {accepted.until}" if accepted.is_timed else ""
    say(
        f"Accepted {run} on {dataset}: at most {accepted.draws} draws of {accepted.local_steps} "
        f"steps{accepted.reporting.clause}, epsilon {certified:.5g} of {accepted.epsilon:g} at "
        f"delta {accepted.delta:g}{ends}. {fit} of them fit the cap now."
        + (f" The next one fits after {later}." if later else "")
    )


@ledger.command("show")
def show(path: PathArgument, counter: CounterOption = None, as_json: JsonOption = False) -> None:
    """Show every data set: its cap, its runs, what was spent."""
    state = read_state(path, counter=counter)
    receipts = [lifetime_receipt(state, dataset) for dataset in state.caps]
    if as_json:
        entries, head = state.head
        found: dict[str, Any] = {"ledger": state.ledger, "entries": entries, "head": head}
        print_json({**found, "datasets": [receipt.to_dict() for receipt in receipts]})
        return
    if not receipts:
        say("No data set is registered yet. Register one with: dpcohort ledger init")
    for receipt in receipts:
        say(receipt.text())


@ledger.command("verify")
def verify(
    path: PathArgument,
    counter: CounterOption = None,
    head: Annotated[
        str | None, Option(help="A head hash from an old receipt: it must be there.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Recompute chain, rules, counter, outputs and caps; exit 1 if anything does not hold."""
    found = verify_ledger(path, counter=counter, known_head=head)
    if as_json:
        print_json(found.to_dict())
    else:
        for finding in found.findings:
            say(f"{finding['what']}: {finding['detail']}")
        verdict = "all hold" if found.holds else f"{len(found.findings)} found wrong"
        say(f"{found.entries} entries, head {found.head}: {verdict}.")
    if not found.holds:
        raise typer.Exit(1)


@ledger.command("export")
def export(
    path: PathArgument,
    out: Annotated[Path | None, Option(help="Write to this file instead.")] = None,
    backup: Annotated[
        Path | None, Option(help="Write a whole copy of the ledger here instead.")
    ] = None,
) -> None:
    """Write every entry as a line of JSON, without the outputs' bytes; or back the ledger up."""
    if backup is not None:
        back_up(path, backup)
        say(f"{backup} is a whole copy of {path}.")
        return
    lines = exported_lines(path)
    if out is None:
        for line in lines:
            print_text(json_visible(line))
    else:
        write_text(out, "".join(f"{line}\n" for line in lines))


@ledger.command("receipt")
def receipt(
    path: PathArgument,
    dataset: DatasetOption,
    out: Annotated[Path | None, Option(help="Write it to this file too, as JSON.")] = None,
    letter: LetterOption = None,
    counter: CounterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a data set's receipt: promised, spent in each run, certified in all."""
    state = read_state(path, counter=counter)
    found = lifetime_receipt(state, dataset)
    if letter is not None:
        shown = str(path)
        write_letter(
            letter,
            found,
            risk=lifetime_risk(state, dataset),
            commands=[
                ["dpcohort", "ledger", "verify", shown, "--head", found.head],
                ["dpcohort", "ledger", "receipt", shown, "--dataset", dataset],
            ],
        )
    if out is not None:
        write_text(out, json.dumps(found.to_dict(), indent=2) + "\n")
    if as_json:
        print_json(found.to_dict())
    else:
        say(found.text())
    if not found.holds:
        raise typer.Exit(1)


def _fingerprint(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError.because(f"{path} cannot be read: {error.strerror}.") from None
