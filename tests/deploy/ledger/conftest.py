# SPDX-License-Identifier: Apache-2.0
"""A small ledger: one data set, one accepted run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from dpcohort.accounting import Event
from dpcohort.deploy.ledger import ClientLedger, DrawKey, LifetimeCap, RunTerms

TERMS = RunTerms(
    epsilon=2.0,
    delta=1e-5,
    clip=1.0,
    sampling_rate=0.1,
    local_steps=1,
    rounds=60,
    draws=60,
    least_noise_multiplier=2.0,
)


@pytest.fixture
def terms():
    return TERMS


@pytest.fixture
def step():
    return Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=1)


@pytest.fixture
def key():
    """``key(3)`` is the draw of round 3 of the run."""

    def make(round, draw=0, run="spring", dataset="ward"):
        return DrawKey(dataset=dataset, run=run, round=round, draw=draw)

    return make


@pytest.fixture
def folder():
    """A folder in memory where there is one: these tests wait for the disk thousands of times."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as found:
        yield Path(found)


@pytest.fixture
def path(folder):
    return folder / "ward.ledger"


@pytest.fixture
def ledger(path):
    with ClientLedger.create(path) as made:
        made.register("ward", LifetimeCap(epsilon=2.0, delta=1e-5))
        made.accept("ward", "spring", TERMS)
        yield made
