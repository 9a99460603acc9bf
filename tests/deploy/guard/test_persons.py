# SPDX-License-Identifier: Apache-2.0
"""A guard whose unit is the person: whose its rows are, what one person moves, what it says."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import Event, History
from dpcohort.accounting._samplers import sampler_of
from dpcohort.adaptive import ReportTerms
from dpcohort.data import PersonTerms, dataset_from_table
from dpcohort.deploy.guard import GuardTerms, ModelTerms
from dpcohort.deploy.guard._files import GuardedData, guarded_data
from dpcohort.deploy.guard._start import open_ledger, terms_in_words
from dpcohort.deploy.guard._terms import TableTerms
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.engine import Lattice
from dpcohort.errors import DpcohortError, InputError

MODEL = ModelTerms(name="logistic", input_shape=(2,), classes=2)
COLUMNS = {
    "label": "sick", "labels": ["no", "yes"], "features": ["age", "dose"], "person": "patient_id",
    "bounds": {"age": [0, 100], "dose": [0, 10]},
}  # fmt: skip


def terms(**changed):
    said = {"dataset": "north", "lifetime_epsilon": 4.0, "lifetime_delta": 1e-5, "model": MODEL}
    return GuardTerms(**(said | {"allowed_users": (65534,), "persons": {}} | changed))


def rows_of(count, *, seed=0):
    """A table of two wards: most people once or twice, some with up to nine rows."""
    rng = np.random.default_rng(seed)
    persons = np.repeat(np.arange(count), rng.choice([1, 1, 2, 3, 9], count))
    wards = np.where(persons % 3 == 0, "south", "north")
    order = rng.permutation(len(persons))
    return {
        "patient_id": [f"p{one}" for one in persons[order]],
        "ward": wards[order].tolist(),
        "age": rng.integers(0, 100, len(persons)).tolist(),
        "dose": rng.uniform(0, 10, len(persons)).tolist(),
        "sick": rng.choice(["no", "yes"], len(persons)).tolist(),
    }


def written(path, table, ward=None):
    rows = [row for row, whose in enumerate(table["ward"]) if ward in (None, whose)]
    lines = [",".join(table)] + [",".join(str(table[name][row]) for name in table) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


def test_a_guard_with_its_own_rows_has_the_persons_and_rows_of_the_simulation(folder):
    """The same persons held out, the same rows of those with too many, the same contributions."""
    table = rows_of(60)
    said = {key: COLUMNS[key] for key in ("label", "labels", "features", "bounds")}
    whole = dataset_from_table(
        table, client="ward", person="patient_id", seed=5, test_share=0.3,
        person_terms=PersonTerms(rows_per_person=4), **said,
    )  # fmt: skip
    for ward in ("north", "south"):
        path = written(folder / f"{ward}.csv", table, ward)
        read = {"client": ward, "columns": COLUMNS, "test_share": 0.3, "seed": 5}
        own = guarded_data(
            path, terms(dataset=ward, table=TableTerms(**read), persons={"rows_per_person": 4})
        )
        here = np.flatnonzero(whole.record_clients == ward)
        assert len(own) == len(here)

        def bags(inputs, labels, rows):
            each = ((inputs[one[one >= 0]], labels[one[one >= 0]]) for one in rows)
            return sorted((np.column_stack([x, y]).tolist() for x, y in each), key=str)

        assert bags(own.inputs, own.labels, own.persons.rows) == bags(
            whole.train_inputs, whole.train_labels, whole.persons.rows[here]
        )
        assert own.persons.rows.shape[1] == 4


class Noiseless:
    """The noise of a guard is in the way here: the same bytes give the same, and it cancels."""

    def __call__(self, size):
        return bytes(size)


@pytest.mark.parametrize("person_rows", ["sum", "mean"])
def test_forty_rows_of_one_person_move_an_update_and_a_report_as_one(person_rows):
    """All rows of one person exchanged: an update moves by 2 C / B, a report by its range."""
    rng = np.random.default_rng(1)
    company = rng.normal(size=(30, 2)).astype(np.float32)
    names = ["canary"] * 40 + [f"p{i % 9}" for i in range(30)]
    persons = PersonTerms(rows_per_person=40, person_rows=person_rows).group(np.array(names), None)
    clip, sampling = 0.2, (sampler_of("poisson"), 1.0, 10)

    def answers(rows, label):
        inputs = np.concatenate([np.broadcast_to(np.float32(rows), (40, 2)), company])
        labels = np.concatenate([np.full(40, label), np.arange(30) % 2]).astype(np.int64)
        data = GuardedData(inputs.astype(np.float32), labels, "", persons)
        trained = LocalTraining(MODEL, data, Noiseless())
        weights = np.zeros(trained.dimension, np.float32)
        lattice = Lattice(1.0, clip)
        update = trained.update(weights, lattice, sampling, [1.0])
        total = trained.noisy_sum(weights, lattice, sampling) * lattice.unit
        asked = ReportTerms(statistic="loss", loss_bound=4.0)
        report = trained.report(weights, Lattice(1.0, asked.half_range), sampling, asked)
        return update.astype(float), total, report.astype(float)

    here, there = answers([30.0, 30.0], 0), answers([30.0, 30.0], 1)
    for one, other, scale in zip(here[:2], there[:2], (10, 1), strict=True):
        moved = np.linalg.norm(one - other) * scale / clip
        assert 1.99 < moved < 2 + 1e-4
    assert abs(here[2] - there[2]).max() * 10 <= 4.0 + 1e-6


def test_the_terms_say_the_unit_and_a_ledger_keeps_it(folder):
    words = terms_in_words(terms(persons={"rows_per_person": 3}), 600)
    assert "600 persons may spend" in words[0]
    assert any("3 are used at most" in line and "clipped as one" in line for line in words)
    assert terms().cap().unit == "person"
    assert terms(persons=None).cap().unit == "record"
    data = GuardedData(np.zeros((4, 2), np.float32), np.arange(4) % 2, "0" * 64)
    place = folder / "north.ledger"
    with open_ledger(place, data, terms(persons=None), {}, new=True):
        pass
    with pytest.raises(InputError, match=r"unit = 'person'.*'record', fixed when 'north'"):
        open_ledger(place, data, terms(), {})
    steps = History((Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=6),))
    place = folder / "persons.ledger"
    with (
        open_ledger(place, data, terms(), {}, new=True) as ledger,
        pytest.raises(InputError, match="covers a person, and steps taken elsewhere"),
    ):
        ledger.record("north", "autumn", steps, clip=1.0, delta=1e-6)


def _without(key):
    return {name: value for name, value in COLUMNS.items() if name != key}


BAD = {
    "a table whose columns name no person": (
        {"table": {"client": "north", "columns": _without("person")}}, {}, "person.*is missing"
    ),
    "arrays without persons": ({}, {"inputs": 4, "labels": 4}, "no array 'persons'"),
    "names of other rows": ({}, {"inputs": 4, "labels": 4, "persons": 3}, "one name for each"),
    "a cap of 0": ({"persons": {"rows_per_person": 0}}, {}, "rows_per_person = 0"),
    "another way to add": ({"persons": {"person_rows": "max"}}, {}, "person_rows"),
    "an unknown key": ({"persons": {"rows": 3}}, {}, "rows"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_terms_or_data_without_persons_are_refused(case, folder):
    changed, sizes, words = BAD[case]
    arrays = {
        "inputs": np.zeros((sizes.get("inputs", 0), 2), np.float32),
        "labels": np.zeros(sizes.get("labels", 0), np.int64),
    }
    if "persons" in sizes:
        arrays["persons"] = np.arange(sizes["persons"])
    path = folder / "ward.npz"
    np.savez(path, **arrays)
    path.chmod(0o600)
    with pytest.raises(DpcohortError, match=words):
        guarded_data(path, terms(**changed))


def test_a_blank_is_refused_without_its_place_or_is_a_person_of_its_own(folder):
    table = rows_of(5) | {}
    table["patient_id"][2] = ""
    path = written(folder / "t.csv", table)
    read = TableTerms(client="north", columns=COLUMNS)
    with pytest.raises(InputError, match="blank_person") as refused:
        guarded_data(path, terms(table=read))
    assert not any(name in str(refused.value).replace(str(path), "") for name in ("p0", "p1", "p2"))
    own = guarded_data(path, terms(table=read, persons={"blank_person": "own"}))
    assert len(own) == len({*table["patient_id"]})
