# SPDX-License-Identifier: Apache-2.0
"""Hostile messages to a guard: what comes out must be within the owner's terms, and counted.

``python benchmarks/hostile_messages.py [--messages 33000]``. Requests within the terms, changed in
one to three fields, cut, with bytes flipped, replayed with another model, and messages of other
kinds go through the guard's own reader and handler. A message may be refused; nothing may raise,
nothing may be released outside the terms or twice, and the ledger must count what was released.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpcohort.deploy.guard import (
    AcceptedRun,
    DrawRequest,
    DrawUpdate,
    GuardTerms,
    ModelTerms,
    Refusal,
)
from dpcohort.deploy.guard._files import load_data
from dpcohort.deploy.guard._handler import GuardHandler
from dpcohort.deploy.guard._protocol import HelloRequest, ReceiptRequest, decode, encode
from dpcohort.deploy.guard._start import check_terms, open_ledger
from dpcohort.deploy.guard._terms import layout_sha256
from dpcohort.deploy.secure_aggregation import Identity
from dpcohort.engine import Lattice
from dpcohort.engine._lattice import KEY_BYTES
from dpcohort.errors import DpcohortError

_DIMENSION, _DRAWS = 18, 400
_RUN = AcceptedRun(
    run="spring",
    plan="a" * 64,
    epsilon=4.0,
    delta=1e-5,
    clip=1.0,
    batch_size=10,
    local_steps=2,
    rounds=_DRAWS,
    draws=_DRAWS,
    least_noise_multiplier=20.0,
)
_TERMS = GuardTerms(
    dataset="ward",
    lifetime_epsilon=4.0,
    lifetime_delta=1e-5,
    model=ModelTerms(name="logistic", input_shape=(5,), classes=3),
    runs=(_RUN,),
    same_user=True,
    answer_seconds=0.0,
)
_LAYOUT = layout_sha256([("1.weight", (3, 5)), ("1.bias", (3,))])
#: Fields that may differ between two requests within the terms.
_FREE = {"round", "draw", "step_sizes", "vector", "noise_multiplier"}
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 10**9, 10**30, 0.0, -0.0, 1e-300, 1e300, float("nan"),
    float("inf"), "", "spring", "autumn", "\x1b[2Jall promises hold", "a" * 64, "b" * 64, [], [[]],
    [0.1], [0.1, 0.1], [0.1] * 100, [float("nan"), 0.1], [1e9, 1e9], {}, {"run": "spring"},
    "poisson", "fixed", "zero-out", "replace-one", 20.0, 19.999, 5.0, "../../etc/passwd",
)  # fmt: skip


class Training:
    """Noise alone: what is tested is which requests get there."""

    dimension, layout = _DIMENSION, _LAYOUT

    def update(
        self, parameters: NDArray[np.float32], lattice: Lattice, *drawn: Any
    ) -> NDArray[np.float32]:
        """Noise around 0."""
        nothing, key = torch.zeros(_DIMENSION, dtype=torch.int64), os.urandom(KEY_BYTES)
        noisy: NDArray[np.float32] = lattice.release(nothing, key, scale=1.0).float().numpy()
        return noisy


def good(round: int) -> DrawRequest:
    """A request within the terms."""
    return DrawRequest(
        run="spring",
        plan="a" * 64,
        round=round,
        draw=0,
        clip=1.0,
        noise_multiplier=20.0,
        sampling_rate=0.25,
        batch_size=10,
        local_steps=2,
        sampler="poisson",
        neighbours="zero-out",
        step_sizes=[0.1, 0.1],
        model=_TERMS.model.sha256(),
        layout=_LAYOUT,
        vector=np.zeros(_DIMENSION, np.float32),
    )


def framed(head: dict[str, Any], payload: bytes) -> bytes:
    """Any object of JSON as the header of a frame, also one that no honest sender writes."""
    text = json.dumps(head).encode()
    return struct.pack("<4sIQ", b"DPG1", len(text), len(payload)) + text + payload


def hostile(dice: np.random.Generator) -> bytes:
    """A frame that means no good."""
    request = good(int(dice.integers(_DRAWS)))
    head, payload = {"kind": request.kind, **request.header()}, request.vector.tobytes()
    kind = int(dice.integers(6))
    if kind <= 1:  # other values, fields that are missing or too many
        for name in dice.choice(sorted(head), size=int(dice.integers(1, 4)), replace=False):
            head[str(name)] = _VALUES[int(dice.integers(len(_VALUES)))]
        if dice.random() < 0.1:
            head.pop(str(dice.choice(sorted(head))))
        if dice.random() < 0.1:
            head["noise"] = 0
        return framed(head, payload)
    if kind == 2:  # another model, steps or noise for a draw that may have been made
        head["noise_multiplier"] = float(dice.choice([20.0, 21.0, 40.0, 10.0]))
        other = dice.normal(size=_DIMENSION + int(dice.integers(-1, 2))).astype(np.float32)
        return framed(head, other.tobytes())
    if kind == 3:
        name = str(_VALUES[int(dice.integers(len(_VALUES)))])
        return encode(HelloRequest(run=name) if dice.random() < 0.5 else ReceiptRequest(run=name))
    frame = bytearray(encode(request))
    if kind == 4:  # bits flipped anywhere
        for _ in range(int(dice.integers(1, 6))):
            frame[int(dice.integers(len(frame)))] ^= 1 << int(dice.integers(8))
        return bytes(frame)
    return bytes(frame[: int(dice.integers(len(frame)))]) + dice.bytes(int(dice.integers(30)))


def attack(messages: int, folder: Path, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Send so many; outcomes, and what went wrong."""
    dice = np.random.default_rng(seed)
    inputs, labels = dice.normal(size=(40, 5)).astype(np.float32), dice.integers(0, 3, 40)
    np.savez(folder / "ward.npz", inputs=inputs, labels=labels)
    (folder / "ward.npz").chmod(0o600)
    data = load_data(folder / "ward.npz", _TERMS.model, _TERMS.normalisation)
    ledger = open_ledger(
        folder / "w.ledger", data, _TERMS, check_terms(_TERMS, len(data)), new=True
    )
    training: Any = Training()  # in place of the real one
    handler = GuardHandler(
        _TERMS, records=len(data), ledger=ledger, trainer=training, identity=Identity(bytes(32))
    )
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    released: dict[tuple[int, int], bytes] = {}
    for _ in range(messages):
        try:
            message = decode(hostile(dice))
        except DpcohortError:
            outcomes["not understood"] += 1
            continue
        answer = handler.answer(message)
        outcomes[answer.code if isinstance(answer, Refusal) else type(answer).__name__] += 1
        if not isinstance(answer, DrawUpdate):
            continue
        like = good(message.round)
        others = [name for name in type(like).model_fields if name not in _FREE]
        if any(getattr(message, f) != getattr(like, f) for f in others):
            wrong.append(f"released outside the terms: {message}")
        if not message.noise_multiplier >= _RUN.least_noise_multiplier:
            wrong.append(f"released with too little noise: {message.noise_multiplier}")
        key = (message.round, message.draw)
        if released.setdefault(key, answer.vector.tobytes()) != answer.vector.tobytes():
            wrong.append(f"round {key[0]} draw {key[1]} was released twice")
    receipt: Any = handler.answer(ReceiptRequest(run="spring"))
    counted = receipt.spending["counted_draws"]
    ledger.close()
    if counted < len(released) or counted > _DRAWS:
        wrong.append(f"{len(released)} draws were released, {counted} counted, {_DRAWS} allowed")
    return outcomes, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=33_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        outcomes, wrong = attack(options.messages, Path(name), options.seed)
    for outcome, count in outcomes.most_common():
        print(f"{count:7} {outcome}")
    for line in wrong[:20]:
        print(f"WRONG: {line}")
    print(f"{options.messages} hostile messages: {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
