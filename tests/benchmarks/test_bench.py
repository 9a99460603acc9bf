# SPDX-License-Identifier: Apache-2.0
"""``make bench`` writes what its commands print into docs/benchmarks.md, and nothing else."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench", ROOT / "benchmarks/bench.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_of_list_and_page_has_its_script_and_options(bench: Any) -> None:
    written = bench.blocks(bench.PAGE.read_text())
    assert set(written) <= {title for title, *_ in bench.BENCHES.values()}
    for name, (title, *_) in bench.BENCHES.items():
        forms = [bench.command_of(name, quick=quick) for quick in (False, True)]
        script = (ROOT / "benchmarks" / f"{name}.py").read_text()
        for option in re.findall(r"--[a-z-]+", " ".join(forms)):
            assert f'"{option}"' in script, (name, option)
        if title in written:  # one of the forms as it is now, and what it printed
            assert written[title].split("`")[1] in forms
            assert re.search(r"load \d.*\n\n```text\n.+\n```\n*\Z", written[title], re.S)


def test_a_block_is_replaced_and_the_rest_of_the_page_stays(bench: Any) -> None:
    solver, guard = bench.BENCHES["solver"][0], bench.BENCHES["guard"][0]
    page = "# Page\n\n## Other\nkept\n\n## Latest run: here\nkept too\n"
    page = bench.with_blocks(page, {guard: "first\n", solver: "second\n"})
    assert page.index("second") < page.index("first")  # in the order of the list
    again = bench.with_blocks(page, {**bench.blocks(page), guard: "third\n"})
    assert again == page.replace("first", "third")


def test_a_command_that_fails_leaves_the_page_as_it_was(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n## Latest run: here\nwords\n")
    monkeypatch.setattr(bench, "command_of", lambda name, quick: f"OMP_NUM_THREADS=1 python {name}")
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    (tmp_path / "solver").write_text("import os; print(os.environ['OMP_NUM_THREADS'] * 3)")
    (tmp_path / "guard").write_text("print('half'); raise SystemExit(1)")
    monkeypatch.setattr(bench, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--only", "guard", "solver"])
    with pytest.raises(SystemExit, match="left as they were: guard"):
        bench.main()
    assert list(bench.blocks(page.read_text())) == [bench.BENCHES["solver"][0]]
    assert "```text\n111\n```" in page.read_text()
    assert "half" not in page.read_text()


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("peers")


@pytest.mark.filterwarnings("ignore")  # Opacus'
def test_the_peers_make_the_same_step(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opacus")
    monkeypatch.setattr(peers, "NOISE_MULTIPLIER", 0.0)
    network, private, optimiser = peers.opacus_model()
    mine = peers.mnist_small()
    mine.load_state_dict(network.state_dict())
    batch = peers.some_of(3)
    peers.private_step(mine, torch.optim.SGD(mine.parameters(), lr=peers.STEP_SIZE), batch)
    torch.nn.functional.cross_entropy(private(batch[0]), batch[1]).backward()
    before = [one.clone() for one in network.parameters()]
    optimiser.step()
    for one, other, start in zip(mine.parameters(), network.parameters(), before, strict=True):
        assert not torch.equal(other, start)
        torch.testing.assert_close(one - start, other - start, rtol=1e-3, atol=1e-6)
    peers.opacus_model.cache_clear()  # without noise it must not stay
