# SPDX-License-Identifier: Apache-2.0
"""Test results and noise of every round as TensorBoard events; needs the package tensorboard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcohort.errors import DataMissingError

if TYPE_CHECKING:
    from dpcohort.round_record import RoundRecord
    from dpcohort.runs.run import Run

__all__ = ["TensorBoardLog"]


class TensorBoardLog:
    """A callback that writes public numbers only: what ``rounds.jsonl`` has, as curves.

    Of a private run no time is written: how long a round took tells how many records were drawn.
    For the same reason the folder should be closed to others (0700) while such a run goes on.

    Args:
        folder: where the events go; ``tensorboard --logdir`` shows them.

    Raises:
        DataMissingError: tensorboard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise DataMissingError(
                "tensorboard is not installed. Get it with: pip install tensorboard"
            ) from None
        self._writer: Any = SummaryWriter(str(folder))

    def on_round(self, record: RoundRecord, run: Run) -> None:
        """Write one round."""
        step = record.round + 1
        # TensorBoard writes the time of every point unless it is given one.
        when = {"walltime": 0.0} if run.settings.get("randomness") == "entropy" else {}
        if record.noise_stds:
            self._writer.add_scalar("noise/largest", max(record.noise_stds), step, **when)
            self._writer.add_scalar("noise/smallest", min(record.noise_stds), step, **when)
        for name, found in (("model", record.test), ("average", record.test_average)):
            if found is not None:
                self._writer.add_scalar(f"accuracy/{name}", found.accuracy, step, **when)
                self._writer.add_scalar(f"loss/{name}", found.loss, step, **when)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
