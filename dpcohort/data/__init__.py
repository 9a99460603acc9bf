# SPDX-License-Identifier: Apache-2.0
"""Data sets and how their records are spread over clients. numpy only; torch is never imported.

::

    load_dataset("mnist")  ->  Dataset  ->  paper_partition(labels, ...)  ->  Partition
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.data.dataset import Dataset, Normalisation, dataset_from_arrays
    from dpcohort.data.fetch import fetch_dataset
    from dpcohort.data.load import (
        DATASET_NAMES,
        DatasetRow,
        FileStatus,
        check_dataset,
        describe_datasets,
        load_dataset,
    )
    from dpcohort.data.partition import (
        Partition,
        column_partition,
        dirichlet_partition,
        join_clients,
        load_partition,
        paper_partition,
        public_split,
        save_partition,
    )

__all__ = [
    "DATASET_NAMES",
    "Dataset",
    "DatasetRow",
    "FileStatus",
    "Normalisation",
    "Partition",
    "check_dataset",
    "column_partition",
    "dataset_from_arrays",
    "describe_datasets",
    "dirichlet_partition",
    "fetch_dataset",
    "join_clients",
    "load_dataset",
    "load_partition",
    "paper_partition",
    "public_split",
    "save_partition",
]

_HOMES = {
    "DATASET_NAMES": "load",
    "Dataset": "dataset",
    "DatasetRow": "load",
    "FileStatus": "load",
    "Normalisation": "dataset",
    "Partition": "partition",
    "check_dataset": "load",
    "column_partition": "partition",
    "dataset_from_arrays": "dataset",
    "describe_datasets": "load",
    "dirichlet_partition": "partition",
    "fetch_dataset": "fetch",
    "join_clients": "partition",
    "load_dataset": "load",
    "load_partition": "partition",
    "paper_partition": "partition",
    "public_split": "partition",
    "save_partition": "partition",
}

__getattr__ = names_on_use(__name__, _HOMES)
