# SPDX-License-Identifier: Apache-2.0
"""A user-defined adaptive rule: the clients drawn least so far; it asks for no reports."""

from dataclasses import dataclass

import numpy as np

from dpcohort import plugin


@plugin("adaptive")
@dataclass(frozen=True, kw_only=True)
class LeastHeard:
    """The clients with most draws left under their cap, ties by chance."""

    name, statistic, mini_batch, watches_updates = "least-heard", None, False, False
    needs, leaks, reference = "nothing", "nothing", "an example"

    def check(self, clients, cohort_size, public): ...

    def expected_reports(self, clients, rounds, draw_cap):
        return 0

    def ask(self, view):
        return np.array([], dtype=np.int64)

    def choose(self, view, answers):
        rank = view.draws_left + view.chances("ties")
        return view.candidates[np.argsort(-rank[view.candidates])][: view.cohort_size]
