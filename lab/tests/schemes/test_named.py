# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

import pytest

import dpcohort_lab.schemes
from dpcohort.errors import InputError
from dpcohort_lab.schemes.named import SCHEMES, make_scheme


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_is_found_by_its_own_name(name):
    scheme = make_scheme(name)
    assert scheme.card["name"] == name
    assert scheme.mode == "honest"
    if scheme.card["formula"]:
        assert make_scheme(name, "formula").mode == "formula"
    else:
        with pytest.raises(InputError, match="'honest' for " + name):
            make_scheme(name, "formula")


def test_unknown_names_get_the_nearest():
    with pytest.raises(InputError, match="'idp-sample'"):
        make_scheme("idp-samples")
    with pytest.raises(InputError, match="'formula'"):
        make_scheme("udp", "formulas")


def test_listing_loads_no_torch_and_the_names_exist():
    code = (
        "import sys; from dpcohort_lab.schemes import scheme_cards; scheme_cards(); "
        "assert not {'torch', 'dp_accounting'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    for name in dpcohort_lab.schemes.__all__:
        assert getattr(dpcohort_lab.schemes, name) is not None
    with pytest.raises(AttributeError, match="no_such"):
        _ = dpcohort_lab.schemes.no_such
