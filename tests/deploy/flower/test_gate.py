# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import http.client
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dpcohort.deploy.flower.certificates import make_certificates
from dpcohort.deploy.flower.gate import Gate, is_fleet_call
from dpcohort.errors import FileFormatError, InputError


@pytest.mark.parametrize(
    ("method", "path", "passes"),
    [
        ("POST", "/v1/fleet/pull-messages", True),
        ("POST", "/v1/fleet/push_object", True),
        ("GET", "/v1/fleet/pull-messages", False),
        ("POST", "/v1/fleet/", False),
        ("POST", "/v1/fleet", False),
        ("POST", "/v1/fleet/../control/start-run", False),
        ("POST", "/v1/fleet/%2e%2e/control/start-run", False),
        ("POST", "/v1/fleet/x/../../control/start-run", False),
        ("POST", "/v1/fleet//control", False),
        ("POST", "//v1/fleet/pull-messages", False),
        ("POST", "/v1/fleet/pull-messages?x=/v1/control", False),
        ("POST", "/v1/fleet/pull-messages\n", False),
        ("POST", "/v1/control/list-runs", False),
        ("POST", "/v1/runtime/acquire-task", False),
        ("POST", "http://host/v1/fleet/pull-messages", False),
        ("GET", "/docs", False),
        ("POST", "", False),
    ],
)
def test_only_calls_of_nodes_are_fleet_calls(method, path, passes):
    assert is_fleet_call(method, path) is passes


class _Upstream(BaseHTTPRequestHandler):
    """Says what it was asked; the gate must let nothing but fleet calls come here."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(self.path)
        content = f"{self.path} {self.headers.get('X-Signature')} ".encode() + body
        self.send_response(201)
        self.send_header("X-Reply", "yes")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def upstream(tls):
    handler = type("Bound", (_Upstream,), {"seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls / "server.pem", tls / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def _gate(tls, upstream_port: int, port: int = 0) -> Gate:
    return Gate(
        host="127.0.0.1",
        port=port,
        upstream=("127.0.0.1", upstream_port),
        certificate=tls / "server.pem",
        key=tls / "server.key",
        authority=tls / "ca.crt",
    )


@pytest.fixture
def gate(tls, upstream):
    found = _gate(tls, upstream.server_address[1])
    found.start()
    yield found
    found.close()


def _ask(gate, tls, method, path, body=b"", headers=None):
    context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    link = http.client.HTTPSConnection("127.0.0.1", gate.port, context=context, timeout=10)
    try:
        link.request(method, path, body=body, headers=headers or {})
        reply = link.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()
    finally:
        link.close()


def test_a_nodes_call_passes_with_its_headers_and_body(gate, tls):
    status, headers, body = _ask(
        gate, tls, "POST", "/v1/fleet/pull-messages", b"\x00body", {"X-Signature": "s"}
    )
    assert (status, headers["X-Reply"]) == (201, "yes")
    assert body == b"/v1/fleet/pull-messages s \x00body"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("PUT", "/v1/fleet/pull-messages"),
        ("HEAD", "/v1/fleet/pull-messages"),
    ],
)
def test_nothing_else_reaches_the_superlink(gate, tls, upstream, method, path):
    status, _, body = _ask(gate, tls, method, path)
    assert status == 403
    assert body == (b"" if method == "HEAD" else b"only the calls of nodes pass this gate\n")
    assert upstream.RequestHandlerClass.seen == []


def test_a_refused_request_cannot_smuggle_a_second_one(gate, tls, upstream):
    context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    inner = b"POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    outer = (
        b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Length: 5\r\n\r\n0\r\n\r\n"
    )
    with (
        socket.create_connection(("127.0.0.1", gate.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as link,
    ):
        link.sendall(outer + inner)
        reply = b""
        while part := link.recv(4096):
            reply += part
    assert reply.startswith(b"HTTP/1.1 411")
    assert reply.count(b"HTTP/1.1") == 1
    assert upstream.RequestHandlerClass.seen == []


def test_calls_of_a_connection_share_one_to_the_superlink_and_others_have_their_own(
    gate, tls, upstream, monkeypatch
):
    came = []
    take = upstream.process_request
    monkeypatch.setattr(upstream, "process_request", lambda *one: (came.append(one[1]), take(*one)))
    context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    links = [
        http.client.HTTPSConnection("127.0.0.1", gate.port, context=context, timeout=10)
        for _ in range(2)
    ]

    def call(place, body):
        links[place].request("POST", "/v1/fleet/pull-messages", body=body)
        return links[place].getresponse().read()

    bodies = [(0, b"a"), (1, b"b"), (0, b"c"), (0, b"d")]
    assert [call(*one)[-1:] for one in bodies] == [body for _, body in bodies]
    assert len(came) == 2
    monkeypatch.setattr("dpcohort.deploy.flower.gate._KEPT", -1.0)  # too old to be used again
    assert call(0, b"e")[-1:] == b"e"
    assert len(came) == 3
    for link in links:
        link.close()


@pytest.mark.parametrize(("length", "status"), [("99999999999", 413), ("-1", 411), ("x", 411)])
def test_odd_lengths_are_refused_before_anything_is_read(gate, tls, length, status):
    headers = {"Content-Length": length}
    assert _ask(gate, tls, "POST", "/v1/fleet/pull-messages", None, headers)[0] == status


def test_a_superlink_that_is_gone_is_said(tls):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = _gate(tls, taken.getsockname()[1])
        found.start()
        try:
            assert _ask(found, tls, "POST", "/v1/fleet/pull-messages")[0] == 502
        finally:
            found.close()


def test_a_client_with_another_authority_or_without_tls_does_not_come_in(gate, tls, tmp_path):
    other = make_certificates(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        _ask(gate, other, "POST", "/v1/fleet/pull-messages")
    link = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=10)
    link.request("POST", "/v1/fleet/pull-messages", body=b"")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        link.getresponse()
    link.close()
    assert _ask(gate, tls, "POST", "/v1/fleet/pull-messages")[0] == 201  # others go on


def test_a_taken_port_and_a_wrong_key_are_said(gate, tls, tmp_path):
    with pytest.raises(InputError, match=f"127.0.0.1:{gate.port}: Address already in use"):
        _gate(tls, 1, port=gate.port)
    other = make_certificates(tmp_path)
    with pytest.raises(FileFormatError, match=r"server\.pem: it cannot be used with"):
        Gate(
            host="127.0.0.1",
            port=0,
            upstream=("127.0.0.1", 1),
            certificate=tls / "server.pem",
            key=other / "server.key",
            authority=tls / "ca.crt",
        )
