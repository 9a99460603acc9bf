# SPDX-License-Identifier: Apache-2.0
"""A run: what a training gave, in memory or read back from its folder. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import FloatArray, IntArray
from dpcohort.data.partition import Partition, load_partition
from dpcohort.errors import DpcohortError, FileFormatError, InputError, VerificationError
from dpcohort.metrics import Check, Metric, main_metric
from dpcohort.plan import Plan
from dpcohort.round_record import RoundRecord, TestResult
from dpcohort.runs.folder import RunFolder, read_json, read_log
from dpcohort.runs.journal import Journal
from dpcohort.runs.receipts import Receipt, make_receipts, source_of
from dpcohort.runs.success import check_of, task_of
from dpcohort.tasks import Task

if TYPE_CHECKING:
    from dpcohort.round_record import RoundRecord


Weights = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Curve:
    """Test results over the rounds.

    Attributes:
        rounds: rounds done at each evaluation.
        accuracy: test accuracy then.
        loss: mean test loss then.
        score: the main metric of the task then; of plain classification the accuracy.
    """

    rounds: IntArray
    accuracy: FloatArray
    loss: FloatArray
    score: FloatArray


@dataclass(eq=False, kw_only=True)
class Run:
    """A training, while it goes on and afterwards.

    Attributes:
        plan: what was executed.
        settings: seed, model, optimiser, engine: the content of ``run.json``.
        history: the public record of every round so far.
        ledger: draws counted so far.
        path: the run folder; None if nothing is written.
        model: trained parameters by name; empty until the run is finished.
        average: the average of iterates by name; empty if none was kept.
        partition: who holds which records.
        warnings: what went wrong without stopping the run.
        judged: how good the final model is: ``metrics``, ``trivial``, ``check`` and ``warnings`` of
            ``result.json``; empty until the run is finished.
    """

    plan: Plan
    settings: Mapping[str, Any]
    ledger: Journal
    history: list[RoundRecord] = field(default_factory=list)
    path: Path | None = None
    model: Weights = field(default_factory=dict)
    average: Weights = field(default_factory=dict)
    partition: Partition | None = None
    warnings: list[str] = field(default_factory=list)
    judged: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run from its folder; one that is not finished is read as far as it came.

        Raises:
            DataMissingError: there is no run.
            FileFormatError: a file of it is broken.
            VerificationError: the plan, the partition or the ledger was changed.
        """
        folder = RunFolder.find(path)
        plan = Plan.load(folder.plan)
        history = []
        for line, entry in enumerate(read_log(folder.rounds), start=1):
            try:
                history.append(RoundRecord.from_dict(entry))
            except InputError as error:
                raise FileFormatError(folder.rounds, str(error), line=line) from None
        ledger = Journal.read(plan, folder.ledger)
        return cls(
            plan=plan,
            settings=read_json(folder.settings),
            ledger=ledger,
            history=history,
            path=folder.path,
            model=_weights(folder.model),
            average=_weights(folder.average),
            partition=load_partition(folder.partition) if folder.partition.exists() else None,
            judged=judged_in(folder.result),
        )

    @property
    def rounds_done(self) -> int:
        """Rounds written down."""
        return len(self.history)

    @property
    def is_finished(self) -> bool:
        """Whether all rounds are done and the model is there."""
        return self.rounds_done == self.plan.training.rounds and bool(self.model)

    @property
    def seed(self) -> int:
        """Seed of model and partition, and of batches and noise unless they are private."""
        return int(self.settings["seed"])

    @property
    def is_private(self) -> bool:
        """Batches and noise came from private streams, and no report was raw."""
        return source_of(self.settings) == "private" and not self.plan.has_raw_reports

    @property
    def test(self) -> TestResult:
        """The last test result: of the average of iterates where one is kept.

        Raises:
            InputError: the model was never evaluated.
        """
        for line in reversed(self.history):
            found = line.test_average or line.test
            if found is not None:
                return found
        if self.judged.get("withheld"):
            raise InputError.because(
                "this run tells nothing of its test records: they are not public and it is private."
            )
        raise InputError.because(
            "this run has no test result yet. Let it go on with --resume, or lower "
            "run.evaluate_every."
        )

    @property
    def has_test(self) -> bool:
        """Whether there is a test result."""
        return any(line.test_average or line.test for line in self.history)

    @property
    def test_accuracy(self) -> float:
        """Accuracy of the last evaluated model on the public test set; NaN where none is told."""
        return self.test.accuracy

    @property
    def task(self) -> Task:
        """What is predicted."""
        return task_of(self.settings)

    @property
    def metric(self) -> Metric:
        """What the run is judged by."""
        return main_metric(self.task)

    @property
    def check(self) -> Check | None:
        """The final model beside the best constant; None where nothing is told of test records."""
        return check_of(self.judged, self.test if self.is_finished and self.has_test else None)

    @property
    def reports(self) -> IntArray | None:
        """Reports counted so far, by position of the client; None where cohorts are planned."""
        return None if self.plan.adaptive is None else self.ledger.reports

    def curve(self) -> Curve:
        """Test accuracy and loss over the rounds."""
        points = [
            (line.round + 1, found.accuracy, found.loss, found.score)
            for line in self.history
            if (found := line.test_average or line.test) is not None
        ]
        columns = np.array(points, dtype=np.float64).reshape(-1, 4).T
        return Curve(
            rounds=columns[0].astype(np.int64),
            accuracy=columns[1],
            loss=columns[2],
            score=columns[3],
        )

    def receipt(self, client: str) -> Receipt:
        """What one client promised and spent, certified anew from the ledger.

        Raises:
            InputError: there is no such client.
        """
        return self._receipts(np.array([self.plan.population.index_of(client)]))[0]

    def receipts(self) -> list[Receipt]:
        """Receipts of all drawn clients."""
        return self._receipts(None)

    def _receipts(self, clients: IntArray | None) -> list[Receipt]:
        return make_receipts(
            self.plan,
            self.ledger.draws,
            source=source_of(self.settings),
            clients=clients,
            reports=self.reports,
        )


def judged_in(path: Path) -> dict[str, Any]:
    """What ``result.json`` says of the model; one of an older version says nothing."""
    if not path.exists():
        return {}
    try:
        stored = read_json(path)
    except DpcohortError:  # verify says what is wrong with it
        return {}
    return {
        k: stored[k] for k in ("metrics", "trivial", "check", "withheld", "warnings") if k in stored
    }


def _weights(path: Path) -> Weights:
    if not path.exists():
        return {}
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        found: Weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise VerificationError(f"{path} is damaged: {str(error)[:200]}.") from None
    return found


@runtime_checkable
class Callback(Protocol):
    """Anything with ``on_round``; it is called after each round was written down.

    Example:
        >>> class Printer:
        ...     def on_round(self, record, run):
        ...         print(record.round)
        >>> isinstance(Printer(), Callback)
        True
    """

    def on_round(self, record: RoundRecord, run: Run) -> None:
        """Look at a round; raising an error stops the training after its last whole round."""
        ...
