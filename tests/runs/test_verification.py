# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpcohort import Population, make_plan
from dpcohort.accounting import Charge
from dpcohort.accounting._charges import private_clients, write_charge
from dpcohort.errors import BudgetExceededError, DataMissingError, InputError, VerificationError
from dpcohort.plan import Plan
from dpcohort.runs import Run, train, verify_run
from dpcohort.runs._continuation import charge_run
from dpcohort.runs._job import make_job
from dpcohort.runs._journal import journal_header, planned_draws
from dpcohort.runs._provenance import FLOATING_POINT
from dpcohort.runs._training import train_job

from .conftest import ROUNDS, adaptive_plan, small_plan


def problems(folder: Path) -> str:
    found = verify_run(folder)
    assert not found.holds
    return "\n".join(f"{f.kind} {f.subject}: {f.message}" for f in found.findings)


def a_receipt(folder: Path, client: str) -> Path:
    return next((folder / "receipts").glob(f"*-{client}.json"))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def drawn_client(folder: Path) -> str:
    plan = Plan.load(folder / "plan.json")
    return next(
        name
        for name, drawn, public in zip(
            plan.population.ids, plan.drawn, plan.population.public, strict=True
        )
        if drawn and not public
    )


def test_a_good_run_holds(finished, plan):
    found = verify_run(finished)
    assert found.holds
    assert found.findings == ()
    assert found.clients == int((plan.drawn & ~plan.population.public).sum())
    assert 0.9 < found.tightest <= 1
    assert found.to_dict()["holds"]
    assert verify_run(finished, method="pld").holds


def test_a_replayed_round_is_an_overspend_with_client_and_numbers(finished, plan):
    lines = (finished / "ledger.jsonl").read_text().splitlines(keepends=True)
    (finished / "ledger.jsonl").write_text("".join([*lines, *lines[1:]]))
    found = problems(finished)
    client = drawn_client(finished)
    assert f"overspent {client}: spent epsilon" in found
    assert "promised" in found
    assert "round 0 is counted twice" in found


def test_a_missing_line_is_an_uncounted_draw(finished):
    path = finished / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], *lines[3:]]))
    found = problems(finished)
    assert "round 1 is missing" in found
    assert "round 1 was computed but is not in the ledger" in found
    path.write_text("".join(lines[:-1]))
    assert f"round {ROUNDS - 1} was computed but is not in the ledger" in problems(finished)


def test_a_last_round_cannot_be_hidden(finished):
    for name in ("ledger.jsonl", "rounds.jsonl"):
        lines = (finished / name).read_text().splitlines(keepends=True)
        (finished / name).write_text("".join(lines[:-1]))
    found = problems(finished)
    assert "only 5 of 6 rounds are counted" in found
    assert "round-0000006.safetensors holds round 5, which is not in the ledger" in found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("certified_epsilon", 0.01),
        ("promised_epsilon", 99.0),
        ("spent_draws", 0),
        ("noise_multiplier", 50.0),
        ("stamp", "private"),
        ("plan", "0" * 64),
    ],
)
def test_a_receipt_is_not_believed(finished, key, value):
    client = drawn_client(finished)
    edit(a_receipt(finished, client), **{key: value})
    assert f"mismatch {client}: its receipt says {key}" in problems(finished)


def test_receipts_that_are_missing_doubled_or_invented(finished, plan):
    client = drawn_client(finished)
    path = a_receipt(finished, client)
    (finished / "receipts" / "99-copy.json").write_text(path.read_text())
    assert f"{client}: has two receipts" in problems(finished)
    edit(finished / "receipts" / "99-copy.json", client="nobody")
    assert "nobody: has a receipt though it was never drawn" in problems(finished)
    (finished / "receipts" / "99-copy.json").unlink()
    path.unlink()
    assert f"{client}: has no receipt" in problems(finished)
    path.write_text("{}")
    assert "receipts" in problems(finished)


def test_another_plan(finished):
    small_plan(seed=8).save(finished / "plan.json")
    found = problems(finished)
    assert "run.json" in found
    assert "ledger.jsonl: its first line" in found


def test_an_edited_plan(finished):
    path = finished / "plan.json"
    path.write_text(path.read_text().replace('"clip": 1.0', '"clip": 2.0'))
    assert "changed after it was written" in problems(finished)


def test_flipped_bytes_anywhere_are_found(finished):
    for name in ("model.safetensors", "checkpoints/round-0000006.safetensors", "partition.npz"):
        path = finished / name
        before = path.read_bytes()
        path.write_bytes(before[:-40] + bytes([before[-40] ^ 1]) + before[-39:])
        assert name.split("/")[0] in problems(finished)
        path.write_bytes(before)
    assert verify_run(finished).holds
    (finished / "model.safetensors").unlink()
    assert "model.safetensors: its SHA-256 is missing" in problems(finished)


def test_an_unfinished_run_is_judged_by_its_ledger(finished, plan):
    for name in ("result.json", "model.safetensors"):
        (finished / name).unlink()
    for path in (finished / "receipts").iterdir():
        path.unlink()
    found = verify_run(finished)
    assert found.holds
    assert {f.kind for f in found.findings} == {"note"}
    with open(finished / "ledger.jsonl", "a") as file:
        for t in range(ROUNDS):
            file.write(json.dumps({"round": t, "draws": planned_draws(plan, t)}) + "\n")
    assert "overspent" in problems(finished)


def test_files_that_cannot_be_read(finished, tmp_path):
    for name in ("run.json", "rounds.jsonl", "ledger.jsonl", "result.json"):
        path = finished / name
        before = path.read_bytes()
        path.write_bytes(b"{\n")
        assert name in problems(finished)
        path.write_bytes(before)
    with pytest.raises(DataMissingError):
        verify_run(tmp_path / "nothing")


def test_a_model_without_its_run_is_found(finished):
    for name in ("result.json", "rounds.jsonl"):
        (finished / name).unlink()
    (finished / "rounds.jsonl").write_text("")
    assert "not finished" in problems(finished)


@pytest.mark.parametrize("hashes", [5, {}, {"model": 5}, None])
def test_a_result_without_the_models_hash_is_found(finished, hashes):
    edit(finished / "result.json", sha256=hashes)
    assert "model.safetensors" in problems(finished)


@pytest.mark.parametrize("partition", [5, {}, None])
def test_strange_settings_are_a_mismatch_not_a_crash(finished, partition):
    edit(finished / "run.json", partition=partition)
    assert "partition" in problems(finished)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: line | {"train_loss": 0.1}, "train_loss"),
        (lambda line: line | {"noise_stds": [0.0] * len(line["noise_stds"])}, "noise of the plan"),
        (lambda line: line | {"noise_stds": "none"}, "noise of the plan"),
        (lambda line: line | {"clients": [*line["clients"][::-1], 0]}, "noise of the plan"),
    ],
)
def test_records_of_rounds_are_held_against_the_plan(finished, change, words):
    path = finished / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0] = change(lines[0])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert words in problems(finished)


def test_a_round_is_recorded_once(finished):
    path = finished / "rounds.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    assert f"round {ROUNDS - 1} is recorded twice" in problems(finished)


def test_records_of_a_finished_run_cannot_be_emptied(finished):
    (finished / "rounds.jsonl").write_text("")
    assert "rounds are recorded" in problems(finished)


def test_a_private_run_holds_and_names_its_noise(plan, secret, tmp_path):
    out = tmp_path / "private"
    run = train(plan, "logistic", secret, out=out, device="cpu")
    assert run.is_private
    assert verify_run(out).holds
    assert "ChaCha20" in json.loads((out / "run.json").read_text())["noise"]
    assert "cryptographic stream" in run.receipts()[0].stamp


def test_entropy_with_floating_point_noise_is_not_private(plan, secret, tmp_path):
    """Settings that do not say that noise was on a lattice."""
    out = tmp_path / "former"
    train(plan, "logistic", secret, out=out, device="cpu")
    settings = json.loads((out / "run.json").read_text())
    del settings["noise"]
    (out / "run.json").write_text(json.dumps(settings))
    found = problems(out)
    assert "overspent run: NOT PRIVATE (floating-point noise)" in found
    run = Run.load(out)
    assert not run.is_private
    assert run.receipts()[0].stamp == FLOATING_POINT


# ledgers of adaptive runs; whole runs: test_adaptive_runs


@pytest.fixture
def checked(tmp_path):
    """What is found, of the ledger and the clients, in a run that has got no further than this."""

    def check(plan, *entries):
        folder = tmp_path / "run"
        folder.mkdir()
        plan.save(folder / "plan.json")
        settings = {"plan": plan.sha256, "randomness": "seeded"}
        (folder / "run.json").write_text(json.dumps(settings))
        lines = [journal_header(plan), *entries]
        (folder / "ledger.jsonl").write_text("".join(json.dumps(e) + "\n" for e in lines))
        (folder / "rounds.jsonl").touch()
        found = verify_run(folder, method="pld").findings
        about = {"ledger.jsonl", *plan.population.ids}
        wrong = [f.message for f in found if f.kind == "mismatch" and f.subject in about]
        return wrong, [f.message for f in found if f.kind == "note"]

    return check


def test_nothing_is_wrong_with_nothing(checked):
    assert checked(adaptive_plan())[0] == []


@pytest.mark.parametrize(
    "entry",
    [
        {"round": 0},
        {"round": 0, "reports": "client-1"},
        {"round": 0, "reports": ["nobody"]},
        {"round": 0, "reports": ["client-1"], "secret": 1},
        {"round": 99, "reports": ["client-1"]},
        {"round": None, "cohort": []},
        {"round": 0, "cohort": ["client-1"]},
    ],
    ids=["empty", "word", "stranger", "more", "late", "no round", "short"],
)
def test_a_line_that_no_run_writes_is_found(checked, entry):
    assert checked(adaptive_plan(), entry)[0]


def test_draws_are_counted_even_when_they_are_wrong(checked):
    twice = {"round": 0, "cohort": ["client-1"] * 4}
    words = " ".join(checked(adaptive_plan(), twice, twice, twice)[0])
    assert "counted twice" in words
    assert "counts 12 draws, the cap is 6" in words


def test_a_cohort_that_the_rule_does_not_come_to_is_found(checked):
    entry = {"round": 0, "cohort": [f"client-{k}" for k in range(4)]}
    assert "another cohort" in checked(adaptive_plan("donated"), entry)[0][0]


@pytest.mark.parametrize(
    ("rule", "options", "words"),
    [("clustered", {}, "looks at updates"), ("rpow-d", {"reports": "raw"}, "not written down")],
)
def test_what_cannot_be_repeated_is_a_note(checked, rule, options, words):
    wrong, notes = checked(adaptive_plan(rule, **options))
    assert wrong == []
    assert words in notes[0]


def charge(people: Population, *after: Charge, epsilon: float = 0.5, delta: float = 1e-6) -> Charge:
    """What every client with a budget paid for tuning."""
    promised = {name: (whole, most) for _, name, whole, most in private_clients(people)}
    spent = dict.fromkeys(promised, (epsilon, delta))
    known = tuple(one.id for one in after)
    return Charge(what="tuning", private=False, promised=promised, spent=spent, after=known)


def charged_run(folder: Path) -> tuple[Path, Population]:
    """A run of clients who paid epsilon 0.5 and delta 1e-6 before it, and their whole promises."""
    left = small_plan()
    people = replace(left.population, epsilon=left.population.epsilon + 0.5)
    plan = make_plan(people, left.training, charges=[charge(people)], seed=0)
    train_job(make_job(plan, "logistic", "digits", device="cpu"), out=folder)
    return folder, people


def test_what_was_charged_and_what_the_plan_may_spend_are_within_the_promise(tmp_path):
    good, _ = charged_run(tmp_path / "good")
    assert verify_run(good).holds
    client = drawn_client(good)
    receipt = Run.load(good).receipt(client)
    assert receipt.holds
    assert receipt.total_epsilon == pytest.approx(receipt.certified_epsilon + 0.5)
    said = json.loads(a_receipt(good, client).read_text())["charged"]
    for changes, words in (
        ({"paid": []}, "does not follow from the rest"),
        ({"promised_epsilon": 99.0}, "its receipt says charged"),
    ):
        path = a_receipt(good, client)
        before = path.read_text()
        edit(path, charged={**said, **changes})
        assert words in problems(good)
        path.write_text(before)
    edited = json.loads((good / "plan.json").read_text())
    edited["past"]["paid"]["charges"][0]["spent"][client] = [0.25, 1e-6]
    (good / "plan.json").write_text(json.dumps(edited))
    assert "was changed after it was written" in problems(good)


def test_what_is_paid_after_a_run_is_added_and_not_above_the_promise(tmp_path):
    run, people = charged_run(tmp_path / "run")
    (first,) = Plan.load(run / "plan.json").past.paid.charges
    client = drawn_client(run)
    for wrong, kind, words in (
        (charge(people), InputError, "Nothing was spent now"),
        (charge(people, first), BudgetExceededError, "would have spent epsilon"),
        (first, InputError, "Nothing was spent now"),
        (replace(charge(people, first), after=(first.id, "0")), InputError, "is not named here"),
        (replace(charge(people, first), neighbours="replace-one"), InputError, "no common total"),
        (replace(charge(people, first), public=(client,)), InputError, "nothing bounds what"),
    ):
        with pytest.raises(kind, match=words):
            charge_run(run, wrong)
    assert not (run / "charges").exists()
    small = charge(people, first, epsilon=1e-6, delta=0.0)
    before = Run.load(run).receipt(client).total_epsilon
    charge_run(run, small)
    assert verify_run(run).holds
    after = json.loads(a_receipt(run, client).read_text())
    assert after["total_epsilon"] == pytest.approx(before + 1e-6, abs=1e-12)
    assert [one["id"] for one in after["charged"]["paid"]] == [first.id, small.id]
    # What stands in the folder counts, whatever receipts say, and is what it was.
    path = run / "charges" / f"{small.id}.json"
    kept = path.read_text()
    path.unlink()
    assert "its receipt says charged" in problems(run)
    path.write_text(kept.replace("1e-06", "0.0"))
    assert "was changed after it was written" in problems(run)
    path.write_text(kept)
    much = charge(people, first, small)
    write_charge(path.with_name(f"{much.id}.json"), much)
    assert f"overspent {client}: promised epsilon" in problems(run)
    write_charge(path.with_name(f"{'0' * 64}.json"), much)
    assert "it is the charge" in problems(run)


class _Look:
    """Verifies a run while it is trained, and can interrupt it."""

    def __init__(self, *, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.found: list[tuple[bool, bool, int]] = []

    def on_round(self, record, run):
        found = verify_run(run.path)
        self.found.append((found.holds, found.finished, found.rounds))
        if record.round == self.stop_after:
            raise KeyboardInterrupt


def test_a_look_at_a_resumed_training_is_no_contradiction(plan, digits, tmp_path):
    """Receipts of an interrupt count what was counted then, so a resume takes them away."""
    out = tmp_path / "run"
    settings = {"out": out, "device": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        train(plan, "logistic", digits, **settings, callbacks=[_Look(stop_after=2)])
    assert list((out / "receipts").iterdir())
    assert verify_run(out).rounds == 3
    look = _Look()
    train(plan, "logistic", digits, **settings, resume=True, callbacks=[look])
    assert look.found == [(True, False, done) for done in (4, 5, 6)]
    assert verify_run(out).finished


def test_an_interim_receipt_is_judged(plan, digits, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(plan, "logistic", digits, out=out, device="cpu", callbacks=[_Look(stop_after=2)])
    client = drawn_client(out)
    edit(a_receipt(out, client), holds=False)
    assert "'holds' does not follow from the rest" in problems(out)
    edit(a_receipt(out, client), holds=True, spent_draws=0)
    assert f"mismatch {client}: its receipt says spent_draws" in problems(out)


def test_a_finished_run_is_not_written_again(plan, digits, tmp_path):
    out = tmp_path / "run"
    settings = {"out": out, "device": "cpu"}
    train(plan, "logistic", digits, **settings)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    train(plan, "logistic", digits, **settings, resume=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    (out / "environment.json").write_text("{}")
    with pytest.raises(VerificationError, match=r"environment.json: its SHA-256"):
        train(plan, "logistic", digits, **settings, resume=True)
