# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dpcohort_lab.recipes.figures import result_figure, save_result_figure


def result(form="full"):
    cells = [
        {
            "mechanism": mechanism,
            "axes": {"s": s},
            "paper": 40.0 if s else None,
            "mean": 30.0 + s / 10,
            "half_width": 2.0 if s else None,
            "curve": [[5, 20.0], [10, 30.0]],
        }
        for mechanism in ("unbiased", "privacy-aware")
        for s in (100, 0)
    ]
    return {"title": "A table", "form": form, "warning": "REDUCED", "cells": cells}


def test_curves_have_a_panel_for_each_value():
    figure = result_figure(result(), kind="curves", across="s")
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["s = 100", "s = 0"]
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert "privacy-aware" in labels
    assert "the paper, 40 %" in labels


def test_a_reduced_form_says_so_in_the_picture(tmp_path):
    figure = result_figure(result("quick"), kind="bars")
    assert "REDUCED" in figure.get_suptitle()
    paths = save_result_figure(result("quick"), tmp_path, "a.quick", kind="bars")
    assert [path.name for path in paths] == ["a.quick.png", "a.quick.pdf"]
    assert paths[0].read_bytes()[:4] == b"\x89PNG"
    assert paths[1].read_bytes()[:4] == b"%PDF"
