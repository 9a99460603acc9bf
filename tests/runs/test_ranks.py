# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other of a training; as processes of their own: tests/cli/test_ranks.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpcohort.config import commented_config, load_config
from dpcohort.engine._ranks import Ranks
from dpcohort.errors import InputError
from dpcohort.runs import configured_job
from dpcohort.runs._ranks import run_command
from dpcohort.runs._training import train_job

CHANGES = ["training.rounds=3", "training.cohort_size=4", "run.evaluate_every=3"]


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits.toml").write_text(commented_config("digits"))
    return load_config(tmp_path / "digits.toml").with_overrides(CHANGES)


@pytest.fixture
def together(wire):
    """Run a command on the first of two ranks: exit codes of both, and what was noted."""

    def run(command):
        net, notes = wire(2), []

        def first():
            assert net.listens.wait(net.LIMIT)
            return run_command(command, notes.append)

        return net.run(first, lambda: run_command(command, notes.append)), notes

    return run


def test_two_ranks_give_the_model_of_one(config, digits, together, tmp_path):
    train_job(configured_job(config, data=digits, device="cpu"), out=tmp_path / "one")

    def command():
        train_job(configured_job(config, data=digits, device="cpu"), out=tmp_path / "two")
        return 0

    assert together(command) == ([0, 0], [])
    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_who_waited_for_nothing_is_told_so_and_both_end_with_one_code(together):
    assert together(lambda: 0) == ([0, 0], ["nothing of this was shared: 1 of 2 ranks waited."])
    assert together(lambda: 5) == ([5, 5], [])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": "reference"}, "the reference engine does one draw after the other"),
        ({"source": None}, "only the training of a configuration is shared"),
        ({"merged_noise": True}, "on rank 1: the configuration makes another training here"),
    ],
)
def test_what_another_rank_could_not_make_is_refused_before_anything_is_counted(
    config, digits, together, tmp_path, change, words
):
    refused = []

    def command():
        job = replace(configured_job(config, data=digits, device="cpu"), **change)
        try:
            train_job(job, out=tmp_path / "two")
        except InputError as error:
            refused.append(str(error))
        return 2

    assert together(command) == ([2, 2], [])
    assert words in refused[0]
    assert not (tmp_path / "two").exists()


def test_a_first_rank_that_is_gone_ends_the_other(wire, capsys):
    net = wire(2)

    def first():
        assert net.listens.wait(net.LIMIT)
        net.cut()

    assert net.run(first, lambda: run_command(lambda: 0, print)) == [None, 1]
    assert "rank 1: the first rank has ended" in capsys.readouterr().err


def test_an_error_of_another_rank_is_told_by_the_first(
    config, digits, together, monkeypatch, capsys
):
    def broken(*_):
        raise ValueError("an odd file")

    monkeypatch.setattr("dpcohort.runs._ranks.configured_data", broken)
    refused = []

    def command():
        with pytest.raises(InputError) as caught:
            train_job(configured_job(config, data=digits, device="cpu"))
        refused.append(str(caught.value))
        return 2

    assert together(command) == ([2, 2], [])
    assert refused == ["on rank 1: ValueError: an odd file"]
    assert "an odd file" in capsys.readouterr().err  # with its traceback, where it happened


def test_the_last_word_of_a_first_rank_that_is_gone_is_its_exit_code(wire, capsys):
    net = wire(2)

    def first():
        assert net.listens.wait(net.LIMIT)
        ranks = Ranks.joined()
        ranks._in_step = False  # an error in a shared round: nobody listens any more
        ranks.end(4)
        net.cut()

    assert net.run(first, lambda: run_command(lambda: 0, print)) == [None, 4]
    assert capsys.readouterr().err == ""
