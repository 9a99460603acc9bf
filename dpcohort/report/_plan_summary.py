# SPDX-License-Identifier: Apache-2.0
"""A plan on one screen: what was decided, and the clients it changed most, or their caps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dpcohort._validate import IntArray
from dpcohort.accounting._distributed import trust_in_words, trust_terms
from dpcohort.clients import Population
from dpcohort.plain_text import counted, one_line
from dpcohort.planning._noise import DistributedNoise, Noise
from dpcohort.planning._participation import FixedCohorts, Participation

if TYPE_CHECKING:
    from dpcohort.plan import Plan


def summarise(plan: Plan) -> dict[str, Any]:
    """The numbers of a plan that fit in a sentence each, ready for JSON.

    Beside numbers of clients and their records (or persons, by ``unit``): ``epsilon_min`` and
    ``epsilon_max``, None if all are public; ``eta``, the weight of the noise in Problem 1, its
    ``objective``, and the ``gap``, how far at most the probabilities are from optimal in it;
    ``bias`` ||p - p^u||_1; ``noise_to_clip``, the norm of the noise on a round's mean gradient over
    C, as scheduled, and the same expected if clients were selected by size; how many promises are
    ``certified``, how many clients were ``lifted`` from the paper's to the tight noise, and how
    many have a ``large_delta``, of at least 1 / size.
    """
    population = plan.population
    problem, u = plan.problem, plan.selection.unbiased
    unbiased_noise = problem.noise(u)
    private = ~population.public
    held = plan.drawn & private
    return {
        "clients": len(population),
        "public": int(population.public.sum()),
        "drawn": int(plan.drawn.sum()),
        "records": int(population.sizes.sum()),
        "unit": plan.contract.unit.name,
        "epsilon_min": float(population.epsilon[private].min()) if private.any() else None,
        "epsilon_max": float(population.epsilon[private].max()) if private.any() else None,
        "rule": plan.rule,
        "eta": plan.selection.eta,
        "gap": plan.selection.gap,
        "objective": plan.selection.objective,
        "bias": float(np.abs(plan.model_weights - u).sum()),
        "noise_to_clip": plan.noise_to_clip,
        "unbiased_noise_to_clip": float(np.sqrt(plan.training.total_steps * unbiased_noise)),
        "certified": int((plan.certified_epsilon[held] <= population.epsilon[held]).sum()),
        "lifted": int(plan.noise.lifted.sum()),
        "large_delta": population.large_delta,
        "sha256": plan.sha256,
        **_view(plan.noise, plan).summary(),
    }


@dataclass(frozen=True)
class _LocalView:
    """How a plan with local noise is shown: each client's probability, and its own noise."""

    plan: Plan
    moved: ClassVar[str] = "of the draws"
    headers: ClassVar[tuple[str, ...]] = (
        *("ε", "by size", "chosen", "relative", "draws", "noise z", "spends ε"),
    )

    def summary(self) -> dict[str, Any]:
        return {}

    def columns(self) -> dict[str, NDArray[Any]]:
        return {}

    def add_trust(self, text: Text) -> None:
        return

    def by_size(self, k: int) -> list[str]:
        return [f"{self.plan.selection.unbiased[k]:.4f}"]

    def noise(self, k: int) -> list[str]:
        if self.plan.population.public[k]:
            return ["0"]
        return [f"{self.plan.noise_multipliers[k]:.4g}" if self.plan.counts[k] else "-"]

    def alone(self, k: int) -> list[str]:
        return []


@dataclass(frozen=True)
class _DistributedView(_LocalView):
    """How a plan with distributed noise is shown: each client's weight, and whom it counts on."""

    noises: DistributedNoise
    moved: ClassVar[str] = "of the weight"
    headers: ClassVar[tuple[str, ...]] = (
        *("ε", "counts", "relative", "draws", "weight", "spends ε", "alone ε"),
    )

    def summary(self) -> dict[str, Any]:
        alone = self.plan.certificate.alone_epsilon[~self.plan.population.public]
        return {
            "trust": trust_terms(self.plan.contract, self.plan.training.cohort_size),
            "share": self.noises.pool.share,
            "alone_epsilon_max": float(alone.max()) if alone.size else None,
        }

    def columns(self) -> dict[str, NDArray[Any]]:
        pool, alone = self.noises.pool, self.plan.certificate.alone_epsilon
        return {"weight": pool.weights, "noise_share": pool.shares, "alone_epsilon": alone}

    def add_trust(self, text: Text) -> None:
        summary = self.summary()
        text.append(f"\n{trust_in_words(summary['trust'])}")
        text.append("\nif all others collude, a client spends up to ")
        text.append(f"ε {summary['alone_epsilon_max']:.4g}", style="yellow")
        text.append("; weights are public and tell budgets")

    def by_size(self, k: int) -> list[str]:
        return []

    def noise(self, k: int) -> list[str]:
        return [f"{self.noises.pool.weights[k]:.3g}" if self.plan.counts[k] else "-"]

    def alone(self, k: int) -> list[str]:
        hidden = self.plan.population.public[k] or not self.plan.counts[k]
        return ["-" if hidden else f"{self.plan.certificate.alone_epsilon[k]:.4g}"]


@singledispatch
def _view(noise: Noise, plan: Plan) -> _LocalView:
    return _LocalView(plan)


@_view.register(DistributedNoise)
def _(noise: DistributedNoise, plan: Plan) -> _LocalView:
    return _DistributedView(plan, noise)


def plan_values(plan: Plan) -> dict[str, Any]:
    """The headline numbers and every client, ready for JSON; caps where cohorts are chosen later.

    Example:
        >>> from dpcohort import Population, Training
        >>> from dpcohort.adaptive import make_adaptive_plan
        >>> people = Population.from_arrays(sizes=[90] * 4, epsilon=[2.0] * 4, delta=1e-5)
        >>> plan = make_adaptive_plan(people, Training(rounds=4, cohort_size=2, batch_size=9),
        ...                           seed=0)
        >>> plan_values(plan)["clients"]["draw_cap"]
        [4, 4, 4, 4]
    """
    head, clients = _values(plan.participation, plan)
    return {**head, "clients": _columns(plan.population, clients)}


@singledispatch
def _values(participation: Participation, plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """The head and the columns of a plan's JSON."""
    head = {"sha256": plan.sha256, **plan.plain_settings(), "private": plan.reports.mode != "raw"}
    return head, {
        "draw_cap": plan.counts,
        "report_cap": plan.reports.caps,
        "noise_multiplier": plan.noise_multipliers,
        "report_std": plan.report_stds,
        "certified_epsilon": plan.certified_epsilon,
    }


@_values.register(FixedCohorts)
def _(participation: FixedCohorts, plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"summary": summarise(plan)}, {
        "batch_size": plan.batch_sizes,
        "unbiased": participation.selection.unbiased,
        "probability": participation.selection.probabilities,
        "draws": plan.counts,
        "noise_multiplier": plan.noise_multipliers,
        "certified_epsilon": plan.certified_epsilon,
        **_view(plan.noise, plan).columns(),
    }


def _columns(people: Population, more: Mapping[str, NDArray[Any]]) -> dict[str, list[Any]]:
    """The clients as columns of plain values."""
    budgets = {"epsilon": people.epsilon, "delta": people.delta, "public": people.public}
    columns = {"size": people.sizes, **budgets, **more}
    return {"id": list(people.ids), **{name: held.tolist() for name, held in columns.items()}}


def plan_table(plan: Plan, *, rows: int = 12) -> RenderableType:
    """Headline sentences, and the clients whose probability changed most, selected more and less.

    Where cohorts are chosen during the training: the caps of the strictest and loosest clients.
    """
    return _table(plan.participation, plan, rows)


@singledispatch
def _table(participation: Participation, plan: Plan, rows: int) -> RenderableType:
    return Group(*(Text(line) for line in _sentences(plan)), _caps_table(plan, rows))


@_table.register(FixedCohorts)
def _(participation: FixedCohorts, plan: Plan, rows: int) -> RenderableType:
    return Group(_headline(plan, summarise(plan)), "", _clients_table(plan, rows))


def _headline(plan: Plan, summary: dict[str, Any]) -> Text:
    training, contract = plan.training, plan.contract
    public = f", {summary['public']} public" if summary["public"] else ""
    budgets = (
        f"budgets ε {summary['epsilon_min']:.3g} to {summary['epsilon_max']:.3g}"
        if summary["epsilon_min"] is not None
        else "no budgets"
    )
    if kept := plan.past.paid.kept:
        budgets += f" (besides {100 * kept:.3g} % for the evaluation)"
    eta = "" if summary["eta"] is None else f", η = {summary['eta']:.4g}"
    drawn = counted(summary["drawn"], "client")
    view = _view(plan.noise, plan)
    text = Text.assemble(
        (counted(summary["clients"], "client"), "bold"),
        f"{public}, {summary['records']:,} {contract.unit.several}, {budgets}\n",
        f"{counted(training.rounds, 'round')} of {counted(training.cohort_size, 'draw')}, "
        f"{counted(training.local_steps, 'local step')}; {contract.accountant} accountant, "
        f"{contract.sampler} batches, {contract.neighbours} neighbours\n",
        (f"{summary['rule']}{eta}", "bold"),
        f": {summary['bias'] / 2:.0%} {view.moved} moved, {drawn} drawn; "
        f"at most {summary['gap']:.1e} from the optimum of Problem 1\n",
        "noise on a round's mean gradient: ",
        (f"{summary['noise_to_clip']:.3g} C", "bold green"),
        f" (selected by size: {summary['unbiased_noise_to_clip']:.3g} C)\n",
        (f"{counted(summary['certified'], 'promise')} certified", "bold green"),
    )
    if summary["lifted"]:
        text.append(f", {summary['lifted']} lifted from the paper's noise", style="yellow")
    if summary["large_delta"]:
        many = counted(summary["large_delta"], "client")
        leak = f"; delta is at least 1/size for {many}: a whole record may leak"
        text.append(leak, style="yellow")
    text.append(f"; plan {summary['sha256'][:12]}")
    view.add_trust(text)
    for sentence in plan.past.sentences():
        text.append(f"\n{sentence}")
    return text


def _ends(order: IntArray, rows: int) -> IntArray:
    """The first and the last of an order, as many of either as there are rows for."""
    if order.size <= rows:
        return order
    half = rows // 2
    return np.concatenate([order[:half], order[half - rows :]])


def _clients_table(plan: Plan, rows: int) -> Table:
    """The clients with the largest change of probability, ordered by the change."""
    change = plan.model_weights - plan.selection.unbiased
    shown = _ends(np.argsort(change, kind="stable"), rows)
    positions = shown[np.argsort(-change[shown], kind="stable")]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("client", overflow="fold", min_width=8)
    view = _view(plan.noise, plan)
    for name in (plan.contract.unit.several, *view.headers):
        table.add_column(name, justify="right", no_wrap=True)
    previous_more = True
    for k in positions.tolist():
        p, u = float(plan.model_weights[k]), float(plan.selection.unbiased[k])
        if previous_more and p < u and table.row_count and positions.size < len(plan.population):
            table.add_row("…")
        previous_more = p >= u
        table.add_row(*_row(view, k, p, u))
    return table


def _row(view: _LocalView, k: int, p: float, u: float) -> list[str | Text]:
    plan, population = view.plan, view.plan.population
    public, draws = bool(population.public[k]), int(plan.counts[k])
    ratio = p / u if u > 0 else 1.0
    style = "green" if ratio > 1.005 else "red" if ratio < 0.995 else ""
    return [
        Text(one_line(population.ids[k])),
        f"{population.sizes[k]:,}",
        "public" if public else f"{population.epsilon[k]:.3g}",
        *view.by_size(k),
        f"{p:.4f}",
        Text(f"{ratio:.2f}×", style=style),
        str(draws),
        *view.noise(k),
        "-" if public or not draws else f"{plan.certified_epsilon[k]:.4g}",
        *view.alone(k),
    ]


def _sentences(plan: Plan) -> list[str]:
    people, training = plan.population, plan.training
    settings = ", ".join(f"{key} {value}" for key, value in plan.participation.settings.items())
    private = np.flatnonzero(~people.public)
    lines = [
        f"{len(people)} clients ({int(people.public.sum())} public), {training.rounds} rounds of "
        f"{training.cohort_size} draws, each cohort chosen by {plan.rule}"
        + (f" ({settings})." if settings else ".")
    ]
    if private.size:
        first = private[0]
        asked = plan.reports.cap_words(first)
        lines.append(
            f"Each is drawn at most {plan.counts[first]} times{asked}; the noise is made "
            "for that, and certified."
        )
    lines += plan.reports.sentences()
    lines.append(f"Plan {plan.sha256[:16]}")
    return lines


def _caps_table(plan: Plan, rows: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("client", overflow="fold")
    for name in ("size", "epsilon", "draws", "reports", "z", "report std", "certified"):
        table.add_column(name, justify="right")
    # The strictest and the loosest clients.
    order = np.argsort(np.nan_to_num(plan.population.epsilon, nan=np.inf), kind="stable")
    for k in _ends(order, rows).tolist():
        public = bool(plan.population.public[k])
        epsilon = None if public else plan.reports.epsilon(float(plan.certified_epsilon[k]))
        report_cap, report_std = plan.reports.cells(k, float(plan.report_stds[k]))
        table.add_row(
            Text(one_line(plan.population.ids[k])),
            str(int(plan.population.sizes[k])),
            "public" if public else f"{plan.population.epsilon[k]:.4g}",
            str(int(plan.counts[k])),
            report_cap,
            f"{plan.noise_multipliers[k]:.4g}",
            report_std,
            "-" if epsilon is None else f"{epsilon:.4g}",
        )
    return table
