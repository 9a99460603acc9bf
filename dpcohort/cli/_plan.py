# SPDX-License-Identifier: Apache-2.0
"""``dpcohort plan``, ``explain`` and ``what-if``: a certified plan, and questions to it."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text
from typer import Argument, Option

from dpcohort._validate import choice
from dpcohort.cli._sources import plan_from, plan_place, read_config, say_never_drawn
from dpcohort.cli._terminal import (
    ClientsOption,
    JsonOption,
    LargeDeltaOption,
    SetOption,
    SourceArgument,
    console,
    new_table,
    print_json,
    print_progress,
    say,
    sparkline,
    typed_here,
)
from dpcohort.config import Config, known_keys
from dpcohort.config._schema import ConfigFile
from dpcohort.errors import InputError
from dpcohort.explain import Scenario, explain_client, sweep, value_of_trust
from dpcohort.plain_text import one_line
from dpcohort.plugins import RULES, settings_of
from dpcohort.report._plan_summary import plan_table, plan_values
from dpcohort.runs import configured_data, configured_population, configured_training
from dpcohort.runs._configured import configured_plan
from dpcohort.runs._success import plan_warnings
from dpcohort.selection import rule_from_settings


def plan(
    source: SourceArgument = None,
    clients: ClientsOption = None,
    changes: SetOption = None,
    rounds: Annotated[int | None, Option(help="Global rounds.")] = None,
    cohort_size: Annotated[int | None, Option(help="Draws per round.")] = None,
    batch_size: Annotated[int | None, Option(help="Expected batch of a client.")] = None,
    rule: Annotated[str | None, Option(help="Selection rule.", callback=typed_here)] = None,
    eta: Annotated[str | None, Option(help="Weight of the noise: a number or auto.")] = None,
    bias_cap: Annotated[float | None, Option(help="Largest ||p - p^u||_1.")] = None,
    accountant: Annotated[str | None, Option(help="tight or paper.")] = None,
    guard: Annotated[
        str | None, Option(help="Where paper noise does not certify: refuse or lift.")
    ] = None,
    seed: Annotated[int | None, Option(help="What the schedule is drawn from.")] = None,
    allow_large_delta: LargeDeltaOption = False,
    out: Annotated[Path | None, Option("--out", "-o", help="Save the plan here.")] = None,
    picture: Annotated[
        Path | None, Option(help="Draw size x epsilon here (.png, .pdf, .svg).")
    ] = None,
    rows: Annotated[int, Option(min=2, help="Clients in the table.")] = 12,
    as_json: JsonOption = False,
) -> None:
    """Select, schedule, calibrate and certify; nothing is trained."""
    settings = {
        "training.rounds": rounds,
        "training.cohort_size": cohort_size,
        "training.batch_size": batch_size,
        "selection.rule": rule,
        "selection.eta": eta,
        "selection.bias_cap": bias_cap,
        "privacy.accountant": accountant,
        "privacy.guard": guard,
        "schedule.seed": seed,
        "population.allow_large_delta": "true" if allow_large_delta else None,
    }
    given = [f"{key}={value}" for key, value in settings.items() if value is not None]
    read = [path.resolve() for path in (source, clients) if path is not None]
    for written in (out, picture):
        if written is not None and written.resolve() in read:
            raise InputError.because(f"{written} is read by this command; write to another file.")
    if picture is not None:
        from dpcohort.report._figures import picture_format, save_plan_figure  # loads matplotlib

        picture_format(picture)  # refuse what could not be written before anything is
    made = plan_from(source, clients, [*(changes or []), *given])
    if picture is not None:
        save_plan_figure(made, picture)
    if out is not None:
        made.save(out)
    if as_json:
        print_json(plan_values(made))
        return
    console.print(plan_table(made, rows=rows))
    for words in plan_warnings(made):
        say(f"WARNING: {words}", style="yellow")
    say_never_drawn(made)
    for words in made.noise.notes(made.contract, made.training.cohort_size):
        say(words)
    for path in (out, picture):
        if path is not None:
            console.print(f"Wrote {path}")


def explain(
    client: Annotated[
        str,
        Argument(help="Id of the client; a config or plan alone: what pooling is worth to all."),
    ],
    source: Annotated[
        Path | None,
        Argument(
            metavar="[SOURCE]",
            help="A config (.toml), a list of clients (.csv), a saved plan (.json) or a run.",
        ),
    ] = None,
    clients: ClientsOption = None,
    changes: SetOption = None,
    epsilon: Annotated[
        float | None, Option(help="The larger budget to try; twice its own if not given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a client has its probability and noise, and what would change them.

    Without a client, of a config, a list of clients, a plan or a run: what distributed noise would
    be worth to these clients, before anything is trained.
    """
    alone = Path(client)
    if source is None and clients is None and _is_source(alone):
        found = value_of_trust(_scenario_of(alone, None, changes))
        if as_json:
            print_json(found.to_dict())
        else:
            console.print(found.text())
        return
    if source is not None and _is_source(alone) and not _is_source(source):
        raise InputError.because(
            f"{client} is what to look at, not a client. The client comes first: dpcohort explain "
            f"{source} {client}"
        )
    source = plan_place(source)

    rule = None
    if source is not None and source.suffix.lower() == ".json":
        made = plan_from(source, clients, changes)
    else:
        config = read_config(source, clients, changes)
        made = configured_plan(config, progress=print_progress)
        if not config.is_adaptive:  # a plan forgets where a rule of one's own came from
            rule = rule_from_settings(config.rule, **config.rule_settings)
    explanation = explain_client(made, client, larger_epsilon=epsilon, rule=rule)
    if as_json:
        print_json(explanation.to_dict())
    else:
        console.print(explanation.text())


def _is_source(path: Path) -> bool:
    """Whether what stands in the place of a client is a file to plan from, or a run."""
    named = path.suffix.lower() in (".toml", ".csv", ".json") and path.is_file()
    return named or (path / "plan.json").is_file()


#: What can be varied, and the values that are tried if none are given.
_USUAL = {
    "eta": "0.001:1000:13",
    "bias_cap": "0,0.1,0.2,0.4,0.6,0.8,1",
    "rounds": "10,20,50,100,200,500,1000",
    "batch_size": "8,16,32,64",
    "accountant": "paper,tight",
    "epsilon": "0.1:10:9",
    "sampling_rate": "0.01,0.03,0.1,0.3,1",
    "cohort_size": "1,2,5,10,20,50",
    "local_steps": "1,2,5,10",
    "dimension": "100,1000,10000,100000,1000000",
    "rule": "privacy-aware,unbiased,uniform",
    "noise_model": "exact,paper",
    "floor": "0,0.1,0.2,0.5,1",
    "clip": "0.1,0.3,1,3,10",
    "smoothness": "0.1,0.3,1,3,10",
}
#: What ``sweep`` changes by itself; any other setting is changed in the configuration.
_SWEPT = ("eta", "bias_cap", "rounds", "batch_size", "accountant", "epsilon")
#: Sections that decide about probabilities and noise.
_PLANNED = ("training", "selection", "privacy", "population")
#: Sections that decide about records, parameters and what is left of budgets, if there is data.
_COUNTED = ("data", "model", "tuning")
#: Settings that take the place of another, or make it be counted anew.
_INSTEAD = {
    "training.sampling_rate": "training.batch_size",
    **dict.fromkeys(("model.name", "model.options", "model.frozen"), "training.dimension"),
}


def what_if(
    setting: Annotated[
        str,
        Argument(
            help="eta, bias_cap, epsilon (of --client), or any key of the sections "
            "training, selection, privacy, population, data, model or tuning, such as rounds, "
            "sampling_rate, training.clip or model.name; trust compares local with distributed "
            "noise, and takes a saved plan as well."
        ),
    ],
    source: SourceArgument = None,
    clients: ClientsOption = None,
    changes: SetOption = None,
    values: Annotated[
        str | None,
        Option(
            help="A list 1,2,5 or a range low:high:count spaced by equal ratios.",
            callback=typed_here,
        ),
    ] = None,
    client: Annotated[
        str | None, Option(help="Follow this client; needed to sweep epsilon.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Try several values of one setting, without drawing a schedule or training."""
    if setting.rpartition(".")[2] == "trust":
        if values is not None or client is not None:
            raise InputError.because(
                "what-if trust compares local with distributed noise for all clients; leave "
                "--values and --client out."
            )
        _print_trust(_scenario_of(source, clients, changes), as_json=as_json)
        return
    config = read_config(source, clients, changes)
    _refuse_adaptive(config)

    key = _key(setting)
    name = key.rpartition(".")[2]
    if key.partition(".")[0] in _COUNTED and config.data is None:
        raise InputError.because(f"{key} decides nothing in a config without [data].")
    if values is None and name not in _USUAL:
        raise InputError.because(f"say which values of {key} to try, such as: --values 1,2,5")
    tried = _parsed(name, values or _USUAL[name])
    if name in _SWEPT:
        outcomes = sweep(_scenario(config), name, tried, client=client)
    else:
        outcomes = []
        for value in tried:
            instead = [f"{_INSTEAD[key]}="] if key in _INSTEAD else []
            one = _scenario(config.with_overrides([*instead, f"{key}={value}"]))
            (found,) = sweep(one, "rounds", [one.training.rounds], client=client)
            outcomes.append({**found, "value": value})
    if as_json:
        print_json({"setting": setting, "outcomes": outcomes})
    else:
        _print_outcomes(
            setting, outcomes, client, letter="w" if config.contract.is_distributed else "p"
        )


def _refuse_adaptive(config: Config) -> None:
    if config.is_adaptive:
        raise InputError.because(
            f"the rule {config.rule} chooses each cohort during the training, so there are no "
            "probabilities to try settings on. dpcohort plan CONFIG --set KEY=VALUE shows its caps "
            "and noise."
        )


def _scenario(config: Config) -> Scenario:
    """Everything in a config that fixes probabilities."""
    data = None if config.data is None else configured_data(config)
    return Scenario(
        population=configured_population(config, data),
        training=configured_training(config, data),
        rule=config.rule,
        rule_settings=config.rule_settings,
        contract=config.contract,
        noise_model=config.noise_model,
    )


def _scenario_of(source: Path | None, clients: Path | None, changes: list[str] | None) -> Scenario:
    """The scenario of a config, a list of clients, a saved plan or a run."""
    source = plan_place(source)
    if source is None or source.suffix.lower() != ".json":
        config = read_config(source, clients, changes)
        _refuse_adaptive(config)
        distributed = ["privacy.trust=distributed"]
        if config.training.cohort_size < 2:  # all clients in every cohort are looked at as well
            distributed.append("training.cohort_size=2")
        config.with_overrides(distributed)  # refuses what goes with local trust alone
        return _scenario(config)
    made = plan_from(source, clients, changes)
    return Scenario.of(made)


def _print_trust(scenario: Scenario, *, as_json: bool) -> None:

    found = value_of_trust(scenario)
    if as_json:
        print_json({"setting": "trust", **found.to_dict()})
        return
    columns = ("trust", "cohort", "honest", "noise", "gain", "moved", "pays from")
    table = new_table(*columns, close=True, justify="right", no_wrap=True)
    for one in found.outcomes:
        pays = "never" if one.pays_from is None else f"{one.pays_from} honest"
        table.add_row(
            one.trust,
            str(one.cohort_size),
            str(one.honest) if one.trust == "distributed" else "-",
            f"{one.noise_to_clip:.4g} C",
            f"{one.gain:.3g} x",
            f"{one.bias / 2:.1%}",
            pays if one.trust == "distributed" else "-",
        )
    console.print(table)
    console.print(
        "noise: on a round's mean gradient, in units of the clip C; gain: how many times less "
        "variance than everybody's own noise at the same weights; moved: weight that goes to other "
        "clients than by size (less noise lets a rule move less); pays from: honest members from "
        "which on distributed noise is less than everybody's own."
    )
    if found.limit is not None:
        console.print(
            f"If bias did not count: all in every cohort, the least noise has {found.limit:.3g} "
            "times less variance than that of local trust."
        )


def _key(setting: str) -> str:
    """The setting with its section, as in a config.

    Raises:
        InputError: no plan depends on it, or there is no such setting.
    """
    known = known_keys(ConfigFile)
    own = dict.fromkeys(s for name in RULES["selection"] for s in settings_of("selection", name))
    ordered = (*_PLANNED, *_COUNTED)  # of equal names the first
    bare = {
        **{key: f"{section}.{key}" for section in reversed(ordered) for key in known[section]},
        **{key: f"selection.{key}" for key in own},
        **{name: name for name in _SWEPT},
    }
    section, _, key = setting.rpartition(".")
    if section == "selection" or (section in ordered and key in known[section]):
        return key if bare.get(key) == key and section not in _COUNTED else setting
    trained = (*known["optimiser"], *known["run"])
    if (section in known and section and section not in ordered) or setting in trained:
        raise InputError.because(
            f"{setting} changes neither probabilities nor noise, only what training makes of them. "
            "Try its values in a [grid]: dpcohort compare CONFIG"
        )
    return bare[choice("setting", setting, [*_SWEPT, *sorted(bare.keys() - set(_SWEPT))])]


def _parsed(setting: str, text: str) -> list[float | str]:
    if setting == "accountant":
        return [word.strip() for word in text.split(",")]
    if setting not in _SWEPT and ":" not in text:
        return [_value(word.strip()) for word in text.split(",")]
    try:
        parts = [float(part) for part in text.replace(":", ",").split(",")]
    except ValueError:
        parts = []
    if not parts or (":" in text and len(parts) != 3):
        raise InputError(
            "values", given=text, allowed="numbers as 1,2,5 or a range as low:high:count"
        )
    if ":" not in text:
        return list(parts)
    low, high, count = parts
    if not (0 < low <= high < math.inf and count in range(2, 1001)):
        raise InputError(
            "values",
            given=f"{low:g}:{high:g}:{count:g}",
            allowed="a range with 0 < low <= high and 2 to 1000 values",
        )
    spaced = [low * (high / low) ** (i / (count - 1)) for i in range(int(count))]
    whole = ("rounds", "batch_size", "cohort_size", "local_steps", "dimension")
    return [round(x) if setting in whole else x for x in spaced]


def _value(word: str) -> float | str:
    """A number where it is one; whole numbers stay whole."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    return word


def _print_outcomes(
    setting: str, outcomes: list[dict[str, Any]], client: str | None, *, letter: str
) -> None:

    columns = (setting, "noise", "moved", f"largest {letter}", f"smallest {letter}", "out")
    table = new_table(*columns, close=True, justify="right", no_wrap=True)
    lines = {
        "noise": [outcome["noise_to_clip"] for outcome in outcomes],
        "moved": [outcome["bias"] for outcome in outcomes],
    }
    if client is not None:
        table.add_column(Text(f"{letter} of {one_line(client)}"), justify="right", overflow="fold")
        lines[client] = [outcome["client_probability"] or 0.0 for outcome in outcomes]
    table.add_column("", no_wrap=True)
    worst = max(lines["noise"])
    for outcome in outcomes:
        row = [
            outcome["value"] if isinstance(outcome["value"], str) else f"{outcome['value']:.4g}",
            f"{outcome['noise_to_clip']:.4g} C",
            f"{outcome['bias'] / 2:.1%}",
            f"{outcome['largest']:.4f}",
            f"{outcome['smallest']:.2g}",
            str(outcome["excluded"]),
        ]
        if outcome["client_probability"] is not None:
            row.append(f"{outcome['client_probability']:.4f}")
        bar = round(12 * outcome["noise_to_clip"] / worst) if worst > 0 else 0
        table.add_row(*row, "█" * max(bar, 1))
    console.print(table)
    width = max(len(name) for name in lines)
    for name, values in lines.items():
        console.print(f"{name:<{width}}  {sparkline(values)}")
    console.print(
        "noise: on a round's mean gradient, in units of the clip C; moved: share of the draws that "
        "go to other clients than by size; out: clients of probability 0."
        if letter == "p"
        else "noise: on a round's mean gradient, in units of the clip C; w: weight in the model; "
        "moved: weight that goes to other clients than by size; out: clients without weight."
    )
