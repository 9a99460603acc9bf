# SPDX-License-Identifier: Apache-2.0
"""The settings of a run as plain rows, and the commands that make and check it again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dpcohort._version import __version__
from dpcohort.adaptive.plan import AdaptivePlan
from dpcohort.adaptive.plan_file import AnyPlan
from dpcohort.report.html.sources import Group, ReadRun

__all__ = ["facts_of", "flat", "rerun_commands"]


def facts_of(run: ReadRun) -> dict[str, dict[str, str]]:
    """Settings by section: what is known of them, in words."""
    sections: dict[str, dict[str, str]] = {}
    plan = run.plan
    if plan is not None:
        sections["Training"] = flat(asdict(plan.training))
        sections["Privacy"] = flat(
            {**asdict(plan.contract), "unit": "one record of a client", "plan": plan.sha256}
        )
        sections["Selection"] = flat(_selection(plan))
    kept = {k: v for k, v in run.settings.items() if k not in ("format", "schema", "plan")}
    if kept:
        sections["Run"] = flat(kept)
    if run.environment:
        sections["Environment"] = flat({**run.environment, "report written by": __version__})
    return {name: rows for name, rows in sections.items() if rows}


def _selection(plan: AnyPlan) -> dict[str, Any]:
    if isinstance(plan, AdaptivePlan):
        return {
            "rule": plan.rule_name,
            **plan.rule_settings,
            "cohorts": f"chosen during the training, seed {plan.seed}",
            "draws of a client, at most": int(plan.caps.draws.max()),
            "reports of a client, at most": int(plan.caps.reports.max()),
            "reports": "none" if plan.terms is None else plan.terms.mode,
        }
    return {
        "rule": plan.selection.rule,
        **dict(plan.selection.settings),
        "eta in use": plan.selection.eta,
        "noise model": plan.noise_model,
        "bias ||p - u||": plan.selection.bias,
        "proved optimal to": plan.selection.gap,
        "schedule": f"{plan.schedule.draws} draws, seed {plan.seed}",
    }


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as rows of words.

    Example:
        >>> flat({"model": {"name": "mlp", "options": {}}, "clip": 1.0, "cap": None})
        {'model name': 'mlp', 'clip': '1'}
    """
    rows: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            rows |= flat(value, f"{prefix}{key} ")
        elif isinstance(value, float):
            rows[name] = f"{value:.6g}"
        elif isinstance(value, list | tuple):
            rows[name] = ", ".join(str(item) for item in value)
        elif value is not None:
            rows[name] = _short(str(value)) if name != "plan" else str(value)
    return rows


def _short(text: str) -> str:
    """A hash by its first digits."""
    return f"{text[:16]}…" if re.fullmatch("[0-9a-f]{64}", text) else text


def rerun_commands(groups: Sequence[Group]) -> tuple[str, ...]:
    """Commands that make the runs again from their own configuration, and check them."""
    commands = []
    for group in groups:
        for run in group.runs:
            path = shlex.quote(run.path)
            if run.config and run.is_private:
                commands.append(
                    "# The next line trains anew on the same records: every budget is spent again."
                )
            if run.config:
                commands.append(
                    f"dpcohort train {shlex.quote(run.path + '/config.toml')} --out AGAIN"
                )
            commands.append(f"dpcohort verify {path}")
            if run.seed is not None and len(group.runs) > 1:
                commands.append(f"# and the other seeds of {group.name} alike")
                break
    return tuple(dict.fromkeys(commands))
