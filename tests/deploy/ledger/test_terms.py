# SPDX-License-Identifier: Apache-2.0
"""Names, caps and terms: what an owner can say, and what is held against it."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort import Contract, Population, Training, make_plan
from dpcohort.accounting import Event
from dpcohort.deploy._formats import checked_name as name
from dpcohort.deploy._formats import replace
from dpcohort.deploy.ledger import DrawKey, LifetimeCap, RunTerms
from dpcohort.errors import BudgetExceededError, InputError


def test_round_trip(terms):
    assert RunTerms(**terms.to_dict()) == terms


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("epsilon", 0),
        ("epsilon", float("inf")),
        ("delta", 1.0),
        ("clip", 0.0),
        ("sampling_rate", 1.5),
        ("local_steps", 0),
        ("rounds", 0),
        ("draws", 0),
        ("least_noise_multiplier", 0.0),
        ("least_noise_multiplier", float("nan")),
        ("sampler", "shuffle"),
        ("neighbours", "add-remove"),
    ],
)
def test_bad_values_are_refused(terms, field, bad):
    with pytest.raises(InputError, match=field):
        replace(terms, **{field: bad})


def test_every_local_step_of_a_draw_is_charged(terms):
    twice = replace(terms, local_steps=2, draws=terms.draws // 2)
    assert twice.certified_epsilon() == terms.certified_epsilon(2 * twice.draws)
    with pytest.raises(BudgetExceededError, match="of 3 steps"):
        replace(terms, local_steps=3).check_closed()


def test_terms_must_fit_the_epsilon_they_state(terms):
    terms.check_closed()
    assert terms.certified_epsilon() <= terms.epsilon
    with pytest.raises(BudgetExceededError, match="above the 1 they state"):
        replace(terms, epsilon=1.0).check_closed()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"noise_multiplier": 1.999999}, "noise_multiplier"),
        ({"sampling_rate": 0.2}, "sampling_rate"),
        ({"sampling_rate": 0.05}, "sampling_rate"),
        ({"steps": 2}, "steps"),
        ({"steps": 0}, "steps"),
        ({"neighbours": "replace-one"}, "neighbours"),
        ({"sampler": "fixed", "neighbours": "replace-one"}, "sampler"),
    ],
)
def test_requests_outside_the_terms_are_refused(terms, step, change, field):
    asked = Event.of(**{**step.to_dict(), **change})
    with pytest.raises(InputError, match=field):
        terms.check_request(asked, clip=1.0, round=0)


def test_clip_and_round_have_bounds(terms, step):
    terms.check_request(step, clip=1.0, round=59)
    terms.check_request(step, clip=0.5, round=0)
    with pytest.raises(InputError, match="clip"):
        terms.check_request(step, clip=1.001, round=0)
    with pytest.raises(InputError, match="round"):
        terms.check_request(step, clip=1.0, round=60)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epsilon = ", "not valid TOML"),
        ("epsilom = 1.0", "Did you mean 'epsilon'"),
        ("epsilon = 1.0", "the key 'delta' is missing"),
    ],
)
def test_bad_files_name_the_file(tmp_path, text, said):
    (tmp_path / "terms.toml").write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        RunTerms.from_toml(tmp_path / "terms.toml")
    assert "terms.toml" in str(caught.value)


def test_terms_of_a_plan_are_for_a_client_that_is_drawn_and_counts_on_itself(terms):
    people = Population.from_arrays(
        ids=["a", "b", "gift"], sizes=[600] * 3, epsilon=[4.0, 8.0, np.nan],
        delta=[1e-5, 1e-5, np.nan], public=[False, False, True],
    )  # fmt: skip
    training = Training(rounds=4, cohort_size=2, batch_size=60)
    with pytest.raises(InputError, match=r"client = 'gift' .* one with a budget"):
        RunTerms.of_plan(make_plan(people, training, seed=0), "gift")
    distributed = make_plan(people, training, seed=0, accountant=Contract(trust="distributed"))
    with pytest.raises(InputError, match="its terms are for a guard"):
        RunTerms.of_plan(distributed, "b")
    assert terms.alone_epsilon() == terms.certified_epsilon()


# SPDX-License-Identifier: Apache-2.0


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("epsilon", 0),
        ("epsilon", float("inf")),
        ("epsilon", "1"),
        ("delta", 0),
        ("delta", 1),
        ("neighbours", "other"),
        ("across_runs", "sum"),
        ("fingerprint", "abc"),
        ("fingerprint", "A" * 64),
    ],
)
def test_bad_caps_are_refused(field, bad):
    with pytest.raises(InputError, match=field):
        LifetimeCap(**{"epsilon": 1.0, "delta": 1e-5, field: bad})


# SPDX-License-Identifier: Apache-2.0


@pytest.mark.parametrize("bad", ["", " a", "a ", "a\nb", "x" * 201, None, 3, b"a", "a\x00"])
def test_bad_names_are_refused(bad):
    with pytest.raises(InputError, match="dataset"):
        name("dataset", bad)


def test_any_printable_name_will_do():
    assert name("run", "Frühling 2026 / 'x'; --") == "Frühling 2026 / 'x'; --"


@pytest.mark.parametrize("field", ["round", "draw"])
@pytest.mark.parametrize("bad", [-1, 1.5, float("nan"), "0", None, True, 10**10])
def test_bad_positions_are_refused(field, bad):
    values = {"dataset": "d", "run": "r", "round": 0, "draw": 0, field: bad}
    with pytest.raises(InputError, match=field):
        DrawKey(**values)
