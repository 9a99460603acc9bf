# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib

import pytest

from dpcohort.runs import Run, verify_run

#: The digits as if they were not public.
PRIVATE = ["--set", "data.public=false"]
SHORT = ["--set", "training.rounds=4", "--set", "training.cohort_size=3", "--device", "cpu"]


def test_from_a_new_config_to_a_verified_run(terminal, tmp_path):
    config, out = tmp_path / "first.toml", tmp_path / "run"
    terminal("new", config, "--from", "digits")
    shown = terminal("train", config, "--out", out, *SHORT)
    assert shown.count("round ") >= 4  # one line a round when piped
    for words in ("Test accuracy", "all promises hold", "NOT PRIVATE", "dpcohort verify"):
        assert words in shown
    assert verify_run(out).holds
    assert (out / "config.toml").exists()
    assert "holds" in terminal("verify", out)


def test_seeds_get_folders_of_their_own(terminal, digits_config, tmp_path):
    out = tmp_path / "runs"
    shown = terminal("train", digits_config, "--out", out, "--seeds", 2, *SHORT)
    assert "2 seeds" in shown
    assert "95 % CI" in shown
    assert [p.name for p in sorted(out.iterdir())] == ["seed-0", "seed-1"]
    assert terminal("verify", out).count("holds") == 2
    terminal("train", digits_config, "--out", out / "seed-0", "--seeds", 2, *SHORT, code=2)


def test_resume_goes_on_and_a_second_start_is_refused(terminal, digits_config, tmp_path):
    out = tmp_path / "run"
    terminal("train", digits_config, "--out", out, *SHORT)
    model = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    terminal("train", digits_config, "--out", out, *SHORT, code=2)
    assert "--resume" in terminal.errors
    terminal("train", digits_config, "--out", out, "--resume", *SHORT)
    assert hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest() == model
    other = ["--set", "training.clip=0.5"]
    terminal("train", digits_config, "--out", out, "--resume", *SHORT, *other, code=2)
    assert "another folder" in terminal.errors


def test_the_run_can_be_repeated_from_its_own_config(terminal, digits_config, tmp_path):
    terminal("train", digits_config, "--out", tmp_path / "a", *SHORT)
    terminal("train", tmp_path / "a" / "config.toml", "--out", tmp_path / "b", "--device", "cpu")
    models = {(tmp_path / n / "model.safetensors").read_bytes() for n in "ab"}
    assert len(models) == 1


def test_a_private_run_is_stamped_otherwise(terminal, digits_config, tmp_path):
    out = tmp_path / "run"
    shown = terminal("train", digits_config, "--out", out, *PRIVATE, *SHORT)
    assert "NOT PRIVATE" not in shown
    assert Run.load(out).is_private
    again = ("train", digits_config, "--out", out, *SHORT, "--resume")
    terminal(*again, "--simulate", 7, code=2)
    assert "cannot be repeated with a seed" in terminal.errors
    terminal(*again, *PRIVATE)


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ("data.name=mnist", 3, "mnist"),
        ("data.name=mnits", 2, "Did you mean 'mnist'"),
        ("data.name=gone.npz", 3, "gone.npz"),
        ("model.name=logistik", 2, "logistic"),
        ("model.name=mlp", 2, "training.dimension"),
        ("model.name=mnist-cnn", 2, "mnist-cnn"),
        ("population.total_size=99999", 2, "1442"),
        ("run.device=tpu", 2, "tpu"),
        ("optimiser.learning_rate=1e38", 2, "at most 1e+30"),
    ],
)
def test_bad_input_is_one_message(
    terminal, digits_config, tmp_path, monkeypatch, change, code, words
):
    monkeypatch.setenv("DPCOHORT_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = ["--set", "training.rounds=3", "--set", "optimiser.server_learning_rate=1e3"]
    out = tmp_path / "run"
    terminal("train", digits_config, "--out", out, *settings, "--set", change, code=code)
    assert words in terminal.errors
    assert not (out / "model.safetensors").exists()


def test_a_config_without_data(terminal, config, tmp_path):
    terminal("train", config, "--out", tmp_path / "run", code=2)
    assert "no [data]" in terminal.errors


def test_private_models_are_released_once(terminal, tmp_path):
    terminal("new", tmp_path / "d.toml", "--from", "digits")
    arguments = ("train", tmp_path / "d.toml", "--out", tmp_path / "run", *PRIVATE)
    terminal(*arguments, "--seeds", 2, code=2)
    assert "spend it several times" in terminal.errors
    reference = ("--set", "run.engine=reference", "--out", tmp_path / "run")
    terminal("compare", tmp_path / "d.toml", "--seeds", 2, *PRIVATE, *reference, code=2)
    assert "train it alone" in terminal.errors
    assert not (tmp_path / "run").exists()


def test_every_client_is_certified_once(terminal, digits_config, tmp_path, monkeypatch):
    from dpcohort.runs import _receipts as receipts
    from dpcohort.runs import _run as run

    certified = []

    def counting(plan, draws, **more):
        certified.append(plan)
        return receipts.make_receipts(plan, draws, **more)

    monkeypatch.setattr(run, "make_receipts", counting)
    shown = terminal("train", digits_config, "--out", tmp_path / "run", *SHORT)
    assert "all promises hold" in shown
    assert len(certified) == 1
