# SPDX-License-Identifier: Apache-2.0
"""What a guard says of itself when it starts."""

from __future__ import annotations

from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard._start import terms_in_words


def test_every_run_and_every_weakness_is_said(terms):
    text = "\n".join(terms_in_words(terms, 40))
    assert "ward: 40 records may spend epsilon 4 at delta 1e-05" in text
    assert "Run spring (plan aaaaaaaaaaaa): at most 6 draws of 2 local steps" in text
    assert "of 4 at delta 1e-05 (zero-out)." in text
    assert "WARNING: same_user" in text
    assert "WARNING: no ledger_id is pinned" in text
    assert "WARNING: answer_seconds is 0" in text
    assert "composed" not in text


def test_a_safe_guard_warns_of_nothing(terms):
    safe = replace(
        terms,
        same_user=False,
        allowed_users=(65534,),
        answer_seconds=1.0,
        ledger_id="0" * 32,
        runs=(),
    )
    text = "\n".join(terms_in_words(safe, 40))
    assert "WARNING" not in text
    assert "dpcohort ledger accept" in text


def test_weights_that_training_starts_from_are_said_with_whose_they_are(terms):
    start = {"weights": "start.safetensors", "weights_sha256": "ab" * 32}
    text = "\n".join(terms_in_words(replace(terms, model=replace(terms.model, **start)), 40))
    assert "It starts from start.safetensors (sha256 abababababab, nobody said whose)." in text
    start |= {"weights_source": "ImageNet", "frozen": ("1.weight",)}
    text = "\n".join(terms_in_words(replace(terms, model=replace(terms.model, **start)), 40))
    assert "ImageNet). Not trained: 1.weight." in text


def test_windows_and_ends_are_said(terms):
    run = replace(terms.runs[0], until="2999-12-31")
    text = "\n".join(terms_in_words(replace(terms, per="30 days", runs=(run,)), 40))
    assert "over all runs in any 30 days (" in text
    assert "Until 2999-12-31 (UTC) and no longer." in text
    assert "ended" not in text
    ended = replace(terms, runs=(replace(run, until="2020-12-31"),))
    assert "WARNING: the permit of spring has ended" in "\n".join(terms_in_words(ended, 40))


def test_a_run_that_the_cap_cannot_hold_is_pointed_out(terms):
    """Zero-out terms under a replace-one cap count for more than they say."""
    run = replace(terms.runs[0], epsilon=2.2)
    tight = replace(terms, lifetime_epsilon=2.2, runs=(run,))
    assert "lifetime cap" not in "\n".join(terms_in_words(tight, 40))
    strong = replace(tight, neighbours="replace-one")
    text = "\n".join(terms_in_words(strong, 40))
    assert "WARNING: no draw of spring fits the lifetime cap" in text
    assert "under replace-one" in text
