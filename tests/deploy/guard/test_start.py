# SPDX-License-Identifier: Apache-2.0
"""From the owner's files to a guard, or a refusal with nothing spent and nobody answered."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from dpcohort.accounting._samplers import SAMPLERS
from dpcohort.cli import main
from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard import GuardClient
from dpcohort.deploy.guard import _start as module
from dpcohort.deploy.guard._start import check_answer_time, check_terms, open_guard
from dpcohort.deploy.guard._terms import commented_terms
from dpcohort.errors import BudgetExceededError, DataMissingError, InputError


def start(folder, data_file, terms, **options):
    """Open a guard, with a new ledger if there is none."""
    ledger = folder / "w.ledger"
    options = {"new_ledger": not ledger.exists(), **options}
    return open_guard(terms, data=data_file, ledger=ledger, socket=folder / "g.sock", **options)


def test_a_guard_starts_from_files_and_starts_again(folder, data_file, terms, good):
    with start(folder, data_file, terms) as service:
        service.start()
        with GuardClient(folder / "g.sock") as guard:
            first = guard.draw(good())
    assert not (folder / "g.sock").exists()
    with start(folder, data_file, terms) as service:
        service.start()
        with GuardClient(folder / "g.sock") as guard:
            again = guard.draw(good())
            assert guard.receipt("spring").spending["counted_draws"] == 1
    assert again.resent
    assert again.vector.tobytes() == first.vector.tobytes()


def test_a_terms_file_that_others_write_is_refused(folder, data_file):
    path = folder / "terms.toml"
    path.write_text(commented_terms())
    path.chmod(0o666)
    with pytest.raises(InputError, match="chmod go-w"):
        start(folder, data_file, path)


@pytest.mark.parametrize("file", ["w.ledger", "w.ledger.counter"])
def test_a_ledger_that_others_read_is_refused(folder, data_file, terms, file):
    start(folder, data_file, terms).stop()
    (folder / file).chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        start(folder, data_file, terms)


def test_a_model_of_the_owners_is_not_looked_for_where_others_write(
    folder, data_file, terms, monkeypatch
):
    """Modules in the current folder are found too: somebody could put one there."""
    place = folder / "here"
    place.mkdir()
    (place / "planted.py").write_text("raise SystemExit('code of another user was run')")
    place.chmod(0o1777)
    monkeypatch.chdir(place)
    theirs = replace(terms.model, name="planted:model")
    with pytest.raises(InputError, match="of the model can be written by others"):
        start(folder, data_file, replace(terms, model=theirs))
    start(folder, data_file, terms).stop()  # a model of the package needs no module


VISITOR = """
from pathlib import Path
from dpcohort import plugin
from torch import nn
Path("imported").touch()

@plugin("model")
def build():
    return nn.Linear(5, 3)
"""


def test_code_of_others_runs_only_as_the_owner_allowed_it(
    folder, data_file, terms, monkeypatch, capsys
):
    """Not by what came with the terms, nor by what their user allowed for other commands."""
    kit = folder / "kit"
    kit.mkdir(mode=0o700)
    monkeypatch.chdir(kit)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "home"))
    visitor = Path("visitor_of_a_guard.py")
    visitor.write_text(VISITOR)
    theirs = replace(terms, model=replace(terms.model, name="visitor_of_a_guard:build"))
    sha256 = hashlib.sha256(VISITOR.encode()).hexdigest()
    name = 'name = "visitor_of_a_guard:build"'
    Path("t.toml").write_text(re.sub(r'(?m)^name = "[a-z-]+"', name, commented_terms()))
    Path("t.toml").chmod(0o600)
    assert main(["--allow-code", "visitor_of_a_guard"]) == 0
    kept = {str(visitor.resolve()): {"module": "visitor_of_a_guard", "sha256": sha256}}
    for brought in ("allowed_code.json", "w.ledger.code.json"):
        Path(brought).write_text(json.dumps(kept))
        Path(brought).chmod(0o600)
    with pytest.raises(InputError, match="Keep the ledger in a folder of its own"):
        start(kit, data_file, theirs)
    with pytest.raises(InputError, match=f"{sha256[:12]}.* guard allow-code"):
        start(folder, data_file, theirs)
    assert main(["guard", "check", "--terms", "t.toml", "--records", "600"]) == 0
    assert main(["guard", "check", "--terms", "t.toml", "--records", "600", "--json"]) == 0
    assert sha256 in capsys.readouterr().out
    assert not Path("imported").exists()
    ledger = str(folder / "w.ledger")
    assert main(["guard", "allow-code", "--terms", "t.toml", "--ledger", ledger]) == 0
    assert sha256 in "".join(capsys.readouterr().out.split())
    assert not Path("imported").exists()
    visitor.write_text(f"{VISITOR}# another\n")
    with pytest.raises(InputError, match="has not allowed it as it is now"):
        start(folder, data_file, theirs)
    assert not Path("imported").exists()
    visitor.write_text(VISITOR)
    (folder / "w.ledger.code.json").chmod(0o622)
    with pytest.raises(InputError, match="can be changed by others"):
        start(folder, data_file, theirs)
    (folder / "w.ledger.code.json").chmod(0o600)
    start(folder, data_file, theirs).stop()
    assert Path("imported").exists()
    monkeypatch.delitem(sys.modules, "visitor_of_a_guard")


def test_missing_data_are_exit_code_3(folder, terms):
    with pytest.raises(DataMissingError) as caught:
        start(folder, folder / "none.npz", terms)
    assert caught.value.exit_code == 3
    assert not (folder / "w.ledger").exists()


def test_terms_that_do_not_certify_stop_before_a_ledger_is_made(folder, data_file, with_run):
    for loose in ({"least_noise_multiplier": 0.4}, {"epsilon": 90.0}):  # 90: see 2^-130
        with pytest.raises(BudgetExceededError):
            start(folder, data_file, with_run(**loose))
        assert not (folder / "w.ledger").exists()


def test_who_may_ask_must_be_somebody_else(terms):
    with pytest.raises(InputError, match="at least one user"):
        check_terms(replace(terms, same_user=False), 40)
    own = replace(terms, same_user=False, allowed_users=(os.geteuid(),))
    with pytest.raises(InputError, match="as whom the guard itself runs"):
        check_terms(own, 40)
    with pytest.raises(InputError, match="user of its own"):  # root can open everything
        check_terms(replace(terms, same_user=False, allowed_users=(0,)), 40)
    other = replace(terms, same_user=False, allowed_users=(os.geteuid() + 1,))
    assert check_terms(other, 40)["spring"].draws == 6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lifetime_epsilon": 8.0}, "lifetime_epsilon"),
        ({"lifetime_delta": 1e-4}, "lifetime_delta"),
        ({"across_runs": "composed"}, "across_runs"),
        ({"per": "365 days"}, "per"),
    ],
    ids=str,
)
def test_the_lifetime_cap_is_fixed_at_the_first_start(folder, data_file, terms, change, said):
    start(folder, data_file, terms).stop()
    with pytest.raises(InputError, match=said):
        start(folder, data_file, replace(terms, **change))


def test_a_run_that_is_closed_must_be_one_that_is_known(folder, data_file, terms):
    """A slip in the name would leave the run open."""
    start(folder, data_file, replace(terms, closed_runs=("spring",))).stop()
    with pytest.raises(InputError, match=r"closed_runs.*'sprnig'"):
        start(folder, data_file, replace(terms, closed_runs=("sprnig",)))


def test_other_data_under_the_same_name_are_refused(folder, data_file, terms):
    start(folder, data_file, terms).stop()
    np.savez(data_file, inputs=np.zeros((40, 5)), labels=np.zeros(40, np.int64))
    with pytest.raises(InputError, match="not those"):
        start(folder, data_file, terms)


class Asked:
    """A trainer that says what it was asked for."""

    dimension, layout = 3, ""

    def __init__(self):
        self.asked = []

    def update(self, parameters, lattice, batches, step_sizes):
        self.asked.append(batches)
        return parameters


@pytest.mark.parametrize(
    ("answer_seconds", "outcome"), [(0.03, "refused"), (0.07, "warned"), (3600.0, "fine")]
)
def test_the_time_of_an_answer_covers_a_draw_of_all_records(
    terms, monkeypatch, answer_seconds, outcome
):
    clock = itertools.count(step=0.02)  # a step over all records takes 0.02 s, a draw has two
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    timed = replace(terms, answer_seconds=answer_seconds)
    said, trainer = [], Asked()
    if outcome == "refused":
        with pytest.raises(InputError, match=r"0\.04 s .* Set answer_seconds = 0\.1"):
            check_answer_time(timed, 40, trainer, log=said.append)
    else:
        check_answer_time(timed, 40, trainer, log=said.append)
    assert set(trainer.asked) == {(SAMPLERS["poisson"], 1.0, 40)}
    assert [line.startswith("WARNING: a draw of all 40") for line in said] == (
        [True] if outcome == "warned" else []
    )


def test_one_thread_computes_whatever_the_caller_uses(folder, data_file, terms, good, monkeypatch):
    torch = pytest.importorskip("torch")
    from dpcohort.deploy.guard._training import LocalTraining

    real, seen = LocalTraining._clipped_sum, []

    def clipped_sum(self, *arguments):
        seen.append(torch.get_num_threads())
        return real(self, *arguments)

    monkeypatch.setattr(LocalTraining, "_clipped_sum", clipped_sum)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with start(folder, data_file, replace(terms, answer_seconds=5.0)) as service:
            service.handler.answer(good())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1, 1, 1]  # two steps to see how long they take, two for the server
