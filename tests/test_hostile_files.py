# SPDX-License-Identifier: Apache-2.0
"""Every reader of files and messages against broken and hostile ones.

Whatever the bytes are, a reader gives a value or an error of ours: no other exception, no memory
out of proportion, no warning. Mutations are the same in every run; ``DPCOHORT_FUZZ=3000`` makes
that many for each reader instead of a few, best under a limit of memory:
``(ulimit -v 6000000; DPCOHORT_FUZZ=3000 pytest tests/test_hostile_files.py)``.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dpcohort import Population, Training, make_plan
from dpcohort.accounting import Charge
from dpcohort.accounting._charges import write_charge
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.clients._csv_file import read_clients_csv
from dpcohort.config import commented_config, load_config
from dpcohort.data import (
    Normalisation,
    Partition,
    dataset_from_table,
    load_partition,
    read_table,
    save_partition,
)
from dpcohort.data._arrays import load_arrays
from dpcohort.data._image_files import read_batch, read_idx
from dpcohort.data._private_bounds import read_estimate
from dpcohort.deploy.flower import Federation
from dpcohort.deploy.flower._messages import (
    Signers,
    draw_message,
    open_message,
    read_draws,
    read_hello,
)
from dpcohort.deploy.guard import DrawRequest, DrawUpdate, GuardTerms, Hello, ModelTerms, Refusal
from dpcohort.deploy.guard._files import load_data
from dpcohort.deploy.guard._protocol import encode
from dpcohort.deploy.guard._terms import commented_terms, terms_from_plan
from dpcohort.deploy.ledger import ClientLedger, DrawKey, LifetimeCap, RunTerms, read_state
from dpcohort.errors import DpcohortError
from dpcohort.plan import Plan
from dpcohort.round_record import RoundRecord
from dpcohort.runs._folder import read_checkpoint, read_json, read_log, write_checkpoint
from dpcohort.runs._journal import Journal
from dpcohort.text_files import parse_json

ROOT = Path(__file__).parents[1]
TRIES = int(os.environ.get("DPCOHORT_FUZZ", "25"))

Reader = Callable[[Path], object]

_CLIENTS = Population.from_arrays(sizes=[150] * 4, epsilon=[0.3, 0.5, 1.0, 2.0], delta=1e-5)
_TRAINING = Training(rounds=3, cohort_size=2, sampling_rate=0.2, dimension=650)
_PLAN = make_plan(_CLIENTS, _TRAINING, seed=3)
_REQUEST = DrawRequest(
    run="spring", plan="p", round=2, draw=0, clip=1.0, noise_multiplier=1.5, sampling_rate=0.1,
    batch_size=10, local_steps=2, sampler="poisson", neighbours="zero-out", step_sizes=[0.5, 0.5],
    model="m", layout="l", vector=np.zeros(4, dtype=np.float32),
)  # fmt: skip


def _saved(make: Callable[[Path], object], folder: Path, name: str) -> bytes:
    make(folder / name)
    return (folder / name).read_bytes()


def _idx(folder: Path) -> list[bytes]:
    plain = struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 3, 4) + bytes(24)
    return [plain, gzip.compress(plain, mtime=0)]


def _npz(folder: Path) -> list[bytes]:
    arrays = {
        "train_inputs": np.zeros((6, 2), np.float32), "train_labels": np.array([0, 1, 2] * 2),
        "test_inputs": np.zeros((2, 2), np.float32), "test_labels": np.array([0, 1]),
        "classes": np.array(3), "mean": np.array([0.1, 0.2]), "std": np.array([1.0, 2.0]),
    }  # fmt: skip
    return [
        _saved(lambda path: np.savez(path, **arrays), folder, "a.npz"),
        _saved(lambda path: np.savez_compressed(path, **arrays), folder, "b.npz"),
    ]


def _guarded(folder: Path) -> list[bytes]:
    arrays = {"inputs": np.zeros((3, 2), np.float32), "labels": np.array([0, 1, 0])}
    return [_saved(lambda path: np.savez(path, **arrays), folder, "ward.npz")]


def _partition(folder: Path) -> list[bytes]:
    one = Partition(indices=np.r_[1, 0, 2], offsets=np.r_[0, 2, 3], records=4, names=("a", "b"))
    return [_saved(lambda path: save_partition(one, path), folder, "partition.npz")]


def _plans(folder: Path) -> list[bytes]:
    adaptive = make_adaptive_plan(_CLIENTS, _TRAINING, rule="rpow-d", seed=3)
    return [_saved(_PLAN.save, folder, "plan.json"), _saved(adaptive.save, folder, "adaptive.json")]


def _charges(folder: Path) -> list[bytes]:
    paid: Any = {"promised": {"a": (2.0, 1e-5)}, "spent": {"a": (0.5, 1e-6)}, "public": ("b",)}
    charge = Charge(what="estimate", private=True, nonce="0" * 32, **paid)
    found = {"bounds": {"x": [0, 9]}, "cells": 32}
    return [_saved(lambda path: write_charge(path, charge, **found), folder, "a.json")]


def _charge_of(path: Path) -> object:
    with suppress(ValueError, KeyError):  # a file whose hashes are right, whatever it says
        said = parse_json(path.read_bytes())
        charge, content = said["charge"], {k: said[k] for k in ("format", "schema", "result")}
        own = {key: value for key, value in charge.items() if key != "id"}
        name = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
        content = {**content, "charge": {**charge, "id": name}}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps({**content, "sha256": digest}))
    return read_estimate(path)


def _ledger(folder: Path) -> list[bytes]:
    ledger = Journal(_PLAN, folder / "ledger.jsonl")
    for round in range(3):
        ledger.count(round, _PLAN.schedule.cohorts[round])
    ledger.close()
    return [(folder / "ledger.jsonl").read_bytes()]


def _rounds(folder: Path) -> list[bytes]:
    line = RoundRecord(round=0, clients=(1, 2), noise_stds=(0.1, 0.2), seconds=1.0)
    return [json.dumps(line.to_dict()).encode() + b"\n"]


def _client_ledger(folder: Path) -> list[bytes]:
    terms = RunTerms(
        epsilon=2.0, delta=1e-5, clip=1.0, sampling_rate=0.1, local_steps=1, rounds=60, draws=60,
        least_noise_multiplier=2.0,
    )  # fmt: skip
    with ClientLedger.create(folder / "ward.ledger") as ledger:
        ledger.register("ward", LifetimeCap(epsilon=4.0, delta=1e-5))
        ledger.accept("ward", "spring", terms)
        key = DrawKey(dataset="ward", run="spring", round=0, draw=0)
        ledger.reserve(key, terms.charge(1), clip=1.0)
    return [(folder / "ward.ledger").read_bytes()]


def _terms(folder: Path) -> list[bytes]:
    model = ModelTerms(name="logistic", input_shape=(64,), classes=10)
    made = terms_from_plan(_PLAN, "client-3", run="spring", model=model, allowed_users=[0])
    return [made.encode(), commented_terms().encode()]


_RUN_TERMS = b"""epsilon = 2.0
delta = 1e-5
clip = 1.0
sampling_rate = 0.1
local_steps = 1
rounds = 60
draws = 60
least_noise_multiplier = 2.0
"""
_CSV = b'id,size,epsilon,delta,batch_size,public\na,500,1.5,1e-5,,\n"b ""c""",90,,,10,true\n'


def _config_of(path: Path) -> object:
    config = load_config(path)
    # A million clients are allowed and take a second; that is not what is looked for here.
    section = config.values["population"]
    if config.clients is None and section["count"] <= 10_000 and "total_size" in section:
        return config.population()
    return None


def _frames(folder: Path) -> list[bytes]:
    update = DrawUpdate(run="spring", round=2, draw=0, resent=False, vector=_REQUEST.vector)
    hello = Hello(dpcohort="1", dataset="lab", records=4, dimension=4, model="m", layout="l",
                  accepted={"draws": 3}, plan=None, counted=0, key="")  # fmt: skip
    refusal = Refusal(code="terms", message="no")
    return [encode(update) + encode(refusal), encode(hello), encode(refusal)]


def _guard_data_of(path: Path) -> object:
    path.chmod(0o600)
    model = ModelTerms(name="logistic", input_shape=(2,), classes=2)
    return load_data(path, model, Normalisation())


def _answer_of(path: Path) -> object:
    body = path.read_bytes()
    read_hello(body)
    signers = Signers({}, run="spring", plan="")
    return read_draws(body, _REQUEST, draws=(0, 1), records=100, signers=signers, client="lab")


def _checkpoint(folder: Path) -> list[bytes]:
    arrays = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
    return [write_checkpoint(folder, arrays, next_round=2, owner="o").read_bytes()]


def _federation(folder: Path) -> list[bytes]:
    (folder / "mutated").mkdir()
    _PLAN.save(folder / "mutated" / "plan.json")
    names = {_PLAN.population.ids[k]: int(k) for k in np.flatnonzero(_PLAN.drawn)}
    text = """run = "spring"\nplan = "plan.json"\ntimeout = 5.0\nquorum = 0.5\nout = "run"
[model]\nname = "logistic"\ninput_shape = [1, 8, 8]\nclasses = 10
[optimiser]\nlearning_rate = 1.0\n[aggregation]\nrule = "mean"\n[clients]\n"""
    for name, number in names.items():
        key = ec.derive_private_key(number + 1, ec.SECP384R1()).public_key()
        public = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        text += f'"{name}" = "{public}"\n'
    return [text.encode()]


def _rounds_of(path: Path) -> object:
    return [RoundRecord.from_dict(entry) for entry in read_log(path)]


_TABLE = b'age;ward;"sick"\n30,5;north;no\n;south;yes\n;;\n1e3;"no\nrth";no\n44;north;yes\n'


def _parquet(folder: Path) -> list[bytes]:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"age": [30.5, None, 44.0, 7.0], "ward": ["a", "b", "a", "a"], "sick": ["no"] * 4}
    table = arrow.table(columns)
    return [_saved(lambda path: parquet.write_table(table, path), folder, "a.parquet")]


def _table_of(path: Path) -> object:
    return dataset_from_table(
        read_table(path), label="sick", labels=["no", "yes"], client="ward", features=["age"],
        bounds={"age": (0, 110)}, test_share=0.4,
    )  # fmt: skip


#: By name: honest files, what reads them, and the name that a file must have.
READERS: dict[str, tuple[Callable[[Path], list[bytes]], Reader, str]] = {
    "idx": (_idx, lambda path: read_idx(path, axes=3), "images.gz"),
    "npz": (_npz, load_arrays, "data.npz"),
    "csv-table": (lambda _: [_TABLE], _table_of, "table.csv"),
    "parquet-table": (_parquet, _table_of, "table.parquet"),
    "guard-data": (_guarded, _guard_data_of, "data.npz"),
    "charge": (_charges, _charge_of, "charge.json"),
    "partition": (_partition, load_partition, "partition.npz"),
    "cifar-batch": (lambda _: [bytes([3]) + bytes(3072)], read_batch, "data_batch_1.bin"),
    "plan": (_plans, Plan.load, "plan.json"),
    "config": (
        lambda _: [commented_config(kind).encode() for kind in ("digits", "paper-mnist")],
        _config_of,
        "config.toml",
    ),
    "clients": (lambda _: [_CSV], read_clients_csv, "clients.csv"),
    "ledger": (_ledger, lambda path: Journal.read(_PLAN, path), "ledger.jsonl"),
    "rounds": (_rounds, _rounds_of, "rounds.jsonl"),
    "client-ledger": (_client_ledger, read_state, "copy.ledger"),
    "terms": (_terms, GuardTerms.from_toml, "terms.toml"),
    "run-terms": (lambda _: [_RUN_TERMS], RunTerms.from_toml, "terms.toml"),
    "json": (lambda _: [b'{"seed": 1, "model": {"name": "logistic"}}'], read_json, "run.json"),
    "letter": (
        lambda _: [draw_message("lab", _REQUEST, draws=[0, 1])],
        lambda path: open_message(path.read_bytes()),
        "letter",
    ),
    "answer": (_frames, _answer_of, "answer"),
    "federation": (_federation, Federation.load, "federation.toml"),
    "checkpoint": (_checkpoint, read_checkpoint, "round-0000002.safetensors"),
}

_HOSTILE_WORDS = (
    b"1000000000", b"9" * 400, b"-1", b"1e400", b"NaN", b"nan", b"inf", b"null", b"true", b"{}",
    b"[]", b'""', b"'\\ud800'", b"[" * 70 + b"]" * 70, b"[" * 5000, b"1e-320", b"0",
    b'"\\u001b[2J"', b"a." * 70 + b"a", b"18446744073709551616",
)  # fmt: skip
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
_WORD = re.compile(rb"-?[0-9][0-9.e+-]*|\"[^\"\n]*\"|true|false|null")


def _mutations(seeds: list[bytes], chance: random.Random) -> Iterator[bytes]:
    """Mutated files; of packed ones, half are packed again so that their checksums are right."""
    while True:
        seed = chance.choice(seeds)
        if seed.startswith(b"\x1f\x8b") and chance.random() < 0.5:
            yield gzip.compress(_mutated([gzip.decompress(seed)], chance), mtime=0)
        elif seed.startswith(b"PK") and chance.random() < 0.5:
            yield _packed_again(seed, chance)
        else:
            yield _mutated(seeds, chance)


def _packed_again(archive: bytes, chance: random.Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    name = chance.choice(list(members))
    members[name] = _mutated([members[name]], chance)
    packed = io.BytesIO()
    with zipfile.ZipFile(
        packed, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return packed.getvalue()


def _mutated(seeds: list[bytes], chance: random.Random) -> bytes:
    """An honest file with a few bytes or words changed, cut, doubled, or joined with another."""
    content = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(content) + 1)
        kind = chance.randrange(8)
        if kind == 0 and content:
            content[at % len(content)] = chance.randrange(256)
        elif kind == 1:
            del content[at:]
        elif kind == 2:
            del content[at : at + chance.randrange(1, 40)]
        elif kind == 3:
            content[at:at] = content[at : at + chance.randrange(1, 200)] * chance.choice((1, 9))
        elif kind == 4:
            number = chance.choice(_NUMBERS)
            for size, order in ((8, "little"), (4, chance.choice(("little", "big")))):
                if number < 1 << (8 * size):
                    content[at : at + size] = number.to_bytes(size, order)
        elif kind == 5:
            other = chance.choice(seeds)
            content[at:] = other[chance.randrange(len(other) + 1) :]
        elif words := list(_WORD.finditer(bytes(content))):
            found = chance.choice(words)
            content[found.start() : found.end()] = chance.choice(_HOSTILE_WORDS)
    return bytes(content)


@pytest.mark.parametrize("name", READERS)
def test_a_broken_file_is_one_error_of_ours(name, tmp_path):
    make, read, file_name = READERS[name]
    seeds = make(tmp_path)
    (tmp_path / "mutated").mkdir(exist_ok=True)
    path = tmp_path / "mutated" / file_name
    for seed in seeds:
        path.write_bytes(seed)
        if name != "client-ledger":  # whose counter lies beside the original
            read(path)
    mutations = _mutations(seeds, random.Random(f"dpcohort {name}"))
    for number in range(TRIES if name != "client-ledger" else TRIES // 3):
        content = next(mutations)
        path.write_bytes(content)
        try:
            read(path)
        except DpcohortError:
            continue
        except Exception as error:
            pytest.fail(f"try {number}: {type(error).__name__}: {error}; the file is {path}")
