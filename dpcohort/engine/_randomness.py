# SPDX-License-Identifier: Apache-2.0
"""Where every random number of training comes from: streams, and the batches and noise of them.

A stream is named by (seed, purpose, round, client, draw, step). Its numbers depend on that name
alone, so batching, order, the number of devices and a resume cannot change a result. The words
come from Philox-4x64, a counter-based generator: (seed, purpose) is hashed to its key, the rest of
the name is its counter. On an accelerator the noise of a stream is made there, from two words of it
(``counter_noise``); on a CPU by torch's twister, all of whose state the stream sets. All of that is
for simulation: these generators are fast, and whoever sees enough of their output knows the rest.

``Streams.from_entropy()`` has no seed. Every request is answered from the operating system's
entropy, so asking twice under one name gives two answers: a repeated computation never repeats
its noise, and nobody can predict a batch. It gives no floating-point noise, but keys: the noise of
a key comes from a cryptographic stream, exactly, as integers (``lattice``).

**Batches** (Algorithm 1, line 13) are drawn by the sampler that the accountant was told of
(:mod:`dpcohort.accounting._samplers`), from the words of one draw.

**Noise** (Algorithm 1, line 17): on the *sum* of clipped gradients it has standard deviation z C in
every coordinate, z the noise multiplier, so on the mean sigma_k = z C / B. Every step of every draw
has noise of its own, an empty batch too. Public clients have z = 0 and add none.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dpcohort._validate import BoolArray, FloatArray, IntArray, whole_number
from dpcohort.accounting._sampler import Batches, Sampler, WordArray
from dpcohort.accounting._samplers import check_batch_size, smallest_keys
from dpcohort.aggregation import Cohort
from dpcohort.engine._counter_noise import add_noise_
from dpcohort.engine._lattice import KEY_BYTES, Bytes
from dpcohort.errors import InputError

Purpose = Literal["batch", "noise", "merged noise"]

_EMPTY_BUFFER = np.zeros(4, dtype=np.uint64)  # Philox makes four words at a time
_MT_STATE_WORDS = 624  # a Mersenne twister keeps 624 words of 32 bits
_MT_STATE_START = 3  # torch writes its state as 64-bit words: seed, left and seeded, next, state


class Streams:
    """All random streams of one training.

    Example:
        >>> streams = Streams.seeded(7)
        >>> first = streams.words("batch", 2, round=0, client=3, draw=0, step=0)
        >>> again = streams.words("batch", 2, round=0, client=3, draw=0, step=0)
        >>> other = streams.words("batch", 2, round=0, client=3, draw=1, step=0)
        >>> bool((first == again).all()), bool((first == other).any())
        (True, False)
    """

    def __init__(self, seed: int | None, source: Bytes = os.urandom) -> None:
        #: None for streams drawn from entropy.
        self.seed = None if seed is None else whole_number("seed", seed, at_least=0)
        #: Where random bytes of private streams come from; other than the system's in tests only.
        self.source = source
        self._keys: dict[str, WordArray] = {}
        self._local = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        """Seeded streams are the same in another process; private ones stay where they are."""
        if self.seed is None:
            raise TypeError("private streams stay in their process")
        return Streams.seeded, (self.seed,)

    @classmethod
    def seeded(cls, seed: int) -> Streams:
        """Streams for simulation: reproducible, and therefore not private."""
        return cls(whole_number("seed", seed, at_least=0))

    @classmethod
    def from_entropy(cls) -> Streams:
        """Streams for deployment: the operating system's entropy, never the same twice."""
        return cls(None)

    @property
    def is_reproducible(self) -> bool:
        """Whether a stream can be drawn again, as simulation needs and privacy forbids."""
        return self.seed is not None

    def words(
        self, purpose: Purpose, count: int, *, round: int, client: int, draw: int = 0, step: int = 0
    ) -> WordArray:
        """The first ``count`` words of 64 random bits of one stream.

        The first n of a longer request are the words of a request for n.
        """
        if self.seed is None:
            return np.frombuffer(self.source(8 * count), dtype=np.uint64)
        counter = np.array([0, (draw << 32) | step, client, round], dtype=np.uint64)
        if not hasattr(self._local, "philox"):  # making one anew takes four times as long
            self._local.philox = np.random.Philox(0)
        self._local.philox.state = {
            "bit_generator": "Philox",
            "state": {"counter": counter, "key": self._key(purpose)},
            "buffer": _EMPTY_BUFFER,
            "buffer_pos": _EMPTY_BUFFER.size,
            "has_uint32": 0,
            "uinteger": 0,
        }
        words: WordArray = self._local.philox.random_raw(count)
        return words

    def noise_key(self, *, round: int, client: int, draw: int = 0, step: int = 0) -> bytes:
        """A key for the private noise of one release: used once, never given again.

        It is hashed from fresh entropy of the operating system and the release's name.

        Raises:
            InputError: the streams are seeded; their noise is a simulation.

        Example:
            >>> streams = Streams.from_entropy()
            >>> first, again = (streams.noise_key(round=0, client=0) for _ in range(2))
            >>> len(first), first == again
            (32, False)
        """
        if self.seed is not None:
            raise InputError.because("seeded streams have no private noise; use from_entropy().")
        name = f"noise/{round}/{client}/{draw}/{step}".encode()
        entropy = self.source(KEY_BYTES)
        return hashlib.blake2b(name, key=entropy, digest_size=KEY_BYTES).digest()

    def normal_(self, out: Tensor, *, purpose: Purpose = "noise", **name: int) -> Tensor:
        """Fill ``out`` with standard normal numbers of one stream, in its dtype, on its device.

        These are floating-point numbers of a fast generator, for simulation: the lowest bits can
        tell more than the Gaussian of the proofs (Mironov, 2012), and the generator's state, and
        with it all other noise, can be computed from a few thousand of them.

        Args:
            out: where to write.
            purpose: of the stream.
            **name: its round, client, draw and step, as ``words`` takes them.

        Raises:
            InputError: the streams are private; take ``noise_key`` and the lattice.

        Example:
            >>> a = Streams.seeded(1).normal_(torch.empty(4), round=0, client=0)
            >>> b = Streams.seeded(1).normal_(torch.empty(4), round=0, client=0)
            >>> torch.equal(a, b)
            True
        """
        self._refuse_private()
        if out.device.type == "cpu":
            return out.normal_(generator=self.generator(purpose, **name))
        return self.add_normal_(out.zero_(), 1.0, purpose=purpose, **name)

    def generator(self, purpose: Purpose = "noise", **name: int) -> torch.Generator:
        """What ``normal_`` takes its numbers from on a CPU: nobody has drawn of it yet.

        Raises:
            InputError: the streams are private.

        Example:
            >>> streams = Streams.seeded(1)
            >>> rng = streams.generator(round=0, client=0)
            >>> there = streams.normal_(torch.empty(4), round=0, client=0)
            >>> torch.equal(torch.empty(4).normal_(generator=rng), there)
            True
        """
        self._refuse_private()
        rng = torch.Generator()
        rng.set_state(_twister_state(self.words(purpose, _MT_STATE_WORDS // 2, **name)))
        return rng

    def add_normal_(
        self, out: Tensor, spread: float, *, purpose: Purpose = "noise", **name: int
    ) -> Tensor:
        """Add ``spread`` times the numbers of ``normal_`` to ``out``, contiguous.

        Example:
            >>> streams = Streams.seeded(1)
            >>> noise = streams.normal_(torch.empty(4), round=0, client=0)
            >>> added = streams.add_normal_(torch.ones(4), 2.0, round=0, client=0)
            >>> torch.equal(added, 1 + 2 * noise)
            True
        """
        if self.seed is None or out.device.type == "cpu":
            noise = self.normal_(torch.empty_like(out), purpose=purpose, **name)
            return out.add_(noise, alpha=spread)
        packed = np.empty(4, dtype=np.int64)  # in one piece: each copy to a device takes its time
        packed[:2] = self.words(purpose, 2, **name).view(np.int64)
        packed[2:] = np.array([1.0, spread]).view(np.int64)
        there = torch.as_tensor(packed, device=out.device)
        factors = there[2:].view(torch.float64)
        row = out.view(1, -1)
        add_noise_(
            row, row, there[None, :2], scale=factors[:1], spread=factors[1:], accumulate=False
        )
        return out

    def _refuse_private(self) -> None:
        if self.seed is None:
            raise InputError.because(
                "floating-point noise is for simulation: private streams give keys (noise_key) "
                "for noise on a lattice (dpcohort.engine._lattice)."
            )

    def _key(self, purpose: str) -> WordArray:
        if purpose not in self._keys:
            digest = hashlib.blake2b(f"{self.seed}/{purpose}".encode(), digest_size=16).digest()
            self._keys[purpose] = np.frombuffer(digest, dtype=np.uint64)
        return self._keys[purpose]


def draw_names(
    streams: Sequence[Streams], purpose: Purpose, cohorts: Sequence[Cohort], step: int
) -> WordArray:
    """[5, draws]: three words of the counter of every draw's stream, and two of its key.

    Args:
        streams: of each training, seeded.
        purpose: of the streams.
        cohorts: of each training.
        step: local step t^l.
    """
    counts = [len(cohort) for cohort in cohorts]
    rounds = np.repeat([cohort.round for cohort in cohorts], counts).astype(np.uint64)
    clients, draws = (
        np.concatenate([getattr(cohort, part) for cohort in cohorts]).astype(np.uint64)
        for part in ("clients", "draws")
    )
    keys = np.stack([one._key(purpose) for one in streams]).repeat(counts, axis=0)
    return np.stack([(draws << np.uint64(32)) | np.uint64(step), clients, rounds, *keys.T])


def first_words(names: WordArray) -> WordArray:
    """The first two words of the streams of these names, [draws, 2], as in ``Streams.words``."""
    counter = [np.ones_like(names[0]), *names[:3]]  # advanced before its words are made
    return np.stack(_philox_rounds(counter, names[3:])[:2], axis=1)


_PHILOX_ROUNDS = 10
_PHILOX_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_PHILOX_KEY_STEPS = np.array([[0x9E3779B97F4A7C15], [0xBB67AE8584CAA73B]], dtype=np.uint64)


def _philox_rounds(counter: list[WordArray], key: WordArray) -> list[WordArray]:
    """Philox-4x64 (Salmon et al., 2011) of many counters, four arrays, each under its key."""
    for _ in range(_PHILOX_ROUNDS):
        (high_0, low_0), (high_1, low_1) = (
            _product(counter[2 * i], multiplier) for i, multiplier in enumerate(_PHILOX_MULTIPLIERS)
        )
        counter = [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0]
        key = key + _PHILOX_KEY_STEPS
    return counter


def _product(values: WordArray, by: int) -> tuple[WordArray, WordArray]:
    """High and low words of 128-bit products."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    top, bottom = np.uint64(by >> 32), np.uint64(by & 0xFFFFFFFF)
    upper, lower = values >> half, values & mask
    cross = upper * bottom + ((lower * bottom) >> half)
    middle = lower * top + (cross & mask)
    return upper * top + (cross >> half) + (middle >> half), values * np.uint64(by)


@functools.cache
def _unset_twister() -> Tensor:
    return torch.Generator().manual_seed(0).get_state()


def _twister_state(words: WordArray) -> Tensor:
    """The state of torch's CPU generator made of 312 random words.

    ``torch.Generator.manual_seed`` keeps only 32 bits of its seed on the CPU: among 100,000
    streams two would be expected to share their noise. All 19,968 bits are set here instead.
    """
    state = _unset_twister().clone()
    twister = state.view(torch.int64).numpy()
    twister[_MT_STATE_START : _MT_STATE_START + _MT_STATE_WORDS] = words.view(np.uint32)
    return state


@dataclass(frozen=True)
class DrawWords:
    """The random words that make the batches of one draw.

    Attributes:
        streams: of the training.
        name: round, client and draw.
    """

    streams: Streams
    name: Mapping[str, int]

    @property
    def is_fresh(self) -> bool:
        """Whether every request is answered from entropy."""
        return not self.streams.is_reproducible

    def words(self, count: int, step: int) -> WordArray:
        """So many words for one local step."""
        return self.streams.words("batch", count, step=step, **self.name)


def draw_batches(
    streams: Streams,
    sampler: Sampler,
    *,
    size: int,
    rate: float,
    batch_size: int,
    **name: int,
) -> Batches:
    """The batches of one draw: positions of records, in increasing order, of each local step.

    Of private streams they are SENSITIVE, and new each time this is asked.

    Args:
        streams: where the random bits come from.
        sampler: how batches are drawn.
        size: number of the client's records, |M_k|.
        rate: probability that a record is used in one step, r_k.
        batch_size: the public B.
        **name: round t^g, client (its position in the population), and which of its draws in this
            round.

    Example:
        >>> from dpcohort.accounting._samplers import sampler_of
        >>> batches = draw_batches(Streams.seeded(0), sampler_of("fixed"), size=5, rate=0.6,
        ...                        batch_size=3, round=0, client=0, draw=0)
        >>> batches(0).size
        3
    """
    return sampler.draw(DrawWords(streams, name), size=size, rate=rate, batch_size=batch_size)


def draw_fixed_batches(
    streams: Streams, names: Sequence[tuple[int, int]], sizes: IntArray, *, batch_size: int,
    round: int, step: int,
) -> IntArray:  # fmt: skip
    """Positions [draws, B] of several draws' batches, as ``FixedSize`` gives them for each.

    Args:
        streams: seeded.
        names: client and draw of each.
        sizes: number of records of each.
        batch_size: B of all.
        round: global round t^g.
        step: local step t^l.

    Example:
        >>> together = draw_fixed_batches(Streams.seeded(0), [(0, 0), (1, 0)], np.array([5, 7]),
        ...                               batch_size=3, round=0, step=0)
        >>> from dpcohort.accounting._samplers import sampler_of
        >>> alone = draw_batches(Streams.seeded(0), sampler_of("fixed"), size=7, rate=0.6,
        ...                      batch_size=3, round=0, client=1, draw=0)
        >>> bool((together[1] == alone(0)).all())
        True
    """
    check_batch_size(batch_size, int(sizes.min()))
    # Keys beyond a client's records are the largest there are: they are never chosen.
    keys = np.full((len(names), int(sizes.max())), np.iinfo(np.uint64).max, dtype=np.uint64)
    for row, (client, draw), size in zip(keys, names, sizes.tolist(), strict=True):
        row[:size] = streams.words("batch", size, round=round, client=client, draw=draw, step=step)
    return smallest_keys(keys, batch_size)


def pad_batches(batches: Sequence[IntArray], *, multiple: int = 1) -> tuple[IntArray, BoolArray]:
    """Batches side by side, padded to the longest: the width grows, a batch is never cut.

    Args:
        batches: record positions of each draw.
        multiple: the width is rounded up to a multiple of this, so that devices that tune
            themselves to shapes see few of them.

    Returns:
        Positions [draws, width], 0 beyond a draw's own records, and a mask of that shape, true
        where a record really belongs to the batch.

    Example:
        >>> positions, mask = pad_batches([np.array([4, 7]), np.array([], dtype=np.int64)])
        >>> positions.tolist(), mask.tolist()
        ([[4, 7], [0, 0]], [[True, True], [False, False]])
    """
    sizes = [batch.size for batch in batches]
    longest = max(sizes, default=0)
    width = -(-longest // multiple) * multiple
    if sizes and min(sizes) == width:
        return np.stack(batches), np.ones((len(batches), width), dtype=np.bool_)
    positions = np.zeros((len(batches), width), dtype=np.int64)
    mask = np.zeros((len(batches), width), dtype=np.bool_)
    for row, batch in enumerate(batches):
        positions[row, : batch.size] = batch
        mask[row, : batch.size] = True
    return positions, mask


def noise_std(noise_multiplier: FloatArray, clip: float, batch_size: IntArray) -> FloatArray:
    """Standard deviation of the noise on the mean gradient, sigma_k = z C / B.

    Example:
        >>> noise_std(np.array([2.0]), 0.5, np.array([10])).tolist()
        [0.1]
    """
    return noise_multiplier * clip / batch_size


def standard_noise_(
    out: Tensor, streams: Streams, *, round: int, client: int, draw: int, step: int
) -> Tensor:
    """Fill ``out`` with the standard normal noise of one local step of one draw.

    Example:
        >>> import torch
        >>> noise = standard_noise_(torch.empty(3), Streams.seeded(0),
        ...                         round=0, client=0, draw=0, step=0)
        >>> bool(torch.isfinite(noise).all())
        True
    """
    return streams.normal_(out, round=round, client=client, draw=draw, step=step)
