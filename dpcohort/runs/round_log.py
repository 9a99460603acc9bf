# SPDX-License-Identifier: Apache-2.0
"""``rounds.jsonl``: the public record of every round, one line each.

Cohort, noise, time and results on public test data; never a loss, norm or gradient of a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from dpcohort.errors import InputError

__all__ = ["RoundLine", "TestResult"]


class _Result(Protocol):
    @property
    def accuracy(self) -> float: ...
    @property
    def loss(self) -> float: ...
    @property
    def class_accuracy(self) -> tuple[float, ...]: ...
    @property
    def class_counts(self) -> tuple[int, ...]: ...


class _Record(Protocol):
    @property
    def round(self) -> int: ...
    @property
    def clients(self) -> tuple[int, ...]: ...
    @property
    def noise_stds(self) -> tuple[float, ...]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def test(self) -> _Result | None: ...
    @property
    def test_average(self) -> _Result | None: ...
    @property
    def lost(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """Results on the public test set.

    Attributes:
        accuracy: share of test records whose class was found.
        loss: mean cross-entropy.
        class_accuracy: accuracy within each class; NaN for a class without test records.
        class_counts: test records of each class.
    """

    __test__ = False  # not a test case, whatever pytest thinks of its name

    accuracy: float
    loss: float
    class_accuracy: tuple[float, ...]
    class_counts: tuple[int, ...]

    @classmethod
    def of(cls, result: _Result | None) -> TestResult | None:
        """A result of an engine, or None."""
        if result is None:
            return None
        return cls(
            accuracy=result.accuracy,
            loss=result.loss,
            class_accuracy=tuple(result.class_accuracy),
            class_counts=tuple(result.class_counts),
        )

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
        )


@dataclass(frozen=True, kw_only=True)
class RoundLine:
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
        >>> line = RoundLine(round=0, clients=(2,), noise_stds=(0.1,), seconds=0.01)
        >>> RoundLine.from_dict(line.to_dict()) == line
        True
    """

    round: int
    clients: tuple[int, ...]
    noise_stds: tuple[float, ...]
    seconds: float
    test: TestResult | None = None
    test_average: TestResult | None = None
    lost: bool = False

    @classmethod
    def of(cls, record: _Record) -> RoundLine:
        """The line of a record that an engine gave."""
        return cls(
            round=record.round,
            clients=tuple(record.clients),
            noise_stds=tuple(record.noise_stds),
            seconds=record.seconds,
            test=TestResult.of(record.test),
            test_average=TestResult.of(record.test_average),
            lost=record.lost,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without what is not there."""
        return {
            key: value
            for key, value in asdict(self).items()
            if value is not None and (key != "lost" or value)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RoundLine:
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
