# SPDX-License-Identifier: Apache-2.0
"""What knows Flower: its messages, its grid, its two kinds of app; ``_operator`` its operator.

Flower moves quickly, so everything used of it stands here and is held by a contract test. It is
imported with this module alone, and told before to send no telemetry and to look for no updates.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from dpcohort.deploy._monitoring import LogLine, Metric
from dpcohort.deploy.flower._certificates import key_fingerprint
from dpcohort.deploy.flower._exchange import Answer, pause
from dpcohort.deploy.flower._messages import guard_answered
from dpcohort.errors import DpcohortError, FileFormatError, InputError

#: What keeps Flower from calling out; set for this process, and for every one that is started.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
os.environ.update(QUIET)  # before it is imported, which reads them
try:
    import flwr
    from flwr.app import Array as Array
    from flwr.app import ArrayRecord as ArrayRecord
    from flwr.app import ConfigRecord as ConfigRecord
    from flwr.app import Error as Error
    from flwr.app import Message as Message
    from flwr.app import RecordDict as RecordDict
    from flwr.clientapp import ClientApp
    from flwr.common.constant import ErrorCode
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import Result as Result
    from flwr.serverapp.strategy import Strategy as Strategy
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import (
        pull_and_inflate_object_from_tree,
        pull_objects,
        push_objects,
    )
    from flwr.supercore.run import RunNotRunningException
    from flwr.superlink.grid import http_grid
    from flwr.supernode import fleet_http_connection
except ImportError as error:
    raise InputError.because(
        "a federation over machines needs Flower, which is not installed in a version that has "
        f'what is used of it ({error}). Get it with: python -m pip install "dpcohort[flower]"'
    ) from None
#: Versions the contract test was run against: at least, and below.
SUPPORTED = ((1, 41), (1, 43))

_RECORD, _BODY = "dpcohort", "body"
#: Seconds between looks of a node for messages, at most: as long as a SuperNode's.
_IDLE = 3.0
#: Seconds until a node that was not let in tries again, at most.
_LONGEST_WAIT = 60.0
#: Bytes of a body that is sent in one part.
_SHORT = 1 << 20
#: A message is announced before its parts have come. Flower waits a second for one that has not;
#: seconds until the first look again here, twice as long each time.
_PART_WAIT = 0.05


def checked_version(version: str) -> str:
    """A version of Flower, if this adapter was written for it.

    Raises:
        InputError: it was not.

    Example:
        >>> checked_version("1.41.2")
        '1.41.2'
    """
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


#: The version of Flower that is installed.
FLOWER_VERSION = checked_version(str(flwr.__version__))


class FlowerGrid:
    """Flower's grid as a transport.

    Args:
        grid: the ``Grid`` a ServerApp is given.
        by_key: nodes are known by the public key they proved; without it (a simulation, where
            nodes have none) by their place.
    """

    def __init__(self, grid: Any, *, by_key: bool = True) -> None:
        # The grid has no setting for it.
        vars(http_grid)["pull_objects"] = partial(pull_objects, initial_backoff=_PART_WAIT)
        self._grid, self._by_key = grid, by_key

    def nodes(self) -> Sequence[tuple[str, int]]:
        """Key and number of the nodes that Flower says are online, in the order of the numbers."""
        found = sorted(self._grid.get_nodes(), key=lambda node: int(node.node_id))
        if not self._by_key:
            return [(str(place), int(node.node_id)) for place, node in enumerate(found)]
        return [
            (known_key(bytes(node.public_key)), int(node.node_id))
            for node in found
            if node.status in ("", "online")
        ]

    def push(
        self, messages: Sequence[tuple[int, bytes]], *, group: str, ttl: float
    ) -> Sequence[str]:
        """Send messages; one that Flower would not take has an empty name."""
        posted = [
            Message(self._content(body, group), node, "train", ttl=ttl, group_id=group)
            for node, body in messages
        ]
        names = [str(name or "") for name in self._grid.push_messages(posted)]
        return names if len(names) == len(posted) else [""] * len(posted)

    def _content(self, body: bytes, group: str) -> Any:
        """What a message of this exchange holds."""
        return record_of(body)

    def pull(self, names: Sequence[str]) -> Sequence[Answer]:
        """The answers there are; errors come from the SuperLink, so only their message is known."""
        answers: list[Answer] = []
        for message in self._grid.pull_messages(list(names)):
            name = str(message.metadata.reply_to_message_id)
            if message.has_error():
                error = message.error
                words = f"error {int(error.code)}: {str(error.reason or 'no reason given')[:300]}"
                answers.append((name, None, words))
                continue
            try:
                answers.append((name, body_of(message.content), ""))
            except Exception:  # written by another program: it may be anything
                answers.append((name, None, "the answer is not one of dpcohort's client app"))
        return answers


@lru_cache(maxsize=1 << 16)
def known_key(public: bytes) -> str:
    """Of a public key as Flower gives it; empty where there is none, or one of another kind."""
    try:
        return key_fingerprint(public)
    except InputError:
        return ""


def make_server_app(run: Callable[[Any, Mapping[str, Any]], None]) -> Any:
    """A ServerApp that calls ``run(grid, run_config)``."""
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        run(grid, dict(context.run_config))

    return app


def make_client_app(carry: Callable[[bytes, Mapping[str, Any], Mapping[str, Any]], bytes]) -> Any:
    """A ClientApp that answers each message with ``carry(body, node_config, run_config)``."""
    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        body = carry(body_of(message.content), dict(context.node_config), dict(context.run_config))
        return Message(record_of(body), reply_to=message)

    return app


class NodeState:
    """What a node does, in numbers for its operator."""

    def __init__(self) -> None:
        self._joined, self._answers, self._failures, self._unguarded = False, 0, 0, False

    def note(self, line: str) -> None:
        """Take in a line of the node's log."""
        if isinstance(line, LogLine):
            self._joined = bool(line.facts.get("joined", self._joined))
            self._failures += bool(line.facts.get("failed"))

    def answered(self, body: bytes) -> bytes:
        """Count an answer, which is given back."""
        self._answers += 1
        self._unguarded = not guard_answered("", body)
        return body

    def metrics(self) -> list[Metric]:
        """Its numbers."""
        return [
            Metric("node_joined", "Whether the SuperLink has let the node in.", self._joined),
            Metric("node_answers", "Messages answered.", self._answers),
            Metric("node_failures", "Messages that came to nothing.", self._failures),
            Metric("node_without_guard", "Whether no guard answered last.", self._unguarded),
        ]

    def ill(self) -> str:
        """Why it does not do its work; empty where it does."""
        if not self._joined:
            return "the SuperLink has not let this node in"
        return "no guard answered the last message" if self._unguarded else ""


def serve_node(
    carry: Callable[[bytes], bytes],
    *,
    superlink: str,
    authority: Path,
    key: Path,
    say: Callable[[str], None] = lambda words: None,
) -> NoReturn:
    """Be a client's node in the place of a SuperNode: answer each message with ``carry(body)``.

    To the SuperLink there is no difference: the same calls, key and heartbeat. Here there is: one
    process for all messages instead of one for each, which looks for the next message soon after
    it has answered one, and no code of the server is fetched or run. A node that
    dies costs what a SuperNode costs that dies: its message, which the server sends again.

    Args:
        carry: answers a message.
        superlink: host and port by which it is reached.
        authority: checks its certificate.
        key: the node's private key.
        say: told that the SuperLink has let it in, and of messages that came to nothing.

    Raises:
        InputError: a file cannot be read.
        FileFormatError: the key is no key of a node, or the certificate is none.
        DpcohortError: the SuperLink is there and does not answer as it should.
    """
    certificate, secret = certificate_in(authority), _content(key)
    try:
        private = load_ssh_private_key(secret, None)
    except (ValueError, UnsupportedAlgorithm):
        private = None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise FileFormatError(key, "it is not the private key of a node (node.key of a kit).")
    keys = (private, private.public_key())
    # Flower would end the process, a few seconds later also one that wants to go on.
    vars(fleet_http_connection)["flwr_exit"] = _not_let_in
    for tries in itertools.count(1):
        try:
            with fleet_http_connection.http_request_response(
                superlink, False, certificate, keys
            ) as link:
                _serve_on(carry, link, say)
            raise DpcohortError(f"the SuperLink at {superlink} does not answer as it should.")
        except _NotLetInError:
            rest = min(5 * tries, _LONGEST_WAIT)
            words = "the SuperLink does not let this key in: it is not registered (yet), or "
            words += "another node has it, or one that was killed, for a minute"
            say(LogLine(f"{words}; tried again in {rest:.0f} s", joined=False, next_seconds=rest))
            time.sleep(rest)
    raise AssertionError


def certificate_in(path: Path) -> bytes:
    """The certificate of a SuperLink's authority.

    Raises:
        InputError: the file cannot be read, or is none.
    """
    content = _content(path)
    try:
        ssl.create_default_context(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise FileFormatError(path, "it is not a certificate (ca.crt of a kit).") from None
    return content


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError.because(f"{path} cannot be read: {error.strerror}.") from None


class _NotLetInError(Exception):
    """The SuperLink does not let a node in."""


def _not_let_in(code: int, message: str) -> NoReturn:
    raise _NotLetInError(message)


def _serve_on(
    carry: Callable[[bytes], bytes], link: Sequence[Any], say: Callable[[str], None]
) -> NoReturn:
    """Answer messages as long as the connection lasts."""
    say(LogLine(f"joined as node {link[0]}", joined=True, node=int(link[0])))
    receive, since = link[1], time.monotonic()
    while True:
        began = time.monotonic()
        with contextlib.suppress(RunNotRunningException):  # it wants no more answers
            came = receive()
            if came is not None:
                try:
                    _serve(carry, link, *came)
                except Exception as error:  # of this message; the server asks again
                    words = f"a message came to nothing: {type(error).__name__}: {error}"
                    say(LogLine(words, failed=True, next="the server asks again"))
                since = time.monotonic()
                continue
        # The more nodes ask, the longer an answer takes, and the more rarely each asks.
        now = time.monotonic()
        time.sleep(min(_IDLE, max(2 * (now - began), pause(now - since, longest=_IDLE))))


def _serve(carry: Callable[[bytes], bytes], link: Sequence[Any], head: Any, tree: Any) -> None:
    """Fetch the parts of a message, answer it, and send the parts of the answer."""
    _, _, send, _, _, pull_object, push_object, confirm = link
    run = head.metadata.run_id
    message = pull_and_inflate_object_from_tree(
        tree,
        lambda name: pull_object(run, name),
        lambda name: confirm(run, name),
        return_type=Message,
        initial_backoff=_PART_WAIT,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    try:
        reply = Message(record_of(carry(body_of(message.content))), reply_to=message)
    except Exception as error:  # whatever the message is, the node goes on
        words = f"{type(error).__name__}: {str(error)[:300]}"
        code = int(ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
        reply = Message(Error(code=code, reason=words), reply_to=message)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        # How long it took is nobody's business.
        wanted, session = send(reply, get_object_tree(reply), 0.0)
        push_objects(
            get_all_nested_objects(reply),
            lambda name, part: push_object(run, session, name, part),
            object_ids_to_push=wanted,
        )


def record_of(body: bytes) -> Any:
    """Bytes as a record.

    Each part of a record is a call of its own at the SuperLink. A short body is one part; a long
    one is an array, which has more, and which Flower sends in pieces, so that any model passes.
    """
    if len(body) <= _SHORT:
        return RecordDict({_RECORD: ConfigRecord({_BODY: body})})
    array = Array(np.frombuffer(body, dtype=np.uint8))
    return RecordDict({_RECORD: ArrayRecord({_BODY: array})})


def body_of(content: Any) -> bytes:
    """The bytes of a record."""
    body = content[_RECORD][_BODY]
    if isinstance(body, bytes):
        return body
    array = body.numpy()
    if array.dtype != np.uint8 or array.ndim != 1:
        raise ValueError("the body is not bytes")
    return bytes(array.tobytes())
