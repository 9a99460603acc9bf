# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import matplotlib
import pytest

from dpcohort.errors import InputError
from dpcohort.report.figures import accuracy_figure, save_figure
from dpcohort.report.figures.style import paper_style


def test_matplotlibs_settings_are_left_as_they_were():
    matplotlib.get_backend()  # chosen when it is first asked for
    before = matplotlib.rcParams.copy()
    with paper_style():
        assert not matplotlib.rcParams["axes.spines.top"]
    assert matplotlib.rcParams == before


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_the_ending_decides_and_the_file_repeats(ending, magic, runs, tmp_path):
    first, second = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
    for path in (first, second):
        save_figure(accuracy_figure({"aware": runs}), path)
    assert first.read_bytes().startswith(magic)
    if ending != "svg":  # its ids are random
        assert first.read_bytes() == second.read_bytes()


def test_text_stays_text(runs, tmp_path):
    save_figure(accuracy_figure({"privacy-aware": runs}), tmp_path / "a.svg")
    assert "privacy-aware</text>" in (tmp_path / "a.svg").read_text()


def test_another_ending_writes_nothing(runs, tmp_path):
    with pytest.raises(InputError, match=r"\.png, \.pdf or \.svg"):
        save_figure(accuracy_figure({"aware": runs}), tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []
