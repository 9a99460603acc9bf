# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from threading import Thread

import torch

from dpcohort.engine.threads import one_thread_each, use_one_thread


def test_threads_are_given_back() -> None:
    torch.set_num_threads(2)
    with one_thread_each():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_a_worker_keeps_to_its_thread() -> None:
    seen = []

    def work() -> None:
        use_one_thread()
        seen.append(torch.get_num_threads())

    worker = Thread(target=work)
    worker.start()
    worker.join()
    assert seen == [1]
