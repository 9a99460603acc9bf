# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.deploy.flower import _apps as apps
from dpcohort.deploy.flower._messages import hello_message, read_frames
from dpcohort.errors import DpcohortError, InputError
from dpcohort.runs import verify_run

flwr_app = pytest.importorskip("flwr.app")
pytestmark = pytest.mark.usefixtures("task")


class _Grid:
    """Flower's grid with a ClientApp in place of nodes, as in the simulation engine."""

    def __init__(self, app, guards, nodes=1):
        self._app, self._guards, self._replies = app, guards, {}
        self._nodes = nodes

    def get_nodes(self):
        return [type("Node", (), {"node_id": 10 + place})() for place in range(self._nodes)]

    def push_messages(self, messages):
        names = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = f"id-{len(self._replies)}"
            context = flwr_app.Context(
                run_id=1,
                node_id=1,
                node_config={"partition-id": 0, "num-partitions": 1},
                state=flwr_app.RecordDict(),
                run_config={"guards": self._guards},
            )
            self._replies[name] = self._app(message, context)
            names.append(name)
        return names

    def pull_messages(self, names):
        return [self._replies[name] for name in names]


def test_the_app_runs_in_a_simulation_with_any_number_of_nodes(small, tmp_path, capsys):
    guards = str(small.clients)
    grid = _Grid(apps.client_app(), guards)
    config = {
        "federation": str(small.kit / "server/federation.toml"),
        "out": str(tmp_path / "run"),
        "resume": False,
        "guards": guards,
    }
    apps.serve(grid, config)
    words = capsys.readouterr().out
    assert "dpcohort: round 3 of 3, test accuracy" in words
    assert f"dpcohort verify {tmp_path / 'run'}" in words
    assert verify_run(tmp_path / "run").holds
    plan = small.federation.plan
    for client in plan.population.ids:
        planned = int(plan.counts[plan.population.index_of(client)])
        assert len(small.counted(client)) == planned


@pytest.mark.parametrize(
    ("config", "words"), [({}, "federation = ''"), ({"federation": "none.toml"}, "no such file")]
)
def test_a_federation_that_is_not_there_is_said_and_fails_the_run(config, words, capsys):
    with pytest.raises(DpcohortError):
        apps.serve(None, config)
    printed = capsys.readouterr().out
    assert printed.startswith("error: ")
    assert words in printed


def test_a_run_folder_is_needed(small, capsys):
    text = (small.kit / "server/federation.toml").read_text()
    (small.kit / "server/federation.toml").write_text(text.replace('out = "run"', 'out = ""'))
    with pytest.raises(InputError, match="out = ''"):
        apps.serve(None, {"federation": str(small.kit / "server/federation.toml")})
    assert "error: out" in capsys.readouterr().out


def test_a_node_with_a_guard_asks_it_and_no_other(tmp_path):
    app = apps.client_app()
    from dpcohort.deploy.flower._adapter import body_of, record_of

    letter = hello_message("lab", run="spring")
    message = flwr_app.Message(record_of(letter), 7, "train")
    context = flwr_app.Context(
        run_id=1,
        node_id=7,
        node_config={"guard": str(tmp_path / "none.sock")},
        state=flwr_app.RecordDict(),
        run_config={"guards": "/anywhere/the/server/says"},
    )
    reply = app(message, context)
    (frame,) = read_frames(body_of(reply.content))
    assert str(tmp_path / "none.sock") in frame.message


def test_the_log_of_a_server_cannot_be_painted(capsys):
    with pytest.raises(InputError):
        apps.serve(None, {"federation": "no\x1b[2J\x1b[32mall promises hold.toml"})
    assert r"error: no\x1b[2J\x1b[32mall promises hold.toml" in capsys.readouterr().out
