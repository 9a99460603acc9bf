# SPDX-License-Identifier: Apache-2.0
"""``dpcohort flower``: a federation on Flower, from a plan to a kit, and a demo."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from dpcohort.cli._sources import plan_of
from dpcohort.cli._terminal import (
    JsonOption,
    LogJsonOption,
    MetricsOption,
    SetOption,
    console,
    print_json,
    say,
    shape_from,
    typed_here,
)
from dpcohort.config import load_config
from dpcohort.data import DATASET_NAMES
from dpcohort.data._arrays import read_npz
from dpcohort.deploy._formats import read_toml
from dpcohort.deploy._monitoring import Log, json_line, publish_metrics
from dpcohort.deploy.flower import write_kit
from dpcohort.deploy.flower._adapter import NodeState, serve_node
from dpcohort.deploy.flower._certificates import renew_certificates
from dpcohort.deploy.flower._kit import write_app
from dpcohort.deploy.flower._trial import run_demo
from dpcohort.deploy.flower.client_app import carry
from dpcohort.deploy.guard._terms import ModelTerms, TableTerms
from dpcohort.errors import InputError
from dpcohort.limits import LARGEST_FEDERATION
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan
from dpcohort.runs import configured_data, data_section
from dpcohort.runs._config_data import person_terms, seen_columns
from dpcohort.text_files import is_table

flower = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Execute a plan with real clients over Flower, where no server can overspend a client.",
)


@flower.command("demo")
def demo(
    out: Annotated[Path, Option("--out", "-o", help="The run folder to write.")] = Path(
        "out/flower-demo"
    ),
    rounds: Annotated[int, Option(min=1, max=100, help="Rounds of the run.")] = 3,
    keep: Annotated[Path | None, Option(help="Keep kit, ledgers and logs in this folder.")] = None,
    distributed: Annotated[
        bool,
        Option(
            "--distributed",
            help="Pool the noise: the server sees masked sums only, and promises count on other "
            "clients. Says on how many, and the epsilon if all others collude.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """A SuperLink and three clients on this machine, offline: about a minute."""
    if keep is not None and keep.exists():
        raise InputError.because(f"{keep} exists. Choose another --keep.")

    began = time.monotonic()

    def tell(words: str) -> None:
        if not as_json:
            say(f"{time.monotonic() - began:5.1f} s  {words}")

    for number in (signal.SIGTERM, signal.SIGHUP):
        # As Ctrl-C, so that what was started is ended.
        signal.signal(number, _interrupt)
    result = run_demo(out, rounds=rounds, say=tell, keep=keep, distributed=distributed)
    if as_json:
        print_json(result)
        return
    for client, draws in result["draws"].items():
        console.print(
            f"{one_line(client)}: {draws['planned']} draws planned, {draws['counted']} counted by "
            "its own ledger"
        )
    verified = result["verification"]
    counting = f"with {verified['honest']} honest members in each cohort, " if distributed else ""
    say(
        f"{result['check'][:1].upper()}{result['check'][1:]}. {verified['clients']} receipts "
        f"verified: {counting}no client spent more than it promised. "
        f"{result['seconds']:.0f} s in all; every process has ended."
    )
    if distributed:
        say(
            "Noise was distributed: the server saw masked sums, and no client's update. If all "
            f"others collude, a client has spent up to epsilon {verified['alone_epsilon']:.4g}, "
            "whatever it promised."
        )
    say(f"Run: {out}   Next: dpcohort verify {out}")


@flower.command("init")
def init(
    folder: Annotated[Path, Argument(metavar="DIR", help="The kit's folder, new.")],
    config: Annotated[Path | None, Option(help="A config: plan, model, step sizes.")] = None,
    plan: Annotated[Path | None, Option(help="A saved plan; needs --model, too.")] = None,
    changes: SetOption = None,
    run: Annotated[str, Option(help="Name of the run, for its clients' owners.")] = "run-1",
    model: Annotated[
        str | None, Option(help="With --plan: name of the model.", callback=typed_here)
    ] = None,
    input_shape: Annotated[str | None, Option(help="With --plan: such as 1x28x28.")] = None,
    classes: Annotated[int | None, Option(help="With --plan: number of classes.")] = None,
    learning_rate: Annotated[float | None, Option(help="With --plan: local step size.")] = None,
    test: Annotated[str, Option(help="Public test data of the server, if any.")] = "",
    host: Annotated[str, Option(help="How clients reach the proxy.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Where the proxy listens.")] = 9443,
    superlink_port: Annotated[int, Option(help="SuperLink, on 127.0.0.1 only.")] = 8000,
    days: Annotated[int, Option(help="How long the certificates are valid.")] = 30,
    timeout: Annotated[float, Option(help="Seconds for a round.")] = 600.0,
    trial: Annotated[
        bool, Option("--trial", help="Guards may be asked by their own user.")
    ] = False,
    members: Annotated[
        Path | None,
        Option(
            metavar="FILE.toml", help="Where noise is distributed: each owner's key, by client."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a runnable Flower app and everything for server and clients."""
    _refuse_training_records(test)
    if (config is None) == (plan is None):
        raise InputError.because("give either --config FILE.toml or --plan plan.json.")
    if config is not None:
        chosen = _from_config(config, changes, test)
    else:
        given = {"--model": model, "--input-shape": input_shape, "--classes": classes}
        missing = [name for name, value in given.items() if value is None]
        if plan is None or model is None or input_shape is None or classes is None:
            raise InputError.because(
                f"a plan does not say what is trained. Give {', '.join(missing)} as well."
            )
        if changes:
            raise InputError.because("--set changes a config; a finished plan cannot be changed.")
        saved = Plan.load(plan)
        saved.verify_unless_made_here()
        chosen = {
            "plan": saved,
            "model": ModelTerms(name=model, input_shape=shape_from(input_shape), classes=classes),
            "optimiser": {} if learning_rate is None else {"learning_rate": learning_rate},
            "test": test,
        }
    kit = write_kit(
        folder,
        run=run,
        host=host,
        gate_port=port,
        superlink_port=superlink_port,
        days=days,
        timeout=timeout,
        trial=trial,
        members=None if members is None else read_toml(members, at_most_bytes=LARGEST_FEDERATION),
        **chosen,
    )
    drawn = int(chosen["plan"].drawn.sum())
    if as_json:
        found = {"out": str(kit), "run": run, "clients": drawn}
        print_json({**found, "plan": chosen["plan"].sha256})
        return
    say(f"Kit for {drawn} clients: {kit}")
    console.print(
        "  README.md        for the operator; read it first\n"
        "  app/             the Flower app\n"
        "  server/          stays on the server\n"
        "  clients/NAME/    for the owner of NAME, nobody else (it holds a private key)"
    )
    if not chosen["test"]:
        console.print(
            "The server has no test data. Public records that are no client's can be given: "
            "--test FILE.npz with test_inputs and test_labels."
        )


@flower.command("new")
def new(
    folder: Annotated[Path, Argument(metavar="DIR", help="The app's folder, new.")],
    rounds: Annotated[int, Option(min=1, max=1000, help="Rounds of its plan.")] = 8,
    clients: Annotated[int, Option(min=1, max=100, help="How many clients.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Write a small Flower app made private by a strategy and a mod, with plan and ledgers."""
    app = write_app(folder, rounds=rounds, clients=clients)
    if as_json:
        print_json({"out": str(app), "rounds": rounds, "clients": clients})
        return
    say(f"Flower app for {clients} clients: {app}. Its README.md says how to run it.")
    say(
        "The server ships the code that adds the noise; who does not trust its operator needs a "
        "guard: dpcohort flower init."
    )


@flower.command("serve")
def serve(
    federation: Annotated[Path, Argument(metavar="FEDERATION", help="federation.toml of a kit.")],
    superlink: Annotated[
        str, Option(metavar="HOST:PORT", help="Where the SuperLink listens, on this machine.")
    ] = "127.0.0.1:8000",
    authority: Annotated[
        Path | None, Option(help="Certificate of its authority; otherwise tls/ca.crt.")
    ] = None,
    out: Annotated[Path | None, Option(help="The run folder; otherwise run.")] = None,
    after: Annotated[
        Path | None, Option(help="The run that a plan of replan goes on from.")
    ] = None,
    metrics: MetricsOption = None,
    log_json: LogJsonOption = False,
) -> None:
    """Keep a federated run going: wait for what is away, start it again, until it is finished."""
    from dpcohort.deploy.flower._operator import Operator  # nodes need not load it
    from dpcohort.deploy.flower._service import Service

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    caller = Operator(superlink, authority or federation.parent / "tls" / "ca.crt")
    log = _logger("service", as_json=log_json)
    service = Service(federation, caller, out=out, after=after, say=log)
    if metrics is not None:
        where = publish_metrics(metrics, service.metrics, service.ill)
        log(f"metrics: {where}")
    try:
        service.run()
    except KeyboardInterrupt:
        log("stopped, and the run with it. What was counted stays counted; start it again any time")


def _logger(part: str, *, as_json: bool) -> Log:
    """Writes lines as they come: for people, or for programs."""

    def log(line: str) -> None:
        if as_json:
            print(json_line(part, line))
        else:
            print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {one_line(line, 800)}")
        sys.stdout.flush()

    return log


@flower.command("renew")
def renew(
    folder: Annotated[Path, Argument(metavar="TLS", help="The folder tls of a kit's server.")],
    days: Annotated[int, Option(help="How long they are valid.")] = 30,
) -> None:
    """Make the next certificates: nodes that have their ca.crt accept the old server, too."""
    made = renew_certificates(folder, days=days)
    say(f"{made}: give its ca.crt to every client's owner; when all nodes have it, move the three")
    say(f"files to {folder} and restart the SuperLink and nginx.")


@flower.command("node")
def node(
    superlink: Annotated[str, Option(metavar="HOST:PORT", help="Where the server listens.")],
    authority: Annotated[Path, Option(help="Certificate of the server's authority (ca.crt).")],
    key: Annotated[Path, Option(help="The node's private key (node.key).")],
    guard: Annotated[Path, Option(metavar="SOCKET", help="Where the client's guard listens.")],
    metrics: MetricsOption = None,
    log_json: LogJsonOption = False,
) -> None:
    """A client's node: takes the server's messages to the guard, and runs no code of the server."""
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise InputError("--superlink", given=superlink, allowed="host and port, as HOST:9443")
    signal.signal(signal.SIGTERM, _interrupt)
    state, log = NodeState(), _logger("node", as_json=log_json)

    def tell(line: str) -> None:
        state.note(line)
        log(line)

    if metrics is not None:
        log(f"metrics: {publish_metrics(metrics, state.metrics, state.ill)}")
    try:
        serve_node(
            lambda body: state.answered(carry(body, {"guard": str(guard)})),
            superlink=superlink,
            authority=authority,
            key=key,
            say=tell,
        )
    except KeyboardInterrupt:
        log("ended: it was asked to, or the SuperLink no longer knows this key")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _refuse_training_records(test: str) -> None:
    """Test data of the server must not hold what the clients keep to themselves."""
    if test.endswith(".npz") and Path(test).is_file():
        held = sorted(name for name in read_npz(test) if name.startswith("train_"))
        if held:
            raise InputError.because(
                f"{test} holds {held[0]}: training records, which a server must not have. Save "
                "test_inputs and test_labels alone, of records that are public and no client's."
            )


def _from_config(path: Path, changes: list[str] | None, test: str) -> dict[str, Any]:
    """What a config says about a kit."""
    from dpcohort.models._weights import weights_sha256  # loads torch

    config = load_config(path).with_overrides(changes or [])
    data = configured_data(config)
    weights = None if config.model.weights is None else config.folder / config.model.weights
    section = data_section(config)
    rule, rule_settings = config.aggregation
    table = None
    if is_table(section.name):
        table = TableTerms(
            client="-",  # each client's terms say its own
            columns=seen_columns(config),
            test_share=section.test_share,
            seed=section.seed or 0,
        )
    return {
        "table": table,
        "persons": person_terms(config),
        "plan": plan_of(config),
        "model": ModelTerms(
            name=config.model.name,
            input_shape=data.input_shape,
            classes=data.classes,
            options=config.model.options,
            task=data.task.to_dict(),
            weights="" if weights is None else str(weights.resolve()),
            weights_sha256=None if weights is None else weights_sha256(weights),
            weights_source=config.model.weights_source,
            frozen=tuple(config.model.frozen),
        ),
        "optimiser": config.optimiser.model_dump(exclude_none=True, exclude_defaults=True),
        "aggregation": {"rule": rule, **rule_settings},
        "normalisation": data.normalisation,
        "seed": config.run.seed,
        "tuning": config.tuning or {},
        # Of a set with a name the test records are published; own files hold clients' records.
        "test": test or (section.name if section.name in DATASET_NAMES else ""),
    }
