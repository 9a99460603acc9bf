# SPDX-License-Identifier: Apache-2.0
"""A kit: all of it or nothing, closed to others, with pages that are true."""

from __future__ import annotations

import re
import stat
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcohort.cli import COMMANDS, main
from dpcohort.cli import app as cli
from dpcohort.consent import allow_code
from dpcohort.data._arrays import load_test_arrays
from dpcohort.deploy.flower import Federation, write_kit
from dpcohort.deploy.flower._kit import client_folder, file_name, kit_text
from dpcohort.deploy.guard import GuardTerms, ModelTerms
from dpcohort.errors import InputError


def test_a_kit_has_everything_for_server_and_clients(template):
    kit, plan = template.kit, template.settings["plan"]
    found = {p.relative_to(kit).as_posix() for p in kit.rglob("*") if p.is_file()}
    assert found >= {
        "README.md",
        "app/pyproject.toml",
        "app/dpcohort_app/server_app.py",
        "app/dpcohort_app/client_app.py",
        "server/plan.json",
        "server/federation.toml",
        "server/flwr/config.toml",
        "server/nginx.conf",
        "server/dpcohort-superlink.service",
        "server/dpcohort-run.service",
        "server/alerts.yml",
        "server/dashboard.json",
        "server/tls/ca.crt",
        "server/tls/server.pem",
        "server/tls/server.key",
        *(
            f"clients/{name}/{file}"
            for name in ("ward%207", "lab")
            for file in (
                "terms.toml",
                "ca.crt",
                "node.key",
                "node.pub",
                "README.md",
                "dpcohort-guard.service",
                "dpcohort-node.service",
            )
        ),
    }
    assert Federation.load(kit / "server/federation.toml").plan == plan


def test_what_flower_sends_to_clients_holds_nothing_of_the_plan(template):
    sent = "".join(p.read_text() for p in (template.kit / "app").rglob("*") if p.is_file())
    for secret in (template.settings["plan"].sha256, "ward", "PRIVATE KEY", "epsilon"):
        assert secret not in sent


def test_each_clients_terms_are_its_part_of_the_plan(template):
    plan = template.settings["plan"]
    for k, client in enumerate(plan.population.ids):
        terms = GuardTerms.from_toml(client_folder(template.kit, client) / "terms.toml")
        (run,) = terms.runs
        assert (terms.dataset, run.run, run.plan) == (client, "spring", plan.sha256)
        assert run.draws == plan.counts[k]
        assert run.least_noise_multiplier == plan.noise_multipliers[k]
        assert run.epsilon == plan.population.epsilon[k] == terms.lifetime_epsilon


def test_secrets_are_their_owners_alone(template):
    kit = template.kit
    for path in (kit / "server/tls" / "server.key", client_folder(kit, "lab") / "node.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (kit / "server", client_folder(kit, "lab"), client_folder(kit, "ward 7")):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    keys = {(client_folder(kit, c) / "node.key").read_bytes() for c in ("lab", "ward 7")}
    assert len(keys) == 2


def test_a_kit_that_is_not_a_trial_names_the_user_who_may_ask(settings, tmp_path):
    kit = write_kit(tmp_path / "kit", **{**settings, "trial": False})
    terms = tomllib.loads((client_folder(kit, "lab") / "terms.toml").read_text())
    assert terms["allowed_users"] == ["flower"]
    assert terms["same_user"] is False
    assert terms["answer_seconds"] > 0


def test_the_file_of_an_own_model_is_shipped_and_tried(settings, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "kit_net", raising=False)
    code = "from dpcohort import plugin\nfrom torch import nn\n\n@plugin('model')\n"
    code += "def build(input_shape, classes):\n"
    code += "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    Path("kit_net.py").write_text(code)
    own = ModelTerms(name="kit_net:build", input_shape=(1, 8, 8), classes=10)
    allow_code("kit_net")
    kit = write_kit("kit", **{**settings, "model": own})
    app = (kit / "app" / "dpcohort_app" / "server_app.py").read_text()
    assert "allow_code(*['kit_net'])" in app
    theirs = client_folder(kit, "lab")
    for folder in (theirs, kit / "server", kit / "app"):
        assert (folder / "kit_net.py").read_text() == code
    assert "`kit_net.py` (`kit_net:build`)" in (theirs / "README.md").read_text()
    monkeypatch.chdir(theirs)
    check = ["guard", "check", "--terms", "terms.toml", "--records", "400"]
    del sys.modules["kit_net"]
    assert main(check) == 0
    place = Path.cwd() / "kit_net.py"
    assert f"Not tried: kit_net:build is code of somebody, {place}" in _said(capsys)
    assert "kit_net" not in sys.modules
    Path("kit_net.py").unlink()
    assert main(check) == 2
    assert "there is no module kit_net" in _said(capsys)


def _said(capsys):
    said = capsys.readouterr()
    return " ".join((said.out + said.err).split())


def test_training_records_are_never_test_data(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs, labels = np.zeros((1442, 64), np.float32), np.arange(1442) % 10
    test = {"test_inputs": inputs[:9], "test_labels": labels[:9], "classes": 10}
    np.savez("mine.npz", train_inputs=inputs, train_labels=labels, **test)
    np.savez("test.npz", **test)
    assert main(["new", "c.toml", "--from", "digits"]) == 0
    init = ["flower", "init", "--config", "c.toml", "--set", "data.name=mine.npz"]
    assert main([*init, "kit"]) == 0
    assert Federation.load("kit/server/federation.toml").test == ""
    assert main([*init, "refused", "--test", "mine.npz"]) == 2
    assert "mine.npz holds train_inputs" in _said(capsys)
    assert not Path("refused").exists()
    assert main([*init, "tested", "--test", "test.npz"]) == 0
    assert load_test_arrays("test.npz").test_inputs.shape == (9, 64)


def test_a_folder_in_use_is_left_alone(settings, tmp_path):
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is not empty"):
        write_kit(tmp_path / "kit", **settings)
    assert [p.name for p in tmp_path.rglob("*")] == ["kit", "mine.txt"]


def test_a_kit_is_whole_or_not_there(settings, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise InputError.because("no")

    monkeypatch.setattr("dpcohort.deploy.flower._kit.make_node_key", fail)
    with pytest.raises(InputError):
        write_kit(tmp_path / "kit", **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gate_port": 0}, "gate_port"),
        ({"superlink_port": 70000}, "superlink_port"),
        ({"gate_port": 8000}, "two different ports"),
        ({"host": ""}, "host"),
        ({"host": "a b"}, "host"),
        ({"host": 'x"; return 200'}, "host"),
    ],
)
def test_settings_are_checked(settings, tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        write_kit(tmp_path / "kit", **{**settings, **change})


def test_paths_cannot_leave_the_kit():
    assert str(client_folder(Path("k"), "../../etc")) == "k/clients/..%2F..%2Fetc"


# SPDX-License-Identifier: Apache-2.0


VALUES = {"run": "spring", "host": "fl.example.org", "gate": 443, "superlink": 8000}
OPERATOR = kit_text("operator.md", **VALUES, clients=3)
OWNER = kit_text("owner.md", **VALUES, client="ward 7")


@pytest.mark.parametrize("page", [OPERATOR, OWNER], ids=["operator", "owner"])
def test_every_command_of_ours_exists(page):
    import typer.main

    for first, second in re.findall(r"dpcohort ([a-z]+)(?: ([a-z]+))? [/-]", page):
        assert first in COMMANDS
        if second:
            assert second in typer.main.get_command(cli(first)).commands[first].commands


# SPDX-License-Identifier: Apache-2.0


IDS = st.text(min_size=1, max_size=300)


@given(IDS)
def test_a_name_is_one_part_of_a_path(client):
    name = file_name(client)
    assert 0 < len(name.encode()) <= 200
    assert (Path("base") / name).resolve().parent == Path("base").resolve()


@given(IDS, IDS)
def test_different_clients_have_different_names(one, other):
    assert (file_name(one) == file_name(other)) == (one == other)
