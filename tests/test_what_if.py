# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort.accounting import Contract
from dpcohort.cli import main
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.explain import Scenario, noise_gains, sweep, value_of_trust
from dpcohort.plan import make_plan
from dpcohort.training import Training


@pytest.fixture
def scenario():
    return Scenario(
        population=Population.from_arrays(
            sizes=[500] * 8, epsilon=np.linspace(0.2, 5, 8), delta=1e-5, ids=list("abcdefgh")
        ),
        training=Training(rounds=30, cohort_size=4, batch_size=50),
        rule_settings={},
        contract=Contract.of("tight"),
    )


def test_more_eta_moves_more_draws_and_lowers_the_noise(scenario):
    outcomes = sweep(scenario, "eta", [0.0, 1e-3, 1e-1, 1e3])
    bias = [o["bias"] for o in outcomes]
    noise = [o["noise_to_clip"] for o in outcomes]
    assert bias == sorted(bias)
    assert noise == sorted(noise, reverse=True)
    assert bias[0] == 0


def test_a_bias_cap_is_met(scenario):
    for outcome in sweep(scenario, "bias_cap", [0.0, 0.1, 0.3]):
        assert outcome["bias"] == pytest.approx(outcome["value"], abs=1e-9)


def test_a_sweep_of_one_value_is_the_plan(scenario):
    (outcome,) = sweep(scenario, "rounds", [60], client="c")
    plan = make_plan(scenario.population, Training(rounds=60, cohort_size=4, batch_size=50), seed=0)
    assert outcome["client_probability"] == plan.selection.probabilities[2]
    assert outcome["noise_to_clip"] == pytest.approx(plan.noise_to_clip, rel=0.15)


def test_a_larger_epsilon_of_one_client_raises_its_probability(scenario):
    p = [o["client_probability"] for o in sweep(scenario, "epsilon", [0.5, 2, 8], client="a")]
    assert p == sorted(p)
    assert p[0] < p[-1]


def test_the_tight_accountant_needs_less_noise(scenario):
    paper, tight = sweep(scenario, "accountant", ["paper", "tight"])
    assert tight["noise_to_clip"] < paper["noise_to_clip"] / 2


def test_batch_sizes(scenario):
    small, large = sweep(scenario, "batch_size", [10, 100])
    assert large["noise_to_clip"] < small["noise_to_clip"]


def test_eta_replaces_a_bias_cap(scenario):
    from dataclasses import replace

    capped = replace(scenario, rule_settings={"bias_cap": 0.1})
    (outcome,) = sweep(capped, "eta", [5.0])
    assert outcome["bias"] > 0.1


@pytest.mark.parametrize(
    ("setting", "values", "client", "message"),
    [
        ("etta", [1], None, "eta"),
        ("epsilon", [1], None, "needs a client"),
        ("epsilon", [-1], "a", "epsilon"),
        ("epsilon", [1], "zz", "zz"),
        ("rounds", [0], None, "rounds"),
        ("batch_size", [10_000], None, "batch"),
        ("accountant", ["tite"], None, "tight"),
        ("eta", [-1.0], None, "eta"),
    ],
)
def test_bad_sweeps_are_named(scenario, setting, values, client, message):
    with pytest.raises(InputError, match=message):
        sweep(scenario, setting, values, client=client)


def test_trust_is_compared_for_a_list_of_clients_a_config_and_a_plan(tmp_path, capsys):
    """Local, half colluding and none, in cohorts as set and with all clients; the same numbers."""
    clients = tmp_path / "clients.csv"
    rows = [f"c{i},400,{epsilon},1e-5" for i, epsilon in enumerate([0.1, 0.3, 1, 1, 3, 3])]
    clients.write_text("\n".join(["id,size,epsilon,delta", *rows]))
    planned = tmp_path / "plan.json"
    given = ["--set", "training.cohort_size=3", "--set", "training.rounds=20"]
    assert main(["plan", str(clients), *given, "--out", str(planned)]) == 0
    capsys.readouterr()
    told = []
    for source in ([str(clients), *given], [str(planned)]):
        assert main(["what-if", "trust", *source, "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    rows = told[0]["outcomes"]
    seen = [(row["trust"], row["cohort_size"], row["honest"]) for row in rows]
    assert seen == [
        ("local", 3, 1),
        ("distributed", 3, 2),
        ("distributed", 3, 3),
        ("distributed", 6, 3),
        ("distributed", 6, 6),
    ]
    for row in rows[1:]:
        pays = row["pays_from"] is not None and row["honest"] >= row["pays_from"]
        assert (row["gain"] > 1) == pays
    assert main(["explain", str(planned)]) == 0
    assert "honest" in capsys.readouterr().out


def test_the_trust_of_a_config_itself_is_among_the_outcomes(scenario):
    from dataclasses import replace

    def seen(**trust):
        found = value_of_trust(replace(scenario, contract=Contract(trust="distributed", **trust)))
        return [(one.cohort_size, one.honest) for one in found.outcomes[1:]]

    assert seen(colluding=1) == [(4, 2), (4, 3), (4, 4), (8, 4), (8, 7), (8, 8)]
    assert seen(colluding=2) == [(4, 2), (4, 4), (8, 4), (8, 6), (8, 8)]
    assert seen(colluding=1, dropouts=1) == [(4, 2), (4, 3), (8, 3), (8, 6), (8, 7)]


def test_trust_is_not_compared_where_no_noise_can_be_distributed(tmp_path, capsys):
    path = tmp_path / "my.toml"
    path.write_text(
        "population = { count = 6, size = 60, epsilon = 1.0 }\n"
        '[training]\ncohort_size = 1\n[aggregation]\nrule = "trimmed-mean"\n'
    )
    assert main(["what-if", "trust", str(path)]) == 2
    assert "trimmed-mean needs single updates" in " ".join(capsys.readouterr().err.split())
    assert main(["what-if", "trust", str(path), "--set", "aggregation.rule=mean"]) == 0


def test_the_expected_noise_of_trust_is_that_of_the_plan():
    rng = np.random.default_rng(0)
    people = Population.from_arrays(sizes=[500] * 8, epsilon=rng.uniform(0.2, 2, 8), delta=1e-5)
    training = Training(rounds=80, cohort_size=8, sampling_rate=1.0, dimension=100)
    scenario = Scenario(
        population=people, training=training, rule_settings={}, contract=Contract.of("tight")
    )
    half, none = value_of_trust(scenario).outcomes[1:]
    for outcome, colluding in ((half, 0.5), (none, 0)):
        contract = Contract(trust="distributed", colluding=colluding)
        plan = make_plan(people, training, accountant=contract, seed=0)
        assert plan.noise.only_sums
        added = plan.noise.pool.share * np.sqrt(training.dimension / 8)
        assert outcome.noise_to_clip == pytest.approx(added, rel=0.1)


@pytest.mark.parametrize("trust", ["local", "distributed"])
def test_what_a_larger_budget_takes_off_the_noise_is_what_the_changed_scenario_has(trust):
    people = Population.from_arrays(sizes=[600] * 4, epsilon=[0.3, 0.5, 1, 4], delta=1e-5)
    training = Training(rounds=50, cohort_size=3, sampling_rate=0.2, dimension=100)
    scenario = Scenario(
        population=people,
        training=training,
        rule="unbiased",
        rule_settings={},
        contract=Contract(trust=trust),
    )
    for gain in noise_gains(scenario):
        tried = [gain.epsilon, 2 * gain.epsilon, 1.001 * gain.epsilon]
        now, twice, near = (
            found["noise_to_clip"]
            for found in sweep(scenario, "epsilon", tried, client=gain.client)
        )
        assert gain.noise == pytest.approx(twice / now)
        assert gain.slope == pytest.approx(1e3 * ((near / now) ** 2 - 1), abs=1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "training.local_steps=2"], "local_steps"),
        (["--values", "1,2"], "leave --values"),
        (["--client", "c0"], "leave --values"),
        (["--set", "selection.rule=power-of-choice"], "chooses each cohort"),
    ],
)
def test_trust_that_cannot_be_compared_is_refused(words, said, tmp_path, capsys):
    clients = tmp_path / "clients.csv"
    clients.write_text("id,size,epsilon,delta\nc0,400,1,1e-5\nc1,400,2,1e-5\n")
    assert main(["what-if", "trust", str(clients), *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
