# SPDX-License-Identifier: Apache-2.0
"""Clusters of similar clients, found in the updates they already sent; each cluster is heard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray, IntArray, whole_number
from dpcohort.adaptive.choosing import draw_without_replacement
from dpcohort.adaptive.report_terms import Statistic
from dpcohort.adaptive.view import RoundView
from dpcohort.errors import InputError

__all__ = ["ClusteredUpdates"]

_ITERATIONS = 20


@dataclass(frozen=True, kw_only=True)
class ClusteredUpdates:
    """Groups clients by the direction of their last noised update; each group fills its share.

    Clients are clustered by spherical k-means on the directions of their last updates. The slots
    of a round go round the clusters in turn, and within a cluster clients are drawn in proportion
    to their sizes. Clients never drawn yet come first, so that there is an update to look at. In
    the spirit of ClusterFL (Ouyang et al., MobiSys 2021), which compares whole models on data the
    server holds, and of clustered sampling (Fraboni et al., ICML 2021, known by its idea only);
    the formulas are our own.

    It asks for nothing: updates carry their noise when they arrive, so this is post-processing and
    free. Where the noise drowns an update, so it does the clusters.

    Attributes:
        clusters: how many.

    Example:
        >>> ClusteredUpdates(clusters=3).statistic is None
        True
    """

    name: ClassVar[str] = "clustered"
    needs: ClassVar[str] = "the noised updates, which the server has anyway"
    leaks: ClassVar[str] = "nothing more"
    reference: ClassVar[str] = "in the spirit of ClusterFL: Ouyang et al., MobiSys 2021"
    statistic: ClassVar[Statistic | None] = None
    mini_batch: ClassVar[bool] = False
    watches_updates: ClassVar[bool] = True

    clusters: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "clusters", whole_number("clusters", self.clusters, at_least=1))

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """There must be a client for every cluster."""
        if self.clusters > clients:
            raise InputError(
                "clusters",
                given=self.clusters,
                allowed=f"at most the number of clients, {clients}",
            )

    def expected_reports(self, clients: int, rounds: int, draw_cap: int) -> int:
        """None."""
        return 0

    def ask(self, view: RoundView) -> IntArray:
        """Nobody."""
        return np.array([], dtype=np.int64)

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Clients never drawn, then the clusters in turn."""
        sizes = view.sizes.astype(np.float64)
        seen = np.array(sorted(view.updates), dtype=np.int64)
        unseen = np.setdiff1d(view.candidates, seen)
        first = draw_without_replacement(
            view, unseen, view.cohort_size, weights=sizes, purpose="unseen"
        )
        seen = np.intersect1d(seen, view.candidates)
        if first.size >= view.cohort_size or not seen.size:
            return first
        labels = self.labels(view, seen)
        queue = draw_without_replacement(view, seen, seen.size, weights=sizes, purpose="clusters")
        # The j-th client of each cluster comes before the (j+1)-th of any.
        place = {int(k): int(label) for k, label in zip(seen, labels, strict=True)}
        turns: dict[int, int] = {}
        ranked = []
        for order, k in enumerate(queue.tolist()):
            turn = turns.get(place[k], 0)
            turns[place[k]] = turn + 1
            ranked.append((turn, order, k))
        rest = [k for _, _, k in sorted(ranked)][: view.cohort_size - first.size]
        return np.concatenate([first, np.array(rest, dtype=np.int64)])

    def labels(self, view: RoundView, clients: IntArray) -> IntArray:
        """The cluster of each of these clients, all of which have sent an update."""
        points = np.stack([_direction(view.updates[k]) for k in clients.tolist()])
        # From afar to near, starting with the client of the smallest public number.
        centres = [points[int(np.argmin(view.chances("centre")[clients]))]]
        while len(centres) < min(self.clusters, clients.size):
            nearest = np.max(points @ np.stack(centres).T, axis=1)
            centres.append(points[int(np.argmin(nearest))])
        middle = np.stack(centres)
        labels = np.argmax(points @ middle.T, axis=1)
        for _ in range(_ITERATIONS):
            middle = np.stack(
                [
                    _direction(points[labels == c].sum(0)) if (labels == c).any() else middle[c]
                    for c in range(middle.shape[0])
                ]
            )
            again = np.argmax(points @ middle.T, axis=1)
            if np.array_equal(again, labels):
                break
            labels = again
        return np.asarray(labels, dtype=np.int64)


def _direction(update: FloatArray) -> FloatArray:
    vector = np.asarray(update, dtype=np.float64)
    norm = float(np.linalg.norm(vector))
    return vector / norm if norm > 0 and np.isfinite(norm) else np.zeros_like(vector)
