# SPDX-License-Identifier: Apache-2.0
"""Callbacks of ``train``: a progress bar, TensorBoard.

They write what ``rounds.jsonl`` has, which is public, and nothing else of a client. How long a
round took tells how many records were drawn, so of a private run no time is written or sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from dpcohort.errors import missing_extra
from dpcohort.round_record import RoundRecord
from dpcohort.runs._run import Run


def added_noise(record: RoundRecord, run: Run) -> list[float]:
    """What each draw of a round really added: where noise is distributed, its share."""
    return run.plan.noise.added(record.clients, record.noise_stds, run.plan.training.clip)


def _scalars(record: RoundRecord, run: Run) -> Iterator[tuple[str, float]]:
    """The numbers of a round that may be told."""
    if record.noise_stds:
        noise = added_noise(record, run)
        yield "noise/largest", max(noise)
        yield "noise/smallest", min(noise)
    for name, found in (("model", record.test), ("average", record.test_average)):
        if found is not None:
            yield f"{run.metric.name}/{name}", found.score
            yield f"loss/{name}", found.loss


def _is_last(run: Run) -> bool:
    return run.rounds_done >= run.plan.training.rounds


def _keeps_time_secret(run: Run) -> bool:
    return bool(run.settings.get("randomness") == "entropy")


class EachRound:
    """A callback that waits for all of several runs to do a round, and then shows them together.

    Args:
        count: how many runs are trained together.
        show: called with the number of rounds done and the runs.
        together: what the runs of one group have in common; by default all are of one.
    """

    def __init__(
        self,
        count: int,
        show: Callable[[int, Sequence[Run]], None],
        together: Callable[[Run], object] = lambda run: None,
    ) -> None:
        self._count, self._show, self._together = count, show, together
        self._groups: dict[object, dict[int, Run]] = {}

    def on_round(self, record: RoundRecord, run: Run) -> None:
        """Show the runs of a group once the last of them did the round."""
        runs = self._groups.setdefault(self._together(run), {})
        runs[id(run)] = run
        if len(runs) == self._count and len({one.rounds_done for one in runs.values()}) == 1:
            self._show(run.rounds_done, list(runs.values()))


class ProgressBar:
    """How far a training is and how good, in a notebook or on a terminal.

    With tqdm installed it is ``tqdm.auto``, which knows a notebook from a terminal; otherwise rich.
    Of a private run it shows no times: a notebook keeps what its cells printed.

    Example:
        >>> from dpcohort import Population, Training, make_plan, train
        >>> clients = Population.from_arrays(sizes=[400] * 3, epsilon=[2, 4, 8], delta=1e-5)
        >>> settings = Training(rounds=3, cohort_size=2, batch_size=40, dimension=650)
        >>> plan = make_plan(clients, settings, seed=0)
        >>> run = train(plan, "logistic", "digits", device="cpu", callbacks=[ProgressBar()])
    """

    def __init__(self) -> None:
        self._show: Callable[[int, str], None] | None = None
        self._close: Callable[[], None] = lambda: None

    def on_round(self, record: RoundRecord, run: Run) -> None:
        """Show a round; the bar ends with the last one."""
        if self._show is None:
            self._open(run)
        assert self._show is not None
        found = record.scored
        metric = run.metric
        words = "" if found is None else f"test {metric.words} {metric.text(found.score)}"
        self._show(run.rounds_done, words)
        if _is_last(run):
            self.close()

    def close(self) -> None:
        """End the bar; a training that stopped early leaves it where it was."""
        self._close()
        self._show, self._close = None, lambda: None

    def _open(self, run: Run) -> None:
        total, title = run.plan.training.rounds, str(run.settings.get("label", "training"))
        times = "" if _keeps_time_secret(run) else " [{elapsed}<{remaining}]"
        form = f"{{desc}}: {{n_fmt}}/{{total_fmt}} {{bar}}{times}{{postfix}}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a notebook lacks its widgets: text will do
                tqdm = import_module("tqdm.auto").tqdm
                bar: Any = tqdm(total=total, desc=title, bar_format=form)
        except ImportError:
            self._open_rich(total, title)
            return

        def show(done: int, words: str) -> None:
            if words:
                bar.set_postfix_str(words, refresh=False)
            bar.update(done - bar.n)

        self._show, self._close = show, bar.close

    def _open_rich(self, total: int, title: str) -> None:
        text = TextColumn("{task.description}", markup=False)
        words = TextColumn("{task.fields[words]}", markup=False)
        bars = Progress(
            text, BarColumn(), MofNCompleteColumn(), words, console=Console(stderr=True)
        )
        task = bars.add_task(title, total=total, words="")
        bars.start()

        def show(done: int, said: str) -> None:
            if said:
                bars.update(task, words=said)
            bars.update(task, completed=done)

        self._show, self._close = show, bars.stop


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
            tensorboard = import_module("torch.utils.tensorboard")
        except ModuleNotFoundError as error:
            raise missing_extra(error) or error from None
        self._writer: Any = tensorboard.SummaryWriter(str(folder))

    def on_round(self, record: RoundRecord, run: Run) -> None:
        """Write one round."""
        # TensorBoard writes the time of every point unless it is given one.
        when = {"walltime": 0.0} if _keeps_time_secret(run) else {}
        for name, value in _scalars(record, run):
            self._writer.add_scalar(name, value, record.round + 1, **when)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
