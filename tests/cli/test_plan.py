# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

from dpcohort.plan import Plan


def test_json_holds_every_client(terminal, config):
    found = terminal.json("plan", config)
    assert found["clients"]["id"] == ["strict", "middle", "open", "gift"]
    assert sum(found["clients"]["draws"]) == 60
    assert found["clients"]["epsilon"][3] is None
    assert found["summary"]["certified"] == sum(
        d > 0
        for d, p in zip(found["clients"]["draws"], found["clients"]["public"], strict=True)
        if not p
    )


def test_a_list_of_clients_is_enough(terminal, clients):
    assert "4 clients" in terminal("plan", "--clients", clients)
    assert "4 clients" in terminal("plan", clients)


def test_other_clients_leave_the_paths_of_the_config_alone(
    terminal, config, clients, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "clients.csv").write_text("id,size,epsilon,delta\nother,60,1,1e-5\n")
    (tmp_path / "sub" / "config.toml").write_text(
        config.read_text() + '[data]\nname = "own.npz"\n[model]\nname = "logistic"\n'
    )
    dice = np.random.default_rng(0)
    np.savez(
        tmp_path / "sub" / "own.npz",
        train_inputs=dice.random((1800, 5), np.float32),
        train_labels=dice.integers(0, 2, 1800),
        test_inputs=dice.random((4, 5), np.float32),
        test_labels=[0, 1, 0, 1],
    )
    # The list on the command line is that of the current folder, the records lie by the config.
    found = terminal.json("plan", "sub/config.toml", "--clients", "clients.csv")
    assert found["clients"]["id"] == ["strict", "middle", "open", "gift"]


def test_the_saved_plan_is_the_one_shown(terminal, config, tmp_path):
    found = terminal.json("plan", config, "--out", tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").sha256 == found["summary"]["sha256"]
    assert found["summary"] == terminal.json("plan", tmp_path / "plan.json")["summary"]


def test_options_change_the_config(terminal, config):
    found = terminal.json(
        "plan", config, "--rounds", 5, "--rule", "uniform", "--set", "training.cohort_size=2"
    )
    assert sum(found["clients"]["draws"]) == 10
    assert found["clients"]["probability"] == [0.25] * 4


def test_a_large_delta_is_refused_unless_it_is_asked_for(terminal, clients):
    clients.write_text("id,size,epsilon,delta\nx,600,1,0.01\ny,600,1,1e-5\n")
    terminal("plan", clients, code=2)
    assert "delta" in terminal.errors
    assert "delta is at least 1/size for 1 client" in terminal(
        "plan", clients, "--allow-large-delta"
    ).replace("\n", " ")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "nothing to plan"),
        (["missing.toml"], "missing.toml"),
        (["--clients", "missing.csv"], "missing.csv"),
        (["CONFIG", "--set", "training.roundz=3"], "rounds"),
        (["CONFIG", "--set", "training.rounds"], "training.rounds"),
        (["CONFIG", "--batch-size", "450"], "'open' has 400 records"),
        (["CONFIG", "--rule", "privacy-awar"], "privacy-aware"),
        (["CONFIG", "--accountant", "loose"], "tight"),
        (["CONFIG", "--picture", "plan.gif"], ".png"),
        (["CONFIG", "--out", "none/plan.json"], "none"),
        (["CONFIG", "--rounds", "many"], "--rounds"),
    ],
)
def test_bad_options_end_with_code_2_and_a_message(
    terminal, config, tmp_path, monkeypatch, options, words
):
    monkeypatch.chdir(tmp_path)
    terminal("plan", *[config if o == "CONFIG" else o for o in options], code=2)
    assert words in terminal.errors
    assert sorted(os.listdir(tmp_path)) == ["clients.csv", "config.toml"]


def test_paper_noise_that_does_not_certify_is_refused_or_lifted(terminal, tmp_path):
    clients = tmp_path / "loose.csv"
    clients.write_text("id,size,epsilon,delta\nloose,600,14,1e-5\nother,600,14,1e-5\n")
    settings = ["plan", clients, "--accountant", "paper", "--rounds", 1, "--cohort-size", 2]
    settings += ["--batch-size", 32, "--rule", "unbiased"]
    terminal(*settings, "--out", tmp_path / "plan.json", code=4)
    assert "loose" in terminal.errors
    assert "lift" in terminal.errors
    assert not (tmp_path / "plan.json").exists()
    assert "lifted" in terminal(*settings, "--guard", "lift", "--out", tmp_path / "plan.json")


def test_a_finished_plan_cannot_be_changed(terminal, config, tmp_path):
    terminal("plan", config, "--out", tmp_path / "plan.json")
    terminal("plan", tmp_path / "plan.json", "--rounds", 3, code=2)
    assert "finished plan" in terminal.errors


def test_an_edited_plan_fails_verification(terminal, config, tmp_path):
    path = tmp_path / "plan.json"
    terminal("plan", config, "--out", path)
    path.write_text(path.read_text().replace('"clip": 1.0', '"clip": 1.5'))
    terminal("plan", path, code=1)
    assert "changed after it was written" in terminal.errors


def test_ids_with_markup_are_inert(terminal, clients):
    clients.write_text("id,size,epsilon,delta\n[red]x[/red],600,1,1e-5\n[/],500,1,1e-5\n")
    shown = terminal("plan", clients)
    assert "[red]x[/red]" in shown
    assert "[/]" in shown


@pytest.mark.parametrize("option", ["--out", "--picture"])
def test_what_is_read_is_not_written_over(terminal, config, clients, option):
    before = config.read_text(), clients.read_text()
    terminal("plan", config, option, config, code=2)
    terminal("plan", "--clients", clients, option, clients, code=2)
    assert (config.read_text(), clients.read_text()) == before


def test_nothing_is_written_if_the_picture_cannot_be(terminal, config, tmp_path):
    terminal("plan", config, "--picture", tmp_path / "a.foo", "-o", tmp_path / "p.json", code=2)
    assert not (tmp_path / "p.json").exists()


def test_a_plan_with_too_little_noise_is_noticed_when_it_is_read(terminal, config, tmp_path):
    terminal("plan", config, "-o", tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    half = plan.noise_multipliers / 2
    dataclasses.replace(plan, noise=dataclasses.replace(plan.noise, multipliers=half)).save(
        tmp_path / "forged.json"
    )
    terminal("plan", tmp_path / "forged.json", code=1)
    assert "would spend more than promised" in terminal.errors


def test_a_batch_larger_than_its_client_is_named_by_file_line_and_field(terminal, clients):
    clients.write_text("id,size,epsilon,delta,batch_size\na,600,1,1e-5,60\nb,500,1,1e-5,501\n")
    terminal("plan", clients, code=2)
    for part in (str(clients), "line 3", "batch_size", "501", "500"):
        assert part in terminal.errors


@pytest.mark.parametrize(
    ("colluding", "dropouts", "words"),
    [
        (2, 2, "masked sums stand at most 1 drop-out"),
        (5, 0, "each client counts on its own noise alone"),
        (2, 1, ""),
    ],
)
def test_a_distributed_plan_says_if_no_masked_sums_can_carry_it(
    terminal, tmp_path, colluding, dropouts, words
):
    clients = tmp_path / "clients.csv"
    rows = [f"c{k},400,1,1e-5" for k in range(6)]
    clients.write_text("\n".join(["id,size,epsilon,delta", *rows]))
    trust = {"trust": "distributed", "colluding": colluding, "dropouts": dropouts}
    changes = [word for key, value in trust.items() for word in ("--set", f"privacy.{key}={value}")]
    shown = terminal("plan", clients, "--rounds", 4, "--cohort-size", 6, *changes)
    assert ("for simulations only" in shown) == bool(words)
    assert words in shown
