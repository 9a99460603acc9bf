# SPDX-License-Identifier: Apache-2.0
"""``dpcohort guard`` as its owner meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import tomllib

import numpy as np
import pytest

from dpcohort.cli import main
from dpcohort.deploy.guard import GuardClient


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o700)
    dice = np.random.default_rng(0)
    np.savez("d.npz", inputs=dice.random((600, 64), np.float32), labels=dice.integers(0, 10, 600))
    os.chmod("d.npz", 0o600)
    return tmp_path


def run(capsys, *arguments):
    code = main(list(arguments))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_new_terms_are_private_and_pass_the_check(files, capsys):
    assert run(capsys, "guard", "new")[0] == 0
    assert (files / "terms.toml").stat().st_mode & 0o077 == 0
    code, out, _ = run(capsys, "guard", "check", "--terms", "terms.toml", "--data", "d.npz")
    assert code == 0
    assert "at most 20 draws" in " ".join(out.split())
    code, out, _ = run(
        capsys, "guard", "check", "--terms", "terms.toml", "--records", "600", "--json"
    )
    found = json.loads(out)
    assert found["runs"]["spring"]["certified_epsilon"] <= 2.0
    assert run(capsys, "guard", "new")[0] == 2  # nothing is overwritten
    assert run(capsys, "guard", "new", "-")[1] == (files / "terms.toml").read_text()


def test_terms_from_a_plan(files, capsys):
    from dpcohort import Population, Training, make_plan

    clients = Population.from_arrays(
        sizes=[600] * 2, epsilon=[1.0, 4.0], delta=1e-5, ids=["a", "b"]
    )
    settings = Training(rounds=4, cohort_size=2, batch_size=60)
    make_plan(clients, settings, selection="unbiased", seed=0).save("plan.json")
    asked = ["guard", "new", "t.toml", "--plan", "plan.json"]
    assert "--client" in run(capsys, *asked)[2]
    assert run(capsys, *asked, "--client", "b", "--input-shape", "1xa")[0] == 2
    assert run(capsys, *asked, "--client", "b", "--input-shape", "1x8x8", "--user", "7")[0] == 0
    assert "allowed_users = [7]" in (files / "t.toml").read_text()
    assert "input_shape = [1, 8, 8]" in (files / "t.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["guard"], 2, "--terms, --data, --ledger, --socket"),
        (["guard", "--terms", "terms.toml"], 2, "--data, --ledger, --socket"),
        (["guard", "check", "--terms", "none.toml"], 2, "none.toml"),
        (["guard", "check", "--terms", "terms.toml"], 2, "--records"),
        (["guard", "check", "--terms", "terms.toml", "--records", "0"], 2, "--records"),
        (["guard", "check", "--terms", "terms.toml", "--data", "none.npz"], 3, "none.npz"),
        (["guard", "check", "--terms", "terms.toml", "--records", "10"], 2, "batch_size"),
    ],
    ids=[
        "nothing", "terms only", "no terms", "no data", "no records", "data missing", "few records",
    ],
)  # fmt: skip
def test_bad_input_is_explained(files, capsys, arguments, code, said):
    run(capsys, "guard", "new")
    found, _, err = run(capsys, *arguments)
    assert found == code
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_weak_terms_exit_with_the_budget_code(files, capsys):
    run(capsys, "guard", "new")
    text = (files / "terms.toml").read_text()
    weak = text.replace("# least_noise_multiplier = 2.5", "least_noise_multiplier = 0.2")
    (files / "terms.toml").write_text(weak)
    asked = ["guard", "check", "--terms", "terms.toml", "--records", "600"]
    code, _, err = run(capsys, *asked)
    assert code == 4
    assert "Ask for more noise" in " ".join(err.split())


def test_a_guard_serves_until_it_is_told_to_stop(files, capsys):
    run(capsys, "guard", "new")
    text = (files / "terms.toml").read_text()
    (files / "terms.toml").write_text(text.replace("same_user = false", "same_user = true"))
    heard = []

    def ask():
        for _ in range(2000):
            if (files / "g.sock").exists():
                break
            time.sleep(0.01)
        try:
            with GuardClient(files / "g.sock") as guard:
                heard.append(guard.hello("spring").records)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until the guard has its own
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        arguments = ["--terms", "terms.toml", "--data", "d.npz", "--ledger", "w.ledger"]
        arguments += ["--new-ledger"]
        code, out, err = run(capsys, "guard", *arguments, "--socket", str(files / "g.sock"))
    finally:
        asking.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    assert code == 0
    assert "ready: listening at" in " ".join(out.split())
    pinned = tomllib.loads((files / "terms.toml").read_text())["ledger_id"]
    assert f"w.ledger is the ledger {pinned}, pinned in terms.toml" in " ".join(out.split())
    assert "stopped. What was counted stays counted." in out
    assert "hello?: hello" in err
    assert heard == [600]
    assert not (files / "g.sock").exists()


def test_a_ledger_is_made_and_pinned_before_the_first_start_and_never_in_silence(files, capsys):
    run(capsys, "guard", "new")
    text = (files / "terms.toml").read_text()
    (files / "terms.toml").write_text(text.replace("same_user = false", "same_user = true"))
    asked = ["guard", "--terms", "terms.toml", "--data", "d.npz", "--socket", "g.sock"]
    code, _, err = run(capsys, *asked, "--ledger", "w.ledger")
    assert code == 3
    assert "there is no ledger at w.ledger" in " ".join(err.split())
    pin = ["guard", "pin", "--terms", "terms.toml", "--ledger", "w.ledger", "--json"]
    assert run(capsys, *pin)[0] == 3
    code, out, _ = run(capsys, *pin, "--new-ledger")
    assert code == 0
    pinned = tomllib.loads((files / "terms.toml").read_text())["ledger_id"]
    assert json.loads(out)["ledger_id"] == pinned
    code, out, _ = run(capsys, "ledger", "show", "w.ledger", "--json")
    assert json.loads(out)["ledger"] == pinned
    code, _, err = run(capsys, *asked, "--ledger", "w.legder")
    assert code == 3
    assert f"pin the ledger {pinned}" in " ".join(err.split())
    assert run(capsys, *asked, "--ledger", "w.ledger", "--new-ledger")[0] == 2


def _distributed(files, capsys):
    """Terms of the first of three clients that pool noise, with identities of all."""
    from dpcohort import Contract, Population, Training, make_plan

    people = Population.from_arrays(sizes=[600] * 3, epsilon=[1.0, 2.0, 4.0], delta=1e-5)
    training = Training(rounds=4, cohort_size=3, batch_size=60, dimension=650)
    distributed = Contract(trust="distributed")
    make_plan(people, training, seed=0, accountant=distributed).save(files / "plan.json")
    asked = ["guard", "new", "--plan", "plan.json", "--client", people.ids[0], "--user", "nobody"]
    code, _, err = run(capsys, *asked)
    assert code == 2
    assert "--members FILE.toml" in err
    lines = []
    for i, name in enumerate(people.ids):
        file = "identity.key" if i == 0 else f"{name}.key"
        found = json.loads(run(capsys, "guard", "identity", file, "--json")[1])
        assert found["made"]
        lines.append(f'"{name}" = "{found["public"]}"')
    assert (files / "identity.key").stat().st_mode & 0o077 == 0
    again = run(capsys, "guard", "identity")[1]
    assert "Found identity.key" in again
    assert lines[0].split('"')[-2] in again
    (files / "members.toml").write_text("\n".join(lines))
    assert run(capsys, *asked, "--members", "members.toml")[0] == 0
    return people.ids


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ("exponent", "0", "exponent = 0 is not allowed"),
        ("exponent", "10", "exponent = 10 is not allowed"),
        ("modulus_bits", "2", "modulus_bits = 2 is not allowed"),
        ("rounds", "3", "round of a cohort = 3 is not allowed"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["words", "json"])
def test_distributed_terms_that_cannot_work_do_not_pass_the_check(
    files, capsys, line, instead, said, more
):
    _distributed(files, capsys)
    text = (files / "terms.toml").read_text()
    changed = re.sub(rf"(?m)^{line} = \d+", f"{line} = {instead}", text)
    assert changed != text
    (files / "terms.toml").write_text(changed)
    asked = ["guard", "check", "--terms", "terms.toml", "--data", "d.npz", *more]
    code, out, err = run(capsys, *asked)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
