# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from dpcohort.clients.csv_table import Row, is_blank, open_table
from dpcohort.errors import FileFormatError


def opened(tmp_path: Path, text: str):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    return open_table(path, required=["id", "size"], optional=["public"])


def test_rows_know_the_line_they_start_on(tmp_path: Path):
    table = opened(tmp_path, '\n\nid,size\r\na,1\n\n"b\nb",2\n  \nc,3')
    assert list(table.rows()) == [
        Row(4, ["a", "1"]),
        Row(6, ["b\nb", "2"]),
        Row(9, ["c", "3"]),
    ]
    assert [cells for cells in table.reader() if not is_blank(cells)] == [
        ["a", "1"],
        ["b\nb", "2"],
        ["c", "3"],
    ]


def test_a_header_of_several_lines_is_skipped_whole(tmp_path: Path):
    table = opened(tmp_path, '"id\n",size\na,1\n')
    assert table.fields == ["id", "size"]
    assert list(table.reader()) == [["a", "1"]]
    assert list(table.rows()) == [Row(3, ["a", "1"])]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "the file is empty"),
        ("\n \n", None, "the file is empty"),
        ("a,5\nb,6\n", 1, "the header is missing"),
        ("id;size\na;5\n", 1, "separated by semicolons"),
        ("id\tsize\na\t5\n", 1, "separated by tabs"),
        ("id|size\n", 1, "separated by bars"),
        ("id,sizes\n", 1, "column = 'sizes'.*Did you mean 'size'"),
        ("id,size,colour\n", 1, r"column = 'colour'.*Remove it\."),
        ("id,amount\n", 1, "column = 'amount'.*rename it if it is size"),
        ("\nid,public\n", 2, "the column size is missing; needed are id, size"),
        ("id,size,ID\n", 1, "the column id appears 2 times"),
        ("id,size,\n", 1, "column = ''"),
    ],
)
def test_a_header_that_cannot_be_used(tmp_path: Path, text: str, line: int | None, words: str):
    with pytest.raises(FileFormatError, match=words) as caught:
        opened(tmp_path, text)
    assert caught.value.line == line
    assert "t.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('a,"1\nb,2\n', r'quote \("\) is opened here and never closed'),
        ('a,"1"2\n', "text after a closing quote"),
        ("a," + "1" * 200_000 + "\n", "a cell has more than 131,072 characters"),
    ],
)
def test_a_row_that_is_not_csv(tmp_path: Path, row: str, words: str):
    table = opened(tmp_path, f'id,size\n"a\nb",1\n{row}')
    with pytest.raises(FileFormatError, match=words) as caught:
        list(table.rows())
    assert caught.value.line == 4
