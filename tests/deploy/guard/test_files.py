# SPDX-License-Identifier: Apache-2.0
"""Files that others could open or exchange stop a guard."""

from __future__ import annotations

import os

import numpy as np
import pytest

from dpcohort.data import Normalisation, dataset_from_table
from dpcohort.deploy.guard import GuardTerms, ModelTerms
from dpcohort.deploy.guard._files import (
    check_closed_folder,
    check_private,
    check_unwritable,
    load_data,
)
from dpcohort.deploy.guard._terms import TableTerms, commented_terms
from dpcohort.errors import DataMissingError, FileFormatError, InputError


@pytest.fixture
def file(folder):
    path = folder / "inner" / "data"
    path.parent.mkdir(mode=0o700)
    path.write_text("secret 4711")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o602, 0o601])
def test_open_files_are_refused_with_the_way_out(file, mode):
    file.chmod(mode)
    with pytest.raises(InputError, match=f"mode {mode:04o}.*chmod 600") as caught:
        check_private(file, "data")
    assert "4711" not in str(caught.value)


def test_terms_may_be_read_but_not_written_by_others(file):
    file.chmod(0o644)
    check_unwritable(file, "terms")
    file.chmod(0o664)
    with pytest.raises(InputError, match="chmod go-w"):
        check_unwritable(file, "terms")


def test_a_folder_in_which_others_write_is_refused(file):
    file.parent.chmod(0o777)
    with pytest.raises(InputError, match="exchange"):
        check_private(file, "data")
    file.parent.chmod(0o1777)  # with the sticky bit others cannot exchange the file
    check_private(file, "data")


def test_a_sticky_folder_is_not_enough_where_files_beside_ours_are_opened(file):
    file.parent.chmod(0o1777)
    check_closed_folder(file.parent, "ledger")
    with pytest.raises(InputError, match="exchange"):
        check_closed_folder(file.parent, "ledger", shared=False)
    file.parent.chmod(0o700)
    check_closed_folder(file.parent, "ledger", shared=False)  # /dev/shm or /tmp above is sticky


def test_a_link_is_followed_to_the_folder_that_holds_the_file(file, folder):
    """The link is in a closed folder, what it points to is not."""
    place = folder / "linked"
    place.mkdir(mode=0o700)
    (place / "data").symlink_to(file)
    check_private(place / "data", "data")
    file.parent.chmod(0o777)
    with pytest.raises(InputError, match="exchange"):
        check_private(place / "data", "data")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777], ids=oct)
def test_a_folder_of_another_user_is_refused(file, mode):
    """Whoever owns a folder can exchange what is in it, whatever its mode says."""
    file.parent.chmod(mode)
    os.chown(file.parent, 12345, -1)
    with pytest.raises(InputError, match="belongs to user 12345"):
        check_private(file, "data")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_owner_is_refused(file):
    os.chown(file, 12345, -1)
    with pytest.raises(InputError, match="belongs to user 12345"):
        check_private(file, "data")


MODEL = ModelTerms(name="logistic", input_shape=(2,), classes=3)
SECRET = 4711.25


def save(folder, **arrays):
    path = folder / "d.npz"
    np.savez(path, **arrays)
    path.chmod(0o600)
    return path


GOOD = {"inputs": np.array([[SECRET, 1.0]]), "labels": np.array([1])}
BAD = {
    "no labels": {"inputs": GOOD["inputs"]},
    "other shape": {**GOOD, "inputs": np.full((1, 3), SECRET)},
    "one number": {**GOOD, "inputs": np.full(1, SECRET)},
    "label out of range": {**GOOD, "labels": np.array([4711])},
    "negative label": {**GOOD, "labels": np.array([-4711])},
    "float labels": {**GOOD, "labels": np.array([1.0])},
    "too many labels": {**GOOD, "labels": np.array([1, 1])},
    "no record": {"inputs": np.zeros((0, 2)), "labels": np.zeros(0, np.int64)},
    "not finite": {**GOOD, "inputs": np.array([[SECRET, np.nan]])},
    "strings": {**GOOD, "inputs": np.array([["4711", "b"]])},
    "complex": {**GOOD, "inputs": np.array([[SECRET, 1j]])},
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused_without_a_value(folder, case):
    with pytest.raises(InputError) as caught:
        load_data(save(folder, **BAD[case]), MODEL, Normalisation())
    assert "4711" not in str(caught.value)


def test_missing_open_and_pickled_files_are_refused(folder):
    with pytest.raises(DataMissingError):
        load_data(folder / "none.npz", MODEL, Normalisation())
    path = save(folder, **GOOD)
    path.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        load_data(path, MODEL, Normalisation())
    path = save(folder, **{**GOOD, "inputs": np.array([[object(), 1]], dtype=object)})
    with pytest.raises(InputError, match="pickle"):
        load_data(path, MODEL, Normalisation())


def test_the_records_are_not_printed(folder):
    assert str(SECRET) not in repr(load_data(save(folder, **GOOD), MODEL, Normalisation()))


TABLE = TableTerms(
    client="north",
    columns={
        "label": "sick",
        "labels": ["no", "yes"],
        "features": ["age", "ward"],
        "bounds": {"age": [0, 100]},
        "categories": {"ward": ["a", "b"]},
    },
    test_share=0.25,
    seed=5,
)
TABLE_MODEL = ModelTerms(name="logistic", input_shape=(4,), classes=2)


def save_table(folder, rows):
    path = folder / "data.csv"
    path.write_text("\n".join(["age,ward,sick,hospital", *rows]))
    path.chmod(0o600)
    return path


def test_a_guard_reads_its_table_as_the_simulation_does_and_holds_the_same_records_out(folder):
    rows = [(20 + k, "ab"[k % 2], ("no", "yes")[k % 3 == 0]) for k in range(40)]
    path = save_table(folder, [f"{age},{ward},{sick},north" for age, ward, sick in rows])
    found = load_data(path, TABLE_MODEL, Normalisation(), TABLE)
    both = [(*row, client) for client in ("south", "north") for row in rows]
    names = ("age", "ward", "sick", "hospital")
    table = dict(zip(names, zip(*both, strict=True), strict=True))
    public = {"label": "sick", "labels": ["no", "yes"], "features": ["age", "ward"]}
    data = dataset_from_table(
        table, **public, client="hospital", bounds={"age": (0, 100)},
        categories={"ward": ["a", "b"]}, test_share=0.25, seed=5,
    )  # fmt: skip
    mine = data.clients == "north"
    assert len(found) == 30
    assert found.inputs.tolist() == data.train_inputs[mine].tolist()
    assert found.labels.tolist() == data.train_labels[mine].tolist()


def test_a_bad_table_is_refused_without_a_value(folder):
    path = save_table(folder, ["secret,a,no,north"])
    with pytest.raises(FileFormatError, match="the column age of record 1") as caught:
        load_data(path, TABLE_MODEL, Normalisation(), TABLE)
    assert "secret" not in str(caught.value)
    path = save_table(folder, ["7,a,secret,north"])
    with pytest.raises(FileFormatError, match="not one of the labels") as caught:
        load_data(path, TABLE_MODEL, Normalisation(), TABLE)
    assert "secret" not in str(caught.value)
    with pytest.raises(FileFormatError, match="these have none"):
        load_data(path, TABLE_MODEL, Normalisation())


def test_terms_say_how_a_table_is_read(folder):
    text = commented_terms() + TABLE.to_toml()
    (folder / "terms.toml").write_text(text.replace('"nobody"', "0"))
    assert GuardTerms.from_toml(folder / "terms.toml").table == TABLE
    for old, new, words in (
        ("seed = 5", "seeds = 5", "seeds"),
        ("[0, 100]", "[]", "is not filled in"),
        ('features = ["age", "ward"]', "", "features is missing"),
        ('label = "sick"', "", "missing or of the wrong type"),
    ):
        assert old in text
        (folder / "terms.toml").write_text(text.replace('"nobody"', "0").replace(old, new))
        with pytest.raises(InputError, match=words):
            GuardTerms.from_toml(folder / "terms.toml")
