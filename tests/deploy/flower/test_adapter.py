# SPDX-License-Identifier: Apache-2.0
"""The contract with Flower: everything the adapter uses of it, used on the installed version."""

from __future__ import annotations

import ast
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import dpcohort
from dpcohort.deploy.flower.adapter import (
    QUIET,
    FlowerGrid,
    flower_version,
    make_client_app,
    make_server_app,
)
from dpcohort.deploy.flower.certificates import key_fingerprint, make_node_key
from dpcohort.errors import InputError

flwr_app = pytest.importorskip("flwr.app")
pytestmark = pytest.mark.usefixtures("task")
PACKAGE = Path(dpcohort.__file__).parent


def _context(node_config=None, run_config=None):
    return flwr_app.Context(
        run_id=1,
        node_id=7,
        node_config=node_config or {},
        state=flwr_app.RecordDict(),
        run_config=run_config or {},
    )


class _Nodes:
    """What Flower's grid gives for a node."""

    def __init__(self, number, public=b"", status="online"):
        self.node_id, self.public_key, self.status = number, public, status


class _Grid:
    """Flower's grid, with client apps in place of a SuperLink; messages are Flower's own."""

    def __init__(self, app=None, nodes=()):
        self._app, self._nodes, self._replies = app, list(nodes), {}
        self.sent = []

    def get_nodes(self):
        return self._nodes

    def push_messages(self, messages):
        names = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = f"id-{len(self.sent)}"
            self.sent.append(message)
            names.append(name)
            if self._app is None:
                error = flwr_app.Error(code=5, reason="Node Unavailable")
                self._replies[name] = flwr_app.Message(error, reply_to=message)
            else:
                self._replies[name] = self._app(message, _context({"guard": "/s"}, {"out": "r"}))
        return names

    def pull_messages(self, names):
        return [self._replies.pop(name) for name in list(names) if name in self._replies]


def test_flower_is_imported_in_two_modules_only_and_there_not_at_once():
    importing = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "flwr" in text else ():
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            if any(name.split(".")[0] == "flwr" for name in names):
                importing.append((path.relative_to(PACKAGE).as_posix(), node.col_offset))
    assert {path for path, _ in importing} == {
        "deploy/flower/adapter.py",
        "deploy/flower/dropin.py",
    }
    assert all(column > 0 for _, column in importing)


def test_a_letter_goes_out_and_its_answer_comes_back_through_flowers_messages():
    seen = []

    def carry(body, node_config, run_config):
        seen.append((node_config, run_config))
        return body[::-1]

    grid = _Grid(make_client_app(carry), [_Nodes(7)])
    transport = FlowerGrid(grid)
    body = bytes(range(256)) * 1000
    names = transport.push([(7, body)], group="3", ttl=12.5)
    assert transport.pull(names) == [(names[0], body[::-1], "")]
    assert seen == [({"guard": "/s"}, {"out": "r"})]
    metadata = grid.sent[0].metadata
    assert (metadata.dst_node_id, metadata.group_id, metadata.ttl) == (7, "3", 12.5)
    assert transport.pull(names) == []


def test_an_error_is_known_by_the_letter_it_answers():
    transport = FlowerGrid(_Grid(None))
    names = transport.push([(9, b"x")], group="0", ttl=1.0)
    assert transport.pull(names) == [(names[0], None, "error 5: Node Unavailable")]


def test_an_answer_of_another_program_is_an_error():
    from flwr.clientapp import ClientApp

    other = ClientApp()

    @other.train()
    def train(message, context):
        return flwr_app.Message(flwr_app.RecordDict(), reply_to=message)

    transport = FlowerGrid(_Grid(other))
    ((_, _, error),) = transport.pull(transport.push([(7, b"")], group="0", ttl=1.0))
    assert error == "the answer is not one of dpcohort's client app"


def test_a_letter_that_flower_does_not_take_has_no_name():
    grid = _Grid(None)
    grid.push_messages = lambda messages: []
    assert FlowerGrid(grid).push([(1, b"")], group="0", ttl=1.0) == [""]
    grid.push_messages = lambda messages: [None]
    assert FlowerGrid(grid).push([(1, b"")], group="0", ttl=1.0) == [""]


def test_nodes_online_are_known_by_the_key_they_proved(tmp_path):
    from cryptography.hazmat.primitives import serialization

    public = make_node_key(tmp_path / "node.key")
    pem = serialization.load_ssh_public_key(public.encode()).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    # One that went offline may have left its key behind.
    nodes = [_Nodes(9, pem), _Nodes(4), _Nodes(5, b"rubbish"), _Nodes(6, pem, "offline")]
    grid = _Grid(None, nodes)
    assert FlowerGrid(grid).nodes() == [("", 4), ("", 5), (key_fingerprint(public), 9)]
    by_place = FlowerGrid(grid, by_key=False).nodes()
    assert by_place == [("0", 4), ("1", 5), ("2", 6), ("3", 9)]


def test_what_flower_tells_of_a_node_has_the_fields_used():
    from flwr.proto.node_pb2 import NodeInfo

    node = NodeInfo(node_id=3, public_key=b"k", status="online")
    assert (node.node_id, bytes(node.public_key), node.status) == (3, b"k", "online")


def test_the_server_app_gets_the_grid_and_the_run_config():
    from flwr.serverapp import Grid

    got = []
    app = make_server_app(lambda grid, config: got.append((grid, config)))
    grid = object()
    app(grid, _context(run_config={"federation": "f.toml", "resume": True}))
    assert got == [(grid, {"federation": "f.toml", "resume": True})]
    for used in ("get_nodes", "push_messages", "pull_messages"):
        assert callable(getattr(Grid, used))


def test_telemetry_and_update_checks_are_off_before_flower_is_loaded(monkeypatch):
    for name in QUIET:
        monkeypatch.delenv(name, raising=False)
    flower_version()
    assert {name: os.environ[name] for name in QUIET} == QUIET


def test_without_flower_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(InputError, match=r'pip install "dpcohort\[flower\]"'):
        flower_version()


@pytest.mark.parametrize("version", ["1.7.0", "1.40.9", "1.43.0", "2.0.0", "odd"])
def test_a_version_the_adapter_was_not_written_for_is_refused(monkeypatch, version):
    import flwr

    monkeypatch.setattr(flwr, "__version__", version)
    with pytest.raises(InputError, match=r"1\.41 or later and below 1\.43"):
        flower_version()


def test_flowers_programs_are_there_and_take_the_options_of_the_kit():
    # Read, not run: starting them takes seconds, and the demo does it anyway.
    import flwr

    programs = {script.name for script in entry_points(group="console_scripts")}
    assert programs >= {"flwr", "flower-superlink", "flower-supernode"}
    text = "".join(path.read_text() for path in Path(flwr.__file__).parent.rglob("*.py"))
    options = (
        "--host --port --database --disable-runtime-dependency-installation --ssl-ca-certfile "
        "--ssl-certfile --ssl-keyfile --enable-supernode-auth --superlink --root-certificates "
        "--auth-supernode-private-key --node-config"
    )
    assert [option for option in options.split() if f'"{option}"' not in text] == []
