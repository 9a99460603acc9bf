# SPDX-License-Identifier: Apache-2.0
"""Data sets and how their records are spread over clients. numpy only; torch is never imported.

::

    load_dataset("mnist")  ->  Dataset  ->  paper_partition(labels, ...)  ->  Partition
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.data._dataset import Dataset as Dataset
    from dpcohort.data._dataset import Normalisation as Normalisation
    from dpcohort.data._dataset import dataset_from_arrays as dataset_from_arrays
    from dpcohort.data._fetch import fetch_dataset as fetch_dataset
    from dpcohort.data._load import DATASET_NAMES as DATASET_NAMES
    from dpcohort.data._load import DatasetRow as DatasetRow
    from dpcohort.data._load import FileStatus as FileStatus
    from dpcohort.data._load import check_dataset as check_dataset
    from dpcohort.data._load import describe_datasets as describe_datasets
    from dpcohort.data._load import load_dataset as load_dataset
    from dpcohort.data._load import user_cache as user_cache
    from dpcohort.data._partition import Partition as Partition
    from dpcohort.data._partition import column_partition as column_partition
    from dpcohort.data._partition import dirichlet_partition as dirichlet_partition
    from dpcohort.data._partition import join_clients as join_clients
    from dpcohort.data._partition import load_partition as load_partition
    from dpcohort.data._partition import paper_partition as paper_partition
    from dpcohort.data._partition import public_split as public_split
    from dpcohort.data._partition import save_partition as save_partition
    from dpcohort.data._persons import Persons as Persons
    from dpcohort.data._persons import PersonTerms as PersonTerms
    from dpcohort.data._tables import TableColumns as TableColumns
    from dpcohort.data._tables import dataset_from_table as dataset_from_table
    from dpcohort.data._tables import read_table as read_table

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _dataset="Dataset Normalisation dataset_from_arrays",
    _fetch="fetch_dataset",
    _load=(
        "DATASET_NAMES DatasetRow FileStatus check_dataset describe_datasets load_dataset "
        "user_cache"
    ),
    _partition=(
        "Partition column_partition dirichlet_partition join_clients load_partition "
        "paper_partition public_split save_partition"
    ),
    _persons="Persons PersonTerms",
    _tables="TableColumns dataset_from_table read_table",
)
