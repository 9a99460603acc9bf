# SPDX-License-Identifier: Apache-2.0
"""Opacus fed by a plan, and its history in a client's ledger: two accountings side by side."""

from __future__ import annotations

import warnings

import pytest
import torch

from dpcohort import Population, Training, make_plan
from dpcohort.accounting import Contract, Event, History
from dpcohort.deploy.ledger import (
    ClientLedger,
    DrawKey,
    LifetimeCap,
    LifetimeCapError,
    RunTerms,
    verify_ledger,
)
from dpcohort.errors import InputError
from dpcohort_lab.opacus import opacus_history

with warnings.catch_warnings(action="ignore"):
    from opacus import PrivacyEngine
    from opacus.accountants import PRVAccountant, RDPAccountant

pytestmark = pytest.mark.filterwarnings("ignore")  # Opacus' own
DELTA = 1e-5


@pytest.fixture(scope="module")
def plan():
    people = Population.from_arrays(
        ids=["north", "south", "open"],
        sizes=[300, 500, 200],
        epsilon=[1.0, 4.0, float("nan")],
        delta=[DELTA, DELTA, float("nan")],
        public=[False, False, True],
    )
    return make_plan(
        people, Training(rounds=20, cohort_size=2, batch_size=50, local_steps=2), seed=3
    )


def trained(noise: float, *, size: int = 300, steps: int = 12, **options):
    """An Opacus training of some steps: its engine, loader and optimiser."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(size, 4), torch.randint(0, 2, (size,)))
    model = torch.nn.Linear(4, 2)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=50),
        noise_multiplier=noise,
        max_grad_norm=1.0,
        **options,
    )
    left = steps
    while left:
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            left -= 1
            if not left:
                break
    return engine, loader, optimizer


@pytest.mark.parametrize(
    "steps",
    [
        [(1.0, 0.01, 1000)],
        [(0.8, 0.1, 60)],
        [(2.0, 0.25, 200), (1.5, 0.25, 50)],
        [(1.1, 1.0, 3)],
        [(4.0, 0.001, 5000)],
    ],
)
def test_both_accountings_of_one_history_agree(steps):
    ours = History(
        tuple(Event.of(noise_multiplier=z, sampling_rate=q, steps=n) for z, q, n in steps)
    ).epsilon(DELTA)
    prv, rdp = PRVAccountant(), RDPAccountant()
    prv.history = rdp.history = steps
    # Opacus' upper bound of the same number is 0.01 above its own estimate, as it is told to be.
    assert ours - 1e-3 <= prv.get_epsilon(DELTA) <= ours + 0.011
    assert ours <= rdp.get_epsilon(DELTA) <= 1.3 * ours + 0.07


def test_a_plan_feeds_opacus_and_the_ledger_gets_the_plans_epsilon_back(plan, tmp_path):
    north = plan.population.index_of("north")
    engine, loader, optimizer = trained(plan.noise_multiplier("north"), steps=plan.steps[north])
    assert optimizer.noise_multiplier == plan.noise_multipliers[north]
    history = opacus_history(engine.accountant, data_loader=loader, optimizer=optimizer)
    with ClientLedger.create(tmp_path / "ward.ledger") as ledger:
        ledger.register("north", LifetimeCap(epsilon=1.0, delta=DELTA))
        for _ in range(2):  # told twice, counted once
            receipt = ledger.record(
                "north", "autumn", history, clip=1.0, delta=DELTA, training="3f2a"
            )
        assert receipt.holds
        assert receipt.certified_epsilon == pytest.approx(plan.certified_epsilon[north], rel=1e-3)
        assert 0.99 < receipt.certified_epsilon <= 1.0
        assert engine.get_epsilon(DELTA) == pytest.approx(receipt.certified_epsilon, abs=0.02)
        assert receipt.runs[0]["steps"] == plan.steps[north]
    assert verify_ledger(tmp_path / "ward.ledger").holds


def test_what_happened_is_counted_above_the_cap_and_ends_all_spending(tmp_path):
    done = History(
        (
            Event.of(noise_multiplier=1.0, sampling_rate=0.1, steps=60),
            Event.of(noise_multiplier=0.8, sampling_rate=0.1, steps=60),
        )
    )
    with ClientLedger.create(tmp_path / "ward.ledger") as ledger:
        ledger.register("ward", LifetimeCap(epsilon=2.0, delta=DELTA))
        receipt = ledger.record("ward", "old", done, clip=1.0, delta=DELTA)
        assert not receipt.holds
        assert receipt.certified_epsilon == pytest.approx(done.epsilon(DELTA))
        assert [run["run"] for run in receipt.runs] == ["old.1", "old.2"]
        step = Event.of(noise_multiplier=500.0, sampling_rate=0.1, steps=1)
        ledger.accept("ward", "new", RunTerms.of_event(step, clip=1.0, delta=DELTA))
        with pytest.raises(LifetimeCapError):
            ledger.reserve(DrawKey(dataset="ward", run="new", round=0, draw=0), step, clip=1.0)
        with pytest.raises(InputError, match="another training"):
            ledger.record("ward", "old", History(done.events[::-1]), clip=1.0, delta=DELTA)
        with pytest.raises(InputError, match="at least one step"):
            ledger.record("ward", "none", History(), clip=1.0, delta=DELTA)
    assert [found["what"] for found in verify_ledger(tmp_path / "ward.ledger").findings] == ["cap"]


def test_a_second_training_of_the_same_name_and_length_is_never_dropped(tmp_path):
    done = History((Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=60),))
    told = {"clip": 1.0, "delta": DELTA}
    with ClientLedger.create(tmp_path / "ward.ledger") as ledger:
        ledger.register("ward", LifetimeCap(epsilon=9.0, delta=DELTA))
        once = ledger.record("ward", "autumn", done, **told).certified_epsilon
        with pytest.raises(InputError, match="nothing says that this is the same one"):
            ledger.record("ward", "autumn", done, **told)
        for training in ("a later one", "another still"):
            with pytest.raises(InputError, match="another training"):
                ledger.record("ward", "autumn", done, **told, training=training)
        both = ledger.record("ward", "winter", done, **told, training="w1").certified_epsilon
        assert both == pytest.approx(History(done.events * 2).epsilon(DELTA)) != once
        again = ledger.record("ward", "winter", done, **told, training="w1").certified_epsilon
        assert again == both
        assert ledger.receipt("ward").entries == 8  # opened, registered, and 3 for each training


def test_a_recording_that_broke_off_is_finished_under_its_id(tmp_path, monkeypatch):
    done = History(
        tuple(Event.of(noise_multiplier=z, sampling_rate=0.1, steps=60) for z in (2.0, 3.0))
    )
    told = {"clip": 1.0, "delta": DELTA, "training": "a1"}
    with ClientLedger.create(tmp_path / "ward.ledger") as ledger:
        ledger.register("ward", LifetimeCap(epsilon=9.0, delta=DELTA))
        accept = ledger.accept

        def breaks_off(dataset, run, terms):
            if run == "old.2":
                raise KeyboardInterrupt
            accept(dataset, run, terms)

        monkeypatch.setattr(ledger, "accept", breaks_off)
        with pytest.raises(KeyboardInterrupt):
            ledger.record("ward", "old", done, **told)
        monkeypatch.undo()
        receipt = ledger.record("ward", "old", done, **told)
        assert receipt.certified_epsilon == pytest.approx(done.epsilon(DELTA))


def test_a_run_with_little_noise_leaves_the_ledger_usable(tmp_path):
    loud = Event.of(noise_multiplier=0.1, sampling_rate=1.0, steps=1)
    with ClientLedger.create(tmp_path / "ward.ledger") as ledger:
        ledger.register("ward", LifetimeCap(epsilon=200.0, delta=DELTA))
        ledger.record("ward", "loud", History((loud,)), clip=1.0, delta=DELTA)
        step = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=1)
        ledger.accept("ward", "quiet", RunTerms.of_event(step, clip=1.0, delta=DELTA))
        ledger.reserve(DrawKey(dataset="ward", run="quiet", round=0, draw=0), step, clip=1.0)
        assert ledger.affordable_draws("ward", "quiet") == 0
        receipt = ledger.receipt("ward")
    assert receipt.holds
    assert receipt.certified_epsilon == pytest.approx(History((loud, step)).epsilon(DELTA))
    assert verify_ledger(tmp_path / "ward.ledger").holds


def test_what_the_contract_does_not_cover_is_refused():
    engine, loader, optimizer = trained(1.0, steps=2, poisson_sampling=False)
    with pytest.raises(InputError, match="poisson_sampling=True"):
        opacus_history(engine.accountant, data_loader=loader, optimizer=optimizer)
    engine, loader, optimizer = trained(1.0, steps=2)
    inner = optimizer.original_optimizer
    with pytest.raises(InputError, match="DPOptimizer"):
        opacus_history(engine.accountant, data_loader=loader, optimizer=inner)
    engine.accountant.step(noise_multiplier=1.0, sample_rate=2 * loader.sample_rate)
    with pytest.raises(InputError, match="the rate of the loader"):
        opacus_history(engine.accountant, data_loader=loader, optimizer=optimizer)
    engine.accountant.history = []
    with pytest.raises(InputError, match="at least one step"):
        opacus_history(engine.accountant, data_loader=loader, optimizer=optimizer)


def test_a_plan_has_one_noise_multiplier_for_each_client_that_trains(plan):
    assert plan.noise_multiplier("north") > plan.noise_multiplier("south") > 0
    assert plan.noise_multiplier("open") == 0
    with pytest.raises(InputError, match="north"):
        plan.noise_multiplier("nort")


def test_a_client_without_noise_of_its_own_has_no_multiplier():
    people = Population.from_arrays(sizes=[300] * 6, epsilon=[1e-3] + [2.0] * 5, delta=DELTA)
    training = Training(rounds=2, cohort_size=3, batch_size=50)
    distributed = make_plan(people, training, accountant=Contract(trust="distributed"), seed=0)
    with pytest.raises(InputError, match="masked sum"):
        distributed.noise_multiplier(people.ids[1])
    plan = make_plan(people, training, seed=0)
    assert not plan.drawn[0]
    with pytest.raises(InputError, match="never drawn"):
        plan.noise_multiplier(people.ids[0])
