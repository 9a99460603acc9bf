# SPDX-License-Identifier: Apache-2.0
"""What is told of test records that are not public: its price, its noise, its intervals."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.special import softmax

from dpcohort import Population, Training, make_plan, train
from dpcohort.accounting import Contract, gaussian_delta
from dpcohort.accounting._charges import read_charge, write_charge
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.config import load_config, loads_config
from dpcohort.data import column_partition, dataset_from_arrays, dataset_from_table
from dpcohort.deploy.flower._federation import Federation
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.metrics import measure
from dpcohort.report.html._letter import another_client
from dpcohort.runs import Run, configured_job, replan, verify_run
from dpcohort.runs._configured import configured_plan
from dpcohort.runs._job import Job, make_job
from dpcohort.runs._noised_metrics import combined, informed, questions_of
from dpcohort.runs._paid_evaluation import EvaluationTerms, results_again
from dpcohort.runs._seal import write_sealed
from dpcohort.tasks import Task

SHARE, BUDGETS = 0.05, (20.0, 30.0)
STAY = Task(kind="regression", outputs=1, bounds=(0.0, 30.0))


@cache
def visits(*, public=False, person=None):
    rng = np.random.default_rng(0)
    age, ward = rng.integers(20, 90, 900), rng.choice(["north", "south"], 900)
    sick = np.where(age + rng.normal(0, 10, 900) > 55, "yes", "no")
    rows = {"age": age, "ward": ward, "sick": sick, "who": rng.integers(0, 400, 900).astype(str)}
    return dataset_from_table(
        rows, label="sick", labels=["no", "yes"], client="ward", person=person, features=["age"],
        bounds={"age": (0, 110)}, test_share=0.4, test_public=public,
    )  # fmt: skip


def planned(data, evaluation=SHARE, budgets=BUDGETS, **contract):
    people = column_partition(data.record_clients)
    clients = Population.from_arrays(
        ids=people.names, sizes=people.sizes, epsilon=list(budgets), delta=1e-5
    )
    settings = Training(rounds=2, cohort_size=2, sampling_rate=0.5, dimension=4)
    return make_plan(
        clients, settings, seed=0, evaluation=evaluation, accountant=Contract(**contract)
    )


def trained(data, plan, **options):
    partition = column_partition(data.record_clients)
    given = {"device": "cpu", "partition": partition}
    return train(plan, "logistic", data, **{**given, **options})


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    """A private run whose clients paid for an evaluation; the tests leave it as it is."""
    folder = tmp_path_factory.mktemp("paid") / "run"
    trained(visits(), planned(visits()), out=folder)
    return folder


def test_a_private_run_tells_what_was_paid_for_and_nothing_else(private):
    run, result = Run.load(private), json.loads((private / "result.json").read_text())
    assert result["test"] is None
    assert result["withheld"]
    assert '"test"' not in (private / "rounds.jsonl").read_text()
    told = run.evaluation
    assert {"accuracy", "balanced_accuracy", "auc", "log_loss"} <= set(told["in_all"])
    exact = trained(visits(), planned(visits()), simulate=0)
    simulated = exact.evaluation["in_all"]["accuracy"]
    assert simulated["low"] < exact.test_accuracy < simulated["high"]
    assert simulated["value"] != exact.test_accuracy
    for receipt, whole in zip(run.receipts(), BUDGETS, strict=True):
        assert receipt.in_all().promised_epsilon == whole
        (paid,) = receipt.paid
        assert paid == (f"on an evaluation ({told['charge'][:8]})", SHARE * whole, SHARE * 1e-5)
        assert receipt.holds
        assert receipt.total_epsilon > 0.99 * whole
    assert verify_run(private, require="private").holds


def test_the_noise_is_all_that_the_charge_pays_for_and_no_more():
    for neighbours, sampler, sensitivity in (
        ("zero-out", "poisson", 1.0),
        ("replace-one", "fixed", 2.0),
    ):
        plan = planned(visits(), budgets=(0.5, 8.0), neighbours=neighbours, sampler=sampler)
        terms = EvaluationTerms.of(plan, visits())
        for whole, noise in zip((0.5, 8.0), terms.noise, strict=True):
            spends = gaussian_delta(epsilon=SHARE * whole, mu=sensitivity / noise)
            assert 0.999 * SHARE * 1e-5 < spends <= SHARE * 1e-5


def hostile(task, width, rng):
    """Outputs and a label that go as far as they can."""
    extremes = [np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0, 1e-40]
    outputs = rng.choice(extremes, width)
    if rng.random() < 0.5:
        outputs = np.where(rng.random(width) < 0.5, 40.0, -40.0)
    label = rng.choice([-1.0, 1.0, np.nan]) if task.bounds else rng.integers(-2, task.outputs + 2)
    if task.kind == "multi-label":
        label = rng.choice([-1.0, 0.0, 1.0, np.nan], width)
    return outputs, label


@pytest.mark.parametrize(
    "task",
    [
        Task(),
        Task(class_shares=(0.95, 0.05), class_weights=(1.0, 3.0)),
        Task(outputs=7),
        Task(outputs=120),
        STAY,
        Task(kind="counts", outputs=1, bounds=(0.0, 9.0)),
        Task(kind="multi-label", outputs=4),
    ],
    ids=["two", "rare", "several", "many", "numbers", "counts", "labels"],
)
def test_no_record_moves_what_is_released_by_more_than_the_sensitivity(task):
    rng = np.random.default_rng(3)
    questions = questions_of(task)
    drawn = [hostile(task, task.outputs, rng) for _ in range(400)]
    outputs, labels = (np.array(part) for part in zip(*drawn, strict=True))
    rows = questions.rows(outputs, labels)
    assert (np.linalg.norm(rows, axis=1) <= 1).all()
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("person", [None, "who"])
def test_neighbouring_test_sets_differ_by_less_than_the_clip_in_one_client(person):
    data = visits(person=person)
    plan = planned(data, unit="record" if person is None else "person")
    terms, keys = EvaluationTerms.of(plan, data), [bytes(32), bytes([1] * 32)]
    rng = np.random.default_rng(5)
    outputs = rng.normal(0, 2, (len(data.test_labels), 2))

    def released(data, outputs):
        return np.stack(list(terms.sums(data, outputs, keys).values()))

    before = released(data, outputs)
    for _ in range(20):
        unit = int(rng.integers(terms.records.sum()))
        own = [unit] if person is None else data.test_persons.rows[unit]
        changed, labels = outputs.copy(), data.test_labels.copy()
        for row in own:
            if row >= 0:
                changed[row], labels[row] = hostile(data.task, 2, rng)
        after = released(replace(data, test_labels=labels), changed)
        moved = np.linalg.norm(after - before, axis=1)
        # Replaced, not left out: twice the length of one.
        assert moved[int(data.test_clients[own[0]] == "north")] == 0
        assert moved.max() <= 2
    assert np.abs(before).max() > 1


class Mixes(torch.nn.Module):
    """Somebody's network that looks at all records it is given."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 2)

    def forward(self, inputs):
        return self.layer(inputs + inputs.mean(0))


def test_a_network_that_mixes_records_is_given_one_at_a_time():
    data = visits()
    plan, keys = planned(data), [bytes(32)] * 2
    job = make_job(
        plan, "logistic", data, device="cpu",
        partition=column_partition(data.clients),
    )  # fmt: skip
    job = replace(job, model=Mixes())
    weights = {name: tensor.numpy() for name, tensor in job.model.state_dict().items()}
    run = trained(data, plan)
    run.model, run.average = weights, {}

    def released(inputs):
        changed = replace(job, data=replace(data, test_inputs=inputs))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EvaluationTerms, "keys", lambda self, seed: keys)
            return np.stack(list(changed.noised_sums(run, job.evaluation).values()))

    other = data.test_inputs.copy()
    other[0] = 1e6
    assert np.linalg.norm(released(other) - released(data.test_inputs), axis=1).max() <= 2


def test_it_is_charged_on_disk_before_anything_is_computed_and_never_twice(tmp_path, monkeypatch):
    data, plan, out = visits(), planned(visits()), tmp_path / "run"

    def killed(self, run, terms):
        (path,) = (out / "charges").glob("*.json")
        charge, released = read_charge(path)
        assert [round(epsilon, 9) for epsilon, _ in charge.spent.values()] == [1.0, 1.5]
        assert released == {}
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Job, "noised_sums", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(data, plan, out=out)
    run = trained(data, plan, out=out, resume=True)
    assert run.evaluation is None
    assert any("paid for already" in words for words in run.warnings)
    assert len(list((out / "charges").iterdir())) == 1
    assert run.receipts()[0].charged_epsilon == 1.0
    assert verify_run(out).holds


def test_a_finished_run_that_is_resumed_says_the_same_again(private):
    before = Run.load(private).evaluation
    again = trained(visits(), planned(visits()), out=private, resume=True)
    assert again.evaluation == before
    assert len(list((private / "charges").iterdir())) == 1


def test_a_training_that_is_stopped_keeps_its_share_unspent(tmp_path):
    class Stop:
        def on_round(self, record, run):
            raise InputError.because("enough")

    plan = planned(visits())
    with pytest.raises(InputError, match="enough"):
        trained(visits(), plan, out=tmp_path / "run", callbacks=[Stop()])
    run = Run.load(tmp_path / "run")
    assert not (tmp_path / "run" / "charges").exists()
    receipt = run.receipts()[0]
    assert receipt.in_all().promised_epsilon == BUDGETS[0]
    assert receipt.charged_epsilon == 0
    assert "nothing; epsilon 19 at delta" in receipt.text()
    assert verify_run(tmp_path / "run").holds
    people = replace(plan.population, epsilon=np.array(BUDGETS), delta=np.array([1e-5] * 2))
    on = replan(tmp_path / "run", people, seed=1)
    assert on.past.paid.kept_of("north") == (SHARE * 20.0, SHARE * 1e-5)
    assert on.population.epsilon.tolist() == [19.0, 28.5]


@pytest.mark.parametrize("kind", ["distributed", "adaptive", "continued"])
def test_plans_of_all_kinds_keep_a_share_and_spend_it(kind, tmp_path):
    data, out, options = visits(), tmp_path / "run", {}
    plan = planned(data, trust="distributed") if kind == "distributed" else planned(data)
    people = replace(plan.population, epsilon=np.array(BUDGETS), delta=np.array([1e-5] * 2))
    if kind == "adaptive":
        plan = make_adaptive_plan(
            people, plan.training, rule="power-of-choice", seed=0, evaluation=SHARE
        )
    if kind == "continued":
        trained(data, plan, out=tmp_path / "first")
        larger = replace(people, epsilon=2 * people.epsilon, delta=2 * people.delta)
        plan, options = replan(tmp_path / "first", larger, rounds=1), {"after": tmp_path / "first"}
    run = trained(data, plan, out=out, **options)
    assert run.evaluation["in_all"]["accuracy"]["value"] is not None
    for receipt in run.receipts():
        assert receipt.holds
        assert len(receipt.paid) == 1 + (kind == "continued")
        if kind == "distributed":
            (own,) = receipt.paid_alone
            assert own > receipt.paid[0][1]
            assert receipt.total_alone_epsilon >= receipt.trust["alone_epsilon"] + own
    assert verify_run(out, require="private").findings == ()


def test_a_plan_that_spends_what_it_keeps_is_refused():
    plan = planned(visits())
    whole = replace(plan.population, epsilon=np.array(BUDGETS))
    with pytest.raises(BudgetExceededError, match="what the plan may spend come to 21"):
        replace(plan, population=whole)


def test_what_was_kept_and_spent_on_something_else_pays_for_nothing():
    plan = planned(visits())
    terms = EvaluationTerms.of(plan, visits())
    first = terms.charge((), private=True)
    elsewhere = replace(first, what="tuning")
    with pytest.raises(BudgetExceededError, match=r"'north' promised epsilon 20 .* in all"):
        terms.charge((elsewhere,), private=True)
    with pytest.raises(InputError, match="paid for already"):
        terms.charge((first,), private=True)


def test_numbers_that_the_sums_do_not_give_and_noise_that_is_too_small_are_found(private, tmp_path):
    import shutil

    def findings(change_result=None, change_file=None):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(private, folder)
        result = json.loads((folder / "result.json").read_text())
        (path,) = (folder / "charges").iterdir()
        if change_file is not None:
            charge, released = read_charge(path)
            write_charge(path, charge, **change_file(released))
        if change_result is not None:
            change_result(result["evaluation"])
        (folder / "result.json").unlink()
        write_sealed(folder, {key: value for key, value in result.items() if key != "seal"})
        return {one.kind: one.message for one in verify_run(folder).findings}

    def better(evaluation):
        evaluation["in_all"]["accuracy"]["value"] += 0.01

    def quiet(released):
        return {**released, "noise": [0.9 * one for one in released["noise"]]}

    def unpaid(evaluation):
        evaluation["charge"] = "0" * 64

    assert findings() == {}
    assert "is not what the sums" in findings(better)["mismatch"]
    assert "does not keep the epsilon 1" in findings(change_file=quiet)["overspent"]
    assert "charged to nobody" in findings(unpaid)["overspent"]
    assert "does not keep what" in findings(change_file=lambda released: {})["mismatch"]


def test_records_that_cannot_be_used_still_count():
    data = visits()
    labels = data.test_labels.copy()
    labels[::2] = -100
    plan = planned(data, budgets=(600, 600))
    sure = np.where(np.arange(2) == data.test_labels[:, None], 9.0, -9.0)
    whole = EvaluationTerms.of(plan, data)
    terms = EvaluationTerms.of(plan, replace(data, test_labels=labels))
    assert terms.records.tolist() == whole.records.tolist()
    assert terms.records.sum() == len(labels)
    sums = terms.sums(replace(data, test_labels=labels), sure, terms.keys(0)).values()
    _, found = combined(terms.questions, np.stack(list(sums)), terms.records, terms.noise)
    # Divided by all records, those that answer nothing are as good as a toss.
    assert 0.70 < found["accuracy"].value < 0.80


@pytest.mark.parametrize("task", [Task(), Task(outputs=4), STAY], ids=["two", "four", "numbers"])
def test_intervals_hold_the_truth_as_often_as_they_say(task):
    rng, repeats = np.random.default_rng(7), 300
    questions, records, noise = questions_of(task), np.array([2500, 400]), np.array([25.0, 6.0])

    def answers(count):
        if task.bounds:
            truth = np.clip(rng.normal(12, 6, count), 0, 30)
            return task.scaled(truth + rng.normal(0, 5, count))[:, None], task.scaled(truth)
        truth = rng.integers(0, task.outputs, count)
        outputs = rng.normal(0, 1, (count, task.outputs))
        outputs[np.arange(count), truth] += 1.5
        return outputs, truth

    pool = questions.rows(*answers(400_000))
    exact = questions.metrics(pool.mean(0) / questions.weights, 0 * questions.weights, 0.0)
    held = dict.fromkeys(exact, 0)
    for _ in range(repeats):
        sums = [pool[rng.integers(0, len(pool), n)].sum(0) for n in records]
        noisy = np.array(sums) + noise[:, None] * rng.normal(size=(2, pool.shape[1]))
        for name, one in combined(questions, noisy, records, noise)[1].items():
            held[name] += one.low is None or one.low <= exact[name].value <= one.high
    for name, count in held.items():
        # The mean AUC of several classes holds whatever these have in common.
        most = 1.0 if (name, task.outputs) == ("auc", 4) else 0.985
        assert 0.915 <= count / repeats <= most, name


def test_a_rare_class_that_the_noised_sums_tell_moves_the_threshold_for_all_alike():
    rng = np.random.default_rng(3)
    chance = rng.beta(0.4, 4.6, 40_000)
    truth = (rng.random(40_000) < chance).astype(np.int64)
    outputs, questions = np.log(np.stack([1 - chance, chance], axis=1)), questions_of(Task())
    sums = questions.rows(outputs, truth).sum(0)[None] + rng.normal(0, 9.0, len(questions.weights))
    given = (sums, np.array([40_000]), np.array([9.0]))
    told = informed(questions, *given)
    assert min(told.class_shares) == pytest.approx(truth.mean(), abs=0.02)
    shared = Task(class_shares=told.class_shares)
    exact = measure(shared, outputs, truth)
    found = combined(told, *given)[1]
    for name in ("balanced_accuracy", "accuracy", "auc"):
        assert found[name].low <= exact[name] <= found[name].high, name
    loud = (sums + rng.normal(0, 3e3, sums.shape), given[1], np.array([3e3]))
    assert informed(questions, *loud) is questions  # noise that tells nothing moves nothing


CONFIG = """
[population]
count = 2
epsilon = 4.0
[data]
name = "digits"
[evaluation]
share = {share}
"""


@pytest.mark.parametrize(
    ("share", "words"),
    [(0, "above 0 and below 1"), (1, "above 0 and below 1"), (0.96, "leaves nothing to train")],
)
def test_a_share_that_is_none_or_leaves_nothing_is_refused(share, words):
    with pytest.raises(InputError, match=words):
        loads_config(CONFIG.format(share=share))
    with pytest.raises(InputError, match=words):
        planned(visits(), evaluation=share)


TABLE = """
[population]
clients = "clients.csv"
[training]
rounds = 2
cohort_size = 2
sampling_rate = 0.5
[data]
name = "visits.csv"
label = "sick"
labels = ["no", "yes"]
client = "ward"
bounds = { age = [0, 110] }
"""


def test_a_private_config_asks_for_an_evaluation_unless_it_is_told_not_to(tmp_path):
    rows = [f"{20 + i % 70},{'ns'[i % 2]},{'yes' if i % 70 > 30 else 'no'}" for i in range(4000)]
    (tmp_path / "visits.csv").write_text("\n".join(["age,ward,sick", *rows]))
    (tmp_path / "clients.csv").write_text("id,epsilon,delta\nn,2,1e-5\ns,4,1e-5\n")
    (tmp_path / "visits.toml").write_text(TABLE)
    config = load_config(tmp_path / "visits.toml")
    for change, kept in (
        ("run.seed=0", 0.05),
        ("evaluation.share=0.1", 0.1),
        ("evaluation.ask=false", 0.0),
        ("run.simulate=0", 0.0),
        ("data.test_public=true", 0.0),
        ("data.public=true", 0.0),
    ):
        assert configured_plan(config.with_overrides([change])).past.paid.kept == kept, change
    (tmp_path / "visits.csv").write_text("\n".join(["age,ward,sick", *rows[:400]]))
    assert configured_plan(load_config(tmp_path / "visits.toml")).past.paid.kept == 0
    plan = configured_plan(config.with_overrides(["evaluation.ask=false"]))
    assert configured_job(config, plan=plan, device="cpu").evaluation is None
    config = config.with_overrides(["evaluation.share=0.05"])
    with pytest.raises(InputError, match=r"takes 0.1 of each budget, and the plan keeps 0 for it"):
        configured_job(config.with_overrides(["evaluation.share=0.1"]), plan=plan)
    with pytest.raises(InputError, match=r"takes 0 of each budget, and the plan keeps 0.05 for it"):
        configured_job(
            config.with_overrides(["evaluation.ask=false"]), plan=configured_plan(config)
        )


def test_public_test_records_cost_nothing():
    with_share = configured_plan(loads_config(CONFIG.format(share=0.05)))
    without = configured_plan(loads_config(CONFIG.split("[evaluation]")[0]))
    assert with_share == without
    assert make_job(planned(visits()), "logistic", visits(public=True), device="cpu",
                    partition=column_partition(visits().clients)).evaluation is None  # fmt: skip


def test_what_no_evaluation_can_be_paid_for_is_refused_before_anything_is_spent(tmp_path):
    data, out = visits(), tmp_path / "run"
    for changed, words in (
        (replace(data, test_clients=None), "does not say whose its test records are"),
        (replace(data, test_clients=np.full(len(data.test_labels), "west")), "has a test record"),
    ):
        with pytest.raises(InputError, match=words):
            trained(changed, planned(data), out=out)
    persons = visits(person="who")
    with pytest.raises(InputError, match="of which persons its test records are"):
        trained(replace(persons, test_persons=None), planned(persons, unit="person"), out=out)
    with pytest.raises(InputError, match="buys nothing but noise"):
        trained(data, planned(data, budgets=(1e-6, 1.0)), out=out)
    with pytest.raises(InputError, match="has no bounds"):
        questions_of(Task(kind="counts", outputs=1))
    with pytest.raises(InputError, match="no \\[data\\]"):
        configured_plan(loads_config(
            "[population]\ncount = 2\nepsilon = 4.0\ntotal_size = 90\n[evaluation]\nshare = 0.1\n"
        ))  # fmt: skip
    assert not out.exists()


def test_a_federation_refuses_a_plan_that_keeps_a_share():
    with pytest.raises(ValueError, match="mods of an app do not"):
        Federation(
            run="one", plan=planned(visits()), clients=None,
            model={"name": "logistic", "input_shape": [1], "classes": 2},
        )  # fmt: skip


def test_arrays_say_whose_their_test_records_are():
    data = dataset_from_arrays(
        "own", train_inputs=np.eye(4), train_labels=[0, 1, 0, 1], test_inputs=np.eye(4),
        test_labels=[0, 1, 0, 1], classes=2, clients=list("aabb"), test_clients=list("abbb"),
        persons=list("wwyy"), test_persons=list("uvvx"),
    )  # fmt: skip
    assert data.test_persons.means(np.arange(4.0)[:, None]).tolist() == [[0.0], [1.5], [3.0]]
    plan = make_plan(
        Population.from_arrays(ids=["a", "b"], sizes=[1, 1], epsilon=4.0, delta=1e-5),
        Training(rounds=1, cohort_size=1, batch_size=1), evaluation=0.5, seed=0,
        accountant=Contract(unit="person"),
    )  # fmt: skip
    assert EvaluationTerms.of(plan, data).records.tolist() == [1, 2]


def test_a_sum_of_several_has_the_noise_it_says_and_each_as_much_as_its_promise_needs():
    data = visits()
    plan = planned(data, budgets=(4.0, 8.0), trust="distributed")
    terms = EvaluationTerms.of(plan, data)
    assert terms.groups == ((0, 1),)
    outputs = np.random.default_rng(5).normal(0, 2, (len(data.test_labels), 2))
    sums = [next(iter(terms.sums(data, outputs, terms.keys(s)).values())) for s in range(60)]
    rows = terms.questions.rows(outputs, data.test_labels)
    weights = terms.shares.min() / terms.shares
    owner = np.searchsorted(plan.population.ids, data.test_clients)
    truth = (weights[owner][:, None] * rows).sum(0)
    away = (np.array(sums) - truth) / terms.shares.min()
    assert np.abs(away.mean(0)).max() < 1.0
    assert away.std() == pytest.approx(np.sqrt(2), rel=0.05)
    # What one record moves, over the noise of all honest shares, is what each paid for.
    moves = weights / (terms.shares.min() * np.sqrt(plan.noise.honest))
    for mu, (epsilon, delta) in zip(
        moves, (plan.past.paid.kept_of(name) for name in terms.names), strict=True
    ):
        assert 0.999 * delta < gaussian_delta(epsilon=epsilon, mu=mu) <= delta
    charge = terms.charge((), private=True)
    for name, own in zip(terms.names, terms.shares, strict=True):
        delta = charge.spent[name][1]
        assert gaussian_delta(epsilon=charge.alone[name], mu=1 / own) <= delta
        assert gaussian_delta(epsilon=0.999 * charge.alone[name], mu=1 / own) > delta
    north = replace(data, test_clients=np.full(len(data.test_labels), "north"))
    of_one = EvaluationTerms.of(plan, north)  # the other lends its noise
    (alone,) = of_one.sums(north, outputs, of_one.keys(0)).values()
    assert np.abs(alone - rows.sum(0) * weights[0]).max() < 6 * np.sqrt(2) * terms.shares.min()
    released = terms.released(np.array(sums[:1]))
    with pytest.raises(InputError, match="count on others than these"):
        results_again(planned(data, budgets=(4.0, 8.0)), data.task, charge, released)
    twice = {**released, "groups": [["north", "south"], ["north"]]}
    with pytest.raises(InputError, match="in two of its sums"):
        results_again(plan, data.task, charge, twice)
    with pytest.raises(InputError, match="does not keep the epsilon"):
        results_again(plan, data.task, replace(charge, alone={}), released)


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_arrays_of_a_config_say_whose_their_test_records_are(kind, tmp_path):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 2)).astype(np.float32)
    arrays = {
        "train_inputs": x, "train_labels": (x[:, 0] > 0).astype(int),
        "test_inputs": x[:90], "test_labels": (x[:90, 0] > 0).astype(int),
        "test_clients": np.repeat(["3", "7"], [30, 60]),
    }  # fmt: skip
    np.save(tmp_path / "who.npy", np.repeat([3, 7], 200))
    if kind == "npz":
        np.savez(tmp_path / "mine.npz", **arrays)
    else:
        (tmp_path / "mine").mkdir()
        for name, array in arrays.items():
            np.save(tmp_path / "mine" / f"{name}.npy", array)
    (tmp_path / "clients.csv").write_text("id,epsilon,delta,size\n3,8,1e-5,200\n7,8,1e-5,200\n")
    (tmp_path / "mine.toml").write_text(
        '[population]\nclients = "clients.csv"\n[training]\nrounds = 2\ncohort_size = 2\n'
        f'sampling_rate = 0.5\n[data]\nname = "./mine{".npz" * (kind == "npz")}"\nclasses = 2\n'
        'partition = "column"\ncolumn = "who.npy"\n[model]\nname = "logistic"\n'
        "[evaluation]\nshare = 0.2\n"
    )
    terms = configured_job(load_config(tmp_path / "mine.toml"), device="cpu").evaluation
    assert dict(zip(terms.names, terms.records.tolist(), strict=True)) == {"3": 30, "7": 60}


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_several_classes_or_labels_are_held_against_the_rest(kind):
    """Without noise the sums give what scikit-learn computes, but for bins; with it they cover."""
    from sklearn.metrics import roc_auc_score

    rng, count = np.random.default_rng(4), 6000
    outputs = rng.normal(0, 1.2, (count, 3))
    if kind == "classes":
        labels = (outputs + rng.gumbel(0, 1, outputs.shape)).argmax(1)
        questions = questions_of(Task(outputs=3))
        exact = roc_auc_score(labels, softmax(outputs, axis=1), multi_class="ovr")
        right = (outputs.argmax(1) == labels).mean()
    else:
        labels = (outputs + rng.logistic(0, 1, outputs.shape) > 0).astype(np.float32)
        questions = questions_of(Task(kind="multi-label", outputs=3))
        exact = roc_auc_score(labels, outputs)
        right = ((outputs > 0) == (labels > 0)).mean()
    rows, records = questions.rows(outputs, labels), np.array([count])
    plain = combined(questions, rows.sum(0)[None], records, np.zeros(1))[1]
    assert plain["accuracy"].value == pytest.approx(right, abs=1e-9)
    assert plain["auc"].value == pytest.approx(exact, abs=0.005)
    noise, covered = np.array([20.0]), 0
    for _ in range(100):
        sums = rows.sum(0)[None] + rng.normal(0, noise[0], (1, len(questions.weights)))
        found = combined(questions, sums, records, noise)[1]
        covered += found["auc"].low <= exact <= found["auc"].high
        assert found["accuracy"].low - 0.02 < right < found["accuracy"].high + 0.02
    assert covered >= 90
    assert found["auc"].high - found["auc"].low < 0.25


def test_what_two_clients_did_together_is_not_told_without_their_evaluations(tmp_path):
    data = visits(person="who")
    kept = trained(data, planned(data, unit="person"), out=tmp_path / "kept")
    free = trained(data, planned(data, evaluation=None, unit="person"), out=tmp_path / "free")
    assert another_client(free, 0).certified_epsilon is not None
    assert another_client(kept, 0).certified_epsilon is None
