# SPDX-License-Identifier: Apache-2.0
"""``dpcohort flower``: a federation on Flower, from a plan to a kit, a demo, and the gate."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import JsonOption, SetOption, plan_of, shape_from
from dpcohort.config import load_config
from dpcohort.errors import InputError
from dpcohort.plain_text import one_line

if TYPE_CHECKING:
    from dpcohort.deploy.flower.kit import KitSettings

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Execute a plan with real clients over Flower, where no server can overspend a client.",
)


@app.command("demo")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder to write.")] = Path(
        "out/flower-demo"
    ),
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds of the run.")] = 3,
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep kit, ledgers and logs in this folder.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """A SuperLink, a gate and three clients on this machine, offline: about a minute."""
    if keep is not None and keep.exists():
        raise InputError.because(f"{keep} exists. Choose another --keep.")
    from dpcohort.deploy.flower.trial import run_demo

    began = time.monotonic()

    def say(words: str) -> None:
        if not as_json:
            elapsed = time.monotonic() - began
            console.print(f"{elapsed:5.1f} s  {words}", markup=False, soft_wrap=True)

    for number in (signal.SIGTERM, signal.SIGHUP):
        # As Ctrl-C, so that what was started is ended.
        signal.signal(number, _interrupt)
    result = run_demo(out, rounds=rounds, say=say, keep=keep)
    if as_json:
        print_json(result)
        return
    for client, draws in result["draws"].items():
        console.print(
            f"{one_line(client)}: {draws['planned']} draws planned, {draws['counted']} counted by "
            "its own ledger",
            markup=False,
        )
    console.print(
        f"Test accuracy {100 * result['accuracy']:.1f} %. {result['verification']['clients']} "
        "receipts verified: no client spent more than it promised. "
        f"{result['seconds']:.0f} s in all; every process has ended.",
        markup=False,
        soft_wrap=True,
    )
    console.print(f"Run: {out}   Next: dpcohort verify {out}", markup=False, soft_wrap=True)


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The kit's folder, new.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", help="A config: plan, model, step sizes.", show_default=False),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="A saved plan; needs --model, too.", show_default=False),
    ] = None,
    changes: SetOption = None,
    run: Annotated[str, typer.Option(help="Name of the run, for its clients' owners.")] = "run-1",
    model: Annotated[
        str | None, typer.Option(help="With --plan: name of the model.", show_default=False)
    ] = None,
    input_shape: Annotated[
        str | None, typer.Option(help="With --plan: such as 1x28x28.", show_default=False)
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="With --plan: number of classes.", show_default=False)
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="With --plan: local step size.", show_default=False)
    ] = None,
    test: Annotated[str, typer.Option(help="Public test data of the server, if any.")] = "",
    host: Annotated[str, typer.Option(help="How clients reach the gate.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where the gate listens.")] = 9443,
    superlink_port: Annotated[int, typer.Option(help="SuperLink, on 127.0.0.1 only.")] = 8000,
    days: Annotated[int, typer.Option(help="How long the certificates are valid.")] = 30,
    timeout: Annotated[float, typer.Option(help="Seconds for a round.")] = 600.0,
    trial: Annotated[
        bool, typer.Option("--trial", help="Guards may be asked by their own user.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a runnable Flower app and everything for server and clients."""
    from dpcohort.deploy.flower.adapter import flower_version
    from dpcohort.deploy.flower.kit import write_kit

    flower_version()
    shared: dict[str, Any] = {
        "run": run,
        "host": host,
        "gate_port": port,
        "superlink_port": superlink_port,
        "days": days,
        "timeout": timeout,
        "trial": trial,
    }
    if (config is None) == (plan is None):
        raise InputError.because("give either --config FILE.toml or --plan plan.json.")
    if config is not None:
        settings = _from_config(config, changes, test, shared)
    else:
        given = {"--model": model, "--input-shape": input_shape, "--classes": classes}
        missing = [name for name, value in given.items() if value is None]
        if plan is None or model is None or input_shape is None or classes is None:
            raise InputError.because(
                f"a plan does not say what is trained. Give {', '.join(missing)} as well."
            )
        if changes:
            raise InputError.because("--set changes a config; a finished plan cannot be changed.")
        settings = _from_plan(plan, model, input_shape, classes, learning_rate, test, shared)
    kit = write_kit(folder, settings)
    drawn = int(settings.plan.drawn.sum())
    if as_json:
        found = {"out": str(kit.path), "run": run, "clients": drawn}
        print_json({**found, "plan": settings.plan.sha256})
        return
    console.print(f"Kit for {drawn} clients: {kit.path}", markup=False, soft_wrap=True)
    console.print(
        "  README.md        for the operator; read it first\n"
        "  app/             the Flower app\n"
        "  server/          stays on the server\n"
        "  clients/NAME/    for the owner of NAME, nobody else (it holds a private key)",
        markup=False,
    )


@app.command("gate")
def gate(
    superlink: Annotated[int, typer.Option(help="Port of the SuperLink on 127.0.0.1.")],
    certificate: Annotated[Path, typer.Option(help="The server's certificate.")],
    key: Annotated[Path, typer.Option(help="Its private key.")],
    authority: Annotated[Path, typer.Option(help="Certificate of the authority (ca.crt).")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 9443,
) -> None:
    """Forward the calls of nodes to a SuperLink, and no others."""
    from dpcohort.deploy.flower.certificates import check_certificate
    from dpcohort.deploy.flower.gate import Gate

    check_certificate(certificate, authority=authority, host="127.0.0.1")
    door = Gate(
        host=host,
        port=port,
        upstream=("127.0.0.1", superlink),
        certificate=certificate,
        key=key,
        authority=authority,
    )
    signal.signal(signal.SIGTERM, _interrupt)
    console.print(
        f"ready: POST /v1/fleet/... on {host}:{door.port} goes to 127.0.0.1:{superlink}, nothing "
        "else does. End it with Ctrl-C.",
        markup=False,
    )
    door.start()
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        door.close()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _from_config(
    path: Path, changes: list[str] | None, test: str, shared: dict[str, Any]
) -> KitSettings:
    from dpcohort.deploy.flower.kit import KitSettings
    from dpcohort.deploy.guard.terms import ModelTerms
    from dpcohort.runs.configured import configured_data, data_section

    config = load_config(path).with_overrides(changes or [])
    data = configured_data(config)
    section = data_section(config)
    rule, rule_settings = config.aggregation
    return KitSettings(
        plan=plan_of(config),
        model=ModelTerms(
            name=config.model.name,
            input_shape=data.input_shape,
            classes=data.classes,
            options=config.model.options,
        ),
        optimiser=config.optimiser.model_dump(exclude_none=True, exclude_defaults=True),
        aggregation={"rule": rule, **rule_settings},
        normalisation=data.normalisation,
        seed=config.run.seed,
        test=test or ("" if "/" in section.name else section.name),
        **shared,
    )


def _from_plan(
    path: Path,
    model: str,
    input_shape: str,
    classes: int,
    learning_rate: float | None,
    test: str,
    shared: dict[str, Any],
) -> KitSettings:
    from dpcohort.deploy.flower.kit import KitSettings
    from dpcohort.deploy.guard.terms import ModelTerms
    from dpcohort.plan import Plan

    plan = Plan.load(path)
    plan.verify_unless_made_here()
    return KitSettings(
        plan=plan,
        model=ModelTerms(name=model, input_shape=shape_from(input_shape), classes=classes),
        optimiser={} if learning_rate is None else {"learning_rate": learning_rate},
        test=test,
        **shared,
    )
