# SPDX-License-Identifier: Apache-2.0
"""``dpcohort tune`` and ``worth``: settings without spending, and what budgets are worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from dpcohort._validate import choice, number
from dpcohort.accounting import Charge
from dpcohort.accounting._charges import write_charge
from dpcohort.atomic_file import write_text
from dpcohort.cli._sources import data_changes, say_never_drawn, say_unnamed_charge
from dpcohort.cli._terminal import (
    DataDirOption,
    DeviceOption,
    JsonOption,
    PaidAfterOption,
    SetOption,
    SimulateOption,
    console,
    new_table,
    print_json,
    print_note,
    say,
    showing_progress,
    write_new,
)
from dpcohort.config import load_config
from dpcohort.config._settings import rewritten
from dpcohort.errors import InputError
from dpcohort.limits import LARGEST_CONFIG
from dpcohort.metrics import METRICS
from dpcohort.report._figures import picture_format, save_figure, worth_figure
from dpcohort.runs._config_clients import configured_charges, promised_population, unnamed_charge
from dpcohort.runs._configured import configured_plan
from dpcohort.runs._continuation import charge_run
from dpcohort.runs._folder import write_json
from dpcohort.runs._provenance import SIMULATED_TUNING as SIMULATED
from dpcohort.text_files import parse_toml, read_utf8
from dpcohort.tuning import Tuned, Worth, tune_charged
from dpcohort.tuning import tune as tune_without_spending
from dpcohort.tuning import worth as worth_of
from dpcohort.tuning._budgets import FACTORS

_CONFIG = Argument(metavar="CONFIG", help="A config with data (.toml).")


def tune(
    source: Annotated[Path, _CONFIG],
    out: Annotated[
        Path, Option("--out", "-o", help="Where to write the tuned config; - shows it.")
    ],
    origin: Annotated[
        str,
        Option(
            "--source",
            help="none: generated data of the same shape; public: public records; charged: the "
            "clients' records, paid from their budgets.",
        ),
    ] = "none",
    public: Annotated[
        str | None,
        Option(
            "--public",
            metavar="client|test|FILE",
            help="Which records are public; the public clients' if not given.",
        ),
    ] = None,
    share: Annotated[
        float | None,
        Option(help="Of source charged: which part of what each budget has left, 0.5."),
    ] = None,
    trials: Annotated[
        float | None, Option(help="Of source charged: trials on average, 10.")
    ] = None,
    simulate: SimulateOption = None,
    seeds: Annotated[int, Option(min=1, help="Repetitions on each generated problem.")] = 2,
    rounds: Annotated[int, Option(min=1, help="The most rounds to try.")] = 200,
    quick: Annotated[
        bool, Option("--quick", help="One repetition, 50 rounds: a rough look.")
    ] = False,
    force: Annotated[bool, Option("--force", help="Replace a file that exists.")] = False,
    after: PaidAfterOption = None,
    changes: SetOption = None,
    device: DeviceOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose rounds, batch, clip, step and η; write the config with them, all else as it was.

    The source of the choice is named in the output, in the config and in the receipts of a run of
    it. Without --source nothing is spent and no record is looked at.
    """
    choice("--source", origin, ["none", "public", "charged"])
    if str(out) != "-" and out.exists() and not force:
        raise InputError.because(f"{out} exists already. Choose another name, or use --force.")
    spends = share is not None or trials is not None or simulate is not None or after is not None
    if origin != "charged" and spends:
        raise InputError.because(
            "--share, --trials, --after and --simulate go with --source charged, which "
            "alone spends."
        )
    if origin != "public" and public is not None and (origin, public) != ("charged", "test"):
        raise InputError.because(
            "--public goes with --source public; with --source charged, --public test says that "
            "trials may be scored on the test records for nothing."
        )
    config = load_config(source).with_overrides(data_changes(changes, data_dir, simulate))
    if origin == "charged" and str(out) == "-":
        raise InputError.because("charged tuning is paid for: --out names the config that says so.")
    paid: list[str] = []
    if origin == "charged":
        ids, known = promised_population(config).ids, configured_charges(config)
        unnamed = unnamed_charge(config, ids, known, out.parent)
    with showing_progress(f"tune {source.name}", quiet=as_json) as progress:
        most = 50 if quick else rounds
        shared: Any = {"most_rounds": most, "device": device, "progress": progress}
        if origin == "charged":

            def begin(charge: Charge) -> None:
                say_unnamed_charge(unnamed, private=charge.private)
                # Counted before it is spent: whatever stops this, the file says what is left.
                if after is not None:
                    charge_run(after, charge)
                place = out.with_name(f"{out.stem}-{charge.id[:8]}.charge.json")
                write_charge(place, charge)
                paid.append(f"charges.{charge.id}={json.dumps(place.name)}")
                write_text(out, _rewritten(source, [*(changes or []), *paid]))

            try:
                found = tune_charged(
                    config,
                    share=0.5 if share is None else share,
                    trials=10.0 if trials is None else trials,
                    public_test=public == "test",
                    before_spending=begin,
                    **shared,
                )
            except KeyboardInterrupt:
                if paid:
                    print_note(f"what it was to cost is paid; {out} names it: go on with that file")
                raise
        else:
            found = tune_without_spending(
                config, source=origin, public=public, seeds=1 if quick else seeds, **shared
            )
    stale = [f"tuning.{key}=" for key in config.tuning or {}]
    record = [*paid, *stale, *found.record()]
    text = _rewritten(source, [*(changes or []), *found.changes, *record], found)
    if as_json:
        write_new(out, text, force=True, as_json=True, **found.to_dict())
        return
    if str(out) != "-":
        _print_tuned(found)
    if write_new(out, text, force=True, as_json=False):
        tuned = load_config(out).with_overrides(data_changes(None, data_dir))
        say_never_drawn(configured_plan(tuned))
        say(f"Wrote {out}   Next: dpcohort train {out} --out RUN, or dpcohort worth {out}")


def _rewritten(source: Path, changes: list[str], found: Tuned | None = None) -> str:
    """The file with changed settings; a comment says which were tuned, and on what."""
    text = read_utf8(source, at_most_bytes=LARGEST_CONFIG).decode("utf-8")
    notes = {}
    if "dimension" not in parse_toml(text).get("training", {}):  # it is counted again
        changes = [one for one in changes if not one.startswith("training.dimension=")]
    if found is not None:
        notes = {change.partition("=")[0]: "tuned" for change in found.changes}
        notes |= {"tuning.source": found.words}
    return rewritten(text, changes, notes=notes)


def _print_tuned(found: Tuned) -> None:
    table = new_table("setting", numbers=["tuned"])
    for change in found.changes:
        key, _, value = change.partition("=")
        if value:
            table.add_row(key, value)
    console.print(table)
    say(f"Source {found.source}: {found.words}.")
    if found.before is not None and found.tried:
        chosen = found.tried[found.settings]
        names = [name.rpartition(" ")[0] for name in found.sets]
        for name in dict.fromkeys(names):
            places = [i for i, other in enumerate(names) if other == name]
            old = sum(found.before[i] for i in places) / len(places)
            new = sum(chosen[i] for i in places) / len(places)
            say(
                f"  {name}: loss saved {100 * old:.1f} % with the settings as they were, "
                f"{100 * new:.1f} % now"
            )
        say(_LOSS_SAVED)
    if found.source == "none":
        say("Generated problems say which settings are good, not how good your model will be.")
    if found.charge is not None:
        if not found.charge.private:
            say(SIMULATED)
        most = max((epsilon for epsilon, _ in found.charge.spent.values()), default=0.0)
        say(
            f"Every client paid for it, epsilon {most:.4g} at most. The file names the charge "
            f"({found.charge.title}); what is left trains."
        )


_LOSS_SAVED = "Loss saved: the share of the best constant's loss that a model does not have."


_SHOWN = 10


def worth(
    source: Annotated[Path, _CONFIG],
    target: Annotated[
        float | None, Option(help="Loss saved to reach, e.g. 0.3: how much budget would it take?")
    ] = None,
    public: Annotated[
        str | None,
        Option(
            "--public",
            metavar="client|test|FILE",
            help="Predict from these public records, not from generated ones.",
        ),
    ] = None,
    factors: Annotated[
        list[float] | None,
        Option("--factor", help="A common factor on all budgets; may be repeated."),
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Repetitions on each data set.")] = 3,
    quick: Annotated[bool, Option("--quick", help="One repetition, three factors.")] = False,
    figure: Annotated[
        Path | None, Option("--figure", help="Draw it into this file (.png, .svg, .pdf).")
    ] = None,
    out: Annotated[
        Path | None,
        Option("--out", "-o", help="Save it (.json), for dpcohort report RUN --worth FILE."),
    ] = None,
    changes: SetOption = None,
    device: DeviceOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what budgets are worth: accuracy against ε, and who should raise it first.

    Noise is computed, accuracy is predicted from generated or public records. Nothing is spent.
    """
    if target is not None:
        number("--target", target, above=0, below=1)
    if figure is not None:
        picture_format(figure)
    config = load_config(source).with_overrides(data_changes(changes, data_dir))
    with showing_progress(f"worth {source.name}", quiet=as_json) as progress:
        found = worth_of(
            config,
            source="none" if public is None else "public",
            public=public,
            factors=factors or ((0.5, 1.0, 2.0) if quick else FACTORS),
            seeds=1 if quick else seeds,
            device=device,
            progress=progress,
        )
    needed = None if target is None else found.needed(target)
    if out is not None:
        write_json(out, found.to_dict())
    if figure is not None:
        save_figure(worth_figure(found), figure)
    if as_json:
        told = {} if needed is None else {"target": target, "factor_needed": needed}
        print_json({**found.to_dict(), **told})
        return
    _print_curve(found)
    _print_gains(found, weighted=config.contract.is_distributed)
    say(_LOSS_SAVED)
    say(f"It is predicted from {found.source}.")
    if needed is not None and target is not None:
        for name, factor in needed.items():
            more = (
                f"more than {found.factors[-1]:g} times"
                if factor is None
                else f"{factor:.2g} times"
            )
            say(f"For {target:.0%} on {name}: {more} every epsilon, other settings as they are.")
    for path in (figure, out):
        if path is not None:
            say(f"Wrote {path}")


def _print_curve(found: Worth) -> None:

    names = list(dict.fromkeys(found.sets))
    table = new_table(numbers=["every epsilon", "noise / clip", *names])
    curves = [found.curve(name) for name in names]
    for place, factor in enumerate(found.factors):
        cells = []
        for curve in curves:
            point = curve[place]
            shown = f"{100 * point.mean:.1f}"
            if point.count > 1:
                shown = METRICS["accuracy"].spread(point.mean, point.low, point.high)
            cells.append(f"{shown} %")
        table.add_row(f"x {factor:g}", f"{found.noise[place]:.3g}", *cells)
    console.print(table)


def _print_gains(found: Worth, *, weighted: bool) -> None:
    if not found.gains:
        return
    say("Who should raise epsilon first, by what doubling it alone takes off the noise:")
    heard = "weight" if weighted else "drawn"
    table = new_table("client", numbers=["epsilon", heard, "noise", "predicted loss saved"])
    for gain in found.gains[:_SHOWN]:
        points = f"{gain.accuracy.mean:+.2f}"
        if gain.accuracy.count > 1:
            points += f" ({gain.accuracy.low:+.2f} to {gain.accuracy.high:+.2f})"
        table.add_row(
            gain.client,
            f"{gain.epsilon:.3g}",
            f"{gain.probability:.1%}",
            f"{100 * (gain.noise - 1):+.1f} %",
            f"{points} points",
        )
    console.print(table)
    if len(found.gains) > _SHOWN:
        say(f"and {len(found.gains) - _SHOWN} more with --json")
