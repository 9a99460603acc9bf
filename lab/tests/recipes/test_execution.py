# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort import runs
from dpcohort.errors import InputError
from dpcohort.metrics import METRICS
from dpcohort.runs import configured_job
from dpcohort.runs._training import train_job
from dpcohort_lab.recipes import execution, load_recipe
from dpcohort_lab.recipes.execution import measure, prepare, stacks


def every(known):
    return [found for by_seed in known.values() for found in by_seed.values()]


def test_every_cell_and_seed_is_measured_and_certified(recipe):
    told = []
    known = measure(recipe, device="cpu", progress=lambda *a: told.append(a))
    assert len(every(known)) == 4 * 2
    for found in every(known):
        assert found.promises_hold
        assert found.clients_drawn > 0
        assert [rounds for rounds, _ in found.curve] == [1, 2, 3]
        assert found.curve[-1][1] == pytest.approx(found.accuracy, abs=1e-3)
    assert told[-1][1] == told[-1][2] == 3 * 8
    cell = recipe.cells[2]  # what it has is what the same run alone has
    run = train_job(configured_job(cell.seeded(1), device="cpu"))
    assert known[cell.slug][1].accuracy == pytest.approx(100 * run.test_accuracy, abs=1e-4)


def test_a_stopped_command_goes_on(recipe, tmp_path, monkeypatch):
    trained = []
    whole = runs.train_side_by_side

    def dies(jobs, **rest):
        if trained:
            raise KeyboardInterrupt
        trained.append(len(jobs))
        return whole(jobs, **rest)

    monkeypatch.setattr(execution, "_CPU_STACK", 2)
    monkeypatch.setattr(runs, "train_side_by_side", dies)
    with pytest.raises(KeyboardInterrupt):
        measure(recipe, folder=tmp_path, device="cpu")
    counted = []

    def counts(jobs, **rest):
        counted.append(len(jobs))
        return whole(jobs, **rest)

    monkeypatch.setattr(runs, "train_side_by_side", counts)
    known = measure(recipe, folder=tmp_path, device="cpu")
    assert sum(counted) == 8 - 2
    assert len(every(known)) == 8
    counted.clear()
    measure(recipe, folder=tmp_path, device="cpu")
    assert counted == []


def test_what_cannot_be_trained_is_found_before_anything_is(recipe_path, recipe_text, monkeypatch):
    # Only the last cell has a batch that no client can fill.
    where = '[[recipe.where]]\nwhen = { mechanism = "privacy-aware", s = 0 }\n'
    where += 'set = ["training.batch_size=1000000"]\n\n'
    recipe_path.write_text(recipe_text.replace("[recipe.quick]", where + "[recipe.quick]"))
    monkeypatch.setattr(runs, "train_side_by_side", lambda *_, **__: pytest.fail("it trained"))
    with pytest.raises(InputError, match="privacy-aware, s = 0"):
        measure(load_recipe(recipe_path), device="cpu")


def test_only_what_goes_together_is_stacked(recipe):
    longer = recipe.in_form("full", changes=["training.rounds=4"])
    wanted = [(recipe.cells[0], 0), (longer.cells[0], 0), (recipe.cells[2], 1)]
    found = [
        [cell.label for cell, _, _ in stack] for stack in stacks(prepare(wanted, device="cpu"))
    ]
    assert found == [["unbiased, s = 100", "privacy-aware, s = 100"], ["unbiased, s = 100"]]


def test_both_forms_of_the_biased_baseline_train_within_the_budgets(biased):
    known = every(measure(biased, device="cpu"))
    assert {cell.adaptive for cell in biased.cells} == {None, "biased-raw", "biased-private"}
    assert len(known) == 4
    assert all(found.promises_hold for found in known)
    assert all(len(found.curve) == 3 for found in known)


def test_raw_losses_carry_no_noise_and_honest_ones_are_charged(biased):
    wanted = [(cell, 0) for cell in biased.cells if cell.adaptive]
    raw, honest = (job.plan for _, _, job in prepare(wanted, device="cpu"))
    assert raw.reports.mode == "raw"
    assert honest.reports.mode != "raw"
    assert (raw.report_stds == 0).all()
    assert (honest.report_stds > 0).all()
    # What the reports take is missing in the training steps.
    assert (honest.noise_multipliers >= raw.noise_multipliers).all()
    assert (honest.certified_epsilon <= honest.population.epsilon).all()


def test_a_task_without_an_accuracy_is_refused_before_it_is_trained(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "main_metric", lambda task: METRICS["rmse"])
    with pytest.raises(InputError, match="recipes are judged by accuracy"):
        measure(recipe, folder=tmp_path / "cells", device="cpu")
    assert not (tmp_path / "cells").exists()


def test_other_processes_measure_the_same(recipe, tmp_path):
    alone = measure(recipe, device="cpu")
    shared = measure(recipe, folder=tmp_path, device="cpu", workers=runs.Workers(2))
    assert [one.model_copy(update={"seconds": 0}) for one in every(shared)] == [
        one.model_copy(update={"seconds": 0}) for one in every(alone)
    ]
    assert len(list(tmp_path.glob("*.json"))) == len(recipe.cells)
