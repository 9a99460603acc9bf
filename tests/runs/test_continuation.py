# SPDX-License-Identifier: Apache-2.0
"""Clients leave, join and change, and nobody's history is lost on the way."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.accounting import Charge, Event, History, Paid
from dpcohort.accounting._charges import write_charge
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.data import Partition, load_dataset
from dpcohort.engine import InverseTimeStep, Optimiser
from dpcohort.errors import BudgetExceededError, FileFormatError, InputError, VerificationError
from dpcohort.plan import Past, Plan
from dpcohort.runs import Run, replan, train, verify_run
from dpcohort.runs._continuation import charge_run, going_on, take_over
from dpcohort.runs._earlier_runs import segment_of
from dpcohort.runs._folder import is_run, latest_checkpoint, open_log, read_json, remove_receipts
from dpcohort.runs._job import make_job
from dpcohort.runs._journal import Journal, planned_draws
from dpcohort.runs._partitions import carried_partition
from dpcohort.runs._verification import _Check

ROUNDS = 6
#: Whole clients in each step: composition has a closed form, so that tests are quick.
SETTINGS = Training(rounds=ROUNDS, cohort_size=3, sampling_rate=1.0, dimension=650)


def people(**epsilon: float) -> Population:
    """Clients by name with their epsilon; those with a capital letter have 90 records, else 60."""
    return Population.from_arrays(
        ids=[name.lower() for name in epsilon],
        sizes=[90 if name.isupper() else 60 for name in epsilon],
        epsilon=list(epsilon.values()),
        delta=1e-5,
    )


class StopError(Exception):
    pass


class StopAfter:
    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def on_round(self, record, run) -> None:
        if record.round + 1 == self._rounds:
            raise StopError


def first_plan(**changes) -> Plan:
    clients = people(a=1.0, b=2.0, c=4.0, d=8.0)
    return make_plan(clients, replace(SETTINGS, **changes), selection="unbiased", seed=1)


#: The digits as if they were not public.
SECRET = replace(load_dataset("digits"), public=False)


def stopped(plan: Plan, out, rounds: int = 3, data="digits", **options):
    """A run that was stopped after some rounds."""
    settings = {"device": "cpu", "seed": 5, "checkpoint_every": 1, **options}
    with pytest.raises(StopError):
        train(plan, "logistic", data, out=out, callbacks=[StopAfter(rounds)], **settings)
    return out


@pytest.fixture(scope="session")
def _half(tmp_path_factory):
    return stopped(first_plan(), tmp_path_factory.mktemp("half") / "A")


@pytest.fixture
def half(_half, tmp_path):
    """A run of six rounds that was stopped after three, of the test's own."""
    return shutil.copytree(_half, tmp_path / "A")


def go_on(plan: Plan, after, out, data="digits", **options) -> Run:
    settings = {"device": "cpu", "seed": 5, "checkpoint_every": 1, **options}
    return train(plan, "logistic", data, after=after, out=out, **settings)


def done_in(folder, client: str) -> list[Event]:
    """What a client did in one run, from its ledger and plan by hand."""
    plan = Plan.load(folder / "plan.json")
    journal = Journal.read(plan, folder / "ledger.jsonl")
    if client not in plan.population.ids:
        return []
    k = plan.population.index_of(client)
    steps = int(journal.draws[k])
    noise, rate = float(plan.noise_multipliers[k]), float(plan.sampling_rates[k])
    made = Event.of(noise_multiplier=noise, sampling_rate=rate, steps=steps) if steps else None
    return [] if made is None else [made]


def test_a_run_that_is_not_finished_predicts_nothing_and_says_how_to_go_on(half):
    digits, run = load_dataset("digits"), Run.load(half)
    words = r"not finished \(3 of 6 rounds\).*dpcohort train CONFIG --resume --out .*A, or train"
    with pytest.raises(InputError, match=words):
        run.predict(digits.test_inputs)


def test_leave_join_raise_lower_and_more_records(half, tmp_path):
    now = people(b=3.0, c=3.5, D=8.0, late=2.0)  # a leaves, b raises, c lowers, d brings records
    plan = replan(half, now, seed=2)
    assert plan.training.rounds == ROUNDS - 3
    run = go_on(plan, half, tmp_path / "B")
    start = latest_checkpoint(half / "checkpoints", owner=_owner(half))
    assert start is not None
    parameters = make_job(
        plan, "logistic", "digits", device="cpu", seed=5, after=half
    ).initial()  # fmt: skip
    assert np.array_equal(parameters, start[1]["parameters"])
    for k, name in enumerate(now.ids):
        history = History((*done_in(half, name), *done_in(tmp_path / "B", name)))
        assert history.steps > 0
        assert history.epsilon(1e-5) <= now.epsilon[k]
        assert history.epsilon(1e-5) > 0.95 * now.epsilon[k]  # and little is wasted
        assert run.receipt(name).certified_epsilon == pytest.approx(history.epsilon(1e-5), rel=1e-3)
    shutil.rmtree(half)  # the new folder proves its past by itself
    verification = verify_run(tmp_path / "B")
    assert verification.holds, verification.findings
    receipt = Run.load(tmp_path / "B").receipt("d")
    events = [Event.from_dict(event) for event in receipt.before[0]["events"]]
    assert events == done_in(tmp_path / "B" / "before" / "1", "d")
    assert "all runs together" in receipt.text()
    kept = set(Run.load(tmp_path / "B").partition.client(0).tolist())
    assert kept == set(_records(tmp_path / "B" / "before" / "1", "b"))


def _owner(folder) -> str:
    from dpcohort.runs._folder import settings_sha256

    return settings_sha256(read_json(folder / "run.json"))


def _records(folder, client: str) -> list[int]:
    from dpcohort.data import load_partition

    place = Plan.load(folder / "plan.json").population.index_of(client)
    return load_partition(folder / "partition.npz").client(place).tolist()


def test_noise_is_for_what_is_left_under_subsampling_too(tmp_path):
    plan = first_plan(sampling_rate=0.3, cohort_size=2)
    half = stopped(plan, tmp_path / "A")
    again = replan(half, people(b=3.0, d=10.0), seed=2)
    again.verify()
    counts = Journal.read(plan, half / "ledger.jsonl").draws
    for name in ("b", "d"):
        old, new = plan.population.index_of(name), again.population.index_of(name)
        total = History(
            (
                plan.events(old, draws=int(counts[old]), reports=0).events[0],
                again.events(new, draws=int(again.counts[new]), reports=0).events[0],
            )
        )
        assert total.epsilon(1e-5) <= again.population.epsilon[new]
        assert total.epsilon(1e-5) == pytest.approx(again.certified_epsilon[new])


def test_who_has_spent_more_than_it_now_promises_is_refused_by_name(half, tmp_path):
    spent = History(tuple(done_in(half, "d"))).epsilon(1e-5)
    with pytest.raises(BudgetExceededError) as error:
        replan(half, people(a=1.0, d=2.0), seed=2)
    assert f"d: promised epsilon 2 at delta 1e-05, has spent {spent:.4g}" in str(error.value)
    assert f"{spent - 2:.4g} too much" in str(error.value)
    assert "--drop-exhausted" in str(error.value)
    assert "a:" not in str(error.value)
    plan = replan(half, people(a=1.0, d=2.0), drop_exhausted=True, seed=2)
    assert plan.population.ids == ("a",)
    with pytest.raises(InputError, match="no client has anything left"):
        replan(half, people(d=2.0), drop_exhausted=True, seed=2)


def test_a_finished_run_needs_to_be_told_how_many_rounds(half, tmp_path):
    train(first_plan(), "logistic", "digits", out=half, resume=True, device="cpu", seed=5)
    with pytest.raises(InputError, match="--rounds N"):
        replan(half, people(a=2.0))
    run = go_on(replan(half, people(a=2.0), rounds=2, seed=2), half, tmp_path / "B")
    assert run.rounds_done == 2
    assert run.receipt("a").holds


def test_a_round_lost_in_a_crash_is_carried_over(half, tmp_path):
    plan = first_plan()
    for receipt in (half / "receipts").iterdir():
        receipt.unlink()  # the run was resumed
    journal = Journal(plan, half / "ledger.jsonl")
    journal.count(3, plan.schedule.cohorts[3])  # and then the power went
    journal.close()
    with (half / "ledger.jsonl").open("a") as file:
        file.write('{"round": 4, "dra')  # in the middle of a line
    again = replan(half, people(a=3.0, b=3.0, c=4.0, d=8.0), seed=2)
    assert verify_run(half).rounds == 4
    go_on(again, half, tmp_path / "B")
    assert verify_run(half).holds
    assert again.past.segments[0].rounds == 4
    assert again.training.rounds == 2
    drawn = np.bincount(plan.schedule.cohorts[:4].ravel(), minlength=4)
    steps = {name: history.steps for name, history in again.past.segments[0].spent.items()}
    assert steps == {name: drawn[k] for k, name in enumerate("abcd") if drawn[k]}


def test_a_run_goes_on_once(half, tmp_path):
    clients = people(a=1.0, b=2.0, c=4.0, d=8.0)
    one, other = replan(half, clients, seed=2), replan(half, clients, seed=3)
    go_on(one, half, tmp_path / "B")
    for plan, out in ((other, "C"), (one, "C")):
        with pytest.raises(InputError, match="going on twice"):
            go_on(plan, half, tmp_path / out)
        assert not (tmp_path / out).exists()
    with pytest.raises(InputError, match="going on twice"):
        replan(half, clients)
    with pytest.raises(InputError, match="going on twice"):
        train(first_plan(), "logistic", "digits", out=half, resume=True, device="cpu", seed=5)
    assert verify_run(half).holds
    assert go_on(one, half, tmp_path / "B", resume=True).rounds_done == 3


def test_a_chain_keeps_the_history_of_who_left(half, tmp_path):
    second = replan(half, people(b=2.0, c=4.0), rounds=2, seed=2)
    go_on(second, half, tmp_path / "B")
    # Somebody joins under the id of one who left, and has its history.
    third = replan(tmp_path / "B", people(d=8.0, c=6.0, new=1.0), rounds=2, seed=2)
    go_on(third, tmp_path / "B", tmp_path / "C")
    assert [segment.rounds for segment in third.past.segments] == [3, 2]
    assert third.histories[0].events == tuple(done_in(half, "d"))
    assert third.histories[1].events == (*done_in(half, "c"), *done_in(tmp_path / "B", "c"))
    assert third.histories[2].steps == 0
    shutil.rmtree(half)
    assert verify_run(tmp_path / "C").holds
    assert len(Run.load(tmp_path / "C").receipt("c").before) == 2


def test_an_edited_ledger_is_found(half, tmp_path):
    clients = people(a=3.0, b=3.0, c=4.0, d=8.0)
    plan = replan(half, clients, seed=2)
    ledger = half / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:-1]))  # the last round never was
    with pytest.raises(VerificationError, match="does not verify"):
        replan(half, clients, seed=2)
    with pytest.raises(VerificationError, match="not as it was when the plan was made"):
        go_on(plan, half, tmp_path / "B")
    ledger.write_text("".join(lines))
    go_on(plan, half, tmp_path / "B")
    kept = tmp_path / "B" / "before" / "1" / "ledger.jsonl"
    kept.write_text("".join(lines[:-1]))
    verification = verify_run(tmp_path / "B")
    assert not verification.holds
    assert [finding.subject for finding in verification.findings] == ["before/1", "before"]
    shutil.rmtree(kept.parent)
    assert not verify_run(tmp_path / "B").holds


def test_more_rounds_after_the_plan_was_made_are_not_forgotten(half, tmp_path):
    plan = replan(half, people(a=3.0, b=3.0, c=4.0, d=8.0), seed=2)
    train(first_plan(), "logistic", "digits", out=half, resume=True, device="cpu", seed=5)
    with pytest.raises(VerificationError, match="not as it was when the plan was made"):
        go_on(plan, half, tmp_path / "B")


def test_a_plan_with_a_shorter_past_is_refused(half, tmp_path):
    plan = replan(half, people(d=8.0), seed=2)
    first = plan.past.segments[0]
    short = replace(first.spent["d"].events[0], count=1)
    forged = replace(plan, past=Past.of([replace(first, spent={"d": History((short,))})]))
    forged.verify()  # its own sums are right
    with pytest.raises(VerificationError, match="not as it was when the plan was made"):
        go_on(forged, half, tmp_path / "B")
    with pytest.raises(InputError, match="--after RUN"):
        train(forged, "logistic", "digits", out=tmp_path / "B", device="cpu")
    with pytest.raises(InputError, match="goes on from no run"):
        go_on(first_plan(), half, tmp_path / "B")
    with pytest.raises(InputError, match="give it a folder"):
        train(plan, "logistic", "digits", after=half, device="cpu")
    assert not (tmp_path / "B").exists()


def test_the_past_is_in_the_file_and_in_the_hash(half, tmp_path):
    plan = replan(half, people(a=1.0, d=8.0), seed=2)
    path = tmp_path / "plan.json"
    plan.save(path)
    assert Plan.load(path) == plan
    assert Plan.load(path).past.segments == plan.past.segments
    content = json.loads(path.read_text())
    content["past"]["runs"][0]["spent"]["d"][0]["steps"] -= 1
    path.write_text(json.dumps(content))
    with pytest.raises(VerificationError, match="was changed"):
        Plan.load(path)
    content["past"]["runs"] = []
    path.write_text(json.dumps(content))
    with pytest.raises(VerificationError, match="was changed"):
        Plan.load(path)
    content["past"]["runs"] = [{"plan": 3}]
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError):
        Plan.load(path)


def test_a_history_beyond_the_promise_is_found_by_verify(half):
    plan = replan(half, people(d=8.0), seed=2)
    more = plan.explain("d").to_dict()
    assert more["epsilon_of_one_more_draw"] > 8.0  # of all draws, those before too
    less = replace(plan.population, epsilon=np.array([7.0]))
    with pytest.raises(VerificationError, match="would spend more than promised: d"):
        replace(plan, population=less).verify()


def test_records_keep_their_client(half, tmp_path):
    plan = replan(half, people(a=1.0, d=8.0), seed=2)
    swapped = Partition(
        indices=np.array([*_records(half, "d"), *_records(half, "a")]),
        offsets=np.array([0, 60, 120]),
        records=len(make_job(first_plan(), "logistic", "digits", device="cpu").data),
    )
    with pytest.raises(InputError, match=r"was of client 'd' in .* and is of 'a'"):
        go_on(plan, half, tmp_path / "B", partition=swapped)
    renamed = replan(half, people(b=2.0, fresh=8.0), seed=2)
    theirs = replace(swapped, indices=np.array([*_records(half, "b"), *_records(half, "d")]))
    with pytest.raises(InputError, match="and is of 'fresh' now"):
        go_on(renamed, half, tmp_path / "B", partition=theirs)


def test_a_public_client_cannot_take_its_records_back(tmp_path):
    clients = Population.from_arrays(
        ids=["a", "open"],
        sizes=[60, 60],
        epsilon=[1.0, np.nan],
        delta=[1e-5, np.nan],
        public=[False, True],
    )
    plan = make_plan(clients, SETTINGS, selection="unbiased", seed=1)
    half = stopped(plan, tmp_path / "A")
    with pytest.raises(BudgetExceededError, match="open: took part as a public client"):
        replan(half, people(a=2.0, open=1.0), seed=2)
    plan = replan(half, clients, seed=2)
    assert plan.population.public.tolist() == [False, True]


@pytest.mark.parametrize("first", [True, False])
def test_one_seeded_part_makes_all_of_it_a_simulation(tmp_path, first):
    half = stopped(first_plan(), tmp_path / "A", data=SECRET if first else "digits")
    plan = replan(half, people(d=8.0), seed=2)
    run = go_on(plan, half, tmp_path / "B", data="digits" if first else SECRET)
    assert not run.is_private
    assert "NOT PRIVATE (simulation)" in run.receipt("d").stamp
    assert verify_run(tmp_path / "B").holds


def test_a_simulation_does_not_repeat_its_noise(half):
    plan = replan(half, people(a=1.0, d=8.0), seed=2)
    before = make_job(first_plan(), "logistic", "digits", device="cpu", seed=5)
    after = make_job(plan, "logistic", "digits", device="cpu", seed=5, after=half)
    where = {"round": 0, "client": 0, "draw": 0, "step": 0}
    words = [job.streams.words("noise", 4, **where).tolist() for job in (before, after)]
    assert words[0] != words[1]


def test_step_sizes_momentum_and_average_go_on(tmp_path):
    optimiser = Optimiser(
        local_step=InverseTimeStep(2.0, 1.0), server_momentum=0.5, average_decay=0.5
    )
    half = stopped(first_plan(), tmp_path / "A", optimiser=optimiser)
    plan = replan(half, people(d=8.0), seed=2)
    job = make_job(plan, "logistic", "digits", device="cpu", after=half, optimiser=optimiser)
    assert job.optimiser.step_size(plan.training, round=0, step=0) == 2.0 / (1.0 + 3)
    assert set(job.carried) == {"parameters", "momentum", "average"}
    plain = make_job(plan, "logistic", "digits", device="cpu", after=half)
    assert set(plain.carried) == {"parameters"}


def test_who_reported_is_charged_at_its_caps(tmp_path):
    clients = people(a=2.0, b=4.0, c=8.0)
    plan = make_adaptive_plan(
        clients, SETTINGS, rule="power-of-choice", rule_settings={"d": 3}, seed=1
    )
    half = stopped(plan, tmp_path / "A", rounds=2)
    again = replan(half, people(a=4.0, b=6.0, c=9.0), rounds=2, seed=2)
    assert again.participation.deciding
    for k, name in enumerate("abc"):
        caps = (int(plan.counts[k]), int(plan.reports.caps[k]))
        assert [event.steps for event in again.histories[k].events] == list(caps)
        history = again.history(k, draws=int(again.counts[k]), reports=int(again.reports.caps[k]))
        assert history.epsilon(1e-5) <= again.population.epsilon[k], name
    go_on(again, half, tmp_path / "B")
    verification = verify_run(tmp_path / "B")
    assert verification.holds, verification.findings
    with pytest.raises(BudgetExceededError, match="c: promised"):
        replan(tmp_path / "B", people(c=8.0), rounds=2)


def test_a_start_cut_short_is_begun_again(half, tmp_path, monkeypatch):
    from dpcohort.runs import _recorder as recorder

    plan = replan(half, people(d=8.0), seed=2)
    with monkeypatch.context() as patch:

        def fail(path, value):
            raise StopError

        patch.setattr(recorder, "write_json", lambda p, v: fail(p, v) if "run" in p.name else None)
        with pytest.raises(StopError):
            go_on(plan, half, tmp_path / "B")
    assert not is_run(tmp_path / "B")
    assert go_on(plan, half, tmp_path / "B", resume=True).rounds_done == 3
    assert verify_run(tmp_path / "B").holds


def test_receipts_of_a_stopped_run_count_what_is_on_disk(tmp_path):
    plan, out = first_plan(), tmp_path / "A"

    class Interrupted:
        def on_round(self, record, run) -> None:
            ledger = run.path / "ledger.jsonl"
            entry = {"round": 1, "draws": planned_draws(plan, 1)}
            ledger.write_text(f"{ledger.read_text()}{json.dumps(entry)}\n")
            raise StopError  # between the disk and the memory

    with pytest.raises(StopError):
        train(plan, "logistic", "digits", out=out, device="cpu", callbacks=[Interrupted()])
    assert verify_run(out).holds


def test_a_leaver_with_a_broken_promise_is_found(half, tmp_path):
    go_on(replan(half, people(d=8.0), seed=2), half, tmp_path / "B")
    proof = tmp_path / "B" / "before" / "1"
    old = Plan.load(proof / "plan.json")
    broken = replace(old, population=replace(old.population, epsilon=np.array([0.01, 2, 4, 8])))
    # Everything but the promise of a, who left, is made to fit.
    broken.save(proof / "plan.json")
    plan = Plan.load(tmp_path / "B" / "plan.json")
    lines = (proof / "ledger.jsonl").read_text().replace(old.sha256, broken.sha256)
    (proof / "ledger.jsonl").write_text(lines)
    forged = replace(plan, past=Past.of([*broken.past.segments, segment_of(proof, broken)]))
    check = _Check(tmp_path / "B", forged)
    check.before("pld")
    found = [(one.kind, one.subject) for one in check.findings if one.subject != "run.json"]
    assert found == [("overspent", "a")]


def test_what_is_paid_after_a_plan_was_made_is_not_left_out_of_it(half, tmp_path):
    plan, more = replan(half, people(b=3.0, c=4.0), seed=2), replan(half, people(d=20.0), seed=2)
    promised, spent = {"c": (4.0, 1e-5)}, {"c": (1e-9, 0.0)}
    paid = Charge(what="evaluation", private=False, promised=promised, spent=spent)
    with open_log(half / "ledger.jsonl", exclusive=True), pytest.raises(InputError):
        charge_run(half, paid)  # somebody trains
    remove_receipts(half)
    (half / "charges").mkdir()
    write_charge(half / "charges" / f"{paid.id}.json", paid)
    with pytest.raises(VerificationError, match="does not count what was paid beside the rounds"):
        going_on(plan, half)
    with pytest.raises(VerificationError, match="does not count what was paid beside the rounds"):
        take_over(more, half, tmp_path / "B")
    assert not (half / "continued.json").exists()
    again = replan(half, people(b=3.0, c=4.5), seed=2)
    assert again.past.paid.charges == (paid,)
    run = go_on(again, half, tmp_path / "B")
    assert verify_run(run.path).holds
    # A plan with all of its hashes right that forgets it.
    forged = replace(again, past=replace(again.past, paid=Paid()))
    check = _Check(run.path, forged)
    check.before("pld")
    # The run before had none when it began; only that the plan is another is found.
    assert {finding.subject for finding in check.findings} == {"run.json"}
    twice = replan(run.path, people(c=9.0), rounds=2, seed=2)
    end = go_on(twice, run.path, tmp_path / "C")
    check = _Check(end.path, replace(twice, past=replace(twice.past, paid=Paid())))
    check.before("pld")
    assert "the plan does not count what was paid before that run." in [
        finding.message for finding in check.findings
    ]


def test_a_plan_goes_on_from_the_run_it_was_made_from_and_no_other(half, tmp_path):
    plan = replan(half, people(b=3.0, c=4.0), seed=2)
    other = stopped(first_plan(rounds=5), tmp_path / "C", rounds=1)
    with pytest.raises(InputError, match="Give the run that it was made from"):
        going_on(plan, other)
    (half / "ledger.jsonl").unlink()
    with pytest.raises(VerificationError, match=r"ledger\.jsonl cannot be read"):
        going_on(plan, half)


def test_other_data_need_a_column_that_says_whose_they_are(half):
    plan = replan(half, people(b=3.0, c=4.0), seed=2)
    digits = load_dataset("digits")
    fewer = replace(
        digits, train_inputs=digits.train_inputs[:-1], train_labels=digits.train_labels[:-1]
    )
    with pytest.raises(InputError, match=r"is not the data of .*data\.column"):
        carried_partition(half, plan, fewer, np.random.default_rng(0))
