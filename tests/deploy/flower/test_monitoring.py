# SPDX-License-Identifier: Apache-2.0
"""Metrics, health and logs of the parts: what they are asked for, and nothing of a record."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest
import yaml

import dpcohort
from dpcohort.deploy._monitoring import LogLine, Metric, json_line, publish_metrics
from dpcohort.deploy.flower._adapter import NodeState
from dpcohort.errors import DpcohortError, InputError

pytest.importorskip("prometheus_client")


def _read(url):
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


def test_metrics_and_health_of_a_part():
    told, words = [Metric("rounds_done", "Rounds.", 3)], [""]
    url = publish_metrics("127.0.0.1:0", lambda: told, lambda: words[0])
    assert re.findall(r"^dpcohort_\S+ .*$", _read(url), re.M) == [
        "dpcohort_healthy 1.0",
        "dpcohort_rounds_done 3.0",
    ]
    told.append(Metric("client_missing_seconds", "Since.", 60, {"client": 'a"\nb'}))
    words[0] = "waiting: the SuperLink at 127.0.0.1:8000"
    assert r'dpcohort_client_missing_seconds{client="a\"\\nb"} 60.0' in _read(url)
    assert "dpcohort_healthy 0.0" in _read(url)
    with pytest.raises(HTTPError, match="503") as refused:
        _read(url.replace("metrics", "health"))
    with refused.value as answer:
        assert answer.read().decode() == f"{words[0]}\n"


def test_nothing_tells_what_the_process_used(tmp_path):
    """Processor time and memory of a guard tell how many records were drawn."""
    publish_metrics(str(tmp_path / "guard.prom"), list, lambda: "")
    text = (tmp_path / "guard.prom").read_text()
    assert set(re.findall(r"^[a-z_]+", text, re.M)) == {"dpcohort_healthy"}
    with pytest.raises(InputError, match="cannot be written"):
        publish_metrics(str(tmp_path / "none" / "guard.prom"), list, lambda: "")


def test_a_guard_counts_what_its_ledger_counts(small):
    from dpcohort.deploy.flower import federate

    with small.guards() as guards:
        federate(
            small.federation, guards.transport(small.federation), out=small.kit / "run", poll=0
        )
        services = [one.__self__ for one in _services(guards)]
        for service in services:
            found = {one.name: one for one in service.metrics()}
            client = service.handler.terms.dataset
            assert found["guard_draws_counted"].value == len(small.counted(client))
            assert found["guard_draws_counted"].labels == {"run": "spring"}
            assert set(found) == {
                "guard_refusals", "guard_draws_counted", "guard_epsilon_promised",
            }  # fmt: skip
            assert service.ill() == ""
    assert len(services) == 2


def _services(guards):
    """The guards' own ways out of the block, by which the services are known."""
    return [
        exit_of for _, exit_of in guards._exit_callbacks if hasattr(exit_of, "__self__")
        and hasattr(exit_of.__self__, "metrics")
    ]  # fmt: skip


def test_rules_and_dashboard_of_a_kit_ask_for_metrics_that_there_are(small):
    source = "".join(
        path.read_text() for path in Path(dpcohort.__file__).parent.glob("deploy/**/*.py")
    )
    for name in ("alerts.yml", "dashboard.json"):
        text = (small.kit / "server" / name).read_text()
        names = set(re.findall(r"dpcohort_([a-z_]+)", text))
        assert names
        assert [one for one in names if f'"{one}"' not in source] == []
    assert yaml.safe_load((small.kit / "server" / "alerts.yml").read_text())["groups"]
    assert json.loads((small.kit / "server" / "dashboard.json").read_text())["panels"]


def test_a_node_says_whether_it_is_let_in_and_has_a_guard():
    state = NodeState()
    assert state.ill() == "the SuperLink has not let this node in"
    state.note(LogLine("joined as node 7", joined=True))
    assert state.answered(b"") == b""
    state.note(LogLine("a message came to nothing", failed=True))
    assert [one.value for one in state.metrics()] == [True, 1, 1, False]
    assert state.ill() == ""


def test_a_line_of_json_says_who_which_round_and_what_next():
    line = LogLine("waiting: lab\nis away", run="spring", round=3, missing=["lab"], next_seconds=4)
    found = json.loads(json_line("service", line))
    assert found.pop("time").endswith("Z")
    assert found == {
        "part": "service", "run": "spring", "round": 3, "missing": ["lab"], "next_seconds": 4,
        "words": r"waiting: lab\nis away",
    }  # fmt: skip
    assert json.loads(json_line("guard", "plain"))["words"] == "plain"


def test_without_prometheus_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(DpcohortError, match=r"dpcohort\[operate\]"):
        publish_metrics("127.0.0.1:0", list, lambda: "")
