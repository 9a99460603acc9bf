# SPDX-License-Identifier: Apache-2.0
"""The contract with Flower: everything the adapter uses of it, used on the installed version."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import os
import sys
from pathlib import Path

import pytest

import dpcohort
from dpcohort.deploy.flower._adapter import (
    QUIET,
    FlowerGrid,
    checked_version,
    make_client_app,
    make_server_app,
    serve_node,
)
from dpcohort.deploy.flower._certificates import key_fingerprint, make_certificates, make_node_key
from dpcohort.errors import DpcohortError, FileFormatError, InputError

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


def test_flower_is_imported_where_its_messages_and_its_operator_are():
    importing = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "flwr" in text else ():
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            if any(name.split(".")[0] == "flwr" for name in names):
                importing.add(path.relative_to(PACKAGE).as_posix())
    assert importing == {"deploy/flower/_adapter.py", "deploy/flower/_operator.py"}


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
    importlib.reload(sys.modules["dpcohort.deploy.flower._adapter"])
    assert {name: os.environ[name] for name in QUIET} == QUIET


def test_without_flower_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.delitem(sys.modules, "dpcohort.deploy.flower._adapter")
    with pytest.raises(InputError, match=r'pip install "dpcohort\[flower\]"'):
        importlib.import_module("dpcohort.deploy.flower._adapter")


@pytest.mark.parametrize("version", ["1.7.0", "1.40.9", "1.43.0", "2.0.0", "odd"])
def test_a_version_the_adapter_was_not_written_for_is_refused(version):
    with pytest.raises(InputError, match=r"1\.41 or later and below 1\.43"):
        checked_version(version)


class _Fleet:
    """A SuperLink as a node calls it; what is waiting are Flower's messages, parts and all."""

    def __init__(self, *waiting):
        self.waiting, self.parts, self.replies = list(waiting), {}, []

    @contextlib.contextmanager
    def connection(self, server_address, insecure, root_certificates, authentication_keys):
        self.reached = (server_address, insecure, root_certificates, authentication_keys)
        none = self.receive, self.send, None, None, self.pull, self.push, lambda run, name: None
        yield (7, *none)

    def receive(self):
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
        )

        if not self.waiting:
            raise KeyboardInterrupt
        message = self.waiting.pop(0)
        if message is None or isinstance(message, BaseException):
            if message is not None:
                raise message
            return None
        message.metadata.__dict__["_message_id"] = message.object_id
        parts = get_all_nested_objects(message)
        self.parts |= {name: one.deflate() for name, one in parts.items()}
        return message, get_object_tree(message)

    def pull(self, run, name):
        return self.parts[name]

    def send(self, reply, tree, seconds):
        from flwr.supercore.inflatable.inflatable_utils import iterate_object_tree

        self.replies.append((reply.metadata.reply_to_message_id, tree.object_id))
        return {one.object_id for one in iterate_object_tree(tree)}, "session"

    def push(self, run, session, name, part):
        self.parts[name] = part

    def answers(self):
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        return {
            asked: inflate_object_from_contents(name, dict(self.parts))
            for asked, name in self.replies
        }


def _serve(fleet, monkeypatch, tmp_path, carry):
    import flwr.supernode.fleet_http_connection as connection

    inspect.signature(connection.http_request_response).bind(
        "fl.example.org:9443", False, b"authority", ("private", "public")
    )
    monkeypatch.setattr(connection, "http_request_response", fleet.connection)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    make_certificates(tmp_path)
    public, said = make_node_key(tmp_path / "node.key"), []
    files = {"authority": tmp_path / "ca.crt", "key": tmp_path / "node.key"}
    with contextlib.suppress(KeyboardInterrupt):
        serve_node(carry, superlink="fl.example.org:9443", **files, say=said.append)
    return public, said


def test_a_node_answers_every_message_and_outlives_what_goes_wrong(monkeypatch, tmp_path):
    from flwr.supercore.run import RunNotRunningException

    grid = _Grid(None, [_Nodes(7)])
    bodies = [b"short", bytes(range(256)) * 8192, b"bad", b"last"]
    FlowerGrid(grid).push([(7, body) for body in bodies], group="0", ttl=60.0)
    other = flwr_app.Message(flwr_app.RecordDict(), 7, "train")
    first, long, bad, last = grid.sent
    lost = flwr_app.Message(flwr_app.RecordDict(), 7, "train", group_id="lost")
    fleet = _Fleet(first, None, long, RunNotRunningException(), bad, other, lost, last)
    pull = fleet.pull
    fleet.pull = lambda run, name: {}[name] if name == lost.object_id else pull(run, name)

    def carry(body):
        if body == b"bad":
            raise ValueError("no such thing")
        return body[::-1]

    public, said = _serve(fleet, monkeypatch, tmp_path, carry)
    answers = fleet.answers()
    for message, body in ((first, bodies[0]), (long, bodies[1]), (last, bodies[3])):
        grid._replies["asked"] = reply = answers[message.object_id]
        reply.metadata.__dict__["_reply_to_message_id"] = "asked"
        assert FlowerGrid(grid).pull(["asked"]) == [("asked", body[::-1], "")]
    assert answers[bad.object_id].error.reason == "ValueError: no such thing"
    assert answers[other.object_id].has_error()
    assert len(answers) == 5
    assert said[0] == "joined as node 7"
    assert len(said) == 2
    address, insecure, authority, (_, key) = fleet.reached
    assert (address, insecure) == ("fl.example.org:9443", False)
    assert authority == (tmp_path / "ca.crt").read_bytes()
    assert _fingerprint(key) == key_fingerprint(public)


def _fingerprint(key):
    from cryptography.hazmat.primitives import serialization

    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key_fingerprint(key.public_bytes(serialization.Encoding.PEM, form))


def test_a_node_without_its_files_says_which(tmp_path):
    files = {"authority": tmp_path / "ca.crt", "key": tmp_path / "node.key"}
    with pytest.raises(InputError, match=r"ca\.crt cannot be read"):
        serve_node(bytes, superlink="a:1", **files)
    files["authority"].write_bytes(b"authority")
    with pytest.raises(FileFormatError, match=r"ca\.crt: it is not a certificate"):
        serve_node(bytes, superlink="a:1", **files)
    make_certificates(tmp_path)
    files["key"].write_text("no key")
    with pytest.raises(FileFormatError, match="not the private key of a node"):
        serve_node(bytes, superlink="a:1", **files)


def test_a_node_whose_connection_is_given_up_ends_with_an_error(monkeypatch, tmp_path):
    class Lost(_Fleet):
        @contextlib.contextmanager
        def connection(self, *what):
            with contextlib.suppress(ValueError), super().connection(*what) as link:
                yield link

    with pytest.raises(DpcohortError, match="does not answer as it should"):
        _serve(Lost(ValueError("gone")), monkeypatch, tmp_path, bytes)
