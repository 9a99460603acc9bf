# SPDX-License-Identifier: Apache-2.0
"""What an aggregation rule is, and the means: noisy updates of a cohort in, one update out.

A rule sees what the server sees: updates that already carry their noise, and public facts about
the draws. Whatever it computes is post-processing and costs no privacy. The rules here are means
over a round's draws: the paper's plain one (Algorithm 1, line 8), and weighted ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import BoolArray, FloatArray, IntArray, float_array, number
from dpcohort.errors import InputError
from dpcohort.plugins import FILLED, full_name, is_foreign, make_rule, naming_the_rule, settings_of

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort.plan import Plan


@dataclass(frozen=True)
class Cohort:
    """The draws of one round, everything in it public.

    Attributes:
        round: global round t^g.
        clients: client position of each draw.
        draws: which of that client's draws in this round each one is: 0, 1, ...
        noise_multipliers: z of each draw.
        batch_sizes: B of each draw.
        noise_stds: z C / B of each draw, the noise on its mean gradient in one local step.
        weights: factor on each draw's mean gradient where noise is distributed; None where it is
            not.
        shares: noise that each draw adds to the sum of all, in units of C, where noise is
            distributed.
        controls: [draws, D], what a rule corrects each draw's local steps by, from noisy updates
            of earlier rounds; None without such a rule.
    """

    round: int
    clients: IntArray
    draws: IntArray
    noise_multipliers: FloatArray
    batch_sizes: IntArray
    noise_stds: FloatArray
    weights: FloatArray | None = None
    shares: FloatArray | None = None
    controls: Tensor | None = None

    def __len__(self) -> int:
        return int(self.clients.size)

    @property
    def noise_of_mean(self) -> float:
        """Standard deviation of the noise on the plain mean of its draws' mean gradients."""
        stds, noisy = self.noise_stds, self.noise_multipliers > 0
        if self.shares is not None and noisy.any():
            clip = (stds * self.batch_sizes)[noisy][0] / self.noise_multipliers[noisy][0]
            stds = self.shares * clip
        return float(np.linalg.norm(stds)) / len(self)


class AggregationRule(Protocol):
    """Combines the updates of one round.

    A rule that carries something from round to round has a second method beside ``combine``,
    ``combine_remembering(updates, cohort, memory)``. It gives one update and what to remember: rows
    of the length of an update, or None; ``memory`` is what the round before returned, None before
    the first round. What it remembers is part of the training's state: it is kept in checkpoints,
    so that a resumed training goes on with it. It must be computed from noisy updates and public
    facts only.
    """

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """One update [D] from the updates [draws, D] of the cohort's draws, in their order.

        The updates are the engine's memory: a rule that wants to keep some must copy them.
        """


def combine_round(
    rule: AggregationRule, updates: Tensor, cohort: Cohort, memory: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """A round's combined update, and what the rule remembers after it.

    Raises:
        InputError: somebody's own rule failed, or gave back no update; names the rule.

    Example:
        >>> import numpy as np, torch
        >>> from dpcohort.aggregation import Mean
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> combine_round(Mean(), torch.tensor([[1.0], [3.0]]), cohort, None)
        (tensor([2.]), None)
    """
    remembering = getattr(rule, "combine_remembering", None)
    with naming_the_rule(rule, "combine" if remembering is None else "combine_remembering"):
        if remembering is None:
            update, memory = rule.combine(updates, cohort), None
        else:
            update, memory = remembering(updates, cohort, memory)
    if is_foreign(rule):
        _check_update(rule, update, updates)
    return update, memory


def _check_update(rule: AggregationRule, update: object, updates: Tensor) -> None:
    """Refuse what is no update before it reaches the model."""
    import torch

    name = full_name(rule)
    if not isinstance(update, torch.Tensor) or update.shape != updates.shape[1:]:
        given = tuple(update.shape) if isinstance(update, torch.Tensor) else type(update).__name__
        raise InputError(
            f"what the aggregation {name} gives back",
            given=given,
            allowed=f"a tensor of shape {tuple(updates.shape[1:])}",
        )
    if not bool(torch.isfinite(update).all()) and bool(torch.isfinite(updates).all()):
        raise InputError.because(
            f"the aggregation {name} made numbers that are not finite from updates that are."
        )


def checked_updates(updates: Tensor, cohort: Cohort) -> Tensor:
    """The updates, if there is one row for each draw and every entry is finite.

    An update that is not finite has left the arithmetic, or its sender does not follow the
    protocol. Sorting or projecting would hide it, so it is refused and its sender named. The check
    reads noisy updates only.

    Example:
        >>> import numpy as np, torch
        >>> one = np.ones(1)
        >>> cohort = Cohort(round=4, clients=np.array([7]), draws=np.array([0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1]), noise_stds=one)
        >>> checked_updates(torch.tensor([[float("nan")]]), cohort)
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: the update of client 7 (draw 0) in round 4 is not finite; ...
    """
    import torch

    if updates.ndim != 2 or updates.shape[0] != len(cohort) or len(cohort) == 0:
        raise InputError(
            "shape of updates",
            given=tuple(updates.shape),
            allowed=f"({max(len(cohort), 1)}, D), a row for each draw of a cohort that has any",
        )
    finite = torch.isfinite(updates).all(1)
    if not bool(finite.all()):
        row = int(torch.nonzero(~finite)[0])
        raise InputError.because(
            f"the update of client {int(cohort.clients[row])} (draw {int(cohort.draws[row])}) in "
            f"round {cohort.round} is not finite; lower the step size, or leave the client out."
        )
    return updates


def client_column(
    field: str, values: ArrayLike, *, above: float | None = None, at_least: float | None = None
) -> FloatArray:
    """One number for each client of the population, copied and closed to writing.

    Example:
        >>> client_column("sizes", [60, 20], above=0)
        array([60., 20.])
    """
    column = float_array(field, values, above=above, at_least=at_least)
    if column.ndim != 1 or column.size == 0:
        raise InputError(
            f"shape of {field}", given=column.shape, allowed="(N,), a number for each client"
        )
    column = column.copy()
    column.setflags(write=False)
    return column


def of_cohort(field: str, column: FloatArray, cohort: Cohort) -> FloatArray:
    """The column's entry for each draw.

    Raises:
        InputError: a draw of a client that the column does not reach.

    Example:
        >>> import numpy as np
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([2, 0]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> of_cohort("sizes", np.array([10.0, 20.0, 30.0]), cohort)
        array([30., 10.])
    """
    if int(cohort.clients.max()) >= column.size:
        raise InputError(
            f"length of {field}",
            given=column.size,
            allowed=f"that of the population, in which client {int(cohort.clients.max())} is drawn",
        )
    return column[cohort.clients]


def weighted_sum(updates: Tensor, weights: FloatArray) -> Tensor:
    """``sum_i w_i x_i`` over the rows, in the updates' precision and on their device.

    Example:
        >>> import numpy as np, torch
        >>> weighted_sum(torch.tensor([[1.0], [3.0]]), np.array([0.5, 0.5]))
        tensor([2.])
    """
    import torch

    return torch.as_tensor(weights, dtype=updates.dtype, device=updates.device) @ updates


@dataclass(frozen=True)
class Mean:
    """Every draw counts the same; a client drawn twice counts twice.

    Example:
        >>> import numpy as np, torch
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> Mean().combine(torch.tensor([[1.0], [3.0]]), cohort)
        tensor([2.])
    """

    name: ClassVar[str] = "mean"
    needs: ClassVar[str] = "nothing"
    leaks: ClassVar[str] = "nothing"
    reference: ClassVar[str] = "the paper (arXiv 2602.22633), Algorithm 1, line 8"
    #: So it has the same bits on any number of threads.
    adds_row_by_row: ClassVar[bool] = True

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The mean of the rows."""
        if updates.device.type != "cpu":
            return updates.mean(0)
        return sum_of_rows(updates).div_(len(updates))


def sum_of_rows(rows: Tensor) -> Tensor:
    """The sum of rows [n, D] in their order, with the same bits on any number of threads.

    Example:
        >>> import torch
        >>> sum_of_rows(torch.tensor([[1.0], [3.0]]))
        tensor([4.])
    """
    if rows.device.type != "cpu":
        return rows.sum(0)
    # Row by row, so that on a CPU all threads can share the work without changing its bits.
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


def noise_of(rule: AggregationRule, cohort: Cohort) -> float:
    """Noise on a coordinate of a round's combined mean gradient; of robust rules, of the mean."""
    if isinstance(rule, _Weighted):
        return float(np.linalg.norm(rule.weights(cohort) * cohort.noise_stds))
    return cohort.noise_of_mean


class _Weighted:
    """A sum of the updates, with a weight for each draw."""

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The weighted sum of the rows."""
        return weighted_sum(checked_updates(updates, cohort), self.weights(cohort))

    def weights(self, cohort: Cohort) -> FloatArray:
        """The weight of each draw."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class SizeWeighted(_Weighted):
    """``w_i = n_{k_i} / sum_j n_{k_j}`` over the draws of the round.

    The weights of federated averaging (McMahan et al., AISTATS 2017; general knowledge). They
    belong to uniform selection; with draws already in proportion to size, size counts twice.
    Needs the sizes, which are public here. Post-processing: no privacy is spent.

    Attributes:
        sizes: records of each client of the population.

    Example:
        >>> import torch
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> SizeWeighted(sizes=[30, 10]).combine(torch.tensor([[1.0], [5.0]]), cohort)
        tensor([2.])
    """

    name: ClassVar[str] = "size-weighted"
    needs: ClassVar[str] = "sizes"
    leaks: ClassVar[str] = "whose data set is large"
    reference: ClassVar[str] = "McMahan et al., AISTATS 2017 (general knowledge)"

    sizes: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", client_column("sizes", self.sizes, above=0))

    def weights(self, cohort: Cohort) -> FloatArray:
        """The share of each draw in the sizes of all."""
        sizes = of_cohort("sizes", self.sizes, cohort)
        return np.asarray(sizes / sizes.sum())

    def objection(self, plan: Plan) -> str | None:
        """Why it makes no sense with this plan, if it does not."""
        drawn = plan.selection.probabilities > 0.0
        shares = plan.selection.probabilities[drawn] / plan.population.sizes[drawn]
        if np.allclose(shares, shares[0], rtol=1e-9) and np.ptp(plan.population.sizes[drawn]) > 0:
            return "clients are drawn in proportion to size already: size would count twice"
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class EpsilonWeighted(_Weighted):
    """``w_i = epsilon_{k_i} / sum_j epsilon_{k_j}`` over the draws of the round.

    WeiAvg of Liu et al. (Projected Federated Averaging with Heterogeneous Differential Privacy,
    VLDB 2021): larger budgets weigh more. It trusts the declared epsilons, and the model shows
    whose epsilon is large, which is public here. Post-processing: no privacy is spent.

    Attributes:
        epsilon: epsilon of each client; NaN for public ones.
        public_epsilon: the epsilon a public client counts with. None: the largest among the other
            clients (1 if everybody is public, so all are equal).

    Example:
        >>> import torch
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> EpsilonWeighted(epsilon=[1.0, 3.0]).combine(torch.tensor([[4.0], [0.0]]), cohort)
        tensor([1.])
    """

    name: ClassVar[str] = "epsilon-weighted"
    needs: ClassVar[str] = "budgets, declared truthfully"
    leaks: ClassVar[str] = "whose budget is large"
    reference: ClassVar[str] = "WeiAvg: Liu et al., VLDB 2021"

    epsilon: FloatArray
    public_epsilon: float | None = None

    def __post_init__(self) -> None:
        if self.public_epsilon is not None:
            number("public_epsilon", self.public_epsilon, above=0)
        try:
            given = np.array(self.epsilon, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError("epsilon", given=self.epsilon, allowed="numbers only") from None
        # A public client has no epsilon; 1 stands in so that the others keep their position.
        client_column("epsilon", np.where(np.isnan(given), 1.0, given), above=0)
        given.setflags(write=False)
        object.__setattr__(self, "epsilon", given)

    def weights(self, cohort: Cohort) -> FloatArray:
        """The share of each draw in the epsilons of all."""
        declared = of_cohort("epsilon", self.epsilon, cohort)
        private = self.epsilon[~np.isnan(self.epsilon)]
        public = self.public_epsilon or float(private.max(initial=0.0)) or 1.0
        weights = np.where(np.isnan(declared), public, declared)
        weights = weights / weights.max()  # epsilons near the largest double would overflow
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True, kw_only=True)
class InverseVariance(_Weighted):
    """``w_i`` proportional to ``1 / (v + s_i^2)``, with s_i the public noise std of the draw.

    Among all weights that sum to 1 these give the least variance (Gauss-Markov), if draws differ
    from a common truth by independent errors of variance ``v + s_i^2``. With data that differ
    between clients the result leans towards those with large budgets. It trusts the declared
    noise. Post-processing: no privacy is spent.

    Draws without noise would take everything at v = 0. Their variance counts as v, or as the square
    of ``floor`` times the smallest positive std of the cohort where that is more: with the
    defaults, each weighs as much as 100 of the least noisy private draws. A cohort without any
    noise is averaged.

    Attributes:
        data_variance: v, how much one coordinate of the mean gradient of a local step differs
            between clients, in the units of ``Cohort.noise_stds`` squared. It must be known
            beforehand or come from public data.
        floor: least std of a draw without noise, as a fraction of the smallest positive std.

    Example:
        >>> import torch
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]),
        ...                 noise_stds=np.array([1.0, 3.0]))
        >>> InverseVariance().combine(torch.tensor([[0.0], [10.0]]), cohort)
        tensor([1.])
    """

    name: ClassVar[str] = "inverse-variance"
    needs: ClassVar[str] = "the noise of the draws, declared truthfully"
    leaks: ClassVar[str] = "whose noise is small"
    reference: ClassVar[str] = "Gauss-Markov"

    data_variance: float = 0.0
    floor: float = 0.1

    def __post_init__(self) -> None:
        number("data_variance", self.data_variance, at_least=0)
        number("floor", self.floor, above=0, at_most=1)

    def weights(self, cohort: Cohort) -> FloatArray:
        """The weight of each draw; they sum to 1."""
        stds = cohort.noise_stds
        noisy = stds > 0.0
        if not noisy.any():
            return np.full(len(cohort), 1.0 / len(cohort))
        smallest, spread = float(stds[noisy].min()), math.sqrt(self.data_variance)
        unit = max(smallest, spread)
        with np.errstate(over="ignore"):  # a draw of infinitely more noise than another weighs 0
            variance = (stds / unit) ** 2 + (spread / unit) ** 2
        variance[~noisy] = max(self.floor * smallest / unit, spread / unit) ** 2
        inverse: FloatArray = 1.0 / variance
        return np.asarray(inverse / inverse.sum(), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class MinimumNoise(_Weighted):
    """The mean over the m least noisy draws, with m the minimiser of ``sum_{i<=m} s_i^2 / m^2``.

    A cut-off within a cohort, chosen by the noise of the result. All draws of equal noise are kept
    or dropped together. Draws without noise, where there are any, are all that is kept. What is
    dropped was still spent: its client's ledger is charged. It trusts the declared noise.
    Post-processing: no privacy is spent beyond that.

    Example:
        >>> import torch
        >>> one = np.ones(3)
        >>> cohort = Cohort(round=0, clients=np.arange(3), draws=np.zeros(3, dtype=np.int64),
        ...                 noise_multipliers=one, batch_sizes=np.ones(3, dtype=np.int64),
        ...                 noise_stds=np.array([1.0, 9.0, 1.5]))
        >>> MinimumNoise().combine(torch.tensor([[1.0], [100.0], [3.0]]), cohort)
        tensor([2.])
    """

    name: ClassVar[str] = "minimum-noise"
    needs: ClassVar[str] = "the noise of the draws, declared truthfully"
    leaks: ClassVar[str] = "who is dropped"
    reference: ClassVar[str] = "ours: a cut-off within the cohort, of least noise"

    def weights(self, cohort: Cohort) -> FloatArray:
        """The same for all draws that are kept, 0 for the others."""
        kept = self.kept(cohort)
        return np.asarray(kept / kept.sum())

    def kept(self, cohort: Cohort) -> BoolArray:
        """Which draws are kept.

        If one draw of some noise lowers the noise of the mean, the next one of the same noise does
        so too; hence the minimum never lies between draws of equal noise.
        """
        stds = cohort.noise_stds
        largest = float(stds.max())
        ordered = np.sort(stds / largest if largest > 0.0 else stds)
        counts = np.arange(1, stds.size + 1)
        noise = np.cumsum(ordered**2) / counts**2
        last = int(np.flatnonzero(noise == noise.min())[-1])
        return np.asarray(stds <= np.sort(stds)[last], dtype=np.bool_)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportanceCompensated(_Weighted):
    """``w_i = p^u_k / (K p^s_k)`` for a draw of client k among K draws.

    If each draw is client k with probability p^s_k, the sum has expectation ``sum_k p^u_k x_k``
    whatever p^s is: importance sampling, an identity that the tests enumerate. The weights sum to 1
    in expectation only, and a client drawn rarely enters with a large weight on its noise too.

    Needs both probabilities of each client, fixed and public before training. Post-processing: no
    privacy is spent.

    Attributes:
        probabilities: p^s, by which clients are drawn.
        unbiased: p^u, which the result stands for.

    Raises:
        InputError: a client with p^u > 0 is never drawn: no weight makes up for that.

    Example:
        >>> import torch
        >>> one = np.ones(2)
        >>> cohort = Cohort(round=0, clients=np.array([0, 1]), draws=np.array([0, 0]),
        ...                 noise_multipliers=one, batch_sizes=np.array([1, 1]), noise_stds=one)
        >>> rule = ImportanceCompensated(probabilities=[0.8, 0.2], unbiased=[0.4, 0.6])
        >>> rule.combine(torch.tensor([[4.0], [2.0]]), cohort)
        tensor([4.])
    """

    name: ClassVar[str] = "importance-compensated"
    needs: ClassVar[str] = "the probabilities of selection, sizes"
    leaks: ClassVar[str] = "who is drawn rarely"
    reference: ClassVar[str] = "importance sampling; identity tested"

    probabilities: FloatArray
    unbiased: FloatArray

    def __post_init__(self) -> None:
        for field in ("probabilities", "unbiased"):
            column = client_column(field, getattr(self, field), at_least=0)
            if abs(float(column.sum()) - 1.0) > 1e-9:
                raise InputError(
                    f"sum of {field}", given=float(column.sum()), allowed="1, up to rounding"
                )
            object.__setattr__(self, field, column)
        if self.probabilities.size != self.unbiased.size:
            raise InputError(
                "length of unbiased",
                given=self.unbiased.size,
                allowed=f"{self.probabilities.size}, as that of probabilities",
            )
        lost = np.flatnonzero((self.probabilities == 0.0) & (self.unbiased > 0.0))
        if lost.size:
            raise InputError.because(
                f"client {int(lost[0])} ({lost.size} in all) is never drawn but has an unbiased "
                "share, which no weight can make up for; give the selection a floor, or take "
                "another aggregation."
            )

    def weights(self, cohort: Cohort) -> FloatArray:
        """``p^u / (K p^s)`` of each draw."""
        drawn = of_cohort("probabilities", self.probabilities, cohort)
        if not drawn.all():
            client = int(cohort.clients[drawn == 0.0][0])
            raise InputError.because(
                f"client {client} is drawn in round {cohort.round} but has probability 0; the "
                "probabilities are not those of the schedule."
            )
        return self.unbiased[cohort.clients] / (len(cohort) * drawn)

    def objection(self, plan: Plan) -> str | None:
        """Why it is pointless with this plan, if it is."""
        if np.allclose(plan.selection.probabilities, plan.selection.unbiased, rtol=1e-9, atol=0):
            return "the selection is unbiased: there is nothing to compensate, it is the mean"
        return None


#: The settings that a plan fills in, by their name in the rules.
_FROM_PLAN: dict[str, Callable[[Plan], object]] = {
    "sizes": lambda plan: plan.population.sizes,
    "epsilon": lambda plan: plan.population.epsilon,
    "probabilities": lambda plan: plan.probabilities,
    "unbiased": lambda plan: plan.selection.unbiased,
}


def for_plan(name: str, plan: Plan, **settings: Any) -> AggregationRule:
    """The aggregation of that name, with what a plan knows filled in: sizes, probabilities, ...

    The epsilons are those the clients declared. Settings that are given go before the plan's.

    Args:
        name: of a rule here or in an installed package, or ``module:Class``.
        plan: sizes, probabilities and so on.
        settings: as the rule's class takes them.

    Raises:
        InputError: for a name or setting that does not exist (the nearest one is suggested), a
            setting that is missing, or a value out of range.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[300, 100], epsilon=[1.0, 8.0], delta=1e-5)
        >>> training = Training(rounds=4, cohort_size=2, batch_size=20, dimension=10)
        >>> for_plan("size-weighted", make_plan(clients, training, seed=1)).sizes
        array([300., 100.])
    """
    needed = set(settings_of("aggregation", name)) & FILLED["aggregation"]
    known = {field: plan_column(field, plan) for field in needed}
    made: AggregationRule = make_rule("aggregation", name, {**known, **settings})
    return made


def plan_column(field: str, plan: Plan) -> object:
    """What a plan fills in for a setting of that name, one number a client.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[300, 100], epsilon=[1.0, 8.0], delta=1e-5)
        >>> training = Training(rounds=4, cohort_size=2, batch_size=20, dimension=10)
        >>> plan_column("unbiased", make_plan(clients, training, seed=1))
        array([0.75, 0.25])
    """
    return _FROM_PLAN[field](plan)


@dataclass(frozen=True, kw_only=True)
class TrimmedMean:
    """In each coordinate the mean without the ``floor(trim K)`` largest and as many smallest.

    The estimator of Yin et al. (Byzantine-Robust Distributed Learning, ICML 2018), definition from
    general knowledge. It holds as long as no more than that many draws of a round lie; a trim
    below 1/K drops nothing and is the plain mean. It costs: biased where clients' data are skewed,
    and trimming throws the noisiest draws out of most coordinates, so it acts as a soft selection
    by noise as well. Needs nothing and trusts nothing declared. Post-processing: no privacy is
    spent.

    Attributes:
        trim: share of the draws dropped at each end, below 1/2.

    Example:
        >>> import numpy as np, torch
        >>> one = np.ones(4)
        >>> cohort = Cohort(round=0, clients=np.arange(4), draws=np.zeros(4, dtype=np.int64),
        ...                 noise_multipliers=one, batch_sizes=np.ones(4, dtype=np.int64),
        ...                 noise_stds=one)
        >>> updates = torch.tensor([[1.0], [2.0], [4.0], [1000.0]])
        >>> TrimmedMean(trim=0.25).combine(updates, cohort)
        tensor([3.])
    """

    name: ClassVar[str] = "trimmed-mean"
    needs: ClassVar[str] = "no more liars a round than are trimmed"
    leaks: ClassVar[str] = "nothing"
    reference: ClassVar[str] = "Yin et al., ICML 2018 (general knowledge)"

    trim: float = 0.1

    def __post_init__(self) -> None:
        number("trim", self.trim, at_least=0, below=0.5)

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The trimmed mean of each coordinate."""
        import torch

        checked_updates(updates, cohort)
        # 0.29 * 100 is a little less than 29 in floating point; a draw is always left.
        dropped = math.floor(self.trim * len(cohort) * (1.0 + 1e-12))
        dropped = min(dropped, (len(cohort) - 1) // 2)
        if dropped == 0:
            return updates.mean(0)
        ordered = torch.sort(updates, dim=0).values
        return ordered[dropped : len(cohort) - dropped].mean(0)
