# SPDX-License-Identifier: Apache-2.0
"""kill -9 at named points and at random ones, processes that race, a disk that is full."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dpcohort.deploy._formats import replace
from dpcohort.deploy.ledger import ClientLedger, LifetimeCap, read_state, verify_ledger
from dpcohort.errors import BudgetExceededError

SETUP = """
import hashlib, json, os, random, signal, sys, time
from dpcohort.accounting import Event
from dpcohort.deploy.ledger import ClientLedger, DrawKey, _ledger as ledger, _store as store
from dpcohort.errors import BudgetExceededError, DpcohortError
path = sys.argv[1]
step = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=1)
def key(round, draw=0):
    return DrawKey(dataset="ward", run="spring", round=round, draw=draw)
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run(code, path, *arguments):
    command = [sys.executable, "-c", SETUP + code, str(path), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def draws(path):
    return read_state(path).account("ward", "spring").draws


AT_POINTS = {
    # point: (what dies there, is the draw counted, has it an output)
    "in the transaction of reserve": (
        """
real = store.LedgerStore.append
def append(self, entry, output=None):
    real(self, entry, output)
    die()
store.LedgerStore.append = append
""",
        False,
        False,
    ),
    "after the commit, before the counter": (
        "ledger.advance_counter = lambda path, count, durable=True: count[0] > 3 and die()",
        True,
        False,
    ),
    "between reserve and release": ("ClientLedger.release = die", True, False),
    "in the transaction of release": (
        """
real = store.LedgerStore.append
def append(self, entry, output=None):
    real(self, entry, output)
    if output is not None:
        die()
store.LedgerStore.append = append
""",
        True,
        False,
    ),
    "after release": (
        """
real = ClientLedger.release
def release(self, *arguments):
    real(self, *arguments)
    die()
ClientLedger.release = release
""",
        True,
        True,
    ),
}


@pytest.mark.parametrize("point", AT_POINTS)
def test_killed_at(ledger, path, key, step, point):
    code, is_counted, has_output = AT_POINTS[point]
    code += """
book = ClientLedger(path)
book.reserve(key(0), step, clip=1.0)
book.release(key(0), b"noisy")
print("alive")
"""
    ledger.close()
    done = run(code, path)
    assert done.returncode == -9, done.stderr
    assert (len(draws(path)) == 1) == is_counted
    with ClientLedger(path) as again:  # opens, and the counter has caught up
        if has_output:
            assert again.output(key(0)) == b"noisy"
        elif is_counted:
            with pytest.raises(BudgetExceededError):
                again.reserve(key(0), step, clip=1.0)
            with pytest.raises(BudgetExceededError):
                again.release(key(0), b"made again")
        else:
            again.reserve(key(0), step, clip=1.0)
    assert verify_ledger(path).findings == ()


FUZZ = """
def child(out, first, order):
    book = ClientLedger(path)
    for number in range(first, 10**9):
        where = key(0, draw=number)
        update = os.urandom(64)
        line = f"{number} {hashlib.sha256(update).hexdigest()}\\n".encode()
        if order == "send first":
            os.write(out, line)
            time.sleep(0.001)
        book.reserve(where, step, clip=1.0)
        book.release(where, update)
        if order == "count first":
            os.write(out, line)

step = Event.of(noise_multiplier=2.0, sampling_rate=1.0, steps=1)
order, kills = sys.argv[2], int(sys.argv[3])
random.seed(1)
received, first = [], 0
for _ in range(kills):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        child(writer, first, order)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        received.append(stream.readline().decode().split())
        time.sleep(random.random() * 0.03)
        os.kill(pid, signal.SIGKILL)
        received += [line.decode().split() for line in stream]
    os.waitpid(pid, 0)
    first = int(received[-1][0]) + 1000
print(json.dumps(received))
"""


@pytest.mark.parametrize(("order", "kills"), [("count first", 20), ("send first", 10)])
def test_random_kills_never_lose_a_count(path, order, kills, terms):
    with ClientLedger.create(path) as ledger:
        ledger.register("ward", LifetimeCap(epsilon=2000.0, delta=1e-5))
        # Without subsampling the composition has a closed form: every child must start quickly.
        large = replace(terms, epsilon=2000.0, draws=10**4, sampling_rate=1.0)
        ledger.accept("ward", "spring", large)
    done = run(FUZZ, path, order, kills)
    assert done.returncode == 0, done.stderr
    received = json.loads(done.stdout)
    assert len(received) > kills
    kept = {key.draw: stored and stored[1] for key, stored in draws(path).items()}
    missing = [number for number, digest in received if kept.get(int(number)) != digest]
    # The second order is wrong on purpose: the same test must catch it.
    assert bool(missing) == (order == "send first")
    assert verify_ledger(path).findings == ()


RACE = """
from dpcohort.deploy.ledger import LifetimeCapError
workers, each, limit = map(int, sys.argv[2:5])
ready, go = os.pipe()
pipes = []
for worker in range(workers):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(go)
        book = ClientLedger(path)
        os.read(ready, 1)  # all start when the parent closes its end
        granted = 0
        for round in range(each):
            try:
                book.reserve(key(round, draw=worker), step, clip=1.0)
                granted += 1
            except BudgetExceededError:
                pass
        os.write(writer, str(granted).encode())
        os._exit(0)
    os.close(writer)
    pipes.append(reader)
os.close(go)
print(sum(int(os.read(reader, 20)) for reader in pipes))
"""


@pytest.mark.parametrize(("workers", "each", "limit"), [(8, 100, 500), (2, 1, 1)])
def test_processes_race_for_the_last_draws(path, terms, workers, each, limit):
    with ClientLedger.create(path) as ledger:
        ledger.register("ward", LifetimeCap(epsilon=20.0, delta=1e-5))
        ledger.accept("ward", "spring", replace(terms, epsilon=20.0, rounds=each, draws=limit))
    done = run(RACE, path, workers, each, limit)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == limit
    assert len(draws(path)) == limit
    assert verify_ledger(path).findings == ()


FULL = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
book = ClientLedger(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
sent = 0
try:
    for round in range(60):
        book.reserve(key(round), step, clip=1.0)
        book.release(key(round), os.urandom(20_000))
        sent += 1
except DpcohortError as error:
    print(json.dumps([sent, type(error).__name__, str(error)]))
"""


def test_a_full_disk_stops_before_noise(ledger, path, key, step):
    ledger.close()
    done = run(FULL, path, 300_000)
    assert done.returncode == 0, done.stderr
    sent, kind, message = json.loads(done.stdout)
    assert kind == "InputError"
    assert "full" in message
    assert 0 < sent < 60
    assert sum(record is not None for record in draws(path).values()) == sent
    with ClientLedger(path) as again:  # intact, and of use when there is room again
        again.reserve(key(59), step, clip=1.0)
    assert verify_ledger(path).findings == ()
