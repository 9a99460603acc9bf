# SPDX-License-Identifier: Apache-2.0
"""Every file of a private run folder changed in every way we know, one change at a time.

A run folder of each kind is walked: each value of each JSON file, each line of each log, bytes at
the ends and in the middle of every other file, files taken away and added. ``verify`` must find
each. Somebody who makes all hashes anew afterwards is a second matter: what is found then is what
speaks for itself, what is not is in ``WORD``, and all of it is found where the run is signed.
Every third change is made, in each kind of run another third; ``DPCOHORT_CHANGES=1`` makes all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dpcohort import Population, Training, load_dataset, make_plan
from dpcohort.accounting import Contract
from dpcohort.accounting._charges import charge_of
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.deploy.secure_aggregation import Identity
from dpcohort.engine import Optimiser
from dpcohort.errors import DataMissingError, FileFormatError
from dpcohort.plan import Plan
from dpcohort.runs import ConfigSource, replan, train, verify_run
from dpcohort.runs._folder import read_json
from dpcohort.runs._job import make_job
from dpcohort.runs._seal import sign_seal, write_sealed
from dpcohort.runs._training import train_job

SETTINGS = Training(rounds=3, cohort_size=2, batch_size=20, dimension=650)
EVERY = 1 if os.environ.get("DPCOHORT_CHANGES") else 3

#: The digits as if they were not public.
SECRET = replace(load_dataset("digits"), public=False)


def people(budget: float = 1.0) -> Population:
    return Population.from_arrays(
        ids=["a", "b", "c"], sizes=[60] * 3, epsilon=[budget, 2 * budget, 4 * budget], delta=1e-5
    )


def fixed(folder: Path, promised: float = 0.0) -> None:
    """With a configuration and an average; tuning was paid for before it where so much is left."""
    paid = [
        charge_of(
            people(1 + promised), (), lambda epsilon, delta: (promised, 1e-6), what="tuning",
            private=True, contract=Contract(),
        )
    ] if promised else []  # fmt: skip
    plan = make_plan(people(1 + promised), SETTINGS, selection="unbiased", seed=1, charges=paid)
    optimiser = Optimiser(average_decay=0.5)
    job = make_job(
        plan, "logistic", SECRET, device="cpu", optimiser=optimiser,
        evaluate_every=1, checkpoint_every=1,
    )  # fmt: skip
    job = replace(job, source=ConfigSource("[training]\nrounds = 3\n"))
    train_job(job, out=folder)


def adaptive(folder: Path) -> None:
    plan = make_adaptive_plan(people(), SETTINGS, rule="rpow-d", seed=1)
    train(plan, "logistic", SECRET, device="cpu", out=folder)


def distributed(folder: Path) -> None:
    plan = make_plan(people(), SETTINGS, seed=1, accountant=Contract(trust="distributed"))
    train(plan, "logistic", SECRET, device="cpu", out=folder)


def continued(folder: Path) -> None:
    """It goes on from a run that tuning was charged before."""
    fixed(folder.parent / "first", promised=0.5)
    plan = replan(folder.parent / "first", people(budget=3.0), rounds=2, seed=2)
    train(
        plan, "logistic", SECRET, device="cpu", out=folder,
        after=folder.parent / "first", optimiser=Optimiser(average_decay=0.5),
    )  # fmt: skip


KINDS: dict[str, Callable[[Path], None]] = {
    "fixed": fixed,
    "adaptive": adaptive,
    "distributed": distributed,
    "continued": continued,
}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp(request.param) / "run"
    KINDS[request.param](place)
    assert verify_run(place, method="pld").holds
    return place


Change = tuple[str, Path, bytes | None]


def other(value: Any) -> Any:
    """A value like this one, but another."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, str):
        return f"{value}x"
    return value + 1 if isinstance(value, int) else value * 1.5 + 0.25


def edits(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The content with one leaf, key or item of it changed, and where."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}.{key} gone", {k: v for k, v in value.items() if k != key}
            for where, changed in edits(item, f"{path}.{key}"):
                yield where, {**value, key: changed}
        yield f"{path}.more", {**value, "more": 1}
    elif isinstance(value, list):
        if value:
            yield f"{path}[] cut", value[:-1]
        for at in {0, len(value) - 1} if value else ():
            for where, changed in edits(value[at], f"{path}[]"):
                yield where, [*value[:at], changed, *value[at + 1 :]]
    else:
        yield path, other(value)


def changes(run: Path) -> Iterator[Change]:
    """What was changed, in which file, to what; None takes it away."""
    for path in sorted(p for p in run.rglob("*") if p.is_file() and p.name != "1-b.json"):
        name, content = path.relative_to(run).as_posix(), path.read_bytes()
        yield f"{name} gone", path, None
        if path.suffix == ".json":
            for where, changed in edits(json.loads(content)):
                yield f"{name}{where}", path, json.dumps(changed).encode()
        elif path.suffix == ".jsonl":
            lines = content.splitlines(keepends=True)
            for at, line in enumerate(lines):
                if 1 < at < len(lines) - 1:  # the first is a ledger's head, all others are alike
                    continue
                before, after = lines[:at], lines[at + 1 :]
                for where, changed in edits(json.loads(line)):
                    new = f"{json.dumps(changed)}\n".encode()
                    yield f"{name}{where}", path, b"".join([*before, new, *after])
                yield f"{name} line gone", path, b"".join([*before, *after])
                yield f"{name} line twice", path, b"".join([*before, line, line, *after])
                if after:
                    swapped = [*before, after[0], line, *after[1:]]
                    yield f"{name} lines swapped", path, b"".join(swapped)
        else:
            for at in (0, len(content) // 3, len(content) // 2, len(content) - 1):
                flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
                yield f"{name} byte {at}", path, flipped
    a_receipt = next((run / "receipts").iterdir()).read_bytes()
    a_state = next((run / "checkpoints").iterdir()).read_bytes()
    for name, content in (
        ("config.toml", b"[run]\nseed = 3\n"),
        ("exchange.jsonl", b"{}\n"),
        ("client-ledgers.json", b"{}"),
        ("model-last.safetensors", (run / "model.safetensors").read_bytes()),
        ("receipts/9-z.json", a_receipt),
        ("checkpoints/round-0000001.safetensors", a_state),
        ("before/plan.json", (run / "plan.json").read_bytes()),
        ("signature.json", b"{}"),
    ):
        if not (run / name).exists():
            yield f"{name} added", run / name, content


def is_finished_and_holds(run: Path) -> bool:
    try:
        found = verify_run(run, method="pld")
    except DataMissingError:  # no run any more
        return False
    return found.holds and found.finished


def walk(
    run: Path,
    copy: Path,
    *,
    then: Callable[[Path], None] = lambda _: None,
    missed: Callable[[str, Path], None],
) -> int:
    """Make one change after the other in a copy; how many there are, and which are not found."""
    shutil.copytree(run, copy)
    tried = 0
    first = list(KINDS).index(run.parent.name.rstrip("0123456789")) % EVERY
    for what, path, content in islice(changes(run), first, None, EVERY):
        place = copy / path.relative_to(run)
        if content is None:
            place.unlink()
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        then(copy)
        tried += 1
        if is_finished_and_holds(copy):
            missed(what, copy)
        for changed in (path, run / "result.json"):
            again = copy / changed.relative_to(run)
            if changed.exists():
                again.write_bytes(changed.read_bytes())
            else:
                again.unlink()
        if not path.parent.exists():
            shutil.rmtree(place.parent)
    assert is_finished_and_holds(copy)
    return tried


def sealed_anew(run: Path) -> None:
    """As somebody does who knows how the seal is made."""
    with suppress(DataMissingError, FileFormatError):
        write_sealed(run, read_json(run / "result.json"))


#: What hashes made anew can hide: the operator's word, and what changes nothing that is read.
WORD = re.compile(
    r"result\.json\.|rounds\.jsonl\.(test|seconds)|environment\.json\.|config\.toml|model|"
    r"run\.json\.(label|evaluate_every|checkpoint_every)|checkpoints/|"
    r"(client-ledgers\.json|exchange\.jsonl|before/plan\.json) added|"
    r"partition\.npz byte|receipts/.*\.json\.(dpcohort|unit gone)"
)


def test_every_change_is_found(folder: Path, tmp_path: Path) -> None:
    hidden: list[str] = []
    assert walk(folder, tmp_path / "copy", missed=lambda what, _: hidden.append(what)) > 300 / EVERY
    assert hidden == []


@pytest.mark.parametrize("folder", ["fixed", "adaptive"], indirect=True)
def test_hashes_made_anew_hide_the_operators_word_alone_and_no_signed_change(
    folder: Path, tmp_path: Path
) -> None:
    operator = Identity(bytes(32))
    signed = shutil.copytree(folder, tmp_path / "signed")
    sign_seal(signed, operator.public, operator.sign_bytes)
    assert verify_run(signed, key=operator.public).holds
    result, plan = read_json(folder / "result.json"), Plan.load(folder / "plan.json")
    hidden: list[str] = []

    def note(what: str, copy: Path) -> None:
        if read_json(copy / "result.json") == result:
            return  # a hash that was changed and then made anew
        shutil.copy(signed / "signature.json", copy)
        assert not verify_run(copy, method="pld").holds, what
        (copy / "signature.json").unlink()
        if what.startswith("plan.json"):  # the same plan in other words
            assert Plan.load(copy / "plan.json").sha256 == plan.sha256
        else:
            hidden.append(what)

    walk(folder, tmp_path / "copy", then=sealed_anew, missed=note)
    assert [one for one in hidden if not WORD.match(one)] == []
    assert len(hidden) > 50 / EVERY
