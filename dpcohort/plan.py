# SPDX-License-Identifier: Apache-2.0
"""The plan: everything decided before training, frozen, hashed and certified.

A plan is a population with a participation, a noise and a past: who takes part when, with how much
noise, after what was spent before; and a certificate of each client's epsilon. Where cohorts are
fixed nothing random is left but the batches and the noise. A rule that chooses each cohort does so
within a cap for each client, to which the noise is calibrated.

``plan.json`` (:mod:`dpcohort.planning._file`) has all of it; the hash covers the content, not the
spelling of the file.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, get_args

import numpy as np

from dpcohort import selection as solvers  # that of distributed noise is loaded on use
from dpcohort._validate import BoolArray, FloatArray, IntArray, choice, whole_number
from dpcohort.accounting import (
    Charge,
    Contract,
    Event,
    History,
    Paid,
    Segment,
    certify_epsilon,
    deploy_noise,
)
from dpcohort.accounting._charges import after_charges, check_kept
from dpcohort.accounting._contract import Guard, NoiseModel
from dpcohort.accounting._deployed_noise import CALIBRATION_LIMIT, noise_levels
from dpcohort.accounting._distributed import refuse_undistributable
from dpcohort.accounting._events import history_epsilon
from dpcohort.accounting._segments import Source
from dpcohort.clients import Population
from dpcohort.clients._columns import COLUMN_NAMES, shared
from dpcohort.consent import typed
from dpcohort.errors import InputError, VerificationError
from dpcohort.plain_text import counted, html_table, one_line
from dpcohort.planning._certificate import Certificate
from dpcohort.planning._noise import (
    ROUNDING,
    DistributedNoise,
    LocalNoise,
    Noise,
    PlannedDraws,
    noise_of,
)
from dpcohort.planning._participation import (
    CappedRule,
    FixedCohorts,
    Participation,
    refuse_clients,
)
from dpcohort.planning._past import Past
from dpcohort.planning._reports import Origin, Reports
from dpcohort.plugins import is_named_function
from dpcohort.progress import Progress, silent
from dpcohort.schedule import Draws, Schedule, draw_schedule
from dpcohort.selection import (
    PlannedRule,
    Selection,
    SelectionProblem,
    exact_costs,
    paper_costs,
    rule_from_settings,
    selected,
)
from dpcohort.selection._problem import OWN_NOISE, calibrated_epsilon
from dpcohort.training import Training

if TYPE_CHECKING:
    from dpcohort.explain import Explanation, PlanComparison

__all__ = [
    "CappedRule",
    "Certificate",
    "DistributedNoise",
    "FixedCohorts",
    "LocalNoise",
    "NoiseModel",
    "Past",
    "Plan",
    "PlanOptions",
    "Reports",
    "make_plan",
    "selection_problem",
]


#: Above this many different (noise, rate, steps) the fast bound alone is computed.
_MOST_SECOND_OPINIONS = 200
_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Who takes part when, with how much noise, and what that is certified to spend.

    Two plans are equal if their hashes are.

    Attributes:
        population: the clients and their budgets.
        training: rounds, cohort size, clip and the rest.
        contract: sampler, neighbours, accountant and trust.
        participation: cohorts fixed before training, or a rule that chooses each within caps.
        noise: of every client alone, or shares of a cohort's.
        certificate: what each client will have spent at its delta.
        seed: what the schedule was drawn from, or the chances of the rule. It is public: batches
            and noise never use it in a deployment.
        past: earlier runs that it continues; what was spent in them counts.
    """

    population: Population
    training: Training
    contract: Contract
    participation: Participation
    noise: Noise
    certificate: Certificate
    seed: int
    past: Past = Past.none

    def __repr__(self) -> str:
        return f"Plan({', '.join(self._told().values())})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return html_table("Plan", self._told())

    def _told(self) -> dict[str, str]:
        """Short summary fields for repr and notebooks."""
        budgets = self.population.epsilon[~self.population.public]
        ends = f"{budgets.min():.3g} to {budgets.max():.3g}" if budgets.size else ""
        draws = f"{counted(self.training.rounds, 'round')} of {self.training.cohort_size} draws"
        alone = self.certificate.alone_epsilon[~self.population.public]
        return {
            "rule": self.rule,
            "clients": counted(len(self.population), "client"),
            "budgets": f"epsilon {ends}" if ends else "all public",
            "training": draws,
            "noise": f"noise / clip {self.noise_to_clip:.3g}",
            **self.noise.summary(self.training.cohort_size, alone),
            "sha256": self.sha256[:12],
        }

    def __post_init__(self) -> None:
        clients, noise = len(self.population), self.noise
        self.participation.check(self.population, self.training)
        if noise.multipliers.size != clients:
            raise InputError.because(
                f"the noise is for {noise.multipliers.size} clients but the population has "
                f"{clients}."
            )
        held = self.drawn & ~self.population.public
        refuse = partial(refuse_clients, self.population)
        refuse(held & ~(noise.multipliers > 0), "is drawn and has a budget, but no noise")
        refuse(self.reports.check(held), "reports without noise")
        self.past.check(self.population, self.contract, self.training.cohort_size)
        noise.check(self.population, self.training, self.contract, self.participation)
        self.certificate.check(self.population, held)

    @property
    def selection(self) -> Selection:
        """Selection of a plan with fixed cohorts."""
        return self.participation.fixed.selection

    @property
    def schedule(self) -> Schedule:
        """Cohorts of a plan that fixes them."""
        return self.participation.fixed.schedule

    @property
    def rule(self) -> str:
        """Name of the selection rule."""
        return self.participation.rule_name

    @property
    def counts(self) -> IntArray:
        """Draws of each client over all rounds, T_k; at most, where a rule chooses cohorts."""
        return self.participation.counts

    @property
    def reports(self) -> Reports:
        """What clients report to a rule that chooses cohorts."""
        return self.participation.reports

    @property
    def noise_multipliers(self) -> FloatArray:
        """z_k, std of the noise on the sum of clipped gradients, in units of C."""
        return self.noise.multipliers

    @property
    def certified_epsilon(self) -> FloatArray:
        """What each client will have spent at its delta; 0 if never drawn, NaN if public."""
        return self.certificate.epsilon

    @cached_property
    def alone_multipliers(self) -> FloatArray:
        """Noise multiplier of each client's own noise alone: what is left if all others collude.

        Where trust is local that is all its noise. NaN for clients that are never drawn.
        """
        return self.noise.alone(self.population, self.batch_sizes, self.drawn)

    @cached_property
    def if_alone(self) -> Plan:
        """The same training as each client must count it if all others collude: a local plan.

        Example:
            >>> people = Population.from_arrays(sizes=[90] * 4, epsilon=[1.0] * 4, delta=1e-5)
            >>> plan = make_plan(people, Training(rounds=4, cohort_size=2, batch_size=9), seed=0,
            ...                  accountant=Contract(trust="distributed"))
            >>> alone = plan.if_alone.spent_epsilon(plan.counts)
            >>> bool((alone > plan.certified_epsilon).all())
            True
        """
        return self.noise.if_alone(self)

    def noise_multiplier(self, client: str) -> float:
        """The z of one client, for a training step of somebody else's such as Opacus'.

        It holds for at most ``plan.steps`` of the client's steps, on batches drawn as
        ``plan.contract`` says at no more than its rate in ``plan.sampling_rates``, with records
        clipped to ``plan.training.clip``. 0 for a public client.

        Raises:
            InputError: there is no such client, it is never drawn, or its noise is distributed with
                that of others, so that what it adds alone is not enough.

        Example:
            >>> from dpcohort import Population, Training, make_plan
            >>> plan = make_plan(
            ...     Population.from_arrays(sizes=[400, 400], epsilon=[1, 4], delta=1e-5),
            ...     Training(rounds=20, cohort_size=1, batch_size=40), seed=1)
            >>> plan.noise_multiplier("client-0") > plan.noise_multiplier("client-1")
            True
        """
        position = self.population.index_of(client)
        found = float(self.noise.unshared[position])
        if np.isnan(found):
            raise InputError.because(
                f"client {client!r} is never drawn in this plan, so it has no noise and may not "
                "train. `dpcohort explain` says why."
            )
        return found

    @cached_property
    def batch_sizes(self) -> IntArray:
        """Expected batch B_k of each client, the public denominator of its mean gradient."""
        return shared(self.population.batches(self.training))

    @cached_property
    def sampling_rates(self) -> FloatArray:
        """r_k, the probability that a record is in one batch: B_k / |M_k|, or 1 / bins."""
        return shared(self.contract.sampler.rates(self.population.sizes, self.batch_sizes))

    @property
    def is_simple(self) -> bool:
        """Whether cohorts are fixed, noise is local and nothing came before: a mod can keep it."""
        return all(part.is_simple for part in (self.participation, self.noise, self.past))

    @property
    def drawn(self) -> BoolArray:
        """Clients that spend something; where a rule chooses cohorts all, who may be asked."""
        return self.participation.spending

    @cached_property
    def steps(self) -> IntArray:
        """Noisy steps of each client over the whole training, T_k T^l; at most, if it is capped."""
        return self.counts * self.training.local_steps

    @cached_property
    def noise_to_clip(self) -> float:
        """Norm of the noise on one round's mean gradient, in units of C (root mean square)."""
        per_draw = self.noise.std_per_draw(self.batch_sizes) ** 2
        mean_draw = self.participation.mean_per_draw(per_draw)
        return float(np.sqrt(self.training.dimension * mean_draw / self.training.cohort_size))

    @property
    def probabilities(self) -> FloatArray:
        """p^s of a plan with fixed cohorts.

        Raises:
            InputError: a rule chooses each cohort; there are none before the training.
        """
        return self.participation.probabilities

    @cached_property
    def model_weights(self) -> FloatArray:
        """Effective weight of each client in the model; sums to 1."""
        return self.noise.model_weights(self.participation)

    @cached_property
    def draw_probabilities(self) -> FloatArray:
        """Probability that a draw is of each client, of a plan with fixed cohorts.

        They are p^s; where noise is distributed, p^s are weights in the model, and this follows
        from them.
        """
        return self.noise.draw_probabilities(self)

    @property
    def problem(self) -> SelectionProblem:
        """What the rule weighed: noise costs against unbiased probabilities."""
        return self._selection_problem[0]

    @property
    def noise_levels(self) -> tuple[FloatArray, FloatArray]:
        """How each client's noise grows with its draws, as the selection saw it: level, floor."""
        return self._selection_problem[1]

    @cached_property
    def histories(self) -> tuple[History, ...]:
        """What each client spent in the runs before, by position; empty without any."""
        return self.past.histories(self.population)

    @cached_property
    def has_past(self) -> BoolArray:
        """Clients with a budget that took part in a run before."""
        return self.past.spent_by(self.population)

    def source(self, own: Source, later: Sequence[Charge] = ()) -> Origin:
        """The least private source of noise of a run of the plan, with all that was spent before.

        Args:
            own: of the run itself.
            later: charges after the plan was made.
        """
        return self.reports.source(self.past.source(own, later))

    @cached_property
    def _selection_problem(self) -> tuple[SelectionProblem, tuple[FloatArray, FloatArray]]:
        return selection_problem(
            self.past.left(self.population),
            self.training,
            contract=self.contract,
            noise_model=self.participation.fixed.noise_model,
        )

    @property
    def report_rates(self) -> FloatArray:
        """Share of a client's records that a report looks at."""
        return self.reports.rates(self.sampling_rates)

    @property
    def report_stds(self) -> FloatArray:
        """Noise on each client's reported mean, z t / (2 n)."""
        return self.reports.stds(self.report_rates * self.population.sizes)

    def history(self, client: int, *, draws: int, reports: int) -> History:
        """All events of a client that was drawn and asked so often, and of the runs before."""
        earlier = self.histories[client].events if self.histories else ()
        return History((*earlier, *self.events(client, draws=draws, reports=reports).events))

    def events(self, client: int, *, draws: int, reports: int) -> History:
        """The events of this plan alone, of a client that was drawn and asked so often."""
        each = self.training.local_steps
        parts = [(self.noise.multipliers, self.sampling_rates, draws * each, each)]
        parts += [(*one, 1) for one in self.reports.releases(self.report_rates, reports)]
        return History(
            tuple(
                Event.of(
                    noise_multiplier=float(noise[client]),
                    sampling_rate=float(rate[client]),
                    steps=steps,
                    **self.contract.sampling(together),
                )
                for noise, rate, steps, together in parts
                if steps > 0 or not np.isnan(noise[client])
            )
        )

    def spent_epsilon(
        self,
        draws: IntArray,
        reports: IntArray | None = None,
        *,
        clients: IntArray | None = None,
        method: str = "auto",
    ) -> FloatArray:
        """Upper bound on the epsilon each client has spent, at its delta.

        Every method is a valid upper bound. Where one of them is above what was promised only
        because it rounds up, the smaller of two bounds is as valid and is taken.

        Where cohorts follow from reports or updates, how often a client took part depends on what
        it gave out: a rule can stop at the output that tells most, and the epsilon of a number
        chosen so is not proved (arXiv 2602.06756). That of the caps is, so it is given. A client
        that gave nothing out spent nothing, and a rule that looks at no output has numbers as good
        as fixed.

        Args:
            draws: how often each client was really drawn, by position.
            reports: how often each client really reported.
            clients: positions to look at; all by default.
            method: as in ``certify_epsilon``; ``auto`` uses the fast one for very many clients.

        Returns:
            One number a client: 0 for one that was never drawn or asked, NaN for a public one, and
            for one whose raw reports no number can bound.

        Example:
            >>> people = Population.from_arrays(sizes=[90, 90], epsilon=[1.0, 2.0], delta=1e-5)
            >>> plan = make_plan(people, Training(rounds=4, cohort_size=2, batch_size=9), seed=0)
            >>> bool((plan.spent_epsilon(plan.counts) <= people.epsilon).all())
            True
        """
        chosen = np.arange(len(self.population)) if clients is None else clients
        made = np.asarray(draws, dtype=np.int64)[chosen]
        asked = np.zeros_like(made) if reports is None else np.asarray(reports)[chosen]
        drawn, charged = self.participation.charged(made, asked, chosen)
        public = self.population.public[chosen]
        spent = np.where(public, np.nan, 0.0)
        composed = self.has_past[chosen] | ((charged > 0) & ~public)
        held = np.flatnonzero((drawn > 0) & ~public & ~composed)
        spent[held] = self._spent_in_draws(drawn[held], chosen[held], method)
        if method == "auto" and np.count_nonzero(composed) > _MOST_SECOND_OPINIONS:
            method = "pld"
        known: dict[tuple[History, float, float], float] = {}
        for row in np.flatnonzero(composed).tolist():
            k = int(chosen[row])
            history = self.history(k, draws=int(drawn[row]), reports=int(charged[row]))
            key = (history, float(self.population.delta[k]), float(self.population.epsilon[k]))
            if key not in known:
                known[key] = _bounded_epsilon(*key, method)
            spent[row] = known[key]
        spent[self.reports.unbounded(asked)] = np.nan
        return spent

    def _spent_in_draws(self, drawn: IntArray, clients: IntArray, method: str) -> FloatArray:
        noise, rates = self.noise_multipliers[clients], self.sampling_rates[clients]
        if np.isnan(noise).any():
            worst = self.population.ids[int(clients[np.isnan(noise)][0])]
            raise InputError.because(
                f"{worst!r} was drawn but the plan never draws it: there is no noise to account "
                "for."
            )
        steps = drawn * self.training.local_steps
        different = len({*zip(noise.tolist(), rates.tolist(), steps.tolist(), strict=True)})
        if method == "auto" and different > _MOST_SECOND_OPINIONS:
            method = "pld"
        found = self._epsilon_of_steps(clients, steps, method)
        over = found > self.population.epsilon[clients]
        if method != "pld" and over.any():
            again = self._epsilon_of_steps(clients[over], steps[over], "pld")
            found[over] = np.minimum(found[over], again)
        return found

    def _epsilon_of_steps(self, clients: IntArray, steps: IntArray, method: str) -> FloatArray:
        """The epsilon of so many steps of these clients."""
        return np.asarray(
            certify_epsilon(
                noise_multiplier=self.noise_multipliers[clients],
                delta=self.population.delta[clients],
                sampling_rate=self.sampling_rates[clients],
                steps=steps,
                **self.contract.sampling(self.training.local_steps),
                method=method,
            )
        )

    def charged_history(self, client: int, *, draws: int, reports: int = 0) -> History | None:
        """The events that ``spent_epsilon`` charges a client for; None where nothing bounds them.

        Args:
            client: its position.
            draws: how often it was really drawn.
            reports: how often it really reported.

        Example:
            >>> people = Population.from_arrays(sizes=[90, 90], epsilon=[1.0, 2.0], delta=1e-5)
            >>> plan = make_plan(people, Training(rounds=4, cohort_size=2, batch_size=9), seed=0)
            >>> plan.charged_history(0, draws=2).steps
            2
        """
        made, told, one = np.array([draws]), np.array([reports]), np.array([client])
        if self.population.public[client] or self.reports.unbounded(told).any():
            return None
        if draws == 0 and reports == 0:
            return self.histories[client] if self.histories else History()
        drawn, asked = self.participation.charged(made, told, one)
        return self.history(client, draws=int(drawn[0]), reports=int(asked[0]))

    def verify(self, method: str = "auto") -> None:
        """Check every promise again with an accountant that did not make the plan.

        Those of an adaptive plan are checked at the caps. What the plan says that clients will have
        spent is checked as well, with the others and, where trust is distributed, without them.

        Raises:
            VerificationError: a client's noise does not keep its budget, and all such are named; or
                a client would spend more than the plan says.
        """
        held = self._held
        certified = self._planned_epsilon(held, method)
        # Asked this way round, a certificate that is not a number breaks the promise.
        broken = held[~(certified <= self.population.epsilon[held])]
        if broken.size:
            named = ", ".join(one_line(self.population.ids[k]) for k in broken[:_MOST_NAMED])
            raise VerificationError(
                f"{broken.size} clients would spend more than promised: {named}"
                + (", ..." if broken.size > _MOST_NAMED else "")
                + ". Do not train with this plan; make it again."
            )
        self._verify_said(certified, method)

    def verify_certificates(self, method: str = "auto") -> None:
        """Check again what the plan says that clients will have spent, with and without others.

        Raises:
            VerificationError: a client would spend more than the plan says.
        """
        self._verify_said(self._planned_epsilon(self._held, method), method)

    @property
    def _held(self) -> IntArray:
        """Positions of clients with a certificate."""
        return np.flatnonzero((self.drawn | self.has_past) & ~self.population.public)

    def _planned_epsilon(self, clients: IntArray, method: str) -> FloatArray:
        """What these clients will have spent; raw reports are certified by nothing."""
        planned = self.reports.planned
        return self.spent_epsilon(self.counts, planned, clients=clients, method=method)

    def _verify_said(self, found: FloatArray, method: str, when: str = "") -> None:
        """Refuse a plan that says less than was found, of ``_held``, or than each alone spends."""
        held, said = self._held, self.certified_epsilon[self._held]
        over = ~(found <= said)
        if method != "pld" and over.any():  # the smaller of two bounds is as valid
            found = found.copy()
            found[over] = np.minimum(found[over], self._planned_epsilon(held[over], "pld"))
        wrong = np.flatnonzero(~(found <= said * (1 + ROUNDING)))
        if wrong.size:
            first = int(wrong[0])
            raise VerificationError(
                f"{wrong.size} clients would spend more than the plan says{when}: "
                f"{one_line(self.population.ids[int(held[first])])} epsilon {found[first]:.6g}, it "
                f"says {said[first]:.6g}. Do not train with this plan; make it again."
            )
        if self.if_alone is not self:
            alone = self.if_alone._planned_epsilon(held, method)
            self.if_alone._verify_said(alone, method, " if all others collude")

    def verify_unless_made_here(self) -> None:
        """Certify a plan that was read or changed; one that was just made is certified.

        Raises:
            VerificationError: a client's noise does not keep its budget.
        """
        if not self.__dict__.get("_certified_here", False):
            self.verify(method="pld")

    def _mark_certified(self) -> None:
        """Only for what has just certified every client; ``replace`` makes a plan without it."""
        self.__dict__["_certified_here"] = True

    def plain_settings(self) -> dict[str, Any]:
        """All that is not a column, in plain values."""
        return {
            "training": asdict(self.training),
            "contract": self.contract.to_dict(),
            "seed": self.seed,
            "participation": {"kind": self.participation.kind, **self.participation.plain()},
            "noise": {"kind": self.noise.kind, **self.noise.plain()},
            "past": self.past.to_dict(),
        }

    @cached_property
    def sha256(self) -> str:
        """Hash of everything in the plan; two plans with the same hash train the same way."""
        people = self.population
        digest = hashlib.sha256(json.dumps(self.plain_settings(), sort_keys=True).encode())
        digest.update("\0".join(people.ids).encode())
        columns = (
            *(getattr(people, name) for name in COLUMN_NAMES.values()),
            *self.participation.columns().values(),
            *(self.noise.multipliers, self.noise.lifted, *self.noise.columns().values()),
            *self.certificate.columns().values(),
        )
        for column in columns:
            digest.update(column.dtype.str.encode())
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; the file appears whole or not at all."""
        from dpcohort.planning._file import write_plan

        write_plan(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan and check its hash and shapes."""
        from dpcohort.planning._file import read_plan

        return read_plan(Path(path))

    def explain(self, client: str) -> Explanation:
        """Why this client has this probability or cap and this noise, in words and numbers."""
        from dpcohort.explain import explain_client

        return explain_client(self, client)

    def compare(self, other: Plan) -> PlanComparison:
        """What differs between this plan and another for the same clients."""
        from dpcohort.explain import compare_plans

        return compare_plans(self, other)


def _bounded_epsilon(history: History, delta: float, promised: float, method: str) -> float:
    """An upper bound on what a history spends; the smaller of two if one is above the promise."""
    found = history_epsilon(history, delta, method)
    return found if found <= promised else float(np.fmin(found, history.epsilon(delta)))


class PlanOptions(TypedDict, total=False):
    """What plans with fixed cohorts and plans with a capped rule both take; all has defaults.

    Attributes:
        accountant: ``tight`` (the default), ``paper``, or a whole ``Contract``.
        guard: what happens to a client whose paper noise does not certify: ``refuse`` the plan (the
            default), or ``lift`` that client to the tight noise.
        seed: what the schedule is drawn from, or the rule's own chances; drawn and recorded if not
            given.
        progress: told how far a plan for many clients has come.
        before: earlier runs that it goes on from; each client has what they left of its budget.
        charges: what was paid beside rounds, ever; it is taken off the budgets first.
        evaluation: share of what is left that is kept to evaluate the model on test records that
            are not public, once, when it is trained.
    """

    accountant: str | Contract
    guard: str
    seed: int | None
    progress: Progress
    before: Sequence[Segment]
    charges: Sequence[Charge]
    evaluation: float | None


@dataclass(frozen=True, kw_only=True)
class PlanFrame:
    """Clients after charges, contract and past: what every plan begins with.

    Attributes:
        population: the clients with what charges left of their budgets.
        contract: sampler, neighbours, accountant and trust.
        past: earlier runs and charges.
        guard: what happens where the paper's noise does not certify.
        seed: of the schedule, or of a rule's own chances.
        progress: told how far certification has come.
    """

    population: Population
    contract: Contract
    past: Past
    guard: Guard
    seed: int
    progress: Progress

    @classmethod
    def of(cls, population: Population, options: PlanOptions) -> PlanFrame:
        """The options checked, for these clients."""
        for name in options:
            choice("option of a plan", name, PlanOptions.__annotations__)
        named, seed = options.get("accountant", "tight"), options.get("seed")
        guard = options.get("guard", "refuse")
        choice("guard", guard, get_args(Guard))
        charges, evaluation = options.get("charges", ()), options.get("evaluation")
        kept = 0.0 if evaluation is None else check_kept(evaluation)
        return cls(
            population=after_charges(population, charges, kept=kept),
            contract=named if isinstance(named, Contract) else Contract.of(named),
            past=Past.of(options.get("before", ()), Paid.of(population, charges, kept)),
            guard="lift" if guard == "lift" else "refuse",
            seed=secrets.randbits(63) if seed is None else whole_number("seed", seed, at_least=0),
            progress=options.get("progress", silent),
        )


def make_plan(
    population: Population,
    training: Training,
    *,
    selection: str | PlannedRule = "privacy-aware",
    noise_model: str = "exact",
    draws: str = "systematic",
    **options: Unpack[PlanOptions],
) -> Plan:
    """Select, schedule, calibrate and certify (Algorithm 1, lines 1 to 4, and NoiseComputation).

    Args:
        population: clients with sizes and whole budgets.
        training: rounds, cohort size, batch, clip and model dimension.
        selection: a rule, or the name of one with its default settings.
        noise_model: ``exact`` weighs the noise the schedule really adds, ``paper`` Σ p² V.
        draws: ``systematic`` or ``independent``.
        options: those of every plan, all with defaults: `PlanOptions` has the list.

    Raises:
        BudgetExceededError: noise that does not keep a promise, or clients with nothing left.

    Example:
        >>> clients = Population.from_arrays(sizes=[600] * 4, epsilon=[0.1, 1, 4, 8], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=20, cohort_size=2, batch_size=60), seed=0)
        >>> bool((plan.certified_epsilon <= clients.epsilon).all())
        True
    """
    frame, rule = PlanFrame.of(population, options), selection
    population, contract, past = frame.population, frame.contract, frame.past
    if isinstance(rule, str):
        if is_named_function(rule):
            typed(rule)
        rule = rule_from_settings(rule)
    choice("draws", draws, get_args(Draws))
    past.check(population, contract, training.cohort_size)
    refuse_undistributable(contract, training, draws, len(population))
    problem, levels = selection_problem(
        past.left(population), training, contract=contract, noise_model=noise_model
    )
    chosen = selected(rule, problem)
    kind = noise_of(contract)
    probabilities = kind.chances(problem, chosen, training.cohort_size)
    schedule = draw_schedule(
        probabilities,
        rounds=training.rounds,
        cohort_size=training.cohort_size,
        draws=draws,
        rng=np.random.default_rng([frame.seed, _SCHEDULE_STREAM]),
    )
    multipliers, certified, lifted = deploy_noise(
        population,
        calibrated_epsilon=calibrated_epsilon(rule, problem),
        sampling_rates=contract.sampler.rates(population.sizes, population.batches(training)),
        steps=schedule.counts * training.local_steps,
        contract=contract,
        local_steps=training.local_steps,
        guard=frame.guard,
        progress=frame.progress,
        past=past.histories(population),
    )
    draft = PlannedDraws(
        population=population,
        training=training,
        contract=contract,
        problem=problem,
        chosen=chosen,
        probabilities=probabilities,
        drawn=schedule.counts,
        certified=certified,
    )
    noise, certificate = kind.planned(multipliers, lifted, draft)
    plan = Plan(
        population=population,
        training=training,
        contract=contract,
        participation=FixedCohorts(
            selection=chosen,
            schedule=schedule,
            noise_model="exact" if noise_model == "exact" else "paper",
        ),
        noise=noise,
        certificate=certificate,
        seed=frame.seed,
        past=past,
    )
    plan = noise.certified(plan)
    # What was just computed need not be computed again; a plan read from a file computes it, and so
    # does one for so many clients that no calibration is in it.
    if len(population) <= CALIBRATION_LIMIT:
        plan.__dict__["_selection_problem"] = (problem, levels)
    plan._mark_certified()
    return plan


def selection_problem(
    population: Population, training: Training, *, contract: Contract, noise_model: str
) -> tuple[SelectionProblem, tuple[FloatArray, FloatArray]]:
    """What a planned rule may look at, and level and floor of the noise behind its costs."""
    choice("noise_model", noise_model, get_args(NoiseModel))
    unbiased = shared(population.unbiased)
    levels = noise_levels(
        epsilon=population.epsilon,
        delta=population.delta,
        public=population.public,
        sizes=population.sizes,
        batch_sizes=population.batches(training),
        expected_draws=unbiased * training.total_draws,
        local_steps=training.local_steps,
        contract=contract,
        calibrated=noise_model == "exact",
    )
    if noise_model == "exact":
        noise_costs, linear_costs = exact_costs(
            *levels,
            dimension=training.dimension,
            total_draws=training.total_draws,
            local_steps=training.local_steps,
        )
    else:
        noise_costs, linear_costs = paper_costs(levels[0], dimension=training.dimension)
    honest = contract.honest(training.cohort_size)
    problem = SelectionProblem(
        unbiased=unbiased,
        epsilon=population.epsilon,
        public=population.public,
        noise_costs=noise_costs,
        linear_costs=linear_costs,
        total_steps=training.total_steps,
        smoothness=training.smoothness,
        pool=solvers.Pool(training.cohort_size, honest) if honest > 1 else OWN_NOISE,
    )
    return problem, levels


#: Keeps the schedule's stream apart from any other stream made of the same seed.
_SCHEDULE_STREAM = 1
