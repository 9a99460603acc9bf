# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

from dpcohort.report.html.run_facts import facts_of, flat, rerun_commands
from dpcohort.report.html.sources import Group, read_groups, read_run
from dpcohort.runs.receipts import PRIVATE_NOISE


def test_settings_in_words(finished, plan):
    facts = facts_of(read_run(finished))
    assert facts["Training"]["rounds"] == "8"
    assert facts["Privacy"]["neighbours"] == "zero-out"
    assert facts["Privacy"]["plan"] == plan.sha256
    assert facts["Selection"]["rule"] == "privacy-aware"
    assert facts["Run"]["model name"] == "logistic"


def test_nothing_is_known_without_files(finished):
    for name in ("plan.json", "run.json", "environment.json"):
        (finished / name).unlink()
    assert facts_of(read_run(finished)) == {}


def test_hashes_are_short_except_the_plans():
    assert flat({"model_sha256": "a" * 64}) == {"model sha256": "a" * 16 + "…"}
    assert flat({"plan": "a" * 64}) == {"plan": "a" * 64}


def test_commands_quote_their_paths(trained, finished):
    (finished / "config.toml").write_text("[run]\nseed = 0\n")
    odd = finished.rename(finished.parent / "a run; rm")
    commands = rerun_commands(read_groups([odd]))
    assert f"dpcohort verify '{odd}'" in commands
    assert f"dpcohort train '{odd}/config.toml' --out AGAIN" in commands
    seeds = rerun_commands(read_groups([trained / "unbiased"]))
    assert seeds[-1].startswith("# and the other seeds")


def test_training_anew_on_private_records_is_warned_of(finished):
    (finished / "config.toml").write_text("[run]\n")
    run = read_run(finished)
    private = replace(
        run, settings={**run.settings, "randomness": "entropy", "noise": PRIVATE_NOISE}
    )
    for found, warned in ((run, False), (private, True)):
        commands = rerun_commands([Group(name="a", runs=(found,))])
        assert ("every budget is spent again" in commands[0]) == warned
