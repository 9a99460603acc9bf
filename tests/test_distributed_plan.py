# SPDX-License-Identifier: Apache-2.0
"""Plans with distributed noise: weights within budgets, two certificates, one lattice, no lies."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from dpcohort import Population, Training, certify_epsilon, make_plan
from dpcohort.accounting import Contract, Event, History, Segment
from dpcohort.accounting._distributed import with_lattice
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.config import loads_config
from dpcohort.engine import _lattice as lattice
from dpcohort.errors import DpcohortError, FileFormatError, InputError, VerificationError
from dpcohort.plan import LocalNoise, Past, Plan
from dpcohort.runs import make_receipts, who_was_heard

SETTINGS = Training(rounds=8, cohort_size=6, sampling_rate=0.25, dimension=10)
PEOPLE = Population.from_arrays(
    sizes=[400, 120, 80, 400, 120, 80, 160, 200, 300, 100],
    epsilon=[0.1, 0.3, 1.0, 2.0, 4.0, 0.5, 0.2, 1.0, 0.7, np.nan],
    delta=[1e-5] * 9 + [np.nan],
    public=[False] * 9 + [True],
)
HALF = Contract(
    trust="distributed", colluding=0.5, dropouts=1
)  # of 6: ceil(2.5) and 1, so 2 are left


def distributed_plan(contract=HALF, **changes):
    options = {"seed": 4, "selection": "unbiased", **changes}
    return make_plan(PEOPLE, options.pop("training", SETTINGS), accountant=contract, **options)


@pytest.fixture(scope="module")
def plan():
    return distributed_plan()


@pytest.mark.parametrize(
    ("colluding", "dropouts", "members", "honest"),
    [
        *[(0, 0, 10, 10), (3, 0, 10, 7), (3, 2, 10, 5), (0.5, 0, 10, 5), (0.5, 1, 6, 2)],
        *[(9, 0, 10, 1), (0.07, 0, 101, 94), (0.01, 0, 10, 9), (0.999, 0, 3, 1)],
    ],
)
def test_shares_of_colluders_are_rounded_up_and_dropouts_taken_off(
    colluding, dropouts, members, honest
):
    told = Contract(trust="distributed", colluding=colluding, dropouts=dropouts)
    assert told.honest(members) == honest
    as_array = Contract(
        trust="distributed", colluding=np.array([colluding])[0], dropouts=np.int64(dropouts)
    )
    assert json.dumps(as_array.to_dict()) == json.dumps(told.to_dict())


@pytest.mark.parametrize(
    "contract",
    [
        HALF,
        Contract(trust="distributed"),
        Contract.of("tight", "fixed", trust="distributed", colluding=2),
        Contract.of("paper", trust="distributed", colluding=4),
    ],
    ids=["half", "all", "fixed", "paper"],
)
def test_both_epsilons_are_those_of_the_noise_that_is_really_there(contract):
    plan = distributed_plan(contract)
    distributed, honest = plan.noise.pool, contract.honest(6)
    assert distributed.honest == honest
    assert plan.counts @ distributed.weights == pytest.approx(plan.training.total_draws)
    for k in np.flatnonzero(plan.drawn & ~PEOPLE.public):
        moves = distributed.weights[k] / plan.batch_sizes[k]  # one record, in units of C
        asked = {
            "delta": 1e-5,
            "sampling_rate": plan.sampling_rates[k],
            "steps": plan.counts[k],
            "sampler": contract.sampler,
            "neighbours": contract.neighbours,
            "method": "pld",
        }
        with_others = certify_epsilon(
            noise_multiplier=math.sqrt(honest) * distributed.shares[k] / moves, **asked
        )
        alone = certify_epsilon(noise_multiplier=distributed.shares[k] / moves, **asked)
        assert with_others <= plan.certified_epsilon[k] * (1 + 1e-6) <= PEOPLE.epsilon[k] * 1.00001
        assert alone == pytest.approx(plan.certificate.alone_epsilon[k], rel=1e-6)
    plan.verify()
    rates = plan.if_alone.noise_multipliers[plan.drawn & ~PEOPLE.public]
    assert (rates < plan.noise_multipliers[plan.drawn & ~PEOPLE.public]).all()


@pytest.mark.parametrize("selection", ["unbiased", "privacy-aware"])
def test_who_counts_on_nobody_has_the_plan_of_the_local_model(selection):
    few = replace(SETTINGS, cohort_size=2)  # so that nobody's probability is above 1 / K
    for trust in ({"colluding": 1}, {"dropouts": 1}, {"colluding": 0.9}):
        alone = distributed_plan(
            Contract(trust="distributed", **trust), training=few, selection=selection
        )
        local = make_plan(PEOPLE, few, selection=selection, seed=4)
        assert alone.noise.honest == 1
        assert (alone.noise.weights[alone.drawn] == 1).all()
        assert alone.schedule.sha256 == local.schedule.sha256
        for column in ("noise_multipliers", "certified_epsilon"):
            np.testing.assert_array_equal(getattr(alone, column), getattr(local, column))
        np.testing.assert_array_equal(alone.certificate.alone_epsilon, local.certified_epsilon)
        own = np.nan_to_num(local.noise_multipliers) / local.batch_sizes
        np.testing.assert_allclose(alone.noise.pool.shares, own, rtol=1e-15)
        assert alone.noise_to_clip == pytest.approx(local.noise_to_clip, rel=1e-12)
        alone.verify()


def test_where_a_client_may_not_be_drawn_twice_its_own_noise_follows_its_weight():
    plan = distributed_plan(Contract(trust="distributed", colluding=5))
    here = plan.drawn & ~PEOPLE.public
    assert plan.noise.weights.max() > plan.noise.weights[here].min()
    assert plan.counts.max() <= SETTINGS.rounds
    own = plan.noise_multipliers[here] * plan.noise.weights[here] / plan.batch_sizes[here]
    np.testing.assert_allclose(plan.noise.pool.shares[here], own, rtol=1e-12)


def test_a_distributed_plan_reads_back_and_a_local_one_has_nothing_of_it(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    again.verify_unless_made_here()
    local = distributed_plan(Contract())
    local.save(tmp_path / "local.json")
    written = json.loads((tmp_path / "local.json").read_text())
    assert written["noise"]["kind"] == "local"
    assert "weights" not in written["noise"]
    assert set(written["contract"]) == {"accountant", "sampler", "neighbours"}


def set_weight(part):
    part["weights"][3] *= 1.001


def swap_honest(part):
    part["honest"] += 1
    part["shares"] /= math.sqrt(part["honest"] / (part["honest"] - 1))


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (set_weight, "more weight than its budget"),
        (lambda part: part.update(shares=part["shares"] * 0.999), "more weight than its budget"),
        (lambda part: part.update(shares=0.0), "more weight than its budget"),
        (lambda part: part.update(shares=[part["shares"]] * 9 + [0.5]), "shares of noise differ"),
        (lambda part: part.update(honest=part["honest"] + 1), "honest members"),
        (swap_honest, "honest members"),
        (lambda part: part.update(honest=1.5), "whole number"),
        (lambda part: part.update(honest=float(part["honest"])), r"honest = 2.0 .* whole number"),
        (lambda part: part.update(exponent=float(part["exponent"])), "whole number"),
        (lambda part: part.update(exponent=part["exponent"] - 1), "lattice"),
        (lambda part: part.update(modulus_bits=part["modulus_bits"] - 1), "lattice"),
        (lambda part: part["weights"].__setitem__(0, -1.0), "finite numbers"),
        (lambda part: part["weights"].__setitem__(0, None), "finite numbers"),
        (lambda part: part["weights"].__setitem__(0, 0.0), "no weight"),
        (lambda part: part["weights"].append(1.0), "other clients"),
        (lambda part: part.update(weights=[1.0] * 3), "other clients"),
        (lambda part: part["alone_epsilon"].__setitem__(0, 1e-3), "own noise alone"),
        (lambda part: part["alone_epsilon"].__setitem__(0, None), "no epsilon alone"),
        (lambda part: part["weights"].__setitem__(0, 1e-300), "too small"),
        (lambda part: part.update(shares=1e308), "too small"),
        (lambda part: part.pop("weights"), "missing"),
    ],
)
def test_a_file_with_other_shares_is_no_plan(plan, tmp_path, lie, words):
    plan.save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    part = {**content["noise"], **content["certificate"]}
    lie(part)
    for name in ("noise", "certificate"):
        content[name] = {key: part[key] for key in content[name] if key in part}
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=words):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"training": replace(SETTINGS, local_steps=2)}, "local_steps"),
        ({"contract": Contract()}, "not in both"),
        ({"contract": Contract(trust="distributed", colluding=2)}, "honest members"),
        ({"noise": LocalNoise}, "not in both"),
    ],
)
def test_a_plan_cannot_be_turned_into_one_that_was_never_certified(plan, change, words):
    if "noise" in change:
        change = {"noise": LocalNoise(multipliers=plan.noise.multipliers, lifted=plan.noise.lifted)}
    with pytest.raises(InputError, match=words):
        replace(plan, **change)


def test_nobody_is_twice_in_a_cohort(plan):
    assert all(len(set(row)) == len(row) for row in plan.schedule.cohorts.tolist())
    cohorts = plan.schedule.cohorts.copy()
    cohorts[0, 0] = cohorts[0, 1]
    with pytest.raises(InputError, match="twice in a cohort"):
        replace(
            plan,
            participation=replace(
                plan.participation, schedule=replace(plan.schedule, cohorts=cohorts)
            ),
        )


@pytest.mark.parametrize("method", ["pld", "auto"])
def test_an_epsilon_alone_that_is_too_small_is_found_out(plan, tmp_path, method):
    k = int(np.flatnonzero(plan.drawn & ~PEOPLE.public)[-1])
    said = plan.certificate.alone_epsilon.copy()
    said[k] *= 0.999
    lying = replace(plan, certificate=replace(plan.certificate, worst_epsilon=said))
    lying.save(tmp_path / "plan.json")
    with pytest.raises(VerificationError, match=f"if all others collude: {PEOPLE.ids[k]}"):
        Plan.load(tmp_path / "plan.json").verify(method)


def test_no_sum_wraps_around_and_every_record_has_22_bits(plan):
    distributed, units = plan.noise.pool, 2**plan.noise.pool.exponent
    here = distributed.weights > 0
    most = units / plan.alone_multipliers[here]
    assert 2**22 <= most.min() < 2**23
    worst = 6 * (PEOPLE.sizes[here] * most + 16.5 * units).max()
    assert 2 ** (distributed.modulus_bits - 2) <= worst < 2 ** (distributed.modulus_bits - 1)
    loud = replace(distributed, weights=1000 * distributed.weights)
    poisson, fixed = (
        with_lattice(loud, PEOPLE, SETTINGS, Contract.of("tight", sampler)).modulus_bits
        for sampler in ("poisson", "fixed")
    )
    assert fixed < poisson  # a batch has B records, never more
    weights = distributed.weights.copy()
    weights[4] *= 1e9
    with pytest.raises(InputError, match=f"{PEOPLE.ids[4]}.* is too large for sums of 62 bits"):
        with_lattice(replace(distributed, weights=weights), PEOPLE, SETTINGS, HALF)
    engines = (lattice.LARGEST_EXPONENT, lattice._BITS, lattice.SMALLEST_NOISE)
    assert engines == tuple(
        with_lattice.__globals__[name]
        for name in ("LARGEST_EXPONENT", "LEAST_BITS", "_SMALLEST_NOISE")
    )


def test_what_no_lattice_holds_is_refused_by_name():
    two = {"ids": ["strict", "other"], "sizes": [90, 90], "delta": 1e-5}
    few = {"training": Training(rounds=400, cohort_size=2, sampling_rate=1.0), "seed": 0}
    few |= {"accountant": Contract(trust="distributed"), "selection": "unbiased"}
    with pytest.raises(InputError, match=r"'strict' .* is too small .* lattice"):
        make_plan(Population.from_arrays(**two, epsilon=[1e-7, 1.0]), **few)
    none = {"epsilon": np.nan, "delta": np.nan, "public": [True, True]}
    nobody = Population.from_arrays(sizes=[90, 90], **none)
    with pytest.raises(InputError, match="no noise to pool"):
        make_plan(nobody, **few)


def test_who_must_be_drawn_without_being_wanted_has_a_little_weight():
    strict = Population.from_arrays(sizes=[100] * 4, epsilon=[0.1, 4.0, 4.0, 4.0], delta=1e-5)
    plan = make_plan(
        strict,
        replace(SETTINGS, cohort_size=4, dimension=1000),
        accountant=Contract(trust="distributed", colluding=3),
        seed=1,
    )
    assert plan.noise.honest == 1
    assert plan.probabilities[0] == 0 < plan.noise.weights[0] < 2**-9
    local = plan.noise_multipliers * plan.noise.weights / plan.batch_sizes
    np.testing.assert_allclose(plan.noise.pool.shares, local, rtol=1e-12)
    plan.verify()


def earlier(honest, name=PEOPLE.ids[3]):
    past = History((Event.of(noise_multiplier=12.0, sampling_rate=0.25, steps=30),))
    return Segment(
        plan="a", ledger="b", rounds=30, source="seed", spent={name: past}, honest=honest
    )


@pytest.mark.parametrize("honest", [1, 4, 5])
def test_what_was_spent_before_counts_with_and_without_the_others(honest):
    first = earlier(honest)
    assert Segment.from_dict(first.to_dict()) == first
    assert ("honest" in first.to_dict()) == (honest > 1)
    plan = distributed_plan(Contract(trust="distributed", colluding=1), before=[first])
    draws = int(plan.counts[3])
    both = plan.history(3, draws=draws, reports=0).epsilon(1e-5)
    fresh = plan.events(3, draws=draws, reports=0).epsilon(1e-5)
    assert fresh < both <= plan.certified_epsilon[3] * (1 + 1e-9) <= PEOPLE.epsilon[3] * 1.001
    z, own = float(plan.noise_multipliers[3]) / math.sqrt(5), 12.0 / math.sqrt(honest)
    alone = History((Event.of(noise_multiplier=own, sampling_rate=0.25, steps=30),)).append(
        Event.of(noise_multiplier=z, sampling_rate=0.25, steps=draws)
    )
    assert plan.certificate.alone_epsilon[3] == pytest.approx(alone.epsilon(1e-5), rel=1e-6)
    plan.verify()
    receipt = make_receipts(plan, plan.counts, clients=np.array([3]))[0]
    assert receipt.certified_epsilon == pytest.approx(both, rel=1e-3)
    assert receipt.trust["alone_epsilon"] == pytest.approx(alone.epsilon(1e-5), rel=1e-3)
    assert (f"(rate 0.25), with {honest} honest members; plan a" in receipt.text()) == (honest > 1)


@pytest.mark.parametrize(
    ("contract", "now"),
    [(HALF, 2), (Contract(trust="distributed", colluding=5), 1), (Contract(), 1)],
    ids=["fewer", "nobody", "local"],
)
def test_a_run_does_not_go_on_with_less_trust_than_its_past_counted_on(contract, now):
    before = [earlier(1), earlier(3)]
    words = rf"trust '{contract.trust}' = {now} is not allowed: it must be at least 3, .* new run"
    with pytest.raises(InputError, match=words):
        distributed_plan(contract, before=before)
    with pytest.raises(InputError, match=words):
        replace(distributed_plan(contract), past=Past.of(before))
    if not contract.is_distributed:
        with pytest.raises(InputError, match=words):
            make_adaptive_plan(PEOPLE, SETTINGS, rule_settings={"d": 6}, before=before)
    # Who took no part has nothing to count on.
    distributed_plan(contract, before=[replace(earlier(3), spent={})])


def test_a_file_whose_past_counted_on_more_is_no_plan(tmp_path):
    distributed_plan(before=[earlier(2)]).save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    content["past"]["runs"][0]["honest"] = 3
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="must be at least 3, as an earlier run counted on"):
        Plan.load(tmp_path / "plan.json")


CONFIG = """
[population]
count = 8
size = 60
epsilon = 1.0
[training]
rounds = 4
cohort_size = 4
[privacy]
trust = "distributed"
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("privacy.colluding=4", "each member has only 3 others"),
        ("privacy.dropouts=4", "each member has only 3 others"),
        ("privacy.colluding=1.0", "a share of them below 1"),
        ("privacy.colluding=1.5", "a share of them below 1"),
        ("privacy.colluding=-1", "a share of them below 1"),
        ("privacy.colluding=nan", "a share of them below 1"),
        ("privacy.dropouts=0.5", "whole number|integer"),
        ("training.local_steps=2", "would carry no noise of the others"),
        ("schedule.draws=independent", "into a cohort twice"),
        ("aggregation.rule=trimmed-mean", "a sum has no single updates"),
        ("aggregation.rule=size-weighted", "a sum has no single updates"),
        ("selection.rule=power-of-choice", "a sum has no single updates"),
        ("training.cohort_size=9", "each is in a cohort once"),
        ("training.cohort_size=1", "at least 2 where trust = 'distributed'"),
    ],
)
def test_what_cannot_be_distributed_is_refused_before_anything_is_trained(change, words):
    from dpcohort.runs._configured import configured_plan

    with pytest.raises(DpcohortError, match=words):
        configured_plan(loads_config(CONFIG).with_overrides([change]))


def test_a_config_turned_to_local_trust_counts_on_nobody():
    config = loads_config(CONFIG).with_overrides(["privacy.colluding=2"])
    local = config.with_overrides(["privacy.trust=local"])
    assert local.contract == Contract()
    with pytest.raises(DpcohortError, match="0 where trust = 'local'"):
        local.with_overrides(["privacy.dropouts=1"])


def test_rules_that_choose_by_reports_have_nothing_to_look_at():
    few = replace(SETTINGS, cohort_size=2)
    with pytest.raises(InputError, match=r"power-of-choice chooses .* a sum has no single updates"):
        make_adaptive_plan(PEOPLE, few, accountant=HALF, rule_settings={"d": 4})


def test_who_is_heard_is_counted_with_weights(plan):
    strict, *_, loose, gift = who_was_heard(plan, groups=9)
    assert strict.heard < 1 < loose.heard
    shares = [group.draw_share for group in who_was_heard(plan, groups=9)]
    assert sum(shares) == pytest.approx(1)
    assert gift.draw_share == pytest.approx(plan.model_weights[9])
    assert plan.model_weights.sum() == pytest.approx(1)
