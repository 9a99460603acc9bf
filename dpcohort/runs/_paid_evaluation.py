# SPDX-License-Identifier: Apache-2.0
"""The evaluation of a model on test records that are not public: terms, charge, noised sums.

Each client adds up what its test records answer (``_noised_metrics``) and releases the sum with
Gaussian noise of its own, once: the share of its budget that the plan kept is charged before
anything is computed, and whoever colludes, its own noise protects it. Where noise is distributed,
cohorts of clients release one weighted sum, as in a round of the training: each adds a share of
noise, h of which keep its promise, and the charge says what its own share alone would keep.

How many test records a client has is public, as its size is: they are a stated share of it. The
charge adds to what the training spent; that the two are of different records is not used, as they
need not stay so.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting import Charge, Event, History, gaussian_delta
from dpcohort.accounting._charges import Spent, in_order, private_clients
from dpcohort.data import Dataset
from dpcohort.errors import InputError
from dpcohort.metrics import METRICS, Metric
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan
from dpcohort.runs._noised_metrics import (
    Estimate,
    Questions,
    combined,
    informed,
    noise_of,
    questions_of,
    sharpness,
)
from dpcohort.tasks import Task

if TYPE_CHECKING:
    from dpcohort.engine import Lattice

#: Positions of clients who release one sum together, or of one who does so alone.
Group = tuple[int, ...]
#: Of more clients only metrics in all are told.
MOST_TOLD = 1000
#: Names the stream of a simulation's noise.
_STREAM = 37


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationTerms:
    """Test sizes, noise and price of an evaluation; public numbers alone.

    Attributes:
        plan: of the training, which keeps a share for it.
        questions: what each test record is asked.
        clients: positions of the clients with test records.
        records: [clients] how many units of privacy of each are tested.
        noise: [clients] standard deviation of the noise that its promise needs; 0 of a public one.
        groups: places in ``clients`` of those who release one sum together.
    """

    plan: Plan
    questions: Questions
    clients: IntArray
    records: IntArray
    noise: FloatArray
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, plan: Plan, data: Dataset) -> EvaluationTerms:
        """The evaluation that a plan keeps a share for.

        Raises:
            InputError: the task or unit has none, or the test records are of no client.
        """
        whose = _owners(plan, data)
        counts = np.bincount(whose[whose >= 0], minlength=len(plan.population))
        if not counts.any():
            raise InputError.because(
                "no client of the plan has a test record, so there is nothing to evaluate on. "
                "Raise data.test_share, or leave [evaluation] out."
            )
        return cls.about(plan, data.task, counts)

    @classmethod
    def about(cls, plan: Plan, task: Task, tested: IntArray) -> EvaluationTerms:
        """The same from the number of test records of each client of the plan."""
        questions = questions_of(task)
        cohorts = [cohort for cohort in evaluation_cohorts(plan) if tested[list(cohort)].any()]
        members = {k for cohort in cohorts for k in cohort}
        clients = np.array(sorted(members.union(np.flatnonzero(tested).tolist())), np.int64)
        place = {k: i for i, k in enumerate(clients.tolist())}
        alone = [(k,) for k in clients.tolist() if k not in members]
        groups = tuple(tuple(place[k] for k in group) for group in (*cohorts, *alone))
        spent = [plan.past.paid.kept_of(plan.population.ids[k]) for k in clients.tolist()]
        private = ~plan.population.public[clients]
        noise = np.zeros(len(clients))
        given = np.array(spent)[private]
        if given.size:
            noise[private] = noise_of(given[:, 0], given[:, 1], plan.contract.sensitivity)
        loud = np.flatnonzero(noise > _MOST_NOISE)
        if loud.size:
            name = plan.population.ids[int(clients[loud[0]])]
            raise InputError.because(
                f"the evaluation would take epsilon {spent[loud[0]][0]:.3g} of {one_line(name)!r}, "
                "which buys nothing but noise. Raise evaluation.share, or leave [evaluation] out."
            )
        return cls(
            plan=plan,
            questions=questions,
            clients=clients,
            records=tested[clients],
            noise=noise,
            groups=groups,
        )

    @property
    def names(self) -> list[str]:
        """Ids of the clients with test records."""
        return [self.plan.population.ids[k] for k in self.clients.tolist()]

    @property
    def shares(self) -> FloatArray:
        """[clients] standard deviation of the noise that each adds itself."""
        counted_on = np.ones(len(self.noise))
        for group in map(list, self.groups):
            counted_on[group] = self.plan.noise.honest if len(group) > 1 else 1
        own: FloatArray = self.noise / np.sqrt(counted_on)
        return own

    def lattices(self, group: Sequence[int]) -> tuple[list[Lattice], float]:
        """The lattice of each member of a group, and what one unit of their sum is.

        In it a member counts by 1 over its own noise, over the largest of these weights.
        """
        from dpcohort.engine import Lattice
        from dpcohort.engine._lattice import exponent_for

        own = self.shares[list(group)].tolist()
        exponent = exponent_for(max(own))
        return [Lattice(one, 1.0, exponent) for one in own], math.ldexp(min(own), -exponent)

    def _as_clients(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Each group as one client: a factor on its sum, its records and its noise."""
        found, own = [], self.shares
        for group in map(list, self.groups):
            least, records = own[group].min(), self.records[group]
            weights = least / own[group] if least else np.ones(len(group))
            heard = (weights * records).sum()
            size = heard**2 / (weights**2 * records).sum()
            found.append((size / heard, size, size / heard * least * math.sqrt(len(group))))
        factors, sizes, noise = np.array(found).T
        return factors, sizes, noise

    @property
    def buys(self) -> str:
        """What is bought by how much, before it is spent.

        Example:
            >>> from dpcohort import Population, Training, make_plan
            >>> people = Population.from_arrays(sizes=[9000], epsilon=[4.0], delta=1e-6)
            >>> settings = Training(rounds=2, cohort_size=1, batch_size=90)
            >>> plan = make_plan(people, settings, evaluation=0.05, seed=0)
            >>> EvaluationTerms.about(plan, Task(), np.array([2000])).buys
            'the evaluation takes 5 % of each budget once the model is trained, and buys ... ± ...'
        """
        half = sharpness(self.questions, *self._as_clients()[1:])
        metric = METRICS[self.questions.headline]
        return (
            f"the evaluation takes {100 * self.plan.past.paid.kept:.3g} % of each budget once the "
            f"model is trained, and buys {metric.words} ± {metric.shown(metric.scale * half)}"
            f"{' points' if metric.is_share else ''} at most, on "
            f"{int(self.records.sum()):,} test {self.plan.contract.unit.several}"
        )

    def charge(self, known: Sequence[Charge], *, private: bool) -> Charge:
        """What each client with test records pays of what the plan kept.

        Args:
            known: all charges that were paid before.
            private: its noise will come from the operating system's entropy.

        Raises:
            BudgetExceededError: what was kept was spent on something else.
            InputError: it was asked for before.
        """
        plan, names = self.plan, set(self.names)
        for charge in known:
            if charge.what == "evaluation" and charge not in plan.past.paid.charges:
                raise InputError.because(
                    f"it was paid for already ({charge.title}), and what came of it is in "
                    "result.json, or was lost in a crash. Nothing was spent now: a second look at "
                    "the same records would need a second share."
                )
        people = plan.population
        whole = {name: plan.past.paid.whole(people, k) for k, name, _, _ in private_clients(people)}
        bare = [name for name in names if name not in whole]
        spent: dict[str, Spent] = {  # of whom nothing is tested, nothing
            name: plan.past.paid.kept_of(name) if name in names else (0.0, 0.0) for name in whole
        }
        found = Charge(
            what="evaluation",
            private=private,
            neighbours=plan.contract.neighbours,
            unit=plan.contract.unit.name,
            promised=whole,
            spent=spent,
            public=tuple(sorted(bare)),
            alone={self.names[i]: self._alone(i) for g in self.groups if len(g) > 1 for i in g},
            after=tuple(charge.id for charge in in_order(known)),
        )
        replace(plan.past.paid, charges=in_order((*known, found)), kept=0.0).check(people)
        return found

    def _alone(self, place: int) -> float:
        """Epsilon of what a client released if all others collude: of its own noise alone."""
        own, contract = float(self.shares[place]), self.plan.contract
        done = Event.of(
            noise_multiplier=own, sampling_rate=1.0, steps=1, neighbours=contract.neighbours
        )
        epsilon, delta = self.plan.past.paid.kept_of(self.names[place])
        return max(epsilon, History((done,)).epsilon(delta))

    def sums(
        self, data: Dataset, outputs: NDArray[Any], keys: Sequence[bytes]
    ) -> dict[Group, FloatArray]:
        """The noised sum of each group's test records.

        Args:
            data: with the test records.
            outputs: of the model on each, from that record alone. SENSITIVE.
            keys: of each client, 32 random bytes that are used for nothing else, ever.
        """
        raw_rows = self.questions.rows(outputs, data.test_labels)
        if data.test_persons is not None:
            raw_rows = data.test_persons.means(raw_rows)
        whose = _owners(self.plan, data)
        found: dict[Group, FloatArray] = {}
        for group in self.groups:
            members = tuple(self.clients[list(group)].tolist())
            own = [raw_rows[whose == k] for k in members]
            if not self.noise[group[0]]:  # public, and so alone
                found[members] = own[0].sum(0)
                continue
            lattices, unit = self.lattices(group)
            parts = zip(own, lattices, (keys[i] for i in group), strict=True)
            found[members] = unit * np.sum([noised_integers(*part) for part in parts], axis=0)
        return found

    def keys(self, seed: int | None) -> list[bytes]:
        """Keys of the noise: the operating system's, or those of a simulation's seed."""
        if seed is None:
            return [secrets.token_bytes(32) for _ in self.names]
        rng = np.random.default_rng([seed, _STREAM, int(self.plan.sha256[:12], 16)])
        return [rng.bytes(32) for _ in self.names]

    def of_those(self, groups: Collection[Group]) -> EvaluationTerms:
        """The same of those groups, or what is left of them, who released a sum."""
        left = {k for group in groups for k in group}
        here = [place for place, k in enumerate(self.clients.tolist()) if k in left]
        kept = {name: getattr(self, name)[here] for name in ("clients", "records", "noise")}
        place = {k: i for i, k in enumerate(kept["clients"].tolist())}
        return replace(self, **kept, groups=tuple(tuple(place[k] for k in g) for g in groups))

    def results(self, charge: Charge, sums: FloatArray) -> dict[str, Any]:
        """What ``result.json`` says, from noised sums and public numbers alone."""
        factors, sizes, noise = self._as_clients()
        sums = factors[:, None] * sums
        questions = informed(self.questions, sums, sizes, noise)
        weights, in_all = combined(questions, sums, sizes, noise)
        found: dict[str, Any] = {
            "charge": charge.id,
            "kept": self.plan.past.paid.kept,
            "unit": self.plan.contract.unit.name,
            "records": int(self.records.sum()),
            "in_all": _plain(in_all),
            **({"class_shares": list(told)} if (told := questions.class_shares) else {}),
        }
        if len(self.names) <= MOST_TOLD:
            for row, group in enumerate(self.groups):
                names = [self.names[i] for i in group]
                said: dict[str, Any] = {
                    "records": int(self.records[list(group)].sum()),
                    "noise": float(noise[row]),
                    "weight": float(weights[row]),
                }
                if len(group) > 1:  # of no member by itself is anything known
                    found.setdefault("together", []).append({"clients": names, **said})
                    continue
                here = slice(row, row + 1)
                own = combined(questions, sums[here], sizes[here], noise[here])[1]
                found.setdefault("clients", {})[names[0]] = said | _plain(own)
        return found

    def released(self, sums: FloatArray) -> dict[str, Any]:
        """What the file of the charge keeps, from which anybody computes the results again."""
        return {
            "clients": self.names,
            "records": self.records.tolist(),
            "noise": self.noise.tolist(),
            "groups": [[self.names[i] for i in group] for group in self.groups],
            "sums": sums.tolist(),
        }


def evaluation_cohorts(plan: Plan) -> list[Group]:
    """Positions of the clients whose test records are summed under masks, where noise is shared.

    As many to a cohort as in the training, in the order of the plan; who is left over releases a
    sum alone, with all of its noise, as everybody does where noise is not distributed.
    """
    if not plan.noise.only_sums or plan.noise.honest == 1:
        return []
    there = np.flatnonzero(plan.drawn & ~plan.population.public).tolist()
    size = plan.training.cohort_size
    return [tuple(there[i : i + size]) for i in range(0, len(there) - size + 1, size)]


def noised_integers(raw_rows: FloatArray, lattice: Lattice, key: bytes) -> IntArray:
    """The sum of one client's test records' rows with noise on a lattice.

    Args:
        raw_rows: of its test records, each of length 1 at most.
        lattice: of the noise, all of it or a share, which must not leave without masks.
        key: 32 random bytes that are used for nothing else, ever.
    """
    import torch

    from dpcohort.engine._lattice import add_rounded_gaussian_

    if not len(raw_rows):  # who has no test records still adds its noise to the others'
        raw_rows = np.zeros((1, raw_rows.shape[1]))
    total = lattice.clipped_sum(torch.from_numpy(raw_rows))
    found: IntArray = add_rounded_gaussian_(total, lattice.exponent, key).numpy()
    return found


#: More is nothing but noise, and beyond what the lattice draws.
_MOST_NOISE = 2.0**18


def _plain(metrics: Mapping[str, Estimate]) -> dict[str, dict[str, float | None]]:
    return {name: estimate.to_dict() for name, estimate in metrics.items()}


#: What the metrics are called, and how they are shown.
_SHARE = {"is_share": True, "higher_is_better": True}
_CALLED = METRICS | {
    metric.name: metric
    for metric in (
        Metric(name="auc", words="AUC of scores in bins", **_SHARE),
        Metric(name="log_loss", words="log loss, cut off"),
        Metric(name="overconfidence", words="confidence above accuracy", is_share=True),
        Metric(name="r2", words="R²", **_SHARE),
    )
}


def in_words(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Metrics of an evaluation with their intervals, by what they are called.

    Args:
        metrics: ``in_all``, or those of a client, as ``result.json`` has them.

    Example:
        >>> in_words({"accuracy": {"value": 0.8, "low": 0.786, "high": 0.814}, "records": 900})
        {'accuracy': '80.0 % (95 % CI 78.6 to 81.4)'}
    """
    told, untold = {}, {}
    for name, said in metrics.items():
        if not isinstance(said, Mapping) or (metric := _CALLED.get(name)) is None:
            continue
        if (value := said.get("value")) is None:
            untold[metric.words] = "the noise does not let it be told"
            continue
        ends = said.get("low"), said.get("high")
        shown = ["-inf" if e is None else metric.shown(metric.scale * e) for e in ends]
        told[metric.words] = f"{metric.text(value)} (95 % CI {' to '.join(shown)})"
    return told | untold


def results_again(plan: Plan, task: Task, charge: Charge, released: Mapping[str, Any]) -> Any:
    """The results from what the file of a charge keeps.

    Raises:
        InputError: its noise is not that of the charge.
        ValueError: the file says less.
    """
    people = plan.population
    place = {name: i for i, name in enumerate(map(str, released["clients"]))}
    terms = EvaluationTerms(
        plan=plan,
        questions=questions_of(task),
        clients=np.array([people.index_of(name) for name in place], np.int64),
        records=np.array(released["records"], np.int64),
        noise=np.array(released["noise"], np.float64),
        groups=tuple(tuple(place[str(name)] for name in group) for group in released["groups"]),
    )
    least = plan.training.cohort_size - plan.contract.dropouts
    cohorts = [set(cohort) for cohort in evaluation_cohorts(plan)]
    if sorted(i for group in terms.groups for i in group) != list(range(len(place))):
        raise InputError.because("somebody is in two of its sums, or in none.")
    for group in terms.groups:
        members = set(terms.clients[list(group)].tolist())
        if len(group) > 1 and not (
            len(members) >= least and any(members <= cohort for cohort in cohorts)
        ):
            raise InputError.because("it sums up clients who count on others than these.")
    for i, name in enumerate(terms.names):
        if people.public[people.index_of(name)]:
            continue
        epsilon, delta = charge.spent.get(name, (0.0, 0.0))
        alone = charge.alone.get(name, epsilon)
        for noise, kept in ((terms.noise[i], epsilon), (terms.shares[i], alone)):
            mu = plan.contract.sensitivity / noise if noise > 0 else np.inf
            if not mu < np.inf or not gaussian_delta(epsilon=kept, mu=mu) <= delta:
                raise InputError.because(
                    f"the noise on the evaluation of {one_line(name)!r} ({noise:g}) does not keep "
                    f"the epsilon {kept:g} at delta {delta:g} that it was charged."
                )
    return terms.results(charge, np.array(released["sums"], np.float64))


def _owners(plan: Plan, data: Dataset) -> IntArray:
    """Position of the client of each tested unit; -1 of one that the plan does not know."""
    owners = data.test_clients
    if owners is None:
        raise InputError.because(
            f"{data.name} does not say whose its test records are, so no client can pay for an "
            "evaluation on them. Name the client of each (a table's client = ...), say that they "
            "are public (data.test_public = true), or leave [evaluation] out."
        )
    unit = plan.contract.unit.name
    if unit == "person" and data.test_persons is None:
        raise InputError.because(
            f"{data.name} does not say of which persons its test records are, and the unit of "
            "privacy is the person: test_persons, or leave [evaluation] out."
        )
    if data.test_persons is not None:
        owners = owners[data.test_persons.first]
    place = {name: k for k, name in enumerate(plan.population.ids)}
    return np.array([place.get(str(name), -1) for name in owners.tolist()], np.int64)
