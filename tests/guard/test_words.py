# SPDX-License-Identifier: Apache-2.0
"""What a guard says of itself when it starts."""

from __future__ import annotations

from dataclasses import replace

from dpcohort.guard.start import check_terms
from dpcohort.guard.words import terms_in_words


def test_every_run_and_every_weakness_is_said(terms):
    text = "\n".join(terms_in_words(check_terms(terms, 40)))
    assert "ward: 40 records may spend epsilon 4 at delta 1e-05" in text
    assert "Run spring (plan aaaaaaaaaaaa): at most 6 draws of 2 local steps" in text
    assert "WARNING: same_user" in text
    assert "WARNING: answer_seconds is 0" in text
    assert "composed" not in text


def test_a_safe_guard_warns_of_nothing(terms):
    safe = replace(terms, same_user=False, allowed_users=(65534,), answer_seconds=1.0, runs=())
    text = "\n".join(terms_in_words(check_terms(safe, 40)))
    assert "WARNING" not in text
    assert "dpcohort ledger accept" in text


def test_composition_that_trusts_the_server_is_pointed_out(terms):
    text = "\n".join(terms_in_words(check_terms(replace(terms, across_runs="composed"), 40)))
    assert "WARNING: across_runs is composed" in text
