# SPDX-License-Identifier: Apache-2.0
"""A small guard: 40 records of 5 numbers, 3 classes, one accepted run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard import AcceptedRun, DrawRequest, GuardTerms, ModelTerms
from dpcohort.deploy.guard._files import load_data
from dpcohort.deploy.guard._handler import GuardHandler
from dpcohort.deploy.guard._start import check_terms, open_ledger
from dpcohort.deploy.guard._terms import layout_sha256
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.deploy.ledger import ClientLedger
from dpcohort.deploy.secure_aggregation import Identity

RUN = AcceptedRun(
    run="spring",
    plan="a" * 64,
    epsilon=4.0,
    delta=1e-5,
    clip=1.0,
    batch_size=10,
    local_steps=2,
    rounds=8,
    draws=6,
    least_noise_multiplier=2.0,
)
TERMS = GuardTerms(
    dataset="ward",
    lifetime_epsilon=4.0,
    lifetime_delta=1e-5,
    model=ModelTerms(name="logistic", input_shape=(5,), classes=3),
    runs=(RUN,),
    same_user=True,
    answer_seconds=0.0,
)
LAYOUT = layout_sha256([("1.weight", (3, 5)), ("1.bias", (3,))])


@pytest.fixture
def folder():
    """A short path in memory: sockets have short names, and the ledger waits for the disk."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as found:
        yield Path(found)


@pytest.fixture
def data_file(folder):
    dice = np.random.default_rng(0)
    path = folder / "ward.npz"
    inputs = dice.normal(size=(40, 5)).astype(np.float32)
    np.savez(path, inputs=inputs, labels=dice.integers(0, 3, 40))
    path.chmod(0o600)
    return path


@pytest.fixture
def terms():
    return TERMS


@pytest.fixture
def with_run(terms):
    """``with_run(draws=3)``: the terms with another first run."""
    return lambda **changes: replace(terms, runs=(replace(RUN, **changes),))


@pytest.fixture
def open_handler(folder, data_file):
    """Open a handler with these terms; the ledgers are closed at the end."""
    opened: list[ClientLedger] = []

    def open_with(terms=TERMS, ledger=None, trainer=None):
        data = load_data(data_file, terms.model, terms.normalisation)
        runs = check_terms(terms, len(data))
        path = ledger or folder / "ward.ledger"
        book = open_ledger(path, data, terms, runs, new=not path.exists())
        opened.append(book)
        trainer = trainer or LocalTraining(terms.model, data)
        handler = GuardHandler(
            terms, records=len(data), ledger=book, trainer=trainer, identity=Identity(bytes(32))
        )
        handler.ledger = book
        return handler

    yield open_with
    for book in opened:
        book.close()


@pytest.fixture
def good(terms):
    """A request within the terms; ``good(round=3)`` is the same for another round."""

    def make(**changes):
        values = {
            "run": "spring",
            "plan": "a" * 64,
            "round": 0,
            "draw": 0,
            "clip": 1.0,
            "noise_multiplier": 2.0,
            "sampling_rate": 0.25,
            "batch_size": 10,
            "local_steps": 2,
            "sampler": "poisson",
            "neighbours": "zero-out",
            "step_sizes": [0.1, 0.1],
            "model": terms.model.sha256(),
            "layout": LAYOUT,
            "vector": np.zeros(18, np.float32),
        }
        return DrawRequest(**{**values, **changes})

    return make
