# SPDX-License-Identifier: Apache-2.0
"""The adaptive rules of the field; each chooses from reports, updates or public facts alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcohort._validate import FloatArray, IntArray, number, whole_number
from dpcohort.adaptive._rule import (
    AdaptiveRule,
    RoundView,
    Statistic,
    draw_without_replacement,
    largest,
    shrunk,
)
from dpcohort.errors import InputError


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(AdaptiveRule):
    """The largest losses among d candidates drawn in proportion to their sizes (pow-d).

    Each round d candidates are drawn without replacement, p_k ∝ n_k; each reports the mean loss
    of the current model on its records; the N^select largest take part. Cho, Wang and Joshi,
    Towards Understanding Biased Client Selection in Federated Learning, AISTATS 2022 (rule read
    in the authors' code). With d = N it is the baseline "biased: largest local loss".

    Every candidate pays for its report, also when it is not drawn: about d/N of a report a round.

    Attributes:
        d: candidates in each round; None asks everybody.
        shrink: rank by the reports drawn towards their mean according to their noise, so that a
            large report of a strict budget, which is mostly noise, does not win. Not in the paper.

    Example:
        >>> PowerOfChoice(d=6).expected_reports(clients=100, rounds=50, draw_cap=4)
        6
    """

    name: ClassVar[str] = "power-of-choice"
    needs: ClassVar[str] = "the current loss of d clients each round"
    leaks: ClassVar[str] = "d noised losses a round, charged; all of them if raw"
    reference: ClassVar[str] = "pow-d: Cho et al., AISTATS 2022"
    statistic: ClassVar[Statistic | None] = "loss"

    d: int | None = None
    shrink: bool = False

    def __post_init__(self) -> None:
        if self.d is not None:
            object.__setattr__(self, "d", whole_number("d", self.d, at_least=1))
        if not isinstance(self.shrink, bool):
            raise InputError("shrink", given=self.shrink, allowed="true or false")

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """Refuse a d below a cohort or above all clients."""
        if self.d is None:
            return
        if self.d > clients:
            raise InputError("d", given=self.d, allowed=f"at most the number of clients, {clients}")
        if self.d < min(cohort_size, clients):
            raise InputError(
                "d",
                given=self.d,
                allowed=f"at least the cohort size, {cohort_size}",
                next_step="The cohort is chosen among the d candidates.",
            )

    def expected_reports(self, clients: int, rounds: int, draw_cap: int) -> int:
        """Twice a client's mean number of reports, at most one a round."""
        asked = clients if self.d is None else self.d
        return min(rounds, -(-2 * rounds * asked // clients))

    def ask(self, view: RoundView) -> IntArray:
        """So many (d) of those who may still be drawn and asked, in proportion to their sizes."""
        asked = len(view.ids) if self.d is None else self.d
        return draw_without_replacement(view, view.can_report, asked, purpose="candidates")

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Those with the largest reported loss."""
        among = np.array(sorted(answers), dtype=np.int64)
        scores = np.array([answers[k] for k in among.tolist()])
        if self.shrink and view.report_stds is not None:
            scores = shrunk(scores, view.report_stds[among])
        return largest(view, among, view.cohort_size, scores=scores)


@dataclass(frozen=True, kw_only=True)
class MiniBatchPowerOfChoice(PowerOfChoice):
    """As power-of-choice, but a candidate looks at one mini-batch instead of all its records.

    Cho, Wang and Joshi, AISTATS 2022, cpow-d (read in the authors' code). The batch is drawn by
    the contract's sampler at the client's rate, independently of any training batch, so the report
    is a subsampled Gaussian event: it costs less than a report on all records at the same noise
    multiplier, and tells less.

    Attributes:
        d: candidates in each round; None asks everybody.
        shrink: as in power-of-choice.
    """

    name: ClassVar[str] = "cpow-d"
    needs: ClassVar[str] = "the current loss of d clients on one mini-batch each round"
    reference: ClassVar[str] = "cpow-d: Cho et al., AISTATS 2022"
    mini_batch: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class RecentPowerOfChoice(PowerOfChoice):
    """As power-of-choice, ranked by the loss a client reported when it was last drawn.

    Cho, Wang and Joshi, AISTATS 2022, rpow-d. Only drawn clients report, so it costs one report a
    participation instead of d a round. A client that never reported counts as infinitely lossy
    (read in a public re-implementation). The original averages the loss over the local steps; here
    it is the loss of the model the client received.

    Attributes:
        d: candidates in each round; None means everybody.
        shrink: as in power-of-choice.

    Example:
        >>> RecentPowerOfChoice(d=6).expected_reports(clients=100, rounds=50, draw_cap=4)
        4
    """

    name: ClassVar[str] = "rpow-d"
    needs: ClassVar[str] = "the loss of drawn clients only"
    leaks: ClassVar[str] = "one noised loss a participation, charged; raw ones if asked for raw"
    reference: ClassVar[str] = "rpow-d: Cho et al., AISTATS 2022"

    expected_reports = AdaptiveRule.expected_reports
    choose = AdaptiveRule.choose

    def ask(self, view: RoundView) -> IntArray:
        """Those who will be drawn."""
        among = super().ask(view)
        last = {report.client: report.value for report in view.reports}
        scores = np.array([last.get(k, np.inf) for k in among.tolist()])
        heard = np.isfinite(scores)
        if self.shrink and view.report_stds is not None:
            scores[heard] = shrunk(scores[heard], view.report_stds[among[heard]])
        return largest(view, among, view.cohort_size, scores=scores)


@dataclass(frozen=True, kw_only=True)
class BanditLoss(AdaptiveRule):
    """The largest upper confidence bounds of the clients' discounted losses.

    ::

        A_k = p_k (L_k / N_k + sqrt(2 s² ln T / N_k)),     p_k = n_k / Σ n,
        L_k = Σ_{t'} γ^{t-t'} ℓ_k(t'),   N_k = Σ_{t'} γ^{t-t'} 1[k reported at t'],
        T = Σ_{t' ≤ t} γ^{t-t'},

    and a client without a report comes first. Cho, Gupta, Joshi and Yağan, Bandit-based
    Communication-Efficient Client Selection Strategies for Federated Learning, 2020 (formula from
    two public re-implementations; the paper's text was not read). There s is the largest standard
    deviation of a client's losses in the last round, which would be one more report; one of the
    two takes it as 1, and here it is the setting ``exploration``. ℓ_k is the loss of the model the
    client receives, not its mean over the local steps.

    Attributes:
        gamma: γ, how much an older report counts, in (0, 1].
        exploration: s.
    """

    name: ClassVar[str] = "ucb-cs"
    needs: ClassVar[str] = "the loss of drawn clients only"
    leaks: ClassVar[str] = "one noised loss a participation, charged; raw ones if asked for raw"
    reference: ClassVar[str] = "UCB-CS: Cho et al., 2020"
    statistic: ClassVar[Statistic | None] = "loss"

    gamma: float = 0.9
    exploration: float = 1.0

    def __post_init__(self) -> None:
        number("gamma", self.gamma, above=0, at_most=1)
        number("exploration", self.exploration, at_least=0)

    def indices(self, view: RoundView) -> FloatArray:
        """A_k of every client; infinite without a report."""
        total, count = np.zeros(len(view.ids)), np.zeros(len(view.ids))
        for report in view.reports:
            discount = self.gamma ** (view.round - report.round)
            total[report.client] += discount * report.value
            count[report.client] += discount
        horizon = sum(self.gamma**age for age in range(view.round + 1))
        share = view.sizes / view.sizes.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            bonus = np.sqrt(2 * self.exploration**2 * math.log(horizon) / count)
            index = share * (total / count + bonus)
        return np.where(count > 0, index, np.inf)

    def ask(self, view: RoundView) -> IntArray:
        """Those who will be drawn."""
        among = view.can_report
        return largest(view, among, view.cohort_size, scores=self.indices(view)[among])


_STALENESS = 0.1


@dataclass(frozen=True, kw_only=True)
class StatisticalUtility(AdaptiveRule):
    """Draws in proportion to statistical utility among the best, and explores the unknown.

    ::

        U_k = n_k sqrt(mean of ℓ²),  cut at its ``clip_quantile``, brought to [0, 1] by its range,
        score_k = U_k + sqrt(0.1 ln t / t_k),      t_k the round of k's last report.

    An exploration share e_t = max(least_exploration, exploration decay^t) of the cohort goes to
    clients without a report, drawn in proportion to their sizes; the others are drawn in proportion
    to their score among those with a score of at least ``cut_off`` times that of the last of the
    best. Lai et al., Oort, OSDI 2021; Li et al., PyramidFL, MobiCom 2022 (both read in their public
    code; defaults are PyramidFL's). Left out: round times, which a simulation does not have, and
    PyramidFL's gradient norms, which would be one more report.

    Attributes:
        exploration: e_0.
        decay: how e_t falls in a round.
        least_exploration: where it stops falling.
        clip_quantile: of the utilities; larger ones count as this.
        cut_off: how far below the best a score may be.

    Example:
        >>> round(StatisticalUtility().exploration_share(10), 3)
        0.539
    """

    name: ClassVar[str] = "oort"
    needs: ClassVar[str] = "the mean squared loss of drawn clients only"
    leaks: ClassVar[str] = "one noised mean a participation, charged; raw ones if asked for raw"
    reference: ClassVar[str] = "Oort: Lai et al., OSDI 2021; PyramidFL: Li et al., MobiCom 2022"
    statistic: ClassVar[Statistic | None] = "squared-loss"

    exploration: float = 0.9
    decay: float = 0.95
    least_exploration: float = 0.2
    clip_quantile: float = 0.98
    cut_off: float = 0.7

    def __post_init__(self) -> None:
        for name in ("exploration", "least_exploration", "cut_off"):
            number(name, getattr(self, name), at_least=0, at_most=1)
        for name in ("decay", "clip_quantile"):
            number(name, getattr(self, name), above=0, at_most=1)

    def exploration_share(self, round: int) -> float:
        """e_t."""
        return max(self.least_exploration, self.exploration * self.decay**round)

    def scores(self, view: RoundView) -> FloatArray:
        """The score of every client; NaN without a report."""
        scores = np.full(len(view.ids), np.nan)
        last = {report.client: report for report in view.reports}
        known = np.array(sorted(last), dtype=np.int64)
        if not known.size:
            return scores
        squares = np.array([max(0.0, last[k].value) for k in known.tolist()])
        utility = view.sizes[known] * np.sqrt(squares)
        utility = np.minimum(utility, np.quantile(utility, self.clip_quantile, method="lower"))
        spread = float(utility.max() - utility.min())
        normal = (utility - utility.min()) / spread if spread > 0 else np.zeros(known.size)
        since = np.array([last[k].round + 1 for k in known.tolist()])
        scores[known] = normal + np.sqrt(_STALENESS * math.log(view.round + 1) / since)
        return scores

    def ask(self, view: RoundView) -> IntArray:
        """Those who will be drawn."""
        among, scores = view.can_report, self.scores(view)
        unknown = among[np.isnan(scores[among])]
        known = among[~np.isnan(scores[among])]
        explored = min(unknown.size, round(self.exploration_share(view.round) * view.cohort_size))
        explored = max(explored, min(unknown.size, view.cohort_size - known.size))
        fresh = draw_without_replacement(view, unknown, explored, purpose="explore")
        exploited = view.cohort_size - fresh.size
        if exploited and known.size > exploited:
            last_of_best = np.sort(scores[known])[-exploited]
            known = known[scores[known] >= self.cut_off * last_of_best]
        weights = np.nan_to_num(scores, nan=0.0)
        best = draw_without_replacement(view, known, exploited, weights=weights, purpose="exploit")
        return np.concatenate([fresh, best])


_ITERATIONS = 20


@dataclass(frozen=True, kw_only=True)
class ClusteredUpdates(AdaptiveRule):
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
    watches_updates: ClassVar[bool] = True

    clusters: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "clusters", whole_number("clusters", self.clusters, at_least=1))

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """There must be a client for every cluster."""
        if self.clusters > clients:
            raise InputError(
                "clusters", given=self.clusters, allowed=f"at most the number of clients, {clients}"
            )

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Clients never drawn, then the clusters in turn."""
        seen = np.array(sorted(view.updates), dtype=np.int64)
        unseen = np.setdiff1d(view.candidates, seen)
        first = draw_without_replacement(view, unseen, view.cohort_size, purpose="unseen")
        seen = np.intersect1d(seen, view.candidates)
        if first.size >= view.cohort_size or not seen.size:
            return first
        labels = self.labels(view, seen)
        queue = draw_without_replacement(view, seen, seen.size, purpose="clusters")
        # The j-th client of each cluster comes before the (j+1)-th of any.
        place = {int(k): int(label) for k, label in zip(seen, labels, strict=True)}
        turns: Counter[int] = Counter()
        ranked = []
        for order, k in enumerate(queue.tolist()):
            ranked.append((turns[place[k]], order, k))
            turns[place[k]] += 1
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


@dataclass(frozen=True, kw_only=True)
class DonatedData(AdaptiveRule):
    """Gives a share of the draws to public clients, and draws the others by size.

    In Hybrid-FL (Yoshida et al., ICC 2020; only the abstract was read) a few clients upload their
    records and the server trains on them beside the clients. Here such records are a public
    client: it has no budget, adds no noise and has no cap. Neither part depends on data, so
    nothing is reported. Hybrid-FL's greedy choice of donors under a time limit is not built:
    whoever donates is in the population as public.

    Attributes:
        public_share: of the draws of each round that goes to public clients, in (0, 1); at least
            one draw.

    Example:
        >>> DonatedData(public_share=0.2).statistic is None
        True
    """

    name: ClassVar[str] = "donated"
    needs: ClassVar[str] = "at least one public client"
    leaks: ClassVar[str] = "the donated records, wholly; of the others nothing more"
    reference: ClassVar[str] = "in the spirit of Hybrid-FL: Yoshida et al., ICC 2020"
    statistic: ClassVar[Statistic | None] = None

    public_share: float = 0.1

    def __post_init__(self) -> None:
        number("public_share", self.public_share, above=0, below=1)

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """Somebody must have donated."""
        if public == 0:
            raise InputError.because(
                "the rule donated needs public clients and there is none. Add [[population.public]]"
                " to the config, set data.public_share, or mark clients as public in the CSV file."
            )

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Public clients for their share, then the others in proportion to their sizes."""
        among = view.candidates
        public, private = among[view.public[among]], among[~view.public[among]]
        wanted = max(1, round(self.public_share * view.cohort_size))
        donors = draw_without_replacement(view, public, wanted, purpose="donors")
        left = view.cohort_size - donors.size
        others = draw_without_replacement(view, private, left, purpose="others")
        return np.concatenate([donors, others])
