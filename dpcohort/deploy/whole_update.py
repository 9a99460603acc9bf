# SPDX-License-Identifier: Apache-2.0
"""A client's whole update as one record: all that can be protected where records are out of sight.

A filter or a mod of another framework sees what a training made of the records, not the records.
So the whole update is clipped to C and gets noise, and whatever the client's data are exchanged
for, it moves by at most 2C. That is replace-one at rate 1 in one step a round, with the client as
the record; it covers all of its records together, so each of them as well. It needs much noise, for
nobody's records hide among others.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray

from dpcohort.deploy.ledger._terms import RunTerms
from dpcohort.engine import Lattice
from dpcohort.engine._lattice import KEY_BYTES, Bytes
from dpcohort.errors import InputError

__all__ = ["check_whole", "noisy_update"]

_LARGEST = float(np.finfo(np.float32).max)


def check_whole(terms: RunTerms) -> None:
    """Refuse terms that promise something else than a clipped and noised whole update keeps.

    Raises:
        InputError: they are for records.

    Example:
        >>> check_whole(RunTerms(epsilon=8.0, delta=1e-5, clip=1.0, sampling_rate=0.1,
        ...     local_steps=1, rounds=1, draws=1, least_noise_multiplier=2.0))
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: the accepted terms are for records, ...
    """
    said = (terms.sampling_rate, terms.local_steps, terms.neighbours, terms.reports, terms.pool)
    if said != (1.0, 1, "replace-one", None, None):
        raise InputError.because(
            "the accepted terms are for records, and here the client as a whole is protected: "
            "sampling_rate must be 1, local_steps 1 and neighbours 'replace-one', without reports "
            "and distributed noise."
        )


def noisy_update(
    moved: NDArray[np.float64], lattice: Lattice, *, scale: float = 1.0, source: Bytes = os.urandom
) -> NDArray[np.float32]:
    """What may leave: the update clipped as one vector, with its noise, times a public number.

    An update that is not finite counts as zeros, so that noise alone is sent.

    Args:
        moved: by how much the training moved the model, [D]. SENSITIVE.
        lattice: noise multiplier and clip.
        scale: a public number.
        source: where random bytes come from; anything but the operating system is for tests.

    Example:
        >>> sent = noisy_update(np.array([3.0, 4.0]), Lattice(1e-3, 1.0))
        >>> [round(float(one), 1) for one in sent]
        [0.6, 0.8]
    """
    total = lattice.clipped_sum(torch.from_numpy(np.asarray(moved, dtype=np.float64))[None])
    noisy = lattice.release(total, source(KEY_BYTES), scale=scale).numpy()
    return np.asarray(np.clip(noisy, -_LARGEST, _LARGEST), dtype=np.float32)
