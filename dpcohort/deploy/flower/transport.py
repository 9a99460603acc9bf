# SPDX-License-Identifier: Apache-2.0
"""What the server needs of a transport: who is there, letters out, answers in.

Flower is one such transport (``adapter``), the same process another. Letters and answers are bytes;
what is in them is the business of ``letters``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Answer", "InProcess", "Letter", "Node", "Transport"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node as the transport knows it.

    Attributes:
        id: its number, which a restart may change.
        key: fingerprint of the public key it proved to hold; empty if it proved none.
        online: whether it is there now.
    """

    id: int
    key: str = ""
    online: bool = True


@dataclass(frozen=True, kw_only=True)
class Letter:
    """One request on its way.

    Attributes:
        node: number of the node it goes to.
        body: what the guard is asked.
    """

    node: int
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back for one letter.

    Attributes:
        letter: the name ``push`` gave the letter.
        body: what the guard answered; None if nothing came.
        error: why nothing came, in the transport's words.
    """

    letter: str
    body: bytes | None = None
    error: str = ""


class Transport(Protocol):
    """Carries letters to nodes and answers back; never trusted with anything else."""

    def nodes(self) -> Sequence[Node]:
        """The nodes there are."""
        ...

    def push(self, letters: Sequence[Letter], *, group: str, ttl: float) -> Sequence[str]:
        """Send letters that are void after ``ttl`` seconds; their names, in the same order.

        An empty name says that a letter could not be sent.
        """
        ...

    def pull(self, names: Sequence[str]) -> Sequence[Answer]:
        """The answers that are there by now; each is given once."""
        ...


class InProcess:
    """A transport inside one process: each node is a function from a request to a reply.

    Args:
        couriers: the function of each node, by the fingerprint of its key.

    Example:
        >>> transport = InProcess({"key-a": lambda body: body[::-1]})
        >>> node = transport.nodes()[0]
        >>> names = transport.push([Letter(node=node.id, body=b"abc")], group="0", ttl=1.0)
        >>> transport.pull(names)[0].body
        b'cba'
    """

    def __init__(self, couriers: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self._couriers = dict(enumerate(couriers.values()))
        self._nodes = [Node(id=place, key=key) for place, key in enumerate(couriers)]
        self._answers: dict[str, Answer] = {}
        self._sent = 0

    def nodes(self) -> Sequence[Node]:
        """All nodes; they are always there."""
        return self._nodes

    def push(self, letters: Sequence[Letter], *, group: str, ttl: float) -> Sequence[str]:
        """Hand each letter to its function at once; an exception becomes an error answer."""
        names = []
        for letter in letters:
            self._sent += 1
            name = f"{group}/{self._sent}"
            try:
                answer = Answer(letter=name, body=self._couriers[letter.node](letter.body))
            except Exception as error:  # a courier may fail in any way, like a real one
                answer = Answer(letter=name, error=f"{type(error).__name__}: {error}")
            self._answers[name] = answer
            names.append(name)
        return names

    def pull(self, names: Sequence[str]) -> Sequence[Answer]:
        """The answers to these letters, once."""
        return [self._answers.pop(name) for name in names if name in self._answers]
