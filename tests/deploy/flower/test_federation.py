# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.deploy.flower import Federation
from dpcohort.deploy.flower._certificates import key_fingerprint
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.errors import FileFormatError, InputError, VerificationError


def test_a_file_reads_back_as_it_was_written(small, tmp_path):
    federation = small.federation
    (tmp_path / "again.toml").write_text(
        federation.to_toml(plan=str(small.kit / "server" / "plan.json"))
    )
    again = Federation.load(tmp_path / "again.toml")
    for field in ("run", "plan", "model", "clients", "optimiser", "timeout", "aggregation", "test"):
        assert getattr(again, field) == getattr(federation, field), field
    assert again.drawn == ("ward 7", "lab")
    assert again.fingerprints["lab"] == key_fingerprint(
        (client_folder(small.kit, "lab") / "node.pub").read_text()
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('run = "spring"', 'rum = "spring"', r"key = 'rum'.*Did you mean 'run'"),
        ('run = "spring"', 'run = " spring"', "run = ' spring'"),
        ('run = "spring"\n', "", "'run' is missing"),
        ("timeout = 5.0", "timeout = 0", "timeout = 0"),
        ("timeout = 5.0", "timeout = nan", "timeout"),
        ("quorum = 0.5", "quorum = 1.5", "quorum = 1.5"),
        ("attempts = 3", "attempts = 0", "attempts = 0"),
        ("attempts = 3", 'attempts = "x"', "attempts = 'x'"),
        ("[optimiser]", "[optimizer]", "Did you mean 'optimiser'"),
        ("learning_rate = 1.0", "learning_rat = 1.0", "Did you mean 'learning_rate'"),
        ("learning_rate = 1.0", 'learning_rate = "x"', r"\[optimiser\]"),
        ("learning_rate = 1.0", "beta = 1.0", "beta"),
        ("classes = 10", "classes = 1", "classes = 1"),
        ("classes = 10\n", "", "the key .classes. is missing"),
        ('plan = "plan.json"', "plan = 3", "text in quotes"),
        ('plan = "plan.json"', 'plan = "none.json"', r"none\.json"),
        ("lab = ", "lap = ", r"\[clients\] has a key for 'lap'"),
        ('lab = "ecdsa', 'lab = "rsa', r"\[clients\] 'lab': public key"),
        ("run = ", "run = = ", "not valid TOML"),
    ],
)
def test_a_wrong_line_is_named(small, old, new, words):
    text = (small.kit / "server/federation.toml").read_text()
    assert old in text
    (small.kit / "server/federation.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(FileFormatError, match=words):
        Federation.load(small.kit / "server/federation.toml")


def test_a_changed_plan_is_noticed(small):
    path = small.kit / "server" / "plan.json"
    path.write_text(path.read_text().replace('"clip": 1.0', '"clip": 2.0'))
    with pytest.raises((VerificationError, InputError), match="plan"):
        Federation.load(small.kit / "server/federation.toml")


def test_every_drawn_client_needs_a_key_of_its_own(small):
    federation = small.federation
    common = {"run": "spring", "plan": federation.plan, "model": federation.model}
    one = federation.clients["lab"]
    with pytest.raises(InputError, match="no public key of ward 7, whom the plan draws"):
        Federation(**common, clients={"lab": one})
    with pytest.raises(InputError, match="'ward 7' and 'lab' have the same public key"):
        Federation(**common, clients={"ward 7": one, "lab": f"{one} other comment"})
