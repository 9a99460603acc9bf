# SPDX-License-Identifier: Apache-2.0
"""Small HTTP server for what people and monitors read; nothing can be changed through it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any, ClassVar

from dpcohort.errors import InputError

#: Connections at a time, and seconds for one to send its request.
_MOST, _PATIENCE = 32, 10.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    slots = threading.BoundedSemaphore(_MOST)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.slots.acquire(blocking=False):
            return self.shutdown_request(request)
        return super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Who goes away in the middle is no error of ours."""


class Request(BaseHTTPRequestHandler):
    """A request to read something.

    Attributes:
        path: what is asked for, as it came.
    """

    timeout = _PATIENCE
    respond: ClassVar[Callable[[Request], None]]

    def do_GET(self) -> None:
        """Answer."""
        with suppress(OSError):
            self.respond()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the token of a page is in its address."""

    def version_string(self) -> str:
        """What answers."""
        return "dpcohort"

    def send(
        self, kind: str, body: str, code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """The answer; without a length, which a stream has not, where the body is empty."""
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if body:
            self.send_header("Content-Length", str(len(body.encode())))
        for name, value in {
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())


def serve_http(option: str, address: str, respond: Callable[[Request], None]) -> tuple[str, int]:
    """Answer requests from threads of this process, as long as it lives; where it listens.

    Args:
        option: from which the address comes, for errors.
        address: host and port; port 0 takes a free one.
        respond: answers one.

    Raises:
        InputError: nothing can listen there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(option, given=address, allowed="host and port, as 127.0.0.1:8765")
    handler = type("Handler", (Request,), {"respond": respond})
    try:
        server = _Server((host.strip("[]"), int(port)), handler)
    except OSError as error:
        raise InputError.because(
            f"{option} {address}: nothing can listen there ({error.strerror or error}). "
            "Give another port; 0 takes a free one."
        ) from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return str(server.server_address[0]), int(server.server_address[1])
