# SPDX-License-Identifier: Apache-2.0
"""Letters to clients and their answers, within a time limit, with nodes known by their keys.

Flower hands a message out once: if the node dies, the message is gone. So a letter that came to
nothing is sent again while the round's time lasts. That costs no budget: a guard computes a draw
once and sends the stored update again. Whom to ask, and when to stop, depends on the clock, the
number of attempts and who is online, never on what an update contains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dpcohort._validate import number, whole_number
from dpcohort.deploy.flower.transport import Answer, Letter, Node, Transport
from dpcohort.errors import InputError

__all__ = ["Exchange", "Heard"]


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


class Exchange:
    """Asks clients and waits for their answers.

    Args:
        transport: carries the letters.
        keys: fingerprint of each client's registered public key.
        timeout: seconds for one exchange; letters are void afterwards.
        attempts: how often a client is asked at most.
        poll: seconds between looks for answers.
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
        poll: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._transport, self._keys = transport, dict(keys)
        self._timeout = number("timeout", timeout, above=0)
        self._attempts = whole_number("attempts", attempts, at_least=1)
        self._poll, self._clock, self._sleep = poll, clock, sleep

    def ask(
        self,
        letters: Mapping[str, bytes],
        *,
        group: str,
        satisfied: Callable[[str, bytes], bool] = lambda client, body: True,
    ) -> dict[str, Heard]:
        """Send each client its letter; return when all have answered or the time is over.

        Args:
            letters: by client.
            group: a name for the exchange in the transport's logs.
            satisfied: whether an answer is the last word; if not, the client is asked again.
        """
        deadline = self._clock() + self._timeout
        heard = {client: Heard() for client in letters}
        waiting = set(letters)
        under_way: dict[str, str] = {}
        while True:
            self._send(letters, waiting, under_way, heard, group, deadline)
            for answer in self._transport.pull(list(under_way)) if under_way else ():
                client = under_way.pop(answer.letter, None)
                if client is not None and not self._take(heard[client], answer, client, satisfied):
                    waiting.add(client)
            waiting = {c for c in waiting if heard[c].attempts < self._attempts}
            if not waiting and not under_way:
                break
            if self._clock() >= deadline:
                for client in sorted(waiting | set(under_way.values())):
                    heard[client].errors.append(
                        f"no answer within {self._timeout:g} s"
                        if heard[client].attempts
                        else f"its node was not online within {self._timeout:g} s"
                    )
                break
            self._sleep(self._poll)
        return heard

    def _send(
        self,
        letters: Mapping[str, bytes],
        waiting: set[str],
        under_way: dict[str, str],
        heard: dict[str, Heard],
        group: str,
        deadline: float,
    ) -> None:
        """Send the letters of waiting clients whose node is online."""
        left = deadline - self._clock()
        if not waiting or left <= 0:
            return
        nodes = self._online()
        ready = sorted(client for client in waiting if self._keys.get(client, "") in nodes)
        if not ready:
            return
        posted = [Letter(node=nodes[self._keys[c]].id, body=letters[c]) for c in ready]
        names = self._transport.push(posted, group=group, ttl=left)
        for client, name in zip(ready, names, strict=True):
            heard[client].attempts += 1
            if name:
                under_way[name] = client
                waiting.discard(client)
            else:
                heard[client].errors.append("the transport did not take the letter")

    def _online(self) -> dict[str, Node]:
        """Nodes that are there, by key.

        Raises:
            InputError: two nodes at once hold one key: somebody has a copy of it.
        """
        found: dict[str, Node] = {}
        for node in self._transport.nodes():
            if not node.online or not node.key:
                continue
            if node.key in found:
                owner = next((c for c, key in self._keys.items() if key == node.key), "no client")
                raise InputError.because(
                    f"two nodes are online with the key of {owner}. Nothing more is sent: find out "
                    "who has a copy of the key, and register a new one."
                )
            found[node.key] = node
        return found

    @staticmethod
    def _take(
        heard: Heard, answer: Answer, client: str, satisfied: Callable[[str, bytes], bool]
    ) -> bool:
        if answer.body is None:
            heard.errors.append(answer.error or "no reason given")
            return False
        heard.bodies.append(answer.body)
        return satisfied(client, answer.body)
