# SPDX-License-Identifier: Apache-2.0
"""An owner reads what a proposed run would do and spend, decides, and the operator is told."""

from __future__ import annotations

import json

import pytest

from dpcohort.cli import main
from dpcohort.data import load_dataset
from dpcohort.deploy.flower import federate, write_kit
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.flower._trial import demo_records, write_client_data
from dpcohort.deploy.guard import GuardTerms
from dpcohort.deploy.ledger import ClientLedger
from dpcohort.errors import InputError, WaitingError

from ..flower.conftest import Small, small_settings


@pytest.fixture
def asking(tmp_path):
    """A federation whose owners want to be asked."""
    settings = small_settings()
    kit = write_kit(tmp_path / "kit", **settings)
    write_client_data(kit, demo_records(settings["plan"], load_dataset("digits")))
    for client in ("lab", "ward 7"):
        terms = client_folder(kit, client) / "terms.toml"
        text = terms.read_text()
        assert "ask_owner = false" in text  # of a trial
        terms.write_text(text.replace("ask_owner = false", "ask_owner = true"))
        assert main(["guard", "pin", *_files(kit, client, "terms", "ledger"), "--new-ledger"]) == 0
    return Small(kit, settings)


def _files(kit, client, *names):
    folder = client_folder(kit, client)
    paths = {"terms": "terms.toml", "ledger": "client.ledger", "data": "data.npz"}
    return [word for name in names for word in (f"--{name}", str(folder / paths[name]))]


def _decide(asking, client, *words):
    files = _files(asking.kit, client, "terms", "ledger", "data")
    return main(["guard", "decide", "spring", *files, *words])


def _said(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_nothing_is_asked_before_all_owners_have_accepted(asking, capsys):
    out = asking.kit / "run"

    def go(guards):
        transport = guards.transport(asking.federation)
        return federate(asking.federation, transport, out=out, resume=True, poll=0.0)

    assert _decide(asking, "lab") == 0
    said = _said(capsys)
    for words in (
        "Run spring", "in 3 rounds", "Model: logistic on all 64 numbers of each record",
        "Code: none but that of dpcohort", "It would spend epsilon 8", "0 would be left after it",
        "spring: not decided",
    ):  # fmt: skip
        assert words in said
    with asking.guards() as guards:
        with pytest.raises(WaitingError, match=r"lab: its owner has not accepted the run 'spring'"):
            go(guards)
        assert _decide(asking, "ward 7", "--accept") == 0
        assert _decide(asking, "lab", "--refuse", "after the ethics board") == 0
        refused = "lab: its owner has refused the run 'spring': after the ethics board$"
        with pytest.raises(WaitingError, match=refused):
            go(guards)
        assert not out.exists()
        assert asking.counted("ward 7") == {}
        assert _decide(asking, "lab", "--accept") == 0  # a mind may change; guards know at once
        assert go(guards).is_finished
    assert _decide(asking, "lab", "--refuse", "too late") == 2
    assert "closed_runs" in capsys.readouterr().err


def test_the_decision_is_signed_and_in_the_ledger(asking, capsys):
    assert _decide(asking, "lab", "--accept") == 0
    path = client_folder(asking.kit, "lab") / "client.ledger"
    with ClientLedger(path) as ledger:
        decision = ledger.decided("lab")["spring"]
        assert decision.accepted
        assert decision.terms["spring"] == ledger.terms("lab", "spring").to_dict()
    capsys.readouterr()
    assert _decide(asking, "lab", "--json") == 0
    assert json.loads(capsys.readouterr().out)["decision"] == "accepted"
    assert main(["ledger", "verify", str(path)]) == 0


def test_a_decision_with_another_signature_is_no_row(asking):
    with ClientLedger(client_folder(asking.kit, "lab") / "client.ledger") as ledger:
        terms = GuardTerms.from_toml(client_folder(asking.kit, "lab") / "terms.toml")
        proposed = terms.runs[0].accepted(400)
        assert _decide(asking, "lab") == 0  # registers the data
        with pytest.raises(InputError, match="not signed by its key"):
            ledger.decide("lab", "spring", proposed, accepted=True, reason="", key="11" * 32,
                          sign=lambda content: "00" * 64)  # fmt: skip
        assert ledger.decided("lab") == {}
        assert ledger.accepted("lab") == {}


def test_what_does_not_fit_what_is_left_is_said(asking, capsys, tmp_path):
    terms = client_folder(asking.kit, "lab") / "terms.toml"
    terms.write_text(terms.read_text().replace("lifetime_epsilon = 8.0", "lifetime_epsilon = 6.0"))
    assert _decide(asking, "lab") == 0
    assert "MORE than your data may spend" in _said(capsys)
    assert _decide(asking, "lab", "--accept", "--refuse", "no") == 2
