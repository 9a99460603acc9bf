# SPDX-License-Identifier: Apache-2.0
"""What runs inside Flower's ClientApp: takes a message to the guard and brings back its words.

The server ships this code. It holds no data, no ledger and no noise, so a server that ships another
app gains nothing: the guard answers only within its owner's terms. Needs no torch.

In a simulation (Flower's engine, or one process) no owner is there to start a guard, so the app
opens the client's guard itself, from the folder a kit made for it: the same terms, ledger, sampler
and noise. What is missing is the wall between the server's code and the data, which is what a
simulation does without.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcohort.deploy.flower._exchange import InProcess
from dpcohort.deploy.flower._kit import file_name
from dpcohort.deploy.flower._messages import NO_GUARD, open_message
from dpcohort.deploy.guard._client import GuardClient, GuardRefusedError
from dpcohort.deploy.guard._protocol import AgreeRequest, DrawRequest, Message, Refusal, encode
from dpcohort.deploy.guard._terms import GuardTerms
from dpcohort.errors import DpcohortError, InputError

if TYPE_CHECKING:
    from dpcohort.deploy.flower._federation import Federation

#: Asks one guard: a connection with ``ask`` and ``receipt``.
Connect = Callable[[], GuardClient]


def carry(
    body: bytes, node_config: Mapping[str, Any], run_config: Mapping[str, Any] | None = None
) -> bytes:
    """Answer a message with the words of the guard that the node's owner names.

    Whatever a message or a run says, it is this guard. In Flower's simulation engine, where nodes
    are not configured one by one, it is that of the client the message is for.

    Args:
        body: the message.
        node_config: the node's, with ``guard``, the socket of the client's guard.
        run_config: the run's; in a simulation with ``guards``, the folder ``clients`` of a kit.

    Raises:
        InputError: neither names a guard.
    """
    path, folder = node_config.get("guard"), str((run_config or {}).get("guards", ""))
    if isinstance(path, str) and path:
        return carry_to(lambda: GuardClient(path), body)
    if path or not folder:
        raise InputError(
            "node-config",
            given=sorted(node_config),
            allowed='with guard="SOCKET"; in a simulation, the run-config with guards="FOLDER"',
        )
    return _OPEN.setdefault(folder, LocalGuards(folder)).carry(body)


def carry_to(connect: Connect, body: bytes) -> bytes:
    """Answer a message through a connection to a guard.

    A draw the guard refuses is answered with its refusal; where no guard answers, with one that
    says so. After draws and unmaskings, what the run has spent follows.

    Args:
        connect: opens a connection.
        body: the message.
    """
    opened = open_message(body)
    answers: list[bytes] = []
    try:
        with connect() as guard:
            for request in opened.requests:
                answers.append(_asked(guard, request))
            if isinstance(opened.requests[0], DrawRequest | AgreeRequest):
                answers.append(encode(guard.receipt(opened.requests[0].run)))
    except GuardRefusedError:
        pass  # the receipt of a run that is not accepted: the refusals above say it
    except DpcohortError as error:
        missing = len(opened.requests) - len(answers)
        refusal = Refusal(code=NO_GUARD, message=str(error)[:500], counted=False)
        answers += [encode(refusal)] * missing
    return b"".join(answers)


def _asked(guard: GuardClient, request: Message) -> bytes:
    try:
        return encode(guard.ask(request))
    except GuardRefusedError as error:
        message = str(error)[:500]
        return encode(Refusal(code=error.code, message=message, counted=error.counted))


class LocalGuards(ExitStack[bool | None]):
    """Guards of several clients in this process, each opened when it is first asked.

    Closing them leaves counted what they counted.

    Args:
        clients: the folder ``clients`` of a kit; in each client's folder are ``terms.toml``,
            ``data.npz`` (or ``data.csv``) and the ledger, which is made, and pinned in the terms,
            when the client is asked for the first time.
    """

    def __init__(self, clients: str | Path) -> None:
        super().__init__()
        self._clients = Path(clients)
        self._sockets: dict[str, Path] = {}

    def carry(self, body: bytes) -> bytes:
        """Answer a message with the words of the guard of the client it is for."""
        path = self._socket(open_message(body).client)
        return carry_to(lambda: GuardClient(path), body)

    def transport(self, federation: Federation) -> InProcess:
        """A transport whose nodes are the federation's clients."""
        return InProcess(dict.fromkeys(federation.fingerprints.values(), self.carry))

    def _socket(self, client: str) -> Path:
        if client not in self._sockets:
            from dpcohort.deploy.guard._start import open_guard  # loads torch, which nodes need not

            folder = self._clients / file_name(client)
            ledger = folder / "client.ledger"
            terms = GuardTerms.from_toml(folder / "terms.toml")
            is_first = terms.ledger_id is None
            # A socket's path may have about a hundred characters; a kit's may have more.
            short = self.enter_context(tempfile.TemporaryDirectory(prefix="dpc-"))
            service = open_guard(
                folder / "terms.toml",
                data=folder / ("data.npz" if terms.table is None else "data.csv"),
                ledger=ledger,
                socket=Path(short) / "guard.sock",
                new_ledger=is_first and not ledger.exists(),
            )
            self.enter_context(service).start()
            self._sockets[client] = service.path
            self.callback(self._sockets.pop, client)
        return self._sockets[client]


#: The simulation engine keeps a worker process for many messages; its guards stay open with it.
_OPEN: dict[str, LocalGuards] = {}
