# SPDX-License-Identifier: Apache-2.0
"""Weights & Biases as a callback of train: python wandb_log.py FOLDER RUN logs a finished run."""

import sys

import wandb

from dpcohort import Run

#: It looks at nothing by itself: not at the machine, its load, the code or what is printed.
NOTHING_ELSE = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "host": "-",
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


class WandbLog:
    """Public settings, then the test results of each round; offline, until `wandb sync`.

    W&B writes down when a number arrives, and times tell how many records were drawn. So it is
    refused in a private training, whose run is logged when it is finished.
    """

    writes_times = True

    def __init__(self, folder):
        self._folder, self._run = folder, None

    def on_round(self, record, run):
        """Log one round; the last one ends the run there."""
        if self._run is None:
            public = {"plan": run.plan.sha256, "rule": run.plan.rule}
            settings = wandb.Settings(**NOTHING_ELSE)
            self._run = wandb.init(
                dir=self._folder, project="dpcohort", mode="offline", config=public,
                name=run.settings.get("label"), settings=settings,
            )  # fmt: skip
        found = record.scored
        numbers = {} if found is None else {run.metric.name: found.score, "loss": found.loss}
        self._run.log(numbers, step=record.round + 1)
        if record.round + 1 == run.plan.training.rounds:
            self._run.finish()
            self._run = None


if __name__ == "__main__":
    finished, log = Run.load(sys.argv[2]), WandbLog(sys.argv[1])
    for one in finished.history:
        log.on_round(one, finished)
