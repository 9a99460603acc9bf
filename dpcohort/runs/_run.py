# SPDX-License-Identifier: Apache-2.0
"""A run: what a training gave, in memory or read back from its folder. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting import Charge
from dpcohort.data import Partition, load_partition
from dpcohort.errors import DpcohortError, FileFormatError, InputError, VerificationError
from dpcohort.metrics import Check, Metric, main_metric
from dpcohort.plain_text import counted, html_table
from dpcohort.plan import Plan
from dpcohort.round_record import RoundRecord, TestResult
from dpcohort.runs._folder import (
    AVERAGE_MODEL,
    LAST_MODEL,
    LEDGER,
    MODEL,
    PARTITION,
    PLAN,
    RECEIPTS,
    RESULT,
    ROUNDS,
    SETTINGS,
    find_run,
    read_json,
    read_log,
)
from dpcohort.runs._journal import Journal
from dpcohort.runs._later_charges import later_charges
from dpcohort.runs._provenance import source_of
from dpcohort.runs._receipts import Receipt, make_receipts, write_receipts
from dpcohort.runs._success import check_of, task_of
from dpcohort.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

#: The model that test results are of, in words.
SCORED = {"average": "average of iterates", "last": "last iterate"}

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
        judged: how good the final model is: ``metrics``, ``trivial``, ``check``, ``evaluation`` and
            ``warnings`` of ``result.json``; empty until the run is finished.
        module: the network, for ``predict``; None if the run was read from its folder.
        inputs: how inputs are scaled, by public constants, and what the columns of their table
            mean; empty where it is not written down.
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
    module: nn.Module | None = field(default=None, repr=False)
    inputs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: Charges after the plan was made, of a run that is not written down.
    unwritten: tuple[Charge, ...] = ()

    def __repr__(self) -> str:
        return f"Run({', '.join(self._facts().values())})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return html_table(f"Run {self.settings.get('label', '')}", self._facts())

    def _facts(self) -> dict[str, str]:
        """What there is to say of the run, a few words each; public information only."""
        words = {
            "rule": self.plan.rule,
            "clients": counted(len(self.plan.population), "client"),
            "rounds": f"round {self.rounds_done} of {self.plan.training.rounds}",
        }
        with suppress(InputError):  # not evaluated yet
            result = f"test {self.metric.words} {self.metric.text(self.test.score)}"
            words["result"] = f"{result} ({SCORED[self.scored]})"
        words["privacy"] = "private" if self.is_private else "NOT PRIVATE (simulation)"
        return words if self.path is None else {**words, "folder": str(self.path)}

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run from its folder; one that is not finished is read as far as it came.

        Raises:
            DataMissingError: there is no run.
            FileFormatError: a file of it is broken.
            VerificationError: the plan, the partition or the ledger was changed.
        """
        folder = find_run(path)
        plan = Plan.load(folder / PLAN)
        history = []
        for line, entry in enumerate(read_log(folder / ROUNDS), start=1):
            try:
                history.append(RoundRecord.from_dict(entry))
            except InputError as error:
                raise FileFormatError(folder / ROUNDS, str(error), line=line) from None
        ledger = Journal.read(plan, folder / LEDGER)
        # Of an average the file of the model, except in runs of before.
        both = (folder / LAST_MODEL).exists()
        result = result_in(folder)
        return cls(
            plan=plan,
            settings=read_json(folder / SETTINGS),
            ledger=ledger,
            history=history,
            path=folder,
            model=_weights(folder / LAST_MODEL if both else folder / MODEL),
            average=_weights(folder / MODEL if both else folder / AVERAGE_MODEL),
            inputs={key: result[key] for key in ("inputs", "columns") if key in result},
            partition=load_partition(folder / PARTITION) if (folder / PARTITION).exists() else None,
            judged=judged_in(result),
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
        return self.plan.source(source_of(self.settings)) == "private"

    @property
    def test(self) -> TestResult:
        """The last test result: of the average of iterates where one is kept.

        Raises:
            InputError: the model was never evaluated.
        """
        for line in reversed(self.history):
            if line.scored:
                return line.scored
        if self.judged.get("withheld"):
            raise InputError.because(
                "this run tells nothing of its test records: they are not public and it is "
                "private. What its clients paid to have told is run.evaluation, if they did."
            )
        raise InputError.because(
            "this run has no test result yet. Let it go on with --resume, or lower "
            "run.evaluate_every."
        )

    @property
    def evaluation(self) -> Mapping[str, Any] | None:
        """The evaluation that the clients paid for: metrics in all and of each, with 95 % ends."""
        return self.judged.get("evaluation")

    @property
    def has_test(self) -> bool:
        """Whether there is a test result."""
        return any(line.scored for line in self.history)

    @property
    def scored(self) -> Literal["average", "last"]:
        """Which model the test results are of: the average of iterates where one is kept."""
        decay = (self.settings.get("optimiser") or {}).get("average_decay")
        return "average" if self.average or decay is not None else "last"

    @property
    def scored_weights(self) -> Weights:
        """Parameters by name of the model that was scored; the content of ``model.safetensors``."""
        return self.average or self.model

    def predict(self, inputs: ArrayLike, *, model: nn.Module | None = None) -> NDArray[Any]:
        """What the model that was scored says of records: classes, labels as 0 and 1, or numbers.

        Args:
            inputs: records as the data set holds them, before they are scaled; or a DataFrame (a
                mapping of columns), whose predictions are classes by name.
            model: the network of a run that was read from its folder, where that has no name.

        Raises:
            InputError: the run is not finished, the network is not known, or records do not fit.

        Example:
            >>> from dpcohort import Population, Training, load_dataset, make_plan, train
            >>> clients = Population.from_arrays(sizes=[400] * 3, epsilon=[2, 4, 8], delta=1e-5)
            >>> settings = Training(rounds=3, cohort_size=2, batch_size=40, dimension=650)
            >>> plan = make_plan(clients, settings, seed=0)
            >>> run = train(plan, "logistic", "digits", device="cpu")
            >>> run.predict(load_dataset("digits").test_inputs[:2]).shape
            (2,)
        """
        # Networks need torch, which reading a run does not.
        from dpcohort.runs._prediction import model_outputs, predicted_table

        if isinstance(inputs, Mapping) or hasattr(inputs, "columns"):
            found, _ = predicted_table(self, inputs, model=model)
            labels = [found.get(name, found.get("prediction")) for name in self.task.names]
            several = self.task.kind == "multi-label"
            return np.array(labels).T if several else np.array(found["prediction"])
        return self.task.predictions(model_outputs(self, inputs, model=model))

    def plot(self) -> Figure:
        """Test accuracy over the rounds, as a matplotlib figure.

        Raises:
            InputError: the model was never evaluated.
        """
        figure: Figure = import_module("dpcohort.report._figures").accuracy_figure(
            {str(self.settings["label"]): [self]}
        )
        return figure

    def report(self, path: str | Path = "report.html", *, method: str = "pld") -> Path:
        """Write the HTML report of a run that has a folder.

        Args:
            path: where the page goes.
            method: the accountant that verifies the promises.

        Raises:
            InputError: the run has no folder, or the page cannot be written there.
        """
        if self.path is None:
            raise InputError.because(
                "a report is of a run folder, and this run has none. Give train a folder: out=..."
            )
        import_module("dpcohort.report.html._page").write_report([self.path], path, method=method)
        return Path(path)

    @property
    def test_accuracy(self) -> float:
        """Accuracy of the last evaluated model on the public test set; NaN where none is told."""
        return self.test.accuracy

    @property
    def task(self) -> Task:
        """What is predicted, with the shares of classes that an evaluation told."""
        task, told = task_of(self.settings), (self.evaluation or {}).get("class_shares")
        return replace(task, class_shares=tuple(told)) if told else task

    @property
    def metric(self) -> Metric:
        """What the run is judged by."""
        return main_metric(self.task)

    @property
    def check(self) -> Check | None:
        """The final model beside the best constant; None where nothing is told of test records."""
        return check_of(self.judged, self.test if self.is_finished and self.has_test else None)

    @property
    def reports(self) -> IntArray:
        """Reports counted so far, by position of the client."""
        return self.ledger.reports

    def curve(self) -> Curve:
        """Test accuracy and loss over the rounds."""
        points = [
            (line.round + 1, found.accuracy, found.loss, found.score)
            for line in self.history
            if (found := line.scored) is not None
        ]
        columns = np.array(points, dtype=np.float64).reshape(-1, 4).T
        return Curve(columns[0].astype(np.int64), *columns[1:])

    def receipt(self, client: str) -> Receipt:
        """What one client promised and spent, certified anew from the ledger.

        Raises:
            InputError: there is no such client.
        """
        return self.receipts(np.array([self.plan.population.index_of(client)]))[0]

    def receipts(self, clients: IntArray | None = None) -> list[Receipt]:
        """Receipts of all drawn clients, or of those at the given positions."""
        return make_receipts(
            self.plan,
            self.ledger.draws,
            settings=self.settings,
            clients=clients,
            reports=self.reports,
            later=self.later_charges(),
        )

    def later_charges(self) -> tuple[Charge, ...]:
        """What was paid for its records after its plan was made."""
        return self.unwritten if self.path is None else later_charges(self.path, self.plan)

    def write_receipts(self) -> None:
        """Write the receipts of all drawn clients into the folder of the run, if it has one."""
        if self.path is not None:
            positions = {name: k for k, name in enumerate(self.plan.population.ids)}
            write_receipts(self.receipts(), self.path / RECEIPTS, positions)


def result_in(folder: Path) -> dict[str, Any]:
    """The ``result.json`` of a run; empty without one, or with a broken one, which verify tells."""
    try:
        return read_json(folder / RESULT)
    except DpcohortError:
        return {}


def judged_in(result: Mapping[str, Any]) -> dict[str, Any]:
    """What ``result.json`` says of the model; one of an older version says nothing."""
    told = ("metrics", "trivial", "check", "evaluation", "withheld", "warnings")
    return {key: result[key] for key in told if key in result}


def _weights(path: Path) -> Weights:
    if not path.exists():
        return {}
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
