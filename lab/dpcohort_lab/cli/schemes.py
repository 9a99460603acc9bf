# SPDX-License-Identifier: Apache-2.0
"""``dpcohort schemes``: privacy schemes of the field, listed, or trained side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dpcohort.cli import (
    DataDirOption,
    JsonOption,
    SetOption,
    console,
    data_changes,
    new_table,
    print_json,
    say,
)
from dpcohort.errors import InputError
from dpcohort_lab.checks import choice
from dpcohort_lab.schemes import SCHEMES, Scheme, make_scheme, scheme_cards

if TYPE_CHECKING:
    from rich.table import Table

    from dpcohort_lab.schemes import SchemeResult

_WARNING = (
    "An epsilon protects its own unit against its own observer. Rows that differ in either must "
    "not be compared as equals: see docs/research/schemes.md."
)
_STAMP = "NOT PRIVATE (simulation): every run is seeded."


def schemes(
    source: Annotated[
        Path | None,
        Argument(
            metavar="[CONFIG]",
            help="A config with data (.toml): train the schemes on it. Without it, list them.",
        ),
    ] = None,
    names: Annotated[
        str, Option("--schemes", metavar="A,B", help="Which schemes, or: all.")
    ] = "all",
    mode: Annotated[
        str,
        Option(
            help="honest (noise by our accountant), formula (as published, certified beside it), "
            "or both."
        ),
    ] = "honest",
    seeds: Annotated[int, Option(min=1, help="Seeds, one after the other.")] = 1,
    receipt: Annotated[
        str | None, Option(metavar="CLIENT", help="Show this client's receipts too.")
    ] = None,
    changes: SetOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List privacy schemes with their units, or train them on the same data and budgets."""
    chosen = _chosen(names, mode)
    if source is None:
        if changes or data_dir is not None or receipt is not None:
            raise InputError.because(
                "--set, --data-dir and --receipt are for training: give a config (.toml), or "
                "write one with: dpcohort new --from digits"
            )
        _list(chosen, as_json=as_json)
        return
    from dpcohort.config import load_config

    config = load_config(source).with_overrides(data_changes(changes, data_dir))
    from dpcohort.runs import configured_data
    from dpcohort_lab.schemes.simulation import Simulation

    data = configured_data(config)
    simulations = [Simulation.of(config, data=data, shift=shift) for shift in range(seeds)]
    if receipt is not None:
        simulations[0].population.index_of(receipt)
    groups = []
    for place, scheme in enumerate(chosen, start=1):
        if not as_json:
            words = f"{place}/{len(chosen)} {scheme.card['name']} ({scheme.mode})"
            console.print(words, style="dim")
        groups.append([scheme.run(simulation) for simulation in simulations])
    if as_json:
        print_json(
            warning=_WARNING,
            stamp=_STAMP,
            schemes=[[outcome.to_dict() for outcome in group] for group in groups],
        )
        return
    console.print(_results(groups))
    for group in groups:
        for words in group[0].notes:
            say(f"{_label(group[0])}: {words}")
    if receipt is not None:
        for group in groups:
            found = next(r for r in group[0].receipts if r.client == receipt)
            say(found.text())
    say(_WARNING)
    console.print(_STAMP)


def _chosen(names: str, mode: str) -> list[Scheme]:
    choice("mode", mode, ["honest", "formula", "both"])
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    everything = wanted == ["all"]
    listed = list(SCHEMES) if everything else list(dict.fromkeys(wanted))
    if not listed:
        raise InputError("--schemes", given=names, allowed="names with commas between, or all")
    found = []
    for name in listed:
        honest = make_scheme(name)
        if mode in ("honest", "both"):
            found.append(honest)
        # Of a list, those without a formula are left out; asked for by name, they are refused.
        by_name = mode == "formula" and not everything
        if mode != "honest" and (honest.card["formula"] or by_name):
            found.append(make_scheme(name, "formula"))
    return found


def _list(chosen: Sequence[Scheme], *, as_json: bool) -> None:
    names = {scheme.card["name"] for scheme in chosen}
    cards = [card for card in scheme_cards() if card["name"] in names]
    if as_json:
        print_json(cards)
        return
    for card in cards:
        _describe(card)
    say(_WARNING)
    console.print("Next: dpcohort schemes CONFIG [--schemes A,B] [--mode both]")


def _describe(card: dict[str, str]) -> None:
    console.print(card["name"], style="bold", end="")
    say(f"  {card['title']}")
    rows = [
        ("unit", f"one {card['unit']} ({card['neighbours']}), against who sees {card['sees']}"),
        ("accountant", card["accountant"]),
        ("needs", card["needs"]),
        ("formula", card["formula"] or "none: honest mode only"),
        ("reference", f"{card['reference']} ({card['source']})"),
    ]
    for name, words in rows:
        say(f"  {name:<11}{words}")


def _label(outcome: SchemeResult) -> str:
    return outcome.card["name"] + (" (formula)" if outcome.mode == "formula" else "")


def _results(groups: Sequence[Sequence[SchemeResult]]) -> Table:
    from dpcohort.runs import mean_interval

    numbers = ("accuracy", "noise a round", "rounds", "certified / promised", "kept", "s")
    table = new_table("scheme", "unit", "observer sees", numbers=numbers, overflow="fold")
    for group in groups:
        first, accuracy = group[0], mean_interval([outcome.accuracy for outcome in group])
        spread = f" ± {100 * accuracy.half_width:.1f}" if len(group) > 1 else ""
        private = sum(not receipt.public for receipt in first.receipts)
        broken = max(outcome.broken for outcome in group)
        share = max(outcome.largest_share for outcome in group)
        table.add_row(
            _label(first),
            first.card["unit"],
            first.card["sees"],
            f"{100 * accuracy.mean:.1f}{spread} %",
            f"{fmean(outcome.noise_std for outcome in group):.3g}",
            f"{fmean(outcome.rounds for outcome in group):.0f}",
            f"{share:.3f}",
            f"{private - broken}/{private}",
            f"{fmean(outcome.seconds for outcome in group):.1f}",
            style="red" if broken else None,
        )
    return table
