# SPDX-License-Identifier: Apache-2.0
"""The one place that knows Flower: its messages, its grid, its two kinds of app.

Flower moves quickly, so everything used of it stands here and is held by a contract test. It is
imported when first needed, and told before to send no telemetry and to look for no updates.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dpcohort.deploy.flower.exchange import Answer
from dpcohort.errors import InputError

#: What keeps Flower from calling out; set for every process that is started.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
#: Versions the contract test was run against: at least, and below.
SUPPORTED = ((1, 41), (1, 43))

_RECORD, _BODY = "dpcohort", "body"


def flower_version() -> str:
    """The version of Flower that is installed.

    Raises:
        InputError: none is, or one that this adapter was not written for.

    Example:
        >>> flower_version().split(".")[0]
        '1'
    """
    os.environ.update(QUIET)
    try:
        import flwr
    except ModuleNotFoundError:
        raise InputError.because(
            "Flower is not installed; a federation over machines needs it. "
            'Get it with: python -m pip install "dpcohort[flower]"'
        ) from None
    version = str(flwr.__version__)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    low, high = SUPPORTED
    if not low <= numbers < high:
        raise InputError(
            "Flower's version",
            given=version,
            allowed=f"{low[0]}.{low[1]} or later and below {high[0]}.{high[1]}",
            next_step='Install one: python -m pip install "dpcohort[flower]"',
        )
    return version


class FlowerGrid:
    """Flower's grid as a transport.

    Args:
        grid: the ``Grid`` a ServerApp is given.
        by_key: nodes are known by the public key they proved; without it (a simulation, where
            nodes have none) by their place.
    """

    def __init__(self, grid: Any, *, by_key: bool = True) -> None:
        flower_version()
        self._grid, self._by_key = grid, by_key

    def nodes(self) -> Sequence[tuple[str, int]]:
        """Key and number of the nodes that Flower says are online, in the order of the numbers."""
        found = sorted(self._grid.get_nodes(), key=lambda node: int(node.node_id))
        if not self._by_key:
            return [(str(place), int(node.node_id)) for place, node in enumerate(found)]
        return [
            (_fingerprint(bytes(node.public_key)), int(node.node_id))
            for node in found
            if node.status in ("", "online")
        ]

    def push(
        self, messages: Sequence[tuple[int, bytes]], *, group: str, ttl: float
    ) -> Sequence[str]:
        """Send messages; one that Flower would not take has an empty name."""
        from flwr.app import Message

        posted = [
            Message(_record(body), node, "train", ttl=ttl, group_id=group)
            for node, body in messages
        ]
        names = [str(name or "") for name in self._grid.push_messages(posted)]
        return names if len(names) == len(posted) else [""] * len(posted)

    def pull(self, names: Sequence[str]) -> Sequence[Answer]:
        """The answers there are; errors come from the SuperLink, so only their message is known."""
        answers: list[Answer] = []
        for message in self._grid.pull_messages(list(names)):
            name = str(message.metadata.reply_to_message_id)
            if message.has_error():
                error = message.error
                words = f"error {int(error.code)}: {str(error.reason or 'no reason given')[:300]}"
                answers.append((name, None, words))
            else:
                answers.append(_answer(name, message.content))
        return answers


@lru_cache(maxsize=1 << 16)
def _fingerprint(public: bytes) -> str:
    """Of a public key as Flower gives it; empty where there is none, or one of another kind."""
    from dpcohort.deploy.flower.certificates import key_fingerprint

    try:
        return key_fingerprint(public)
    except InputError:
        return ""


def make_server_app(run: Callable[[Any, Mapping[str, Any]], None]) -> Any:
    """A ServerApp that calls ``run(grid, run_config)``."""
    flower_version()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        run(grid, dict(context.run_config))

    return app


def make_client_app(carry: Callable[[bytes, Mapping[str, Any], Mapping[str, Any]], bytes]) -> Any:
    """A ClientApp that answers each message with ``carry(body, node_config, run_config)``."""
    flower_version()
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        body = carry(_body(message.content), dict(context.node_config), dict(context.run_config))
        return Message(_record(body), reply_to=message)

    return app


def _record(body: bytes) -> Any:
    """Bytes as an array record: Flower sends those in pieces, so a large model passes too."""
    from flwr.app import Array, ArrayRecord, RecordDict

    array = Array(np.frombuffer(body, dtype=np.uint8))
    return RecordDict({_RECORD: ArrayRecord({_BODY: array})})


def _body(content: Any) -> bytes:
    array = content[_RECORD][_BODY].numpy()
    if array.dtype != np.uint8 or array.ndim != 1:
        raise ValueError("the body is not bytes")
    return bytes(array.tobytes())


def _answer(name: str, content: Any) -> Answer:
    try:
        return name, _body(content), ""
    except Exception:  # written by another program: it may be anything
        return name, None, "the answer is not one of dpcohort's client app"
