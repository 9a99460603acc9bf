# SPDX-License-Identifier: Apache-2.0
"""The plan: everything decided before training, frozen, hashed and certified.

Population, training settings, contract and noise are in it, and with them a certificate of each
client's epsilon. A *fixed* plan has a selection and all cohorts: nothing random is left but the
batches and the noise. An *adaptive* plan leaves open who is drawn when: its rule decides that round
by round, within a cap for each client, to which the noise is calibrated.

``plan.json`` has the plan as columns of plain JSON, with the hash of its content; a fixed plan and
an adaptive one have a format each. A column is a list, or one value where all clients of a fixed
plan share it. Numbers are written so that they read back to the same bits. The hash covers the
content, not the spelling of the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray, IntArray, choice, whole_number
from dpcohort._version import __version__
from dpcohort.accounting.charges import Charge, Paid, after_charges, check_neighbours
from dpcohort.accounting.contract import Contract, Guard, NoiseModel
from dpcohort.accounting.deployed_noise import (
    CALIBRATION_LIMIT,
    deploy_noise,
    noise_levels,
)
from dpcohort.accounting.events import Event, History, certify_epsilon, history_epsilon
from dpcohort.accounting.pooled import (
    Pooled,
    adaptive_under_pooled_trust,
    common_lattice,
    refuse_unpoolable,
    refuse_weightless,
    with_lattice,
)
from dpcohort.accounting.segments import Segment, check_contract, left_population, past_of
from dpcohort.atomic_file import atomic_writer
from dpcohort.clients import Population
from dpcohort.clients.population import COLUMN_NAMES, shared
from dpcohort.errors import (
    BudgetExceededError,
    DpcohortError,
    FileFormatError,
    InputError,
    VerificationError,
)
from dpcohort.limits import LARGEST_PLAN, MOST_CLIENTS, read_bounded
from dpcohort.plain_text import counted, html_table, one_line
from dpcohort.plugins import RULES, is_named_function, make_rule
from dpcohort.progress import Progress, silent
from dpcohort.schedule import Draws, Schedule, draw_schedule, once_in_a_cohort
from dpcohort.selection.problem import (
    PlannedRule,
    Selection,
    SelectionProblem,
    calibrated_epsilon,
    check_selection,
    exact_costs,
    paper_costs,
    selected,
)
from dpcohort.selection.rules import rule_from_settings
from dpcohort.text_files import parse_json
from dpcohort.training import Training

if TYPE_CHECKING:
    from dpcohort.adaptive.rule import AdaptiveRule, ReportTerms, RoundView, Statistic
    from dpcohort.explain import Explanation, PlanComparison

__all__ = [
    "Adaptive",
    "NoiseModel",
    "Plan",
    "Pooled",
    "RecordedRule",
    "load_plan",
    "make_plan",
    "selection_problem",
]


#: Above this many different (noise, rate, steps) the fast bound alone is computed.
_MOST_SECOND_OPINIONS = 200
_MOST_NAMED = 5
#: What a file says of a selection beside its probabilities, rule and settings.
_FOUND = ("eta", "objective", "lower_bound", "gap")
#: What another order of the same operations may change.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Adaptive:
    """What an adaptive plan fixes beside caps and noise.

    Attributes:
        rule: what chooses each cohort.
        terms: of the reports; None if the rule asks for none.
        report_caps: reports of each client, at most.
        report_multipliers: noise multiplier of a report; 0 for public clients, and for all where
            reports are raw or there are none.
    """

    rule: AdaptiveRule
    terms: ReportTerms | None
    report_caps: IntArray
    report_multipliers: FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Who takes part when, with how much noise, and what that is certified to spend.

    Two plans are equal if their hashes are.

    Attributes:
        population: the clients and their budgets.
        training: rounds, cohort size, clip and the rest.
        contract: sampler, neighbours and accountant.
        selection: the probabilities and the certificate of their optimality; of an adaptive plan
            the rule alone.
        schedule: all cohorts; of an adaptive plan how often each client may be drawn.
        noise_multipliers: z_k, std of the noise on the sum of clipped gradients, in units of C. 0
            for public clients; NaN for clients that are never drawn, so that using one by mistake
            spoils the model instead of sending its gradient without noise.
        certified_epsilon: what each client will have spent at its delta, in an adaptive plan when
            it reaches both its caps; 0 if never drawn, NaN if public.
        lifted: clients whose paper noise did not certify and was replaced by the tight noise.
        seed: what the schedule was drawn from, or the rule's dice. It is public: batches and noise
            never use it in a deployment.
        noise_model: which expected noise the selection weighed.
        adaptive: rule and reports where cohorts are chosen during the training, else None.
        before: earlier runs that it goes on from, oldest first; what was spent in them counts.
        paid: promises in all, and what was paid of them beside rounds; the population has the rest.
        pooled: weights and shares of noise where trust is pooled, else None. The noise multiplier
            of a client is then that of h honest shares against what its weight lets a record do.
    """

    population: Population
    training: Training
    contract: Contract
    selection: Selection
    schedule: Schedule
    noise_multipliers: FloatArray
    certified_epsilon: FloatArray
    lifted: BoolArray
    seed: int
    noise_model: NoiseModel = "exact"
    adaptive: Adaptive | None = None
    before: tuple[Segment, ...] = ()
    paid: Paid = field(default_factory=Paid)
    pooled: Pooled | None = None

    def __repr__(self) -> str:
        return f"Plan({', '.join(self._told().values())})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return html_table("Plan", self._told())

    def _told(self) -> dict[str, str]:
        """What there is to say of the plan, a few words each."""
        budgets = self.population.epsilon[~self.population.public]
        ends = f"{budgets.min():.3g} to {budgets.max():.3g}" if budgets.size else ""
        draws = f"{counted(self.training.rounds, 'round')} of {self.training.cohort_size} draws"
        trust = {}
        if self.pooled is not None:
            alone = self.pooled.alone_epsilon[~self.population.public]
            honest = f"{self.pooled.honest} of {self.training.cohort_size} honest"
            trust["trust"] = f"pooled, {honest}"
            trust["alone"] = f"epsilon {alone.max():.3g} if all collude"
        return {
            "rule": self.selection.rule,
            "clients": counted(len(self.population), "client"),
            "budgets": f"epsilon {ends}" if ends else "all public",
            "training": draws,
            "noise": f"noise / clip {self.noise_to_clip:.3g}",
            **trust,
            "sha256": self.sha256[:12],
        }

    def __post_init__(self) -> None:
        noise = (self.noise_multipliers, self.certified_epsilon, self.lifted)
        reports = (self.report_caps, self.report_multipliers)
        for column in (self.selection.probabilities, *noise, *reports):
            column.setflags(write=False)
        clients = len(self.population)
        lengths = {"schedule is": self.schedule.clients, "noise is": self.noise_multipliers.size}
        if self.adaptive is None:
            lengths["selection is"] = self.selection.probabilities.size
        else:
            lengths["reports is"] = self.adaptive.report_caps.size
        if self.pooled is not None:
            lengths["weights are"] = self.pooled.weights.size
        for words, length in lengths.items():
            if length != clients:
                raise InputError.because(
                    f"the {words} for {length} clients but the population has {clients}."
                )
        check_selection(self.selection, clients)
        planned = (self.training.rounds, self.training.cohort_size)
        if self.adaptive is None and self.schedule.cohorts.shape != planned:
            raise InputError.because(
                f"the schedule has {self.schedule.rounds} rounds of {self.schedule.cohort_size} "
                f"draws but training asks for {self.training.rounds} of "
                f"{self.training.cohort_size}."
            )
        held = self.drawn & ~self.population.public
        self._refuse(
            held & ~(self.noise_multipliers > 0), "is drawn and has a budget, but no noise"
        )
        if self.has_private_reports:
            self._refuse(held & ~(self.report_multipliers > 0), "reports without noise")
        bare = {name for segment in self.before for name in segment.without_noise}
        if bare:
            here = np.array([name in bare for name in self.population.ids], dtype=np.bool_)
            self._refuse(
                here & ~self.population.public, "has a budget, and was a public one before"
            )
        check_contract(self.before, self.contract, self.training.cohort_size)
        check_neighbours(self.paid.charges, self.contract.neighbours)
        self.paid.check(self.population)
        self._check_pooled(held)

    def _check_pooled(self, held: BoolArray) -> None:
        """Refuse trust without shares of noise, and shares that do not carry the multipliers."""
        pooled, contract, training = self.pooled, self.contract, self.training
        if contract.is_pooled != (pooled is not None):
            raise InputError.because(
                "trust is pooled in the contract or in the plan, but not in both; make the plan "
                "again."
            )
        if pooled is None:
            return
        refuse_unpoolable(contract, training, self.schedule.draws)
        if self.adaptive is not None:
            raise adaptive_under_pooled_trust(self.selection.rule)
        honest = contract.honest(training.cohort_size)
        if pooled.honest != honest:
            raise InputError.because(
                f"the plan counts on {pooled.honest} honest members, its contract on {honest}; "
                "make the plan again."
            )
        refuse_weightless(self.population, pooled.weights, self.drawn)
        self._refuse(
            # What a record contributes stays 1e-5 below the clip, so rounding is paid for.
            held
            & ~(self.noise_multipliers <= pooled.multipliers(self.batch_sizes) * (1 + _ROUNDING)),
            "has more weight than its budget allows under the noise of the honest members",
        )
        self._refuse(
            np.isnan(pooled.alone_epsilon) != self.population.public,
            "has a budget and no epsilon alone, or is public and has one",
        )
        self._refuse(
            held & ~(pooled.alone_epsilon >= self.certified_epsilon),
            "would be protected better by its own noise alone than by all of it",
        )
        fitting = with_lattice(pooled, self.population, training, contract)
        if (pooled.exponent, pooled.modulus_bits) != (fitting.exponent, fitting.modulus_bits):
            raise InputError.because(
                f"the lattice 2^{pooled.exponent}, modulo 2^{pooled.modulus_bits}, is not that of "
                f"the weights (2^{fitting.exponent}, modulo 2^{fitting.modulus_bits}); make the "
                "plan again."
            )
        cohorts = self.schedule.cohorts
        common_lattice(  # what an engine adds up on, of any h
            cohorts,
            weights=pooled.weights[cohorts],
            shares=pooled.shares[cohorts],
            batch_sizes=self.batch_sizes[cohorts],
            population=self.population,
            sampler=contract.sampler,
        )
        ordered = np.sort(cohorts, axis=1)
        if (ordered[:, 1:] == ordered[:, :-1]).any():
            raise InputError.because("a client is twice in a cohort whose noise is pooled.")

    @property
    def alone_multipliers(self) -> FloatArray:
        """Noise multiplier of each client's own noise alone: what is left if all others collude.

        Where trust is local that is all its noise. NaN for clients that are never drawn. Where
        trust is pooled public clients have one as well: their shares protect the others.
        """
        if self.pooled is None:
            return self.noise_multipliers
        lent = np.where(self.drawn, self.pooled.alone_multipliers(self.batch_sizes), np.nan)
        own = self.noise_multipliers / math.sqrt(self.pooled.honest)
        return np.where(self.population.public, lent, own)

    @cached_property
    def if_alone(self) -> Plan:
        """The same training as each client must count it if all others collude: a local plan.

        Example:
            >>> people = Population.from_arrays(sizes=[90] * 4, epsilon=[1.0] * 4, delta=1e-5)
            >>> pooled = make_plan(people, Training(rounds=4, cohort_size=2, batch_size=9), seed=0,
            ...                    accountant=Contract(trust="pooled"))
            >>> alone = pooled.if_alone.spent_epsilon(pooled.schedule.counts)
            >>> bool((alone > pooled.certified_epsilon).all())
            True
        """
        if self.pooled is None:
            return self
        local = replace(self.contract, trust="local", colluding=0, dropouts=0)
        before = tuple(segment.if_alone() for segment in self.before)
        return replace(
            self,
            contract=local,
            noise_multipliers=np.where(self.population.public, 0.0, self.alone_multipliers),
            certified_epsilon=self.pooled.alone_epsilon,
            before=before,
            pooled=None,
        )

    def _refuse(self, broken: BoolArray, words: str) -> None:
        if broken.any():
            name = self.population.ids[int(np.flatnonzero(broken)[0])]
            raise InputError.because(f"client {name!r} {words}; make the plan again.")

    def noise_multiplier(self, client: str) -> float:
        """The z of one client, for a training step of somebody else's such as Opacus'.

        It holds for at most ``plan.steps`` of the client's steps, on batches drawn as
        ``plan.contract`` says at no more than its rate in ``plan.sampling_rates``, with records
        clipped to ``plan.training.clip``. 0 for a public client.

        Raises:
            InputError: there is no such client, it is never drawn, or its noise is pooled with
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
        if self.pooled is not None:
            raise InputError.because(
                "where trust is pooled a client adds a share of the noise only, which protects "
                "nobody outside of a masked sum. Plan with trust = 'local'."
            )
        found = float(self.noise_multipliers[position])
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
        """r_k = B_k / |M_k|."""
        return shared(self.batch_sizes / self.population.sizes)

    @cached_property
    def drawn(self) -> BoolArray:
        """Clients with at least one draw; in an adaptive plan all, whose reports spend as well."""
        if self.adaptive is not None:
            return np.ones(len(self.population), dtype=np.bool_)
        return self.schedule.counts > 0

    @cached_property
    def steps(self) -> IntArray:
        """Noisy steps of each client over the whole training, T_k T^l; at most, if it is capped."""
        return self.schedule.counts * self.training.local_steps

    @cached_property
    def noise_to_clip(self) -> float:
        """Norm of the noise on one round's mean gradient, in units of C (root mean square).

        Of an adaptive plan as if all were drawn alike.
        """
        per_draw = (np.nan_to_num(self.noise_multipliers, nan=0.0) / self.batch_sizes) ** 2
        if self.pooled is not None:
            per_draw = self.pooled.shares**2
        if self.adaptive is not None:
            mean_draw = float(np.mean(per_draw))
        else:
            mean_draw = float((self.schedule.counts * per_draw).sum()) / self.training.total_draws
        return float(np.sqrt(self.training.dimension * mean_draw / self.training.cohort_size))

    @property
    def probabilities(self) -> FloatArray:
        """p^s of a fixed plan.

        Raises:
            InputError: the plan is adaptive; there are none before the training.
        """
        if self.adaptive is not None:
            raise InputError.because(
                f"the rule {self.selection.rule} decides in each round, so there are no "
                "probabilities of being drawn. What needs them (the aggregation "
                "importance-compensated, the figure of probabilities) goes with planned rules only."
            )
        return self.selection.probabilities

    @cached_property
    def model_weights(self) -> FloatArray:
        """How much each client counts in the model, summing to 1.

        Its probability in a fixed plan; where noise is pooled its share of all draws, each with its
        weight.
        """
        if self.pooled is None:
            return self.probabilities
        loud: FloatArray = self.schedule.counts * self.pooled.weights
        found: FloatArray = loud / loud.sum()
        return found

    @cached_property
    def draw_probabilities(self) -> FloatArray:
        """How often each client of a fixed plan was to be drawn, a draw.

        They are p^s; where noise is pooled, p^s are weights in the model, and this follows from
        them.
        """
        if self.pooled is None:
            return self.probabilities
        return draw_probabilities(self.problem, self.selection, self.training.cohort_size)

    @property
    def problem(self) -> SelectionProblem:
        """What the rule weighed: noise costs against unbiased probabilities."""
        return self._selection_problem[0]

    @property
    def noise_levels(self) -> tuple[FloatArray, FloatArray]:
        """How each client's noise grows with its draws, as the selection saw it: level, floor."""
        return self._selection_problem[1]

    @cached_property
    def past(self) -> tuple[History, ...]:
        """What each client spent in the runs before, by position; empty without any."""
        if not self.before:
            return ()
        return tuple(past_of(self.before, name) for name in self.population.ids)

    @cached_property
    def has_past(self) -> BoolArray:
        """Clients with a budget that took part in a run before."""
        if not self.before:
            return np.zeros(len(self.population), dtype=np.bool_)
        found = np.array([history.steps > 0 for history in self.past], dtype=np.bool_)
        return found & ~self.population.public

    @cached_property
    def _selection_problem(self) -> tuple[SelectionProblem, tuple[FloatArray, FloatArray]]:
        return selection_problem(
            left_population(self.population, self.before),
            self.training,
            contract=self.contract,
            noise_model=self.noise_model,
        )

    @property
    def terms(self) -> ReportTerms | None:
        """What clients report on which terms; None if they do not."""
        return None if self.adaptive is None else self.adaptive.terms

    @property
    def has_private_reports(self) -> bool:
        """Whether clients report, with noise and charged."""
        return self.terms is not None and self.terms.mode == "private"

    @property
    def has_raw_reports(self) -> bool:
        """Whether clients report without noise: nothing made with this plan is private."""
        return self.terms is not None and self.terms.mode == "raw"

    @property
    def report_caps(self) -> IntArray:
        """Reports of each client, at most."""
        if self.adaptive is None:
            return np.zeros(len(self.population), dtype=np.int64)
        return self.adaptive.report_caps

    @property
    def report_multipliers(self) -> FloatArray:
        """Noise multiplier of a report; 0 for public clients and raw reports."""
        if self.adaptive is None:
            return np.zeros(len(self.population))
        return self.adaptive.report_multipliers

    @property
    def report_rates(self) -> FloatArray:
        """Share of a client's records that a report looks at."""
        if self.terms is not None and self.terms.mini_batch:
            return self.sampling_rates
        return np.ones(len(self.population))

    @property
    def report_stds(self) -> FloatArray:
        """Noise on each client's reported mean, z t / (2 n)."""
        looked_at = self.report_rates * self.population.sizes
        half = 0.0 if self.terms is None else self.terms.half_range
        return self.report_multipliers * half / looked_at

    def history(self, client: int, *, draws: int, reports: int) -> History:
        """All events of a client that was drawn and asked so often, and of the runs before."""
        done = self.events(client, draws=draws, reports=reports)
        return History((*self.past[client].events, *done.events)) if self.before else done

    def events(self, client: int, *, draws: int, reports: int) -> History:
        """The events of this plan alone, of a client that was drawn and asked so often."""
        parts = [(self.noise_multipliers, self.sampling_rates, draws * self.training.local_steps)]
        if self.has_private_reports:
            parts.append((self.report_multipliers, self.report_rates, reports))
        return History(
            tuple(
                Event(
                    noise_multiplier=float(noise[client]),
                    sampling_rate=float(rate[client]),
                    steps=steps,
                    **self.contract.sampling,
                )
                for noise, rate, steps in parts
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
            >>> bool((plan.spent_epsilon(plan.schedule.counts) <= people.epsilon).all())
            True
        """
        chosen = np.arange(len(self.population)) if clients is None else clients
        made = np.asarray(draws, dtype=np.int64)[chosen]
        asked = np.zeros_like(made) if reports is None else np.asarray(reports)[chosen]
        drawn, charged = self.charged(made, asked, chosen)
        public = self.population.public[chosen]
        spent = np.where(public, np.nan, 0.0)
        composed = self.has_past[chosen]
        if self.adaptive is None:
            held = np.flatnonzero((drawn > 0) & ~public)
            spent[held] = self._spent_in_draws(drawn[held], chosen[held], method)
        else:
            composed |= ((drawn > 0) | (charged > 0)) & ~public
            if method == "auto" and chosen.size > _MOST_SECOND_OPINIONS:
                method = "pld"
        known: dict[tuple[History, float, float], float] = {}
        for row in np.flatnonzero(composed).tolist():
            k = int(chosen[row])
            history = self.history(k, draws=int(drawn[row]), reports=int(charged[row]))
            key = (history, float(self.population.delta[k]), float(self.population.epsilon[k]))
            if key not in known:
                known[key] = _bounded_epsilon(*key, method)
            spent[row] = known[key]
        if self.has_raw_reports:
            spent[asked > 0] = np.nan
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
                **self.contract.sampling,
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
        if self.population.public[client] or (self.has_raw_reports and reports > 0):
            return None
        if draws == 0 and reports == 0:
            return self.past[client] if self.before else History()
        one = np.array([client])
        drawn, asked = self.charged(np.array([draws]), np.array([reports]), one)
        return self.history(client, draws=int(drawn[0]), reports=int(asked[0]))

    def charged(
        self, drawn: IntArray, asked: IntArray, clients: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Draws and reports that clients at these positions are charged for.

        Those that were made; the caps of a client that took part where numbers follow from outputs.
        """
        watches = self.adaptive is not None and self.adaptive.rule.watches_updates
        if self.terms is None and not watches:
            return drawn, asked
        took_part = (drawn > 0) | (asked > 0)
        return (
            np.where(took_part, np.maximum(drawn, self.schedule.counts[clients]), 0),
            np.where(took_part, np.maximum(asked, self.report_caps[clients]), 0),
        )

    def verify(self, method: str = "auto") -> None:
        """Check every promise again with an accountant that did not make the plan.

        Those of an adaptive plan are checked at the caps. What the plan says that clients will have
        spent is checked as well, with the others and, where trust is pooled, without them.

        Raises:
            VerificationError: a client's noise does not keep its budget, and all such are named; or
                a client would spend more than the plan says.
        """
        held = self._held
        if self.adaptive is None and not self.before:
            certified = self._epsilon_of_steps(held, self.steps[held], method)
        else:
            certified = self._planned_epsilon(held, method)
        # Asked this way round, a certificate that is not a number breaks the promise.
        broken = held[~(certified <= self.population.epsilon[held])]
        if broken.size:
            named = ", ".join(one_line(self.population.ids[k]) for k in broken[:_MOST_NAMED])
            caps = "" if self.adaptive is None else " at their caps"
            raise VerificationError(
                f"{broken.size} clients would spend more than promised{caps}: {named}"
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
        reports = self.report_caps if self.has_private_reports else None
        counts = self.schedule.counts
        return self.spent_epsilon(counts, reports, clients=clients, method=method)

    def _verify_said(self, found: FloatArray, method: str, when: str = "") -> None:
        """Refuse a plan that says less than was found, of ``_held``, or than each alone spends."""
        held, said = self._held, self.certified_epsilon[self._held]
        over = ~(found <= said)
        if method != "pld" and over.any():  # the smaller of two bounds is as valid
            found = found.copy()
            found[over] = np.minimum(found[over], self._planned_epsilon(held[over], "pld"))
        wrong = np.flatnonzero(~(found <= said * (1 + _ROUNDING)))
        if wrong.size:
            first = int(wrong[0])
            raise VerificationError(
                f"{wrong.size} clients would spend more than the plan says{when}: "
                f"{one_line(self.population.ids[int(held[first])])} epsilon {found[first]:.6g}, it "
                f"says {said[first]:.6g}. Do not train with this plan; make it again."
            )
        if self.pooled is not None:
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
        common = {"training": asdict(self.training), "contract": self.contract.to_dict()}
        if self.adaptive is not None:
            return {
                **common,
                "rule": self.selection.rule,
                "rule_settings": dict(self.selection.settings),
                "reports": None if self.terms is None else asdict(self.terms),
                "seed": self.seed,
            }
        return {
            **common,
            "noise_model": self.noise_model,
            "selection": {
                "rule": self.selection.rule,
                "settings": dict(self.selection.settings),
                **{name: getattr(self.selection, name) for name in _FOUND},
            },
            "draws": self.schedule.draws,
            "seed": self.seed,
        }

    @cached_property
    def sha256(self) -> str:
        """Hash of everything in the plan; two plans with the same hash train the same way."""
        people, noise = self.population, self.noise_multipliers
        chosen: tuple[NDArray[Any], ...]
        if self.adaptive is None:
            chosen = (self.selection.probabilities, self.schedule.cohorts, noise)
        else:
            chosen = (self.schedule.counts, self.report_caps, noise, self.report_multipliers)
        digest = hashlib.sha256(json.dumps(self.plain_settings(), sort_keys=True).encode())
        digest.update("\0".join(people.ids).encode())
        held = [getattr(people, name) for name in COLUMN_NAMES.values()]
        for column in (*held, *chosen, self.certified_epsilon, self.lifted):
            digest.update(column.dtype.str.encode())
            digest.update(np.ascontiguousarray(column).tobytes())
        if self.before:
            digest.update(json.dumps(_plain_before(self), sort_keys=True).encode())
        if self.paid:
            digest.update(json.dumps(self.paid.to_dict(), sort_keys=True).encode())
        if self.pooled is not None:
            digest.update(json.dumps(self.pooled.to_dict(), sort_keys=True).encode())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; the file appears whole or not at all."""
        with atomic_writer(path) as file:
            file.writelines(_pieces(self))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan and check its hash and shapes."""
        return load_plan(path)

    def explain(self, client: str) -> Explanation:
        """Why this client has this probability and this noise, in words and numbers."""
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


def make_plan(
    population: Population,
    training: Training,
    *,
    selection: str | PlannedRule = "privacy-aware",
    accountant: str | Contract = "tight",
    noise_model: str = "exact",
    draws: str = "systematic",
    guard: str = "refuse",
    seed: int | None = None,
    progress: Progress = silent,
    before: Sequence[Segment] = (),
    charges: Sequence[Charge] = (),
) -> Plan:
    """Select, schedule, calibrate and certify (Algorithm 1, lines 1 to 4, and NoiseComputation).

    Args:
        population: clients with sizes and whole budgets.
        training: rounds, cohort size, batch, clip and model dimension.
        selection: a rule, or the name of one with its default settings.
        accountant: ``tight``, ``paper``, or a whole ``Contract``.
        noise_model: ``exact`` weighs the noise the schedule really adds, ``paper`` Σ p² V.
        draws: ``systematic`` or ``independent``.
        guard: what happens to a client whose paper noise does not certify: ``refuse`` the plan, or
            ``lift`` that client to the tight noise.
        seed: what the schedule is drawn from; drawn and recorded if not given.
        progress: told how far a plan for many clients has come.
        before: earlier runs that it goes on from; each client has what they left of its budget.
        charges: what was paid beside rounds, ever; it is taken off the budgets first.

    Raises:
        BudgetExceededError: noise that does not keep a promise, or clients with nothing left.

    Example:
        >>> clients = Population.from_arrays(sizes=[600] * 4, epsilon=[0.1, 1, 4, 8], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=20, cohort_size=2, batch_size=60), seed=0)
        >>> bool((plan.certified_epsilon <= clients.epsilon).all())
        True
    """
    contract = accountant if isinstance(accountant, Contract) else Contract.of(accountant)
    rule = selection
    if isinstance(rule, str):
        if is_named_function(rule):
            from dpcohort.consent import typed

            typed(rule)
        rule = rule_from_settings(rule)
    choice("guard", guard, get_args(Guard))
    choice("draws", draws, get_args(Draws))
    seed = secrets.randbits(63) if seed is None else whole_number("seed", seed, at_least=0)
    check_contract(before, contract, training.cohort_size)
    population, paid = after_charges(population, charges), Paid.of(population, charges)
    refuse_unpoolable(contract, training, draws, len(population))
    problem, levels = selection_problem(
        left_population(population, before), training, contract=contract, noise_model=noise_model
    )
    chosen = selected(rule, problem)
    probabilities = chosen.probabilities
    if contract.is_pooled:
        probabilities = draw_probabilities(problem, chosen, training.cohort_size)
    schedule = draw_schedule(
        probabilities,
        rounds=training.rounds,
        cohort_size=training.cohort_size,
        draws=draws,
        rng=np.random.default_rng([seed, _SCHEDULE_STREAM]),
    )
    noise, certified, lifted = deploy_noise(
        population,
        calibrated_epsilon=calibrated_epsilon(rule, problem),
        sampling_rates=population.sampling_rates(training),
        steps=schedule.counts * training.local_steps,
        contract=contract,
        guard="lift" if guard == "lift" else "refuse",
        progress=progress,
        past=[past_of(before, name) for name in population.ids] if before else (),
    )
    pooled = None
    if contract.is_pooled:
        pooled = _pool(
            population, training, contract, problem, chosen, probabilities, schedule, noise
        )
    plan = Plan(
        population=population,
        training=training,
        contract=contract,
        before=tuple(before),
        paid=paid,
        noise_model="exact" if noise_model == "exact" else "paper",
        selection=chosen,
        schedule=schedule,
        noise_multipliers=noise,
        certified_epsilon=certified,
        lifted=lifted,
        seed=seed,
        pooled=pooled,
    )
    if pooled is not None:
        plan = _certified(plan)
    # What was just computed need not be computed again; a plan read from a file computes it, and so
    # does one for so many clients that no calibration is in it.
    if len(population) <= CALIBRATION_LIMIT:
        plan.__dict__["_selection_problem"] = (problem, levels)
    plan._mark_certified()
    return plan


def draw_probabilities(
    problem: SelectionProblem, chosen: Selection, cohort_size: int
) -> FloatArray:
    """How often each client is drawn, a draw, where trust is pooled.

    Args:
        problem: what the rule looked at.
        chosen: what it gave back.
        cohort_size: K; nobody is twice in a cohort.
    """
    wanted = chosen.probabilities
    if problem.pool is None:  # everybody counts on its own noise alone
        return once_in_a_cohort(wanted, cohort_size)
    from dpcohort.selection.pooled import pooled_probabilities

    return pooled_probabilities(wanted, problem.noise_costs, problem.linear_costs, problem.pool)


def _pool(
    population: Population,
    training: Training,
    contract: Contract,
    problem: SelectionProblem,
    chosen: Selection,
    probabilities: FloatArray,
    schedule: Schedule,
    noise: FloatArray,
) -> Pooled:
    """Weights and shares of noise for the draws and multipliers there are.

    Args:
        population: the clients.
        training: rounds and cohorts.
        contract: with pooled trust.
        problem: what the rule looked at.
        chosen: effective weight of each client in the model.
        probabilities: how often each was to be drawn.
        schedule: who is drawn when.
        noise: multipliers that keep each budget; NaN if never drawn.
    """
    honest, counts = contract.honest(training.cohort_size), schedule.counts
    needed = np.nan_to_num(noise) / population.batches(training)
    if not (needed > 0).any():
        raise InputError.because(
            "no client that is drawn has a budget, so there is no noise to pool. Leave trust out, "
            "or give clients budgets."
        )
    from dpcohort.selection.pooled import SMALLEST_WEIGHT, pooled_weights

    if honest == 1:  # each draw brings its own noise, so draws and weights are those of local trust
        weights = np.zeros(len(population))
        here = counts > 0
        wanted = chosen.probabilities[here] / probabilities[here]
        weights[here] = np.maximum(wanted, SMALLEST_WEIGHT)  # cohorts may need who is not wanted
        weights /= float(counts @ weights) / training.total_draws
        shares = weights * needed
    else:
        # A selection that is optimal keeps to its objective.
        best = math.isfinite(chosen.objective) and chosen.gap <= 1e-6 * chosen.objective
        draws = training.total_draws
        weights, level = pooled_weights(
            chosen.probabilities,
            probabilities * draws,
            counts,
            needed,
            unbiased=problem.unbiased if best else None,
            noise_weight=chosen.eta * training.dimension / (honest * draws),
        )
        shares = np.full(len(population), level / math.sqrt(honest))
    unknown = np.where(population.public, np.nan, np.inf)
    pooled = Pooled(weights=weights, shares=shares, honest=honest, alone_epsilon=unknown)
    return with_lattice(pooled, population, training, contract)


def _certified(plan: Plan) -> Plan:
    """A pooled plan with the noise that its shares really give, certified with and without others.

    Raises:
        BudgetExceededError: it does not keep a promise.
    """
    pooled, noise, counts = plan.pooled, plan.noise_multipliers, plan.schedule.counts
    assert pooled is not None
    held = plan.drawn & ~plan.population.public
    if pooled.honest > 1:
        carried = pooled.multipliers(plan.batch_sizes)
        plan = replace(plan, noise_multipliers=np.where(held, carried, noise))
        certified = plan.spent_epsilon(counts, method="pld")
        # More noise than was certified spends no more.
        enough = held & (carried >= np.nan_to_num(noise))
        certified = np.where(enough, np.fmin(certified, plan.certified_epsilon), certified)
        broken = np.flatnonzero(held & ~(certified <= plan.population.epsilon))
        if broken.size:
            raise BudgetExceededError(
                f"the noise of {plan.population.ids[int(broken[0])]!r} could not be certified "
                "under pooled trust; set trust = 'local'."
            )
        plan = replace(plan, certified_epsilon=certified)
    alone = plan.if_alone.spent_epsilon(counts, method="pld")
    # A bound on less noise bounds what more noise spends.
    alone = np.maximum(alone, plan.certified_epsilon)
    return replace(plan, pooled=replace(pooled, alone_epsilon=alone))


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
    honest, pool = contract.honest(training.cohort_size), None
    if honest > 1:
        from dpcohort.selection.pooled import Pool

        pool = Pool(training.cohort_size, honest)
    problem = SelectionProblem(
        unbiased=unbiased,
        epsilon=population.epsilon,
        public=population.public,
        noise_costs=noise_costs,
        linear_costs=linear_costs,
        total_steps=training.total_steps,
        smoothness=training.smoothness,
        pool=pool,
    )
    return problem, levels


#: Keeps the schedule's stream apart from any other stream made of the same seed.
_SCHEDULE_STREAM = 1


_FIXED, _ADAPTIVE = "dpcohort plan", "dpcohort adaptive plan"
_SCHEMA = 1


def _pieces(plan: Plan) -> Iterator[str]:
    """The file in pieces, so that a million clients are never one string."""
    fixed = plan.adaptive is None
    head = {"format": _FIXED if fixed else _ADAPTIVE, "schema": _SCHEMA, "dpcohort": __version__}
    head["sha256"] = plan.sha256
    yield "{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in head.items())
    for name, section in _fixed(plan).items() if fixed else ():
        yield f',\n"{name}": {{\n'
        for position, (key, value) in enumerate(section.items()):
            yield ("" if position == 0 else ",\n") + f'  "{key}": {_encoded(key, value)}'
        yield "\n}"
    content = {} if plan.adaptive is None else _adaptive(plan, plan.adaptive)
    if plan.pooled is not None:
        content["pooled"] = plan.pooled.to_dict()
    if plan.before:
        content["before"] = _plain_before(plan)
    if plan.paid:
        content["paid"] = plan.paid.to_dict()
    for key, value in content.items():
        yield f',\n"{key}": {json.dumps(value, allow_nan=False)}'
    yield "\n}\n"


def _adaptive(plan: Plan, adaptive: Adaptive) -> dict[str, Any]:
    people = plan.population
    columns = {key: _plain(getattr(people, name)) for key, name in COLUMN_NAMES.items()}
    return {
        **plan.plain_settings(),
        "watches_updates": adaptive.rule.watches_updates,
        "clients": {"id": list(people.ids), **columns},
        "caps": {
            "draws": plan.schedule.counts.tolist(),
            "reports": adaptive.report_caps.tolist(),
        },
        "noise": {
            "noise_multiplier": plan.noise_multipliers.tolist(),
            "report_multiplier": adaptive.report_multipliers.tolist(),
            "certified_epsilon": _plain(plan.certified_epsilon),
            "lifted": plan.lifted.tolist(),
        },
    }


def _plain_before(plan: Plan) -> list[dict[str, Any]]:
    return [segment.to_dict() for segment in plan.before]


def _plain(column: NDArray[Any]) -> list[float | None]:
    return [None if value != value else value for value in column.tolist()]


def _fixed(plan: Plan) -> dict[str, Mapping[str, Any]]:
    population = plan.population
    held = np.flatnonzero((plan.drawn | plan.has_past) & ~population.public)
    told = plan.plain_settings()
    chosen = told["selection"]
    columns = {key: getattr(population, name) for key, name in COLUMN_NAMES.items()}
    return {
        "training": told["training"],
        "contract": told["contract"],
        "selection": {
            "rule": chosen.pop("rule"),
            "settings": chosen.pop("settings"),
            "noise_model": plan.noise_model,
            **chosen,
            "probabilities": plan.selection.probabilities,
        },
        "schedule": {
            "draws": plan.schedule.draws,
            "seed": plan.seed,
            "sha256": plan.schedule.sha256,
            "cohorts": plan.schedule.cohorts,
        },
        "clients": {
            "count": len(population),
            "id": list(population.ids),
            **columns,
            "public": np.flatnonzero(population.public),
        },
        "noise": {
            "client": held,
            "noise_multiplier": plan.noise_multipliers[held],
            "certified_epsilon": plan.certified_epsilon[held],
            "lifted": np.flatnonzero(plan.lifted),
        },
    }


#: Columns that hold one value per client and may be shared by all of them.
_SHARED = {"size", "epsilon", "delta", "batch_size"}


def _encoded(key: str, value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return json.dumps(value, allow_nan=False)
    if key in _SHARED and value.size and (value == value[0]).all():
        return json.dumps(value[0].item())
    if value.dtype.kind == "f" and np.isnan(value).any():
        return json.dumps(_plain(value))
    if value.ndim == 2:
        return "[\n" + ",\n".join("    " + json.dumps(row) for row in value.tolist()) + "\n  ]"
    return json.dumps(value.tolist())


#: What comes of building a plan from values that are none.
_UNUSABLE = (DpcohortError, TypeError, ValueError, IndexError, OverflowError, AttributeError)


def load_plan(path: str | Path) -> Plan:
    """Read a plan; its shapes are checked and its hash computed anew.

    Raises:
        FileFormatError: the file is not a plan, or was cut short.
        VerificationError: the file was changed after it was written.
    """
    content = _parsed(Path(path))
    try:
        plan = _rebuilt(content)
        found = plan.sha256
    except KeyError as error:
        raise FileFormatError(
            path, f"the key {error} is missing. Make the plan again with `dpcohort plan`."
        ) from None
    except _UNUSABLE as error:
        raise FileFormatError(path, f"not a usable plan: {error}") from None
    if found != content.get("sha256"):
        raise VerificationError(
            f"{path} was changed after it was written: its content hashes to {found[:16]}... "
            f"and it says {str(content.get('sha256'))[:16]}.... Make the plan again."
        )
    if content["format"] == _FIXED and plan.schedule.sha256 != content["schedule"].get("sha256"):
        raise VerificationError(f"{path}: the schedule does not have the hash it is filed under.")
    return plan


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = read_bounded(path, LARGEST_PLAN).decode("utf-8")
    except OSError as error:
        raise InputError.because(
            f"{path} cannot be read: {error.strerror or error}. Make a plan with "
            f"`dpcohort plan CONFIG --out {path}`."
        ) from None
    except UnicodeDecodeError:
        raise FileFormatError(path, "not a text file, so not a plan.") from None
    try:
        content = parse_json(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise FileFormatError(
            path, f"not valid JSON ({error.msg}); was it cut short?", line=error.lineno
        ) from None
    except ValueError as error:
        raise FileFormatError(path, f"not valid JSON ({error}).") from None
    if not isinstance(content, dict) or content.get("format") not in (_FIXED, _ADAPTIVE):
        raise FileFormatError(path, "not a dpcohort plan. Make one with `dpcohort plan`.")
    if content.get("schema") != _SCHEMA:
        raise FileFormatError(
            path,
            f"written in schema {content.get('schema')!r}; this dpcohort {__version__} reads "
            f"schema {_SCHEMA}. Upgrade dpcohort, or make the plan again.",
        )
    return content


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _rebuilt(content: Mapping[str, Any]) -> Plan:
    fixed, training = content["format"] == _FIXED, Training(**content["training"])
    population = _population(content["clients"], by_position=fixed)
    parts = _fixed_parts if fixed else _adaptive_parts
    return Plan(
        population=population,
        training=training,
        contract=Contract(**content["contract"]),
        before=tuple(Segment.from_dict(segment) for segment in content.get("before", ())),
        paid=Paid.from_dict(content["paid"]) if "paid" in content else Paid(),
        **parts(content, population, training),
    )


def _fixed_parts(
    content: Mapping[str, Any], population: Population, training: Training
) -> dict[str, Any]:
    selection, schedule, noise = content["selection"], content["schedule"], content["noise"]
    held, public = np.array(noise["client"], dtype=np.int64), population.public
    multipliers, certified = np.where(public, 0.0, np.nan), np.where(public, np.nan, 0.0)
    multipliers[held] = np.array(noise["noise_multiplier"], dtype=np.float64)
    certified[held] = np.array(noise["certified_epsilon"], dtype=np.float64)
    return {
        "noise_model": selection["noise_model"],
        "selection": Selection(
            probabilities=np.array(selection["probabilities"], dtype=np.float64),
            unbiased=population.unbiased,
            **{name: selection[name] for name in ("rule", "settings", *_FOUND)},
        ),
        "schedule": Schedule(
            cohorts=np.array(schedule["cohorts"], dtype=np.int64),
            clients=len(population),
            draws=schedule["draws"],
        ),
        "noise_multipliers": multipliers,
        "certified_epsilon": certified,
        "lifted": _marked(noise["lifted"], len(population)),
        "seed": schedule["seed"],
        "pooled": Pooled.from_dict(content["pooled"]) if "pooled" in content else None,
    }


def _marked(positions: Any, count: int) -> BoolArray:
    marked = np.zeros(count, dtype=np.bool_)
    marked[np.array(positions, dtype=np.int64)] = True
    return marked


def _population(columns: Mapping[str, Any], *, by_position: bool) -> Population:
    """Clients of a file; where one number stands for all, it does for public ones as well."""
    ids = columns["id"]
    count = columns["count"] if by_position else len(ids)
    # Before anything of that length is made: a number costs nothing to write.
    if count != len(ids) or not isinstance(ids, list):
        raise InputError("clients.count", given=count, allowed=f"{len(ids)}, as there are ids")
    whole_number("clients.count", count, at_least=1, at_most=MOST_CLIENTS)
    kinds = (np.int64, np.float64, np.float64, np.int64, np.bool_)
    found: dict[str, Any] = {}
    for (key, name), kind in zip(COLUMN_NAMES.items(), kinds, strict=True):
        column = _marked(columns[key], count) if by_position and key == "public" else columns[key]
        found[name] = np.array(column, dtype=kind)
        if found[name].ndim == 0 and key != "public":
            found[name] = np.full(count, found[name])
    return Population.from_arrays(ids=ids, **found, allow_large_delta=True)


def _adaptive_parts(
    content: Mapping[str, Any], population: Population, training: Training
) -> dict[str, Any]:
    from dpcohort.adaptive.rule import ReportTerms

    caps, noise = content["caps"], content["noise"]
    terms = None if content["reports"] is None else ReportTerms(**content["reports"])
    return {
        "selection": Selection(
            rule=content["rule"],
            unbiased=population.unbiased,
            settings=content["rule_settings"],
        ),
        "schedule": Schedule.within(
            np.array(caps["draws"], dtype=np.int64), cohort_size=training.cohort_size
        ),
        "noise_multipliers": np.array(noise["noise_multiplier"], dtype=np.float64),
        "certified_epsilon": np.array(noise["certified_epsilon"], dtype=np.float64),
        "lifted": np.array(noise["lifted"], dtype=np.bool_),
        "seed": content["seed"],
        "adaptive": Adaptive(
            rule=_rule(content, terms),
            terms=terms,
            report_caps=np.array(caps["reports"], dtype=np.int64),
            report_multipliers=np.array(noise["report_multiplier"], dtype=np.float64),
        ),
    }


def _rule(content: Mapping[str, Any], terms: ReportTerms | None) -> AdaptiveRule:
    name = content["rule"]
    if name in RULES["adaptive"]:
        made: AdaptiveRule = make_rule("adaptive", name, content["rule_settings"])
        return made
    return RecordedRule(
        name=name,
        statistic=None if terms is None else terms.statistic,
        mini_batch=terms is not None and terms.mini_batch,
        watches_updates=bool(content["watches_updates"]),
    )


@dataclass(frozen=True, kw_only=True)
class RecordedRule:
    """The name of a rule of somebody else, read from a file; it cannot choose.

    Reading and verifying a run must not run code that a file names.
    """

    name: str
    statistic: Statistic | None = None
    mini_batch: bool = False
    watches_updates: bool = False

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """Nothing is known about it."""

    def expected_reports(self, clients: int, rounds: int, draw_cap: int) -> int:
        """Not asked: the caps are in the plan."""
        return 0

    def ask(self, view: RoundView) -> IntArray:
        """Refused."""
        raise InputError.because(
            f"the rule {self.name!r} is not part of dpcohort: make the plan again with the rule."
        )

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Refused."""
        return self.ask(view)
