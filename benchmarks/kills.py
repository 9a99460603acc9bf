# SPDX-License-Identifier: Apache-2.0
"""Kill a guard at every point where its files change, and see that nothing is spent or sent twice.

``python benchmarks/kills.py [--draws 28] [--every 1] [--broken]``. A guard with a new ledger
answers a client app's draws in a child process, which ends without warning at the n-th of these
points, for every n there is: before and after each fsync, rename and write of ledger, counter and
terms, before and after each SQL statement, and, where SQLite lets its system calls be replaced,
before and after each write inside a statement. What a kill leaves behind is what was written up to
then, so these are all the states there are. (A power cut is another matter: it can also undo what
was written and not yet forced to disk.)

Then the guard is started again and asked for the same draws and one more. Whatever had left the
guard must be counted, and come again bit for bit; whatever had been computed must be counted and
never be computed again; the ledger must verify. ``--broken`` counts a draw after it is computed, to
see that this is found.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpcohort.accounting import Event
from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard import (
    AcceptedRun,
    DrawRequest,
    GuardClient,
    GuardRefusedError,
    GuardTerms,
    Hello,
    ModelTerms,
)
from dpcohort.deploy.guard._files import load_data
from dpcohort.deploy.guard._handler import GuardHandler
from dpcohort.deploy.guard._service import GuardService
from dpcohort.deploy.guard._start import check_terms, open_ledger, pinnable_terms, write_pin
from dpcohort.deploy.ledger import ClientLedger, DrawKey, read_state, verify_ledger
from dpcohort.deploy.secure_aggregation import Identity
from dpcohort.engine import Lattice
from dpcohort.engine._lattice import KEY_BYTES
from dpcohort.errors import DpcohortError, InputError

_RECORDS, _DIMENSION, _NOISE, _MOST = 4, 6, 400.0, 1000
_KILLED = 77

_TERMS = """\
dataset = "ward"
lifetime_epsilon = 2.0
lifetime_delta = 1e-5
same_user = true
answer_seconds = 0.0

[model]
name = "logistic"
input_shape = [2]
classes = 2
"""


class Bomb:
    """Ends the process at the n-th point that is reached; 0 for never."""

    def __init__(self, at: int) -> None:
        self.at, self.reached = at, 0

    def point(self) -> None:
        """One more; the last one, if it is the one to die at."""
        self.reached += 1
        if self.reached == self.at:
            os._exit(_KILLED)

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, a point before it and one after it."""

        def call(*arguments: Any, **options: Any) -> Any:
            self.point()
            found = real(*arguments, **options)
            self.point()
            return found

        return call


def plant(bomb: Bomb) -> None:
    """Put a point before and after everything that changes a file of this process."""
    for name in ("fsync", "fdatasync", "replace", "rename", "write", "pwrite", "unlink", "chmod"):
        setattr(os, name, bomb.around(getattr(os, name)))

    class Connection(sqlite3.Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.set_trace_callback(lambda statement: bomb.point())

        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            found = super().execute(*arguments)
            bomb.point()
            return found

    real: Any = sqlite3.connect
    sqlite3.connect = lambda *a, **options: real(*a, factory=Connection, **options)
    plant_in_sqlite(bomb)


class _Vfs(ctypes.Structure):
    """The head of SQLite's ``sqlite3_vfs``, as far as its system calls."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("os_file", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("calls", ctypes.c_void_p * 13),
        ("set_system_call", ctypes.c_void_p),
    ]


_WRITE = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
)
_CUT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_REMOVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)
_SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_kept: list[Any] = []  # a callback that Python forgets is gone for SQLite, too


def plant_in_sqlite(bomb: Bomb) -> bool:
    """Put points around SQLite's own system calls; False where its library is not reachable."""
    library = _sqlite_library()
    if library is None:
        return False
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    vfs = library.sqlite3_vfs_find(None)
    replace_call = _SET(vfs.contents.set_system_call)
    libc = ctypes.CDLL(None)
    for name, kind in (("pwrite64", _WRITE), ("pwrite", _WRITE), ("ftruncate", _CUT),
                       ("unlink", _REMOVE)):  # fmt: skip
        real = kind((name, libc))
        call = kind(bomb.around(real))
        if replace_call(ctypes.cast(vfs, ctypes.c_void_p), name.encode(), call) == 0:
            _kept.append((real, call))
    return bool(_kept)


def _sqlite_library() -> ctypes.CDLL | None:
    """The library this Python's sqlite3 has loaded, if it is one that others can call."""
    with suppress(OSError, AttributeError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "sqlite3" in line.rsplit("/", 1)[-1]:
                library = ctypes.CDLL(line[line.index("/") :])
                with suppress(AttributeError):
                    _ = library.sqlite3_vfs_find
                    return library
    return None


class Training:
    """Noise alone, and a line in a file before it is drawn: which draws were ever computed."""

    dimension, layout = _DIMENSION, "layout"

    def __init__(self, computed: Path) -> None:
        self._file = os.open(computed, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._write = os.write  # before a bomb is planted

    def update(
        self, parameters: NDArray[np.float32], lattice: Lattice, *drawn: Any
    ) -> NDArray[np.float32]:
        """Noise around 0."""
        # A client app's parameters are public: they say here which draw this is.
        self._write(self._file, f"{int(parameters[0])}\n".encode())
        nothing, key = torch.zeros(_DIMENSION, dtype=torch.int64), os.urandom(KEY_BYTES)
        noisy: NDArray[np.float32] = lattice.release(nothing, key, scale=1.0).float().numpy()
        return noisy


def _with_run(terms: GuardTerms) -> GuardTerms:
    run = AcceptedRun(
        run="spring",
        epsilon=2.0,
        delta=1e-5,
        clip=1.0,
        batch_size=_RECORDS,  # without subsampling the composition has a closed form
        local_steps=1,
        rounds=_MOST,
        draws=_MOST,
        least_noise_multiplier=_NOISE,
    )
    return replace(terms, runs=(run,))


def start_guard(folder: Path, *, at: int, broken: bool) -> int:
    """A guard in a child process that dies at the ``at``-th point; the child's number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        training: Any = Training(folder / "computed")  # in place of the real one
        if broken:
            _count_late()
        plant(Bomb(at))
        is_new = not (folder / "w.ledger").exists()
        terms = _with_run(pinnable_terms(folder / "terms.toml"))
        data = load_data(folder / "d.npz", terms.model, terms.normalisation)
        book = open_ledger(
            folder / "w.ledger", data, terms, check_terms(terms, len(data)), new=is_new
        )
        if is_new:
            write_pin(folder / "terms.toml", book.id)
        handler = GuardHandler(
            terms, records=len(data), ledger=book, trainer=training, identity=Identity(bytes(32))
        )
        GuardService(handler, folder / "g.sock").serve_forever()
    except DpcohortError as error:
        (folder / "refused").write_text(str(error))
        code = error.exit_code
    finally:
        os._exit(code)


def _count_late() -> None:
    """Break the guard: a draw is counted when its update is stored, not before it is computed."""
    waiting: dict[DrawKey, tuple[Event, float]] = {}
    reserve, release = ClientLedger.reserve, ClientLedger.release

    def late(self: ClientLedger, key: DrawKey, event: Event, *, clip: float) -> None:
        waiting[key] = (event, clip)

    def count_and_release(self: ClientLedger, key: DrawKey, output: bytes) -> None:
        event, clip = waiting.pop(key)
        reserve(self, key, event, clip=clip)
        release(self, key, output)

    ClientLedger.reserve = late  # type: ignore[method-assign]
    ClientLedger.release = count_and_release  # type: ignore[method-assign]


def connect(folder: Path, pid: int) -> GuardClient | None:
    """A client app's connection; None if the guard ended before."""
    while True:
        with suppress(InputError):
            return GuardClient(folder / "g.sock", timeout=30)
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return None
        time.sleep(0.001)


def ask(guard: GuardClient, round: int, hello: Hello) -> tuple[str, str]:
    """How a draw was answered (fresh, again, or a refusal's code) and the hash of its update."""
    request = DrawRequest(
        run="spring",
        plan="",
        round=round,
        draw=0,
        clip=1.0,
        noise_multiplier=_NOISE,
        sampling_rate=1.0,
        batch_size=_RECORDS,
        local_steps=1,
        sampler="poisson",
        neighbours="zero-out",
        step_sizes=[0.1],
        model=hello.model,
        layout=hello.layout,
        vector=np.full(_DIMENSION, round, np.float32),
    )
    try:
        update = guard.draw(request)
    except GuardRefusedError as refused:
        return refused.code, ""
    digest = hashlib.sha256(update.vector.tobytes()).hexdigest()
    return ("again" if update.resent else "fresh"), digest


def computed_rounds(folder: Path) -> Counter[int]:
    """How often each draw was computed."""
    path = folder / "computed"
    return Counter(map(int, path.read_text().split()) if path.exists() else ())


def life(folder: Path, draws: int, *, at: int, broken: bool) -> tuple[dict[int, Any], int]:
    """One life of a guard: what the client app was answered, and how the guard ended."""
    heard: dict[int, Any] = {}
    pid = start_guard(folder, at=at, broken=broken)
    guard = connect(folder, pid)
    if guard is not None:
        with guard, suppress(InputError):  # it is gone
            hello = guard.hello("spring")
            for round in range(draws):
                heard[round] = ask(guard, round, hello)
        if len(heard) == draws:
            os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return heard, os.waitstatus_to_exitcode(status)


def judge(folder: Path, draws: int, before: dict[int, Any], *, broken: bool) -> list[str]:
    """Start the guard again after a kill; what is wrong."""
    once = computed_rounds(folder)
    after, code = life(folder, draws + 1, at=0, broken=broken)
    if code != -signal.SIGKILL:
        said = (folder / "refused").read_text() if (folder / "refused").exists() else ""
        if "cut short" in said and not once and not before:
            return []  # killed while the ledger was made: refused, and nothing was ever spent
        return [f"it does not start again (code {code}): {said}"]
    wrong = []
    for round, (how, digest) in before.items():
        if how != "fresh":
            wrong.append(f"draw {round} was answered {how} the first time")
        if after[round] != ("again", digest):
            wrong.append(f"draw {round} was sent and then answered {after[round][0]}")
    for round, (how, _) in after.items():
        if how not in ("fresh", "again", "lost"):
            wrong.append(f"draw {round} was refused: {how}")
        if how == "fresh" and once[round]:
            wrong.append(f"draw {round} was computed before and again")
    kept = read_state(folder / "w.ledger").account("ward", "spring").draws
    counted = {(key.round, key.draw) for key in kept}
    for round, times in computed_rounds(folder).items():
        if times > 1:
            wrong.append(f"draw {round} was computed {times} times")
        if (round, 0) not in counted:
            wrong.append(f"draw {round} was computed and is not counted")
    wrong += [f"draw {round} is not counted" for round in before if (round, 0) not in counted]
    wrong += [finding["detail"] for finding in verify_ledger(folder / "w.ledger").findings]
    return wrong


def prepare(folder: Path) -> None:
    """The owner's files: data and terms; no ledger yet."""
    inputs = np.arange(2 * _RECORDS, dtype=np.float32).reshape(_RECORDS, 2)
    np.savez(folder / "d.npz", inputs=inputs, labels=np.arange(_RECORDS) % 2)
    (folder / "terms.toml").write_text(_TERMS)
    for name in ("d.npz", "terms.toml"):
        os.chmod(folder / name, 0o600)


def _load_once() -> None:
    """Load what a guard needs once, here, and not in every child."""
    model = ModelTerms(name="logistic", input_shape=(2,), classes=2)
    terms = GuardTerms(
        dataset="ward", lifetime_epsilon=2.0, lifetime_delta=1e-5, same_user=True, model=model
    )
    check_terms(_with_run(terms), _RECORDS)["spring"].certified_epsilon()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=28, help="answered in each life (28)")
    parser.add_argument("--every", type=int, default=1, help="kill at every so many-th point (1)")
    parser.add_argument("--folder", type=Path, default=None, help="where the ledgers lie")
    parser.add_argument("--broken", action="store_true", help="with a guard that counts too late")
    options = parser.parse_args()
    began, kills, lost, wrong = time.monotonic(), 0, 0, []
    inside = "and at every write inside SQLite" if _sqlite_library() else "not inside SQLite"
    _load_once()
    at = 1
    while True:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="k") as name:
            folder = Path(name)
            prepare(folder)
            heard, code = life(folder, options.draws, at=at, broken=options.broken)
            if code != _KILLED:
                break  # it lived: there is no such point
            kills += 1
            found = judge(folder, options.draws, heard, broken=options.broken)
            wrong += [f"killed at point {at}: {words}" for words in found]
            if (folder / "w.ledger").exists() and not found:
                with suppress(DpcohortError):
                    draws = read_state(folder / "w.ledger").account("ward", "spring").draws
                    lost += sum(record is None for record in draws.values())
        at += options.every
    if code != -signal.SIGKILL:
        wrong.append(f"without a kill it ended with code {code}")
    for line in wrong[:20]:
        print(line)
    print(
        f"{kills} kills at the points of {options.draws} draws (statements, syncs, renames, "
        f"{inside}): {len(wrong)} wrong, {lost} draws lost and counted, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
