# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "example", ["hospitals", "heart-disease", "paper-mnist", "paper-cifar10", "paper-figure"]
)
def test_what_new_writes_can_be_planned(terminal, tmp_path, example):
    path = tmp_path / "a.toml"
    terminal("new", path, "--from", example)
    assert "promises certified" in terminal("plan", path, "--rounds", 5)


def test_an_existing_file_is_kept(terminal, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("mine")
    terminal("new", path, code=2)
    assert path.read_text() == "mine"
    assert "--force" in terminal.errors
    terminal("new", path, "--force")
    assert path.read_text() != "mine"


PATIENTS = "age;note;smoker;hospital;outcome\n" + "".join(
    f"{20 + k % 60},5;text {k};{'yes' if k % 3 else 'no'};h{k % 3};{'sick' if k % 2 else 'well'}\n"
    for k in range(300)
)
OPTIONS = ("--label", "outcome", "--client", "hospital")


@pytest.fixture
def patients(tmp_path):
    (tmp_path / "patients.csv").write_text(PATIENTS)
    clients = "id;epsilon;delta;\nh0;0,5;1e-4;\nh1;4;1e-4;\nh2;8;1e-4;\n;;;\n"
    (tmp_path / "clients.csv").write_text(clients)
    return tmp_path / "patients.csv"


def test_no_cell_of_a_table_changes_what_a_config_says_of_its_columns(terminal, patients):
    kinds = ("--category", "smoker", "--leave-out", "note")
    text = terminal("new", "-", "--from", patients, *OPTIONS, *kinds)
    unnamed = terminal("new", "-", "--from", patients, *OPTIONS)
    # one record with a word for an age, a number for a note, another word for a smoker
    patients.write_text(PATIENTS.replace("20,5;text 0;no", "none;12;1e9", 1))
    assert terminal("new", "-", "--from", patients, *OPTIONS, *kinds) == text
    patients.write_text(
        "age;note;smoker;hospital;outcome\n" + "1;1;1;h0;1\n1;1;1;h1;1\n1;1;1;h2;1\n"
    )
    assert terminal("new", "-", "--from", patients, *OPTIONS) == unnamed
    terminal("new", "-", "--from", patients, *OPTIONS, "--category", "smokes", code=2)
    assert "Did you mean 'smoker'" in terminal.errors


def test_a_table_becomes_a_config_without_a_look_at_its_values(terminal, tmp_path, patients):
    path = tmp_path / "my.toml"
    kinds = ("--category", "smoker", "--leave-out", "note")
    said = terminal(
        "new", path, "--from", patients, *OPTIONS, *kinds, "--clients", tmp_path / "clients.csv"
    )
    assert "FILL IN" in said
    text = path.read_text()
    for value in ("sick", "well", "79,5", "79.5", "h1"):
        assert value not in text
    assert "left out: note" in text
    assert "cohort_size = 3 " in text  # as many as there are clients
    terminal("plan", path, code=2)
    assert "data.categories.smoker is not filled in" in terminal.errors
    assert "age = [0, 110]              # PROPOSED by its name" in text
    filled = text.replace("smoker = []", 'smoker = ["no"]')
    path.write_text(filled.replace("labels = []", 'labels = ["well", "sick"]'))
    assert "3 promises certified" in terminal("plan", path, "--rounds", 4)


def test_a_public_table_proposes_what_it_holds(terminal, tmp_path, patients):
    path = tmp_path / "my.toml"
    clients = tmp_path / "clients.csv"
    said = terminal("new", path, "--from", patients, *OPTIONS, "--clients", clients, "--public")
    assert f"dpcohort tune {path} -o {tmp_path / 'my-tuned.toml'}" in said
    assert "age = [20.5, 79.5]" in path.read_text()
    assert 'labels = ["sick", "well"]' in path.read_text()
    out = tmp_path / "run"
    said = terminal("train", path, "--out", out, "--set", "training.rounds=2", "--device", "cpu")
    assert "2 receipts, all promises hold" in said


def test_a_config_for_a_table_has_settings_of_its_clients(terminal, tmp_path, patients):
    path, clients = tmp_path / "my.toml", tmp_path / "clients.csv"
    clients.write_text("id,epsilon,delta\nh0,0.01,1e-4\nh1,4,1e-4\nh2,8,1e-4\n")
    said = terminal("new", path, "--from", patients, *OPTIONS, "--clients", clients, "--public")
    assert "sampling_rate = 1.0" in path.read_text()
    assert 'eta = "auto"  ' not in path.read_text()
    silent = "1 of 3 clients is never drawn: its noise would cost more than it adds"
    assert silent in said
    assert silent in terminal("plan", path)
    # A list that does not fit is told; what was asked for is there all the same.
    clients.write_text("id,epsilon,delta\nh0,1,1e-4\nh1,4,1e-4\n")
    said = terminal(
        "new", path, "--from", patients, *OPTIONS, "--clients", clients, "--public", "--force"
    )
    assert "put right: patients: 1 of the 3 clients in it are not in" in said
    assert 'eta = "auto"' in path.read_text()


def test_one_number_of_a_public_table_does_not_scale_all_others_away(terminal, tmp_path, patients):
    text = patients.read_text().replace("25,5;text 5;", "1000000;text 5;")
    assert "1000000" in text
    patients.write_text(text)
    options = ("--clients", tmp_path / "clients.csv", "--public")
    assert "age = [20.5, 79.5]" in terminal("new", "-", "--from", patients, *OPTIONS, *options)
    target = ("--label", "age", "--client", "hospital", "--task", "regression")
    text = terminal("new", "-", "--from", patients, *target, *options)
    assert "bounds = [20.5, 1000000]" in text  # what is predicted keeps its range


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--client", "hospital"), "--label is missing: the column to be predicted, one of age"),
        (("--label", "outcome"), "--client is missing"),
        (("--label", "outcom", "--client", "hospital"), "Did you mean 'outcome'"),
        ((*OPTIONS, "--task", "guess"), "one of classification"),
        ((*OPTIONS, "--task", "multi-label"), "--label is given more than once"),
    ],
)
def test_a_table_without_what_is_needed_is_refused(terminal, tmp_path, patients, options, words):
    terminal("new", tmp_path / "my.toml", "--from", patients, *options, code=2)
    assert words in terminal.errors
    assert not (tmp_path / "my.toml").exists()


def test_options_of_tables_are_for_tables(terminal, tmp_path):
    terminal("new", tmp_path / "my.toml", "--from", "digits", "--label", "a", code=2)
    assert "a table (.csv, .parquet)" in terminal.errors
    terminal("new", tmp_path / "my.toml", "--from", tmp_path / "no.csv", *OPTIONS, code=3)


def test_names_propose_bounds_and_say_what_to_do_with_a_column(terminal, tmp_path):
    """Of names alone: the cells are the same in every column."""
    numbered = ["q1", "q2", "q3"]
    names = ["row_id", "patient_age", "sex", "admission_date", "notes", "BMI", *numbered]
    names += ["income", "isSmoker"]
    header = ",".join([*names, "hospital", "outcome"])
    table, path = tmp_path / "wide.csv", tmp_path / "wide.toml"
    table.write_text(f"{header}\n" + f"{','.join('1' * len(names))},a,1\n" * 40)
    clients = tmp_path / "clients.csv"
    said = terminal("new", path, "--from", table, *OPTIONS, "--clients", clients)
    text = path.read_text()
    for line in (
        "patient_age = [0, 110]      # PROPOSED by its name",
        "BMI = [10, 70]              # PROPOSED by its name",
        "isSmoker = [0, 1]           # PROPOSED by its name",
        "admission_date = []         # FILL IN: dates",
        '"q*" = []                   # FILL IN',
        "sex = []                    # FILL IN",
        "# left out: row_id, notes",
    ):
        assert line in text
    for words in ("by their names dates", "row_id: by their names", "--range q1=0:1000"):
        assert words in said
    filled = text.replace('"q*" = []', '"q*" = [1, 5]').replace("income = []", "income = [0, 9]")
    filled = filled.replace("date = []", 'date = ["2015-01-01", "2025-12-31"]')
    path.write_text(
        filled.replace("sex = []", "sex = [1, 2]").replace("labels = []", "labels = [0, 1]")
    )
    clients.write_text("id,epsilon,delta\na,1,1e-4\n")
    assert "1 promise certified" in terminal("plan", path, "--rounds", 2)


def test_a_public_table_says_which_columns_are_of_no_use(terminal, tmp_path):
    rows = [f"{i},1,{'' if i % 3 else i},2020-01-{1 + i % 9:02},a,{i % 2}" for i in range(60)]
    table = tmp_path / "public.csv"
    table.write_text("id,same,empty,seen,hospital,outcome\n" + "\n".join(rows) + "\n")
    text = terminal("new", "-", "--from", table, *OPTIONS, "--public")
    assert 'seen = ["2020-01-01", "2020-01-09"]' in text
    assert "# left out: id" in text
    said = terminal("new", tmp_path / "my.toml", "--from", table, *OPTIONS, "--public")
    assert "same is the same in all rows" in said
    assert "empty: 67% of its cells are empty" in said
