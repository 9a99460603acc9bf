# SPDX-License-Identifier: Apache-2.0
"""``dpcohort rules``: every rule there is, what it needs, what it shows, and where it is from."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

from rich.table import Table
from rich.text import Text
from typer import Argument

from dpcohort._validate import choice
from dpcohort.cli._terminal import (
    JsonOption,
    console,
    new_table,
    print_error,
    print_json,
    print_note,
    say,
)
from dpcohort.errors import InputError
from dpcohort.plugins import (
    RULES,
    announced,
    find_rule,
    is_named_function,
    is_of_kind,
    named_function,
    overshadowed,
    rule_card,
    rule_names,
)

_TITLES = {
    "selection": "Selection, fixed before training ([selection] rule = ...)",
    "adaptive": "Selection, round by round from charged reports ([selection] rule = ...)",
    "aggregation": "Aggregation of a round's noisy updates ([aggregation] rule = ...)",
}


def rules(
    which: Annotated[
        str | None,
        Argument(
            metavar="[KIND|NAME]",
            help="selection, adaptive or aggregation; or a rule's name (also module:Class), to "
            "read about it.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List all rules: what each needs, what it leaks, where it comes from."""
    if which is not None and which not in RULES:
        _tell_about(which, as_json=as_json)
        return
    cards = {kind: _cards(kind) for kind in ([which] if which else RULES)}
    if as_json:
        print_json(cards)
        return
    for kind, found in cards.items():
        if found:
            console.print(_TITLES[kind], style="bold")
            console.print(rules_table(found))
    console.print(
        "Try all: dpcohort compare-rules FILE   One rule: dpcohort rules NAME\n"
        'Your own: rule = "module:Class", see docs/reference/rules.md.'
    )


def rules_table(cards: list[dict[str, Any]]) -> Table:
    """One line a rule, where the terminal is wide enough.

    Example:
        >>> rules_table([rule_card("selection", "uniform")]).row_count
        1
    """
    table = new_table("rule", no_wrap=True)
    for column, ratio in (("needs", 3), ("leaks", 3), ("reference", 5)):
        table.add_column(column, overflow="fold", ratio=ratio)
    for card in cards:
        table.add_row(*(Text(card[key]) for key in ("name", "needs", "leaks", "reference")))
    return table


def _cards(kind: str) -> list[dict[str, Any]]:
    found = []
    for words in overshadowed(kind).values():
        print_note(words)
    for name in rule_names(kind):
        try:
            found.append(rule_card(kind, name))
        except InputError as error:  # of another package; the others are listed
            print_error(str(error))
    return found


def _tell_about(name: str, *, as_json: bool) -> None:
    kind = _kind_of(name)
    card = rule_card(kind, name)
    for other in RULES:
        if name in (told := overshadowed(other)):
            print_note(told[name])
    if as_json:
        print_json(card)
        return
    text = inspect.getdoc(find_rule(kind, name)) or card["summary"]
    console.print("{name} ({kind}, {home})\n".format(**card))
    say(text.split("\nExample:")[0].rstrip())
    say("\nneeds      {needs}\nleaks      {leaks}\nreference  {reference}".format(**card))


def _kind_of(name: str) -> str:
    """The kind of a rule by its name; of a class of one's own by its mark or its base."""
    if not is_named_function(name):
        own = {known: kind for kind, places in RULES.items() for known in places}
        others = {known: kind for kind in RULES for known in announced(kind)}
        homes = others | own  # a name of this package means its own rule
        return homes[choice("rule", name, [*RULES, *own, *others])]
    rule = named_function("rule", name, example="my_project.rules:MyRule")
    kinds = [kind for kind in RULES if is_of_kind(kind, rule)]
    if not kinds:
        marks = ", ".join(f'@dpcohort.plugin("{kind}")' for kind in RULES)
        raise InputError("rule", given=name, allowed=f"a class that is marked by one of {marks}")
    return kinds[0]
