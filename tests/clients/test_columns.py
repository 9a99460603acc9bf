# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpcohort.clients import Population
from dpcohort.clients._csv_file import read_clients_csv
from dpcohort.clients._ids import nearest_id, numbered
from dpcohort.errors import DpcohortError, FileFormatError, InputError


def population(**changes: object) -> Population:
    given = {"sizes": [500, 400, 300], "epsilon": 1.0, "delta": 1e-5} | changes
    return Population.from_arrays(**given)


SIZE, EPSILON = "a whole number from 1 to 10.15", "above 0 and at most 700"
ONE = "one for each of the 3 clients"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": [500, 0, 300]}, f"size of client 'client-1' = 0 .* {SIZE}"),
        ({"sizes": [500, 400, 10**18]}, f"size of client 'client-2' = .* {SIZE}"),
        ({"sizes": [500, 400, 10**400]}, f"size of client 'client-2' = .* {SIZE}"),
        ({"sizes": [500, -4.0, 2.5]}, f"size of client 'client-1' = -4 .* {SIZE}"),
        ({"sizes": [2.5, 1, 1]}, r"size of client 'client-0' = 2\.5 "),
        ({"sizes": np.array([1, 2**64 - 1, 2], dtype=np.uint64)}, "size of client 'client-1'"),
        ({"epsilon": [1, 1, math.nan]}, "epsilon of client 'client-2' .* mark the client public"),
        ({"epsilon": [1, 700.1, 1]}, "epsilon of client 'client-1' .* mark the client public"),
        ({"epsilon": [1, math.inf, 1]}, "epsilon of client 'client-1' .* mark the client public"),
        ({"epsilon": [1, -1, 1]}, rf"epsilon of client 'client-1' = -1\.0 .* {EPSILON}\.$"),
        ({"epsilon": [1, 0.0, 1]}, rf"epsilon of client 'client-1' = 0\.0 .* {EPSILON}\.$"),
        ({"delta": [1e-5, 1, 1e-5]}, r"delta of client 'client-1' = 1\.0 .* above 0 and below 1"),
        ({"delta": [1e-5, 0, 1e-5]}, r"delta of client 'client-1' = 0\.0 .* above 0 and below 1"),
        ({"delta": [1e-5, None, 1e-5]}, "delta of client 'client-1' = nan"),
        ({"delta": [1e-5, 1 / 400, 1e-5]}, "below 1/size = 1/400.*whole record.*allow_large_delta"),
        ({"batch_sizes": [0, 0, -1]}, "batch_size of client 'client-2' = -1"),
        ({"batch_sizes": [0, 1.5, -1]}, r"batch_size of client 'client-1' = 1\.5"),
        ({"ids": ["a", "b", " a "]}, "id = 'a' .* different for every client"),
        ({"ids": ["a", " ", "b"]}, "id = '' .* text of 1 to 1000 characters"),
        ({"ids": ["a", "b", "\x1b[31m"]}, "id = .*without control characters"),
        ({"ids": ["a", "b", "\x85"]}, "id = .*without control characters"),
        ({"ids": ["a", "b", "\ud800"]}, "id = .*without control characters"),
        ({"ids": ["a", "b", "x" * 1001]}, "id = 'xxx.* text of 1 to 1000 characters"),
        ({"ids": ["a", 7, "b"]}, "ids = 7 .* text only"),
        ({"ids": 7}, "ids = 7 .* one text for each"),
        ({"public": [False, True, False], "epsilon": [1, 2, 1]}, "epsilon .* it is public"),
        ({"public": [False, True, False], "delta": [1e-5] * 3}, "delta .* it is public"),
        # the first client with a problem, whatever the field
        ({"sizes": [500, 400, 0], "delta": [1e-5, 2, 1e-5]}, "delta of client 'client-1'"),
        # what is no column
        ({"sizes": []}, "at least one client"),
        ({"sizes": 5}, "sizes = 5 .* a flat list of numbers"),
        ({"sizes": [[1, 2], [3]]}, "sizes = .* a flat list of numbers"),
        ({"sizes": [[1, 2], [3, 4]]}, "sizes = .* a flat list of numbers"),
        ({"sizes": ["1", "2", "3"]}, "sizes = .* numbers only"),
        ({"sizes": [True, True, True]}, "sizes = .* numbers only"),
        ({"epsilon": ["1", None, 2]}, "epsilon = '1' .* numbers only"),
        ({"epsilon": [1, 2]}, f"epsilon = '2 values' .* {ONE}"),
        ({"epsilon": "high"}, "epsilon = 'high' .* a flat list of numbers"),
        ({"delta": [1e-5] * 4}, f"delta = '4 values' .* {ONE}"),
        ({"batch_sizes": [1]}, f"batch_sizes = '1 values' .* {ONE}"),
        ({"ids": ["a"]}, f"ids = '1 values' .* {ONE}"),
        ({"public": [1, 0, 0]}, "public = .* True or False for each of the 3 clients"),
        ({"public": [True]}, "public = .* True or False for each of the 3 clients"),
        ({"public": [[True], [True, False]]}, "public = .* True or False for each"),
    ],
)
def test_a_bad_client_or_column_is_named(changes: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        population(**changes)


def test_a_delta_just_below_one_over_size_is_accepted():
    below = np.nextafter(1 / 400, 0) * (1 - 1e-12)
    assert population(delta=[1e-5, below, 1e-5]).large_delta == 0


def test_one_number_stands_for_all_private_clients():
    made = population(epsilon=2, delta=np.float32(0.001), public=[False, True, False])
    np.testing.assert_array_equal(made.epsilon, [2, np.nan, 2])
    np.testing.assert_array_equal(made.delta, [np.float32(0.001), np.nan, np.float32(0.001)])
    np.testing.assert_array_equal(population(epsilon=np.array(2)).epsilon, [2, 2, 2])


def test_numbered_ids_sort_as_their_numbers():
    ids = numbered("client", 101)
    assert list(ids) == sorted(ids)
    assert (ids[0], ids[-1]) == ("client-000", "client-100")
    assert numbered("client", 0) == ()


@pytest.mark.parametrize(
    ("word", "ids", "expected"),
    [
        ("Clent-07", numbered("client", 20), "client-07"),
        ("CLIENT-03", numbered("client", 20), "client-03"),
        ("zebra", numbered("client", 20), None),
        ("northh", ("North", "South"), "North"),
        # of very many, those that begin alike
        ("client-01234x", numbered("client", 20_000), "client-01234"),
        ("x" * 1_000_000, numbered("client", 20_000), None),
    ],
)
def test_the_nearest_id(word: str, ids: tuple[str, ...], expected: str | None):
    assert nearest_id(word, ids) == expected


HEADER = "id,size,epsilon,delta,batch_size,public\n"
GOOD = "a,500,1.5,1e-5,64,false\n"


def read(tmp_path: Path, content: str | bytes, **options: bool):
    path = tmp_path / "clients.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_clients_csv(path, **options)


def test_more_clients_than_can_be_planned_are_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("dpcohort.clients._csv_file.MOST_CLIENTS", 3000)
    rows = "".join(f"c{row},500,1.5,1e-5,,\n" for row in range(5000))
    with pytest.raises(FileFormatError, match="more than 3,000 clients"):
        read(tmp_path, HEADER + rows)


@pytest.mark.parametrize(
    "text",
    [
        "delta,id,epsilon,size\n1e-5,a,1,500\n",
        "\ufeffid,size,epsilon,delta\na,500,1,1e-5\n",
        "id,size,epsilon,delta\r\na,500,1,1e-5\r\n",
        "id,size,epsilon,delta\ra,500,1,1e-5\r",
        "\n\nid,size,epsilon,delta\n\na,500,1,1e-5\n\n  \n",
        "id,size,epsilon,delta\na,500,1,1e-5",
        " ID , Size,EPSILON,delta\n a ,5e2, 1.0 ,.00001\n",
        '"id","size","epsilon","delta"\n"a","500","1","1e-5"\n',
        "id,size,epsilon,delta\na,500.0,1,1e-5\n",
    ],
)
def test_the_same_client_in_many_spellings(tmp_path: Path, text: str):
    columns = read(tmp_path, text)
    assert columns["ids"] == ("a",)
    assert (columns["sizes"][0], columns["epsilon"][0], columns["delta"][0]) == (500, 1, 1e-5)


BAD_CELLS = [
    ("size", "0", "a whole number from 1 to 10^15"),
    ("size", "-5", "a whole number from 1 to 10^15"),
    ("size", "1.5", "a whole number from 1 to 10^15"),
    ("size", "1e18", "a whole number from 1 to 10^15"),
    ("size", "", "a whole number from 1 to 10^15"),
    ("size", "many", "a whole number from 1 to 10^15"),
    ("size", "1_000", "a whole number from 1 to 10^15"),
    ("size", "\u0661\u0662", "a whole number from 1 to 10^15"),
    ("size", "1" * 5000, "a whole number from 1 to 10^15"),
    ("epsilon", "0", "a finite number above 0 and at most 700"),
    ("epsilon", "-1", "a finite number above 0 and at most 700"),
    ("epsilon", "nan", "a finite number above 0 and at most 700"),
    ("epsilon", "low", "a finite number above 0 and at most 700"),
    ("epsilon", "1,500", "a finite number above 0 and at most 700"),
    ("epsilon", "1e308", "mark the client public"),
    ("epsilon", "inf", "true in the column public, epsilon and delta empty"),
    ("epsilon", "", "mark the client public"),
    ("delta", "0", "a number above 0 and below 1"),
    ("delta", "-1e-5", "a number above 0 and below 1"),
    ("delta", "1", "a number above 0 and below 1"),
    ("delta", "NaN", "a number above 0 and below 1"),
    ("delta", "", "a number above 0 and below 1"),
    ("delta", "0.002", "below 1/size = 1/500 = 0.002"),
    ("batch_size", "0", "a whole number from 1 to 10^15, or empty"),
    ("batch_size", "2.5", "a whole number from 1 to 10^15, or empty"),
    ("batch_size", "x", "a whole number from 1 to 10^15, or empty"),
    ("public", "maybe", "true or false"),
    ("id", "", "text of 1 to 1000 characters"),
    ("id", "a", "different for every client. It is already used on line 2"),
    ("id", " a ", "different for every client. It is already used on line 2"),
    ("id", "bell\x07", "without control characters"),
    ("id", "x" * 1001, "text of 1 to 1000 characters"),
]


@pytest.mark.parametrize(("field", "cell", "words"), BAD_CELLS)
def test_a_bad_cell_is_named_with_file_line_field_and_value(
    tmp_path: Path, field: str, cell: str, words: str
):
    row = dict(zip(HEADER.strip().split(","), ("b", "500", "1", "1e-5", "", ""), strict=True))
    row[field] = cell
    # The bad row starts on line 6: a client over two lines and a blank line come before it.
    text = HEADER + GOOD + '"two\nlines",9,1,1e-5,,\n\n'
    text += ",".join(f'"{value}"' for value in row.values()) + "\nz,9,1,1e-5,,\n"
    with pytest.raises(FileFormatError) as caught:
        read(tmp_path, text)
    error = caught.value
    assert (error.line, error.field) == (6, field)
    assert f"clients.csv, line 6: {field} = {cell[:20]!r}"[:-1] in str(error)
    assert words in str(error)
    assert len(str(error)) < 700


@pytest.mark.parametrize("place", [0, 2047, 2048, 9_999])
def test_one_bad_row_among_many_is_found_on_its_line(tmp_path: Path, place: int):
    rows = [f"c{row},500,1,1e-5,,\n" for row in range(10_000)]
    rows[place] = "bad,500,-1,1e-5,,\n"
    with pytest.raises(FileFormatError, match=f"line {place + 2}: epsilon = '-1'"):
        read(tmp_path, HEADER + "".join(rows))


def test_numbers_come_back_to_the_last_bit(tmp_path: Path):
    rng = np.random.default_rng(0)
    epsilon, delta = (
        rng.uniform(1e-8, 700, 500).tolist(),
        (10 ** rng.uniform(-300, -4, 500)).tolist(),
    )
    ids = ['quote " comma ,', "line\nend", "caf\u00e9", *(f"c{row}" for row in range(497))]
    path = tmp_path / "clients.csv"
    Population.from_arrays(
        ids=ids,
        sizes=[10**15 if row == 3 else 5 for row in range(500)],
        epsilon=epsilon,
        delta=delta,
        batch_sizes=[0] * 499 + [3],
        allow_large_delta=True,
    ).to_csv(path)
    columns = read_clients_csv(path, allow_large_delta=True)
    assert columns["ids"] == tuple(ids)
    assert columns["epsilon"].tolist() == epsilon
    assert columns["delta"].tolist() == delta
    assert columns["sizes"][3] == 10**15
    assert columns["batch_sizes"][-1] == 3


def test_writing_leaves_no_other_file_behind(tmp_path: Path):
    clients = Population.from_arrays(sizes=[5], epsilon=1.0, delta=0.1)
    clients.to_csv(tmp_path / "c.csv")
    with pytest.raises(DpcohortError, match=re.escape(str(tmp_path / "no" / "c.csv"))):
        clients.to_csv(tmp_path / "no" / "c.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["c.csv"]


fuzz = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def outcome(tmp_path: Path, content: str | bytes):
    """What was read, or the one kind of error that may be raised."""
    try:
        return read(tmp_path, content), None
    except DpcohortError as error:
        return None, error


@fuzz
@given(place=st.integers(0, 200), byte=st.integers(0, 255), cut=st.booleans())
def test_a_changed_byte_is_read_or_refused(tmp_path: Path, place: int, byte: int, cut: bool):
    text = bytearray((HEADER + GOOD + '"b ""x""",40,,,,TRUE\nc,7,2,0.01,,\n').encode())
    place %= len(text)
    text[place : place + 1] = b"" if cut else bytes([byte])
    columns, error = outcome(tmp_path, bytes(text))
    if columns is None:
        assert error.exit_code == 2
    else:
        private = columns["epsilon"][~columns["public"]]
        assert ((private > 0) & (private <= 700)).all()


def test_rows_know_the_line_they_start_on(tmp_path: Path):
    start = '\n\nid,size,epsilon,delta\r\na,1,1,1e-5\n\n"b\nb",2,1,1e-5\n  \n'
    assert read(tmp_path, start + "c,3,1,1e-5")["ids"] == ("a", "b\nb", "c")
    for bad in ("c,x,1,1e-5", "c,0,1,1e-5", "c,3", '"a",1,1,1e-5'):
        with pytest.raises(FileFormatError) as caught:
            read(tmp_path, start + bad)
        assert caught.value.line == 9


START = 'id,size,epsilon,delta\n"a\nb",1,1,1e-5\n'


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (b"", None, "the file is empty"),
        (b"\n \n", None, "the file is empty"),
        (HEADER + "\n", None, "there is a header but no client below it"),
        ((HEADER + GOOD).encode("utf-16"), None, "UTF-16"),
        ((HEADER + GOOD).encode() + b"b,\x00", 3, "there is a NUL byte"),
        ((HEADER + GOOD).encode() + b"\xe9,5,1,1e-5,,\n", 3, "the byte 0xe9 is not valid UTF-8"),
        (START + 'a,"1\nb,2\n', 4, r'quote \("\) is opened here and never closed'),
        (START + 'a,"1"2\n', 4, "text after a closing quote"),
        (START + "a," + "1" * 200_000 + "\n", 4, "a cell has more than 131,072 characters"),
        (HEADER + GOOD + "a,500,1\n", 3, "the row has 3 cells; it must have 6, as in the header"),
        (HEADER + GOOD + "a,500,1,1e-5,,,,\n", 3, "the row has 8 cells; it must have 6"),
        (HEADER + GOOD + "a\n", 3, "the row has 1 cells; it must have 6"),
        (HEADER + "a,500,2,,,true\n", 2, "epsilon = '2' .* left out: it is public"),
        (HEADER + "a,500,,1e-5,,true\n", 2, "delta = '1e-5' .* left out: it is public"),
        (HEADER + 'a,"12,000,000",1,1e-5,,\n', 2, "size = .*without commas between thousands"),
        ("a,5,7,8\nb,6,7,8\n", 1, "the header is missing"),
        ("id;size\na;5\n", 1, "the column epsilon is missing"),
        ("id\tsize\na\t5\n", 1, "separated by tabs"),
        ("id|size\n", 1, "separated by bars"),
        ("id,sizes,epsilon,delta\n", 1, "column = 'sizes'.*Did you mean 'size'"),
        ("id,size,epsilon,delta,pubilc\n", 1, "column = 'pubilc'.*Did you mean 'public'"),
        ("id,amount,epsilon,delta\n", 1, "column = 'amount'.*Rename it if it is size"),
        ("\nid,epsilon,delta\n", 2, "the column size is missing; needed are id, size"),
        ("id,size,epsilon,delta,ID\n", 1, "the column id appears 2 times"),
        ('"id\n",size,epsilon,delta\na,x,1,1e-5\n', 3, "size = 'x'"),
    ],
)
def test_a_file_that_cannot_be_used(
    tmp_path: Path, content: str | bytes, line: int | None, message: str
):
    with pytest.raises(FileFormatError, match=message) as caught:
        read(tmp_path, content)
    assert caught.value.line == line
    assert "clients.csv" in str(caught.value)
    assert caught.value.exit_code == 2
    assert len(str(caught.value)) < 700


def test_what_spreadsheets_write_is_read(tmp_path: Path):
    rows = [
        "id;size;epsilon;delta;region;",
        "a;100;0,5;1e-5;north;",
        ";;;;;",
        "b;90;1,25;0,00001;;",
    ]
    content = ("\ufeff" + "\r\n".join(rows) + "\r\n;;;;;\r\n").encode()
    (tmp_path / "clients.csv").write_bytes(content)
    columns = read_clients_csv(tmp_path / "clients.csv")
    assert columns["ids"] == ("a", "b")
    assert columns["epsilon"].tolist() == [0.5, 1.25]
    assert columns["delta"].tolist() == [1e-5, 1e-5]


def test_sizes_may_come_from_the_data(tmp_path: Path):
    (tmp_path / "clients.csv").write_text("id,epsilon,delta,size\na,1,1e-5,\nb,2,1e-5,7\n")
    columns = read_clients_csv(tmp_path / "clients.csv", sizes={"a": 50, "b": 9})
    assert columns["sizes"].tolist() == [50, 7]
    with pytest.raises(FileFormatError, match="'a' has no record in the data"):
        read_clients_csv(tmp_path / "clients.csv", sizes={"b": 9})


def test_names_that_are_made_when_asked_for_are_those_of_a_tuple():
    given = ("north", "sea \u00e9\U0001f30a", "two\nlines", *(f"c{k}" for k in range(5000)))
    names = Population.from_arrays(ids=given, sizes=[9] * 5003, epsilon=1.0, delta=1e-5).ids
    assert (tuple(names), names[1], names[-1]) == (given, given[1], given[-1])
    assert (names[1:4], hash(names), given) == (given[1:4], hash(given), names)
    assert names != (*given[:-1], "other")
    with pytest.raises(IndexError):
        names[len(given)]
