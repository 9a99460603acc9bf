# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import getpass
import json
import platform

from dpcohort.runs import environment


def test_versions_but_nobodys_name():
    found = environment("cpu")
    assert found["packages"]["torch"]
    text = json.dumps(found)
    assert "/" not in text
    host = platform.node()
    assert not host or len(host) < 5 or host not in text
    user = getpass.getuser()
    assert len(user) < 5 or user not in text
