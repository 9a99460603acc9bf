# SPDX-License-Identifier: Apache-2.0
"""Processes that compute a round together: each its share of the rows, copied to the first.

``torchrun`` starts them and numbers them, from rank 0 on. The first rank leads: it alone runs the
command, chooses, counts, combines, steps, tests and writes. The others wait for what it tells them
and compute a share of the rows of a round; no other rank can begin one that is not counted.

What is shared are whole rows of a round's updates on a CPU, whole passes on an accelerator: units
that are the same however many ranks there are. Their rows are copied, byte by byte, to where the
first rank would have written them. No sum of floating-point numbers is taken across ranks, so the
number of ranks changes no bit. Integers of a private sum are added, which is exact in any order.

What ranks tell each other is not encrypted and may be without noise (merged noise, the integers of
a distributed sum): all of them are one party, on machines and a network that it alone uses.

Small messages go over the CPU (gloo). Rows on GPUs go from GPU to GPU (nccl) where every rank has
one of its own, and over the CPU where several share one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpcohort.aggregation import Cohort
from dpcohort.errors import (
    BudgetExceededError,
    DataMissingError,
    DpcohortError,
    InputError,
    VerificationError,
)

#: How long the first rank waits for another's share, and a rank for one that is lost in the net.
_PATIENCE = timedelta(hours=1)
#: How long the first rank may plan, test or certify without a word to the others.
_SILENCE = timedelta(days=1)
#: In a store that outlives a broken connection: the exit code of the first rank.
_END = "dpcohort exit code"
_ERRORS = {e.exit_code: e for e in (DataMissingError, BudgetExceededError, VerificationError)}


class LostRankError(Exception):
    """Another rank does not answer any more."""


class Ranks:
    """The ranks that compute a training together, seen from one of them; by default it is alone.

    Args:
        rank: its number.
        count: how many there are.

    Example:
        >>> [Ranks(rank, 3).share(8) for rank in range(3)]
        [range(0, 3), range(3, 6), range(6, 8)]
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count
        #: Whether any training was shared.
        self.shared = False
        #: Whether another rank was lost.
        self.is_broken = False
        self._orders: Any = None
        self._gpus: Any = None  # the group in which rows go from GPU to GPU
        self._in_step = True  # false while the others compute a round, or after one that failed

    @classmethod
    def joined(cls) -> Ranks:
        """Meet the ranks that ``torchrun`` started together with this one.

        Raises:
            InputError: they cannot be reached.
        """
        try:
            dist.init_process_group("gloo", timeout=_PATIENCE)
            ranks = cls(dist.get_rank(), dist.get_world_size())
            ranks._orders = dist.new_group(backend="gloo", timeout=_SILENCE)
        except (RuntimeError, ValueError) as error:
            raise InputError.because(
                "the ranks cannot meet, by what RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of "
                f"the environment say ({str(error).splitlines()[0]}). Start them with torchrun, or "
                "take these out of the environment."
            ) from None
        return ranks

    @property
    def leads(self) -> bool:
        """Whether this is the first rank, which alone combines and writes."""
        return self.rank == 0

    def share(self, units: int) -> range:
        """The units of work, of so many, that this rank does."""
        first, end = (-(-units * r // self.count) for r in (self.rank, self.rank + 1))
        return range(first, end)

    # What the first rank says and the others hear.

    def tell(self, **message: Any) -> None:
        """Say something to the other ranks.

        Raises:
            InputError: an error in a round left the ranks at different places.
        """
        if not self._in_step:
            raise InputError.because(
                "an error in a shared round left the ranks at different places. Start it again."
            )
        content = _as_bytes(json.dumps(message))
        self._exchange(dist.broadcast, torch.tensor([content.numel()]), 0, group=self._orders)
        self._exchange(dist.broadcast, content, 0, group=self._orders)

    def hear(self) -> dict[str, Any]:
        """What the first rank says next."""
        length = torch.zeros(1, dtype=torch.int64)
        self._exchange(dist.broadcast, length, 0, group=self._orders)
        content = torch.empty(int(length), dtype=torch.uint8)
        self._exchange(dist.broadcast, content, 0, group=self._orders)
        message: dict[str, Any] = json.loads(_as_text(content))
        return message

    def begin(self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]) -> None:
        """Have the other ranks begin a round; whoever asks for it has counted it."""
        if self.count > 1 and self.leads:
            clients = [cohort.clients.tolist() for cohort in cohorts]
            self.tell(round=cohorts[0].round, clients=clients)
            self._in_step = False
            for one in parameters:
                self.copy_from_first(one)

    def done(self) -> None:
        """A round that began is all there; the others wait for the next word."""
        self._in_step = True

    def copy_from_first(self, tensor: Tensor) -> Tensor:
        """The tensor as the first rank has it; on the others it is written over."""
        self._moved(dist.broadcast, tensor, 0)
        return tensor

    def end(self, code: int) -> None:
        """Let the others end, with the exit code of the first rank."""
        with suppress(InputError, RuntimeError):  # what was lost has ended already
            dist.distributed_c10d._get_default_store().set(_END, str(code))
            if self._in_step:
                self.tell(end=code)
        self.leave()

    def leave(self) -> None:
        """Part from the others, and end the threads that spoke with them.

        A thread still holds what it sent last for a moment after it has arrived. Python must not
        end in that moment (the thread would abort the process), and a group ends its threads only
        when nothing refers to it.
        """
        self._orders = self._gpus = None
        dist.destroy_process_group()

    def last_word(self) -> int | None:
        """The exit code of a first rank that is gone; None if it left none."""
        try:
            store = dist.distributed_c10d._get_default_store()
            return int(store.get(_END)) if store.check([_END]) else None
        except RuntimeError:
            return None

    # What the others answer, and the first collects.

    def answer(self, first: int = 0, second: int = 0) -> None:
        """Answer the first rank that all is well, with two numbers."""
        self._exchange(dist.send, torch.tensor([0, first, second]), 0)

    def refuse(self, code: int, words: str) -> None:
        """Answer the first rank with an error and its exit code."""
        content = _as_bytes(words)
        self._exchange(dist.send, torch.tensor([code, 0, content.numel()]), 0)
        self._exchange(dist.send, content, 0)

    def answers(self, take: Callable[[int, int, int], None] = lambda *answer: None) -> list[int]:
        """The first numbers that the other ranks answer, in their order.

        Args:
            take: told a rank and its two numbers; receives what else that rank sends.

        Raises:
            DpcohortError: what went wrong on another rank, after all have answered.
        """
        numbers: list[int] = []
        failed: DpcohortError | None = None
        for rank in range(1, self.count):
            header = torch.zeros(3, dtype=torch.int64)
            self._exchange(dist.recv, header, rank)
            code, first, second = header.tolist()
            if code:
                content = torch.empty(second, dtype=torch.uint8)
                self._exchange(dist.recv, content, rank)
                words = f"on rank {rank}: {_as_text(content)}"
                failed = _ERRORS[code](words) if code in _ERRORS else InputError.because(words)
            else:
                numbers.append(first)
                take(rank, first, second)
        if failed is not None:
            raise failed
        return numbers

    def is_any(self, found: bool) -> bool:
        """Whether it was found on any rank; all of them get the same answer."""
        if self.count == 1:
            return found
        if not self.leads:
            self.answer(int(found))
            return bool(self.copy_from_first(torch.zeros(1, dtype=torch.int64)))
        anywhere = any([found, *self.answers()])
        self.copy_from_first(torch.tensor([int(anywhere)]))
        return anywhere

    def collect(self, rows: Tensor, mine: range) -> None:
        """Bring all rows together on the first rank.

        Args:
            rows: [rows, D]; those of other ranks are written over on the first.
            mine: the rows that this rank has computed.
        """
        if self.count == 1:
            return
        if not self.leads:
            self.answer(mine.start, mine.stop)
            self._moved(dist.send, rows[mine.start : mine.stop], 0)
            return
        covered = list(mine)

        def take(rank: int, start: int, stop: int) -> None:
            covered.extend(range(start, stop))
            self._moved(dist.recv, rows[start:stop], rank)

        self.answers(take)
        if covered != list(range(len(rows))):
            raise RuntimeError(f"the ranks have the rows {covered} of {len(rows)}")

    def add(self, total: Tensor) -> None:
        """Add the integers of all ranks on the first, which is exact in any order. SENSITIVE."""
        if self.count == 1:
            return
        if not self.leads:
            self.answer()
            self._moved(dist.send, total, 0)
            return
        theirs = torch.empty_like(total)

        def take(rank: int, *_: int) -> None:
            self._moved(dist.recv, theirs, rank)
            total.add_(theirs)

        self.answers(take)

    def use_gpus(self, wanted: bool) -> None:
        """Whether rows on GPUs go from one to the other; every rank must say the same."""
        if not wanted:
            self._gpus = None
        elif self._gpus is None:
            self._gpus = dist.new_group(backend="nccl", timeout=_PATIENCE)

    def _moved(self, operation: Callable[..., Any], tensor: Tensor, other: int) -> None:
        """Send or receive a tensor wherever it is."""
        if tensor.device.type == "cpu" or self._gpus is not None:
            group = None if tensor.device.type == "cpu" else self._gpus
            self._exchange(operation, tensor, other, group=group)
            return
        here = tensor.cpu()
        self._exchange(operation, here, other)
        if operation is dist.recv or (operation is dist.broadcast and not self.leads):
            tensor.copy_(here)

    def _exchange(
        self, operation: Callable[..., Any], tensor: Tensor, other: int, group: Any = None
    ) -> None:
        try:
            if tensor.numel():
                operation(tensor, other, group=group)
        except RuntimeError as error:
            self.is_broken = True
            self._in_step = False
            if not self.leads:
                raise LostRankError(str(error)) from error
        else:
            return
        raise InputError.because(
            "another rank has ended, or cannot be reached any more; its own last words, or those "
            "of torchrun, say why. What was counted stays counted: the same command, with any "
            "number of ranks, goes on with --resume."
        )


def _as_bytes(words: str) -> Tensor:
    return torch.frombuffer(bytearray(words.encode()), dtype=torch.uint8)


def _as_text(content: Tensor) -> str:
    return content.numpy().tobytes().decode()


def own_gpu() -> bool:
    """Whether every rank of this machine has a GPU of its own."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
