# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
import os

import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.errors import DataMissingError, FileFormatError, InputError
from dpcohort.runs import train
from dpcohort.runs._folder import (
    begin_run,
    find_run,
    find_runs,
    installed_version,
    read_json,
    write_json,
)


def test_a_folder_in_use_is_never_touched(tmp_path):
    folder = begin_run(tmp_path / "a" / "run")
    assert (folder / "checkpoints").is_dir()
    write_json(folder / "run.json", {})
    with pytest.raises(InputError, match="--resume"):
        begin_run(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(InputError, match="something else"):
        begin_run(tmp_path / "other")
    with pytest.raises(InputError, match="something else"):
        begin_run(tmp_path / "other" / "thesis.tex")
    with pytest.raises(InputError, match="cannot be made"):
        begin_run(tmp_path / "other" / "thesis.tex" / "run")


def test_a_start_cut_short_may_be_begun_again(tmp_path):
    folder = begin_run(tmp_path / "run")
    (folder / "ledger.jsonl").write_text('{"format": "dpcohort ledger"}\n')
    (folder / ".plan.json.x1").touch()
    with pytest.raises(InputError, match="something else"):
        begin_run(folder)
    begin_run(folder, again=True)
    assert not (folder / "ledger.jsonl").exists()
    (folder / "checkpoints" / "round-0000001.safetensors").touch()
    with pytest.raises(InputError, match="something else"):
        begin_run(folder, again=True)


def test_no_run_says_how_to_make_one(tmp_path):
    for place in (tmp_path, tmp_path / "none"):
        for find in (find_run, find_runs):
            with pytest.raises(DataMissingError, match="dpcohort train CONFIG --out"):
                find(place)


def test_a_folder_of_seeds_is_no_run_and_says_what_is(tmp_path):
    for seed in (1, 0):
        (tmp_path / f"seed-{seed}").mkdir()
        (tmp_path / f"seed-{seed}" / "run.json").write_text("{}")
    (tmp_path / "notes").mkdir()
    with pytest.raises(DataMissingError, match=r"Give one of them: .*seed-0$"):
        find_run(tmp_path)
    found = find_runs(tmp_path)
    assert [folder.name for folder in found] == ["seed-0", "seed-1"]
    assert find_runs(found[0]) == [found[0]]


def test_json_is_finite_and_an_object(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": [float("inf"), 1.5], "b": {"c": float("nan")}})
    assert read_json(path) == {"a": [None, 1.5], "b": {"c": None}}
    for text in ("[]", "{", "\0"):
        path.write_text(text)
        with pytest.raises(FileFormatError, match=r"x\.json"):
            read_json(path)
    with pytest.raises(DataMissingError):
        read_json(tmp_path / "gone.json")


def test_a_ledger_that_counts_rounds_is_never_begun_anew(tmp_path):
    folder = begin_run(tmp_path / "run")
    (folder / "ledger.jsonl").write_text(
        '{"format": "dpcohort ledger"}\n{"round": 0, "draws": {"a": 1}}\n'
    )
    with pytest.raises(InputError, match="exists and holds"):
        begin_run(tmp_path / "run", again=True)
    assert "round" in (folder / "ledger.jsonl").read_text()


def modes(path):
    """Modes of folders and modes of files."""
    places = [path, *path.rglob("*")]
    return [{p.stat().st_mode & 0o777 for p in places if p.is_dir() == wanted} for wanted in (1, 0)]


@pytest.mark.parametrize("private", [True, False])
def test_a_private_run_is_closed_to_others_from_the_first_file_to_the_last(
    plan, secret, tmp_path, private
):
    """Also a folder that was made beforehand; a seeded run has the modes of ordinary files."""
    seen = []

    class Listener:
        def on_round(self, record, run):
            seen.append(modes(run.path))

    out = tmp_path / "run"
    out.mkdir(mode=0o755)
    settings = {"device": "cpu", "simulate": None if private else 0, "callbacks": [Listener()]}
    before = os.umask(0o022)
    try:
        train(plan, "logistic", secret, out=out, **settings)
        seen.append(modes(out))
        if private:  # as an earlier version left it
            for place in [out, *out.rglob("*")]:
                place.chmod(0o755 if place.is_dir() else 0o644)
            train(plan, "logistic", secret, out=out, resume=True, **settings)
            seen.append(modes(out))
    finally:
        os.umask(before)
    assert len(seen) > plan.training.rounds
    wanted = [{0o700}, {0o600}] if private else [{0o755}, {0o644}]
    assert all(found == wanted for found in seen)


def test_no_file_of_a_private_run_holds_the_time_of_a_round(plan, secret, tmp_path):
    run = train(plan, "logistic", secret, out=tmp_path / "run", device="cpu")
    assert all(math.isnan(line.seconds) for line in run.history)
    for path in (tmp_path / "run").rglob("*.json*"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        for line in lines:
            for word in ("seconds", "time", "at", "when", "date"):
                assert json.loads(line).get(word) is None, path.name


def test_what_is_not_installed_has_no_version():
    assert installed_version("numpy")
    assert installed_version("no-such-package-4711") is None


def test_no_file_of_a_private_run_tells_when_a_round_ended(secret, tmp_path):
    people = Population.from_arrays(sizes=[700, 742], epsilon=[4.0, 6.0], delta=1e-5)
    settings = Training(rounds=3, cohort_size=2, sampling_rate=0.1, dimension=650)
    plan = make_plan(people, settings, selection="unbiased", seed=0)
    run = tmp_path / "run"
    given = {"device": "cpu", "checkpoint_every": 1}
    train(plan, "logistic", secret, out=run, **given)
    files = [run, *run.rglob("*")]
    assert len(files) > 10
    assert len({path.stat().st_mtime_ns for path in files}) == 1
    # A training that broke off leaves none either, nor would one that is killed now.
    stopped = tmp_path / "stopped"

    class Stop:
        def on_round(self, record, run):
            assert len({path.stat().st_mtime_ns for path in stopped.rglob("*")}) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(plan, "logistic", secret, out=stopped, **given, callbacks=[Stop()])
    assert len({path.stat().st_mtime_ns for path in (stopped, *stopped.rglob("*"))}) == 1
