# SPDX-License-Identifier: Apache-2.0
"""What a promise means, and what may be asked about it."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import Contract
from dpcohort.accounting import _events as events
from dpcohort.accounting._contract import broadcast_fields
from dpcohort.accounting._samplers import sampler_of
from dpcohort.errors import InputError


def test_each_accountant_brings_its_own_sampler_and_neighbours():
    assert Contract.of("tight") == Contract()
    paper = Contract.of("paper")
    assert (paper.sampler.name, paper.neighbours, paper.sensitivity) == (
        "fixed",
        "replace-one",
        2.0,
    )
    assert Contract.of("tight", sampler="fixed").neighbours == "replace-one"
    assert Contract.of("tight", neighbours="replace-one").sampler.name == "poisson"


@pytest.mark.parametrize(
    "build",
    [
        lambda: Contract(sampler="fixed", neighbours="zero-out"),
        lambda: Contract.of("tight", "fixed", "zero-out"),
        lambda: Contract.of("paper", neighbours="zero-out"),
        lambda: sampler_of("fixed").neighbours("zero-out"),
    ],
)
def test_a_mismatch_cannot_be_expressed(build):
    with pytest.raises(InputError, match="replace-one"):
        build()


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        ({"trust": "distributed", "colluding": 1.5}, "colluding = 1.5 .* a share of them below 1"),
        ({"colluding": 2}, "colluding = 2 .* 0 where trust = 'local'"),
        ({"dropouts": 1}, "dropouts = 1 .* 0 where trust = 'local'"),
    ],
)
def test_trust_that_says_nothing_is_refused(trust, words):
    with pytest.raises(InputError, match=words):
        Contract(**trust)


def test_trust_is_written_down_where_it_is_not_local():
    distributed = Contract(trust="distributed", colluding=2, dropouts=1)
    assert distributed.to_dict()["colluding"] == 2
    assert (distributed.honest(10), Contract().honest(10)) == (7, 1)
    assert set(Contract().to_dict()) == {"accountant", "sampler", "neighbours"}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("tigth",), "Did you mean 'tight'"),
        (("tight", "poison"), "Did you mean 'poisson'"),
        (("tight", "poisson", "zeroout"), "Did you mean 'zero-out'"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(words, hint):
    with pytest.raises(InputError, match=hint):
        Contract.of(*words)


def test_fields_that_do_not_broadcast_are_named():
    with pytest.raises(InputError, match="epsilon, delta"):
        broadcast_fields(epsilon=np.ones(2), delta=np.ones(3))


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 1.5},
        {"steps": -1},
        {"steps": "ten"},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.01},
        {"noise_multiplier": -0.1},
        {"noise_multiplier": np.nan},
        {"noise_multiplier": [1.0, 2.0], "steps": [1, 2, 3]},
    ],
)
def test_bad_input_is_refused(change):
    good = {"noise_multiplier": 1.0, "sampling_rate": 0.5, "steps": 1, "delta": 0.1}
    with pytest.raises(InputError):
        events.certify_epsilon(**{**good, **change})
