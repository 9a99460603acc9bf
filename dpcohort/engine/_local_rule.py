# SPDX-License-Identifier: Apache-2.0
"""Corrections of local steps against client drift: FedProx, and SCAFFOLD's control variates.

A rule adds a vector to the noisy mean gradient of each local step. It sees the weights of the draw,
the model that the draw received, and what was kept of earlier noisy updates of its client; it never
sees a record or a gradient without noise. So it is post-processing: the gradients are clipped and
noised at weights that depend on what was released before only, as without a rule, and the noise of
each step, its sensitivity and what is counted stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from dpcohort._validate import IntArray, choice, number
from dpcohort.errors import InputError
from dpcohort.plugins import is_named_function, named_plugin


class LocalRule(Protocol):
    """Corrects noisy local steps; a rule that keeps nothing of clients needs ``correction`` only.

    Attributes:
        name: as a configuration names it.
        keeps: whether it keeps something of every client's noisy updates.
        first_step: whether it corrects a draw's first local step too.
    """

    name: ClassVar[str]
    keeps: ClassVar[bool] = False
    first_step: ClassVar[bool] = False

    def correction(self, weights: Tensor, received: Tensor, control: Tensor | None) -> Tensor:
        """What is added to the noisy mean gradient of a step [D].

        Args:
            weights: of the draw before the step.
            received: the model that the draw started from.
            control: the row of ``controls`` of the draw.
        """
        ...

    def controls(self, kept: Tensor | None, clients: IntArray) -> Tensor | None:
        """A row [D] for each draw of a round, from what was kept; None for none."""
        return None

    def keep(
        self,
        kept: Tensor | None,
        clients: IntArray,
        updates: Tensor,
        controls: Tensor | None,
        length: float,
    ) -> Tensor | None:
        """What to keep after a round, a row [D] for each client by its position.

        Args:
            kept: what was kept before it.
            clients: of each draw.
            updates: [draws, D], with their noise.
            controls: what corrected each draw.
            length: the sum of the step sizes of a draw's local steps.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class Proximal(LocalRule):
    """FedProx: the gradient of ``mu/2 ||w - w_global||^2`` beside that of the records.

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

    Attributes:
        mu: how strongly a draw is held back; 0 is no rule.

    Example:
        >>> Proximal(mu=0.5).correction(torch.tensor([3.0]), torch.tensor([1.0]), None)
        tensor([1.])
    """

    name: ClassVar[str] = "fedprox"

    mu: float

    def __post_init__(self) -> None:
        number("mu", self.mu, above=0)

    def correction(self, weights: Tensor, received: Tensor, control: Tensor | None) -> Tensor:
        """``mu (w - w_global)``."""
        return self.mu * (weights - received)


@dataclass(frozen=True, kw_only=True)
class ControlVariates(LocalRule):
    """SCAFFOLD with control variates of noisy updates only.

    Karimireddy et al., "SCAFFOLD", ICML 2020, option II: a client's control c_k is the mean noisy
    gradient of its last round, and its steps are corrected by c - c_k. Here c is the mean over the
    clients that were drawn so far, and a client that never was has no correction. The controls
    carry the noise of the updates: with little budget they are mostly noise, and plain steps are
    better.

    Example:
        >>> rule, clients = ControlVariates(), np.array([1])
        >>> kept = rule.keep(None, clients, torch.tensor([[4.0]]), None, 2.0)
        >>> kept.tolist()
        [[nan], [2.0]]
    """

    name: ClassVar[str] = "control-variates"
    keeps: ClassVar[bool] = True
    first_step: ClassVar[bool] = True

    def correction(self, weights: Tensor, received: Tensor, control: Tensor | None) -> Tensor:
        """``c - c_k``."""
        return torch.zeros_like(weights) if control is None else control

    def controls(self, kept: Tensor | None, clients: IntArray) -> Tensor | None:
        """``c - c_k`` of each draw; 0 of a client that is drawn for the first time."""
        if kept is None:
            return None
        rows = torch.tensor(clients, device=kept.device)
        known = rows < kept.shape[0]
        own = torch.full((rows.numel(), kept.shape[1]), torch.nan).to(kept)
        own[known] = kept[rows[known]]
        return (kept.nanmean(0) - own).nan_to_num_(0.0)

    def keep(
        self,
        kept: Tensor | None,
        clients: IntArray,
        updates: Tensor,
        controls: Tensor | None,
        length: float,
    ) -> Tensor | None:
        """The mean noisy gradient of each client of the round, over its draws."""
        gradients = updates / length if controls is None else updates / length - controls
        rows = torch.tensor(clients, device=updates.device)
        before = 0 if kept is None else kept.shape[0]
        size = max(before, int(rows.max()) + 1)
        after = torch.full((size, updates.shape[1]), torch.nan).to(updates)
        if kept is not None:
            after[:before] = kept
        for client in np.unique(clients).tolist():
            after[client] = gradients[rows == client].mean(0)
        return after


_RULES: dict[str, Any] = {rule.name: rule for rule in (Proximal, ControlVariates)}


def local_rule(name: str, settings: Mapping[str, Any]) -> LocalRule | None:
    """The rule of that name; None without a name.

    Args:
        name: ``fedprox``, ``control-variates``, or ``module:Class`` of a `LocalRule`.
        settings: as its class takes them.

    Raises:
        InputError: there is none of that name, or it does not take these settings.

    Example:
        >>> local_rule("fedprox", {"mu": 0.1})
        Proximal(mu=0.1)
    """
    if not name:
        return None
    if is_named_function(name):
        kind: Any = named_plugin("local-step", name, "optimiser.local")
    else:
        kind = _RULES[choice("optimiser.local", name, _RULES)]
    try:
        rule: LocalRule = kind(**settings)
    except TypeError as error:
        raise InputError.because(
            f"optimiser.local_settings do not fit the rule {name}: {error}. See: docs/reference/"
            "training.md"
        ) from None
    return rule
