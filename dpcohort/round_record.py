# SPDX-License-Identifier: Apache-2.0
"""The public record of a round: a line of ``rounds.jsonl``, and what callbacks are told.

Cohort, noise, time and results on public test data; never a loss, norm, gradient or count of a
client's records: such numbers depend on private records and have no noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpcohort.errors import InputError

__all__ = ["RoundRecord", "TestResult"]


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """Results on the public test set.

    Attributes:
        accuracy: share of test records whose class was found.
        loss: the mean of the task's loss.
        class_accuracy: accuracy within each class; NaN for a class without test records.
        class_counts: test records of each class.
        value: of the task's main metric where that is not the accuracy; then, but for classes,
            accuracy is NaN and the columns by class are empty.

    Example:
        >>> TestResult(accuracy=0.5, loss=1.0, class_accuracy=(), class_counts=()).score
        0.5
    """

    __test__ = False  # not a test case, whatever pytest thinks of its name

    accuracy: float
    loss: float
    class_accuracy: tuple[float, ...]
    class_counts: tuple[int, ...]
    value: float | None = None

    @property
    def score(self) -> float:
        """The main metric of the task: accuracy, or what stands for it."""
        return self.accuracy if self.value is None else self.value

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without what is not there."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> TestResult | None:
        """What was written, read back."""
        if values is None:
            return None
        return cls(
            accuracy=_number(values["accuracy"]),
            loss=_number(values["loss"]),
            class_accuracy=tuple(_number(value) for value in values["class_accuracy"]),
            class_counts=tuple(int(value) for value in values["class_counts"]),
            value=_number(values["value"]) if "value" in values else None,
        )


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One round.

    Attributes:
        round: its number, from 0.
        clients: client position of each draw.
        noise_stds: noise on each draw's mean gradient, z C / B.
        seconds: wall time; NaN in a private run, where it would tell the size of the batches.
        test: results of the model; None where it was not evaluated.
        test_average: results of the average of iterates.
        lost: a crash came between counting and keeping this round, and it was not computed again;
            or too few clients of a federation answered.

    Example:
        >>> line = RoundRecord(round=0, clients=(2,), noise_stds=(0.1,), seconds=0.01)
        >>> RoundRecord.from_dict(line.to_dict()) == line
        True
    """

    round: int
    clients: tuple[int, ...]
    noise_stds: tuple[float, ...]
    seconds: float
    test: TestResult | None = None
    test_average: TestResult | None = None
    lost: bool = False

    @property
    def scored(self) -> TestResult | None:
        """The result that judges the model: of the average of iterates, where there is one."""
        return self.test_average or self.test

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without what is not there."""
        tests = {"test": self.test, "test_average": self.test_average}
        return {
            key: tests[key].to_dict() if key in tests else value  # type: ignore[union-attr]
            for key, value in asdict(self).items()
            if value is not None and (key != "lost" or value)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RoundRecord:
        """What ``to_dict`` gave.

        Raises:
            InputError: something is missing or of another kind.
        """
        try:
            return cls(
                round=int(values["round"]),
                clients=tuple(int(client) for client in values["clients"]),
                noise_stds=tuple(_number(std) for std in values["noise_stds"]),
                seconds=_number(values.get("seconds")),
                test=TestResult.from_dict(values.get("test")),
                test_average=TestResult.from_dict(values.get("test_average")),
                lost=bool(values.get("lost", False)),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError.because(f"not the record of a round ({error!r}).") from None


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
