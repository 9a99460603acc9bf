# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.accounting.contract import Contract, resolve_neighbours
from dpcohort.errors import InputError


def test_default_contract_is_poisson_with_zero_out_neighbours():
    contract = Contract()
    assert (contract.accountant, contract.sampler, contract.neighbours) == (
        "tight",
        "poisson",
        "zero-out",
    )
    assert contract.sensitivity == 1.0


def test_each_accountant_brings_its_own_sampler_and_neighbours():
    assert Contract.of("tight") == Contract()
    paper = Contract.of("paper")
    assert (paper.sampler, paper.neighbours, paper.sensitivity) == ("fixed", "replace-one", 2.0)
    assert Contract.of("tight", sampler="fixed").neighbours == "replace-one"
    assert Contract.of("tight", neighbours="replace-one").sampler == "poisson"


@pytest.mark.parametrize(
    "build",
    [
        lambda: Contract(sampler="fixed", neighbours="zero-out"),
        lambda: Contract.of("tight", "fixed", "zero-out"),
        lambda: Contract.of("paper", neighbours="zero-out"),
        lambda: resolve_neighbours("fixed", "zero-out"),
    ],
)
def test_a_mismatch_cannot_be_expressed(build):
    with pytest.raises(InputError, match="replace-one"):
        build()


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
