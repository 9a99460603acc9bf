# SPDX-License-Identifier: Apache-2.0
"""Questions to a plan: one client's place in it, another plan beside it, another setting.

Why a client has this probability, how much noise, what one more draw would cost, and what a larger
epsilon would change; what differs between two plans; and, without drawing a schedule, what a plan
would become if one setting were different. Everything here follows from public settings; no data
are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import singledispatch
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from dpcohort._validate import FloatArray, choice, number
from dpcohort.accounting import Contract, calibrate_noise, paper_noise_multiplier
from dpcohort.accounting._unit import unit_of
from dpcohort.clients import Budget, Population
from dpcohort.errors import InputError
from dpcohort.plain_text import counted, one_line
from dpcohort.plan import selection_problem
from dpcohort.planning._noise import DistributedNoise, Noise
from dpcohort.planning._participation import FixedCohorts, Participation
from dpcohort.planning._reports import often
from dpcohort.plugins import RULES, is_rule, place_of
from dpcohort.selection import PlannedRule, SelectionProblem, rule_from_settings, selected
from dpcohort.training import Training

if TYPE_CHECKING:
    from dpcohort.plan import Plan

__all__ = [
    "Explanation",
    "NoiseGain",
    "PlanComparison",
    "Scenario",
    "Swept",
    "TrustOutcome",
    "TrustValue",
    "compare_plans",
    "explain_client",
    "explain_clients",
    "noise_gains",
    "papers_noise",
    "sweep",
    "value_of_trust",
]


#: Rules that weigh a client's noise, so that it is the reason for its probability.
_BY_NOISE = ("privacy-aware", "inverse-noise")


@dataclass(frozen=True)
class Explanation:
    """What a plan says of one client.

    Attributes:
        numbers: plain values by name. Of every client ``client``, ``rule``, ``size``, ``unit``,
            ``public``, ``epsilon`` and ``delta``; the others are described where they are made.
        sentences: what they mean, one thought each.
    """

    numbers: Mapping[str, Any]
    sentences: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, ready for JSON."""
        return dict(self.numbers)

    def text(self) -> str:
        """The explanation in plain sentences, one thought a line."""
        return "\n".join(self.sentences)


def _who(plan: Plan, k: int) -> dict[str, Any]:
    """Who a client of any plan is, and what it promised; public clients promise nothing."""
    people, public = plan.population, bool(plan.population.public[k])
    return {
        "client": people.ids[k],
        "rule": plan.rule,
        "size": int(people.sizes[k]),
        "unit": plan.contract.unit.name,
        "public": public,
        "epsilon": None if public else float(people.epsilon[k]),
        "delta": None if public else float(people.delta[k]),
    }


def _promise(told: Mapping[str, Any]) -> str:
    promise = "is public: its records need no privacy"
    if not told["public"]:
        promise = f"promised epsilon {told['epsilon']:.4g} at delta {told['delta']:.2g}"
    units = unit_of(told["unit"]).several
    return f"{one_line(told['client'])} holds {told['size']:,} {units} and {promise}."


@singledispatch
def _reasons(noise: Noise, told: Mapping[str, Any]) -> list[str]:
    """Why a client has its probability and its noise, and what would change them."""
    lines = [_why(told), _noise(told)]
    if told["one_more_draw"] is None:
        return lines
    lines.append(_one_more(told))
    if (larger := told["larger_budget"]) is not None:
        return [*lines, _larger(told, **larger)]
    return [
        *lines,
        "What a larger epsilon would change cannot be told from the plan alone: its rule is not "
        "installed here. Explain the config it was made from.",
    ]


@_reasons.register(DistributedNoise)
def _(noise: DistributedNoise, told: Mapping[str, Any]) -> list[str]:
    """Weight in the model, and the honest-client assumption."""
    if told["draws"] == 0:
        return ["It is never drawn, has no weight and spends nothing."]
    lines = [
        f"It is drawn {often(told['draws'])} and its mean gradient then counts with weight "
        f"{told['weight']:.4g}: {told['probability']:.4g} of the model, {_ratio_to_size(told):.3g} "
        "times its share of all records. Weights are public and tell budgets."
    ]
    if told["public"]:
        return [*lines, "It adds a share of noise for the others."]
    lines.append(
        f"The noise of {counted(told['honest'], 'honest member')} of a cohort is "
        f"{told['noise_multiplier']:.4g} times what {unit_of(told['unit']).one} can add: certified "
        f"to spend epsilon {told['certified_epsilon']:.4g} of {told['epsilon']:.4g}. If all others "
        f"collude, its own share alone protects it: epsilon {told['alone_epsilon']:.4g}."
    )
    if (larger := told["larger_budget"]) is not None:
        lines.append(
            f"With epsilon {larger['epsilon']:.4g} instead of {told['epsilon']:.4g} it would count "
            f"{larger['times_as_often']:.3g} times as much."
        )
    return lines


def _ratio_to_size(told: Mapping[str, Any]) -> float:
    return told["probability"] / told["unbiased"] if told["unbiased"] > 0 else float("nan")


def _why(told: Mapping[str, Any]) -> str:
    ratio = _ratio_to_size(told)
    chosen = (
        f"It is drawn with probability {told['probability']:.4g} per slot, "
        f"{told['expected_draws']:.3g} draws expected and {told['draws']} scheduled. "
    )
    if told["probability"] == 0:
        verdict = "It is left out"
    elif abs(ratio - 1) < 1e-9:
        return chosen + "That is exactly its share of all records."
    else:
        verdict = f"Its share of all records alone would ask for {told['unbiased']:.4g}, so it "
        verdict += f"is selected {ratio:.3g} times as often"
    reason = (
        "it adds no noise"
        if told["public"]
        else f"its noise, at equal participation, has {told['noise_vs_median']:.3g} times the "
        "variance of the median client's"
    )
    if told["rule"] not in _BY_NOISE:  # its noise is told, but is not why
        return chosen + f"{verdict}, by the rule {told['rule']}; {reason}."
    return chosen + f"{verdict}: {reason}."


def _noise(told: Mapping[str, Any]) -> str:
    share = (
        f"It brings {told['noise_share']:.1%} of all noise; selected by size it would bring "
        f"{told['unbiased_noise_share']:.1%}."
    )
    if told["public"]:
        return "It adds no noise."
    if told["draws"] == 0:
        return f"It is never drawn and spends nothing. {share}"
    return (
        f"Its noise multiplier is {told['noise_multiplier']:.4g} (std {told['noise_std']:.4g} C on "
        f"the mean gradient) for {told['steps']} steps, certified to spend epsilon "
        f"{told['certified_epsilon']:.4g} of {told['epsilon']:.4g}. {share}"
    )


def _one_more(told: Mapping[str, Any]) -> str:
    variance = told["one_more_draw"]
    if told["draws"] == 0:
        return f"A first draw needs a noise variance of {variance:.3g} C^2 on the mean gradient."
    return (
        f"One more draw would raise the variance of its noise by {variance - 1:.1%} in every "
        "draw; taken without raising it, it would spend epsilon "
        f"{told['epsilon_of_one_more_draw']:.4g}."
    )


def _larger(
    told: Mapping[str, Any], epsilon: float, probability: float, times_as_often: float
) -> str:
    ratio = f"{times_as_often:.3g}"
    how_often = "as often as now" if ratio == "1" else f"{ratio} times as often"
    drawn = f"drawn {how_often} (probability {probability:.4g})"
    if probability == 0:
        drawn = "left out" if told["probability"] > 0 else "left out as well"
    elif told["probability"] == 0:
        drawn = f"drawn, with probability {probability:.4g}"
    return f"With epsilon {epsilon:.4g} instead of {told['epsilon']:.4g} it would be {drawn}."


def explain_client(
    plan: Plan, client: str, *, larger_epsilon: float | None = None, rule: PlannedRule | None = None
) -> Explanation:
    """Explain one client of a plan: probability and noise, or caps where a rule chooses cohorts.

    Args:
        plan: the plan.
        client: the client's id.
        larger_epsilon: budget for the "what if it were larger" sentence; twice its own if None.
        rule: the rule that made the plan. A plan holds only its name and settings, from which a
            rule of this package or of an installed one is made again; any other must be given.

    Raises:
        InputError: there is no such client; or ``larger_epsilon`` is given, and the rule to answer
            with is not.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(
        ...     ids=["strict", "open"], sizes=[500, 500], epsilon=[0.2, 4], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=10, cohort_size=2, batch_size=50), seed=1)
        >>> "left out" in explain_client(plan, "strict").text()
        True
    """
    k = plan.population.index_of(client)
    return _explained_client(plan.participation, plan, k, larger_epsilon, rule)


@singledispatch
def _explained_client(
    participation: Participation,
    plan: Plan,
    k: int,
    larger_epsilon: float | None,
    rule: PlannedRule | None,
) -> Explanation:
    """Caps, and the noise that is made for them.

    ``draw_cap`` and ``report_cap`` (None if the rule asks nobody), the ``statistic`` it reports,
    ``raw_reports`` without noise or ``report_std`` and ``report_share`` of its budget; then as of
    any plan, ``certified_epsilon`` at both caps.
    """
    if larger_epsilon is not None:
        raise InputError.because(
            f"--epsilon asks for another probability, and {plan.rule} has none before the "
            "training: it chooses each cohort then."
        )
    public, noise = bool(plan.population.public[k]), float(plan.noise_multipliers[k])
    told = {
        **_who(plan, k),
        **plan.reports.explain(k, float(plan.report_stds[k]), public=public),
        "draw_cap": int(plan.counts[k]),
        "noise_multiplier": noise,
        "noise_std": noise / int(plan.batch_sizes[k]),
        "certified_epsilon": (
            None if public else plan.reports.epsilon(float(plan.certified_epsilon[k]))
        ),
    }
    lines = [
        _promise(told),
        f"It has no probability beforehand: {plan.rule} chooses each cohort during the training, "
        f"and may draw it at most {often(told['draw_cap'])}.",
    ]
    if told["statistic"] is not None:
        lines.append(_reports(told))
    return Explanation(told, (*lines, _spending(told)))


@_explained_client.register(FixedCohorts)
def _(
    participation: FixedCohorts,
    plan: Plan,
    k: int,
    larger_epsilon: float | None,
    rule: PlannedRule | None,
) -> Explanation:
    (numbers,) = _numbers(plan, [k])
    if not numbers["public"]:
        more, more_epsilon = _one_more_draw(plan, k)
        numbers |= {
            "one_more_draw": more,
            "epsilon_of_one_more_draw": more_epsilon,
            "larger_budget": _with_larger_budget(plan, k, larger_epsilon, rule),
        }
    return _fixed(plan, numbers)


def explain_clients(plan: Plan, clients: Iterable[int]) -> Iterator[Explanation]:
    """Explain clients, but for what one more draw or a larger budget would change.

    Args:
        plan: the plan.
        clients: their positions in its population.
    """
    return (_fixed(plan, numbers) for numbers in _numbers(plan, clients))


def _fixed(plan: Plan, told: dict[str, Any]) -> Explanation:
    batch, rate = told["batch_size"], told["sampling_rate"]
    step = f"Each step uses about {batch} of them (rate {rate:.3g})."
    return Explanation(told, (f"{_promise(told)} {step}", *_reasons(plan.noise, told)))


def _numbers(plan: Plan, clients: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Numbers about clients of a plan with fixed cohorts.

    ``probability`` is the weight in the model where noise is distributed, ``unbiased`` that by size
    alone. ``noise_multiplier`` is the std of the noise on the clipped sum, ``noise_std`` on the
    mean gradient per coordinate, both over C; None if it is never drawn. ``noise_vs_median`` is its
    noise at equal participation over that of the median client; ``noise_share`` and
    ``unbiased_noise_share`` are shares of all expected noise. ``one_more_draw`` is the noise
    variance after one more draw over now, ``epsilon_of_one_more_draw`` what that would spend at the
    planned noise.
    """
    people, selection = plan.population, plan.selection
    # Noise variance of a draw if every client were drawn equally often.
    equal_steps = plan.training.total_draws / len(people) * plan.training.local_steps
    level, floor = plan.noise_levels
    variance = floor + level * equal_steps
    private = ~people.public
    median = float(np.median(variance[private])) if private.any() else 1.0
    shares = _noise_shares(plan.problem, selection.probabilities)
    by_size = _noise_shares(plan.problem, selection.unbiased)
    for k in clients:
        is_public, draws = bool(people.public[k]), int(plan.counts[k])
        batch, z = int(plan.batch_sizes[k]), float(plan.noise_multipliers[k])
        yield {
            **_who(plan, k),
            "batch_size": batch,
            "sampling_rate": float(plan.sampling_rates[k]),
            "unbiased": float(selection.unbiased[k]),
            "probability": float(plan.model_weights[k]),
            "expected_draws": float(plan.draw_probabilities[k]) * plan.training.total_draws,
            "draws": draws,
            "steps": int(plan.steps[k]),
            "noise_multiplier": z if draws or is_public else None,
            "noise_std": z / batch if draws or is_public else None,
            "certified_epsilon": None if is_public else float(plan.certified_epsilon[k]),
            "noise_vs_median": float(variance[k]) / median if median > 0 else 0.0,
            "noise_share": float(shares[k]),
            "unbiased_noise_share": float(by_size[k]),
            **dict.fromkeys(("one_more_draw", "epsilon_of_one_more_draw", "larger_budget")),
            **_of_noise(plan.noise, plan, k),
        }


@singledispatch
def _of_noise(noise: Noise, plan: Plan, k: int) -> dict[str, Any]:
    return {}


@_of_noise.register(DistributedNoise)
def _(noise: DistributedNoise, plan: Plan, k: int) -> dict[str, Any]:
    """Its ``weight``, the ``honest`` members of a cohort, and the epsilon if all others collude."""
    alone = None if plan.population.public[k] else float(plan.certificate.alone_epsilon[k])
    return {
        "weight": float(noise.pool.weights[k]),
        "honest": noise.honest,
        "alone_epsilon": alone,
    }


def _noise_shares(problem: SelectionProblem, probabilities: FloatArray) -> FloatArray:
    """Each client's share of all expected noise."""
    noise = problem.own_noise(probabilities)
    total = float(noise.sum())
    return noise / total if total > 0 else np.zeros_like(noise)


def _one_more_draw(plan: Plan, k: int) -> tuple[float, float | None]:
    """Noise variance with one more draw, over now, and the epsilon if it were not raised.

    For a client that is not drawn at all: the variance of a first draw, and None.
    """
    steps = int(plan.steps[k])
    more = steps + plan.training.local_steps
    left = plan.past.left(plan.population)
    epsilon, delta = float(left.epsilon[k]), float(plan.population.delta[k])
    rate = float(plan.sampling_rates[k])

    def noise_for(count: int) -> float:
        budget: Any = {"epsilon": epsilon, "delta": delta, "sampling_rate": rate, "steps": count}
        if plan.contract.accountant == "paper":
            return float(paper_noise_multiplier(**budget))
        return float(calibrate_noise(**budget, **plan.contract.sampling(plan.training.local_steps)))

    if steps == 0:
        return (noise_for(more) / int(plan.batch_sizes[k])) ** 2, None
    draws = int(plan.counts[k]) + 1
    unraised = plan.history(k, draws=draws, reports=0).epsilon(delta)
    return (noise_for(more) / noise_for(steps)) ** 2, unraised


def _with_larger_budget(
    plan: Plan, k: int, larger_epsilon: float | None, rule: PlannedRule | None
) -> dict[str, float] | None:
    """Its ``probability`` with the larger ``epsilon``, and ``times_as_often``, relative to now."""
    name = plan.rule
    if rule is None and name not in RULES["selection"] and larger_epsilon is None:
        return None  # to explain a plan, no code of somebody is loaded
    if rule is None and not is_rule("selection", name):
        raise InputError.because(
            f"the plan was made by the rule {name!r}, which is not installed here, so what another "
            "epsilon would change cannot be computed from the plan alone. Give the config it was "
            "made from."
        )
    now = float(plan.population.epsilon[k])
    if larger_epsilon is None:
        larger_epsilon = 2 * now
    larger = number("larger epsilon", larger_epsilon, above=now)
    budget = Budget(epsilon=larger, delta=float(plan.population.delta[k]))
    people = plan.population.with_budget(plan.population.ids[k], budget)
    scenario = Scenario.of(plan)
    problem = scenario.problem(plan.past.left(people))
    probability = float(selected(rule or scenario.made_rule(), problem).probabilities[k])
    before = float(plan.selection.probabilities[k])
    often_then = probability / before if before > 0 else float("inf")
    return {"epsilon": larger, "probability": probability, "times_as_often": often_then}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Everything that fixes the probabilities: a plan without its draws."""

    population: Population
    training: Training
    rule: str = "privacy-aware"
    rule_settings: Mapping[str, Any]
    contract: Contract
    noise_model: str = "exact"

    @classmethod
    def of(cls, plan: Plan) -> Scenario:
        """That of a plan whose rule is fixed before the training; somebody else's by its place."""
        return cls(
            population=plan.population,
            training=plan.training,
            rule=place_of("selection", plan.rule),
            rule_settings=plan.participation.settings,
            contract=plan.contract,
            noise_model=plan.participation.fixed.noise_model,
        )

    def made_rule(self) -> PlannedRule:
        """The rule with its settings."""
        return rule_from_settings(self.rule, **self.rule_settings)

    def problem(self, population: Population | None = None) -> SelectionProblem:
        """What the rule solves for these clients, or for others."""
        people = self.population if population is None else population
        told: Any = {"contract": self.contract, "noise_model": self.noise_model}
        return selection_problem(people, self.training, **told)[0]


@dataclass(frozen=True, kw_only=True)
class NoiseGain:
    """What a client's larger budget would take off the noise of all.

    Attributes:
        client: its id.
        epsilon: its budget now.
        probability: of being drawn now.
        slope: relative change of the noise variance by each per cent more epsilon, in per cent; at
            the optimum, so exact at first order.
        noise: noise with its epsilon doubled, as a share of the noise now, selection solved again.
    """

    client: str
    epsilon: float
    probability: float
    slope: float
    noise: float


#: Relative change of budgets of which derivatives are taken.
_NEAR = 1e-3
#: Clients whose selection is solved again; of more, those with the largest derivative.
_MOST_SOLVED = 300


def noise_gains(scenario: Scenario) -> list[NoiseGain]:
    """Private clients, those first whose doubled epsilon takes most noise away; nothing is spent.

    Its rule is solved again for each of them.

    Example:
        >>> clients = Population.from_arrays(sizes=[300] * 2, epsilon=[0.5, 4], delta=1e-5)
        >>> settings = Training(rounds=9, cohort_size=2, sampling_rate=0.5, dimension=10)
        >>> first, last = noise_gains(Scenario(population=clients, training=settings,
        ...     rule="unbiased", rule_settings={}, contract=Contract.of("tight")))
        >>> first.epsilon, first.noise < last.noise < 1
        (0.5, True)
    """
    population, rule, now = scenario.population, scenario.made_rule(), scenario.problem()
    p = selected(rule, now).probabilities
    total = now.noise(p)
    near = scenario.problem(population.with_scaled_budgets(1.0 + _NEAR))
    private = np.flatnonzero(~population.public)
    if now.pool.honest == 1:
        change = near.own_noise(p) - now.own_noise(p)
    else:  # everybody's share depends on what each of them needs
        change = np.zeros(len(population))
        change[private] = [_with_costs(now, near, k).noise(p) - total for k in private.tolist()]
    slope = change / (_NEAR * total if total > 0 else 1.0)
    twice = scenario.problem(population.with_scaled_budgets(2.0))
    gains = []
    for k in private[np.argsort(slope[private], kind="stable")][:_MOST_SOLVED].tolist():
        changed = _with_costs(now, twice, k)
        share = 1.0
        if total > 0:
            then = changed.noise(selected(rule, changed).probabilities)
            share = float(np.sqrt(then / total))
        gains.append(
            NoiseGain(
                client=population.ids[k],
                epsilon=float(population.epsilon[k]),
                probability=float(p[k]),
                slope=float(slope[k]),
                noise=share,
            )
        )
    return sorted(gains, key=lambda gain: (gain.noise, gain.slope))


def _with_costs(problem: SelectionProblem, other: SelectionProblem, k: int) -> SelectionProblem:
    """The problem with one client's budget, and so its costs, as in another."""
    names = ("noise_costs", "linear_costs", "epsilon")
    columns: Any = {name: getattr(problem, name).copy() for name in names}
    for name in names:
        columns[name][k] = getattr(other, name)[k]
    return replace(problem, **columns)


def _reports(told: Mapping[str, Any]) -> str:
    asked = f"It may be asked for its {told['statistic']} at most {often(told['report_cap'] or 0)}"
    if told["raw_reports"]:
        return f"{asked}, and tells it WITHOUT NOISE: no epsilon bounds that. NOT PRIVATE."
    if told["public"]:
        return f"{asked}; its reports need no noise."
    return (
        f"{asked}; each report has noise of std {told['report_std']:.3g}, and all together take "
        f"{100 * (told['report_share'] or 0):.3g} % of its budget."
    )


def _spending(told: Mapping[str, Any]) -> str:
    if told["public"]:
        return "It adds no noise."
    noise = (
        f"Its noise multiplier is {told['noise_multiplier']:.4g} (std {told['noise_std']:.4g} C on "
        "the mean gradient), made for these caps"
    )
    if told["certified_epsilon"] is None:
        return f"{noise}."
    return (
        f"{noise}: if it reaches them it is certified to spend epsilon "
        f"{told['certified_epsilon']:.4g} of {told['epsilon']:.4g}."
    )


Swept = Literal["eta", "bias_cap", "rounds", "batch_size", "accountant", "epsilon"]


def sweep(
    scenario: Scenario, setting: str, values: Sequence[float | str], *, client: str | None = None
) -> list[dict[str, Any]]:
    """Solve the selection once for each value of one setting; plain values, ready for JSON.

    Beside each ``value``: ``noise_to_clip``, the expected norm of the noise on a round's mean
    gradient in units of C; ``bias``, ||p - p^u||_1, from 0 (by size) to 2; the ``largest`` and the
    ``smallest`` probability; how many clients are ``excluded``, of probability 0; and
    ``client_probability``, of the client asked about, None if none was.

    Args:
        scenario: the settings that stay.
        setting: ``eta``, ``bias_cap``, ``rounds``, ``batch_size``, ``accountant``, or ``epsilon``
            (of ``client``).
        values: what to try.
        client: whose probability to report, and whose epsilon to change.

    Example:
        >>> clients = Population.from_arrays(sizes=[500, 500], epsilon=[0.2, 4], delta=1e-5)
        >>> scenario = Scenario(population=clients, training=Training(rounds=10, batch_size=50),
        ...                     rule_settings={}, contract=Contract.of("tight"))
        >>> [outcome["bias"] for outcome in sweep(scenario, "eta", [0.0])]
        [0.0]
    """
    choice("setting", setting, get_args(Swept))
    if setting == "epsilon" and client is None:
        raise InputError.because("sweeping epsilon needs a client: say whose with --client.")
    position = None if client is None else scenario.population.index_of(client)
    tried = [_changed(scenario, setting, value, client) for value in values]
    return [_tried(one, value, position) for one, value in zip(tried, values, strict=True)]


def _tried(scenario: Scenario, value: float | str, position: int | None) -> dict[str, Any]:
    problem = scenario.problem()
    p = selected(scenario.made_rule(), problem).probabilities
    noise = problem.noise(p)
    return {
        "value": value,
        "noise_to_clip": float(np.sqrt(scenario.training.total_steps * noise)),
        "bias": float(np.abs(p - problem.unbiased).sum()),
        "largest": float(p.max()),
        "smallest": float(p.min()),
        "excluded": int((p == 0).sum()),
        "client_probability": None if position is None else float(p[position]),
    }


def _changed(scenario: Scenario, setting: str, value: Any, client: str | None) -> Scenario:
    """The scenario with one setting changed."""
    people, training = scenario.population, scenario.training
    if setting in ("eta", "bias_cap"):  # they exclude each other: setting one drops the other
        kept = {k: v for k, v in scenario.rule_settings.items() if k not in ("eta", "bias_cap")}
        return replace(scenario, rule_settings={**kept, setting: value})
    if setting == "rounds":
        return replace(scenario, training=replace(training, rounds=value))
    if setting == "batch_size":
        if people.batch_sizes.any():
            raise InputError.because(
                "the clients name their own batch sizes, so one batch size for all changes "
                "nothing; remove the batch_size column to sweep it."
            )
        changed = replace(training, batch_size=value, sampling_rate=None)
        return replace(scenario, training=changed)
    if setting == "accountant":
        told = scenario.contract
        trust: Any = {"trust": told.trust, "colluding": told.colluding, "dropouts": told.dropouts}
        return replace(scenario, contract=Contract.of(value, **trust))
    k = people.index_of(client or "")
    if people.public[k]:
        raise InputError.because(f"{client} is public: it has no epsilon to change.")
    budget = Budget(epsilon=value, delta=float(people.delta[k]))
    return replace(scenario, population=people.with_budget(people.ids[k], budget))


@dataclass(frozen=True, kw_only=True)
class TrustOutcome:
    """What one kind of trust gives, before anything is drawn or trained.

    Attributes:
        trust: ``local`` or ``distributed``.
        cohort_size: K.
        honest: h, members of a cohort whose shares of noise surely remain; 1 where trust is local.
        noise_to_clip: expected norm of the noise on a round's mean gradient, in units of C.
        bias: how far the clients' weights in the model are from their sizes, ||w - p^u||_1.
        gain: noise variance of everybody's own noise at the same weights, over this. What is gained
            goes into less noise and, by a rule that weighs both, into less bias.
        pays_from: the least number of honest members of such cohorts with which pooling has less
            noise than local trust at the same weights; None where trust is local, and where not
            even a whole cohort is enough.
    """

    trust: str
    cohort_size: int
    honest: int
    noise_to_clip: float
    bias: float
    gain: float
    pays_from: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrustValue:
    """What pooling noise is worth to a population; ``text()`` says it in sentences.

    Attributes:
        outcomes: local trust first; then cohorts as configured and all clients in every cohort,
            each with half of the others colluding, as many as the contract says, and none.
        limit: the most that pooling can divide the noise variance by if bias does not count,
            everybody in every cohort and nobody colluding: (sum 1/c)^2 / sum 1/c^2. None if public
            clients alone would train without noise.
    """

    outcomes: tuple[TrustOutcome, ...]
    limit: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, ready for JSON."""
        return asdict(self)

    def text(self) -> str:
        """What it is worth in plain sentences, one a line."""
        local, *distributed = self.outcomes
        lines = [f"Noise on a round's mean gradient, trusting nobody: {local.noise_to_clip:.4g} C."]
        for one in distributed:
            lines.append(
                f"Distributed in cohorts of {one.cohort_size}, {one.honest} of them honest: "
                f"{one.noise_to_clip:.4g} C, with {_gain(one.gain)}"
            )
        for one in {one.cohort_size: one for one in distributed}.values():
            pays = (
                f"pays from {one.pays_from} honest members on"
                if one.pays_from is not None
                else "does not pay, whoever is honest"
            )
            lines.append(f"With cohorts of {one.cohort_size} it {pays}.")
        if self.limit is not None:
            lines.append(
                f"If bias did not count: all in every cohort, the least noise has {self.limit:.3g} "
                "times less variance than that of local trust."
            )
        return "\n".join(lines)


def _gain(gain: float) -> str:
    if gain >= 1.0:
        return f"{gain:.3g} times less variance than everybody's own noise at the same weights."
    return f"{1.0 / gain:.3g} times MORE variance than everybody's own noise: it does not pay."


def value_of_trust(scenario: Scenario) -> TrustValue:
    """What pooling noise is worth to this population, without drawing or training anything.

    Local trust is compared with distributed noise in cohorts as configured and with all clients in
    every cohort, with half of the others colluding, with as many as the contract says where its
    trust is distributed, and with none. Each is at the weights that the rule chooses for it.
    Drop-outs are those of the contract. Where a client would count on nobody but itself there is no
    outcome.

    Args:
        scenario: a plan without its draws.

    Raises:
        InputError: noise cannot be distributed in it.

    Example:
        >>> people = Population.from_arrays(sizes=[500] * 4, epsilon=[0.2, 1, 2, 4], delta=1e-5)
        >>> scenario = Scenario(
        ...     population=people, training=Training(rounds=10, cohort_size=2, batch_size=50),
        ...     rule_settings={}, contract=Contract())
        >>> found = value_of_trust(scenario)
        >>> [(one.trust, one.honest) for one in found.outcomes]
        [('local', 1), ('distributed', 2), ('distributed', 2), ('distributed', 4)]
        >>> found.outcomes[-1].gain > 1
        True
    """
    told, training, clients = scenario.contract, scenario.training, len(scenario.population)
    if training.local_steps > 1:
        raise InputError(
            "training.local_steps",
            given=training.local_steps,
            allowed="1 where noise is distributed",
            next_step="Take more rounds instead: --set training.local_steps=1.",
        )
    if clients < 2:
        raise InputError.because("one client alone has nobody to pool its noise with.")
    alone = replace(told, trust="local", colluding=0, dropouts=0)
    local = _trusted(replace(scenario, contract=alone))
    found = [local[0]]
    sizes = [size for size in (min(training.cohort_size, clients), clients) if size > 1]
    for size in dict.fromkeys(sizes):
        dropouts = min(told.dropouts, size - 1)
        some, seen = replace(training, cohort_size=size), set[int]()
        for colluding in (0.5, told.colluding, 0):
            contract = replace(told, trust="distributed", colluding=colluding, dropouts=dropouts)
            others = contract.colluders(size)
            if others + dropouts >= size - 1 or others in seen:
                continue  # a client would count on nobody but itself, or it is there already
            seen.add(others)
            found.append(_trusted(replace(scenario, contract=contract, training=some))[0])
    return TrustValue(outcomes=tuple(found), limit=_limit(local[1]))


def _trusted(scenario: Scenario) -> tuple[TrustOutcome, SelectionProblem]:
    """One row, and the problem behind it."""
    problem = scenario.problem()
    w = selected(scenario.made_rule(), problem).probabilities
    pool, pays, noise = problem.pool, None, problem.noise(w)
    # Everybody's own noise at the same weights: what trusting nobody would add.
    alone = float(problem.own_noise(w).sum())
    if alone > 0:
        # h shares of it protect, so that all noise there is would be h times as much as one.
        pays = int(np.floor(noise * pool.honest / alone + 1e-9)) + 1
        pays = None if pays > pool.cohort_size else max(pays, 2)
    return (
        TrustOutcome(
            trust=scenario.contract.trust,
            cohort_size=scenario.training.cohort_size,
            honest=pool.honest,
            noise_to_clip=float(np.sqrt(scenario.training.total_steps * noise)),
            bias=float(np.abs(w - problem.unbiased).sum()),
            gain=alone / noise if noise > 0 else 1.0,
            pays_from=pays,
        ),
        problem,
    )


def _limit(problem: SelectionProblem) -> float | None:
    costs = problem.noise_costs[np.isfinite(problem.noise_costs)]
    if not costs.size or not (costs > 0).all():
        return None
    inverse = 1.0 / np.sqrt(costs)
    return float(inverse.sum() ** 2 / (inverse**2).sum())


@dataclass(frozen=True, kw_only=True)
class PlanComparison:
    """What differs between two plans for the same clients.

    Attributes:
        settings: each setting that differs, as (before, after).
        probability_distance: sum of absolute differences of the probabilities, from 0 to 2.
        changed: the clients whose probability changed most, largest first: ``client``, ``before``
            and ``after``.
        noise_ratio: noise norm on a round's mean gradient, after over before.
        variance_ratio: median over clients drawn in both of the noise variance, after over before.
        excluded: clients drawn before but not after.
        included: clients drawn after but not before.
    """

    settings: dict[str, tuple[Any, Any]]
    probability_distance: float
    changed: tuple[dict[str, Any], ...]
    noise_ratio: float
    variance_ratio: float
    excluded: int
    included: int

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, ready for JSON."""
        return asdict(self)

    def text(self) -> str:
        """The comparison in plain sentences, one a line."""
        different = ", ".join(f"{k}: {a} -> {b}" for k, (a, b) in self.settings.items())
        lines = [
            f"Settings that differ: {different or 'none'}.",
            f"The noise on a round's mean gradient is {self.noise_ratio:.3g} times as large; a "
            f"client drawn in both adds {self.variance_ratio:.3g} times the variance (median).",
            f"{self.probability_distance / 2:.1%} of all draws move to other clients; "
            f"{self.excluded} clients are no longer drawn, {self.included} newly are.",
        ]
        lines += [f"  {c['client']}: {c['before']:.4g} -> {c['after']:.4g}" for c in self.changed]
        return "\n".join(lines)


def compare_plans(before: Plan, after: Plan, *, shown: int = 5) -> PlanComparison:
    """Compare two plans for the same clients.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[500, 500], epsilon=[0.2, 4], delta=1e-5)
        >>> training = Training(rounds=10, cohort_size=2, batch_size=50)
        >>> aware = make_plan(clients, training, seed=1)
        >>> plain = make_plan(clients, training, selection="unbiased", seed=1)
        >>> compare_plans(plain, aware).noise_ratio < 1
        True
    """
    if before.population.ids != after.population.ids:
        raise InputError.because(
            "the two plans are for different clients; compare plans of one population."
        )
    p, q = before.probabilities, after.probabilities
    largest = np.argsort(-np.abs(q - p), kind="stable")[:shown]
    both = before.drawn & after.drawn & ~before.population.public & ~after.population.public
    variance = (after.noise_multipliers[both] / after.batch_sizes[both]) ** 2
    variance /= (before.noise_multipliers[both] / before.batch_sizes[both]) ** 2
    settings_before, settings_after = _settings(before), _settings(after)
    return PlanComparison(
        settings={
            key: (settings_before.get(key), settings_after.get(key))
            for key in sorted(settings_before.keys() | settings_after.keys())
            if settings_before.get(key) != settings_after.get(key)
        },
        probability_distance=float(np.abs(q - p).sum()),
        changed=tuple(
            {"client": before.population.ids[k], "before": float(p[k]), "after": float(q[k])}
            for k in largest
            if p[k] != q[k]
        ),
        noise_ratio=_ratio(after.noise_to_clip, before.noise_to_clip),
        variance_ratio=float(np.median(variance)) if variance.size else float("nan"),
        excluded=int((before.drawn & ~after.drawn).sum()),
        included=int((after.drawn & ~before.drawn).sum()),
    )


def _settings(plan: Plan) -> dict[str, Any]:
    return {
        **{f"training.{key}": value for key, value in asdict(plan.training).items()},
        **{f"privacy.{key}": value for key, value in plan.contract.to_dict().items()},
        "selection.rule": plan.rule,
        "selection.noise_model": plan.participation.fixed.noise_model,
        **{f"selection.{key}": value for key, value in plan.participation.settings.items()},
        "schedule.draws": plan.schedule.draws,
        "schedule.seed": plan.seed,
    }


def _ratio(after: float, before: float) -> float:
    return after / before if before > 0 else (1.0 if after == 0 else float("inf"))


def papers_noise(plan: Plan) -> FloatArray:
    """Noise multipliers by the paper's formula at the plan's draws; NaN where there is none.

    Where cohorts are chosen during the training, the draws are the caps.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[300, 300], epsilon=[1.0, 4.0], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=20, cohort_size=2, batch_size=30), seed=0)
        >>> bool((papers_noise(plan) > plan.noise_multipliers).all())
        True
    """
    found = np.full(len(plan.population), np.nan)
    held = plan.drawn & ~plan.population.public
    found[held] = paper_noise_multiplier(
        epsilon=plan.population.epsilon[held],
        delta=plan.population.delta[held],
        sampling_rate=plan.sampling_rates[held],
        steps=plan.steps[held],
    )
    return found
