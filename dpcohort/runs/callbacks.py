# SPDX-License-Identifier: Apache-2.0
"""Callbacks of ``train``: a progress bar, TensorBoard, MLflow, Weights & Biases.

They write what ``rounds.jsonl`` has, which is public, and nothing else of a client. How long a
round took tells how many records were drawn, so of a private run no time is written or sent.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from dpcohort.errors import InputError, missing_extra
from dpcohort.round_record import RoundRecord
from dpcohort.runs.run import Run


def added_noise(record: RoundRecord, run: Run) -> list[float]:
    """What each draw of a round really added: where noise is pooled, its share."""
    pooled = run.plan.pooled
    if pooled is None:
        return list(record.noise_stds)
    shares = pooled.shares[list(record.clients)] * run.plan.training.clip
    return [float(share) for share in shares]


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


def _settings(run: Run) -> dict[str, object]:
    """What a tracker is told of a run before its rounds, all of it public."""
    return {
        "plan": run.plan.sha256,
        "clients": len(run.plan.population),
        "rule": run.plan.rule,
        "rounds": run.plan.training.rounds,
        "cohort_size": run.plan.training.cohort_size,
        "clip": run.plan.training.clip,
        "noise_to_clip": run.plan.noise_to_clip,
        "model": (run.settings.get("model") or {}).get("name"),
        "data": (run.settings.get("data") or {}).get("name"),
        "private": run.is_private,
    }


def _tool(name: str) -> Any:
    """A module of somebody's tracker, or what to install for it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None


def _is_last(run: Run) -> bool:
    return run.rounds_done >= run.plan.training.rounds


def _keeps_time_secret(run: Run) -> bool:
    return bool(run.settings.get("randomness") == "entropy")


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
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

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
        self._writer: Any = _tool("torch.utils.tensorboard").SummaryWriter(str(folder))

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


#: Stands for a time that is not told, in milliseconds since 1970; MLflow takes 0 for the present.
_NO_TIME = 1


class MLflowLog:
    """A callback that logs public numbers to MLflow: settings, and what ``rounds.jsonl`` has.

    A tracking server sees when something arrives. So of a private run everything is sent after the
    last round, and every time in it is `_NO_TIME`. The experiment is made before the first round: a
    server writes down when it was made.

    Args:
        place: address of a tracking server, or a folder; None is MLflow's own choice.
        experiment: name of the experiment; it is made if it is not there.
        name: of the run; by default its label.

    Raises:
        DataMissingError: mlflow is not installed.
        InputError: the place does not answer.
    """

    def __init__(
        self, place: str | Path | None = None, *, experiment: str = "dpcohort", name: str = ""
    ) -> None:
        entities, tracking = _tool("mlflow.entities"), _tool("mlflow.tracking")
        self._metric, self._param = entities.Metric, entities.Param
        self._name = name
        uri = None if place is None else str(place)
        if uri is not None and "://" not in uri:
            uri = f"sqlite:///{_folder(uri) / 'mlflow.db'}"
        self._client: Any = tracking.MlflowClient(tracking_uri=uri)
        self._experiment = self._made(experiment)
        self._id: str | None = None
        self._waiting: list[Any] = []

    def on_round(self, record: RoundRecord, run: Run) -> None:
        """Send one round; of a private run keep it until the last one."""
        secret, last = _keeps_time_secret(run), _is_last(run)
        when = _NO_TIME if secret else int(1000 * time.time())
        step = record.round + 1
        self._waiting += [
            self._metric(name.replace("/", "."), value, when, step)
            for name, value in _scalars(record, run)
        ]
        if secret and not last:
            return
        if self._id is None:
            name = self._name or str(run.settings.get("label", ""))
            made = self._client.create_run(self._experiment, start_time=when, run_name=name)
            self._id = made.info.run_id
            params = [self._param(key, str(value)) for key, value in _settings(run).items()]
            self._client.log_batch(self._id, params=params)
        self._client.log_batch(self._id, metrics=self._waiting)
        self._waiting = []
        if last:
            self._client.set_terminated(self._id, end_time=when)

    def _made(self, experiment: str) -> str:
        try:
            found = self._client.get_experiment_by_name(experiment)
            made = self._client.create_experiment(experiment) if found is None else None
        except _tool("mlflow.exceptions").MlflowException as error:
            raise InputError.because(f"MLflow's place does not answer: {error}") from None
        return str(made if found is None else found.experiment_id)


class WandbLog:
    """A callback that logs public numbers to Weights & Biases, by default to files and offline.

    W&B is told to look at nothing by itself: not at the machine, its load, the code or what is
    printed. It writes the time of all that it gets, and cannot be kept from it, so it is refused in
    a private training, before anything is spent. Such a run is logged when it is finished, at a
    moment of your own: ``for record in run.history: log.on_round(record, run)``.

    Args:
        folder: where its folder ``wandb`` goes; ``wandb sync`` sends it.
        project: name of the project.
        name: of the run; by default its label.
        mode: "offline", or "online" for an account of yours.

    Raises:
        DataMissingError: wandb is not installed.
    """

    #: A callback that has this is refused in private trainings.
    writes_times = True

    def __init__(
        self,
        folder: str | Path,
        *,
        project: str = "dpcohort",
        name: str = "",
        mode: str = "offline",
    ) -> None:
        self._wandb = _tool("wandb")
        self._folder, self._project, self._name, self._mode = folder, project, name, mode
        self._run: Any = None

    def on_round(self, record: RoundRecord, run: Run) -> None:
        """Log one round."""
        if self._run is None:
            nothing_else = self._wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                host="-",
                silent=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            )
            self._run = self._wandb.init(
                dir=str(_folder(str(self._folder))),
                project=self._project,
                name=self._name or str(run.settings.get("label", "")),
                mode=self._mode,
                config=_settings(run),
                settings=nothing_else,
                reinit="create_new",
            )
        self._run.log(dict(_scalars(record, run)), step=record.round + 1)
        if record.round + 1 >= run.plan.training.rounds:
            self.close()

    def close(self) -> None:
        """End the run there, if there is one."""
        if self._run is not None:
            self._run.finish()
        self._run = None


def _folder(path: str) -> Path:
    folder = Path(path).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.because(f"{path} cannot be made: {error.strerror or error}.") from None
    return folder
