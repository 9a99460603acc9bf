# SPDX-License-Identifier: Apache-2.0
"""The gate: the only door of a SuperLink that clients may knock at.

Flower's SuperLink serves the calls of nodes and the calls of its operator (start a run, register a
node, hand out tasks) on one port, and the open-source build asks no credential for the latter.
Whoever reaches that port can run code on every client. So the SuperLink listens on the loopback
address alone, and this gate forwards ``POST /v1/fleet/...`` and nothing else. It is for a trial; in
production the same rule stands in a reverse proxy (``nginx.conf`` of the kit).
"""

from __future__ import annotations

import http.client
import re
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import LARGEST_REQUEST

#: Names of calls below the fleet: no dots, no escapes, nothing that a second reader could take
#: for another path.
_FLEET = re.compile(r"/v1/fleet/[a-z0-9]+(?:[-_][a-z0-9]+)*\Z")
#: Of one connection: they are for this hop alone (RFC 9110, 7.6.1).
_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    *("te", "trailer", "transfer-encoding", "upgrade", "content-length", "host"),
}
_SECONDS = 120.0
#: A connection to the SuperLink is used again for so many seconds, which is less than it keeps one.
_KEPT = 2.0


def is_fleet_call(method: str, path: str) -> bool:
    """Whether a request is one that a node makes.

    Example:
        >>> is_fleet_call("POST", "/v1/fleet/pull-messages")
        True
        >>> is_fleet_call("POST", "/v1/fleet/../control/list-runs")
        False
    """
    return method == "POST" and _FLEET.match(path) is not None


class Gate(ThreadingHTTPServer):
    """Listens with TLS and forwards the calls of nodes, and no other, to a SuperLink.

    Args:
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        upstream: host and port of the SuperLink, on the loopback address.
        certificate: the server's certificate.
        key: its private key.
        authority: checks the SuperLink's certificate.

    Raises:
        InputError: the port is taken, or a file cannot be used.
    """

    request_queue_size = 128

    def __init__(
        self,
        *,
        host: str,
        port: int,
        upstream: tuple[str, int],
        certificate: Path,
        key: Path,
        authority: Path,
    ) -> None:
        self.upstream = upstream
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(certificate, key)
            self.trust = ssl.create_default_context(cafile=str(authority))
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FileFormatError(certificate, f"it cannot be used with {key}: {reason}.") from None
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise InputError.because(
                f"the gate cannot listen on {host}:{port}: {error.strerror}. Choose another port."
            ) from None
        # The handshake waits for the other side, so it is left to the thread of the connection.
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Forward in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()
        self._thread.join(timeout=5)

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that breaks off is its own affair: nothing is printed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "gate"
    sys_version = ""
    timeout = _SECONDS
    server: Gate
    _link: http.client.HTTPSConnection | None = None
    _used = 0.0

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: who called when is in the SuperLink's log."""

    def _answer(self) -> None:
        """Forward a node's call, and refuse any other."""
        if not is_fleet_call(self.command, self.path):
            return self._refuse(403, "only the calls of nodes pass this gate")
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            return self._refuse(411, "a Content-Length is needed")
        if int(length) > LARGEST_REQUEST:
            return self._refuse(413, "the request is too large")
        body = self.rfile.read(int(length))
        try:
            status, headers, content = self._forward(body)
        except (OSError, http.client.HTTPException):
            return self._refuse(502, "the SuperLink does not answer")
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET = do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer  # noqa: N815

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        if self._link is None or time.monotonic() - self._used > _KEPT:
            self._hang_up()
            host, port = self.server.upstream
            trust = self.server.trust
            self._link = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=trust)
        try:
            self._link.request("POST", self.path, body=body, headers=headers)
            reply = self._link.getresponse()
            found = reply.status, reply.getheaders(), reply.read()
        except BaseException:
            self._hang_up()
            raise
        self._used = time.monotonic()
        return found

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None

    def finish(self) -> None:
        """Close both ends when the node is done."""
        self._hang_up()
        super().finish()

    def _refuse(self, status: int, reason: str) -> None:
        # The request's body was not read: nothing more can come over this connection.
        self.close_connection = True
        content = f"{reason}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
