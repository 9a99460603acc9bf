# SPDX-License-Identifier: Apache-2.0
"""What a person sees of adaptive rules: plan, train, verify, receipt, compare, and the errors."""

from __future__ import annotations

from dpcohort.config import commented_config

RULE = [
    *["--set", "selection.rule=rpow-d", "--set", "selection.d=4"],
    *["--set", "population.count=6", "--set", "training.cohort_size=3"],
]
SHORT = ["--set", "training.rounds=4", "--device", "cpu"]


def test_a_plan_shows_caps_and_noise_and_is_read_back(terminal, config, tmp_path):
    out = tmp_path / "plan.json"
    shown = terminal("plan", config, "--rule", "power-of-choice", "--out", out)
    assert "chosen by" in shown
    assert "asked at most 20 times" in " ".join(shown.split())
    assert "strict" in shown
    assert shown.startswith(terminal("plan", out))
    found = terminal.json("plan", out)
    assert found["participation"]["rule"] == "power-of-choice"
    assert found["clients"]["public"] == [False, False, False, True]


def test_raw_reports_are_shouted_on_screen(terminal, digits_config, tmp_path):
    raw = [*RULE, "--set", "selection.reports=raw"]
    assert "NOT PRIVATE" in terminal("plan", digits_config, *raw)
    shown = " ".join(terminal("train", digits_config, "-o", tmp_path / "raw", *raw, *SHORT).split())
    assert "NOT PRIVATE (raw reports)" in shown
    assert "NOT ALL PROMISES HOLD" in shown
    assert "raw reports" in terminal("verify", tmp_path / "raw", code=1)


def test_train_verify_and_a_receipt(terminal, digits_config, tmp_path):
    out = tmp_path / "run"
    shown = terminal("train", digits_config, "-o", out, *RULE, *SHORT)
    assert "all promises hold" in shown
    assert "holds" in terminal("verify", out)
    receipt = terminal("receipt", out, "client-3")
    assert "reports" in receipt
    assert "unused" in receipt
    assert "rpow-d chooses each cohort" in " ".join(terminal("explain", "client-3", out).split())


def test_commands_about_schedules_say_why_not(terminal, tmp_path):
    changed = tmp_path / "adaptive.toml"
    text = commented_config("digits").replace('rule = "privacy-aware"', 'rule = "oort"')
    changed.write_text("\n".join(line for line in text.splitlines() if not line.startswith("eta")))
    terminal("what-if", "rounds", changed, code=2)
    assert "during the training" in terminal.errors
    terminal("plan", changed, "--picture", tmp_path / "p.png", code=2)
    assert "has none before the training" in terminal.errors
