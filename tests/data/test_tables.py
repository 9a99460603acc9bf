# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import importlib
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from dpcohort import limits
from dpcohort.data import TableColumns, dataset_from_table, load_dataset, read_table
from dpcohort.data import _tables as tables
from dpcohort.data._dataset import without_label
from dpcohort.data._tables import client_names, columns_of_frame, held_for_test, table_dataset
from dpcohort.errors import DataMissingError, FileFormatError, InputError
from dpcohort.runs import configured_data, configured_job, configured_population
from dpcohort.tasks import Task

ROWS = {
    "age": [0, 55, 110, 500, None, 55],
    "smoker": ["yes", "no", "sometimes", None, "yes", "no"],
    "ward": ["a", "b", "a", "b", "a", "b"],
    "sick": ["no", "yes", "no", "yes", "no", "yes"],
}
PUBLIC = {
    "label": "sick",
    "labels": ["no", "yes"],
    "bounds": {"age": (0, 110)},
    "categories": {"smoker": ["no", "yes"]},
    "features": ["age", "smoker"],
}


def columns(**changes) -> TableColumns:
    return TableColumns(**{**PUBLIC, **changes})


def test_numbers_go_from_minus_one_to_one_and_values_to_columns_of_their_own():
    inputs, labels, names = columns().encode(ROWS)
    assert names == ("age", "smoker = no", "smoker = yes", "smoker = other")
    assert inputs[:, 0].tolist() == [-1, 0, 1, 1, 0, 0]  # beyond: at the bound; missing: the middle
    assert inputs[:, 1:].argmax(1).tolist() == [1, 0, 2, 2, 1, 0]
    assert inputs[:, 1:].sum(1).tolist() == [1] * 6
    assert labels.tolist() == [0, 1, 0, 1, 0, 1]


def test_a_record_is_encoded_without_a_look_at_the_others():
    together, _, _ = columns().encode(ROWS)
    for place in range(6):
        alone = {name: [cells[place]] for name, cells in ROWS.items()}
        assert columns().encode(alone)[0].tolist() == [together[place].tolist()]


@pytest.mark.parametrize(
    ("rule", "expected", "width"),
    [("middle", 0.0, 4), ("indicator", 0.0, 5), (110, 1.0, 4), ({"age": 27.5}, -0.5, 4)],
)
def test_a_missing_number_counts_as_the_public_rule_says(rule, expected, width):
    inputs, _, names = columns(missing=rule).encode(ROWS)
    assert inputs[4, 0] == expected
    assert inputs.shape[1] == width
    if rule == "indicator":
        assert inputs[:, names.index("age is missing")].tolist() == [0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("labels", "cells"),
    [
        ([1, 2], ["1", "2.0", "1"]),
        (["1", "2"], [1, 2, 1.0]),
        ([True, False], ["TRUE", "false", True]),
        (["007", "7"], ["007", "7", "007"]),
    ],
)
def test_labels_are_found_however_they_are_written(labels, cells):
    found = columns(labels=labels).encode({"age": [1] * 3, "smoker": ["no"] * 3, "sick": cells})
    assert found[1].tolist() == [0, 1, 0]


def test_tasks_of_a_table():
    rows = {"age": [1, 2, 3], "a": [0, 1, 1], "b": ["1", "0", "TRUE"], "stay": ["3", "45", "1,5"]}
    public = {"bounds": {"age": (0, 4)}, "features": ["age"], "test_share": 0.3}
    both = dataset_from_table(rows, label=["a", "b"], **public, task=None)
    assert both.task.names == ("a", "b")
    assert both.train_labels.dtype == np.float32
    stay = Task(kind="regression", outputs=1, bounds=(0.0, 30.0))
    numbers = dataset_from_table(rows, label="stay", task=stay, **public)
    every = np.concatenate([numbers.train_labels, numbers.test_labels])
    assert sorted(stay.unscaled(every.astype(float)).round(3).tolist()) == [1.5, 3.0, 30.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bounds": {}}, "columns age can hold.*tell|nothing says what the columns age"),
        ({"bounds": {"age": []}}, "bounds.age is not filled in.*single records"),
        ({"bounds": {"age": (5, 5)}}, "a smaller and a larger number"),
        ({"bounds": {"age": (0, float("inf"))}}, "a finite number"),
        ({"bounds": {"age": 7}}, "the smallest and the largest"),
        ({"categories": {"smoker": []}}, "categories.smoker is not filled in"),
        ({"categories": {"smoker": ["no", "no"]}}, "different values"),
        ({"categories": {"age": [1]}}, "is in categories too"),
        ({"labels": []}, "labels is missing"),
        ({"task": Task(kind="counts", outputs=1)}, "labels goes with classes"),
        ({"label": ["age", "sick"], "features": ["smoker"], "bounds": {}}, "labels goes with"),
        ({"labels": ["no"]}, "2 values or more"),
        ({"labels": "no"}, r"labels = 'no' is not allowed: it must be a list, as in \['no', ...\]"),
        ({"label": "sik"}, "Did you mean 'sick'"),
        ({"label": "Sick"}, "Did you mean 'sick'"),
        ({"features": ["age", "sick"]}, "which is the label"),
        ({"missing": "mean"}, "one of middle, indicator"),
        ({"label": ""}, "the name of a column, or several"),
        ({"categories": {"smoker": "no"}}, "a list of values"),
        ({"labels": ["no", None]}, "text, numbers, or true and false"),
        ({"label": ["sick"], "task": Task(kind="counts", outputs=1)}, "names several columns"),
        ({"missing": {"smoker": "middle"}}, "is for a column with bounds"),
    ],
)
def test_what_is_not_public_or_does_not_fit_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        dataset_from_table(ROWS, **{**PUBLIC, **changes})


def test_a_text_is_no_list_of_its_letters():
    rows = {"a": [0, 1] * 4, "b": [1, 0] * 4, "sick": ["n", "o"] * 4}
    known = {"label": "sick", "labels": ["n", "o"], "bounds": {"a": (0, 1), "b": (0, 1)}}
    for change in ({"labels": "no"}, {"features": "ab"}):
        for made in (
            lambda given: dataset_from_table(rows, **given),
            lambda given: TableColumns(**given),
        ):
            with pytest.raises(InputError, match="it must be a list"):
                made({**known, **change})


@pytest.mark.parametrize("cell", ["old", "1_0", "1,500", "٣", [1], "nan5"])
def test_a_bad_cell_is_named_by_its_place_and_never_shown(cell):
    rows = {**ROWS, "age": [1, 2, cell, 4, 5, 6]}
    with pytest.raises(InputError, match="the column age of record 3") as caught:
        columns().encode(rows)
    assert str(cell) not in str(caught.value)


def test_who_left_takes_its_test_records_along():
    rows, known = {name: cells * 4 for name, cells in ROWS.items()}, columns(client="ward")
    everybody, one = (table_dataset(rows, known, tested=some) for some in (None, ["a"]))
    assert set(everybody.test_clients.tolist()) == {"a", "b"}
    assert set(one.test_clients.tolist()) == {"a"}
    assert one.train_inputs.tolist() == everybody.train_inputs.tolist()
    with pytest.raises(InputError, match="no client that takes part has a test record"):
        table_dataset(rows, known, tested=["c"])


def test_every_record_says_whose_it_is_and_what_is_predicted():
    with pytest.raises(InputError, match="the column ward of record 2 is empty: it must say whose"):
        client_names("ward", ["a", None])
    counts = {"label": "age", "labels": [], "features": ["smoker"], "bounds": {}}
    made = dataset_from_table(ROWS, **{**PUBLIC, **counts}, task=Task(kind="counts", outputs=1))
    with pytest.raises(InputError, match="the column age of record 5 is missing"):
        made.refuse_unusable()


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("sick", "perhaps", "the column sick of record 2 is not one of the labels no, yes"),
        ("sick", ["yes"], "the column sick of record 2 holds a list"),
        ("age", "old", "the column age of record 2 is not a number"),
        ("age", {}, "the column age of record 2 holds a dict"),
        ("smoker", [1], "the column smoker of record 2 holds a list"),
    ],
)
def test_a_record_that_cannot_be_used_is_told_to_simulations_alone(column, cell, words):
    cells = [ROWS[column][0], cell, *ROWS[column][2:]]
    is_test = np.arange(6) == 0
    rows, known = {**ROWS, column: cells}, columns()
    plain = table_dataset(ROWS, known, is_test=is_test)
    made = table_dataset(rows, known, is_test=is_test)
    with pytest.raises(InputError, match=words):
        made.refuse_unusable()
    expected = [column == "sick", False, False, False, False]
    assert without_label(made.train_labels).tolist() == expected
    assert (made.train_inputs.shape, made.remarks) == (plain.train_inputs.shape, plain.remarks)
    assert made.train_inputs[1:].tolist() == plain.train_inputs[1:].tolist()
    if column == "age":
        missing = table_dataset(
            {**ROWS, "age": [1, None, *ROWS["age"][2:]]}, known, is_test=is_test
        )
        assert made.train_inputs[0].tolist() == missing.train_inputs[0].tolist()
    is_test = np.arange(6) == 1
    hidden = table_dataset(rows, known, is_test=is_test)
    with pytest.raises(InputError, match=words):
        hidden.refuse_unusable()
    with pytest.raises(InputError, match=words):
        table_dataset(rows, known, is_test=is_test, test_public=True)


def test_there_must_be_something_to_predict_from():
    with pytest.raises(InputError, match="no column beside the label"):
        TableColumns(label="sick", labels=["no", "yes"]).encode({"sick": ["no", "yes"]})


def test_test_records_are_split_off_within_each_client():
    rows = {name: cells * 20 for name, cells in ROWS.items()}
    one = dataset_from_table(rows, **PUBLIC, client="ward", test_share=0.25, seed=3)
    assert sorted(one.clients.tolist()) == ["a"] * 45 + ["b"] * 45
    assert len(one.test_labels) == 30
    assert not one.test_public
    other = dataset_from_table(rows, **PUBLIC, client="ward", test_share=0.25, seed=4)
    assert one.train_inputs.tolist() != other.train_inputs.tolist()


class Frame:
    """A DataFrame of another library: names, and a column for each."""

    def __init__(self, columns, cells):
        self.columns, self._cells = columns, cells

    def __getitem__(self, name):
        return self._cells[name]


def test_a_frame_of_any_library_is_a_table():
    arrays = {name: np.array(cells, dtype=object) for name, cells in ROWS.items()}
    found = columns_of_frame(Frame(list(ROWS), {**arrays, "ward": tuple(ROWS["ward"])}))
    assert found == ROWS
    with pytest.raises(InputError, match="the column age appears 2 times"):
        columns_of_frame(Frame(["age", "age"], ROWS))
    with pytest.raises(InputError, match=r"table = 'int' .* a DataFrame"):
        columns_of_frame(3)
    with pytest.raises(InputError, match="lengths of columns"):
        columns_of_frame({"age": [1, 2], "sick": [1]})


def test_data_frames_are_tables_too():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS)
    frame["smoker"] = frame["smoker"].astype("category")
    found = dataset_from_table(frame, **PUBLIC, client="ward", test_share=0.4)
    wanted = dataset_from_table(ROWS, **PUBLIC, client="ward", test_share=0.4)
    assert found.train_inputs.tolist() == wanted.train_inputs.tolist()
    assert found.clients.tolist() == wanted.clients.tolist()


def test_parquet_reads_as_csv_does(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    indexed = pyarrow.table({**ROWS, "__index_level_0__": list(range(6))})  # as pandas writes it
    importlib.import_module("pyarrow.parquet").write_table(indexed, tmp_path / "t.parquet")
    with (tmp_path / "t.csv").open("w", newline="") as file:
        written = csv.writer(file, delimiter=";")
        written.writerow(["", *ROWS])
        cells = zip(*ROWS.values(), strict=True)
        written.writerows([place, *row] for place, row in enumerate(cells))
    both = [columns().encode(read_table(tmp_path / f"t.{kind}")) for kind in ("csv", "parquet")]
    assert both[0][0].tolist() == both[1][0].tolist()
    assert both[0][1].tolist() == both[1][1].tolist()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no header"),
        ("a,b\n", "no record below it"),
        ("a,b\n1,2\n3\n", "line 3: the row has 1 cells; the header has 2"),
        ("a,a\n1,2\n", "line 1: the column a appears 2 times"),
        ('a,b\n1,"2\n', "line 2: a quote .* is opened here and never closed"),
        ("a\x1b[2J,b\n1,2,3\n", "line 2: the row has 3 cells"),
    ],
)
def test_a_broken_csv_is_one_message_with_its_line(tmp_path: Path, content: str, words: str):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(FileFormatError, match=words):
        read_table(tmp_path / "t.csv")


def test_a_long_word_of_a_parquet_file_is_in_memory_once(tmp_path: Path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    path, parquet = tmp_path / "t.parquet", importlib.import_module("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"note": ["x" * 20_000] * 5_000, "y": [0, 1] * 2_500}), path)
    assert path.stat().st_size < 100_000
    usual = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(usual)
    pyarrow.set_memory_pool(pool)
    try:
        notes = read_table(path)["note"]
        assert len({id(note) for note in notes}) == 1
        assert (len(notes), len(notes[0])) == (5_000, 20_000)
        assert pool.max_memory() < 20e6  # written out it is 100 MB
    finally:
        pyarrow.set_memory_pool(usual)
    wide = pyarrow.array([b"x" * 20_000] * 5_000, pyarrow.binary(20_000))
    for values, words in ((wide, "would unpack"), ([["a"], ["b"]], "must be text or numbers")):
        parquet.write_table(pyarrow.table({"note": values}), path)
        monkeypatch.setattr(limits, "LARGEST_FREE_UNPACKING", 1 << 20)
        with pytest.raises(FileFormatError, match=words):
            read_table(path)


def test_a_parquet_file_that_cannot_be_used(tmp_path: Path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    path, parquet = tmp_path / "t.parquet", importlib.import_module("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"age": pyarrow.array([], pyarrow.int64())}), path)
    with pytest.raises(FileFormatError, match="there are no records in it"):
        read_table(path)
    parquet.write_table(pyarrow.table({"age": [1, 2, 3]}), path)
    with monkeypatch.context() as few:
        few.setattr(tables, "MOST_TABLE_CELLS", 2)
        with pytest.raises(FileFormatError, match="3 cells; a table may have 2"):
            read_table(path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataMissingError, match=r"needs pyarrow.*dpcohort\[tables\]"):
        read_table(path)


def test_a_table_that_is_not_there_or_not_a_table(tmp_path: Path):
    with pytest.raises(DataMissingError, match="is not there"):
        read_table(tmp_path / "t.csv")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises((FileFormatError, DataMissingError), match="Parquet"):
        read_table(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"dpcohort new my\.toml --from t\.csv"):
        load_dataset("t.csv")


@pytest.fixture
def config(table_config):
    return table_config


def _write_ages(config, ages: dict[tuple[str, bool], float]) -> None:
    """All records in bounds, but for one of each client and kind: test record or not."""
    owners = np.repeat(["a", "b"], 40)
    is_test = held_for_test(80, owners, share=0.25, seed=0)
    cells = np.full(80, 50.0)
    for (client, tested), age in ages.items():
        cells[np.flatnonzero((owners == client) & (is_test == tested))[0]] = age
    rows = [f"{age},no,{who},{'yes' if k % 2 else 'no'}" for k, (age, who) in
            enumerate(zip(cells, owners, strict=True))]  # fmt: skip
    (config.folder / "t.csv").write_text("\n".join(["age,smoker,ward,sick", *rows]))


def test_what_lies_beyond_bounds_is_counted_in_public_records_and_in_no_others(config):
    said = (
        "of {} public records, numbers beyond their bounds count as the bound: age {} below and {} "
        "above [0, 110]."
    )
    beyond = {("a", True): -1, ("b", True): 200, ("a", False): 300, ("b", False): -4}
    _write_ages(config, beyond)
    assert configured_data(config).remarks == ()
    public_test = config.with_overrides(["data.test_public=true"])
    (words,) = configured_data(public_test).remarks
    assert words.startswith(said.format(20, 1, 1))
    (config.folder / "clients.csv").write_text("id,epsilon,delta,public\nb,1,1e-3,\na,,,true\n")
    (words,) = configured_data(config).remarks  # all of a's
    assert words.startswith(said.format(40, 1, 1))
    _write_ages(config, {("b", True): 200, ("b", False): -4})  # nothing of a's
    assert configured_data(config).remarks == ()


def test_a_result_says_what_was_cut_off_where_that_is_public(config):
    _write_ages(config, {("a", True): -1, ("b", False): 300})
    for public in ("true", "false"):
        changed = config.with_overrides([f"data.test_public={public}", "run.simulate="])
        job = configured_job(changed)
        told = " ".join(job.judge(job.initial(), [])["warnings"])
        assert ("20 public records" in told) == (public == "true")
        assert ("age 1 below and 0 above [0, 110]" in told) == (public == "true")
        assert ("cut off" in told) == (public == "true")


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ("id,size,epsilon,delta\nb,44,1,1e-3\na,45,2,1e-3\n", "'b' has size 44, but t has 45"),
        ("id,epsilon,delta\nb,1,1e-3\n", "are not in .*clients.csv, 'a' for instance"),
        ("id,epsilon,delta\nb,1,1e-3\nA,1,1e-3\n", "'A' has no record in the data"),
    ],
)
def test_clients_that_are_not_those_of_the_table_are_refused(config, clients, words):
    config.clients.write_text(clients)
    with pytest.raises(InputError, match=words):
        configured_population(config)


def test_heart_disease_is_four_hospitals():
    data = load_dataset("heart-disease")
    names, counts = np.unique(data.clients, return_counts=True)
    assert dict(zip(names.tolist(), counts.tolist(), strict=True)) == {
        "cleveland": 203, "hungarian": 175, "switzerland": 31, "va": 88,
    }  # fmt: skip
    assert len(data) + len(data.test_labels) == 740  # as FLamby counts them
    assert data.test_public
    assert data.task.names == ("healthy", "disease")
    assert np.abs(data.train_inputs).max() == 1


def test_labels_and_values_are_read_in_any_case_and_numbers_as_people_write_them():
    columns = TableColumns(
        label="sick",
        labels=("no", "yes"),
        bounds={"share": (0, 100), "cost": (0, 2_000_000)},
        categories={"smoker": ("none", "Some", "SOME")},
    )
    rows = {
        "share": ["12 %", "50%", "7,5 %"],
        "cost": ["1,000,000", "1.000.000,00", "500 000"],
        "smoker": ["None", "some", "SOME"],
        "sick": ["Yes", "NO", "no"],
    }
    inputs, labels, _ = columns.encode(rows)
    assert labels.tolist() == [1, 0, 0]
    assert inputs[:, 0] == pytest.approx([-0.76, 0.0, -0.85])
    assert inputs[:, 1] == pytest.approx([0.0, 0.0, -0.5])
    assert inputs[:, 2:].argmax(1).tolist() == [0, 1, 2]  # what is written comes first
    with pytest.raises(InputError, match="not a number"):
        columns.encode({**rows, "cost": ["1,000", "1", "1"]})  # 1 or 1000


def test_dates_are_days_between_their_bounds():
    columns = TableColumns(
        label="sick", labels=("no", "yes"), bounds={"seen": ("2020-01-01", "2020-01-11")}
    )
    cells = ["2020-01-01", "2020-01-06T12:00", datetime(2020, 1, 11), "2031-01-01", "", "6.1.2020"]
    rows = {"seen": cells, "sick": ["no"] * 6}
    inputs, _, names, problems = columns.encode_leniently(rows)
    assert inputs[:, 0] == pytest.approx([-1, 0, 1, 1, 0, 0])
    assert names == ("seen",)
    assert "record 6 is not a date" in problems[5]
    for wrong in (["2020-01-01", "2020-13-01"], ["2020-01-02", "2020-01-01"], ["2020-01-01", 5]):
        with pytest.raises(InputError, match="the first and the last date"):
            TableColumns(label="sick", bounds={"seen": wrong})
