# SPDX-License-Identifier: Apache-2.0
"""The same app where there are no machines: Flower's simulation engine, or one process.

In a simulation no owner is there to start a guard, so the courier opens the client's guard itself,
from the folder a kit made for it: the same terms, ledger, sampler and noise. What is missing is the
wall between the server's code and the data, which is what a simulation does without.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from dpcohort.deploy.flower.courier import carry_to
from dpcohort.deploy.flower.federation import Federation
from dpcohort.deploy.flower.file_names import file_name
from dpcohort.deploy.flower.letters import open_letter
from dpcohort.deploy.flower.transport import InProcess
from dpcohort.deploy.guard.client import GuardClient
from dpcohort.errors import InputError

__all__ = ["LocalGuards", "carry_in_simulation"]


class LocalGuards:
    """Guards of several clients in this process, each opened when it is first asked.

    Args:
        clients: the folder ``clients`` of a kit; in each client's folder are ``terms.toml``,
            ``data.npz`` and the ledger, which is made, and pinned in the terms, when the client
            is asked for the first time.
    """

    def __init__(self, clients: str | Path) -> None:
        self._clients = Path(clients)
        self._stack = ExitStack()
        self._sockets: dict[str, Path] = {}

    def __enter__(self) -> LocalGuards:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the guards; what they counted stays counted."""
        self._sockets.clear()
        self._stack.close()

    def carry(self, body: bytes) -> bytes:
        """Answer a letter with the words of the guard of the client it is for."""
        path = self._socket(open_letter(body).client)
        return carry_to(lambda: GuardClient(path), body)

    def transport(self, federation: Federation) -> InProcess:
        """A transport whose nodes are the federation's clients."""
        keys = federation.fingerprints
        return InProcess({keys[client]: self.carry for client in federation.clients})

    def _socket(self, client: str) -> Path:
        if client not in self._sockets:
            from dpcohort.deploy.guard.start import open_guard
            from dpcohort.deploy.guard.terms import GuardTerms

            folder = self._clients / file_name(client)
            ledger = folder / "client.ledger"
            is_first = GuardTerms.from_toml(folder / "terms.toml").ledger_id is None
            # A socket's path may have about a hundred letters; a kit's may have more.
            short = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dpc-"))
            service = open_guard(
                folder / "terms.toml",
                data=folder / "data.npz",
                ledger=ledger,
                socket=Path(short) / "guard.sock",
                new_ledger=is_first and not ledger.exists(),
            )
            self._stack.enter_context(service).start()
            self._sockets[client] = service.path
        return self._sockets[client]


#: The simulation engine keeps a worker process for many letters; its guards stay open with it.
_OPEN: dict[str, LocalGuards] = {}


def carry_in_simulation(
    body: bytes, node_config: Mapping[str, Any], run_config: Mapping[str, Any]
) -> bytes:
    """Answer a letter in Flower's simulation engine, where nodes are not configured one by one.

    Args:
        body: the letter.
        node_config: the node's; a simulation has no guard in it.
        run_config: the run's, with ``guards``, the folder ``clients`` of a kit.

    Raises:
        InputError: neither names a guard.
    """
    folder = str(run_config.get("guards", ""))
    if not folder:
        raise InputError(
            "node-config",
            given=sorted(node_config),
            allowed='with guard="SOCKET"; in a simulation, the run-config with guards="FOLDER"',
        )
    return _OPEN.setdefault(folder, LocalGuards(folder)).carry(body)
