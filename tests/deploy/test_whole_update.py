# SPDX-License-Identifier: Apache-2.0
"""A site's whole update: clipped, counted, noised; and the example of a filter for NVFLARE."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dpcohort.deploy.ledger import ClientLedger, DrawKey, LifetimeCap, RunTerms, verify_ledger
from dpcohort.deploy.whole_update import check_whole, noisy_update
from dpcohort.engine import Lattice
from dpcohort.errors import BudgetExceededError, InputError

SAID = {
    "ledger": "north.ledger", "dataset": "north", "run": "spring",
    "epsilon": 8.0, "delta": 1e-5, "clip": 2.0, "rounds": 3,
}  # fmt: skip
EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare" / "ledger_filter.py"
#: What the example takes from NVFLARE.
TAKEN = {
    "dxo": ("DXO", "DataKind", "MetaKey", "from_shareable"), "dxo_filter": ("DXOFilter",),
    "filter": ("ContentBlockedException",), "fl_constant": ("ReturnCode",),
    "shareable": ("make_reply",),
}  # fmt: skip


@pytest.fixture
def example(monkeypatch):
    """The example as a module; names of NVFLARE stand there where it is not installed."""
    if find_spec("nvflare") is None:
        for name in ("nvflare", "nvflare.apis"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        for part, names in TAKEN.items():
            module = ModuleType(f"nvflare.apis.{part}")
            vars(module).update(dict.fromkeys(names, object))
            monkeypatch.setitem(sys.modules, module.__name__, module)
    module = ModuleType("ledger_filter")
    exec(compile(EXAMPLE.read_text(encoding="utf-8"), EXAMPLE, "exec"), vars(module))
    return module


@pytest.fixture
def released(example):
    return lambda ledger, arrays, run="spring": example.released(ledger, "north", run, arrays)


@pytest.fixture
def ledger(tmp_path, example):
    with ClientLedger.create(tmp_path / "north.ledger") as made:
        made.register("north", LifetimeCap(epsilon=20.0, delta=1e-5, neighbours="replace-one"))
        made.accept("north", "spring", example.terms_of(SAID))
        yield made


@pytest.fixture
def policy_file(ledger, tmp_path):
    path = tmp_path / "policy.toml"
    lines = [f"{key} = {f'{value!r}'}" for key, value in SAID.items()]
    path.write_text("\n".join(lines).replace("'", '"'))
    return path


def test_an_update_is_clipped_as_one_vector_whatever_it_holds():
    quiet = Lattice(1e-5, 2.0)
    for vector, expected in (
        ([30.0, 40.0], [1.2, 1.6]),
        ([0.3, 0.4], [0.3, 0.4]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([1e300, 0.0], [2.0, 0.0]),
        ([5.0, np.nan], [0.0, 0.0]),
        ([np.inf, 1.0], [0.0, 0.0]),
    ):
        assert noisy_update(np.array(vector), quiet) == pytest.approx(expected, abs=1e-3)


def test_the_noise_is_the_terms_and_fresh_every_time(ledger, released):
    terms = ledger.terms("north", "spring")
    sent = [released(ledger, {"w": np.zeros(4000)})["w"] for _ in range(3)]
    expected = terms.least_noise_multiplier * terms.clip
    for one in sent:
        assert one.std() == pytest.approx(expected, rel=0.06)
    assert abs(np.corrcoef(sent)[np.triu_indices(3, 1)]).max() < 0.1
    # Two updates are up to 2C apart, and all three rounds together keep epsilon 8.
    assert 7.9 < terms.certified_epsilon() <= 8.0
    assert (terms.neighbours, terms.sampling_rate, terms.draws) == ("replace-one", 1.0, 3)


def test_every_update_is_counted_stored_and_refused_when_they_are_used_up(
    ledger, released, tmp_path
):
    arrays = {"w": np.full((2, 3), 5.0, np.float32), "steps": np.array([7]), "b": np.float32(1.0)}
    for t in range(3):
        sent = released(ledger, arrays)
        assert list(sent) == ["w", "steps", "b"]
        assert sent["w"].shape == (2, 3)
        assert sent["w"].dtype == np.float32
        assert sent["steps"] == 0  # whole numbers carry no noise, so they tell nothing
        kept = np.frombuffer(
            ledger.output(DrawKey(dataset="north", run="spring", round=t, draw=t)), np.float32
        )
        assert np.array_equal(kept, [*sent["w"].reshape(-1), sent["b"]])
    with pytest.raises(BudgetExceededError, match="all 3 draws"):
        released(ledger, arrays)
    (run,) = ledger.receipt("north").runs
    assert run["counted_draws"] == run["released_draws"] == 3
    assert verify_ledger(tmp_path / "north.ledger").holds


def test_an_update_is_on_disk_as_spent_before_its_noise_is_drawn(ledger, example, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no noise")

    monkeypatch.setattr(example, "noisy_update", fail)
    with pytest.raises(RuntimeError):
        example.released(ledger, "north", "spring", {"w": np.zeros(3)})
    (run,) = ledger.receipt("north").runs
    assert (run["counted_draws"], run["released_draws"]) == (1, 0)


def test_terms_for_records_are_refused(ledger, example, released):
    records = RunTerms(
        epsilon=8.0, delta=1e-5, clip=2.0, sampling_rate=0.1, local_steps=1, rounds=3, draws=3,
        least_noise_multiplier=3.0,
    )  # fmt: skip
    ledger.accept("north", "of records", records)
    with pytest.raises(InputError, match="replace-one"):
        check_whole(records)
    with pytest.raises(InputError, match="replace-one"):
        released(ledger, {"w": np.zeros(3)}, "of records")
    with pytest.raises(BudgetExceededError, match="above the"):
        example.terms_of({**SAID, "least_noise_multiplier": 1.0})
    with pytest.raises(InputError, match="no array"):
        released(ledger, {"steps": np.array([7])})
    assert [run["counted_draws"] for run in ledger.receipt("north").runs] == [0, 0]


@pytest.mark.skipif(find_spec("nvflare") is None, reason="needs NVFLARE")
@pytest.mark.filterwarnings("ignore")
class TestFilter:
    @pytest.fixture(autouse=True)
    def _example(self, example):
        self.filter = example.LedgerFilter

    def sent(self, policy: Path, kind: str, data: dict, **meta):
        from nvflare.apis.dxo import DXO
        from nvflare.apis.fl_context import FLContext

        result = DXO(kind, data=data, meta=meta).to_shareable()
        result.set_header("note", "the client's")
        return self.filter(str(policy)).process(result, FLContext())

    def test_nothing_but_noisy_weights_leaves(self, policy_file, ledger):
        from nvflare.apis.dxo import from_shareable

        weights = {"w": np.full(5, 9.0, np.float32)}
        found = self.sent(
            policy_file, "WEIGHT_DIFF", weights, NUM_STEPS_CURRENT_ROUND=400, initial_metrics=0.3
        )
        dxo = from_shareable(found)
        assert not np.array_equal(dxo.data["w"], weights["w"])
        assert dxo.get_meta_prop("NUM_STEPS_CURRENT_ROUND") == 1
        assert dxo.get_meta_prop("initial_metrics") is None
        assert found.get_header("note") is None
        assert ledger.receipt("north").runs[0]["released_draws"] == 1

    @pytest.mark.parametrize(
        ("kind", "data"), [("WEIGHTS", {"w": np.ones(3)}), ("METRICS", {"loss": 0.25})]
    )
    def test_what_cannot_get_noise_is_blocked_and_costs_nothing(
        self, policy_file, ledger, kind, data
    ):
        from nvflare.apis.filter import ContentBlockedException

        with pytest.raises(ContentBlockedException, match="WEIGHT_DIFF"):
            self.sent(policy_file, kind, data)
        assert ledger.receipt("north").runs[0]["counted_draws"] == 0

    def test_a_failed_result_is_its_code_alone(self, policy_file):
        from nvflare.apis.fl_context import FLContext
        from nvflare.apis.shareable import make_reply

        failed = make_reply("EXECUTION_EXCEPTION")
        failed["w"] = np.ones(3)
        found = self.filter(str(policy_file)).process(failed, FLContext())
        assert found.get_return_code() == "EXECUTION_EXCEPTION"
        assert "w" not in found

    def test_nothing_leaves_by_a_policy_that_is_none(self, tmp_path):
        (tmp_path / "bad.toml").write_text("epsilon = 8.0\n")
        with pytest.raises(KeyError):
            self.sent(tmp_path / "bad.toml", "WEIGHT_DIFF", {"w": np.ones(3)})
