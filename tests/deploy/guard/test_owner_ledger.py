# SPDX-License-Identifier: Apache-2.0
"""Which ledger counts: the one the owner made and pinned, and never a new one in silence."""

from __future__ import annotations

import os
import shutil

import pytest

from dpcohort.data import Normalisation
from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard import GuardTerms
from dpcohort.deploy.guard._files import load_data
from dpcohort.deploy.guard._start import check_terms, open_guard, open_ledger, pin_ledger
from dpcohort.deploy.guard._terms import commented_terms
from dpcohort.deploy.ledger import ClientLedger, LifetimeCap
from dpcohort.errors import DataMissingError, DpcohortError, InputError

TERMS_FILE = """\
dataset = "ward"
lifetime_epsilon = 4.0
lifetime_delta = 1e-5
same_user = true
answer_seconds = 0.0

[model]
name = "logistic"
input_shape = [5]
classes = 3
"""


@pytest.fixture
def terms_file(folder):
    path = folder / "terms.toml"
    path.write_text(TERMS_FILE)
    path.chmod(0o600)
    return path


@pytest.fixture
def start(folder, data_file):
    """Start a guard from files and stop it; its terms."""

    def once(terms, ledger="w.ledger", **options):
        paths = {"data": data_file, "ledger": folder / ledger, "socket": folder / "g.sock"}
        with open_guard(terms, **paths, **options) as service:
            return service.handler.terms

    return once


def files(folder):
    return {path.name for path in folder.iterdir() if "ledger" in path.name}


@pytest.mark.parametrize("gone", ["ledger and counter", "ledger"])
def test_a_ledger_that_is_gone_is_not_made_anew(folder, start, terms, terms_file, gone):
    start(terms_file, new_ledger=True)
    for name in ("w.ledger", "w.ledger.counter")[: 2 if "counter" in gone else 1]:
        (folder / name).unlink()
    left = files(folder)
    for owner in (terms_file, terms):  # with its id pinned, and without
        with pytest.raises(DataMissingError, match=r"no ledger at .*w\.ledger") as caught:
            start(owner)
        assert caught.value.exit_code == 3
    with pytest.raises(InputError, match="pin the ledger"):  # nor when it is asked for
        start(terms_file, new_ledger=True)
    assert files(folder) == left


def test_a_slip_in_the_path_makes_no_ledger(folder, start, terms, terms_file):
    start(terms_file, new_ledger=True)
    before = files(folder)
    for owner in (terms_file, terms):
        with pytest.raises(DataMissingError, match=r"no ledger at .*w\.legder"):
            start(owner, ledger="w.legder")
    with pytest.raises(DataMissingError, match="no ledger at"):
        pin_ledger(terms_file, folder / "w.legder")
    assert files(folder) == before


def test_another_ledger_is_refused(folder, start, terms, terms_file):
    pinned = start(terms_file, new_ledger=True).ledger_id
    other = start(terms, ledger="other.ledger", new_ledger=True).ledger_id
    with pytest.raises(InputError, match=f"{other}.*pin {pinned}"):
        start(terms_file, ledger="other.ledger")
    # Nor in the place of the first one, counter and all.
    for end in ("", ".counter"):
        shutil.copyfile(folder / f"other.ledger{end}", folder / f"w.ledger{end}")
    with pytest.raises(InputError, match=f"{other}.*pin {pinned}"):
        start(terms_file)
    with pytest.raises(InputError, match="ledger_id"):
        pin_ledger(terms_file, folder / "other.ledger")


def test_a_new_ledger_is_pinned_in_the_terms_and_nothing_else_changes(folder, start, terms_file):
    terms_file.write_text(TERMS_FILE.replace("\n\n", "  # ours\n# ledger_id = ...\n\n"))
    before = GuardTerms.from_toml(terms_file)
    pinned = start(terms_file, new_ledger=True).ledger_id
    assert GuardTerms.from_toml(terms_file) == replace(before, ledger_id=pinned)
    assert "# ours" in terms_file.read_text()
    assert terms_file.stat().st_mode & 0o777 == 0o600
    start(terms_file)  # and serves from it
    with pytest.raises(InputError, match="pin the ledger"):
        start(terms_file, ledger="second.ledger", new_ledger=True)


def test_a_ledger_that_is_there_is_not_replaced(folder, start, terms):
    start(terms, new_ledger=True)
    before = (folder / "w.ledger").read_bytes()
    with pytest.raises(InputError, match="there already"):
        start(terms, new_ledger=True)
    assert (folder / "w.ledger").read_bytes() == before


def test_a_ledger_of_other_data_is_not_pinned(folder, terms_file):
    with ClientLedger.create(folder / "w.ledger") as ledger:
        ledger.register("another ward", LifetimeCap(epsilon=4.0, delta=1e-5))
    with pytest.raises(InputError, match="knows nothing of 'ward'"):
        pin_ledger(terms_file, folder / "w.ledger")


def test_no_ledger_is_made_for_terms_that_cannot_be_pinned(folder, terms_file, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="cannot write"):
        pin_ledger(terms_file, folder / "w.ledger", new=True)
    assert not files(folder)


def test_what_is_pinned_must_be_an_id(folder, start):
    path = folder / "t.toml"
    path.write_text(commented_terms().replace('# ledger_id = "..."', 'ledger_id = "..."'))
    path.chmod(0o600)
    with pytest.raises(DpcohortError, match="ledger_id"):
        start(path)


def test_a_ledger_in_a_folder_shared_with_others_is_refused(folder, data_file, terms):
    """Under a sticky bit others cannot exchange it, but put a journal beside it."""
    place = folder / "shared"
    place.mkdir()
    place.chmod(0o1777)
    data = load_data(data_file, terms.model, Normalisation())
    with pytest.raises(InputError, match=r"folder .*shared of the ledger"):
        open_ledger(place / "w.ledger", data, terms, check_terms(terms, 40), new=True)
    assert not list(place.iterdir())


def test_a_counter_where_others_write_is_refused_before_anything_is_answered(
    folder, data_file, terms
):
    place = folder / "shared"
    place.mkdir()
    place.chmod(0o777)
    data = load_data(data_file, terms.model, Normalisation())
    with pytest.raises(InputError, match="of the counter"):
        open_ledger(
            folder / "w.ledger", data, terms, check_terms(terms, 40), counter=place / "c", new=True
        )
    assert not (folder / "w.ledger").exists()


def test_changed_terms_of_a_run_are_refused_and_noise_left_out_stays_as_it_was(
    folder, data_file, with_run
):
    path = folder / "w.ledger"
    free = with_run(least_noise_multiplier=None)
    data = load_data(data_file, free.model, Normalisation())
    runs = check_terms(free, 40)
    with open_ledger(path, data, free, runs, new=True) as ledger:
        noise = ledger.terms("ward", "spring").least_noise_multiplier
    # A later version computes another last digit.
    later = replace(runs["spring"], least_noise_multiplier=noise * (1 + 1e-9))
    with open_ledger(path, data, free, {"spring": later}) as ledger:
        assert ledger.terms("ward", "spring").least_noise_multiplier == noise
    with pytest.raises(InputError, match="never change"):
        open_ledger(path, data, with_run(draws=7), check_terms(with_run(draws=7), 40))
