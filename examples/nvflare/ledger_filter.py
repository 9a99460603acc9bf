# SPDX-License-Identifier: Apache-2.0
"""A filter for NVFLARE's task results: the site's ledger, and noise by the site's own policy.

Every result is counted in the owner's ledger before its noise is drawn; what leaves is the clipped
and noised difference of weights and nothing else. What is protected is the client as a whole
(`dpcohort.deploy.whole_update`). docs/how-to/nvflare.md says how to install it, and against what it
does not help: NVFLARE runs a job's code in the process that holds the data.
"""

import threading
import tomllib
from pathlib import Path

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from dpcohort.accounting import History, calibrate_remaining
from dpcohort.deploy.guard import check_with_sampling
from dpcohort.deploy.ledger import ClientLedger, DrawKey, RunTerms
from dpcohort.deploy.whole_update import check_whole, noisy_update
from dpcohort.engine import Lattice
from dpcohort.errors import InputError


def terms_of(policy):
    """The terms of a policy: every update at rate 1, with the least noise that keeps (ε, δ)."""
    promise = {key: policy[key] for key in ("epsilon", "delta")}
    rounds, whole = policy["rounds"], {"sampling_rate": 1.0, "neighbours": "replace-one"}
    noise = policy.get("least_noise_multiplier")
    if noise is None:
        noise = calibrate_remaining(History(), steps=rounds, **promise, **whole)
    terms = RunTerms(
        **promise, **whole, clip=policy["clip"], local_steps=1, rounds=rounds, draws=rounds,
        least_noise_multiplier=noise,
    )  # fmt: skip
    terms.check_closed()
    return terms


def released(ledger, dataset, run, arrays):
    """Count one more update, clip it, add noise, store it, and return what may leave.

    Arrays of whole numbers leave as zeros: they cannot carry noise.
    """
    held = {name: np.asarray(array) for name, array in arrays.items()}
    trained = {name: one for name, one in held.items() if np.issubdtype(one.dtype, np.floating)}
    if not trained:
        raise InputError.because("the result has no array of numbers with a fraction.")
    vector = np.concatenate([one.reshape(-1).astype(np.float64) for one in trained.values()])
    terms = ledger.terms(dataset, run)
    check_whole(terms)
    check_with_sampling(terms, vector.size)
    count = {one["run"]: one["counted_draws"] for one in ledger.receipt(dataset).runs}[run]
    key = DrawKey(dataset=dataset, run=run, round=min(count, terms.rounds - 1), draw=count)
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


class LedgerFilter(DXOFilter):
    """Counts, clips and adds noise by the owner's policy file."""

    def __init__(self, policy: str):
        kinds = [DataKind.WEIGHT_DIFF]
        super().__init__(supported_data_kinds=kinds, data_kinds_to_filter=kinds)
        self.policy = Path(policy)
        self._lock = threading.Lock()

    def process(self, shareable, fl_ctx):
        """The result as it may leave: noised weights, or a bare return code."""
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(code)  # without whatever else it holds
        try:
            dxo = from_shareable(shareable)
        except Exception:
            raise ContentBlockedException(BLOCKED) from None
        return self.process_dxo(dxo, shareable, fl_ctx).to_shareable()

    def process_dxo(self, dxo, shareable, fl_ctx):
        """The difference of weights with its noise; all else of the result is left behind."""
        if dxo.data_kind != DataKind.WEIGHT_DIFF or not dxo.data:
            raise ContentBlockedException(BLOCKED)
        policy = tomllib.loads(self.policy.read_text(encoding="utf-8"))
        dataset, run = policy["dataset"], policy["run"]
        with self._lock, ClientLedger(self.policy.parent / policy["ledger"]) as ledger:
            ledger.accept(dataset, run, terms_of(policy))
            sent = released(ledger, dataset, run, dxo.data)
        # Weighted alike: a number of steps would tell how many records there are.
        return DXO(DataKind.WEIGHT_DIFF, data=sent, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 1})


BLOCKED = (
    "blocked by the site's policy: only differences of weights (WEIGHT_DIFF) can get noise; "
    "metrics, whole models and statistics do not leave. Nothing was counted."
)
