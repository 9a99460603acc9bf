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
    from dpcohort.data.fetch import DownloadProgress, fetch_dataset
    from dpcohort.data.load import DATASET_NAMES, load_dataset
    from dpcohort.data.partition import Partition, join_clients, load_partition, save_partition
    from dpcohort.data.partition_rules import (
        column_partition,
        dirichlet_partition,
        paper_partition,
        public_split,
    )
    from dpcohort.data.status import DatasetRow, FileStatus, check_dataset, describe_datasets

__all__ = [
    "DATASET_NAMES",
    "Dataset",
    "DatasetRow",
    "DownloadProgress",
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
    "DatasetRow": "status",
    "DownloadProgress": "fetch",
    "FileStatus": "status",
    "Normalisation": "dataset",
    "Partition": "partition",
    "check_dataset": "status",
    "column_partition": "partition_rules",
    "dataset_from_arrays": "dataset",
    "describe_datasets": "status",
    "dirichlet_partition": "partition_rules",
    "fetch_dataset": "fetch",
    "join_clients": "partition",
    "load_dataset": "load",
    "load_partition": "partition",
    "paper_partition": "partition_rules",
    "public_split": "partition_rules",
    "save_partition": "partition",
}

__getattr__ = names_on_use(__name__, _HOMES)
