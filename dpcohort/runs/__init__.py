# SPDX-License-Identifier: Apache-2.0
"""Runs: a plan executed, written down as it happens, and checked afterwards.

Reading, verifying and comparing runs needs no torch; names are imported when first used, so only
training loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.runs.aggregation_record import aggregation_for as aggregation_for
    from dpcohort.runs.callbacks import EachRound as EachRound
    from dpcohort.runs.callbacks import ProgressBar as ProgressBar
    from dpcohort.runs.callbacks import TensorBoardLog as TensorBoardLog
    from dpcohort.runs.config_clients import configured_population as configured_population
    from dpcohort.runs.config_data import configured_data as configured_data
    from dpcohort.runs.config_data import data_section as data_section
    from dpcohort.runs.config_job import configured_job as configured_job
    from dpcohort.runs.config_job import configured_optimiser as configured_optimiser
    from dpcohort.runs.configured import configured_training as configured_training
    from dpcohort.runs.continuation import replan as replan
    from dpcohort.runs.evaluation import SIMULATION_ONLY as SIMULATION_ONLY
    from dpcohort.runs.evaluation import Comparison as Comparison
    from dpcohort.runs.evaluation import Interval as Interval
    from dpcohort.runs.evaluation import compare_runs as compare_runs
    from dpcohort.runs.evaluation import load_group as load_group
    from dpcohort.runs.evaluation import mean_interval as mean_interval
    from dpcohort.runs.evaluation import summarise_seeds as summarise_seeds
    from dpcohort.runs.evaluation import who_was_heard as who_was_heard
    from dpcohort.runs.folder import environment as environment
    from dpcohort.runs.folder import finite_json as finite_json
    from dpcohort.runs.job import ConfigSource as ConfigSource
    from dpcohort.runs.job import Job as Job
    from dpcohort.runs.job import JobOptions as JobOptions
    from dpcohort.runs.job import resolve_device as resolve_device
    from dpcohort.runs.partitions import held_out_within as held_out_within
    from dpcohort.runs.prediction import network_of as network_of
    from dpcohort.runs.prediction import records_for as records_for
    from dpcohort.runs.provenance import NOT_PRIVATE as NOT_PRIVATE
    from dpcohort.runs.receipts import ClientReceipt as ClientReceipt
    from dpcohort.runs.receipts import Receipt as Receipt
    from dpcohort.runs.receipts import make_receipts as make_receipts
    from dpcohort.runs.run import Callback as Callback
    from dpcohort.runs.run import Curve as Curve
    from dpcohort.runs.run import Run as Run
    from dpcohort.runs.training import folder_name as folder_name
    from dpcohort.runs.training import train as train
    from dpcohort.runs.training import train_group as train_group
    from dpcohort.runs.training import train_side_by_side as train_side_by_side
    from dpcohort.runs.verification import Finding as Finding
    from dpcohort.runs.verification import Verification as Verification
    from dpcohort.runs.verification import verify_run as verify_run

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    aggregation_record="aggregation_for",
    callbacks="EachRound ProgressBar TensorBoardLog",
    config_clients="configured_population",
    config_data="configured_data data_section",
    config_job="configured_job configured_optimiser",
    configured="configured_training",
    continuation="replan",
    evaluation=(
        "SIMULATION_ONLY Comparison Interval compare_runs load_group mean_interval "
        "summarise_seeds who_was_heard"
    ),
    folder="environment finite_json",
    job="ConfigSource Job JobOptions resolve_device",
    partitions="held_out_within",
    prediction="network_of records_for",
    provenance="NOT_PRIVATE",
    receipts="ClientReceipt Receipt make_receipts",
    run="Callback Curve Run",
    training="folder_name train train_group train_side_by_side",
    verification="Finding Verification verify_run",
)
