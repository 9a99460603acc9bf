# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import pytest

from dpcohort.cli.app import app as cli
from dpcohort.deploy.flower.kit import kit_text

VALUES = {"run": "spring", "host": "fl.example.org", "gate": 443, "superlink": 8000}
OPERATOR = kit_text("operator.md", **VALUES, clients=3)
OWNER = kit_text("owner.md", **VALUES, client="ward 7")


def test_the_operator_is_told_the_hole_the_run_and_the_way_back():
    for words in (
        "Never open that port",
        "https://fl.example.org:443/v1/control/list-runs",
        "127.0.0.1:8000",
        "resume=true",
        "flwr supernode register",
        "FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1",
    ):
        assert words in OPERATOR, words


def test_the_owner_is_told_what_is_protected_and_how_to_look():
    for words in (
        "terms.toml",
        "Two users",
        "ledger show",
        "Never restore an old ledger",
        "443",
        "--new-ledger",
        "hidepid",
    ):
        assert words in OWNER, words


@pytest.mark.parametrize("page", [OPERATOR, OWNER], ids=["operator", "owner"])
def test_every_command_of_ours_exists(page):
    import typer.main

    group = typer.main.get_command(cli)
    for first, second in re.findall(r"dpcohort ([a-z]+)(?: ([a-z]+))? [/-]", page):
        assert first in group.commands
        if second:
            assert second in group.get_command(None, first).commands
