# SPDX-License-Identifier: Apache-2.0
"""All clients' records, resident on the device in one store and gathered by index.

Rows of inputs and targets are kept once; a partition says which rows are whose, in compressed form
(``indices[offsets[k]:offsets[k + 1]]`` are the rows of client k). Images lie channels-last, so that
a gathered batch is already in the layout convolutions like best.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort._validate import IntArray
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from dpcohort.engine.experiment import TrainingPlan

__all__ = ["ClientRecords"]


class ClientRecords:
    """Inputs and targets of all clients.

    Args:
        inputs: [rows, ...] floats, or integers for models that start with an embedding.
        targets: [rows, ...].
        indices: rows of client 0, then of client 1, and so on.
        offsets: where in ``indices`` each client starts; one longer than there are clients.
        device: where the records are kept.
        dtype: floating type to which inputs are brought when gathered; None keeps their own.
        transform: applied to each gathered batch after that, for example a fixed normalisation.

    Example:
        >>> records = ClientRecords(np.arange(6.0).reshape(3, 2), np.array([0, 1, 0]),
        ...                         indices=np.array([2, 0, 1]), offsets=np.array([0, 1, 3]))
        >>> records.sizes.tolist(), records.rows(1, np.array([1])).tolist()
        ([1, 2], [1])
    """

    def __init__(
        self,
        inputs: Any,
        targets: Any,
        *,
        indices: IntArray,
        offsets: IntArray,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        stored = torch.as_tensor(inputs)
        if stored.is_floating_point() and dtype is not None:
            stored = stored.to(dtype)
        self._is_image = stored.dim() == 4
        if self._is_image:
            stored = stored.permute(0, 2, 3, 1).contiguous()
        self._inputs = stored.to(device)
        self._targets = torch.as_tensor(targets).to(device)
        self.indices = np.array(indices, dtype=np.int64)  # a copy: torch wants it writable
        self.offsets = np.asarray(offsets, dtype=np.int64)
        self.dtype = dtype
        self.transform = transform
        self._check()

    def repartitioned(self, partition: Any) -> ClientRecords:
        """The same rows in other hands, without a second copy: for experiments side by side.

        Args:
            partition: anything with ``indices`` and ``offsets``.
        """
        other = object.__new__(ClientRecords)
        other.__dict__.update(self.__dict__)
        other.indices = np.array(partition.indices, dtype=np.int64)
        other.offsets = np.asarray(partition.offsets, dtype=np.int64)
        other._check()
        return other

    def __len__(self) -> int:
        return int(self.offsets.size) - 1

    @property
    def sizes(self) -> IntArray:
        """Number of records of each client."""
        return np.diff(self.offsets)

    @property
    def device(self) -> torch.device:
        """Where the records are."""
        return self._inputs.device

    def shares_rows_with(self, other: ClientRecords) -> bool:
        """Whether both look at the very same stored rows."""
        return self._inputs is other._inputs and self._targets is other._targets

    def rows(self, client: int, positions: IntArray) -> IntArray:
        """Rows of the store at the given positions among a client's records."""
        start = int(self.offsets[client])
        return self.indices[start + positions]

    def gather(self, rows: IntArray | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the given rows, ready for the model."""
        index = torch.as_tensor(rows, device=self.device)
        inputs = self._inputs.index_select(0, index)
        if self._is_image:
            inputs = inputs.permute(0, 3, 1, 2)
        # Integers stay integers (they are tokens) unless they are bytes of an image.
        if self.dtype is not None and (inputs.is_floating_point() or inputs.dtype == torch.uint8):
            inputs = inputs.to(self.dtype)
        if self.transform is not None:
            inputs = self.transform(inputs)
        return inputs, self._targets.index_select(0, index)

    def fit(self, model: nn.Module) -> nn.Module:
        """A copy of the model where the records are, in their floating type."""
        copied = copy.deepcopy(model).to(self.device)
        return copied if self.dtype is None else copied.to(self.dtype)

    def check_against(self, plan: TrainingPlan) -> None:
        """Refuse data whose clients are not the plan's: the noise was made for other sizes."""
        planned = np.asarray(plan.population.sizes, dtype=np.int64)
        if planned.size != len(self):
            raise InputError.because(
                f"the plan has {planned.size} clients but the data has {len(self)}. "
                "Plan for this partition, or load the one the plan was made for."
            )
        if np.any(planned != self.sizes):
            client = int(np.flatnonzero(planned != self.sizes)[0])
            raise InputError.because(
                f"client {client} has {int(self.sizes[client])} records but was planned with "
                f"{int(planned[client])}; its noise would not fit. "
                "Plan for this partition, or load the one the plan was made for."
            )

    def _check(self) -> None:
        rows = self._inputs.shape[0]
        if self._targets.shape[0] != rows:
            raise InputError.because(
                f"there are {rows} inputs but {self._targets.shape[0]} targets."
            )
        increasing = self.offsets.size >= 2 and bool(np.all(np.diff(self.offsets) >= 0))
        if not increasing or self.offsets[0] != 0 or self.offsets[-1] != self.indices.size:
            raise InputError(
                "offsets",
                given=self.offsets.tolist(),
                allowed=f"increasing from 0 to the number of indices, {self.indices.size}",
            )
        if self.indices.size and not 0 <= self.indices.min() <= self.indices.max() < rows:
            raise InputError(
                "indices",
                given=[int(self.indices.min()), int(self.indices.max())],
                allowed=f"row numbers from 0 to {rows - 1}",
            )
