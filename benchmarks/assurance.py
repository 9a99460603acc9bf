# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/assurance.md (promise, tries, result) and its log.

``python benchmarks/assurance.py`` (or ``make assurance``) reads ``results/assurance/*.json``, which
the measuring commands wrote, and prints no number of its own. ``--check`` only says whether the
pages are what it would write.

A file holds one row, or a list of rows, each with exactly these keys::

    {"promise": "what must hold", "attack": "how it was tried to break it",
     "tries": 1000, "result": "what came of it", "test": "tests/x/test_y.py::test_z",
     "command": "what measured it", "machine": "on what", "date": "2026-01-31"}

``tries`` is a whole number or words. The name of the file places the row: ``noise-tail.json`` is
the row :data:`FRAME` calls ``noise-tail``; a file that is not in the frame comes after it. A row of
the frame without a file is shown as not measured here. :func:`record` writes such a file from a
measuring script; after a command, ``python benchmarks/assurance.py --record noise-tail`` does, with
``--tries``, ``--result``, ``--test`` and ``--command``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "assurance"
PAGE = ROOT / "docs" / "reference" / "assurance.md"
LOG = ROOT / "docs" / "reference" / "assurance" / "log.md"
MISSING = "not measured here"


@dataclass(frozen=True)
class Row:
    """One promise and what was done against it; the keys of a result file."""

    promise: str
    attack: str
    tries: int | str
    result: str
    test: str
    command: str
    machine: str
    date: str


@dataclass(frozen=True)
class Topic:
    """A place of the table: what is shown until a result is there, and the peer's figure.

    Attributes:
        key: name of the result file.
        promise: what must hold.
        attack: how it is tried to break it.
        peer: what the best peer has; the numbers in brackets are those of :data:`SOURCES`.
    """

    key: str
    promise: str
    attack: str
    peer: str


FRAME = (
    Topic(
        "noise-predictability",
        "No noise can be computed from other noise.",
        "Solve for the state of the known linear generators from coordinates known to be zero.",
        "OpenDP, Google, Tumult: the operating system's or the processor's entropy [2, 3, 4]. "
        "Opacus: torch's generator; secure mode needs torchcsprng, which has wheels for Python 3.6 "
        "to 3.9 only [1]. Flower: NumPy's global Mersenne Twister [5]. jax-privacy: a key of 31 "
        "bits from it unless one is given [6].",
    ),
    Topic(
        "noise-tail",
        "The noise has the whole tail that the accountant assumes.",
        "Count draws beyond 5.768, 6, 6.5 and 7 standard deviations.",
        "OpenDP: the exact law [2]. Tumult: an inverse in arbitrary precision [4]. Google: a "
        "binomial, nothing beyond about 8.8 σ [3].",
    ),
    Topic(
        "noise-last-bits",
        "The last bits of what is released tell nothing.",
        "Look for values that only one of two neighbouring data sets can give.",
        "OpenDP: integers, exact [2]. Google: multiples of a power of two [3]. Tumult: interval "
        "arithmetic [4]. Opacus secure mode: the sum of four floating-point draws [1]. Flower, "
        "jax-privacy: floating-point [5, 6].",
    ),
    Topic(
        "noise-freshness",
        "No noise is ever used twice.",
        "Compare the streams of rounds, clients, draws, steps, processes and restarts.",
        "Tumult: a new generator after a fork [4].",
    ),
    Topic(
        "sensitivity",
        "One record moves the clipped sum by at most C, whatever it is.",
        "Records, weights and losses of 1e±38, NaN, infinity and denormals.",
        "jax-privacy: what is not finite becomes 0 before the norm [6]. Opacus: a NaN makes the "
        "whole sum NaN [1].",
    ),
    Topic(
        "persons",
        "One person with 40 rows counts as one record.",
        "The attacks on sensitivity, membership, sampling and ε by rows that add up to a record's "
        "gradient, are averaged, cancel, or of which one is not finite; an engine that clips rows "
        "moves a sum by 40 C, such a guard by 5 C for 5 rows.",
        "Opacus clips rows [1]; jax-privacy can draw and clip by user [6].",
    ),
    Topic(
        "erasure",
        "One record cannot take another out of the sum.",
        "Membership attack with a record that is not finite beside the victim.",
        "jax-privacy: gradients are mapped record by record [6]. Opacus: one NaN erases the batch "
        "[1].",
    ),
    Topic(
        "isolation",
        "No model and no loss of others lets a record move a batch by more than C.",
        "Hostile and careless modules and losses, with a record and without it.",
        "Measured in the row below. Opacus validates layers by type, and no loss [1]. Flower and "
        "NVFLARE clip or filter a client's whole update and see no model [5, 7].",
    ),
    Topic(
        "isolation-persons",
        "The same of a person with 3 rows.",
        "Hostile and careless modules and losses, with a person and without them.",
        "",
    ),
    Topic(
        "isolation-cuda",
        "No model and no loss of others does so on a GPU.",
        "The same modules and losses, at the engines and in frozen encoders on a GPU.",
        "",
    ),
    Topic(
        "isolation-persons-cuda",
        "The same of a person with 3 rows, on a GPU.",
        "The same modules and losses, with a person and without them, on a GPU.",
        "",
    ),
    Topic(
        "isolation-peers",
        "The same models and losses, given to others (no promise of ours).",
        "Hostile and careless modules and losses, with a record and without it.",
        "Opacus' `make_private`, Flower's `LocalDpMod`, NVFLARE's filters [1, 5, 7].",
    ),
    Topic(
        "sampler",
        "A record is in a batch as often as accounted for.",
        "Count inclusions of single records and pairs over many batches.",
        "",
    ),
    Topic(
        "lower-bound",
        "No attack finds more ε than was certified.",
        "One-run audit with many canaries against the certified trade-off curve (Mahloujifar, "
        "Melis and Chaudhuri, 2025), end to end.",
        "jax-privacy bounds ε from attack scores that its user brings, for Gaussian curves [6].",
    ),
    Topic(
        "calibration",
        "Noise is never below the optimum and hardly above it, at tiny rates too.",
        "Compare with exact arithmetic and with independent accountants.",
        "",
    ),
    Topic(
        "guard-messages",
        "A guard gives out nothing that its owner did not accept.",
        "Hostile messages, replays, races, and couriers that are not allowed.",
        "Flower: LocalDpMod is a part of the client app itself [5].",
    ),
    Topic(
        "kills",
        "A crash never makes the ledger forget a draw or give out a second one.",
        "Kill guard and ledger at every fsync and every SQL statement.",
        "Opacus keeps its history in memory, and on disk where its user saves it [1].",
    ),
    Topic(
        "tampering",
        "No change to a finished private run goes unseen.",
        "Every value of every file, lines, bytes and files of four kinds of runs, one at a time.",
        "",
    ),
    Topic(
        "readers",
        "No file makes a reader crash, hang or take more memory than allowed.",
        "Mutated plans, ledgers, receipts, data files and terms.",
        "",
    ),
    Topic(
        "hostile-files",
        "No file of others runs code of theirs, whatever command it is given to.",
        "Every command with hostile plans, configs, run folders, terms, tables, arrays and model "
        "files at every place that takes one.",
        "",
    ),
    Topic(
        "charges",
        "Receipts are never below what was paid, beside the rounds and in them, in any order.",
        "Random orders of estimate, tuning, training, continuation and evaluation, some on configs "
        "that leave charges out; each receipt against an addition and a Gaussian formula of the "
        "test's own.",
        "",
    ),
    Topic(
        "soak",
        "Nothing grows over a long private run.",
        "10,000 private rounds; a guard under 50 requests at once.",
        "",
    ),
    Topic(
        "mutants",
        "Broken privacy-bearing code does not pass the tests.",
        "Faults written by hand, one at a time (listed below).",
        "",
    ),
    Topic(
        "dependencies",
        "No dependency has a known vulnerability, and none is exchanged unnoticed.",
        "pip-audit of the environment; SHA-256 of every installed file in requirements-ci.txt.",
        "",
    ),
)

#: What was read of each peer, and where.
SOURCES = (
    "Opacus 1.6.0: `opacus/optimizers/optimizer.py` (`_generate_noise`, `clip_and_accumulate`), "
    "`opacus/privacy_engine.py` (`secure_mode`), `opacus/accountants/accountant.py`; torchcsprng "
    "0.2.1, its newest version: the wheels its package index lists. Read, and run where a test of "
    "ours says so.",
    "OpenDP: `rust/src/traits/samplers/cks20/mod.rs` at commit 0071e2b (exact discrete Gaussian "
    "after Canonne, Kamath and Steinke), `rust/src/traits/samplers/mod.rs` at 03b8064 (a "
    "cryptographic generator from the system's entropy). Read.",
    "Google's differential-privacy, Go: `go/noise/gaussian_noise.go` at commit 006ab1f (binomial, "
    "`binomialProbability` is 0 beyond √n·√(ln(√n)/2), with √n between 2^56 and 2^57), "
    "`go/rand/rand.go` at 123626f (`crypto/rand`). Read.",
    "Tumult Core 0.20.0: `tmlt/core/random/rng.py` (RDRAND, else `os.urandom`; anew after a fork), "
    "`continuous_gaussian.py` and `inverse_cdf.py` (arbitrary precision). Read.",
    "Flower 1.41.0: `flwr/supercore/differential_privacy.py` (`add_gaussian_noise_inplace`: "
    "`np.random.normal`), which its LocalDpMod uses. Read, and run where a test of ours says so.",
    "jax-privacy 2.0.0: `jax_privacy/noise_addition.py` (`np.random.randint(0, 2**31)` where no "
    "key is given; `jax.random.normal`), `clipping.py` (`nan_safe`), `auditing.py`. Read.",
    "NVFLARE 2.9.0, its wheel: `nvflare/app_common/filters/` (`svt_privacy.py`, "
    "`percentile_privacy.py`: `process_dxo` takes weights or their differences). Read.",
)

HEAD = """\
# Assurance

How often it was tried to break each promise, and what came of it (written by `make assurance`).
[The log](assurance/log.md) has attacks, tests, commands, machines, peers and mutants. What is not
promised: [sharp edges](../concepts/sharp-edges.md). How to report a hole: `SECURITY.md`.

"""

LOG_HEAD = """\
# Assurance, the log

Attacks, tests, commands, peers and mutants behind [assurance](../assurance.md).

"""


def rows_of(path: Path) -> list[Row]:
    """The rows of a result file.

    Raises:
        SystemExit: it is not of the shape in the head of this file.
    """
    found: Any = json.loads(path.read_text(encoding="utf-8"))
    names = [field.name for field in fields(Row)]
    rows = []
    for one in found if isinstance(found, list) else [found]:
        if not isinstance(one, dict) or sorted(one) != sorted(names):
            raise SystemExit(f"{path}: a row has the keys {', '.join(names)}, and no others.")
        wrong = [n for n in names if not isinstance(one[n], (int, str) if n == "tries" else str)]
        if wrong:
            raise SystemExit(f"{path}: {wrong[0]} has a value of the wrong type.")
        rows.append(Row(**one))
    return rows


def recorded(folder: Path = RESULTS) -> dict[str, list[Row]]:
    """All recorded rows, by the name of their file."""
    return {path.stem: rows_of(path) for path in sorted(folder.glob("*.json"))}


def record(
    key: str,
    *,
    tries: int | str,
    result: str,
    test: str,
    command: str,
    attack: str | None = None,
    promise: str | None = None,
    folder: Path = RESULTS,
) -> Path:
    """Write down what a measurement gave, with this machine and today's date.

    Args:
        key: name of the result file.
        tries: how often it was tried.
        result: what came of it.
        test: node id of the test that keeps it so.
        command: what measured it.
        attack: how it was tried, where the frame does not say it well enough.
        promise: what must hold, likewise.
        folder: where result files are.

    Returns:
        The file.
    """
    topic = next((one for one in FRAME if one.key == key), Topic(key, "", "", ""))
    row = Row(
        promise=promise or topic.promise,
        attack=attack or topic.attack,
        tries=tries,
        result=result,
        test=test,
        command=command,
        machine=f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}",
        date=datetime.now(UTC).date().isoformat(),
    )
    path = folder / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(row), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def pages(results: dict[str, list[Row]]) -> dict[Path, str]:
    """The page and its log."""
    topics = [*FRAME]
    topics += [Topic(key, "", "", "") for key in results if key not in {t.key for t in FRAME}]
    table, attacks, measured, peers = [], [], [], []
    for topic in topics:
        rows = results.get(topic.key, [])
        if topic.peer:
            peers.append(_line(topic.promise, topic.peer))
        if not rows:
            table.append(_line(topic.promise, "-", MISSING))
        for row in rows:
            tries = f"{row.tries:,}" if isinstance(row.tries, int) else row.tries
            table.append(_line(row.promise, tries, row.result))
            attacks.append(_line(row.promise, row.attack, f"`{row.test}`"))
            measured.append(_line(row.promise, f"`{row.command}`", row.machine, row.date))
    sources = "\n".join(f"{number}. {words}" for number, words in enumerate(SOURCES, start=1))
    log = [
        LOG_HEAD + "## Attacks\n\n" + _table(["promise", "attack", "test"], attacks),
        "## Measurements\n\n" + _table(["promise", "command", "machine", "date"], measured),
        "## Peers\n\nLibraries for other tasks too, and better than this one at many of them. Said "
        "is what their source says, at the version or commit named; no figure was found for the "
        "other promises.\n\n" + _table(["promise", "peer"], peers) + f"\n{sources}\n",
        _mutants(),
    ]
    return {PAGE: HEAD + _table(["promise", "tries", "result"], table), LOG: "\n".join(log)}


def _mutants() -> str:
    mutants = _sibling("mutants").read_mutants()
    lines = [
        _line(one.name, f"`{one.file}`", one.breaks, f"`{one.test}`")
        for one in sorted(mutants, key=lambda one: (one.file, one.name))
    ]
    return (
        "## The mutants\n\nEach is one change of one file (`benchmarks/mutants.toml` has it); the "
        "promise beside it then no longer holds, and the test must fail.\n\n"
        + _table(["mutant", "file", "promise broken", "test that notices"], lines)
    )


def _sibling(name: str) -> Any:
    """Another file of this folder; benchmarks are no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _number_or_words(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _table(heads: Sequence[str], lines: Sequence[str]) -> str:
    rule = "|" + "---|" * len(heads)
    return "\n".join([_line(*heads), rule, *lines]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the head of this file."""
    parser = argparse.ArgumentParser(description="Write docs/reference/assurance.md and its log.")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it would change")
    parser.add_argument("--record", metavar="KEY", help="first write down a row of this name, with")
    told = ("tries", "result", "test", "command")
    for name in told:
        parser.add_argument(f"--{name}", type=_number_or_words if name == "tries" else str)
    given = parser.parse_args(arguments)
    if given.record:
        values = {name: getattr(given, name) for name in told}
        if None in values.values():
            parser.error("--record needs --tries, --result, --test and --command")
        record(given.record, **values)
    texts = pages(recorded())
    if given.check:
        stale = [
            str(path.relative_to(ROOT))
            for path, text in texts.items()
            if not path.exists() or path.read_text(encoding="utf-8") != text
        ]
        if stale:
            print(f"{', '.join(stale)}: not what the results say: make assurance", file=sys.stderr)
        return int(bool(stale))
    for path, text in texts.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(recorded())} of {len(FRAME)} measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
