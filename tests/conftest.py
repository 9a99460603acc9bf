# SPDX-License-Identifier: Apache-2.0
"""What tests of several rooms need."""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import threading
from dataclasses import replace
from functools import cache, lru_cache, wraps

import pytest

from dpcohort import consent, metrics
from dpcohort.accounting import _events as events
from dpcohort.accounting._charges import charge_of, write_charge
from dpcohort.config import load_config
from dpcohort.data import _load as load
from dpcohort.runs._config_clients import configured_charges, promised_population

# Plans, runs and ledgers wait for the disk at every file, and in memory for nothing.
if (
    os.access("/dev/shm", os.W_OK)
    and not os.statvfs("/dev/shm").f_flag & os.ST_NOEXEC
    and shutil.disk_usage("/dev/shm").free > 2**31
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")


@pytest.fixture(scope="session", autouse=True)
def _what_many_tests_ask_for_is_made_once():
    """dp-accounting's distribution for the same steps, the AUC of the same outputs (of a constant
    in every training), and the digits, of which each has a copy.
    """
    with pytest.MonkeyPatch.context() as patch:
        auc, areas = metrics._auc, {}

        def kept_auc(is_one, scores):
            key = is_one.tobytes(), scores.tobytes()
            if key not in areas:
                areas[key] = auc(is_one, scores)
            return areas[key]

        patch.setattr(metrics, "_auc", kept_auc)
        more = lru_cache(maxsize=200)(events._library.__wrapped__)
        patch.setattr(events, "_library", more)
        digits = cache(load._load_digits)
        arrays = ("train_inputs", "train_labels", "test_inputs", "test_labels")

        @wraps(load._load_digits)
        def copied():
            return replace(digits(), **{name: getattr(digits(), name).copy() for name in arrays})

        patch.setattr(load, "_load_digits", copied)
        yield


@pytest.fixture(autouse=True)
def _nothing_is_allowed_before_a_test(monkeypatch, tmp_path_factory):
    """No code of one test, or of this user, may run in another."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "nobody"))
    monkeypatch.setattr(consent, "_TYPED", set())
    monkeypatch.setattr(consent, "_MODULES", set())


@pytest.fixture
def tuned(tmp_path):
    """Makes changes of a config that say what charged tuning would: a share of all that is left."""

    def paid(config, share, *, private=False):
        charge = charge_of(
            promised_population(config), configured_charges(config),
            lambda epsilon, delta: (share * epsilon, share * delta),
            what="tuning", private=private, contract=config.contract,
        )  # fmt: skip
        path = tmp_path / f"{charge.id[:8]}.charge.json"
        write_charge(path, charge)
        return [
            f'charges.{charge.id}="{path}"',
            "tuning.source=charged",
            f'tuning.charge="{charge.id}"',
        ]

    return paid


@pytest.fixture
def cuda() -> str:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU: there is no CUDA here")
    return "cuda"


TABLE = """
[population]
clients = "clients.csv"
[training]
rounds = 4
cohort_size = 2
sampling_rate = 0.5
[data]
name = "t.csv"
label = "sick"
labels = ["no", "yes"]
client = "ward"
bounds = { age = [0, 110] }
categories = { smoker = ["no", "yes"] }
test_share = 0.25
[run]
simulate = 0
device = "cpu"
"""


@pytest.fixture
def table_config(tmp_path):
    """A table of 120 records that two clients hold, and a configuration for it."""
    rows = ["0,yes,a,no", "55,no,b,yes", "110,sometimes,a,no", "500,,b,yes", ",yes,a,no"]
    rows = ["age,smoker,ward,sick", *[*rows, "55,no,b,yes"] * 20]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    (tmp_path / "clients.csv").write_text("id,epsilon,delta\nb,1,1e-3\na,2,1e-3\n")
    (tmp_path / "my.toml").write_text(TABLE)
    return load_config(tmp_path / "my.toml")


class Keystream:
    """Bytes of a fixed key, so that a test of chance gives the same answer every time."""

    def __init__(self, key: str) -> None:
        self._key, self._block = key.encode(), 0

    def __call__(self, size: int) -> bytes:
        self._block += 1
        return hashlib.shake_128(self._key + self._block.to_bytes(8, "big")).digest(size)


@pytest.fixture
def keystream():
    return Keystream


class Wire:
    """Ranks that are threads of this process, for what they use of ``torch.distributed``.

    What one sends another receives in order; after ``cut`` nobody hears anything any more.
    """

    LIMIT = 60  # seconds after which a thread hangs

    def __init__(self, count: int) -> None:
        self._here, self._count = threading.local(), count
        self._lines = {(a, b): queue.Queue() for a in range(count) for b in range(count)}
        self._kept: dict[str, str] = {}
        self.listens = threading.Event()
        self.distributed_c10d = self

    def run(self, *ranks):
        """What each rank returns, or the first error of any."""
        found, errors = [None] * len(ranks), []

        def body(rank, todo):
            self._here.rank = rank
            try:
                found[rank] = todo()
            except BaseException as error:  # told by the thread that waits
                errors.append(error)
                self.cut()

        threads = [threading.Thread(target=body, args=each) for each in enumerate(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.LIMIT)
        if errors:
            raise errors[0]
        return found

    def cut(self) -> None:
        for line in self._lines.values():
            line.put(None)

    def send(self, tensor, other, group=None):
        self._lines[self._here.rank, other].put(tensor.clone())

    def recv(self, tensor, other, group=None):
        self.listens.set()
        sent = self._lines[other, self._here.rank].get(timeout=self.LIMIT)
        if sent is None:
            raise RuntimeError("connection closed")
        tensor.copy_(sent)

    def broadcast(self, tensor, first, group=None):
        if self._here.rank != first:
            return self.recv(tensor, first)
        for other in range(1, self._count):
            self.send(tensor, other)

    def init_process_group(self, backend, timeout): ...

    def destroy_process_group(self): ...

    def new_group(self, backend, timeout):
        return backend

    def is_nccl_available(self):
        return False

    def get_rank(self):
        return self._here.rank

    def get_world_size(self):
        return self._count

    def _get_default_store(self):
        return self

    def set(self, key, value):
        self._kept[key] = value

    def get(self, key):
        return self._kept[key]

    def check(self, keys):
        return set(keys) <= set(self._kept)


@pytest.fixture
def wire(monkeypatch):
    """``wire(3)`` connects three ranks, which ``run`` starts as threads."""

    def make(count: int) -> Wire:
        from dpcohort.engine._ranks import Ranks

        made = Wire(count)
        monkeypatch.setattr("dpcohort.engine._ranks.dist", made)
        monkeypatch.setattr("dpcohort.runs._ranks.dist", made)
        monkeypatch.setattr("dpcohort.runs._ranks._joined", Ranks())  # and back in the end
        return made

    return make
