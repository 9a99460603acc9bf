# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpcohort.accounting import Contract
from dpcohort.config import Config, commented_config, config_for_clients, load_config, loads_config
from dpcohort.config._settings import apply_overrides, config_for_folder
from dpcohort.errors import DpcohortError, FileFormatError, InputError
from dpcohort.training import Training

POPULATION = "[population]\ncount = 10\ntotal_size = 1000\nepsilon = 1.0\n"


def load(tmp_path: Path, text: str | bytes) -> Config:
    path = tmp_path / "plan.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_config(path)


def test_what_is_left_out_has_the_defaults_of_the_package(tmp_path: Path):
    config = load(tmp_path, POPULATION)
    assert config.training == Training()
    assert (config.rule, config.rule_settings) == ("privacy-aware", {})
    assert config.contract == Contract()
    assert (config.noise_model, config.guard) == ("exact", "refuse")
    assert (config.draws, config.seed) == ("systematic", None)
    assert len(config.population()) == 10


def test_what_is_written_arrives(tmp_path: Path):
    config = load(
        tmp_path,
        POPULATION
        + "[training]\nrounds = 7\nclip = 2\nbatch_size = 9\n"
        + '[selection]\nrule = "privacy-aware"\neta = 3\nfloor = 0.1\nnoise_model = "paper"\n'
        + '[privacy]\naccountant = "paper"\nguard = "lift"\n'
        + '[schedule]\ndraws = "independent"\nseed = 5\n',
    )
    assert config.training == Training(rounds=7, clip=2.0, batch_size=9)
    assert (config.rule, config.rule_settings) == ("privacy-aware", {"eta": 3, "floor": 0.1})
    assert config.contract == Contract.of("paper")
    assert (config.noise_model, config.guard) == ("paper", "lift")
    assert (config.draws, config.seed) == ("independent", 5)


@pytest.mark.parametrize("text", ["\ufeff" + POPULATION, POPULATION.replace("\n", "\r\n")])
def test_files_from_other_editors(tmp_path: Path, text: str):
    assert len(load(tmp_path, text).population()) == 10


BAD_FILES = [
    ("[population", 1, "this is not valid TOML: Expected ']'"),
    (POPULATION + "count = 3\n", 5, "this is not valid TOML: Cannot overwrite a value"),
    (POPULATION + "seed = 1 2\n", 5, "this is not valid TOML"),
    (POPULATION + "seed = " + "9" * 5000, None, "a whole number has too many digits"),
    ("a = " + "[" * 100_000, None, "nested too deeply"),
    ("", None, r"the table \[population\] is missing"),
    (POPULATION.encode("utf-16"), None, "UTF-16"),
    (POPULATION.encode() + b"x\0", 5, "NUL byte"),
    (b"[population]\n\xff", 2, "0xff is not valid UTF-8"),
    ("#" * 2_000_000, None, "at most 1,000,000"),
    ("population = 3", 1, r"population = 3 .* a table, under its own line \[population\]"),
    ("[populaton]\n" + POPULATION, 1, "populaton is not a known key. Did you mean 'population'"),
    (POPULATION + "[training]\nrouns = 3\n", 6, "training.rouns is not .* Did you mean 'rounds'"),
    (POPULATION + "rounds = 3\n", 5, r"population.rounds is not .* It belongs under \[training\]"),
    (POPULATION + "[training]\nrounds = 0\n", 6, "training.rounds = 0 .* at least 1"),
    (POPULATION + '[training]\nrounds = "7"\n', 6, "training.rounds = '7' .* a whole number"),
    (POPULATION + "[training]\nrounds = 7.5\n", 6, r"training.rounds = 7\.5 .* a whole number"),
    (POPULATION + "[training]\nclip = true\n", 6, "training.clip = True .* a number"),
    (POPULATION + "[training]\nclip = nan\n", 6, "training.clip = nan .* a finite number"),
    (
        POPULATION + "[training]\nbatch_size = 5\nsampling_rate = 0.1\n",
        5,
        "training: batch_size and sampling_rate are both given",
    ),
    (POPULATION + '[privacy]\naccountant = "tigth"\n', 6, "accountant = 'tigth'.*mean 'tight'"),
    (
        POPULATION + '[privacy]\nsampler = "fixed"\nneighbours = "zero-out"\n',
        7,
        "privacy.neighbours = 'zero-out' .* 'replace-one' when sampler = 'fixed'",
    ),
    (POPULATION + '[selection]\nrule = "unbiassed"\n', 6, "selection.rule = .*mean 'unbiased'"),
    (POPULATION + "[selection]\nrule = 3\n", 6, "selection.rule = 3 .* text in quotes"),
    (
        POPULATION + '[selection]\nrule = "uniform"\ncap = 0.2\n',
        7,
        r"selection.cap is not a setting of the rule uniform\. It takes none",
    ),
    (POPULATION + "[selection]\nthreshold = 2\n", 6, "selection.threshold is not a .*It takes eta"),
    (POPULATION + '[selection]\nrule = "threshold"\n', 5, "needs the setting 'threshold'"),
    (POPULATION + "[selection]\neta = -1\n", 6, "selection.eta = -1"),
    (POPULATION + '[selection]\neta = "automatic"\n', 6, "selection.eta = 'automatic'"),
    (POPULATION + "[selection]\neta = [1]\n", 6, r"selection.eta = \[1\]"),
    (POPULATION + "[selection]\neta = 1\nbias_cap = 1\n", 5, "are both given; keep one"),
    (POPULATION + "[selection]\nfloor = 2\n", 6, r"selection.floor = 2"),
    (POPULATION + '[selection]\nnoise_model = "exat"\n', 6, "'exat'.*exact, paper.*mean 'exact'"),
    (POPULATION + "[schedule]\nseed = -1\n", 6, "schedule.seed = -1"),
    (POPULATION + '[schedule]\ndraws = "indep"\n', 6, "schedule.draws = 'indep'"),
    (POPULATION.replace("1.0", "inf"), 4, "population.epsilon = inf .* mark the client public"),
    (POPULATION.replace("1.0", '"low"'), 4, "population.epsilon = 'low' .* uniform-0-1"),
    (POPULATION.replace("1.0", "2020-01-01"), 4, "population.epsilon = "),
    (POPULATION + "allow_large_delta = 1\n", 5, "allow_large_delta = 1 .* true or false"),
    (
        POPULATION + '[data]\nname = "t.csv"\nfeatures = "age"\n',
        7,
        r"data.features = 'age' .* a list in brackets",
    ),
    (
        POPULATION + "public = 3\n",
        5,
        r"a list of tables, each under its own line \[\[population.pub",
    ),
    (
        POPULATION + "[[population.public]]\ncount = 2\n",
        5,
        r"population.public\[0\].size is missing",
    ),
    (POPULATION + '[[population.public]]\nsize = "x"\n', 6, r"population.public\[0\].size = 'x'"),
    (POPULATION + 'clients = "a.csv"\n', 5, "population.clients and count are both given"),
]


@pytest.mark.parametrize(("text", "line", "words"), BAD_FILES)
def test_a_bad_file_is_one_clear_message(tmp_path: Path, text, line: int | None, words: str):
    with pytest.raises(FileFormatError, match=words) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert caught.value.line == line
    assert caught.value.exit_code == 2
    assert "plan.toml" in message
    assert len(message) < 800
    for jargon in ("pydantic", "http", "Input should", "_type", "Section"):
        assert jargon not in message


def test_several_problems_are_listed_with_their_lines(tmp_path: Path):
    with pytest.raises(FileFormatError) as caught:
        load(tmp_path, POPULATION + "x = 1\n[training]\nrounds = 'a'\nclop = 2\n")
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("plan.toml: 3 problems")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["line 5", "line 7", "line 8"]


def test_a_missing_file(tmp_path: Path):
    with pytest.raises(FileFormatError, match=r"none\.toml: there is no such file"):
        load_config(tmp_path / "none.toml")


def test_clients_that_cannot_be_drawn_are_told_with_the_file(tmp_path: Path):
    config = load(tmp_path, POPULATION + "delta = 0.1\n")
    with pytest.raises(FileFormatError, match=r"plan\.toml, line 5: population\.delta of client"):
        config.population()


def test_a_list_of_clients_is_found_beside_the_file(tmp_path: Path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "c.csv").write_text("id,size,epsilon,delta\na,500,1,1e-5\n")
    config = load(tmp_path, '[population]\nclients = "data/c.csv"\n')
    assert config.population().ids == ("a",)
    (tmp_path / "data" / "c.csv").write_text("id,size,epsilon,delta\na,500,0,1e-5\n")
    with pytest.raises(FileFormatError, match=r"c\.csv, line 2: epsilon = '0'"):
        config.population()


def test_overrides_change_what_they_name(tmp_path: Path):
    config = load(tmp_path, POPULATION + "[selection]\neta = 2\n[training]\nbatch_size = 5\n")
    changed = config.with_overrides(
        ["training.rounds=200", "selection.rule=unbiased", "training.sampling_rate=0.5"]
    )
    assert changed.training == Training(rounds=200, sampling_rate=0.5)
    assert (changed.rule, changed.rule_settings) == ("unbiased", {})
    assert config.training == Training(batch_size=5)
    assert config.with_overrides([]) == config


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.rounds=0", r"plan\.toml with training\.rounds=0: training\.rounds = 0 "),
        ("training.rouns=5", "training.rouns is not a known key. Did you mean 'rounds'"),
        ("trainin.rounds=5", "trainin is not a known key. Did you mean 'training'"),
        ("training.rounds=many", "training.rounds = 'many' .* a whole number"),
        ("training.rounds", r"--set = 'training\.rounds'"),
        ("population.clients=c.csv", "population.clients and count are both given"),
    ],
)
def test_an_override_that_cannot_be_used(tmp_path: Path, override: str, words: str):
    with pytest.raises(InputError, match=words) as caught:
        load(tmp_path, POPULATION).with_overrides([override])
    assert getattr(caught.value, "line", None) is None  # it does not stand in the file


def test_a_problem_of_the_file_keeps_its_line_beside_an_override(tmp_path: Path):
    config = load(tmp_path, POPULATION + '[privacy]\nneighbours = "zero-out"\n')
    words = r"with privacy.sampler=fixed, line 6: privacy.neighbours = 'zero-out'"
    with pytest.raises(FileFormatError, match=words):
        config.with_overrides(["privacy.sampler=fixed"])


def test_other_clients_for_the_same_settings(tmp_path: Path, monkeypatch):
    (tmp_path / "settings").mkdir()
    config = load(
        tmp_path / "settings", POPULATION + "allow_large_delta = true\n[training]\nrounds = 3"
    )
    (tmp_path / "c.csv").write_text("id,size,epsilon,delta\na,500,1,0.5\n")
    monkeypatch.chdir(tmp_path)
    changed = config.with_clients("c.csv").with_overrides(["training.clip=2"])
    assert changed.training == Training(rounds=3, clip=2.0)
    assert changed.population().ids == ("a",)


def test_clients_without_a_file_of_settings(tmp_path: Path):
    path = tmp_path / "c.csv"
    path.write_text("id,size,epsilon,delta\na,500,1,1e-5\n")
    config = config_for_clients(path).with_overrides(["training.rounds=3"])
    assert (config.path, config.training) == (None, Training(rounds=3))
    assert len(config.population()) == 1
    with pytest.raises(FileFormatError, match=r"^settings with training\.rounds=0: training"):
        config.with_overrides(["training.rounds=0"])


fuzz = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SAMPLE = commented_config("hospitals")


@fuzz
@given(content=st.binary(max_size=100))
def test_random_bytes_are_never_a_config(tmp_path: Path, content: bytes):
    with pytest.raises(DpcohortError):
        load(tmp_path, content)


@fuzz
@given(
    place=st.integers(0, len(SAMPLE)),
    length=st.integers(0, 30),
    text=st.sampled_from(["", "x", "=", "[", "]", '"', "\n", "-1", "1e999", "nan", "{", "\0", "é"]),
)
def test_a_changed_config_loads_or_is_refused(tmp_path: Path, place: int, length: int, text: str):
    changed = SAMPLE[:place] + text + SAMPLE[place + length :]
    try:
        load(tmp_path, changed).population()
    except DpcohortError as error:
        refused = error
    else:
        return
    assert refused.exit_code == 2
    assert "plan.toml" in str(refused)


@fuzz
@given(override=st.text(max_size=20), key=st.sampled_from(["", "training.rounds=", "population."]))
def test_random_overrides_change_or_are_refused(tmp_path: Path, override: str, key: str):
    config = config_for_clients("clients.csv")
    try:
        config.with_overrides([key + override])
    except DpcohortError as error:
        refused = error
    else:
        return
    assert refused.exit_code == 2


VALUES = {
    "training": {"rounds": 10, "batch_size": 64},
    "selection": {"rule": "privacy-aware", "eta": 2.0, "floor": 0.1},
    "population": {"public": [{"size": 5}]},
}


def changed(*overrides: str):
    return apply_overrides(VALUES, overrides)[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200", 200),
        ("0.5", 0.5),
        ("1_000", 1000),
        ("true", True),
        ('"a b"', "a b"),
        ("word", "word"),
        ("mixture-0.5-10", "mixture-0.5-10"),
        ("data/my clients.csv", "data/my clients.csv"),
        ("[1, 2]", [1, 2]),
        ("{ a = 1 }", {"a": 1}),
        (" 3 ", 3),
    ],
)
def test_values_are_toml_and_single_words_need_no_quotes(text: str, value: object):
    assert changed(f"training.rounds={text}")["training"]["rounds"] == value


def test_the_original_is_left_alone():
    changed("population.public.0.size=9", "training.rounds=1")
    assert VALUES["training"]["rounds"] == 10
    assert VALUES["population"]["public"] == [{"size": 5}]


def test_later_ones_win_and_new_tables_are_made():
    assert changed("schedule.seed=1", "schedule.seed=2")["schedule"] == {"seed": 2}


def test_an_entry_of_a_list_is_reached_by_its_position():
    assert changed("population.public.0.size=9")["population"]["public"] == [{"size": 9}]


def test_an_empty_value_takes_the_key_out():
    assert "rounds" not in changed("training.rounds=")["training"]
    assert changed("training.clip=")["training"] == VALUES["training"]


def test_keys_that_exclude_each_other_take_each_others_place():
    assert changed("training.sampling_rate=0.1")["training"] == {"rounds": 10, "sampling_rate": 0.1}
    assert "eta" not in changed("selection.bias_cap=0.3")["selection"]
    both = changed("training.batch_size=3", "training.sampling_rate=0.1")["training"]
    assert {"batch_size", "sampling_rate"} <= set(both)  # asked for both: the check will say so


def test_another_rule_drops_the_settings_of_the_old_one():
    assert changed("selection.rule=unbiased")["selection"] == {"rule": "unbiased"}
    assert changed("selection.rule=privacy-aware")["selection"] == VALUES["selection"]
    threshold = changed("selection.threshold=2", "selection.rule=threshold")["selection"]
    assert threshold == {"rule": "threshold", "threshold": 2}


def test_where_nobody_is_counted_on_nobody_colludes():
    distributed = {"privacy": {"trust": "distributed", "colluding": 2, "dropouts": 1}}
    assert apply_overrides(distributed, ["privacy.trust=local"])[0] == {
        "privacy": {"trust": "local"}
    }


def test_paths_of_a_copy_lead_to_the_same_files(tmp_path: Path):
    (tmp_path / "tables").mkdir()
    for name in ("tables/wards.csv", "clients.csv"):
        (tmp_path / name).touch()
    elsewhere = (tmp_path / "clients.csv").as_posix()
    text = (
        '[population]\nclients = "clients.csv"\n'
        '[data]\nname = "tables/wards.csv"\ndir = "tables"\nlabel = "sick"\n'
        f'[model]\nname = "logistic"\noptions = {{ weights = "{elsewhere}" }}\n'
    )
    copied = tomllib.loads(config_for_folder(text, tmp_path, tmp_path / "runs" / "one"))
    assert copied == {
        "population": {"clients": "../../clients.csv"},
        "data": {"name": "../../tables/wards.csv", "dir": "../../tables", "label": "sick"},
        "model": {"name": "logistic", "options": {"weights": elsewhere}},
    }
    assert config_for_folder(text, None, tmp_path / "runs") == text


@pytest.mark.parametrize(
    "override",
    ["training.rounds", "=3", "training.=3", ".rounds=3", "", "a..b=3", "training.rounds=[1",
     "training.rounds=1\nclip=2", "training.rounds=1,5", "training.rounds=" + "[" * 10_000,
     "training.rounds=" + "9" * 5_000],
)  # fmt: skip
def test_what_is_not_a_key_and_a_value(override: str):
    with pytest.raises(
        InputError, match=r"--set = .* a key and a value, as in training\.rounds=200"
    ):
        changed(override)


@pytest.mark.parametrize(
    "override",
    [
        "training.rounds.x=3",
        "population.public.7.size=3",
        "population.public.size=3",
        "training.0=1",
    ],
)
def test_what_does_not_lead_to_a_key(override: str):
    with pytest.raises(InputError, match=r"--set = .* a key inside an existing table"):
        changed(override)


def test_clients_alone_are_a_config_that_says_nothing_else(tmp_path: Path):
    clients = tmp_path / "clients.csv"
    named = loads_config(f'population.clients = "{clients.as_posix()}"')
    alone = config_for_clients(clients)
    assert alone == named
    assert (alone.run, alone.model, alone.optimiser) == (named.run, named.model, named.optimiser)
    with pytest.raises(FileFormatError, match=r"population.clients = '' .* the path of a CSV file"):
        config_for_clients("")
    with pytest.raises(FileFormatError, match=r"population.clients = '' .* the path of a CSV file"):
        loads_config('population.clients = ""')
