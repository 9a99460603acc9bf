# SPDX-License-Identifier: Apache-2.0
"""Cells of a sweep (trainings that do not wait for each other) in processes, by joblib.

Processes of this machine, of a Dask cluster or of a Ray cluster: joblib starts them, hands out the
cells and gives their results as they come. A cell computes the same bits wherever it is computed.
Records travel once to each process, not once with each cell.
"""

from __future__ import annotations

import importlib
import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import joblib

from dpcohort._validate import whole_number
from dpcohort.data import Dataset
from dpcohort.errors import DpcohortError, InputError
from dpcohort.runs._run import Callback

Result = TypeVar("Result", covariant=True)

_BACKENDS = ("dask", "ray")
_SECONDS_TO_ANSWER = "10s"
_KEPT = "Cells that were done are kept where a folder for them was given: the same command goes on."


class Cell(Protocol[Result]):
    """A training, or several side by side: a function of nothing but callbacks, to be pickled."""

    def __call__(self, *, callbacks: Sequence[Callback] = ()) -> Result:
        """What it comes to."""


@dataclass(frozen=True)
class Workers:
    """Processes that compute the cells of a sweep.

    Args:
        jobs: cells at a time; 1 computes one after the other in this process.
        backend: ``dask=tcp://HOST:PORT`` or ``ray=ADDRESS``, a cluster that runs; empty for
            processes of this machine.

    Raises:
        InputError: there is no such backend.

    Example:
        >>> def cell(*, callbacks=()):
        ...     return len(callbacks)
        >>> list(Workers().results([cell, cell], callbacks=lambda place: ["one"]))
        [(0, 1), (1, 1)]
    """

    jobs: int = 1
    backend: str = ""

    def __post_init__(self) -> None:
        whole_number("--jobs", self.jobs, at_least=1)
        name, _, address = self.backend.partition("=")
        if self.backend and (name not in _BACKENDS or not address):
            raise InputError(
                "--backend",
                given=self.backend,
                allowed="dask=tcp://HOST:PORT or ray=ADDRESS, a cluster that runs",
            )

    @property
    def are_elsewhere(self) -> bool:
        """Whether cells are computed in other processes, which cannot call back."""
        return self.jobs > 1 or bool(self.backend)

    def results(
        self,
        cells: Sequence[Cell[Result]],
        *,
        callbacks: Callable[[int], Sequence[Callback]] = lambda place: (),
    ) -> Iterator[tuple[int, Result]]:
        """Place and result of each cell, as they are done.

        Args:
            cells: what to compute.
            callbacks: of the cell at a place; not called in other processes.

        Raises:
            DpcohortError: of the first cell that raises it, or the cluster is gone.
        """
        if not self.are_elsewhere:
            for place, cell in enumerate(cells):
                yield place, cell(callbacks=callbacks(place))
            return
        with ExitStack() as stack:
            stack.enter_context(_telling_of_lost_processes(self.backend or "processes here"))
            stack.enter_context(self._connected())
            parallel = joblib.Parallel(
                n_jobs=-1 if self.backend and self.jobs == 1 else self.jobs,
                return_as="generator_unordered",
                batch_size=1,
            )
            tasks = [joblib.delayed(_computed)(*_packed(one)) for one in enumerate(cells)]
            for place, result, error in parallel(tasks):
                if error is not None:
                    raise error
                yield place, result

    def _connected(self) -> AbstractContextManager[Any]:
        """Joblib's backend, for what is computed within it."""
        name, _, address = self.backend.partition("=")
        if not name:
            return nullcontext()
        return _on_dask(address) if name == "dask" else _on_ray(address)


class _WithoutRecords(pickle.Pickler):
    """Pickles a cell but for its data sets, which travel by themselves."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.apart: list[Dataset] = []

    def persistent_id(self, one: Any) -> int | None:
        if not isinstance(one, Dataset):
            return None
        known = [place for place, data in enumerate(self.apart) if data is one]
        if not known:
            self.apart.append(one)
        return known[0] if known else len(self.apart) - 1


class _WithRecords(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, apart: Sequence[Dataset]) -> None:
        super().__init__(file)
        self._apart = apart

    def persistent_load(self, place: int) -> Dataset:
        return self._apart[place]


def _packed(placed: tuple[int, Cell[Any]]) -> tuple[Any, ...]:
    place, cell = placed
    file = io.BytesIO()
    pickler = _WithoutRecords(file)
    try:
        pickler.dump(cell)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError.because(
            f"this cell cannot be sent to another process: {error}. Define models, losses and "
            "rules of your own at the top of a module, or leave out --jobs and --backend."
        ) from None
    return place, file.getvalue(), *pickler.apart


def _computed(place: int, pickled: bytes, *apart: Dataset) -> tuple[int, Any, Exception | None]:
    """In another process: a cell's place and its result or the error of this package."""
    try:
        cell = _WithRecords(io.BytesIO(pickled), apart).load()
        return place, cell(), None
    except DpcohortError as error:
        return place, None, error


@contextmanager
def _on_dask(address: str) -> Iterator[None]:
    distributed = importlib.import_module("distributed")
    try:
        client = distributed.Client(address, timeout=_SECONDS_TO_ANSWER, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError.because(
            f"no Dask scheduler answers at {address} ({error}). Start one with: dask scheduler; "
            "and on each machine: dask worker ADDRESS."
        ) from None
    with client, joblib.parallel_config("dask", client=client, wait_for_workers_timeout=10):
        yield


@contextmanager
def _on_ray(address: str) -> Iterator[None]:
    ray = importlib.import_module("ray")
    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError.because(
            f"no Ray cluster answers at {address} ({error}). Start one with: ray start --head"
        ) from None
    importlib.import_module("ray.util.joblib").register_ray()
    try:
        with joblib.parallel_config("ray"):
            yield
    finally:
        ray.shutdown()


@contextmanager
def _telling_of_lost_processes(where: str) -> Iterator[None]:
    """Turn errors of whatever runs the processes into one that says what to do."""
    try:
        yield
    except (DpcohortError, GeneratorExit, KeyboardInterrupt):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DpcohortError(
            f"The sweep on {where} stopped ({reason}): a cell failed, or its process or cluster is "
            f"gone. {_KEPT}"
        ) from error
