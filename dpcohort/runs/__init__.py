# SPDX-License-Identifier: Apache-2.0
"""Runs: a plan executed, written down as it happens, and checked afterwards.

Reading, verifying and comparing runs needs no torch; names are imported when first used, so only
training loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.runs._aggregation_record import aggregation_for as aggregation_for
    from dpcohort.runs._callbacks import EachRound as EachRound
    from dpcohort.runs._callbacks import ProgressBar as ProgressBar
    from dpcohort.runs._callbacks import TensorBoardLog as TensorBoardLog
    from dpcohort.runs._config_clients import configured_population as configured_population
    from dpcohort.runs._config_data import configured_data as configured_data
    from dpcohort.runs._config_data import data_section as data_section
    from dpcohort.runs._config_job import configured_job as configured_job
    from dpcohort.runs._config_job import configured_optimiser as configured_optimiser
    from dpcohort.runs._configured import configured_training as configured_training
    from dpcohort.runs._continuation import replan as replan
    from dpcohort.runs._evaluation import Comparison as Comparison
    from dpcohort.runs._evaluation import Interval as Interval
    from dpcohort.runs._evaluation import compare_runs as compare_runs
    from dpcohort.runs._evaluation import load_group as load_group
    from dpcohort.runs._evaluation import mean_interval as mean_interval
    from dpcohort.runs._evaluation import summarise_seeds as summarise_seeds
    from dpcohort.runs._evaluation import who_was_heard as who_was_heard
    from dpcohort.runs._folder import environment as environment
    from dpcohort.runs._folder import no_run as no_run
    from dpcohort.runs._job import ConfigSource as ConfigSource
    from dpcohort.runs._job import Job as Job
    from dpcohort.runs._job import JobOptions as JobOptions
    from dpcohort.runs._job import resolve_device as resolve_device
    from dpcohort.runs._partitions import held_out_within as held_out_within
    from dpcohort.runs._prediction import network_of as network_of
    from dpcohort.runs._prediction import records_for as records_for
    from dpcohort.runs._provenance import NOT_PRIVATE as NOT_PRIVATE
    from dpcohort.runs._receipts import ClientReceipt as ClientReceipt
    from dpcohort.runs._receipts import Receipt as Receipt
    from dpcohort.runs._receipts import make_receipts as make_receipts
    from dpcohort.runs._run import Callback as Callback
    from dpcohort.runs._run import Curve as Curve
    from dpcohort.runs._run import Run as Run
    from dpcohort.runs._sweep import Workers as Workers
    from dpcohort.runs._training import folder_name as folder_name
    from dpcohort.runs._training import train as train
    from dpcohort.runs._training import train_group as train_group
    from dpcohort.runs._training import train_side_by_side as train_side_by_side
    from dpcohort.runs._verification import Finding as Finding
    from dpcohort.runs._verification import Verification as Verification
    from dpcohort.runs._verification import verify_run as verify_run

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _aggregation_record="aggregation_for",
    _callbacks="EachRound ProgressBar TensorBoardLog",
    _config_clients="configured_population",
    _config_data="configured_data data_section",
    _config_job="configured_job configured_optimiser",
    _configured="configured_training",
    _continuation="replan",
    _evaluation=(
        "Comparison Interval compare_runs load_group mean_interval summarise_seeds who_was_heard"
    ),
    _folder="environment no_run",
    _job="ConfigSource Job JobOptions resolve_device",
    _partitions="held_out_within",
    _prediction="network_of records_for",
    _provenance="NOT_PRIVATE",
    _receipts="ClientReceipt Receipt make_receipts",
    _run="Callback Curve Run",
    _sweep="Workers",
    _training="folder_name train train_group train_side_by_side",
    _verification="Finding Verification verify_run",
)
