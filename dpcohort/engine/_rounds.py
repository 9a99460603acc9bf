# SPDX-License-Identifier: Apache-2.0
"""The loop of every training, and the server's side of a round: its state, its step, its test.

The loop chooses, trains, combines, steps and evaluates, round by round. Who names the cohorts and
who computes their updates is given: a schedule or an adaptive rule, and an engine on this machine
or the clients of a federation. What must happen before a round (count its draws on disk) is done by
whoever chooses; what must happen after it (write it down) by whoever asks for the next round.

What the server does with a round's update (its own step size, momentum, average of iterates) is
post-processing of noisy updates and costs no privacy. Algorithm 1, line 8 multiplies by the step
size once more although the local steps already did; here the server has a rate of its own, 1 by
default, which makes the new model the mean of the clients' models.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpcohort._validate import number
from dpcohort.aggregation import AggregationRule, Cohort, Mean, combine_round
from dpcohort.aggregation._rule import noise_of
from dpcohort.engine._local_rule import LocalRule
from dpcohort.engine._preconditioner import KEPT, Preconditioner
from dpcohort.engine._server_optimiser import kept_names, server_class, server_step
from dpcohort.engine.clipping import FlatLayout, cross_entropy
from dpcohort.errors import InputError
from dpcohort.metrics import main_metric, main_value
from dpcohort.round_record import RoundRecord, TestResult
from dpcohort.tasks import Task
from dpcohort.training import LARGEST_STEP, Training

#: What a training keeps of each client [rows, D], by its position: of no use to other clients.
PER_CLIENT = frozenset(("memory", "controls"))


@dataclass
class EngineState:
    """All that a training carries from round to round; with the plan and the seed it is complete.

    An engine changes it in place, and only as the last thing of a round: between two rounds it can
    be saved, and a training that goes on from the saved one gives the same bytes (on a CPU).

    Attributes:
        parameters: the global model w_{t^g,0} as one vector [D].
        next_round: the round to do next, t^g.
        tensors: all else by name, as far as it is in use: the ``momentum`` and the ``average`` of
            iterates [D], what the server optimiser keeps (``server.`` and its own names), and what
            is kept of single clients (``PER_CLIENT``).

    Example:
        >>> EngineState(torch.zeros(2)).next_round
        0
    """

    parameters: Tensor
    next_round: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def average(self) -> Tensor | None:
        """The average of iterates [D], None if none is kept."""
        return self.tensors.get("average")

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All of it by name, as a checkpoint holds it."""
        vector = {"parameters": self.parameters, **self.tensors}
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in vector.items()}
        return {**arrays, "next_round": np.asarray(self.next_round)}

    def restored(self, arrays: Mapping[str, NDArray[Any]]) -> EngineState:
        """The state that a checkpoint holds, where this one is.

        Raises:
            InputError: it is of a model of another size.
        """
        like = self.parameters
        tensors = {
            # A number that an optimiser counts its steps by stays on the host, as torch has it.
            name: torch.tensor(array, device=like.device if array.ndim else "cpu")
            for name, array in arrays.items()
            if name != "next_round"
        }
        for name, tensor in tensors.items():
            rows = 2 if name in PER_CLIENT else 1
            if tensor.dim() and (tensor.dim() != rows or tensor.shape[-1] != like.numel()):
                raise InputError.because(
                    "the checkpoint is of another model. Resume with that model."
                )
        parameters = tensors.pop("parameters", like)
        return EngineState(parameters, int(arrays.get("next_round", self.next_round)), tensors)


#: Tests parameters [D] of a model on a test set.
Evaluator = Callable[[Tensor], TestResult]
#: The outputs [n, ...] of a model with parameters [D] on a test set.
Outputs = Callable[[Tensor], Tensor]


#: Threads that add up large updates: memory has no use for more, and they wait for each other on a
#: busy machine.
_THREADS = 4
#: Examples that are tested at a time: a GPU waits for launches if they are few.
_AT_A_TIME = {"cpu": 2000, "cuda": 20_000}


def outputs_on(model: nn.Module, inputs: Any, *, device: torch.device | str = "cpu") -> Outputs:
    """A function that gives the outputs of one model, with any parameters, on one test set.

    Args:
        model: it is copied.
        inputs: [n, ...] test inputs.
        device: where to compute, in 32 bits; the inputs stay there.

    Example:
        >>> outputs = outputs_on(nn.Linear(1, 1, bias=False), torch.tensor([[1.0], [2.0]]))
        >>> outputs(torch.tensor([3.0])).tolist()
        [[3.0], [6.0]]
    """
    copied = copy.deepcopy(model).to(device=device, dtype=torch.float32).eval()
    layout = FlatLayout(copied)
    x = torch.as_tensor(inputs).to(device)
    if x.is_floating_point():
        x = x.float()
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
        copied = copied.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.inference_mode()
    def outputs(parameters: Tensor) -> Tensor:
        layout.assign(copied, parameters)
        at_a_time = _AT_A_TIME.get(x.device.type, 2000)
        return torch.cat([copied(part) for part in torch.split(x, at_a_time)])

    return outputs


def evaluator_on(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    task: Task | None = None,
    device: torch.device | str = "cpu",
) -> Evaluator:
    """A function that tests parameter vectors of one model on one test set.

    Args:
        model: it is copied.
        inputs: [n, ...] test inputs.
        targets: [n] classes, or what else the task predicts.
        task: what is predicted; without it a class.
        device: where to evaluate; the test set stays there.

    Example:
        >>> evaluate = evaluator_on(nn.Linear(1, 2), torch.tensor([[1.0], [-1.0]]), [0, 1])
        >>> result = evaluate(torch.tensor([1.0, -1.0, 0.0, 0.0]))
        >>> result.accuracy, result.class_accuracy
        (1.0, (1.0, 1.0))
    """
    outputs_of = outputs_on(model, inputs, device=device)
    y = torch.as_tensor(targets).to(device)
    if len(inputs) == 0 or len(inputs) != len(y):
        raise InputError.because(
            f"a test set needs inputs and as many targets, not {len(inputs)} and {len(y)}."
        )
    loss = cross_entropy if task is None else task.loss_on(device)
    leaning = (
        None if task is None or task.leaning is None else torch.tensor(task.leaning, device=device)
    )

    @functools.cache
    def counts_of(classes: int) -> Tensor:
        return torch.bincount(y, minlength=classes).double()

    @torch.inference_mode()
    def evaluate(parameters: Tensor) -> TestResult:
        outputs = outputs_of(parameters)
        mean_loss = loss(outputs, y).double().mean()
        if task is not None and not task.predicts_classes:
            found = main_value(task, outputs.cpu().numpy(), y.cpu().numpy())
            return TestResult(
                accuracy=math.nan,
                loss=float(mean_loss),
                class_accuracy=(),
                class_counts=(),
                value=found,
            )
        hit = ((outputs if leaning is None else outputs - leaning).argmax(1) == y).double()
        counts = counts_of(outputs.shape[1])
        right = torch.zeros_like(counts).index_add_(0, y, hit)
        # In one transfer: a GPU would be waited for in each.
        numbers = torch.cat([torch.stack([hit.mean(), mean_loss]), right, counts]).cpu()
        right, counts = numbers[2:].chunk(2)
        shares = right / counts
        balanced = task is not None and main_metric(task).name == "balanced_accuracy"
        return TestResult(
            accuracy=float(numbers[0]),
            loss=float(numbers[1]),
            class_accuracy=tuple(shares.tolist()),
            class_counts=tuple(counts.long().tolist()),
            value=float(shares[counts > 0].mean()) if balanced else None,
        )

    return evaluate


class StepSize(Protocol):
    """Anything that says how long the step at time t is."""

    def at(self, time: int, total: int) -> float:
        """Step size at local step ``time`` (0, 1, ...) of ``total`` in the training."""
        ...


def ConstantStep(size: float) -> float:  # noqa: N802
    """The same step size throughout: the number itself, which `Optimiser` takes as well.

    Example:
        >>> ConstantStep(0.1)
        0.1
    """
    checked = number("step size", size, above=0, at_most=LARGEST_STEP)
    return size if isinstance(size, int) else checked


@dataclass(frozen=True)
class InverseTimeStep:
    """beta / (gamma + t), for strongly convex losses (Theorem 1).

    Example:
        >>> InverseTimeStep(beta=2.0, gamma=3.0).at(1, 100)
        0.5
    """

    beta: float
    gamma: float = 1.0

    def __post_init__(self) -> None:
        number("beta", self.beta, above=0, at_most=LARGEST_STEP)
        number("gamma", self.gamma, at_least=1)

    def at(self, time: int, total: int) -> float:
        """The quotient beta / (gamma + t)."""
        return self.beta / (self.gamma + time)


@dataclass(frozen=True)
class InverseRootStep:
    """B_1 / (C sqrt(T)), for smooth losses (Theorem 2).

    Attributes:
        gradient_bound: B_1 of the theorem.
        clip: the clipping norm C.

    Example:
        >>> InverseRootStep(gradient_bound=1.0, clip=0.5).at(0, 400)
        0.1
    """

    gradient_bound: float
    clip: float

    def __post_init__(self) -> None:
        number("gradient_bound", self.gradient_bound, above=0)
        number("clip", self.clip, above=0)

    def at(self, time: int, total: int) -> float:
        """B_1 / (C sqrt(T)), the same at every time."""
        return self.gradient_bound / (self.clip * math.sqrt(total))


@dataclass(frozen=True)
class LaterStep:
    """Step sizes of a training that goes on: as if the steps before were of the same one.

    Example:
        >>> LaterStep(InverseTimeStep(beta=2.0, gamma=1.0), done=3).at(0, 100)
        0.5
    """

    step: StepSize
    done: int

    def at(self, time: int, total: int) -> float:
        """The step size after those that are done."""
        return self.step.at(time + self.done, total + self.done)


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """Step sizes of clients and server.

    Attributes:
        local_step: step size of the clients, alpha_{t^g,t^l}: a number, or a `StepSize`.
        server_learning_rate: factor on the combined update.
        server_momentum: m <- momentum m + update; the model moves by m. 0 is none.
        server: what takes the server's steps in place of the two above: a class of
            ``torch.optim`` by its name in lower case, ``yogi``, ``module:Class``, or the class
            itself; "" for none.
        server_settings: of that class, as it takes them: ``lr``, ...
        local: what corrects local steps, such as FedProx's; None for plain steps.
        average_decay: a <- decay a + (1 - decay) w after each round, starting at the first round's
            model; None keeps no average.
        preconditioner: of a model that sends second moments; the job has it from its model.

    Example:
        >>> Optimiser(local_step=0.2).server_learning_rate
        1.0
    """

    local_step: float | StepSize = 0.1
    server_learning_rate: float = 1.0
    server_momentum: float = 0.0
    server: str | type[torch.optim.Optimizer] = ""
    server_settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    local: LocalRule | None = None
    average_decay: float | None = None
    preconditioner: Preconditioner | None = None

    def __post_init__(self) -> None:
        if isinstance(self.local_step, int | float):
            ConstantStep(self.local_step)
        number("server_learning_rate", self.server_learning_rate, above=0, at_most=LARGEST_STEP)
        number("server_momentum", self.server_momentum, at_least=0, below=1)
        if self.average_decay is not None:
            number("average_decay", self.average_decay, at_least=0, below=1)
        if self.server:
            if (self.server_learning_rate, self.server_momentum) != (1.0, 0.0):
                raise InputError.because(
                    "server_learning_rate and server_momentum are of the plain server step. With "
                    "optimiser.server its own settings say both: server_settings = { lr = ... }."
                )
        elif self.server_settings:
            raise InputError.because(
                'server_settings go with optimiser.server, such as "adam"; none is given.'
            )
        if self.preconditioner is not None:
            self._check_newton()
        _ = self.kept_names  # what no class takes is refused before anything is counted

    def _check_newton(self) -> None:
        """Refuse settings that Newton steps have no place for."""
        plain = not self.server and (self.server_learning_rate, self.server_momentum) == (1.0, 0.0)
        if not plain or self.local is not None or not isinstance(self.local_step, int | float):
            raise InputError.because(
                "a model with second_moments takes Newton steps: no other server, step schedule, "
                "momentum or local rule goes with them. Leave these out, or model.options."
            )

    def length(self, training: Training, *, round: int) -> float:
        """The sum of the step sizes of a round's local steps."""
        steps = range(training.local_steps)
        return math.fsum(self.step_size(training, round=round, step=step) for step in steps)

    @property
    def server_rate(self) -> str:
        """The key of the server's step size with its value, for messages."""
        if self.server:
            rate = self.server_settings.get("lr", "the default of the class")
            return f"lr of optimiser.server_settings (now {rate})"
        return f"optimiser.server_learning_rate (now {self.server_learning_rate:g})"

    @functools.cached_property
    def kept_names(self) -> frozenset[str]:
        """Names of the tensors that the server carries from round to round."""
        names = {"momentum"} if self.server_momentum > 0 else set()
        names |= set() if self.average_decay is None else {"average"}
        if self.server:
            names |= kept_names(self.server, self.server_settings)
        if self.preconditioner is not None:
            names |= KEPT
        return frozenset(names)

    def step_size(self, training: Training, *, round: int, step: int) -> float:
        """Step size alpha_{t^g,t^l} of one local step of a round."""
        if isinstance(self.local_step, int | float):
            return self.local_step
        time = round * training.local_steps + step
        return self.local_step.at(time, training.rounds * training.local_steps)

    @torch.no_grad()
    def apply(
        self, states: Sequence[EngineState], updates: Sequence[Tensor], noise: Sequence[float] = ()
    ) -> None:
        """Move each state's model by one round's combined update, and count the round.

        Args:
            states: before the round.
            updates: [D] of each.
            noise: on a coordinate of each one's mean gradient; only Newton steps use it.
        """
        parameters, by = [state.parameters for state in states], list(updates)
        kept = [state.tensors for state in states]
        if self.preconditioner is not None and isinstance(self.local_step, int | float):
            with threads_at_most(1):  # the same bits on any number of threads
                by = [
                    self.preconditioner.step(*each, step_size=self.local_step)
                    for each in zip(parameters, by, kept, noise, strict=True)
                ]
        if self.server:
            server_step(server_class(self.server), self.server_settings, parameters, by, kept)
        else:
            if self.server_momentum > 0:
                momenta = [
                    own.setdefault("momentum", torch.zeros_like(vector))
                    for own, vector in zip(kept, parameters, strict=True)
                ]
                torch._foreach_mul_(momenta, self.server_momentum)
                torch._foreach_add_(momenta, by)
                by = momenta
            torch._foreach_sub_(parameters, by, alpha=self.server_learning_rate)
        if self.average_decay is not None:
            averages = [
                own["average"] if "average" in own else own.setdefault("average", vector.clone())
                for own, vector in zip(kept, parameters, strict=True)
            ]
            torch._foreach_lerp_(averages, parameters, 1 - self.average_decay)
        for state in states:
            state.next_round += 1


@dataclass(frozen=True)
class CohortUpdates:
    """The noisy updates that came of a round.

    Attributes:
        cohort: the draws they are of.
        updates: one row a draw.
    """

    cohort: Cohort
    updates: Tensor


@contextmanager
def threads_at_most(count: int) -> Iterator[None]:
    """Keep torch to so many threads meanwhile.

    Example:
        >>> with threads_at_most(1):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, count))
    try:
        yield
    finally:
        torch.set_num_threads(before)


#: Sums then add up in one order, whatever the machine.
one_thread_each = functools.partial(threads_at_most, 1)


class Trainer(Protocol):
    """Computes the updates of a round, for one training or for several side by side."""

    def updates(
        self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]
    ) -> Sequence[CohortUpdates | None]:
        """What came for each training; None where it is too little to move the model.

        Args:
            parameters: the model [D] that the clients of each training receive.
            cohorts: who is drawn in each.
        """
        ...


#: What the server of a training combines updates by, and steps with.
ServerStep = tuple[AggregationRule, Optimiser]


def _take_steps(
    steps: Sequence[ServerStep],
    states: Sequence[EngineState],
    arrived: Sequence[CohortUpdates | None],
) -> None:
    """Move each model by what came for it; too little leaves it as it was."""
    means = _plain_means([rule for rule, _ in steps], arrived)
    moved: dict[Optimiser, list[tuple[EngineState, Tensor, float]]] = {}
    for i, ((rule, optimiser), state, came) in enumerate(zip(steps, states, arrived, strict=True)):
        if came is None:
            state.next_round += 1
        elif means is not None:
            moved.setdefault(optimiser, []).append((state, means[i], came.cohort.noise_of_mean))
        else:
            # Of the class itself: one that inherits from it may add up in any order.
            row_by_row = "adds_row_by_row" in vars(type(rule))
            with threads_at_most(_THREADS if row_by_row else 1):
                memory = state.tensors.pop("memory", None)
                combined, memory = combine_round(rule, came.updates, came.cohort, memory)
            if memory is not None:
                state.tensors["memory"] = memory
            moved.setdefault(optimiser, []).append((state, combined, noise_of(rule, came.cohort)))
    for optimiser, pairs in moved.items():
        optimiser.apply(*zip(*pairs, strict=True))


def _plain_means(
    rules: Sequence[AggregationRule], arrived: Sequence[CohortUpdates | None]
) -> Sequence[Tensor] | None:
    """Plain means of all trainings in one launch, on an accelerator; None where they are not."""
    there = [came.updates for came in arrived if came is not None]
    alike = len(there) == len(arrived) > 1 and len({updates.shape for updates in there}) == 1
    if not alike or there[0].device.type == "cpu" or any(type(rule) is not Mean for rule in rules):
        return None
    return torch.stack(there).mean(1).unbind()


def train_rounds(
    trainer: Trainer,
    steps: Sequence[ServerStep],
    states: Sequence[EngineState],
    *,
    rounds: int,
    choose: Callable[[int], Sequence[Cohort]],
    observe: Callable[[Sequence[CohortUpdates | None]], None] = lambda arrived: None,
    evaluator: Evaluator | None = None,
    evaluate_every: int = 1,
) -> Iterator[tuple[RoundRecord, ...]]:
    """Do the remaining rounds of trainings side by side; after each, the states are complete.

    Args:
        trainer: computes updates.
        steps: of each training's server.
        states: of each training, all at the same round.
        rounds: how many there are in all.
        choose: names the cohorts of a round, and has counted them when it returns.
        observe: sees the noisy updates before they are combined.
        evaluator: test set, None for none.
        evaluate_every: rounds between evaluations; the last round is always evaluated.

    Yields:
        The records of one round, one for each training. Their seconds are those of all together.
    """
    for t in range(states[0].next_round, rounds):
        cohorts = choose(t)
        started = time.perf_counter()
        arrived = trainer.updates([state.parameters for state in states], cohorts)
        observe(arrived)
        with threads_at_most(_THREADS):
            _take_steps(steps, states, arrived)
        seconds = time.perf_counter() - started
        due = (t + 1) % evaluate_every == 0 or t + 1 == rounds
        test = evaluator if due else None
        yield tuple(
            RoundRecord(
                round=t,
                clients=tuple(cohort.clients.tolist()),
                noise_stds=tuple(cohort.noise_stds.tolist()),
                seconds=seconds,
                test=test(state.parameters) if test and came is not None else None,
                test_average=test(state.average)
                if test and came is not None and state.average is not None
                else None,
                lost=came is None,
            )
            for cohort, state, came in zip(cohorts, states, arrived, strict=True)
        )
