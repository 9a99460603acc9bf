# SPDX-License-Identifier: Apache-2.0
"""Engine of jobs that are trained together, and failures of a model or loss on records."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import dpcohort
from dpcohort.engine import BatchedEngine, Experiment, ReferenceEngine
from dpcohort.errors import DpcohortError, InputError
from dpcohort.limits import exhausted
from dpcohort.plugins import is_named_function, named_plugin
from dpcohort.round_record import RoundRecord
from dpcohort.runs._job import Job


def engine_of(
    jobs: Sequence[Job], *, micro_batch: int | None = None
) -> tuple[ReferenceEngine | BatchedEngine, list[Experiment]]:
    """What computes the updates of jobs that go together, and what it trains.

    Args:
        jobs: with the same model and data set.
        micro_batch: examples in one pass at most; None picks a bound.
    """
    first = jobs[0]
    records = first.records()
    experiments = [
        job.experiment(records if job is first else records.repartitioned(job.partition))
        for job in jobs
    ]
    if first.engine == "reference":
        return ReferenceEngine(first.trained, experiments, loss=first.loss), experiments
    engine = BatchedEngine(first.trained, experiments, loss=first.loss, micro_batch=micro_batch)
    return engine, experiments


def with_failures(
    rounds: Iterator[tuple[RoundRecord, ...]], jobs: Sequence[Job]
) -> Iterator[tuple[RoundRecord, ...]]:
    """The rounds; what goes wrong on records is told in one message, privately without its text.

    Args:
        rounds: being trained.
        jobs: those of them whose records are on this machine.

    Raises:
        InputError: a loss of the user's failed on a record, or anything did in a private run.
    """
    try:
        yield from rounds
        return
    except DpcohortError:
        raise
    except Exception as error:  # the user's loss or model may fail in any way
        words = failure_on_records(error, jobs)
        if words is None:
            raise
    raise InputError.because(words)  # here the error with its text is gone


def failure_on_records(error: Exception, jobs: Sequence[Job]) -> str | None:
    """What to say of an error in a round; None where it may be seen as it is."""
    frames = list(traceback.walk_tb(error.__traceback__))
    code, line = frames[-1][0].f_code, frames[-1][1]
    ours = Path(dpcohort.__file__).parent in Path(code.co_filename).parents
    if exhausted(error) is not None or (isinstance(error, OSError) and ours):
        return None
    kind, said, whose = type(error).__name__, "", "the training"
    for name in {job.task.loss for job in jobs if is_named_function(job.task.loss)}:
        own = getattr(named_plugin("loss", name), "__code__", None)
        found = [(frame.f_code, at) for frame, at in frames if frame.f_code is own]
        if found:
            (code, line), whose = found[-1], f"the loss {name}"
    if any(job.private for job in jobs):
        said = (
            " What it says is withheld, as it may be about a record: try it in a "
            "simulation on made-up or public records."
        )
    elif whose == "the training":
        return None  # a mistake of ours, or of a model in a simulation, with its traceback
    else:
        kind = f"{kind}: {str(error).rstrip('.')}"
    where = f"{Path(code.co_filename).name}, line {line}"
    return f"{whose} failed on records of a round ({where}): {kind}.{said} The round is counted."
