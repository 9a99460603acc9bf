# SPDX-License-Identifier: Apache-2.0
"""A filter for NVFLARE's task results: the site's ledger, and noise by the site's own policy.

The site's owner writes a policy file and names the filter in the site's ``local/privacy.json``,
where no job can take it out. Every result is then counted in the owner's ledger before its noise is
drawn; what leaves is the clipped and noised difference of weights and nothing else: no metrics, no
numbers of steps, no statistics. What cannot be protected is blocked.

**What is protected** is the client as a whole (:mod:`dpcohort.deploy.whole_update`). **What is
not:** NVFLARE runs a job's code in the process that holds the data, so a job that means harm can
send them by other ways than its results; which jobs run is the owner's to authorise. The time of an
answer tells how long training took, and that a training failed is told by NVFLARE itself. Against
code that others ship only a guard (:mod:`dpcohort.deploy.guard`) helps.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.deploy.formats import Format, Name
from dpcohort.deploy.guard.handler import check_with_sampling
from dpcohort.deploy.guard.terms import AcceptedRun
from dpcohort.deploy.ledger.ledger import ClientLedger
from dpcohort.deploy.ledger.terms import Delta, DrawKey, Natural, Positive, RunTerms
from dpcohort.deploy.whole_update import check_whole, noisy_update
from dpcohort.engine.lattice import Lattice
from dpcohort.errors import InputError

if TYPE_CHECKING or find_spec("nvflare") is not None:
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.dxo_filter import DXOFilter
    from nvflare.apis.filter import ContentBlockedException
    from nvflare.apis.fl_constant import ReturnCode
    from nvflare.apis.shareable import make_reply
else:
    DXOFilter = object

__all__ = ["LedgerFilter", "SitePolicy", "released"]


class SitePolicy(Format):
    """What the owner of a site agrees to for one run; the file is the owner's and no server's.

    Attributes:
        ledger: the ledger's file, beside the policy or with its whole path.
        dataset: the data set registered in it.
        run: name of the run; other terms need another.
        epsilon: ε of all updates of the run together, for the site's data as a whole.
        delta: δ of the run.
        clip: norm C to which an update is clipped.
        rounds: most updates in the whole run.
        least_noise_multiplier: z of every update; None for the smallest that keeps (ε, δ).

    Example:
        >>> policy = SitePolicy(ledger="north.ledger", dataset="north", run="spring", epsilon=8.0,
        ...                     delta=1e-5, clip=1.0, rounds=20)
        >>> round(policy.terms().least_noise_multiplier, 2)
        5.37
    """

    ledger: Name
    dataset: Name
    run: Name
    epsilon: Positive
    delta: Delta
    clip: Positive
    rounds: Natural
    least_noise_multiplier: Positive | None = None

    def terms(self) -> RunTerms:
        """The terms of the run, as the ledger takes them.

        Raises:
            BudgetExceededError: so many updates at this noise would spend more.
        """
        said = self.model_dump(exclude={"ledger", "dataset"})
        whole: Any = {"batch_size": 1, "local_steps": 1, "neighbours": "replace-one"}
        terms = AcceptedRun(**said, **whole, draws=self.rounds).run_terms(1)
        check_whole(terms)
        return terms


def released(
    ledger: ClientLedger, policy: SitePolicy, arrays: Mapping[str, Any]
) -> dict[str, NDArray[Any]]:
    """Count one more update, clip it, add noise, store it, and return what may leave.

    Arrays of whole numbers leave as zeros: they cannot carry noise.

    Args:
        ledger: the site's, with the policy's run accepted.
        policy: the owner's.
        arrays: the difference of weights by name. SENSITIVE.

    Raises:
        BudgetExceededError: the updates of the run, or the data's lifetime cap, are used up.
    """
    held = {name: np.asarray(array) for name, array in arrays.items()}
    trained = {name: one for name, one in held.items() if np.issubdtype(one.dtype, np.floating)}
    if not trained:
        raise InputError.because("the result has no array of numbers with a fraction.")
    vector = np.concatenate([one.reshape(-1).astype(np.float64) for one in trained.values()])
    terms = ledger.terms(policy.dataset, policy.run)
    check_whole(terms)
    check_with_sampling(terms, vector.size)
    runs = {one["run"]: one["counted_draws"] for one in ledger.receipt(policy.dataset).runs}
    count = runs[policy.run]
    key = DrawKey(
        dataset=policy.dataset, run=policy.run, round=min(count, terms.rounds - 1), draw=count
    )
    ledger.reserve(key, terms.charge(1), clip=terms.clip)
    noisy = noisy_update(vector, Lattice(terms.least_noise_multiplier, terms.clip))
    ledger.release(key, noisy.tobytes())
    parts = np.split(noisy, np.cumsum([one.size for one in trained.values()])[:-1])
    sent = dict(zip(trained, parts, strict=True))
    return {
        name: sent[name].reshape(one.shape).astype(one.dtype)
        if name in sent
        else np.zeros_like(one)
        for name, one in held.items()
    }


class LedgerFilter(DXOFilter):  # type: ignore[misc]  # NVFLARE has no types
    """NVFLARE's task-result filter that counts, clips and adds noise by the owner's policy.

    In ``local/privacy.json`` of a site, for every job::

        {"scopes": [{"name": "private", "task_result_filters": [
            {"path": "dpcohort.deploy.nvflare.LedgerFilter",
             "args": {"policy": "/srv/north/policy.toml"}}]}],
         "default_scope": "private"}

    Args:
        policy: the owner's policy file (:class:`SitePolicy`).

    Raises:
        InputError: NVFLARE is not installed.
        FileFormatError: the policy is not one.
        BudgetExceededError: it allows more than the (ε, δ) it states.
    """

    def __init__(self, policy: str) -> None:
        if DXOFilter is object:
            raise InputError.because(
                'NVFLARE is not installed. Get it with: python -m pip install "dpcohort[nvflare]"'
            )
        super().__init__(
            supported_data_kinds=[DataKind.WEIGHT_DIFF],
            data_kinds_to_filter=[DataKind.WEIGHT_DIFF],
        )
        self.policy = str(policy)
        self._lock = threading.Lock()

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """The result as it may leave: noised weights, or a bare return code."""
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(code)  # without whatever else it holds
        try:
            dxo = from_shareable(shareable)
        except Exception:
            raise ContentBlockedException(_BLOCKED) from None
        return self.process_dxo(dxo, shareable, fl_ctx).to_shareable()

    def process_dxo(self, dxo: Any, shareable: Any, fl_ctx: Any) -> Any:
        """The difference of weights with its noise; all else of the result is left behind."""
        if dxo.data_kind != DataKind.WEIGHT_DIFF or not dxo.data:
            raise ContentBlockedException(_BLOCKED)
        path = Path(self.policy)
        policy = SitePolicy.from_toml(path)
        with self._lock, ClientLedger(path.parent / policy.ledger) as ledger:
            ledger.accept(policy.dataset, policy.run, policy.terms())
            sent = released(ledger, policy, dxo.data)
        # Weighted alike: a number of steps would tell how many records there are.
        return DXO(DataKind.WEIGHT_DIFF, data=sent, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 1})


_BLOCKED = (
    "blocked by the site's policy: only differences of weights (WEIGHT_DIFF) can get noise; "
    "metrics, whole models and statistics do not leave. Nothing was counted."
)
