# SPDX-License-Identifier: Apache-2.0
"""What was measured in a cell, one small JSON file a cell, so that a stopped command goes on.

A stored measurement is used again only if the hash of the cell's settings is the same: after an
edit of the recipe the cell is measured anew, and cells the edit does not touch are not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpcohort.atomic_file import write_text
from dpcohort.errors import FileFormatError, InputError
from dpcohort.lab.recipes.recipe import Cell
from dpcohort.limits import LARGEST_CELL_FILE
from dpcohort.text_files import parse_json, read_utf8

__all__ = ["CellStore", "Measurement"]

_FORMAT = "dpcohort cell"
_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One training of a cell.

    Attributes:
        seed: which repetition.
        accuracy: test accuracy in per cent: of the average of iterates where one is kept.
        last: test accuracy of the last iterate, in per cent.
        curve: (rounds done, accuracy in per cent) at every evaluation.
        clients_drawn: private clients that were drawn at least once.
        clients_lifted: clients whose paper noise did not certify and was raised to the tight noise.
        promises_hold: every receipt certifies at most the client's declared budget; raw losses of
            the biased baseline are outside of any.
        seconds: training time; of runs side by side, each has an equal share.
        device: where it ran.
        plan: hash of its plan.

    Example:
        >>> found = Measurement(seed=0, accuracy=51.5, last=50.0, curve=((10, 51.5),),
        ...     clients_drawn=80, clients_lifted=0, promises_hold=True, seconds=1.5,
        ...     device="cpu", plan="ab")
        >>> Measurement.from_dict(found.to_dict()) == found
        True
    """

    seed: int
    accuracy: float
    last: float
    curve: tuple[tuple[int, float], ...]
    clients_drawn: int
    clients_lifted: int
    promises_hold: bool
    seconds: float
    device: str
    plan: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "curve": [list(point) for point in self.curve]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Measurement:
        """What ``to_dict`` gave.

        Raises:
            InputError: a value is missing or is not what it should be.
        """
        try:
            curve = tuple((int(r), float(a)) for r, a in values["curve"])
            found = cls(**{**values, "curve": curve})
            numbers = (found.accuracy, found.last, found.seconds)
            good = all(math.isfinite(n) for n in numbers) and isinstance(found.promises_hold, bool)
        except (KeyError, TypeError, ValueError):
            good = False
        if not good:
            raise InputError.because("a measurement is not as it was written")
        return found


class CellStore:
    """The measurements of one recipe, in a folder.

    Args:
        folder: where the files are; None keeps them in memory.

    Example:
        >>> CellStore(None).known
        {}
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        #: Every measurement by (slug, seed).
        self.known: dict[tuple[str, int], Measurement] = {}

    def load(self, cell: Cell) -> None:
        """Take over what a file holds of this cell, if it was measured with the same settings.

        Raises:
            FileFormatError: the file is no file of measurements.
        """
        path = self._path(cell)
        if path is None or not path.exists():
            return
        try:
            stored = parse_json(read_utf8(path, at_most_bytes=LARGEST_CELL_FILE))
            is_ours = stored["format"] == _FORMAT and stored["schema"] == _SCHEMA
            if is_ours and stored["settings_sha256"] == cell.sha256:
                for values in stored["measurements"]:
                    found = Measurement.from_dict(values)
                    self.known[cell.slug, found.seed] = found
        except (ValueError, KeyError, TypeError, InputError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(
                path, f"this file of measurements is broken ({error}); delete it and run again"
            ) from None

    def add(self, cell: Cell, measurement: Measurement) -> None:
        """Keep a measurement, on disk as well."""
        self.known[cell.slug, measurement.seed] = measurement
        path = self._path(cell)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = sorted(
            (m for (slug, _), m in self.known.items() if slug == cell.slug), key=lambda m: m.seed
        )
        content = {
            "format": _FORMAT,
            "schema": _SCHEMA,
            "cell": cell.label,
            "settings_sha256": cell.sha256,
            "measurements": [m.to_dict() for m in mine],
        }
        write_text(path, json.dumps(content, indent=1) + "\n")

    def of(self, cell: Cell, seeds: int) -> list[Measurement]:
        """The measurements of a cell for the seeds 0 to ``seeds`` - 1, as far as they are there."""
        found = (self.known.get((cell.slug, seed)) for seed in range(seeds))
        return [m for m in found if m is not None]

    def _path(self, cell: Cell) -> Path | None:
        return None if self._folder is None else self._folder / f"{cell.slug}.json"
