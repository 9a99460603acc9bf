# SPDX-License-Identifier: Apache-2.0
"""Terms of reports: ranges, and what is refused."""

from __future__ import annotations

import pytest

from dpcohort.adaptive.rule import ReportTerms
from dpcohort.errors import InputError


def test_the_range_of_each_statistic():
    assert ReportTerms(loss_bound=3.0).half_range == 1.5
    assert ReportTerms(loss_bound=3.0, statistic="squared-loss").half_range == 4.5


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, float("nan"), "half"])
def test_a_share_outside_zero_and_one_is_refused(share):
    with pytest.raises(InputError, match="report_share"):
        ReportTerms(share=share)


@pytest.mark.parametrize("bound", [0.0, -1.0, float("inf")])
def test_a_loss_bound_must_be_a_number_above_zero(bound):
    with pytest.raises(InputError, match="loss_bound"):
        ReportTerms(loss_bound=bound)


def test_raw_reports_take_no_share():
    assert ReportTerms(mode="raw", share=0.3).share == 0.0


def test_unknown_words_are_refused():
    with pytest.raises(InputError, match="Did you mean 'private'"):
        ReportTerms(mode="privat")
    with pytest.raises(InputError, match="statistic"):
        ReportTerms(statistic="gradient")
