# SPDX-License-Identifier: Apache-2.0
"""What a planned rule may look at, what it gives back, and where the noise costs come from.

A *planned* rule fixes the probabilities before training, from public facts only: sizes, budgets
and the noise they lead to. An *adaptive* rule chooses each cohort from what clients report; it
cannot have this interface, because every report must be noised, charged to the client's ledger and
capped in number (``dpcohort.adaptive``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import BoolArray, FloatArray, float_array, number, whole_number
from dpcohort.errors import InputError
from dpcohort.plugins import full_name, naming_the_rule
from dpcohort.selection._instance import (
    Costs,
    bounded_costs,
    checked_instance,
    checked_unbiased,
    objective_of,
    scaled_costs,
)
from dpcohort.selection._solver import SelectionPath, Solution, solved, unbiased_threshold

if TYPE_CHECKING:
    from dpcohort.selection._distributed import Pool

#: How far from 1 rounding may take the sum of a million probabilities.
_ROUNDING = 1e-6


class OwnNoise:
    """Local trust: each draw brings all of its own noise, as in the paper; beside :class:`Pool`."""

    cohort_size = honest = 1

    @staticmethod
    def solved(costs: Costs) -> Solution:
        """The optimum of Problem 1."""
        return solved(costs)

    @staticmethod
    def solved_within(bias_cap: float, costs: Costs) -> Solution:
        """The least noise whose bias is at most the cap, and its eta."""
        path = SelectionPath(
            costs.unbiased,
            costs.noise,
            linear_costs=costs.linear,
            floor=costs.floor,
            cap=costs.cap,
        )
        return path.at_gap(bias_cap)

    @staticmethod
    def objective(probabilities: FloatArray, costs: Costs) -> float:
        """The objective of Problem 1."""
        return objective_of(probabilities, costs)

    @staticmethod
    def probabilities(
        weights: FloatArray, noise_costs: FloatArray, linear_costs: FloatArray
    ) -> FloatArray:
        """How often each client is drawn: as often as its weight says."""
        return weights

    @staticmethod
    def noise(
        probabilities: FloatArray, noise_costs: FloatArray, linear_costs: FloatArray
    ) -> float:
        """Expected noise of a round, per unit of eta."""
        return float(_own_noise(probabilities, noise_costs, linear_costs).sum())


OWN_NOISE = OwnNoise()


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectionProblem:
    """Everything a planned rule may look at: public facts about every client.

    Attributes:
        unbiased: p^u, proportional to the sizes.
        epsilon: epsilon of each client; NaN for public clients.
        public: which clients need no privacy.
        noise_costs: a'_k, the quadratic noise cost per unit of eta.
        linear_costs: b'_k, the linear noise cost per unit of eta; zeros in the paper's noise model.
        total_steps: T, for ``eta = "auto"``.
        smoothness: L, for ``eta = "auto"``.
        pool: who shares noise where trust is distributed. The probabilities that a rule gives are
            then the effective weights of the clients in the model
            (docs/research/distributed-noise.md).

    Example:
        >>> problem = SelectionProblem(
        ...     unbiased=np.array([0.5, 0.5]),
        ...     epsilon=np.array([1.0, np.nan]),
        ...     public=np.array([False, True]),
        ...     noise_costs=np.array([3.0, 0.0]),
        ...     linear_costs=np.zeros(2),
        ...     total_steps=100,
        ...     smoothness=1.0,
        ... )
        >>> problem.eta("auto")
        20.0
    """

    unbiased: FloatArray
    epsilon: FloatArray
    public: BoolArray
    noise_costs: FloatArray
    linear_costs: FloatArray
    total_steps: int
    smoothness: float
    pool: Pool | OwnNoise = OWN_NOISE

    def __post_init__(self) -> None:
        size = checked_unbiased(self.unbiased).size
        for name in ("epsilon", "public", "noise_costs", "linear_costs"):
            shape = np.shape(getattr(self, name))
            if shape != (size,):
                raise InputError(
                    f"shape of {name}", given=shape, allowed=f"({size},), as that of unbiased"
                )
        for name in ("noise_costs", "linear_costs"):
            float_array(name, getattr(self, name), at_least=0, allow_infinite=True)
        if self.public.dtype != np.bool_:
            raise InputError("public", given=self.public.dtype, allowed="True or False values")
        # A public client has no epsilon; 1 stands in so that the others keep their position.
        float_array("epsilon", np.where(self.public, 1.0, self.epsilon), above=0)
        whole_number("total_steps", self.total_steps, at_least=1)
        number("smoothness", self.smoothness, above=0)

    @property
    def size(self) -> int:
        """Number of clients, N."""
        return int(self.unbiased.size)

    def eta(self, eta: Eta) -> float:
        """Eta as a number, ``"auto"`` resolved from T and L."""
        return resolve_eta(eta, total_steps=self.total_steps, smoothness=self.smoothness)

    def costs(self, eta: float) -> tuple[FloatArray, FloatArray]:
        """Noise and linear costs at one eta."""
        return scaled_costs(eta, self.noise_costs), scaled_costs(eta, self.linear_costs)

    def path(self, **bounds: Any) -> SelectionPath:
        """The optimum of Problem 1 for every eta; ``floor`` and ``cap`` as the path takes them."""
        return SelectionPath(
            self.unbiased, self.noise_costs, linear_costs=self.linear_costs, **bounds
        )

    @property
    def threshold(self) -> float:
        """The largest eta at which unbiased selection is optimal, without floors and caps."""
        given = checked_instance(self.unbiased, self.noise_costs, self.linear_costs)
        return unbiased_threshold(bounded_costs(given)[0])

    def solved(self, eta: float, **bounds: Any) -> Solution:
        """The optimum at one eta, under a floor and a cap if any."""
        costs = checked_instance(self.unbiased, *self.costs(eta), **bounds)
        return self.pool.solved(costs)

    def solved_within(self, bias_cap: float, **bounds: Any) -> Solution:
        """The least noise with at most this bias, under a floor and a cap if any, and its eta."""
        columns = (self.unbiased, self.noise_costs, self.linear_costs)
        return self.pool.solved_within(bias_cap, checked_instance(*columns, **bounds))

    def objective(self, probabilities: FloatArray, eta: float) -> float:
        """The objective at any probabilities."""
        return self.pool.objective(probabilities, Costs(self.unbiased, *self.costs(eta)))

    def own_noise(self, probabilities: FloatArray) -> FloatArray:
        """What each client brings if all of its noise is its own; nothing if it is never drawn."""
        return _own_noise(probabilities, self.noise_costs, self.linear_costs)

    def noise(self, probabilities: FloatArray) -> float:
        """Expected noise on a round's mean gradient, squared, in units of C^2 T."""
        return self.pool.noise(probabilities, self.noise_costs, self.linear_costs)


def _own_noise(
    probabilities: FloatArray, noise_costs: FloatArray, linear_costs: FloatArray
) -> FloatArray:
    with np.errstate(invalid="ignore"):
        each = noise_costs * probabilities**2 + linear_costs * probabilities
    return np.where(probabilities > 0, each, 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """What a rule returns: probabilities, and how they stand against the optimum of Problem 1.

    Attributes:
        rule: name of the rule.
        probabilities: p^s; where noise is distributed, the effective weights w of the clients.
        unbiased: p^u.
        eta: the finite eta that the next three refer to.
        objective: Problem 1's objective at ``probabilities``.
        lower_bound: a proved lower bound on Problem 1's optimum (under the rule's own floor and
            cap, where it has any).
        gap: ``objective - lower_bound``: for an optimal rule its certificate, for any other the
            price of not being optimal.
        settings: the rule's settings as given, to make the same rule again.
    """

    rule: str
    unbiased: FloatArray
    settings: Mapping[str, object]
    probabilities: FloatArray
    eta: float = math.nan
    objective: float = math.nan
    lower_bound: float = math.nan
    gap: float = math.nan

    @property
    def bias(self) -> float:
        """``||p^s - p^u||_1``, between 0 and 2."""
        return float(np.abs(self.probabilities - self.unbiased).sum())


@runtime_checkable
class PlannedRule(Protocol):
    """A rule that fixes the probabilities before training.

    Inherit from it to get :meth:`effective_epsilon`; anything with the same members will do.
    """

    name: ClassVar[str]

    def select(self, problem: SelectionProblem) -> Selection:
        """The selection for one problem."""

    def effective_epsilon(self, problem: SelectionProblem) -> FloatArray:
        """The epsilon that each client's noise is calibrated to: its own, unless a rule differs.

        It may be smaller than the client's own, never larger. NaN for public clients.
        """
        return problem.epsilon


def evaluated(
    rule: str,
    probabilities: FloatArray,
    problem: SelectionProblem,
    *,
    settings: Mapping[str, object],
    eta: Eta = "auto",
) -> Selection:
    """A selection from any probabilities, measured against the optimum of Problem 1 at ``eta``.

    Example:
        >>> problem = SelectionProblem(
        ...     unbiased=np.array([0.5, 0.5]), epsilon=np.array([1.0, 1.0]),
        ...     public=np.zeros(2, dtype=bool), noise_costs=np.array([0.0, 40.0]),
        ...     linear_costs=np.zeros(2), total_steps=100, smoothness=1.0,
        ... )
        >>> evaluated("mine", problem.unbiased, problem, settings={}).gap > 10
        True
    """
    _check_probabilities(rule, probabilities, problem.size)
    weight = problem.eta(eta)
    optimum = problem.solved(weight)
    objective = problem.objective(probabilities, weight)
    lower_bound = min(optimum.lower_bound, objective)
    return Selection(
        rule=rule,
        probabilities=probabilities,
        unbiased=problem.unbiased,
        eta=weight,
        objective=objective,
        lower_bound=lower_bound,
        gap=objective - lower_bound,
        settings=settings,
    )


def selected(rule: PlannedRule, problem: SelectionProblem) -> Selection:
    """What a rule selects; a rule of one's own that fails is named.

    Raises:
        InputError: the rule failed, or gave back something else than a selection of these clients.

    Example:
        >>> problem = SelectionProblem(
        ...     unbiased=np.array([0.5, 0.5]), epsilon=np.array([1.0, 1.0]),
        ...     public=np.zeros(2, dtype=bool), noise_costs=np.array([0.0, 40.0]),
        ...     linear_costs=np.zeros(2), total_steps=100, smoothness=1.0,
        ... )
        >>> class Mine(PlannedRule):
        ...     name = "mine"
        ...     def select(self, problem):
        ...         return problem.unbiased
        >>> selected(Mine(), problem)
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: ...:Mine.select gave back a ndarray; it must be a Selection ...
    """
    if isinstance(rule, type) or not isinstance(rule, PlannedRule):
        raise InputError(
            "selection",
            given=rule,
            allowed="the name of a planned rule, or an object with name, select(problem) and "
            "effective_epsilon(problem)",
            next_step="See: dpcohort rules",
        )
    with naming_the_rule(rule, "select"):
        chosen = rule.select(problem)
    if not isinstance(chosen, Selection):
        raise InputError.because(
            f"{full_name(rule)}.select gave back a {type(chosen).__name__}; it must be a "
            "Selection (dpcohort.selection._problem.evaluated makes one from probabilities)."
        )
    check_selection(chosen, problem.size)
    return chosen


def calibrated_epsilon(rule: PlannedRule, problem: SelectionProblem) -> FloatArray:
    """The epsilon that each client's noise is made for; a rule of one's own that fails is named.

    Raises:
        InputError: the rule failed, or gave back something else than one number a client.

    Example:
        >>> problem = SelectionProblem(
        ...     unbiased=np.array([0.5, 0.5]), epsilon=np.array([1.0, 2.0]),
        ...     public=np.zeros(2, dtype=bool), noise_costs=np.array([0.0, 40.0]),
        ...     linear_costs=np.zeros(2), total_steps=100, smoothness=1.0,
        ... )
        >>> class Mine(PlannedRule):
        ...     name = "mine"
        >>> calibrated_epsilon(Mine(), problem)
        array([1., 2.])
    """
    with naming_the_rule(rule, "effective_epsilon"):
        found = np.asarray(rule.effective_epsilon(problem), dtype=np.float64)
    held = ~problem.public
    if found.shape != (problem.size,) or not (found[held] > 0).all():
        raise InputError(
            f"{full_name(rule)}.effective_epsilon",
            given=found,
            allowed=f"one number above 0 for each of the {problem.size} clients",
        )
    return found


def check_selection(selection: Selection, clients: int) -> None:
    """Refuse what is no selection of so many clients, or has settings that no file can hold.

    Example:
        >>> half = np.array([0.5, 0.5])
        >>> check_selection(Selection(rule="mine", unbiased=half, settings={"share": 0.5},
        ...                           probabilities=half), 2)
    """
    _check_probabilities(selection.rule, selection.probabilities, clients)
    for key, value in selection.settings.items():
        if not isinstance(value, str | int | float | list | tuple | dict | None):
            raise InputError(
                f"setting {key!r} of the selection rule {selection.rule!r}",
                given=value,
                allowed="a plain number, word or list, which a plan's file can hold",
            )


def _check_probabilities(rule: str, probabilities: object, clients: int) -> None:
    """Refuse what is no probability for each client, and name the rule that gave it."""
    p = probabilities if isinstance(probabilities, np.ndarray) else np.array([])
    if p.shape != (clients,) or p.dtype.kind != "f":
        allowed = f"one probability for each of the {clients} clients, as a float array"
    elif not (np.isfinite(p) & (p >= 0)).all():
        allowed = "finite and at least 0 for every client"
    elif not abs(float(p.sum()) - 1.0) <= _ROUNDING:
        allowed = f"such that they sum to 1, and the sum is {float(p.sum()):.6g}"
    else:
        return
    raise InputError(
        f"probabilities of the selection rule {rule!r}", given=probabilities, allowed=allowed
    )


def paper_costs(noise_level: ArrayLike, *, dimension: int) -> tuple[FloatArray, FloatArray]:
    """Costs per unit of eta in the paper's noise model: ``a' = D V``, ``b' = 0`` (Problem 1).

    Args:
        noise_level: V_k, 0 for public clients.
        dimension: D.

    Example:
        >>> paper_costs([0.5, 0.0], dimension=10)
        (array([5., 0.]), array([0., 0.]))
    """
    level = float_array("noise_level", noise_level, at_least=0, allow_infinite=True)
    costs = whole_number("dimension", dimension, at_least=1) * level
    return costs, np.zeros_like(costs)


def exact_costs(
    noise_level: ArrayLike,
    noise_floor: ArrayLike,
    *,
    dimension: int,
    total_draws: int,
    local_steps: int,
) -> tuple[FloatArray, FloatArray]:
    """Costs per unit of eta of the noise that a schedule of independent draws really adds.

    A client drawn T_k times adds noise of variance ``(A_k + V_k T^l T_k) C^2`` in each draw. Given
    that a draw is of it, ``T_k = 1 + Bin(n - 1, p_k)`` with n draws in all, so

        E||n_t||^2 = D C^2 T sum_k [V_k (1 - 1/n) p_k^2 + (V_k / n + A_k / (n T^l)) p_k].

    The paper puts the mean of T_k for T_k, which keeps only ``V_k p_k^2``. With systematic draws
    T_k varies less, and this is an upper bound.

    Args:
        noise_level: V_k, 0 for public clients.
        noise_floor: A_k, what a single step costs beyond proportion; 0 in the paper's formula.
        dimension: D.
        total_draws: n = T^g N^select.
        local_steps: T^l.

    Returns:
        Quadratic costs a' and linear costs b'.

    Example:
        >>> exact_costs([0.5, 0.0], [1.0, 0.0], dimension=10, total_draws=100, local_steps=2)
        (array([4.95, 0.  ]), array([0.1, 0. ]))
    """
    level = float_array("noise_level", noise_level, at_least=0, allow_infinite=True)
    floor = float_array("noise_floor", noise_floor, at_least=0, allow_infinite=True)
    if level.shape != floor.shape:
        raise InputError(
            "shape of noise_floor", given=floor.shape, allowed=f"{level.shape}, as noise_level"
        )
    size = whole_number("dimension", dimension, at_least=1)
    draws = whole_number("total_draws", total_draws, at_least=1)
    steps = whole_number("local_steps", local_steps, at_least=1)
    quadratic = scaled_costs(size * (1.0 - 1.0 / draws), level)
    return quadratic, size * (level / draws + floor / (draws * steps))


# Eta, the weight of the privacy noise in Problem 1, and the smoothness it is made of.
#
# Theorem 2 carries the noise as ``2 L sqrt(T) sum p_k^2 D V_k``. Problem 1 keeps D inside the sum,
# so the theorem's weight is ``eta = 2 L sqrt(T)``. The paper prints ``eta = D sqrt(T L)``, which
# counts D twice, has L under the root and misses the 2; it treats eta as tunable, and so may you.


Eta = float | Literal["auto"]


def resolve_eta(eta: Eta, *, total_steps: int, smoothness: float) -> float:
    """Eta as a number: the one given, or ``2 L sqrt(T)`` (Theorem 2) for ``"auto"``.

    Args:
        eta: a number at least 0, or ``"auto"``.
        total_steps: T = T^g T^l.
        smoothness: L.

    Example:
        >>> resolve_eta("auto", total_steps=100, smoothness=1.5)
        30.0
        >>> resolve_eta(0.25, total_steps=100, smoothness=1.5)
        0.25
    """
    if isinstance(eta, str):
        if eta != "auto":
            raise InputError("eta", given=eta, allowed="a number at least 0, or 'auto'")
        steps = whole_number("total_steps", total_steps, at_least=1)
        return 2.0 * number("smoothness", smoothness, above=0) * math.sqrt(steps)
    return number("eta", eta, at_least=0)
