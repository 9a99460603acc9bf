# SPDX-License-Identifier: Apache-2.0
"""MLflow as a callback of train; python mlflow_log.py sqlite:///mlflow.db RUN: a finished run."""

import sys

import mlflow

from dpcohort import Run


class MLflowLog:
    """Public settings, then the test results of each round.

    MLflow writes down when a number arrives, and times tell how many records were drawn. So it is
    refused in a private training, whose run is logged when it is finished.
    """

    writes_times = True

    def __init__(self, experiment="dpcohort"):
        mlflow.set_experiment(experiment)
        self._open = False

    def on_round(self, record, run):
        """Log one round; the last one ends the run there."""
        if not self._open:
            mlflow.start_run(run_name=run.settings.get("label"))
            mlflow.log_params({"plan": run.plan.sha256, "rule": run.plan.rule})
            self._open = True
        if record.scored is not None:
            numbers = {run.metric.name: record.scored.score, "loss": record.scored.loss}
            mlflow.log_metrics(numbers, step=record.round + 1)
        if record.round + 1 == run.plan.training.rounds:
            mlflow.end_run()
            self._open = False


if __name__ == "__main__":
    mlflow.set_tracking_uri(sys.argv[1])
    finished, log = Run.load(sys.argv[2]), MLflowLog()
    for one in finished.history:
        log.on_round(one, finished)
