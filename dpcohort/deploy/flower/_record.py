# SPDX-License-Identifier: Apache-2.0
"""A federated run written down like a local one: the same folder, ledger, receipts and model.

Beside the usual files there are three. ``exchange.jsonl`` says of each round how many draws (and
in a line of their own, reports) were asked for, came, came again from a client's ledger, and were
lost, and why. ``client-ledgers.json`` is what the clients' own ledgers said they had counted, with
their heads; where noise is distributed, also the signed key of each (``card``), with which a server
that was killed continues without it. ``signatures.jsonl`` has each guard's signature over each draw
that came (:class:`~dpcohort.signatures.DrawSignature`).

The server's ledger counts a round's draws before they are asked for. After a crash the same draws
are asked for again by the same names, which spends nothing: a guard sends the stored update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from dpcohort._validate import FloatArray
from dpcohort.data import Dataset, load_dataset
from dpcohort.data._arrays import load_test_arrays
from dpcohort.data._partition import dealt
from dpcohort.deploy.flower._federation import Federation, unit_of
from dpcohort.deploy.guard._protocol import RunReceipt
from dpcohort.deploy.guard._training import built_model, layout_of
from dpcohort.engine import ClientRecords
from dpcohort.engine.clipping import FlatLayout
from dpcohort.errors import DataMissingError, FileFormatError, InputError
from dpcohort.models import described_weights
from dpcohort.plain_text import one_line
from dpcohort.runs import ConfigSource, Run, aggregation_for, configured_optimiser
from dpcohort.runs._aggregation_record import described_aggregation
from dpcohort.runs._chooser import Ask
from dpcohort.runs._folder import (
    CLIENT_LEDGERS,
    EXCHANGE,
    SIGNATURES,
    append_line,
    open_log,
    read_json,
    read_log,
    write_json,
)
from dpcohort.runs._job import TrainingJob, carried_state, fitted
from dpcohort.runs._paid_evaluation import EvaluationTerms, Group
from dpcohort.runs._prediction import network_of
from dpcohort.signatures import DrawSignature
from dpcohort.tasks import Task

#: Gets the noised sums of the clients that answer, by positions, on these parameters.
Evaluate = Callable[[EvaluationTerms, torch.Tensor], dict[Group, FloatArray]]


@dataclass(frozen=True, kw_only=True, eq=False)
class FederatedJob(TrainingJob):
    """A training whose data lie elsewhere.

    Attributes:
        federation: plan, model, clients.
        ask: gets reports of clients, for a rule that chooses from them.
        evaluate: gets noised sums of clients, by positions, on a model.
        tested_at: test records of each client, by id, as its guard has said.
    """

    federation: Federation
    ask: Ask = lambda *asked: {}
    evaluate: Evaluate = lambda *asked: {}
    tested_at: Mapping[str, int] = field(default_factory=dict)

    @property
    def repeats(self) -> bool:
        """A draw asked for again is what its guard has stored."""
        return True

    @classmethod
    def of(
        cls,
        federation: Federation,
        after: str | Path | None = None,
        model: torch.nn.Module | None = None,
    ) -> Self:
        """The training a federation describes.

        Args:
            federation: plan, model, clients.
            after: folder of the run that the plan goes on from, if it does.
            model: what is trained, where it has no name by which it is built.

        Raises:
            InputError: the model is not that of the plan, or its rule needs raw reports.
        """
        federation.plan.reports.refuse_guards(federation.plan.rule)
        terms = federation.model
        model = model or built_model(terms, seed=federation.seed)
        found, planned = FlatLayout(model).dimension, federation.plan.training.dimension
        if found != planned:
            raise InputError.because(
                f"the plan was made for a model of {planned:,} parameters but {terms.name} trains "
                f"{found:,}. Make the plan again with training.dimension = {found}."
            )
        clip = federation.plan.training.clip
        optimiser = configured_optimiser(federation.optimiser_section, clip=clip)
        optimiser = fitted(optimiser, federation.plan, model, terms.predicts)
        if optimiser.local is not None:
            raise InputError.because(
                f"guards take plain local steps, and the local rule {optimiser.local.name} "
                "corrects them. Leave optimiser.local out of a federation."
            )
        carried = carried_state(federation.plan, after, optimiser)
        settings = dict(federation.aggregation)
        rule = aggregation_for(federation.plan, str(settings.pop("rule")), settings)
        sizes = federation.plan.population.sizes
        total = int(sizes.sum())
        # How many records each client holds; which ones they are, the server does not know.
        held = {"held by": "the clients; numbers stand for records the server never sees"}
        names = tuple(federation.plan.population.ids)
        partition = dealt(np.arange(total), sizes, total, held, names)
        return cls(
            federation=federation,
            plan=federation.plan,
            model=model,
            partition=partition,
            optimiser=optimiser,
            aggregation=rule,
            after=None if after is None else Path(after),
            carried=carried,
            source=ConfigSource(tuning=federation.tuning or None),
            weights=described_weights(
                model,
                path=terms.weights or None,
                source=terms.weights_source,
                frozen=terms.frozen,
            ),
        )

    @cached_property
    def test_data(self) -> Dataset | None:
        """The public test records of the server; None for none.

        Raises:
            InputError: they do not fit the model.
        """
        federation, task = self.federation, self.task
        if not federation.test:
            return None
        if "/" in federation.test or federation.test.endswith(".npz"):
            data = load_test_arrays(federation.test, federation.model.task)
        else:
            data = load_dataset(federation.test)
        if tuple(data.input_shape) != tuple(federation.model.input_shape):
            raise InputError.because(
                f"the test data has records of shape {tuple(data.input_shape)}, the model takes "
                f"{tuple(federation.model.input_shape)}."
            )
        if (data.task.kind, data.task.outputs) != (task.kind, task.outputs):
            raise InputError.because(
                f"the test data is of {data.task.kind} with {data.task.outputs} outputs, the model "
                f"is for {task.kind} with {task.outputs}."
            )
        return data

    @property
    def task(self) -> Task:
        """What is predicted, and by which loss."""
        return self.federation.model.predicts

    def tested(self) -> tuple[torch.nn.Module, Dataset] | None:
        """The model with the server's public test records."""
        return None if self.test_data is None else (self.model, self.test_data)

    @property
    def dimension(self) -> int:
        """Number of trained parameters."""
        return FlatLayout(self.model).dimension

    @property
    def layout(self) -> str:
        """Hash of the order of the parameters, which guards compare."""
        return layout_of(self.model)

    def reporter(self, records: ClientRecords | None = None) -> Ask:
        """The reports of the guards."""
        return self.ask

    @property
    def evaluation(self) -> EvaluationTerms | None:
        """The evaluation by the guards that have test records, if the plan keeps a share."""
        if not self.plan.past.paid.kept:
            return None
        counts = np.array([self.tested_at.get(name, 0) for name in self.plan.population.ids])
        if not counts.any():
            raise InputError.because(
                "no client's guard has test records, and the plan keeps a share of each budget for "
                "an evaluation. Raise test_share in the terms, or make the plan without it."
            )
        return EvaluationTerms.about(self.plan, self.task, counts)

    def noised_sums(self, run: Run, terms: EvaluationTerms) -> dict[Group, FloatArray]:
        """What the guards release for it, each of which charges its own ledger before."""
        scored = network_of(run, self.model, tokens=False)
        return self.evaluate(terms, FlatLayout(scored).flatten(scored))

    def initial(self) -> torch.Tensor:
        """The initial parameters as one vector of float32."""
        return super().initial().float()

    def settings(self) -> dict[str, Any]:
        """What ``run.json`` holds, and a resume must agree with."""
        terms = self.federation.model
        combined = described_aggregation(self.aggregation, self.plan)
        said = {
            "format": "dpcohort run",
            "schema": 1,
            "label": f"{self.plan.rule}, federated",
            "run": self.federation.run,
            "plan": self.plan.sha256,
            "seed": self.federation.seed,
            "randomness": "entropy",
            "data": {
                "name": "held by the clients",
                "records": int(self.plan.population.sizes.sum()),
                "classes": terms.classes,
                "input_shape": list(terms.input_shape),
            },
            "partition": {"sha256": self.partition.sha256, "rule": dict(self.partition.rule)},
            "model": self.model_settings(terms.name, terms.options),
            "optimiser": dict(self.federation.optimiser),
            **({"task": said} if (said := self.task.to_dict()) else {}),
            **self.tuning,
            **({"members": dict(self.federation.members)} if self.federation.members else {}),
            "engine": "flower",
            **({} if combined is None else {"aggregation": combined}),
            "quorum": self.federation.quorum,
            "evaluate_every": 1,
            "checkpoint_every": 1,
        }
        if self.federation.clients is None:  # mods of an app, and not guards, add the noise
            said |= {
                "label": f"{self.plan.rule}, Flower app",
                "data": {"name": "held by the clients", "records": self.partition.records},
                "model": self.model_settings("Flower app", {}),
                "drop_in": unit_of(self.plan),
            }
        return said


def write_exchange(
    run: Run, exchange: Mapping[str, Any], receipts: Mapping[str, RunReceipt]
) -> None:
    """Write down what came and what did not, and what the clients' ledgers said last.

    Args:
        run: of which it is a round.
        exchange: what a round's messages came to; nothing in it depends on an update. How many
            draws (or reports, where it says ``of_reports``) were ``asked`` for, how many ``came``
            and of these were ``resent`` from a client's ledger; if the round was ``passed_over``,
            because too few came; why each draw of a client is ``lost``; and the ``errors`` on the
            way to each client, also where a later attempt went well.
        receipts: by client.
    """
    assert run.path is not None
    with open_log(run.path / EXCHANGE) as log:
        append_line(log, exchange)
    write_said(run, {client: receipts[client].to_dict() for client in sorted(receipts)})
    losses = sum(map(len, exchange["lost"].values()))
    if losses:
        who = ", ".join(one_line(client) for client in sorted(exchange["lost"]))
        over = " Too few came: the model is as before." if exchange["passed_over"] else ""
        what = "reports" if exchange.get("of_reports") else "draws"
        run.warnings.append(
            f"round {exchange['round']}: {losses} of {exchange['asked']} {what} are lost "
            f"({who}); they stay counted and are not asked for again.{over}"
        )


def write_signatures(run: Run, signatures: Sequence[DrawSignature]) -> None:
    """Write down guards' signatures over draws that came.

    Args:
        run: of which.
        signatures: of this round, none that is there already.
    """
    assert run.path is not None
    with open_log(run.path / SIGNATURES) as log:
        for signature in signatures:
            append_line(log, signature._asdict(), durable=signature == signatures[-1])


def read_signatures(run: Run) -> list[DrawSignature]:
    """The signatures over draws that came before."""
    assert run.path is not None
    try:
        return [DrawSignature.from_line(line) for line in read_log(run.path / SIGNATURES)]
    except DataMissingError:
        return []


def write_said(run: Run, said: Mapping[str, Mapping[str, Any]]) -> None:
    """Write down what clients said last; all else that they or others said stays.

    Args:
        run: of which.
        said: by client: what its ledger counts, or its ``card``.
    """
    assert run.path is not None
    before = read_said(run)
    found = {client: {**before.get(client, {}), **said[client]} for client in said}
    write_json(run.path / CLIENT_LEDGERS, {**before, **found})


def read_said(run: Run) -> dict[str, dict[str, Any]]:
    """What each client said last, as it was written down; nothing where that cannot be read."""
    assert run.path is not None
    try:
        found = read_json(run.path / CLIENT_LEDGERS)
    except (DataMissingError, FileFormatError):
        return {}
    return {client: one for client, one in found.items() if isinstance(one, dict)}
