# SPDX-License-Identifier: Apache-2.0
"""The courier: takes a letter to the client's guard and brings back what the guard says.

This is all that runs inside Flower's ClientApp, whose code the server ships. It holds no data, no
ledger and no noise, so a server that ships another courier gains nothing: the guard answers only
within its owner's terms. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpcohort.deploy.flower.letters import NO_GUARD, open_letter
from dpcohort.deploy.guard.client import GuardClient, GuardRefusedError
from dpcohort.deploy.guard.protocol import Refusal, encode
from dpcohort.errors import DpcohortError, InputError

__all__ = ["carry", "carry_to", "guard_socket"]

#: Asks one guard: a connection with ``hello``, ``draw`` and ``receipt``.
Connect = Callable[[], GuardClient]


def carry(body: bytes, node_config: Mapping[str, Any]) -> bytes:
    """Answer a letter with the words of the guard that the node's configuration names.

    Args:
        body: the letter.
        node_config: the node's, with ``guard`` in it.
    """
    path = guard_socket(node_config)
    return carry_to(lambda: GuardClient(path), body)


def guard_socket(node_config: Mapping[str, Any]) -> Path:
    """The socket of the client's guard: where the node's owner says, whatever the letter says.

    Example:
        >>> str(guard_socket({"guard": "/run/dpcohort-guard/guard.sock"}))
        '/run/dpcohort-guard/guard.sock'
    """
    path = node_config.get("guard")
    if not isinstance(path, str) or not path:
        allowed = 'with guard="SOCKET", where the client\'s guard listens'
        raise InputError("node-config", given=sorted(node_config), allowed=allowed)
    return Path(path)


def carry_to(connect: Connect, body: bytes) -> bytes:
    """Answer a letter through a connection to a guard.

    A draw the guard refuses is answered with its refusal; where no guard answers, with one that
    says so. After draws, what the run has spent follows.

    Args:
        connect: opens a connection.
        body: the letter.
    """
    opened = open_letter(body)
    answers: list[bytes] = []
    try:
        with connect() as guard:
            for request in opened.requests:
                answers.append(_asked(guard, request, opened.asks))
            if opened.asks == "draws":
                answers.append(encode(guard.receipt(opened.requests[0].run)))
    except GuardRefusedError:
        pass  # the receipt of a run that is not accepted: the refusals above say it
    except DpcohortError as error:
        missing = len(opened.requests) - len(answers)
        refusal = Refusal(code=NO_GUARD, message=str(error)[:500], counted=False)
        answers += [encode(refusal)] * missing
    return b"".join(answers)


def _asked(guard: GuardClient, request: Any, asks: str) -> bytes:
    try:
        if asks == "hello":
            return encode(guard.hello(request.run))
        return encode(guard.draw(request))
    except GuardRefusedError as error:
        message = str(error)[:500]
        return encode(Refusal(code=error.code, message=message, counted=error.counted))
