# SPDX-License-Identifier: Apache-2.0
"""``dpcohort guard``: the process that holds a client's data, for the client's owner.

What starts or tries a guard (``deploy.guard.start``) loads torch, so the commands that need it
import it themselves.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from dpcohort.cli._terminal import (
    JsonOption,
    LogJsonOption,
    MetricsOption,
    print_json,
    print_text,
    say,
    shape_from,
    write_new,
)
from dpcohort.deploy._formats import read_toml
from dpcohort.deploy._monitoring import json_line, publish_metrics
from dpcohort.deploy.guard._files import (
    check_unwritable,
    guarded_data,
    identity_beside,
    load_identity,
    make_identity,
)
from dpcohort.deploy.guard._terms import GuardTerms, ModelTerms, commented_terms, terms_from_plan
from dpcohort.errors import InputError
from dpcohort.limits import LARGEST_FEDERATION
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan

guard = typer.Typer(
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    help="Hold a client's data and answer a server within the owner's terms, and no further.",
)

TermsOption = Annotated[
    Path | None, Option("--terms", metavar="FILE.toml", help="The owner's terms.")
]
DataOption = Annotated[
    Path | None,
    Option("--data", metavar="FILE", help="inputs and labels of the client, or its table."),
]
CounterOption = Annotated[
    Path | None, Option("--counter", help="The ledger's counter, if not LEDGER.counter.")
]
NewLedgerOption = Annotated[
    bool,
    Option(
        "--new-ledger", help="Make the ledger, for data that have none, and pin its id in --terms."
    ),
]


@guard.callback()
def serve(
    context: typer.Context,
    terms: TermsOption = None,
    data: DataOption = None,
    ledger: Annotated[Path | None, Option(help="The client's ledger.")] = None,
    socket: Annotated[Path | None, Option(help="Where to listen.")] = None,
    counter: CounterOption = None,
    new_ledger: NewLedgerOption = False,
    metrics: MetricsOption = None,
    log_json: LogJsonOption = False,
) -> None:
    """Start a guard: check files and terms, then answer until it is told to stop."""
    if context.invoked_subcommand is not None:
        return
    given = {"--terms": terms, "--data": data, "--ledger": ledger, "--socket": socket}
    missing = [name for name, value in given.items() if value is None]
    if terms is None or data is None or ledger is None or socket is None:
        raise InputError.because(
            f"a guard needs {', '.join(missing)} too. Write terms with: dpcohort guard new"
        )
    from dpcohort.deploy.guard._start import open_guard, terms_in_words

    service = open_guard(
        terms,
        data=data,
        ledger=ledger,
        socket=socket,
        counter=counter,
        new_ledger=new_ledger,
        log=_log_json if log_json else _log,
    )
    with service:
        if new_ledger:
            say(_pinned(terms, ledger, str(service.handler.terms.ledger_id)))
        for line in terms_in_words(service.handler.terms, service.handler.records):
            say(line)
        if metrics is not None:
            say(f"metrics: {publish_metrics(metrics, service.metrics, service.ill)}")
        say(f"ready: listening at {socket}. End it with Ctrl-C.")
        sys.stdout.flush()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: service.interrupt())
        service.serve_forever()
    say("stopped. What was counted stays counted.")


@guard.command("pin")
def pin(
    terms: Annotated[Path, Option(metavar="FILE.toml", help="The terms.")],
    ledger: Annotated[Path, Option(help="The client's ledger.")],
    counter: CounterOption = None,
    new_ledger: NewLedgerOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the ledger's id into the terms: a guard then serves from no other ledger."""
    from dpcohort.deploy.guard._start import pin_ledger

    found = pin_ledger(terms, ledger, counter=counter, new=new_ledger)
    if as_json:
        print_json({"terms": str(terms), "ledger": str(ledger), "ledger_id": found})
        return
    say(_pinned(terms, ledger, found))


def _pinned(terms: Path, ledger: Path, identity: str) -> str:
    return f"{ledger} is the ledger {identity}, pinned in {terms}: no other is served from."


@guard.command("check")
def check(
    terms: Annotated[Path, Option(metavar="FILE.toml", help="The terms.")],
    data: DataOption = None,
    records: Annotated[int | None, Option(min=1, help="Number of records, without data.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check terms, say what each run may spend, and try the model; nothing is spent or written.

    Third-party code is named with its file and hash, and not run.
    """
    from dpcohort.deploy.guard._start import (
        check_identity,
        check_terms,
        terms_in_words,
        third_party_code,
        try_model,
    )

    check_unwritable(terms, "terms")
    found = GuardTerms.from_toml(terms)
    held = None
    if data is not None:
        held = guarded_data(data, found)
        records = len(held)
    if records is None:
        raise InputError.because("give --data FILE, or --records for their number alone.")
    check_identity(found)
    code = third_party_code(found.model)
    if as_json:
        runs = {
            run: {
                **one.to_dict(),
                "certified_epsilon": one.certified_epsilon(),
                **one.trust.worst_case(one),
            }
            for run, one in check_terms(found, records).items()
        }
        values: dict[str, Any] = {"dataset": found.dataset, "records": records, "runs": runs}
        if not code:
            try_model(found, held)
        said = {name: {"path": str(one.path), "sha256": one.sha256} for name, one in code.items()}
        values |= {"cap": found.cap().to_dict(), "model": found.model.sha256()}
        values |= {"code": said} if said else {}
        print_json(values)
        return
    for line in terms_in_words(found, records):
        say(line)
    if code:
        for name, one in code.items():
            say(f"Not tried: {name} is code of somebody, {one}. A guard would run it on your data.")
        say(f"Read it. To allow it: dpcohort guard allow-code --terms {terms} --ledger LEDGER")
        return
    on = "your records" if held is not None else "made-up records"
    size = f"{try_model(found, held):,} parameters"
    say(f"Tried: {found.model.name} has {size}; a step on {on} works.")


@guard.command("decide")
def decide(
    run: Annotated[str, Argument(metavar="RUN", help="A run that the terms propose.")],
    terms: Annotated[Path, Option(metavar="FILE.toml", help="The terms.")],
    data: DataOption,
    ledger: Annotated[Path, Option(help="The client's ledger.")],
    counter: CounterOption = None,
    accept: Annotated[bool, Option("--accept", help="Accept it.")] = False,
    refuse: Annotated[
        str | None, Option(metavar="REASON", help="Refuse it; the operator is told why.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a proposed run would do and spend; accept or refuse it, signed in the ledger."""
    from dpcohort.deploy.guard._start import (
        check_identity,
        check_terms,
        decide_run,
        open_ledger,
        proposal_in_words,
    )

    check_unwritable(terms, "terms")
    found = GuardTerms.from_toml(terms)
    if data is None:
        raise InputError.because("give --data FILE: what a run spends depends on their number.")
    if accept and refuse is not None:
        raise InputError.because("give either --accept or --refuse REASON.")
    held = guarded_data(data, found)
    runs = check_terms(found, len(held))
    with open_ledger(ledger, held, found, runs, counter=counter) as opened:
        lines = proposal_in_words(found, run, len(held), opened.accepted(found.dataset))
        before = opened.decided(found.dataset).get(run)
        state = "not decided" if before is None else "accepted" if before.accepted else "refused"
        if accept or refuse is not None:
            state = "accepted" if accept else "refused"
            said: dict[str, Any] = {"accepted": accept, "reason": refuse or ""}
            said["identity"] = check_identity(found) or identity_beside(ledger)
            decide_run(found, run, len(held), opened, **said)
    if as_json:
        print_json({"run": run, "decision": state, "words": lines})
        return
    for line in lines:
        say(line)
    if accept or refuse is not None:
        say(f"{run}: {state}, signed in {ledger}. A guard that runs knows it from now on.")
    else:
        say(f"{run}: {state}. Decide with --accept, or --refuse REASON.")


@guard.command("allow-code")
def allow_code(
    terms: Annotated[Path, Option(metavar="FILE.toml", help="The terms.")],
    ledger: Annotated[Path, Option(help="The client's ledger, there or not yet.")],
    as_json: JsonOption = False,
) -> None:
    """Let the guard run the third-party model or loss that the terms name, as its file is now."""
    from dpcohort.deploy.guard._start import allow_third_party_code

    check_unwritable(terms, "terms")
    model = GuardTerms.from_toml(terms).model
    code = allow_third_party_code(model, ledger, beside=terms.parent)
    if as_json:
        print_json(
            {name: {"path": str(one.path), "sha256": one.sha256} for name, one in code.items()}
        )
        return
    for name, one in code.items():
        say(f"Allowed: {name}, {one.path}, sha256 {one.sha256}. If it changes it is refused.")
    if not code:
        say(f"{terms} names nothing but dpcohort's own: nothing is to be allowed.")


@guard.command("new")
def new(
    path: Annotated[Path, Argument(help="Where to write them; - for the terminal.")] = Path(
        "terms.toml"
    ),
    plan: Annotated[Path | None, Option(help="Propose what a saved plan asks for.")] = None,
    client: Annotated[str | None, Option(help="Which client of it.")] = None,
    run: Annotated[str, Option(help="Name of the run.")] = "run-1",
    model: Annotated[str, Option(help="Name of the model.")] = "logistic",
    input_shape: Annotated[str, Option(help="Of a record.")] = "64",
    classes: Annotated[int, Option(help="Number of classes.")] = 10,
    user: Annotated[list[str] | None, Option(help="A user that may ask; may be repeated.")] = None,
    members: Annotated[
        Path | None,
        Option(metavar="FILE.toml", help="Where noise is distributed: everybody's key, by name."),
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace a file that exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write terms for the owner to read, change and keep."""
    if plan is None:
        text = commented_terms()
    else:
        if client is None:
            raise InputError.because("--plan needs --client: the id of the client in the plan.")
        known = ModelTerms(name=model, input_shape=shape_from(input_shape), classes=classes)
        users = [int(one) if one.isdecimal() else one for one in user or []]
        found = Plan.load(plan)
        keys = None if members is None else read_toml(members, at_most_bytes=LARGEST_FEDERATION)
        text = terms_from_plan(
            found, client, run=run, model=known, allowed_users=users, members=keys
        )
    if write_new(path, text, force=force, as_json=as_json, mode=0o600):
        step = f"dpcohort guard check --terms {path} --data ..."
        say(f"Wrote {path}. Read it, change it, then: {step}")


@guard.command("identity")
def identity(
    path: Annotated[Path, Argument(help="The file, new or there.")] = Path("identity.key"),
    as_json: JsonOption = False,
) -> None:
    """Make a client's secret for distributed noise; say its public key, for others to pin."""
    made = not path.exists()
    found = make_identity(path) if made else load_identity(path)
    if as_json:
        print_json({"identity": str(path), "made": made, "public": found.public})
        return
    say(f"{'Made' if made else 'Found'} {path}. Keep it to yourself and keep a copy of it.")
    say(f"Public key, for the others' terms: {found.public}")


def _log(line: str) -> None:
    """One line of what was asked and answered, never of what was computed."""
    print_text(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {one_line(line)}", to_errors=True)


def _log_json(line: str) -> None:
    print_text(json_line("guard", line), to_errors=True)
