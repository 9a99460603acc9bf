# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.report import save_selection_figure
from dpcohort.report._figures import selection_figure


@pytest.fixture
def clients():
    return Population.from_arrays(
        sizes=[100, 200, 300, 400],
        epsilon=[0.1, 1, 9, np.nan],
        delta=[1e-5, 1e-5, 1e-5, np.nan],
        public=[False, False, False, True],
    )


def test_a_panel_each_and_one_scale(clients):
    panels = {"a": np.array([0.0, 0.2, 0.3, 0.5]), "b": clients.unbiased}
    figure = selection_figure(clients, panels)
    assert [axis.get_title() for axis in figure.axes] == ["a", "b", ""]
    left_out = [s for s in figure.axes[0].collections if s.get_label() == "left out"]
    assert len(left_out) == 1
    assert left_out[0].get_offsets().tolist() == [[100, 0.1]]


def test_a_million_clients_are_sampled():
    many = Population.from_arrays(
        sizes=np.full(20_000, 100), epsilon=np.linspace(0.1, 9, 20_000), delta=1e-5
    )
    figure = selection_figure(many, {"unbiased": many.unbiased})
    assert sum(len(s.get_offsets()) for s in figure.axes[0].collections) == 5_000


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<")]
)
def test_formats(clients, tmp_path, ending, start):
    save_selection_figure(clients, {"u": clients.unbiased}, tmp_path / f"a.{ending}")
    assert (tmp_path / f"a.{ending}").read_bytes().startswith(start)


def test_other_formats_are_refused_before_anything_is_written(clients, tmp_path):
    with pytest.raises(InputError, match=r"\.png, \.pdf or \.svg"):
        save_selection_figure(clients, {"u": clients.unbiased}, tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []
