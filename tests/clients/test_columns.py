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
from dpcohort.clients.population import (
    as_floats,
    as_ids,
    bad_ids,
    columns_of,
    epsilon_step,
    first_problem,
    nearest_id,
    numbered,
    read_clients_csv,
)
from dpcohort.errors import DpcohortError, FileFormatError, InputError


def columns(**changes: object):
    given = {"ids": None, "sizes": [500, 400, 300], "epsilon": 1.0, "delta": 1e-5} | changes
    return columns_of(**given)


def test_nothing_is_wrong_with_good_columns():
    assert first_problem(columns()) is None


@pytest.mark.parametrize(
    ("changes", "row", "field"),
    [
        ({"sizes": [500, 0, 300]}, 1, "size"),
        ({"sizes": [500, 400, 10**18]}, 2, "size"),
        ({"sizes": [500, 400, 10**400]}, 2, "size"),
        ({"sizes": [500, -4, 2.5]}, 1, "size"),
        ({"sizes": np.array([1, 2**64 - 1, 2], dtype=np.uint64)}, 1, "size"),
        ({"epsilon": [1, 1, math.nan]}, 2, "epsilon"),
        ({"epsilon": [1, 700.1, 1]}, 1, "epsilon"),
        ({"epsilon": [1, math.inf, 1]}, 1, "epsilon"),
        ({"delta": [1e-5, 1, 1e-5]}, 1, "delta"),
        ({"delta": [1e-5, 0, 1e-5]}, 1, "delta"),
        ({"delta": [1e-5, None, 1e-5]}, 1, "delta"),
        ({"batch_sizes": [0, 0, -1]}, 2, "batch_size"),
        ({"batch_sizes": [0, 1.5, -1]}, 1, "batch_size"),
        ({"ids": ["a", "b", "a"]}, 2, "id"),
        ({"public": [False, True, False], "epsilon": [1, 2, 1]}, 1, "epsilon"),
        ({"public": [False, True, False], "delta": [1e-5] * 3}, 1, "delta"),
        # the first client with a problem, whatever the field
        ({"sizes": [500, 400, 0], "delta": [1e-5, 2, 1e-5]}, 1, "delta"),
    ],
)
def test_the_first_bad_client_is_found(changes: dict[str, object], row: int, field: str):
    problem = first_problem(columns(**changes))
    assert (problem.row, problem.field) == (row, field)


def test_counts_are_shown_as_counts_and_numbers_as_numbers():
    assert first_problem(columns(sizes=[-4, 1, 1])).given == -4
    assert type(first_problem(columns(sizes=[-4.0, 1, 1])).given) is int
    assert first_problem(columns(sizes=[2.5, 1, 1])).given == 2.5


def test_delta_of_one_over_size_is_too_large_and_just_below_is_not():
    at, below = 1 / 400, np.nextafter(1 / 400, 0) * (1 - 1e-12)
    problem = first_problem(columns(delta=[1e-5, at, 1e-5]))
    assert (problem.row, problem.field) == (1, "delta")
    assert "1/size = 1/400" in problem.allowed
    assert "whole record" in problem.next_step
    assert "allow_large_delta" in problem.next_step
    assert first_problem(columns(delta=[1e-5, below, 1e-5])) is None
    assert first_problem(columns(delta=[1e-5, at, 1e-5]), allow_large_delta=True) is None


@pytest.mark.parametrize("epsilon", [math.inf, 1e308, 701.0, math.nan])
def test_a_huge_or_missing_epsilon_points_to_public_clients(epsilon: float):
    assert "mark the client public" in epsilon_step(epsilon)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, -math.inf])
def test_an_epsilon_that_is_too_small_does_not(epsilon: float):
    assert epsilon_step(epsilon) is None


def test_one_number_stands_for_all_private_clients():
    made = columns(epsilon=2, delta=np.float32(0.5), public=[False, True, False])
    np.testing.assert_array_equal(made["epsilon"], [2, np.nan, 2])
    np.testing.assert_array_equal(made["delta"], [0.5, np.nan, 0.5])
    np.testing.assert_array_equal(columns(epsilon=np.array(2))["epsilon"], [2, 2, 2])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sizes": []}, "at least one client"),
        ({"sizes": 5}, "sizes = 5 .* a flat list of numbers"),
        ({"sizes": [[1, 2], [3]]}, "sizes = .* a flat list of numbers"),
        ({"sizes": [[1, 2], [3, 4]]}, "sizes = .* a flat list of numbers"),
        ({"sizes": ["1", "2", "3"]}, "sizes = .* numbers only"),
        ({"sizes": [True, True, True]}, "sizes = .* numbers only"),
        ({"epsilon": ["1", None, 2]}, "epsilon = '1' .* numbers only"),
        ({"epsilon": [1, 2]}, "epsilon = '2 values' .* one for each of the 3 clients"),
        ({"epsilon": "high"}, "epsilon = 'high' .* a flat list of numbers"),
        ({"delta": [1e-5] * 4}, "delta = '4 values' .* one for each of the 3 clients"),
        ({"batch_sizes": [1]}, "batch_sizes = '1 values' .* one for each of the 3 clients"),
        ({"ids": ["a"]}, "ids = '1 values' .* one for each of the 3 clients"),
        ({"public": [1, 0, 0]}, "public = .* True or False for each of the 3 clients"),
        ({"public": [True]}, "public = .* True or False for each of the 3 clients"),
        ({"public": [[True], [True, False]]}, "public = .* True or False for each"),
    ],
)
def test_what_is_not_a_column(changes: dict[str, object], words: str):
    with pytest.raises(InputError, match=words):
        columns(**changes)


def test_a_column_is_a_copy():
    mine = np.array([1.0, 2.0])
    as_floats("sizes", mine)[0] = 9
    assert mine[0] == 1


def test_numbered_ids_sort_as_their_numbers():
    ids = numbered("client", 101)
    assert list(ids) == sorted(ids)
    assert (ids[0], ids[-1]) == ("client-000", "client-100")
    assert numbered("client", 1) == ("client-0",)
    assert numbered("client", 0) == ()


def test_good_ids_are_left_alone():
    assert list(bad_ids(("a", "caf\u00e9", "two\nlines", "tab\there", "x" * 1000))) == []


@pytest.mark.parametrize(
    ("ids", "row"),
    [
        (("a", ""), 1),
        (("a", "\x1b[31m"), 1),
        (("a", "\x85"), 1),
        (("a", "\ud800"), 1),
        (("a", "b", "x" * 1001), 2),
    ],
)
def test_an_id_that_cannot_be_used(ids: tuple[str, ...], row: int):
    (bad,) = bad_ids(ids)
    assert (bad.row, bad.given, bad.other_row) == (row, ids[row], None)


def test_a_repeated_id_names_both_rows():
    (bad,) = bad_ids(("a", "b", "c", "b", "a"))
    assert (bad.row, bad.other_row, bad.given) == (3, 1, "b")


def test_only_text_is_an_id():
    with pytest.raises(InputError, match=r"ids = 7 is not allowed: it must be text only"):
        as_ids(["a", 7])
    with pytest.raises(InputError, match=r"ids = 7 is not allowed: it must be one text for each"):
        as_ids(7)


@pytest.mark.parametrize(
    ("word", "expected"), [("Clent-07", "client-07"), ("CLIENT-03", "client-03"), ("zebra", None)]
)
def test_the_nearest_id(word: str, expected: str | None):
    assert nearest_id(word, numbered("client", 20)) == expected


def test_the_nearest_id_keeps_its_case():
    assert nearest_id("northh", ("North", "South")) == "North"


def test_the_nearest_of_very_many_ids_begins_alike():
    ids = numbered("client", 20_000)
    assert nearest_id("client-01234x", ids) == "client-01234"
    assert nearest_id("x" * 1_000_000, ids) is None


HEADER = "id,size,epsilon,delta,batch_size,public\n"
GOOD = "a,500,1.5,1e-5,64,false\n"


def read(tmp_path: Path, content: str | bytes, **options: bool):
    path = tmp_path / "clients.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_clients_csv(path, **options)


def test_more_clients_than_can_be_planned_are_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("dpcohort.clients.population.MOST_CLIENTS", 3000)
    rows = "".join(f"c{row},500,1.5,1e-5,,\n" for row in range(5000))
    with pytest.raises(FileFormatError, match="more than 3,000 clients"):
        read(tmp_path, HEADER + rows)


def test_every_column_arrives(tmp_path: Path):
    columns = read(tmp_path, HEADER + GOOD + "b,40,,,,TRUE\nc,7,2,0.01,,\n")
    assert columns["ids"] == ("a", "b", "c")
    np.testing.assert_array_equal(columns["sizes"], [500, 40, 7])
    np.testing.assert_array_equal(columns["epsilon"], [1.5, np.nan, 2])
    np.testing.assert_array_equal(columns["delta"], [1e-5, np.nan, 0.01])
    np.testing.assert_array_equal(columns["batch_sizes"], [64, np.nan, np.nan])
    np.testing.assert_array_equal(columns["public"], [False, True, False])


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


@pytest.mark.parametrize("word", ["true", "True", "YES", "1", " yes "])
def test_words_for_public(tmp_path: Path, word: str):
    assert read(tmp_path, HEADER + f"a,5,,,,{word}\n")["public"].tolist() == [True]


@pytest.mark.parametrize("word", ["false", "No", "0", ""])
def test_words_for_not_public(tmp_path: Path, word: str):
    assert read(tmp_path, HEADER + f"a,5,1,1e-5,,{word}\n")["public"].tolist() == [False]


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
    row = {
        "id": "b",
        "size": "500",
        "epsilon": "1",
        "delta": "1e-5",
        "batch_size": "",
        "public": "",
    }
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


def test_a_public_client_with_a_budget_is_a_contradiction(tmp_path: Path):
    with pytest.raises(FileFormatError, match=r"line 2: epsilon = '2' .* left out: it is public"):
        read(tmp_path, HEADER + "a,500,2,,,true\n")
    with pytest.raises(FileFormatError, match=r"line 2: delta = '1e-5' .* left out: it is public"):
        read(tmp_path, HEADER + "a,500,,1e-5,,true\n")


def test_a_large_delta_is_accepted_when_allowed(tmp_path: Path):
    columns = read(tmp_path, HEADER + "a,10,1,0.5,,\n", allow_large_delta=True)
    assert columns["delta"][0] == 0.5


@pytest.mark.parametrize(("row", "cells"), [("a,500,1", 3), ("a,500,1,1e-5,,,,", 8), ("a", 1)])
def test_a_wrong_number_of_cells(tmp_path: Path, row: str, cells: int):
    words = f"line 3: the row has {cells} cells; it must have 6, as in the header"
    with pytest.raises(FileFormatError, match=words):
        read(tmp_path, HEADER + GOOD + row + "\n")


def test_a_header_alone(tmp_path: Path):
    with pytest.raises(FileFormatError, match="there is a header but no client below it"):
        read(tmp_path, HEADER + "\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        ((HEADER + GOOD).encode("utf-16"), "UTF-16"),
        ((HEADER + GOOD).encode() + b"b,\x00", "line 3: there is a NUL byte"),
        (
            (HEADER + GOOD).encode() + b"\xe9,5,1,1e-5,,\n",
            "line 3: the byte 0xe9 is not valid UTF-8",
        ),
        (
            (HEADER + GOOD + "x" * 1_000_000 + ",5,1,1e-5,,\n").encode(),
            "line 3: a cell has more than",
        ),
        ((HEADER + GOOD + '"b,5,1,1e-5,,\n').encode(), r'line 3: a quote \("\) is opened here'),
        (HEADER.replace("epsilon", "epsilom").encode(), "line 1: column = 'epsilom'.*'epsilon'"),
        (b"id,size,delta\n", "line 1: the column epsilon is missing"),
        (b"id,size,epsilon,delta,size\n", "line 1: the column size appears 2 times"),
        (b"a,500,1.5,1e-5\n", "line 1: the header is missing"),
    ],
)
def test_a_bad_file_is_one_clear_message(tmp_path: Path, content: bytes, words: str):
    with pytest.raises(FileFormatError, match=words) as caught:
        read(tmp_path, content)
    assert "clients.csv" in str(caught.value)
    assert caught.value.exit_code == 2
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("place", [0, 2047, 2048, 9_999])
def test_one_bad_row_among_many_is_found_on_its_line(tmp_path: Path, place: int):
    rows = [f"c{row},500,1,1e-5,,\n" for row in range(10_000)]
    rows[place] = "bad,500,-1,1e-5,,\n"
    with pytest.raises(FileFormatError, match=f"line {place + 2}: epsilon = '-1'"):
        read(tmp_path, HEADER + "".join(rows))


def test_the_first_of_several_bad_rows_is_told(tmp_path: Path):
    rows = [f"c{row},500,1,1e-5,,\n" for row in range(5_000)]
    rows[40] = "c40,500,1,2.0,,\n"  # out of range
    rows[41] = "c41,500,one,1e-5,,\n"  # not a number
    rows[4_000] = "c4000,500\n"  # too few cells
    with pytest.raises(FileFormatError, match=r"line 42: delta = '2\.0'"):
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
pieces = st.sampled_from(
    [
        *(",", "\n", "\r\n", '"', "", " ", "\t", ";", "\ufeff", "\u0663", "1_0", HEADER, GOOD),
        *("a", "b", "0", "1", "-1", "1e-5", "nan", "inf", "true", "id", "size", "epsilon"),
    ]
)


def outcome(tmp_path: Path, content: str | bytes):
    """What was read, or the one kind of error that may be raised."""
    try:
        return read(tmp_path, content), None
    except DpcohortError as error:
        return None, error


@fuzz
@given(content=st.binary(max_size=200))
def test_random_bytes_never_break_the_reader(tmp_path: Path, content: bytes):
    with pytest.raises(DpcohortError):
        read(tmp_path, content)


@fuzz
@given(rows=st.lists(pieces, max_size=40))
def test_random_rows_never_break_the_reader(tmp_path: Path, rows: list[str]):
    columns, error = outcome(tmp_path, HEADER + GOOD + "".join(rows))
    if columns is None:
        assert "clients.csv" in str(error)
    else:
        assert columns["ids"][0] == "a"
        assert len(set(columns["ids"])) == len(columns["sizes"])


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


def test_a_header_of_several_lines_is_skipped_whole(tmp_path: Path):
    header = '"id\n",size,epsilon,delta\n'
    assert read(tmp_path, header + "a,1,1,1e-5\n")["ids"] == ("a",)
    with pytest.raises(FileFormatError, match=r"line 3: size = 'x'"):
        read(tmp_path, header + "a,x,1,1e-5\n")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "the file is empty"),
        ("\n \n", None, "the file is empty"),
        ("a,5,7,8\nb,6,7,8\n", 1, "the header is missing"),
        ("id;size\na;5\n", 1, "the column epsilon is missing"),
        ("id\tsize\na\t5\n", 1, "separated by tabs"),
        ("id|size\n", 1, "separated by bars"),
        ("id,sizes,epsilon,delta\n", 1, "column = 'sizes'.*Did you mean 'size'"),
        ("id,size,epsilon,delta,pubilc\n", 1, "column = 'pubilc'.*Did you mean 'public'"),
        ("id,amount,epsilon,delta\n", 1, "column = 'amount'.*Rename it if it is size"),
        ("\nid,epsilon,delta\n", 2, "the column size is missing; needed are id, size"),
        ("id,size,epsilon,delta,ID\n", 1, "the column id appears 2 times"),
    ],
)
def test_a_header_that_cannot_be_used(tmp_path: Path, text: str, line: int | None, words: str):
    with pytest.raises(FileFormatError, match=words) as caught:
        read(tmp_path, text)
    assert caught.value.line == line
    assert "clients.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('a,"1\nb,2\n', r'quote \("\) is opened here and never closed'),
        ('a,"1"2\n', "text after a closing quote"),
        ("a," + "1" * 200_000 + "\n", "a cell has more than 131,072 characters"),
    ],
)
def test_a_row_that_is_not_csv(tmp_path: Path, row: str, words: str):
    with pytest.raises(FileFormatError, match=words) as caught:
        read(tmp_path, f'id,size,epsilon,delta\n"a\nb",1,1,1e-5\n{row}')
    assert caught.value.line == 4


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


@pytest.mark.parametrize("cell", ["1,500", "12,000,000"])
def test_a_comma_that_may_mean_thousands_is_refused(tmp_path: Path, cell: str):
    with pytest.raises(FileFormatError, match=r"line 2: size = .*without commas between thousands"):
        read(tmp_path, f'id,size,epsilon,delta\na,"{cell}",1,1e-5\n')


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
