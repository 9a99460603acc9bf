# SPDX-License-Identifier: Apache-2.0
"""The decision about one request: check, count, compute, store, answer."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort._version import __version__
from dpcohort.accounting._samplers import SAMPLERS
from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard import DrawUpdate, Hello, RunReceipt, check_with_sampling
from dpcohort.deploy.guard._protocol import HelloRequest, ReceiptRequest
from dpcohort.deploy.ledger import DrawKey, verify_ledger
from dpcohort.deploy.ledger import _ledger as ledger_module
from dpcohort.errors import BudgetExceededError, InputError


class Recorded:
    """A trainer that only notes that it was asked; what it answers is a secret of the data."""

    dimension = 18

    def __init__(self, layout, error=None):
        self.layout, self.calls, self._error = layout, 0, error

    def update(self, parameters, lattice, batches, step_sizes):
        self.calls += 1
        self.seen = (lattice, batches, step_sizes)
        if self._error:
            raise self._error
        return np.arange(18, dtype=np.float32)


@pytest.fixture
def trainer(good):
    return Recorded(good().layout)


def test_a_good_request_is_counted_and_answered(open_handler, good, folder):
    handler = open_handler()
    answer = handler.answer(good())
    assert isinstance(answer, DrawUpdate)
    assert (answer.run, answer.round, answer.draw, answer.resent) == ("spring", 0, 0, False)
    assert answer.vector.shape == (18,)
    assert handler.ledger.fate(DrawKey(dataset="ward", run="spring", round=0, draw=0)) == "released"
    handler.ledger.close()
    assert verify_ledger(folder / "ward.ledger").findings == ()


def test_counting_comes_before_training(open_handler, good, trainer, monkeypatch):
    handler = open_handler(trainer=trainer)
    key = DrawKey(dataset="ward", run="spring", round=0, draw=0)
    fates = []
    monkeypatch.setattr(
        Recorded,
        "update",
        lambda self, *_, **__: fates.append(handler.ledger.fate(key)) or np.zeros(18, np.float32),
    )
    handler.answer(good())
    assert fates == ["lost"]  # counted, and not yet released


def test_a_resend_is_the_stored_bytes_and_trains_nothing(open_handler, good, trainer):
    handler = open_handler(trainer=trainer)
    first = handler.answer(good())
    entries = handler.ledger.head[0]
    again = handler.answer(good())
    assert (first.resent, again.resent) == (False, True)
    assert again.vector.tobytes() == first.vector.tobytes()
    assert trainer.calls == 1
    assert handler.ledger.head[0] == entries


@pytest.mark.parametrize(
    "change", [{"step_sizes": [0.1, 0.2]}, {"vector": np.ones(18, np.float32)}], ids=["steps", "w"]
)
def test_the_same_draw_for_another_request_is_refused(open_handler, good, trainer, change):
    handler = open_handler(trainer=trainer)
    handler.answer(good())
    refusal = handler.answer(good(**change))
    assert (refusal.code, refusal.counted, trainer.calls) == ("other-request", True, 1)


def test_the_trainer_gets_the_owners_numbers(open_handler, good, trainer):
    handler = open_handler(trainer=trainer)
    handler.answer(good(noise_multiplier=2.5, clip=0.5))
    lattice, batches, step_sizes = trainer.seen
    assert (lattice.noise_multiplier, lattice.clip) == (2.5, 0.5)
    assert (batches, step_sizes) == ((SAMPLERS["poisson"], 0.25, 10), [0.1, 0.1])


def test_a_failed_training_stays_counted_and_says_nothing_of_why(open_handler, good):
    trainer = Recorded(good().layout, ValueError("record 7 has age 4711"))
    handler, said = open_handler(trainer=trainer), []
    handler._log = said.append
    refusal = handler.answer(good())
    assert (refusal.code, refusal.counted) == ("failed", True)
    assert "4711" not in refusal.message
    assert said == ["training failed: ValueError"]  # nor does the owner's log have it
    assert handler.answer(good()).code == "lost"  # not computed again
    assert trainer.calls == 1


def test_a_draw_lost_in_a_crash_is_not_computed_again(open_handler, good, trainer):
    handler = open_handler(trainer=trainer)
    key = DrawKey(dataset="ward", run="spring", round=0, draw=0)
    handler.ledger.reserve(key, handler.ledger.terms("ward", "spring").charge(1), clip=1.0)
    handler.ledger.close()
    handler = open_handler(trainer=trainer)
    refusal = handler.answer(good())
    assert (refusal.code, refusal.counted, trainer.calls) == ("lost", True, 0)


def test_the_runs_draws_end(open_handler, good, trainer):
    handler = open_handler(trainer=trainer)
    for round in range(6):
        assert isinstance(handler.answer(good(round=round)), DrawUpdate)
    refusal = handler.answer(good(round=6))
    assert (refusal.code, refusal.counted, trainer.calls) == ("exhausted", False, 6)
    assert not any(letter.isdigit() for letter in refusal.message)
    assert handler.answer(good(round=2)).resent  # what was done can still be had


def test_a_lifetime_that_is_used_up_is_refused_without_a_word_of_other_runs(
    open_handler, good, trainer
):
    handler = open_handler(trainer=trainer)
    handler.ledger.accept("ward", "autumn", handler.ledger.terms("ward", "spring"))
    handler.answer(good())
    refusal = handler.answer(good(run="autumn"))
    assert (refusal.code, refusal.counted, trainer.calls) == ("exhausted", False, 1)
    assert "spring" not in refusal.message
    assert not any(letter.isdigit() for letter in refusal.message)  # what was spent is not told


def test_a_run_nobody_accepted_is_refused(open_handler, good, trainer):
    handler = open_handler(trainer=trainer)
    assert handler.answer(good(run="autumn")).code == "not-accepted"
    assert handler.answer(ReceiptRequest(run="autumn")).code == "not-accepted"
    assert trainer.calls == 0


def test_a_run_accepted_in_the_ledger_needs_no_line_in_the_terms(
    open_handler, good, trainer, terms
):
    handler = open_handler(
        replace(terms, lifetime_epsilon=10.0, lifetime_delta=1e-4), trainer=trainer
    )
    accepted = handler.ledger.terms("ward", "spring")
    handler.ledger.accept("ward", "autumn", accepted)
    handler.ledger.accept("ward", "odd", replace(accepted, sampling_rate=0.26))
    assert isinstance(handler.answer(good(run="autumn", plan="b" * 64)), DrawUpdate)
    assert "other data" in handler.answer(good(run="odd", sampling_rate=0.26)).message
    assert trainer.calls == 1


def test_a_closed_run_is_answered_no_longer(open_handler, good, trainer, terms):
    open_handler(trainer=trainer).ledger.close()
    handler = open_handler(replace(terms, closed_runs=("spring",)), trainer=trainer)
    refusal = handler.answer(good())
    assert (refusal.code, trainer.calls) == ("not-accepted", 0)
    assert "closed" in refusal.message
    assert handler.answer(HelloRequest(run="spring")).accepted is None


def test_hello_tells_terms_and_nothing_of_other_runs(open_handler, good, trainer, terms):
    handler = open_handler(trainer=trainer)
    handler.answer(good())
    hello = handler.answer(HelloRequest(run="spring"))
    assert isinstance(hello, Hello)
    assert (hello.dataset, hello.records, hello.dimension) == ("ward", 40, 18)
    assert (hello.model, hello.layout) == (terms.model.sha256(), good().layout)
    assert (hello.plan, hello.counted, hello.dpcohort) == ("a" * 64, 1, __version__)
    assert hello.accepted["batch_size"] == 10
    stranger = handler.answer(HelloRequest(run="autumn"))
    assert (stranger.accepted, stranger.plan, stranger.counted) == (None, None, 0)
    assert handler.answer(HelloRequest(run="spring", protocol=1)).code == "malformed"


def test_what_is_released_is_signed_and_signed_alike_when_it_is_sent_again(
    open_handler, good, trainer
):
    handler = open_handler(trainer=trainer)
    first, again = (handler.answer(good(round=3)) for _ in range(2))
    statement = first.statement("ward")
    assert (statement.round, statement.draw, statement.key) == (3, 0, handler.key)
    assert statement.is_of("spring", "a" * 64)
    assert again.resent
    assert again.statement("ward") == statement
    assert handler.answer(HelloRequest(run="spring")).key == handler.key


def test_a_receipt_is_the_runs_own(open_handler, good, trainer):
    handler = open_handler(trainer=trainer)
    handler.answer(good())
    receipt = handler.answer(ReceiptRequest(run="spring"))
    assert isinstance(receipt, RunReceipt)
    assert (receipt.spending["counted_draws"], receipt.spending["released_draws"]) == (1, 1)
    assert (receipt.entries, receipt.head) == handler.ledger.head
    handler.ledger.accept("ward", "autumn", handler.ledger.terms("ward", "spring"))
    other = handler.answer(ReceiptRequest(run="autumn"))
    assert (other.spending["run"], other.spending["counted_draws"]) == ("autumn", 0)
    assert "spring" not in str(other)


@pytest.mark.parametrize("where", ["reserve", "release"])
def test_a_ledger_that_cannot_be_written_gives_nothing_out(
    open_handler, good, trainer, where, monkeypatch
):
    said = []
    handler = open_handler(trainer=trainer)
    handler._log = said.append

    def fail(*_, **__):
        raise InputError.because("the ledger /home/owner/x cannot be used: the disk is full")

    monkeypatch.setattr(handler.ledger, where, fail)
    refusal = handler.answer(good())
    assert (refusal.code, refusal.counted) == ("ledger", where == "release")
    assert "/home" not in refusal.message
    assert "disk is full" in said[0]
    assert trainer.calls == (where == "release")


def test_a_counter_that_fails_after_the_row_leaves_a_counted_draw(
    open_handler, good, trainer, monkeypatch
):
    handler = open_handler(trainer=trainer)

    def fail(path, count, durable=True):
        raise InputError.because("no space")

    monkeypatch.setattr(ledger_module, "advance_counter", fail)
    refusal = handler.answer(good())
    assert (refusal.code, refusal.counted, trainer.calls) == ("ledger", True, 0)


def test_terms_must_hold_with_the_samplers_own_error(terms):
    accepted = terms.runs[0].run_terms(40)
    check_with_sampling(accepted, 18)
    with pytest.raises(BudgetExceededError):
        check_with_sampling(accepted, 10**40)


def test_a_run_accepted_in_the_ledger_must_hold_with_it_too(open_handler, good, trainer):
    """At epsilon 90 an error of 2^-130 is worth more than delta."""
    handler = open_handler(trainer=trainer)
    accepted = handler.ledger.terms("ward", "spring")
    handler.ledger.accept("ward", "loose", replace(accepted, epsilon=90.0))
    refusal = handler.answer(good(run="loose"))
    assert (refusal.code, trainer.calls) == ("terms", 0)
    assert "2^-130" in refusal.message
    assert handler.answer(HelloRequest(run="loose")).code == "terms"
