# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a guard in mid-draw; disks that take nothing.

Every point at which a kill could leave something else behind is that of ``benchmarks/kills.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dpcohort.deploy.ledger import read_state, verify_ledger

SETUP = """
import json, os, signal, sys, time, warnings
warnings.simplefilter("error")
from pathlib import Path
import numpy as np
import torch
from dpcohort.errors import DpcohortError, InputError
from dpcohort.deploy.guard import GuardClient, GuardRefusedError
from dpcohort.deploy.guard import DrawRequest
from dpcohort.deploy.guard._protocol import encode
from dpcohort.deploy.guard._files import load_data
from dpcohort.deploy.guard._handler import GuardHandler
from dpcohort.deploy.guard._service import GuardService
from dpcohort.deploy.guard._start import open_ledger
from dpcohort.deploy.guard._start import check_terms
from dpcohort.deploy.secure_aggregation import Identity
from dpcohort.deploy.guard import AcceptedRun, GuardTerms, ModelTerms

run = AcceptedRun(run="spring", epsilon=2.0, delta=1e-5, clip=1.0, batch_size=40, local_steps=1,
                  rounds=1000, draws=1000, least_noise_multiplier=200.0)
terms = GuardTerms(dataset="ward", lifetime_epsilon=2.0, lifetime_delta=1e-5, same_user=True,
                   answer_seconds=0.0, runs=(run,),
                   model=ModelTerms(name="logistic", input_shape=(5,), classes=3))

class Training:
    # Noise alone: torch would take most of the time of these tests.

    dimension, layout = 18, "layout"

    def update(self, parameters, lattice, batches, step_sizes):
        time.sleep(0.002)
        nothing = torch.zeros(18, dtype=torch.int64)
        return lattice.release(nothing, os.urandom(32), scale=1.0).float().numpy()

def guard():
    data = load_data(folder / "ward.npz", terms.model, terms.normalisation)
    path = folder / "w.ledger"
    book = open_ledger(path, data, terms, check_terms(terms, len(data)), new=not path.exists())
    handler = GuardHandler(
        terms, records=len(data), ledger=book, trainer=Training(), identity=Identity(bytes(32))
    )
    return GuardService(handler, folder / "g.sock", on_close=book.close)

def request(round, hello):
    return DrawRequest(run="spring", plan="", round=round, draw=0, clip=1.0, noise_multiplier=200.0,
                       sampling_rate=1.0, batch_size=40, local_steps=1, sampler="poisson",
                       neighbours="zero-out", step_sizes=[0.1], model=hello.model,
                       layout=hello.layout, vector=np.zeros(18, np.float32))

def forked():
    pid = os.fork()
    if pid == 0:
        try:
            guard().serve_forever()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(9)
    return pid

def connect():
    for _ in range(5000):
        try:
            return GuardClient(folder / "g.sock", timeout=20)
        except InputError:
            time.sleep(0.002)
    raise AssertionError("the guard did not start")

# Each line names a folder and code, which is run there in a child: torch is loaded once.
for line in sys.stdin:
    folder, code = json.loads(line)
    folder, child = Path(folder), os.fork()
    if child == 0:
        signal.alarm(60)
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            exec(code)
        except BaseException as error:
            print(repr(error))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def runner():
    with subprocess.Popen(
        [sys.executable, "-c", SETUP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:

        def run(code, folder):
            process.stdin.write(json.dumps([str(folder), code]) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
            return json.loads((folder / "output").read_text())

        yield run
        process.stdin.close()


MID_DRAW = """
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

real, Training.update = Training.update, die
pid = forked()
with connect() as asking:
    hello = asking.hello("spring")
    try:
        asking.draw(request(0, hello))
    except InputError as error:
        first = str(error)
os.waitpid(pid, 0)
Training.update = real
pid = forked()
with connect() as asking:
    try:
        asking.draw(request(0, hello))
    except GuardRefusedError as error:
        second = (error.code, error.counted)
    third = asking.draw(request(1, hello)).resent
    counted = asking.receipt("spring").spending
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
print(json.dumps([first, second, third, counted["counted_draws"], counted["released_draws"]]))
"""


def test_a_guard_killed_in_mid_draw_has_counted_it_and_does_not_do_it_again(
    runner, folder, data_file
):
    first, second, third, counted, released = runner(MID_DRAW, folder)
    assert "ask again" in first
    assert second == ["lost", True]
    assert (third, counted, released) == (False, 2, 1)
    assert verify_ledger(folder / "w.ledger").findings == ()


FULL = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
calls = []
real = Training.update
Training.update = lambda self, *a, **k: calls.append(1) or real(self, *a, **k)
service = guard()
service.start()
with connect() as asking:
    hello = asking.hello("spring")
    size = max(os.stat(folder / name).st_size for name in ("w.ledger", "w.ledger-wal"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 12_000,) * 2)
    sent = 0
    try:
        for round in range(1000):
            asking.draw(request(round, hello))
            sent += 1
    except GuardRefusedError as error:
        print(json.dumps([sent, len(calls), error.code, error.counted, str(error)]))
"""


def test_a_full_disk_is_refused_before_noise(runner, folder, data_file):
    sent, trained, code, counted, message = runner(FULL, folder)
    assert code == "ledger"
    assert str(folder) not in message
    # Either the count did not fit, and nothing was computed, or the update did not.
    assert trained == sent + counted
    kept = read_state(folder / "w.ledger").account("ward", "spring").draws
    assert sum(record is not None for record in kept.values()) == sent
    assert len(kept) == sent + counted
    assert verify_ledger(folder / "w.ledger").findings == ()


READ_ONLY = """
guard().stop()
os.chmod(folder / "w.ledger", 0o400)
for name in ("w.ledger-wal", "w.ledger-shm"):
    (folder / name).unlink(missing_ok=True)
for name in ("ward.npz", "w.ledger", "w.ledger.counter", ""):
    os.chown(folder / name, 65534, -1)
os.chmod(folder, 0o500)
os.setuid(65534)
try:
    guard()
except DpcohortError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user who cannot write")
def test_a_read_only_ledger_stops_the_guard_before_it_answers(runner, folder, data_file):
    kind, message = runner(READ_ONLY, folder)
    os.chmod(folder, 0o700)
    assert kind == "InputError"
    assert "read-only" in message or "cannot be opened for writing" in message
