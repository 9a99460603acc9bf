# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.errors import InputError, VerificationError
from dpcohort.foreign_rule import full_name, is_foreign, naming_the_rule
from dpcohort.selection.rules import Uniform


class Mine:
    """No rule of this package."""


def test_whose_a_rule_is():
    assert is_foreign(Mine())
    assert is_foreign(Mine)
    assert not is_foreign(Uniform())
    assert not is_foreign(Uniform)
    assert full_name(Mine()) == full_name(Mine) == f"{__name__}:Mine"


def test_a_failure_of_a_foreign_rule_names_rule_method_and_line():
    message = r":Mine failed in select: KeyError: 'oops' \(test_foreign_rule.py, line \d+\)"
    with pytest.raises(InputError, match=message), naming_the_rule(Mine(), "select"):
        raise KeyError("oops")


def test_errors_on_purpose_pass_and_bugs_of_this_package_stay_bugs():
    with pytest.raises(VerificationError), naming_the_rule(Mine(), "select"):
        raise VerificationError("told already")
    with pytest.raises(ZeroDivisionError), naming_the_rule(Uniform(), "select"):
        raise ZeroDivisionError
