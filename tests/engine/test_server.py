# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpcohort.aggregation import Mean
from dpcohort.engine import (
    CohortUpdates,
    ConstantStep,
    EngineState,
    InverseRootStep,
    InverseTimeStep,
    Optimiser,
    train_rounds,
)
from dpcohort.engine._experiment import cohort_of
from dpcohort.engine._rounds import threads_at_most
from dpcohort.errors import InputError


def after(optimiser: Optimiser, *updates: float) -> EngineState:
    state = EngineState(torch.zeros(1))
    for update in updates:
        optimiser.apply([state], [torch.tensor([update])])
    return state


def test_step_sizes_follow_the_time_of_all_local_steps() -> None:
    training: Any = SimpleNamespace(rounds=4, local_steps=3)
    inverse = InverseTimeStep(2.0)
    steps = Optimiser(local_step=inverse)
    found = [steps.step_size(training, round=t, step=s) for t in range(4) for s in range(3)]
    assert found == [inverse.at(time, 12) for time in range(12)]
    assert len(set(found)) == 12


def test_momentum_adds_up() -> None:
    # m: 1, 1.5; the model moves by both.
    assert after(Optimiser(server_momentum=0.5), 1.0, 1.0).parameters.item() == -2.5


@pytest.mark.parametrize(
    "options",
    [
        {"server_learning_rate": 0.0},
        {"server_momentum": 1.0},
        {"average_decay": 1.0},
        {"average_decay": -0.1},
        {"server_settings": {"lr": 0.1}},
        {"server": "adam", "server_learning_rate": 0.5},
        {"server": "adma"},
        {"server": "adam", "server_settings": {"rate": 0.1}},
        {"server": "adam", "server_settings": {"lr": 0.0}},
        {"server": "lbfgs"},
        {"server": "sparseadam"},
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Optimiser(**options)


def test_fedadam_is_adam_on_the_combined_update() -> None:
    """Reddi et al. 2021 with torch's bias correction, two rounds by hand."""
    rate, first, second, floor = 0.1, 0.5, 0.75, 1e-3
    settings = {"lr": rate, "betas": [first, second], "eps": floor}
    state = after(Optimiser(server="adam", server_settings=settings), 2.0, -1.0)
    mean, square, model = 0.0, 0.0, 0.0
    for t, update in enumerate((2.0, -1.0), start=1):
        mean = first * mean + (1 - first) * update
        square = second * square + (1 - second) * update**2
        corrected = (square / (1 - second**t)) ** 0.5
        model -= rate * mean / (1 - first**t) / (corrected + floor)
    assert state.parameters.item() == pytest.approx(model, rel=1e-6)
    assert state.next_round == 2


def test_fedyogi_follows_its_algorithm() -> None:
    rate, first, second, tau = 0.1, 0.5, 0.75, 0.25
    settings = {"lr": rate, "betas": (first, second), "tau": tau}
    state = after(Optimiser(server="yogi", server_settings=settings), 2.0, -1.0)
    mean, square, model = 0.0, tau**2, 0.0
    for update in (2.0, -1.0):
        mean = first * mean + (1 - first) * update
        sign = (square > update**2) - (square < update**2)
        square -= (1 - second) * update**2 * sign
        model -= rate * mean / (square**0.5 + tau)
    assert state.parameters.item() == pytest.approx(model, rel=1e-6)


@pytest.mark.parametrize("server", ["adam", "adagrad", "yogi", "sgd", "rmsprop", "nadam"])
def test_a_server_optimiser_resumes_from_its_arrays_and_goes_side_by_side(server: str) -> None:
    settings = {"lr": 0.1, **({"momentum": 0.9} if server == "sgd" else {})}
    optimiser = Optimiser(server=server, server_settings=settings, average_decay=0.5)
    updates = [torch.tensor([1.0, -2.0, 0.5]) * (t + 1) for t in range(4)]
    alone, other = EngineState(torch.zeros(3)), EngineState(torch.ones(3))
    beside = EngineState(torch.zeros(3))
    for t, update in enumerate(updates):
        optimiser.apply([alone], [update])
        optimiser.apply([other, beside], [3 * update, update])
        if t == 1:
            beside = EngineState(torch.zeros(3)).restored(beside.to_arrays())
    assert set(alone.tensors) == optimiser.kept_names == set(beside.tensors)
    for name, array in alone.to_arrays().items():
        assert (array == beside.to_arrays()[name]).all(), name


class Halving(torch.optim.Optimizer):
    """A user-defined optimiser that keeps what no checkpoint holds, if asked to."""

    def __init__(self, params: Any, lr: float = 1.0, plain: bool = False) -> None:
        super().__init__(params, {"lr": lr, "plain": plain})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                rate = state.get("rate", torch.tensor(group["lr"]))
                one.sub_(rate * one.grad)
                state["rate"] = float(rate / 2) if group["plain"] else rate / 2


def test_a_user_defined_server_optimiser_keeps_tensors_and_nothing_else() -> None:
    state = after(Optimiser(server=Halving, server_settings={"lr": 1.0}), 1.0, 1.0)
    assert state.parameters.item() == -1.5
    with pytest.raises(InputError, match="'rate', a float"):
        Optimiser(server=Halving, server_settings={"plain": True})


def test_schedules() -> None:
    training: Any = SimpleNamespace(rounds=9, local_steps=1)
    for optimiser in (Optimiser(local_step=0.3), Optimiser(local_step=ConstantStep(0.3))):
        assert [optimiser.step_size(training, round=t, step=0) for t in (0, 8)] == [0.3, 0.3]
    assert [InverseTimeStep(6.0, 2.0).at(t, 9) for t in (0, 1, 4)] == [3.0, 2.0, 1.0]
    assert InverseRootStep(3.0, 2.0).at(4, 9) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConstantStep(1e39),
        lambda: InverseTimeStep(beta=1e39),
        lambda: Optimiser(server_learning_rate=1e39),
    ],
    ids=["constant", "inverse-time", "server"],
)
def test_steps_beyond_32_bits_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=r"1e\+30"):
        make()


def test_a_round_of_which_too_little_came_leaves_the_model_as_it_was(make_plan: Any) -> None:
    plan = make_plan([6, 5], [[0, 1], [1, 0]])
    state, seen = EngineState(torch.tensor([1.5])), []
    arrived = [None, CohortUpdates(cohort_of(plan, 1), torch.tensor([[2.0], [4.0]]))]
    trainer: Any = SimpleNamespace(updates=lambda parameters, cohorts: [arrived[len(seen)]])
    for _ in train_rounds(
        trainer, [(Mean(), Optimiser())], [state], rounds=2, choose=lambda t: [cohort_of(plan, t)]
    ):
        seen.append(state.parameters.item())
    assert seen == [1.5, 1.5 - 3.0]
    assert state.next_round == 2


def test_a_rule_of_somebodys_own_adds_up_on_one_thread(
    make_plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bits would depend on the machine otherwise; those of a plain mean do not."""
    plan, threads = make_plan([6, 5], [[0, 1]]), []
    right = Mean.combine

    def told(self: Mean, updates: torch.Tensor, cohort: Any) -> torch.Tensor:
        threads.append(torch.get_num_threads())
        return right(self, updates, cohort)

    class Own(Mean):
        """It may do anything."""

    monkeypatch.setattr(Mean, "combine", told)
    came = CohortUpdates(cohort_of(plan, 0), torch.tensor([[2.0], [4.0]]))
    trainer: Any = SimpleNamespace(updates=lambda parameters, cohorts: [came])
    before = torch.get_num_threads()
    try:
        for count in (9, 2):
            torch.set_num_threads(count)
            for rule in (Mean(), Own()):
                state = EngineState(torch.zeros(1))
                list(
                    train_rounds(
                        trainer,
                        [(rule, Optimiser())],
                        [state],
                        rounds=1,
                        choose=lambda t: [came.cohort],
                    )
                )
            assert torch.get_num_threads() == count
        with threads_at_most(1):
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert threads == [4, 1, 2, 1]
