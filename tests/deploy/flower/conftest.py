# SPDX-License-Identifier: Apache-2.0
"""A small federation whose guards can be had in this process."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from dpcohort.clients import Population
from dpcohort.data import load_dataset
from dpcohort.deploy.flower import Federation, write_kit
from dpcohort.deploy.flower._exchange import InProcess
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.flower._record import FederatedJob
from dpcohort.deploy.flower._trial import demo_records, write_client_data
from dpcohort.deploy.flower.client_app import LocalGuards, carry_to
from dpcohort.deploy.guard import (
    DrawUpdate,
    GuardRefusedError,
    Hello,
    ModelTerms,
    Refusal,
    RunReceipt,
)
from dpcohort.deploy.guard._protocol import HelloRequest, Message
from dpcohort.deploy.secure_aggregation import Identity
from dpcohort.errors import InputError
from dpcohort.plan import make_plan
from dpcohort.training import Training


def small_settings(**changes) -> dict:
    """Two clients, three rounds of three draws: one client is drawn twice in a round."""
    data = load_dataset("digits")
    population = Population.from_arrays(
        ids=["ward 7", "lab"], sizes=[300, 400], epsilon=[4.0, 8.0], delta=1e-5
    )
    training = Training(rounds=3, cohort_size=3, local_steps=2, batch_size=60, dimension=650)
    settings = {
        "plan": make_plan(population, training, seed=3),
        "model": ModelTerms(name="logistic", input_shape=data.input_shape, classes=10),
        "run": "spring",
        "optimiser": {"learning_rate": 1.0},
        "normalisation": data.normalisation,
        "test": "digits",
        "timeout": 5.0,
        "trial": True,
    }
    return {**settings, **changes}


@dataclass
class Small:
    """A kit with data, and what is read from it."""

    kit: Path
    settings: dict
    federation: Federation = field(init=False)

    def __post_init__(self) -> None:
        self.federation = Federation.load(self.kit / "server/federation.toml")

    @property
    def clients(self):
        """The folder of the clients' own folders."""
        return self.kit / "clients"

    def guards(self) -> LocalGuards:
        """Guards in this process, to be closed by whoever asks."""
        return LocalGuards(self.clients)

    def counted(self, client: str) -> dict:
        """The draws in a client's own ledger."""
        from dpcohort.deploy.ledger import read_state

        state = read_state(client_folder(self.kit, client) / "client.ledger")
        draws = state.accounts[client][self.settings["run"]].draws
        return {(key.round, key.draw): stored for key, stored in draws.items()}


def _make(folder: Path, settings: dict) -> Small:
    kit = write_kit(folder, **settings)
    write_client_data(kit, demo_records(settings["plan"], load_dataset("digits")))
    return Small(kit, settings)


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A small federation that nobody changes."""
    return _make(tmp_path_factory.mktemp("template") / "kit", small_settings())


@pytest.fixture
def small(template, tmp_path):
    """A small federation of the test's own, without any draw counted."""
    shutil.copytree(template.kit, tmp_path / "kit")
    return Small(tmp_path / "kit", template.settings)


@pytest.fixture
def settings(template):
    """Settings of the small federation, for tests that write their own kit."""
    return template.settings


def identity_of(client: str) -> Identity:
    """By which a made-up guard signs."""
    return Identity(hashlib.sha256(client.encode()).digest())


class FakeGuard:
    """Answers like a guard that has accepted a federation's plan, without data or disk.

    ``fails`` are draws, by (round, draw), that it loses; ``absent`` makes it not answer at all.
    """

    def __init__(self, federation: Federation, client: str) -> None:
        plan, job = federation.plan, FederatedJob.of(federation)
        k = plan.population.index_of(client)
        accepted = {
            "sampling_rate": float(plan.sampling_rates[k]),
            "batch_size": int(plan.batch_sizes[k]),
            "local_steps": plan.training.local_steps,
            "sampler": plan.contract.sampler.name,
            "neighbours": plan.contract.neighbours,
            "draws": int(plan.counts[k]),
            "rounds": plan.training.rounds,
            "clip": plan.training.clip,
            "least_noise_multiplier": float(plan.noise_multipliers[k]),
        }
        if reports := plan.reports.asked_of(k):
            accepted["reports"] = reports
        self.says = {
            "dpcohort": "0",
            "dataset": client,
            "records": int(plan.population.sizes[k]),
            "dimension": job.dimension,
            "model": federation.model.sha256(),
            "layout": job.layout,
            "accepted": accepted,
            "plan": plan.sha256,
            "counted": 0,
            "key": identity_of(client).public,
        }
        self.done: dict[tuple[int, int], bytes] = {}
        self.updates: dict[tuple[int, int], np.ndarray] = {}
        self.asked: list[tuple[int, int]] = []
        self.fails: set[tuple[int, int]] = set()
        self.absent = False
        self.odd = None

    def __enter__(self):
        if self.absent:
            raise InputError.because("no guard answers")
        return self

    def __exit__(self, *how) -> None:
        pass

    def ask(self, request) -> Message:
        return Hello(**self.says) if isinstance(request, HelloRequest) else self.draw(request)

    def draw(self, request) -> DrawUpdate:
        key = (request.round, request.draw)
        self.asked.append(key)
        if key in self.fails:
            raise GuardRefusedError(Refusal(code="lost", message="gone", counted=True))
        where = {"run": request.run, "round": request.round, "draw": request.draw}
        if key in self.done:
            if self.done[key] != request.sha256():
                raise GuardRefusedError(Refusal(code="other-request", message="", counted=True))
            return self.signed(DrawUpdate(**where, resent=True, vector=self.updates[key]), request)
        self.done[key] = request.sha256()
        if key not in self.updates:  # a test may have said what it answers
            rng = np.random.default_rng([*key, self.says["records"]])
            self.updates[key] = rng.normal(0, 1e-2, request.numbers).astype(np.float32)
        update = DrawUpdate(**where, resent=False, vector=self.updates[key])
        return self.signed(self.odd(update) if self.odd else update, request)

    def signed(self, update, request) -> DrawUpdate:
        """As a guard does; a test may do it otherwise."""
        client = self.says["dataset"]
        identity = identity_of(client)
        return update.signed(client, request.plan, key=identity.public, sign=identity.sign_bytes)

    def receipt(self, run: str) -> RunReceipt:
        spending = {"counted_draws": len(self.done)}
        name = self.says["dataset"]
        return RunReceipt(dataset=name, spending=spending, entries=1, head="h", ledger="l")


class Fakes(dict):
    """Fake guards by client, and a transport to them."""

    def __init__(self, federation: Federation) -> None:
        super().__init__({c: FakeGuard(federation, c) for c in federation.clients})
        self._federation = federation

    def transport(self) -> InProcess:
        keys = self._federation.fingerprints
        return InProcess(
            {keys[c]: (lambda body, guard=guard: carry_to(lambda: guard, body))
             for c, guard in self.items()}
        )  # fmt: skip


@pytest.fixture
def fakes(small):
    """Fake guards of the small federation."""
    return Fakes(small.federation)


@pytest.fixture
def task(monkeypatch):
    """What Flower sets in the process of an app before it calls it."""
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(identity, name, 1)
