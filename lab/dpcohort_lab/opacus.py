# SPDX-License-Identifier: Apache-2.0
"""What an Opacus training has spent, as a history that a client's ledger counts.

Opacus counts (noise multiplier, sample rate, steps) for Poisson batches and one clip a record.
Exactly that is our contract of Poisson batches with zero-out neighbours: noise z C on the sum of
clipped gradients, of which one record is at most C, and a denominator that is public. What Opacus
counts in the same way although it is something else is refused here.
"""

from __future__ import annotations

from typing import Any

from dpcohort.accounting import Event, History
from dpcohort.errors import InputError

__all__ = ["opacus_history"]


def opacus_history(accountant: Any, *, data_loader: Any, optimizer: Any) -> History:
    """The steps that an Opacus accountant has counted, as events of ours.

    Args:
        accountant: ``privacy_engine.accountant``, of any kind: only its ``history`` is used.
        data_loader: the loader that ``make_private`` returned.
        optimizer: the optimiser that ``make_private`` returned.

    Raises:
        InputError: batches were not drawn by Poisson sampling, records were not clipped as one, the
            rates are not those of the loader, or nothing was counted.

    Example:
        >>> import torch, warnings
        >>> from opacus import PrivacyEngine
        >>> model, data = torch.nn.Linear(3, 1), torch.utils.data.TensorDataset(torch.zeros(40, 3))
        >>> with warnings.catch_warnings(action="ignore"):
        ...     engine = PrivacyEngine()
        ...     model, optimizer, loader = engine.make_private(
        ...         module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...         data_loader=torch.utils.data.DataLoader(data, batch_size=10),
        ...         noise_multiplier=2.0, max_grad_norm=1.0)
        >>> engine.accountant.step(noise_multiplier=2.0, sample_rate=0.25)
        >>> done = opacus_history(engine.accountant, data_loader=loader, optimizer=optimizer)
        >>> [event.to_dict()["noise_multiplier"] for event in done.events]
        [2.0]
    """
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    sampler: Any = getattr(data_loader, "batch_sampler", None)
    if type(sampler) is not UniformWithReplacementSampler:
        raise InputError(
            "data_loader",
            given=f"batches of {type(sampler).__name__}",
            allowed="the loader that make_private(poisson_sampling=True) returned",
            next_step="Opacus counts shuffled batches as if they were Poisson samples, which no "
            "proof covers: such a training cannot be certified.",
        )
    if type(optimizer) not in (DPOptimizer, DPOptimizerFastGradientClipping):
        raise InputError(
            "optimizer",
            given=type(optimizer).__name__,
            allowed="Opacus' DPOptimizer, or that of clipping='flat' in ghost mode",
            next_step="Adaptive clips spend more than the steps, and clips by layer or over "
            "several machines have another contract.",
        )
    events = [
        Event.of(noise_multiplier=noise, sampling_rate=rate, steps=steps)
        for noise, rate, steps in accountant.history
    ]
    if not events:
        raise InputError("accountant.history", given=[], allowed="at least one step")
    for event in events:
        if event.mechanism.sampling_rate != sampler.sample_rate:
            raise InputError(
                "sample rate in accountant.history",
                given=event.mechanism.sampling_rate,
                allowed=f"{sampler.sample_rate:g}, the rate of the loader",
                next_step="Batches that are added up before a step hold a record twice, which "
                "the rate does not tell; trainings on other loaders need accountants of their own.",
            )
    return History(tuple(events))
