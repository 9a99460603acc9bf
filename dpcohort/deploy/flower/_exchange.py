# SPDX-License-Identifier: Apache-2.0
"""Messages to clients and their answers, within a time limit, with nodes known by their keys.

What carries them is a :class:`Transport`: Flower is one (``adapter``), the same process another.
Messages and answers are bytes; what is in them is the business of ``messages``.

Flower hands a message out once: if the node dies, the message is gone. So one that came to nothing
is sent again while the round's time lasts. That costs no budget: a guard computes a draw once and
sends the stored update again. Whom to ask, and when to stop, depends on the clock, the number of
attempts and who is online, never on what an update contains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dpcohort._validate import number, whole_number
from dpcohort.errors import InputError
from dpcohort.plain_text import one_line
from dpcohort.runs._status import ASKED

#: What came back for one message: the name that ``push`` gave it, what the guard answered (None if
#: nothing came), and why nothing came, in the transport's words.
Answer = tuple[str, bytes | None, str]
#: Told of an exchange: its group, why clients have not answered yet, and who has.
Tell = Callable[[str, Mapping[str, str], list[str]], None]
_OFFLINE = "its node is not online"
#: Seconds until a client that could not answer is asked again, at most.
_LONGEST_REST = 60.0
#: Seconds between two looks, at least.
_SOON = 0.05


def pause(waited: float, *, longest: float) -> float:
    """Seconds until the next look for something that has been waited for so long.

    A tenth of the wait, so that what comes soon is seen soon, what comes late a tenth later, and
    who waits for long asks rarely.

    Example:
        >>> pause(1.0, longest=3.0), pause(3600.0, longest=3.0)
        (0.1, 3.0)
    """
    return min(longest, max(_SOON, waited / 10))


class Transport(Protocol):
    """Carries messages to nodes and answers back; never trusted with anything else."""

    def nodes(self) -> Sequence[tuple[str, int]]:
        """The nodes that are there now: key and number of each.

        The key is the fingerprint of the public key a node proved to hold, empty if it proved none;
        a restart may change the number.
        """
        ...

    def push(
        self, messages: Sequence[tuple[int, bytes]], *, group: str, ttl: float
    ) -> Sequence[str]:
        """Send messages that are void after ``ttl`` seconds; their names, in the same order.

        Args:
            messages: the number of the node each goes to, and its body.
            group: a name for the exchange in the transport's logs.
            ttl: seconds.

        An empty name says that a message could not be sent.
        """
        ...

    def pull(self, names: Sequence[str]) -> Sequence[Answer]:
        """The answers that are there by now; each is given once."""
        ...


class InProcess:
    """A transport inside one process: each node is a function from a request to a reply.

    Args:
        apps: the function of each node, by the fingerprint of its key.

    Example:
        >>> transport = InProcess({"key-a": lambda body: body[::-1]})
        >>> key, node = transport.nodes()[0]
        >>> names = transport.push([(node, b"abc")], group="0", ttl=1.0)
        >>> transport.pull(names)[0][1]
        b'cba'
    """

    def __init__(self, apps: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self._apps = dict(enumerate(apps.values()))
        self._nodes = [(key, place) for place, key in enumerate(apps)]
        self._answers: dict[str, Answer] = {}
        self._sent = 0

    def nodes(self) -> Sequence[tuple[str, int]]:
        """All nodes; they are always there."""
        return self._nodes

    def push(
        self, messages: Sequence[tuple[int, bytes]], *, group: str, ttl: float
    ) -> Sequence[str]:
        """Hand each message to its function at once; an exception becomes an error answer."""
        names = []
        for node, body in messages:
            self._sent += 1
            name = f"{group}/{self._sent}"
            try:
                self._answers[name] = name, self._apps[node](body), ""
            except Exception as error:  # an app may fail in any way, like a real one
                self._answers[name] = name, None, f"{type(error).__name__}: {error}"
            names.append(name)
        return names

    def pull(self, names: Sequence[str]) -> Sequence[Answer]:
        """The answers to these messages, once."""
        return [self._answers.pop(name) for name in names if name in self._answers]


@dataclass(kw_only=True)
class Heard:
    """What came of asking one client.

    Attributes:
        bodies: its answers, the last one last.
        errors: what went wrong on the way, in order.
        attempts: how often it was asked.
    """

    bodies: list[bytes] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    attempts: int = 0

    @property
    def away(self) -> str:
        """Why no message to the client is under way."""
        if self.attempts == 0:
            return _OFFLINE
        return self.errors[-1] if self.errors else "no guard answers at its node"

    @property
    def reason(self) -> str:
        """Why nothing came, by the last of the errors."""
        return one_line("; ".join(self.errors[-2:])) or "no answer"


class Exchange:
    """Asks clients and waits for their answers.

    Args:
        transport: carries the messages.
        keys: fingerprint of each client's registered public key.
        timeout: seconds for one exchange; messages are void afterwards.
        attempts: how often a client is asked at most.
        revoked: clients that are asked nothing.
        poll: seconds between looks for answers, at most. A client that could not answer is asked
            again after ten times as long, then twenty: a guard that died is started meanwhile.
        tell: told by each exchange's group why clients have not answered yet, when that changes,
            and who has.
        clock: tells the seconds.
        sleep: waits.
    """

    def __init__(
        self,
        transport: Transport,
        keys: Mapping[str, str],
        *,
        timeout: float = 600.0,
        attempts: int = 3,
        revoked: Collection[str] = (),
        poll: float = 0.5,
        tell: Tell = lambda group, waiting, answered: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._transport, self._keys = transport, dict(keys)
        self._timeout = number("timeout", timeout, above=0)
        self._attempts = whole_number("attempts", attempts, at_least=1)
        self._revoked = frozenset(revoked)
        self._poll, self._tell, self._clock, self._sleep = poll, tell, clock, sleep

    def ask(
        self,
        messages: Mapping[str, bytes],
        *,
        group: str,
        satisfied: Callable[[str, bytes], bool] = lambda client, body: True,
        enough: Callable[[Collection[str]], bool] = lambda answered: True,
    ) -> dict[str, Heard]:
        """Send each client its message; return when all have answered or the time is over.

        Args:
            messages: by client.
            group: a name for the exchange in the transport's logs.
            satisfied: whether an answer is the last word; if not, the client is asked again.
            enough: whether it will do that these have answered; if not, the time begins again.
        """
        began = self._clock()
        deadline = began + self._timeout
        heard = {client: Heard() for client in messages}
        # When those that wait are asked, or asked again.
        due = {client: began for client in messages if client not in self._revoked}
        for client in messages.keys() - due.keys():
            heard[client].errors.append("revoked by the operator")
        under_way: dict[str, str] = {}
        told, times = dict[str, str](), 1
        while True:
            may = {c: at for c, at in due.items() if heard[c].attempts < times * self._attempts}
            for name, client in self._send(messages, may, heard, group, deadline):
                under_way[name] = client
                del due[client]
            for name, body, error in self._transport.pull(list(under_way)) if under_way else ():
                if name not in under_way:
                    continue
                client = under_way.pop(name)
                if body is None:
                    heard[client].errors.append(error or "no reason given")
                else:
                    heard[client].bodies.append(body)
                if body is None or not satisfied(client, body):
                    rest = min(10 * self._poll * heard[client].attempts, _LONGEST_REST)
                    due[client] = self._clock() + rest
            waiting = dict.fromkeys(under_way.values(), ASKED) | {c: heard[c].away for c in due}
            answered = [client for client in messages if client not in waiting]
            if waiting != told or not waiting:
                self._tell(group, waiting, answered)
                told = waiting
            left = [c for c in due if heard[c].attempts < times * self._attempts]
            left += under_way.values()
            now = self._clock()
            if left and now < deadline:
                pass
            elif enough(answered):
                for client in sorted(left):
                    heard[client].errors.append(
                        f"no answer within {self._timeout:g} s"
                        if heard[client].attempts
                        else f"its node was not online within {self._timeout:g} s"
                    )
                break
            else:  # asked for again by the same names, nothing is spent twice
                times += 1
                deadline = now + self._timeout
                due |= dict.fromkeys(under_way.values(), now)
                under_way = {}
            self._sleep(min(pause(now - began, longest=self._poll), max(0.0, deadline - now)))
        return heard

    def _send(
        self,
        messages: Mapping[str, bytes],
        due: Mapping[str, float],
        heard: Mapping[str, Heard],
        group: str,
        deadline: float,
    ) -> Iterator[tuple[str, str]]:
        """Send the messages that are due to clients whose node is online; their names, and whose.

        One that was not taken stays due.
        """
        now = self._clock()
        rested = [client for client, at in due.items() if now >= at]
        if not rested or now >= deadline:
            return
        nodes = self._online()
        ready = sorted(client for client in rested if self._keys.get(client, "") in nodes)
        posted = [(nodes[self._keys[c]], messages[c]) for c in ready]
        names = self._transport.push(posted, group=group, ttl=deadline - now) if posted else ()
        for client, name in zip(ready, names, strict=True):
            heard[client].attempts += 1
            if name:
                yield name, client
            else:
                heard[client].errors.append("the transport did not take the message")

    def _online(self) -> dict[str, int]:
        """The numbers of the nodes that are there, by key.

        Raises:
            InputError: two nodes at once hold one key: somebody has a copy of it.
        """
        found: dict[str, int] = {}
        for key, node in self._transport.nodes():
            if not key:
                continue
            if key in found:
                owner = next((c for c, own in self._keys.items() if own == key), "no client")
                raise InputError.because(
                    f"two nodes are online with the key of {owner}. Nothing more is sent: find out "
                    "who has a copy of the key, and register a new one."
                )
            found[key] = node
        return found
